"""What the sweep scripts share: one command line, and the cells of a preset run on Ray.

cli.py: the command. sweep.py: what is to do, without Ray. tuning.py: all of it under one Tuner; graph.py: in
which order. inputs.py, nodes.py: what must be there first. leftovers.py: what dead trainers hold is freed.
plan_view.py, progress.py: what a person sees.
"""

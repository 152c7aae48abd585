"""The whole paper: pre-train, extend, fine-tune, ablate, sweep beta, probe and measure.

python sweeps/full_paper.py --preset smoke
"""

from sweeps.engine.cli import main

if __name__ == "__main__":
    main(None, __doc__)

"""What a person sees before the work: the plan, a search's rounds and choices."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from metatok.experiment import Cell, Home, Preset
from metatok.experiment.design import Cost, distinct_inputs, stages
from metatok.experiment.design.plan import input_disk
from metatok.experiment.inputs import Inputs
from metatok.experiment.ledger.search import Round
from metatok.experiment.ledger.standing import si

console = Console(highlight=False)


def print_plan(preset: Preset, home: Home, cells: Sequence[Cell], missing: Sequence[Cell]) -> None:
    """A row a stage: cells, how many are to do, and what those cost. Errors: ConfigError on the corpus."""
    todo = {cell.fingerprint for cell in missing}
    table = Table(
        title=f"Sweep {preset.name}",
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("stage", no_wrap=True)
    for name in ("cells", "done", "to do", "tokens", "FLOPs", "A100 hours", "weights", "training"):
        table.add_column(name, justify="right")
    for stage in (*stages(), "all"):
        if stage == "all":
            table.add_section()
        members = [cell for cell in cells if stage in ("all", cell.stage)]
        if members:
            table.add_row(stage, *_plan_row(members, [c for c in members if c.fingerprint in todo], preset))
    console.print(table)
    inputs = Inputs(home.datasets)
    make = sum(input_disk(config) for config in distinct_inputs(missing) if not inputs.ready(config))
    console.print(
        f"Home {home.root}. Disk: weights stay; training: step checkpoints of the largest cell, while it "
        f"trains; data sets to make: about {si(make)}B. "
        "A100 hours assume bf16 at 40% of peak; lengths are upper bounds."
    )


def _plan_row(members: Sequence[Cell], todo: Sequence[Cell], preset: Preset) -> list[str]:
    costs = sum((cell.cost() for cell in todo), Cost())
    training = max((cell.checkpoint_disk(preset.run) for cell in todo), default=0)
    return [
        str(len(members)),
        str(len(members) - len(todo)),
        str(len(todo)),
        si(costs.tokens),
        f"{costs.flops:.1e}",
        f"{costs.gpu_hours:.1f}" if costs.gpu_hours >= 0.05 else "<0.1",
        f"{si(costs.disk)}B",
        f"{si(training)}B",
    ]


def print_search(preset: Preset, unfinished: Round | None, dry_run: bool = False) -> None:
    """Which round of a hyperparameter search is next, or what it chose."""
    if unfinished is not None:
        later = " Planned with it: what follows the search, at the preset's own rate." if dry_run else ""
        console.print(
            f"Search of learning rate and steps, round {unfinished.number} of {unfinished.of}.{later}"
        )
    for choice in preset.finetune.chosen:
        console.print(
            f"Chosen for {choice.model} on {choice.task}: learning rate {choice.learning_rate:g}, "
            f"steps x {choice.step_factor:g}; exact match {choice.exact_match:.3f} "
            f"on {choice.n} validation examples."
        )

"""Kinds of cells: what each has fingerprinted so far, and that a new one is one file."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from metatok.errors import ConfigError
from metatok.experiment import PRESETS, Home, Ledger, get_preset
from metatok.experiment.design import all_kinds, with_ancestors
from metatok.experiment.design.cell import KINDS_PACKAGE
from metatok.experiment.ledger.gc import leftovers
from tests.sweeps.conftest import ROOT, environment

RECORDED = Path(__file__).with_name("fingerprints.csv")


def test_no_cell_of_any_preset_has_moved() -> None:
    """A kind's version is what moves its cells; `python -m tests.experiment.test_kinds` then records anew."""
    with RECORDED.open(newline="") as file:
        recorded = list(csv.reader(file))
    found = fingerprints()
    moved = {tuple(row) for row in recorded} ^ {tuple(row) for row in found}
    assert not moved, f"{len(moved)} rows differ, as {sorted(moved)[:4]}"


def fingerprints() -> list[list[str]]:
    """preset, slug and fingerprint of every cell, ancestors included."""
    return [
        [name, cell.slug, cell.fingerprint]
        for name in PRESETS
        for cell in with_ancestors(get_preset(name).cells())
    ]


def test_the_folders_listing_is_the_list_of_kinds() -> None:
    folder = ROOT / Path(*KINDS_PACKAGE.split("."))
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {kind.kind_name() for kind in all_kinds()}


MADE_UP = '''
"""Weighing: how many parameters a pre-trained model has, by counting them."""

from typing import ClassVar, Literal

from metatok.experiment import Cell, Pretrain
from metatok.experiment.design import Cost, Outcome


class Weigh(Cell):
    version: ClassVar[int] = 4
    kind: Literal["weigh"] = "weigh"
    base: Pretrain

    @classmethod
    def planned(cls, preset, seed, cells):
        return (cls(base=cell) for cell in cells if isinstance(cell, Pretrain))

    def cost(self):
        return Cost(flops=1.0)

    def run(self, context):
        model = self.base.frozen_model(context)
        return Outcome({"weight": model.num_parameters()})

'''
SWEEP = "import made_up; from sweeps.engine.cli import main; main()"
LOOK = "import made_up, sys; from metatok.experiment.__main__ import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.timeout(240)
def test_a_kind_in_one_file_is_planned_run_skipped_and_shown(tmp_path: Path) -> None:
    (tmp_path / "made_up.py").write_text(MADE_UP)
    home = tmp_path / "home"
    settings = environment(home, PYTHONPATH=f"{tmp_path}:{ROOT}")

    def call(code: str, *arguments: str) -> str:
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, env=settings, cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    smallest = ("--preset", "smoke", "--stages", "weigh", "--models", "meta_rope", "--seeds", "0", "1")
    smallest += ("--pretrain.steps", "2", "--pretrain.validation-sequences", "2", "--run.log-every", "2")
    plan = call(SWEEP, *smallest, "--dry-run")
    assert [line.split()[:4] for line in plan.splitlines() if line.startswith(" weigh ")] == [
        ["weigh", "2", "0", "2"]
    ]
    assert "Finished 4 of 4 cells" in call(SWEEP, *smallest)
    assert "Nothing to do" in call(SWEEP, *smallest)
    assert "pretrain 2/2, weigh 2/2" in call(LOOK, "status")
    with pytest.raises(ConfigError, match="metatok/weigh; import what defines them"):
        leftovers(Home.open(home), Ledger.open(Home.open(home)))
    ledger = Ledger.open(Home.open(home))
    assert not ledger.experiments.keys() & {"weigh"}  # this process knows nothing of it
    runs = ledger.client.search_runs([ledger.client.get_experiment_by_name("metatok/weigh").experiment_id])
    assert {run.data.metrics["weight"] for run in runs} == {parameters_of_the_model()}


def parameters_of_the_model() -> int:
    preset = get_preset("smoke").model_copy(update={"models": ("meta_rope",), "stages": ("pretrain",)})
    (cell,) = preset.cells()
    return cell.result_model.num_parameters()


if __name__ == "__main__":
    with RECORDED.open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows(fingerprints())

"""What diverged, failed, was deleted or belongs elsewhere gives no number, and the report says so."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from metatok.experiment import Cell, Finetune, Home, Ledger, Preset
from reports.exhibits.exhibit import DASH
from reports.report import build_report
from reports.source.provenance import provenance
from reports.source.results import Key, Results
from reports.source.runs import select

from .conftest import open_ledger
from .ledgers import all_cells, controls_preset, fail, write

TWO = controls_preset("gpt2_rope", "meta_rope", seeds=2).model_copy(update={"tasks": ("list_recall",)})


def half(cell: Cell, eval_length: int, n: int) -> np.ndarray:
    return np.arange(n) < n // 2


def labelled(model: str, seed: int, kind: str = "pretrain") -> Callable[[Cell], bool]:
    def found(cell: Cell) -> bool:
        return cell.kind == kind and (cell.labels["model"], cell.labels["seed"]) == (model, seed)

    return found


def results(ledger: Ledger, expected: Preset | None = TWO) -> Results:
    return Results(ledger, select(ledger, expected=expected))


def at(model: str) -> Key:
    return Key(model, "list_recall", 128, 256)


class Troubled(NamedTuple):
    """All runs are FINISHED and have scores, but those of one seed's meta_rope and of both seeds' gpt2_rope
    build on a model whose loss was none."""

    ledger: Ledger
    out: Path
    page: str


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Troubled:
    home = Home.open(tmp_path_factory.mktemp("diverged"))
    bad = {("meta_rope", 1): {"validation_loss": math.nan}}
    bad |= {("gpt2_rope", seed): {"grad_norm": math.inf} for seed in (0, 1)}

    def more(cell: Cell) -> dict[str, float]:
        place = (str(cell.labels["model"]), int(cell.labels["seed"]))
        return bad.get(place, {}) if cell.kind == "pretrain" else {}

    with open_ledger(home) as ledger:
        write(ledger, all_cells(TWO), TWO.name, half, more)
        report = build_report(home, home.root / "report", expected=TWO)
    return Troubled(ledger, report.page.parent, report.page.read_text())


def test_what_builds_on_a_diverged_model_gives_no_number(diverged: Troubled):
    found = results(diverged.ledger)
    assert at("gpt2_rope") not in found.exact
    point = found.exact[at("meta_rope")]
    assert (point.n, point.seeds, point.lost) == (200, 1, "1 seed diverged")
    scores = pd.read_csv(diverged.out / "scores.csv")
    assert set(zip(scores.model, scores.seed, strict=True)) == {("meta_rope", 0)}


def test_a_diverged_coordinate_says_so(diverged: Troubled):
    text = (diverged.out / "table_07.md").read_text()
    assert "| GPT-2 + RoPE | 128 | diverged | diverged |" in text
    assert "n=200; 1 seed diverged |" in text
    assert "- finetune: model gpt2_rope; task list_recall; train length 128; seed 0, 1 (diverged)" in text
    bars = pd.read_csv(diverged.out / "figure_1.csv").query("model == 'gpt2_rope'")
    assert bars.value.isna().all()
    assert "diverged, without a number" in diverged.page
    # Three pre-trainings and what builds on them.
    facts = dict(provenance(results(diverged.ledger)).facts)
    assert facts["diverged, without a number"].startswith("6: ")


def test_nothing_is_claimed_of_a_diverged_model(diverged: Troubled):
    page = pd.read_csv(diverged.out / "claims.csv")
    assert set(page.verdict) == {"not tested"}
    assert page.value.isna().all()


def test_a_failed_cell_and_what_builds_on_it(tmp_path: Path):
    with open_ledger(Home.open(tmp_path)) as ledger:
        cells = all_cells(TWO)
        (base,) = filter(labelled("gpt2_rope", 0), cells)
        (tuned,) = filter(labelled("meta_rope", 0, "finetune"), cells)
        write(ledger, [c for c in cells if c is not tuned and base not in c.lineage], TWO.name, half)
        fail(ledger, base, TWO.name, "Diverged: loss nan at step 7")
        fail(ledger, tuned, TWO.name, "OutOfMemory: of this one")
        found = results(ledger)
        assert found.exact[at("gpt2_rope")].lost == "1 seed failed"  # it never ran, as its base failed
        assert found.exact[at("meta_rope")].lost == "1 seed failed"
        assert {(m["model"], m["seed"], m["state"]) for m in found.missing("finetune")} == {
            ("gpt2_rope", "0", "failed"),
            ("meta_rope", "0", "failed"),
        }
        facts = dict(provenance(found).facts)
        assert "loss nan at step 7" in facts["failed, without a number"]
        assert facts["failed, without a number"].startswith("2: ")


def test_a_diverged_run_is_not_replaced_by_another_configuration(tmp_path: Path):
    with open_ledger(Home.open(tmp_path)) as ledger:
        cells = all_cells(TWO)
        tuned = [c for c in cells if isinstance(c, Finetune) and c.labels["model"] == "meta_rope"]
        write(ledger, cells, TWO.name, half, lambda c: {"loss": math.nan} if c in tuned else {})
        others = [Finetune.model_validate(c.model_dump() | {"batch_size": 7}) for c in tuned]
        write(ledger, others, TWO.name, half)
        found = results(ledger)
        assert at("meta_rope") not in found.exact
        assert found.trouble_at(at("meta_rope")) == "diverged"
        assert set(found.left_out.fingerprint) == {c.fingerprint for c in others}


def test_a_deleted_run_is_a_cell_to_do_and_what_built_on_it_stays_pooled(tmp_path: Path):
    with open_ledger(Home.open(tmp_path)) as ledger:
        cells = all_cells(TWO)
        write(ledger, cells, TWO.name, half)
        (base,) = filter(labelled("meta_rope", 0), cells)
        (tuned,) = filter(labelled("gpt2_rope", 1, "finetune"), cells)
        for run in ledger.runs([base.fingerprint, tuned.fingerprint]).values():
            ledger.client.delete_run(run.run_id)
        found = results(ledger)
        assert [c["kind"] for kind in ("pretrain", "finetune") for c in found.missing(kind)] == [
            "pretrain",
            "finetune",
        ]
        assert found.exact[at("meta_rope")].seeds == 2
        assert found.exact[at("gpt2_rope")].seeds == 1


def test_two_versions_of_the_code_are_not_pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with open_ledger(Home.open(tmp_path)) as ledger:
        cells = all_cells(TWO)
        old = [c for c in cells if c.labels["seed"] == 0]
        with monkeypatch.context() as patch:
            patch.setattr(Finetune, "version", Finetune.version - 1)
            write(ledger, [c.model_copy() for c in old], TWO.name, lambda c, length, n: np.zeros(n, bool))
        write(ledger, [c for c in cells if c.labels["seed"] == 1], TWO.name, half)
        assert results(ledger).exact[at("meta_rope")].n == 200
        # Where nothing says which cells are wanted, the newest version alone counts, too.
        point = Results(ledger, select(ledger, TWO.name)).exact[at("meta_rope")]
        assert (point.n, point.pooled.value) == (200, 0.5)


def test_another_presets_runs_are_told_and_not_shown(tmp_path: Path):
    with open_ledger(Home.open(tmp_path)) as ledger:
        write(ledger, all_cells(TWO), TWO.name, half)
        other = TWO.model_copy(update={"name": "other", "precision": "bf16"})
        write(ledger, all_cells(other), "other", lambda cell, length, n: np.ones(n, bool))
        found = results(ledger)
        assert found.exact[at("meta_rope")].pooled.value == 0.5
        assert found.selection.others == {"other": 8}


def test_a_ledger_of_failures_alone_gives_a_report(tmp_path: Path):
    home = Home.open(tmp_path)
    with open_ledger(home) as ledger:
        for cell in all_cells(TWO)[:2]:
            fail(ledger, cell, TWO.name, "Diverged: at once")
        report = build_report(home, tmp_path / "out", expected=TWO)
        assert report.verdicts["not tested"] == 13
        assert DASH not in (tmp_path / "out" / "scores.csv").read_text()
        assert len(pd.read_csv(tmp_path / "out" / "scores.csv")) == 0
        assert "| failed |" in (tmp_path / "out" / "table_07.md").read_text()


def test_mlflow_keeps_infinity_as_the_largest_float(diverged: Troubled):
    records = diverged.ledger.records("pretrain")
    assert any(r.metrics.get("grad_norm") == sys.float_info.max for r in records)

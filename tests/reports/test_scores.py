"""The tidy table of scores, the script that compares two of them, and steps to 90%."""

import math
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from metatok.experiment import Cell, Home
from reports.exhibits.steps import censored_median, steps_to_90
from reports.source.results import Results
from reports.source.runs import select

from .conftest import Small, open_ledger
from .ledgers import N, all_cells, controls_preset, write

SCRIPT = Path(__file__).parents[2] / "reports" / "compare_scores.py"


def compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)


@pytest.fixture
def scores(small: Small) -> pd.DataFrame:
    return small.csv("scores")


def test_a_row_a_score(scores: pd.DataFrame):
    at = scores.query("kind == 'finetune' and model == 'meta_rope' and task == 'list_recall' and seed == 1")
    found = at.query("train_length == 128 and eval_length == 256").set_index("metric")
    exact = found.loc["exact_match"]
    assert (exact.value, exact.n, exact.base_rate, exact.setting) == (20 / N, N, 0.1, "full")
    assert found.loc["token_accuracy"].value == pytest.approx((1 + 20 / N) / 2)
    assert math.isnan(found.loc["token_accuracy"].base_rate)
    rates = scores.query("kind == 'rate_distortion' and setting == 'meta, beta 0.1' and metric == 'rate'")
    assert set(rates.value) == {10.0}


def test_a_place_has_one_score_and_rows_are_sorted(scores: pd.DataFrame):
    place = list(scores.columns[:8])
    assert not scores.duplicated(place).any()
    assert scores.sort_values(place, ignore_index=True).equals(scores)


def test_timings_are_no_scores(scores: pd.DataFrame):
    assert "efficiency" not in set(scores.kind)
    assert not scores.metric.str.contains("second|learning_rate|grad_norm").any()


def test_a_report_equals_itself(small: Small):
    done = compare(small.out / "scores.csv", small.out / "scores.csv")
    assert done.returncode == 0
    assert "scores are equal." in done.stdout


def test_what_differs_is_told(small: Small, scores: pd.DataFrame, tmp_path: Path):
    changed = scores.copy()
    row = changed.query("model == 'meta_rope' and task == 'parity' and metric == 'exact_match'").index[0]
    changed.loc[row, "value"] += 0.125
    gone = changed.query("kind == 'pretrain'").index[0]
    changed.drop(index=gone).to_csv(tmp_path / "b.csv", index=False)
    done = compare(small.out / "scores.csv", tmp_path / "b.csv")
    assert done.returncode == 1
    assert "1 scores only in the first:\n  pretrain " in done.stdout
    assert "1 scores differ, by up to 0.125:" in done.stdout
    assert "(+0.125)" in done.stdout
    changed.to_csv(tmp_path / "b.csv", index=False)
    assert compare(small.out / "scores.csv", tmp_path / "b.csv", "--tolerance", 0.2).returncode == 0


def test_the_same_share_of_other_examples_is_another_score(
    small: Small, scores: pd.DataFrame, tmp_path: Path
):
    scores.assign(n=scores.n * 2).to_csv(tmp_path / "b.csv", index=False)
    assert compare(small.out / "scores.csv", tmp_path / "b.csv").returncode == 1


def test_another_cell_of_the_same_score_is_told_and_passes(
    small: Small, scores: pd.DataFrame, tmp_path: Path
):
    scores.assign(fingerprint="0" * 64).to_csv(tmp_path / "b.csv", index=False)
    done = compare(small.out / "scores.csv", tmp_path / "b.csv")
    assert done.returncode == 0
    assert f"{len(scores)} come from cells of different fingerprints" in done.stdout


def test_a_file_that_is_none(small: Small, tmp_path: Path):
    for other in (tmp_path / "nowhere.csv", small.out / "table_07.csv"):
        done = compare(small.out / "scores.csv", other)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("steps", "median"),
    [
        ([300], 300),
        ([100, 300, math.inf], 300),
        ([100, math.inf], math.inf),  # half are not reached
        ([100, math.inf, math.inf], math.inf),
        ([100, 200, 400, math.inf], 300),
    ],
)
def test_what_is_not_reached_is_censored(steps: list[float], median: float):
    assert censored_median(steps) == median


def test_steps_to_90_by_model(tmp_path: Path):
    preset = controls_preset("gpt2_rope", "meta_rope").model_copy(update={"tasks": ("list_recall",)})
    reached = {("meta_rope", 0): 400, ("meta_rope", 1): 700, ("gpt2_rope", 2): 1500}

    def more(cell: Cell) -> dict[str, float]:
        if cell.kind != "finetune":
            return {}
        steps = reached.get((str(cell.labels["model"]), int(cell.labels["seed"])))
        return {"n_validation": 50} | ({} if steps is None else {"steps_to_90": steps})

    cells = all_cells(preset)
    budget = next(c.steps for c in cells if c.kind == "finetune")
    with open_ledger(Home.open(tmp_path)) as ledger:
        write(ledger, cells, preset.name, lambda cell, length, n: pd.Series(range(n)).to_numpy() < 9, more)
        table = steps_to_90(Results(ledger, select(ledger, expected=preset)))
    shown = dict(zip(table.frame.model, map(str, table.frame["128"]), strict=True))
    assert shown == {
        "GPT-2 + RoPE": f"> {budget:,} 1 of 3 seeds; n=50",
        "Meta + RoPE": "700 2 of 3 seeds; n=50",
    }
    assert not table.missing


def test_without_a_curve_nothing_is_recorded(small: Small):
    table = small.exhibit("steps_to_90")
    assert table.missing == ["not recorded: no fine-tune here was scored on validation while it trained"]
    assert not table.runs
    assert set(table.data.state) == {"not recorded", "missing"}

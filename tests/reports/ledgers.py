"""Ledgers written without any training: real cells in a real MLflow, with results known in closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pyarrow as pa

from metatok.experiment import (
    Ablate,
    Cell,
    Efficiency,
    Finetune,
    Ledger,
    Preset,
    Probe,
    RateDistortion,
    get_preset,
)
from metatok.experiment.design import with_ancestors

N = 40
FULL = {("list_recall", 0): 10, ("list_recall", 1): 20, ("parity", 0): 30, ("parity", 1): 30}
ANSWER_TOKENS = 2
TAGS = {"git_commit": "0123abcd", "version.torch": "2.11.0", "host": "testhost", "gpu": "none", "cpus": "2"}

# Which of n examples are right, for a cell and an eval length.
Right = Callable[[Cell, int, int], np.ndarray]
# What a cell's run has besides, or instead, of its final metrics.
More = Callable[[Cell], Mapping[str, float]]


def write(
    ledger: Ledger, cells: Iterable[Cell], preset: str, right: Right, more: More = lambda cell: {}
) -> None:
    """A finished run for each cell."""
    for cell in cells:
        run = ledger.claim(cell, TAGS | {"preset": preset})
        assert run is not None
        metrics, tables = results_of(cell, right)
        for name, table in tables.items():
            run.table(name, table)
        run.finish({**metrics, **more(cell)})


def fail(ledger: Ledger, cell: Cell, preset: str, why: str) -> None:
    """A failed run."""
    run = ledger.claim(cell, TAGS | {"preset": preset})
    assert run is not None
    run.fail(f"Traceback\n{why}")


def results_of(cell: Cell, right: Right) -> tuple[Mapping[str, float], Mapping[str, pa.Table]]:
    if isinstance(cell, Finetune | Ablate):
        return _scores(cell, right)
    if isinstance(cell, RateDistortion):
        at_last = cell.site == "last_non_meta"
        return {"rate": 1 / cell.beta, "distortion": 5 + cell.beta + at_last, "n": cell.n_examples}, {}
    if isinstance(cell, Efficiency):
        return _speed(), {}
    if isinstance(cell, Probe):
        return _probe(cell)
    return {"validation_loss": 1.0, "n_validation_tokens": 100, "parameters": 10}, {}


def _scores(cell: Finetune | Ablate, right: Right) -> tuple[Mapping[str, float], Mapping[str, pa.Table]]:
    tuned = cell if isinstance(cell, Finetune) else cell.base
    n, metrics, parts = tuned.n_test, {}, []
    for length in tuned.eval_lengths:
        exact = right(cell, length, n)
        metrics |= {
            f"exact_match/{length}": float(exact.mean()),
            f"token_accuracy/{length}": float((1 + exact).sum() / (ANSWER_TOKENS * n)),
            f"n/{length}": n,
            f"majority_share/{length}": 0.5 if tuned.task == "parity" else 0.1,
        }
        parts.append(
            pa.table(
                {
                    "eval_length": np.full(n, length),
                    "index": np.arange(n),
                    "prompt_tokens": np.full(n, length - 1),
                    "answer_tokens": np.full(n, ANSWER_TOKENS),
                    "correct_tokens": 1 + exact.astype(int),
                    "exact": exact,
                }
            )
        )
    return metrics, {"records": pa.concat_tables(parts)}


def _speed() -> Mapping[str, float]:
    values = {
        "with_meta": 100.0,
        "without_meta": 110.0,
        "ttft_with_meta": 5.0,
        "ttft_without_meta": 4.0,
        "slowdown": 1.1,
        "ttft_ratio": 1.25,
        "step_ratio/without_extra": 0.9,
        "step_ratio/dense_mask": 1.5,
    }
    metrics = {"n_text": 96.0, "n_meta": 9.0, "new_tokens": 16.0}
    for name, value in values.items():
        parts = {"median": value, "q25": value * 0.9, "q75": value * 1.1, "n": 7}
        metrics |= {f"{name}_{part}": number for part, number in parts.items()}
    return metrics


def _probe(cell: Probe) -> tuple[Mapping[str, float], Mapping[str, pa.Table]]:
    tokens, layers = ["Birds", ":", " $5_a", "\n", " _PAUSE_"], 2
    places = {"position": np.arange(len(tokens)), "token": tokens}
    if cell.analysis == "sharpness":
        example = np.repeat(np.arange(cell.n_examples), 2)
        boost = np.where(example % 2 == 0, 1.0, 3.0)
        table = pa.table(
            {"example": example, "position": example, "max_logit_boost": boost, "entropy_drop": boost / 10}
        )
        rates = {"premise_rate": 0.25, "entropy_fall_rate": 0.5, "fall_given_premise": 1.0}
        return {**rates, "n_meta_tokens": len(table), "n_attention_rows": 40}, {"sharpness": table}
    name = {"residual": "similarity", "attention": "weight"}[cell.analysis]
    rows = layers + (cell.analysis == "residual")
    table = pa.table(
        {
            "layer": np.repeat(np.arange(rows), len(tokens)),
            "position": np.tile(places["position"], rows),
            "token": tokens * rows,
            name: np.linspace(0, 1, rows * len(tokens)),
        }
    )
    return {"n_examples": cell.n_examples}, {f"{cell.analysis}_map": table}


def all_cells(preset: Preset) -> list[Cell]:
    return with_ancestors(preset.cells())


def right(cell: Cell, eval_length: int, n: int) -> np.ndarray:
    """The first k examples are right; "no pos" loses the first 2 and gains the next 8; else none is."""
    labels = cell.labels
    k = FULL[str(labels["task"]), int(labels["seed"])]
    index = np.arange(n)
    setting = labels.get("setting", "full")
    if setting == "full":
        return index < k
    return (index >= 2) & (index < k + 8) if setting == "no_pos" else np.zeros(n, bool)


def small_preset() -> Preset:
    """Two models, two tasks, two seeds, at lengths of which the paper has some."""
    smoke = get_preset("smoke")
    return smoke.model_copy(
        update={
            "name": "small",
            "models": ("gpt2_ape", "meta_rope"),
            "tasks": ("list_recall", "parity"),
            "seeds": (0, 1),
            "size": smoke.size.model_copy(update={"context_length": 512}),
            "extend": smoke.extend.model_copy(
                update={"scales": (2.0,), "train_lengths": (1024,), "eval_lengths": (1024,), "n_test": N}
                | {"tasks": ("list_recall",)}
            ),
            "finetune": smoke.finetune.model_copy(
                update={"train_lengths": (128, 256), "eval_lengths": (256, 512, 1024), "n_test": N}
            ),
            "analysis": smoke.analysis.model_copy(
                update={"noise_scales": (0.5,), "betas": (0.1, 1.0), "probe_examples": 4}
            ),
        }
    )


def controls_preset(*models: str, seeds: int = 3) -> Preset:
    """Fine-tunes alone of these models on list recall, copying and parity, one train length, two lengths."""
    small = small_preset()
    return small.model_copy(
        update={
            "name": "controls",
            "models": models,
            "tasks": ("list_recall", "copying", "parity"),
            "seeds": tuple(range(seeds)),
            "stages": ("pretrain", "finetune"),
            "extend": small.extend.model_copy(update={"scales": ()}),
            "finetune": small.finetune.model_copy(
                update={"train_lengths": (128,), "eval_lengths": (128, 256), "n_test": 200}
            ),
        }
    )

"""Every score of a report as one tidy table, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from metatok.errors import ConfigError
from reports.source.results import Results
from reports.source.runs import is_finite

# Where a score stands: no two rows of a table have these alike.
PLACE = ("kind", "model", "task", "train_length", "eval_length", "setting", "seed", "metric")
COLUMNS = (*PLACE, "value", "n", "base_rate", "fingerprint")
_WHOLE = ("train_length", "eval_length", "seed", "n")
_BY_LENGTH = ("exact_match", "token_accuracy")
# Final metrics that are results; timings are not, as no two runs have the same.
_FINAL = {
    "pretrain": ("validation_loss",),
    "extend": ("validation_loss",),
    "finetune": ("steps_to_90",),
    "rate_distortion": ("rate", "distortion", "distortion_at_mean"),
}
_COUNTS = ("n", "n_validation", "n_validation_tokens", "n_meta_tokens", "n_examples")


def score_table(results: Results) -> pd.DataFrame:
    """A row for each shown run, eval length and metric, in the order of PLACE.

    value and base_rate as the runs have them: shares, losses in nats, steps. n: what the value is a mean
    over. setting: of a probe its analysis, of a rate-distortion point site and beta.
    """
    rows = [row for run in results.shown.to_dict("records") for row in _rows(run)]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(_WHOLE, "Int64")).sort_values(list(PLACE), ignore_index=True)


def _rows(run: dict) -> Iterator[dict[str, object]]:
    metrics = {name: value for name, value in run["record"].metrics.items() if is_finite(value)}
    shared = {name: run[name] for name in ("kind", "model", "task", "fingerprint")}
    shared |= {"setting": _setting(run), "seed": int(run["seed"])}
    shared |= {"train_length": int(run["train_length"]) if run["train_length"] else None}
    for name, value in sorted(metrics.items()):
        metric, _, length = name.partition("/")
        if metric in _BY_LENGTH:
            place = {"eval_length": int(length), "n": round(metrics[f"n/{length}"])}
            base = metrics.get(f"majority_share/{length}") if metric == "exact_match" else None
            yield shared | place | {"metric": metric, "value": value, "base_rate": base}
        elif metric in _FINAL.get(run["kind"], ()) or (
            run["kind"] == "probe" and not metric.startswith("n_")
        ):
            n = next((round(metrics[count]) for count in _COUNTS if count in metrics), None)
            yield shared | {"metric": name, "value": value, "n": n}


def _setting(run: dict) -> str:
    if run["kind"] == "rate_distortion":
        return f"{run['site']}, beta {float(run['beta']):g}"
    return run["analysis"] or run["setting"] or ("full" if run["kind"] == "finetune" else "")


def read_scores(path: Path) -> pd.DataFrame:
    """The table that a report wrote. Errors: ConfigError if there is none there."""
    try:
        frame = pd.read_csv(
            path,
            dtype=dict.fromkeys((*PLACE, "fingerprint"), str) | dict.fromkeys(_WHOLE, "Int64"),
            keep_default_na=False,
            na_values={name: [""] for name in (*_WHOLE, "value", "base_rate")},
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as a table of scores: {error}") from None
    if list(frame.columns) != list(COLUMNS):
        raise ConfigError(f"{path} is no scores.csv: its columns are {', '.join(map(str, frame.columns))}")
    return frame


@dataclass(frozen=True)
class Differences:
    """only_first, only_second: rows at places that the other has not. moved: places whose value differs by
    more than a tolerance, with value_first, value_second and change. other_runs: places of one value, though
    from cells of different fingerprints. equal: places that are alike.
    """

    only_first: pd.DataFrame
    only_second: pd.DataFrame
    moved: pd.DataFrame
    other_runs: int
    equal: int

    @property
    def any(self) -> bool:
        """Whether scores differ; another fingerprint with the same score does not count."""
        return bool(len(self.only_first) or len(self.only_second) or len(self.moved))


def differences(first: pd.DataFrame, second: pd.DataFrame, tolerance: float = 0.0) -> Differences:
    """What differs between two tables of scores. tolerance: in the value's own unit."""
    both = first.merge(second, on=list(PLACE), how="outer", suffixes=("_first", "_second"), indicator=True)
    shared = both[both["_merge"] == "both"]
    change = shared.value_second - shared.value_first
    unequal = np.abs(change) > tolerance
    # Another number of examples is another score, though the share be the same.
    unequal |= shared.n_first.ne(shared.n_second) & ~(shared.n_first.isna() & shared.n_second.isna())
    alike = shared[~unequal]
    return Differences(
        both[both["_merge"] == "left_only"],
        both[both["_merge"] == "right_only"],
        shared[unequal].assign(change=change[unequal]),
        int((alike.fingerprint_first != alike.fingerprint_second).sum()),
        len(alike),
    )

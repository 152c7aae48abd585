"""Of several runs at the same labels, those that count."""

from __future__ import annotations

from typing import Any

import pandas as pd

from metatok.experiment import RunRecord
from metatok.experiment.design import kind_names
from reports.source.runs import LABELS

# The labels within which one configuration is shown; a rate-distortion curve is one as a whole.
_GROUPED_BY = [name for name in LABELS if name not in ("seed", "site", "beta")]
_NOT_SHOWN = {"candidate"}  # a search's, of which its choice is told
_BUILT_ON_SHOWN = {"ablate": "finetune", "probe": "finetune"}


def choose(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs that count, and those left out for another configuration at the same labels.

    The preset's own configuration counts where it is there, be it as runs that came to nothing; else the
    newest that gives numbers. What is built on a fine-tune counts only with that fine-tune.
    """
    shown: dict[str, pd.DataFrame] = {}
    left_out: list[pd.DataFrame] = []
    for kind in (name for name in kind_names() if name not in _NOT_SHOWN):
        mine = runs[runs.kind == kind]
        if kind in _BUILT_ON_SHOWN:
            on_shown = mine.parent.isin(set(shown[_BUILT_ON_SHOWN[kind]].fingerprint))
            left_out.append(mine[~on_shown].assign(why="built on a fine-tune that is not shown"))
            mine = mine[on_shown]
        kept, rest = _kept(mine)
        shown[kind] = mine[mine.index.isin(kept)]
        left_out.append(mine.loc[list(rest)].assign(why=list(rest.values())))
    return pd.concat(shown.values(), ignore_index=True), pd.concat(left_out, ignore_index=True)


def _kept(runs: pd.DataFrame) -> tuple[set[int], dict[int, str]]:
    """Of one kind's runs the rows that count; the others, with why not."""
    ranked = runs.assign(done=runs.state == "done").sort_values(["expected", "done", "start"])
    groups: dict[tuple[object, ...], list[Any]] = {}
    for row in ranked.itertuples():
        groups.setdefault(tuple(getattr(row, name) for name in _GROUPED_BY), []).append(row)
    kept: set[int] = set()
    rest: dict[int, str] = {}
    for group in groups.values():
        # The preset's cells are one configuration, also where a base's run is gone.
        configs = {row.config for row in group if row.expected} | {group[-1].config}
        last = {(r.seed, r.site, r.beta): r for r in group if r.config in configs}
        here = {row.Index for row in last.values()}
        rest |= {r.Index: _why(r.record, group[-1].record) for r in group if r.Index not in here}
        kept |= here
    return kept, rest


def _why(record: RunRecord, shown: RunRecord) -> str:
    names = sorted(
        name
        for name in {*record.params, *shown.params} - {"seed", "site", "beta"}
        if record.params.get(name) != shown.params.get(name)
    )
    return f"differs in {', '.join(names)}" if names else "differs in its base or in the code's version"

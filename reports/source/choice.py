"""Of several runs at the same labels, those that count."""

from __future__ import annotations

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
        kept = [mine.iloc[:0]]
        for _, group in mine.groupby(_GROUPED_BY, sort=False):
            ranked = group.assign(done=group.state == "done").sort_values(["expected", "done", "start"])
            # The preset's cells are one configuration, also where a base's run is gone.
            configs = {*ranked.config[ranked.expected], ranked.config.iloc[-1]}
            same = group.loc[ranked.index[ranked.config.isin(configs)]]
            same = same.drop_duplicates(["seed", "site", "beta"], keep="last")
            kept.append(same.sort_index())
            rest = group.drop(same.index)
            left_out.append(rest.assign(why=[_why(r, same.record.iloc[0]) for r in rest.record]))
        shown[kind] = pd.concat(kept)
    return pd.concat(shown.values(), ignore_index=True), pd.concat(left_out, ignore_index=True)


def _why(record: RunRecord, shown: RunRecord) -> str:
    names = sorted(
        name
        for name in {*record.params, *shown.params} - {"seed", "site", "beta"}
        if record.params.get(name) != shown.params.get(name)
    )
    return f"differs in {', '.join(names)}" if names else "differs in its base or in the code's version"

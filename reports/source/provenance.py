"""Where a report's numbers come from: runs, code, machines, and the ledger's address without secrets."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from datetime import UTC, datetime

from metatok.errors import without_credentials
from reports.source.results import Results, distinct

# Tags that say how a run was kept track of, not where its numbers come from.
_BOOKKEEPING = {"fingerprint", "parents", "owner", "heartbeat", "checkpoint", "error", "preset"}
_PACKAGES = ("metatok", "mlflow", "pandas", "scipy", "statsmodels", "matplotlib")
_MOST_VALUES = 6
_ERROR_LENGTH = 200


@dataclass(frozen=True)
class Provenance:
    """facts: (name, text) for the head of the report. details: the same for its appendix."""

    facts: list[tuple[str, str]]
    details: list[tuple[str, str]]


def provenance(results: Results) -> Provenance:
    selection, shown = results.selection, results.shown
    facts = [
        ("preset", selection.preset),
        ("cells shown", str(len(shown))),
        ("the preset's cells", _expectation(results)),
        ("seeds", ", ".join(sorted(distinct(shown.seed), key=int)) or "none"),
    ]
    if len(shown):
        facts += _times(results)
    if selection.unfinished:
        facts.append(("not finished", ", ".join(f"{n} {s.lower()}" for s, n in selection.unfinished.items())))
    facts += _trouble(results)
    if len(results.left_out):
        facts.append(("left out", f"{len(results.left_out)} runs of other configurations at the same labels"))
    if results.unreadable:
        facts.append(("artifacts that cannot be read", ", ".join(results.unreadable)))
    details = [("ledger", without_credentials(results.ledger.tracking_uri)), *_tags(results)]
    if selection.others:
        others = ", ".join(f"{name or 'none'} ({n} runs)" for name, n in selection.others.items())
        details.append(("other presets in this ledger", f"{others}; --preset shows one"))
    details.append(("report made", f"{_moment(datetime.now(UTC).timestamp() * 1000)} with {_versions()}"))
    return Provenance(facts, details)


def _expectation(results: Results) -> str:
    """How much of what the preset makes is there."""
    expected = results.selection.expected
    if results.selection.overridden:
        return (
            "no run has exactly the preset's settings: fields were overridden, or the code has changed; "
            "missing is what the grid of the runs that are there lacks"
        )
    if expected.empty:
        return "not known to the code, so only the grid of the runs that are there is expected"
    filled = len(expected) - sum(len(results.missing(kind)) for kind in distinct(expected.kind))
    own = int(results.shown.expected.sum())
    return (
        f"{len(expected)}; {filled} have a finished run at their labels, {own} in the very same configuration"
    )


def _trouble(results: Results) -> list[tuple[str, str]]:
    """The runs that give no number, and why."""
    facts = []
    for state, runs in results.troubled.groupby("state"):
        causes = distinct(
            f"{r.name} ({r.tags['error'][:_ERROR_LENGTH]})" if "error" in r.tags else r.name
            for r in runs.record
        )
        shown = "; ".join(causes[:_MOST_VALUES])
        more = f" and {len(causes) - _MOST_VALUES} more" if len(causes) > _MOST_VALUES else ""
        facts.append((f"{state}, without a number", f"{len(runs)}: {shown}{more}"))
    return facts


def _times(results: Results) -> list[tuple[str, str]]:
    shown = results.shown
    first, last = int(shown.start.min()), int(shown.end.max())
    busy = float((shown.end - shown.start).sum()) / 1000
    return [
        ("runs from", f"{_moment(first)} to {_moment(last)}"),
        (
            "wall time",
            f"{duration((last - first) / 1000)} from first to last; {duration(busy)} summed over cells",
        ),
    ]


def _tags(results: Results) -> list[tuple[str, str]]:
    """What the runs' tags say of code, versions and machines: each distinct value."""
    values: dict[str, list[str]] = {}
    for record in results.shown.record:
        for name, value in record.tags.items():
            if name not in _BOOKKEEPING and not name.startswith("mlflow."):
                values.setdefault(name, []).append(value)
    lines = []
    for name in sorted(values):
        found = distinct(values[name])
        text = ", ".join(found[:_MOST_VALUES])
        more = f" and {len(found) - _MOST_VALUES} more" if len(found) > _MOST_VALUES else ""
        lines.append((name.replace("_", " "), without_credentials(text) + more))
    if "git_commit" not in values and len(results.shown):
        lines.insert(0, ("git commit", "not recorded by the runs"))
    return lines


def _versions() -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)


def _moment(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def duration(seconds: float) -> str:
    """42 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"

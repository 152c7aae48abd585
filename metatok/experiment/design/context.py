"""Where a cell's work is done, whom it tells, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from metatok import training
from metatok.experiment.design.settings import RunSettings
from metatok.experiment.home import Home
from metatok.experiment.inputs import Inputs

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Metrics = dict[str, float]


@dataclass
class Context:
    """A place to work.

    on_log(step, metrics): points of the cell's curves. before_checkpoint(): called before one is written, so
    that whoever keeps the curves can flush them first.
    """

    home: Home
    settings: RunSettings
    device: str = "cpu"
    on_log: Callable[[int, Metrics], None] = lambda step, metrics: None
    before_checkpoint: Callable[[], None] = lambda: None
    _kept: dict[str, tuple[str, Any]] = field(default_factory=dict)

    @property
    def inputs(self) -> Inputs:
        return Inputs(self.home.datasets)

    def loop(self, micro_batch_size: int) -> training.LoopSettings:
        return training.LoopSettings(
            device=self.device,
            micro_batch_size=micro_batch_size,
            log_every=self.settings.log_every,
            checkpoint_every=self.settings.checkpoint_every,
            compile=self.settings.compile,
        )

    def shared(self, kind: str, key: str, make: Callable[[], T]) -> T:
        """What `make` makes for the key. The last one of each kind is kept, for cells in a row to share."""
        if self._kept.get(kind, ("", None))[0] != key:
            self._kept.pop(kind, None)  # before the next is made: two may not fit
            self._kept[kind] = (key, make())
        return self._kept[kind][1]


@dataclass(frozen=True)
class Outcome:
    """A cell's result. metrics: final numbers, each mean with its n. tables: artifacts, by name."""

    metrics: Metrics
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    checkpoint: str | None = None


def table(columns: Mapping[str, Any]) -> pa.Table:
    """A table of these columns, for an Outcome."""
    import pyarrow as pa

    return pa.table(dict(columns))

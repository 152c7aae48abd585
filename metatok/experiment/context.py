"""Where a cell's runner works, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from metatok.experiment.cells import Cell, Extend, Finetune, Pretrain, Published
from metatok.experiment.home import Home
from metatok.experiment.inputs import Inputs
from metatok.experiment.settings import RunSettings
from metatok.model import GPT, GPTConfig
from metatok.training import CheckpointStore, LoopSettings

T = TypeVar("T")
Metrics = dict[str, float]
ModelCell = Pretrain | Published | Extend | Finetune


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

    def store(self, cell: Cell) -> CheckpointStore:
        return CheckpointStore(self.home.checkpoints(cell.fingerprint))

    def loop(self, micro_batch_size: int) -> LoopSettings:
        return LoopSettings(
            device=self.device,
            micro_batch_size=micro_batch_size,
            log_every=self.settings.log_every,
            checkpoint_every=self.settings.checkpoint_every,
            compile=self.settings.compile,
        )

    def load_model(self, cell: ModelCell, config: GPTConfig | None = None) -> GPT:
        """A model with the weights that `cell` left; `config` where they are to serve another configuration.

        Errors: FileNotFoundError if the cell has no intact checkpoint.
        """
        store = self.store(cell)
        checkpoint = store.load(self.device)
        if checkpoint is None:
            raise FileNotFoundError(
                f"{cell.kind} {cell.id} has no intact checkpoint under {store.uri}; "
                "delete its run in the ledger to have it done again"
            )
        model = _unfilled(cell, config).to(self.device)
        model.load_state_dict(checkpoint.weights)
        return model

    def frozen_model(self, cell: ModelCell) -> GPT:
        """The cell's model to look at. The last one is kept, so cells of one base in a row share one load."""
        return self.shared(
            "model", cell.fingerprint, lambda: self.load_model(cell).eval().requires_grad_(False)
        )

    def shared(self, kind: str, key: str, make: Callable[[], T]) -> T:
        """What `make` makes for the key. The last one of each kind is kept, for cells in a row to share."""
        if self._kept.get(kind, ("", None))[0] != key:
            self._kept.pop(kind, None)  # before the next is made: two may not fit
            self._kept[kind] = (key, make())
        return self._kept[kind][1]


def _unfilled(cell: ModelCell, config: GPTConfig | None) -> GPT:
    """A model for the weights of `cell`."""
    if isinstance(cell.root, Published):
        from metatok.model.gpt_neo import GPTNeo  # transformers is needed for this model alone

        return GPTNeo()
    return GPT(config or cell.result_model)

"""The one training loop and what it trains on: corpus blocks or task examples."""

from metatok.training.checkpoints import Checkpoint, CheckpointStore
from metatok.training.finetune import finetune
from metatok.training.loop import LoopSettings, LoopState, train
from metatok.training.optim import OptimConfig
from metatok.training.pretrain import pretrain, validation_loss

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "LoopSettings",
    "LoopState",
    "OptimConfig",
    "finetune",
    "pretrain",
    "train",
    "validation_loss",
]

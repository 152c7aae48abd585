from .checkpoints import Checkpoint, CheckpointStore
from .finetuning import finetune
from .loop import Diverged, LoopSettings, LoopState, agreed, train, world
from .optim import OptimConfig
from .pretraining import pretrain, validation_loss

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Diverged",
    "LoopSettings",
    "LoopState",
    "OptimConfig",
    "agreed",
    "finetune",
    "pretrain",
    "train",
    "validation_loss",
    "world",
]

from .checkpoints import Checkpoint, CheckpointStore
from .finetuning import Stage, Validation, finetune
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
    "Stage",
    "Validation",
    "agreed",
    "finetune",
    "pretrain",
    "train",
    "validation_loss",
    "world",
]

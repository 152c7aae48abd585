from .design import (
    PRESETS,
    Ablate,
    Cell,
    Efficiency,
    Extend,
    Finetune,
    Preset,
    Pretrain,
    Probe,
    Published,
    RateDistortion,
    get_preset,
)
from .home import Home
from .ledger import Ledger, RunRecord

__all__ = [
    "PRESETS",
    "Ablate",
    "Cell",
    "Efficiency",
    "Extend",
    "Finetune",
    "Home",
    "Ledger",
    "Preset",
    "Pretrain",
    "Probe",
    "Published",
    "RateDistortion",
    "RunRecord",
    "get_preset",
]

"""Experiments as cells, and the ledger that knows which of them are done."""

from metatok.experiment.cells import (
    Ablate,
    Cell,
    Efficiency,
    Extend,
    Finetune,
    Pretrain,
    Probe,
    RateDistortion,
)
from metatok.experiment.home import Home
from metatok.experiment.ledger import Ledger, RunRecord
from metatok.experiment.preset import Preset
from metatok.experiment.presets import PRESETS, get_preset

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
    "RateDistortion",
    "RunRecord",
    "get_preset",
]

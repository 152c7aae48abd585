from .config import VARIANTS, GPTConfig, Variant, YarnConfig
from .generate import Generation
from .gpt import GPT, Trace
from .interventions import Intervention
from .reference import dense_reference

__all__ = [
    "GPT",
    "VARIANTS",
    "GPTConfig",
    "Generation",
    "Intervention",
    "Trace",
    "Variant",
    "YarnConfig",
    "dense_reference",
]

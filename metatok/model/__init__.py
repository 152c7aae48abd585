"""Models: GPT-2 with learned meta-tokens, their variants and what can be done to them."""

from metatok.model.config import VARIANTS, GPTConfig, Variant, YarnConfig
from metatok.model.generate import Generation
from metatok.model.gpt import GPT, Trace
from metatok.model.interventions import Intervention
from metatok.model.reference import dense_reference

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

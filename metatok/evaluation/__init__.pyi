from .accuracy import Records, evaluate
from .efficiency import (
    inject_meta_tokens,
    measure_inference,
    measure_training_step,
    peak_flops,
    transformers_gpt2,
)

__all__ = [
    "Records",
    "evaluate",
    "inject_meta_tokens",
    "measure_inference",
    "measure_training_step",
    "peak_flops",
    "transformers_gpt2",
]

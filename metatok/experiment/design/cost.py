"""What work costs: training tokens, arithmetic, and the bytes of the weights that stay."""

from __future__ import annotations

from dataclasses import dataclass

from metatok.model import GPTConfig

A100_BF16_FLOPS = 312e12
ASSUMED_MFU = 0.4


@dataclass(frozen=True)
class Cost:
    """Training tokens, FLOPs of forward and backward passes, and bytes of the final weights, which stay."""

    tokens: int = 0
    flops: float = 0.0
    disk: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.tokens + other.tokens, self.flops + other.flops, self.disk + other.disk)

    @property
    def gpu_hours(self) -> float:
        """On an A100 in bf16 at an assumed 40% MFU."""
        return self.flops / (A100_BF16_FLOPS * ASSUMED_MFU) / 3600


def training_cost(config: GPTConfig, tokens: int, length: int, meta_fraction: float = 0.0) -> Cost:
    """Of training on so many tokens in sequences of a length, weights included."""
    return Cost(tokens, config.flops_per_token(length, meta_fraction) * tokens, weights_disk(config))


def forward_cost(config: GPTConfig, tokens: int, length: int) -> Cost:
    """Of forward passes alone: a third of a training step."""
    return Cost(flops=config.flops_per_token(length) * tokens / 3)


def weights_disk(config: GPTConfig) -> int:
    """Bytes of a model's weights in fp32."""
    return 4 * config.num_parameters()

"""What AdamW and its learning-rate schedule are to be."""

from __future__ import annotations

import math
from typing import Self

from pydantic import Field, model_validator

from metatok.config import Config, Count, Natural, NotNegative, Positive, Share


class OptimConfig(Config):
    """AdamW with linear warm-up, cosine decay and gradient clipping (paper Table 4; schedule as nanoGPT's).

    decay_steps: step at which the learning rate reaches min_learning_rate; None = the run's last step.
    """

    learning_rate: Positive = 6e-4
    min_learning_rate: NotNegative = 6e-5
    warmup_steps: Natural = 0
    decay_steps: Count | None = None
    weight_decay: NotNegative = 0.1
    beta1: Share = 0.9
    beta2: Share = 0.95
    grad_clip: NotNegative = Field(default=1.0, description="largest gradient norm; 0 = no clipping")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate={self.min_learning_rate} is above learning_rate={self.learning_rate}"
            )
        return self

    def at_rate(self, learning_rate: float) -> Self:
        """The same with another peak learning rate; min_learning_rate keeps its share of it."""
        share = self.min_learning_rate / self.learning_rate
        changed = {"learning_rate": learning_rate, "min_learning_rate": share * learning_rate}
        return type(self).model_validate(self.model_dump() | changed)

    def rate_at(self, step: int, steps: int) -> float:
        """Learning rate of optimiser step `step` (from 0) in a run of `steps`."""
        decay_steps = self.decay_steps or steps
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / (self.warmup_steps + 1)
        progress = min((step - self.warmup_steps) / max(decay_steps - self.warmup_steps, 1), 1.0)
        cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.min_learning_rate + cosine * (self.learning_rate - self.min_learning_rate)

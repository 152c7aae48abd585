"""What AdamW and its learning-rate schedule are to be."""

from __future__ import annotations

import math
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class OptimConfig(BaseModel):
    """AdamW with linear warm-up, cosine decay and gradient clipping (paper Table 4; schedule as nanoGPT's).

    decay_steps: step at which the learning rate reaches min_learning_rate; None = the run's last step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=6e-4, gt=0)
    min_learning_rate: float = Field(default=6e-5, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay_steps: int | None = Field(default=None, ge=1)
    weight_decay: float = Field(default=0.1, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    grad_clip: float = Field(default=1.0, ge=0, description="largest gradient norm; 0 = no clipping")

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

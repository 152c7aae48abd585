"""What an analysis is asked for: described without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Site = Literal["meta", "last_non_meta"]
SITES: tuple[Site, ...] = ("meta", "last_non_meta")

BETAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # section 5.1


class RateDistortionConfig(BaseModel):
    """One fit. Section 5.1 gives the epochs, the batch size of 1 and the betas (`BETAS`).

    beta: the weight of the rate. latent_dim: the bottleneck's width L. learning_rate: Adam's.
    n_samples: draws of z an example for the final distortion. seed: initial weights, order and draws; they
    don't depend on beta, so that a curve's points share their noise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    beta: float = Field(ge=0, allow_inf_nan=False)
    latent_dim: int = Field(default=32, ge=1)
    epochs: int = Field(default=5, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    n_samples: int = Field(default=16, ge=1)
    seed: int = 0

"""What an analysis is asked for: described without torch."""

from __future__ import annotations

from typing import Literal

from metatok.config import Config, Count, NotNegative, Positive, Seed

Site = Literal["meta", "last_non_meta"]
SITES: tuple[Site, ...] = ("meta", "last_non_meta")

BETAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # section 5.1


class RateDistortionConfig(Config):
    """One fit. Section 5.1 gives the epochs, the batch size of 1 and the betas (`BETAS`).

    beta: the weight of the rate. latent_dim: the bottleneck's width L. learning_rate: Adam's.
    n_samples: draws of z an example for the final distortion. seed: initial weights, order and draws; they
    don't depend on beta, so that a curve's points share their noise.
    """

    beta: NotNegative
    latent_dim: Count = 32
    epochs: Count = 5
    learning_rate: Positive = 1e-3
    n_samples: Count = 16
    seed: Seed = 0

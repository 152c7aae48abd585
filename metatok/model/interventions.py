"""Ablations at meta tokens, applied at inference (paper section 5, Tables 11-16)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import model_validator

from metatok.config import Config, NotNegative, Seed
from metatok.randomness import generator

if TYPE_CHECKING:  # an intervention is described without torch
    from torch import Tensor


class Intervention(Config):
    """What is taken from the meta tokens, and from them alone.

    zero_position: no position. APE: the table's row is 0. RoPE and YaRN: the token's query and key are
        rotated by angle 0, in the causal and in the meta attention.
    zero_embedding: the token embedding is 0.
    position_noise: standard deviation of Gaussian noise on the position. APE: added to the table's row.
        RoPE and YaRN: added to the rotation angles in radians, one draw a frequency.
    noise_seed: the noise is a function of (noise_seed, position), so of no other token or example.

    NoPE and ALiBi have no position at a token: there a position intervention is a ValueError in the model.
    """

    zero_position: bool = False
    zero_embedding: bool = False
    position_noise: NotNegative = 0.0
    noise_seed: Seed = 0

    @model_validator(mode="after")
    def _one_change_of_position(self) -> Self:
        if self.zero_position and self.position_noise:
            raise ValueError(
                f"position_noise={self.position_noise} has no position to change with zero_position=True; "
                f"give one of the two"
            )
        return self

    @property
    def changes_position(self) -> bool:
        return self.zero_position or self.position_noise > 0

    @property
    def changes_nothing(self) -> bool:
        return not (self.changes_position or self.zero_embedding)

    @property
    def label(self) -> str:
        """Short name for tables: full, no_pos, no_embed, neither, noise_0.1, no_embed+noise_0.1."""
        if self.zero_position:
            return "neither" if self.zero_embedding else "no_pos"
        parts = ["no_embed"] if self.zero_embedding else []
        if self.position_noise:
            parts.append(f"noise_{self.position_noise:g}")
        return "+".join(parts) or "full"

    def on_position(
        self, code: Tensor | None, positions: Tensor, is_meta: Tensor, limit: int
    ) -> Tensor | None:
        """Position codes (1 or B, T, C) with those of the meta tokens changed: (B, T, C).

        positions (1 or B, T): absolute, all below `limit`. is_meta (B, T): bool. ValueError if there is a
        change to make but no code.
        """
        if not self.changes_position:
            return code
        if code is None:
            raise ValueError(
                f"intervention '{self.label}' changes the position at meta tokens, but a nope or alibi model "
                f"has none at a token; use zero_embedding alone, or an ape, rope or yarn model"
            )
        changed = code.new_zeros(code.shape)
        if self.position_noise:
            noise = noise_table(self.noise_seed, limit, code.size(-1)).to(code.device, code.dtype)
            changed = code + self.position_noise * noise[positions]
        return changed.where(is_meta[..., None], code)

    def on_embedding(self, embedding: Tensor, is_meta: Tensor) -> Tensor:
        """Token embeddings (B, T, D) with those of the meta tokens changed. is_meta (B, T): bool."""
        return embedding.masked_fill(is_meta[..., None], 0) if self.zero_embedding else embedding


def noise_table(seed: int, n: int, width: int) -> Tensor:
    """Standard normal rows (n, width), float32; row p is the same whatever n is."""
    capacity = 1 << max(n - 1, 0).bit_length()  # powers of two, so that growing lengths share few tables
    return _noise_table(seed, capacity, width)[:n]


@lru_cache(maxsize=8)
def _noise_table(seed: int, n: int, width: int) -> Tensor:
    import torch

    rows = [generator(seed, "position_noise", p).standard_normal(width, dtype=np.float32) for p in range(n)]
    return torch.from_numpy(np.stack(rows))

"""Key-value buffers of a generation: what a model remembers of the tokens it has read."""

from __future__ import annotations

import torch
from torch import Tensor

from metatok.model.attention import KV
from metatok.model.config import GPTConfig


class Cache:
    """Buffers for B sequences of at most `capacity` tokens, `meta_capacity` of them meta tokens.

    Sequences may have different lengths: each row of a pass is written behind its own sequence's tokens.
    Slots behind a sequence's length hold leftovers of padding, which are masked until they are overwritten.
    A pass writes; `advance` then says how much of what it wrote counts.
    """

    def __init__(
        self,
        cfg: GPTConfig,
        batch: int,
        capacity: int,
        meta_capacity: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        wide, meta = cfg.extra_attention == "causal", cfg.extra_attention == "meta"

        def buffers(slots: int) -> list[KV]:
            shape = (batch, cfg.n_head, slots, cfg.head_dim)
            pairs = torch.zeros(cfg.n_layer, 2, *shape, device=device, dtype=dtype)
            return [KV(pair[0], pair[1]) for pair in pairs]

        self.causal: list[KV] = buffers(capacity)
        self.extra: list[KV] = buffers(capacity if wide else meta_capacity) if wide or meta else []
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)  # (B,) tokens kept
        self.positions = torch.arange(capacity, device=device).expand(batch, -1)  # where each slot's token is
        self.meta_lengths = torch.zeros_like(self.lengths)  # (B,) meta tokens kept
        self.meta_positions = self.lengths.new_zeros(batch, meta_capacity)  # and each meta slot's
        # Upper bounds of the lengths that the host knows without asking the device.
        self.used = 0
        self.meta_used = 0

    def kv(self, layer: int) -> tuple[KV, KV | None]:
        """Buffers of one layer's causal and extra attention."""
        return self.causal[layer], self.extra[layer] if self.extra else None

    def advance(self, real: Tensor, is_meta: Tensor, n_meta: int) -> None:
        """After a pass over (B, T) tokens: `real` (B, T) says which count, `is_meta` which are meta tokens.

        What counts comes first in each row. n_meta: the most meta tokens of a row.
        """
        self.lengths = self.lengths + real.sum(1)
        self.meta_lengths = self.meta_lengths + is_meta.sum(1)
        self.used += real.size(1)
        self.meta_used += n_meta

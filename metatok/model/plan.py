"""What a pass works out once for all its layers: rotations, masks, and where the meta tokens are."""

from __future__ import annotations

import torch
from torch import Tensor

from metatok.model.attention import MetaRows, Plan, Rows
from metatok.model.cache import Cache
from metatok.model.positions import Position


def make_plan(
    position: Position,
    code: Tensor | None,
    positions: Tensor,
    meta_positions: Tensor | None,
    cache: Cache | None,
) -> Plan:
    """The plan of a pass over tokens at absolute positions (B, T) with codes (1 or B, T, C).

    meta_positions (B, M): rows of this pass that are meta tokens, padded with -1; None without
    meta-attention.
    """
    if cache is None:
        causal = _rows(position, code, positions)
    else:
        causal = _rows(position, code, positions, positions, cache.positions, cache.used)
    meta = None if meta_positions is None else _meta_rows(position, code, positions, meta_positions, cache)
    return Plan(causal, meta)


def _meta_rows(
    position: Position, code: Tensor | None, positions: Tensor, meta_positions: Tensor, cache: Cache | None
) -> MetaRows | None:
    B, T = positions.shape
    if meta_positions.size(1) == 0:
        if not torch.is_grad_enabled():
            return None
        # One padding row keeps meta-attention's parameters in the graph, as DDP needs.
        meta_positions = meta_positions.new_full((B, 1), -1)
    is_real = (meta_positions >= 0)[..., None]  # (B, M, 1)
    place = meta_positions.clamp(min=0)  # (B, M); padding gathers row 0, and its result is dropped
    flat = (place + T * torch.arange(B, device=place.device)[:, None]).flatten()
    at = positions.gather(1, place)  # (B, M) absolute
    if code is not None:
        code = code.expand(B, -1, -1).gather(1, place[..., None].expand(-1, -1, code.size(-1)))
    if cache is None:
        return MetaRows(_rows(position, code, at), flat, is_real)
    slots = cache.meta_lengths[:, None] + torch.arange(place.size(1), device=place.device)
    cache.meta_positions.scatter_(1, slots, at)
    rows = _rows(position, code, at, slots, cache.meta_positions, cache.meta_used)
    return MetaRows(rows, flat, is_real)


def _rows(
    position: Position,
    code: Tensor | None,
    at: Tensor,
    slots: Tensor | None = None,
    key_positions: Tensor | None = None,
    used: int = 0,
) -> Rows:
    """Rows at absolute positions `at` (B, T), each of which sees itself and those before it.

    With a cache: slots (B, T) are written, key_positions (B, S) are those of all slots, and the first
    `used` slots hold the keys of earlier passes; while there are none, the rows attend to each other alone.
    """
    rotation = None if code is None else position.rotation(code)
    if slots is None or key_positions is None or used == 0:
        bias = position.attention_bias(at, at)
        if bias is None:
            return Rows(rotation, None, slots)
        later = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).triu(1)
        return Rows(rotation, bias.masked_fill(later, float("-inf")), slots)
    n_keys = used + at.size(1)
    seen = torch.arange(n_keys, device=at.device) <= slots[..., None]  # (B, T, K)
    bias = position.attention_bias(at, key_positions[:, :n_keys])
    mask = seen[:, None] if bias is None else bias.masked_fill(~seen[:, None], float("-inf"))
    return Rows(rotation, mask, slots, n_keys)


def find_meta_positions(is_meta: Tensor) -> Tensor:
    """Where is_meta (B, T) holds: (B, M) int64, ascending, padded with -1; M is the largest count."""
    T = is_meta.size(1)
    counts = is_meta.sum(1)
    M = int(counts.max()) if counts.numel() else 0
    place = torch.arange(T, device=is_meta.device).expand_as(is_meta)
    first = place.masked_fill(~is_meta, T).sort(dim=1).values[:, :M]
    return first.masked_fill(first == T, -1)


def meta_mask(meta_positions: Tensor, T: int) -> Tensor:
    """The inverse of `find_meta_positions`: (B, T) bool from (B, M)."""
    B = meta_positions.size(0)
    marked = torch.zeros(B, T + 1, dtype=torch.bool, device=meta_positions.device)
    place = torch.where(meta_positions < 0, T, meta_positions)  # padding marks the column that is cut off
    return marked.scatter_(1, place, torch.ones_like(place, dtype=torch.bool))[:, :T]

"""The two attentions of a layer: causal over all tokens, and meta over the meta tokens alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metatok.model.config import GPTConfig
from metatok.model.positions import Rotation


class KV(NamedTuple):
    """Keys and values of one attention, (B, H, S, head_dim) each, S slots a sequence."""

    k: Tensor
    v: Tensor


class Rows(NamedTuple):
    """What all layers of one pass share about the rows that an attention runs over.

    rotation: cos and sin (1 or B, T, head_dim / 2). mask: (1 or B, 1 or H, T, K), True where a key is seen,
    or additive; None means causal over these rows, which SDPA's flash kernels take.
    Only with a cache: slots (B, T): where in it the rows' keys and values go; n_keys: slots to
    attend to, 0 meaning these rows alone.
    """

    rotation: Rotation | None
    mask: Tensor | None
    slots: Tensor | None = None
    n_keys: int = 0


class MetaRows(NamedTuple):
    """The meta tokens of one pass, M a sequence, shorter sequences padded.

    flat (B * M,): rows of the flattened (B * T, D) stream. is_real (B, M, 1): False at padding.
    """

    rows: Rows
    flat: Tensor
    is_real: Tensor


class Plan(NamedTuple):
    """Everything the layers of one pass share. meta is None where no meta-attention is to run."""

    causal: Rows
    meta: MetaRows | None


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """x (B, T, 2, H, head_dim), the queries and keys, rotated by cos and sin (1 or B, T, head_dim / 2).

    In float32 even under autocast: bfloat16 has too few digits for cosines of neighbouring positions.
    """
    cos, sin = (part[:, :, None, None] for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Pre-norm multi-head self-attention over given rows; the subclasses say which rows."""

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__()
        self.n_head = cfg.n_head
        self.p_dropout = cfg.dropout
        self.norm = nn.LayerNorm(cfg.n_embd, bias=cfg.bias)
        self.qkv = nn.Linear(cfg.n_embd, 3 * cfg.n_embd, bias=cfg.bias)
        self.proj = nn.Linear(cfg.n_embd, cfg.n_embd, bias=cfg.bias)
        self.dropout = nn.Dropout(cfg.dropout)

    def heads(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, T, head_dim) of residual rows x (B, T, D)."""
        B, T, D = x.shape
        qkv = self.qkv(self.norm(x)).view(B, T, 3, self.n_head, D // self.n_head)
        if rotation is None:
            q, k, v = qkv.unbind(2)
        else:
            q, k = rotate(qkv[:, :, :2], rotation).unbind(2)
            v = qkv[:, :, 2]
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def attend(self, x: Tensor, rows: Rows, kv: KV | None = None) -> Tensor:
        """What attention adds to residual rows x (B, T, D): (B, T, D)."""
        q, k, v = self.heads(x, rows.rotation)
        if kv is not None:
            k, v = _through_cache(k, v, rows, kv)
        mask = rows.mask
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(q.dtype)
        p = self.p_dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, is_causal=mask is None)
        return self.dropout(self.proj(y.transpose(1, 2).reshape(x.shape)))


class CausalAttention(Attention):
    """x + CausalAttention(LN(x)) over every row."""

    def forward(self, x: Tensor, plan: Plan, kv: KV | None = None) -> Tensor:
        """The residual stream (B, T, D) after this sublayer."""
        return x + self.attend(x, plan.causal, kv)

    def logits(self, x: Tensor, rows: Rows) -> Tensor:
        """Attention logits (B, H, T, T) as the softmax takes them, -inf at keys not seen; for analysis."""
        q, k, _ = self.heads(x, rows.rotation)
        logits = (q @ k.transpose(-2, -1)).float() * q.size(-1) ** -0.5
        if rows.mask is not None:
            return logits + rows.mask
        T = logits.size(-1)
        later = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        return logits.masked_fill(later, float("-inf"))


class MetaAttention(Attention):
    """x + MetaAttention(LN(x), P): meta tokens attend to themselves and earlier meta tokens (section 3.2).

    P is -inf unless query and key are both meta tokens, so a row that isn't a meta token sees nothing and
    gets 0 (its softmax is undefined; the residual passes unchanged). Hence the exact result needs the M
    meta rows only: they are gathered, attend causally and are added back, in O(M) projections and M^2
    attention instead of T and T^2. Padding comes last, so causality hides it from real rows.
    """

    def forward(self, x: Tensor, plan: Plan, kv: KV | None = None) -> Tensor:
        """The residual stream (B, T, D) after this sublayer."""
        if plan.meta is None:
            return x
        rows, flat, is_real = plan.meta
        B, M, _ = is_real.shape
        stream = x.reshape(-1, x.size(-1))
        y = self.attend(stream.index_select(0, flat).view(B, M, -1), rows, kv)
        y = y.masked_fill(~is_real, 0).to(x.dtype)
        return stream.index_add(0, flat, y.flatten(0, 1)).view_as(x)


def _through_cache(k: Tensor, v: Tensor, rows: Rows, kv: KV) -> tuple[Tensor, Tensor]:
    """Writes new keys and values (B, H, T, head_dim) to their slots; returns those to attend to."""
    assert rows.slots is not None
    sequence = torch.arange(k.size(0), device=k.device)[:, None]
    # Indexing dimensions 0 and 2 around a slice puts the indexed ones first: (B, T, H, head_dim).
    kv.k[sequence, :, rows.slots] = k.transpose(1, 2).to(kv.k.dtype)
    kv.v[sequence, :, rows.slots] = v.transpose(1, 2).to(kv.v.dtype)
    if rows.n_keys == 0:
        return k, v
    return kv.k[:, :, : rows.n_keys], kv.v[:, :, : rows.n_keys]

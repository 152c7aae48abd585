"""Meta-attention as the paper writes it, over all T x T pairs: to test against and to measure, not to use."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from metatok.model.attention import KV, MetaAttention, Plan
from metatok.model.gpt import GPT


class DenseMetaAttention(MetaAttention):
    """MetaAttention with P as a T x T mask; rows that see nothing are defined as 0."""

    def forward(self, x: Tensor, plan: Plan, kv: KV | None = None) -> Tensor:
        """The residual stream (B, T, D) after this sublayer."""
        if kv is not None:
            raise ValueError("the dense reference has no KV cache; generate with the model it was made from")
        if plan.meta is None:
            return x
        B, T, _ = x.shape
        real = plan.meta.flat[plan.meta.is_real.flatten()]
        is_meta = torch.zeros(B * T, dtype=torch.bool, device=x.device).index_fill_(0, real, True).view(B, T)
        earlier = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        seen = (is_meta[:, :, None] & is_meta[:, None, :] & earlier)[:, None]  # (B, 1, T, T)
        # A row that sees nothing sees itself instead, which keeps the softmax defined; its result is dropped.
        seen = seen | torch.eye(T, dtype=torch.bool, device=x.device)
        q, k, v = self.heads(x, plan.causal.rotation)
        bias = q.new_zeros(()) if plan.causal.mask is None else plan.causal.mask.to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.where(seen, bias, float("-inf")))
        y = self.dropout(self.proj(y.transpose(1, 2).reshape(x.shape)))
        return x + y.masked_fill(~is_meta[..., None], 0)


def dense_reference(model: GPT) -> GPT:
    """A copy of a GPT whose meta-attention is the dense masked form; same weights, same outputs."""
    dense = copy.deepcopy(model)
    for module in dense.modules():
        if type(module) is MetaAttention:
            module.__class__ = DenseMetaAttention
    return dense

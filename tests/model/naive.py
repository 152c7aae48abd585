"""The model written out as the paper's formulas, one loop a head, to compare with."""

import torch
import torch.nn.functional as F
from torch import Tensor

from metatok.model import GPT
from metatok.model.attention import Attention


def attention(layer: Attention, x: Tensor, angles: Tensor | None, mscale: float, seen: Tensor) -> Tensor:
    """One attention over x (T, D); angles (T, head_dim / 2); seen (T, T). Unseeing rows give 0."""
    q, k, v = layer.qkv(layer.norm(x)).chunk(3, dim=-1)
    size = x.size(-1) // layer.n_head
    heads = []
    for h in range(layer.n_head):
        qh, kh, vh = (part[:, h * size : (h + 1) * size] for part in (q, k, v))
        if angles is not None:
            turn = torch.polar(torch.full_like(angles, mscale), angles)
            qh, kh = (torch.complex(*part.chunk(2, dim=-1)) * turn for part in (qh, kh))
            logits = (qh @ kh.conj().T).real / size**0.5
        else:
            logits = qh @ kh.T / size**0.5
        weights = logits.masked_fill(~seen, float("-inf")).softmax(-1)
        heads.append(weights.nan_to_num(0) @ vh)
    return layer.proj(torch.cat(heads, dim=-1)) * seen.any(-1, keepdim=True)


def hidden(
    model: GPT, x: Tensor, is_meta: Tensor, angles: Tensor | None = None, mscale: float = 1.0
) -> Tensor:
    """Final hidden states (T, D) of embeddings x (T, D)."""
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    for block in model.blocks:
        x = x + attention(block.causal, x, angles, mscale, causal)
        if block.extra is not None:
            both = is_meta[:, None] & is_meta[None, :] if model.cfg.extra_attention == "meta" else causal
            x = x + attention(block.extra, x, angles, mscale, causal & both)
        mlp = block.mlp
        act = F.gelu if model.cfg.activation == "gelu" else F.relu
        x = x + mlp.proj(act(mlp.fc(mlp.norm(x))))
    return model.norm(x)

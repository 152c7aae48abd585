"""A model whose every weight is set by hand, so that what an analysis finds in it is known."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.linalg import hadamard

from metatok.model import GPT, GPTConfig

WIDTH = 8
# Rows of +-1, orthogonal to each other and to the constant: a norm without bias leaves them as they are.
HADAMARD = torch.tensor(hadamard(WIDTH).astype(np.float32))
MARK = 7  # the meta token


def handmade(logits: Sequence[Sequence[Sequence[float]]] = ((),), value: float = 0.0) -> GPT:
    """Eight tokens 0..7 without positions; token j's embedding is row j of HADAMARD, 0 at token 0.

    logits[l][h][j]: the causal attention logit in layer l, head h, of a query MARK on a key j; other queries,
    and heads not given, have logit 0 on all keys. value: what each layer's attention adds is `value` times
    the mean of the normed keys; 0 leaves the stream as it is, from embedding to last norm.
    """
    n_head = max(1, len(logits[0]))
    cfg = GPTConfig.variant(
        "meta_nope",
        n_layer=len(logits), n_head=n_head, n_embd=WIDTH, vocab_size=8, meta_token_id=MARK, context_length=32,
    )  # fmt: skip
    model = GPT(cfg)
    size = cfg.head_dim
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.zero_()
        model.token_embedding.weight[:WIDTH] = HADAMARD
        model.token_embedding.weight[0] = 0
        for block, by_head in zip(model.blocks, logits, strict=True):
            q, k, v = block.causal.qkv.weight.view(3, WIDTH, WIDTH).unbind(0)
            v.copy_(torch.eye(WIDTH))
            block.causal.proj.weight.copy_(value * torch.eye(WIDTH))
            for head, wanted in enumerate(by_head):
                # A query of sqrt(size) in the head's first feature, a key of the wanted logit there.
                q[head * size] = size**0.5 * HADAMARD[MARK] / WIDTH
                k[head * size] = torch.tensor(wanted, dtype=torch.float32) @ HADAMARD / WIDTH
    return model

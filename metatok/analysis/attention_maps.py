"""Where a meta token looks: its causal attention row, layer by layer (Figure 3 left)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metatok.analysis.attention_rows import logit_rows
from metatok.analysis.examples import check_examples, check_index
from metatok.model import GPT

# In this order a key that fits several counts for the first.
PARTS = ("itself", "previous_meta", "token_before", "first_token", "rest")


@dataclass(frozen=True)
class AttentionMap:
    """Attention of one example's last meta token over itself and the tokens before it, T = position + 1.

    token_ids (T,): int64. weight (n_layer, n_head, T): causal attention; each row sums to 1.
    """

    example: int
    position: int
    token_ids: NDArray[np.int64]
    weight: NDArray[np.float64]

    @property
    def mean(self) -> NDArray[np.float64]:
        """(n_layer, T): the mean over heads, which sums to 1 as well."""
        return self.weight.mean(axis=1)


@dataclass(frozen=True)
class AttentionMass:
    """How the last meta token's attention divides among `PARTS`, for each of B examples.

    mass (B, n_layer, len(PARTS)): mean over heads; the parts sum to 1. has_part (B, len(PARTS)): whether
    the example has such a key at all (a single meta token has no previous one; its mass there is 0).
    """

    mass: NDArray[np.float64]
    has_part: NDArray[np.bool_]

    def mean(self) -> NDArray[np.float64]:
        """(n_layer, len(PARTS)): the mean over all examples; the parts sum to 1."""
        return self.mass.mean(axis=0)


def attention_map(
    model: GPT, tokens: Tensor, lengths: Tensor, meta_positions: Tensor, example: int = 0
) -> AttentionMap:
    """The causal attention row at one example's last meta token (section 5, Figure 3 left).

    softmax_j(q_i . k_j / sqrt(d_k) + bias) over the keys j <= i, i being the last meta token of the prompt,
    layer by layer and head by head, with queries and keys rotated where the position scheme rotates them.
    The meta-attention is not in it. One example, no mean over examples.
    tokens (B, T): right-padded. lengths (B,). meta_positions (B, M): padded with -1. Errors: ConfigError on
    `example` out of range; `check_examples`.
    """
    examples = check_examples(model, tokens, lengths, meta_positions)
    example = check_index("example", example, len(tokens))
    (logits,) = logit_rows(model, examples.only(example))
    token_ids = examples.tokens[example, : logits.size(-1)]
    weight = logits.softmax(-1).cpu().numpy()
    return AttentionMap(example, len(token_ids) - 1, token_ids.cpu().numpy(), weight)


def attention_mass(model: GPT, tokens: Tensor, lengths: Tensor, meta_positions: Tensor) -> AttentionMass:
    """What part of the last meta token's attention goes where, for each example.

    An example's mass on a part is the sum of the row's weights over the part's keys, mean over heads, in each
    layer. The parts: the token itself; the meta token before it; the token right before it; the first token
    of the sequence; the rest. Arguments and errors as in `attention_map`.
    """
    examples = check_examples(model, tokens, lengths, meta_positions)
    mass, has_part = [], []
    for i, logits in enumerate(logit_rows(model, examples)):
        part = parts_of(examples.alone(i)[1][0].cpu())
        row = logits.softmax(-1).mean(1).cpu()  # (n_layer, T)
        mass.append(row.new_zeros(len(row), len(PARTS)).index_add_(1, part, row))
        has_part.append(part.bincount(minlength=len(PARTS)) > 0)
    return AttentionMass(torch.stack(mass).numpy(), torch.stack(has_part).numpy())


def parts_of(positions: Tensor) -> Tensor:
    """The index in `PARTS` of each key of the last meta token: (T,), from ascending meta positions (M,)."""
    last = int(positions[-1])
    places = {"first_token": 0, "token_before": last - 1, "itself": last}
    if len(positions) > 1:
        places["previous_meta"] = int(positions[-2])
    part = torch.full((last + 1,), PARTS.index("rest"))
    for name in reversed(PARTS[:-1]):  # what counts first is written last
        if places.get(name, -1) >= 0:
            part[places[name]] = PARTS.index(name)
    return part

"""Cosine similarity of a meta token's residual stream with the tokens before it (Figure 2 right)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from metatok.analysis.examples import check_examples, check_index, frozen
from metatok.model import GPT


@dataclass(frozen=True)
class ResidualMap:
    """Similarity of one meta token with itself and each token before it, T = position + 1 tokens.

    token_ids (T,): int64. similarity (n_layer + 1, T): cosine; row 0 is before the first layer, and the last
    column is the meta token itself, 1.
    """

    example: int
    position: int
    token_ids: NDArray[np.int64]
    similarity: NDArray[np.float64]


@dataclass(frozen=True)
class ResidualProfile:
    """Mean similarity by distance over all meta tokens of a batch.

    distance (K,): int64, 1..K tokens before the meta token. count (K,): int64, pairs at that distance.
    similarity (n_layer + 1, K): mean cosine, row 0 before the first layer; NaN where count is 0.
    """

    distance: NDArray[np.int64]
    count: NDArray[np.int64]
    similarity: NDArray[np.float64]


def residual_map(
    model: GPT,
    tokens: Tensor,
    lengths: Tensor,
    meta_positions: Tensor,
    example: int = 0,
    meta_index: int = -1,
) -> ResidualMap:
    """The map of one meta token of one example (section 4.4, Figure 2 right).

    With x_l,j the residual stream at token j after layer l (l = 0: token and position embedding) and i the
    meta token, similarity[l, j] = <x_l,i, x_l,j> / (|x_l,i| |x_l,j|) for j <= i; no norm is taken off the
    stream before, and a vector of length 0 has similarity 0. No mean is taken.
    tokens (B, T): right-padded. lengths (B,). meta_positions (B, M): padded with -1. meta_index: which of the
    example's meta tokens, from the end if negative. Errors: ConfigError on an index out of range;
    `check_examples`.
    """
    examples = check_examples(model, tokens, lengths, meta_positions)
    example = check_index("example", example, len(tokens))
    sequence, positions, _ = examples.alone(example)
    position = int(positions[0, check_index("meta_index", meta_index, positions.size(1))])
    with frozen(model):
        similarity = similarity_to(model.trace(sequence, positions).residual[:, 0], positions[0])
    row = similarity[:, positions[0] == position, : position + 1].squeeze(1)
    return ResidualMap(example, position, sequence[0, : position + 1].cpu().numpy(), row.cpu().numpy())


def residual_profile(model: GPT, tokens: Tensor, lengths: Tensor, meta_positions: Tensor) -> ResidualProfile:
    """Mean similarity by distance between every meta token and every token before it, over the batch.

    similarity[l, d] is the mean of `residual_map`'s cosine in layer l over all pairs (meta token i, token
    i - d) of all examples, a pair counting once: examples with more meta tokens weigh more.
    Arguments and errors as in `residual_map`. K is the largest distance of the batch.
    """
    examples = check_examples(model, tokens, lengths, meta_positions)
    furthest = int(examples.last_meta.max())
    # Slot 0 is distance 0, the meta token itself, which is left out at the end.
    count = torch.zeros(furthest + 1, dtype=torch.long, device=examples.tokens.device)
    total = torch.zeros(model.cfg.n_layer + 1, furthest + 1, dtype=torch.double, device=count.device)
    with frozen(model):
        for i in range(len(tokens)):
            sequence, positions, last = examples.alone(i)
            similarity = similarity_to(model.trace(sequence, positions).residual[:, 0], positions[0])
            distance = positions[0][:, None] - torch.arange(last + 1, device=count.device)  # (M, T)
            before = distance >= 0
            count += distance[before].bincount(minlength=furthest + 1)
            total.index_add_(1, distance[before], similarity[:, before])
    mean = (total / count)[:, 1:].cpu().numpy()
    return ResidualProfile(np.arange(1, furthest + 1), count[1:].cpu().numpy(), mean)


def similarity_to(residual: Tensor, positions: Tensor) -> Tensor:
    """Cosine similarities (n_layer + 1, M, T), float64, of positions (M,) of a stream (n_layer + 1, T, D)."""
    direction = F.normalize(residual.double(), dim=-1)
    return direction[:, positions] @ direction.transpose(-2, -1)

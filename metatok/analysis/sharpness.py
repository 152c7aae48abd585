"""How meta tokens sharpen the next-token distribution: logit boost and entropy drop (Figure 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metatok.analysis.examples import check_examples, frozen, row_batches
from metatok.model import GPT, Intervention

_LOGIT_ROWS = 256  # rows of logits (rows, V) held at once


@dataclass(frozen=True)
class Sharpness:
    """One entry for each of the n meta tokens, example by example; all arrays are (n,).

    example, position: int64, which meta token. max_logit_boost: max_v l_v - max_v l0_v, in logits.
    entropy_drop: H(softmax(l0)) - H(softmax(l)), nats. Both are as `measure_sharpness` defines them.
    """

    example: NDArray[np.int64]
    position: NDArray[np.int64]
    max_logit_boost: NDArray[np.float64]
    entropy_drop: NDArray[np.float64]


def measure_sharpness(
    model: GPT, tokens: Tensor, lengths: Tensor, meta_positions: Tensor, batch_size: int = 16
) -> Sharpness:
    """Logit boost and entropy drop at every meta token (section 4.4, Figure 2 left and middle).

    l (V,) are the language-model head's logits at a meta token of the sequence as it is; l0 those at the
    same place of the same sequence with the token embedding of all its meta tokens set to 0 and all else,
    positions too, as it was (the caption's "zeroed meta-token sequence"). V leaves padded ids out. With
    H(p) = -sum_v p_v ln p_v in nats,

        boost = max_v l_v - max_v l0_v            drop = H(softmax(l0)) - H(softmax(l))

    A constant added to all logits of a place would change the boost, though no softmax sees it; the drop it
    would not. One number of each for every meta token of every example; nothing is averaged.
    tokens (B, T): right-padded. lengths (B,). meta_positions (B, M): padded with -1.
    Errors: ConfigError on batch_size; `check_examples`.
    """
    examples = check_examples(model, tokens, lengths, meta_positions)
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    with frozen(model):
        for rows in row_batches(len(tokens), batch_size):
            batch, positions = examples.tokens[rows], examples.meta_positions[rows]
            row, column = (positions >= 0).nonzero(as_tuple=True)
            at = positions[row, column]
            as_is = _peak_and_entropy(model, model.hidden(batch, positions)[row, at])
            without = Intervention(zero_embedding=True)
            zeroed = _peak_and_entropy(model, model.hidden(batch, positions, without)[row, at])
            parts.append((row + rows.start, at, as_is[0] - zeroed[0], zeroed[1] - as_is[1]))
    example, position, boost, drop = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    return Sharpness(example, position, boost, drop)


def _peak_and_entropy(model: GPT, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Largest logit and entropy (nats) of the next token, each (n,) float64, from hidden states (n, D)."""
    peaks, entropies = [], []
    for rows in row_batches(len(hidden), _LOGIT_ROWS):
        logits = model.head(hidden[rows])[:, : model.cfg.vocab_size].double()
        log_p = logits.log_softmax(-1)
        peaks.append(logits.amax(-1))
        entropies.append(-(log_p.exp() * log_p).sum(-1))
    return torch.cat(peaks), torch.cat(entropies)

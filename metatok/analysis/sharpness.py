"""How meta tokens sharpen: logit boost and entropy drop (Figure 2), and Theorem 4.1 on attention rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metatok.analysis.examples import check_examples, frozen, row_batches
from metatok.errors import ConfigError
from metatok.model import GPT, Intervention

_LOGIT_ROWS = 256  # rows of logits (rows, V) held at once
_ONE_HOT = 1e-9  # nats; an attention row of less entropy has nothing left to sharpen


@dataclass(frozen=True)
class Sharpness:
    """One entry for each of the n meta tokens, example by example; all arrays are (n,).

    example, position: int64, which meta token. max_logit_boost: how much larger the largest logit is than
    with zeroed embeddings. entropy_drop: how much lower the entropy of the next-token distribution is, nats.
    """

    example: NDArray[np.int64]
    position: NDArray[np.int64]
    max_logit_boost: NDArray[np.float64]
    entropy_drop: NDArray[np.float64]


def measure_sharpness(
    model: GPT, tokens: Tensor, lengths: Tensor, meta_positions: Tensor, batch_size: int = 16
) -> Sharpness:
    """Logit boost and entropy drop at every meta token (section 4.4, Figure 2 left and middle).

    The language-model head's logits at a meta token of the sequence as it is, against the same sequence with
    the token embedding of all its meta tokens zeroed (the caption's "zeroed meta-token sequence").
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


@dataclass(frozen=True)
class BoostEffect:
    """What a logit boost of `delta` nats on a meta key does to attention rows; all arrays are (n,).

    example, layer, head, query, key: int64, which row and which key j*. weight: alpha_j*. entropy: H(alpha),
    nats. entropy_change: H after the boost minus H, nats.
    """

    delta: float
    example: NDArray[np.int64]
    layer: NDArray[np.int64]
    head: NDArray[np.int64]
    query: NDArray[np.int64]
    key: NDArray[np.int64]
    weight: NDArray[np.float64]
    entropy: NDArray[np.float64]
    entropy_change: NDArray[np.float64]

    @property
    def n(self) -> int:
        return len(self.weight)

    @property
    def premise(self) -> NDArray[np.bool_]:
        """(n,): alpha_j* >= exp(-H(alpha)), what Theorem 4.1 needs: then any boost lowers the entropy."""
        return self.weight >= np.exp(-self.entropy)

    @property
    def falls(self) -> NDArray[np.bool_]:
        """(n,): the boost lowers the entropy."""
        return self.entropy_change < 0

    @property
    def premise_rate(self) -> float:
        """Share of the n rows where the premise holds; NaN if there are none."""
        return _share(self.premise)

    @property
    def entropy_fall_rate(self) -> float:
        """Share of the n rows where entropy falls; NaN if there are none."""
        return _share(self.falls)

    @property
    def fall_given_premise(self) -> float:
        """Share of the rows with the premise where entropy falls; NaN if there are none."""
        return _share(self.falls[self.premise])


def measure_boost_effect(
    model: GPT, tokens: Tensor, lengths: Tensor, meta_positions: Tensor, delta: float = 1.0
) -> BoostEffect:
    """Theorem 4.1 on causal attention: does boosting a meta key's logit lower the row's entropy?

    The rows are those of each example's last meta token, in every layer and head; each earlier meta token is
    once the boosted key j*. Rows of less than 1e-9 nats, already on one key, are left out.
    The theorem's proof takes j* to be the largest key; it needs alpha_j* >= exp(-H(alpha)), since dH/dt =
    -alpha_j* (ln alpha_j* + H) along the boost. tokens (B, T), lengths (B,), meta_positions (B, M) as in
    `measure_sharpness`. delta: the boost, nats, above 0. Errors: ConfigError on delta; `check_examples`.
    """
    if not 0 < delta <= 100:
        raise ConfigError(f"delta={delta} must be above 0 and at most 100 nats; the paper boosts, so try 1.0")
    examples = check_examples(model, tokens, lengths, meta_positions)
    parts: list[tuple[Tensor, ...]] = []
    with frozen(model):
        for i in range(len(tokens)):
            sequence, positions, query = examples.alone(i)
            logits = model.trace(sequence, positions, attention=True).attention_logits
            assert logits is not None
            log_row = logits[:, 0, :, query].double().log_softmax(-1)  # (n_layer, H, T)
            entropy = -torch.special.xlogy(log_row.exp(), log_row.exp()).sum(-1, keepdim=True)
            keys = positions[0, :-1]
            log_weight = log_row[..., keys]  # (n_layer, H, keys)
            entropy = entropy.expand_as(log_weight)
            layer, head, column = (entropy > _ONE_HOT).nonzero(as_tuple=True)
            change = entropy_change(log_weight, entropy, delta)
            where = (torch.full_like(layer, i), layer, head, torch.full_like(layer, query), keys[column])
            parts.append((*where, *(x[layer, head, column] for x in (log_weight.exp(), entropy, change))))
    return BoostEffect(delta, *(torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)))


def entropy_change(log_weight: Tensor, entropy: Tensor, delta: float) -> Tensor:
    """H(alpha') - H(alpha) in nats, exactly, when one key's logit gains `delta`; any common shape, float64.

    log_weight: ln alpha_j* of that key. entropy: H(alpha). With a = alpha_j* (e^delta - 1) and Z = 1 + a the
    boosted row is alpha / Z, alpha_j* e^delta / Z at j*, so
    H' - H = ln Z - (a (H + ln alpha_j*) + alpha_j* e^delta delta) / Z.
    """
    weight = log_weight.exp()
    gain = weight * math.expm1(delta)
    slope = torch.where(weight > 0, entropy + log_weight, 0.0)  # a key of weight 0 changes nothing
    return gain.log1p() - (gain * slope + weight * math.exp(delta) * delta) / (1 + gain)


def _share(holds: NDArray[np.bool_]) -> float:
    return float(holds.mean()) if len(holds) else math.nan

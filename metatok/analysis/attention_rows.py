"""Attention rows of meta tokens: how sharp they are, and Theorem 4.1 on them (section 4.4, Appendix G)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metatok.analysis.examples import Examples, check_examples, frozen
from metatok.errors import ConfigError
from metatok.model import GPT

_ONE_HOT = 1e-9  # nats; an attention row of less entropy has nothing left to sharpen


@dataclass(frozen=True)
class AttentionRows:
    """The causal attention row of each of B examples' last meta token, in every layer and head.

    keys (B,): int64, T, the keys that the row is over. entropy (B, n_layer, n_head): nats, in 0..ln T.
    top_weight (B, n_layer, n_head): the largest weight. top_distance (B, n_layer, n_head): int64, how many
    tokens before the meta token that key is; 0 is the token itself.
    """

    keys: NDArray[np.int64]
    entropy: NDArray[np.float64]
    top_weight: NDArray[np.float64]
    top_distance: NDArray[np.int64]


def measure_attention_rows(
    model: GPT, tokens: Tensor, lengths: Tensor, meta_positions: Tensor
) -> AttentionRows:
    """How sharp the last meta token's attention is, by example, layer and head (section 4.4).

    The section's sharpness is H(alpha_i) = -sum_j alpha_ij ln alpha_ij, in nats, of the causal attention's
    softmax alpha_i over the keys j <= i. Here i is each example's last meta token, and each head is
    taken by itself: the entropy of a mean over heads would be larger. Nothing is averaged.
    tokens (B, T): right-padded. lengths (B,). meta_positions (B, M): padded with -1.
    Errors: `check_examples`.
    """
    examples = check_examples(model, tokens, lengths, meta_positions)
    keys, parts = [], []
    for logits in logit_rows(model, examples):
        log_row, T = logits.log_softmax(-1), logits.size(-1)
        weight, key = log_row.exp().max(-1)
        keys.append(T)
        parts.append((row_entropy(log_row), weight, T - 1 - key))
    return AttentionRows(
        np.array(keys), *(torch.stack(column).cpu().numpy() for column in zip(*parts, strict=True))
    )


def logit_rows(model: GPT, examples: Examples) -> Iterator[Tensor]:
    """For each example its last meta token's causal attention logits: (n_layer, n_head, T), float64.

    T counts the keys up to the token itself.
    """
    for i in range(len(examples.tokens)):
        sequence, positions, query = examples.alone(i)
        with frozen(model):  # not around the yield, where it would be the caller's mode too
            logits = model.trace(sequence, positions, attention=True).attention_logits
        assert logits is not None
        yield logits[:, 0, :, query].double()


def row_entropy(log_row: Tensor) -> Tensor:
    """-sum_j alpha_j ln alpha_j in nats, (...), from ln alpha (..., T); a key of weight 0 adds 0."""
    weight = log_row.exp()
    return -torch.special.xlogy(weight, weight).sum(-1)


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

    A row is the causal attention alpha of an example's last meta token, in one layer and head; each earlier
    meta token is once the boosted key j*, so an example of M meta tokens gives (M - 1) n_layer n_head
    entries. For each, alpha' is alpha with `delta` added to the logit of j*, and

        entropy_change = H(alpha') - H(alpha)        premise: alpha_j* >= exp(-H(alpha))

    both in nats. The theorem's proof takes j* to be the largest key. What it needs is the premise, since
    dH/dt = -alpha_j* (ln alpha_j* + H) along the boost t, and ln alpha_j* + H does not come back to 0 from
    above (its slope there is 1 - alpha_j*). A largest key meets it, as H >= -ln max_j alpha_j; where it fails
    a small boost raises H.
    Rows of less than 1e-9 nats, already on one key, are left out: their change is below rounding.
    tokens (B, T), lengths (B,), meta_positions (B, M) as in `measure_attention_rows`. delta: the boost,
    nats, above 0. Errors: ConfigError on delta; `check_examples`.
    """
    if not 0 < delta <= 100:
        raise ConfigError(f"delta={delta} must be above 0 and at most 100 nats; the paper boosts, so try 1.0")
    examples = check_examples(model, tokens, lengths, meta_positions)
    parts: list[tuple[Tensor, ...]] = []
    for i, logits in enumerate(logit_rows(model, examples)):
        log_row = logits.log_softmax(-1)
        _, positions, query = examples.alone(i)
        keys = positions[0, :-1]
        log_weight = log_row[..., keys]  # (n_layer, n_head, keys)
        entropy = row_entropy(log_row)[..., None].expand_as(log_weight)
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

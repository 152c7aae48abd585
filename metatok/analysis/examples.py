"""The input that every analysis takes: checked examples, each cut where its last meta token is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from metatok.errors import ConfigError
from metatok.model import GPT


class Examples(NamedTuple):
    """B examples on the model's device.

    tokens (B, T): int64, 0 beyond a row's length. lengths (B,): int64. meta_positions (B, M): int64,
    ascending, padded with -1 at the end. last_meta (B,): each row's last meta token.
    """

    tokens: Tensor
    lengths: Tensor
    meta_positions: Tensor
    last_meta: Tensor

    def alone(self, example: int) -> tuple[Tensor, Tensor, int]:
        """One example up to its last meta token: tokens (1, T'), meta_positions (1, M'), and T' - 1.

        What follows cannot change it, since attention is causal.
        """
        last = int(self.last_meta[example])
        positions = self.meta_positions[example]
        return self.tokens[example : example + 1, : last + 1], positions[positions >= 0][None], last

    def only(self, example: int) -> Examples:
        """That one example, B = 1."""
        return Examples(*(column[example : example + 1] for column in self))


def check_examples(model: GPT, tokens: Tensor, lengths: Tensor, meta_positions: Tensor) -> Examples:
    """Examples from tokens (B, T), right-padded with any id, lengths (B,) and meta_positions (B, M).

    Errors: ValueError on shapes, lengths, ids or positions that the model cannot take; ConfigError where an
    example has no meta token.
    """
    device = next(model.parameters()).device
    tokens, lengths, meta_positions = tokens.to(device), lengths.to(device).long(), meta_positions.to(device)
    if tokens.dim() != 2 or len(tokens) == 0:
        raise ValueError(
            f"tokens must be (B, T) with B >= 1, not {tuple(tokens.shape)}; one example is tokens[None]"
        )
    B, T = tokens.shape
    if lengths.shape != (B,) or int(lengths.min()) < 1 or int(lengths.max()) > T:
        raise ValueError(
            f"lengths={lengths.tolist()} must be {B} lengths in 1..{T}, one for each row of tokens"
        )
    real = torch.arange(T, device=device) < lengths[:, None]
    tokens = tokens.masked_fill(~real, 0)
    model.check_inputs(tokens, meta_positions)
    counts = (meta_positions >= 0).sum(1)
    if bool((counts == 0).any()):
        raise ConfigError(
            f"example {int((counts == 0).nonzero()[0])} has no meta token; the analyses look at meta tokens, "
            f"so give prompts that have some (meta_positions is -1 throughout that row)"
        )
    last = meta_positions.max(dim=1).values
    if bool((last >= lengths).any()):
        row = int((last >= lengths).nonzero()[0])
        raise ValueError(
            f"meta_positions has {int(last[row])} in example {row}, whose length is {int(lengths[row])}; "
            f"positions must be below the length"
        )
    return Examples(tokens, lengths, meta_positions, last)


def check_index(field: str, value: int, size: int) -> int:
    """`value` as an index in 0..size-1, from the end if negative. Errors: ConfigError out of range."""
    if not -size <= value < size:
        raise ConfigError(f"{field}={value} is out of range; there are {size}, so give 0..{size - 1}")
    return value % size


def row_batches(n: int, batch_size: int) -> Iterator[slice]:
    """0..n-1 in slices of at most batch_size. Errors: ConfigError if batch_size < 1."""
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} must be at least 1")
    return (slice(start, min(start + batch_size, n)) for start in range(0, n, batch_size))


@contextmanager
def frozen(model: GPT) -> Iterator[None]:
    """The model in evaluation mode and without gradients; its mode is put back afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)

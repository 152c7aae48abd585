"""Generation with a KV cache: greedy or sampled, for prompts of different lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from metatok.model.cache import Cache
from metatok.model.checks import check_ids, check_length, check_shapes
from metatok.model.config import GPTConfig
from metatok.model.interventions import Intervention
from metatok.model.plan import find_meta_positions
from metatok.randomness import generator


class Decoder(Protocol):
    """What generation asks of a model: Decoder's `hidden` and `head`, and what torch's modules have."""

    cfg: GPTConfig
    token_embedding: nn.Embedding
    training: bool

    def hidden(
        self,
        tokens: Tensor,
        meta_positions: Tensor | None = None,
        intervention: Intervention | None = None,
        cache: Cache | None = None,
    ) -> Tensor: ...
    def head(self, hidden: Tensor) -> Tensor: ...
    def eval(self) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...


@dataclass(frozen=True)
class Generation:
    """Prompts and what follows them: row b is tokens[b, :lengths[b]], its prompt the first prompt_lengths[b].

    tokens (B, T + max_new_tokens): int64, -1 beyond a row's length. lengths, prompt_lengths: (B,) int64.
    """

    tokens: Tensor
    prompt_lengths: Tensor
    lengths: Tensor

    def completion(self, row: int) -> Tensor:
        """The generated ids of one row, the stop token included: (n,) int64."""
        return self.tokens[row, int(self.prompt_lengths[row]) : int(self.lengths[row])]


@torch.no_grad()
def generate(
    model: Decoder,
    tokens: Tensor,
    max_new_tokens: int,
    prompt_lengths: Tensor | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
    stop_token: int | None = None,
    intervention: Intervention | None = None,
    on_token: Callable[[int, Tensor], None] | None = None,
) -> Generation:
    """Continues prompts by at most max_new_tokens tokens each.

    tokens (B, T): prompts, each followed by padding of any id. prompt_lengths (B,): their lengths; None: T.
    temperature 0 is greedy; else a token is drawn from softmax(logits / temperature), among the top_k if
    given, by a random number that depends on (seed, row, step) alone. stop_token ends a row. intervention:
    as in GPT.hidden, for the prompt's meta tokens and generated ones. on_token(step, ids (B,)) is called as
    soon as a step's tokens are chosen, steps from 0 (a row that has stopped gives -1).

    Errors: ValueError before any work on impossible options, and when the longest prompt and
    max_new_tokens together exceed the context of an APE model.
    """
    _check_options(model, max_new_tokens, temperature, top_k)
    prompt_lengths = _check_prompts(model, tokens, max_new_tokens, prompt_lengths)
    choose = partial(_choose, temperature=temperature, top_k=top_k, seed=seed)
    reader = _Reader(model, len(tokens), int(prompt_lengths.max()) + max_new_tokens, intervention)
    was_training = model.training
    model.eval()
    try:
        return _continue(reader, tokens.long(), prompt_lengths, max_new_tokens, choose, stop_token, on_token)
    finally:
        model.train(was_training)


def _continue(
    reader: _Reader,
    tokens: Tensor,
    prompt_lengths: Tensor,
    max_new_tokens: int,
    choose: Callable[[Tensor, int], Tensor],
    stop_token: int | None,
    on_token: Callable[[int, Tensor], None] | None,
) -> Generation:
    """The loop of `generate`; choose(logits (B, V), step) gives the next ids (B,)."""
    T = int(prompt_lengths.max())
    real = torch.arange(T, device=tokens.device) < prompt_lengths[:, None]  # (B, T)
    out = tokens.new_full((len(tokens), tokens.size(1) + max_new_tokens), -1)
    out[:, :T] = tokens[:, :T].masked_fill(~real, -1)
    sequence = torch.arange(len(tokens), device=tokens.device)
    lengths, running = prompt_lengths.clone(), torch.ones_like(prompt_lengths, dtype=torch.bool)
    hidden = reader.read(tokens[:, :T].masked_fill(~real, 0), real)[sequence, prompt_lengths - 1]  # (B, D)
    for step in range(max_new_tokens):
        chosen = choose(reader.model.head(hidden), step)  # (B,)
        shown = chosen.masked_fill(~running, -1)
        out[sequence, prompt_lengths + step] = shown
        lengths += running
        if on_token is not None:
            on_token(step, shown)
        if step + 1 == max_new_tokens:
            break
        if stop_token is not None:
            running = running & (chosen != stop_token)
            if not bool(running.any()):
                break
        hidden = reader.read(chosen[:, None], running[:, None])[:, 0]
    return Generation(out, prompt_lengths, lengths)


class _Reader:
    """Feeds tokens to a model in pieces, and keeps its cache."""

    def __init__(self, model: Decoder, B: int, capacity: int, intervention: Intervention | None) -> None:
        self.model = model
        self.intervention = intervention
        self.B, self.capacity = B, capacity
        self.needs_meta = model.cfg.extra_attention == "meta" or intervention is not None
        self.cache: Cache | None = None

    def read(self, tokens: Tensor, real: Tensor) -> Tensor:
        """Final hidden states (B, T, D) of the next tokens (B, T), of which `real` (B, T) count."""
        is_meta = (tokens == self.model.cfg.meta_token_id) & real
        meta_positions = find_meta_positions(is_meta) if self.needs_meta else None
        n_meta = 0 if meta_positions is None else meta_positions.size(1)
        if self.cache is None:
            weight = self.model.token_embedding.weight
            kind = weight.device.type
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
            meta_capacity = n_meta + self.capacity - tokens.size(1)  # each token still to come may be one
            self.cache = Cache(self.model.cfg, self.B, self.capacity, meta_capacity, weight.device, dtype)
        hidden = self.model.hidden(tokens, meta_positions, self.intervention, self.cache)
        self.cache.advance(real, is_meta, n_meta)
        return hidden


def _choose(logits: Tensor, step: int, temperature: float, top_k: int | None, seed: int) -> Tensor:
    """One id (B,) for each row of logits (B, V): the largest, or drawn by inverting the cumulative sum."""
    if temperature == 0:
        return logits.argmax(-1)
    scaled = logits.double() / temperature
    if top_k is not None:
        smallest_kept = scaled.topk(top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < smallest_kept, float("-inf"))
    cumulative = scaled.softmax(-1).cumsum(-1)
    draws = [generator(seed, f"generate/{row}", step).random() for row in range(len(logits))]
    u = torch.tensor(draws, dtype=torch.float64, device=logits.device)[:, None]
    # Right of equal values: an id of probability 0 adds nothing to the sum and so is never the answer.
    return torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)[:, 0]


def _check_prompts(
    model: Decoder, tokens: Tensor, max_new_tokens: int, prompt_lengths: Tensor | None
) -> Tensor:
    """The prompts' lengths (B,), after checking them, the prompts and that there is room."""
    check_shapes(tokens)
    B, T = tokens.shape
    if B == 0:
        raise ValueError("tokens has no rows; give at least one prompt")
    if prompt_lengths is None:
        prompt_lengths = torch.full((B,), T)
    prompt_lengths = prompt_lengths.to(tokens.device, torch.int64)
    if prompt_lengths.shape != (B,) or int(prompt_lengths.min()) < 1 or int(prompt_lengths.max()) > T:
        raise ValueError(
            f"prompt_lengths={prompt_lengths.tolist()} must be {B} lengths in 1..{T}, one a row of tokens"
        )
    total = int(prompt_lengths.max()) + max_new_tokens
    check_length(model.cfg, total, "the longest prompt with max_new_tokens")
    real = torch.arange(T, device=tokens.device) < prompt_lengths[:, None]
    check_ids(model.cfg, tokens[real])
    return prompt_lengths


def _check_options(model: Decoder, max_new_tokens: int, temperature: float, top_k: int | None) -> None:
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be at least 1")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature={temperature} must be at least 0 and finite; 0 is greedy")
    if top_k is not None and not 1 <= top_k <= model.cfg.vocab_size:
        raise ValueError(f"top_k={top_k} must be in 1..{model.cfg.vocab_size}, or None for all")

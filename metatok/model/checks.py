"""Checks of what a user hands to a model; each raises ValueError with the way out."""

from __future__ import annotations

import torch
from torch import Tensor

from metatok.model.config import GPTConfig
from metatok.model.positions import POSITIONS


def check_shapes(tokens: Tensor, meta_positions: Tensor | None = None) -> None:
    """tokens must be integers (B, T), meta_positions int64 (B, M); never waits for a device."""
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32) or tokens.size(1) == 0:
        raise ValueError(
            f"tokens must be integers (B, T) with T >= 1, not {tokens.dtype} {tuple(tokens.shape)}; "
            f"one sequence is tokens[None]"
        )
    if meta_positions is not None and (
        meta_positions.dim() != 2 or len(meta_positions) != len(tokens) or meta_positions.dtype != torch.int64
    ):
        raise ValueError(
            f"meta_positions must be int64 (B, M) with B = {len(tokens)}, padded with -1, "
            f"not {meta_positions.dtype} {tuple(meta_positions.shape)}"
        )


def check_length(cfg: GPTConfig, length: int, what: str = "the sequence") -> None:
    """The position scheme must be able to take `length` tokens; `what` names them in the message."""
    if length > cfg.context_length and not POSITIONS[cfg.position].extrapolates:
        raise ValueError(
            f"{what} has {length} tokens, more than context_length={cfg.context_length}, beyond which "
            f"position='{cfg.position}' has no rows; shorten it or use a rope, yarn, nope or alibi model"
        )


def check_ids(cfg: GPTConfig, tokens: Tensor) -> None:
    """ValueError on token ids, of any shape, that are not in the vocabulary."""
    if not tokens.numel():
        return
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= cfg.vocab_size:
        raise ValueError(
            f"tokens has id {low if low < 0 else high}; ids must be in 0..{cfg.vocab_size - 1} "
            f"(vocab_size={cfg.vocab_size}); was it encoded with another tokenizer?"
        )


def check_meta_positions(meta_positions: Tensor, T: int) -> None:
    """(B, M) must be in 0..T-1, strictly ascending, then padded with -1."""
    if not meta_positions.numel():
        return
    low, high = int(meta_positions.min()), int(meta_positions.max())
    if low < -1 or high >= T:
        raise ValueError(
            f"meta_positions has {low if low < -1 else high}; positions must be in 0..{T - 1}, padding is -1"
        )
    before, after = meta_positions[:, :-1], meta_positions[:, 1:]
    if bool(((after >= 0) & (after <= before)).any()):
        raise ValueError("meta_positions must be strictly ascending in each row; sort them, without repeats")
    if bool(((before < 0) & (after >= 0)).any()):
        raise ValueError("meta_positions must have its padding (-1) at the end of each row; move it there")

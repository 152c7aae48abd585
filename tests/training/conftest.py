"""A small model and batches with uneven counts of scored tokens, which the tests of this folder share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from metatok.data.injection import IGNORE
from metatok.data.loader import Batch
from metatok.model import GPT, GPTConfig

META = 39
SHAPE = {
    "vocab_size": 40,
    "meta_token_id": META,
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 16,
    "context_length": 24,
}


def build(name: str = "meta_rope", seed: int = 0, **fields: Any) -> GPT:
    return GPT(GPTConfig.variant(name, **{**SHAPE, **fields}), seed=seed)


def uneven_batch(step: int, rows: int = 6, T: int = 16, meta_share: float = 0.2) -> Batch:
    """Row i counts about i/rows of its targets, so a mean of rows' means is not the mean of tokens."""
    rng = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, META, (rows, T), generator=rng)
    tokens[torch.rand(rows, T, generator=rng) < meta_share] = META
    targets = torch.randint(0, META, (rows, T), generator=rng)
    targets[torch.rand(rows, T, generator=rng) > (torch.arange(rows)[:, None] + 0.5) / rows] = IGNORE
    return Batch(tokens, targets, build().meta_positions(tokens), torch.arange(len(tokens)))


@pytest.fixture(scope="session")
def tiny() -> Callable[..., GPT]:
    """Builds a two-layer model of a variant."""
    return build

"""A small model and three prompts of different lengths, each ending with a meta token."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from metatok.model import GPT, GPTConfig
from metatok.randomness import generator

META = 129
PLACES = [[4, 9, 15], [3, 11], [0, 1, 2, 19]]


def entropy(p) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


class Batch(NamedTuple):
    tokens: Tensor
    lengths: Tensor
    meta_positions: Tensor


def small_model(variant: str = "meta_rope") -> GPT:
    """Larger weights than an untrained model's, so that attention isn't near uniform."""
    cfg = GPTConfig.variant(
        variant, n_layer=2, n_head=2, n_embd=32, vocab_size=130, meta_token_id=META, context_length=64
    )
    model = GPT(cfg, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(12 if "qkv" in name else 6)
    return model


@pytest.fixture(scope="session")
def model() -> GPT:
    return small_model()


@pytest.fixture(scope="session")
def batch() -> Batch:
    lengths = torch.tensor([places[-1] + 1 for places in PLACES])
    drawn = generator(0, "tests/analysis").integers(0, META, (3, 24))
    tokens = torch.from_numpy(drawn)
    positions = torch.full((3, 4), -1)
    for row, places in enumerate(PLACES):
        tokens[row, places] = META
        positions[row, : len(places)] = torch.tensor(places)
        tokens[row, lengths[row] :] = -7  # padding of an id that no model takes
    return Batch(tokens, lengths, positions)

"""Small models that the tests of this folder share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from metatok.model import GPT, GPTConfig

META = 69  # the meta token of `tiny` models


@pytest.fixture(scope="session")
def tiny() -> Callable[..., GPT]:
    """Builds a two-layer model of a variant, weights large enough that mistakes show."""

    def build(name: str = "meta_rope", seed: int = 0, **fields: Any) -> GPT:
        shape = {
            "vocab_size": 70,
            "meta_token_id": META,
            "n_layer": 2,
            "n_head": 3,
            "n_embd": 24,
            "context_length": 64,
        }
        model = GPT(GPTConfig.variant(name, **{**shape, **fields}), seed=seed).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(8)
        return model

    return build


@pytest.fixture(scope="session")
def random_tokens() -> Callable[..., torch.Tensor]:
    """Tokens (B, T) of `tiny` models, about `share` of them meta tokens."""

    def draw(B: int, T: int, share: float = 0.3, seed: int = 0) -> torch.Tensor:
        stream = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, META, (B, T), generator=stream)
        return torch.where(torch.rand(B, T, generator=stream) < share, META, tokens)

    return draw

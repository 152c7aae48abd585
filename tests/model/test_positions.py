"""Position schemes against the numbers of their papers and against another implementation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatok.model import GPTConfig
from metatok.model.positions import RoPE, YaRN, alibi_slopes, yarn_range


def rope_config(context: int, head_dim: int = 64, theta: float = 10000.0) -> GPTConfig:
    return GPTConfig(n_head=1, n_embd=head_dim, context_length=context, rope_theta=theta)


@pytest.mark.parametrize(("context", "low", "high"), [(512, 3, 16), (1024, 5, 18), (2048, 8, 21)])
def test_yarn_ramp_of_the_papers_head(context: int, low: int, high: int) -> None:
    assert yarn_range(rope_config(context).extended(4)) == (low, high)


@pytest.mark.parametrize(("scale", "mscale"), [(1, 1.0), (4, 1.1386), (8, 1.2079)])
def test_yarn_scales_cos_and_sin(scale: float, mscale: float) -> None:
    yarn = YaRN(rope_config(1024).extended(scale))
    cos, sin = yarn.rotation(yarn.code(torch.arange(50)[None]))
    torch.testing.assert_close((cos**2 + sin**2).sqrt(), torch.full_like(cos, mscale), atol=1e-4, rtol=0)


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones() -> None:
    cfg = rope_config(1024)
    rope, yarn = RoPE(cfg).constants, YaRN(cfg.extended(4)).constants
    torch.testing.assert_close(yarn[:6], rope[:6])
    torch.testing.assert_close(yarn[18:], rope[18:] / 4)


@settings(max_examples=40, deadline=None)
@given(
    head_dim=st.sampled_from([16, 32, 64, 128]),
    theta=st.floats(1000, 1e6),
    context=st.integers(64, 8192),
    scale=st.floats(1, 32),
    beta_fast=st.floats(8, 64),
    beta_slow=st.floats(0.5, 4),
)
def test_yarn_agrees_with_transformers(
    head_dim: int, theta: float, context: int, scale: float, beta_fast: float, beta_slow: float
) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    betas = {"beta_fast": beta_fast, "beta_slow": beta_slow}
    ours = YaRN(rope_config(context, head_dim, theta).extended(scale, **betas))
    theirs = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=round(context * scale),
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": scale,
            "original_max_position_embeddings": context,
            **betas,
        },
    )
    inverse_frequencies, mscale = ROPE_INIT_FUNCTIONS["yarn"](theirs, torch.device("cpu"))
    torch.testing.assert_close(ours.constants, inverse_frequencies, rtol=1e-4, atol=0)
    assert ours.mscale == pytest.approx(mscale)


def test_alibi_slopes_of_its_paper() -> None:
    assert alibi_slopes(8) == [2.0**-h for h in range(1, 9)]
    assert alibi_slopes(12)[:8] == alibi_slopes(8)
    assert alibi_slopes(12)[8:] == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    assert all(0 < slope < 1 for n in range(1, 20) for slope in alibi_slopes(n))


def test_frequencies_survive_a_cast_of_the_model() -> None:
    rope = RoPE(rope_config(1024))
    before = rope.constants.clone()
    assert torch.equal(rope.to(torch.bfloat16).constants, before)
    assert before[1].item() == pytest.approx(math.pow(10000, -2 / 64))

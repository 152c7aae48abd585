import math

import numpy as np
import pytest
import torch

from metatok.analysis.attention_maps import PARTS, attention_map, attention_mass, parts_of

from .conftest import PLACES, small_model
from .handmade import MARK, handmade


@pytest.mark.parametrize("example", [0, 1, 2])
def test_map_is_the_traces_row(model, batch, example):
    result = attention_map(model, *batch, example=example)
    padded = model.trace(batch.tokens.clamp(min=0), batch.meta_positions, attention=True)
    position = PLACES[example][-1]
    expected = padded.attention[:, example, :, position, : position + 1]
    np.testing.assert_allclose(result.weight, expected, atol=1e-5)
    np.testing.assert_allclose(result.weight.sum(-1), 1, atol=1e-9)
    assert result.position == position
    assert result.token_ids.tolist() == batch.tokens[example, : position + 1].tolist()


def test_map_of_weights_set_by_hand():
    """Head 0 of layer 0 is all on one key, as a trained model's may be; the others are not."""
    shares = [[0, 60, 0, 0, 0, 0, 0, 0], [0, 0, math.log(3), 0, 0, 0, 0, 0]]
    model = handmade([shares, [[0] * 8, [0, 0, 0, 0, 0, 0, 0, math.log(2)]]])
    tokens, positions = torch.tensor([[3, 1, 2, MARK, 5]]), torch.tensor([[3]])
    shown = attention_map(model, tokens, torch.tensor([5]), positions)
    expected = [[[0, 1, 0, 0], [1 / 6, 1 / 6, 1 / 2, 1 / 6]], [[1 / 4] * 4, [1 / 5, 1 / 5, 1 / 5, 2 / 5]]]
    np.testing.assert_allclose(shown.weight, expected, atol=1e-4)
    np.testing.assert_allclose(shown.mean[0], [1 / 12, 7 / 12, 1 / 4, 1 / 12], atol=1e-4)
    assert shown.token_ids.tolist() == [3, 1, 2, MARK]


@pytest.mark.parametrize("variant", ["meta_rope", "meta_ape"])
def test_map_is_the_softmax_of_hooked_queries_and_keys(variant, batch):
    """From what the projections gave, by numpy: rotation as complex numbers, softmax over earlier keys."""
    model, seen = small_model(variant), []
    hooks = [
        block.causal.qkv.register_forward_hook(lambda module, given, out: seen.append(out[0].double()))
        for block in model.blocks
    ]
    last = PLACES[0][-1]
    with torch.no_grad():
        model.hidden(batch.tokens[:1, : last + 1])
    for hook in hooks:
        hook.remove()
    weight = attention_map(model, *batch).weight
    for layer, qkv in enumerate(x.numpy() for x in seen):
        for head in range(2):
            q, k = (qkv[:, 32 * part + 16 * head :][:, :16] for part in (0, 1))  # (T, head_dim)
            if variant == "meta_rope":
                turn = np.exp(1j * np.arange(last + 1)[:, None] * 10000.0 ** (-np.arange(8) / 8))
                q, k = ((x[:, :8] + 1j * x[:, 8:]) * turn for x in (q, k))
            logits = (q[-1] @ k.conj().T).real / 4
            expected = np.exp(logits - logits.max())
            np.testing.assert_allclose(weight[layer, head], expected / expected.sum(), atol=1e-4)


def test_mass_adds_up_the_map(model, batch):
    result = attention_mass(model, *batch)
    for example, places in enumerate(PLACES):
        weight = attention_map(model, *batch, example=example).mean
        last, previous = places[-1], places[-2]
        named = [weight[:, last], weight[:, previous], weight[:, last - 1], weight[:, 0]]
        expected = np.stack([*named, 1 - sum(named)], axis=1)
        np.testing.assert_allclose(result.mass[example], expected, atol=1e-9)
    assert result.has_part.all()
    np.testing.assert_allclose(result.mean(), result.mass.mean(0))
    np.testing.assert_allclose(result.mean().sum(-1), 1, atol=1e-9)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([5], ["first_token", "rest", "rest", "rest", "token_before", "itself"]),
        ([0, 2], ["previous_meta", "token_before", "itself"]),
        ([1, 2], ["first_token", "previous_meta", "itself"]),
        ([1], ["token_before", "itself"]),
        ([0], ["itself"]),
    ],
)
def test_a_key_that_fits_several_parts_counts_for_the_first(positions, expected):
    assert [PARTS[i] for i in parts_of(torch.tensor(positions))] == expected


def test_an_example_without_a_previous_meta_token_says_so(model):
    tokens, positions = torch.tensor([[3, 4, 129]]), torch.tensor([[2]])
    result = attention_mass(model, tokens, torch.tensor([3]), positions)
    assert result.has_part[0, PARTS.index("previous_meta")] == False  # noqa: E712
    assert (result.mass[0, :, PARTS.index("previous_meta")] == 0).all()

import numpy as np
import pytest
import torch

from metatok.analysis.attention_maps import PARTS, attention_map, attention_mass, parts_of

from .conftest import PLACES


@pytest.mark.parametrize("example", [0, 1, 2])
def test_map_is_the_traces_row_averaged_over_heads(model, batch, example):
    result = attention_map(model, *batch, example=example)
    padded = model.trace(batch.tokens.clamp(min=0), batch.meta_positions, attention=True)
    position = PLACES[example][-1]
    expected = padded.attention[:, example, :, position, : position + 1].mean(1)
    np.testing.assert_allclose(result.weight, expected, atol=1e-5)
    np.testing.assert_allclose(result.weight.sum(-1), 1, atol=1e-9)
    assert result.position == position
    assert result.token_ids.tolist() == batch.tokens[example, : position + 1].tolist()


def test_mass_adds_up_the_map(model, batch):
    result = attention_mass(model, *batch)
    for example, places in enumerate(PLACES):
        weight = attention_map(model, *batch, example=example).weight
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

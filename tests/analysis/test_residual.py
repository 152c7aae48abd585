import math
from collections import defaultdict

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from metatok.analysis.residual import residual_map, residual_profile
from metatok.errors import ConfigError

from .conftest import PLACES
from .handmade import MARK, handmade


def similarities(model, batch, row, place):
    """(n_layer + 1, place + 1), by torch's own cosine, from the example alone."""
    sequence = batch.tokens[row : row + 1, : batch.lengths[row]]
    residual = model.trace(sequence).residual[:, 0]
    return F.cosine_similarity(residual[:, place : place + 1], residual[:, : place + 1], dim=-1).numpy()


@pytest.mark.parametrize(("example", "meta_index"), [(0, -1), (1, 0), (2, 1), (2, 0)])
def test_map_is_the_cosine_with_each_token_before(model, batch, example, meta_index):
    result = residual_map(model, *batch, example=example, meta_index=meta_index)
    place = PLACES[example][meta_index]
    assert result.position == place
    np.testing.assert_allclose(result.similarity, similarities(model, batch, example, place), atol=1e-5)
    np.testing.assert_allclose(result.similarity[:, -1], 1, atol=1e-9)
    assert result.token_ids.tolist() == batch.tokens[example, : place + 1].tolist()


def test_cosines_of_a_model_set_by_hand():
    """Orthogonal embeddings; the one layer adds to the meta token twice the first token's, and to the first
    token twice its own."""
    model = handmade([[[0, 60, 0, 0, 0, 0, 0, 0]]], value=2.0)
    tokens, positions = torch.tensor([[1, 5, MARK]]), torch.tensor([[2]])
    shown = residual_map(model, tokens, torch.tensor([3]), positions)
    # After the layer: m + 2a at the meta token, 3a at the first, b + (a + b) at the second, of (a, b, m).
    cosines = [2 / math.sqrt(5), 2 / (math.sqrt(5) * math.sqrt(5)), 1]
    np.testing.assert_allclose(shown.similarity, [[0, 0, 1], cosines], atol=1e-4)
    profile = residual_profile(model, tokens, torch.tensor([3]), positions)
    np.testing.assert_allclose(profile.similarity[1], [cosines[1], cosines[0]], atol=1e-4)


def test_profile_is_the_mean_over_all_meta_tokens_at_each_distance(model, batch):
    result = residual_profile(model, *batch)
    by_distance = defaultdict(list)
    for row, places in enumerate(PLACES):
        for place in places:
            values = similarities(model, batch, row, place)
            for distance in range(1, place + 1):
                by_distance[distance].append(values[:, place - distance])
    assert result.distance.tolist() == sorted(by_distance) == list(range(1, 20))
    assert result.count.tolist() == [len(by_distance[d]) for d in result.distance]
    expected = np.stack([np.mean(by_distance[d], axis=0) for d in result.distance], axis=1)
    np.testing.assert_allclose(result.similarity, expected, atol=1e-5)


def test_meta_tokens_share_their_embedding_before_the_first_layer(model, batch):
    result = residual_map(model, *batch, example=0)
    np.testing.assert_allclose(result.similarity[0, PLACES[0]], 1, atol=1e-9)


def test_profile_of_a_leading_meta_token_alone_is_empty(model):
    result = residual_profile(model, torch.tensor([[129]]), torch.tensor([1]), torch.tensor([[0]]))
    assert result.similarity.shape == (3, 0)


def test_indices_out_of_range_are_named(model, batch):
    with pytest.raises(ConfigError, match=r"example=3 .*0\.\.2"):
        residual_map(model, *batch, example=3)
    with pytest.raises(ConfigError, match=r"meta_index=2 .*0\.\.1"):
        residual_map(model, *batch, example=1, meta_index=2)

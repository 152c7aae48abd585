import math

import numpy as np
import pytest
import torch

from metatok.analysis.sharpness import measure_sharpness
from metatok.errors import ConfigError
from metatok.model import Intervention

from .conftest import PLACES, entropy, small_model
from .handmade import HADAMARD, MARK, handmade


def test_boost_and_drop_equal_the_logits_of_each_example_alone(model, batch):
    result = measure_sharpness(model, *batch, batch_size=2)
    expected = []
    for row, places in enumerate(PLACES):
        sequence = batch.tokens[row : row + 1, : batch.lengths[row]]
        with torch.no_grad():
            as_is = model(sequence)[0].double()
            zeroed = model(sequence, intervention=Intervention(zero_embedding=True))[0].double()
        for place in places:
            drop = entropy(zeroed[place].softmax(-1).tolist()) - entropy(as_is[place].softmax(-1).tolist())
            expected.append((row, place, float(as_is[place].max() - zeroed[place].max()), drop))
    got = list(zip(result.example, result.position, result.max_logit_boost, result.entropy_drop, strict=True))
    np.testing.assert_allclose(got, expected, atol=1e-4)
    assert np.abs(result.max_logit_boost).min() > 1e-3


def test_boost_and_drop_of_a_model_whose_logits_are_set_by_hand():
    """Nothing but the meta token's own embedding reaches its logits: 8 on itself, -3 on one other, else 0."""
    model = handmade()
    with torch.no_grad():
        model.token_embedding.weight[2] = -3 / 8 * HADAMARD[MARK]
    found = measure_sharpness(model, torch.tensor([[1, 2, MARK]]), torch.tensor([3]), torch.tensor([[2]]))
    total = math.exp(8) + math.exp(-3) + 6
    as_is = math.log(total) - (8 * math.exp(8) - 3 * math.exp(-3)) / total
    # With a zero embedding the norm has nothing to scale: all logits are 0, the distribution is uniform.
    assert found.max_logit_boost == pytest.approx(8, abs=1e-3)
    assert found.entropy_drop == pytest.approx(math.log(8) - as_is, abs=1e-3)


def test_the_meta_tokens_before_are_zeroed_too():
    """The only way to the last token's logits is a mean over the two meta tokens before it and itself."""
    model = handmade(value=1.0)
    tokens, positions = torch.tensor([[MARK, MARK, MARK]]), torch.tensor([[0, 1, 2]])
    found = measure_sharpness(model, tokens, torch.tensor([3]), positions)
    assert found.position.tolist() == [0, 1, 2]
    np.testing.assert_allclose(found.max_logit_boost, 8, atol=1e-3)
    np.testing.assert_allclose(found.entropy_drop, found.entropy_drop[0], atol=1e-6)


@pytest.mark.parametrize("variant", ["gpt2_ape", "pause_rope", "meta_nope", "meta_alibi"])
def test_sharpness_is_finite_for_every_kind_of_model(variant, batch):
    model = small_model(variant)
    sharpness = measure_sharpness(model, *batch)
    assert np.isfinite(sharpness.max_logit_boost).all()
    assert np.isfinite(sharpness.entropy_drop).all()


def test_models_mode_and_gradients_are_left_alone(model, batch):
    model.train()
    measure_sharpness(model, *batch)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_bad_examples_are_named(model, batch):
    tokens, lengths, positions = batch
    with pytest.raises(ConfigError, match="example 1 has no meta token"):
        measure_sharpness(model, tokens, lengths, positions.index_fill(0, torch.tensor([1]), -1))
    with pytest.raises(ValueError, match="19 in example 2, whose length is 10"):
        measure_sharpness(model, tokens, torch.tensor([16, 12, 10]), positions)
    with pytest.raises(ValueError, match="lengths"):
        measure_sharpness(model, tokens, lengths[:2], positions)
    with pytest.raises(ValueError, match="one example is"):
        measure_sharpness(model, tokens[0], lengths, positions)
    with pytest.raises(ConfigError, match="batch_size=0"):
        measure_sharpness(model, *batch, batch_size=0)

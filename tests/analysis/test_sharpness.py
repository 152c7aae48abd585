import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatok.analysis.sharpness import entropy_change, measure_boost_effect, measure_sharpness
from metatok.errors import ConfigError
from metatok.model import Intervention

from .conftest import PLACES, small_model


def entropy(p):
    return -sum(x * math.log(x) for x in p if x > 0)


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


@pytest.mark.parametrize("variant", ["gpt2_ape", "pause_rope", "meta_nope", "meta_alibi"])
def test_sharpness_and_boost_effect_are_finite_for_every_kind_of_model(variant, batch):
    model = small_model(variant)
    sharpness = measure_sharpness(model, *batch)
    assert np.isfinite(sharpness.max_logit_boost).all()
    assert np.isfinite(sharpness.entropy_drop).all()
    assert np.isfinite(measure_boost_effect(model, *batch).entropy_change).all()


def test_models_mode_and_gradients_are_left_alone(model, batch):
    model.train()
    measure_sharpness(model, *batch)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("delta", [0.25, 1.0, 5.0])
def test_boost_effect_equals_a_softmax_over_boosted_logits(model, batch, delta):
    effect = measure_boost_effect(model, *batch, delta=delta)
    expected = []
    for row, places in enumerate(PLACES):
        sequence = batch.tokens[row : row + 1, : batch.lengths[row]]
        logits = model.trace(sequence, attention=True).attention_logits[:, 0, :, -1].double()
        for layer in range(2):
            for head in range(2):
                for key in places[:-1]:
                    before = logits[layer, head]
                    after = before.clone()
                    after[key] += delta
                    h0, h1 = (entropy(x.softmax(-1).tolist()) for x in (before, after))
                    alpha = float(before.softmax(-1)[key])
                    expected.append((row, layer, head, places[-1], key, alpha, h0, h1 - h0))
    fields = ("example", "layer", "head", "query", "key", "weight", "entropy", "entropy_change")
    got = np.stack([getattr(effect, f) for f in fields], axis=1)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert effect.n == len(expected) == 2 * 2 * (2 + 1 + 3)
    assert effect.entropy_fall_rate == np.mean([e[-1] < 0 for e in expected])
    assert effect.premise_rate == np.mean([e[5] >= math.exp(-e[6]) for e in expected])
    assert effect.fall_given_premise == 1.0


logits = st.lists(st.floats(-20, 20), min_size=2, max_size=12)


@given(logits, st.data(), st.floats(0.01, 10))
@settings(max_examples=200, deadline=None)
def test_entropy_change_is_exact_and_falls_under_the_premise(values, data, delta):
    key = data.draw(st.integers(0, len(values) - 1))
    row = torch.tensor(values, dtype=torch.float64)
    boosted = row.clone()
    boosted[key] += delta
    h0, h1 = (entropy(x.softmax(-1).tolist()) for x in (row, boosted))
    log_weight = row.log_softmax(-1)[key]
    change = float(entropy_change(log_weight, torch.tensor(h0, dtype=torch.float64), delta))
    assert change == pytest.approx(h1 - h0, abs=1e-12)
    if log_weight + h0 >= 0:
        assert change <= 1e-13


@given(logits, st.data())
@settings(max_examples=100, deadline=None)
def test_small_boost_follows_the_theorems_derivative(values, data):
    key = data.draw(st.integers(0, len(values) - 1))
    log_row = torch.tensor(values, dtype=torch.float64).log_softmax(-1)
    h, step = entropy(log_row.exp().tolist()), 1e-5
    change = float(entropy_change(log_row[key], torch.tensor(h, dtype=torch.float64), step))
    derivative = -math.exp(log_row[key]) * (float(log_row[key]) + h)
    assert change / step == pytest.approx(derivative, abs=1e-4)


def test_boost_of_a_small_key_raises_entropy():
    row = torch.tensor([0.0, 0.0, -6.0], dtype=torch.float64)
    h = torch.tensor(entropy(row.softmax(-1).tolist()), dtype=torch.float64)
    assert entropy_change(row.log_softmax(-1)[2], h, 1.0) > 0


def test_a_key_of_weight_zero_changes_nothing():
    zero, h = torch.tensor(-math.inf, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    assert float(entropy_change(zero, h, 1.0)) == 0.0


def test_a_single_meta_token_leaves_no_rows(model, batch):
    effect = measure_boost_effect(model, batch.tokens[:1, :5], torch.tensor([5]), torch.tensor([[4]]))
    assert effect.n == 0
    assert math.isnan(effect.premise_rate)


@pytest.mark.parametrize("delta", [0.0, -1.0, math.nan, math.inf])
def test_delta_must_be_a_positive_boost(model, batch, delta):
    with pytest.raises(ConfigError, match="delta"):
        measure_boost_effect(model, *batch, delta=delta)


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

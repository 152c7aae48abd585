import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatok.analysis.attention_rows import entropy_change, measure_attention_rows, measure_boost_effect
from metatok.errors import ConfigError

from .conftest import PLACES, entropy, small_model
from .handmade import MARK, handmade

# Two meta tokens among text: the row at the last is over keys 1, 2, MARK, 3, MARK.
TOKENS, LENGTHS, POSITIONS = torch.tensor([[1, 2, MARK, 3, MARK]]), torch.tensor([5]), torch.tensor([[2, 4]])


def log_weights(**by_token):
    """Attention logits of tokens 0..7 from weights, 1 where none is given."""
    return [math.log(by_token.get(f"t{j}", 1.0)) for j in range(8)]


@pytest.fixture(scope="module")
def known():
    """Layer 0: uniform over the five keys; and 4 : 1 : 2 : 1 : 2. Layer 1: all on token 3; half on the two
    meta tokens."""
    first = [[0.0] * 8, log_weights(t1=4.0, t7=2.0)]
    second = [[0.0, 0, 0, 60, 0, 0, 0, 0], log_weights(t7=1.5)]
    return handmade([first, second])


def test_entropy_and_largest_key_of_rows_set_by_hand(known):
    rows = measure_attention_rows(known, TOKENS, LENGTHS, POSITIONS)
    shares = [0.4, 0.1, 0.2, 0.1, 0.2], [1 / 6, 1 / 6, 0.25, 1 / 6, 0.25]
    expected = [[math.log(5), entropy(shares[0])], [0.0, entropy(shares[1])]]
    np.testing.assert_allclose(rows.entropy[0], expected, atol=1e-4)
    np.testing.assert_allclose(rows.top_weight[0], [[0.2, 0.4], [1.0, 0.25]], atol=1e-4)
    # Token 1 is four before the last, token 3 one before; the meta token before counts before itself.
    assert rows.top_distance[0, 0, 1] == 4
    assert rows.top_distance[0, 1].tolist()[0] == 1
    assert rows.top_distance[0, 1, 1] in (0, 2)
    assert rows.keys.tolist() == [5]


def test_premise_and_fall_of_rows_set_by_hand(known):
    effect = measure_boost_effect(known, TOKENS, LENGTHS, POSITIONS, delta=0.5)
    by_head = {
        (layer, head): i for i, (layer, head) in enumerate(zip(effect.layer, effect.head, strict=True))
    }
    assert (1, 0) not in by_head  # all on one key: nothing to sharpen
    assert effect.key.tolist() == [2] * 3
    skewed, halves = by_head[0, 1], by_head[1, 1]
    # 0.2 is below exp(-H) = 0.232 though only one key has more; 0.25 is the largest weight of its row.
    assert effect.weight[skewed] == pytest.approx(0.2, abs=1e-4)
    assert math.exp(-entropy([0.4, 0.1, 0.2, 0.1, 0.2])) == pytest.approx(0.2297, abs=1e-4)
    assert (effect.premise[skewed], effect.premise[halves]) == (False, True)
    boosted = np.array([0.4, 0.1, 0.2 * math.exp(0.5), 0.1, 0.2])
    change = entropy(boosted / boosted.sum()) - entropy([0.4, 0.1, 0.2, 0.1, 0.2])
    assert effect.entropy_change[skewed] == pytest.approx(change, abs=1e-4)
    assert effect.falls[halves]


def test_rows_are_the_traces_softmax_head_by_head(model, batch):
    rows = measure_attention_rows(model, *batch)
    for example, places in enumerate(PLACES):
        sequence = batch.tokens[example : example + 1, : places[-1] + 1]
        weights = model.trace(sequence, attention=True).attention[:, 0, :, -1]
        for layer in range(2):
            for head in range(2):
                expected = entropy(weights[layer, head].tolist())
                assert rows.entropy[example, layer, head] == pytest.approx(expected, abs=1e-4)
    assert rows.keys.tolist() == [places[-1] + 1 for places in PLACES]


def test_the_callers_mode_is_its_own_between_rows(model, batch):
    model.train()
    measure_attention_rows(model, *batch)
    assert model.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("variant", ["gpt2_ape", "pause_rope", "meta_nope", "meta_alibi"])
def test_rows_and_boost_effect_are_finite_for_every_kind_of_model(variant, batch):
    model = small_model(variant)
    assert np.isfinite(measure_attention_rows(model, *batch).entropy).all()
    assert np.isfinite(measure_boost_effect(model, *batch).entropy_change).all()


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

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.integrate import quad
from scipy.stats import norm
from torch.distributions import Normal, kl_divergence

from metatok.analysis import BETAS, RateDistortionConfig, fit, site_states
from metatok.analysis.rate_distortion import Bottleneck, kl_to_prior, measure
from metatok.errors import ConfigError

from .conftest import PLACES

N, D, V = 48, 16, 60


@pytest.fixture(scope="module")
def toy():
    """Eight well separated classes, six examples each."""
    stream = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(8, D, generator=stream)
    y = torch.arange(N) % 8
    return centres[y] + 0.1 * torch.randn(N, D, generator=stream), y


def fitted(toy, beta, **fields):
    settings = {"epochs": 40, "learning_rate": 0.01, "latent_dim": 8, "n_samples": 64} | fields
    return fit(*toy, V, RateDistortionConfig(beta=beta, **settings))


@pytest.fixture(scope="module")
def curve(toy):
    return {beta: fitted(toy, beta) for beta in (0.001, 0.1, 0.5, 10.0)}


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 3)), min_size=1, max_size=6))
@settings(deadline=None)
def test_rate_equals_torch_distributions_kl(latents):
    mean, log_variance = torch.tensor(latents, dtype=torch.float64).T
    expected = kl_divergence(
        Normal(mean, (0.5 * log_variance).exp()), Normal(torch.zeros_like(mean), 1.0)
    ).sum()
    torch.testing.assert_close(kl_to_prior(mean, log_variance), expected)


def test_rate_falls_and_distortion_rises_with_beta(curve):
    results = [curve[beta] for beta in sorted(curve)]
    rates, distortions = [r.rate for r in results], [r.distortion for r in results]
    assert rates == sorted(rates, reverse=True)
    assert distortions == sorted(distortions)


def test_a_large_beta_leaves_the_marginal_of_the_targets(toy):
    # At a small learning rate, since Adam's steps keep their size and so leave a rate that grows with it.
    result = fit(*toy, 8, RateDistortionConfig(beta=10.0, latent_dim=8, epochs=60))
    assert result.rate < 0.02
    assert result.distortion == pytest.approx(math.log(8), abs=0.05)


def test_a_small_beta_learns_separable_data(curve):
    assert curve[0.001].distortion < 0.1 < math.log(V)


def test_rate_and_distortion_cannot_sum_to_less_than_the_targets_entropy(curve):
    # rate >= I(X; Z) >= I(Y; Z) >= H(Y) - distortion, with H(Y) = ln 8 here.
    for result in curve.values():
        assert result.rate + result.distortion >= math.log(8) - 0.02


def test_distortion_at_the_mean_is_a_lower_bound(curve):
    for result in curve.values():
        assert result.distortion_at_mean <= result.distortion + 0.02


def coin(gain: float, deviation: float, slope: float) -> tuple[Bottleneck, torch.Tensor, torch.Tensor]:
    """A fair coin: h = y = 0 or 1 -> z ~ N(+-gain, deviation^2), one latent, logits -+slope z."""
    head = Bottleneck(n_embd=1, latent_dim=1, vocab_size=2)
    with torch.no_grad():
        head.encoder.weight[:] = torch.tensor([[2 * gain], [0.0]])
        head.encoder.bias[:] = torch.tensor([-gain, 2 * math.log(deviation)])
        head.decoder.weight[:] = torch.tensor([[-slope], [slope]])
    y = torch.tensor([0, 1])
    return head, y[:, None].float(), y


def information(gain: float, deviation: float) -> float:
    """I(Y; Z) in nats of that coin, by integrating over z: h(Z) - h(Z|Y)."""

    def surprise(z: float) -> float:
        p = 0.5 * (norm.pdf(z, -gain, deviation) + norm.pdf(z, gain, deviation))
        return -p * math.log(p) if p > 0 else 0.0

    reach = gain + 10 * deviation
    return quad(surprise, -reach, reach, points=(-gain, gain), limit=200)[0] - norm.entropy(0, deviation)


@pytest.mark.parametrize(("gain", "deviation"), [(0.5, 1.0), (1.0, 1.0), (1.0, 0.6)])
def test_a_coins_rate_and_distortion_bound_its_information(gain, deviation):
    slope = gain / deviation**2  # the posterior's log-odds are 2 slope z, so this decoder is exact
    head, h, y = coin(gain, deviation, slope)
    result = measure(head, h, y, n_samples=200_000)
    told = information(gain, deviation)
    assert result.rate == pytest.approx((gain**2 + deviation**2 - 1 - 2 * math.log(deviation)) / 2, rel=1e-5)
    # The exact decoder leaves H(Y|Z) = H(Y) - I(Y; Z), and the rate is no less than I(Y; Z).
    assert result.distortion == pytest.approx(math.log(2) - told, abs=0.005)
    assert 0 < told <= min(result.rate, math.log(2))
    worse = measure(*coin(gain, deviation, 3 * slope), n_samples=20_000)
    assert worse.distortion > math.log(2) - told


def test_a_perfect_decoder_leaves_no_distortion_and_no_latent_all_of_it():
    sharp = measure(*coin(gain=1.0, deviation=1e-3, slope=30.0), n_samples=16)
    assert sharp.distortion < 1e-6
    assert sharp.rate == pytest.approx((1 + 1e-6 - 1) / 2 - math.log(1e-3), rel=1e-5)
    blind = measure(*coin(gain=0.0, deviation=1.0, slope=0.0), n_samples=4)
    assert (blind.rate, blind.distortion) == pytest.approx((0.0, math.log(2)), abs=1e-6)


def test_means_are_over_examples():
    head, _, _ = coin(gain=1.0, deviation=1.0, slope=0.0)
    h, y = torch.tensor([[0.5], [0.5], [0.5], [1.5]]), torch.tensor([0, 1, 1, 1])
    result = measure(head, h, y, n_samples=1)
    # mu = 2h - 1, sigma = 1: the rate is mu^2 / 2.
    assert [p.rate for p in result.by_example] == pytest.approx([0, 0, 0, 2], abs=1e-6)
    assert [p.distortion for p in result.by_example] == pytest.approx([math.log(2)] * 4)
    assert result.rate == pytest.approx(0.5)
    # A standard deviation of 1 over four examples.
    assert result.standard_error == pytest.approx((0.5, 0.0), abs=1e-6)


def test_first_epoch_of_a_single_example_is_the_untrained_head(toy):
    h, y = toy[0][:1], toy[1][:1]
    result = fit(h, y, V, RateDistortionConfig(beta=0.5, latent_dim=4, epochs=2, seed=5))
    mean, log_variance = Bottleneck(D, 4, V, seed=5).encode(h)
    assert result.history[0].rate == pytest.approx(kl_to_prior(mean, log_variance).item())
    assert len(result.history) == 2


def test_one_epoch_shows_the_pull_of_beta(toy):
    low, high = (fitted(toy, beta, epochs=1) for beta in (0.0, 5.0))
    assert high.rate < low.rate


def test_same_seed_same_result_and_other_seed_another(toy):
    once, again, other = (fitted(toy, 0.1, epochs=2, seed=seed) for seed in (1, 1, 2))
    assert once == again
    assert once != other


def test_global_random_state_neither_matters_nor_changes(toy):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    once = fitted(toy, 0.1, epochs=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert fitted(toy, 0.1, epochs=1) == once


def test_the_papers_settings_are_the_defaults():
    config = RateDistortionConfig(beta=BETAS[0])
    assert (config.epochs, BETAS) == (5, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0))


def test_hidden_states_may_come_with_a_graph_and_in_half_precision(toy):
    h, y = toy[0].bfloat16().requires_grad_(), toy[1]
    assert math.isfinite(fit(h, y, V, RateDistortionConfig(beta=0.1, epochs=1)).rate)
    assert h.grad is None


def test_bad_data_is_named(toy):
    h, y = toy
    config = RateDistortionConfig(beta=0.1)
    with pytest.raises(ValueError, match="h must be float"):
        fit(h[0], y, V, config)
    with pytest.raises(ValueError, match="y must be"):
        fit(h, y[1:], V, config)
    with pytest.raises(ValueError, match=r"ids 0\.\.7.*0\.\.4"):
        fit(h, y, 5, config)
    with pytest.raises(ValueError, match="not finite"):
        fit(h * math.nan, y, V, config)


@pytest.mark.parametrize("field", ["beta", "latent_dim", "epochs", "learning_rate", "n_samples"])
def test_impossible_settings_are_named(field):
    with pytest.raises(ValidationError, match=field):
        RateDistortionConfig(**({"beta": 0.1} | {field: -1}))


def test_sites_are_the_last_meta_and_the_last_text_token(model, batch):
    last_text = [14, 10, 18]
    both = site_states(model, *batch, batch_size=2)
    for site, places in (("meta", [p[-1] for p in PLACES]), ("last_non_meta", last_text)):
        states = both[site]
        assert torch.equal(states, site_states(model, *batch, sites=(site,), batch_size=2)[site])
        for row, place in enumerate(places):
            with torch.no_grad():
                alone = model.hidden(batch.tokens[row : row + 1, : batch.lengths[row]])[0, place]
            torch.testing.assert_close(states[row], alone, atol=1e-5, rtol=1e-4)


def test_a_meta_token_right_before_the_last_is_skipped(model):
    tokens, lengths, positions = torch.tensor([[5, 129, 129, 0]]), torch.tensor([3]), torch.tensor([[1, 2]])
    got = site_states(model, tokens, lengths, positions, sites=("last_non_meta",))
    torch.testing.assert_close(
        got["last_non_meta"][0], model.hidden(tokens[:, :1])[0, 0].detach(), atol=1e-5, rtol=1e-4
    )


def test_impossible_sites_are_named(model, batch):
    with pytest.raises(ConfigError, match="site='first'"):
        site_states(model, *batch, sites=("first",))
    with pytest.raises(ConfigError, match="example 0 is meta tokens alone"):
        site_states(
            model, torch.tensor([[129]]), torch.tensor([1]), torch.tensor([[0]]), sites=("last_non_meta",)
        )

"""Rate and distortion of a frozen model's hidden states through a variational bottleneck (section 5.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from scipy.stats import sem
from torch import Tensor, nn

from metatok.analysis.config import SITES, RateDistortionConfig, Site
from metatok.analysis.examples import Examples, check_examples, frozen, row_batches
from metatok.errors import ConfigError
from metatok.model import GPT
from metatok.randomness import generator, torch_seed


class RatePoint(NamedTuple):
    """KL and cross-entropy in nats, of one example or a mean."""

    rate: float
    distortion: float


@dataclass(frozen=True)
class RateDistortionResult:
    """One point of the curve, on the N training examples themselves, as the paper records it; nats.

    rate: mean over examples of KL(q(z|h) || N(0, I)). distortion: mean over examples of E[-ln q(y|z)] over
    z ~ q(z|h), by n_samples fixed draws an example. distortion_at_mean: the same at z = mu(h), which is never
    above the expectation. by_example: rate and distortion of each of the N. history: one entry an epoch,
    means over its steps, each before its update.
    """

    rate: float
    distortion: float
    distortion_at_mean: float
    by_example: tuple[RatePoint, ...]
    history: tuple[RatePoint, ...] = ()

    @property
    def standard_error(self) -> RatePoint:
        """Of the two means over examples: standard deviation (N - 1) / sqrt(N), nats; NaN if N is 1."""
        return RatePoint(*(float(sem(column)) for column in zip(*self.by_example, strict=True)))


class Bottleneck(nn.Module):
    """q(z|h) = N(mu(h), diag sigma^2(h)) with linear mu and ln sigma^2, and q(y|z) = softmax(Wz + b)."""

    def __init__(self, n_embd: int, latent_dim: int, vocab_size: int, seed: int = 0) -> None:
        super().__init__()
        self.encoder = nn.utils.skip_init(nn.Linear, n_embd, 2 * latent_dim)
        self.decoder = nn.utils.skip_init(nn.Linear, latent_dim, vocab_size)
        stream = torch.Generator().manual_seed(torch_seed(seed, "rate_distortion/init"))
        with torch.no_grad():
            for layer in (self.encoder, self.decoder):
                bound = 1 / math.sqrt(layer.in_features)
                layer.weight.uniform_(-bound, bound, generator=stream)
                layer.bias.zero_()

    def encode(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of z, each (..., L), of hidden states (..., D)."""
        mean, log_variance = self.encoder(h).chunk(2, dim=-1)
        return mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        """Logits (..., V) of latents (..., L)."""
        return self.decoder(z)


def kl_to_prior(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, diag exp(log_variance)) || N(0, I)) in nats: (...), from two (..., L)."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)


def fit(h: Tensor, y: Tensor, vocab_size: int, config: RateDistortionConfig) -> RateDistortionResult:
    """Trains a bottleneck on frozen hidden states and measures its rate and distortion (section 5.1).

    Minimises E[-ln q(y|z)] + beta KL(q(z|h) || N(0, I)), one example a step, one draw of z a step, in an
    order drawn anew each epoch; then `measure`s on the same examples. h (N, D): float, from `site_states`.
    y (N,): the tokens to predict, in 0..vocab_size-1. Runs on h's device. Errors: ValueError on shapes, ids,
    or hidden states not finite.
    """
    h, y = _check_data(h, y, vocab_size)
    head = Bottleneck(h.size(1), config.latent_dim, vocab_size, config.seed).to(h.device)
    optimizer = torch.optim.Adam(head.parameters(), config.learning_rate, fused=True)
    stream = torch.Generator().manual_seed(torch_seed(config.seed, "rate_distortion/train"))
    history = []
    for epoch in range(config.epochs):
        order = generator(config.seed, "rate_distortion/order", epoch).permutation(len(h))
        noise = torch.randn(len(h), config.latent_dim, generator=stream).to(h.device)
        steps = []
        for i, draw in zip(order.tolist(), noise, strict=True):
            mean, log_variance = head.encode(h[i])
            rate = kl_to_prior(mean, log_variance)
            distortion = F.cross_entropy(head.decode(mean + (0.5 * log_variance).exp() * draw), y[i])
            optimizer.zero_grad()
            (distortion + config.beta * rate).backward()
            optimizer.step()
            steps.append(torch.stack((rate, distortion)).detach())
        history.append(RatePoint(*torch.stack(steps).mean(0).tolist()))
    return replace(measure(head, h, y, config.n_samples, config.seed), history=tuple(history))


@torch.no_grad()
def measure(head: Bottleneck, h: Tensor, y: Tensor, n_samples: int, seed: int = 0) -> RateDistortionResult:
    """Rate and distortion of a bottleneck as it is, in nats: an upper bound of I(H; Z), and of H(Y|Z).

    h (N, D): float32. y (N,): int64. n_samples, seed: the draws of z; `RateDistortionResult` has what is
    averaged over what.
    """
    mean, log_variance = head.encode(h)
    deviation = (0.5 * log_variance).exp()
    stream = torch.Generator().manual_seed(torch_seed(seed, "rate_distortion/measure"))
    total, by_example = h.new_zeros((), dtype=torch.double), h.new_zeros(len(h), dtype=torch.double)
    for _ in range(n_samples):
        draw = torch.randn(mean.shape, generator=stream).to(h.device)
        logits = head.decode(mean + deviation * draw)  # (N, V)
        total += F.cross_entropy(logits, y).double()
        by_example += F.cross_entropy(logits, y, reduction="none")
    rate = kl_to_prior(mean, log_variance)  # (N,)
    return RateDistortionResult(
        rate=float(rate.mean()),
        distortion=float(total) / n_samples,
        distortion_at_mean=float(F.cross_entropy(head.decode(mean), y)),
        by_example=tuple(map(RatePoint, rate.tolist(), (by_example / n_samples).tolist())),
    )


def _check_data(h: Tensor, y: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """h (N, D) in float32 and y (N,) in int64, on h's device, without a graph."""
    if h.dim() != 2 or len(h) == 0 or not h.is_floating_point():
        raise ValueError(f"h must be float (N, D) with N >= 1, not {h.dtype} {tuple(h.shape)}")
    if y.shape != h.shape[:1]:
        raise ValueError(f"y must be (N,) = ({len(h)},), one token for each row of h, not {tuple(y.shape)}")
    if int(y.min()) < 0 or int(y.max()) >= vocab_size:
        raise ValueError(
            f"y has ids {int(y.min())}..{int(y.max())}; they must be in 0..{vocab_size - 1} (vocab_size)"
        )
    if not bool(h.isfinite().all()):
        raise ValueError("h has values that are not finite; did the model's training diverge?")
    return h.detach().float(), y.to(h.device).long()


def site_states(
    model: GPT,
    tokens: Tensor,
    lengths: Tensor,
    meta_positions: Tensor,
    sites: Sequence[Site] = SITES,
    batch_size: int = 16,
) -> dict[Site, Tensor]:
    """The final layer's output, after the final norm, at one place of each prompt: site -> (N, D), float32.

    The h of section 5.1 ("the output of the final Transformer layer"); after the norm, as the language-model
    head reads it, so that states of all models have one scale.
    site "meta": the last meta token. "last_non_meta": the last token of the prompt that isn't a meta token.
    tokens (N, T): right-padded. lengths (N,). meta_positions (N, M): padded with -1. One pass serves all
    sites, and all betas. Errors: ConfigError on an unknown site, or a prompt of meta tokens alone;
    `check_examples`.
    """
    examples = check_examples(model, tokens, lengths, meta_positions)
    places = {site: _place(examples, site) for site in sites}
    states: dict[Site, list[Tensor]] = {site: [] for site in sites}
    with frozen(model):
        for rows in row_batches(len(tokens), batch_size):
            hidden = model.hidden(examples.tokens[rows], examples.meta_positions[rows])
            each = torch.arange(len(hidden), device=hidden.device)
            for site, at in places.items():
                states[site].append(hidden[each, at[rows]].float())
    return {site: torch.cat(parts) for site, parts in states.items()}


def _place(examples: Examples, site: Site) -> Tensor:
    """(N,): the site's position in each prompt."""
    if site == "meta":
        return examples.last_meta
    if site == "last_non_meta":
        return _last_non_meta(examples.lengths, examples.meta_positions, examples.tokens.size(1))
    raise ConfigError(f"site='{site}' is unknown; choose 'meta' or 'last_non_meta'")


def _last_non_meta(lengths: Tensor, meta_positions: Tensor, T: int) -> Tensor:
    """(N,): the last position of each row that is no meta token."""
    place = torch.arange(T, device=lengths.device)
    is_meta = (meta_positions[:, :, None] == place).any(1)  # (N, T)
    last = torch.where((place < lengths[:, None]) & ~is_meta, place, -1).amax(1)
    if bool((last < 0).any()):
        raise ConfigError(
            f"site='last_non_meta': example {int((last < 0).nonzero()[0])} is meta tokens alone; "
            f"give prompts with text"
        )
    return last

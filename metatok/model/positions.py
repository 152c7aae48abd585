"""How a model knows where a token is: APE, RoPE, YaRN, NoPE and ALiBi behind one interface."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from metatok.model.config import GPTConfig

Rotation = tuple[Tensor, Tensor]


class Position(nn.Module):
    """One position scheme. A new one is a subclass and an entry of `POSITIONS`.

    `code` is the scheme's description of a position at a token, and what an intervention changes;
    `embedding` and `rotation` turn a code into what the model adds or rotates by. Each answers None where
    the scheme has no such part, as this base class (NoPE) does everywhere.
    """

    extrapolates: ClassVar[bool] = True  # whether sequences may be longer than cfg.context_length

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__()

    def code(self, positions: Tensor) -> Tensor | None:
        """Codes (B, T, C) of absolute positions (B, T)."""
        return None

    def embedding(self, code: Tensor) -> Tensor | None:
        """What is added to the token embeddings: (B, T, D), from codes (B, T, C)."""
        return None

    def rotation(self, code: Tensor) -> Rotation | None:
        """cos and sin, each (B, T, head_dim / 2), by which queries and keys are rotated."""
        return None

    def attention_bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """What is added to attention logits: (B, H, T, K), from positions (B, T) and (B, K)."""
        return None

    def _keep(self, constants: list[float]) -> None:
        # As bits: model.to(torch.bfloat16) casts float buffers, and 3 digits of a frequency are too few.
        bits = torch.tensor(constants, dtype=torch.float32).view(torch.int32)
        self.register_buffer("_bits", bits, persistent=False)

    @property
    def constants(self) -> Tensor:
        """The scheme's fixed numbers in float32: inverse frequencies (RoPE, YaRN) or slopes (ALiBi)."""
        bits = self._bits
        assert isinstance(bits, Tensor)
        return bits.view(torch.float32)


def empty_embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding that the model will draw: torch's own draw costs as long, and on "meta" seconds."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class NoPE(Position):
    """No position at all; the causal mask alone gives the order (arXiv 2305.19466)."""


class APE(Position):
    """A learned table with a row for each position, added to the token embedding (GPT-2)."""

    extrapolates = False

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__(cfg)
        self.table = empty_embedding(cfg.context_length, cfg.n_embd)

    def code(self, positions: Tensor) -> Tensor:
        return self.table(positions)

    def embedding(self, code: Tensor) -> Tensor:
        return code


class RoPE(Position):
    """Rotary embedding of queries and keys (arXiv 2104.09864).

    Pairs are (i, i + head_dim / 2), not (2i, 2i + 1): the two differ by a fixed permutation of each head's
    features, which learned projections absorb, and halves are contiguous.
    """

    mscale: float = 1.0

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__(cfg)
        self._keep(self.inverse_frequencies(cfg))

    def inverse_frequencies(self, cfg: GPTConfig) -> list[float]:
        """head_dim / 2 frequencies in radians a token, fastest first."""
        return [cfg.rope_theta ** (-2 * i / cfg.head_dim) for i in range(cfg.head_dim // 2)]

    def code(self, positions: Tensor) -> Tensor:
        return positions[..., None].float() * self.constants

    def rotation(self, code: Tensor) -> Rotation:
        return code.cos() * self.mscale, code.sin() * self.mscale


class YaRN(RoPE):
    """RoPE stretched over a longer context (arXiv 2309.00071; paper section 4.3).

    Fast frequencies stay, slow ones are divided by the scale, a ramp lies between; cos and sin both carry
    mscale, which makes attention logits mscale^2 as large.
    """

    def __init__(self, cfg: GPTConfig) -> None:
        assert cfg.yarn is not None
        super().__init__(cfg)
        growth = 0.1 * math.log(cfg.yarn.scale) + 1 if cfg.yarn.scale > 1 else 1.0
        self.mscale = growth * cfg.yarn.attn_factor

    def inverse_frequencies(self, cfg: GPTConfig) -> list[float]:
        assert cfg.yarn is not None
        low, high = yarn_range(cfg)
        stretched = []
        for i, frequency in enumerate(super().inverse_frequencies(cfg)):
            ramp = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
            kept = (1 - ramp) * cfg.yarn.extrapolation_factor
            stretched.append((1 - kept) * frequency / cfg.yarn.scale + kept * frequency)
        return stretched


def yarn_range(cfg: GPTConfig) -> tuple[int, int]:
    """First and last frequency index of YaRN's ramp: frequencies below it are kept, above it divided."""
    assert cfg.yarn is not None

    def index(rotations: float) -> float:
        """The frequency index that turns this often over the original context."""
        assert cfg.yarn is not None
        wavelength_ratio = cfg.yarn.original_context / (2 * math.pi * rotations)
        return cfg.head_dim * math.log(wavelength_ratio) / (2 * math.log(cfg.rope_theta))

    low = max(math.floor(index(cfg.yarn.beta_fast)), 0)
    high = min(math.ceil(index(cfg.yarn.beta_slow)), cfg.head_dim - 1)
    return low, high


class ALiBi(Position):
    """A penalty on attention logits that grows with distance, one slope a head (arXiv 2108.12409)."""

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__(cfg)
        self._keep(alibi_slopes(cfg.n_head))

    def attention_bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = queries[:, None, :, None] - keys[:, None, None, :]
        return -self.constants[None, :, None, None] * distance


def alibi_slopes(n_head: int) -> list[float]:
    """The ALiBi paper's slopes: 2^(-8h/n) for n a power of two, else n's are filled up from 2n's."""
    power = 2 ** int(math.log2(n_head))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return slopes + between[: n_head - power]


POSITIONS: dict[str, type[Position]] = {"ape": APE, "rope": RoPE, "yarn": YaRN, "nope": NoPE, "alibi": ALiBi}

"""The model: GPT-2 with an optional second attention in each layer, over the meta tokens or over all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metatok.model.attention import KV, Attention, CausalAttention, MetaAttention, Plan
from metatok.model.cache import Cache
from metatok.model.checks import check_ids, check_length, check_meta_positions, check_shapes
from metatok.model.config import GPT2_STD, GPTConfig
from metatok.model.generate import Generation, generate
from metatok.model.interventions import Intervention
from metatok.model.plan import find_meta_positions, make_plan, meta_mask
from metatok.model.positions import POSITIONS, Position, empty_embedding
from metatok.randomness import torch_seed

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
}


@dataclass(frozen=True)
class Trace:
    """What happened inside one pass.

    residual (n_layer + 1, B, T, D): the residual stream, entry 0 before the first layer. hidden (B, T, D):
    after the final norm. attention_logits, attention (n_layer, B, H, T, T): the causal attention before and
    after its softmax, -inf and 0 at later keys; None unless asked for.
    """

    residual: Tensor
    hidden: Tensor
    attention_logits: Tensor | None
    attention: Tensor | None


class MLP(nn.Module):
    """x + MLP(LN(x)), four times as wide inside."""

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(cfg.n_embd, bias=cfg.bias)
        self.fc = nn.Linear(cfg.n_embd, 4 * cfg.n_embd, bias=cfg.bias)
        self.act = ACTIVATIONS[cfg.activation]()
        self.proj = nn.Linear(4 * cfg.n_embd, cfg.n_embd, bias=cfg.bias)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.proj(self.act(self.fc(self.norm(x)))))


class Block(nn.Module):
    """One layer: causal attention, the extra attention if there is one, MLP; each adds to the stream."""

    def __init__(self, cfg: GPTConfig) -> None:
        super().__init__()
        self.causal = CausalAttention(cfg)
        self.extra: Attention | None = None
        if cfg.extra_attention == "meta":
            self.extra = MetaAttention(cfg)
        elif cfg.extra_attention == "causal":
            self.extra = CausalAttention(cfg)
        self.mlp = MLP(cfg)

    def forward(self, x: Tensor, plan: Plan, kv: KV | None = None, extra_kv: KV | None = None) -> Tensor:
        """The residual stream (B, T, D) after this layer."""
        x = self.causal(x, plan, kv)
        if self.extra is not None:
            x = self.extra(x, plan, extra_kv)
        return self.mlp(x)


class GPT(nn.Module):
    """A decoder-only language model with meta-tokens (paper section 3; base as nanoGPT builds GPT-2).

    The weights depend on (cfg, seed) alone, each drawn from a stream of its own name: models of one seed
    share every weight that they both have.

    With DistributedDataParallel nothing special is needed: a batch without meta tokens still gives every
    parameter a (zero) gradient.
    """

    def __init__(self, cfg: GPTConfig, seed: int = 0) -> None:
        super().__init__()
        self.cfg = cfg
        self.token_embedding = empty_embedding(cfg.padded_vocab_size, cfg.n_embd)  # also the output layer
        self.position: Position = POSITIONS[cfg.position](cfg)
        self.dropout = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.norm = nn.LayerNorm(cfg.n_embd, bias=cfg.bias)
        self._has_meta_attention = cfg.extra_attention == "meta"
        self._initialise(seed)

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        """GPT-2's: N(0, 0.02), residual projections 0.02 / sqrt(2 * n_layer), biases 0, norms 1.

        The two standard deviations are cfg's.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            elif not parameter.is_meta:
                std = self._first_std(name)
                # Drawn on the CPU, so that a model is the same on every device.
                stream = torch.Generator("cpu").manual_seed(torch_seed(seed, f"init/{name}"))
                drawn = torch.empty(parameter.shape, device="cpu").normal_(0, std, generator=stream)
                parameter.copy_(drawn)

    def _first_std(self, name: str) -> float:
        """Standard deviation of the named matrix' first weights."""
        if name == "token_embedding.weight":
            return self.cfg.embedding_init_std
        if name.startswith("position."):
            return GPT2_STD
        depth = math.sqrt(2 * self.cfg.n_layer) if name.endswith("proj.weight") else 1.0
        return self.cfg.init_std / depth

    def meta_positions(self, tokens: Tensor) -> Tensor:
        """Positions of cfg.meta_token_id in tokens (B, T): (B, M) int64, ascending, padded with -1.

        M is the largest count in the batch; finding it waits for the device.
        """
        return find_meta_positions(tokens == self.cfg.meta_token_id)

    def check_inputs(self, tokens: Tensor, meta_positions: Tensor | None = None) -> None:
        """ValueError unless tokens (B, T) and meta_positions (B, M) are what the model can take.

        Looks at the values, so on a GPU it waits for the device; `forward` calls it on the CPU only.
        """
        check_shapes(tokens, meta_positions)
        check_length(self.cfg, tokens.size(1))
        check_ids(self.cfg, tokens)
        if meta_positions is not None:
            check_meta_positions(meta_positions, tokens.size(1))

    def hidden(
        self,
        tokens: Tensor,
        meta_positions: Tensor | None = None,
        intervention: Intervention | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Final hidden states (B, T, D), after the last norm, of tokens (B, T).

        meta_positions (B, M): int64, ascending, padded with -1 at the end; trusted. None: found from the
        tokens, which waits for the device. cache: the tokens follow those it holds, and positions count from
        the first of `tokens`. Errors: ValueError on shapes, on a sequence too long, or on an intervention
        that the position scheme cannot take.
        """
        x, plan = self._embed(tokens, meta_positions, intervention, cache)
        for layer, block in enumerate(self.blocks):
            x = block(x, plan) if cache is None else block(x, plan, *cache.kv(layer))
        return self.norm(x)

    def _embed(
        self,
        tokens: Tensor,
        meta_positions: Tensor | None,
        intervention: Intervention | None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Plan]:
        """The stream (B, T, D) before the first layer, and what its layers share."""
        check_shapes(tokens, meta_positions)
        B, T = tokens.shape
        end = T if cache is None else cache.used + T
        check_length(self.cfg, end)
        if intervention is not None and intervention.changes_nothing:
            intervention = None
        if meta_positions is None and (self._has_meta_attention or intervention is not None):
            meta_positions = self.meta_positions(tokens)
        positions = torch.arange(T, device=tokens.device)[None]  # (1, T)
        if cache is not None:
            positions = positions + cache.lengths[:, None]  # (B, T)
        x = self.token_embedding(tokens)
        code = self.position.code(positions)
        if intervention is not None:
            assert meta_positions is not None
            is_meta = meta_mask(meta_positions, T)
            x = intervention.on_embedding(x, is_meta)
            code = intervention.on_position(code, positions, is_meta, limit=end)
        added = None if code is None else self.position.embedding(code)
        x = self.dropout(x if added is None else x + added)
        wanted = meta_positions if self._has_meta_attention else None
        return x, make_plan(self.position, code, positions.expand(B, T), wanted, cache)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (..., padded_vocab_size) of hidden states (..., D); those of padding ids are -inf."""
        logits = F.linear(hidden, self.token_embedding.weight)
        if self.cfg.padded_vocab_size > self.cfg.vocab_size:
            logits[..., self.cfg.vocab_size :] = float("-inf")
        return logits

    def forward(
        self,
        tokens: Tensor,
        meta_positions: Tensor | None = None,
        intervention: Intervention | None = None,
    ) -> Tensor:
        """Logits (B, T, vocab_size) of tokens (B, T); arguments and errors as in `hidden`.

        On the CPU the inputs' values are checked as well.
        """
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            self.check_inputs(tokens, meta_positions)
        hidden = self.hidden(tokens, meta_positions, intervention)
        return F.linear(hidden, self.token_embedding.weight)[..., : self.cfg.vocab_size]

    @torch.no_grad()
    def trace(
        self,
        tokens: Tensor,
        meta_positions: Tensor | None = None,
        intervention: Intervention | None = None,
        attention: bool = False,
    ) -> Trace:
        """One pass over tokens (B, T) with its insides kept; for analysis on short sequences.

        Without gradients. Memory with attention: n_layer * B * n_head * T^2 * 8 bytes. Arguments and errors
        as in `forward`.
        """
        self.check_inputs(tokens, meta_positions)
        x, plan = self._embed(tokens, meta_positions, intervention)
        residual, logits = [x], []
        for block in self.blocks:
            assert isinstance(block, Block)
            if attention:
                logits.append(block.causal.logits(x, plan.causal))
            x = block(x, plan)
            residual.append(x)
        stacked = torch.stack(logits) if attention else None
        weights = None if stacked is None else stacked.softmax(-1)
        return Trace(torch.stack(residual), self.norm(x), stacked, weights)

    def generate(self, tokens: Tensor, max_new_tokens: int, **options: Any) -> Generation:
        """Continues tokens (B, T); see `metatok.model.generate.generate` for options and errors."""
        return generate(self, tokens, max_new_tokens, **options)

    def num_parameters(self, positions: bool = True) -> int:
        """The tied embedding counted once; positions=False leaves out APE's table, as nanoGPT does."""
        total = sum(p.numel() for p in self.parameters())
        return total if positions else total - sum(p.numel() for p in self.position.parameters())

    def flops_per_token(self, context: int, meta_fraction: float = 0.0) -> float:
        """As GPTConfig.flops_per_token."""
        return self.cfg.flops_per_token(context, meta_fraction)

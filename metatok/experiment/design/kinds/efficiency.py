"""The speed of an architecture: training step and inference, interleaved in one run (Table 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from metatok import evaluation
from metatok import model as models
from metatok.config import Count, Seed
from metatok.experiment.design.cell import Cell, variant_name
from metatok.experiment.design.context import Context, Metrics, Outcome
from metatok.experiment.design.cost import Cost, forward_cost
from metatok.experiment.design.kinds.pretrain import Pretrain
from metatok.experiment.design.preset import Preset
from metatok.experiment.design.training import Precision
from metatok.model import GPTConfig
from metatok.randomness import generator

if TYPE_CHECKING:
    from torch import Tensor, nn

    from metatok.model import GPT

_INFERENCE = ("with_meta", "without_meta", "ttft_with_meta", "ttft_without_meta", "slowdown", "ttft_ratio")


class Efficiency(Cell):
    """Measure an architecture, alone on the machine.

    Speed does not depend on weights, so they are random and there is no base. A training step takes
    batch_size sequences of the context's length, meta_fraction of their positions meta tokens. prompt_tokens:
    text tokens of the prompt at inference; meta tokens come on top. What is measured depends on the machine,
    which the ledger's tags name.
    """

    version: ClassVar[int] = 2
    alone = True
    kind: Literal["efficiency"] = "efficiency"
    model: GPTConfig
    meta_fraction: float = Field(default=0.1, gt=0, lt=1)
    batch_size: Count = 4
    prompt_tokens: Count = 448
    new_tokens: Count = Field(default=448, ge=2)
    repeats: Count = 20
    precision: Precision = "fp32"
    seed: Seed = 0

    @classmethod
    def planned(cls, preset: Preset, seed: int, cells: Sequence[Cell]) -> Iterator[Efficiency]:
        """Each meta model's architecture at each size; the same for all seeds."""
        settings = preset.analysis
        for base in cells:
            if isinstance(base, Pretrain) and base.model.extra_attention == "meta":
                for size in settings.sizes or (preset.size,):
                    yield cls(
                        model=GPTConfig.model_validate(base.model.model_dump() | size.model_dump()),
                        meta_fraction=preset.pretrain.meta_fraction or 0.1,
                        batch_size=settings.batch_size,
                        prompt_tokens=settings.prompt_tokens,
                        new_tokens=settings.new_tokens,
                        repeats=settings.repeats,
                        precision=preset.precision,
                    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        longest = self.prompt_tokens + int(self.meta_fraction * self.prompt_tokens) + self.new_tokens
        if self.model.position == "ape" and longest > self.model.context_length:
            raise ValueError(
                f"prompt_tokens={self.prompt_tokens}, new_tokens={self.new_tokens}: with meta tokens that is "
                f"{longest}, over the context of {self.model.context_length}; take fewer"
            )
        return self

    @property
    def model_name(self) -> str:
        return variant_name(self.model, self.meta_fraction)

    @property
    def labels(self) -> dict[str, str | int | float]:
        size = f"{self.model.n_layer}x{self.model.n_embd}"
        return {"model": self.model_name, "size": size, "seed": self.seed}

    def cost(self) -> Cost:
        tokens = self.repeats * 2 * (self.prompt_tokens + self.new_tokens)
        return forward_cost(self.model, tokens, self.prompt_tokens)

    def run(self, context: Context) -> Outcome:
        model = models.GPT(self.model, seed=self.seed).to(context.device)
        prompt = self._random_text(1, self.prompt_tokens).to(context.device)
        found = evaluation.measure_inference(
            model, prompt, self.new_tokens, self.meta_fraction, repeats=self.repeats, seed=self.seed
        )
        metrics: Metrics = {"n_text": found.n_text, "n_meta": found.n_meta, "new_tokens": found.new_tokens}
        for name in _INFERENCE:
            metrics |= getattr(found, name).metrics(name)
        return Outcome(metrics | self._training_step(model, context.device))

    def _training_step(self, model: GPT, device: str) -> Metrics:
        """Step time of the model, without meta-attention, with the dense mask, and of transformers' GPT-2."""
        import torch

        config, length = self.model, self.model.context_length
        n_meta = int(self.meta_fraction * length)
        text = self._random_text(self.batch_size, length - n_meta)
        tokens = evaluation.inject_meta_tokens(text, n_meta, config.meta_token_id, self.seed).to(device)
        found = evaluation.measure_training_step(
            {name: module.to(device) for name, module in self._peers(model).items()},
            tokens,
            config.meta_token_id,
            reference="model",
            autocast=torch.bfloat16 if self.precision == "bf16" else None,
            repeats=self.repeats,
        )
        metrics: Metrics = {"tokens_per_step": found.tokens_per_step}
        for name, timing in found.seconds.items():
            metrics |= timing.metrics(f"step_seconds/{name}")
        for name, timing in found.ratios.items():
            metrics |= timing.metrics(f"step_ratio/{name}")
        peak = evaluation.peak_flops(device)
        if peak is not None:
            flops = config.flops_per_token(length, self.meta_fraction) * found.tokens_per_step
            metrics["mfu"] = flops / found.seconds["model"].median / peak
        return metrics

    def _peers(self, model: GPT) -> dict[str, nn.Module]:
        """The model and what its training step is compared with."""
        config = self.model
        peers: dict[str, nn.Module] = {"model": model}
        if config.extra_attention != "none":
            peers["without_extra"] = models.GPT(config.model_copy(update={"extra_attention": "none"}))
        if config.extra_attention == "meta":
            peers["dense_mask"] = models.dense_reference(model)
        return peers | {"transformers_gpt2": evaluation.transformers_gpt2(config)}

    def _random_text(self, *shape: int) -> Tensor:
        """Token ids that are not the meta token, which is the last one."""
        import torch

        ids = generator(self.seed, "efficiency/text").integers(self.model.meta_token_id, size=shape)
        return torch.from_numpy(ids)

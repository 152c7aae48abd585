"""Extending a RoPE model's context by YaRN, and training on at the new length (section 4.1, Table 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from metatok.config import Count
from metatok.experiment.design.cell import Cell
from metatok.experiment.design.context import Context, Outcome
from metatok.experiment.design.kinds.pretrain import Pretrain
from metatok.experiment.design.preset import Preset
from metatok.experiment.design.training import CorpusTrained
from metatok.model import GPTConfig
from metatok.training.optim import OptimConfig


class Extend(CorpusTrained):
    """Extend a model's context `scale` times."""

    kind: Literal["extend"] = "extend"
    base: Pretrain
    scale: float = Field(gt=1)
    optim: OptimConfig = OptimConfig(learning_rate=2e-5, min_learning_rate=2e-5)
    batch_size: Count = 480
    steps: Count = 400
    validation_sequences: Count = 50

    @classmethod
    def planned(cls, preset: Preset, seed: int, cells: Sequence[Cell]) -> Iterator[Extend]:
        settings = preset.extend
        for base in cells:
            if isinstance(base, Pretrain) and base.model_name == settings.model:
                for scale in settings.scales:
                    yield cls(
                        base=base,
                        scale=scale,
                        optim=settings.optim,
                        batch_size=settings.batch_size,
                        steps=settings.steps,
                        validation_sequences=settings.validation_sequences,
                        precision=preset.precision,
                        seed=base.seed,
                    )

    @model_validator(mode="after")
    def _can_extend(self) -> Self:
        _ = self.result_model
        return self

    @property
    def result_model(self) -> GPTConfig:
        return self.base.model.extended(self.scale)

    @property
    def model_name(self) -> str:
        context = self.result_model.context_length
        suffix = f"{context // 1024}k" if context % 1024 == 0 else f"{context}"
        return f"{self.base.model_name}_yarn_{suffix}"

    def run(self, context: Context) -> Outcome:
        return self.train_on_corpus(context, self.base.load_model(context, self.result_model))

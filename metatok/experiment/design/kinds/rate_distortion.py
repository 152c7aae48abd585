"""One point of a rate-distortion curve: VIB on a frozen model's states (section 5.1, Figure 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from metatok import analysis, tasks
from metatok.config import Count, NotNegative, Positive, Seed
from metatok.experiment.design.cell import Cell, check_positions
from metatok.experiment.design.context import Context, Outcome
from metatok.experiment.design.cost import Cost, forward_cost
from metatok.experiment.design.kinds.extend import Extend
from metatok.experiment.design.kinds.finetune import Finetune, task_set
from metatok.experiment.design.kinds.pretrain import Pretrain
from metatok.experiment.design.preset import Preset
from metatok.experiment.inputs import InputConfig
from metatok.tasks.curriculum import CURRICULA, Curriculum
from metatok.tasks.dataset import TaskDatasetConfig
from metatok.tasks.registry import TaskName

if TYPE_CHECKING:
    from torch import Tensor

SITES: tuple[Literal["meta"], Literal["last_non_meta"]] = ("meta", "last_non_meta")


class RateDistortion(Cell):
    """Fit and measure a bottleneck on the states at one site, at one beta (`metatok.analysis.fit`).

    The target y is the first token of each prompt's answer, for both sites. Rate and distortion are means
    over the n_examples it is fitted on, in nats, as the paper records them; rate_se and distortion_se are
    their standard errors over these examples.
    """

    version: ClassVar[int] = 3
    stage = "beta"
    kind: Literal["rate_distortion"] = "rate_distortion"
    base: Annotated[Pretrain | Extend | Finetune, Field(discriminator="kind")]
    site: Literal["meta", "last_non_meta"]
    beta: NotNegative
    task: TaskName = "list_recall"
    curriculum: Curriculum = Curriculum()
    max_tokens: Count
    n_examples: Count = Field(default=50, ge=2)
    latent_dim: Count = 32
    epochs: Count = 5
    learning_rate: Positive = 1e-3
    seed: Seed = 0

    @classmethod
    def planned(cls, preset: Preset, seed: int, cells: Sequence[Cell]) -> Iterator[RateDistortion]:
        settings = preset.analysis
        for base in cells:
            if isinstance(base, Pretrain) and base.meta_fraction:
                for beta in settings.betas:
                    for site in SITES:
                        yield cls(
                            base=base,
                            site=site,
                            beta=beta,
                            curriculum=CURRICULA[preset.curriculum],
                            max_tokens=settings.bottleneck_tokens,
                            n_examples=settings.bottleneck_examples,
                            seed=base.seed,
                        )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_positions(self, self.base, "max_tokens", self.max_tokens)
        return self

    @property
    def labels(self) -> dict[str, str | int | float]:
        return {"model": self.model_name, "site": self.site, "beta": self.beta, "seed": self.seed}

    def cost(self) -> Cost:
        return forward_cost(self.base.result_model, self.n_examples * self.max_tokens, self.max_tokens)

    def inputs(self) -> Iterator[InputConfig]:
        yield self.examples()

    def run(self, context: Context) -> Outcome:
        states, answers, vocab_size = self._states(context)
        config = analysis.RateDistortionConfig(
            beta=self.beta,
            latent_dim=self.latent_dim,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            seed=self.seed,
        )
        result = analysis.fit(states[self.site], answers, vocab_size, config)
        for epoch, point in enumerate(result.history, start=1):
            context.on_log(epoch, {"train_rate": point.rate, "train_distortion": point.distortion})
        metrics = {"rate": result.rate, "distortion": result.distortion, "n": len(answers)}
        spread = {f"{name}_se": value for name, value in result.standard_error._asdict().items()}
        return Outcome(metrics | spread | {"distortion_at_mean": result.distortion_at_mean})

    def examples(self) -> TaskDatasetConfig:
        """The few examples that a point is fitted and measured on."""
        return task_set(self, split="test", max_tokens=self.max_tokens, n_examples=self.n_examples)

    def _states(self, context: Context) -> tuple[dict[analysis.Site, Tensor], Tensor, int]:
        """Hidden states (N, D) by site, answers (N,) and the vocabulary's size, for all betas and sites."""
        examples = self.examples()

        def make() -> tuple[dict[analysis.Site, Tensor], Tensor, int]:
            model = self.base.frozen_model(context)
            dataset = context.inputs.task_dataset(examples)
            asked = tasks.prompts(tasks.collate(dataset, np.arange(len(dataset))))
            states = analysis.site_states(model, asked.tokens, asked.lengths, asked.meta_positions)
            return states, asked.answers, model.cfg.vocab_size

        return context.shared("states", f"{self.base.fingerprint} {examples.model_dump_json()}", make)

"""Scoring a fine-tune under an intervention at its meta tokens (Tables 2, 11-17)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self

from pydantic import model_validator

from metatok.experiment.design.cell import Cell
from metatok.experiment.design.context import Context, Outcome
from metatok.experiment.design.cost import Cost
from metatok.experiment.design.kinds.finetune import Finetune
from metatok.experiment.design.preset import Preset
from metatok.model import Intervention

NOISED_TASKS = ("list_recall", "copying")  # Tables 15 and 16


class Ablate(Cell):
    """Score under an intervention: the same test examples as the fine-tune's own scores, which are "full"."""

    kind: Literal["ablate"] = "ablate"
    base: Finetune
    intervention: Intervention

    @classmethod
    def planned(cls, preset: Preset, seed: int, cells: Sequence[Cell]) -> Iterator[Ablate]:
        for base in cells:
            if isinstance(base, Finetune) and base.root.meta_fraction and not base.of_extension:
                for intervention in _interventions(base, preset):
                    yield cls(base=base, intervention=intervention)

    @model_validator(mode="after")
    def _defined(self) -> Self:
        position = self.base.result_model.position
        if self.intervention.changes_nothing:
            raise ValueError("intervention changes nothing; the fine-tune itself has the full scores")
        if self.intervention.changes_position and position in ("nope", "alibi"):
            raise ValueError(f"intervention {self.intervention.label}: {position} has no position to change")
        return self

    @property
    def labels(self) -> dict[str, str | int | float]:
        return self.base.labels | {"setting": self.intervention.label, "seed": self.base.seed}

    def cost(self) -> Cost:
        return self.base.scoring_cost()

    def run(self, context: Context) -> Outcome:
        return self.base.scored(self.base.frozen_model(context), context, self.intervention)


def _interventions(base: Finetune, preset: Preset) -> Iterator[Intervention]:
    yield Intervention(zero_embedding=True)
    if base.result_model.position not in ("nope", "alibi"):
        yield Intervention(zero_position=True)
        yield Intervention(zero_position=True, zero_embedding=True)
        if base.task in NOISED_TASKS:
            yield from (Intervention(position_noise=scale) for scale in preset.analysis.noise_scales)

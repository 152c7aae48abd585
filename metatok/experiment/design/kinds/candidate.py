"""A fine-tune of a hyperparameter search, of which the score alone is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from metatok.experiment.design.cell import Cell
from metatok.experiment.design.context import Context, Outcome
from metatok.experiment.design.cost import Cost
from metatok.experiment.design.kinds.finetune import Finetune, fine_tunes
from metatok.experiment.design.kinds.pretrain import Pretrain
from metatok.experiment.design.kinds.published import Published
from metatok.experiment.design.preset import Preset
from metatok.experiment.design.search import Setting
from metatok.tasks.dataset import Split


class Candidate(Finetune):
    """A fine-tune scored on the validation split; its weights go."""

    stage = "search"
    keeps_weights = False
    eval_split: ClassVar[Split] = "validation"
    kind: Literal["candidate"] = "candidate"  # type: ignore[assignment]

    @classmethod
    def planned(cls, preset: Preset, seed: int, cells: Sequence[Cell]) -> Iterator[Finetune]:
        """None: a search makes them, round by round."""
        return iter(())

    @property
    def labels(self) -> dict[str, str | int | float]:
        tried = {"learning_rate": f"lr{self.optim.learning_rate:.2e}", "steps": f"{self.steps}steps"}
        return super().labels | tried

    def cost(self) -> Cost:
        return replace(super().cost(), disk=0)

    def run(self, context: Context) -> Outcome:
        outcome = super().run(context)
        self.store(context).delete()
        return replace(outcome, checkpoint=None)


def candidates(
    preset: Preset, settings: Mapping[tuple[str, str], Sequence[Setting]], share: float
) -> dict[tuple[str, str], dict[Setting, Candidate]]:
    """A round of the search: for each (model, task) of `settings` a cell a setting.

    Each trains for `share` of its setting's steps, from the first seed's base at the first train length.
    """
    seed = preset.seeds[0]
    roots: dict[str, Pretrain | Published] = {}
    for kind in (Pretrain, Published):
        roots |= {root.model_name: root for root in kind.planned(preset, seed, ())}
    return {
        (model, task): {s: _candidate(roots[model], task, preset, s, share) for s in tried}
        for (model, task), tried in settings.items()
    }


def _candidate(
    root: Pretrain | Published, task: str, preset: Preset, setting: Setting, share: float
) -> Candidate:
    cell = next(fine_tunes(root, task, preset, preset.seeds[0], setting))
    fields = {name: getattr(cell, name) for name in Finetune.model_fields} | {
        "kind": "candidate",
        "steps": max(1, round(share * cell.steps)),
        "eval_lengths": (cell.train_length,),
        "n_test": preset.finetune.search.n_validation,
    }
    return Candidate.model_validate(fields)

"""Fine-tuning under watch: what is learned when, phases in turn, and interrupted as undisturbed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metatok.data.tokenizer import TokenizerConfig, build_tokenizer
from metatok.evaluation import evaluate
from metatok.model import GPT
from metatok.tasks import Curriculum, TaskDataset, TaskDatasetConfig, get_task
from metatok.tasks import build as build_dataset
from metatok.training import CheckpointStore, LoopSettings, OptimConfig, Stage, Validation, finetune
from metatok.training import finetuning as module

from .conftest import build
from .test_loop import same_bits, without_speed

SETTINGS = LoopSettings(log_every=2, checkpoint_every=4)
OPTIM = OptimConfig(learning_rate=3e-3)
SHAPE = {"vocab_size": 280, "meta_token_id": 279, "context_length": 64}
Sets = Callable[..., TaskDataset]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """Makes parity examples of a phase and split."""
    folder, curriculum = tmp_path_factory.mktemp("sets"), Curriculum.tiny()
    bpe = TokenizerConfig(name="bpe", vocab_size=280)
    examples = [get_task("parity", curriculum).example(1, 0, i).prompt for i in range(200)]
    tokenizer = build_tokenizer(bpe, examples)

    def make(phase: int | None, split: str, n: int) -> TaskDataset:
        config = TaskDatasetConfig.model_validate(
            {"task": "parity", "tokenizer": bpe, "curriculum": curriculum, "max_tokens": 128, "phase": phase,
             "split": split, "n_examples": n}
        )  # fmt: skip
        return build_dataset(config, tokenizer, folder / f"{phase}-{split}-{n}")

    return make


class Scores:
    """What a model is said to score, look by look; the last one for ever after."""

    def __init__(self, *scores: float) -> None:
        self.scores, self.asked = list(scores), []

    def __call__(self, model: GPT, examples: TaskDataset) -> float:
        self.asked.append(examples)
        return self.scores.pop(0) if len(self.scores) > 1 else self.scores[0]


def run(sets: Sets, validation: Validation, steps: int = 12, **training: Any) -> tuple[Any, list]:
    logs: list[tuple[int, dict[str, float]]] = []
    arguments = {"on_log": lambda s, m: logs.append((s, m)), **training}
    state = finetune(
        build("meta_rope", **SHAPE), sets(None, "train", 40), batch_size=5, seed=1, validation=validation,
        settings=SETTINGS, optim=OPTIM, steps=steps, **arguments
    )  # fmt: skip
    return state, [(step, metrics) for step, metrics in logs if "validation_exact_match" in metrics]


def test_the_steps_to_90_are_those_of_the_first_look_at_which_it_was(sets: Sets) -> None:
    scores = Scores(0.2, 0.89, 0.9, 0.5, 1.0)
    state, looks = run(sets, Validation(3, sets(None, "validation", 20), scores), steps=14)
    assert [step for step, _ in looks] == [3, 6, 9, 12, 14]  # and after the last step
    assert [m["validation_exact_match"] for _, m in looks] == [0.2, 0.89, 0.9, 0.5, 1.0]
    assert state.progress["steps_to_90"] == 9
    assert len(scores.asked) == 5
    never, _ = run(sets, Validation(3, sets(None, "validation", 20), Scores(0.89)))
    assert never.progress["steps_to_90"] is None


def test_looking_changes_nothing_that_is_trained(sets: Sets) -> None:
    examples = sets(None, "validation", 20)
    watched, _ = run(sets, Validation(3, examples, lambda m, d: evaluate(m, d).exact_match))
    alone = finetune(
        build("meta_rope", **SHAPE), sets(None, "train", 40), batch_size=5, seed=1,
        settings=SETTINGS, optim=OPTIM, steps=12
    )  # fmt: skip
    assert same_bits(watched.model.state_dict(), alone.model.state_dict())
    assert watched.model.training


def phases_seen(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """From now on, the phases of each batch that is trained on."""
    seen: list[set[int]] = []
    whole = module.FinetuneBatches.batch

    def batch(self: Any, step: int) -> Any:
        seen.append(set(np.asarray(self.dataset.phases[self.indices(step)]).tolist()))
        return whole(self, step)

    monkeypatch.setattr(module.FinetuneBatches, "batch", batch)
    return seen


def test_a_phase_is_trained_on_until_it_is_learned_then_all_together(
    sets: Sets, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [Stage(sets(p, "train", 30), sets(p, "validation", 10)) for p in (1, 2)]
    # Asked at step 0 (phase 1), then at each look: the current phase, the next one if that is learned, all.
    scores = Scores(0.0, 0.5, 0.1, 0.95, 0.3, 0.1, 0.96, 0.7, 0.8)
    seen = phases_seen(monkeypatch)
    state, looks = run(sets, Validation(4, sets(None, "validation", 20), scores, stages, 0.95), steps=16)
    assert seen[:8] == [{1}] * 8
    assert seen[8:12] == [{2}] * 4
    assert set.union(*seen[12:]) >= {1, 2}
    assert [(step, m["stage"]) for step, m in looks] == [(4, 1), (8, 1), (12, 2), (16, 3)]
    assert state.progress["learned"] == 2


def test_what_the_model_knows_already_costs_no_step(sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [Stage(sets(p, "train", 30), sets(p, "validation", 10)) for p in (1, 2)]
    seen = phases_seen(monkeypatch)
    run(sets, Validation(4, sets(None, "validation", 20), Scores(1.0, 0.2), stages, 0.95), steps=4)
    assert seen == [{2}] * 4


def test_what_is_not_learned_gives_way_after_an_equal_share_of_the_steps(
    sets: Sets, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [Stage(sets(p, "train", 30), sets(p, "validation", 10)) for p in (1, 2)]
    seen = phases_seen(monkeypatch)
    state, _ = run(sets, Validation(2, sets(None, "validation", 20), Scores(0.5), stages, 0.9), steps=18)
    assert seen[:12] == [{1}] * 6 + [{2}] * 6
    assert set.union(*seen[12:]) >= {1, 2}
    assert (state.progress["stage"], state.progress["learned"]) == (2, 0)


class Killed(Exception):
    pass


@pytest.mark.parametrize("killed_at", [3, 6, 10])
def test_interrupted_in_any_phase_it_ends_as_undisturbed(sets: Sets, tmp_path: Path, killed_at: int) -> None:
    """A phase counts as learned once the weights have moved so far from where they began."""
    stages = [Stage(sets(p, "train", 30), sets(p, "validation", 10)) for p in (1, 2)]
    start = build("meta_rope", **SHAPE).token_embedding.weight.detach().clone()
    far = {stage.validation.folder: distance for stage, distance in zip(stages, (0.004, 0.01), strict=True)}

    def score(model: GPT, examples: TaskDataset) -> float:
        moved = float((model.token_embedding.weight.detach() - start).abs().mean())
        return min(1.0, moved / far.get(examples.folder, 0.02))

    validation = Validation(2, sets(None, "validation", 20), score, stages, 1.0)
    whole, looks = run(sets, validation)
    assert [metrics["stage"] for _, metrics in looks] == [1, 2, 2, 3, 3, 3]
    store = CheckpointStore(str(tmp_path / "c"))

    def until_killed(step: int, metrics: dict[str, float]) -> None:
        if step == killed_at + killed_at % 2:
            raise Killed

    with pytest.raises(Killed):
        run(sets, validation, on_log=until_killed, on_checkpoint=lambda s: store.save(**s.checkpoint()))
    torch.manual_seed(5)
    latest = store.load()
    again, rest = run(sets, validation, resume=None if latest is None else vars(latest))
    assert same_bits(again.model.state_dict(), whole.model.state_dict())
    assert again.progress == whole.progress
    assert without_speed(rest) == without_speed(looks[len(looks) - len(rest) :])

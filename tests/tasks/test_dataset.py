"""Data sets of task examples and the batches cut from them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from metatok.data.tokenizer import Tokenizer, TokenizerConfig, build_tokenizer, gpt2
from metatok.errors import ConfigError
from metatok.tasks import (
    Curriculum,
    FinetuneBatches,
    TaskDataset,
    TaskDatasetConfig,
    build,
    eval_batches,
    get_task,
)
from metatok.tasks.text import embedded_text

TASK_NAMES = ["list_recall", "segment_counting", "parity", "copying"]
BPE = TokenizerConfig(name="bpe", vocab_size=1024)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    examples = [get_task(name).example(2, 0, i).prompt for name in TASK_NAMES for i in range(50)]
    return build_tokenizer(BPE, [embedded_text().text[:200_000], *examples])


def config(task: str = "list_recall", **fields: object) -> TaskDatasetConfig:
    defaults = {"tokenizer": BPE, "curriculum": Curriculum.tiny(), "max_tokens": 128, "n_examples": 300}
    return TaskDatasetConfig.model_validate({"task": task, **defaults, **fields})


def prompts(dataset: TaskDataset) -> list[bytes]:
    return [dataset.prompt(i).tobytes() for i in range(len(dataset))]


@pytest.mark.parametrize("task", TASK_NAMES)
def test_examples_are_what_the_task_makes_within_the_length(
    task: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    dataset = build(config(task), tokenizer, tmp_path / "d")
    assert len(dataset) == 300
    assert dataset.lengths.max() <= 128
    assert set(dataset.phases.tolist()) == {1, 2}
    maker = get_task(task, Curriculum.tiny())
    for i in range(0, 300, 29):
        example = maker.example(int(dataset.phases[i]), 0, int(dataset.indices[i]))
        assert tokenizer.decode(dataset.prompt(i)) == example.prompt
        assert dataset.prompt(i)[-1] == tokenizer.meta_id
        assert tokenizer.decode(dataset.completion(i)) == f" {example.completion}<|endoftext|>"
        assert dataset.lengths[i] == len(dataset.prompt(i)) + len(dataset.completion(i))


@pytest.mark.parametrize("task", TASK_NAMES)
def test_splits_share_no_prompt_whatever_the_seed_or_length(
    task: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    sets: dict[str, set[bytes]] = {"train": set(), "validation": set(), "test": set()}
    for split in sets:
        for seed in (0, 1):
            for length in (64, 128):
                fields = {"split": split, "seed": seed, "max_tokens": length, "n_examples": 60}
                dataset = build(config(task, **fields), tokenizer, tmp_path / f"{split}{seed}{length}")
                sets[split] |= set(prompts(dataset))
    assert not sets["train"] & sets["test"]
    assert not sets["train"] & sets["validation"]
    assert not sets["validation"] & sets["test"]


@pytest.mark.parametrize("task", TASK_NAMES)
def test_a_phase_has_train_and_test_examples_that_differ_in_content(task: str, tmp_path: Path) -> None:
    """Phase 1, the one with the fewest prompts, in the paper's 9 : 1."""
    found = {}
    for split, n in (("train", 4500), ("test", 500)):
        settings = TaskDatasetConfig(task=task, phase=1, split=split, max_tokens=1024, n_examples=n)
        dataset = build(settings, gpt2(), tmp_path / split)
        assert set(dataset.phases.tolist()) == {1}
        assert len(dataset) == n
        found[split] = {gpt2().decode(dataset.prompt(i)) for i in range(n)}
        assert len(found[split]) == n
    assert not found["train"] & found["test"]


def test_phases_count_by_how_many_of_their_examples_fit(tokenizer: Tokenizer, tmp_path: Path) -> None:
    fields = {"split": "test", "min_tokens": 64, "max_tokens": 128, "n_examples": 1000}
    dataset = build(config("list_recall", **fields), tokenizer, tmp_path / "d")
    task = get_task("list_recall", Curriculum.tiny())
    fit = {}
    for phase in (1, 2):
        examples = [task.example(phase, 1, i) for i in range(600)]
        lengths = np.array([len(tokenizer.encode_segments(e.segments)) for e in examples])
        fit[phase] = ((lengths > 64) & (lengths <= 125)).mean()
    expected = 1000 * fit[2] / (fit[1] + fit[2])
    assert abs(dataset.meta["phases"]["2"] - expected) < 100


def test_the_same_settings_give_the_same_bytes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    build(config("copying"), tokenizer, tmp_path / "a")
    build(config("copying"), tokenizer, tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_evaluation_bins_hold_prompts_of_their_length(tokenizer: Tokenizer, tmp_path: Path) -> None:
    fields = {"split": "test", "n_examples": 30}
    for task in TASK_NAMES:
        for length in (64, 128, 256):
            settings = config(task, **fields, min_tokens=length // 2, max_tokens=length)
            dataset = build(settings, tokenizer, tmp_path / f"{task}{length}")
            assert dataset.prompt_lengths.min() > length // 2
            assert dataset.prompt_lengths.max() <= length


def test_prompts_are_distinct_until_there_are_no_more(tokenizer: Tokenizer, tmp_path: Path) -> None:
    dataset = build(config("list_recall"), tokenizer, tmp_path / "many")
    assert len(set(prompts(dataset))) == 300
    assert dataset.meta["repeated_prompts"] == 0
    easy = Curriculum.tiny().phase(1).model_copy(update={"lists": (2, 2), "items": ((2, 2),)})
    few = config("parity", curriculum=Curriculum(name="few", phases=(easy,)), max_tokens=64)
    dataset = build(few, tokenizer, tmp_path / "few")
    distinct = len(set(prompts(dataset)))
    assert 25 < distinct <= 64
    assert dataset.meta["repeated_prompts"] == 300 - distinct


def test_meta_tells_the_majority_share(tokenizer: Tokenizer, tmp_path: Path) -> None:
    dataset = build(config("segment_counting"), tokenizer, tmp_path / "d")
    answers = [tokenizer.decode(dataset.completion(i)[:-1]).strip() for i in range(len(dataset))]
    commonest = max(answers.count(answer) for answer in set(answers))
    assert dataset.majority_share == commonest / 300
    assert sum(dataset.meta["length_histogram"].values()) == sum(dataset.meta["phases"].values()) == 300


def test_mistakes_are_told(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"max_tokens=10: list_recall at curriculum 'tiny', phases 1-2, has lengths"
    ):
        build(config(max_tokens=10), tokenizer, tmp_path / "short")
    only_long = Curriculum(name="long", phases=(Curriculum().phase(5),))
    with pytest.raises(ConfigError, match="max_tokens=128"):
        build(config(curriculum=only_long), tokenizer, tmp_path / "long")
    phase_5 = config(curriculum=Curriculum(), phase=5, max_tokens=128)
    with pytest.raises(
        ConfigError, match=r"max_tokens=128: list_recall at curriculum 'table6', phase 5, has"
    ):
        build(phase_5, tokenizer, tmp_path / "phase5")
    with pytest.raises(ValueError, match="min_tokens=128"):
        config(min_tokens=128)
    with pytest.raises(ValueError, match="unknown, choose one of"):
        config("lists")
    with pytest.raises(ConfigError, match="not there"):
        TaskDataset.open(tmp_path / "nothing")
    build(config(), tokenizer, tmp_path / "d")
    with pytest.raises(ConfigError, match="other settings"):
        build(config(seed=1), tokenizer, tmp_path / "d")
    assert not list(tmp_path.glob(".*"))


@pytest.fixture(scope="module")
def dataset(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TaskDataset:
    fields = {"max_tokens": 256, "n_examples": 1003}
    return build(config("segment_counting", **fields), tokenizer, tmp_path_factory.mktemp("sets") / "d")


@pytest.mark.parametrize("batch_size", [1, 8, 64, 2000])
def test_an_epoch_has_every_example_once(dataset: TaskDataset, batch_size: int) -> None:
    batches = FinetuneBatches(dataset, batch_size, seed=4)
    orders = []
    for epoch in range(2):
        steps = range(epoch * batches.n_batches, (epoch + 1) * batches.n_batches)
        order = np.concatenate([batches.indices(step) for step in steps])
        assert sorted(order.tolist()) == list(range(1003))
        orders.append(order.tolist())
    if batch_size < 1003:
        assert orders[0] != orders[1]


def test_a_batch_depends_on_the_step_alone_and_holds_like_lengths(dataset: TaskDataset) -> None:
    batches = FinetuneBatches(dataset, 16, seed=0)
    late = batches.batch(100)
    again = FinetuneBatches(dataset, 16, seed=0).batch(100)
    assert torch.equal(late.tokens, again.tokens)
    assert torch.equal(late.indices, again.indices)
    padded = sum(batches.batch(step).tokens.numel() for step in range(batches.n_batches))
    assert padded < 1.15 * dataset.lengths.sum()


def test_targets_are_the_completions_alone(dataset: TaskDataset) -> None:
    batch = FinetuneBatches(dataset, 16, seed=0).batch(3)
    assert batch.tokens.shape == batch.targets.shape
    assert batch.tokens.size(1) == int(batch.lengths.max())
    for row, i in enumerate(batch.indices.tolist()):
        prompt, completion = dataset.prompt(i).tolist(), dataset.completion(i).tolist()
        length = int(batch.lengths[row])
        assert batch.tokens[row, :length].tolist() == prompt + completion
        assert (batch.tokens[row, length:] == dataset.eot_id).all()
        targets = batch.targets[row]
        scored = (targets != -100).nonzero().squeeze(1)
        assert scored.tolist() == list(range(len(prompt) - 1, length - 1))
        assert targets[scored].tolist() == completion
        marks = [position for position, token in enumerate(prompt) if token == dataset.meta_id]
        row_positions = batch.meta_positions[row].tolist()
        assert row_positions == marks + [-1] * (len(row_positions) - len(marks))


def test_evaluation_sees_every_example_once_in_length_order(dataset: TaskDataset) -> None:
    batches = list(eval_batches(dataset, 100))
    indices = torch.cat([batch.indices for batch in batches]).tolist()
    assert sorted(indices) == list(range(1003))
    lengths = torch.cat([batch.lengths for batch in batches])
    assert (lengths.diff() >= 0).all()

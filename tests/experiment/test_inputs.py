"""What cells read: which examples, made once, shared by whom."""

from pathlib import Path

import numpy as np
import pytest

from metatok.data.corpus import CorpusConfig
from metatok.experiment import Ablate, Efficiency, Extend, Home, Probe, RateDistortion, get_preset
from metatok.experiment.design import distinct_inputs
from metatok.experiment.design.kinds.finetune import eval_set, train_set
from metatok.experiment.inputs import Inputs, ShardsConfig
from metatok.model import Intervention
from metatok.tasks import TaskDatasetConfig, build

from . import tiny


def prompts(inputs: Inputs, config: object) -> set[bytes]:
    dataset = inputs.task_dataset(config)  # type: ignore[arg-type]
    return {dataset.prompt(i).tobytes() for i in range(len(dataset))}


def test_a_model_is_never_scored_on_what_it_was_tuned_on(home: Home) -> None:
    inputs = Inputs(home.datasets)
    cell = tiny.finetune(n_train=300, n_test=40)
    trained = prompts(inputs, train_set(cell))
    for length in cell.eval_lengths:
        scored = prompts(inputs, eval_set(cell, length))
        assert len(scored) == 40
        assert not trained & scored


def test_an_eval_length_is_prompts_of_more_than_half_of_it(home: Home) -> None:
    cell = tiny.finetune()
    for length in cell.eval_lengths:
        dataset = Inputs(home.datasets).task_dataset(eval_set(cell, length))
        assert dataset.prompt_lengths.min() > length / 2
        assert dataset.lengths.max() <= length


def test_all_models_seeds_and_train_lengths_answer_the_same_test_examples() -> None:
    cells = [
        tiny.finetune(tiny.pretrain(name, seed=seed), seed=seed, train_length=length)
        for name in ("gpt2_ape", "meta_rope")
        for seed in (0, 1)
        for length in (48, 64)
    ]
    assert len({eval_set(cell, 64) for cell in cells}) == 1
    assert len({train_set(cell) for cell in cells}) == 4  # of seeds and train lengths
    probe = Probe(base=cells[0], analysis="residual", eval_length=64)
    assert list(probe.inputs()) == [eval_set(cells[0], 64)]


def test_what_is_prepared_is_what_cells_read() -> None:
    base = tiny.pretrain()
    tuned = tiny.finetune(base)
    point = RateDistortion(base=base, site="meta", beta=0.1, max_tokens=64)
    shards = ShardsConfig(corpus=base.corpus, tokenizer=base.tokenizer)
    assert list(base.inputs()) == list(Extend(base=base, scale=2).inputs()) == [shards]
    assert list(tuned.inputs()) == [train_set(tuned), eval_set(tuned, 64), eval_set(tuned, 96)]
    assert list(point.inputs()) == [point.examples()]
    cells = [
        base,
        tuned,
        tiny.finetune(base, train_length=48),
        point,
        Ablate(base=tuned, intervention=Intervention(zero_embedding=True)),
        Efficiency(model=base.model),
    ]
    everything = distinct_inputs([*cells, *cells])
    assert len(everything) == len(set(everything)) == 6
    assert everything[0] == shards


def test_inputs_are_made_once(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path / "datasets")
    cell = tiny.finetune(n_train=20)
    shards = ShardsConfig(corpus=cell.root.corpus, tokenizer=cell.root.tokenizer)
    assert not inputs.ready(shards)
    assert not inputs.ready(train_set(cell))
    made = inputs.shards(shards)
    examples = inputs.task_dataset(train_set(cell))
    assert inputs.ready(shards)
    assert inputs.ready(train_set(cell))
    before = {path: path.stat().st_mtime_ns for path in inputs.root.rglob("*") if path.is_file()}
    again = Inputs(inputs.root)
    window = np.array([0])
    assert (again.shards(shards).train.read(window, 50) == made.train.read(window, 50)).all()
    assert (again.task_dataset(train_set(cell)).tokens == examples.tokens).all()
    assert {path: path.stat().st_mtime_ns for path in inputs.root.rglob("*") if path.is_file()} == before


def test_a_saved_tokenizer_is_the_one_that_was_trained(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path)
    first = inputs.tokenizer(tiny.BPE, tiny.CORPUS)
    second = inputs.tokenizer(tiny.BPE, tiny.CORPUS)
    assert second is not first
    assert second.fingerprint == first.fingerprint
    assert (second.vocab_size, second.meta_id) == (tiny.VOCAB, tiny.VOCAB - 1)
    other = CorpusConfig(max_documents=4, validation_fraction=0.3)
    inputs.tokenizer(tiny.BPE, other)
    assert len(list(tmp_path.glob("tokenizer-*.json"))) == 2


@pytest.mark.parametrize("kind", ["shards", "examples"])
def test_inputs_half_made_by_a_killed_process_are_not_ready(kind: str, tmp_path: Path) -> None:
    inputs = Inputs(tmp_path / "datasets")
    cell = tiny.finetune(n_train=20)
    if kind == "shards":
        config = ShardsConfig(corpus=cell.root.corpus, tokenizer=cell.root.tokenizer)
        *_, last = inputs.tokenize(config, "speeches-0")
        assert last.manifest is not None
        assert not inputs.ready(config)
        assert len(inputs.shards(config).train) > 0
    else:
        inputs.task_dataset(train_set(cell))
        (done,) = inputs.root.glob("parity-*")
        done.rename(done.with_name(f".{done.name}.123.tmp"))
        assert not inputs.ready(train_set(cell))
        assert len(inputs.task_dataset(train_set(cell))) == 20


@pytest.mark.parametrize("name", ["smoke", "laptop"])
def test_every_task_set_of_a_preset_can_be_made(home: Home, tmp_path: Path, name: str) -> None:
    """Its phases have examples of its lengths; fewer of them here than the preset asks for."""
    inputs = Inputs(home.datasets)
    made = 0
    for config in distinct_inputs(get_preset(name).model_copy(update={"seeds": (0,)}).cells()):
        if isinstance(config, TaskDatasetConfig) and config.max_tokens <= 256:
            few = config.model_copy(update={"n_examples": 20})
            tokenizer = inputs.tokenizer(config.tokenizer, config.corpus)
            assert len(build(few, tokenizer, tmp_path / f"{made}")) == 20
            made += 1
    assert made > 20

"""Scores by one teacher-forced pass against generating the answers, token by token."""

import numpy as np
import pytest
import torch

from metatok.data.tokenizer import Tokenizer, TokenizerConfig, build_tokenizer
from metatok.evaluation.accuracy import Records, evaluate
from metatok.model import GPT, GPTConfig, Intervention
from metatok.tasks import Curriculum, TaskDataset, TaskDatasetConfig, collate, get_task
from metatok.tasks import build as build_dataset
from metatok.training import LoopSettings, OptimConfig, finetune

BPE = TokenizerConfig(name="bpe", vocab_size=400)
NO_POSITION = Intervention(zero_position=True)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tasks = [get_task(name, Curriculum.tiny()) for name in ("parity", "list_recall")]
    return build_tokenizer(BPE, [task.example(1, 0, i).prompt for task in tasks for i in range(300)])


@pytest.fixture(scope="module", params=[("parity", "gpt2_ape"), ("list_recall", "meta_rope")])
def trained(
    request: pytest.FixtureRequest, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[GPT, TaskDataset]:
    """Examples of many lengths, and a model that has learned some of them by heart."""
    task, variant = request.param
    config = TaskDatasetConfig(
        task=task,
        tokenizer=BPE,
        curriculum=Curriculum.tiny(),
        split="test",
        max_tokens=128,
        n_examples=60,
    )
    dataset = build_dataset(config, tokenizer, tmp_path_factory.mktemp(task) / "d")
    shape = {"vocab_size": 400, "meta_token_id": 399, "context_length": 128}
    model = GPT(GPTConfig.variant(variant, **shape, n_layer=1, n_head=2, n_embd=48))
    finetune(
        model,
        dataset,
        batch_size=20,
        seed=0,
        steps=60,
        optim=OptimConfig(learning_rate=5e-3, min_learning_rate=1e-3),
        settings=LoopSettings(log_every=20, checkpoint_every=1000),
    )
    return model, dataset


def by_index(records: Records) -> dict[int, tuple[int, int, int, bool]]:
    columns = (records.prompt_tokens, records.answer_tokens, records.correct_tokens, records.exact)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(records.index.tolist(), rows, strict=True))


@pytest.mark.parametrize("intervention", [None, NO_POSITION])
def test_exact_matches_are_the_answers_that_greedy_decoding_gives(
    trained: tuple[GPT, TaskDataset], intervention: Intervention | None
) -> None:
    model, dataset = trained
    records = evaluate(model, dataset, 16, intervention)
    generated = {
        i
        for i in range(len(dataset))
        if model.generate(
            torch.from_numpy(dataset.prompt(i).astype(np.int64))[None],
            len(dataset.completion(i)),
            stop_token=dataset.eot_id,
            intervention=intervention,
        )
        .completion(0)
        .tolist()
        == dataset.completion(i).tolist()
    }
    assert set(records.index[records.exact].tolist()) == generated
    assert records.exact_match == len(generated) / len(dataset)
    if intervention is None:
        assert 0 < len(generated) < len(dataset)  # or this would show little


def test_token_counts_are_those_of_each_example_alone(trained: tuple[GPT, TaskDataset]) -> None:
    model, dataset = trained
    records = evaluate(model, dataset, 16)
    found = by_index(records)
    assert found.keys() == set(range(len(dataset)))
    n_correct = n_answer = 0
    for i, (prompt_tokens, answer_tokens, correct_tokens, exact) in found.items():
        prompt, completion = dataset.prompt(i).astype(np.int64), dataset.completion(i).astype(np.int64)
        tokens = torch.from_numpy(np.concatenate([prompt, completion]))
        with torch.no_grad():
            predicted = model(tokens[None, :-1])[0].argmax(-1).numpy()[len(prompt) - 1 :]
        right = predicted == completion
        assert completion[-1] == dataset.eot_id
        assert prompt_tokens == len(prompt)
        assert answer_tokens == len(completion) - 1
        assert correct_tokens == right[:-1].sum()
        assert exact == right.all()
        n_correct += right[:-1].sum()
        n_answer += len(completion) - 1
    assert records.token_accuracy == pytest.approx(n_correct / n_answer, abs=1e-12)


def test_the_batch_size_changes_nothing(trained: tuple[GPT, TaskDataset]) -> None:
    model, dataset = trained
    whole = by_index(evaluate(model, dataset, 1000))
    for size in (1, 7, 64):
        assert by_index(evaluate(model, dataset, size)) == whole


def test_what_stands_in_the_padding_changes_nothing(trained: tuple[GPT, TaskDataset]) -> None:
    model, dataset = trained
    batch = collate(dataset, np.arange(len(dataset)))
    padding = torch.arange(batch.tokens.size(1)) >= batch.lengths[:, None]  # (B, T)
    assert padding.any()
    assert (batch.targets[padding] == -100).all()
    noise = torch.randint(model.cfg.meta_token_id, batch.tokens.shape, generator=torch.manual_seed(0))
    scored = batch.targets >= 0
    with torch.no_grad():
        plain, noisy = (
            model(tokens, meta_positions=batch.meta_positions)[scored]
            for tokens in (batch.tokens, torch.where(padding, noise, batch.tokens))
        )
    torch.testing.assert_close(plain, noisy)


def test_an_intervention_changes_what_is_scored(trained: tuple[GPT, TaskDataset]) -> None:
    model, dataset = trained
    plain = evaluate(model, dataset)
    changed = evaluate(model, dataset, intervention=Intervention(zero_position=True, zero_embedding=True))
    assert by_index(changed) != by_index(plain)
    assert by_index(evaluate(model, dataset, intervention=Intervention())) == by_index(plain)


def test_an_untrained_model_scores_about_nothing_and_the_records_say_so(
    trained: tuple[GPT, TaskDataset],
) -> None:
    model, dataset = trained
    records = evaluate(GPT(model.cfg, seed=1), dataset)
    assert len(records) == len(dataset)
    assert records.exact_match < 0.1
    assert records.exact.dtype == bool
    assert (records.correct_tokens <= records.answer_tokens).all()
    assert (records.correct_tokens[records.exact] == records.answer_tokens[records.exact]).all()

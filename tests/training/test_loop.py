"""The training loop against a plain torch one, and interrupted training against undisturbed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from metatok.data.loader import Batch, PretrainData
from metatok.data.shards import ShardSet, TokenStream
from metatok.data.tokenizer import TokenizerConfig, build_tokenizer
from metatok.errors import ConfigError
from metatok.model import GPT
from metatok.tasks import Curriculum, TaskDataset, TaskDatasetConfig, get_task
from metatok.tasks import build as build_dataset
from metatok.training import (
    Checkpoint,
    CheckpointStore,
    LoopSettings,
    LoopState,
    OptimConfig,
    finetune,
    pretrain,
    train,
    validation_loss,
)

from .conftest import META, build, uneven_batch

OPTIM = OptimConfig(learning_rate=3e-3, min_learning_rate=3e-4, warmup_steps=2, grad_clip=0.5)
Logs = list[tuple[int, dict[str, float]]]


class Shards(ShardSet):
    """Random tokens as training and validation streams."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.train = TokenStream([rng.integers(META, size=500), rng.integers(META, size=333)])
        self.validation = TokenStream([rng.integers(META, size=200)])


def corpus(split: Any = "train", seed: int = 3) -> PretrainData:
    return PretrainData(Shards(), split, 24, 0.125, META, seed)


def plain_loop(model: GPT, steps: int) -> tuple[Logs, list[torch.Tensor]]:
    """The same training in ten lines of torch: whole batches, full logits, unfused AdamW."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), fused=False)
    logs: Logs = []
    for step in range(steps):
        batch = uneven_batch(step)
        logits = model(batch.tokens, batch.meta_positions)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = OPTIM.rate_at(step, steps)
        optimizer.step()
        logs.append((step + 1, {"loss": loss.item(), "grad_norm": norm.item()}))
    return logs, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("micro_batch_size", [1, 4, 6, 64])
@pytest.mark.parametrize("variant", ["gpt2_ape", "meta_rope"])
def test_training_is_a_plain_torch_loop_whatever_the_micro_batches(
    variant: str, micro_batch_size: int
) -> None:
    expected_logs, expected = plain_loop(build(variant), 4)
    logs: Logs = []
    settings = LoopSettings(micro_batch_size=micro_batch_size, log_every=1, checkpoint_every=1000)
    state = train(
        build(variant),
        uneven_batch,
        steps=4,
        optim=OPTIM,
        settings=settings,
        on_log=lambda step, metrics: logs.append((step, metrics)),
    )
    assert state.step == 4
    for (step, metrics), (expected_step, wanted) in zip(logs, expected_logs, strict=True):
        assert step == expected_step
        assert metrics["loss"] == pytest.approx(wanted["loss"], abs=1e-6)
        assert metrics["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-5)
        assert metrics["learning_rate"] == OPTIM.rate_at(step - 1, 4)
        assert metrics["tokens_per_second"] > 0
    for parameter, wanted_parameter in zip(state.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), wanted_parameter, atol=1e-6, rtol=0)


def test_a_log_line_is_the_mean_over_the_tokens_of_its_window() -> None:
    optim = OptimConfig(learning_rate=1e-9, min_learning_rate=0.0)
    logs: Logs = []
    settings = LoopSettings(log_every=3, checkpoint_every=3)
    train(
        build(),
        uneven_batch,
        steps=5,
        optim=optim,
        settings=settings,
        on_log=lambda s, m: logs.append((s, m)),
    )
    model = build()
    for (step, metrics), window in zip(logs, [(0, 1, 2), (3, 4)], strict=True):
        total, counted = 0.0, 0
        for i in window:
            batch = uneven_batch(i)
            logits = model(batch.tokens).flatten(0, 1)
            total += F.cross_entropy(logits, batch.targets.flatten(), reduction="sum").item()
            counted += int((batch.targets >= 0).sum())
        assert step == window[-1] + 1
        assert metrics["loss"] == pytest.approx(total / counted, abs=1e-5)


@pytest.mark.parametrize("n_counted", [1, 63, 64, 65])
def test_rows_added_for_compilation_do_not_count(n_counted: int) -> None:
    batch = uneven_batch(0, rows=8, T=16)
    targets = torch.full_like(batch.targets, -100)
    targets.flatten()[torch.randperm(128, generator=torch.Generator().manual_seed(0))[:n_counted]] = 5
    model, seen = build(), []
    train(
        model,
        lambda step: Batch(batch.tokens, targets, batch.meta_positions, batch.indices),
        steps=1,
        optim=OptimConfig(learning_rate=1e-12, min_learning_rate=0.0),
        settings=LoopSettings(log_every=1, checkpoint_every=1),
        on_log=lambda step, metrics: seen.append(metrics["loss"]),
    )
    logits = build()(batch.tokens).flatten(0, 1)
    assert seen == [pytest.approx(F.cross_entropy(logits, targets.flatten()).item(), abs=1e-6)]


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> TaskDataset:
    examples = [get_task("parity", Curriculum.tiny()).example(1, 0, i).prompt for i in range(200)]
    bpe = TokenizerConfig(name="bpe", vocab_size=280)
    config = TaskDatasetConfig(
        task="parity", tokenizer=bpe, curriculum=Curriculum.tiny(), max_tokens=64, n_examples=50
    )
    return build_dataset(config, build_tokenizer(bpe, examples), tmp_path_factory.mktemp("parity") / "d")


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("pretrain", {}),
        ("pretrain", {"dropout": 0.2}),
        ("finetune", {"vocab_size": 280, "meta_token_id": 279, "context_length": 64}),
    ],
)
def test_interrupted_training_ends_as_undisturbed_training_bit_for_bit(
    kind: str, fields: dict[str, Any], parity: TaskDataset, tmp_path: Path
) -> None:
    def run(model: GPT, **training: Any) -> LoopState:
        shared = {"optim": OPTIM, "steps": 14, **training}
        if kind == "pretrain":
            return pretrain(model, corpus(), batch_size=5, **shared)
        return finetune(model, parity, batch_size=7, seed=1, **shared)  # 8 batches an epoch, the last short

    settings = LoopSettings(micro_batch_size=2, log_every=2, checkpoint_every=4)
    whole: Logs = []
    wanted = run(build(**fields), settings=settings, on_log=lambda s, m: whole.append((s, m)))

    store = CheckpointStore(str(tmp_path / "c"))
    first: Logs = []
    second: Logs = []

    def until_killed(step: int, metrics: dict[str, float]) -> None:
        first.append((step, metrics))
        if step == 10:
            raise Killed

    def save(state: LoopState) -> None:
        store.save(**state.checkpoint(), keep=2)

    torch.manual_seed(7)  # the global stream of another process
    with pytest.raises(Killed):
        run(build(**fields), settings=settings, on_log=until_killed, on_checkpoint=save)
    assert store.steps() == [4, 8]
    torch.manual_seed(8)
    latest = store.load()
    assert latest is not None
    again = run(
        build(seed=99, **fields),
        settings=settings,
        resume=vars(latest),
        on_log=lambda s, m: second.append((s, m)),
    )
    assert same_bits(again.model.state_dict(), wanted.model.state_dict())
    assert same_bits(again.optimizer.state_dict(), wanted.optimizer.state_dict())
    assert [step for step, _ in second] == [10, 12, 14]
    for run_logs in (first, second):
        expected = [entry for entry in whole if run_logs[0][0] <= entry[0] <= run_logs[-1][0]]
        assert without_speed(run_logs) == without_speed(expected)


def without_speed(logs: Logs) -> Logs:
    return [(step, {k: v for k, v in metrics.items() if k != "tokens_per_second"}) for step, metrics in logs]


def same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_bits(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    return bool(a == b)


def test_callbacks_come_at_their_steps_and_never_for_the_last_checkpoint() -> None:
    logged: list[int] = []
    kept: list[int] = []
    settings = LoopSettings(log_every=2, checkpoint_every=4)
    train(
        build(),
        uneven_batch,
        steps=8,
        optim=OPTIM,
        settings=settings,
        on_log=lambda step, metrics: logged.append(step),
        on_checkpoint=lambda state: kept.append(state.step),
    )
    assert logged == [2, 4, 6, 8]
    assert kept == [4]  # the final weights are the caller's to keep


def test_a_finished_training_resumes_to_nothing() -> None:
    settings = LoopSettings(log_every=1, checkpoint_every=1)
    done = train(build(), uneven_batch, steps=3, optim=OPTIM, settings=settings)

    def unwanted(step: int) -> Batch:
        raise AssertionError("asked for a batch")

    resume = vars(Checkpoint(3, done.checkpoint()["weights"], done.checkpoint()["optimizer"], {}))
    again = train(build(seed=5), unwanted, steps=3, optim=OPTIM, settings=settings, resume=resume)
    assert same_bits(again.model.state_dict(), done.model.state_dict())


def test_pretraining_takes_the_samples_in_order_of_the_step() -> None:
    data, original = corpus(), corpus()
    seen: list[list[int]] = []

    def batch(indices: np.ndarray) -> Batch:
        seen.append(indices.tolist())
        return original.batch(indices)

    data.batch = batch  # type: ignore[method-assign]
    settings = LoopSettings(log_every=1, checkpoint_every=1)
    pretrain(build(), data, batch_size=3, steps=2, optim=OPTIM, settings=settings)
    assert seen == [[0, 1, 2], [3, 4, 5]]


def test_validation_loss_is_the_mean_over_the_first_blocks_of_the_held_out_split() -> None:
    model, data = build(), corpus("validation")
    batch = data.batch(np.arange(5))
    logits = model(batch.tokens).flatten(0, 1)
    expected = F.cross_entropy(logits, batch.targets.flatten()).item()
    for size in (2, 64):
        loss, n = validation_loss(model, data, 5, LoopSettings(micro_batch_size=size))
        assert loss == pytest.approx(expected, abs=1e-6)
        assert n == int((batch.targets >= 0).sum())
    everything = validation_loss(model, data, 10**6, LoopSettings())
    assert everything == pytest.approx(validation_loss(model, data, data.n_blocks, LoopSettings()))
    assert everything[1] > n


def test_bf16_training_is_near_the_full_precision_one() -> None:
    settings = LoopSettings(log_every=1, checkpoint_every=1)
    losses: dict[str, list[float]] = {"fp32": [], "bf16": []}
    for precision, seen in losses.items():

        def record(step: int, metrics: dict[str, float], seen: list[float] = seen) -> None:
            seen.append(metrics["loss"])

        model = build()
        train(
            model, uneven_batch, steps=3, optim=OPTIM, settings=settings, precision=precision, on_log=record
        )
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert losses["bf16"] == [pytest.approx(loss, abs=0.05) for loss in losses["fp32"]]
    assert losses["bf16"] != losses["fp32"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"log_every": 3, "checkpoint_every": 10}, "checkpoint_every=10.*log_every=3"),
        ({"log_every": 0}, "log_every=0"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"checkpoint_every": 0}, "checkpoint_every=0"),
    ],
)
def test_impossible_settings_are_refused_by_name(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoopSettings(**fields)  # type: ignore[arg-type]

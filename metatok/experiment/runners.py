"""What each kind of cell does: its science, from inputs and bases to numbers.

A runner returns an Outcome and leaves weights, if any, in the cell's checkpoint folder. It knows nothing of
Ray or of the ledger; under torch.distributed every rank calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from metatok import analysis
from metatok.data.loader import PretrainData
from metatok.evaluation.accuracy import Records, evaluate
from metatok.evaluation.efficiency import (
    inject_meta_tokens,
    measure_inference,
    measure_training_step,
    peak_flops,
    transformers_gpt2,
)
from metatok.experiment.cells import (
    Ablate,
    Candidate,
    Cell,
    Efficiency,
    Extend,
    Finetune,
    Pretrain,
    Probe,
    Published,
    RateDistortion,
)
from metatok.experiment.context import Context, Metrics
from metatok.experiment.inputs import ShardsConfig, bottleneck_set, eval_set, probe_set, train_set
from metatok.model import GPT, Intervention, dense_reference
from metatok.randomness import generator
from metatok.tasks.batches import Batch, collate
from metatok.training import LoopState, finetune, pretrain, validation_loss
from metatok.training.loop import agreed, world


@dataclass(frozen=True)
class Outcome:
    """A cell's result. metrics: final numbers, each mean with its n. tables: artifacts, by name."""

    metrics: Metrics
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    checkpoint: str | None = None


def run_cell(cell: Cell, context: Context) -> Outcome:
    """Do the cell's work. Its bases must be finished."""
    return _RUNNERS[type(cell)](cell, context)


def _train(
    cell: Pretrain | Extend | Finetune, context: Context, model: GPT, run: Callable[..., LoopState]
) -> str:
    """Train with resume and checkpoints; leaves the final weights, and gives their address."""
    store = context.store(cell)
    latest = store.load(context.device)
    rank, _ = world()
    found = None if latest is None else latest.step
    if found != (rank_0s := agreed(found)):
        raise RuntimeError(
            f"rank {rank} finds the checkpoint of step {found} under {store.uri}, rank 0 that of {rank_0s}: "
            "METATOK_HOME must be storage that all machines share"
        )

    def save(state: LoopState) -> None:
        if rank == 0:
            context.before_checkpoint()
            content = state.checkpoint()
            store.save(
                content["step"],
                content["weights"],
                content["optimizer"],
                meta=_meta(model),
                keep=context.settings.keep_checkpoints,
            )

    if latest is not None and latest.step >= cell.steps:
        model.load_state_dict(latest.weights)
        if rank == 0:
            store.prune(latest.step)  # whoever wrote it may have died before it could
        return f"{store.uri}/step-{latest.step}"
    resume = asdict(latest) if latest is not None and latest.optimizer is not None else None
    run(
        model,
        steps=cell.steps,
        optim=cell.optim,
        precision=cell.precision,
        resume=resume,
        on_log=context.on_log,
        on_checkpoint=save,
    )
    if rank == 0:
        context.before_checkpoint()
        store.save(cell.steps, model.state_dict(), meta=_meta(model), keep=1)
    return f"{store.uri}/step-{cell.steps}"


def _meta(model: GPT) -> dict[str, Any]:
    """What an export needs besides the weights."""
    return {"architecture": type(model).__name__, "config": model.cfg.model_dump(mode="json")}


def _pretrain_or_extend(cell: Pretrain | Extend, context: Context) -> Outcome:
    root, config = cell.root, cell.result_model
    model = context.load_model(cell.base, config) if isinstance(cell, Extend) else GPT(config, seed=cell.seed)
    shards = context.inputs.shards(ShardsConfig(corpus=root.corpus, tokenizer=root.tokenizer))
    shape = (config.context_length, root.meta_fraction, config.meta_token_id, cell.seed)
    settings = context.loop(context.settings.micro_batch_size)

    def run(model: GPT, **training: Any) -> LoopState:
        data = PretrainData(shards, "train", *shape)
        return pretrain(model, data, batch_size=cell.batch_size, settings=settings, **training)

    checkpoint = _train(cell, context, model, run)
    validation = PretrainData(shards, "validation", *shape)
    loss, n = validation_loss(model, validation, cell.validation_sequences, settings, cell.precision)
    metrics = {"validation_loss": loss, "n_validation_tokens": n, "parameters": model.num_parameters()}
    return Outcome(metrics, checkpoint=checkpoint)


def _published(cell: Published, context: Context) -> Outcome:
    from metatok.model.gpt_neo import load_published  # transformers is needed for this model alone

    model = load_published()
    checkpoint = context.store(cell).save(0, model.state_dict())
    return Outcome({"parameters": model.num_parameters()}, checkpoint=checkpoint)


def _finetune(cell: Finetune, context: Context) -> Outcome:
    model = context.load_model(cell.base)
    dataset = context.inputs.task_dataset(train_set(cell))
    settings = context.loop(context.settings.finetune_micro_batch_size)

    def run(model: GPT, **training: Any) -> LoopState:
        return finetune(
            model, dataset, batch_size=cell.batch_size, seed=cell.seed, settings=settings, **training
        )

    checkpoint = _train(cell, context, model, run)
    return _score(model, cell, None, context, checkpoint)


def _candidate(cell: Candidate, context: Context) -> Outcome:
    """A fine-tune of which the score alone is wanted: its weights go."""
    outcome = _finetune(cell, context)
    context.store(cell).delete()
    return replace(outcome, checkpoint=None)


def _score(
    model: GPT,
    cell: Finetune,
    intervention: Intervention | None,
    context: Context,
    checkpoint: str | None = None,
) -> Outcome:
    """Exact match and token accuracy at every eval length, with per-example records."""
    metrics: Metrics = {}
    columns: dict[str, list[np.ndarray]] = {}
    for length in cell.eval_lengths:
        dataset = context.inputs.task_dataset(eval_set(cell, length))
        records = evaluate(
            model, dataset, context.settings.eval_batch_size, intervention, context.device, cell.precision
        )
        metrics |= _score_metrics(records, length, dataset.majority_share)
        for name, values in {"eval_length": np.full(len(records), length), **vars(records)}.items():
            columns.setdefault(name, []).append(values)
    table = pa.table({name: np.concatenate(parts) for name, parts in columns.items()})
    return Outcome(metrics, {"records": table}, checkpoint)


def _score_metrics(records: Records, length: int, majority_share: float) -> Metrics:
    return {
        f"exact_match/{length}": records.exact_match,
        f"token_accuracy/{length}": records.token_accuracy,
        f"n/{length}": len(records),
        f"majority_share/{length}": majority_share,
    }


def _ablate(cell: Ablate, context: Context) -> Outcome:
    return _score(context.frozen_model(cell.base), cell.base, cell.intervention, context)


def _prompts(dataset_batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """tokens (B, T), prompt lengths (B,), meta positions (B, M) and first answer tokens (B,) of a batch."""
    scored = dataset_batch.targets >= 0  # (B, T)
    first = scored.int().argmax(dim=1)  # (B,): the prompt's last position
    answers = dataset_batch.targets.gather(1, first[:, None]).squeeze(1)
    return dataset_batch.tokens, first + 1, dataset_batch.meta_positions, answers


def _rate_distortion(cell: RateDistortion, context: Context) -> Outcome:
    states, answers, vocab_size = _bottleneck_states(cell, context)
    config = analysis.RateDistortionConfig(
        beta=cell.beta,
        latent_dim=cell.latent_dim,
        epochs=cell.epochs,
        learning_rate=cell.learning_rate,
        seed=cell.seed,
    )
    result = analysis.fit(states[cell.site], answers, vocab_size, config)
    for epoch, point in enumerate(result.history, start=1):
        context.on_log(epoch, {"train_rate": point.rate, "train_distortion": point.distortion})
    metrics = {"rate": result.rate, "distortion": result.distortion, "n": len(answers)}
    return Outcome(metrics | {"distortion_at_mean": result.distortion_at_mean})


def _bottleneck_states(
    cell: RateDistortion, context: Context
) -> tuple[dict[analysis.Site, torch.Tensor], torch.Tensor, int]:
    """Hidden states (N, D) by site, answers (N,) and the vocabulary's size, for all betas and sites."""
    examples = bottleneck_set(cell)

    def make() -> tuple[dict[analysis.Site, torch.Tensor], torch.Tensor, int]:
        model = context.frozen_model(cell.base)
        dataset = context.inputs.task_dataset(examples)
        tokens, lengths, meta_positions, answers = _prompts(collate(dataset, np.arange(len(dataset))))
        states = analysis.site_states(model, tokens, lengths, meta_positions)
        return states, answers, model.cfg.vocab_size

    return context.shared("states", f"{cell.base.fingerprint} {examples.model_dump_json()}", make)


def _probe(cell: Probe, context: Context) -> Outcome:
    model = context.frozen_model(cell.base)
    dataset = context.inputs.task_dataset(probe_set(cell))
    indices = np.arange(min(cell.n_examples, len(dataset)))
    tokens, lengths, meta_positions, _ = _prompts(collate(dataset, indices))
    root = cell.root
    tokenizer = context.inputs.tokenizer(root.tokenizer, root.corpus)
    if cell.analysis == "sharpness":
        return _sharpness(model, tokens, lengths, meta_positions)
    if cell.analysis == "residual":
        return _residual(model, tokens, lengths, meta_positions, tokenizer.decode)
    return _attention(model, tokens, lengths, meta_positions, tokenizer.decode)


Decode = Callable[[list[int]], str]


def _sharpness(model: GPT, tokens: torch.Tensor, lengths: torch.Tensor, metas: torch.Tensor) -> Outcome:
    found = analysis.measure_sharpness(model, tokens, lengths, metas)
    boost = analysis.measure_boost_effect(model, tokens, lengths, metas)
    metrics = {
        "max_logit_boost": float(found.max_logit_boost.mean()),
        "entropy_drop": float(found.entropy_drop.mean()),
        "n_meta_tokens": len(found.position),
        "premise_rate": boost.premise_rate,
        "entropy_fall_rate": boost.entropy_fall_rate,
        "fall_given_premise": boost.fall_given_premise,
        "n_attention_rows": boost.n,
    }
    finite = {name: value for name, value in metrics.items() if np.isfinite(value)}
    return Outcome(finite, {"sharpness": pa.table(vars(found))})


def _residual(
    model: GPT, tokens: torch.Tensor, lengths: torch.Tensor, metas: torch.Tensor, decode: Decode
) -> Outcome:
    shown = analysis.residual_map(model, tokens, lengths, metas)
    profile = analysis.residual_profile(model, tokens, lengths, metas)
    profile_table = _layers_table(
        profile.similarity, "similarity", {"distance": profile.distance, "count": profile.count}
    )
    metrics: Metrics = {"n_examples": len(tokens), "n_pairs": int(profile.count.sum())}
    labels = _token_columns(shown.token_ids, decode)
    return Outcome(
        metrics,
        {
            "residual_map": _layers_table(shown.similarity, "similarity", labels),
            "residual_profile": profile_table,
        },
    )


def _attention(
    model: GPT, tokens: torch.Tensor, lengths: torch.Tensor, metas: torch.Tensor, decode: Decode
) -> Outcome:
    shown = analysis.attention_map(model, tokens, lengths, metas)
    mean = analysis.attention_mass(model, tokens, lengths, metas).mean()  # (n_layer, parts)
    metrics: Metrics = {"n_examples": len(tokens)}
    for layer, masses in enumerate(mean):
        metrics |= {
            f"mass_{part}/layer_{layer}": float(m) for part, m in zip(analysis.PARTS, masses, strict=True)
        }
    return Outcome(
        metrics,
        {"attention_map": _layers_table(shown.weight, "weight", _token_columns(shown.token_ids, decode))},
    )


def _token_columns(ids: np.ndarray, decode: Decode) -> dict[str, Any]:
    return {"position": np.arange(len(ids)), "token": [decode([int(i)]) for i in ids]}


def _layers_table(values: np.ndarray, name: str, columns: Mapping[str, Any]) -> pa.Table:
    """Long form of values (layers, K): a row for each layer and column entry."""
    layers, width = values.shape
    table: dict[str, Any] = {"layer": np.repeat(np.arange(layers), width)}
    for key, column in columns.items():
        table[key] = list(column) * layers
    return pa.table(table | {name: values.ravel()})


_INFERENCE = ("with_meta", "without_meta", "ttft_with_meta", "ttft_without_meta", "slowdown", "ttft_ratio")


def _efficiency(cell: Efficiency, context: Context) -> Outcome:
    model = GPT(cell.model, seed=cell.seed).to(context.device)
    prompt = _random_text(cell, (1, cell.prompt_tokens)).to(context.device)
    found = measure_inference(
        model, prompt, cell.new_tokens, cell.meta_fraction, repeats=cell.repeats, seed=cell.seed
    )
    metrics: Metrics = {"n_text": found.n_text, "n_meta": found.n_meta, "new_tokens": found.new_tokens}
    for name in _INFERENCE:
        metrics |= getattr(found, name).metrics(name)
    return Outcome(metrics | _training_step(cell, model, context.device))


def _training_step(cell: Efficiency, model: GPT, device: str) -> Metrics:
    """Step time of the model, without meta-attention, with the dense mask, and of transformers' GPT-2."""
    config = cell.model
    models: dict[str, torch.nn.Module] = {"model": model}
    if config.extra_attention != "none":
        models["without_extra"] = GPT(config.model_copy(update={"extra_attention": "none"}))
    if config.extra_attention == "meta":
        models["dense_mask"] = dense_reference(model)
    models["transformers_gpt2"] = transformers_gpt2(config)
    length = config.context_length
    n_meta = int(cell.meta_fraction * length)
    text = _random_text(cell, (cell.batch_size, length - n_meta))
    tokens = inject_meta_tokens(text, n_meta, config.meta_token_id, cell.seed).to(device)
    found = measure_training_step(
        {name: module.to(device) for name, module in models.items()},
        tokens,
        config.meta_token_id,
        reference="model",
        autocast=torch.bfloat16 if cell.precision == "bf16" else None,
        repeats=cell.repeats,
    )
    metrics: Metrics = {"tokens_per_step": found.tokens_per_step}
    for name, timing in found.seconds.items():
        metrics |= timing.metrics(f"step_seconds/{name}")
    for name, timing in found.ratios.items():
        metrics |= timing.metrics(f"step_ratio/{name}")
    peak = peak_flops(device)
    if peak is not None:
        flops = model.flops_per_token(length, cell.meta_fraction) * found.tokens_per_step
        metrics["mfu"] = flops / found.seconds["model"].median / peak
    return metrics


def _random_text(cell: Efficiency, shape: tuple[int, int]) -> torch.Tensor:
    """Token ids that are not the meta token, which is the last one."""
    ids = generator(cell.seed, "efficiency/text").integers(cell.model.meta_token_id, size=shape)
    return torch.from_numpy(ids)


_RUNNERS: dict[type[Cell], Callable[[Any, Context], Outcome]] = {
    Pretrain: _pretrain_or_extend,
    Published: _published,
    Extend: _pretrain_or_extend,
    Candidate: _candidate,
    Finetune: _finetune,
    Ablate: _ablate,
    RateDistortion: _rate_distortion,
    Probe: _probe,
    Efficiency: _efficiency,
}

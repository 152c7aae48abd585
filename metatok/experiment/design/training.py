"""What the kinds that train have in common: their settings, resume and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from metatok import data, training
from metatok.config import Count, Seed
from metatok.experiment.design.cell import ModelCell
from metatok.experiment.design.context import Context, Outcome
from metatok.experiment.design.cost import Cost, training_cost, weights_disk
from metatok.experiment.design.settings import RunSettings
from metatok.experiment.inputs import InputConfig, ShardsConfig
from metatok.training.optim import OptimConfig

if TYPE_CHECKING:
    from metatok.model import GPT

Precision = Literal["fp32", "bf16"]


class Trained(ModelCell):
    """A cell that trains for so many optimiser steps; batch_size: sequences a step over all workers."""

    optim: OptimConfig = OptimConfig()
    batch_size: Count
    steps: Count
    precision: Precision = "fp32"
    seed: Seed = 0

    def checkpoint_disk(self, settings: RunSettings) -> int:
        """Weights and Adam's two moments, in fp32; a new one is written before the oldest goes."""
        written = (self.steps - 1) // settings.checkpoint_every
        return 3 * weights_disk(self.result_model) * min(written, settings.keep_checkpoints + 1)

    def train(
        self, context: Context, model: GPT, run: Callable[..., training.LoopState]
    ) -> tuple[str, dict[str, Any]]:
        """Train with resume and checkpoints. Leaves the final weights; gives their address and progress."""
        store = self.store(context)
        latest = store.load(context.device)
        rank, _ = training.world()
        found = None if latest is None else latest.step
        if found != (rank_0s := training.agreed(found)):
            raise RuntimeError(
                f"rank {rank} finds the checkpoint of step {found} under {store.uri}, rank 0 that of "
                f"{rank_0s}: METATOK_HOME must be storage that all machines share"
            )

        def save(state: training.LoopState) -> None:
            if rank == 0:
                context.before_checkpoint()
                content = state.checkpoint()
                store.save(
                    content["step"],
                    content["weights"],
                    content["optimizer"],
                    meta=_meta(model) | content["meta"],
                    keep=context.settings.keep_checkpoints,
                )

        if latest is not None and latest.step >= self.steps:
            model.load_state_dict(latest.weights)
            if rank == 0:
                store.prune(latest.step)  # whoever wrote it may have died before it could
            return f"{store.uri}/step-{latest.step}", latest.meta.get("progress", {})
        resume = asdict(latest) if latest is not None and latest.optimizer is not None else None
        state = run(
            model,
            steps=self.steps,
            optim=self.optim,
            precision=self.precision,
            resume=resume,
            on_log=context.on_log,
            on_checkpoint=save,
        )
        if rank == 0:
            context.before_checkpoint()
            meta = _meta(model) | {"progress": state.progress}
            store.save(self.steps, model.state_dict(), meta=meta, keep=1)
        return f"{store.uri}/step-{self.steps}", state.progress


def _meta(model: GPT) -> dict[str, Any]:
    """What an export needs besides the weights."""
    return {"architecture": type(model).__name__, "config": model.cfg.model_dump(mode="json")}


class CorpusTrained(Trained):
    """A cell that trains on the corpus' blocks, by DDP.

    validation_sequences: blocks of the validation split behind the final loss.
    """

    distributed = True
    keeps_weights = True
    validation_sequences: Count = 200

    def inputs(self) -> Iterator[InputConfig]:
        yield ShardsConfig(corpus=self.root.corpus, tokenizer=self.root.tokenizer)

    def cost(self) -> Cost:
        length = self.result_model.context_length
        tokens = self.steps * self.batch_size * length
        return training_cost(self.result_model, tokens, length, self.root.meta_fraction)

    def trial_key(self, share_trainer: bool) -> tuple[str, str]:
        """A base and its extensions share a trainer; if share_trainer, all bases do."""
        return "train", "" if share_trainer else self.lineage[0].fingerprint

    def train_on_corpus(self, context: Context, model: GPT) -> Outcome:
        """Train the model and measure its validation loss."""
        root, config = self.root, self.result_model
        shards = context.inputs.shards(ShardsConfig(corpus=root.corpus, tokenizer=root.tokenizer))
        shape = (config.context_length, root.meta_fraction, config.meta_token_id, self.seed)
        settings = context.loop(context.settings.micro_batch_size)

        def run(model: GPT, **options: Any) -> training.LoopState:
            blocks = data.PretrainData(shards, "train", *shape)
            return training.pretrain(model, blocks, batch_size=self.batch_size, settings=settings, **options)

        checkpoint, _ = self.train(context, model, run)
        blocks = data.PretrainData(shards, "validation", *shape)
        loss, n = training.validation_loss(model, blocks, self.validation_sequences, settings, self.precision)
        metrics = {"validation_loss": loss, "n_validation_tokens": n, "parameters": model.num_parameters()}
        return Outcome(metrics, checkpoint=checkpoint)

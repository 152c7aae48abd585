"""How cells are run. Nothing here can change a result, so nothing here is part of a fingerprint."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from metatok.config import Config, Count, Natural, NotNegative, Positive


class RunSettings(Config):
    """Resources and intervals.

    workers: DDP processes of a pre-training. train_cpus, train_gpus: what one of them claims. trial_cpus,
    trial_gpus: what one fine-tune, ablation, beta sweep or probe claims; fractions of a GPU share it.
    share_trainer: all pre-trainings in one trainer, one after the other; saves start-up where they are short.
    micro_batch_size: sequences a forward pass. keep_checkpoints: step checkpoints kept a cell.
    """

    workers: Count = 4
    train_cpus: Positive = 8
    train_gpus: NotNegative = 1
    trial_cpus: Positive = 4
    trial_gpus: NotNegative = 0.5
    share_trainer: bool = False
    micro_batch_size: Count = 12
    finetune_micro_batch_size: Count = 64
    eval_batch_size: Count = 64
    log_every: Count = 10
    checkpoint_every: Count = 1000
    keep_checkpoints: Count = 2
    max_retries: Natural = 2
    compile: bool = False

    def halved(self, sequences: int | None = None) -> RunSettings:
        """The same work in passes of half as many sequences, for about half the memory.

        sequences: those of a step on one worker, of which a pass takes no more.
        """
        whole = {"eval_batch_size": self.eval_batch_size}
        for name in ("micro_batch_size", "finetune_micro_batch_size"):
            whole[name] = min(getattr(self, name), sequences or getattr(self, name))
        return self.model_copy(update={name: max(1, size // 2) for name, size in whole.items()})

    @model_validator(mode="after")
    def _whole_gpus(self) -> Self:
        for name in ("train_gpus", "trial_gpus"):
            if (gpus := getattr(self, name)) > 1 and gpus != int(gpus):
                raise ValueError(f"{name}={gpus:g}: more than one GPU must be a whole number")
        return self

    @model_validator(mode="after")
    def _checkpoints_on_log_lines(self) -> Self:
        if self.checkpoint_every % self.log_every:
            raise ValueError(
                f"checkpoint_every={self.checkpoint_every} must be a multiple of log_every={self.log_every}"
            )
        return self

"""How cells are run. Nothing here can change a result, so nothing here is part of a fingerprint."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RunSettings(BaseModel):
    """Resources and intervals.

    workers: DDP processes of a pre-training. train_cpus, train_gpus: what one of them claims. trial_cpus,
    trial_gpus: what one fine-tune, ablation, beta sweep or probe claims; fractions of a GPU share it.
    share_trainer: all pre-trainings in one trainer, one after the other; saves start-up where they are short.
    micro_batch_size: sequences a forward pass. keep_checkpoints: step checkpoints kept a cell.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = Field(default=4, ge=1)
    train_cpus: float = Field(default=8, gt=0)
    train_gpus: float = Field(default=1, ge=0)
    trial_cpus: float = Field(default=4, gt=0)
    trial_gpus: float = Field(default=0.5, ge=0)
    share_trainer: bool = False
    micro_batch_size: int = Field(default=12, ge=1)
    finetune_micro_batch_size: int = Field(default=64, ge=1)
    eval_batch_size: int = Field(default=64, ge=1)
    log_every: int = Field(default=10, ge=1)
    checkpoint_every: int = Field(default=1000, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    max_retries: int = Field(default=2, ge=0)
    compile: bool = False

    def halved(self) -> RunSettings:
        """The same work in passes of half as many sequences, for about half the memory."""
        sizes = ("micro_batch_size", "finetune_micro_batch_size", "eval_batch_size")
        return self.model_copy(update={name: max(1, getattr(self, name) // 2) for name in sizes})

    @model_validator(mode="after")
    def _checkpoints_on_log_lines(self) -> Self:
        if self.checkpoint_every % self.log_every:
            raise ValueError(
                f"checkpoint_every={self.checkpoint_every} must be a multiple of log_every={self.log_every}"
            )
        return self

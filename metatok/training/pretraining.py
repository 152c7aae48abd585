"""Pre-training and context extension: next-token loss on corpus blocks (paper sections 3 and 4.1)."""

from __future__ import annotations

from typing import Any

import torch

from metatok.data.injection import IGNORE
from metatok.data.loader import Ahead, Batch, PretrainData
from metatok.errors import ConfigError
from metatok.model import GPT
from metatok.training.loop import LoopSettings, LoopState, LossRows, token_loss, train, world


def pretrain(
    model: GPT, data: PretrainData, *, batch_size: int, steps: int, settings: LoopSettings, **training: Any
) -> LoopState:
    """Train on `data`: optimiser step s takes the samples s * batch_size ... of the endless shuffled stream.

    batch_size: sequences an optimiser step, over all ranks; each rank takes an equal, contiguous share.
    `training`: the other arguments of `loop.train`.
    """
    rank, ranks = world()
    if batch_size % ranks:
        raise ConfigError(f"batch_size={batch_size} must be a multiple of the {ranks} workers")
    share = batch_size // ranks

    def batches(step: int) -> Batch:
        first = step * batch_size + rank * share
        return data.batch(torch.arange(first, first + share).numpy())

    with Ahead(batches, steps) as ahead:
        return train(model, ahead, steps=steps, settings=settings, **training)


@torch.inference_mode()
def validation_loss(
    model: GPT, data: PretrainData, n_sequences: int, settings: LoopSettings, precision: str = "fp32"
) -> tuple[float, int]:
    """Mean loss (nats/token) over the first sequences of the validation split, and the tokens counted."""
    model.to(settings.device).eval()
    module = LossRows(model)
    total, counted = 0.0, 0
    n_sequences = min(n_sequences, data.n_blocks)
    for start in range(0, n_sequences, settings.micro_batch_size):
        end = min(start + settings.micro_batch_size, n_sequences)
        batch = data.batch(torch.arange(start, end).numpy())
        total += float(token_loss(module, batch, precision, settings.device))
        counted += int((batch.targets != IGNORE).sum())
    return total / max(counted, 1), counted

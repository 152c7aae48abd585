"""Batches of task examples for fine-tuning and evaluation."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from metatok.data.injection import IGNORE
from metatok.data.permutation import Permutation
from metatok.errors import ConfigError
from metatok.tasks.dataset import TaskDataset

_WINDOW = 16


@dataclass(frozen=True)
class Batch:
    """Examples as model input; torch int64. T = tokens of the longest one.

    tokens          (B, T) prompt and completion, right-padded with end of text
    targets         (B, T) the next token at positions that predict the completion, -100 elsewhere; the
                    first such position is the prompt's last meta token
    meta_positions  (B, M) ascending, right-padded with -1
    lengths         (B,) tokens of prompt and completion, its end of text included
    indices         (B,) the examples' numbers in the data set
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    meta_positions: torch.Tensor
    lengths: torch.Tensor
    indices: torch.Tensor


class FinetuneBatches:
    """Batch `step` of an endless training order: every example once an epoch, a pure function of the step.

    Examples of like length share a batch: a random order of the data set is cut into windows of 16
    batches, each window is sorted by length and cut into batches, and the batches are shuffled.
    """

    def __init__(self, dataset: TaskDataset, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}: give at least 1")
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = seed
        self.n_batches = -(-len(dataset) // batch_size)
        # An epoch's steps come back to each of its windows, one a batch.
        self._window = functools.lru_cache(maxsize=-(-self.n_batches // _WINDOW))(self._sorted_window)

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0 over all epochs."""
        return collate(self.dataset, self.indices(step))

    def indices(self, step: int) -> np.ndarray:
        """The numbers of that batch's examples, (B,)."""
        epoch, position = divmod(step, self.n_batches)
        order = Permutation(self.n_batches, self.seed, "finetune/batches", epoch)
        number = int(order(np.array([position]))[0])
        window, rank = divmod(number, _WINDOW)
        return self._window(epoch, window)[rank * self.batch_size : (rank + 1) * self.batch_size]

    def _sorted_window(self, epoch: int, window: int) -> np.ndarray:
        """The numbers of a window's examples, shortest first."""
        size = _WINDOW * self.batch_size
        places = np.arange(window * size, min((window + 1) * size, len(self.dataset)))
        examples = Permutation(len(self.dataset), self.seed, "finetune/examples", epoch)(places)
        return examples[np.lexsort((examples, self.dataset.lengths[examples]))]


def eval_batches(dataset: TaskDataset, batch_size: int) -> Iterator[Batch]:
    """Every example once, shortest first."""
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size}: give at least 1")
    order = np.argsort(dataset.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        yield collate(dataset, order[start : start + batch_size])


def collate(dataset: TaskDataset, indices: np.ndarray) -> Batch:
    """The examples `indices` (B,) as one batch."""
    starts, prompts = dataset.offsets[indices], dataset.prompt_lengths[indices]  # (B,), (B,)
    lengths = dataset.lengths[indices]  # (B,)
    width = int(lengths.max())
    tokens = np.full((len(indices), width), dataset.eot_id, dtype=np.int64)  # (B, T)
    for row, start, length in zip(tokens, starts.tolist(), lengths.tolist(), strict=True):
        row[:length] = dataset.tokens[start : start + length]
    column = np.arange(width)
    scored = (column >= prompts[:, None] - 1) & (column < lengths[:, None] - 1)  # (B, T)
    targets = np.where(scored, np.roll(tokens, -1, axis=1), IGNORE)
    arrays = (tokens, targets, _meta_positions(tokens == dataset.meta_id), lengths, indices)
    return Batch(*(torch.from_numpy(np.array(array, dtype=np.int64)) for array in arrays))


@dataclass(frozen=True)
class Prompts:
    """What is asked, and the answers' first tokens; torch int64.

    tokens (B, T): prompts and what follows them. lengths (B,): of the prompts. meta_positions (B, M): padded
    with -1. answers (B,): first answer tokens.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    meta_positions: torch.Tensor
    answers: torch.Tensor


def prompts(batch: Batch) -> Prompts:
    """The prompts of a batch, for who looks at a model just before it answers."""
    scored = batch.targets >= 0  # (B, T)
    first = scored.int().argmax(dim=1)  # (B,): the prompt's last position
    answers = batch.targets.gather(1, first[:, None]).squeeze(1)
    return Prompts(batch.tokens, first + 1, batch.meta_positions, answers)


def _meta_positions(is_meta: np.ndarray) -> np.ndarray:
    """Column numbers of the True entries of each row of (B, T), (B, M), right-padded with -1."""
    counts = is_meta.sum(axis=1)  # (B,)
    rows, columns = np.nonzero(is_meta)
    positions = np.full((len(is_meta), int(counts.max(initial=0))), -1, dtype=np.int64)  # (B, M)
    ranks = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions[rows, ranks] = columns
    return positions

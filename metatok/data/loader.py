"""Pre-training batches, a pure function of sample indices: any worker count, any restart, same data."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Literal, Self, TypeVar

import numpy as np
import torch

from metatok.data.injection import inject, meta_positions, n_meta
from metatok.data.permutation import Permutation
from metatok.data.shards import ShardSet
from metatok.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """tokens (B, n), targets (B, n) with -100 where there is no loss, meta_positions (B, M), and the samples'
    indices (B,); torch int64.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    meta_positions: torch.Tensor
    indices: torch.Tensor


class PretrainData:
    """Blocks of `context_length` positions, floor(meta_fraction * context_length) of them meta tokens.

    Sample i is block p(i mod n_blocks) of epoch i // n_blocks, where p is that epoch's random order of the
    blocks: every text token is a target once an epoch (but for a tail shorter than a block). A rank's
    share of step s is whichever indices it asks for.
    """

    def __init__(
        self,
        shards: ShardSet,
        split: Literal["train", "validation"],
        context_length: int,
        meta_fraction: float,
        meta_id: int,
        seed: int,
    ) -> None:
        """Raises ConfigError where the split holds less than one block."""
        if context_length < 1 or not 0 <= meta_fraction < 1:
            raise ConfigError(
                f"context_length={context_length}, meta_fraction={meta_fraction}: "
                "give a length >= 1 and a share in [0, 1)"
            )
        self.stream = shards.train if split == "train" else shards.validation
        self.split = split
        self.context_length = context_length
        self.meta_id = meta_id
        self.seed = seed
        self.n_meta = n_meta(context_length, meta_fraction)
        self.text_length = context_length - self.n_meta
        self.n_blocks = (len(self.stream) - 1) // self.text_length
        if self.n_blocks < 1:
            raise ConfigError(
                f"split={split!r}: its {len(self.stream)} tokens fill no block of {self.text_length}; "
                "give more text or a shorter context"
            )

    def batch(self, indices: np.ndarray) -> Batch:
        """The samples of global indices (B,), each >= 0, in that order."""
        indices = np.asarray(indices, dtype=np.int64)  # (B,)
        epochs = indices // self.n_blocks
        blocks = np.empty_like(indices)  # (B,)
        positions = np.empty((len(indices), self.n_meta), dtype=np.int64)  # (B, M)
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            order = Permutation(self.n_blocks, self.seed, f"blocks/{self.split}", epoch)
            blocks[rows] = order(indices[rows] % self.n_blocks)
            positions[rows] = meta_positions(self.seed, blocks[rows], self.context_length, self.n_meta, epoch)
        text = self.stream.read(blocks * self.text_length, self.text_length + 1)  # (B, n - M + 1)
        tokens, targets = inject(text, positions, self.context_length, self.meta_id)
        arrays = (np.ascontiguousarray(tokens), targets, positions, indices)
        return Batch(*(torch.from_numpy(array) for array in arrays))


class Ahead(Generic[T]):
    """`make(step)` for steps asked for in turn: the next one of `steps` is made in a thread meanwhile.

    `make` must depend on the step alone, so that any step may be asked for. An error in making a step is
    raised where that step is asked for. Use as a context manager, or the thread stays until the end.
    """

    def __init__(self, make: Callable[[int], T], steps: int) -> None:
        self._make = make
        self._steps = steps
        self._pool = ThreadPoolExecutor(1, "ahead")
        self._next: tuple[int, Future[T]] | None = None

    def __call__(self, step: int) -> T:
        ready = self._next
        current = ready[1] if ready and ready[0] == step else self._pool.submit(self._make, step)
        following = step + 1
        self._next = (
            (following, self._pool.submit(self._make, following)) if following < self._steps else None
        )
        return current.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

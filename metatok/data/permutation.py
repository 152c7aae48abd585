"""A random order that is computed, not stored: position -> item, for any position at once."""

import numpy as np

from metatok.errors import ConfigError
from metatok.randomness import generator

_ROUNDS = 6


class Permutation:
    """A bijection on [0, n), keyed by (seed, stream, index), in constant memory.

    A Feistel network on the smallest even number of bits that holds n, walked along its cycle until the
    value falls below n (format-preserving encryption; Black and Rogaway, 2002).
    """

    def __init__(self, n: int, seed: int, stream: str, index: int = 0) -> None:
        if not 1 <= n < 2**62:
            raise ConfigError(f"n={n}: a permutation needs between 1 and 2**62 items")
        self.n = n
        self._half = np.uint64(max(1, (int(n - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        rng = generator(seed, f"permutation/{stream}", index)
        self._keys = rng.integers(2**64, size=_ROUNDS, dtype=np.uint64)  # (rounds,)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """The items at `positions`, each in [0, n); same shape, int64."""
        positions = np.asarray(positions)
        assert positions.size == 0 or (positions.min() >= 0 and positions.max() < self.n)
        values = self._encrypt(positions.ravel().astype(np.uint64))
        outside = np.flatnonzero(values >= self.n)
        while outside.size:
            values[outside] = self._encrypt(values[outside])
            outside = outside[values[outside] >= self.n]
        return values.astype(np.int64).reshape(positions.shape)

    def _encrypt(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._mask)
        return (left << self._half) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser: every output bit depends on every input bit. (uint64, wrapping)"""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

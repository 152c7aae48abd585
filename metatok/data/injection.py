"""Meta tokens into pre-training blocks (paper, section 3: a share k of a block, at random positions)."""

import numpy as np

from metatok.randomness import Stream

IGNORE = -100


def n_meta(context_length: int, meta_fraction: float) -> int:
    """Meta tokens in a block of n positions, floor(k * n): 102 for n=1024, k=0.1."""
    # The small term undoes binary rounding: 0.29 * 100 is 28.999999999999996.
    return int(meta_fraction * context_length + 1e-9)


def meta_positions(seed: int, blocks: np.ndarray, n: int, m: int, epoch: int) -> np.ndarray:
    """Positions of the meta tokens of each block, (B, M) int64, ascending.

    Each row is a uniform draw of m of the n positions without replacement, fresh for each block and epoch.
    """
    if m == 0:
        return np.empty((len(blocks), 0), dtype=np.int64)
    draws = Stream(seed, f"injection/{epoch}")
    keys = np.empty((len(blocks), n))  # (B, n)
    for row, block in zip(keys, blocks.tolist(), strict=True):
        draws.at(block).random(out=row)
    positions = np.argpartition(keys, m - 1, axis=1)[:, :m]  # (B, M)
    return np.sort(positions, axis=1)


def inject(text: np.ndarray, positions: np.ndarray, n: int, meta_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks with meta tokens put in, and their targets, both (B, n) int64.

    text       (B, n - M + 1) consecutive text tokens; the last one is only a target
    positions  (B, M) ascending positions in [0, n)

    A target is the next token; it is -100, no loss, where the next token is a meta token.
    """
    batch, m = positions.shape
    assert text.shape == (batch, n - m + 1)
    tokens = np.full((batch, n + 1), meta_id, dtype=np.int64)  # (B, n + 1)
    is_text = np.ones((batch, n + 1), dtype=bool)  # (B, n + 1)
    np.put_along_axis(is_text, positions, False, axis=1)
    tokens[is_text] = text.ravel()
    targets = np.where(is_text[:, 1:], tokens[:, 1:], IGNORE)  # (B, n)
    return tokens[:, :n], targets

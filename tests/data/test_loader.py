"""Injection, permutation and pre-training batches."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from metatok.data.injection import inject, meta_positions, n_meta
from metatok.data.loader import Ahead, PretrainData
from metatok.data.permutation import Permutation
from metatok.data.shards import ShardSet, TokenStream
from metatok.errors import ConfigError

META = 9999


class Shards(ShardSet):
    """Tokens 0, 1, 2, ... as a training stream."""

    def __init__(self, n_tokens: int) -> None:
        half = n_tokens // 2
        self.train = TokenStream([np.arange(half), np.arange(half, n_tokens)])
        self.validation = TokenStream([np.arange(100)])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**40), st.integers(0, 5))
def test_a_permutation_has_every_item_once(n: int, seed: int, epoch: int) -> None:
    items = Permutation(n, seed, "test", epoch)(np.arange(n))
    assert sorted(items.tolist()) == list(range(n))


def test_permutations_differ_and_look_random() -> None:
    positions = np.arange(1000)
    orders = [Permutation(1000, seed, "test", epoch)(positions) for seed in (0, 1) for epoch in (0, 1)]
    for i, order in enumerate(orders):
        assert (order == positions).sum() < 10
        assert abs(stats.spearmanr(positions, order).statistic) < 0.12
        assert all((order == other).sum() < 10 for other in orders[:i])
    huge = Permutation(10**12, 0, "test")
    items = huge(np.array([[0, 1], [2, 10**12 - 1]]))
    assert items.shape == (2, 2)
    assert (items < 10**12).all()
    # Where the first item goes is uniform over keys.
    places = [int(Permutation(10, seed, "test")(np.array([3]))[0]) for seed in range(1000)]
    assert stats.chisquare(np.bincount(places, minlength=10)).pvalue > 1e-4


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 40), st.integers(1, 4))
def test_removing_the_meta_tokens_gives_the_text(data: st.DataObject, n: int, batch: int) -> None:
    m = data.draw(st.integers(0, n - 1))
    seed = data.draw(st.integers(0, 1000))
    text = np.arange(batch * (n - m + 1)).reshape(batch, n - m + 1)
    positions = meta_positions(seed, np.arange(batch), n, m, epoch=0)
    tokens, targets = inject(text, positions, n, META)
    for row in range(batch):
        assert tokens[row, positions[row]].tolist() == [META] * m
        assert tokens[row][tokens[row] != META].tolist() == text[row, :-1].tolist()
        following = [*tokens[row, 1:].tolist(), int(text[row, -1])]
        assert targets[row].tolist() == [-100 if token == META else token for token in following]


def test_meta_positions_are_exact_uniform_and_fresh() -> None:
    n, m, blocks = 40, 4, 4000
    positions = meta_positions(0, np.arange(blocks), n, m, epoch=0)
    assert positions.shape == (blocks, m)
    assert (np.diff(positions, axis=1) > 0).all()
    # A position's count varies by blocks * p * (1 - p), p = m / n, and the counts sum to blocks * m: so the
    # squares, over blocks * p * (1 - p) * n / (n - 1), are chi-square with n - 1 degrees of freedom.
    counts = np.bincount(positions.ravel(), minlength=n)
    p = m / n
    square = ((counts - blocks * p) ** 2).sum() / (blocks * p * (1 - p)) * (n - 1) / n
    assert 1e-4 < stats.chi2.cdf(square, n - 1) < 1 - 1e-4
    # Uniform over sets, not over positions alone: each pair of 6 positions is as likely as another.
    pairs = meta_positions(0, np.arange(6000), 6, 2, epoch=3)
    each = np.bincount(pairs[:, 0] * 6 + pairs[:, 1], minlength=36)
    assert (each > 0).sum() == 15
    assert stats.chisquare(each[each > 0]).pvalue > 1e-4
    again = meta_positions(0, np.arange(blocks), n, m, epoch=1)
    assert (positions == again).all(axis=1).mean() < 0.01
    assert (meta_positions(0, np.array([7, 3]), n, m, 0) == positions[[7, 3]]).all()
    assert (meta_positions(1, np.arange(9), n, m, 0) != positions[:9]).any()


def test_the_papers_count() -> None:
    assert n_meta(1024, 0.1) == 102
    assert n_meta(100, 0.29) == 29
    assert n_meta(1024, 0.0) == 0


def test_an_epoch_holds_every_token_once() -> None:
    data = PretrainData(Shards(1001), "train", 50, 0.1, META, seed=3)
    assert data.n_blocks == 1000 // 45
    seen = []
    for epoch in range(2):
        batch = data.batch(np.arange(data.n_blocks) + epoch * data.n_blocks)
        assert batch.tokens.shape == batch.targets.shape == (data.n_blocks, 50)
        assert ((batch.tokens == META).sum(1) == 5).all()
        assert (batch.tokens.gather(1, batch.meta_positions) == META).all()
        text = batch.tokens[batch.tokens != META]
        assert sorted(text.tolist()) == list(range(data.n_blocks * 45))
        seen.append(batch.tokens[:, :].tolist())
    assert seen[0] != seen[1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=12), st.integers(1, 11))
def test_a_sample_does_not_depend_on_its_batch(indices: list[int], cut: int) -> None:
    data = PretrainData(Shards(1001), "train", 50, 0.1, META, seed=0)
    whole = data.batch(np.array(indices))
    parts = [data.batch(np.array(part)) for part in (indices[:cut], indices[cut:]) if part]
    for name in ("tokens", "targets", "meta_positions"):
        joined = np.concatenate([getattr(part, name).numpy() for part in parts])
        assert (joined == getattr(whole, name).numpy()).all()


def test_without_meta_tokens_it_is_plain_next_token_prediction() -> None:
    data = PretrainData(Shards(1001), "train", 50, 0.0, META, seed=0)
    batch = data.batch(np.arange(20))
    assert batch.meta_positions.shape == (20, 0)
    assert (batch.targets == batch.tokens + 1).all()


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"split='validation': its 100 tokens fill no block of 116"):
        PretrainData(Shards(1001), "validation", 128, 0.1, META, seed=0)
    with pytest.raises(ConfigError, match="meta_fraction=1"):
        PretrainData(Shards(1001), "train", 128, 1.0, META, seed=0)


def test_steps_are_made_ahead_in_whatever_order_they_are_asked_for() -> None:
    made: list[int] = []

    def make(step: int) -> int:
        made.append(step)
        if step == 5:
            raise OSError("disk")
        return step * step

    with Ahead(make, steps=8) as ahead:
        assert [ahead(step) for step in (0, 1, 2, 7, 3)] == [0, 1, 4, 49, 9]
        assert ahead(4) == 16  # the error of 5, made ahead, is not 4's
        with pytest.raises(OSError, match="disk"):
            ahead(5)
    assert made.count(1) == made.count(2) == 1
    assert max(made) == 7


def test_batches_are_the_same_for_any_worker_count_and_micro_batch_split() -> None:
    batch_size, steps = 12, 9  # 108 samples: more than two epochs
    data = PretrainData(Shards(2000), "train", 50, 0.1, META, seed=1)
    whole = [data.batch(np.arange(batch_size) + step * batch_size).tokens for step in range(steps)]
    for workers in (1, 2, 3, 4, 6):
        share = batch_size // workers
        for micro in (1, 2, share):
            other = PretrainData(Shards(2000), "train", 50, 0.1, META, seed=1)
            for step in (8, 0, 3):  # nothing but the step's number says where to go on
                rows = [
                    other.batch(np.arange(first, min(first + micro, end))).tokens
                    for rank in range(workers)
                    for end in [step * batch_size + (rank + 1) * share]
                    for first in range(end - share, end, micro)
                ]
                assert np.array_equal(np.concatenate(rows), whole[step])

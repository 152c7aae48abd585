"""Segment counting: how often an item occurs between two meta tokens (paper, appendix D.1.2 and H)."""

from metatok.tasks.base import Example, Task
from metatok.tasks.lists import draw_lists, write_lists
from metatok.tasks.words import CATEGORIES


class SegmentCounting(Task):
    """m named lists of n items, one of them wrapped in two meta tokens.

    The asked item: among the counts that the wrapped list's ten possible items have (0 where an item does
    not occur), one count is drawn uniformly, then an item with that count. So no count dominates.
    """

    name = "segment_counting"

    def example(self, phase: int, seed: int, index: int) -> Example:
        schedule = self.curriculum.phase(phase)
        rng = self.rng(phase, seed, index)
        u = rng.random(6).tolist()
        m, n = schedule.n_lists(u[0]), schedule.n_items(u[1], u[2])
        names, lists = draw_lists(rng, m, n)
        target = int(u[3] * m)
        by_count: dict[int, list[str]] = {}
        for item in CATEGORIES[names[target]]:
            by_count.setdefault(lists[target].count(item), []).append(item)
        counts = sorted(by_count)
        candidates = by_count[counts[int(u[4] * len(counts))]]
        return compose(names, lists, target, candidates[int(u[5] * len(candidates))], phase)


def compose(names: list[str], lists: list[list[str]], target: int, item: str, phase: int) -> Example:
    """The example that asks how often `item` occurs in list `target` (from 0)."""
    name, items = names[target], lists[target]
    before = write_lists(names[:target], lists[:target])
    after = write_lists(names[target + 1 :], lists[target + 1 :])
    first = f"{before} {name}:" if before else f"{name}:"
    question = f"Q: How many times does {item} appear between the pauses around {name}?"
    third = f" {after} {question}" if after else f" {question}"
    segments = (first, " " + " ".join(items), third, "")
    return Example(segments, str(items.count(item)), phase, {"list": name, "item": item})

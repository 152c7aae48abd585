"""Drawing the named lists that list recall and segment counting share."""

import numpy as np

from metatok.tasks.words import CATEGORIES

NAMES = tuple(CATEGORIES)
ITEMS = tuple(CATEGORIES.values())


def draw_lists(rng: np.random.Generator, m: int, n: int) -> tuple[list[str], list[list[str]]]:
    """m category names without replacement, and for each n of its items with replacement (appendix D.1.1)."""
    categories = rng.permutation(len(NAMES))[:m].tolist()
    draws = rng.integers(10, size=(m, n)).tolist()  # (m, n)
    names = [NAMES[category] for category in categories]
    lists = [[ITEMS[category][i] for i in row] for category, row in zip(categories, draws, strict=True)]
    return names, lists


def write_lists(names: list[str], lists: list[list[str]]) -> str:
    """`Fruits: orange peach Tools: hammer wrench`"""
    return " ".join([f"{name}: {' '.join(items)}" for name, items in zip(names, lists, strict=True)])

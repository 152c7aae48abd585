"""Drawing the named lists that list recall and segment counting share."""

import numpy as np

from metatok.tasks.words import CATEGORIES

NAMES = tuple(CATEGORIES)
ITEMS = np.array(list(CATEGORIES.values()), dtype=object)  # (20, 10)


def draw_lists(rng: np.random.Generator, m: int, n: int) -> tuple[list[str], list[list[str]]]:
    """m category names without replacement, and for each n of its items with replacement (appendix D.1.1)."""
    categories = rng.permutation(len(NAMES))[:m]
    draws = rng.integers(ITEMS.shape[1], size=(m, n))
    return [NAMES[i] for i in categories], ITEMS[categories[:, None], draws].tolist()


def write_lists(names: list[str], lists: list[list[str]]) -> str:
    """`Fruits: orange peach Tools: hammer wrench`"""
    return " ".join([f"{name}: {' '.join(items)}" for name, items in zip(names, lists, strict=True)])

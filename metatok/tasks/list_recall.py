"""List recall: find item j of a named list (paper, section 4.2, appendix D.1.1 and H)."""

from metatok.tasks.base import Example, Task
from metatok.tasks.lists import draw_lists, write_lists


class ListRecall(Task):
    """m named lists of n items; a meta token after item j of the target list; "What is item j of <target>?".

    The answer is item j, as in appendix H's example (D.1.1 says "the item immediately following").
    """

    name = "list_recall"

    def example(self, phase: int, seed: int, index: int) -> Example:
        schedule = self.curriculum.phase(phase)
        rng = self.rng(phase, seed, index)
        u = rng.random(5).tolist()
        m, n = schedule.n_lists(u[0]), schedule.n_items(u[1], u[2])
        names, lists = draw_lists(rng, m, n)
        target, j = int(u[3] * m), 1 + int(u[4] * n)
        return compose(names, lists, target, j, phase, self.curriculum.repeat_target)


def compose(
    names: list[str], lists: list[list[str]], target: int, j: int, phase: int, repeat_target: bool = True
) -> Example:
    """The example that asks for item j (from 1) of list `target` (from 0)."""
    name, items = names[target], lists[target]
    marked = f"{name}: {' '.join(items[:j])}"
    before = write_lists(names, lists) if repeat_target else write_lists(names[:target], lists[:target])
    first = f"{before} {marked}" if before else marked
    rest = items[j:]
    tail = write_lists(names[target + 1 :], lists[target + 1 :]) if not repeat_target else ""
    between = " ".join([*rest, tail] if tail else rest)
    question = f"Q: What is item {j} of {name}?"
    second = f" {between} {question}" if between else f" {question}"
    return Example((first, second, ""), items[j - 1], phase, {"list": name, "item": j})

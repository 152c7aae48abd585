"""Copying: repeat the span of real text between two meta tokens (paper, appendix D.1.4 and H)."""

from metatok.errors import ConfigError
from metatok.tasks.base import Example, Task
from metatok.tasks.curriculum import Curriculum, pick
from metatok.tasks.text import TextSource, embedded_text


class Copying(Task):
    """A window of text with a bracketed span of C words that ends D words before the question.

    The answer is the span, verbatim; appendix H prints one full stop more after its example's.
    `text` defaults to the embedded corpus. Words are those of `TextSource`: a closing punctuation mark
    counts as one.
    """

    name = "copying"
    needs_text = True

    def __init__(self, curriculum: Curriculum | None = None, text: TextSource | None = None) -> None:
        super().__init__(curriculum, text)
        self.source = text if text is not None else embedded_text()

    def example(self, phase: int, seed: int, index: int) -> Example:
        """Raises ConfigError where the text is shorter than the window this phase asks for."""
        schedule = self.curriculum.phase(phase)
        u = self.rng(phase, seed, index).random(4).tolist()
        before = pick(schedule.copy_before, u[0])
        length = pick(schedule.copy_length, u[1])
        distance = pick(schedule.copy_distance, u[2])
        room = len(self.source) - (before + length + distance)
        if room < 0:
            raise ConfigError(
                f"copying, phase {phase}: the text has {len(self.source)} words, a window of "
                f"{before + length + distance} does not fit; give a larger corpus or an earlier phase"
            )
        return compose(self.source, int(u[3] * (room + 1)), before, length, distance, phase)


def compose(source: TextSource, start: int, before: int, length: int, distance: int, phase: int) -> Example:
    """The example whose window starts at word `start`: `before` words, the span, `distance` words."""
    first, last = start + before, start + before + length
    span = source.cut(first, last)
    after = source.cut(last, last + distance)
    # The leading dots, as in appendix H, say that the text begins in the middle.
    segments = (f"...{source.cut(start, first)}", f" {span}", f" {after} Q: Copy the bracketed text.", "")
    return Example(segments, span, phase, {"length": length, "distance": distance})

"""What a task is: a pure function from (phase, seed, index) to an example."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from metatok.randomness import Stream
from metatok.tasks.curriculum import Curriculum

if TYPE_CHECKING:
    from metatok.tasks.text import TextSource

PAUSE = " _PAUSE_"


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with its answer.

    `segments` are the texts between meta tokens. The prompt always ends with a meta token, so the last
    segment is "". A segment after a meta token starts with a space, as the words of a sentence do.
    """

    segments: tuple[str, ...]
    completion: str
    phase: int
    details: Mapping[str, object] = field(default_factory=dict, compare=False)

    @property
    def prompt(self) -> str:
        """The prompt as the paper's appendix H prints it, meta tokens written ` _PAUSE_`."""
        return PAUSE.join(self.segments)


class Task(ABC):
    """A synthetic task (paper, section 4.2). A task of your own: give it a `name` and an `example`.

    `curriculum` tells how hard a phase is. `text` is real text to cut from; a task that needs it sets
    `needs_text`.
    """

    name: ClassVar[str]
    needs_text: ClassVar[bool] = False

    def __init__(self, curriculum: Curriculum | None = None, text: "TextSource | None" = None) -> None:
        self.curriculum = curriculum if curriculum is not None else Curriculum()
        self.text = text
        self._streams: dict[tuple[int, int], Stream] = {}

    def rng(self, phase: int, seed: int, index: int) -> np.random.Generator:
        """That example's own random numbers, of use until the next call."""
        if (phase, seed) not in self._streams:
            self._streams[phase, seed] = Stream(seed, f"tasks/{self.name}/{phase}")
        return self._streams[phase, seed].at(index)

    @abstractmethod
    def example(self, phase: int, seed: int, index: int) -> Example:
        """The example of this phase (1-based), seed and index: always the same one."""

"""What a task is: a pure function from (phase, seed, index) to an example."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

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

    `text` is real text to cut from; a task that needs it sets `needs_text`.
    """

    name: ClassVar[str]
    needs_text: ClassVar[bool] = False

    def __init__(self, curriculum: Curriculum | None = None, text: "TextSource | None" = None) -> None:
        self.curriculum = curriculum if curriculum is not None else Curriculum()
        self.text = text

    @abstractmethod
    def example(self, phase: int, seed: int, index: int) -> Example:
        """The example of this phase (1-based), seed and index: always the same one."""

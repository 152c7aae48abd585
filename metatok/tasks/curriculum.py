"""The difficulty schedule of the tasks: Table 6 of the paper.

The list and item counts are the paper's. Its token column cannot hold in every phase at once: 17.5 lists
of 50 items are 875 items, so "<= 1024 tokens" asks for about one token an item, while "100-200 tokens"
for phase 1's 36 items asks for more than two. With plain words (1.1 gpt2 tokens each) most prompts of the
list tasks and parity lie in their range in phases 4 and 5, and below its middle in phases 1-3. Where
counts are too many, as 20 lists of 60 items, examples are left out, never cut. Copying has no items to count,
so its words, chosen here, put half or more of its prompts in the range of every phase; hard reaches under
500 tokens, as a train length of 512 draws from it.
"""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from metatok.config import Config
from metatok.errors import ConfigError

Range = tuple[int, int]  # both ends included
# To ask for by number. Each phase after the last row has examples twice as long, the 16th ones of 4M words.
PhaseNumber = Annotated[int, Field(ge=1, le=16)]

N_CATEGORIES = 20


def pick(span: Range, u: float) -> int:
    """The integer of `span` that u in [0, 1) selects, uniformly."""
    low, high = span
    return low + int(u * (high - low + 1))


class Phase(Config):
    """One row of Table 6.

    lists         number of lists m
    items         items a list n: a mixture of ranges, one n an example
    item_weights  share of each range; empty = equal
    copy_before, copy_length, copy_distance
                  words of text before the copied span, in it (C), and from its end to the question (D)
    tokens        approximate prompt length that the paper states, in tokens
    reach         shortest train length, in tokens, whose examples are drawn from this phase
    """

    name: str
    lists: Range
    items: tuple[Range, ...]
    item_weights: tuple[float, ...] = ()
    copy_before: Range
    copy_length: Range
    copy_distance: Range
    tokens: Range
    reach: int

    @model_validator(mode="after")
    def _check(self) -> Self:
        spans = {
            "lists": (self.lists,),
            "items": self.items,
            "copy_before": (self.copy_before,),
            "copy_length": (self.copy_length,),
            "copy_distance": (self.copy_distance,),
        }
        for field, ranges in spans.items():
            if not ranges or any(not 1 <= low <= high for low, high in ranges):
                raise ConfigError(f"{field}={ranges}: give ranges (low, high) with 1 <= low <= high")
        if self.lists[1] > N_CATEGORIES:
            raise ConfigError(f"lists={self.lists}: there are {N_CATEGORIES} categories, ask for no more")
        if self.item_weights and len(self.item_weights) != len(self.items):
            raise ConfigError(f"item_weights={self.item_weights}: give one for each range of {self.items}")
        if self.item_weights and (min(self.item_weights) < 0 or sum(self.item_weights) == 0):
            raise ConfigError(f"item_weights={self.item_weights}: give weights >= 0, not all 0")
        return self

    def n_lists(self, u: float) -> int:
        return pick(self.lists, u)

    def n_items(self, u: float, v: float) -> int:
        """u selects the range of the mixture, v the number in it."""
        weights = self.item_weights or (1.0,) * len(self.items)
        level = u * sum(weights)
        for span, weight in zip(self.items, weights, strict=True):
            if level < weight:
                return pick(span, v)
            level -= weight
        return pick(self.items[-1], v)

    def longer(self, factor: int) -> "Phase":
        """This phase with lists, and text around the copied span, `factor` times as long."""

        def times(span: Range) -> Range:
            return span[0] * factor, span[1] * factor

        return self.model_copy(
            update={
                "name": f"{self.name} x{factor}",
                "items": tuple(times(span) for span in self.items),
                "copy_before": times(self.copy_before),
                "copy_distance": times(self.copy_distance),
                "tokens": times(self.tokens),
                "reach": self.reach * factor,
            }
        )


TABLE_6 = (
    Phase(
        name="easy", lists=(3, 8), items=((3, 10),),
        copy_before=(30, 70), copy_length=(8, 24), copy_distance=(20, 60),
        tokens=(100, 200), reach=128,
    ),
    Phase(
        name="medium", lists=(8, 12), items=((3, 8), (9, 16)), item_weights=(0.25, 0.75),
        copy_before=(55, 110), copy_length=(16, 40), copy_distance=(65, 120),
        tokens=(200, 300), reach=256,
    ),
    Phase(
        name="hard", lists=(12, 19), items=((3, 8), (9, 16), (17, 25)), item_weights=(0.2, 0.3, 0.5),
        copy_before=(120, 240), copy_length=(32, 72), copy_distance=(160, 290),
        tokens=(500, 700), reach=512,
    ),
    Phase(
        name="extra-hard", lists=(15, 20), items=((40, 60),),
        copy_before=(200, 400), copy_length=(64, 128), copy_distance=(280, 460),
        tokens=(512, 1024), reach=1024,
    ),
    Phase(
        name="long", lists=(15, 20), items=((90, 110),),
        copy_before=(480, 800), copy_length=(96, 192), copy_distance=(720, 1060),
        tokens=(1024, 2048), reach=2048,
    ),
)  # fmt: skip

TINY = (
    Phase(
        name="easy", lists=(3, 4), items=((3, 6),),
        copy_before=(2, 8), copy_length=(3, 8), copy_distance=(2, 8), tokens=(32, 64), reach=64,
    ),
    Phase(
        name="medium", lists=(5, 7), items=((5, 9),),
        copy_before=(4, 16), copy_length=(6, 12), copy_distance=(6, 20), tokens=(50, 110), reach=128,
    ),
    Phase(
        name="hard", lists=(8, 10), items=((8, 16),),
        copy_before=(10, 30), copy_length=(10, 20), copy_distance=(20, 50), tokens=(100, 220), reach=256,
    ),
    Phase(
        name="extra-hard", lists=(8, 10), items=((20, 36),),
        copy_before=(30, 60), copy_length=(16, 32), copy_distance=(60, 110), tokens=(220, 512), reach=512,
    ),
    Phase(
        name="long", lists=(8, 10), items=((48, 72),),
        copy_before=(80, 130), copy_length=(24, 48), copy_distance=(140, 220), tokens=(460, 1024), reach=1024,
    ),
)  # fmt: skip


# Begins below Table 6's first phase, with one list of a few items, bits or words, so that small models can
# learn what a task asks before they learn to do it at length. One item would be too few: its prompts are so
# few that they are learned by heart, as parity's of the first phase are, of which there are 98.
SHORT = (
    Phase(
        name="first", lists=(1, 1), items=((2, 4),),
        copy_before=(1, 1), copy_length=(1, 2), copy_distance=(1, 1), tokens=(20, 32), reach=16,
    ),
    Phase(
        name="few", lists=(1, 1), items=((2, 8),),
        copy_before=(1, 1), copy_length=(2, 3), copy_distance=(1, 1), tokens=(24, 36), reach=32,
    ),
    Phase(
        name="easy", lists=(1, 2), items=((4, 12),),
        copy_before=(1, 4), copy_length=(3, 7), copy_distance=(1, 5), tokens=(28, 64), reach=64,
    ),
    Phase(
        name="medium", lists=(3, 4), items=((6, 14),),
        copy_before=(4, 12), copy_length=(6, 14), copy_distance=(5, 14), tokens=(44, 128), reach=128,
    ),
    Phase(
        name="hard", lists=(5, 7), items=((12, 20),),
        copy_before=(10, 25), copy_length=(12, 24), copy_distance=(12, 30), tokens=(90, 256), reach=256,
    ),
    *TINY[3:],
)  # fmt: skip


class Curriculum(Config):
    """The phases, easiest first, numbered from 1; the default is Table 6.

    `repeat_target`: list recall writes its target list once more, with the meta token in it, before the
    question, as the paper's appendix H does; False puts the meta token into the list where it stands.
    """

    name: str = "table6"
    phases: tuple[Phase, ...] = TABLE_6
    repeat_target: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        reaches = [phase.reach for phase in self.phases]
        if not reaches or reaches[0] < 1 or any(b <= a for a, b in pairwise(reaches)):
            raise ConfigError(f"phases: reach={reaches}, give at least one phase, with reach increasing")
        return self

    @classmethod
    def tiny(cls) -> Self:
        """The schedule scaled down to contexts of about 128 tokens, for a run in minutes on two cores."""
        return cls(name="tiny", phases=TINY)

    def phase(self, number: int) -> Phase:
        """Phase `number` >= 1. Past the last row it is that row 2, 4, 8, ... times as long."""
        if number < 1:
            raise ConfigError(f"phase={number}: phases are numbered from 1 to {len(self.phases)}")
        if number <= len(self.phases):
            return self.phases[number - 1]
        return self.phases[-1].longer(2 ** (number - len(self.phases)))

    def phases_for(self, train_length: int) -> tuple[int, ...]:
        """The phases a train length of `train_length` tokens draws from: those whose reach it attains.

        Table 6: 128 -> 1; 256 -> 1-2; 512 -> 1-3; 2048 -> 1-5; 4096 -> 1-6, where 6 is phase 5 with
        lists twice as long. Phase 1 is always in.
        """
        number = 1
        while self.phase(number + 1).reach <= train_length:
            number += 1
        return tuple(range(1, number + 1))


CurriculumName = Literal["table6", "tiny", "short"]
CURRICULA: dict[CurriculumName, Curriculum] = {
    "table6": Curriculum(),
    "tiny": Curriculum.tiny(),
    "short": Curriculum(name="short", phases=SHORT),
}

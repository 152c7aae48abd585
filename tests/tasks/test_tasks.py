"""The four tasks: the paper's wording, right answers, and examples that depend on their index alone."""

import re
from collections import Counter

import numpy as np
import pytest

from metatok.data.corpus import CorpusConfig, open_corpus
from metatok.data.tokenizer import gpt2
from metatok.errors import ConfigError
from metatok.randomness import Stream, generator
from metatok.tasks import (
    TASKS,
    Curriculum,
    Example,
    Task,
    TextSource,
    copying,
    get_task,
    list_recall,
    parity,
    register,
    segment_counting,
)
from metatok.tasks.words import CATEGORIES

H_LISTS = (
    "Fruits: orange peach banana plum Tools: hammer wrench level pliers Sports: boxing baseball boxing golf "
    "Spices: turmeric cardamom cumin cinnamon Animals: cat tiger wolf fox "
    "Professions: teacher nurse lawyer architect Vegetables: onion cucumber broccoli cucumber "
    "Instruments: piano clarinet violin piano"
)
H_TEXT = (
    "as ever Mr. Darcy had been, was much relieved by discerning such different feelings. They had "
    "not been long together before Darcy told her that Bingley was also coming to wait on her; and "
    "she had barely time to express her satisfaction, and prepare for such a visitor, when Bingleys "
    "quick step was heard on the stairs, and in a moment he entered the room. All Elizabeths anger "
    "against him had been long done away; but had she still felt any, it could hardly have stood its "
    "ground against the unaffected cordiality with which he expressed himself on seeing her again. He "
    "inquired in a friendly, though general, way, after her family, and looked and spoke with the "
    "same good-humoured ease that he had ever done."
)


def parse(text: str) -> tuple[list[str], list[list[str]]]:
    names: list[str] = []
    lists: list[list[str]] = []
    for word in text.split():
        if word.endswith(":"):
            names.append(word[:-1])
            lists.append([])
        else:
            lists[-1].append(word)
    return names, lists


def test_list_recall_is_worded_as_in_appendix_h() -> None:
    names, lists = parse(H_LISTS)
    example = list_recall.compose(names, lists, target=5, j=3, phase=1)
    assert example.prompt == (
        f"{H_LISTS} Professions: teacher nurse lawyer _PAUSE_ architect "
        "Q: What is item 3 of Professions? _PAUSE_"
    )
    assert example.completion == "lawyer"


def test_segment_counting_is_worded_as_in_appendix_h() -> None:
    names, lists = parse(H_LISTS)
    example = segment_counting.compose(names[:4], lists[:4], target=1, item="wrench", phase=1)
    assert example.prompt == (
        "Fruits: orange peach banana plum Tools: _PAUSE_ hammer wrench level pliers _PAUSE_ "
        "Sports: boxing baseball boxing golf Spices: turmeric cardamom cumin cinnamon "
        "Q: How many times does wrench appear between the pauses around Tools? _PAUSE_"
    )
    assert example.completion == "1"


def test_parity_is_worded_as_in_appendix_h() -> None:
    example = parity.compose("0100", 1, phase=1)
    assert example.prompt == "Bits: 0 _PAUSE_ 1 0 0 Q: What is the XOR of all bits before this pause? _PAUSE_"
    assert example.segments == ("Bits: 0", " 1 0 0 Q: What is the XOR of all bits before this pause?", "")
    assert example.completion == "0"


def test_copying_is_worded_as_in_appendix_h() -> None:
    source = TextSource([H_TEXT])
    end = " good-humoured ease that he had ever done."
    distance = 8  # good-humoured, ease, that, he, had, ever, done, full stop
    example = copying.compose(
        source, 0, before=3, length=len(source) - 3 - distance, distance=distance, phase=1
    )
    span = H_TEXT.removeprefix("as ever Mr").removesuffix(end)
    assert example.prompt == f"...as ever Mr _PAUSE_ {span} _PAUSE_{end} Q: Copy the bracketed text. _PAUSE_"
    assert example.completion == span
    assert span.startswith(". Darcy had been, was")
    assert span.endswith("spoke with the same")


@pytest.mark.parametrize("name", list(TASKS))
def test_an_example_depends_on_phase_seed_and_index_alone(name: str) -> None:
    task = get_task(name)
    alone = task.example(2, 5, 11)
    in_a_row = [get_task(name).example(2, 5, index) for index in range(12)][11]
    assert alone == in_a_row
    rng = generator(5, "tasks/x/2", 11)
    assert (Stream(5, "tasks/x/2").at(11).random(9) == rng.random(9)).all()
    others = [task.example(1, 5, 11), task.example(2, 6, 11), task.example(2, 5, 12)]
    assert len({alone.prompt, *(other.prompt for other in others)}) == 4


def test_list_and_item_counts_are_those_of_table_6() -> None:
    task = get_task("list_recall")
    for phase, lists, items in (
        (1, (3, 8), (3, 10)),
        (2, (8, 12), (3, 16)),
        (3, (12, 19), (3, 25)),
        (4, (15, 20), (40, 60)),
    ):
        shapes = set()
        for index in range(400):
            names, drawn = parse(task.example(phase, 0, index).segments[0])
            assert len(set(names[:-1])) == len(names) - 1
            assert len({len(row) for row in drawn[:-1]}) == 1
            shapes.add((len(names) - 1, len(drawn[0])))
        for column, expected in enumerate((lists, items)):
            values = [shape[column] for shape in shapes]
            assert (min(values), max(values)) == expected


def prompt_lengths(name: str, phase: int, count: int) -> np.ndarray:
    task, tokenizer = get_task(name), gpt2()
    return np.array(
        [len(tokenizer.encode_segments(task.example(phase, 0, i).segments)) for i in range(count)]
    )


@pytest.mark.parametrize("name", list(TASKS))
def test_gpt2_lengths_meet_table_6(name: str) -> None:
    """Table 6's columns contradict each other (see metatok.tasks.curriculum), so the list tasks and parity,
    whose items are counted, stay below the upper bound in phases 1-3 and mostly in range in 4 and 5.
    """
    curriculum = Curriculum()
    medians = []
    for phase, count in zip(range(1, 6), (400, 300, 200, 100, 60), strict=True):
        lengths = prompt_lengths(name, phase, count)
        medians.append(np.median(lengths))
        low, high = curriculum.phase(phase).tokens
        inside = ((lengths >= low) & (lengths <= high)).mean()
        if name == "copying":
            assert inside >= (0.4 if phase == 3 else 0.8)
        elif phase >= 4:
            assert inside >= 0.35
        if name == "copying" or phase <= 3:
            assert (lengths <= high).mean() >= 0.9
        # The upper tail gets into the range in every phase but for parity, whose bits are the shortest items.
        assert np.percentile(lengths, 99) >= (low if name != "parity" else low / 2)
    assert medians == sorted(medians)


def test_no_answer_class_dominates() -> None:
    for phase in (1, 2, 3, 4):
        counting = Counter(get_task("segment_counting").example(phase, 0, i).completion for i in range(600))
        assert max(counting.values()) < 0.45 * 600
        bits = Counter(get_task("parity").example(phase, 0, i).completion for i in range(600))
        assert max(bits.values()) < 0.57 * 600
    assert counting.keys() >= {"3", "4", "5", "6"}
    easy = Counter(get_task("segment_counting").example(1, 0, i).completion for i in range(600))
    assert 0.1 * 600 < easy["0"] < 0.45 * 600


def test_targets_and_positions_are_spread_evenly() -> None:
    examples = [get_task("list_recall", Curriculum.tiny()).example(1, 0, i) for i in range(900)]
    places = Counter()
    for example in examples:
        names, lists = parse(example.segments[0])
        if len(names) == 4 and len(lists[0]) == 3:
            places[names.index(names[-1]), example.details["item"]] += 1
    total = sum(places.values())
    assert len(places) == 9
    assert all(abs(count - total / 9) < 4.5 * (total / 9) ** 0.5 for count in places.values())


def test_phases_for_a_train_length() -> None:
    curriculum = Curriculum()
    expected = {64: 1, 128: 1, 255: 1, 256: 2, 512: 3, 1024: 4, 2048: 5, 4096: 6, 8192: 7, 16384: 8}
    assert {length: curriculum.phases_for(length)[-1] for length in expected} == expected
    assert curriculum.phases_for(2048) == (1, 2, 3, 4, 5)
    assert curriculum.phase(6).items == ((180, 220),)
    assert [Curriculum.tiny().phases_for(length)[-1] for length in (64, 128, 256)] == [1, 2, 3]


def test_beyond_table_6_lengths_double() -> None:
    lengths = prompt_lengths("list_recall", 8, 4)
    assert ((lengths > 8192) & (lengths < 24576)).all()


def test_words() -> None:
    assert len(CATEGORIES) == 20
    words = [word for items in CATEGORIES.values() for word in items]
    assert len(words) == len(set(words)) == 200
    assert all(word.isalpha() for word in words)
    corpus = open_corpus(CorpusConfig())
    texts = (text for file in corpus.files for text in corpus.documents(file))
    read = Counter(word for text in texts for word in re.findall("[A-Za-z]+", text))
    assert min(read[word] for word in words[80:]) >= 40


def test_text_is_cut_at_words_and_never_holds_a_literal_pause() -> None:
    source = TextSource(['One,  two.\nThree "four" don\'t', "bad _PAUSE_ text", "5.5 (six) - seven"])
    assert [source.cut(i, i + 1) for i in range(len(source))] == [
        "One", ",", "two", ".", "Three", '"four', '"', "don't", "5.5", "(six", ")", "-", "seven",
    ]  # fmt: skip
    assert source.cut(2, 6) == 'two. Three "four'


def test_mistakes_are_told() -> None:
    with pytest.raises(ConfigError, match=r"task='parety': unknown, choose one of copying, list_recall"):
        get_task("parety")
    with pytest.raises(ConfigError, match=r"phase 1: the text has 3 words"):
        get_task("copying", text=TextSource(["only three words"])).example(1, 0, 0)
    with pytest.raises(ConfigError, match="phase=0"):
        get_task("parity").example(0, 0, 0)
    with pytest.raises(ValueError, match="20 categories"):
        Curriculum.model_validate({"phases": [{**Curriculum().phase(1).model_dump(), "lists": (3, 21)}]})
    with pytest.raises(ValueError, match="reach"):
        Curriculum(phases=Curriculum().phases[::-1])


def test_a_task_of_ones_own() -> None:
    @register
    class Echo(Task):
        name = "echo"

        def example(self, phase: int, seed: int, index: int) -> Example:
            return Example((f"Say {index}.", ""), str(index), phase)

    try:
        assert get_task("echo").example(1, 0, 7).prompt == "Say 7. _PAUSE_"
        with pytest.raises(ConfigError, match="echo"):
            register(type("Other", (Echo,), {}))
    finally:
        del TASKS["echo"]

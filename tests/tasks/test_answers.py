"""Solves the tasks from the prompt's text alone, by its own means, to check the generators' answers."""

import re

import pytest

from metatok.tasks import Curriculum, get_task

PAUSE = " _PAUSE_"


def solve(task: str, prompt: str) -> str:
    assert prompt.endswith(PAUSE)
    return {
        "list_recall": _list_recall,
        "segment_counting": _segment_counting,
        "parity": _parity,
        "copying": _copying,
    }[task](prompt)


def _list_recall(prompt: str) -> str:
    body, question = prompt.rsplit(" Q: ", 1)
    match = re.fullmatch(r"What is item (\d+) of (\w+)\? _PAUSE_", question)
    assert match
    position, name = int(match[1]), match[2]
    # The list with the mark in it, and the item that the mark follows.
    marked, _ = body.split(PAUSE)
    head, items = marked.rsplit(": ", 1)
    assert head.split()[-1] == name
    assert len(items.split()) == position
    # Every list of that name must give the same item.
    answers = {
        re.sub(r" ?_PAUSE_", "", text).split()[position - 1]
        for text in re.findall(rf"\b{name}: ((?:(?!\w+:)\S+ ?)+)", body)
    }
    assert answers == {items.split()[-1]}
    return answers.pop()


def _segment_counting(prompt: str) -> str:
    match = re.search(
        r"Q: How many times does (\w+) appear between the pauses around (\w+)\? _PAUSE_$", prompt
    )
    assert match
    before, inside, after, end = prompt.split("_PAUSE_")
    assert before.endswith(f"{match[2]}: ")
    assert end == ""
    assert ":" not in inside
    following = after.split(" Q: ")[0].split()
    assert not following or following[0].endswith(":")
    return str(len(re.findall(rf"(?<= ){match[1]}(?= )", inside)))


def _parity(prompt: str) -> str:
    match = re.fullmatch(
        r"Bits:((?: [01])+) _PAUSE_((?: [01])*) Q: What is the XOR of all bits before this pause\? _PAUSE_",
        prompt,
    )
    assert match
    value = 0
    for bit in match[1].split():
        value ^= int(bit)
    return str(value)


def _copying(prompt: str) -> str:
    match = re.fullmatch(
        r"\.\.\.(.+?) _PAUSE_ (.+?) _PAUSE_ (.+) Q: Copy the bracketed text\. _PAUSE_", prompt
    )
    assert match
    return match[2]


@pytest.mark.parametrize("curriculum", [Curriculum(), Curriculum.tiny(), Curriculum(repeat_target=False)])
@pytest.mark.parametrize("name", ["list_recall", "segment_counting", "parity", "copying"])
def test_a_solver_that_reads_the_prompt_agrees(name: str, curriculum: Curriculum) -> None:
    task = get_task(name, curriculum)
    for phase, count in zip(range(1, 8), (150, 100, 60, 20, 10, 5, 3), strict=True):
        for index in range(count):
            example = task.example(phase, 3, index)
            assert example.segments[-1] == ""
            assert all(segment.startswith(" ") for segment in example.segments[1:-1])
            assert "  " not in example.prompt
            assert solve(name, example.prompt) == example.completion

"""python -m metatok.tasks: what it shows and writes, and how it tells mistakes."""

import json
from pathlib import Path

import pandas as pd
import pytest

from metatok.data.tokenizer import gpt2
from metatok.tasks import get_task
from metatok.tasks.__main__ import main
from tests.tasks.test_answers import solve

TASK_NAMES = ["list_recall", "segment_counting", "parity", "copying"]


@pytest.mark.parametrize("name", TASK_NAMES)
def test_an_example_is_shown_as_it_is_with_its_token_counts(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", name, "--n", "1", "--phase", "2", "--seed", "3", "--index", "5"]) == 0
    title, prompt, completion, *_ = capsys.readouterr().out.splitlines()
    example = get_task(name).example(2, 3, 5)
    assert prompt == f"Prompt: {example.prompt}"
    assert completion == f"Completion: {example.completion}"
    n_prompt = len(gpt2().encode_segments(example.segments))
    assert f"{name}, phase 2, seed 3, index 5: prompt {n_prompt} tokens" in title
    assert f"{example.prompt.count(' _PAUSE_')} of them meta" in title


def test_meta_tokens_are_in_colour_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["show", "parity", "--n", "1"]) == 0
    assert "m _PAUSE_\x1b[0m" in capsys.readouterr().out


def test_what_is_exported_is_right_and_the_same_in_both_formats(tmp_path: Path) -> None:
    rows = {}
    for split in ("train", "test"):
        command = ["export", "segment_counting", "--phase", "2", "--split", split, "--n", "40", "--seed", "1"]
        assert main([*command, "--out", str(tmp_path / f"{split}.jsonl")]) == 0
        assert main([*command, "--out", str(tmp_path / f"{split}.parquet")]) == 0
        rows[split] = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()]
        assert pd.read_parquet(tmp_path / f"{split}.parquet").to_dict("records") == rows[split]
        assert len(rows[split]) == 40
    for row in rows["train"] + rows["test"]:
        assert solve("segment_counting", row["prompt"]) == row["completion"]
        example = get_task("segment_counting").example(row["phase"], row["seed"], row["index"])
        assert (example.prompt, row["phase"]) == (row["prompt"], 2)
        ids = gpt2().encode_segments(example.segments)
        assert (row["prompt_tokens"], row["tokens"]) == (len(ids), len(ids) + 2)  # answer, end of text
    prompts = {split: {row["prompt"] for row in rows[split]} for split in rows}
    assert not prompts["train"] & prompts["test"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("", "command '' is unknown, choose one of show, export"),
        ("show parety", "task='parety': unknown, choose one of copying"),
        ("show parity --phas 2", "option '--phas' of show is unknown"),
        ("show no_such_file.py", "no_such_file.py': No such file"),
        ("show parity --tokenizer no_such.json", "tokenizer path='no_such.json'"),
        ("export parity --phase 2", "out: give the file to write"),
        ("export parity --phase 2 --out f.txt", "out='f.txt': give a file name ending in .jsonl or .parquet"),
        ("export parity --phase 2 --out no/f.jsonl", "there is no folder 'no'"),
        ("export parity --out f.jsonl", "phase, max_tokens: give at least one of them"),
        ("show parity --n 0", "n=0: Input should be greater than or equal to 1"),
        ("show parity --phase 0", "phase=0: Input should be greater than or equal to 1"),
        ("show parity --phase 1000", "phase=1000: Input should be less than or equal to 16"),
        ("show parity --index -1", "index=-1: Input should be greater than or equal to 0"),
        ("show parity --seed nan", "seed='nan': Input should be a valid integer"),
        ("show copying --corpus.max-documents 0", "corpus.max_documents=0: Input should be greater than or"),
        ("show parity --curriculum hard", "invalid choice 'hard' for argument '--curriculum'"),
        ("export parity --phase 0 --out f.jsonl", "phase=0"),
        ("export parity --phase 2 --n inf --out f.jsonl", "n='inf': Input should be a valid integer"),
        (
            "export parity --max-tokens -1 --out f.jsonl",
            "max_tokens=-1: Input should be greater than",
        ),
        (
            "export parity --phase 5 --max-tokens 128 --out f.jsonl",
            "parity at curriculum 'table6', phase 5, has",
        ),
    ],
)
def test_mistakes_are_one_line(
    command: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    stderr = capsys.readouterr().err
    assert told in stderr
    assert len(stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())

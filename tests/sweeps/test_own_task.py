"""The task that README shows, word for word; test_full_paper.py runs it through a sweep."""

import re
from pathlib import Path

import pytest

from metatok.tasks.__main__ import main
from tests.sweeps.conftest import write_readmes_task


def test_readmes_task_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METATOK_TASKS", "")
    assert main(["show", str(write_readmes_task(tmp_path)), "--n", "1"]) == 0
    prompt = re.search(
        r"Prompt: Words: _PAUSE_ (.+) _PAUSE_ Q: .+ _PAUSE_\nCompletion: (.+)\n", capsys.readouterr().out
    )
    assert prompt
    assert prompt[1].split()[::-1] == prompt[2].split()

"""The task that README shows, word for word, through the commands that README shows."""

import re
import subprocess
from pathlib import Path

import pytest

from metatok.experiment import Home, Ledger
from metatok.tasks.__main__ import main
from tests.sweeps.conftest import ROOT, SMALLEST, environment, script

SWEEP = """
    --preset smoke --models gpt2_rope --tasks reverse.py --run.workers 1
    --finetune.train-lengths 64 --finetune.eval-lengths 64
""".split()  # noqa: SIM905


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds README's reverse.py."""
    section = (ROOT / "README.md").read_text().split("\n## Your own task\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "reverse.py").write_text(code)
    return tmp_path


def test_readmes_task_is_shown_and_swept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METATOK_TASKS", "")
    assert main(["show", str(folder / "reverse.py"), "--n", "1"]) == 0
    prompt = re.search(
        r"Prompt: Words: _PAUSE_ (.+) _PAUSE_ Q: .+ _PAUSE_\nCompletion: (.+)\n", capsys.readouterr().out
    )
    assert prompt
    assert prompt[1].split()[::-1] == prompt[2].split()

    monkeypatch.delenv("METATOK_TASKS")
    sweep = subprocess.run(
        script("sweeps/finetune.py", *SWEEP, *SMALLEST),
        env=environment(folder / "home"), cwd=folder, text=True, capture_output=True,
    )  # fmt: skip
    assert sweep.returncode == 0, sweep.stdout + sweep.stderr
    (record,) = Ledger.open(Home.open(folder / "home")).records("finetune")
    assert re.fullmatch(r"reverse@[0-9a-f]{8}", record.params["task"])
    assert record.metrics["n/64"] == 10
    assert 0 < record.metrics["majority_share/64"] <= 1

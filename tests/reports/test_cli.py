"""The script: what it prints and how it exits."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from metatok.experiment import Home
from reports.build_tables import main

SCRIPT = Path(__file__).parents[2] / "reports" / "build_tables.py"


def run(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "METATOK_HOME")}
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=120
    )


def test_an_empty_ledger_gives_a_report_without_numbers(empty_home: Home, tmp_path: Path):
    done = run(cwd=tmp_path, METATOK_HOME=str(empty_home.root))
    assert (done.returncode, done.stderr) == (0, "")
    folder = empty_home.root / "report"
    assert "No finished run" in done.stdout
    assert f"Report: {folder / 'report.html'}" in done.stdout
    for number in (*range(1, 4), *range(7, 18)):
        text = (folder / f"table_{number:02d}.md").read_text()
        ours = text.split("**The paper's values**")[0]
        table = [line for line in ours.splitlines() if line.startswith("|")][2:]
        assert not any("%" in line or "[" in line or "n=" in line for line in table), table
        assert "**Missing cells**" in text
        assert "From no run." in text
    assert "| layers | 2 | 12 |" in (folder / "table_04.md").read_text()
    assert "settings are those of preset smoke" in (folder / "table_06.md").read_text()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line on stderr of a call that must exit with code 2."""

    def call(*arguments: object) -> str:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        monkeypatch.setattr(sys, "argv", ["build_tables.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    return call


def test_an_unknown_preset(empty_home: Home, fails: Callable[..., str]):
    line = fails("--home", empty_home.root, "--preset", "smoek")
    assert line.startswith("error: preset='smoek'")
    assert "smoke" in line


def test_a_home_without_a_ledger_stays_as_it_is(tmp_path: Path, fails: Callable[..., str]):
    assert fails("--home", tmp_path / "nowhere").startswith("error: no ledger at")
    assert not list(tmp_path.iterdir())


def test_an_output_that_cannot_be_written(empty_home: Home, tmp_path: Path, fails: Callable[..., str]):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in fails("--home", empty_home.root, "--out", tmp_path / "file" / "report")

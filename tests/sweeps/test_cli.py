"""A user's mistakes, told before any work: one line on stderr, exit code 2."""

import subprocess
from pathlib import Path

import pytest

from tests.sweeps.conftest import ROOT, environment, script


def run(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess:
    command = script("sweeps/full_paper.py", *arguments)
    return subprocess.run(command, env=environment(home, **env), cwd=ROOT, text=True, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--preset", "smok"), "preset='smok': unknown, choose one of smoke, laptop, gpu, paper"),
        (("--tasks", "parit"), "task='parit': unknown, choose one of copying"),
        (("--models", "gpt3"), "models='gpt3': unknown, choose one of"),
        (("--stages", "train"), "stages='train': unknown, choose one of pretrain"),
        (("--task", "parity"), "option '--task' is unknown (did you mean --tasks?)"),
        (("--finetune.train-lengths", "64", "512"), "train_length=512 is over the context of gpt2_ape, 128"),
        (("--corpus.source", "files", "--corpus.paths", "/no/such/*.txt"), "/no/such/*.txt"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    result = run(tmp_path, *arguments)
    assert result.returncode == 2, result.stderr
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "checkpoints").exists()


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    result = run(tmp_path / "home", "--corpus.source", "files", "--corpus.paths", str(tmp_path / "texts"))
    assert result.returncode == 2, result.stderr
    assert str(tmp_path / "texts") in result.stderr


def test_an_unwritable_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(tmp_path / "file" / "home")
    assert result.returncode == 2
    assert f"METATOK_HOME={tmp_path}/file/home cannot be written" in result.stderr


def test_a_silent_tracking_server_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert result.returncode == 2
    assert "MLFLOW_TRACKING_URI=http://127.0.0.1:9 does not answer" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_dry_run_prints_the_plan_and_does_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, "--dry-run")
    assert result.returncode == 0, result.stderr
    for word in ("pretrain", "finetune", "FLOPs", "A100 hours", "weights"):
        assert word in result.stdout
    assert not (tmp_path / "datasets").exists()

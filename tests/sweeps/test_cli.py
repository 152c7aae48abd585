"""A user's mistakes, told before any work: one line on stderr, exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.engine import cli
from tests.sweeps.conftest import ROOT, environment, script


def run(monkeypatch: pytest.MonkeyPatch, home: Path, *arguments: str) -> int:
    """The exit code of full_paper.py with these arguments."""
    monkeypatch.setenv("METATOK_HOME", str(home))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(sys, "argv", ["sweeps/full_paper.py", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--preset", "smok"), "preset='smok': unknown, choose one of smoke, laptop, gpu, paper"),
        (("--tasks", "parit"), "task='parit': unknown, choose one of copying"),
        (("--models", "gpt3"), "models='gpt3': unknown, choose one of"),
        (("--stages", "train"), "stages='train': unknown, choose one of pretrain"),
        (("--task", "parity"), "option '--task' is unknown (did you mean --tasks?)"),
        (("--finetune.train-lengths", "64", "512"), "train_length=512 is over the context of gpt2_ape, 128"),
        (("--finetune.train-lengths", "128", "64"), "finetune.train_lengths=(128, 64): give lengths"),
        (
            ("--extend.eval-lengths", "256", "256"),
            "extend.eval_lengths=(256, 256): give lengths",
        ),
        (
            ("--pretrain.optim.min-learning-rate", "1"),
            "pretrain.optim.min_learning_rate=1.0 is above",
        ),
        (
            ("--finetune.search.learning-rates", "1", "0.1"),
            "finetune.search.learning_rates=(1.0, 0.1)",
        ),
        (
            ("--finetune.search.learning-rates", "0.1"),
            "Missing value for argument '--finetune.search",
        ),
        (
            ("--finetune.search.step-factors", "1e300"),
            "finetune.search.step_factors=(1e+300,)",
        ),
        (("--extend.scales", "1e300"), "scale=1e+300 must be at least 1, and the new context at most"),
        (
            ("--corpus.validation-fraction", "0"),
            "corpus.validation_fraction=0: the final loss",
        ),
        (("--tokenizer.vocab-size", "100"), "tokenizer.vocab_size=100: bpe needs at least 258"),
        (
            ("--precision", "fp8"),
            "invalid choice 'fp8' for argument '--precision'",
        ),
        (("--corpus.source", "files", "--corpus.paths", "/no/such/*.txt"), "/no/such/*.txt"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, tmp_path, *arguments) == 2
    stderr = capsys.readouterr().err
    assert told in stderr
    assert len(stderr.splitlines()) == 1
    assert not (tmp_path / "checkpoints").exists()


def test_an_empty_corpus_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    options = ("--corpus.source", "files", "--corpus.paths", str(folder))
    assert run(monkeypatch, tmp_path / "home", *options) == 2
    assert str(folder) in capsys.readouterr().err


def test_an_unwritable_home_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(monkeypatch, tmp_path / "file" / "home") == 2
    assert f"METATOK_HOME={tmp_path}/file/home cannot be written" in capsys.readouterr().err


def test_a_silent_tracking_server_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert run(monkeypatch, tmp_path) == 2
    stderr = capsys.readouterr().err
    assert "MLFLOW_TRACKING_URI=http://127.0.0.1:9 does not answer" in stderr
    assert len(stderr.splitlines()) == 1


def test_more_than_the_machine_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, "--run.workers", "4000") == 2
    assert "4000 CPU" in capsys.readouterr().err


def test_dry_run_prints_the_plan_and_does_nothing(tmp_path: Path) -> None:
    command = script("sweeps/finetune.py", "--tasks", "parity", "--dry-run")
    result = subprocess.run(command, env=environment(tmp_path), cwd=ROOT, text=True, capture_output=True)
    assert result.returncode == 0, result.stderr
    for word in ("pretrain", "finetune", "FLOPs", "A100 hours", "weights"):
        assert word in result.stdout
    assert "ablate" not in result.stdout
    assert not (tmp_path / "datasets").exists()


def test_a_search_is_planned_with_what_follows_it(tmp_path: Path) -> None:
    command = script("sweeps/finetune.py", "--preset", "gpu", "--models", "meta_rope", "--tasks", "parity")
    result = subprocess.run(
        [*command, "--dry-run"], env=environment(tmp_path), cwd=ROOT, text=True, capture_output=True
    )
    assert result.returncode == 0, result.stderr
    assert "round 1 of 2. Planned with it: what follows the search" in " ".join(result.stdout.split())
    rows = {line.split()[0]: int(line.split()[1]) for line in result.stdout.splitlines() if " 0 " in line}
    assert rows["search"] == 9
    assert rows["finetune"] >= 3

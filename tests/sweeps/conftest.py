"""Smallest sweeps through the real Ray, Tune and MLflow."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The whole grid of the smoke preset, hardly trained.
SMALLEST = """
    --pretrain.steps 4 --extend.steps 2 --extend.finetune-steps 6 --extend.n-test 5
    --finetune.steps 6 --finetune.steps-by-task.list-recall 6 --finetune.n-train 256 --finetune.n-test 10
    --analysis.betas 0.1 1.0 --analysis.noise-scales 0.5 --analysis.bottleneck-examples 5
    --analysis.probe-examples 5 --analysis.repeats 2 --run.log-every 2 --run.checkpoint-every 2
""".split()  # noqa: SIM905 (a command line reads better as one)


def environment(home: Path, **extra: str) -> dict[str, str]:
    """This process's environment with a home of its own and this interpreter first on the path."""
    # A Ray that this process started has left its own settings, as token authentication.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k != "MLFLOW_TRACKING_URI"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "METATOK_HOME": str(home), **extra}


def script(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / name), *arguments]


def write_readmes_task(folder: Path) -> Path:
    """README's reverse.py in that folder."""
    section = (ROOT / "README.md").read_text().split("\n## Your own task\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    path = folder / "reverse.py"
    path.write_text(code)
    return path


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen]]:
    """Processes in sessions of their own; what is left of them at the end is killed."""
    started: list[subprocess.Popen] = []
    yield started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

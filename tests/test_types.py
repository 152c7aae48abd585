"""The type checker is clean."""

import subprocess
import sys
from pathlib import Path


def test_mypy_is_clean() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=Path(__file__).parents[1], text=True, capture_output=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr

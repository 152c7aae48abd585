"""`ray job submit` to a started head: the sweep runs there, and its exit code comes back."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from metatok.experiment import Home, Ledger
from tests.sweeps.conftest import ROOT, SMALLEST, environment

# The same token for the head and for who submits, whatever this user's own ~/.ray has.
AUTHENTICATION = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
RAY = str(Path(sys.executable).parent / "ray")


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.fixture
def head(tmp_path: Path, processes: list[subprocess.Popen]) -> Iterator[str]:
    """The dashboard's address of a head on ports of its own."""
    dashboard = free_port()
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short: sockets' paths are limited
        command = [
            RAY, "start", "--head", "--block", "--num-cpus=2", "--disable-usage-stats",
            f"--port={free_port()}", f"--dashboard-port={dashboard}", f"--temp-dir={folder}",
            f"--ray-client-server-port={free_port()}", f"--dashboard-agent-listen-port={free_port()}",
            "--min-worker-port=0", "--max-worker-port=0",
        ]  # fmt: skip
        log = (tmp_path / "head.log").open("w")
        process = subprocess.Popen(
            command,
            env=environment(tmp_path / "home", **AUTHENTICATION),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        processes.append(process)
        address = f"http://127.0.0.1:{dashboard}"
        wait_until_answers(address, process)
        yield address
        for member in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()


def wait_until_answers(address: str, process: subprocess.Popen) -> None:
    for _ in range(240):
        assert process.poll() is None, "the head ended"
        try:
            with urllib.request.urlopen(f"{address}/api/version", timeout=2):
                return
        except urllib.error.HTTPError:
            return  # it asks for a token, which ray's own command has
        except OSError:
            time.sleep(0.25)
    raise TimeoutError(address)


def submit(address: str, home: Path, *entrypoint: str) -> subprocess.CompletedProcess:
    command = [RAY, "job", "submit", "--working-dir", ".", "--", *entrypoint]
    env = environment(home, RAY_API_SERVER_ADDRESS=address, **AUTHENTICATION)
    return subprocess.run(command, env=env, cwd=ROOT, text=True, capture_output=True, timeout=280)


@pytest.mark.timeout(400)
def test_a_job_runs_on_a_started_head(tmp_path: Path, head: str) -> None:
    home = tmp_path / "home"
    arguments = ["--preset", "smoke", "--stages", "efficiency", *SMALLEST]
    done = submit(head, home, "python", "sweeps/full_paper.py", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Finished 2 of 2 cells" in done.stdout
    assert len(Ledger.open(Home.open(home)).records("efficiency")) == 2

    wrong = submit(head, home, "python", "sweeps/full_paper.py", "--preset", "nonsense")
    assert wrong.returncode != 0
    assert "preset='nonsense': unknown" in wrong.stdout + wrong.stderr

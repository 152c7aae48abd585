"""What a cluster cannot do is refused before any work."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from metatok.errors import ConfigError
from metatok.experiment import Home
from sweeps.engine.nodes import check_shared


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, str]]:
    before = dict(os.environ)
    ray.init("local", num_cpus=1, log_to_driver=False)
    yield {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


def test_a_home_that_another_node_does_not_see_is_refused(hosts: dict[str, str], tmp_path: Path) -> None:
    home = Home.open(tmp_path)
    home.spool.mkdir()
    check_shared(home, hosts)
    assert not list(home.spool.iterdir())
    # The same path, which stands for another folder in another process.
    folder = os.open(tmp_path, os.O_RDONLY)
    own = Home(Path(f"/proc/self/fd/{folder}"))
    assert own.spool.is_dir()
    (host,) = hosts.values()
    with pytest.raises(ConfigError, match=f"METATOK_HOME={own.root} on {host} is not this machine's"):
        check_shared(own, hosts)
    assert not list(home.spool.iterdir())
    os.close(folder)


def test_a_node_that_has_died_meanwhile_is_no_obstacle(hosts: dict[str, str], tmp_path: Path) -> None:
    home = Home.open(tmp_path)
    home.spool.mkdir()
    check_shared(home, {**hosts, ray.NodeID.from_random().hex(): "gone"})

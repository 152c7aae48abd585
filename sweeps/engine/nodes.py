"""The cluster a sweep runs on: joined or started, and refused at once where it cannot do the work."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from metatok.errors import ConfigError
from metatok.experiment import Cell, Home
from metatok.experiment.design import RunSettings
from metatok.experiment.design.plan import places


def start_ray() -> None:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine."""
    logging_config = ray.LoggingConfig(encoding="TEXT", log_level="WARNING")
    if os.environ.get("RAY_ADDRESS"):
        ray.init(logging_level=logging.WARNING, logging_config=logging_config)
    else:  # "local", or Ray would join whichever cluster was started last on this machine
        ray.init("local", num_cpus=os.cpu_count(), logging_level=logging.ERROR, logging_config=logging_config)


def check_cluster(settings: RunSettings, missing: Sequence[Cell], home: Home) -> None:
    """Refuse at once what the cluster can never run."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    wanted = {"trial": (1, settings.trial_cpus, settings.trial_gpus)}
    if any(cell.distributed for cell in missing):
        wanted["pre-training"] = (settings.workers, settings.train_cpus, settings.train_gpus)
    for what, (count, cpus, gpus) in wanted.items():
        if places([node["Resources"] for node in nodes], {"CPU": cpus, "GPU": gpus}) < count:
            each = f", {cpus:g} and {gpus:g} for each of {count} workers" if count > 1 else " on one node"
            sizes = (f"{n['Resources'].get('CPU', 0):g} and {n['Resources'].get('GPU', 0):g}" for n in nodes)
            raise ConfigError(
                f"run: a {what} asks for {count * cpus:g} CPU and {count * gpus:g} GPU{each}; the cluster's "
                f"nodes have {', '.join(sizes)}; lower run.workers, or the run.*_cpus and run.*_gpus"
            )
    hosts = {node["NodeManagerHostname"] for node in nodes}
    if len(hosts) > 1 and home.tracking_uri.startswith("sqlite:"):
        raise ConfigError(
            f"the cluster has {len(hosts)} hosts, the ledger {home.tracking_uri} is a file of one of them; "
            "start an MLflow server, set MLFLOW_TRACKING_URI to it and METATOK_HOME to shared storage"
        )
    if len(nodes) > 1:
        check_shared(home, {node["NodeID"]: node["NodeManagerHostname"] for node in nodes})


def check_shared(home: Home, hosts: Mapping[str, str]) -> None:
    """Refuse a home that is another folder on some node. hosts: node id -> host name."""
    mark = home.spool / f"{uuid.uuid4().hex}.tmp"
    mark.touch()
    try:
        where = (NodeAffinitySchedulingStrategy(node, soft=False) for node in hosts)
        looks = [_exists.options(scheduling_strategy=place).remote(mark) for place in where]
        seen = [_got(look) for look in looks]
    finally:
        mark.unlink()
    blind = sorted({host for host, sees in zip(hosts.values(), seen, strict=True) if not sees})
    if blind:
        raise ConfigError(
            f"METATOK_HOME={home.root} on {', '.join(blind)} is not this machine's; set it to storage that "
            "all nodes share, at the same path"
        )


@ray.remote(num_cpus=0)
def _exists(path: Path) -> bool:
    return os.path.exists(path)


def _got(look: ray.ObjectRef) -> bool:
    try:
        return ray.get(look)
    except ray.exceptions.RayError:  # the node has died meanwhile, and nothing will run there
        return True

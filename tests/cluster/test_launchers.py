"""Every launcher passes Ray's own schema check, and offers what the paper preset asks for."""

from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from metatok.experiment import get_preset

LAUNCHERS = sorted((Path(__file__).parents[2] / "cluster").glob("*.yaml"))


@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda path: path.name)
def test_schema(path: Path) -> None:
    validate_config(prepare_config(yaml.safe_load(path.read_text())))


def test_the_a100_machine_holds_the_paper_preset() -> None:
    config = yaml.safe_load((LAUNCHERS[0].parent / "a100.yaml").read_text())
    resources = config["available_node_types"][config["head_node_type"]]["resources"]
    run = get_preset("paper").run
    assert run.workers * run.train_gpus <= resources["GPU"]
    assert run.workers * run.train_cpus <= resources["CPU"]
    assert run.trial_gpus <= resources["GPU"]

"""Every number of a preset set to nonsense on the command line: a plan that works, or one line and exit 2."""

import io
import json
import math
import sys
import types
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from metatok.experiment import Preset, get_preset
from metatok.experiment.design import distinct_inputs, with_ancestors
from metatok.experiment.design.plan import input_disk
from sweeps.engine import cli

NONSENSE = ("0", "-1", "nan", "inf", "1e400", "1" + "0" * 400, "word")
SCHEMA = Preset.model_json_schema()
NO_OPTION = {"Choice"}  # what a search found


class Number(NamedTuple):
    """A numeric field as a preset has it: owner and name in the schema, option, how many words it takes."""

    owner: str
    name: str
    preset: str
    path: str
    words: int
    least: float | None  # what the field itself says that it may be


def numbers(preset: str, node: dict[str, Any], model: BaseModel, prefix: str = "") -> Iterator[Number]:
    """Of a model and all that it holds, by its JSON schema."""
    owner = node["title"]
    for name, inner in node["properties"].items():
        yield from _numbers(preset, owner, name, inner, getattr(model, name), f"{prefix}{name}")


def _numbers(
    preset: str, owner: str, name: str, node: dict[str, Any], value: Any, path: str
) -> Iterator[Number]:
    if isinstance(value, BaseModel):
        yield from numbers(preset, _resolved(node), value, f"{path}.")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(preset, owner, name, node["additionalProperties"], item, f"{path}.{key}")
    elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        yield from _numbers(preset, owner, name, node["items"], value[0], f"{path}.0")  # the others are alike
    elif leaves := list(_leaves(node)):
        words = len(node.get("prefixItems", [0]))
        yield Number(owner, name, preset, path, words, leaves[0].get("minimum"))


def _leaves(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The numbers in a field's schema, in arrays and alternatives too, but not in models."""
    if node.get("type") in ("integer", "number"):
        yield node
    for inner in (*node.get("anyOf", ()), *node.get("prefixItems", ()), node.get("items")):
        if inner:
            yield from _leaves(inner)
    if isinstance(node.get("additionalProperties"), dict):
        yield from _leaves(node["additionalProperties"])


def _resolved(node: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]


# laptop has sizes, smoke has steps_by_task: together they show every field.
FIELDS = {
    number.path: number for name in ("laptop", "smoke") for number in numbers(name, SCHEMA, get_preset(name))
}


def test_no_number_is_missed() -> None:
    """A field that no option of these presets sets would be one that the test below does not see."""
    models = [SCHEMA, *SCHEMA["$defs"].values()]
    there = {
        (model["title"], name)
        for model in models
        if model["title"] not in NO_OPTION
        for name, node in model.get("properties", {}).items()
        if list(_leaves(node))
    }
    assert there == {(field.owner, field.name) for field in FIELDS.values()}
    assert len(there) > 60


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_a_number_makes_a_plan_or_is_refused_in_one_line(
    field: Number, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 may pass where the field itself says that 0 is its least; nothing else of these may."""
    for value in NONSENSE:
        code, told, accepted = run(field, value, tmp_path, monkeypatch)
        if accepted is None:
            assert (code, told.count("\n")) == (2, 1), (value, told)
            assert told.startswith("error: ")
            assert field.path in told
            assert value in told or "=inf" in told
        else:
            assert (code, value, field.least) == (0, "0", 0), f"{field.path} takes {value}"
            check_plan(accepted)


def run(
    field: Number, value: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int | str | None, str, Preset | None]:
    """main() with the field set to the value: exit code, stderr, and the preset that it would run."""
    ran: list[Preset] = []
    # In place of what loads MLflow and does the work.
    sweep = types.SimpleNamespace(run_sweep=lambda preset, home, dry_run: ran.append(preset) or 0)
    monkeypatch.setitem(sys.modules, "sweeps.engine.sweep", sweep)
    option = f"--{field.path.replace('_', '-')}"
    options = ["--preset", field.preset, "--home", str(home), option, *[value] * field.words]
    monkeypatch.setattr(sys, "argv", ["sweeps/full_paper.py", *options])
    told = io.StringIO()
    with redirect_stderr(told), pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, told.getvalue(), ran[0] if ran else None


def check_plan(preset: Preset) -> None:
    """Every cell can be written, and what it costs is a number."""
    cells = with_ancestors(preset.cells())
    assert cells
    for cell in cells:
        json.dumps(cell.own_fields(), allow_nan=False)
        cost = cell.cost()
        costs = (cost.tokens, cost.flops, cost.disk, cost.gpu_hours, cell.checkpoint_disk(preset.run))
        assert all(math.isfinite(number) and number >= 0 for number in costs)
    assert all(input_disk(config) >= 0 for config in distinct_inputs(cells))

"""What gc takes for rubbish, and what it must leave alone."""

import os
import shutil
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from metatok.errors import ConfigError
from metatok.experiment import Cell, Home, Ledger
from metatok.experiment.__main__ import main
from metatok.experiment.design import distinct_inputs
from metatok.experiment.inputs import Inputs
from metatok.experiment.ledger.gc import leftovers

from . import children, tiny


@pytest.fixture(scope="module")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.open(tmp_path_factory.mktemp("gc"))


@pytest.fixture(scope="module")
def own_ledger(own_home: Home) -> Ledger:
    return Ledger.open(own_home)


@pytest.fixture(autouse=True)
def _clean(own_home: Home) -> Iterator[None]:
    yield
    for name in ("checkpoints", "datasets", "ray"):
        shutil.rmtree(own_home.root / name, ignore_errors=True)
    for path in own_home.spool.glob("*.jsonl"):
        path.unlink()


@pytest.fixture
def cells(own_home: Home, own_ledger: Ledger) -> dict[str, Cell]:
    """A finished, a failed and a never claimed pre-training, each with checkpoints of steps 4 and 8."""
    made: dict[str, Cell] = {name: tiny.pretrain(seed=next(_seeds)) for name in ("done", "failed", "never")}
    for cell in made.values():
        for step in (4, 8):
            _file(own_home, "checkpoints", cell.fingerprint, f"step-{step}", "model.safetensors")
    done, failed = (own_ledger.claim(made[name], tiny.TAGS) for name in ("done", "failed"))
    assert done is not None
    assert failed is not None
    done.tag("checkpoint", own_home.checkpoints(made["done"].fingerprint) + "/step-8")
    done.finish({"validation_loss": 1.0})
    failed.fail("ValueError: no")
    return made


_seeds = iter(range(5000, 6000))


def _file(home: Home, *parts: str) -> Path:
    path = home.root.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x" * 10)
    return path


def age(home: Home, seconds: float = 7200.0) -> None:
    """Make everything under the home so old."""
    then = time.time() - seconds
    for path in home.root.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


def found(home: Home, ledger: Ledger) -> set[str]:
    return {str(item.path.relative_to(home.root)) for item in leftovers(home, ledger)}


def checkpoint(cell: Cell, name: str = "") -> str:
    return "/".join(filter(None, ("checkpoints", cell.fingerprint, name)))


def test_checkpoints_without_a_run_or_before_the_final_one_can_go(
    own_home: Home, own_ledger: Ledger, cells: dict[str, Cell]
) -> None:
    age(own_home)
    assert found(own_home, own_ledger) == {checkpoint(cells["done"], "step-4"), checkpoint(cells["never"])}


def test_nothing_that_was_written_lately_goes(
    own_home: Home, own_ledger: Ledger, cells: dict[str, Cell]
) -> None:
    for parts in (("ray", "sweep-1", "x"), ("datasets", "parity-train-64-0"), ("spool", "0.jsonl")):
        _file(own_home, *parts)
    _file(own_home, "checkpoints", cells["failed"].fingerprint, ".tmp-0", "model.safetensors")
    # A superseded step alone has no writer that could be at it.
    assert found(own_home, own_ledger) == {checkpoint(cells["done"], "step-4")}


def test_half_written_things_of_dead_writers_can_go(
    own_home: Home, own_ledger: Ledger, cells: dict[str, Cell]
) -> None:
    _file(own_home, "checkpoints", cells["failed"].fingerprint, ".tmp-0", "model.safetensors")
    shards = Inputs(own_home.datasets).shards_path(distinct_inputs(list(cells.values()))[0])
    _file(own_home, "datasets", shards.name, "index.json")
    _file(own_home, "datasets", shards.name, ".speeches-0.train.bin.17.tmp")
    _file(own_home, "datasets", ".parity-train-64-0.17.tmp", "meta.json")
    age(own_home)
    assert found(own_home, own_ledger) == {
        checkpoint(cells["done"], "step-4"),
        checkpoint(cells["never"]),
        checkpoint(cells["failed"], ".tmp-0"),
        f"datasets/{shards.name}/.speeches-0.train.bin.17.tmp",
        "datasets/.parity-train-64-0.17.tmp",
    }


def test_a_live_claim_keeps_its_half_checkpoint_and_rays_state(
    own_home: Home, own_ledger: Ledger, cells: dict[str, Cell], processes: ForkServerContext
) -> None:
    live = tiny.pretrain(seed=next(_seeds))
    claimed, finish = processes.Event(), processes.Event()
    child = processes.Process(target=children.claim_and_hold, args=(own_ledger, live, claimed, finish))
    child.start()
    assert claimed.wait(60)
    half = _file(own_home, "checkpoints", live.fingerprint, ".tmp-0", "model.safetensors").parent
    ray = _file(own_home, "ray", "sweep-1", "state.json").parent
    age(own_home)
    assert not {str(p.relative_to(own_home.root)) for p in (half, ray)} & found(own_home, own_ledger)
    finish.set()
    child.join(60)
    assert {str(p.relative_to(own_home.root)) for p in (half, ray)} <= found(own_home, own_ledger)


def test_data_sets_of_runs_and_recorded_sweeps_stay(own_home: Home, own_ledger: Ledger) -> None:
    tuned = tiny.finetune(tiny.pretrain(seed=next(_seeds)))
    run = own_ledger.claim(tuned, tiny.TAGS)
    assert run is not None
    run.finish({})
    inputs = Inputs(own_home.datasets)
    for config in distinct_inputs([tuned]):
        for path in inputs.paths(config):
            _file(own_home, "datasets", path.name)
    _file(own_home, "datasets", "parity-train-64-0123", "meta.json")
    _file(own_home, "datasets", "tokenizer-0123.json")
    age(own_home)
    assert {name for name in found(own_home, own_ledger) if name.startswith("datasets")} == {
        "datasets/parity-train-64-0123",
        "datasets/tokenizer-0123.json",
    }


def test_spool_files_of_open_runs_stay(own_home: Home, own_ledger: Ledger, cells: dict[str, Cell]) -> None:
    (done,) = (r for r in own_ledger.records("pretrain") if r.fingerprint == cells["done"].fingerprint)
    (failed,) = (
        r for r in own_ledger.records("pretrain", "FAILED") if r.fingerprint == cells["failed"].fingerprint
    )
    for name in (done.run_id, failed.run_id, "0" * 32):
        _file(own_home, "spool", f"{name}.jsonl")
    age(own_home)
    assert {name for name in found(own_home, own_ledger) if name.startswith("spool")} == {
        f"spool/{done.run_id}.jsonl",
        f"spool/{'0' * 32}.jsonl",
    }
    assert (own_home.spool / "open.lock").exists()


def test_things_go_only_when_told(
    own_home: Home, cells: dict[str, Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    age(own_home)
    never, done = (own_home.root / checkpoint(cells[name]) for name in ("never", "done"))
    assert main(["gc", "--home", str(own_home.root)]) == 0
    told = capsys.readouterr().out
    assert f"{checkpoint(cells['never'])}  (no run of this fingerprint)" in told
    assert "--remove" in told
    assert never.exists()
    assert main(["gc", "--home", str(own_home.root), "--remove"]) == 0
    assert not never.exists()
    assert [path.name for path in done.iterdir()] == ["step-8"]
    capsys.readouterr()
    assert main(["gc", "--home", str(own_home.root)]) == 0
    assert capsys.readouterr().out == f"0 leftovers, 0B, under {own_home.root}\n"


def test_another_homes_ledger_is_refused(tmp_path: Path, own_ledger: Ledger) -> None:
    home = Home.open(tmp_path)
    _file(home, "checkpoints", tiny.pretrain(seed=next(_seeds)).fingerprint, "step-8", "model.safetensors")
    age(home)
    with pytest.raises(ConfigError, match="has a run for none of the 1 checkpoints"):
        leftovers(home, own_ledger)

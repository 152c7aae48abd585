"""How a sweep stands: counts, time left, and what a second shell sees of it."""

from collections.abc import Callable
from multiprocessing.context import ForkServerContext

import pytest

from metatok.errors import ConfigError
from metatok.experiment import Cell, Efficiency, Home, Ledger, Preset, Pretrain, get_preset
from metatok.experiment.__main__ import main
from metatok.experiment.design import with_ancestors
from metatok.experiment.ledger.standing import Standing, Turn, machine_seconds
from metatok.experiment.ledger.status import choose_sweep, standing_of

from . import children, tiny

NewCell = Callable[..., Pretrain]


def standing(cells: list[Cell], now: float, finished: int = 0, **turns: Turn) -> Standing:
    """Of cells of which the first are finished; turns by "c" and the cell's number."""
    return Standing(
        "tiny",
        cells,
        finished={cell.fingerprint for cell in cells[:finished]},
        failed=set(),
        turns={cells[int(name[1:])].fingerprint: turn for name, turn in turns.items()},
        since=0.0,
        now=now,
    )


def test_a_moment_is_split_among_those_at_work() -> None:
    turns = {"a": Turn(0, 10), "b": Turn(5, 15), "c": Turn(20), "empty": Turn(7, 7)}
    assert machine_seconds(turns, now=24) == {"a": 7.5, "b": 7.5, "c": 4, "empty": 0}


def test_time_left_counts_the_steps_of_running_cells(new_cell: NewCell) -> None:
    cells: list[Cell] = [new_cell(steps=100) for _ in range(4)]
    found = standing(cells, 150.0, 1, c0=Turn(0, 100), c1=Turn(100, None, step=50))
    assert found.seconds_left() == pytest.approx(250)


def test_two_at_a_time_take_half_as_long(new_cell: NewCell) -> None:
    cells: list[Cell] = [new_cell(steps=100) for _ in range(6)]
    found = standing(cells, 100.0, 2, c0=Turn(0, 100), c1=Turn(0, 100))
    assert found.seconds_left() == pytest.approx(200)


def test_time_left_is_unknown_while_only_speed_was_measured(new_cell: NewCell) -> None:
    speed = Efficiency(model=tiny.pretrain().model, batch_size=1, prompt_tokens=16, new_tokens=2, repeats=2)
    cells: list[Cell] = [speed, new_cell(steps=100)]
    assert standing(cells, 50.0, 1, c0=Turn(0, 50)).seconds_left() is None
    assert "ETA ?" in standing(cells, 50.0, 1, c0=Turn(0, 50)).line()
    # Nor do its slow FLOPs count for the others once they are under way.
    found = standing(cells, 60.0, 1, c0=Turn(0, 50), c1=Turn(50, None, step=50))
    assert found.seconds_left() == pytest.approx(10)


def test_time_left_is_unknown_from_a_first_glimpse(new_cell: NewCell) -> None:
    cells: list[Cell] = [new_cell(steps=1000)]
    assert standing(cells, 10.0, 0, c0=Turn(0, None, step=20)).seconds_left() is None
    assert standing(cells, 30.0, 0, c0=Turn(0, None, step=60)).seconds_left() == pytest.approx(470)
    assert standing(cells, 400.0, 0, c0=Turn(0, None, step=20)).seconds_left() == pytest.approx(400 * 49)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Ledger, Preset]:
    """A sweep of one model: its pre-training, two chained parity fine-tunes and their ablations."""
    home = Home.open(tmp_path_factory.mktemp("status"))
    ledger = Ledger.open(home)
    fields = {"models": ("meta_ape",), "tasks": ("parity",), "stages": ("ablate",)}
    preset = get_preset("smoke").model_copy(update=fields)
    other = preset.model_copy(update={"name": "other"})
    for text in (other.model_dump_json(), preset.model_dump_json()):
        ledger.record_sweep(text)
    return home, ledger, preset


def test_another_shell_sees_what_runs(
    sweep: tuple[Home, Ledger, Preset], processes: ForkServerContext, capsys: pytest.CaptureFixture[str]
) -> None:
    home, ledger, preset = sweep
    base, first, second, *ablations = with_ancestors(preset.cells())
    done = ledger.claim(base, tiny.TAGS)
    assert done is not None
    done.log(base.steps, {"loss": 4.0})  # type: ignore[attr-defined]
    done.finish({"validation_loss": 4.0})
    claimed, finish = processes.Event(), processes.Event()
    child = processes.Process(target=children.claim_and_hold, args=(ledger, first, claimed, finish, 40))
    child.start()
    assert claimed.wait(60)

    now = standing_of(ledger, choose_sweep(ledger.recorded_sweeps(), None, None))
    assert now.finished == {base.fingerprint}
    assert [(cell.fingerprint, turn.step, turn.loss) for cell, turn in now.running] == [
        (first.fingerprint, 40, 0.5)
    ]
    assert dict(now.counts()["finetune"]) == {"cells": 2, "finished": 0, "failed": 0, "running": 1}
    assert main(["status", "--home", str(home.root)]) == 0
    line = capsys.readouterr().out
    assert len(line.splitlines()) == 1
    assert "pretrain 1/1, finetune 0/2" in line
    assert f"finetune {first.slug} step 40/{first.steps} loss 0.500" in line
    assert not now.settled

    finish.set()
    child.join(60)
    failing = ledger.claim(second, tiny.TAGS)
    assert failing is not None
    failing.fail("ValueError: no")
    later = standing_of(ledger, choose_sweep(ledger.recorded_sweeps(), "smoke", None))
    assert later.finished == {base.fingerprint, first.fingerprint}
    hopeless = {c.fingerprint for c in ablations if c.parents[0].fingerprint == second.fingerprint}
    assert later.failed == {second.fingerprint, *hopeless}
    assert later.running == []


def test_a_run_whose_process_died_is_to_do(
    sweep: tuple[Home, Ledger, Preset], processes: ForkServerContext
) -> None:
    _, ledger, preset = sweep
    cell = with_ancestors(preset.cells())[-1]
    child = processes.Process(target=children.claim_and_die, args=(ledger, cell))
    child.start()
    child.join(60)
    now = standing_of(ledger, choose_sweep(ledger.recorded_sweeps(), None, None))
    assert cell.fingerprint not in {*now.finished, *now.failed, *now.turns}


def test_the_sweep_can_be_chosen(sweep: tuple[Home, Ledger, Preset]) -> None:
    recorded = sweep[1].recorded_sweeps()
    assert [record.name for record in recorded] == ["other", "smoke"]
    assert choose_sweep(recorded, None, None) is recorded[1]
    assert choose_sweep(recorded, "other", None) is recorded[0]
    assert choose_sweep(recorded, None, recorded[0].id[:4]) is recorded[0]
    with pytest.raises(ConfigError, match=rf"preset='lap': no such sweep .*{recorded[0].id} \(other\)"):
        choose_sweep(recorded, "lap", None)
    with pytest.raises(ConfigError, match="knows of no sweep"):
        choose_sweep([], None, None)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "command '' is unknown, choose one of status, gc"),
        (("stat",), "command 'stat' is unknown"),
        (("status", "--pre", "smoke"), "option '--pre' of status is unknown"),
        (("gc", "--home", "/dev/null/x"), "METATOK_HOME=/dev/null/x cannot be written"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    stderr = capsys.readouterr().err
    assert told in stderr
    assert len(stderr.splitlines()) == 1


def test_both_ways_to_the_summaries_agree(
    sweep: tuple[Home, Ledger, Preset], new_cell: NewCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ledger, _ = sweep
    run = ledger.claim(new_cell(), tiny.TAGS)
    assert run is not None
    run.tag("checkpoint", "/somewhere/step-8")
    run.finish({"x": 1.0})
    deleted = ledger.claim(new_cell(), tiny.TAGS)
    assert deleted is not None
    deleted.finish({})
    ledger.client.delete_run(deleted.run_id)
    from_tables = ledger.summaries()
    monkeypatch.setattr("metatok.experiment.ledger.ledger.is_server", lambda uri: True)
    assert {r.run_id: r for r in from_tables} == {r.run_id: r for r in ledger.summaries()}
    assert run.run_id in {r.run_id for r in from_tables}
    assert deleted.run_id not in {r.run_id for r in from_tables}

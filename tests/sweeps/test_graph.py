"""The order of work, from what the ledger says became of each trial."""

import itertools
from typing import Any

import pytest
from ray.tune.search import Searcher

from metatok.experiment import Cell, Efficiency, Home, Ledger, get_preset
from metatok.experiment.design import with_ancestors
from sweeps.engine.graph import Graph

SEEDS = itertools.count()


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger.open(Home.open(tmp_path_factory.mktemp("home")))


@pytest.fixture
def cells() -> list[Cell]:
    """meta_ape, its two chained parity fine-tunes, their ablations; of a seed that no other test has."""
    fields = {"models": ("meta_ape",), "tasks": ("parity",), "stages": ("ablate",), "seeds": (next(SEEDS),)}
    return with_ancestors(get_preset("smoke").model_copy(update=fields).cells())


def settle(ledger: Ledger, cell: Cell, finished: bool = True, trial: str = "") -> None:
    run = ledger.claim(cell, {"trial": trial})
    assert run is not None
    if finished:
        run.finish({"x": 1.0})
    else:
        run.fail("Traceback\nValueError: no")


def chosen(graph: Graph, suggestion: Any) -> list[Cell]:
    return [graph.cells[int(i)] for i in suggestion["cells"].split(",")]


def test_a_trial_starts_when_its_bases_are_finished(ledger: Ledger, cells: list[Cell]) -> None:
    graph = Graph(cells, ledger, share_trainer=True, max_retries=0)
    order = []
    waiting = {}
    for number in range(100):
        suggestion = graph.suggest(f"t{number}")
        if suggestion == Searcher.FINISHED:
            break
        if suggestion is None:  # something must be running
            trial_id, trial = waiting.popitem()
            for cell in trial:
                settle(ledger, cell)
            graph.on_trial_complete(trial_id)
            continue
        waiting[f"t{number}"] = chosen(graph, suggestion)
        for cell in waiting[f"t{number}"]:
            known = {c.fingerprint for c in order}
            assert all(parent.fingerprint in known for parent in cell.parents)
            order.append(cell)
    assert [cell.kind for cell in order[:3]] == ["pretrain", "finetune", "finetune"]
    assert len(order) == len(cells)
    assert graph.finished == {cell.fingerprint for cell in cells}


def test_independent_bases_start_side_by_side(ledger: Ledger) -> None:
    fields = {"models": ("gpt2_ape", "meta_ape"), "stages": ("pretrain",), "seeds": (next(SEEDS),)}
    bases = get_preset("smoke").model_copy(update=fields).cells()
    graph = Graph(bases, ledger, share_trainer=False, max_retries=0)
    assert [chosen(graph, graph.suggest(trial)) for trial in ("a", "b")] == [[base] for base in bases]
    assert graph.suggest("c") is None


def test_a_failed_cell_is_retried_then_its_dependents_are_skipped(ledger: Ledger, cells: list[Cell]) -> None:
    graph = Graph(cells, ledger, share_trainer=True, max_retries=1)
    settle(ledger, chosen(graph, graph.suggest("base"))[0])
    graph.on_trial_complete("base")
    for attempt in ("first", "second"):
        trial = chosen(graph, graph.suggest(attempt))
        assert [cell.kind for cell in trial] == ["finetune", "finetune"]
        settle(ledger, trial[0], finished=False, trial=attempt)
        graph.on_trial_complete(attempt)
    assert graph.suggest("third") == Searcher.FINISHED
    assert graph.failed == {cells[1].fingerprint}
    assert graph.skipped == {cell.fingerprint for cell in cells[2:]}


def test_out_of_memory_has_one_more_try_whatever_max_retries_is(ledger: Ledger, cells: list[Cell]) -> None:
    graph = Graph(cells, ledger, share_trainer=True, max_retries=0)
    for times in ("once", "twice"):
        (base,) = chosen(graph, graph.suggest(times))
        assert base == cells[0]
        settle(ledger, base, finished=False, trial=times)
        ledger.set_tag(base.fingerprint, "out_of_memory", times)
        graph.on_trial_complete(times)
    assert graph.halved == graph.failed == {cells[0].fingerprint}
    assert graph.suggest("third") == Searcher.FINISHED


def test_out_of_memory_at_half_is_not_tried_again(ledger: Ledger, cells: list[Cell]) -> None:
    graph = Graph(cells, ledger, share_trainer=True, max_retries=5)
    (base,) = chosen(graph, graph.suggest("base"))
    settle(ledger, base, finished=False, trial="base")
    ledger.set_tag(base.fingerprint, "out_of_memory", "twice")
    graph.on_trial_complete("base")
    assert graph.failed == {base.fingerprint}


def test_out_of_memory_in_an_earlier_sweep_costs_no_try(ledger: Ledger, cells: list[Cell]) -> None:
    settle(ledger, cells[0], finished=False, trial="of an earlier sweep")
    ledger.set_tag(cells[0].fingerprint, "out_of_memory", "twice")
    graph = Graph(cells, ledger, share_trainer=True, max_retries=1)
    for attempt in ("first", "second"):
        assert chosen(graph, graph.suggest(attempt)) == [cells[0]]
        settle(ledger, cells[0], finished=False, trial=attempt)
        graph.on_trial_complete(attempt)
    assert graph.halved == set()
    assert graph.failed == {cells[0].fingerprint}


def test_what_diverged_is_not_tried_again(ledger: Ledger, cells: list[Cell]) -> None:
    graph = Graph(cells, ledger, share_trainer=True, max_retries=5)
    (base,) = chosen(graph, graph.suggest("base"))
    settle(ledger, base, finished=False, trial="base")
    ledger.set_tag(base.fingerprint, "diverged", "true")
    graph.on_trial_complete("base")
    assert graph.failed == {base.fingerprint}
    assert graph.suggest("next") == Searcher.FINISHED


def test_what_was_given_up_is_not_tried_again(ledger: Ledger, cells: list[Cell]) -> None:
    graph = Graph(cells, ledger, share_trainer=True, max_retries=2, given_up={cells[0].fingerprint})
    assert graph.settled
    assert graph.failed == {cells[0].fingerprint}
    assert graph.skipped == {cell.fingerprint for cell in cells[1:]}


def test_a_process_that_dies_is_blamed_on_the_cell_it_was_in(ledger: Ledger, cells: list[Cell]) -> None:
    graph = Graph(cells, ledger, share_trainer=True, max_retries=0)
    settle(ledger, chosen(graph, graph.suggest("base"))[0])
    graph.on_trial_complete("base")
    trial = chosen(graph, graph.suggest("dies"))
    settle(ledger, trial[0])
    graph.on_trial_complete("dies", error=True)
    assert trial[0].fingerprint in graph.finished
    assert graph.failed == {trial[1].fingerprint}
    ready = chosen(graph, graph.suggest("next"))  # the finished fine-tune's ablations
    assert {cell.parents[0].fingerprint for cell in ready} == {trial[0].fingerprint}


def test_a_process_that_dies_is_not_blamed_on_what_failed_before(ledger: Ledger, cells: list[Cell]) -> None:
    graph = Graph(cells, ledger, share_trainer=True, max_retries=0)
    settle(ledger, chosen(graph, graph.suggest("base"))[0])
    graph.on_trial_complete("base")
    first, second = chosen(graph, graph.suggest("dies"))
    settle(ledger, second, finished=False, trial="of an earlier sweep")
    graph.on_trial_complete("dies", error=True)
    assert graph.failed == {first.fingerprint}


def test_a_cell_that_another_sweep_finished_counts(ledger: Ledger, cells: list[Cell]) -> None:
    graph = Graph(cells, ledger, share_trainer=True, max_retries=0)
    assert chosen(graph, graph.suggest("base")) == [cells[0]]
    settle(Ledger.open(Home(ledger.spool.parent)), cells[0])
    graph.on_trial_complete("base")
    assert graph.finished == {cells[0].fingerprint}


def test_speed_is_measured_last_with_nothing_beside_it(ledger: Ledger, cells: list[Cell]) -> None:
    speed = [cell for cell in get_preset("smoke").cells() if isinstance(cell, Efficiency)]
    graph = Graph([*speed, cells[0]], ledger, share_trainer=True, max_retries=0)
    for number, cell in enumerate([cells[0], *speed]):
        assert chosen(graph, graph.suggest(f"t{number}")) == [cell]
        assert graph.suggest("beside") is None
        settle(ledger, cell)
        graph.on_trial_complete(f"t{number}")
    assert graph.suggest("end") == Searcher.FINISHED

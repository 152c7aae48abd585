"""Hyperparameter search: what is tried, who stays, and that the choice reaches the cells."""

import math

import pytest
from pydantic import ValidationError

from metatok.experiment import Finetune, Ledger, Preset, get_preset
from metatok.experiment.design import Choice, Context, SearchSettings, candidates, with_ancestors
from metatok.experiment.design.kinds.finetune import eval_set
from metatok.experiment.execution import run_cells
from metatok.experiment.ledger.search import search, without_setting

GROUP = ("meta_ape", "parity")
NINE = SearchSettings(candidates=9, learning_rates=(1e-4, 1e-2), step_factors=(0.5, 1.0, 2.0))


def test_learning_rates_cover_the_range_evenly_and_each_group_has_its_own():
    drawn = NINE.draw(*GROUP)
    ninths = sorted(math.floor(9 * math.log(s.learning_rate / 1e-4) / math.log(100)) for s in drawn)
    assert ninths == list(range(9))
    assert sorted(s.step_factor for s in drawn) == [0.5] * 3 + [1.0] * 3 + [2.0] * 3
    assert drawn == NINE.draw(*GROUP) != NINE.draw("meta_rope", "parity")


@pytest.mark.parametrize(("candidates", "shares"), [(2, [1]), (9, [1 / 3, 1]), (27, [1 / 9, 1 / 3, 1])])
def test_the_last_round_trains_to_the_end(candidates, shares):
    assert SearchSettings(candidates=candidates).shares == pytest.approx(shares)


def test_the_best_third_stays_and_of_equals_the_one_tried_first():
    drawn = NINE.draw(*GROUP)
    assert NINE.keep({setting: i / 10 for i, setting in enumerate(drawn)}) == drawn[:5:-1]
    assert NINE.keep(dict.fromkeys(drawn, 0.5)) == drawn[:3]


def test_candidates_are_scored_on_the_validation_split_alone():
    preset = get_preset("smoke")
    cells = candidates(preset, {GROUP: NINE.draw(*GROUP)}, share=0.5)[GROUP].values()
    sets = {eval_set(cell, length) for cell in cells for length in cell.eval_lengths}
    assert [s.split for s in sets] == ["validation"]
    assert len({cell.fingerprint for cell in cells}) == 9
    assert {(c.labels["model"], c.task, c.train_length) for c in cells} == {(*GROUP, 64)}


def test_the_choice_is_what_its_fine_tunes_train_with_and_only_those():
    preset = get_preset("smoke")
    choice = Choice(
        model="meta_ape",
        task="parity",
        learning_rate=2e-3,
        step_factor=2.0,
        candidate="c" * 12,
        exact_match=0.7,
        n=200,
    )
    chosen = preset.model_copy(update={"finetune": preset.finetune.model_copy(update={"chosen": (choice,)})})
    before, after = ({c.slug: c for c in p.cells() if isinstance(c, Finetune)} for p in (preset, chosen))
    changed = {slug for slug in before if before[slug] != after[slug]}
    assert changed == {"meta_ape-parity-64-s0", "meta_ape-parity-128-s0"}
    for slug in changed:
        assert after[slug].optim.learning_rate == 2e-3
        assert after[slug].optim.min_learning_rate == pytest.approx(2e-4)
        assert after[slug].steps == 2 * before[slug].steps


@pytest.mark.parametrize(
    "mistake", [{"candidates": 1}, {"learning_rates": (1e-3, 1e-4)}, {"step_factors": (0.0,)}]
)
def test_mistakes_are_refused(mistake):
    with pytest.raises(ValidationError, match=next(iter(mistake))):
        SearchSettings(**mistake)


def small_preset() -> Preset:
    """One model and task; four candidates, of which two go on to full length."""
    preset = get_preset("smoke")
    settings = SearchSettings(
        candidates=4, reduction=2, learning_rates=(1e-4, 1e-2), step_factors=(1.0, 2.0), n_validation=40
    )
    finetune = {
        "search": settings,
        "train_lengths": (64,),
        "eval_lengths": (64,),
        "steps": (4,),
        "n_train": 64,
        "n_test": 20,
    }
    return preset.model_copy(
        update={
            "models": ("meta_ape",),
            "tasks": ("parity",),
            "stages": ("finetune",),
            "pretrain": preset.pretrain.model_copy(update={"steps": 2, "validation_sequences": 4}),
            "finetune": preset.finetune.model_copy(update=finetune),
        }
    )


def test_a_search_goes_round_by_round_and_its_best_is_what_the_fine_tune_trains_with(fresh_home):
    preset, ledger = small_preset(), Ledger.open(fresh_home)
    context = Context(fresh_home, preset.run)
    rounds = []
    while True:
        found, unfinished = search(preset, ledger)
        if unfinished is None:
            break
        # A sweep that is stopped after one candidate goes on from there.
        one = unfinished.cells[:1]
        run_cells(with_ancestors(one), ledger, context, {})
        assert search(preset, ledger)[1] == unfinished
        run_cells(with_ancestors(unfinished.cells), ledger, context, {})
        assert (unfinished.number, unfinished.of) == (len(rounds) + 1, 2)
        assert not any(cell.store(context).steps() for cell in unfinished.cells)
        rounds.append(unfinished.cells)
    first, last = rounds
    assert sorted(cell.steps for cell in first) == [2, 2, 4, 4]
    assert len(last) == 2
    assert {cell.steps for cell in last} <= {4, 8}

    (choice,) = found.finetune.chosen
    scores = {r.fingerprint: r.metrics["exact_match/64"] for r in ledger.records("candidate")}
    assert choice.exact_match == max(scores[cell.fingerprint] for cell in last)
    (winner,) = (cell for cell in last if cell.fingerprint == choice.candidate)
    (cell,) = found.cells()
    assert isinstance(cell, Finetune)
    assert (cell.optim, cell.steps) == (winner.optim, winner.steps)
    # What was chosen stays chosen: the resolved preset searches no more.
    assert search(found, ledger) == (found, None)


def test_a_search_goes_on_without_the_candidates_that_fail(fresh_home):
    preset, ledger = small_preset(), Ledger.open(fresh_home)
    context = Context(fresh_home, preset.run)
    first = search(preset, ledger)[1].cells
    failed = {first[1].fingerprint}
    run_cells(with_ancestors([first[0], *first[2:]]), ledger, context, {})
    assert search(preset, ledger)[1].cells == first  # it may be tried yet
    second = search(preset, ledger, failed=failed)[1]
    assert second.number == 2
    assert len(second.cells) == 2  # half of three
    assert first[1].optim not in [cell.optim for cell in second.cells]
    run_cells(with_ancestors(second.cells), ledger, context, {})
    found, unfinished = search(preset, ledger, failed=failed)
    assert unfinished is None
    assert [
        choice.candidate in {c.fingerprint for c in second.cells} for choice in found.finetune.chosen
    ] == [True]
    assert without_setting(found, with_ancestors(found.cells())) == set()


def test_where_every_candidate_fails_what_waits_for_one_is_left_out(fresh_home):
    preset = small_preset()
    preset = preset.model_copy(update={"models": ("meta_ape", "meta_rope"), "stages": ("finetune", "ablate")})
    ledger, context = Ledger.open(fresh_home), Context(fresh_home, preset.run)
    base = next(cell.base for cell in search(preset, ledger)[1].cells if cell.model_name == "meta_ape")
    failed = {base.fingerprint}  # and with it each candidate that builds on it
    while (unfinished := search(preset, ledger, failed=failed)[1]) is not None:
        run_cells([c for c in with_ancestors(unfinished.cells) if c.root != base], ledger, context, {})
    found, _ = search(preset, ledger, failed=failed)
    assert [choice.model for choice in found.finetune.chosen] == ["meta_rope"]
    cells = with_ancestors(found.cells())
    left_out = without_setting(found, cells)
    assert left_out == {cell.fingerprint for cell in cells if cell.root == base and cell != base}
    assert {cell.kind for cell in cells if cell.fingerprint in left_out} == {"finetune", "ablate"}

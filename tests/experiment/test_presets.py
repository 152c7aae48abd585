"""Presets: the paper's settings, and what overriding a field changes."""

from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from metatok.errors import ConfigError
from metatok.experiment import (
    PRESETS,
    Ablate,
    Cell,
    Efficiency,
    Extend,
    Finetune,
    Preset,
    Pretrain,
    Probe,
    RateDistortion,
    get_preset,
)
from metatok.experiment.design import RunSettings, stages, with_ancestors
from metatok.model import Intervention


def overridden(**fields: Any) -> Preset:
    """The smoke preset with fields replaced, checked as the command line checks it."""
    return Preset.model_validate(get_preset("smoke").model_dump() | fields)


def fingerprints(preset: Preset) -> set[str]:
    return {cell.fingerprint for cell in with_ancestors(preset.cells())}


def of(kind: type[Cell], preset: Preset) -> list[Any]:
    return [cell for cell in preset.cells() if isinstance(cell, kind)]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_makes_cells_of_every_stage(name: str) -> None:
    preset = get_preset(name)
    assert preset.name == name
    counts = Counter(cell.stage for cell in preset.cells())
    assert set(counts) == set(stages()) - {"search"}
    assert len(fingerprints(preset)) == len(with_ancestors(preset.cells()))


def test_the_paper_preset_is_the_paper() -> None:
    preset = get_preset("paper")
    pretrains = of(Pretrain, preset)
    assert [cell.labels["model"] for cell in pretrains] == ["gpt2_ape", "meta_ape", "meta_rope"]
    for cell in pretrains:
        assert (cell.model.n_layer, cell.model.n_head, cell.model.n_embd) == (12, 12, 768)
        assert (cell.model.context_length, cell.model.vocab_size, cell.model.dropout) == (1024, 50258, 0)
        assert cell.batch_size * cell.model.context_length == 491_520
        assert (cell.steps, cell.corpus.source, cell.tokenizer.name) == (200_000, "c4", "gpt2")
        optim = cell.optim
        assert (optim.beta1, optim.beta2, optim.weight_decay, optim.grad_clip) == (0.9, 0.95, 0.1, 1.0)
        assert (optim.learning_rate, optim.min_learning_rate) == (6e-4, 6e-5)
        assert (optim.warmup_steps, optim.decay_steps) == (2000, 600_000)
    assert [cell.meta_fraction for cell in pretrains] == [0.0, 0.1, 0.1]
    assert [cell.result_model.context_length for cell in of(Extend, preset)] == [4096, 8192]
    yarn = of(Extend, preset)[0].result_model.yarn
    assert (yarn.beta_fast, yarn.beta_slow, yarn.extrapolation_factor, yarn.attn_factor) == (32, 1, 1, 1)
    tuned = [cell for cell in of(Finetune, preset) if cell.train_length <= 512]
    assert {cell.task for cell in tuned} == {"list_recall", "segment_counting", "parity", "copying"}
    assert {cell.train_length for cell in tuned} == {128, 256, 512}
    assert {(cell.n_train, cell.n_test) for cell in tuned} == {(90_000, 10_000)}
    rope = {cell.eval_lengths for cell in tuned if cell.result_model.position == "rope"}
    learned = {cell.eval_lengths for cell in tuned if cell.labels["model"] in ("gpt2_ape", "meta_ape")}
    assert rope == {(128, 256, 512, 1024, 2048)}
    assert learned == {(128, 256, 512, 1024)}
    long = [cell for cell in of(Finetune, preset) if cell.train_length > 512]
    assert {(c.result_model.context_length, c.train_length) for c in long} == {
        (4096, 2048),
        (4096, 4096),
        (8192, 2048),
        (8192, 4096),
        (8192, 8192),
    }
    points = of(RateDistortion, preset)
    assert {point.beta for point in points} == {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0}
    assert {point.site for point in points} == {"meta", "last_non_meta"}
    assert {(point.n_examples, point.epochs, point.task) for point in points} == {(50, 5, "list_recall")}
    assert preset.run.workers == 4
    assert preset.run.micro_batch_size == 12


def test_each_train_length_continues_from_the_one_before() -> None:
    for chained in (True, False):
        preset = overridden(finetune=get_preset("smoke").finetune.model_dump() | {"chained": chained})
        for cell in of(Finetune, preset):
            first = cell.train_length == min(preset.finetune.train_lengths) or cell.train_length > 128
            assert isinstance(cell.base, Finetune) == (chained and not first)
            if isinstance(cell.base, Finetune):
                assert (cell.base.task, cell.base.train_length) == (cell.task, 64)


def test_ablations_are_those_of_the_papers_tables() -> None:
    settings: dict[tuple[str, int, str], set[Intervention]] = {
        (cell.base.task, cell.base.train_length, cell.labels["model"]): set()
        for cell in of(Ablate, get_preset("paper"))
    }
    for cell in of(Ablate, get_preset("paper")):
        settings[cell.base.task, cell.base.train_length, cell.labels["model"]].add(cell.intervention)
    assert len(settings) == 4 * 3 * 2  # tasks, train lengths, models with meta tokens
    for (task, _, model), found in settings.items():
        assert model in ("meta_ape", "meta_rope")
        noise = {i.position_noise for i in found if i.position_noise}
        assert noise == ({0.1, 0.2, 0.5, 1.0} if task in ("list_recall", "copying") else set())
        zeroed = {(i.zero_position, i.zero_embedding) for i in found if not i.position_noise}
        assert zeroed == {(True, False), (False, True), (True, True)}


def test_a_preset_is_the_same_every_time() -> None:
    assert fingerprints(get_preset("smoke")) == fingerprints(get_preset("smoke"))
    assert get_preset("smoke") == get_preset("smoke")


def test_adding_a_seed_keeps_the_old_cells() -> None:
    one, two = overridden(), overridden(seeds=(0, 1))
    old, new = fingerprints(one), fingerprints(two)
    assert old < new
    seedless = len(of(Efficiency, one))  # the machine's speed is measured once
    assert len(new) == 2 * len(old) - seedless
    added = [cell for cell in with_ancestors(two.cells()) if cell.fingerprint not in old]
    assert {cell.labels["seed"] for cell in added} == {1}


def test_adding_a_task_an_eval_setting_or_a_beta_costs_only_that() -> None:
    old = fingerprints(overridden(tasks=("parity",)))
    more = overridden(tasks=("parity", "copying"))
    added = [cell for cell in with_ancestors(more.cells()) if cell.fingerprint not in old]
    assert old < fingerprints(more)
    assert all("copying" in cell.slug for cell in added)
    analysis = get_preset("smoke").analysis.model_dump()
    base = fingerprints(overridden(analysis=analysis | {"betas": (0.1,)}))
    finer = overridden(analysis=analysis | {"betas": (0.1, 0.3)})
    added = [cell for cell in with_ancestors(finer.cells()) if cell.fingerprint not in base]
    assert {(cell.kind, getattr(cell, "beta", None)) for cell in added} == {("rate_distortion", 0.3)}


def test_how_it_is_run_changes_no_cell() -> None:
    settings = RunSettings(workers=1, trial_cpus=2, micro_batch_size=3, log_every=1, checkpoint_every=1)
    assert fingerprints(overridden(run=settings)) == fingerprints(overridden())
    assert fingerprints(overridden(name="mine")) == fingerprints(overridden())


def test_overrides_reach_the_cells() -> None:
    preset = overridden(
        tasks=("parity",),
        seeds=(4,),
        precision="bf16",
        size={"n_layer": 1, "n_head": 1, "n_embd": 8, "context_length": 256},
    )
    for cell in of(Finetune, preset):
        assert cell.seed == cell.root.seed == 4
        assert cell.precision == cell.root.precision == "bf16"
        assert cell.root.model.n_layer == 1
    assert {cell.task for cell in of(Finetune, preset) if cell.train_length < 256} == {"parity"}
    tuned = of(Finetune, overridden(**part("finetune", steps=(7,), steps_by_task={"parity": (8, 9)})))
    steps = {(cell.task, cell.train_length): cell.steps for cell in tuned if cell.train_length <= 128}
    assert (steps["copying", 64], steps["copying", 128]) == (7, 7)
    assert (steps["parity", 64], steps["parity", 128]) == (8, 9)


def test_a_stage_alone_has_its_cells_and_the_plan_adds_what_they_build_on() -> None:
    preset = overridden(stages=("probe",))
    assert {cell.kind for cell in preset.cells()} == {"probe"}
    assert {cell.kind for cell in with_ancestors(preset.cells())} == {"pretrain", "finetune", "probe"}
    whole = fingerprints(overridden())
    assert fingerprints(preset) < whole


def test_models_without_meta_tokens_are_not_ablated_or_probed() -> None:
    preset = overridden(models=("gpt2_ape", "gpt2_rope"))
    kinds = {cell.kind for cell in preset.cells()}
    assert kinds == {"pretrain", "finetune"}
    pause = overridden(models=("pause_rope",))
    assert {type(cell) for cell in pause.cells()} == {Pretrain, Finetune, Ablate, RateDistortion, Probe}
    assert of(Efficiency, overridden()) != []


def part(name: str, **fields: Any) -> dict[str, Any]:
    return {name: getattr(get_preset("smoke"), name).model_dump() | fields}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"models": ("bert",)}, r"models='bert'.*gpt2_ape"),
        ({"tasks": ("sorting",)}, r"task='sorting'.*parity"),
        ({"stages": ("dream",)}, r"stages='dream'.*pretrain"),
        ({"extend": {"model": "bert"}}, r"extend.model='bert'"),
        ({"finetune": {"steps_by_task": {"sorting": (1,)}}}, "task='sorting'"),
        ({"models": ()}, "models and seeds"),
        ({"seeds": ()}, "models and seeds"),
        ({"colour": "blue"}, "colour"),
        ({"pretrain": {"stepz": 3}}, "pretrain.stepz"),
        ({"run": {"workers": 0}}, "run.workers"),
        (part("finetune", train_lengths=()), "finetune.train_lengths"),
        (part("finetune", eval_lengths=()), "finetune.eval_lengths"),
        (part("finetune", steps=()), "finetune.steps"),
        (part("finetune", steps_by_task={"parity": ()}), "steps_by_task.parity"),
        (part("run", trial_gpus=1.5), "trial_gpus=1.5: more than one GPU must be a whole number"),
        (part("run", log_every=70), "checkpoint_every=300.*log_every=70"),
    ],
)
def test_what_is_unknown_or_impossible_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        overridden(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (part("finetune", train_lengths=(64, 256)), "train_length=256.*128 tokens"),
        (part("finetune", eval_lengths=(256,)), r"eval_lengths=\(\)"),
        (part("analysis", bottleneck_tokens=256), "max_tokens=256.*meta_ape.*128 tokens"),
        (part("size", n_head=3), "n_head=3"),
        (part("extend", model="meta_ape"), "position='ape'"),
    ],
)
def test_fields_that_do_not_go_together_are_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        overridden(**fields).cells()
    assert "\n" not in str(caught.value)


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"preset='huge'.*smoke, laptop, gpu, paper"):
        get_preset("huge")

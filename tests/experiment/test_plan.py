"""From cells to work: order, trials, costs."""

from collections.abc import Sequence

import pytest

from metatok.data.corpus import CorpusConfig
from metatok.experiment import Ablate, Cell, Efficiency, Extend, Finetune, Home, Pretrain, Probe, get_preset
from metatok.experiment.design import Cost, RunSettings, distinct_inputs, stages, trials, with_ancestors
from metatok.experiment.design.plan import input_disk, places
from metatok.experiment.inputs import Inputs, ShardsConfig
from metatok.model import GPT, Intervention

from . import tiny


def ids(cells: Sequence[Cell]) -> list[str]:
    return [cell.fingerprint for cell in cells]


def chain(base: Cell, *lengths: int) -> list[Finetune]:
    cells: list[Finetune] = []
    for length in lengths:
        cells.append(tiny.finetune(cells[-1] if cells else base, train_length=length))
    return cells


def test_every_ancestor_comes_once_and_before_what_builds_on_it() -> None:
    base = tiny.pretrain()
    tuned = chain(base, 32, 64, 96)
    ablated = Ablate(base=tuned[2], intervention=Intervention(zero_position=True))
    assert ids(with_ancestors([ablated, tuned[0], base])) == ids([base, *tuned, ablated])
    assert with_ancestors([]) == []


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_a_presets_plan_is_in_an_order_that_can_be_run(preset: str) -> None:
    cells = with_ancestors(reversed(get_preset(preset).cells()))
    place = {cell.fingerprint: i for i, cell in enumerate(cells)}
    assert len(place) == len(cells)
    assert all(place[parent.fingerprint] < i for i, cell in enumerate(cells) for parent in cell.parents)


def test_a_finetune_chain_is_one_trial_that_needs_its_base() -> None:
    bases = [tiny.pretrain(seed=0), tiny.pretrain(seed=1)]
    chains = [chain(base, 32, 64) for base in bases]
    lone = tiny.finetune(bases[0], task="list_recall")
    cells: list[Cell] = [*bases, *chains[0], *chains[1], lone]
    groups = trials(cells, share_trainer=False)
    assert [ids(group.cells) for group in groups] == [
        ids([bases[0]]),
        ids([bases[1]]),
        ids(chains[0]),
        ids(chains[1]),
        ids([lone]),
    ]
    assert [group.distributed for group in groups] == [True, True, False, False, False]
    assert [group.needs for group in groups] == [
        frozenset(),
        frozenset(),
        {bases[0].fingerprint},
        {bases[1].fingerprint},
        {bases[0].fingerprint},
    ]


def test_finetunes_that_are_not_chained_are_trials_of_their_own() -> None:
    base = tiny.pretrain()
    cells = [tiny.finetune(base, train_length=length) for length in (32, 64)]
    assert len(trials(cells, share_trainer=True)) == 2


def test_a_half_done_chain_needs_its_last_finished_member() -> None:
    base = tiny.pretrain()
    cells = chain(base, 32, 64, 96)
    (trial,) = trials(cells[1:], share_trainer=True)
    assert ids(trial.cells) == ids(cells[1:])
    assert trial.needs == {cells[0].fingerprint}


def test_pretrainings_share_a_trainer_only_where_asked() -> None:
    bases = [tiny.pretrain(seed=seed) for seed in (0, 1)]
    extended = Extend(base=bases[0], scale=2)
    cells: list[Cell] = [*bases, extended]
    assert [ids(t.cells) for t in trials(cells, share_trainer=True)] == [ids(cells)]
    apart = trials(cells, share_trainer=False)
    assert [ids(t.cells) for t in apart] == [ids([bases[0], extended]), ids([bases[1]])]
    assert all(not t.needs for t in apart)
    (later,) = trials([extended], share_trainer=True)
    assert later.needs == {bases[0].fingerprint}


def test_what_looks_at_one_checkpoint_in_one_way_is_one_trial() -> None:
    first, second = chain(tiny.pretrain(), 32, 64)
    ablations = [
        Ablate(base=base, intervention=Intervention(position_noise=scale))
        for scale in (0.1, 1.0)
        for base in (first, second)
    ]
    probes = [Probe(base=first, analysis=name, eval_length=64) for name in ("sharpness", "attention")]
    groups = trials([*ablations, *probes], share_trainer=False)
    assert [ids(group.cells) for group in groups] == [ids(ablations[::2]), ids(ablations[1::2]), ids(probes)]
    assert [group.needs for group in groups] == [
        {first.fingerprint},
        {second.fingerprint},
        {first.fingerprint},
    ]


@pytest.mark.parametrize("share_trainer", [True, False])
def test_trials_hold_every_cell_of_a_preset_once_and_can_be_run_in_their_order(share_trainer: bool) -> None:
    cells = with_ancestors(get_preset("smoke").cells())
    groups = trials(cells, share_trainer)
    assert sorted(c.fingerprint for t in groups for c in t.cells) == sorted(ids(cells))
    done: set[str] = set()
    for trial in groups:
        assert trial.needs <= done
        for cell in trial.cells:
            assert {p.fingerprint for p in cell.parents} <= done
            done.add(cell.fingerprint)


def test_stages_are_the_sweeps_scripts() -> None:
    made = {cell.stage for cell in get_preset("smoke").cells()}
    assert made == set(stages()) - {"search"}


def test_the_papers_pretraining_costs_what_the_paper_says() -> None:
    cells = {c.labels["model"]: c for c in get_preset("paper").cells() if isinstance(c, Pretrain)}
    for cell in cells.values():
        assert cell.cost().tokens == 98_304_000_000  # 200,000 steps of 480 x 1024
    plain = cells["gpt2_ape"].cost()
    # GPT-2 small: 124M parameters; 6 a parameter without the position table, 12 * layers * width * keys.
    assert plain.flops == pytest.approx((6 * 123.6e6 + 12 * 12 * 768 * 1024) * 98.304e9, rel=0.01)
    meta = cells["meta_ape"].cost()
    assert meta.disk - plain.disk == pytest.approx(4 * 28.3e6, rel=0.01)  # its own projections, as fp32
    assert plain.flops < meta.flops < 1.03 * plain.flops  # a tenth of the tokens goes through them
    # 8.4e19 FLOPs at 40% of 312 TFLOP/s.
    assert plain.gpu_hours == pytest.approx(plain.flops / 1.248e14 / 3600)
    assert 150 < plain.gpu_hours < 250


def test_costs_of_the_other_kinds() -> None:
    base = tiny.pretrain()
    per_token = GPT(base.model).flops_per_token
    extended = Extend(base=base, scale=4, batch_size=2, steps=5)
    assert extended.cost().tokens == 5 * 2 * 384
    assert extended.cost().flops == pytest.approx(per_token(384, 0.1) * 5 * 2 * 384)
    tuned = tiny.finetune(base, steps=7, batch_size=6, train_length=64, n_test=12, eval_lengths=(64, 96))
    scoring = 12 * (64 * per_token(64) + 96 * per_token(96)) / 3
    assert tuned.cost().tokens == 7 * 6 * 64
    assert tuned.cost().flops == pytest.approx(per_token(64) * 7 * 6 * 64 + scoring)
    assert tuned.cost().disk == 4 * GPT(base.model).num_parameters()
    ablated = Ablate(base=tuned, intervention=Intervention(zero_embedding=True)).cost()
    assert (ablated.tokens, ablated.disk) == (0, 0)
    assert ablated.flops == pytest.approx(scoring)
    assert Efficiency(model=base.model).cost().flops > 0


def test_costs_add_up() -> None:
    total = sum([Cost(1, 2.0, 3), Cost(10, 20.0, 30)], Cost())
    assert total == Cost(11, 22.0, 33)


def test_a_worker_needs_a_whole_node_to_hold_it() -> None:
    fours = [{"CPU": 16.0, "GPU": 4.0}] * 2
    assert places(fours, {"CPU": 8, "GPU": 8}) == 0  # though the cluster has 8
    assert places(fours, {"CPU": 8, "GPU": 1}) == 4  # the CPUs end first
    assert places(fours, {"CPU": 1, "GPU": 0.5}) == 16
    assert places([{"CPU": 2.0}], {"CPU": 1, "GPU": 0}) == 2
    assert places([{"CPU": 2.0}], {"CPU": 1, "GPU": 1}) == 0
    assert places([{"CPU": 1.0}], {"CPU": 0.1, "GPU": 0}) == 10


def test_step_checkpoints_hold_the_optimiser_too() -> None:
    cell = tiny.pretrain(steps=100)
    parameters = GPT(cell.model).num_parameters()
    settings = RunSettings(checkpoint_every=10, keep_checkpoints=2)
    # Weights and two moments, fp32; a third checkpoint is written before the first goes.
    assert cell.checkpoint_disk(settings) == 3 * 4 * parameters * 3
    assert tiny.pretrain(steps=11).checkpoint_disk(settings) == 3 * 4 * parameters
    assert tiny.pretrain(steps=10).checkpoint_disk(settings) == 0  # the final one has weights alone
    assert Efficiency(model=cell.model).checkpoint_disk(settings) == 0


def test_sizes_of_inputs_are_near_the_truth(home: Home) -> None:
    tuned = tiny.finetune()
    inputs = Inputs(home.datasets)
    for config in distinct_inputs([tuned.root, tuned]):
        if isinstance(config, ShardsConfig):
            config = config.model_copy(update={"corpus": CorpusConfig()})
            assert 4e6 < input_disk(config) < 2e7
            continue
        dataset = inputs.task_dataset(config)
        real = sum(path.stat().st_size for path in inputs.task_path(config).glob("*.npy"))
        assert 0.5 < input_disk(config) / (real - 5 * 128) < 2.0, (len(dataset), real)

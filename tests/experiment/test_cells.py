"""Cells: what a fingerprint depends on, and what is refused before any work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from metatok.data.corpus import CorpusConfig
from metatok.experiment import (
    Ablate,
    Cell,
    Efficiency,
    Extend,
    Finetune,
    Pretrain,
    Probe,
    RateDistortion,
    get_preset,
)
from metatok.experiment.design import RunSettings, all_kinds, cell_from_json
from metatok.model import GPTConfig, Intervention
from metatok.tasks import Curriculum

from . import tiny

ROOT = Path(__file__).parents[2]


def one_of_each() -> dict[str, Cell]:
    base = tiny.pretrain()
    tuned = tiny.finetune(base, validate_every=4, n_validation=10)
    cells = [
        base,
        Extend(base=base, scale=2.0),
        tuned,
        Ablate(base=tuned, intervention=Intervention(zero_position=True)),
        RateDistortion(base=base, site="meta", beta=0.1, max_tokens=64),
        Probe(base=tuned, analysis="sharpness", eval_length=64),
        Efficiency(model=base.model),
    ]
    return {cell.kind: cell for cell in cells}


# A changed value for every field of every kind.
CHANGES: dict[str, dict[str, Any]] = {
    "pretrain": {
        "model": tiny.pretrain("meta_ape").model,
        "corpus": CorpusConfig(max_documents=9),
        "meta_fraction": 0.2,
        "optim": {"learning_rate": 2e-3},
        "batch_size": 5,
        "steps": 9,
        "validation_sequences": 5,
        "precision": "bf16",
        "seed": 1,
    },
    "extend": {
        "scale": 3.0,
        "optim": {"learning_rate": 2e-3},
        "batch_size": 5,
        "steps": 9,
        "validation_sequences": 5,
        "precision": "bf16",
        "seed": 1,
    },
    "finetune": {
        "task": "list_recall",
        "curriculum": Curriculum(),
        "train_length": 65,
        "eval_lengths": (64,),
        "n_train": 61,
        "n_test": 13,
        "optim": {"learning_rate": 2e-3},
        "batch_size": 5,
        "steps": 9,
        "precision": "bf16",
        "seed": 1,
        "validate_every": 5,
        "n_validation": 11,
        "learned_at": 0.9,
    },
    "ablate": {"intervention": {"zero_embedding": True}},
    "rate_distortion": {
        "site": "last_non_meta",
        "beta": 0.2,
        "task": "parity",
        "curriculum": Curriculum.tiny(),
        "max_tokens": 65,
        "n_examples": 51,
        "latent_dim": 31,
        "epochs": 6,
        "learning_rate": 2e-3,
        "seed": 1,
    },
    "probe": {"analysis": "residual", "eval_length": 65, "n_examples": 101},
    "efficiency": {
        "model": GPTConfig(n_layer=3),
        "meta_fraction": 0.2,
        "batch_size": 5,
        "prompt_tokens": 511,
        "new_tokens": 63,
        "repeats": 21,
        "precision": "bf16",
        "seed": 1,
    },
}


def changed(cell: Cell, **fields: Any) -> Cell:
    return type(cell).model_validate({**dict(cell), **fields})


@pytest.mark.parametrize("kind", CHANGES)
def test_every_field_changes_the_fingerprint(kind: str) -> None:
    cell = one_of_each()[kind]
    own = set(type(cell).model_fields) - {"kind", "base", "tokenizer"}
    assert set(CHANGES[kind]) == own
    seen = {cell.fingerprint}
    for field, value in CHANGES[kind].items():
        seen.add(changed(cell, **{field: value}).fingerprint)
    assert len(seen) == len(own) + 1


def test_the_tokenizer_changes_the_fingerprint() -> None:
    cells = [
        tiny.pretrain(
            tokenizer={"name": "bpe", "vocab_size": size},
            model=GPTConfig(vocab_size=size, meta_token_id=size - 1),
        )
        for size in (300, 301)
    ]
    assert cells[0].fingerprint != cells[1].fingerprint


@pytest.mark.parametrize("kind", [kind for kind in CHANGES if kind not in ("pretrain", "efficiency")])
def test_a_bases_fields_change_the_fingerprint_all_the_way_down(kind: str) -> None:
    cell = one_of_each()[kind]

    def rebased(cell: Cell) -> Cell:
        if isinstance(cell, Pretrain):
            return changed(cell, seed=77)
        return changed(cell, base=rebased(cell.parents[0]))

    other = rebased(cell)
    assert other.own_fields() == cell.own_fields()
    assert other.fingerprint != cell.fingerprint


def test_bumping_a_kinds_version_invalidates_it_and_what_builds_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {kind: cell.fingerprint for kind, cell in one_of_each().items()}
    monkeypatch.setattr(Finetune, "version", Finetune.version + 1)
    after = {kind: cell.fingerprint for kind, cell in one_of_each().items()}
    assert {kind for kind in before if before[kind] != after[kind]} == {"finetune", "ablate", "probe"}


def test_a_changed_copy_has_a_fingerprint_of_its_own() -> None:
    cell = tiny.pretrain()
    fingerprint = cell.fingerprint
    copy = cell.model_copy(update={"seed": 5})
    assert copy.fingerprint == tiny.pretrain(seed=5).fingerprint != fingerprint
    assert cell.model_copy().fingerprint == cell.model_copy(deep=True).fingerprint == fingerprint
    assert cell.fingerprint == fingerprint


def test_how_a_cell_is_run_is_not_part_of_it() -> None:
    fields = {name for kind in all_kinds() for name in kind.model_fields}
    assert not fields & set(RunSettings.model_fields)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


def test_fingerprints_depend_on_neither_the_order_of_fields_nor_the_process() -> None:
    cells = list(one_of_each().values())
    shuffled = [json.dumps(reversed_keys(json.loads(cell.model_dump_json()))) for cell in cells]
    assert [cell_from_json(text).fingerprint for text in shuffled] == [cell.fingerprint for cell in cells]
    code = (
        "import sys; from metatok.experiment.design import cell_from_json\n"
        "for line in sys.stdin: print(cell_from_json(line).fingerprint)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(shuffled),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert found.stdout.split() == [cell.fingerprint for cell in cells]


def test_known_fingerprints() -> None:
    """These change only with a field, a default or a version, and then every result is to be made again."""
    base = Pretrain(model=GPTConfig.variant("meta_rope"))
    extended = Extend(base=base, scale=4)
    assert base.fingerprint == "6e10923de46854108db3034d44f90732f804a9aecdfbed7f0293a234a0adea2e"
    assert extended.id == "68213cdd6d58"


@pytest.mark.parametrize("kind", CHANGES)
def test_a_cell_survives_json(kind: str) -> None:
    cell = one_of_each()[kind]
    fingerprint = cell.fingerprint
    back = cell_from_json(cell.model_dump_json(indent=1))
    assert type(back) is type(cell)
    assert back == cell
    assert hash(back) == hash(cell)
    assert back.fingerprint == fingerprint
    assert {cell: 1}[back] == 1


def test_all_cells_of_all_presets_survive_json() -> None:
    for name in ("smoke", "paper"):
        for cell in get_preset(name).cells():
            assert cell_from_json(cell.model_dump_json()).fingerprint == cell.fingerprint


@pytest.mark.parametrize("kind", CHANGES)
def test_a_cell_is_frozen_and_takes_no_unknown_field(kind: str) -> None:
    cell = one_of_each()[kind]
    field, value = next(iter(CHANGES[kind].items()))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(cell, field, value)
    with pytest.raises(ValidationError, match="worker_count"):
        changed(cell, worker_count=3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tiny.finetune(train_length=97), r"train_length=97.*meta_rope.*96 tokens"),
        (lambda: tiny.finetune(task="sorting"), r"task='sorting'.*parity"),
        (lambda: tiny.finetune(eval_lengths=()), r"eval_lengths=\(\)"),
        (
            lambda: tiny.finetune(tiny.pretrain("gpt2_ape"), eval_lengths=(64, 128)),
            r"eval_lengths=\(64, 128\).*gpt2_ape.*96 tokens",
        ),
        (lambda: tiny.finetune(steps=0), "steps"),
        (lambda: GPTConfig.variant("bert"), r"'bert'.*gpt2_ape"),
        (lambda: tiny.pretrain(model=GPTConfig()), r"vocab_size=50258.*300 ids"),
        (lambda: tiny.pretrain(tokenizer={"name": "gpt2"}), r"vocab_size=300.*50258 ids"),
        (lambda: tiny.pretrain(meta_fraction=1.0), "meta_fraction"),
        (lambda: Extend(base=tiny.pretrain("meta_ape"), scale=4), "position='ape'"),
        (lambda: Extend(base=tiny.pretrain(), scale=1.0), "scale"),
        (lambda: Ablate(base=tiny.finetune(), intervention=Intervention()), "changes nothing"),
        (
            lambda: Ablate(
                base=tiny.finetune(tiny.pretrain("meta_alibi")), intervention=Intervention(zero_position=True)
            ),
            "alibi has no position",
        ),
        (
            lambda: RateDistortion(base=tiny.pretrain(), site="meta", beta=0.1, max_tokens=64, task="sort"),
            "task='sort'",
        ),
        (
            lambda: RateDistortion(base=tiny.pretrain("meta_ape"), site="meta", beta=0.1, max_tokens=97),
            r"max_tokens=97.*meta_ape.*96 tokens",
        ),
        (
            lambda: Probe(
                base=tiny.finetune(tiny.pretrain("meta_ape")), analysis="attention", eval_length=128
            ),
            r"eval_length=128.*meta_ape.*96 tokens",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_field_and_value(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_relative_positions_are_scored_beyond_the_context() -> None:
    assert tiny.finetune(eval_lengths=(64, 512)).eval_lengths == (64, 512)
    extended = Extend(base=tiny.pretrain(), scale=4)
    assert tiny.finetune(extended, train_length=384).result_model.context_length == 384


def test_labels_and_slugs_are_what_people_read() -> None:
    base = tiny.pretrain(seed=3, context_length=1024)
    extended = Extend(base=base, scale=4, seed=3)
    tuned = tiny.finetune(extended, seed=3, train_length=2048)
    ablated = Ablate(base=tuned, intervention=Intervention(zero_position=True))
    assert (base.slug, extended.slug) == ("meta_rope-s3", "meta_rope_yarn_4k-s3")
    assert tuned.slug == "meta_rope_yarn_4k-parity-2048-s3"
    labels = {"model": "meta_rope_yarn_4k", "task": "parity", "train_length": 2048, "seed": 3}
    assert tuned.labels == labels
    assert ablated.labels == labels | {"setting": ablated.intervention.label}
    odd = Extend(base=tiny.pretrain(), scale=4)
    assert odd.labels["model"] == "meta_rope_yarn_384"
    names = {
        tiny.pretrain(name).labels["model"] for name in ("gpt2_ape", "pause_rope", "meta_ape", "wide_ape")
    }
    assert names == {"gpt2_ape", "pause_rope", "meta_ape", "wide_ape"}


@pytest.mark.parametrize("preset", ["smoke", "laptop", "gpu", "paper"])
def test_no_two_cells_of_a_kind_share_a_slug(preset: str) -> None:
    slugs = [(cell.kind, cell.slug) for cell in get_preset(preset).cells()]
    assert len(set(slugs)) == len(slugs)


def test_lineage_begins_at_the_pretraining() -> None:
    extended = Extend(base=tiny.pretrain(), scale=2)
    first = tiny.finetune(extended)
    second = tiny.finetune(first, train_length=96)
    ablated = Ablate(base=second, intervention=Intervention(zero_embedding=True))
    assert ablated.lineage == (extended.base, extended, first, second, ablated)
    assert ablated.root == extended.base
    assert second.result_model == extended.result_model
    assert second.id == second.fingerprint[:12]
    assert len(second.fingerprint) == 64

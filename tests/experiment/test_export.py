"""A finished cell's model in transformers, by the name of its run."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from metatok.experiment import Home, Ledger, Pretrain
from metatok.experiment.__main__ import main
from metatok.experiment.design import Context

from . import tiny


def test_a_run_is_exported_by_name_or_fingerprint(
    home: Home, ledger: Ledger, new_cell: Callable[..., Pretrain], tmp_path: Path
) -> None:
    cell = new_cell()
    tiny.run([cell], ledger, home)
    model = cell.load_model(Context(home, tiny.SETTINGS))
    for name in (cell.slug, cell.fingerprint[:10]):
        out = tmp_path / name
        assert main(["export", name, "--out", str(out), "--home", str(home.root)]) == 0
        tokens = AutoTokenizer.from_pretrained(out)("the house _PAUSE_ of", return_tensors="pt").input_ids
        assert model.cfg.meta_token_id in tokens
        theirs = AutoModelForCausalLM.from_pretrained(out)(tokens).logits
        torch.testing.assert_close(theirs, model(tokens))


def test_what_is_not_there_or_not_one_is_refused(
    home: Home,
    ledger: Ledger,
    new_cell: Callable[..., Pretrain],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cell = new_cell()
    twins = [cell, cell.model_copy(update={"steps": 4})]  # one name, two cells
    tiny.run(twins, ledger, home)
    for name, answer in (
        ("meta_rope-s99999", "no finished run with a checkpoint"),
        (cell.slug, f"2 runs are called so; give a fingerprint: {cell.id}, {twins[1].id}"),
    ):
        assert main(["export", name, "--out", str(tmp_path / "out"), "--home", str(home.root)]) == 2
        assert answer in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

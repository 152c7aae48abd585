"""A finished cell's model for transformers, found by its name in the ledger."""

from __future__ import annotations

from pathlib import Path

from metatok.errors import ConfigError
from metatok.experiment.design import Context, ModelCell, Pretrain, RunSettings, all_kinds
from metatok.experiment.home import Home
from metatok.experiment.inputs import Inputs
from metatok.experiment.ledger import Ledger, RunRecord
from metatok.model import hf


def export_cell(home: Home, ledger: Ledger, name: str, out: Path) -> str:
    """Writes the model of the run that is called `name`, or whose fingerprint starts so, to the folder `out`.

    Returns the run's kind, name and fingerprint. Errors: ConfigError unless just one finished run is meant.
    """
    record = _find(ledger, name)
    cell = ledger.cell(record.run_id)
    assert isinstance(cell, ModelCell)
    if not isinstance(cell.lineage[0], Pretrain):
        raise ConfigError(f"cell={name!r}: {cell.slug} builds on a published model; export serves ours")
    try:
        model = cell.load_model(Context(home, RunSettings()))
    except FileNotFoundError as error:
        raise ConfigError(f"cell={name!r}: {error}") from None
    tokenizer = Inputs(home.datasets).tokenizer(cell.root.tokenizer, cell.root.corpus)
    hf.export(model, tokenizer, out)
    return f"{record.kind} {record.name} ({record.fingerprint[:12]})"


def _find(ledger: Ledger, name: str) -> RunRecord:
    leaving = [kind.kind_name() for kind in all_kinds() if kind.keeps_weights]
    finished = [record for kind in leaving for record in ledger.records(kind)]
    found = [r for r in finished if r.name == name] or [r for r in finished if r.fingerprint.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(record.fingerprint[:12] for record in found)
        raise ConfigError(f"cell={name!r}: {len(found)} runs are called so; give a fingerprint: {several}")
    names = ", ".join(sorted({record.name for record in finished})[:10])
    raise ConfigError(
        f"cell={name!r}: no finished run with a checkpoint is called so; there are {names or 'none'}"
    )

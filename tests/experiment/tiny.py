"""Cells that run in a blink, and what runs them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import TokenizerConfig
from metatok.experiment import Cell, Finetune, Home, Ledger, Pretrain
from metatok.experiment.design import Context, RunSettings
from metatok.experiment.execution import OnProgress, Status, run_cells
from metatok.experiment.ledger.run import CellRun
from metatok.model import VARIANTS, GPTConfig
from metatok.tasks import Curriculum
from metatok.training import OptimConfig, loop

VOCAB = 300
BPE = TokenizerConfig(name="bpe", vocab_size=VOCAB)
CORPUS = CorpusConfig(max_documents=8, validation_fraction=0.3)
OPTIM = OptimConfig(learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=2)
SETTINGS = RunSettings(micro_batch_size=4, eval_batch_size=16, log_every=2, checkpoint_every=4)
TAGS = {"preset": "tiny", "sweep": "tests"}


def pretrain(variant: str = "meta_rope", seed: int = 0, context_length: int = 96, **fields: Any) -> Pretrain:
    shape = {"vocab_size": VOCAB, "meta_token_id": VOCAB - 1, "context_length": context_length}
    return Pretrain.model_validate(
        {
            "model": GPTConfig.variant(variant, **shape, n_layer=1, n_head=2, n_embd=16),
            "meta_fraction": 0.1 if VARIANTS[variant].injects_meta_tokens else 0.0,
            "seed": seed,
            "corpus": CORPUS,
            "tokenizer": BPE,
            "optim": OPTIM,
            "batch_size": 4,
            "steps": 8,
            "validation_sequences": 4,
            **fields,
        }
    )


def finetune(base: Cell | None = None, **fields: Any) -> Finetune:
    return Finetune.model_validate(
        {
            "base": pretrain() if base is None else base,
            "task": "parity",
            "curriculum": Curriculum.tiny(),
            "train_length": 64,
            "eval_lengths": (64, 96),
            "n_train": 60,
            "n_test": 12,
            "optim": OPTIM,
            "batch_size": 6,
            "steps": 8,
            **fields,
        }
    )


def home_with_datasets(root: Path, datasets: Path) -> Home:
    """A home at `root` that shares another one's tokenizers, shards and task data."""
    root.mkdir(parents=True)
    (root / "datasets").symlink_to(datasets)
    return Home.open(root)


def run(
    cells: list[Cell],
    ledger: Ledger,
    home: Home,
    on_progress: OnProgress = lambda progress: None,
    settings: RunSettings = SETTINGS,
) -> list[Status]:
    """How each of the cells went."""
    outcome = run_cells(cells, ledger, Context(home, settings), TAGS, on_progress)
    return [outcome[cell.fingerprint] for cell in cells]


def claimed(ledger: Ledger, cell: Cell) -> CellRun:
    run = ledger.claim(cell, TAGS)
    assert run is not None
    return run


def points(ledger: Ledger, run_id: str, curve: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in ledger.client.get_metric_history(run_id, curve)]


def limit_memory(sequences: int, set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """From now on a training pass over more than so many sequences runs out of GPU memory."""
    whole = loop.token_loss

    def token_loss(module: Any, batch: Any, *rest: Any) -> Any:
        if torch.is_grad_enabled() and len(batch.tokens) > sequences:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return whole(module, batch, *rest)

    set_attribute(loop, "token_loss", token_loss)

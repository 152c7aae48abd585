"""Task examples for other tools: as a datasets.Dataset, jsonl or parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from metatok.data.tokenizer import Tokenizer
from metatok.errors import ConfigError
from metatok.tasks.dataset import TaskDataset

if TYPE_CHECKING:
    import datasets

FORMATS = (".jsonl", ".parquet")


def to_datasets(dataset: TaskDataset, tokenizer: Tokenizer) -> datasets.Dataset:
    """A row an example: prompt and completion as text, in which a meta token reads ` _PAUSE_`;
    prompt_tokens, and tokens of prompt and completion with its end of text; task, split, seed, phase, and
    index, from which `Task.example` makes it.
    """
    import datasets  # its import takes a second

    config, n = dataset.meta["config"], len(dataset)
    columns = {
        "prompt": [tokenizer.decode(dataset.prompt(i)) for i in range(n)],
        "completion": [tokenizer.decode(dataset.completion(i)[:-1]).removeprefix(" ") for i in range(n)],
        "prompt_tokens": dataset.prompt_lengths,
        "tokens": dataset.lengths,
        **{name: [config[name]] * n for name in ("task", "split", "seed")},
        "phase": dataset.phases,
        "index": dataset.indices,
    }
    return datasets.Dataset.from_dict(columns)


def check_path(path: Path) -> None:
    """ConfigError where `write` cannot write there."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"out={str(path)!r}: give a file name ending in {' or '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"out={str(path)!r}: there is no folder {str(path.parent)!r}; make it first")


def write(rows: datasets.Dataset, path: Path) -> None:
    """As jsonl or parquet, whichever the suffix says."""
    check_path(path)
    if path.suffix == ".parquet":
        rows.to_parquet(path)
    else:
        rows.to_json(path, force_ascii=False)

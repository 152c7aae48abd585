"""From cells to work: every ancestor included, grouped into trials, with what their inputs take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from metatok.data.corpus import (
    C4_DOCUMENTS_A_FILE,
    C4_FILES,
    CorpusConfig,
    EmbeddedCorpus,
    FilesCorpus,
    open_corpus,
)
from metatok.experiment.design.cell import Cell
from metatok.experiment.inputs import InputConfig, ShardsConfig

_TOKEN_BYTES = 2  # of any vocabulary up to 65,536
_EXAMPLE_BYTES = 32  # its place, prompt length, phase and index
_CHARACTERS_A_TOKEN = {"gpt2": 4.0, "bpe": 2.5}
_C4_CHARACTERS_A_DOCUMENT = 2200


def with_ancestors(cells: Iterable[Cell]) -> list[Cell]:
    """The cells and all that they build on, each once, bases first."""
    ordered: dict[str, Cell] = {}
    for cell in cells:
        for member in cell.lineage:
            ordered.setdefault(member.fingerprint, member)
    return list(ordered.values())


def distinct_inputs(cells: Iterable[Cell]) -> list[InputConfig]:
    """The inputs of all cells, each once, in the order in which they are first needed."""
    return list(dict.fromkeys(config for cell in cells for config in cell.inputs()))


@dataclass(frozen=True)
class Trial:
    """Cells that run one after the other in one process, or one group of DDP processes."""

    cells: tuple[Cell, ...]

    @property
    def distributed(self) -> bool:
        return self.cells[0].distributed

    @property
    def needs(self) -> frozenset[str]:
        """Fingerprints of the bases that lie outside the trial."""
        own = {cell.fingerprint for cell in self.cells}
        return frozenset(p.fingerprint for cell in self.cells for p in cell.parents) - own


def trials(cells: Sequence[Cell], share_trainer: bool) -> list[Trial]:
    """Group cells (bases first) into trials, in the order of their first cells.

    A trial is all pre-trainings with their extensions of one base (of all bases, if share_trainer); the
    train lengths of one fine-tune; or all that looks at one checkpoint in one way.
    """
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.trial_key(share_trainer), []).append(cell)
    return [Trial(tuple(group)) for group in groups.values()]


def input_disk(config: InputConfig) -> int:
    """Bytes of a task data set, at most, or of a tokenised corpus, roughly.

    Errors: ConfigError where the corpus is of files that are not there.
    """
    if isinstance(config, ShardsConfig):
        return int(_corpus_text(config.corpus) / _CHARACTERS_A_TOKEN[config.tokenizer.name]) * _TOKEN_BYTES
    return config.n_examples * (_TOKEN_BYTES * config.max_tokens + _EXAMPLE_BYTES)


def _corpus_text(corpus: CorpusConfig) -> int:
    """Characters of a corpus, roughly. A compressed file is taken for text of its size."""
    if corpus.source == "c4":
        return (corpus.max_documents or C4_FILES * C4_DOCUMENTS_A_FILE) * _C4_CHARACTERS_A_DOCUMENT
    opened = open_corpus(corpus)
    assert isinstance(opened, FilesCorpus | EmbeddedCorpus)
    paths = opened.paths.values() if isinstance(opened, FilesCorpus) else opened.speeches
    return sum(path.stat().st_size for path in paths)


def places(nodes: Iterable[Mapping[str, float]], needs: Mapping[str, float]) -> int:
    """How many workers that need so much of each resource fit the nodes, each whole on one of them."""
    return sum(
        min(int(node.get(name, 0) / amount + 1e-6) for name, amount in needs.items() if amount)
        for node in nodes
    )

"""What cells read besides their bases: tokenizers, corpus shards and task data sets.

Each is made once under $METATOK_HOME/datasets, named by a hash of its description, and opened by everyone
after that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from pydantic import BaseModel

from metatok.config import Config
from metatok.data.corpus import CorpusConfig, open_corpus
from metatok.data.shards import ShardSet
from metatok.data.tokenize import Progress, finish_shards, tokenize_file, tokenize_steps
from metatok.data.tokenizer import Tokenizer, TokenizerConfig, build_tokenizer, gpt2
from metatok.tasks.curriculum import Curriculum
from metatok.tasks.dataset import TaskDataset, TaskDatasetConfig, build
from metatok.tasks.registry import get_task, task_class

TOKENIZER_DOCUMENTS = 64
TOKENIZER_EXAMPLES = 600  # of each task and phase


class ShardsConfig(Config):
    """A corpus tokenised by a tokenizer."""

    corpus: CorpusConfig
    tokenizer: TokenizerConfig


InputConfig = ShardsConfig | TaskDatasetConfig


@dataclass(frozen=True)
class Inputs:
    """Opens inputs, making them where they are missing. root: Home.datasets."""

    root: Path

    def tokenizer(self, config: TokenizerConfig, corpus: CorpusConfig) -> Tokenizer:
        """The tokenizer; a bpe is trained on the corpus' first documents and on task text."""
        path = self.tokenizer_path(config, corpus)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            tokenizer = build_tokenizer(config, _tokenizer_text(config, corpus).texts())
            tokenizer.save(path)
            return tokenizer
        return _load_tokenizer(path)

    def tokenizer_path(self, config: TokenizerConfig, corpus: CorpusConfig) -> Path:
        return self.root / f"tokenizer-{_digest(_tokenizer_text(config, corpus))}.json"

    def shards_path(self, config: ShardsConfig) -> Path:
        text = _tokenizer_text(config.tokenizer, config.corpus)
        # How much dirt is borne changes no token.
        return self.root / f"shards-{_digest(config, text, exclude={'corpus': {'max_bad_fraction'}})}"

    def tokenize(self, config: ShardsConfig, file: str, threads: int = 1) -> Iterator[Progress]:
        """Tokenise one source file of the corpus, telling its progress; a finished one is left alone."""
        tokenizer = self.tokenizer(config.tokenizer, config.corpus)
        return tokenize_steps(config.corpus, file, tokenizer, self.shards_path(config), threads)

    def finish_shards(self, config: ShardsConfig) -> ShardSet:
        """The tokenised corpus, all its files being there. Errors: ConfigError, see `finish_shards`."""
        return finish_shards(config.corpus, self.shards_path(config))

    def shards(self, config: ShardsConfig) -> ShardSet:
        """The tokenised corpus; what is missing of it is made here, in this process."""
        if not self.ready(config):
            tokenizer = self.tokenizer(config.tokenizer, config.corpus)
            for file in open_corpus(config.corpus).files:
                tokenize_file(config.corpus, file, tokenizer, self.shards_path(config))
            return self.finish_shards(config)
        return ShardSet.open(self.shards_path(config))

    def task_dataset(self, config: TaskDatasetConfig) -> TaskDataset:
        tokenizer = self.tokenizer(config.tokenizer, config.corpus)
        return build(config, tokenizer, self.task_path(config))

    def task_path(self, config: TaskDatasetConfig) -> Path:
        return self.root / f"{config.task}-{config.split}-{config.max_tokens}-{_digest(config)}"

    def paths(self, config: InputConfig) -> tuple[Path, Path]:
        """Where the input lies, and its tokenizer."""
        data = self.shards_path(config) if isinstance(config, ShardsConfig) else self.task_path(config)
        return data, self.tokenizer_path(config.tokenizer, config.corpus)

    def reads_corpus(self, config: InputConfig) -> bool:
        """Whether making the input reads the corpus' text."""
        if isinstance(config, ShardsConfig) or task_class(config.task).needs_text:
            return True
        path = self.tokenizer_path(config.tokenizer, config.corpus)
        return config.tokenizer.name == "bpe" and not path.exists()

    def ready(self, config: InputConfig) -> bool:
        """Whether the input is there already."""
        if isinstance(config, ShardsConfig):
            return (self.shards_path(config) / "index.json").exists()
        return self.task_path(config).exists()

    def check(self, configs: Iterable[InputConfig]) -> None:
        """Refuse, within seconds, inputs that are not there and cannot be made. Errors: ConfigError."""
        missing = [config for config in configs if not self.ready(config)]
        for corpus in {config.corpus for config in missing if self.reads_corpus(config)}:
            open_corpus(corpus)
        if any(config.tokenizer.name == "gpt2" for config in missing):
            gpt2()


class TokenizerText(Config):
    """What a tokenizer is made from; a ready-made encoding needs no text.

    generator: of the task text, as in TaskDatasetConfig.
    """

    config: TokenizerConfig
    corpus: CorpusConfig | None
    generator: int | None

    def texts(self) -> Iterator[str]:
        """Corpus documents and task text, so that a task word is one or two tokens."""
        if self.corpus is not None:
            corpus = open_corpus(self.corpus)
            documents = (document for file in corpus.files for document in corpus.documents(file))
            yield from islice(documents, TOKENIZER_DOCUMENTS)
            yield from task_text()


def _tokenizer_text(config: TokenizerConfig, corpus: CorpusConfig) -> TokenizerText:
    """What a tokenizer depends on: a bpe on its corpus and on the tasks."""
    if config.name != "bpe":
        return TokenizerText(config=config, corpus=None, generator=None)
    generator = TaskDatasetConfig.model_fields["generator"].default
    return TokenizerText(config=config, corpus=corpus, generator=generator)


def task_text() -> Iterator[str]:
    """Prompts and answers of the tasks that need no corpus."""
    curriculum = Curriculum()
    for name in ("list_recall", "segment_counting", "parity"):
        task = get_task(name, curriculum)
        for phase in range(1, 4):
            for index in range(TOKENIZER_EXAMPLES):
                example = task.example(phase, 0, index)
                yield "".join(example.segments) + f" {example.completion}"


def _digest(*configs: BaseModel, exclude: dict[str, set[str]] | None = None) -> str:
    content = "\n".join(config.model_dump_json(exclude=exclude) for config in configs)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@lru_cache(maxsize=4)
def _load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)

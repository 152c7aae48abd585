"""Look at a task's examples, or write them to a file: python -m metatok.tasks show | export"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.text import Text

from metatok.commands import Command, run_command
from metatok.config import LARGEST, Count, Natural, Seed
from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import Tokenizer, TokenizerConfig, gpt2
from metatok.errors import ConfigError
from metatok.tasks.base import PAUSE, Example
from metatok.tasks.curriculum import CURRICULA, CurriculumName, PhaseNumber
from metatok.tasks.dataset import Split, TaskDatasetConfig, build, encode_example
from metatok.tasks.registry import get_task, task_class, task_name
from metatok.tasks.text import corpus_text

PAPER_EXAMPLES: dict[Split, int] = {"train": 90_000, "validation": 10_000, "test": 10_000}

TaskArgument = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(help="list_recall, segment_counting, parity, copying, or your own one's name or .py file"),
]


@dataclass(frozen=True)
class Show:
    """Print examples as the paper's appendix H does, with token counts."""

    task: TaskArgument = ""
    phase: PhaseNumber = 1  # difficulty, from 1
    n: Count = 3  # how many examples
    seed: Seed = 0
    index: Natural = 0  # the first example's
    tokenizer: str = "gpt2"  # gpt2, or a tokenizer's json file
    curriculum: CurriculumName = "table6"
    corpus: CorpusConfig = field(default_factory=CorpusConfig)  # where a task that needs text finds it

    def run(self) -> None:
        text = corpus_text(self.corpus) if task_class(self.task).needs_text else None
        task = get_task(self.task, CURRICULA[self.curriculum], text)
        tokenizer = load_tokenizer(self.tokenizer)
        console = Console(highlight=False)
        for index in range(self.index, self.index + self.n):
            example = task.example(self.phase, self.seed, index)
            encoded = encode_example(example, tokenizer)
            counts = f"prompt {len(encoded.prompt)} tokens, {len(example.segments) - 1} of them meta"
            counts += f"; completion {len(encoded.completion)}, with its end of text"
            title = f"{task.name}, phase {self.phase}, seed {self.seed}, index {index}: {counts}"
            console.print(Text(title, style="bold"), highlighted(example), "", sep="\n", soft_wrap=True)


@dataclass(frozen=True)
class Export:
    """Write examples to a .jsonl or .parquet file, a row each."""

    task: TaskArgument = ""
    out: Path | None = None  # the file, ending in .jsonl or .parquet
    phase: PhaseNumber | None = None  # the one to draw from; default: all that max_tokens reaches
    split: Split = "train"
    n: Count | None = None  # how many; default: the paper's 90,000 of train, 10,000 of the others
    seed: Seed = 0
    min_tokens: Natural = 0  # the prompt has more
    max_tokens: Count | None = None  # prompt and completion have at most so many
    tokenizer: str = "gpt2"  # gpt2, or a tokenizer's json file
    curriculum: CurriculumName = "table6"
    corpus: CorpusConfig = field(default_factory=CorpusConfig)  # where a task that needs text finds it

    def run(self) -> None:
        import datasets  # its import takes a second

        from metatok.tasks import export

        task_name(self.task)
        if self.out is None:
            raise ConfigError(f"out: give the file to write, ending in {' or '.join(export.FORMATS)}")
        export.check_path(self.out)
        if self.phase is None and self.max_tokens is None:
            raise ConfigError(
                "phase, max_tokens: give at least one of them; they say which phases to draw from"
            )
        datasets.disable_progress_bars()
        tokenizer = load_tokenizer(self.tokenizer)
        bpe = {} if tokenizer.name == "gpt2" else {"name": "bpe", "vocab_size": tokenizer.vocab_size}
        config = TaskDatasetConfig(
            task=self.task,
            tokenizer=TokenizerConfig.model_validate(bpe),
            curriculum=CURRICULA[self.curriculum],
            corpus=self.corpus,
            phase=self.phase,
            split=self.split,
            min_tokens=self.min_tokens,
            max_tokens=LARGEST if self.max_tokens is None else self.max_tokens,
            n_examples=PAPER_EXAMPLES[self.split] if self.n is None else self.n,
            seed=self.seed,
        )
        with tempfile.TemporaryDirectory(prefix="metatok-") as folder:
            dataset = build(config, tokenizer, Path(folder) / "examples")
            export.write(export.to_datasets(dataset, tokenizer), self.out)
            print(
                f"{self.out}: {len(dataset):,} examples of {min(dataset.lengths)} to {max(dataset.lengths)} "
                f"tokens; {dataset.majority_share:.1%} have the commonest answer"
            )


COMMANDS: Mapping[str, type[Command]] = {"show": Show, "export": Export}


def load_tokenizer(name: str) -> Tokenizer:
    return gpt2() if name == "gpt2" else Tokenizer.load(name)


def highlighted(example: Example) -> Text:
    """Prompt and completion, the meta tokens in colour."""
    pause = Text(PAUSE, style="bold magenta")
    prompt = pause.join(Text(segment) for segment in example.segments)
    return Text.assemble(
        ("Prompt: ", "dim"), prompt, ("\nCompletion: ", "dim"), (example.completion, "green")
    )


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, 2 on a mistake, 130 on Ctrl-C."""
    return run_command(COMMANDS, "python -m metatok.tasks", __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

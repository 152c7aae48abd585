"""Fixed sets of task examples, generated once and memory-mapped by everyone who uses them.

Train, validation and test never share an example, whatever their phase, seed or length: the split is a
hash of the prompt's text.
"""

import json
import os
import shutil
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from metatok.config import Config, Count, Natural, Seed
from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import Tokenizer, TokenizerConfig
from metatok.errors import ConfigError
from metatok.randomness import generator
from metatok.tasks.base import Example, Task
from metatok.tasks.curriculum import Curriculum, PhaseNumber
from metatok.tasks.registry import TaskName, get_task, task_class
from metatok.tasks.text import corpus_text

Split = Literal["train", "validation", "test"]

# Percent of all prompts that a split may have. A prompt of another split is drawn for nothing, so the test
# sets, of which there is one for every evaluation length, get many more than their share of examples.
_SHARES: dict[Split, int] = {"validation": 10, "test": 35, "train": 55}
_PILOT = 128
_MIN_FIT = 0.02
_ARRAYS = ("tokens", "offsets", "prompt_lengths", "phases", "indices")


class TaskDatasetConfig(Config):
    """Which examples.

    The prompt has more than min_tokens, prompt and completion with its end-of-text token at most max_tokens.
    phase: the one to draw from. None draws from all that a length of `max_tokens` reaches
    (Curriculum.phases_for), each in proportion to how many of its examples have this length; where none of
    them has any, as parity's short prompts, from the next phase. A phase of which less than 2% fit is left
    out; meta.json counts the examples of each.
    """

    # Raised when the same settings give other examples, so that an old data set is not taken for them.
    generator: Literal[3] = 3
    task: TaskName
    tokenizer: TokenizerConfig = TokenizerConfig()
    curriculum: Curriculum = Curriculum()
    corpus: CorpusConfig = CorpusConfig()
    phase: PhaseNumber | None = None
    split: Split = "train"
    min_tokens: Natural = 0
    max_tokens: Count
    n_examples: Count
    seed: Seed = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_tokens >= self.max_tokens:
            raise ConfigError(
                f"min_tokens={self.min_tokens}: must be below max_tokens={self.max_tokens}; "
                "lengths lie above the one and at most at the other"
            )
        return self


def _digest(prompt: str) -> bytes:
    return blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=16, person=b"metatok-task").digest()


def split_of(prompt: str) -> Split:
    """The split a prompt belongs to, by a hash of its text."""
    return _split(_digest(prompt))


def _split(digest: bytes) -> Split:
    percent = int.from_bytes(digest[:8], "little") % 100
    for split in ("validation", "test"):
        percent -= _SHARES[split]
        if percent < 0:
            return split
    return "train"


class TaskDataset:
    """Examples as token ids, memory-mapped read-only.

    tokens          (T,) all examples' prompts and completions, end to end
    offsets         (N + 1,) where each begins
    prompt_lengths  (N,) tokens of the prompt, its last meta token included
    phases, indices (N,) with the config's seed, what `Task.example` makes the example from
    lengths         (N,) tokens of prompt and completion
    meta            counts and settings, as in meta.json
    """

    tokens: np.ndarray
    offsets: np.ndarray
    prompt_lengths: np.ndarray
    phases: np.ndarray
    indices: np.ndarray

    def __init__(self, folder: Path, meta: dict) -> None:
        self.folder = folder
        self.meta = meta
        self.meta_id: int = meta["meta_id"]
        self.eot_id: int = meta["eot_id"]
        # Share of the commonest answer: what guessing it every time would score.
        self.majority_share: float = meta["majority_share"]
        for name in _ARRAYS:
            setattr(self, name, np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
        self.lengths = np.diff(self.offsets)

    @classmethod
    def open(cls, folder: str | Path) -> "TaskDataset":
        """Raises ConfigError where the folder holds no data set."""
        folder = Path(folder)
        try:
            return cls(folder, json.loads((folder / "meta.json").read_text()))
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"data set {str(folder)!r}: not there or damaged ({error}); build it again"
            ) from error

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def prompt(self, i: int) -> np.ndarray:
        """Token ids of prompt i, (T,); the last one is a meta token."""
        start = self.offsets[i]
        return self.tokens[start : start + self.prompt_lengths[i]]

    def completion(self, i: int) -> np.ndarray:
        """Token ids of completion i, (T,), the final end-of-text id included."""
        return self.tokens[self.offsets[i] + self.prompt_lengths[i] : self.offsets[i + 1]]


def build(config: TaskDatasetConfig, tokenizer: Tokenizer, out_dir: str | Path) -> TaskDataset:
    """Generates the data set into `out_dir`, which appears complete or not at all; one there is opened.

    The result depends on config and tokenizer alone. Prompts within it are distinct as far as there are
    enough of them; meta.json's `repeated_prompts` counts those that are not.
    Raises ConfigError where the length range cannot be met, and where `out_dir` holds something else.
    """
    out_dir = Path(out_dir)
    identity = {"config": config.model_dump(mode="json"), "tokenizer_sha256": tokenizer.fingerprint}
    if out_dir.exists():
        return _open_same(out_dir, identity)
    text = corpus_text(config.corpus) if task_class(config.task).needs_text else None
    task = get_task(config.task, config.curriculum, text)
    collected = _generate(task, config, tokenizer)
    temporary = out_dir.with_name(f".{out_dir.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        _write(temporary, collected, tokenizer, identity)
        os.rename(temporary, out_dir)
    except OSError:
        # Another process may have built the same one meanwhile; then a folder is there, and rename refuses.
        if not (out_dir / "meta.json").exists():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return _open_same(out_dir, identity)


def _open_same(folder: Path, identity: dict) -> TaskDataset:
    dataset = TaskDataset.open(folder)
    if any(dataset.meta.get(name) != value for name, value in identity.items()):
        raise ConfigError(f"out_dir={str(folder)!r}: holds a data set of other settings; give another folder")
    return dataset


@dataclass
class _Collected:
    """Accepted examples in the making: all their ids end to end, and a row each in the rest."""

    tokens: array
    lengths: list[int] = field(default_factory=list)
    prompt_lengths: list[int] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class _Encoded:
    """One example's ids."""

    prompt: list[int]
    completion: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)

    def fits(self, config: TaskDatasetConfig) -> bool:
        return config.min_tokens < len(self.prompt) and len(self) <= config.max_tokens


def encode_example(example: Example, tokenizer: Tokenizer) -> _Encoded:
    """Ids of the prompt, and of the completion: a space, the answer, end of text."""
    completion = [*tokenizer.encode(f" {example.completion}"), tokenizer.eot_id]
    return _Encoded(tokenizer.encode_segments(example.segments), completion)


def _generate(task: Task, config: TaskDatasetConfig, tokenizer: Tokenizer) -> _Collected:
    """The examples, phases mixed in a random order that the seed decides."""
    shares = _fitting_phases(task, config, tokenizer)
    phases, fit = list(shares), np.array(list(shares.values()))
    rng = generator(config.seed, f"datasets/{task.name}/phases")
    order = rng.choice(len(phases), size=config.n_examples, p=fit / fit.sum()).tolist()
    wanted = Counter(order)
    result, seen = _Collected(array(np.dtype(tokenizer.dtype).char)), set[bytes]()
    streams = [
        _accepted(task, phase, config, tokenizer, wanted[i], shares[phase], seen, result)
        for i, phase in enumerate(phases)
    ]
    for i in order:
        index, example, encoded = next(streams[i])
        result.tokens.extend(encoded.prompt)
        result.tokens.extend(encoded.completion)
        result.lengths.append(len(encoded))
        result.prompt_lengths.append(len(encoded.prompt))
        result.phases.append(phases[i])
        result.indices.append(index)
        result.answers[example.completion] += 1
    return result


def _fitting_phases(task: Task, config: TaskDatasetConfig, tokenizer: Tokenizer) -> dict[int, float]:
    """The phases whose examples fit the length range, and the share that does, from a pilot."""
    shares: dict[int, float] = {}
    lengths: list[int] = []
    if config.phase is None:
        reached = config.curriculum.phases_for(config.max_tokens)
        candidates = (*reached, reached[-1] + 1)
    else:
        reached = candidates = (config.phase,)
    for phase in candidates:
        if phase not in reached and shares:
            break
        pilot = [encode_example(task.example(phase, config.seed, i), tokenizer) for i in range(_PILOT)]
        share = sum(encoded.fits(config) for encoded in pilot) / _PILOT
        lengths += map(len, pilot)
        if share >= _MIN_FIT:
            shares[phase] = share
    if not shares:
        span = (
            f"phase {candidates[0]}" if len(candidates) == 1 else f"phases {candidates[0]}-{candidates[-1]}"
        )
        raise ConfigError(
            f"min_tokens={config.min_tokens}, max_tokens={config.max_tokens}: {task.name} at curriculum "
            f"{config.curriculum.name!r}, {span}, has lengths of {min(lengths)} to "
            f"{max(lengths)} tokens; choose a range in there, another phase or another curriculum"
        )
    return shares


def _accepted(
    task: Task,
    phase: int,
    config: TaskDatasetConfig,
    tokenizer: Tokenizer,
    count: int,
    share: float,
    seen: set[bytes],
    result: _Collected,
) -> Iterator[tuple[int, Example, _Encoded]]:
    """The phase's examples of this split that fit, by index; at least `count` of them.

    A repeated prompt is dropped, up to `count` times; after that the space of prompts is taken to be small,
    and repeats are kept and counted.
    """
    droppable = count
    tries = 10_000 + int(5 * (2 * count + 20) / (share * _SHARES[config.split] / 100))
    for index in range(tries):
        example = task.example(phase, config.seed, index)
        digest = _digest(example.prompt)
        if _split(digest) != config.split:
            continue
        if digest in seen and droppable > 0:
            droppable -= 1
            continue
        encoded = encode_example(example, tokenizer)
        if not encoded.fits(config):
            continue
        result.repeated += digest in seen
        seen.add(digest)
        yield index, example, encoded
    raise ConfigError(
        f"n_examples={config.n_examples}: {task.name}, phase {phase}, split {config.split!r}, has too few "
        f"examples of more than {config.min_tokens} and at most {config.max_tokens} tokens; "
        "ask for fewer or widen the range"
    )


def _write(folder: Path, collected: _Collected, tokenizer: Tokenizer, identity: dict) -> None:
    lengths = np.array(collected.lengths, dtype=np.int64)
    arrays = {
        "tokens": np.frombuffer(collected.tokens, dtype=tokenizer.dtype),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "prompt_lengths": np.array(collected.prompt_lengths, dtype=np.int64),
        "phases": np.array(collected.phases, dtype=np.int64),
        "indices": np.array(collected.indices, dtype=np.int64),
    }
    for name in _ARRAYS:
        np.save(folder / f"{name}.npy", arrays[name])
    commonest = sorted(collected.answers.items(), key=lambda pair: (-pair[1], pair[0]))
    meta = {
        **identity,
        "n_examples": len(lengths),
        "n_tokens": int(lengths.sum()),
        "meta_id": tokenizer.meta_id,
        "eot_id": tokenizer.eot_id,
        "vocab_size": tokenizer.vocab_size,
        "majority_share": commonest[0][1] / len(lengths),
        "n_answers": len(commonest),
        "answers": dict(commonest[:20]) if len(commonest) <= 200 else {},
        "repeated_prompts": collected.repeated,
        "phases": {str(phase): count for phase, count in sorted(Counter(collected.phases).items())},
        "length_histogram": _histogram(lengths),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def _histogram(lengths: Sequence[int] | np.ndarray) -> dict[str, int]:
    """Counts by power of two: {"64": 10} = ten lengths of more than 32 and at most 64 tokens."""
    tops = Counter(1 << (int(length) - 1).bit_length() for length in lengths)
    return {str(top): tops[top] for top in sorted(tops)}

"""Tokenise once: from a corpus to the shards of metatok.data.shards.

A source file is one piece of work, done or not done; the same input gives the same bytes.
"""

import json
import os
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np

from metatok.data.corpus import Corpus, CorpusConfig, open_corpus, unusable
from metatok.data.files import replace_file
from metatok.data.shards import (
    SPLITS,
    FileManifest,
    Part,
    ShardSet,
    describe_problems,
    read_manifest,
    stem,
)
from metatok.data.tokenizer import Tokenizer
from metatok.errors import ConfigError

BATCH_CHARACTERS = 400_000
AHEAD_CHARACTERS = 4_000_000
STALE_SECONDS = 3600.0


@dataclass(frozen=True)
class Progress:
    """How far a source file is: characters read, tokens made, share of the file in [0, 1], roughly.

    `problems` counts what was wrong so far; `manifest` is there once the file is finished, and
    `already_there` where it was before this run.
    """

    characters: int
    tokens: int
    share: float
    problems: dict[str, int]
    manifest: FileManifest | None = None
    already_there: bool = False


def tokenize_file(
    corpus_config: CorpusConfig, file: str, tokenizer: Tokenizer, out_dir: str | Path, threads: int = 1
) -> FileManifest:
    """Tokenises source unit `file`; one that is already there, made from the same things, is left alone.

    Raises ConfigError where there is no such unit.
    """
    manifest = None
    for progress in tokenize_steps(corpus_config, file, tokenizer, out_dir, threads):
        manifest = progress.manifest
    assert manifest is not None
    return manifest


def tokenize_steps(
    corpus_config: CorpusConfig, file: str, tokenizer: Tokenizer, out_dir: str | Path, threads: int = 1
) -> Iterator[Progress]:
    """`tokenize_file`, telling its progress after each batch; the last one has the manifest.

    Documents are read and written here while `threads` other threads encode.
    """
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    corpus = open_corpus(corpus_config, check=False)
    key = _key(corpus, file, tokenizer)
    manifest_path = out_dir / f"{stem(file)}.json"
    finished = read_manifest(manifest_path)
    if finished is not None and finished.key == key:
        yield _finished(finished, already_there=True)
        return
    # Gone before the token files change, so that no manifest ever describes another run's files.
    manifest_path.unlink(missing_ok=True)
    problems: Counter[str] = Counter()
    writers = {split: _PartWriter(out_dir, file, split, tokenizer) for split in SPLITS}
    characters = 0
    try:
        batches = _batches(corpus.documents(file, problems))
        for encoded in _encode(batches, tokenizer, corpus_config.validation_fraction, threads):
            for split, ids in encoded.ids.items():
                writers[split].add(ids)
            characters += encoded.characters
            tokens = sum(writer.tokens for writer in writers.values())
            yield Progress(characters, tokens, corpus.share(), dict(problems))
        parts = {split: writer.finish() for split, writer in writers.items()}
    finally:
        for writer in writers.values():
            writer.discard()
    manifest = FileManifest(
        file=file,
        key=key,
        dtype=np.dtype(tokenizer.dtype).name,
        characters=characters,
        parts=parts,
        problems=dict(sorted(problems.items())),
    )
    replace_file(manifest_path, manifest.model_dump_json(indent=1).encode())
    yield _finished(manifest)


def _finished(manifest: FileManifest, already_there: bool = False) -> Progress:
    tokens = sum(part.tokens for part in manifest.parts.values())
    return Progress(manifest.characters, tokens, 1.0, manifest.problems, manifest, already_there)


def finish_shards(corpus_config: CorpusConfig, out_dir: str | Path) -> ShardSet:
    """Writes index.json over the manifests of all files of the corpus and opens the set.

    Raises ConfigError where a file is missing, they were made by different tokenizers, or more than
    `max_bad_fraction` of the corpus' documents is unusable.
    """
    out_dir = Path(out_dir)
    manifests = []
    for file in open_corpus(corpus_config, check=False).files:
        manifest = read_manifest(out_dir / f"{stem(file)}.json")
        if manifest is None:
            raise ConfigError(
                f"shards {str(out_dir)!r}: source file {file!r} is not tokenised yet; run tokenize_file on it"
            )
        manifests.append(manifest)
    documents = {split: sum(m.parts[split].documents for m in manifests) for split in SPLITS}
    index = {
        "files": [manifest.model_dump() for manifest in manifests],
        "tokens": {split: sum(m.parts[split].tokens for m in manifests) for split in SPLITS},
        "documents": documents,
    }
    good, bad = sum(documents.values()), sum(unusable(m.problems) for m in manifests)
    if bad > corpus_config.max_bad_fraction * (good + bad):
        raise ConfigError(
            f"corpus: {bad} of {good + bad} documents unusable: {describe_problems(manifests)}; "
            f"mend it or raise max_bad_fraction={corpus_config.max_bad_fraction}"
        )
    replace_file(out_dir / "index.json", json.dumps(index, indent=1).encode())
    _remove_stale(out_dir)
    return ShardSet.open(out_dir)


def split_of(text: str, validation_fraction: float) -> str:
    """The split of a document, by a hash of its text: a repeated document is never in both."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, person=b"metatok-split").digest()
    return "validation" if int.from_bytes(digest, "little") < validation_fraction * 2**64 else "train"


class _PartWriter:
    """One split's .bin and .npy under temporary names until `finish`."""

    def __init__(self, out_dir: Path, file: str, split: str, tokenizer: Tokenizer) -> None:
        self.path = out_dir / f"{stem(file)}.{split}.bin"
        self.eot_id = tokenizer.eot_id
        self.dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
        self.temporary = out_dir / f".{self.path.name}.{uuid.uuid4().hex}.tmp"
        self.stream: BinaryIO = self.temporary.open("wb")
        self.digest = sha256()
        self.tokens = 0
        self.ends = [np.zeros(1, np.int64)]

    def add(self, ids: np.ndarray) -> None:
        """Whole documents, (T,), an end of text after each."""
        data = ids.astype(self.dtype).tobytes()
        self.stream.write(data)
        self.digest.update(data)
        # Text never encodes to the end of text.
        self.ends.append(self.tokens + 1 + np.flatnonzero(ids == self.eot_id))
        self.tokens += len(ids)

    def finish(self) -> Part:
        self.stream.close()
        boundaries = self.path.with_suffix(".npy")
        ends = np.concatenate(self.ends).astype("<i8")  # (documents + 1,)
        temporary = self.temporary.with_suffix(".npy.tmp")
        with temporary.open("wb") as stream:
            np.save(stream, ends)
        os.replace(temporary, boundaries)
        os.replace(self.temporary, self.path)
        return Part(
            path=self.path.name,
            boundaries=boundaries.name,
            documents=len(ends) - 1,
            tokens=self.tokens,
            sha256=self.digest.hexdigest(),
        )

    def discard(self) -> None:
        """Removes what `finish` did not rename."""
        self.stream.close()
        self.temporary.unlink(missing_ok=True)


def _key(corpus: Corpus, file: str, tokenizer: Tokenizer) -> str:
    """Hash of everything that decides the bytes of a file's shards."""
    if file not in corpus.files:
        raise ConfigError(f"corpus file={file!r}: not one of its {len(corpus.files)} files; see corpus.files")
    config = corpus.config
    things = [
        "3",  # of how documents are read and encoded
        config.source,
        file,
        corpus.signature(file),
        config.validation_fraction,
        corpus.limit(file),
        tokenizer.fingerprint,
    ]
    return sha256(json.dumps(things).encode()).hexdigest()


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Lists of consecutive texts of about BATCH_CHARACTERS, so that memory stays flat."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        del text  # a long one is not kept while the next is read
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass(frozen=True)
class _Encoded:
    """A batch: its characters, and the ids of each split's documents, (T,) uint32."""

    characters: int
    ids: dict[str, np.ndarray]


def _encode(
    batches: Iterator[list[str]], tokenizer: Tokenizer, validation_fraction: float, threads: int
) -> Iterator[_Encoded]:
    """The batches encoded, in order, by `threads` threads that work ahead by AHEAD_CHARACTERS."""

    def work(texts: list[str]) -> _Encoded:
        splits: dict[str, list[str]] = {split: [] for split in SPLITS}
        for text in texts:
            splits[split_of(text, validation_fraction)].append(text)
        ids = {split: tokenizer.encode_documents(chosen) for split, chosen in splits.items()}
        return _Encoded(sum(map(len, texts)), ids)

    waiting: deque[tuple[int, Future[_Encoded]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for texts in batches:
            waiting.append((sum(map(len, texts)), pool.submit(work, texts)))
            del texts
            while sum(size for size, _ in waiting) > AHEAD_CHARACTERS or len(waiting) > 1 + 2 * threads:
                yield waiting.popleft()[1].result()
        while waiting:
            yield waiting.popleft()[1].result()


def _remove_stale(folder: Path) -> None:
    """Removes what killed processes left; another sweep's that is at work on the same set is younger."""
    for path in folder.glob(".*.tmp"):
        if time.time() - path.stat().st_mtime > STALE_SECONDS:
            path.unlink(missing_ok=True)

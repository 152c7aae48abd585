"""Tokenise once: a corpus file becomes token files that are memory-mapped from then on.

A source file F gives, for each split, F.<split>.bin (token ids, little-endian uint16 or uint32, an
end-of-text id after each document) and F.<split>.npy (document boundaries, int64, documents + 1), and
F.json, its manifest, which is written last: a file with a manifest is finished. The same input gives the
same bytes. index.json gathers the manifests of a set.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from metatok.data.corpus import Corpus, CorpusConfig, open_corpus
from metatok.data.tokenizer import Tokenizer
from metatok.errors import ConfigError

SPLITS = ("train", "validation")
BATCH_CHARACTERS = 4_000_000


class Part(BaseModel):
    """One split of one source file; `sha256` is of the .bin file."""

    model_config = ConfigDict(frozen=True)

    path: str
    boundaries: str
    documents: int
    tokens: int
    sha256: str


class FileManifest(BaseModel):
    """What became of one source file. `key` identifies all that decides its bytes."""

    model_config = ConfigDict(frozen=True)

    file: str
    key: str
    dtype: str
    characters: int
    parts: dict[str, Part]
    problems: dict[str, int]


def tokenize_file(
    corpus_config: CorpusConfig,
    file: str,
    tokenizer: Tokenizer,
    out_dir: str | Path,
    threads: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> FileManifest:
    """Tokenises source unit `file`; one that is already there, made from the same things, is left alone.

    `on_progress(characters, tokens)` is called after each batch with the totals so far.
    Raises ConfigError where the file cannot be used.
    """
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    corpus = open_corpus(corpus_config)
    key = _key(corpus, file, tokenizer)
    manifest_path = out_dir / f"{_stem(file)}.json"
    finished = _read_manifest(manifest_path)
    if finished is not None and finished.key == key:
        return finished
    # Gone before the token files change, so that no manifest ever describes another run's files.
    manifest_path.unlink(missing_ok=True)
    problems: Counter[str] = Counter()
    writers = {split: _PartWriter(out_dir, file, split, tokenizer.dtype) for split in SPLITS}
    characters = tokens = 0
    try:
        for texts in _batches(corpus.documents(file, problems)):
            for text, ids in zip(texts, tokenizer.encode_batch(texts, threads), strict=True):
                writers[split_of(text, corpus_config.validation_fraction)].add(ids, tokenizer.eot_id)
                characters += len(text)
                tokens += len(ids) + 1
            if on_progress is not None:
                on_progress(characters, tokens)
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
    _write_text(manifest_path, manifest.model_dump_json(indent=1))
    return manifest


def finish_shards(out_dir: str | Path, files: Sequence[str]) -> "ShardSet":
    """Writes index.json over the manifests of `files` and opens the set.

    Raises ConfigError where one is missing, or where they were made by different tokenizers.
    """
    out_dir = Path(out_dir)
    manifests = []
    for file in sorted(files):
        manifest = _read_manifest(out_dir / f"{_stem(file)}.json")
        if manifest is None:
            raise ConfigError(
                f"shards {str(out_dir)!r}: source file {file!r} is not tokenised yet; run tokenize_file on it"
            )
        manifests.append(manifest)
    index = {
        "files": [manifest.model_dump() for manifest in manifests],
        "tokens": {split: sum(m.parts[split].tokens for m in manifests) for split in SPLITS},
        "documents": {split: sum(m.parts[split].documents for m in manifests) for split in SPLITS},
    }
    _write_text(out_dir / "index.json", json.dumps(index, indent=1))
    return ShardSet.open(out_dir)


def split_of(text: str, validation_fraction: float) -> str:
    """The split of a document, by a hash of its text: a repeated document is never in both."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, person=b"metatok-split").digest()
    return "validation" if int.from_bytes(digest, "little") < validation_fraction * 2**64 else "train"


class TokenStream:
    """The tokens of several arrays as one sequence."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = list(arrays)
        self._ends = np.cumsum([len(array) for array in self._arrays], dtype=np.int64)  # (arrays,)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, item: slice) -> np.ndarray:
        """Tokens of a slice without a step, (T,) int64."""
        start, stop, step = item.indices(len(self))
        assert step == 1
        return self.read(np.array([start]), max(0, stop - start))[0]

    def read(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Windows of `length` tokens from each of `starts` (B,): (B, length) int64."""
        windows = np.empty((len(starts), length), dtype=np.int64)  # (B, length)
        shards = np.searchsorted(self._ends, starts, side="right").tolist()
        for window, start, shard in zip(windows, starts.tolist(), shards, strict=True):
            assert 0 <= start <= len(self) - length
            filled = 0
            while filled < length:
                array = self._arrays[shard]
                offset = start + filled - (int(self._ends[shard]) - len(array))
                piece = array[offset : offset + length - filled]
                window[filled : filled + len(piece)] = piece
                filled += len(piece)
                shard += 1
        return windows


class ShardSet:
    """A finished set of shards, memory-mapped: `train` and `validation` token streams.

    `manifests` tell the source files, `problems` what was wrong in them, all files together.
    """

    def __init__(self, folder: Path, manifests: Sequence[FileManifest]) -> None:
        self.folder = folder
        self.manifests = list(manifests)
        self.train = TokenStream([_map(folder, m, "train") for m in manifests])
        self.validation = TokenStream([_map(folder, m, "validation") for m in manifests])
        self.problems: Counter[str] = Counter()
        for manifest in manifests:
            self.problems.update(manifest.problems)

    @classmethod
    def open(cls, folder: str | Path) -> "ShardSet":
        """Raises ConfigError where the folder holds no finished set, or a token file has another size."""
        folder = Path(folder)
        try:
            index = json.loads((folder / "index.json").read_text())
            manifests = [FileManifest.model_validate(entry) for entry in index["files"]]
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"shards {str(folder)!r}: no finished set ({type(error).__name__}); tokenise the corpus first"
            ) from error
        if len({manifest.dtype for manifest in manifests}) > 1:
            raise ConfigError(
                f"shards {str(folder)!r}: files of different vocabularies; tokenise into an empty folder"
            )
        return cls(folder, manifests)


class _PartWriter:
    """One split's .bin and .npy under temporary names until `finish`."""

    def __init__(self, out_dir: Path, file: str, split: str, dtype: type[np.unsignedinteger]) -> None:
        self.path = out_dir / f"{_stem(file)}.{split}.bin"
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.temporary = out_dir / f".{self.path.name}.{os.getpid()}.tmp"
        self.stream: BinaryIO = self.temporary.open("wb")
        self.digest = sha256()
        self.boundaries = [0]

    def add(self, ids: np.ndarray, eot_id: int) -> None:
        data = np.append(ids, np.uint32(eot_id)).astype(self.dtype).tobytes()
        self.stream.write(data)
        self.digest.update(data)
        self.boundaries.append(self.boundaries[-1] + len(ids) + 1)

    def finish(self) -> Part:
        self.stream.close()
        boundaries = self.path.with_suffix(".npy")
        temporary = self.temporary.with_suffix(".npy.tmp")
        with temporary.open("wb") as stream:
            np.save(stream, np.array(self.boundaries, dtype="<i8"))
        os.replace(temporary, boundaries)
        os.replace(self.temporary, self.path)
        return Part(
            path=self.path.name,
            boundaries=boundaries.name,
            documents=len(self.boundaries) - 1,
            tokens=self.boundaries[-1],
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
        "1",
        config.source,
        file,
        corpus.signature(file),
        config.validation_fraction,
        corpus.limit(file),
        config.max_bad_fraction,
        tokenizer.fingerprint,
    ]
    return sha256(json.dumps(things).encode()).hexdigest()


def _stem(file: str) -> str:
    return quote(file, safe=" ")


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Lists of consecutive texts of about BATCH_CHARACTERS, so that memory stays flat."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_manifest(path: Path) -> FileManifest | None:
    """The manifest, or None where there is none, it is damaged, or a token file is not there in full."""
    try:
        manifest = FileManifest.model_validate_json(path.read_text())
    except (OSError, ValidationError):
        return None
    width = np.dtype(manifest.dtype).itemsize
    for part in manifest.parts.values():
        data = path.parent / part.path
        if not data.is_file() or data.stat().st_size != part.tokens * width:
            return None
        if not (path.parent / part.boundaries).is_file():
            return None
    return manifest


def _map(folder: Path, manifest: FileManifest, split: str) -> np.ndarray:
    """The tokens of one part, (T,), memory-mapped."""
    part = manifest.parts[split]
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    if part.tokens == 0:
        return np.empty(0, dtype)
    path = folder / part.path
    if not path.is_file() or path.stat().st_size != part.tokens * dtype.itemsize:
        raise ConfigError(f"shards {str(folder)!r}: {part.path} is missing or cut short; tokenise again")
    return np.memmap(path, dtype=dtype, mode="r")


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)

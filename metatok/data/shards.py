"""A tokenised corpus: token files that are memory-mapped.

A source file F gives, for each split, F.<split>.bin (token ids, little-endian uint16 or uint32, an
end-of-text id after each document) and F.<split>.npy (document boundaries, int64, documents + 1), and
F.json, its manifest, which is written last: a file with a manifest is finished. index.json gathers the
manifests of a set. metatok.data.tokenize makes them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from metatok.errors import ConfigError

SPLITS = ("train", "validation")


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


def describe_problems(manifests: Iterable[FileManifest]) -> str:
    """What was wrong in source files, in one line, the worst files named; "" where nothing was."""
    total: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for manifest in manifests:
        total.update(manifest.problems)
        files[manifest.file] += sum(manifest.problems.values())
    if not total:
        return ""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(total.items()))
    worst = ", ".join(f"{file} ({count:,})" for file, count in files.most_common(3) if count)
    return f"{kinds}; most in {worst}"


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


def stem(file: str) -> str:
    """What the names of a source file's shards begin with."""
    return quote(file, safe=" ")


def read_manifest(path: Path) -> FileManifest | None:
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
    # A plain view: slicing a memmap costs several times more.
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)

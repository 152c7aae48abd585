"""The documents of one local file, as far as it can be read: JSON lines, parquet or plain text, in UTF-8."""

import codecs
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".parquet", ".txt")
READ_BYTES = 2**20
UNPACKED_BYTES = 2**16
MAX_LINE_BYTES = 2**27
TEXT_CHARACTERS = 2**20
ROWS = 256
# By the mark at a file's head; UTF-32's little-endian one begins as UTF-16's does.
_OTHER_ENCODINGS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_documents(name: str, raw: BinaryIO, problems: Counter[str]) -> Iterator[str]:
    """The documents of a file of this name. Errors, where it is damaged: EOFError, zlib.error, OSError."""
    if name.endswith(".parquet"):
        return _read_parquet(raw, problems)
    if name.endswith(".txt"):
        return _read_text(raw, problems)
    if name.endswith(".gz"):
        return _read_json_lines(io.BufferedReader(_Unpacked(raw), UNPACKED_BYTES), problems)
    return _read_json_lines(raw, problems)


def marked_encoding(path: Path) -> str | None:
    """The encoding, other than UTF-8, that the mark at a file's head names. Errors: OSError, the system's."""
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as stream:
            head = stream.read(4)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return None  # reading it tells
    return next((encoding for mark, encoding in _OTHER_ENCODINGS.items() if head.startswith(mark)), None)


def _decode(raw: bytes, problems: Counter[str]) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        problems["invalid UTF-8 (kept)"] += 1
        return raw.decode("utf-8", "replace")


class _Unpacked(io.RawIOBase):
    """A gzip stream to buffer: GzipFile's own readline is slow, its read drops what precedes damage."""

    def __init__(self, raw: BinaryIO) -> None:
        self._stream = gzip.GzipFile(fileobj=raw)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        data = self._stream.read1(len(view))
        view[: len(data)] = data
        return len(data)


def _read_json_lines(stream: BinaryIO | io.BufferedReader, problems: Counter[str]) -> Iterator[str]:
    for line in iter(lambda: stream.readline(MAX_LINE_BYTES), b""):
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            problems["line over 128 MiB"] += 1
            while line and not line.endswith(b"\n"):
                line = stream.readline(MAX_LINE_BYTES)
            continue
        line = line.removeprefix(codecs.BOM_UTF8)  # at the head of a file, or of one that was appended
        if not line or line.isspace():
            continue
        # Names are unbound as soon as they can be: a document may be long.
        decoded = _decode(line, problems)
        del line
        try:
            row = json.loads(decoded)
        except (ValueError, RecursionError):
            problems["broken JSON line"] += 1
            continue
        text = row.get("text") if isinstance(row, dict) else None
        del decoded, row
        if isinstance(text, str):
            yield text
        else:
            problems["no text field"] += 1
        del text


def _read_text(raw: BinaryIO, problems: Counter[str]) -> Iterator[str]:
    # Undecodable bytes come out as lone surrogates, so that they can be told from a U+FFFD in the text.
    stream = io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape", newline="")
    mark = "\ufeff"
    while text := stream.read(TEXT_CHARACTERS):
        text = text.removeprefix(mark) + stream.readline(TEXT_CHARACTERS)
        mark = ""  # further on it is the text's own
        try:
            text.encode()
        except UnicodeEncodeError:
            text = _decode(text.encode("utf-8", "surrogateescape"), problems)
        if text:
            yield text


def _read_parquet(raw: BinaryIO, problems: Counter[str]) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        # Read as it is needed: a row group may be the whole file.
        table = pyarrow.parquet.ParquetFile(raw, buffer_size=READ_BYTES, pre_buffer=False)
        if "text" not in table.schema_arrow.names:
            problems["no column 'text'"] += table.metadata.num_rows
            return
        for batch in table.iter_batches(batch_size=ROWS, columns=["text"]):
            for text in batch.column(0).to_pylist():
                if isinstance(text, str):
                    yield text
                else:
                    problems["no text field"] += 1
    except pyarrow.ArrowInvalid:
        problems["file cut short or damaged (ArrowInvalid)"] += 1

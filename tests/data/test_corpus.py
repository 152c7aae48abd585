"""Corpora: every source gives its documents, dirt is counted, mistakes are told at once."""

import codecs
import gzip
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from metatok.data import corpus as module
from metatok.data import formats
from metatok.data.corpus import Corpus, CorpusConfig, open_corpus, unusable
from metatok.errors import ConfigError


def files(*paths: Path | str, **fields: object) -> CorpusConfig:
    return CorpusConfig.model_validate({"source": "files", "paths": tuple(map(str, paths)), **fields})


def documents(corpus: Corpus) -> list[str]:
    return [text for file in corpus.files for text in corpus.documents(file)]


def json_lines(*texts: str) -> str:
    return "".join(json.dumps({"text": text, "url": "x"}) + "\n" for text in texts)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "text"
    (root / "sub").mkdir(parents=True)
    (root / "a.json").write_text(json_lines("one", "two"))
    with gzip.open(root / "b.json.gz", "wt") as stream:
        stream.write(json_lines("three _PAUSE_", "four"))
    (root / "sub" / "c.jsonl").write_text(json_lines("five"))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["six", "seven"], "n": [1, 2]}), root / "d.parquet")
    (root / "e.txt").write_text("eight\nstill eight")
    (root / "README.md").write_text("not read")
    return root


def test_the_embedded_corpus_is_whole_in_few_units() -> None:
    corpus = open_corpus(CorpusConfig())
    assert len(corpus.files) == 8
    texts = documents(corpus)
    assert len(texts) == len(set(texts)) == 249
    assert sum(map(len, texts)) > 10_000_000


def test_local_files_of_every_kind(folder: Path) -> None:
    corpus = open_corpus(files(folder))
    assert corpus.files == ["a.json", "b.json.gz", "d.parquet", "e.txt", "sub/c.jsonl"]
    expected = ["one", "two", "three _PAUSE_", "four", "six", "seven", "eight\nstill eight", "five"]
    assert documents(corpus) == expected
    assert documents(open_corpus(files(folder / "*.json", folder / "b*"))) == expected[:4]


def test_max_documents_is_shared_by_the_files(folder: Path) -> None:
    for limit in (1, 2, 5):
        assert len(documents(open_corpus(files(folder, max_documents=limit)))) <= limit
    assert len(documents(open_corpus(CorpusConfig(max_documents=20)))) == 20


def test_dirt_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    good = json_lines(*(f"document {i}" for i in range(200))).encode()
    dirt = (
        b'{"text": "cut\n'
        + b'{"url": "no text"}\n'
        + b'{"text": ""}\n'
        + b'{"text": "a\\u0000b"}\n'
        + b"[]\n"
    )
    dirt += b'{"text": "bad \xff bytes"}\n' + b'{"text": "half \\ud83d pair"}\n'
    (tmp_path / "a.json").write_bytes(good + dirt)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(good * 50)[:-2000])
    corpus = open_corpus(files(tmp_path))
    problems: Counter[str] = Counter()
    texts = list(corpus.documents("a.json", problems))
    assert texts[200:] == ["a\0b", "bad � bytes", "half � pair"]
    assert problems == {
        "broken JSON line": 1,
        "no text field": 2,
        "empty text": 1,
        "NUL characters (kept)": 1,
        "invalid UTF-8 (kept)": 1,
        "lone surrogates (kept)": 1,
    }
    assert unusable(problems) == 4
    problems.clear()
    assert len(list(corpus.documents("b.json.gz", problems))) > 100
    assert problems == {"file cut short or damaged (EOFError)": 1}


def test_damaged_files_of_every_kind_are_read_as_far_as_they_go(folder: Path) -> None:
    rows = [f"row {i} " + "x" * (i * i % 977) for i in range(5000)]
    pyarrow.parquet.write_table(
        pyarrow.table({"text": [*rows, None]}), folder / "d.parquet", row_group_size=1000, compression="zstd"
    )
    pyarrow.parquet.write_table(pyarrow.table({"body": ["x", "y"]}), folder / "f.parquet")
    (folder / "g.parquet").write_bytes(b"junk")
    (folder / "h.json.gz").write_bytes(b"not gzip")
    packed = bytearray(gzip.compress(json_lines(*rows).encode()))
    packed[-5] ^= 255  # of the checksum
    (folder / "i.jsonl.gz").write_bytes(packed)
    (folder / "j.txt").write_bytes(b"\xff and \xef\xbf\xbd")
    (folder / "k.txt").write_bytes("a \ufffd of the text's own".encode())
    (folder / "l.txt").write_bytes(b"")
    corpus = open_corpus(files(folder))
    problems = {file: Counter[str]() for file in corpus.files}
    texts = {file: list(corpus.documents(file, problems[file])) for file in corpus.files}
    assert texts["d.parquet"] == rows
    assert problems["d.parquet"] == {"no text field": 1}
    assert problems["f.parquet"] == {"no column 'text'": 2}
    assert problems["g.parquet"] == {"file cut short or damaged (ArrowInvalid)": 1}
    assert problems["h.json.gz"] == problems["i.jsonl.gz"] == {"file cut short or damaged (BadGzipFile)": 1}
    assert texts["i.jsonl.gz"] == rows[: len(texts["i.jsonl.gz"])]
    assert len(texts["i.jsonl.gz"]) > 4000
    assert (texts["j.txt"], problems["j.txt"]) == (["\ufffd and \ufffd"], {"invalid UTF-8 (kept)": 1})
    assert (texts["k.txt"], problems["k.txt"]) == (["a \ufffd of the text's own"], {})
    assert (texts["l.txt"], problems["l.txt"]) == ([], {})
    data = bytearray((folder / "d.parquet").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 400] = bytes(400)
    (folder / "d.parquet").write_bytes(data)
    problems["d.parquet"].clear()
    assert 0 < len(list(corpus.documents("d.parquet", problems["d.parquet"]))) < 5000
    assert [kind for kind in problems["d.parquet"] if kind.startswith("file cut short or damaged")]


def test_huge_files_and_lines_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "TEXT_CHARACTERS", 100)
    monkeypatch.setattr(formats, "MAX_LINE_BYTES", 120)
    lines = [f"line {i} of a long text\r\n" for i in range(50)]
    (tmp_path / "a.txt").write_bytes("".join(lines).encode())
    (tmp_path / "b.txt").write_text("x" * 450)
    (tmp_path / "c.json").write_text(json_lines("one", "y" * 500, "two", "z" * 120))
    corpus = open_corpus(files(tmp_path))
    texts = list(corpus.documents("a.txt"))
    assert "".join(texts) == "".join(lines)
    assert all(text.endswith("\n") and 100 <= len(text) < 130 for text in texts[:-1])
    assert "".join(corpus.documents("b.txt")) == "x" * 450
    problems: Counter[str] = Counter()
    assert list(corpus.documents("c.json", problems)) == ["one", "two"]
    assert problems == {"line over 128 MiB": 2}


def test_the_share_read_grows_to_all(folder: Path) -> None:
    (folder / "a.json").write_text(json_lines(*["word " * 50] * 20_000))
    (folder / "b.json.gz").write_bytes(gzip.compress((folder / "a.json").read_bytes(), 1))
    corpus = open_corpus(files(folder))
    for file in corpus.files:
        shares = [corpus.share() for _ in corpus.documents(file)]
        assert shares == sorted(shares)
        assert 0 <= shares[0] < 0.5 or len(shares) < 3
        assert corpus.share() == 1.0


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz", "a.jsonl.gz", "a.txt"])
def test_a_byte_order_mark_costs_no_document(tmp_path: Path, name: str) -> None:
    plain = b"one\ntwo" if name == "a.txt" else json_lines("one", "two").encode()
    read = {}
    for head, folder in ((b"", "plain"), (codecs.BOM_UTF8, "marked")):
        path = tmp_path / folder / name
        path.parent.mkdir()
        path.write_bytes(gzip.compress(head + plain) if name.endswith(".gz") else head + plain)
        problems: Counter[str] = Counter()
        read[folder] = list(open_corpus(files(path)).documents(name, problems))
        assert not problems
    assert read["marked"] == read["plain"] != []


def test_a_file_of_a_byte_order_mark_alone_is_empty(tmp_path: Path) -> None:
    for name in ("a.json", "b.txt"):
        (tmp_path / name).write_bytes(codecs.BOM_UTF8)
    assert documents(open_corpus(files(tmp_path))) == []


def test_further_on_the_mark_is_the_texts_own(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json_lines("one \ufeff two"))
    (tmp_path / "b.txt").write_text("\ufeff\ufeffthree \ufeff")
    assert documents(open_corpus(files(tmp_path))) == ["one \ufeff two", "\ufeffthree \ufeff"]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz", "a.txt"])
@pytest.mark.parametrize("encoding", ["UTF-16-LE", "UTF-16-BE", "UTF-32-LE", "UTF-32-BE"])
def test_another_encoding_is_refused_by_name(tmp_path: Path, name: str, encoding: str) -> None:
    text = ("\ufeff" + json_lines("one")).encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    with pytest.raises(ConfigError, match=rf"{name}' is {encoding[:6]}; convert it to UTF-8") as refused:
        open_corpus(files(tmp_path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "not there"),
        ("*.json", "glob matches no file"),
        ("empty", "the folder holds none of"),
        ("notes.md", "unknown kind"),
    ],
)
def test_wrong_paths_are_told_at_once(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(ConfigError, match=message):
        open_corpus(files(tmp_path / path))


def test_other_mistakes_are_told() -> None:
    with pytest.raises(ValueError, match="source='files' needs at least one"):
        CorpusConfig(source="files")
    with pytest.raises(ValueError, match="only source='files' reads them"):
        CorpusConfig(paths=("x",))


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The address of a server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_an_unreachable_hub_is_told_within_seconds(
    monkeypatch: pytest.MonkeyPatch, silent_server: str
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for endpoint in ("http://127.0.0.1:9", silent_server):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        start = time.monotonic()
        with pytest.raises(ConfigError, match=r"source='c4'.*out of reach.*source='files'.*'embedded'"):
            open_corpus(CorpusConfig(source="c4"))
        assert time.monotonic() - start < 5
    # The tasks of a sweep that asked once do not ask again.
    assert len(open_corpus(CorpusConfig(source="c4"), check=False).files) == 1024
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        open_corpus(CorpusConfig(source="c4"))


def test_c4_is_streamed_through_datasets(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(module, "check_hub", lambda: None)
    monkeypatch.setattr(module.C4Corpus, "url", lambda self, file: str(folder / "b.json.gz"))
    corpus = open_corpus(CorpusConfig(source="c4"))
    assert len(corpus.files) == 1024
    assert corpus.files[0] == "c4-train.00000-of-01024.json.gz"
    assert list(corpus.documents(corpus.files[0])) == ["three _PAUSE_", "four"]
    assert len(open_corpus(CorpusConfig(source="c4", max_documents=10)).files) == 1
    (folder / "b.json.gz").unlink()
    with pytest.raises(ConnectionError, match=r"c4-train.00000.*the same command again"):
        list(corpus.documents(corpus.files[0]))

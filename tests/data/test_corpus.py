"""Corpora: every source gives its documents, dirt is counted, mistakes are told at once."""

import gzip
import json
import time
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from metatok.data import corpus as module
from metatok.data.corpus import Corpus, CorpusConfig, open_corpus
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
    problems.clear()
    assert len(list(corpus.documents("b.json.gz", problems))) > 100
    assert problems["file cut short (EOFError)"] == 1
    strict = open_corpus(files(tmp_path, max_bad_fraction=0.0))
    with pytest.raises(ConfigError, match=r"4 of 207 documents unusable .*raise max_bad_fraction=0.0"):
        list(strict.documents("a.json"))


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


def test_other_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="source='files' needs at least one"):
        CorpusConfig(source="files")
    with pytest.raises(ValueError, match="only source='files' reads them"):
        CorpusConfig(paths=("x",))
    pyarrow.parquet.write_table(pyarrow.table({"body": ["x"]}), tmp_path / "d.parquet")
    with pytest.raises(ConfigError, match="no column 'text'"):
        documents(open_corpus(files(tmp_path)))


def test_an_unreachable_hub_is_told_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"source='c4'.*out of reach.*source='files'"):
        open_corpus(CorpusConfig(source="c4"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        open_corpus(CorpusConfig(source="c4"))
    assert time.monotonic() - start < 5


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

"""Shards: the corpus' tokens, once, the same bytes, resumable; streams that read across files."""

import json
from pathlib import Path

import numpy as np
import pytest

from metatok.data import shards as module
from metatok.data.corpus import CorpusConfig, open_corpus
from metatok.data.shards import ShardSet, TokenStream, finish_shards, split_of, tokenize_file
from metatok.data.tokenizer import Tokenizer, gpt2
from metatok.errors import ConfigError

TEXTS = [[f"document {i} of file {file}, with <|endoftext|> in it" for i in range(60)] for file in range(3)]


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusConfig:
    folder = tmp_path / "text"
    folder.mkdir()
    for file, texts in enumerate(TEXTS):
        (folder / f"{file}.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return CorpusConfig(source="files", paths=(str(folder),), validation_fraction=0.2)


def build(corpus: CorpusConfig, out: Path, tokenizer: Tokenizer | None = None) -> ShardSet:
    names = open_corpus(corpus).files
    for name in names:
        tokenize_file(corpus, name, tokenizer or gpt2(), out)
    return finish_shards(out, names)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_streams_hold_every_document_in_its_split(corpus: CorpusConfig, tmp_path: Path) -> None:
    shards = build(corpus, tmp_path / "out")
    for split, stream in (("train", shards.train), ("validation", shards.validation)):
        expected = [text for texts in TEXTS for text in texts if split_of(text, 0.2) == split]
        ids = [i for text in expected for i in [*gpt2().encode(text), gpt2().eot_id]]
        assert stream[:].tolist() == ids
        assert len(stream) == len(ids)
        assert len(expected) > 10
    assert shards.train[:1].dtype == np.int64
    manifest = shards.manifests[0]
    assert manifest.dtype == "uint16"
    part = manifest.parts["train"]
    boundaries = np.load(tmp_path / "out" / part.boundaries)
    assert len(boundaries) == part.documents + 1
    assert boundaries[-1] == part.tokens
    data = np.fromfile(tmp_path / "out" / part.path, "<u2")
    assert (data[boundaries[1:] - 1] == gpt2().eot_id).all()


def test_the_same_corpus_gives_the_same_bytes(
    corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(corpus, tmp_path / "a")
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 100)
    for name in reversed(open_corpus(corpus).files):
        tokenize_file(corpus, name, gpt2(), tmp_path / "b", threads=2)
    finish_shards(tmp_path / "b", open_corpus(corpus).files)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_killed_run_redoes_only_the_unfinished_file(
    corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = build(corpus, tmp_path / "a")
    out = tmp_path / "b"
    tokenize_file(corpus, "0.json", gpt2(), out)
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 200)

    def die(characters: int, tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize_file(corpus, "1.json", gpt2(), out, on_progress=die)
    assert not list(out.glob(".*"))
    assert not list(out.glob("1.json*"))
    with pytest.raises(ConfigError, match=r"'1.json' is not tokenised yet"):
        finish_shards(out, open_corpus(corpus).files)
    before = (out / "0.json.train.bin").stat().st_mtime_ns
    resumed = build(corpus, out)
    assert (out / "0.json.train.bin").stat().st_mtime_ns == before
    assert contents(tmp_path / "a") == contents(out)
    assert resumed.train[:].tolist() == whole.train[:].tolist()


def test_other_settings_and_damage_are_done_again(corpus: CorpusConfig, tmp_path: Path) -> None:
    build(corpus, tmp_path / "a")
    reference = contents(tmp_path / "a")
    binary = tmp_path / "a" / "2.json.train.bin"
    binary.write_bytes(binary.read_bytes()[:-2])
    with pytest.raises(ConfigError, match=r"2.json.train.bin is missing or cut short"):
        ShardSet.open(tmp_path / "a")
    build(corpus, tmp_path / "a")
    assert contents(tmp_path / "a") == reference
    build(corpus.model_copy(update={"validation_fraction": 0.0}), tmp_path / "a")
    assert len(ShardSet.open(tmp_path / "a").validation) == 0


def test_a_large_vocabulary_takes_uint32(corpus: CorpusConfig, tmp_path: Path) -> None:
    ranks = {bytes([i]): i for i in range(256)}
    ranks |= {f"{i:05d}".encode(): 256 + i for i in range(70_000)}
    shards = build(corpus, tmp_path / "out", Tokenizer("bpe", ranks))
    assert shards.manifests[0].dtype == "uint32"
    assert shards.train[:].max() == 70_256


def test_windows_are_read_across_arrays() -> None:
    arrays = [np.arange(0, 5), np.arange(0, 0), np.arange(5, 6), np.arange(6, 20)]
    stream = TokenStream(arrays)
    starts = np.array([0, 3, 4, 5, 13])
    assert stream.read(starts, 7).tolist() == [list(range(start, start + 7)) for start in starts]
    assert stream[2:9].tolist() == list(range(2, 9))
    assert stream[19:50].tolist() == [19]
    assert len(TokenStream([])) == 0


def test_no_set_is_told(tmp_path: Path, corpus: CorpusConfig) -> None:
    with pytest.raises(ConfigError, match="no finished set"):
        ShardSet.open(tmp_path)
    with pytest.raises(ConfigError, match="not one of its 3 files"):
        tokenize_file(corpus, "9.json", gpt2(), tmp_path / "out")

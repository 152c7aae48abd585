"""Shards: the corpus' tokens, once, the same bytes, resumable; streams that read across files."""

import json
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from metatok.data import tokenize as module
from metatok.data.corpus import CorpusConfig, open_corpus
from metatok.data.shards import ShardSet, TokenStream, describe_problems
from metatok.data.tokenize import finish_shards, split_of, tokenize_file, tokenize_steps
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
    for name in open_corpus(corpus).files:
        tokenize_file(corpus, name, tokenizer or gpt2(), out)
    return finish_shards(corpus, out)


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
    monkeypatch.setattr(module, "AHEAD_CHARACTERS", 300)
    for name in reversed(open_corpus(corpus).files):
        tokenize_file(corpus, name, gpt2(), tmp_path / "b", threads=3)
    finish_shards(corpus, tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_manifest_has_the_token_files_sha256(corpus: CorpusConfig, tmp_path: Path) -> None:
    for manifest in build(corpus, tmp_path).manifests:
        for part in manifest.parts.values():
            assert part.sha256 == sha256((tmp_path / part.path).read_bytes()).hexdigest()


KILLED = """
import os, signal, sys
from metatok.data import tokenize
from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import gpt2

tokenize.BATCH_CHARACTERS = 200
corpus = CorpusConfig.model_validate_json(sys.argv[1])
tokenize.tokenize_file(corpus, "0.json", gpt2(), sys.argv[2])
for progress in tokenize.tokenize_steps(corpus, "1.json", gpt2(), sys.argv[2]):
    if progress.tokens > 300:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_redoes_only_the_unfinished_file(
    corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = build(corpus, tmp_path / "a")
    out = tmp_path / "b"
    killed = subprocess.run([sys.executable, "-c", KILLED, corpus.model_dump_json(), str(out)])
    assert killed.returncode == -signal.SIGKILL
    assert list(out.glob(".1.json*.tmp"))
    assert not list(out.glob("1.json*"))
    with pytest.raises(ConfigError, match=r"'1.json' is not tokenised yet"):
        finish_shards(corpus, out)
    before = (out / "0.json.train.bin").stat().st_mtime_ns
    monkeypatch.setattr(module, "STALE_SECONDS", 0.0)
    resumed = build(corpus, out)
    assert (out / "0.json.train.bin").stat().st_mtime_ns == before
    assert contents(tmp_path / "a") == contents(out)
    assert resumed.train[:].tolist() == whole.train[:].tolist()


def test_an_interrupted_run_leaves_nothing_half_made(corpus: CorpusConfig, tmp_path: Path) -> None:
    steps = tokenize_steps(corpus, "1.json", gpt2(), tmp_path / "out")
    next(steps)
    steps.close()
    assert not list((tmp_path / "out").iterdir())


def test_progress_counts_up_to_the_manifest(
    corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 300)
    *steps, last = tokenize_steps(corpus, "0.json", gpt2(), tmp_path)
    assert len(steps) > 5
    assert [step.tokens for step in steps] == sorted({step.tokens for step in steps})
    assert all(step.manifest is None for step in steps)
    assert last.manifest is not None
    assert last.characters == steps[-1].characters == sum(map(len, TEXTS[0]))
    assert last.tokens == steps[-1].tokens == sum(p.tokens for p in last.manifest.parts.values())
    (again,) = tokenize_steps(corpus, "0.json", gpt2(), tmp_path)
    assert (again.manifest, again.already_there) == (last.manifest, True)


def test_dirt_fails_above_a_share_of_the_corpus_alone(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    lines = [json.dumps({"text": f"document {i}"}) for i in range(90)]
    (folder / "a.json").write_text("\n".join(lines))
    (folder / "b.json").write_text("{\n" * 8 + '{"text": "a\\u0000"}\n')  # most of this file is unusable
    (folder / "c.json").write_text('{"text": " "}\n')
    config = CorpusConfig(source="files", paths=(str(folder),), max_bad_fraction=0.1)
    shards = build(config, tmp_path / "out")
    assert shards.problems == {"broken JSON line": 8, "empty text": 1, "NUL characters (kept)": 1}
    told = describe_problems(shards.manifests)
    assert told == "1 NUL characters (kept), 8 broken JSON line, 1 empty text; most in b.json (9), c.json (1)"
    strict = config.model_copy(update={"max_bad_fraction": 0.09 - 0.001})
    with pytest.raises(ConfigError, match=r"9 of 100 documents unusable: .*raise max_bad_fraction=0.089"):
        finish_shards(strict, tmp_path / "out")


def test_a_document_of_any_length_is_the_same_tokens(tmp_path: Path) -> None:
    text = TEXTS[0][0] + "\n\n  indented " * 60_000
    (tmp_path / "a.json").write_text(json.dumps({"text": text}) + "\n" + json.dumps({"text": "short"}))
    config = CorpusConfig(source="files", paths=(str(tmp_path / "a.json"),), validation_fraction=0.0)
    expected = [*gpt2().encoding.encode_ordinary(text), gpt2().eot_id]
    stream = build(config, tmp_path / "out").train
    assert stream[: len(expected)].tolist() == expected
    assert stream[len(expected) :].tolist() == [*gpt2().encode("short"), gpt2().eot_id]


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

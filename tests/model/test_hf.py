"""Models and tokenizers through transformers: out, back in, and GPT-2's weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from metatok.data.tokenizer import EOT, META, Tokenizer, TokenizerConfig, build_tokenizer, gpt2
from metatok.errors import ConfigError
from metatok.model import GPT, VARIANTS, GPTConfig
from metatok.model.hf import (
    MetatokConfig,
    MetatokForCausalLM,
    export,
    from_gpt2,
    load_checkpoint,
    to_transformers,
    to_transformers_tokenizer,
)
from metatok.training import CheckpointStore

Build = Callable[..., GPT]
Draw = Callable[..., Tensor]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    text = "the cat sat on the mat, they said: it's 12 o'clock — naïve café 猫 aaaa aaaaaa\n\n\tbb " * 4
    return build_tokenizer(TokenizerConfig(name="bpe", vocab_size=300), [text])


@pytest.fixture(scope="module")
def fast(bpe: Tokenizer) -> Any:
    return to_transformers_tokenizer(bpe)


@pytest.fixture
def matching(tiny: Build, bpe: Tokenizer) -> Build:
    """Tiny models with the tokenizer's ids."""

    def build(name: str = "meta_rope", **fields: Any) -> GPT:
        return tiny(name, vocab_size=bpe.vocab_size, meta_token_id=bpe.meta_id, **fields)

    return build


@pytest.mark.parametrize("name", [*sorted(VARIANTS), "yarn"])
def test_round_trip_gives_equal_logits(
    tmp_path: Path, matching: Build, bpe: Tokenizer, random_tokens: Draw, name: str
) -> None:
    model = matching("meta_rope" if name == "yarn" else name, bias=True, activation="relu", context_length=32)
    if name == "yarn":
        extended = GPT(model.cfg.extended(4)).eval()
        extended.load_state_dict(model.state_dict())
        model = extended
    tokens = random_tokens(2, 30)
    tokens[tokens == 69] = bpe.meta_id
    export(model, bpe, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, MetatokForCausalLM)
    assert loaded.gpt.cfg == model.cfg
    assert torch.equal(loaded(tokens).logits, model(tokens))


def test_tied_weights_are_saved_once(tmp_path: Path, matching: Build, bpe: Tokenizer) -> None:
    model = matching()
    export(model, bpe, tmp_path)
    saved = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert set(saved) == {f"gpt.{name}" for name in model.state_dict()}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["vocab_size"] == bpe.vocab_size
    assert config["eos_token_id"] == config["pad_token_id"] == bpe.eot_id
    assert config["max_position_embeddings"] == 64


def test_bfloat16_survives_with_exact_positions(
    tmp_path: Path, matching: Build, bpe: Tokenizer, random_tokens: Draw
) -> None:
    model, tokens = matching().to(torch.bfloat16), random_tokens(1, 20)
    export(model, bpe, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded.gpt.position.constants, model.position.constants)
    assert torch.equal(loaded(tokens).logits, model(tokens))


def test_a_new_model_has_the_weights_that_gpt_draws() -> None:
    shape = {"vocab_size": 70, "meta_token_id": 69, "n_layer": 1, "n_head": 2, "n_embd": 16}
    cfg = GPTConfig.variant("meta_rope", **shape)
    theirs = MetatokForCausalLM(MetatokConfig(cfg.model_dump())).gpt.state_dict()
    for name, weight in GPT(cfg).state_dict().items():
        assert torch.equal(weight, theirs[name])


def test_what_a_file_lacks_is_drawn_anew(tmp_path: Path, matching: Build, bpe: Tokenizer) -> None:
    export(matching(), bpe, tmp_path)
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    dropped = weights.pop("gpt.blocks.0.mlp.fc.weight")
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    drawn = AutoModelForCausalLM.from_pretrained(tmp_path).gpt.blocks[0].mlp.fc.weight
    assert not torch.equal(drawn, dropped)
    assert 0.01 < drawn.std() < 0.03


@pytest.mark.parametrize("name", ["meta_ape", "meta_rope", "meta_alibi", "wide_rope"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(tiny: Build, random_tokens: Draw, name: str, side: str) -> None:
    model, tokens = tiny(name), random_tokens(3, 20)
    lengths = [20, 7, 13]
    padded, mask = torch.full_like(tokens, 69), torch.zeros_like(tokens)  # padded with the meta token, even
    places = []
    for row, n in enumerate(lengths):
        places.append(slice(20 - n, 20) if side == "left" else slice(0, n))
        padded[row, places[row]], mask[row, places[row]] = tokens[row, :n], 1
    logits = to_transformers(model)(padded, attention_mask=mask).logits
    for row, n in enumerate(lengths):
        alone = model(tokens[row : row + 1, :n])[0]
        torch.testing.assert_close(logits[row, places[row]], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["meta_ape", "meta_rope"])
def test_generate_is_ours(tiny: Build, random_tokens: Draw, name: str) -> None:
    model, tokens = tiny(name), random_tokens(2, 10)
    lengths = torch.tensor([10, 6])
    left, mask = torch.full_like(tokens, 3), torch.ones_like(tokens)
    left[0], left[1, 4:] = tokens[0], tokens[1, :6]
    mask[1, :4] = 0
    ours = model.generate(tokens, 8, prompt_lengths=lengths)
    for use_cache in (True, False):  # either way there is none
        theirs = to_transformers(model).generate(
            left, attention_mask=mask, max_new_tokens=8, do_sample=False, use_cache=use_cache, pad_token_id=3
        )
        for row in range(2):
            assert torch.equal(theirs[row, 10:], ours.completion(row))


def test_labels_give_the_next_token_loss_and_gradients(tiny: Build, random_tokens: Draw) -> None:
    model, tokens = tiny(), random_tokens(2, 12)
    labels = tokens.clone()
    labels[:, :5] = -100
    loss = to_transformers(model)(tokens, labels=labels).loss
    expected = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_only_the_wanted_logits_are_made(tiny: Build, random_tokens: Draw) -> None:
    model, tokens = tiny(), random_tokens(2, 12)
    theirs = to_transformers(model)
    torch.testing.assert_close(theirs(tokens, logits_to_keep=3).logits, model(tokens)[:, -3:])
    rows = torch.tensor([0, 5])
    torch.testing.assert_close(theirs(tokens, logits_to_keep=rows).logits, model(tokens)[:, rows])
    assert isinstance(theirs(tokens, return_dict=False), tuple)


def test_what_the_model_cannot_take_is_said(tiny: Build, random_tokens: Draw) -> None:
    model, tokens = to_transformers(tiny()), random_tokens(1, 5)
    with pytest.raises(ValueError, match="position_ids is given"):
        model(tokens, position_ids=torch.arange(5)[None])
    with pytest.raises(ValueError, match=r"attention_mask \(1, 4\)"):
        model(tokens, attention_mask=torch.zeros(1, 4))
    with pytest.raises(ValueError, match="id 70"):
        model(torch.tensor([[70]]))


TEXTS = st.lists(st.one_of(st.text(), st.sampled_from([EOT, META, "_PAUSE_", " the", "aaaa", "\n\n", "’s "])))


@settings(max_examples=300, deadline=None)
@given(pieces=TEXTS)
def test_any_text_has_the_same_ids(bpe: Tokenizer, fast: Any, pieces: list[str]) -> None:
    text = "".join(pieces)
    ids = bpe.encode(text)
    assert fast(text, split_special_tokens=True).input_ids == ids
    assert fast.decode(ids) == text


@settings(max_examples=200, deadline=None)
@given(segments=st.lists(st.text().filter(lambda s: "_PAUSE_" not in s and EOT not in s), min_size=1))
def test_segments_have_the_same_ids(bpe: Tokenizer, fast: Any, segments: list[str]) -> None:
    ids = bpe.encode_segments(segments)
    assert fast(META.join(segments)).input_ids == ids
    assert fast.decode(ids) == bpe.decode(ids) == META.join(segments)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 299)))
def test_any_ids_decode_alike(bpe: Tokenizer, fast: Any, ids: list[int]) -> None:
    assert fast.decode(ids) == bpe.decode(ids)


def test_gpt2s_ids_are_the_same_too() -> None:
    ours = gpt2()
    theirs = to_transformers_tokenizer(ours)
    text = Path(__file__).read_text() + " naïve 猫👍🏽 e\u0301 \u1e9b\u0323 \u3000\u2028 12345 ١٢٣ İi ſ"
    assert theirs(text, split_special_tokens=True).input_ids == ours.encode(text)
    assert (theirs.eos_token_id, theirs.convert_tokens_to_ids(META)) == (50256, 50257)


def test_the_tokenizer_returns_from_its_folder(tmp_path: Path, matching: Build, bpe: Tokenizer) -> None:
    export(matching(), bpe, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    segments = ["the cat", " sat ", "", "on it's mat"]
    assert loaded(META.join(segments)).input_ids == bpe.encode_segments(segments)
    assert loaded(f"the{EOT}").input_ids == [*bpe.encode("the"), bpe.eot_id]
    assert loaded(f"the{EOT}{META}", split_special_tokens=True).input_ids == bpe.encode(f"the{EOT}{META}")
    assert loaded.decode([bpe.eot_id, bpe.meta_id], skip_special_tokens=True) == ""
    assert (loaded.pad_token_id, loaded.model_max_length) == (bpe.eot_id, 64)
    batch = loaded(["the cat sat", "on"], padding=True, return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.isfinite(model(**batch).logits).all()


def test_another_tokenizer_is_refused(tmp_path: Path, tiny: Build, bpe: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer: has 300 ids.*the model 70"):
        export(tiny(), bpe, tmp_path)


def random_gpt2(**fields: Any) -> GPT2LMHeadModel:
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 127, "n_positions": 48}
    ends = {"bos_token_id": 126, "eos_token_id": 126}
    model = GPT2LMHeadModel(GPT2Config(**{**shape, **ends, **fields})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("activation", ["gelu", "relu", "gelu_new"])
def test_gpt2_weights_give_gpt2s_logits(activation: str) -> None:
    theirs = random_gpt2(activation_function=activation)
    ours = from_gpt2(theirs)
    tokens = torch.randint(0, 127, (2, 48))
    torch.testing.assert_close(ours(tokens)[..., :127], theirs(tokens).logits, atol=1e-4, rtol=1e-4)
    assert (ours.cfg.vocab_size, ours.cfg.meta_token_id, ours.training) == (128, 127, False)
    mean = theirs(tokens).logits.mean(-1)
    torch.testing.assert_close(ours(tokens)[..., 127], mean, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        ours.token_embedding.weight.zero_()
    assert theirs.transformer.wte.weight.abs().sum() > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation_function": "silu"}, "activation_function='silu'"),
        ({"n_inner": 100}, "n_inner=100"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ],
)
def test_a_gpt2_that_differs_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_gpt2(random_gpt2(**fields))


def test_a_checkpoint_is_exported(
    tmp_path: Path, matching: Build, bpe: Tokenizer, random_tokens: Draw
) -> None:
    model, tokens = matching(), random_tokens(1, 10)
    meta = {"architecture": "GPT", "config": model.cfg.model_dump(mode="json")}
    checkpoint = CheckpointStore(str(tmp_path / "cell")).save(7, model.state_dict(), meta=meta)
    export(load_checkpoint(checkpoint), bpe, tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(loaded(tokens).logits, model(tokens))


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"architecture": "GPTNeo", "config": {}}, "holds a GPTNeo"),
        ({}, "KeyError"),
        ({"architecture": "GPT", "config": {"n_layer": 0}}, "n_layer=0"),
        ({"architecture": "GPT", "config": {"n_layer": 1, "n_embd": 24}}, "state_dict"),
    ],
)
def test_a_checkpoint_without_a_model_is_refused(
    tmp_path: Path, tiny: Build, meta: dict[str, Any], message: str
) -> None:
    checkpoint = CheckpointStore(str(tmp_path)).save(1, tiny().state_dict(), meta=meta)
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(checkpoint)

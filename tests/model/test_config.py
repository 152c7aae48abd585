"""Which configurations can be built, and what the others are told."""

import pytest
from pydantic import ValidationError

from metatok.errors import ConfigError
from metatok.model import GPT, VARIANTS, GPTConfig, YarnConfig


def test_every_variant_builds_and_keeps_the_fields_given() -> None:
    for name, variant in VARIANTS.items():
        cfg = GPTConfig.variant(name, n_layer=3)
        assert (cfg.position, cfg.extra_attention, cfg.n_layer) == (*variant[:2], 3)


def test_pause_models_differ_from_gpt2_in_their_data_only() -> None:
    assert GPTConfig.variant("pause_rope") == GPTConfig.variant("gpt2_rope")
    assert VARIANTS["pause_rope"].injects_meta_tokens
    assert not VARIANTS["gpt2_rope"].injects_meta_tokens


def test_unknown_variant_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"meta_rop'.*gpt2_ape.*meta_rope"):
        GPTConfig.variant("meta_rop")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_head": 7}, r"n_embd=768.*n_head=7"),
        ({"n_head": 256}, r"even"),
        ({"vocab_size": 100}, r"meta_token_id=50257.*vocab_size=100"),
        ({"n_layer": 0}, r"n_layer=0"),
        ({"dropout": 1.5}, r"dropout=1.5"),
        ({"n_heads": 4}, r"n_heads=4"),
        ({"position": "ape"}, r"position='ape' contradicts variant 'meta_rope'"),
    ],
)
def test_impossible_fields_are_named(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GPTConfig.variant("meta_rope", **fields)


def test_direct_construction_raises_a_value_error() -> None:
    with pytest.raises(ValueError, match="n_head=7"):
        GPTConfig(n_head=7)
    with pytest.raises(ValueError, match="needs yarn="):
        GPTConfig(position="yarn")
    with pytest.raises(ValueError, match="drop yarn"):
        GPTConfig(position="rope", yarn=YarnConfig(scale=2, original_context=64))
    with pytest.raises(ValueError, match="beta_fast=1"):
        YarnConfig(scale=2, original_context=64, beta_fast=1, beta_slow=2)


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValidationError):
        GPTConfig().n_layer = 3  # type: ignore[misc]


def test_extension_stretches_the_context_and_remembers_the_original() -> None:
    cfg = GPTConfig.variant("meta_rope").extended(4, beta_fast=16)
    assert (cfg.position, cfg.context_length) == ("yarn", 4096)
    assert cfg.yarn == YarnConfig(scale=4, original_context=1024, beta_fast=16)


def test_extension_says_what_it_cannot_extend() -> None:
    with pytest.raises(ConfigError, match="position='ape'"):
        GPTConfig.variant("meta_ape").extended(4)
    with pytest.raises(ConfigError, match=r"scale=0\.5"):
        GPTConfig.variant("meta_rope").extended(0.5)
    with pytest.raises(ConfigError, match="beta_quick"):
        GPTConfig.variant("meta_rope").extended(2, beta_quick=3)


def test_vocabulary_is_padded_to_a_multiple_of_64() -> None:
    assert GPTConfig().padded_vocab_size == 50304
    assert GPTConfig(vocab_size=128, meta_token_id=0).padded_vocab_size == 128


@pytest.mark.parametrize("name", sorted(VARIANTS))
@pytest.mark.parametrize("bias", [False, True])
def test_the_count_of_parameters_is_that_of_the_model(name: str, bias: bool) -> None:
    cfg = GPTConfig.variant(name, vocab_size=70, meta_token_id=69, context_length=33, n_layer=3, n_head=2,
                            n_embd=16, bias=bias)  # fmt: skip
    for config in (cfg, cfg.extended(4)) if cfg.position == "rope" else (cfg,):
        model = GPT(config)
        assert config.num_parameters() == model.num_parameters()
        assert config.num_parameters(positions=False) == model.num_parameters(positions=False)

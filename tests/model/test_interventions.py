"""Interventions at meta tokens, against the same change made by hand."""

import copy
from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from metatok.model import GPT, GPTConfig, Intervention
from metatok.model.interventions import noise_table

from . import naive

Build = Callable[..., GPT]
Draw = Callable[..., Tensor]

NO_POS, NO_EMBED = Intervention(zero_position=True), Intervention(zero_embedding=True)
NEITHER = Intervention(zero_position=True, zero_embedding=True)
NOISE = Intervention(position_noise=0.5, noise_seed=3)


@pytest.mark.parametrize(
    "intervention", [Intervention(), NO_POS, NO_EMBED, NEITHER, NOISE], ids=lambda i: i.label
)
@pytest.mark.parametrize("name", ["meta_ape", "gpt2_ape", "wide_ape"])
def test_ape_equals_a_model_with_its_tables_edited(
    tiny: Build, random_tokens: Draw, name: str, intervention: Intervention
) -> None:
    model, tokens = tiny(name), random_tokens(1, 30)
    at = (tokens[0] == 69).nonzero()[:, 0]
    edited = copy.deepcopy(model)
    with torch.no_grad():
        if intervention.zero_position:
            edited.position.table.weight[at] = 0
        if intervention.position_noise:
            edited.position.table.weight[at] += 0.5 * noise_table(3, 30, 24)[at]
        if intervention.zero_embedding:
            edited.token_embedding.weight[69] = 0
    torch.testing.assert_close(model.hidden(tokens, intervention=intervention), edited.hidden(tokens))


@pytest.mark.parametrize("intervention", [None, NO_POS, NO_EMBED, NEITHER, NOISE], ids=str)
@pytest.mark.parametrize("name", ["meta_rope", "gpt2_rope", "wide_rope", "yarn"])
def test_rotary_models_equal_the_formulas_with_the_angles_changed(
    tiny: Build, random_tokens: Draw, name: str, intervention: Intervention | None
) -> None:
    model, tokens = tiny("meta_rope" if name == "yarn" else name), random_tokens(1, 30)
    if name == "yarn":
        stretched = GPT(model.cfg.extended(4))
        stretched.load_state_dict(model.state_dict())
        model = stretched.eval()
    is_meta, x = tokens[0] == 69, model.token_embedding(tokens[0])
    angles = torch.arange(30)[:, None] * model.position.constants
    if intervention is not None:
        if intervention.zero_position:
            angles[is_meta] = 0
        if intervention.position_noise:
            angles[is_meta] += 0.5 * noise_table(3, 30, 4)[is_meta]
        if intervention.zero_embedding:
            x = x * ~is_meta[:, None]
    expected = naive.hidden(model, x, is_meta, angles, model.position.mscale)
    actual = model.hidden(tokens, intervention=intervention)[0]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("intervention", [NO_POS, NOISE, NO_EMBED], ids=lambda i: i.label)
@pytest.mark.parametrize("name", ["meta_ape", "meta_rope"])
def test_ordinary_tokens_before_the_first_meta_token_are_untouched(
    tiny: Build, random_tokens: Draw, name: str, intervention: Intervention
) -> None:
    model, tokens = tiny(name), random_tokens(1, 20, share=0)
    tokens[0, 9] = 69
    plain, changed = model(tokens), model(tokens, intervention=intervention)
    torch.testing.assert_close(plain[:, :9], changed[:, :9])
    assert not torch.allclose(plain[:, 9], changed[:, 9], atol=1e-2)
    nothing = random_tokens(2, 20, share=0, seed=5)
    torch.testing.assert_close(model(nothing), model(nothing, intervention=intervention))


@pytest.mark.parametrize("name", ["meta_ape", "meta_rope"])
def test_noise_depends_on_seed_and_position_alone(tiny: Build, random_tokens: Draw, name: str) -> None:
    model, tokens = tiny(name), random_tokens(3, 30)
    together = model(tokens, intervention=NOISE)
    torch.testing.assert_close(
        model(tokens[2:, :17], intervention=NOISE), together[2:, :17], atol=1e-4, rtol=1e-4
    )
    other = model(tokens, intervention=Intervention(position_noise=0.5, noise_seed=4))
    assert not torch.allclose(together, other, atol=1e-2)


def test_noise_is_standard_normal() -> None:
    noise = noise_table(0, 500, 64)
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert torch.equal(noise_table(0, 3, 64), noise[:3])


@pytest.mark.parametrize("name", ["meta_nope", "meta_alibi"])
def test_position_cannot_be_taken_where_there_is_none(tiny: Build, random_tokens: Draw, name: str) -> None:
    model, tokens = tiny(name), random_tokens(2, 10)
    for intervention in (NO_POS, NOISE, NEITHER):
        with pytest.raises(ValueError, match=intervention.label):
            model(tokens, intervention=intervention)
    assert not torch.allclose(model(tokens, intervention=NO_EMBED), model(tokens))


def test_labels_are_the_tables_column_names() -> None:
    labels = [i.label for i in (Intervention(), NO_POS, NO_EMBED, NEITHER, Intervention(position_noise=0.1))]
    assert labels == ["full", "no_pos", "no_embed", "neither", "noise_0.1"]


def test_contradictory_interventions_are_refused() -> None:
    with pytest.raises(ValidationError, match="zero_position"):
        Intervention(zero_position=True, position_noise=0.1)
    with pytest.raises(ValidationError):
        Intervention(position_noise=-1)


def test_extended_models_share_weights_with_the_original() -> None:
    cfg = GPTConfig(n_layer=1, n_head=2, n_embd=8, vocab_size=64, meta_token_id=1)
    names = set(GPT(cfg).state_dict())
    assert names == set(GPT(cfg.extended(4)).state_dict())

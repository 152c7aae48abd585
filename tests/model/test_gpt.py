"""The model as a whole: its size, its numbers, and what it makes of its inputs."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from metatok.model import GPT, VARIANTS, GPTConfig, Intervention

from . import naive

Build = Callable[..., GPT]
Draw = Callable[..., Tensor]


def published(name: str) -> GPT:
    with torch.device("meta"):
        return GPT(GPTConfig.variant(name))


def test_parameter_counts_of_the_paper() -> None:
    gpt2, meta = published("gpt2_ape"), published("meta_ape")
    assert gpt2.num_parameters() == 124_373_760  # nanoGPT's GPT-2, vocabulary 50,304, without biases
    assert gpt2.num_parameters(positions=False) == 123_587_328  # the 123.59M that nanoGPT prints
    assert meta.num_parameters() - gpt2.num_parameters() == 12 * (4 * 768**2 + 768)  # 152.7M
    assert published("wide_ape").num_parameters() == meta.num_parameters()
    assert published("meta_rope").num_parameters() == meta.num_parameters(positions=False)


def test_flops_follow_the_work() -> None:
    gpt2, meta, wide = published("gpt2_rope"), published("meta_rope"), published("wide_rope")
    plain = gpt2.flops_per_token(1024)
    assert plain == 6 * gpt2.num_parameters() + 12 * 12 * 768 * 1024
    assert meta.flops_per_token(1024) == plain
    # Half the tokens do the extra work, each on half the keys.
    extra = meta.num_parameters() - gpt2.num_parameters()
    assert meta.flops_per_token(1024, 0.5) == plain + 6 * extra / 2 + 12 * 12 * 768 * 1024 / 4
    assert meta.flops_per_token(1024, 1.0) == wide.flops_per_token(1024)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("name", ["gpt2_nope", "meta_nope"])
def test_equals_the_formulas(tiny: Build, random_tokens: Draw, name: str, activation: str) -> None:
    model, tokens = tiny(name, activation=activation, bias=True), random_tokens(1, 30)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    expected = naive.hidden(model, model.token_embedding(tokens[0]), tokens[0] == 69)
    torch.testing.assert_close(model.hidden(tokens)[0], expected, atol=1e-4, rtol=1e-4)


def test_alibi_lowers_logits_by_distance(tiny: Build, random_tokens: Draw) -> None:
    alibi, nope, tokens = tiny("meta_alibi"), tiny("meta_nope"), random_tokens(1, 12)
    with_bias = alibi.trace(tokens, attention=True).attention_logits[0, 0]
    without = nope.trace(tokens, attention=True).attention_logits[0, 0]
    distance = (torch.arange(12)[:, None] - torch.arange(12)).clamp(min=0)
    torch.testing.assert_close(with_bias, without - alibi.position.constants[:, None, None] * distance)


def test_weights_depend_on_the_seed_and_are_shared_between_variants() -> None:
    def build(name: str, seed: int) -> dict[str, Tensor]:
        shape = {"vocab_size": 64, "meta_token_id": 1, "n_layer": 2, "n_head": 2, "n_embd": 64}
        return GPT(GPTConfig.variant(name, **shape), seed=seed).state_dict()

    gpt2, again, meta, other = (
        build(name, seed)
        for name, seed in [("gpt2_ape", 0), ("gpt2_ape", 0), ("meta_ape", 0), ("gpt2_ape", 1)]
    )
    for name, weight in gpt2.items():
        assert torch.equal(weight, again[name])
        assert torch.equal(weight, meta[name])
        assert weight.dim() == 1 or not torch.equal(weight, other[name])
    assert meta["blocks.1.extra.qkv.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    for name in ("causal.proj", "extra.proj", "mlp.proj"):
        assert meta[f"blocks.0.{name}.weight"].std().item() == pytest.approx(0.01, rel=0.05)


def test_first_weights_scatter_as_wide_as_told_and_are_the_same_draws() -> None:
    shape = {"vocab_size": 64, "meta_token_id": 1, "n_layer": 2, "n_head": 2, "n_embd": 64}
    narrow, wide = (
        GPT(GPTConfig.variant("meta_ape", **shape, **stds)).state_dict()
        for stds in ({}, {"init_std": 0.08, "embedding_init_std": 0.2})
    )
    for name, weight in narrow.items():
        scale = 10 if name == "token_embedding.weight" else 4 if "blocks" in name and weight.dim() > 1 else 1
        torch.testing.assert_close(wide[name], scale * weight)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_output_depends_on_no_batch_mate_and_no_later_token(
    tiny: Build, random_tokens: Draw, name: str
) -> None:
    model, tokens = tiny(name), random_tokens(3, 24)
    together = model(tokens)
    assert torch.isfinite(together).all()
    for row in range(3):
        alone = model(tokens[row : row + 1, :15])
        torch.testing.assert_close(alone, together[row : row + 1, :15], atol=1e-4, rtol=1e-4)


def test_given_meta_positions_replace_the_found_ones(tiny: Build, random_tokens: Draw) -> None:
    model, tokens = tiny(), random_tokens(2, 20)
    found = model.meta_positions(tokens)
    assert torch.equal(model(tokens, found), model(tokens))
    assert not torch.allclose(model(tokens, found[:, :1]), model(tokens))


def test_head_never_predicts_padding_and_passes_gradients(tiny: Build) -> None:
    model = tiny()
    hidden = torch.randn(5, 24, requires_grad=True)
    logits = model.head(hidden)
    assert logits.shape == (5, 128)
    assert (logits[:, 70:] == float("-inf")).all()
    logits.softmax(-1)[:, 0].sum().backward()
    assert torch.isfinite(hidden.grad).all()
    assert hidden.grad.abs().sum() > 0


def test_a_sequence_may_outgrow_the_context_unless_ape(tiny: Build, random_tokens: Draw) -> None:
    tokens = random_tokens(1, 80)
    for name in ("meta_rope", "meta_nope", "meta_alibi"):
        assert torch.isfinite(tiny(name)(tokens)).all()
    with pytest.raises(ValueError, match=r"80 tokens.*context_length=64"):
        tiny("meta_ape")(tokens)


@pytest.mark.parametrize(
    ("tokens", "meta_positions", "message"),
    [
        ([[1, 70]], None, "id 70.*vocab_size=70"),
        ([[1, -1]], None, "id -1"),
        ([1, 2], None, r"tokens\[None\]"),
        ([[]], None, "T >= 1"),
        ([[0.5]], None, "integers"),
        ([[1, 2]], [[2]], r"has 2; positions must be in 0\.\.1"),
        ([[1, 2]], [[-2]], "has -2"),
        ([[1, 2]], [[1, 0]], "ascending"),
        ([[1, 2]], [[1, 1]], "ascending"),
        ([[1, 2]], [[-1, 1]], "padding"),
        ([[1, 2]], [[0], [1]], "B = 1"),
        ([[1, 2]], [[0.5]], "int64"),
    ],
)
def test_bad_inputs_are_explained(
    tiny: Build, tokens: list, meta_positions: list | None, message: str
) -> None:
    given = None if meta_positions is None else torch.tensor(meta_positions)
    with pytest.raises(ValueError, match=message):
        tiny()(torch.tensor(tokens), given)


@pytest.mark.parametrize("name", ["meta_ape", "meta_rope", "meta_alibi", "wide_rope"])
def test_trace_agrees_with_the_pass_it_explains(tiny: Build, random_tokens: Draw, name: str) -> None:
    model, tokens = tiny(name), random_tokens(2, 16)
    change = Intervention(zero_embedding=True)
    trace = model.trace(tokens, intervention=change, attention=True)
    torch.testing.assert_close(trace.hidden, model.hidden(tokens, intervention=change))
    assert trace.residual.shape == (3, 2, 16, 24)
    torch.testing.assert_close(model.norm(trace.residual[-1]), trace.hidden)
    torch.testing.assert_close(trace.attention.sum(-1), torch.ones(2, 2, 3, 16))
    assert (trace.attention.triu(1) == 0).all()
    # The weights explain the causal sublayer: applied to its values they give what it adds.
    layer, x = model.blocks[0].causal, trace.residual[0]
    values = layer.qkv(layer.norm(x)).chunk(3, -1)[2].view(2, 16, 3, 8).transpose(1, 2)
    added = layer.proj((trace.attention[0] @ values).transpose(1, 2).reshape(2, 16, 24))
    _, plan = model._embed(tokens, None, change)
    torch.testing.assert_close(added, layer.attend(x, plan.causal), atol=1e-4, rtol=1e-4)
    assert model.trace(tokens).attention is None


@pytest.mark.parametrize("name", ["meta_ape", "meta_rope", "meta_alibi", "wide_rope"])
def test_compiles_without_graph_breaks(tiny: Build, random_tokens: Draw, name: str) -> None:
    model, tokens = tiny(name), random_tokens(2, 16)
    positions = model.meta_positions(tokens)
    compiled = torch.compile(model.hidden, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, positions), model.hidden(tokens, positions))


@pytest.mark.parametrize("name", ["meta_ape", "meta_rope", "meta_alibi"])
def test_runs_under_bfloat16_autocast(random_tokens: Draw, name: str) -> None:
    shape = {"vocab_size": 70, "meta_token_id": 69, "n_layer": 2, "n_head": 2, "n_embd": 32}
    model, tokens = GPT(GPTConfig.variant(name, **shape)), random_tokens(2, 16)
    exact = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(tokens)
    torch.testing.assert_close(rough.float(), exact, atol=0.02, rtol=0.02)
    rough.float().logsumexp(-1).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_dropout_acts_in_training_only(random_tokens: Draw) -> None:
    shape = {"vocab_size": 70, "meta_token_id": 69, "n_layer": 2, "n_head": 2, "n_embd": 32}
    model, tokens = GPT(GPTConfig(dropout=0.5, **shape)), random_tokens(2, 16)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_copies_and_state_dicts_carry_parameters_only(tiny: Build, random_tokens: Draw) -> None:
    model, tokens = tiny(), random_tokens(1, 8)
    assert set(model.state_dict()) == {n for n, _ in model.named_parameters()}
    assert torch.equal(copy.deepcopy(model)(tokens), model(tokens))

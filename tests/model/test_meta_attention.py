"""Meta-attention: the gathered form equals the paper's mask, at a cost that follows the meta tokens."""

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metatok.model import GPT, dense_reference

Build = Callable[..., GPT]
Draw = Callable[..., Tensor]


@st.composite
def ragged_meta(draw: st.DrawFn) -> Tensor:
    """is_meta (B, T), with rows that hold none, one, some or only meta tokens."""
    B, T = draw(st.integers(1, 3)), draw(st.integers(1, 24))
    row = st.one_of(
        st.just([False] * T),
        st.just([True] * T),
        st.integers(0, T - 1).map(lambda p: [i == p for i in range(T)]),
        st.lists(st.booleans(), min_size=T, max_size=T),
    )
    return torch.tensor(draw(st.lists(row, min_size=B, max_size=B)))


def gradients(model: GPT, tokens: Tensor, meta_positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logits = model(tokens, meta_positions)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    (logits * weights).mean().backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["meta_ape", "meta_rope", "meta_nope", "meta_alibi"])
def test_compacted_equals_dense_in_values_and_gradients(tiny: Build, name: str) -> None:
    model = tiny(name)
    dense = dense_reference(model)

    @settings(max_examples=25, deadline=None)
    @given(is_meta=ragged_meta(), extra_padding=st.integers(0, 3), seed=st.integers(0, 99))
    def check(is_meta: Tensor, extra_padding: int, seed: int) -> None:
        tokens = torch.randint(0, 69, is_meta.shape, generator=torch.Generator().manual_seed(seed))
        tokens = tokens.masked_fill(is_meta, 69)
        found = model.meta_positions(tokens)
        padded = torch.cat((found, found.new_full((len(found), extra_padding), -1)), dim=1)
        logits, grads = gradients(model, tokens, padded)
        dense_logits, dense_grads = gradients(dense, tokens, found)
        torch.testing.assert_close(logits, dense_logits, atol=1e-5, rtol=1e-5)
        assert grads.keys() == dense_grads.keys() == {n for n, _ in model.named_parameters()}
        for n, grad in grads.items():
            assert torch.isfinite(grad).all(), n
            torch.testing.assert_close(grad, dense_grads[n], atol=1e-5, rtol=1e-4, msg=n)

    check()


def test_positions_found_are_those_of_the_meta_token(tiny: Build) -> None:
    tokens = torch.tensor([[69, 1, 69, 2], [1, 2, 3, 4], [0, 0, 0, 69]])
    assert tiny().meta_positions(tokens).tolist() == [[0, 2], [-1, -1], [3, -1]]
    assert tiny().meta_positions(tokens[1:2]).shape == (1, 0)


def test_without_meta_tokens_the_extra_attention_changes_nothing(tiny: Build, random_tokens: Draw) -> None:
    model, tokens = tiny("meta_ape"), random_tokens(2, 20, share=0)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for block in other.blocks:
            block.extra.proj.weight.fill_(7)
    assert torch.equal(model(tokens), other(tokens))
    with torch.no_grad():  # inference skips the attention, training runs it on padding
        torch.testing.assert_close(model(tokens), other(tokens))


def test_ordinary_tokens_are_unchanged_until_a_meta_token_is_read(tiny: Build, random_tokens: Draw) -> None:
    tokens = random_tokens(1, 20, share=0)
    tokens[0, 12] = tokens[0, 15] = 69
    model = tiny("meta_rope")
    with_meta, without = model(tokens), model(tokens, torch.full((1, 1), -1))
    assert torch.equal(with_meta[:, :12], without[:, :12])
    assert not torch.allclose(with_meta[:, 12:], without[:, 12:])


def test_a_batch_without_meta_tokens_trains_every_parameter(tiny: Build, random_tokens: Draw) -> None:
    """DistributedDataParallel waits for a gradient of each."""
    model = tiny("meta_rope").train()
    model(random_tokens(2, 10, share=0)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all((p.grad == 0).all() for n, p in model.named_parameters() if ".extra." in n)
    model.zero_grad()


def test_memory_kept_for_backward_grows_with_the_meta_tokens(tiny: Build) -> None:
    layer = tiny("meta_rope", n_embd=24).blocks[0].extra
    model = tiny("meta_rope")

    def saved(T: int, M: int) -> int:
        """Elements that one meta-attention keeps, its weights aside."""
        tokens = torch.zeros(1, T, dtype=torch.long)
        x, plan = model._embed(tokens, torch.arange(M)[None], None)
        parameters = {p.data_ptr() for p in layer.parameters()}
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in parameters:
                sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            layer(x.detach().requires_grad_(), plan)
        return sum(sizes.values())

    assert saved(2048, 16) == saved(512, 16)
    assert saved(512, 32) < 2.2 * saved(512, 16)

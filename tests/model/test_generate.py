"""Generation: the cache, ragged prompts, sampling and stopping."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metatok.model import GPT, VARIANTS, Intervention
from metatok.model.cache import Cache

Build = Callable[..., GPT]
Draw = Callable[..., Tensor]

LENGTHS = torch.tensor([12, 1, 7, 10])
CHANGES = [
    None,
    Intervention(zero_position=True),
    Intervention(zero_embedding=True, position_noise=0.3),
]


def uncached(
    model: GPT, prompt: Tensor, max_new_tokens: int, intervention: Intervention | None = None
) -> Tensor:
    """Greedy ids by a full forward for each step."""
    tokens = prompt[None]
    for _ in range(max_new_tokens):
        logits = model(tokens, intervention=intervention)[:, -1]
        tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), dim=1)
    return tokens[0, len(prompt) :]


def lover_of_meta_tokens(model: GPT) -> GPT:
    """Makes greedy decoding emit meta tokens often, so that the meta cache grows while it generates."""
    with torch.no_grad():
        model.token_embedding.weight[69] *= 3
    return model


@pytest.mark.parametrize("change", CHANGES, ids=["full", "no_pos", "noise"])
@pytest.mark.parametrize("name", [*sorted(VARIANTS), "yarn"])
def test_cached_and_batched_equals_uncached_and_single(
    tiny: Build, random_tokens: Draw, name: str, change: Intervention | None
) -> None:
    model = lover_of_meta_tokens(tiny("meta_rope" if name == "yarn" else name))
    if name == "yarn":
        stretched = GPT(model.cfg.extended(2)).eval()
        stretched.load_state_dict(model.state_dict())
        model = stretched
    if change is not None and change.changes_position and ("nope" in name or "alibi" in name):
        change = Intervention(zero_embedding=True)
    tokens = random_tokens(4, 12)
    result = model.generate(tokens, 10, prompt_lengths=LENGTHS, intervention=change)
    for row, length in enumerate(LENGTHS.tolist()):
        expected = uncached(model, tokens[row, :length], 10, change)
        assert torch.equal(result.completion(row), expected)
        assert torch.equal(result.tokens[row, :length], tokens[row, :length])
        assert (result.tokens[row, length + 10 :] == -1).all()


def test_generation_reads_the_meta_tokens_it_emits(tiny: Build, random_tokens: Draw) -> None:
    """Guards the test above: without emitted meta tokens it would not see the meta cache grow."""
    model = lover_of_meta_tokens(tiny())
    result = model.generate(random_tokens(4, 12), 10, prompt_lengths=LENGTHS)
    assert sum((result.completion(row) == 69).sum() for row in range(4)) > 2


@pytest.mark.parametrize("name", ["meta_ape", "meta_rope", "meta_alibi", "wide_rope"])
def test_hidden_states_read_in_pieces_equal_those_of_one_pass(
    tiny: Build, random_tokens: Draw, name: str
) -> None:
    model, tokens = tiny(name), random_tokens(2, 20)
    whole = model.hidden(tokens)
    cache = Cache(model.cfg, batch=2, capacity=20, meta_capacity=20)
    pieces = []
    with torch.no_grad():
        for piece in tokens.split([7, 1, 5, 1, 6], dim=1):
            found = model.meta_positions(piece)
            pieces.append(model.hidden(piece, found, cache=cache))
            cache.advance(torch.ones_like(piece, dtype=torch.bool), piece == 69, found.size(1))
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-4, rtol=1e-4)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), wrong=st.integers(-1, 5))
def test_teacher_forced_argmax_is_exact_match_of_greedy_decoding(
    tiny: Build, random_tokens: Draw, seed: int, wrong: int
) -> None:
    model, prompt = tiny(seed=seed % 5), random_tokens(1, 9, seed=seed)
    target = model.generate(prompt, 6).completion(0)
    if wrong >= 0:
        target = target.clone()
        target[wrong] = (target[wrong] + 1) % 70
    forced = model(torch.cat((prompt[0], target))[None])[0, 8:-1].argmax(-1)
    greedy = model.generate(prompt, 6).completion(0)
    assert torch.equal(forced, target) == torch.equal(greedy, target) == (wrong < 0)


def test_samples_depend_on_seed_row_and_step_alone(tiny: Build, random_tokens: Draw) -> None:
    model, tokens = tiny(), random_tokens(1, 5).expand(3, 5)
    first = model.generate(tokens, 12, temperature=2.0, seed=1).tokens
    assert torch.equal(first, model.generate(tokens, 12, temperature=2.0, seed=1).tokens)
    assert torch.equal(first[:2, :9], model.generate(tokens[:2], 4, temperature=2.0, seed=1).tokens)
    assert not torch.equal(first, model.generate(tokens, 12, temperature=2.0, seed=2).tokens)
    assert not torch.equal(first[0], first[1])


def test_samples_follow_the_models_distribution(tiny: Build, random_tokens: Draw) -> None:
    model, prompt = tiny(), random_tokens(1, 5)
    drawn = model.generate(prompt.expand(4000, 5), 1, temperature=8.0).tokens[:, 5]
    wanted = (model(prompt)[0, -1] / 8).softmax(-1)
    observed = drawn.bincount(minlength=70) / 4000
    assert (observed - wanted).abs().max() < 0.03
    top = model.generate(prompt.expand(500, 5), 1, temperature=8.0, top_k=3).tokens[:, 5]
    assert set(top.tolist()) == set(wanted.topk(3).indices.tolist())
    cold = model.generate(prompt, 8, temperature=1e-4).tokens
    assert torch.equal(cold, model.generate(prompt, 8).tokens)


def test_padding_ids_are_never_drawn(tiny: Build, random_tokens: Draw) -> None:
    drawn = tiny().generate(random_tokens(50, 3), 10, temperature=1e6).tokens
    assert int(drawn.max()) < 70
    assert len(set(drawn[:, 3:].flatten().tolist())) > 60


def test_a_stop_token_ends_its_row(tiny: Build, random_tokens: Draw) -> None:
    model, tokens = tiny(), random_tokens(4, 12)
    free = model.generate(tokens, 10, prompt_lengths=LENGTHS)
    stop = int(free.completion(0)[4])
    steps: list[list[int]] = []
    result = model.generate(
        tokens,
        10,
        prompt_lengths=LENGTHS,
        stop_token=stop,
        on_token=lambda _, ids: steps.append(ids.tolist()),
    )
    for row in range(4):
        ids = free.completion(row).tolist()
        expected = ids[: ids.index(stop) + 1] if stop in ids else ids
        assert result.completion(row).tolist() == expected
        assert (result.tokens[row, int(result.lengths[row]) :] == -1).all()
        assert [ids[row] for ids in steps if ids[row] >= 0] == expected


def test_generation_stops_early_when_all_rows_have_ended(tiny: Build, random_tokens: Draw) -> None:
    model, tokens, steps = tiny(), random_tokens(1, 6), []
    stop = int(model.generate(tokens, 1).completion(0)[0])
    model.generate(tokens, 50, stop_token=stop, on_token=lambda step, _: steps.append(step))
    assert steps == [0]


def test_padding_of_prompts_may_hold_anything(tiny: Build, random_tokens: Draw) -> None:
    model, tokens = tiny(), random_tokens(4, 12)
    padding = torch.arange(12) >= LENGTHS[:, None]
    results = [
        model.generate(tokens.masked_fill(padding, pad), 6, prompt_lengths=LENGTHS).tokens
        for pad in (-1, 69, 10**6)
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_the_models_mode_is_kept(tiny: Build, random_tokens: Draw) -> None:
    model = tiny(dropout=0.5).train()
    first = model.generate(random_tokens(2, 8), 5).tokens
    assert model.training
    assert torch.equal(first, model.generate(random_tokens(2, 8), 5).tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"temperature": -1.0}, "temperature=-1"),
        ({"top_k": 0}, "top_k=0"),
        ({"prompt_lengths": torch.tensor([3])}, "prompt_lengths=.*2 lengths"),
        ({"prompt_lengths": torch.tensor([0, 3])}, r"1\.\.8"),
        ({"prompt_lengths": torch.tensor([3, 9])}, r"1\.\.8"),
        ({"max_new_tokens": 57}, "65 tokens.*context_length=64"),
    ],
)
def test_impossible_options_are_refused_before_work(
    tiny: Build, random_tokens: Draw, options: dict, message: str
) -> None:
    def no_work(*_: object) -> None:
        raise AssertionError("a token was generated")

    with pytest.raises(ValueError, match=message):
        tiny("meta_ape").generate(
            random_tokens(2, 8), **{"max_new_tokens": 4, "on_token": no_work, **options}
        )


def test_ape_generates_up_to_its_last_position(tiny: Build, random_tokens: Draw) -> None:
    model, tokens = tiny("meta_ape"), random_tokens(1, 8)
    assert torch.equal(model.generate(tokens, 56).completion(0), uncached(model, tokens[0], 56))

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metatok.errors import ConfigError
from metatok.evaluation.efficiency import (
    Timing,
    inject_meta_tokens,
    interleaved,
    measure_inference,
    measure_training_step,
    training_step,
)
from metatok.model import GPT, GPTConfig, dense_reference

META = 129
SHAPE = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "vocab_size": 130,
    "meta_token_id": META,
    "context_length": 64,
}


def model_of(variant="meta_rope"):
    return GPT(GPTConfig.variant(variant, **SHAPE))


@pytest.fixture
def tokens():
    drawn = torch.randint(0, META, (2, 32), generator=torch.Generator().manual_seed(0))
    drawn[:, [5, 9, 20]] = META
    return drawn


def test_candidates_run_in_turn_and_each_begins_some_rounds():
    calls = []
    timings = interleaved({name: lambda name=name: calls.append(name) for name in "abc"}, repeats=3, warmup=1)
    assert "".join(calls) == "abc" + "bca" + "cab" + "abc"
    assert list(timings) == ["a", "b", "c"]
    assert all(t.n == 3 and t.q25 <= t.median <= t.q75 and t.q25 > 0 for t in timings.values())


def test_timing_numbers():
    timing = Timing((1.0, 2.0, 3.0, 4.0, 10.0))
    assert (timing.median, timing.q25, timing.q75, timing.n) == (3.0, 2.0, 4.0, 5)
    assert timing.over(Timing((2.0, 2.0, 2.0, 2.0, 2.0))).samples == (0.5, 1.0, 1.5, 2.0, 5.0)
    expected = {"step_s_median": 3.0, "step_s_q25": 2.0, "step_s_q75": 4.0, "step_s_n": 5.0}
    assert timing.metrics("step_s") == expected


def test_injected_prompt_keeps_the_text_and_gains_the_meta_tokens():
    prompt = torch.arange(40).reshape(2, 20)
    injected = inject_meta_tokens(prompt, 4, META, seed=1)
    assert injected.shape == (2, 24)
    assert (injected == META).sum(1).tolist() == [4, 4]
    assert torch.equal(injected[:, -1], prompt[:, -1])  # so that generation goes on from text
    assert torch.equal(injected[injected != META].reshape(2, 20), prompt)
    assert torch.equal(injected, inject_meta_tokens(prompt, 4, META, seed=1))
    assert not torch.equal(injected, inject_meta_tokens(prompt, 4, META, seed=2))


def test_inference_measures_both_prompts():
    prompt = torch.arange(40).reshape(2, 20)
    result = measure_inference(model_of(), prompt, new_tokens=4, repeats=3, warmup=1)
    assert (result.n_text, result.n_meta, result.new_tokens) == (20, 2, 4)
    timings = (
        result.with_meta,
        result.without_meta,
        result.ttft_with_meta,
        result.ttft_without_meta,
        result.slowdown,
        result.ttft_ratio,
    )
    assert all(t.n == 3 and 0 < t.q25 < math.inf for t in timings)
    # 2 * 4 tokens at the measured rate take longer than the first token alone.
    for speed, ttft in zip(result.with_meta.samples, result.ttft_with_meta.samples, strict=True):
        assert 1e3 * 8 / speed > ttft
    pairs = zip(result.slowdown.samples, result.without_meta.samples, result.with_meta.samples, strict=True)
    assert all(slowdown == without / with_ for slowdown, without, with_ in pairs)


def test_inference_takes_a_baseline_model_for_the_plain_prompt():
    seen = []
    baseline = model_of("gpt2_rope")
    generate = baseline.generate

    def spy(prompt, *args, **kwargs):
        seen.append(tuple(prompt.shape))
        return generate(prompt, *args, **kwargs)

    baseline.generate = spy
    prompt = torch.arange(20)[None]
    measure_inference(model_of(), prompt, new_tokens=2, baseline=baseline, repeats=2, warmup=0)
    assert seen == [(1, 20), (1, 20)]


def test_training_steps_of_named_models_are_compared(tokens):
    meta = model_of()
    models = {"meta": meta, "none": model_of("gpt2_rope"), "dense": dense_reference(meta)}
    before = {name: value.clone() for name, value in meta.state_dict().items()}
    meta.eval()
    result = measure_training_step(models, tokens, META, reference="none", repeats=3, warmup=1)
    assert list(result.seconds) == list(result.ratios) == ["meta", "none", "dense"]
    assert all(t.n == 3 and t.q25 > 0 for t in (*result.seconds.values(), *result.ratios.values()))
    assert result.ratios["none"].samples == (1.0, 1.0, 1.0)
    assert result.tokens_per_step == 64
    speed = result.tokens_per_second["meta"].samples
    assert speed == tuple(64 / s for s in result.seconds["meta"].samples)
    # Measuring leaves the models as they were.
    assert all(torch.equal(before[name], value) for name, value in meta.state_dict().items())
    assert not meta.training
    assert all(p.grad is None for p in meta.parameters())


def expected_loss(model, tokens):
    logits, targets = model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    return F.cross_entropy(logits, targets.masked_fill(targets == META, -100))


def test_step_computes_the_pretraining_loss(tokens):
    model = model_of()
    torch.testing.assert_close(training_step(model, tokens, META)(), expected_loss(model, tokens).detach())


def test_step_under_autocast_is_near_the_full_precision_one(tokens):
    loss = training_step(model_of(), tokens, META, autocast=torch.bfloat16)()
    torch.testing.assert_close(loss, expected_loss(model_of(), tokens).detach(), atol=0.05, rtol=0)


def test_other_modules_are_called_as_transformers_models(tokens):
    class Theirs(nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt = model_of("gpt2_rope")

        def forward(self, input_ids, labels):
            logits = self.gpt(input_ids)[:, :-1].flatten(0, 1)
            return SimpleNamespace(loss=F.cross_entropy(logits, labels[:, 1:].flatten()))

    theirs = Theirs()
    loss = training_step(theirs, tokens, META)()
    torch.testing.assert_close(loss, training_step(theirs.gpt, tokens, META)())


def test_bad_requests_are_named(tokens):
    model = model_of()
    with pytest.raises(ConfigError, match="nothing to measure"):
        interleaved({})
    with pytest.raises(ConfigError, match="repeats=0"):
        interleaved({"a": lambda: None}, repeats=0)
    with pytest.raises(ConfigError, match="meta_fraction=0"):
        measure_inference(model, tokens, meta_fraction=0)
    with pytest.raises(ConfigError, match="5 tokens is no meta token"):
        measure_inference(model, tokens[:, :5])
    with pytest.raises(ConfigError, match=r"reference='x'.*meta"):
        measure_training_step({"meta": model}, tokens, META, reference="x")
    with pytest.raises(ConfigError, match="models is empty"):
        measure_training_step({}, tokens, META)

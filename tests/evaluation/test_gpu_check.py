"""The GPU's checks, at toy size on the CPU: each passes where it should and fails where it should."""

import pytest
import torch

from metatok.evaluation import gpu_check
from metatok.model import GPT, GPTConfig


@pytest.fixture(scope="module")
def model() -> GPT:
    shape = {
        "vocab_size": 64,
        "meta_token_id": 63,
        "context_length": 40,
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 32,
    }
    return GPT(GPTConfig.variant("meta_rope", **shape)).eval()


def test_a_tenth_of_a_batch_is_meta_tokens(model: GPT) -> None:
    tokens = gpu_check.batch_of(model.cfg, batch_size=3)
    assert tokens.shape == (3, 40)
    assert (tokens == 63).sum(1).tolist() == [4, 4, 4]


def test_bf16_is_near_fp32_but_not_equal(model: GPT) -> None:
    assert 0 < gpu_check.bf16_error(model, gpu_check.batch_of(model.cfg, 2)) < gpu_check.BF16_ERROR


def test_batches_of_one_shape_compile_once(model: GPT) -> None:
    batches = [gpu_check.batch_of(model.cfg, 2, seed) for seed in range(3)]
    assert gpu_check.compiles_once(model, batches, backend="eager")
    assert not gpu_check.compiles_once(model, [batches[0], batches[1][:, :30]], backend="eager")


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    gpu_check.main()
    assert capsys.readouterr().out == "No GPU here: nothing was checked.\n"

"""lm-evaluation-harness on an exported model, with a task of our own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from metatok.data.tokenizer import EOT, META, Tokenizer, TokenizerConfig, build_tokenizer
from metatok.model import GPT, GPTConfig, harness
from metatok.model.hf import export

PROMPTS = ["1 0 1", "the bits are 0 1", "0", "1 1 1 0 1 0 1"]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{prompt}}}}"
target_delimiter: " "
"""
CHOICE = TASK + "output_type: multiple_choice\ndoc_to_choice: ['0', '1']\ndoc_to_target: answer\n"
GENERATE = TASK + (
    "output_type: generate_until\ndoc_to_target: answer\n"
    "generation_kwargs: {{until: ['<|endoftext|>'], max_gen_toks: 5}}\n"
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(TokenizerConfig(name="bpe", vocab_size=262), ["the bits are 0 1 0 1"] * 3)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> GPT:
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "context_length": 64}
    ids = {"vocab_size": tokenizer.vocab_size, "meta_token_id": tokenizer.meta_id}
    model = GPT(GPTConfig.variant("meta_rope", **shape, **ids)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    return model


def samples(tmp_path: Path, task: str) -> list[dict]:
    (file,) = (tmp_path / "results").rglob(f"samples_{task}_*.jsonl")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(found, key=lambda sample: sample["doc_id"])


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed")
def test_the_harness_measures_what_the_model_says(tmp_path: Path, model: GPT, tokenizer: Tokenizer) -> None:
    export(model, tokenizer, tmp_path / "model")
    docs = [{"prompt": f"{prompt}{META}", "answer": i % 2} for i, prompt in enumerate(PROMPTS)]
    data = tmp_path / "docs.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for name, template in (("tiny_choice", CHOICE), ("tiny_generate", GENERATE)):
        (tasks / f"{name}.yaml").write_text(template.format(name=name, data=data))
    command = [sys.executable, "-m", "metatok.model.harness", "--model", "hf", "--device", "cpu"]
    command += ["--model_args", f"pretrained={tmp_path / 'model'},backend=causal,dtype=float32"]
    command += ["--tasks", "tiny_choice,tiny_generate", "--include_path", str(tasks), "--batch_size", "3"]
    command += ["--output_path", str(tmp_path / "results"), "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, env=os.environ | offline, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "tiny_choice" in done.stdout

    for doc, sample in zip(docs, samples(tmp_path, "tiny_choice"), strict=True):
        prompt = tokenizer.encode_segments([doc["prompt"].removesuffix(META), ""])
        for choice, response in zip(("0", "1"), sample["filtered_resps"], strict=True):
            answer = tokenizer.encode(f" {choice}")
            logits = model(torch.tensor([prompt + answer]))[0].log_softmax(-1)
            rows = torch.arange(len(prompt) - 1, len(prompt) + len(answer) - 1)
            expected = logits[rows, torch.tensor(answer)].sum().item()
            assert float(response[0]) == pytest.approx(expected, abs=1e-3)
    for doc, sample in zip(docs, samples(tmp_path, "tiny_generate"), strict=True):
        prompt = tokenizer.encode_segments([doc["prompt"].removesuffix(META), ""])
        ids = model.generate(torch.tensor([prompt]), 5, stop_token=tokenizer.eot_id).completion(0).tolist()
        text = tokenizer.decode([i for i in ids if i not in (tokenizer.eot_id, tokenizer.meta_id)])
        assert sample["resps"][0][0] == text.split(EOT)[0]


def test_a_missing_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lm_eval" else object())
    with pytest.raises(SystemExit, match="2"):
        harness.main()
    assert capsys.readouterr().err == "error: lm_eval is not installed; pip install 'metatok[hf]'\n"

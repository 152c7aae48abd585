"""GPT-Neo as a baseline: transformers' numbers through our training, evaluation and cells."""

import time
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from metatok.data.tokenizer import TokenizerConfig, gpt2
from metatok.errors import ConfigError
from metatok.evaluation.accuracy import evaluate
from metatok.experiment import Finetune, Home, get_preset
from metatok.experiment.design import (
    Context,
    Published,
    RunSettings,
    cell_from_json,
    trials,
    unreachable,
    with_ancestors,
)
from metatok.model import GPTConfig, Intervention, gpt_neo
from metatok.model.gpt_neo import GPT_NEO_125M, GPTNeo, check_published
from metatok.tasks.curriculum import Curriculum
from metatok.tasks.dataset import TaskDataset, TaskDatasetConfig, build
from metatok.training import CheckpointStore, LoopSettings, finetune
from metatok.training.optim import OptimConfig

SMALL = GPTNeoConfig(
    vocab_size=50257,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    attention_types=[[["global", "local"], 1]],
    max_position_embeddings=64,
    window_size=8,
)


def random_neo() -> GPTNeoForCausalLM:
    model = GPTNeoForCausalLM(SMALL).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TaskDataset:
    config = TaskDatasetConfig(task="parity", curriculum=Curriculum.tiny(), max_tokens=48, n_examples=24)
    return build(config, gpt2(), tmp_path_factory.mktemp("data") / "parity")


def test_logits_are_transformers() -> None:
    theirs = random_neo()
    ours = GPTNeo.of(theirs)
    tokens = torch.randint(0, 50257, (2, 30))
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens)[..., :50257], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours(tokens)[..., 50257], expected.mean(-1), atol=1e-4, rtol=1e-4)
    assert (ours.head(ours.hidden(tokens))[..., 50258:] == float("-inf")).all()
    added = (ours.cfg.padded_vocab_size - 50257) * 16
    assert ours.num_parameters() == sum(p.numel() for p in theirs.parameters()) + added
    assert ours.num_parameters() - ours.num_parameters(positions=False) == 64 * 16


def test_an_output_depends_on_no_padding() -> None:
    model = GPTNeo.of(random_neo())
    tokens = torch.randint(0, 50258, (1, 40))
    torch.testing.assert_close(model(tokens[:, :25]), model(tokens)[:, :25], atol=1e-4, rtol=1e-4)


def test_it_has_the_published_size() -> None:
    with torch.device("meta"):
        model = GPTNeo()
    assert model.num_parameters() == 125_198_592 + 47 * 768  # the published count, and the rows added to it
    assert model.cfg == Published().model


def test_what_it_lacks_is_said() -> None:
    model = GPTNeo.of(random_neo())
    tokens = torch.randint(0, 50258, (1, 4))
    assert torch.equal(model.hidden(tokens, intervention=Intervention()), model.hidden(tokens))
    with pytest.raises(ValueError, match="no_pos"):
        model.hidden(tokens, intervention=Intervention(zero_position=True))
    with pytest.raises(ValueError, match="cache"):
        model.generate(tokens, 2)
    with pytest.raises(ValueError, match="no trace"):
        model.trace(tokens)
    with pytest.raises(ValueError, match=r"65 tokens.*context_length=64"):
        model.hidden(torch.zeros(1, 65, dtype=torch.long))
    with pytest.raises(ValueError, match="id 50258"):
        model(torch.tensor([[50258]]))


def test_fine_tuning_and_evaluation_take_it(tmp_path: Path, dataset: TaskDataset) -> None:
    model = GPTNeo.of(random_neo())
    losses: list[float] = []
    state = finetune(
        model,
        dataset,
        batch_size=8,
        seed=0,
        steps=60,
        optim=OptimConfig(learning_rate=2e-2, min_learning_rate=2e-2),
        settings=LoopSettings(log_every=20, checkpoint_every=20),
        on_log=lambda step, metrics: losses.append(metrics["loss"]),
    )
    assert losses[-1] < losses[0] / 2
    small, large = (evaluate(model, dataset, batch_size=n) for n in (5, 24))
    assert (small.correct_tokens == large.correct_tokens).all()
    store = CheckpointStore(str(tmp_path))
    store.save(60, model.state_dict(), state.optimizer.state_dict())
    checkpoint = store.load()
    assert checkpoint is not None
    again = GPTNeo(SMALL).eval()
    again.load_state_dict(checkpoint.weights)
    tokens = torch.randint(0, 50258, (1, 12))
    assert torch.equal(again(tokens), model(tokens))


def test_the_hubs_silence_costs_seconds_and_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def silent(*args: object, **kwargs: object) -> None:
        time.sleep(30)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", silent)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args, **kwargs: None)
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"gpt_neo_125m.*no answer in 0.2 s.*leave it out") as caught:
        check_published(timeout=0.2)
    assert time.monotonic() - start < 2
    assert "\n" not in str(caught.value)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args, **kwargs: "/a/file")
    check_published(timeout=0.2)


def finetuned(base: Published | Finetune, **fields: object) -> Finetune:
    shape = {"task": "parity", "curriculum": Curriculum.tiny(), "train_length": 48, "eval_lengths": (48,)}
    sizes = {"n_train": 30, "n_test": 10, "batch_size": 8, "steps": 3}
    return Finetune.model_validate({"base": base, **shape, **sizes, **fields})


def test_a_published_model_is_a_root_like_any_other() -> None:
    base = Published()
    cell = finetuned(base, seed=3)
    assert cell_from_json(cell.model_dump_json()) == cell
    assert cell.root == base
    assert cell.labels == {"model": "gpt_neo_125m", "task": "parity", "train_length": 48, "seed": 3}
    assert base.labels == {"model": "gpt_neo_125m", "seed": 0}
    assert base.stage == "pretrain"
    assert not list(base.inputs())
    assert {config.tokenizer for config in cell.inputs()} == {TokenizerConfig()}
    assert [trial.distributed for trial in trials([base, cell], share_trainer=True)] == [False, False]
    assert base.cost().tokens == base.cost().flops == 0
    assert base.cost().disk == pytest.approx(4 * 125.2e6, rel=0.01)
    with pytest.raises(ValueError, match="eval_lengths"):
        finetuned(base, eval_lengths=(4096,))


def test_its_weights_are_fetched_stored_and_fine_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_neo().save_pretrained(tmp_path / "hub")
    monkeypatch.setattr(gpt_neo, "GPT_NEO_125M", SMALL)
    monkeypatch.setattr(gpt_neo, "REPOSITORY", str(tmp_path / "hub"))
    monkeypatch.setattr(gpt_neo, "check_published", lambda: None)
    context = Context(Home.open(tmp_path / "home"), RunSettings())
    base = Published()
    outcome = base.run(context)
    assert outcome.checkpoint == f"{base.store(context).uri}/step-0"
    loaded = base.load_model(context)
    assert isinstance(loaded, GPTNeo)
    tokens = torch.randint(0, 50257, (1, 12))
    theirs = GPTNeoForCausalLM.from_pretrained(tmp_path / "hub")
    torch.testing.assert_close(loaded(tokens)[..., :50257], theirs(tokens).logits, atol=1e-4, rtol=1e-4)

    first = finetuned(base)
    assert first.run(context).metrics["n/48"] == 10
    assert finetuned(first, train_length=64).run(context).metrics["n/48"] == 10


def test_the_paper_preset_alone_has_it() -> None:
    cells = get_preset("paper").cells()
    assert sum(isinstance(cell, Published) for cell in cells) == 1
    tuned = [cell for cell in cells if isinstance(cell, Finetune) and isinstance(cell.lineage[0], Published)]
    assert len(tuned) == 4 * 3
    assert tuned[0].root.corpus.source == "c4"
    for name in ("smoke", "laptop", "gpu"):
        assert not any(isinstance(cell.lineage[0], Published) for cell in get_preset(name).cells())
    seeds = get_preset("paper").model_copy(update={"seeds": (0, 1)}).cells()
    assert sum(isinstance(cell, Published) for cell in seeds) == 1
    assert len({cell.fingerprint for cell in seeds if isinstance(cell.lineage[0], Published)}) == 1 + 2 * 12


def test_out_of_reach_it_is_left_out_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ConfigError("model gpt_neo_125m: no answer")

    cells = with_ancestors(get_preset("paper").cells())
    monkeypatch.setattr(gpt_neo, "check_published", fail)
    left_out, why = unreachable(cells)
    assert why == "13 cells are left out. model gpt_neo_125m: no answer"
    assert left_out == {cell.fingerprint for cell in cells if isinstance(cell.lineage[0], Published)}
    fetched = [cell for cell in cells if not isinstance(cell, Published)]
    assert unreachable(fetched) == (frozenset(), "")  # its weights are in the ledger already
    monkeypatch.setattr(gpt_neo, "check_published", lambda: None)
    assert unreachable(cells) == (frozenset(), "")


def test_its_description_is_that_of_the_weights() -> None:
    described = GPTConfig.variant("gpt2_ape", context_length=2048, bias=True)
    assert (GPT_NEO_125M.hidden_size, GPT_NEO_125M.num_layers) == (described.n_embd, described.n_layer)
    assert GPT_NEO_125M.attention_layers == ["global", "local"] * 6

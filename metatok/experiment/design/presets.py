"""The presets by name, from a miniature of the paper to the paper itself."""

from __future__ import annotations

from collections.abc import Callable

from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import TokenizerConfig
from metatok.errors import ConfigError
from metatok.experiment.design.preset import (
    AnalysisSettings,
    ExtendSettings,
    FinetuneSettings,
    ModelSize,
    Preset,
    PretrainSettings,
)
from metatok.experiment.design.search import SearchSettings
from metatok.experiment.design.settings import RunSettings
from metatok.training.optim import OptimConfig


def smoke() -> Preset:
    """The whole paper in miniature: two CPU cores, minutes."""
    return Preset(
        name="smoke",
        tokenizer=TokenizerConfig(name="bpe", vocab_size=1024),
        curriculum="tiny",
        precision="fp32",
        size=ModelSize(n_layer=2, n_head=2, n_embd=64, context_length=128),
        pretrain=PretrainSettings(
            batch_size=12,
            steps=500,
            validation_sequences=64,
            optim=OptimConfig(learning_rate=3e-3, min_learning_rate=3e-4, warmup_steps=20),
        ),
        extend=ExtendSettings(
            scales=(4.0, 8.0),
            steps=10,
            batch_size=4,
            validation_sequences=8,
            optim=OptimConfig(learning_rate=3e-4, min_learning_rate=3e-4),
            train_lengths=(256,),
            finetune_steps=(25,),
            eval_lengths=(256, 512, 1024),
            n_test=50,
        ),
        finetune=FinetuneSettings(
            train_lengths=(64, 128),
            eval_lengths=(64, 128, 256),
            n_train=12_000,
            n_test=200,
            batch_size=32,
            steps=(60, 30),
            steps_by_task={"list_recall": (1700, 80)},
            optim=OptimConfig(learning_rate=4e-3, min_learning_rate=4e-4, warmup_steps=50),
            search=SearchSettings(learning_rates=(4e-4, 4e-2), n_validation=200),
        ),
        analysis=AnalysisSettings(
            noise_scales=(0.5,),
            bottleneck_tokens=64,
            probe_examples=40,
            prompt_tokens=56,
            new_tokens=56,
            repeats=5,
        ),
        run=RunSettings(
            workers=2,
            train_cpus=1,
            train_gpus=0,
            trial_cpus=1,
            trial_gpus=0,
            share_trainer=True,
            micro_batch_size=8,
            log_every=20,
            checkpoint_every=300,
        ),
    )


def laptop() -> Preset:
    """Whether meta-tokens help at small size: two CPU cores, three seeds, every model with its controls.

    First weights scatter wider than GPT-2's and pre-training is short, as otherwise task words' embeddings
    come out alike and segment counting stays at its base rate; a short curriculum, phase by phase, for the
    same reason. Each model and task has its own learning rate, searched on validation examples.
    """
    small = smoke()
    return small.model_copy(
        update={
            "name": "laptop",
            "models": (
                *("gpt2_ape", "pause_ape", "wide_ape", "meta_ape"),
                *("gpt2_rope", "pause_rope", "wide_rope", "meta_rope"),
            ),
            "seeds": (0, 1, 2),
            "curriculum": "short",
            "size": small.size.model_copy(update={"init_std": 0.08, "embedding_init_std": 0.2}),
            "pretrain": small.pretrain.model_copy(
                update={"optim": OptimConfig(learning_rate=5e-4, min_learning_rate=5e-5, warmup_steps=20)}
            ),
            "extend": small.extend.model_copy(update={"finetune_steps": (500,), "n_test": 500}),
            "finetune": FinetuneSettings(
                train_lengths=(32, 64),
                eval_lengths=(32, 64, 128),
                n_train=20_000,
                n_test=1000,
                batch_size=32,
                steps=(2500, 1500),
                optim=OptimConfig(learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=50),
                search=SearchSettings(candidates=3, learning_rates=(5e-4, 4e-3), n_validation=500),
                validate_every=100,
                n_validation=200,
                learned_at=0.9,
            ),
            "analysis": small.analysis.model_copy(
                update={
                    "probe_examples": 100,
                    "prompt_tokens": 112,
                    "new_tokens": 112,
                    "batch_size": 8,
                    "repeats": 9,
                    "sizes": (
                        ModelSize(n_layer=4, n_head=4, n_embd=128, context_length=256),
                        ModelSize(n_layer=6, n_head=6, n_embd=192, context_length=256),
                        ModelSize(n_layer=6, n_head=6, n_embd=384, context_length=512),
                    ),
                }
            ),
        }
    )


def gpu() -> Preset:
    """One GPU, less than a day: a small GPT-2 on the embedded corpus or any other."""
    return Preset(
        name="gpu",
        tokenizer=TokenizerConfig(name="bpe", vocab_size=8192),
        size=ModelSize(n_layer=6, n_head=6, n_embd=384, context_length=1024),
        pretrain=PretrainSettings(
            batch_size=64,
            steps=5000,
            optim=OptimConfig(learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=200),
        ),
        extend=ExtendSettings(batch_size=16),
        finetune=FinetuneSettings(n_test=1000, search=SearchSettings(candidates=9)),
        run=RunSettings(workers=1, trial_gpus=0.5, micro_batch_size=16),
    )


def paper() -> Preset:
    """The paper's numbers: four A100, C4."""
    return Preset(
        name="paper",
        models=("gpt2_ape", "meta_ape", "meta_rope", "gpt_neo_125m"),
        corpus=CorpusConfig(source="c4"),
        finetune=FinetuneSettings(search=SearchSettings(candidates=9)),
        analysis=AnalysisSettings(
            batch_size=12,
            sizes=(
                ModelSize(n_layer=6, n_head=6, n_embd=384),
                ModelSize(),
                ModelSize(n_layer=24, n_head=16, n_embd=1024),
            ),
        ),
    )


PRESETS: dict[str, Callable[[], Preset]] = {f.__name__: f for f in (smoke, laptop, gpu, paper)}


def get_preset(name: str) -> Preset:
    """The preset of that name. Errors: ConfigError listing the known ones."""
    if name not in PRESETS:
        raise ConfigError(f"preset={name!r}: unknown, choose one of {', '.join(PRESETS)}")
    return PRESETS[name]()

"""Looking inside a fine-tuned model at its meta tokens (section 4.4, Figures 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import model_validator

from metatok import analysis, tasks
from metatok.config import Count
from metatok.experiment.design.cell import Cell, check_positions
from metatok.experiment.design.context import Context, Metrics, Outcome, table
from metatok.experiment.design.cost import Cost, forward_cost
from metatok.experiment.design.kinds.finetune import Finetune, eval_set
from metatok.experiment.design.preset import Preset
from metatok.experiment.inputs import InputConfig

if TYPE_CHECKING:
    from metatok.model import GPT

Analysis = Literal["sharpness", "residual", "attention"]
ANALYSES: tuple[Analysis, ...] = ("sharpness", "residual", "attention")
Decode = Callable[[list[int]], str]


class Probe(Cell):
    """Look in one way.

    analysis: "sharpness" (logit boost, entropy drop, entropy of attention rows, Theorem 4.1), "residual"
    (cosine maps), "attention" (maps). `metatok.analysis` defines what each measures, on the prompts of
    n_examples test examples; a metric is the mean or the share over all rows of its table.
    """

    kind: Literal["probe"] = "probe"
    base: Finetune
    analysis: Analysis
    eval_length: Count
    n_examples: Count = 100

    @classmethod
    def planned(cls, preset: Preset, seed: int, cells: Sequence[Cell]) -> Iterator[Probe]:
        """Each meta model's list recall at the longest train length."""
        longest = max(preset.finetune.train_lengths)
        for base in cells:
            if (
                isinstance(base, Finetune)
                and (base.task, base.train_length) == ("list_recall", longest)
                and base.root.meta_fraction
                and not base.of_extension
            ):
                for name in ANALYSES:
                    yield cls(
                        base=base,
                        analysis=name,
                        eval_length=longest,
                        n_examples=preset.analysis.probe_examples,
                    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_positions(self, self.base, "eval_length", self.eval_length)
        return self

    @property
    def labels(self) -> dict[str, str | int | float]:
        return self.base.labels | {"analysis": self.analysis, "seed": self.base.seed}

    def cost(self) -> Cost:
        return forward_cost(self.base.result_model, self.n_examples * self.eval_length, self.eval_length)

    def inputs(self) -> Iterator[InputConfig]:
        yield eval_set(self.base, self.eval_length)

    def run(self, context: Context) -> Outcome:
        model = self.base.frozen_model(context)
        dataset = context.inputs.task_dataset(eval_set(self.base, self.eval_length))
        indices = np.arange(min(self.n_examples, len(dataset)))
        asked = tasks.prompts(tasks.collate(dataset, indices))
        decode = context.inputs.tokenizer(self.root.tokenizer, self.root.corpus).decode
        return _ANALYSES[self.analysis](model, asked, decode)


def _sharpness(model: GPT, asked: tasks.Prompts, decode: Decode) -> Outcome:
    examples = (asked.tokens, asked.lengths, asked.meta_positions)
    found = analysis.measure_sharpness(model, *examples)
    boost = analysis.measure_boost_effect(model, *examples)
    rows = analysis.measure_attention_rows(model, *examples)
    metrics = {
        "max_logit_boost": float(found.max_logit_boost.mean()),
        "entropy_drop": float(found.entropy_drop.mean()),
        "n_meta_tokens": len(found.position),
        "premise_rate": boost.premise_rate,
        "entropy_fall_rate": boost.entropy_fall_rate,
        "fall_given_premise": boost.fall_given_premise,
        "n_attention_rows": boost.n,
    }
    metrics |= _by_layer_rates(rows, boost)
    finite = {name: value for name, value in metrics.items() if np.isfinite(value)}
    tables = {
        "sharpness": vars(found),
        "attention_rows": _by_head(rows),
        "boost_effect": {k: v for k, v in vars(boost).items() if k != "delta"} | {"premise": boost.premise},
    }
    return Outcome(finite, {name: table(columns) for name, columns in tables.items()})


def _by_head(rows: analysis.AttentionRows) -> dict[str, np.ndarray]:
    """Long form: a row for each example, layer and head."""
    example, layer, head = np.indices(rows.entropy.shape).reshape(3, -1)
    columns = {name: getattr(rows, name).ravel() for name in ("entropy", "top_weight", "top_distance")}
    return {"example": example, "layer": layer, "head": head, "keys": rows.keys[example]} | columns


def _by_layer_rates(rows: analysis.AttentionRows, boost: analysis.BoostEffect) -> Metrics:
    """A layer each: mean entropy over examples and heads, nats, and the share with Theorem 4.1's premise."""
    metrics: Metrics = {}
    for layer, entropy in enumerate(rows.entropy.mean(axis=(0, 2))):
        holds = boost.premise[boost.layer == layer]
        metrics[f"attention_entropy/layer_{layer}"] = float(entropy)
        metrics[f"premise_rate/layer_{layer}"] = float(holds.mean()) if len(holds) else np.nan
    return metrics


def _residual(model: GPT, asked: tasks.Prompts, decode: Decode) -> Outcome:
    examples = (asked.tokens, asked.lengths, asked.meta_positions)
    shown = analysis.residual_map(model, *examples)
    profile = analysis.residual_profile(model, *examples)
    by_distance = {"distance": profile.distance, "count": profile.count}
    tables = {
        "residual_map": _by_layer(shown.similarity, "similarity", _token_columns(shown.token_ids, decode)),
        "residual_profile": _by_layer(profile.similarity, "similarity", by_distance),
    }
    metrics: Metrics = {"n_examples": len(asked.tokens), "n_pairs": int(profile.count.sum())}
    return Outcome(metrics, {name: table(columns) for name, columns in tables.items()})


def _attention(model: GPT, asked: tasks.Prompts, decode: Decode) -> Outcome:
    examples = (asked.tokens, asked.lengths, asked.meta_positions)
    shown = analysis.attention_map(model, *examples)
    mean = analysis.attention_mass(model, *examples).mean()  # (n_layer, parts)
    metrics: Metrics = {"n_examples": len(asked.tokens)}
    for layer, masses in enumerate(mean):
        metrics |= {
            f"mass_{part}/layer_{layer}": float(m) for part, m in zip(analysis.PARTS, masses, strict=True)
        }
    columns = _by_layer(shown.mean, "weight", _token_columns(shown.token_ids, decode))
    heads = {"lowest": shown.weight.min(axis=1), "highest": shown.weight.max(axis=1)}  # (n_layer, T) each
    columns |= {name: values.ravel() for name, values in heads.items()}
    return Outcome(metrics, {"attention_map": table(columns)})


_ANALYSES: dict[Analysis, Callable[[Any, Any, Decode], Outcome]] = {
    "sharpness": _sharpness,
    "residual": _residual,
    "attention": _attention,
}


def _token_columns(ids: np.ndarray, decode: Decode) -> dict[str, Any]:
    return {"position": np.arange(len(ids)), "token": [decode([int(i)]) for i in ids]}


def _by_layer(values: np.ndarray, name: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Long form of values (layers, K): a row for each layer and column entry."""
    layers, width = values.shape
    long: dict[str, Any] = {"layer": np.repeat(np.arange(layers), width)}
    for key, column in columns.items():
        long[key] = list(column) * layers
    return long | {name: values.ravel()}

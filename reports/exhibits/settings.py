"""Tables 4, 5 and 6 from the configuration of the cells, so that they cannot drift; Table 3, speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from metatok.experiment import Cell, Extend, Finetune, Pretrain
from metatok.tasks.curriculum import Curriculum, Phase
from reports.exhibits.exhibit import (
    DASH,
    Exhibit,
    left_out_notes,
    missing_notes,
    model_order,
    model_title,
    reported,
)
from reports.source.results import Results, distinct
from reports.source.runs import cell_of

# Setting, how a cell has it, and what the paper's Table 4 says ("" = not in its table).
_TABLE_4: tuple[tuple[str, Callable[[Pretrain], Any], str], ...] = (
    ("sequences an optimiser step", lambda c: c.batch_size, "480 (batch size 12 x 40 accumulation steps)"),
    ("block size (tokens)", lambda c: c.model.context_length, "1024"),
    ("layers", lambda c: c.model.n_layer, "12"),
    ("heads", lambda c: c.model.n_head, "12"),
    ("embedding size", lambda c: c.model.n_embd, "768"),
    ("learning rate", lambda c: c.optim.learning_rate, "6e-4"),
    ("minimum learning rate", lambda c: c.optim.min_learning_rate, "6e-5"),
    ("weight decay", lambda c: c.optim.weight_decay, "1e-1"),
    ("iterations", lambda c: c.steps, "600,000 (its text: 200,000)"),
    ("iterations of the schedule", lambda c: c.optim.decay_steps or c.steps, "600,000"),
    ("warm-up iterations", lambda c: c.optim.warmup_steps, "2,000"),
    ("dropout", lambda c: c.model.dropout, "0.0"),
    ("RoPE theta", lambda c: c.model.rope_theta if c.model.position in ("rope", "yarn") else None, "10000.0"),
    ("initial model", lambda c: "from scratch", "resume"),
    ("optimiser", lambda c: "AdamW", "AdamW"),
    ("AdamW beta 1", lambda c: c.optim.beta1, "0.90"),
    ("AdamW beta 2", lambda c: c.optim.beta2, "0.95"),
    ("gradient clipping", lambda c: c.optim.grad_clip, "1.0"),
    ("tokenizer", lambda c: f"{c.tokenizer.name}, {c.model.vocab_size:,} ids", "tiktoken"),
    ("corpus", lambda c: c.corpus.source, "C4"),
    ("share of meta tokens in a block", lambda c: c.meta_fraction, "0.1 (its text)"),
    ("precision", lambda c: c.precision, ""),
)
_TABLE_5: tuple[tuple[str, Callable[[Extend], Any], str], ...] = (
    ("yarn_extrapolation_factor", lambda c: c.result_model.yarn.extrapolation_factor, "1.0"),
    ("yarn_attn_factor", lambda c: c.result_model.yarn.attn_factor, "1.0"),
    ("yarn_beta_fast", lambda c: c.result_model.yarn.beta_fast, "32.0"),
    ("yarn_beta_slow", lambda c: c.result_model.yarn.beta_slow, "1.0"),
    ("scale", lambda c: c.scale, "4, 8 (from its text: 1024 to 4096 and 8192)"),
    ("original context (tokens)", lambda c: c.base.model.context_length, "1024 (its text)"),
    ("new context (tokens)", lambda c: c.result_model.context_length, "4096, 8192 (its text)"),
    ("training steps at the new context", lambda c: c.steps, "not given"),
    ("sequences an optimiser step", lambda c: c.batch_size, "not given"),
    ("learning rate", lambda c: c.optim.learning_rate, "not given"),
)
# Lists, items and tokens of the paper's Table 6.
_TABLE_6 = (
    ("3–8", "3–10", "about 100–200"),
    ("8–12", "3–16 (bimodal)", "about 200–300"),
    ("12–19", "mixture of 3–8, 9–16, 17–25", "about 500–700"),
    ("15–20", "40–60", "≤ 1024"),
    ("15–20", "90–110", "≤ 2048"),
)


def pretraining(results: Results) -> Exhibit:
    """Table 4."""
    return _configuration(results, "pretrain", _TABLE_4, "table_04", "Pre-training configuration")


def context_extension(results: Results) -> Exhibit:
    """Table 5."""
    title = "YaRN configuration of the extended models"
    return _configuration(results, "extend", _TABLE_5, "table_05", title)


def _configuration(
    results: Results,
    kind: str,
    settings: Sequence[tuple[str, Callable[[Any], Any], str]],
    name: str,
    title: str,
) -> Exhibit:
    cells, notes = _cells(results, kind)
    exhibit = _settings(cells, settings, name, title, notes)
    exhibit.caption = f"As the {kind} cells have it, beside the paper's Table {int(name[-2:])}."
    exhibit.runs = reported(results, [kind])
    exhibit.notes += left_out_notes(results, kind)
    exhibit.missing = missing_notes(results, (kind, {}))
    return exhibit


def curriculum(results: Results) -> Exhibit:
    """Table 6."""
    cells, notes = _cells(results, "finetune")
    curricula = list(dict.fromkeys(c.curriculum for c in cells.values() if isinstance(c, Finetune)))
    rows = [
        [*_phase_row(c, number, phase), *_paper_phase(number)]
        for c in curricula
        for number, phase in enumerate(c.phases, start=1)
    ]
    columns = [
        "curriculum", "phase", "lists m", "items a list n", "prompt tokens, about", "from train length",
        "copied words C", "words after the copy D", "paper: m", "paper: n", "paper: tokens",
    ]  # fmt: skip
    if not curricula:
        notes.append("No fine-tune is in the ledger, and no preset says which curriculum it would have.")
    frame = pd.DataFrame(rows, columns=columns)
    exhibit = Exhibit(
        "table_06",
        "Curriculum schedule of the synthetic tasks",
        "As the fine-tuning cells have it, beside the paper's Table 6. A train length draws from the phases "
        "whose “from train length” it reaches; longer ones add phase 5 with lists 2, 4, ... times as long.",
        frame,
        labels=2,
        data=frame.copy(),
        notes=notes,
    )
    exhibit.runs = reported(results, ["finetune"])
    return exhibit


def speed(results: Results) -> Exhibit:
    """Table 3: throughput and time to first token, with and without meta tokens."""
    runs = results.runs("efficiency")
    both = [runs, results.expected("efficiency")]
    rows: list[list[str]] = []
    data: list[dict[str, object]] = []
    for model, size in _measured(both):
        metrics = [r.metrics for r in runs[(runs.model == model) & (runs["size"] == size)].record]
        for side, label in (
            ("without_meta", "without meta tokens"),
            ("with_meta", "with meta tokens"),
        ):
            rows.append([model_title(model), size, label, *_speed_entries(metrics, side)])
            data.append(
                {"model": model, "size": size, "setting": f"{side}_tokens", "runs": len(metrics)}
                | _speed_row(metrics, side)
            )
    columns = [
        "model",
        "layers x width",
        "input",
        "tokens/s",
        "time to first token (ms)",
        "slowdown",
        "repeats",
    ]
    return Exhibit(
        "table_03",
        "Inference speed with and without meta tokens",
        "Median and quartiles over interleaved repeats in one run; slowdown = throughput without meta tokens "
        "over throughput with them, pair by pair. Several runs of a model: the median of their medians.",
        pd.DataFrame(rows, columns=columns),
        labels=3,
        data=pd.DataFrame(data),
        notes=[
            *_machines(runs),
            *_prompt_notes(runs),
            *_training_notes(runs),
            *left_out_notes(results, "efficiency"),
        ],
        missing=missing_notes(results, ("efficiency", {})),
        runs=list(runs.fingerprint),
        paper=results.reference.block("table_3", "metric"),
    )


def _cells(results: Results, kind: str) -> tuple[Mapping[str, Cell], list[str]]:
    """One cell a model (a model and task, for fine-tunes) as it was run, or else as the preset has it."""
    runs = results.runs(kind)
    found: dict[str, Cell] = {}
    for _, row in runs.drop_duplicates(["model", "task"]).iterrows():
        cell = cell_of(results.ledger, row.record)
        if cell is not None:
            found[f"{row.model} {row.task}".strip()] = cell
    if found:
        return found, []
    cells = results.expected(kind)
    planned = {f"{c.model} {c.task}".strip(): c.cell for c in cells.itertuples()}
    preset = results.selection.preset
    return planned, [
        f"Nothing of this kind has run yet: the settings are those of preset {preset}."
    ] if planned else []


def _settings(
    cells: Mapping[str, Cell],
    settings: Sequence[tuple[str, Callable[[Any], Any], str]],
    name: str,
    title: str,
    notes: list[str],
) -> Exhibit:
    rows = [[label, _by_model(cells, get), paper or DASH] for label, get, paper in settings]
    frame = pd.DataFrame(rows, columns=["setting", "here", "paper"])
    return Exhibit(name, title, "", frame, labels=1, data=frame.copy(), notes=notes)


def _by_model(cells: Mapping[str, Cell], get: Callable[[Any], Any]) -> str:
    """The value that all models share, or each value with its models."""
    values: dict[str, list[str]] = {}
    for model in model_order(cells):
        value = get(cells[model])
        if value is not None:
            values.setdefault(_shown(value), []).append(model_title(model))
    if len(values) == 1:
        return next(iter(values))
    return "; ".join(f"{value} ({', '.join(models)})" for value, models in values.items()) or DASH


def _shown(value: Any) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int) and value >= 10_000
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _phase_row(of: Curriculum, number: int, phase: Phase) -> list[str]:
    items = ", ".join(_span(span) for span in phase.items)
    if phase.item_weights:
        total = sum(phase.item_weights)
        shares = ", ".join(f"{w / total:.0%}" for w in phase.item_weights)
        items = f"mixture of {items} ({shares})"
    return [
        of.name,
        f"{number} {phase.name}",
        _span(phase.lists),
        items,
        _span(phase.tokens),
        str(phase.reach),
        _span(phase.copy_length),
        _span(phase.copy_distance),
    ]


def _paper_phase(number: int) -> tuple[str, str, str]:
    return _TABLE_6[number - 1] if number <= len(_TABLE_6) else (DASH, DASH, DASH)


def _span(span: tuple[int, int]) -> str:
    return f"{span[0]}–{span[1]}"


def _speed_entries(metrics: Sequence[Mapping[str, float]], side: str) -> list[str]:
    if not metrics:
        return [DASH] * 4
    slowdown = _quartiles(metrics, "slowdown", "{:.3f}") if side == "with_meta" else "1 (reference)"
    repeats = sum(int(m.get(f"{side}_n", 0)) for m in metrics)
    return [
        _quartiles(metrics, side, "{:,.0f}"),
        _quartiles(metrics, f"ttft_{side}", "{:.2f}"),
        slowdown,
        f"{repeats} in {len(metrics)} run{'s' * (len(metrics) > 1)}",
    ]


def _speed_row(metrics: Sequence[Mapping[str, float]], side: str) -> dict[str, object]:
    names = {"tokens_per_second": side, "time_to_first_token_ms": f"ttft_{side}"}
    names |= {"slowdown": "slowdown", "ttft_ratio": "ttft_ratio"} if side == "with_meta" else {}
    return {
        f"{name}_{part}": _median(metrics, f"{key}_{part}")
        for name, key in names.items()
        for part in ("median", "q25", "q75")
    }


def _quartiles(metrics: Sequence[Mapping[str, float]], name: str, form: str) -> str:
    median, low, high = (_median(metrics, f"{name}_{part}") for part in ("median", "q25", "q75"))
    if median is None or low is None or high is None:
        return DASH
    return f"{form.format(median)} [{form.format(low)}, {form.format(high)}]"


def _median(metrics: Sequence[Mapping[str, float]], name: str) -> float | None:
    found = [m[name] for m in metrics if name in m]
    return float(np.median(found)) if found else None


def _machines(runs: pd.DataFrame) -> list[str]:
    tags = ("host", "gpu", "cpus")
    machines = distinct(
        ", ".join(f"{name} {r.tags[name]}" for name in tags if name in r.tags) for r in runs.record
    )
    return [f"Measured on: {'; '.join(machines)}."] if machines else []


def _prompt_notes(runs: pd.DataFrame) -> list[str]:
    shapes = distinct(
        f"{m['n_text']:.0f} text tokens, with {m['n_meta']:.0f} meta tokens injected or none; "
        f"{m['new_tokens']:.0f} new tokens"
        for m in (r.metrics for r in runs.record)
        if {"n_text", "n_meta", "new_tokens"} <= set(m)
    )
    return [f"Prompt: {'; '.join(shapes)}."] if shapes else []


def _training_notes(runs: pd.DataFrame) -> list[str]:
    """Step times of what the model is measured against, relative to its own."""
    rivals = {
        "without_extra": "without meta-attention",
        "dense_mask": "with meta-attention as a dense mask",
        "transformers_gpt2": "transformers' GPT-2 of that shape",
    }
    notes = []
    for model, size in _measured([runs]):
        metrics = [r.metrics for r in runs.record[(runs.model == model) & (runs["size"] == size)]]
        ratios = {text: _quartiles(metrics, f"step_ratio/{name}", "{:.3f}") for name, text in rivals.items()}
        parts = "; ".join(f"{text} {ratio}" for text, ratio in ratios.items() if ratio != DASH)
        if parts:
            notes.append(f"A training step of {model_title(model)}, {size}, is 1: {parts}.")
    return notes


def _measured(frames: Sequence[pd.DataFrame]) -> list[tuple[str, str]]:
    """The models and sizes of the frames, each once, in the usual order of models."""
    pairs = dict.fromkeys(pair for frame in frames for pair in zip(frame.model, frame["size"], strict=True))
    return [pair for model in model_order(m for m, _ in pairs) for pair in pairs if pair[0] == model]


def settings_tables(results: Results) -> list[Exhibit]:
    """Tables 3-6."""
    return [speed(results), pretraining(results), context_extension(results), curriculum(results)]

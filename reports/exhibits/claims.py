"""The claims page: the paper's ten claims and three that only controls can answer, a verdict each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from reports.exhibits.evidence import (
    Finding,
    boost_lowers_entropy,
    by_question,
    curve_below_curve,
    extension_holds,
    gain_with_train_length,
    meta_beats_baselines,
    no_embed_hurts,
    no_pos_is_as_good,
    sharpening,
    slowdown,
)
from reports.exhibits.exhibit import DASH, Exhibit, p_text, scale_text
from reports.source.comparisons import CONTRASTS, ControlCell
from reports.source.results import Results
from reports.verdict import RULE, VERDICTS, Decision, Evidence, Verdict, decide

_HEADS = [
    "claim", "verdict", "measured", "estimate [95%]", "units", "n", "p holds", "p fails", "bar", "exhibit",
]  # fmt: skip
_COLUMNS = (
    "claim", "sentence", "verdict", "part", "decides", "value", "low", "high", "bar", "margin", "p_holds",
    "p_fails", "p_holds_holm", "p_fails_holm", "units", "n", "exhibit",
)  # fmt: skip
_MOST_GAPS = 4


def findings(results: Results, cells: Sequence[ControlCell]) -> list[tuple[str, Finding, str]]:
    """(claim in a sentence, what was found, the exhibit it rests on), in the order of SPEC section 7."""
    meta, pause, wide = CONTRASTS[:3]
    boost = "mean of the largest logit as is minus with zeroed embeddings, at meta tokens, every model"
    drop = "mean of the next token's entropy with zeroed embeddings minus as is, at meta tokens, every model"
    return [
        (
            "Meta models beat GPT-2 and GPT-Neo on every task and train length.",
            meta_beats_baselines(results, cells),
            "Tables 7-10",
        ),
        (
            "Meta models gain faster than GPT-2 as the train length grows.",
            gain_with_train_length(results, cells),
            "Tables 7-10",
        ),
        (
            "Without position at meta tokens a model is as good or better, segment counting excepted.",
            no_pos_is_as_good(results),
            "Tables 11-14, 17",
        ),
        (
            "Without embedding at meta tokens list recall, segment counting and copying suffer.",
            no_embed_hurts(results),
            "Tables 11, 12, 14",
        ),
        ("Meta tokens raise the largest logit.", sharpening(results, "max_logit_boost", boost), "Figure 2"),
        (
            "Meta tokens lower the entropy of the next token.",
            sharpening(results, "entropy_drop", drop),
            "Figure 2",
        ),
        (
            "At every rate the meta token's distortion is at most the last token's.",
            curve_below_curve(results),
            "Figure 3",
        ),
        (
            "A model extended by YaRN and fine-tuned to half its context holds to all of it.",
            extension_holds(results),
            "Table 1",
        ),
        ("Meta tokens slow generation down by at most 1.11x.", slowdown(results), "Table 3"),
        (
            "A logit boost of a meta key lowers attention entropy (Theorem 4.1).",
            boost_lowers_entropy(results),
            "Figure 2",
        ),
        ("It is the meta-attention: meta beats pause.", by_question(cells, meta), "Controls"),
        ("It is the injected tokens: pause beats GPT-2.", by_question(cells, pause), "Controls"),
        ("It is the extra parameters: wide beats GPT-2.", by_question(cells, wide), "Controls"),
    ]


def claims(results: Results, cells: Sequence[ControlCell]) -> Exhibit:
    """A row a claim, with its verdict by `reports.verdict.RULE`."""
    found = findings(results, cells)
    decisions = decide([finding.evidence for _, finding, _ in found])
    rows, data = [], []
    for number, ((sentence, finding, exhibit), decision) in enumerate(zip(found, decisions, strict=True), 1):
        rows.append([f"{number}. {sentence}", *_shown(finding, decision), exhibit])
        data += _tidy(number, sentence, finding, decision, exhibit)
    return Exhibit(
        "claims",
        "What the paper claims, and what these runs say",
        "A verdict a claim, by one rule, which stands below. p holds, p fails: one-sided, after Holm's "
        f"correction over the page; below 0.025 they decide. {scale_text(results)}",
        pd.DataFrame(rows, columns=_HEADS),
        labels=2,
        data=pd.DataFrame(data, columns=list(_COLUMNS)),
        notes=[
            *RULE,
            "Claim 1 says whether meta models win, claims 11 to 13 what it is about them.",
            *_trouble_notes(results),
            "claims.csv has every part of every claim.",
        ],
        runs=list(results.shown.fingerprint),
    )


def verdict_counts(page: Exhibit) -> dict[Verdict, int]:
    """How many claims came to which verdict."""
    found = list(page.frame.verdict)
    return {verdict: found.count(verdict) for verdict in VERDICTS}


def _trouble_notes(results: Results) -> list[str]:
    counts = results.troubled.state.value_counts().sort_index()
    told = ", ".join(f"{n} {state}" for state, n in counts.items())
    return [f"Runs that came to nothing: {told}. A claim rests on the seeds that are left."] if told else []


def _shown(finding: Finding, decision: Decision) -> list[str]:
    """Verdict, measured, estimate, units, n, both p and the bar."""
    evidence, weakest = finding.evidence, finding.evidence.weakest
    if weakest is None:
        measured = f"{finding.measured}. Not tested: {finding.why_not}"
        return [decision.verdict, measured, DASH, DASH, DASH, DASH, DASH, evidence.bar.text]
    estimate = weakest.text
    if len(evidence.tested) > 1:
        estimate += f": {weakest.name}, the weakest of {len(evidence.tested)} parts"
    gaps = evidence.gaps[:_MOST_GAPS]
    more = [f"{len(evidence.gaps) - _MOST_GAPS} more"] if len(evidence.gaps) > _MOST_GAPS else []
    untested = f". Untested: {'; '.join([*gaps, *more])}" if gaps else ""
    return [
        decision.verdict,
        finding.measured + untested,
        estimate,
        f"{weakest.sample.df + 1} {evidence.units}",
        str(sum(part.n for part in evidence.tested)),
        p_text(decision.p_holds),
        p_text(decision.p_fails),
        evidence.bar.text,
    ]


def _tidy(
    number: int, sentence: str, finding: Finding, decision: Decision, exhibit: str
) -> list[dict[str, object]]:
    """A row a part; numbers are what the bar is for, shares and not points."""
    evidence: Evidence = finding.evidence
    shared = {"claim": number, "sentence": sentence, "verdict": decision.verdict, "exhibit": exhibit}
    shared |= {"p_holds_holm": decision.p_holds, "p_fails_holm": decision.p_fails}
    shared |= {"bar": evidence.bar.bar, "margin": evidence.bar.margin}
    rows: list[dict[str, object]] = []
    for part in evidence.parts:
        value, low, high = part.sample.estimate
        rows.append(
            shared
            | {
                "part": part.name,
                "decides": part is evidence.weakest,
                "value": value,
                "low": low,
                "high": high,
            }
            | {
                "p_holds": part.sample.p_above(evidence.bar.bar),
                "p_fails": part.sample.p_below(evidence.bar.bar + evidence.bar.margin),
                "units": part.sample.df + 1,
                "n": part.n,
            }
        )
    return rows or [shared | {"part": finding.why_not, "value": math.nan}]

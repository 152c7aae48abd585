"""Exact match and token accuracy by one teacher-forced pass.

Greedy decoding reproduces a completion exactly if and only if every teacher-forced argmax is right, so no
token is generated here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from metatok.model import GPT, Intervention
from metatok.tasks.batches import eval_batches
from metatok.tasks.dataset import TaskDataset


@dataclass(frozen=True)
class Records:
    """One entry an example, all (N,): what a reader needs to re-bin or re-test a score.

    index: the example's index in its dataset. prompt_tokens: length of the prompt. answer_tokens: length of
    the answer without the end token. correct_tokens: answer tokens predicted right under teacher forcing.
    exact: every answer token and the end token right.
    """

    index: np.ndarray
    prompt_tokens: np.ndarray
    answer_tokens: np.ndarray
    correct_tokens: np.ndarray
    exact: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    @property
    def exact_match(self) -> float:
        return float(self.exact.mean())

    @property
    def token_accuracy(self) -> float:
        """Share of all answer tokens that are right."""
        return float(self.correct_tokens.sum() / self.answer_tokens.sum())


@torch.inference_mode()
def evaluate(
    model: GPT,
    dataset: TaskDataset,
    batch_size: int = 64,
    intervention: Intervention | None = None,
    device: str = "cpu",
    precision: str = "fp32",
) -> Records:
    """Score every example of `dataset`; the result does not depend on batch_size."""
    model.to(device).eval()
    parts: list[tuple[torch.Tensor, ...]] = []
    for batch in eval_batches(dataset, batch_size):
        flat = batch.targets.flatten()  # (B * T,)
        rows = (flat >= 0).nonzero().squeeze(1)  # (N,)
        owner = rows // batch.targets.size(1)  # example of each row
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=precision == "bf16"):
            hidden = model.hidden(batch.tokens.to(device), batch.meta_positions.to(device), intervention)
            predicted = model.head(hidden.flatten(0, 1)[rows.to(device)]).argmax(-1).cpu()  # (N,)
        right = (predicted == flat[rows]).long()
        scored = torch.zeros(len(batch.tokens), dtype=torch.long)
        n_rows = scored.index_add(0, owner, torch.ones_like(owner))  # answer and end token
        n_right = scored.index_add(0, owner, right)
        last = n_rows.cumsum(0) - 1  # the end token's row of each example
        correct = n_right - right[last]
        parts.append((batch.indices, batch.lengths - n_rows, n_rows - 1, correct, n_right == n_rows))
    columns = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
    return Records(*columns)

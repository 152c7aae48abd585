"""Fetching a model that others pre-trained: the paper's baseline GPT-Neo-125M."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import TokenizerConfig
from metatok.errors import ConfigError
from metatok.experiment.design.cell import Cell, ModelCell
from metatok.experiment.design.context import Context, Outcome
from metatok.experiment.design.cost import Cost, weights_disk
from metatok.experiment.design.preset import PUBLISHED, Preset
from metatok.model import GPTConfig

if TYPE_CHECKING:
    from metatok.model import GPT


class Published(ModelCell):
    """Fetch published weights, to fine-tune.

    corpus: where tasks that need text find it. There is one set of weights, so no seed: seeds tell its
    fine-tunes apart.
    """

    stage = "pretrain"
    keeps_weights = True
    kind: Literal["published"] = "published"
    name: Literal["gpt_neo_125m"] = "gpt_neo_125m"
    corpus: CorpusConfig = CorpusConfig()

    # What a root has. GPT-Neo uses gpt2's ids, and its pre-training knew no meta tokens.
    tokenizer: ClassVar[TokenizerConfig] = TokenizerConfig()
    meta_fraction: ClassVar[float] = 0.0
    seed: ClassVar[int] = 0

    @classmethod
    def planned(cls, preset: Preset, seed: int, cells: Sequence[Cell]) -> Iterator[Published]:
        """One cell, the same for all seeds, serves the fine-tunes of each."""
        for name in preset.models:
            if name in PUBLISHED:
                yield cls(corpus=preset.corpus)

    @property
    def model(self) -> GPTConfig:
        """Its shape, as near as GPTConfig describes it (metatok.model.gpt_neo)."""
        return GPTConfig.variant("gpt2_ape", context_length=2048, bias=True)

    @property
    def result_model(self) -> GPTConfig:
        return self.model

    @property
    def model_name(self) -> str:
        return self.name

    def cost(self) -> Cost:
        return Cost(disk=weights_disk(self.model))

    def build(self, config: GPTConfig) -> GPT:
        from metatok.model.gpt_neo import GPTNeo  # transformers is needed for this model alone

        return GPTNeo()

    def run(self, context: Context) -> Outcome:
        from metatok.model.gpt_neo import load_published

        model = load_published()
        checkpoint = self.store(context).save(0, model.state_dict())
        return Outcome({"parameters": model.num_parameters()}, checkpoint=checkpoint)


def unreachable(missing: Sequence[Cell]) -> tuple[frozenset[str], str]:
    """Of the cells still to do, those whose published weights are not to be had here: fingerprints and why.

    Takes seconds where the hub does not answer; no time where no cell fetches anything.
    """
    if not any(isinstance(cell, Published) for cell in missing):
        return frozenset(), ""
    try:
        from metatok.model.gpt_neo import check_published

        check_published()
    except ImportError as error:
        why = f"model gpt_neo_125m: {error}; pip install 'metatok[hf]'"
    except ConfigError as error:
        why = str(error)
    else:
        return frozenset(), ""
    left_out = frozenset(cell.fingerprint for cell in missing if isinstance(cell.lineage[0], Published))
    return left_out, f"{len(left_out)} cells are left out. {why}"

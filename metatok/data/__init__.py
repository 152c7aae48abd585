"""From text to pre-training batches: tokenizer, corpora, token shards, meta-token injection, loader."""

from metatok.data.corpus import Corpus, CorpusConfig, open_corpus
from metatok.data.loader import Batch, PretrainData, prefetch
from metatok.data.shards import FileManifest, ShardSet, finish_shards, tokenize_file
from metatok.data.tokenizer import Tokenizer, TokenizerConfig, build_tokenizer

__all__ = [
    "Batch",
    "Corpus",
    "CorpusConfig",
    "FileManifest",
    "PretrainData",
    "ShardSet",
    "Tokenizer",
    "TokenizerConfig",
    "build_tokenizer",
    "finish_shards",
    "open_corpus",
    "prefetch",
    "tokenize_file",
]

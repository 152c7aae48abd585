"""From text to pre-training batches: tokenizer, corpora, token shards, meta-token injection, loader."""

from metatok.data.corpus import Corpus, CorpusConfig, open_corpus
from metatok.data.loader import Ahead, Batch, PretrainData
from metatok.data.shards import FileManifest, ShardSet
from metatok.data.tokenize import Progress, finish_shards, tokenize_file
from metatok.data.tokenizer import Tokenizer, TokenizerConfig, build_tokenizer

__all__ = [
    "Ahead",
    "Batch",
    "Corpus",
    "CorpusConfig",
    "FileManifest",
    "PretrainData",
    "Progress",
    "ShardSet",
    "Tokenizer",
    "TokenizerConfig",
    "build_tokenizer",
    "finish_shards",
    "open_corpus",
    "tokenize_file",
]

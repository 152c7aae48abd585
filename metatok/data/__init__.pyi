from .corpus import Corpus, CorpusConfig, open_corpus
from .loader import Ahead, Batch, PretrainData
from .shards import FileManifest, ShardSet
from .tokenize import Progress, finish_shards, tokenize_file
from .tokenizer import Tokenizer, TokenizerConfig, build_tokenizer

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

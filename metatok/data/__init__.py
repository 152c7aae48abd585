"""From text to pre-training batches: tokenizer, corpora, token shards, meta-token injection, loader.

The stub beside this file names its public parts; each is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

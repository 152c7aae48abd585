"""Models: GPT-2 with learned meta-tokens, their variants and what can be done to them.

The stub beside this file names its public parts; each is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""What trained models score, and how fast architectures are.

The stub beside this file names its public parts; each is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

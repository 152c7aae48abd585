"""Experiments as cells, and the ledger that knows which of them are done.

design: what is to be done. ledger: what has happened. execution: doing it. Imports run from the last to the
first; home.py and inputs.py, which all three use, import none of them.

The stub beside this file names its public parts; each is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""metatok: language models with learned meta-tokens."""

__version__ = "0.1.0"

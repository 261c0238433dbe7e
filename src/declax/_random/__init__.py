"""Random numbers: named streams of keys, alone and inside of models."""

# The names are in `__init__.pyi`; each loads its module when it is first used.

from declax._lazy import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(__name__)

"""Weights from elsewhere: maps of names and layouts, by which `load_weights` reads and `save_weights` writes."""

# As in `declax` itself, a name loads its module when it is first used. The names are in `__init__.pyi`.

from declax._lazy import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(__name__)

"""Layers, pooling and activations: those of Flax NNX with the same numbers, as declared dataclasses."""

# As in `declax` itself, a name loads its module when it is first used. The names are in `__init__.pyi`.

from declax._lazy import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(__name__)

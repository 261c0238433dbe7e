"""The bridge between Flax NNX and Flax Linen, each name of which is refused."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

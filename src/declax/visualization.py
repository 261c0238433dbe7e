"""Displays, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax._text.objects import display as display

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

"""Unique numbers, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax._tree.unique import UUID as UUID
from declax._tree.unique import uuid as uuid

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

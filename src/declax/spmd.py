"""Sharding by names of axes, under the peer's name of its module."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax.transforms.abstract import as_abstract as as_abstract
from declax.transforms.axis_names import PARTITION_NAME as PARTITION_NAME

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

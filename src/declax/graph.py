"""An older name of `graphlib`."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax.graphlib import *  # noqa: F403  # all of its names

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

"""An older name of `pytreelib`."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax.pytreelib import *  # noqa: F403  # all of its names

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

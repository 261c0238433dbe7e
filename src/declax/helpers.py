"""Containers, and the state of a training loop, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax._module.containers import Dict as Dict
from declax._module.containers import List as List
from declax._module.containers import Sequential as Sequential
from declax.training import TrainState as TrainState

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

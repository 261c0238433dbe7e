"""Models as trees of States, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax.transforms.labels import prefix as prefix
from declax.transforms.trees import NodeStates as NodeStates
from declax.transforms.trees import from_tree as from_tree
from declax.transforms.trees import to_tree as to_tree

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

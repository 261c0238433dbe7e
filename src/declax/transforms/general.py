"""Any transform of JAX for functions of models, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax.transforms.trees import merge_inputs as merge_inputs
from declax.transforms.trees import split_inputs as split_inputs

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

"""The other transforms, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax.transforms.abstract import eval_shape as eval_shape
from declax.transforms.abstract import make_jaxpr as make_jaxpr
from declax.transforms.branching import cond as cond
from declax.transforms.branching import switch as switch
from declax.transforms.checking import checkify as checkify

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

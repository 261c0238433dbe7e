"""Modules of Flax Linen as models, and models as modules of Linen."""

from declax import initializers as initializers
from declax.bridge import variables as variables
from declax.bridge import wrappers as wrappers
from declax.bridge.variables import NNXMeta as NNXMeta
from declax.bridge.variables import with_partitioning as with_partitioning
from declax.bridge.wrappers import ToLinen as ToLinen
from declax.bridge.wrappers import ToNNX as ToNNX
from declax.bridge.wrappers import lazy_init as lazy_init
from declax.bridge.wrappers import to_linen as to_linen

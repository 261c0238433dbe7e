"""Initializers, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax.initializers import Initializer as Initializer
from declax.initializers import constant as constant
from declax.initializers import delta_orthogonal as delta_orthogonal
from declax.initializers import glorot_normal as glorot_normal
from declax.initializers import glorot_uniform as glorot_uniform
from declax.initializers import he_normal as he_normal
from declax.initializers import he_uniform as he_uniform
from declax.initializers import kaiming_normal as kaiming_normal
from declax.initializers import kaiming_uniform as kaiming_uniform
from declax.initializers import lecun_normal as lecun_normal
from declax.initializers import lecun_uniform as lecun_uniform
from declax.initializers import normal as normal
from declax.initializers import ones as ones
from declax.initializers import ones_init as ones_init
from declax.initializers import orthogonal as orthogonal
from declax.initializers import truncated_normal as truncated_normal
from declax.initializers import uniform as uniform
from declax.initializers import variance_scaling as variance_scaling
from declax.initializers import xavier_normal as xavier_normal
from declax.initializers import xavier_uniform as xavier_uniform
from declax.initializers import zeros as zeros
from declax.initializers import zeros_init as zeros_init

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

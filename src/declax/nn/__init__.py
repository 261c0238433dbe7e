"""Layers, pooling and activations: the numbers of the peer's, the layers as declared dataclasses."""

from __future__ import annotations

from declax.nn.activations import celu as celu
from declax.nn.activations import elu as elu
from declax.nn.activations import gelu as gelu
from declax.nn.activations import glu as glu
from declax.nn.activations import hard_sigmoid as hard_sigmoid
from declax.nn.activations import hard_silu as hard_silu
from declax.nn.activations import hard_swish as hard_swish
from declax.nn.activations import hard_tanh as hard_tanh
from declax.nn.activations import identity as identity
from declax.nn.activations import leaky_relu as leaky_relu
from declax.nn.activations import log_sigmoid as log_sigmoid
from declax.nn.activations import log_softmax as log_softmax
from declax.nn.activations import logsumexp as logsumexp
from declax.nn.activations import mish as mish
from declax.nn.activations import one_hot as one_hot
from declax.nn.activations import relu as relu
from declax.nn.activations import relu6 as relu6
from declax.nn.activations import selu as selu
from declax.nn.activations import sigmoid as sigmoid
from declax.nn.activations import silu as silu
from declax.nn.activations import soft_sign as soft_sign
from declax.nn.activations import softmax as softmax
from declax.nn.activations import softplus as softplus
from declax.nn.activations import sparse_plus as sparse_plus
from declax.nn.activations import sparse_sigmoid as sparse_sigmoid
from declax.nn.activations import squareplus as squareplus
from declax.nn.activations import standardize as standardize
from declax.nn.activations import swish as swish
from declax.nn.activations import tanh as tanh
from declax.nn.conv import Conv as Conv
from declax.nn.dtypes import canonicalize_dtype as canonicalize_dtype
from declax.nn.dtypes import promote_dtype as promote_dtype
from declax.nn.linear import Embed as Embed
from declax.nn.linear import Linear as Linear
from declax.nn.normalization import BatchNorm as BatchNorm
from declax.nn.normalization import LayerNorm as LayerNorm
from declax.nn.pooling import avg_pool as avg_pool
from declax.nn.pooling import max_pool as max_pool
from declax.nn.pooling import min_pool as min_pool
from declax.nn.pooling import pool as pool
from declax.nn.stochastic import Dropout as Dropout

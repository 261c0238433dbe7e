"""Layers: declared dataclasses, with the signatures and the numbers of the peer's."""

from __future__ import annotations

from declax.nn.conv import Conv as Conv
from declax.nn.dtypes import canonicalize_dtype as canonicalize_dtype
from declax.nn.dtypes import promote_dtype as promote_dtype
from declax.nn.linear import Embed as Embed
from declax.nn.linear import Linear as Linear
from declax.nn.normalization import BatchNorm as BatchNorm
from declax.nn.normalization import LayerNorm as LayerNorm
from declax.nn.stochastic import Dropout as Dropout

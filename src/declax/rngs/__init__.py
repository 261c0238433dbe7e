"""Random numbers: named streams of keys, with every sampler of JAX as a method."""

from __future__ import annotations

from declax.rngs.samplers import KeylessInitializer as KeylessInitializer
from declax.rngs.streams import RngCount as RngCount
from declax.rngs.streams import RngKey as RngKey
from declax.rngs.streams import Rngs as Rngs
from declax.rngs.streams import RngState as RngState
from declax.rngs.streams import RngStream as RngStream

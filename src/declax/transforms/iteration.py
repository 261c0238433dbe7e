"""Loops and batches, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._lazy import lazy_names
from declax.transforms._engine.prefixes import Carry as Carry
from declax.transforms._engine.prefixes import StateAxes as StateAxes
from declax.transforms.axis_names import transform_metadata as transform_metadata
from declax.transforms.loops import fori_loop as fori_loop
from declax.transforms.loops import while_loop as while_loop
from declax.transforms.replication import pmap as pmap
from declax.transforms.scanning import scan as scan
from declax.transforms.vectorization import vmap as vmap

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

"""Sharding by names of axes, under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._graph.abstract import abstract_with_sharding as abstract_with_sharding
from declax._graph.abstract import as_abstract as as_abstract
from declax._lazy import lazy_names
from declax._sharding.declared import get_named_sharding as get_named_sharding
from declax._sharding.declared import get_partition_spec as get_partition_spec
from declax._sharding.initialization import get_abstract_model as get_abstract_model
from declax.initializers import with_partitioning as with_partitioning
from declax.transforms.axis_names import PARTITION_NAME as PARTITION_NAME

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

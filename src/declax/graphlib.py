"""Graphs: split and merged, read and changed; under the name of this module in Flax NNX."""

from typing import TYPE_CHECKING

from declax._graph.api import GraphState as GraphState
from declax._graph.api import PureState as PureState
from declax._graph.api import call as call
from declax._graph.api import clone as clone
from declax._graph.api import graphdef as graphdef
from declax._graph.api import merge as merge
from declax._graph.api import split as split
from declax._graph.api import state as state
from declax._graph.api import unpack as unpack
from declax._graph.api import variables as variables
from declax._graph.array_refs import as_pure as as_pure
from declax._graph.array_refs import pure as pure
from declax._graph.array_refs import vars_as as vars_as
from declax._graph.array_refs import with_vars as with_vars
from declax._graph.editing import pop as pop
from declax._graph.editing import set_metadata as set_metadata
from declax._graph.flattening import GraphDef as GraphDef
from declax._graph.iteration import find_duplicates as find_duplicates
from declax._graph.iteration import iter_children as iter_children
from declax._graph.iteration import iter_graph as iter_graph
from declax._graph.rewriting import map as map  # noqa: A004  # the name that it has in NNX
from declax._graph.rewriting import recursive_map as recursive_map
from declax._graph.updating import update as update
from declax._lazy import lazy_names
from declax._modes import set_graph_mode as set_graph_mode
from declax._modes import set_graph_updates as set_graph_updates
from declax._module.module import iter_module_children as iter_module_children
from declax._state.states import FlatState as FlatState
from declax._state.states import State as State
from declax._typing import Key as Key
from declax._variables.kinds import VariableState as VariableState
from declax._variables.variable import Variable as Variable
from declax.transforms.compilation import cached_partial as cached_partial
from declax.transforms.trees import MergeContext as MergeContext
from declax.transforms.trees import RefMap as RefMap
from declax.transforms.trees import SplitContext as SplitContext
from declax.transforms.trees import UpdateContext as UpdateContext
from declax.transforms.trees import current_update_context as current_update_context
from declax.transforms.trees import flatten as flatten
from declax.transforms.trees import merge_context as merge_context
from declax.transforms.trees import split_context as split_context
from declax.transforms.trees import unflatten as unflatten
from declax.transforms.trees import update_context as update_context

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

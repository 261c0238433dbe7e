"""Models as data: graphs taken apart, put together, and changed in place."""

from declax._typing import Key as Key
from declax._typing import Path as Path
from declax.graph.api import clone as clone
from declax.graph.api import graphdef as graphdef
from declax.graph.api import merge as merge
from declax.graph.api import split as split
from declax.graph.api import state as state
from declax.graph.api import variables as variables
from declax.graph.calling import call as call
from declax.graph.contexts import UpdateContext as UpdateContext
from declax.graph.contexts import current_update_context as current_update_context
from declax.graph.contexts import merge_context as merge_context
from declax.graph.contexts import split_context as split_context
from declax.graph.contexts import update_context as update_context
from declax.graph.flat import IndexMap as IndexMap
from declax.graph.flat import RefMap as RefMap
from declax.graph.flat import flatten as flatten
from declax.graph.flat import unflatten as unflatten
from declax.graph.flattening import GraphDef as GraphDef
from declax.graph.graph_state import GraphState as GraphState
from declax.graph.graph_state import unpack as unpack
from declax.graph.iteration import find_duplicates as find_duplicates
from declax.graph.iteration import iter_children as iter_children
from declax.graph.iteration import iter_graph as iter_graph
from declax.graph.popping import pop as pop
from declax.graph.rewriting import map as map  # noqa: A004  # the name that it has in NNX
from declax.graph.rewriting import recursive_map as recursive_map
from declax.graph.updating import update as update

"""Models as data: graphs taken apart, put together, and changed in place."""

from declax._graph.api import clone as clone
from declax._graph.api import graphdef as graphdef
from declax._graph.api import merge as merge
from declax._graph.api import split as split
from declax._graph.api import state as state
from declax._graph.api import variables as variables
from declax._graph.calling import call as call
from declax._graph.contexts import UpdateContext as UpdateContext
from declax._graph.contexts import current_update_context as current_update_context
from declax._graph.contexts import merge_context as merge_context
from declax._graph.contexts import split_context as split_context
from declax._graph.contexts import update_context as update_context
from declax._graph.flat import IndexMap as IndexMap
from declax._graph.flat import RefMap as RefMap
from declax._graph.flat import flatten as flatten
from declax._graph.flat import unflatten as unflatten
from declax._graph.flattening import GraphDef as GraphDef
from declax._graph.graph_state import GraphState as GraphState
from declax._graph.graph_state import unpack as unpack
from declax._graph.iteration import find_duplicates as find_duplicates
from declax._graph.iteration import iter_children as iter_children
from declax._graph.iteration import iter_graph as iter_graph
from declax._graph.popping import pop as pop
from declax._graph.rewriting import map as map  # noqa: A004  # the name that it has in NNX
from declax._graph.rewriting import recursive_map as recursive_map
from declax._graph.updating import update as update
from declax._typing import Key as Key
from declax._typing import Path as Path

"""The States of a model in place of the model in a tree, for raw JAX transforms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import jax

from declax._graph.contexts import MergeContext, SplitContext
from declax._graph.flattening import GraphDef
from declax._typing import Path
from declax.errors import GraphError


@functools.partial(jax.tree_util.register_dataclass, data_fields=["_graphdef", "states"], meta_fields=["metadata"])
@dataclass(eq=False, repr=False)
class NodeStates:
    """The GraphDef and the States of a model, in place of the model in a tree.

    As a pytree it has these as children, and the metadata is static; labels from `from_prefixes` are a prefix of it.

    Attributes:
      states: the States, in the order of the filters that split them.
      metadata: any hashable value.

    >>> import declax as dx
    >>> dx.to_tree(dx.Param(2.0)).state.leaves
    [2.0]
    """

    _graphdef: GraphDef[Any] | None
    states: tuple[Any, ...]
    metadata: Hashable = None

    @classmethod
    def from_split(cls, graphdef: GraphDef[Any], state: Any, /, *states: Any, metadata: Hashable = None) -> NodeStates:
        """From the result of `split`."""
        return cls(graphdef, (state, *states), metadata)

    @classmethod
    def from_states(cls, state: Any, /, *states: Any) -> NodeStates:
        """From States alone; cannot be merged."""
        return cls(None, (state, *states))

    @classmethod
    def from_prefixes(cls, prefixes: Iterable[Any], /, *, metadata: Hashable = None) -> NodeStates:
        """From one label for each State: a prefix of NodeStates with as many States and the same metadata."""
        return cls(None, tuple(prefixes), metadata)

    @property
    def graphdef(self) -> GraphDef[Any]:
        """The structure.

        Raises:
          GraphError: it was made from States or labels alone.
        """
        if self._graphdef is None:
            why = "it was made from States or labels only"
            raise GraphError("NodeStates.graphdef", "this NodeStates has no GraphDef", why=why, fix="dx.to_tree(model)")
        return self._graphdef

    @property
    def state(self) -> Any:
        """The only State.

        Raises:
          GraphError: there is not exactly one.
        """
        if len(self.states) != 1:
            got = f"{len(self.states)} States"
            raise GraphError("NodeStates.state", "exactly one State is required", got=got, fix="node_states.states")
        return self.states[0]

    def __repr__(self) -> str:
        metadata = "" if self.metadata is None else f", metadata={self.metadata!r}"
        return f"NodeStates({self._graphdef!r}, {self.states!r}{metadata})"


SplitFunction = Callable[[SplitContext, Path, Any, Any], Any]
MergeFunction = Callable[[MergeContext, Path, Any, Any], Any]


def split_node(ctx: SplitContext, path: Path, prefix: Any, node: Any) -> NodeStates:
    """Splits a model into one State; the default of `to_tree`."""
    return NodeStates.from_split(*ctx.split(node))


def merge_node(ctx: MergeContext, path: Path, prefix: Any, states: NodeStates) -> Any:
    """Merges the States of a model; the default of `from_tree`."""
    return ctx.merge(states.graphdef, *states.states)


def is_node_states(value: object) -> bool:
    """Whether a value is a `NodeStates`."""
    return isinstance(value, NodeStates)

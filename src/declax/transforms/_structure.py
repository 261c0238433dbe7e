"""The static side of a lifted call.

Vocabulary
----------
mode:      what the engine checks of the arguments, and what it lets through.
structure: the static part of a call: the tree of the arguments, and the
           GraphDef of the roots, in which they may share.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax

from declax._modes import is_graph, is_on, set_graph_updates
from declax._nodes import plain_key
from declax.errors import format_path
from declax.graph.defs import GraphDef


class Mode(NamedTuple):
    """What a transform takes, and what it gives back.

    Attributes:
      graph: whether arguments may share; otherwise they have to be trees.
      updates: whether changes of structure come back; otherwise they are an
        error, since nothing is lost in silence.
    """

    graph: bool = True
    updates: bool = True

    @staticmethod
    def of(graph: bool | None, graph_updates: bool | None) -> Mode:
        """The mode of a transform that is made now, from its options and the defaults."""
        updates = is_on("graph_updates", graph_updates, set_graph_updates.current_value)
        return Mode(is_graph(graph), is_graph(graph) and updates)


class Structure(NamedTuple):
    """The static part of a call.

    Attributes:
      tree: of ``(args, kwargs, captured)``, with roots as leaves.
      is_root: for each leaf of the tree, whether it is a root.
      graphdef: of the tuple of roots; None where there are none.
      captured: stands for the places of what is captured; None where nothing is.
    """

    tree: Any
    is_root: tuple[bool, ...]
    graphdef: GraphDef[Any] | None
    captured: object = None

    def names_of_roots(self) -> list[str]:
        """What to call each root in errors."""
        return [
            name for name, is_one in zip(map(_name_in_call, _paths_in(self.tree)), self.is_root, strict=True) if is_one
        ]

    def names_of_plain(self) -> list[str]:
        """What to call each of the other leaves in errors."""
        return [
            name
            for name, is_one in zip(map(_name_in_call, _paths_in(self.tree)), self.is_root, strict=True)
            if not is_one
        ]


def names_in_result(tree: Any) -> list[str]:
    """What to call each leaf of a result in errors."""
    return [place(path, "the result") for path in _paths_in(tree)]


def place(path: Iterable[object], name: str) -> str:
    """What to call a place below something in errors.

    >>> place(("blocks", 0, "kernel"), "argument 1"), place((), "the result")
    ('blocks[0].kernel of argument 1', 'the result')
    """
    listed = tuple(path)
    return f"{format_path(listed)} of {name}" if listed else name


def _paths_in(tree: Any) -> list[tuple[Any, ...]]:
    numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return [tuple(map(plain_key, keys)) for keys, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]


def _name_in_call(path: tuple[Any, ...]) -> str:
    """What to call a leaf of ``(args, kwargs, captured)``."""
    return place(path[2:], f"captured model {path[1]}" if path[0] == 2 else f"argument {path[1]!r}")

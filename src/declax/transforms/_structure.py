"""The static side of a lifted call.

Vocabulary
----------
mode:      what the engine checks of the arguments, and what it lets through.
structure: the static part of a call: the tree of the arguments, and the
           GraphDef of the roots, in which they may share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax

from declax._modes import is_graph, is_on, set_graph_updates
from declax._nodes import is_number, plain_key
from declax._static import exact_types, is_frozen, thaw
from declax.errors import format_path, type_name
from declax.graph.flattening import (
    NODE,
    OBJECT,
    STATIC,
    VARIABLE,
    GraphDef,
    Token,
    child_keys,
    node_statics,
    types_of,
    walk_tokens,
)


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


class CaptureKey:
    """Stands for the sites of what a function captures; calls that share one run one program.

    Attributes:
      names: what the function calls each captured model; None where it has no name for it.
      captures: a reference to the `Captures` of the last call with this key, which that call keeps alive.
    """

    __slots__ = ("captures", "names")

    def __init__(self, names: tuple[str | None, ...]) -> None:
        self.names: tuple[str | None, ...] = names
        self.captures: Callable[[], Any] = lambda: None


class Structure(NamedTuple):
    """The static part of a call.

    Attributes:
      tree: of ``(args, kwargs, captured)``, with roots as leaves.
      is_root: for each leaf of the tree, whether it is a root.
      graphdef: of the tuple of roots; None where there are none.
      captured: stands for the sites of what is captured; None where nothing is.
    """

    tree: Any
    is_root: tuple[bool, ...]
    graphdef: GraphDef[Any] | None
    captured: CaptureKey | None = None

    def variable_of_captured(self, number: int) -> str | None:
        """What the user's code calls a captured model; None where nothing is known."""
        return None if self.captured is None else self.captured.names[number]

    def class_of_root(self, rank: int) -> str:
        """The name of the class of a root."""
        assert self.graphdef is not None  # it has roots
        token = dict(walk_tokens(self.graphdef.tokens))[rank,]
        if isinstance(token, int):
            return "model"
        return type_name(token[1] if token[0] in (VARIABLE, OBJECT) else token[1].cls)

    def names_of_roots(self) -> list[str]:
        """What to call each root in errors."""
        return [name for name, is_one in zip(self._names(), self.is_root, strict=True) if is_one]

    def names_of_plain(self) -> list[str]:
        """What to call each of the other leaves in errors."""
        return [name for name, is_one in zip(self._names(), self.is_root, strict=True) if not is_one]

    def _names(self) -> Iterator[str]:
        """What to call each leaf of ``(args, kwargs, captured)``."""
        for position, path in enumerate(paths_in(self.tree)):
            if path[0] < 2:
                yield place(path[2:], f"argument {path[1]!r}")
                continue
            variable = self.variable_of_captured(path[1])
            name = f"captured {self.class_of_root(sum(self.is_root[:position]))}"
            yield f"{name} ({variable})" if variable else name


def names_in_result(tree: Any) -> list[str]:
    """What to call each leaf of a result in errors."""
    return [place(path, "the result") for path in paths_in(tree)]


def place(path: Iterable[object], name: str) -> str:
    """What to call a place below something in errors.

    >>> place(("blocks", 0, "kernel"), "argument 1"), place((), "the result")
    ('blocks[0].kernel of argument 1', 'the result')
    """
    listed = tuple(path)
    return f"{format_path(listed)} of {name}" if listed else name


def paths_in(tree: Any) -> list[tuple[Any, ...]]:
    """The path of each leaf of a tree."""
    numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return [tuple(map(plain_key, keys)) for keys, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]


def is_same_token(one: Token, other: Token) -> bool:
    """Whether two tokens describe the same, where references have the same numbers."""
    return one is other or (one == other and types_of(one) == types_of(other))


class Differing(NamedTuple):
    """The first place in which two graphs differ.

    Attributes:
      path: in the first graph; empty where they do not differ.
      values: the two static values that are there; None where it is something else.
    """

    path: Any = ()
    values: tuple[Any, Any] | None = None

    def told(self, fix: str) -> dict[str, Any]:
        """What an error says of it.

        Args:
          fix: what to do where the values are not static.
        """
        if self.values is None:
            return {"fix": fix}
        before, after = map(repr, self.values)
        fix = f"set {self.path[-1]!r}, which is static, outside of the function"
        if all(map(is_number, self.values)):
            fix = f"m.{self.path[-1]} = dx.Variable(jnp.array({before}))        # an array may change"
        return {"expected": before, "got": after, "fix": fix}


def differing(graphdef: GraphDef[Any], other: GraphDef[Any], start: int = 0, other_start: int = 0) -> Differing:
    """The first token in which two graphs differ from given ones on.

    Where a node has more or fewer attributes, the first such one; where one
    of its static attributes has another value, that.
    """
    ours, theirs = list(walk_tokens(graphdef.tokens))[start:], other.tokens[other_start:]
    for (path, token), their in zip(ours, theirs, strict=False):
        if is_same_token(token, their):
            continue
        if not isinstance(token, tuple) or not isinstance(their, tuple):
            return Differing(path)
        keys, their_keys = child_keys(token), child_keys(their)
        extra = [key for key in (*their_keys, *keys) if key not in keys or key not in their_keys]
        if token[0] == their[0] == NODE and not extra:
            return _differing_static(path, dict(node_statics(token)), dict(node_statics(their)))
        if token[0] == their[0] == STATIC:
            return Differing(path, (_thawed(token[1]), _thawed(their[1])))
        return Differing((*path, *extra[:1]))
    return Differing()


def _differing_static(path: Any, ours: dict[Any, Any], theirs: dict[Any, Any]) -> Differing:
    for name in (*theirs, *ours):
        if name not in ours or name not in theirs:
            return Differing((*path, name))
        if ours[name] != theirs[name] or exact_types(ours[name]) != exact_types(theirs[name]):
            return Differing((*path, name), (_thawed(ours[name]), _thawed(theirs[name])))
    return Differing(path)


def _thawed(value: Any) -> Any:
    return thaw(value) if is_frozen(value) else value

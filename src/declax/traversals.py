"""Nested mappings as flat ones, and back, without recursion: the depth has no limit."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import jax

from declax._lazy import lazy_names
from declax._typing import Path
from declax.errors import GraphError, describe, format_path

IsLeaf = Callable[[Path, Mapping[Any, Any]], bool]
"""Takes a path and the mapping there; returns whether it is a leaf."""


class EmptyNode(enum.Enum):
    """The type of `empty_node`; as a pytree it has no leaves."""

    EMPTY_NODE = "empty_node"

    def __repr__(self) -> str:
        return "empty_node"


empty_node: Final = EmptyNode.EMPTY_NODE
"""Stands for an empty mapping among the values of a flat one."""

jax.tree_util.register_pytree_node(EmptyNode, lambda node: ((), None), lambda _, children: empty_node)


def flatten_mapping(
    xs: Mapping[Any, Any], /, *, keep_empty_nodes: bool = False, is_leaf: IsLeaf | None = None, sep: str | None = None
) -> dict[Any, Any]:
    """The values inside of nested mappings by path, in the order of the mappings.

    Args:
      xs: a mapping whose values may be mappings.
      keep_empty_nodes: whether an empty mapping inside gives `empty_node`, or is left out.
      is_leaf: takes a path and the mapping there, the outermost one at ``()`` too; returns whether it is a value.
      sep: joins the keys of a path; without it, paths are tuples.

    Raises:
      GraphError: `xs` is not a mapping, or contains itself; with ``sep``, a key is not a string or has ``sep`` in it.

    >>> import declax as dx
    >>> dx.traversals.flatten_mapping({"a": 1, "b": {"c": 2, "d": {}}})
    {('a',): 1, ('b', 'c'): 2}
    >>> dx.traversals.flatten_mapping({"a": 1, "b": {"c": 2, "d": {}}}, keep_empty_nodes=True, sep="/")
    {'a': 1, 'b/c': 2, 'b/d': empty_node}
    """
    flat: dict[Any, Any] = {}
    for path, value, is_empty in walk_mapping(xs, is_leaf, "flatten_mapping"):
        if is_empty and not (keep_empty_nodes and path):
            continue
        flat[path if sep is None else _joined(path, sep)] = empty_node if is_empty else value
    return flat


def flatten_to_sequence(xs: Mapping[Any, Any], /, *, is_leaf: IsLeaf | None = None) -> list[tuple[Path, Any]]:
    """The pairs of path and value inside of nested mappings.

    Arguments, order and errors are those of `flatten_mapping`.

    >>> import declax as dx
    >>> dx.traversals.flatten_to_sequence({"a": 1, "b": {"c": 2}})
    [(('a',), 1), (('b', 'c'), 2)]
    """
    found = walk_mapping(xs, is_leaf, "flatten_to_sequence")
    return [(path, value) for path, value, is_empty in found if not is_empty]


def unflatten_mapping(
    xs: Mapping[Any, Any] | Iterable[tuple[Any, Any]], /, *, sep: str | None = None
) -> dict[Any, Any]:
    """Nested dicts from values by path; the inverse of `flatten_mapping`.

    Args:
      xs: a mapping from paths to values, or pairs of them; `empty_node` becomes an empty dict.
      sep: joins the keys of a path, if paths are strings.

    Raises:
      GraphError: a path is invalid, or paths contradict each other.

    >>> import declax as dx
    >>> dx.traversals.unflatten_mapping({("a",): 1, ("b", "c"): 2})
    {'a': 1, 'b': {'c': 2}}
    >>> dx.traversals.unflatten_mapping({"a": 1, "b/c": 2}, sep="/")
    {'a': 1, 'b': {'c': 2}}
    """
    pairs = xs.items() if isinstance(xs, Mapping) else xs
    return nest((_path_of(key, sep), value) for key, value in pairs)


def walk_mapping(
    xs: Any, is_leaf: IsLeaf | None, where: str, *, leaf_types: tuple[type, ...] = ()
) -> Iterator[tuple[Path, Any, bool]]:
    """The path and the value of each leaf, and whether it is an empty mapping; ``leaf_types`` are leaves too."""
    if not isinstance(xs, Mapping):
        raise GraphError(where, "the argument is not a nested mapping", expected="nested mappings", got=describe(xs))
    if is_leaf is not None and is_leaf((), xs):
        yield (), xs, False
        return
    if not xs:
        yield (), xs, True
        return
    keys: list[Any] = []  # of the open mappings but the outermost
    levels = [(xs, iter(xs.items()))]
    inside = {id(xs)}
    while levels:
        for key, value in levels[-1][1]:
            is_node = isinstance(value, Mapping) and not isinstance(value, leaf_types)
            if not is_node or (is_leaf is not None and is_leaf((*keys, key), value)):
                yield (*keys, key), value, False
            elif not value:
                yield (*keys, key), value, True
            else:
                if id(value) in inside:
                    place, why = format_path((*keys, key)), "it has infinitely many leaves"
                    raise GraphError(place, "the mapping here contains itself", why=why)
                inside.add(id(value))
                keys.append(key)
                levels.append((value, iter(value.items())))
                break
        else:
            inside.discard(id(levels.pop()[0]))
            if keys:
                keys.pop()


def nest(pairs: Iterable[tuple[Path, Any]]) -> dict[Any, Any]:
    """Nested dicts with these values."""
    root: dict[Any, Any] = {}
    nodes = {id(root): root}  # the dicts made here; a value may be a dict too
    empty: set[int] = set()
    for path, value in pairs:
        if not path:
            if value is empty_node and not root:
                continue
            raise GraphError("()", "a value at the empty path would be the whole mapping", got=describe(value))
        node = root
        for depth, key in enumerate(path[:-1], 1):
            if key not in node:
                made: dict[Any, Any] = {}
                node[key] = nodes[id(made)] = made
            inner: Any = node[key]
            if id(inner) not in nodes or id(inner) in empty:
                raise GraphError(format_path(path), f"a path goes through the value at {format_path(path[:depth])}")
            node = inner
        if path[-1] in node:
            raise GraphError(format_path(path), "two values have the same path, or one lies inside of the other")
        if value is empty_node:
            value = {}
            nodes[id(value)] = value
            empty.add(id(value))
        node[path[-1]] = value
    return root


def _path_of(key: Any, sep: str | None) -> Path:
    if isinstance(key, (tuple, list)) and sep is None:
        return tuple(key)
    if isinstance(key, str) and sep is not None:
        return tuple(key.split(sep))
    raise GraphError(
        "unflatten_mapping",
        "this is not a path",
        expected="a tuple of keys" if sep is None else "a string, since there is a separator",
        got=describe(key),
        fix='unflatten_mapping(xs, sep="/")   # for paths that are strings' if sep is None else "unflatten_mapping(xs)",
    )


def _joined(path: Path, sep: str) -> str:
    for key in path:
        if not isinstance(key, str) or sep in key:
            raise GraphError(
                format_path(path),
                "the keys of this path cannot be joined by a separator",
                expected="strings without the separator",
                got=f"the key {key!r} and the separator {sep!r}",
                fix="flatten_mapping(xs)   # paths as tuples",
            )
    return sep.join(path)  # type: ignore[arg-type]  # all are strings


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

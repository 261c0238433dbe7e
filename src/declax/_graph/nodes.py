"""The values that make up a graph: their kinds, their children, and a walk over all of them.

Nodes (Pytrees and Objects), Variables and refs have an identity, which a graph keeps. Containers are plain values. A
leaf is an array, or the shape of one, directly in a node or container; all else is static.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import is_
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import ShapedArray, Tracer

from declax._classes.pytree import Pytree, layout_of
from declax._fields.annotations import caches_by_type, is_data_class
from declax._state.definition import are_sortable
from declax._state.states import State
from declax._state.tree import FlatForm
from declax._tree.layout import INTERNAL_KEYS
from declax._tree.statuses import keys_between
from declax._typing import Path
from declax._variables.variable import Variable
from declax.errors import MAX_DEPTH, GraphError, StatusError, format_path, too_deep, type_name, with_article


class Kind(enum.Enum):
    """The role of a value in a graph, by its type."""

    NODE = "node"
    OBJECT = "object"
    VARIABLE = "variable"
    REF = "ref"
    CONTAINER = "container"
    LEAF = "leaf"
    STATIC = "static"

    __hash__ = object.__hash__


NODES = frozenset({Kind.NODE, Kind.OBJECT})
OBJECTS = frozenset({Kind.NODE, Kind.OBJECT, Kind.VARIABLE, Kind.REF})
"""The kinds of values that have an identity; a tracer of a ref is a LEAF and has one too."""

_CONTAINERS = frozenset({list, tuple, dict, defaultdict})
_NUMBERS = (int, float, complex, np.generic)
kinds: dict[type, Kind] = {}
"""The kinds by type, as far as `kind_of` was asked for them."""

caches_by_type.append(kinds)


def kind_of(value: object) -> Kind:
    """The kind of a value; decided once for each type."""
    found = kinds.get(value.__class__)
    if found is None:
        found = kinds[value.__class__] = _classify(value)
    return found


def _classify(value: object) -> Kind:
    cls = value.__class__
    if issubclass(cls, Variable):
        return Kind.VARIABLE
    if issubclass(cls, Pytree):
        return Kind.NODE if cls._pytree__is_pytree else Kind.OBJECT
    if isinstance(value, (Tracer, jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        return Kind.LEAF
    if isinstance(value, jax.Ref):
        return Kind.REF
    if cls in _CONTAINERS:
        return Kind.CONTAINER  # without asking JAX, which refuses dicts with keys that it cannot sort
    if value is not None and jax.tree_util.default_registry.flatten_one_level(value) is not None:
        return Kind.CONTAINER
    return Kind.LEAF if is_data_class(cls) else Kind.STATIC


def is_ref(value: object) -> bool:
    """Whether a leaf is a ref, or stands for one: a tracer where JAX traces, a shape in an abstract graph."""
    cls = value.__class__
    if cls is jax.ShapeDtypeStruct:
        return bool(value.is_ref)  # type: ignore[attr-defined]  # of its class
    if isinstance(value, Tracer):
        return type(value.aval) is not ShapedArray and isinstance(value, jax.Ref)  # the latter is slow for tracers
    return cls is jax.Ref


def is_number(value: object) -> bool:
    """Whether a value, where an attribute declares it as data, is a leaf."""
    return isinstance(value, _NUMBERS)


def children_of(node: object) -> Iterator[tuple[Any, Any]]:
    """The children of a node or container by key, in order, without static values."""
    if isinstance(node, Pytree):
        attributes: dict[Any, Any] = vars(node)
        is_pytree = type(node)._pytree__is_pytree
        for name in layout_of(node).data_names if is_pytree else object_names(node):
            if is_pytree or kind_of(attributes[name]) is not Kind.STATIC:
                yield name, attributes[name]
    elif kind_of(node) is Kind.CONTAINER:
        yield from zip(*open_container(node)[:2], strict=True)


def open_container(value: Any, *, is_data: bool = False) -> tuple[tuple[Any, ...], tuple[Any, ...], Hashable]:
    """One level of a container: keys, children, and the recipe for `close_container`, which is hashable."""
    cls = value.__class__
    if cls is list or cls is tuple:
        return tuple(range(len(value))), tuple(value), cls
    if cls is dict and (all(key.__class__ is str for key in value) or are_sortable(value)):
        keys = tuple(sorted(value))
        return keys, tuple(value[k] for k in keys), (dict, tuple(value))
    if cls in _CONTAINERS and not are_sortable(value):  # of a dict; JAX keeps the order of an OrderedDict
        if is_data:
            shown = ", ".join(map(repr, list(value)[:6])) + (", ..." if len(value) > 6 else "")
            raise StatusError(
                f"{with_article(type_name(type(value)))} with the keys {shown}",
                "the keys of a dict that holds data cannot be sorted",
                expected="keys of one type",
                why="JAX flattens dicts in the order of their sorted keys",
                fix="{str(key): value for key, value in content.items()}",
            )
        return tuple(value), tuple(value.values()), (cls, tuple(value), getattr(value, "default_factory", None))
    node = FlatForm(value) if isinstance(value, State) else value
    pairs, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return tuple(plain_key(path[0]) for path, _ in pairs), tuple(child for _, child in pairs), treedef


def close_container(how: Any, keys: tuple[Any, ...], children: Sequence[Any]) -> Any:
    """The container with these children; the inverse of `open_container`."""
    if how is list:
        return list(children)
    if how is tuple:
        return tuple(children)
    if how.__class__ is tuple:
        by_key = dict(zip(keys, children, strict=True))
        content = {key: by_key[key] for key in how[1]}
        return content if how[0] is dict else defaultdict(how[2], content)
    return jax.tree_util.tree_unflatten(how, children)


def put_in_container(holder: Any, key: Any, value: Any) -> None:
    """Replaces a leaf under a key of `open_container`."""
    is_path = isinstance(key, tuple) and isinstance(holder, State)
    *above, last = key if is_path else (key,)
    for step in above:
        holder = holder[step]
    old = holder[last]
    holder[last] = old.copy(value) if isinstance(old, Variable) else value  # a State shows Variables, holds raw values


def plain_key(entry: Any) -> Any:
    """The plain key of an entry of a JAX key path."""
    for attribute in ("name", "idx", "key"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry


def object_names(node: Pytree) -> list[str]:
    """The names of an Object's attributes, in order."""
    return sorted(name for name in tuple(node.__dict__) if name not in INTERNAL_KEYS)


Link: TypeAlias = "tuple[Link, Any] | None"
"""A path that is not built yet: the link of the holder and a key; None for the root.

The paths of a deep walk would take memory that grows with the square of its depth.
"""


def path_of(link: Link) -> Path:
    """The path of a link."""
    keys = []
    while link is not None:
        link, key = link
        keys.append(key)
    keys.reverse()
    return tuple(keys)


def link_of(path: Iterable[Any], above: Link = None) -> Link:
    """The link of a path below another one."""
    for key in path:
        above = above, key
    return above


def walk_nodes(root: object) -> Iterator[tuple[Path, Any]]:
    """All nodes of a graph with their paths, each once, children first."""
    return ((path_of(link), value) for link, value in walk_values(root) if isinstance(value, Pytree))


def walk_values(root: object) -> Iterator[tuple[Link, Any]]:
    """All values of a graph, static ones too, with their links; each object once, children first."""
    seen: set[int] = set()
    stack: list[tuple[Link, Any, bool, tuple[int, ...]]] = [(None, root, False, ())]
    while stack:
        link, value, is_done, within = stack.pop()
        if is_done:
            yield link, value
            continue
        kind = kind_of(value)
        if kind in OBJECTS or (kind is Kind.LEAF and is_ref(value)):
            if id(value) in seen:
                continue
            seen.add(id(value))
        within = enter_container(value, within) if kind is Kind.CONTAINER else ()
        children = all_children(value, kind)
        if not children:
            yield link, value
            continue
        stack.append((link, value, True, ()))
        stack += [((link, key), child, False, within) for key, child in reversed(children)]


def all_children(value: Any, kind: Kind) -> list[tuple[Any, Any]]:
    """The children of a node or container, static ones too."""
    if kind in NODES:
        names = layout_of(value).statuses if kind is Kind.NODE else object_names(value)
        return [(name, value.__dict__[name]) for name in names]
    if kind is Kind.CONTAINER:
        keys, children, _ = open_container(value)
        return list(zip(keys, children, strict=True))
    return []


def not_a_tree(first: Path | None, second: Path, cls: type) -> GraphError:
    """The error of a shared object of a class if a tree is required; its first path is None in an earlier graph."""
    if first == second:
        problem, got = "this is an object of a class with pytree=False, which JAX cannot flatten", None
    elif first is None:
        problem, got = "this is an object of a graph that was flattened before, so the two are not trees", None
    else:
        what = "a node that holds itself" if second[: len(first)] == first else "reached twice"
        problem = f"this is {what}, so the argument is not a tree"
        got = f"Duplicate {type_name(cls)} found at paths {format_path(first)} and {format_path(second)}"
    why = "graph=False, or dx.set_graph_mode(False), requires a tree, which does not support shared references"
    return GraphError(format_path(second), problem, got=got, why=why, fix="graph=True        # keeps sharing")


def enter_container(value: Any, within: tuple[Any, ...], holders: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The containers around the children of this one; raises if it holds itself, or is too deep."""
    if any(map(is_, within, repeat(value))):
        raise StatusError(
            with_article(type_name(type(value))),
            "a plain container holds itself",
            why="containers are values, which are flattened completely; only Pytrees may form cycles",
            fix="dx.List([...]), or an attribute of a Pytree",
        )
    if len(within) == MAX_DEPTH:
        raise too_deep(_place_of(within[0], holders), keys_between((*within, value)))
    return *within, value


def _place_of(container: Any, holders: Sequence[Any]) -> str:
    """The attribute of one of the holders that has a container, in words."""
    for holder in holders:
        for name, value in vars(holder).items() if isinstance(holder, Pytree) else ():
            if value is container:
                return f"{type_name(type(holder))}.{name}"
    return with_article(type_name(type(container)))

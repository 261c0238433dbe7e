"""A reference model of graphs in plain Python, with which tests compare the graph API.

It does not use declax, and is written for clarity, with recursion. `Var` and `Node` are objects with an identity. A
list, tuple or dict is a plain container, which is a value. Arrays, and numbers that an attribute declares as data,
are leaves. Everything else is static. A state has the leaves by path, in the order of the graph: the kind and
metadata of a `Var` (None for other leaves) and the value. A template is a copy of a graph that represents its
structure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Path = tuple[Any, ...]


@dataclass(eq=False)
class Var:
    """A Variable."""

    kind: str
    value: Any
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Node:
    """A node; a List has its elements under numbers. An object has all of its attributes in `data`."""

    kind: str
    data: dict[Any, Any] = field(default_factory=dict)
    static: dict[Any, Any] = field(default_factory=dict)
    order: dict[Any, None] = field(default_factory=dict)

    def attributes(self) -> dict[Any, Any]:
        return {**self.data, **self.static}

    def set(self, name: Any, value: Any, *, is_static: bool = False) -> None:
        self.in_order()
        self.data.pop(name, None)
        self.static.pop(name, None)
        (self.static if is_static and self.kind != "object" else self.data)[name] = value
        self.order.setdefault(name)

    def delete(self, name: Any) -> None:
        self.data.pop(name, None)
        self.static.pop(name, None)
        self.order.pop(name, None)

    def in_order(self) -> list[Any]:
        """The names in the order of the graph: a Dict has the order in which its keys were set first."""
        known = self.attributes()
        self.order = {name: None for name in (*self.order, *known) if name in known}
        return [*self.order] if self.kind == "dict" else sorted(known, key=sort_key)

    def remove(self, names: set[Any]) -> None:
        """Takes attributes out; what comes after an element of a List moves up."""
        for name in names:
            self.delete(name)
        if self.kind == "list":
            order = {old: new for new, old in enumerate(sorted(self.attributes()))}
            self.data = {order[n]: v for n, v in self.data.items()}
            self.static = {order[n]: v for n, v in self.static.items()}


class Leaf(NamedTuple):
    """What a State has at one path."""

    kind: str | None
    metadata: dict[str, Any] | None
    value: Any


State = dict[Path, Leaf]
Filter = Callable[[Path, Leaf], bool]


class Refused(Exception):
    """What was asked for cannot be done; nothing has changed."""


# ================================================================= looking


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def is_object(value: Any) -> bool:
    return isinstance(value, (Var, Node))


def is_leaf(value: Any, owner: Any) -> bool:
    """Whether a value is a leaf by itself, in what holds it."""
    is_number = isinstance(value, (int, float)) and isinstance(owner, Node) and owner.kind != "object"
    return is_array(value) or is_number


def sort_key(key: Any) -> tuple[bool, Any]:
    return isinstance(key, str), key


def children(value: Any) -> list[tuple[Any, Any]]:
    """What is directly inside of a value, in the order of the graph."""
    if isinstance(value, Node):
        return [(name, value.data[name]) for name in value.in_order() if name in value.data]
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if isinstance(value, dict):
        return [(key, value[key]) for key in sorted(value)]
    return []


class Found(NamedTuple):
    path: Path
    value: Any
    owner: Any
    is_first: bool


def visit(root: Any) -> list[Found]:
    """All that is in a graph, parents first; an object that was met before is listed, and not entered."""
    found: list[Found] = []
    seen: set[int] = set()

    def enter(path: Path, value: Any, owner: Any) -> None:
        is_first = not (is_object(value) and id(value) in seen)
        found.append(Found(path, value, owner, is_first))
        if is_object(value):
            seen.add(id(value))
        for key, child in children(value) if is_first else ():
            enter((*path, key), child, value)

    enter((), root, None)
    return found


def objects(root: Any, kind: type = object) -> list[tuple[Path, Any]]:
    """The Vars and Nodes of a graph, or the plain containers, with their first paths."""
    return [(f.path, f.value) for f in visit(root) if f.is_first and isinstance(f.value, kind)]


def at(root: Any, path: Path) -> Any:
    for key in path:
        root = root.attributes()[key] if isinstance(root, Node) else root[key]
    return root


def duplicates(root: Any) -> list[list[Path]]:
    """For each object that is referred to more than once, its paths."""
    paths: dict[int, list[Path]] = {}
    for found in visit(root):
        if is_object(found.value):
            paths.setdefault(id(found.value), []).append(found.path)
    return [p for p in paths.values() if len(p) > 1]


def everything(root: Any) -> list[Path]:
    """The paths of all values, static attributes too, what is inside of an object before the object."""
    paths: list[Path] = []
    seen: set[int] = set()

    def enter(path: Path, value: Any) -> None:
        if is_object(value) and id(value) in seen:
            return
        seen.add(id(value))
        inner = children(value)
        if isinstance(value, Node):
            inner = [(name, value.attributes()[name]) for name in value.in_order()]
        for key, child in inner:
            enter((*path, key), child)
        paths.append(path)

    enter((), root)
    return paths


def has_aliased_containers(root: Any) -> bool:
    """Whether one plain container sits in two places: there it is two values, which change together."""
    containers = [id(f.value) for f in visit(root) if isinstance(f.value, (list, dict))]
    return len(set(containers)) < len(containers)


# ================================================================= structure


def typed(value: Any) -> Any:
    """A value with the types of all its parts: 1, True and 1.0 are not the same."""
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(typed, value))
    if isinstance(value, dict):
        return dict, frozenset((typed(k), typed(v)) for k, v in value.items())
    if isinstance(value, set):
        return set, frozenset(map(typed, value))
    return type(value), repr(value) if isinstance(value, float) else value


def structure(root: Any) -> Any:
    """All of a graph but its values: equal where the graphs are."""
    index: dict[int, int] = {}

    def describe(value: Any, owner: Any) -> Any:
        if is_object(value):
            if id(value) in index:
                return index[id(value)]
            index[id(value)] = len(index)
        if isinstance(value, Var):
            return "variable", value.kind, typed(value.metadata)
        inner = tuple((key, describe(child, value)) for key, child in children(value))
        if isinstance(value, Node):
            return "node", value.kind, typed(value.static), inner
        if isinstance(value, dict):
            order = tuple(value) if all(isinstance(key, str) for key in value) else ()
            return "dict", order, inner
        if isinstance(value, (list, tuple)):
            return type(value).__name__, inner
        return "leaf" if is_leaf(value, owner) else ("static", typed(value))

    return describe(root, None)


# ================================================================= values


def take(root: Any) -> State:
    """All leaves of a graph."""
    state: State = {}
    for path, value, owner, is_first in visit(root):
        if isinstance(value, Var) and is_first:
            state[path] = Leaf(value.kind, dict(value.metadata), value.value)
        elif is_leaf(value, owner):
            state[path] = Leaf(None, None, value)
    return state


def group(state: State, filters: Sequence[Filter], *, is_exhaustive: bool = False) -> list[State]:
    """States of what each filter takes; the first that takes a leaf has it."""
    groups: list[State] = [{} for _ in filters]
    for path, leaf in state.items():
        taken = next((g for g, wants in zip(groups, filters, strict=True) if wants(path, leaf)), None)
        if taken is not None:
            taken[path] = leaf
        elif is_exhaustive:
            raise Refused(f"no filter matches {path}")
    return groups


# ================================================================= new graphs


def copy(root: Any, state: State | None = None) -> Any:
    """A graph of the same structure with new objects, and the values and metadata of a state."""
    leaves = take(root) if state is None else state
    made: dict[int, Any] = {}

    def build(path: Path, value: Any, owner: Any) -> Any:
        if is_object(value) and id(value) in made:
            return made[id(value)]
        if isinstance(value, Var):
            leaf = leaves[path]
            metadata = value.metadata if leaf.metadata is None else leaf.metadata
            new: Any = Var(value.kind, leaf.value, dict(metadata))
            made[id(value)] = new
            return new
        if isinstance(value, Node):
            new = made[id(value)] = Node(value.kind, static={k: own(v) for k, v in value.static.items()})
            new.data = {key: build((*path, key), child, value) for key, child in children(value)}
            return new
        inner = {key: build((*path, key), child, value) for key, child in children(value)}
        if isinstance(value, dict):
            order = value if all(isinstance(key, str) for key in value) else sorted(value)
            return {key: inner[key] for key in order}
        if isinstance(value, (list, tuple)):
            return type(value)(inner.values())
        return leaves[path].value if is_leaf(value, owner) else value

    return build((), root, None)


def clone(root: Any) -> Any:
    """A copy that has its own arrays."""
    state = take(root)
    for path, leaf in state.items():
        if is_array(leaf.value):
            state[path] = leaf._replace(value=leaf.value.copy())
    return copy(root, state)


def own(static: Any) -> Any:
    """A copy of a static value."""
    if isinstance(static, dict):
        return {key: own(value) for key, value in static.items()}
    return type(static)(map(own, static)) if isinstance(static, (list, tuple, set)) else static


def merge(template: Any, states: Sequence[State]) -> Any:
    """The graph with the structure of a template and the values of states, which have each leaf once."""
    known = take(template)
    given = [(path, leaf) for state in states for path, leaf in state.items()]
    if sorted(map(str, known)) != sorted(str(path) for path, _ in given):
        raise Refused("the paths are others")
    for path, leaf in given:
        _check_kind(known[path], leaf)
    return copy(template, dict(given))


def _check_kind(known: Leaf, given: Leaf) -> None:
    if given.kind is not None and given.kind != known.kind:
        raise Refused(f"a {given.kind} for a {known.kind}")


# ================================================================= changes in place


def update(root: Any, states: Sequence[State]) -> None:
    """Puts values and metadata into a graph, if all of them fit."""
    known = take(root)
    changes: State = {}
    for state in states:
        for path, leaf in state.items():
            if path not in known:
                raise Refused(f"no {path}")
            _check_kind(known[path], leaf)
            if np.shape(leaf.value) != np.shape(known[path].value):
                raise Refused(f"another shape at {path}")
            changes[path] = leaf
    raw = [(path, leaf.value) for path, leaf in changes.items() if known[path].kind is None]
    raw = [(path, value) for path, value in raw if value is not known[path].value]
    if any(isinstance(at(root, path[:-1]), tuple) for path, _ in raw):
        raise Refused("tuples do not change")
    for path, value in raw:
        holder = at(root, path[:-1])
        (holder.data if isinstance(holder, Node) else holder)[path[-1]] = value
    for path, leaf in changes.items():
        if known[path].kind is not None:
            var = at(root, path)
            var.value = leaf.value
            var.metadata = var.metadata if leaf.metadata is None else dict(leaf.metadata)


def pop(root: Any, filters: Sequence[Filter]) -> list[State]:
    """Takes Vars out of all places where the graph refers to them, and arrays, which are values, out of their own."""
    state = {path: leaf for path, leaf in take(root).items() if leaf.kind is not None or is_array(leaf.value)}
    groups = group(state, filters)
    met = {f.path: f for f in visit(root)}
    taken = [met[path] for found in groups for path in found]
    variables = {id(f.value) for f in taken if isinstance(f.value, Var)}
    places = {(id(f.owner), f.path[-1]) for f in taken}

    def keys_gone(holder: Any) -> set[Any]:
        return {key for key, child in children(holder) if id(child) in variables or (id(holder), key) in places}

    holders = list({id(f.value): f.value for f in met.values()}.values())
    if any(isinstance(holder, tuple) and keys_gone(holder) for holder in holders):
        raise Refused("tuples do not change")
    for holder, gone in [(holder, keys_gone(holder)) for holder in holders]:
        if isinstance(holder, Node):
            holder.remove(gone)
        elif isinstance(holder, dict):
            for key in gone:
                del holder[key]
        elif isinstance(holder, list):
            holder[:] = [child for i, child in enumerate(holder) if i not in gone]
    return groups


# ================================================================= comparing


def same_leaf(real: Any, wanted: Any, where: str) -> None:
    """Checks that a real array or number is the one of the model."""
    if is_array(wanted):
        assert real.dtype == wanted.dtype, f"{where}: {real.dtype} against {wanted.dtype}"
    np.testing.assert_allclose(np.asarray(real), np.asarray(wanted), rtol=1e-5, err_msg=where)


def of_recipe(recipe: Any, array_of: Callable[[int], Any], defaults: dict[str, Any], functions: Any) -> Any:
    """The graph that a recipe of `strategies` stands for.

    Args:
      recipe: the recipe.
      array_of: the array of a seed.
      defaults: for a kind, the metadata of its Vars.
      functions: what the names of functions among static values stand for.
    """
    made = [
        Var(kind, array_of(seed), {**defaults.get(kind, {}), **{k: own(v) for k, v in metadata}})
        for kind, metadata, seed in recipe.variables
    ]
    nodes = [new_node(spec.kind) for spec in recipe.nodes]
    at_kind = {"node": nodes.__getitem__, "variable": made.__getitem__}
    for node, spec in zip(nodes, recipe.nodes, strict=True):
        for name, value in spec.data:
            name = len(node.attributes()) if node.kind == "list" else name
            node.set(name, of_spec(value, at_kind, array_of))
        for name, value in spec.statics:
            value = own(value)
            node.set(name, functions.get(value, value) if isinstance(value, str) else value, is_static=True)
    return of_spec(recipe.root, at_kind, array_of)


def new_node(kind: str) -> Node:
    """A node as its class makes it."""
    if kind == "declared":
        return Node(kind, {"kernel": None, "parts": [], "scale": None}, {"width": 3, "sizes": [1, 2]})
    return Node(kind)


def of_spec(spec: Any, at_kind: dict[str, Callable[[Any], Any]], array_of: Callable[[int], Any]) -> Any:
    """The value that a specification in a recipe or an edit stands for."""
    kind, content = spec
    if kind in at_kind:
        return at_kind[kind](content)
    if kind in ("raw", "numpy"):
        return array_of(content)
    if kind == "number":
        return content
    if kind in ("dict", "ints"):
        return {key: of_spec(value, at_kind, array_of) for key, value in content}
    items = [of_spec(item, at_kind, array_of) for item in content]
    return tuple(items) if kind == "tuple" else items

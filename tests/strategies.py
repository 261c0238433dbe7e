"""Random module graphs, edits of them, and a comparison that does not use declax's walk.

A recipe is plain data that describes a graph; one recipe builds equal graphs. An edit is plain data that describes a
change in place; one edit changes equal graphs equally.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import declax as dx
from counted import MODES
from declax._classes.pytree import layout_of
from declax.nn import activations  # noqa: F401  # with it, pickle knows the compiled functions of JAX

# ================================================================= classes


class Open(dx.Module):
    """Gets its attributes from outside."""


class OpenPytree(dx.Pytree):
    """As Open, without the methods of a Module."""


class Box(dx.Object):
    """No pytree for JAX; nothing about its attributes is checked."""


@dx.dataclass
class Declared(dx.Module):
    """All fields are decided by their annotations."""

    kernel: Optional[dx.Param[jax.Array]] = None
    parts: list[dx.Module] = dx.data(default_factory=list)
    scale: Optional[jax.Array] = None
    width: int = 3
    sizes: list[int] = dx.static(default_factory=lambda: [1, 2])


class Scale(dx.Param[Any]):
    """A kind with metadata of its own."""

    unit: str = "m"


KINDS: dict[str, Any] = {
    "param": dx.Param,
    "stat": dx.BatchStat,
    "cache": dx.Cache,
    "scale": Scale,
    "plain": dx.Variable,
}
NODES: dict[str, Callable[[], Any]] = {
    "open": Open,
    "pytree": OpenPytree,
    "object": Box,
    "declared": Declared,
    "list": dx.List,
    "dict": dx.Dict,
}
FUNCTIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}

# ================================================================= recipes


@dataclass(frozen=True)
class NodeRecipe:
    kind: str
    data: tuple[tuple[str, Any], ...]
    statics: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Recipe:
    nodes: tuple[NodeRecipe, ...]
    variables: tuple[tuple[str, tuple[tuple[str, Any], ...], int], ...]
    root: Any


SHAPES = ((), (2,), (2, 3))


def array_of(seed: int) -> np.ndarray[Any, Any]:
    """A small array that depends on the seed only."""
    shape = SHAPES[seed % 3]
    return np.arange(seed, seed + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _statics() -> st.SearchStrategy[Any]:
    flat = st.one_of(
        st.integers(-3, 3),
        st.booleans(),
        st.sampled_from([0.5, -1.0, "same", "valid", None]),
        st.sampled_from(["tanh", "relu"]),
    )
    return st.one_of(
        flat,
        st.lists(st.integers(0, 3), max_size=3),
        st.tuples(st.integers(0, 3), st.text("ab", max_size=2)),
        st.dictionaries(st.sampled_from(["b", "a"]), st.lists(st.integers(0, 2), max_size=2), max_size=2),
        st.sets(st.integers(0, 3), max_size=2),
    )


def _values(nodes: int, variables: int, depth: int = 2) -> st.SearchStrategy[Any]:
    options = [
        st.tuples(st.just("raw"), st.integers(0, 9)),
        st.tuples(st.just("numpy"), st.integers(0, 9)),
        st.tuples(st.just("node"), st.integers(0, nodes - 1)),
    ]
    if variables:
        options += [st.tuples(st.just("variable"), st.integers(0, variables - 1))] * 3
    if depth:
        inner = _values(nodes, variables, depth - 1)
        options += [
            st.tuples(st.just("list"), st.lists(inner, max_size=3).map(tuple)),
            st.tuples(st.just("tuple"), st.lists(inner, max_size=2).map(tuple)),
            st.tuples(
                st.just("dict"),
                st.dictionaries(st.sampled_from(["y", "x", "kernel"]), inner, max_size=3).map(
                    lambda d: tuple(d.items())
                ),
            ),
            st.tuples(
                st.just("ints"),
                st.dictionaries(st.integers(0, 12), inner, max_size=2).map(
                    lambda d: tuple(sorted(d.items(), key=lambda e: e[0]))
                ),
            ),
        ]
    return st.one_of(options)


_METADATA = st.sampled_from(
    [(), (), (("tag", "dropout"),), (("trainable", False),), (("axes", ["x", "y"]),), (("note", 1),)]
)
_DECLARED_DATA = ["kernel", "parts", "scale"]
_DECLARED_STATIC = ["width", "sizes"]


@st.composite
def recipes(draw: st.DrawFn, max_nodes: int = 5, max_variables: int = 4, roots: bool = False) -> Recipe:
    """Recipes of graphs with sharing, cycles, plain containers and all sorts of attributes.

    Args:
      draw: of Hypothesis.
      max_nodes, max_variables: how many there are at most.
      roots: whether the root may be a container of nodes; otherwise it is a node.
    """
    count = draw(st.integers(1, max_nodes))
    variables = tuple(
        draw(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), _METADATA, st.integers(0, 9)), max_size=max_variables))
    )
    values = _values(count, len(variables))
    nodes = []
    for index in range(count):
        kind = draw(st.sampled_from(sorted(NODES) if index or roots else ["open", "declared", "object"]))
        names = _DECLARED_DATA if kind == "declared" else ["a", "b", "c", "kernel"]
        static_names = _DECLARED_STATIC if kind == "declared" else ["m", "n", "z"]
        data = draw(st.dictionaries(st.sampled_from(names), values, max_size=4))
        if index + 1 < count and draw(st.booleans()):
            data[names[0]] = ("node", index + 1)  # most nodes shall be reachable
        statics = (
            {}
            if kind in ("list", "dict")
            else draw(st.dictionaries(st.sampled_from(static_names), _statics(), max_size=2))
        )
        if kind == "declared" and draw(st.integers(0, 3)) == 0:
            data["extra"] = draw(values)  # deviates from its declaration
        nodes.append(NodeRecipe(kind, tuple(data.items()), tuple(statics.items())))
    root = ("node", 0)
    if roots and draw(st.booleans()):
        root = draw(st.one_of(st.tuples(st.just("list"), st.lists(values, min_size=1, max_size=3).map(tuple)), values))
    return Recipe(tuple(nodes), variables, root)


@st.composite
def tree_recipes(draw: st.DrawFn, max_nodes: int = 4) -> Recipe:
    """Recipes of graphs without sharing or cycles, each with a Variable at least; the root is a node."""
    nodes: list[NodeRecipe] = []
    variables: list[tuple[str, tuple[tuple[str, Any], ...], int]] = []

    def variable() -> Any:
        variables.append((draw(st.sampled_from(sorted(KINDS))), draw(_METADATA), draw(st.integers(0, 9))))
        return "variable", len(variables) - 1

    def node(options: list[str]) -> Any:
        index = len(nodes)
        kind = draw(st.sampled_from(options))
        nodes.append(NodeRecipe(kind, (), ()))
        names = draw(st.lists(st.sampled_from(["parts", "scale"]), unique=True))
        data = [("kernel", variable()), *((name, value()) for name in names)]
        nodes[index] = NodeRecipe(kind, tuple(data), ())
        return "node", index

    def value() -> Any:
        kind = draw(st.sampled_from(["variable", "node", "list", "raw"]))
        if kind == "node" and len(nodes) < max_nodes:
            return node(sorted(NODES.keys() - {"object"}))  # which is no pytree
        if kind == "list":
            return kind, tuple(variable() for _ in range(draw(st.integers(0, 2))))
        return ("raw", draw(st.integers(0, 9))) if kind == "raw" else variable()

    root = node(["open", "pytree", "declared"])
    return Recipe(tuple(nodes), tuple(variables), root)


def modes_and_recipes(max_nodes: int = 4) -> st.SearchStrategy[tuple[dict[str, bool], Recipe]]:
    """A mode, and a recipe of what it takes with a Variable at least: trees, or graphs with shared parts and cycles."""
    graphs = recipes(max_nodes=max_nodes).filter(lambda recipe: bool(variables_of(build(recipe))))
    return st.sampled_from(MODES).flatmap(
        lambda mode: st.tuples(st.just(mode), tree_recipes(max_nodes) if mode.get("graph") is False else graphs)
    )


def build(recipe: Recipe) -> Any:
    """The graph of a recipe."""
    variables = [
        KINDS[kind](jnp.asarray(array_of(seed)), **dict(metadata)) for kind, metadata, seed in recipe.variables
    ]
    nodes = [NODES[node.kind]() for node in recipe.nodes]
    for node, spec in zip(nodes, recipe.nodes, strict=True):
        for name, value in spec.data:
            _put(node, name, _value(value, nodes, variables))
        for name, value in spec.statics:
            setattr(node, name, _static(value))
    return _value(recipe.root, nodes, variables)


def _static(value: Any) -> Any:
    if isinstance(value, (list, dict, set)):
        return {k: list(v) for k, v in value.items()} if isinstance(value, dict) else type(value)(value)
    return FUNCTIONS.get(value, value) if isinstance(value, str) else value


def _put(node: Any, name: str, value: Any) -> None:
    if isinstance(node, dx.List):
        node.append(dx.data(value))
    elif isinstance(node, dx.Dict):
        node[name] = dx.data(value)
    elif isinstance(node, dx.Object):
        setattr(node, name, value)
    else:
        setattr(node, name, dx.data(value))


def _value(spec: Any, nodes: list[Any], variables: list[Any]) -> Any:
    kind, content = spec
    if kind == "node":
        return nodes[content]
    if kind == "variable":
        return variables[content]
    if kind == "raw":
        return jnp.asarray(array_of(content))
    if kind == "numpy":
        return array_of(content)
    if kind in ("dict", "ints"):
        return {key: _value(value, nodes, variables) for key, value in content}
    items = [_value(item, nodes, variables) for item in content]
    return tuple(items) if kind == "tuple" else items


def graphs(**options: Any) -> st.SearchStrategy[Any]:
    """Random graphs; the options are those of `recipes`."""
    return recipes(**options).map(build)


# ================================================================= comparing


def own_attributes(node: Any) -> dict[Any, Any]:
    """The attributes of a node as the user sees them."""
    return {name: value for name, value in vars(node).items() if not str(name).startswith("_pytree__")}


def same_graph(a: Any, b: Any, known: list[tuple[Any, Any]] = ()) -> bool:  # type: ignore[assignment]  # an empty default
    """Whether two graphs have equal values and the same sharing; says where they differ by an AssertionError.

    Args:
      a, b: the roots.
      known: pairs of nodes or Variables that have to correspond.
    """
    there = {id(x): y for x, y in known}
    back = {id(y): x for x, y in known}
    alive = [a, b, known]
    stack = [("root", a, b)]
    seen = set()
    while stack:
        path, x, y = stack.pop()
        if isinstance(x, (dx.Pytree, dx.Variable)):
            assert type(x) is type(y), f"{path}: {type(x)} against {type(y)}"
            assert there.setdefault(id(x), y) is y, f"{path}: sharing differs"
            assert back.setdefault(id(y), x) is x, f"{path}: sharing differs"
            if id(x) in seen:
                continue
            seen.add(id(x))
        stack.extend(_children_of_both(path, x, y))
    del alive
    return True


def _children_of_both(path: str, x: Any, y: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(x, dx.Variable):
        assert x.get_metadata() == y.get_metadata(), f"{path}: metadata {x.get_metadata()} against {y.get_metadata()}"
        return [(f"{path}.value", x.get_raw_value(), y.get_raw_value())]
    if isinstance(x, dx.Pytree):
        left, right = own_attributes(x), own_attributes(y)
        assert left.keys() == right.keys(), (
            f"{path}: attributes {sorted(map(str, left))} against {sorted(map(str, right))}"
        )
        assert status_of(x) == status_of(y), f"{path}: statuses {status_of(x)} against {status_of(y)}"
        return [(f"{path}.{name}", left[name], right[name]) for name in left]
    if isinstance(x, (jax.Array, np.ndarray)):
        assert isinstance(y, (jax.Array, np.ndarray)), f"{path}: an array against {y!r}"
        assert x.dtype == y.dtype, f"{path}: {x.dtype} against {y.dtype}"
        np.testing.assert_allclose(_numbers(x), _numbers(y), rtol=1e-5, err_msg=path)
        return []
    assert type(x) is type(y), f"{path}: {x!r} against {y!r}"
    if isinstance(x, dict):
        assert list(x) == list(y), f"{path}: keys {list(x)} against {list(y)}"
        return [(f"{path}[{key!r}]", x[key], y[key]) for key in x]
    if isinstance(x, (list, tuple)):
        assert len(x) == len(y), f"{path}: {len(x)} against {len(y)} elements"
        return [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(x, y, strict=True))]
    assert x == y, f"{path}: {x!r} against {y!r}"
    return []


def _numbers(array: Any) -> Any:
    is_key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


def status_of(node: Any) -> Any:
    """The names that JAX sees in a node as data; None for an Object."""
    if isinstance(node, dx.Object):
        return None
    return set(layout_of(node).data_names)  # asking JAX would send cycles to it


# ================================================================= edits

EDITS = (
    "scale",
    "set_variable",
    "set_array",
    "set_static",
    "set_none",
    "delete",
    "link",
    "unlink",
    "swap",
    "share",
    "tag",
    "untag",
    "change_kind",
    "append",
    "remove",
    "grow_static",
    "scale_raw",
    "set_dict",
)


def edits(max_size: int = 5) -> st.SearchStrategy[Any]:
    """Lists of edits."""
    return st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 50), st.integers(0, 50)), max_size=max_size)


def on_state(graphdef: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a model, and more, as one of its state, which gives the state back behind what it returns."""

    def run(state: Any, *given: Any) -> tuple[Any, Any]:
        made = dx.merge(graphdef, state)
        return f(made, *given), dx.state(made)

    return run


def variables_of(root: Any) -> list[dx.Variable[Any]]:
    """All Variables of a graph, each once."""
    return [thing for thing in objects_of(root) if isinstance(thing, dx.Variable)]


def set_some(numbers: Sequence[int], model: Any) -> Any:
    """Sets the Variables of these numbers, each by itself or by another one; gives the sum of all."""
    variables = variables_of(model)
    for number in numbers if variables else ():
        one, other = variables[number % len(variables)], variables[number // 2 % len(variables)]
        if one.value.shape == other.value.shape and type(one) is type(other):
            one.value, other.value = other.value * 0.5, one.value + number
    return sum((v.value.sum() for v in variables), start=jnp.zeros(()))


def objects_of(root: Any) -> list[Any]:
    """All nodes and Variables of a graph, each once, in an order of its own."""
    found: list[Any] = []
    seen: set[int] = set()
    stack = [root]
    while stack:
        value = stack.pop()
        if isinstance(value, (dx.Pytree, dx.Variable)):
            if id(value) in seen:
                continue
            seen.add(id(value))
            found.append(value)
        stack.extend(reversed(list(_parts(value))))
    return found


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dx.Pytree):
        attributes = own_attributes(value)
        yield from (attributes[name] for name in sorted(attributes, key=lambda n: (isinstance(n, str), n)))
    elif isinstance(value, (list, tuple)):
        yield from value
    elif isinstance(value, dict):
        yield from (value[key] for key in sorted(value))


def apply_edits(root: Any, todo: list[tuple[str, int, int]]) -> None:
    """Changes a graph in place; what does not fit the graph is left out."""
    for kind, i, j in todo:
        found = objects_of(root)
        _Edit(
            [o for o in found if isinstance(o, dx.Pytree)],
            [o for o in found if isinstance(o, dx.Variable)],
            [o for o in found if isinstance(o, (Open, OpenPytree, Box, Declared))],
        ).apply(kind, i, j)


@dataclass
class _Edit:
    nodes: list[Any]
    variables: list[Any]
    modules: list[Any]
    values: list[Any] = field(default_factory=list)

    def apply(self, kind: str, i: int, j: int) -> None:
        for edit in (self._of_variables, self._of_attributes, self._of_containers):
            edit(kind, i, j)

    def _of_variables(self, kind: str, i: int, j: int) -> None:
        if not self.variables:
            return
        variable = self.variables[i % len(self.variables)]
        if kind == "scale":
            variable.value = variable.value * 2 + 1
        elif kind == "tag":
            variable.set_metadata(note=("tag", j % 3))
        elif kind == "untag" and "note" in variable.get_metadata():
            variable.del_metadata("note")
        elif kind == "change_kind" and self.modules:
            self.modules[j % len(self.modules)].kernel = dx.data(dx.Cache(variable.value))

    def _of_attributes(self, kind: str, i: int, j: int) -> None:
        if not self.modules:
            return
        node, other = self.modules[i % len(self.modules)], self.modules[j % len(self.modules)]
        name = f"new{j % 3}"
        if kind == "set_variable":
            setattr(node, name, dx.data(dx.Param(jnp.full((2,), float(j)))))
        elif kind == "set_array":
            setattr(node, name, dx.data(jnp.full((), float(j))))
        elif kind == "set_static":
            setattr(node, f"fixed{j % 2}", [j, "x", (j,), 1.0, True][i % 5])
        elif kind == "set_none":
            setattr(node, f"none{j % 2}", None)
        elif kind == "delete":
            names = sorted(own_attributes(node))
            if names:
                delattr(node, names[j % len(names)])
        elif kind == "link":
            node.link = dx.data(other)
        elif kind == "unlink" and hasattr(node, "link"):
            del node.link
        elif kind == "swap":
            node.left, other.right = dx.data(other), dx.data(node)
        elif kind == "share" and self.variables:
            node.alias = dx.data(self.variables[j % len(self.variables)])
        elif kind == "grow_static":
            for value in own_attributes(node).values():
                if isinstance(value, list) and all(isinstance(item, int) for item in value):
                    value.append(j)
        elif kind == "scale_raw":
            for key, value in own_attributes(node).items():
                if isinstance(value, (jax.Array, np.ndarray)):
                    setattr(node, key, jnp.asarray(value) * 3)

    def _of_containers(self, kind: str, i: int, j: int) -> None:
        lists = [n for n in self.nodes if isinstance(n, dx.List)]
        lists += [v for n in self.nodes for v in own_attributes(n).values() if isinstance(v, list) and _holds_data(v)]
        dicts = [n for n in self.nodes if isinstance(n, dx.Dict)]
        if kind == "append" and lists:
            lists[i % len(lists)].append(dx.Param(jnp.full((), float(j))))
        elif kind == "remove" and lists and len(lists[i % len(lists)]):
            del lists[i % len(lists)][j % len(lists[i % len(lists)])]
        elif kind == "set_dict" and dicts:
            dicts[i % len(dicts)][f"key{j % 2}"] = dx.BatchStat(jnp.full((), float(j)))


def _holds_data(value: list[Any]) -> bool:
    return any(isinstance(item, (jax.Array, np.ndarray, dx.Variable, dx.Pytree)) for item in value)

"""The state of an optax transformation, with each array in a Variable and each level in a `Branch`.

The paths read like the optax state: ``opt_state[0].mu["linear"]["kernel"]``. Parts of it that mirror the parameters
are States in optax.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from declax import _jax, errors
from declax._classes.pytree import Pytree, layout_of
from declax._fields.specifiers import Status
from declax._graph.nodes import plain_key
from declax._state.states import State
from declax._state.tree import FlatForm
from declax._tree import epoch
from declax._tree.attributes import wrong_trace
from declax._tree.layout import BOUND_KEY, LAYOUT_KEY, TRACE_KEY, Layout, Name
from declax._typing import Path, PyTree
from declax._variables.metadata import Metadata
from declax._variables.variable import Variable, new_variable

T = TypeVar("T")

Fields: TypeAlias = "tuple[Name, ...] | None"
"""The names or indexes of the items of a tuple; None for a dict."""

_FIELDS: Final = "_fields"
"""The attribute of the `Branch` of a tuple, which no item of a NamedTuple can have."""

_VALUE_HOOKS: Final = frozenset({"on_get_value", "on_set_value", "on_create_value"})


class OptState(Variable[T]):
    """The kind of all Variables of an optimizer."""

    __slots__ = ()


class OptVariable(OptState[T]):
    """Optimizer state that mirrors a parameter and has its metadata, such as a momentum."""

    __slots__ = ()


class OptArray(OptState[T]):
    """Optimizer state that mirrors no parameter, such as a count."""

    __slots__ = ()


def _make_key(name: Name) -> Any:
    return jax.tree_util.DictKey(name) if isinstance(name, str) else jax.tree_util.SequenceKey(name)


class Branch(Pytree):
    """One level of a stored optax state: children by ``[key]`` and, if they have names, by ``.name``.

    That of a tuple has the names, or the indexes, of its items in `_fields`. It
    is read by position too, and iterates over its items; others iterate over
    their keys. Unlike the tuples and dicts of optax, it reports changes, so a
    jitted call need not look into it.
    """

    _pytree__make_key: ClassVar[Any] = staticmethod(_make_key)

    def __init__(self, children: Mapping[Name, Any], fields: Fields = None) -> None:
        attributes: dict[Any, Any] = vars(self)
        statuses: dict[Name, Status] = dict.fromkeys(children, Status.DATA)
        attributes.update(children)
        if fields is not None:
            statuses[_FIELDS] = Status.STATIC
            attributes[_FIELDS] = fields
        attributes[LAYOUT_KEY] = Layout.of(Branch, statuses)
        if _jax.trace_state.value is not _jax.TOP:
            attributes[TRACE_KEY] = _jax.trace_state.value

    def names(self) -> list[Name]:
        """The keys of the children, in order."""
        return [name for name in layout_of(self).statuses if name != _FIELDS]

    def _name_at(self, key: Name) -> Name:
        """The key of a child, given by its key or its position; raises if there is none."""
        fields: tuple[Name, ...] = vars(self).get(_FIELDS, ())
        if type(key) is int and key not in self and -len(fields) <= key < len(fields):
            key = fields[key]
        if key in self:
            return key
        raise errors.OptimizerError(
            "Optimizer.opt_state",
            f"there is nothing under {key!r}",
            expected=f"one of {self.names()}",
            fix=errors.suggest(str(key), map(str, self.names())),
        )

    def __getitem__(self, key: Name) -> Any:
        attributes: dict[Any, Any] = vars(self)
        return attributes[self._name_at(key)]

    def __setitem__(self, key: Name, value: Any) -> None:
        name = self._name_at(key)
        attributes: dict[Any, Any] = vars(self)
        if attributes.get(TRACE_KEY, _jax.TOP) is not _jax.trace_state.value:
            raise wrong_trace(self, name)
        attributes[name] = value
        if BOUND_KEY in attributes:
            epoch.advance()

    def __contains__(self, key: object) -> bool:
        return key != _FIELDS and key in layout_of(self).statuses

    def __iter__(self) -> Iterator[Any]:
        fields: Fields = vars(self).get(_FIELDS)
        return iter(self.names()) if fields is None else map(self.__getitem__, fields)

    def __len__(self) -> int:
        return len(self.names())

    def _pytree__fields_for_repr(self) -> Iterable[tuple[Any, object]]:
        return ((name, self[name]) for name in self.names())


class Leaf(NamedTuple):
    """One array of an optax state; `source` is the path of the parameter that it mirrors, if any."""

    path: Path
    value: Any
    source: Path | None


class OptLayout:
    """The treedef and the paths of an optax state for parameters at `targets`; immutable, compares by value."""

    __slots__ = ("_hash", "paths", "sources", "targets", "treedef")

    treedef: Any
    paths: tuple[Path, ...]
    sources: tuple[Path | None, ...]
    targets: tuple[Path, ...]

    def __init__(self, tree: PyTree, targets: tuple[Path, ...]) -> None:
        leaves = list(leaves_of(tree))
        self.treedef = jax.tree.structure(tree)
        self.paths = tuple(leaf.path for leaf in leaves)
        self.sources = tuple(leaf.source for leaf in leaves)
        self.targets = targets
        self._hash = hash(self._parts())

    def _parts(self) -> tuple[Hashable, ...]:
        return self.treedef, self.paths, self.targets

    def unflatten(self, values: Iterable[Any]) -> PyTree:
        """The optax state with these arrays, in the order of `paths`."""
        return jax.tree.unflatten(self.treedef, values)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, OptLayout):
            return NotImplemented
        return self._hash == other._hash and self._parts() == other._parts()

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # JAX cannot pickle a treedef with named tuples, so a tree of indices stands for it.
        return OptLayout, (self.unflatten(range(len(self.paths))), self.targets)


def leaves_of(tree: PyTree) -> Iterator[Leaf]:
    """The arrays of an optax state, in JAX's order."""
    for keys, node in _flatten_with_path(tree, is_leaf=lambda part: isinstance(part, State)):
        prefix = tuple(map(plain_key, keys))
        if not isinstance(node, State):
            yield Leaf(prefix, node, None)
            continue
        for (key,), value in _flatten_with_path(FlatForm(node), is_leaf=lambda part: not isinstance(part, FlatForm)):
            source = key.key if isinstance(key.key, tuple) else (key.key,)
            for inner, array in _flatten_with_path(value):
                yield Leaf((*prefix, *source, *map(plain_key, inner)), array, source)


def store(tree: PyTree, parameters: State[Any]) -> PyTree:
    """Puts each array of an optax state into a Variable.

    One that mirrors a parameter of the same shape becomes an `OptVariable` with
    the metadata of the parameter, except for hooks on values.
    """
    sources = {
        path: (getattr(value, "shape", None), None if leaf_def is None else _without_hooks(leaf_def[1]))
        for path, value, leaf_def in zip(
            parameters.paths, parameters.leaves, parameters.definition.leaf_defs, strict=True
        )
    }
    taken = {id(value) for value in parameters.leaves}
    variables = [(leaf.path, _variable_for(leaf, sources, taken)) for leaf in leaves_of(tree)]
    return _nested(variables, dict(_fields_of(tree, ())))


def _fields_of(tree: PyTree, path: Path) -> Iterator[tuple[Path, Fields]]:
    """The `Fields` of each container in an optax state, with its path."""
    if isinstance(tree, State):
        return
    if isinstance(tree, dict):
        yield path, None
    elif isinstance(tree, (tuple, list)):
        yield path, getattr(tree, "_fields", tuple(range(len(tree))))
    for keys, child in _flatten_with_path(tree, is_leaf=lambda part: part is not tree):
        if keys:  # not a leaf itself
            yield from _fields_of(child, (*path, *map(plain_key, keys)))


def slots_of(stored: PyTree, layout: OptLayout) -> list[Any]:
    """The Variables of a stored tree, or the arrays that a user has put there, in the order of the layout."""
    slots = []
    for path in layout.paths:
        found = stored
        for name in map(_name_of, path):
            if not isinstance(found, Branch) or name not in found:
                raise errors.OptimizerError(
                    "Optimizer.opt_state",
                    f"there is nothing at {errors.format_path(path)}",
                    expected="the tree that the optimizer was made with; its Variables may be assigned to",
                    fix="optimizer = dx.Optimizer(model, tx, wrt=...)",
                )
            found = found[name]
        slots.append(found)
    return slots


def _variable_for(leaf: Leaf, sources: dict[Path, tuple[Any, Metadata | None]], taken: set[int]) -> OptState[Any]:
    value = leaf.value
    if isinstance(value, (bool, int, float, complex, np.ndarray, np.generic)):
        value = jnp.asarray(value)
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise errors.OptimizerError(
            "Optimizer.opt_state",
            f"the optax state holds something else than arrays at {errors.format_path(leaf.path)}",
            expected="an array or a number",
            got=errors.describe(value),
            why="the state is an argument of compiled steps",
            fix="keep it in a closure of the transformation, not in the result of its init",
        )
    if id(value) in taken:
        value = jnp.copy(value)  # else donating the model would delete the optimizer's state as well
    taken.add(id(value))
    shape, metadata = sources.get(leaf.source, (None, None)) if leaf.source is not None else (None, None)
    if metadata is None or shape != value.shape:
        return OptArray(value)
    return new_variable(OptVariable, value, metadata, _jax.current_trace())


@functools.lru_cache(maxsize=256)
def _without_hooks(metadata: Metadata) -> Metadata:
    return Metadata.of({name: value for name, value in metadata.frozen.items() if name not in _VALUE_HOOKS})


def _nested(items: Iterable[tuple[Path, OptState[Any]]], fields: Mapping[Path, Fields]) -> PyTree:
    root: dict[Name, Any] = {}
    for path in fields:
        _level_at(root, path)
    for path, variable in items:
        if not path:  # the optax state is a bare array
            return variable
        _level_at(root, path[:-1])[_name_of(path[-1])] = variable
    return _branch(root, (), {tuple(map(_name_of, path)): names for path, names in fields.items()})


def _level_at(root: dict[Name, Any], path: Path) -> dict[Name, Any]:
    level = root
    for key in path:
        level = level.setdefault(_name_of(key), {})
    return level


def _branch(level: dict[Name, Any], path: Path, fields: Mapping[Path, Fields]) -> Branch:
    children = {
        name: _branch(child, (*path, name), fields) if isinstance(child, dict) else child
        for name, child in level.items()
    }
    return Branch(children, fields.get(path))


def _name_of(key: Hashable) -> Name:
    return key if isinstance(key, str) or type(key) is int else f"[{key!r}]"


def _flatten_with_path(tree: PyTree, is_leaf: Any = None) -> list[tuple[tuple[Any, ...], Any]]:
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]

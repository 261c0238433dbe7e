"""The state of an optax transformation, with its arrays held in Variables.

Vocabulary
----------
optax state: any tree that ``tx.init`` gives: named tuples, tuples, dicts and,
             where a part of it mirrors the parameters, a `State`.
stored:      the same tree as an optimizer holds it: each array in a Variable,
             each level a `Branch`. So its paths read like the optax state
             itself (``opt_state[0].mu["linear"]["kernel"]``), and a Variable
             read from it can be assigned to.
layout:      what is needed to go back: the treedef of the optax state, the
             path of each of its leaves, and the paths of the parameters that
             it is for; hashable and picklable.
source:      of a leaf inside of a `State`, the path of its parameter.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from declax import _jax, errors
from declax._layout import Name
from declax._metadata import Metadata
from declax._nodes import plain_key
from declax._typing import Path, PyTree
from declax._variables import Variable, new_variable
from declax.states import FlatForm, State
from declax.training._branch import Branch

T = TypeVar("T")

_VALUE_HOOKS: Final = frozenset({"on_get_value", "on_set_value", "on_create_value"})


class OptState(Variable[T]):
    """Kind of all Variables that an optimizer keeps."""

    __slots__ = ()


class OptVariable(OptState[T]):
    """Optimizer state that mirrors a parameter and has its metadata, such as a momentum."""

    __slots__ = ()


class OptArray(OptState[T]):
    """Optimizer state that mirrors no parameter, such as a count."""

    __slots__ = ()


class Leaf(NamedTuple):
    """One array of an optax state.

    Attributes:
      path: where it is.
      value: the array.
      source: where it lies in a `State`, the path of its parameter; else None.
    """

    path: Path
    value: Any
    source: Path | None


class OptLayout:
    """Where each array of an optax state belongs. Immutable, compares by value.

    Args:
      tree: an optax state; its leaves do not matter.
      targets: the paths of the parameters that it is for.

    >>> layout = OptLayout({"count": 0, "trace": (1, 2)}, targets=())
    >>> layout.paths
    (('count',), ('trace', 0), ('trace', 1))
    >>> layout.unflatten([5, 6, 7])
    {'count': 5, 'trace': (6, 7)}
    """

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
        self._hash = hash((self.treedef, self.paths, targets))

    def unflatten(self, values: Iterable[Any]) -> PyTree:
        """The optax state with these arrays, in the order of `paths`."""
        return jax.tree.unflatten(self.treedef, values)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, OptLayout):
            return NotImplemented
        return (self._hash, self.treedef, self.paths, self.targets) == (
            other._hash,
            other.treedef,
            other.paths,
            other.targets,
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"OptLayout({', '.join(map(errors.format_path, self.paths))})"

    def __copy__(self) -> OptLayout:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> OptLayout:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # jax cannot pickle a treedef with named tuples in it; a tree with indices for leaves stands for it.
        return OptLayout, (self.unflatten(range(len(self.paths))), self.targets)


def leaves_of(tree: PyTree) -> Iterator[Leaf]:
    """The arrays of an optax state, in the order in which jax flattens it."""
    for keys, node in _flatten_with_path(tree, is_leaf=_is_state):
        prefix = tuple(map(plain_key, keys))
        if not isinstance(node, State):
            yield Leaf(prefix, node, None)
            continue
        for (key,), value in _flatten_with_path(FlatForm(node), is_leaf=lambda part: not isinstance(part, FlatForm)):
            source = key.key if isinstance(key.key, tuple) else (key.key,)
            for inner, array in _flatten_with_path(value):
                yield Leaf((*prefix, *source, *map(plain_key, inner)), array, source)


def store(tree: PyTree, parameters: State[Any]) -> PyTree:
    """Puts each array of an optax state into a Variable of its own.

    An array that lies in a `State` and has the shape of the parameter at its
    path becomes an `OptVariable` with the metadata of that parameter. Hooks on
    values stay behind: they are about parameters, not about momenta.

    Args:
      tree: the optax state.
      parameters: the parameters that it was made for.

    Raises:
      OptimizerError: a leaf of the tree is no array.
    """
    sources = dict(zip(parameters.paths, _mirrors(parameters), strict=True))
    taken = {id(value) for value in parameters.leaves}
    return _nested([(leaf.path, _variable_for(leaf, sources, taken)) for leaf in leaves_of(tree)])


def slots_of(stored: PyTree, layout: OptLayout) -> list[Any]:
    """The Variables of a stored tree in the order of the layout.

    Where a user has put a plain array in the place of a Variable, it is that array.

    Raises:
      OptimizerError: the tree lacks a path of the layout.
    """
    return [_slot(stored, path) for path in layout.paths]


def _slot(stored: PyTree, path: Path) -> Any:
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
    return found


def _variable_for(leaf: Leaf, sources: dict[Path, tuple[Any, Metadata | None]], taken: set[int]) -> OptState[Any]:
    value = _as_array(leaf)
    if id(value) in taken:
        value = jnp.copy(value)  # else donating the model would delete the optimizer's state as well
    taken.add(id(value))
    shape, metadata = sources.get(leaf.source, (None, None)) if leaf.source is not None else (None, None)
    if metadata is None or shape != value.shape:
        return OptArray(value)
    return new_variable(OptVariable, value, metadata, _jax.current_trace())


def _as_array(leaf: Leaf) -> Any:
    value = leaf.value
    if isinstance(value, (bool, int, float, complex, np.ndarray, np.generic)):
        return jnp.asarray(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return value
    raise errors.OptimizerError(
        "Optimizer.opt_state",
        f"the optax state holds something else than arrays at {errors.format_path(leaf.path)}",
        expected="an array or a number",
        got=errors.describe(value),
        why="the state passes through jit",
        fix="keep it in a closure of the transformation, not in what its init returns",
    )


def _mirrors(parameters: State[Any]) -> Iterator[tuple[Any, Metadata | None]]:
    """Of each parameter, its shape and the metadata for what mirrors it."""
    for value, leaf_def in zip(parameters.leaves, parameters.definition.leaf_defs, strict=True):
        yield getattr(value, "shape", None), None if leaf_def is None else _without_hooks(leaf_def[1])


@functools.lru_cache(maxsize=256)
def _without_hooks(metadata: Metadata) -> Metadata:
    return Metadata.of({name: value for name, value in metadata.frozen.items() if name not in _VALUE_HOOKS})


def _nested(items: Iterable[tuple[Path, OptState[Any]]]) -> PyTree:
    """Branches from paths: ``[(("a", "b"), x)]`` is ``Branch({"a": Branch({"b": x})})``."""
    root: dict[Name, Any] = {}
    for path, variable in items:
        if not path:  # the optax state is a bare array
            return variable
        level = root
        for key in path[:-1]:
            level = level.setdefault(_name_of(key), {})
        level[_name_of(path[-1])] = variable
    return _branch(root)


def _branch(level: dict[Name, Any]) -> Branch:
    return Branch({name: _branch(child) if isinstance(child, dict) else child for name, child in level.items()})


def _name_of(key: Hashable) -> Name:
    """A key as the name of a child; keys of dicts may be anything."""
    return key if isinstance(key, str) or type(key) is int else f"[{key!r}]"


def _flatten_with_path(tree: PyTree, is_leaf: Any = None) -> list[tuple[tuple[Any, ...], Any]]:
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]


def _is_state(node: object) -> bool:
    return isinstance(node, State)

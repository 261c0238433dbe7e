"""What a transform takes apart, and what it hands to JAX as it is.

Vocabulary
----------
root: a Variable, Pytree or Object among the arguments. What JAX sees of a State is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from weakref import WeakValueDictionary

import jax

from declax._nodes import Kind, is_number, kind_of
from declax._pytree import Pytree, layout_of
from declax._state_def import LightVariable
from declax._variables import Variable
from declax.graph.graph_state import GraphState
from declax.states import FlatForm, State

_STATES = frozenset({State, GraphState})
_is_leaf_class: dict[type, bool] = {}


class _RootClasses(dict[type, bool]):
    """Whether the instances of a class are roots; decided once for each class."""

    def __missing__(self, cls: type) -> bool:
        found = self[cls] = issubclass(cls, (Variable, Pytree)) and not issubclass(cls, LightVariable)
        return found


_is_root_class: Final = _RootClasses()


def is_root(value: object) -> bool:
    """Whether a value is a Variable, Pytree or Object."""
    return _is_root_class[type(value)]


def which_are_roots(values: Iterable[object]) -> tuple[bool, ...]:
    """Of each value, whether it is a root."""
    return tuple(map(_is_root_class.__getitem__, map(type, values)))


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree, with roots as leaves, and its treedef; States have their own leaves at one level."""
    treedef: Any
    leaves, treedef = jax.tree_util.tree_flatten(tree, is_leaf=_is_whole)
    if _STATES.isdisjoint(map(type, leaves)):
        return leaves, treedef
    forms = [FlatForm(leaf) if type(leaf) in _STATES else leaf for leaf in leaves]
    found: tuple[list[Any], Any] = jax.tree_util.tree_flatten(treedef.unflatten(forms), is_leaf=is_root)
    return found


def tree_of_jax(treedef: Any) -> Any:
    """The treedef that JAX has of what a treedef of `flatten` describes: States are nested, and the leaves the same."""
    return jax.tree_util.tree_structure(treedef.unflatten(range(treedef.num_leaves)))


def _is_whole(value: object) -> bool:
    return _is_root_class[type(value)] or type(value) in _STATES


def is_leaf(value: object) -> bool:
    """Whether a value is an array or a number: a tree of one leaf."""
    found = _is_leaf_class.get(value.__class__)
    if found is None:
        found = _is_leaf_class[value.__class__] = kind_of(value) in (Kind.LEAF, Kind.REF) or is_number(value)
    return found


def is_array_like(value: object) -> bool:
    """Whether JAX can take a value for an array."""
    return is_leaf(value) or hasattr(value, "__jax_array__") or hasattr(value, "dtype")


_labels: Final[WeakValueDictionary[int, object]] = WeakValueDictionary()
"""The graphs of labels, by identity."""


def add_labels(graph: object) -> None:
    """Makes known that a graph holds labels in the place of arrays."""
    _labels[id(graph)] = graph


def is_labels(root: object) -> bool:
    """Whether a root holds labels, as `prefix` makes: it is no model, and transforms that reach it leave it alone."""
    return _labels.get(id(root)) is root


def is_finished(root: object) -> bool:
    """Whether a root has all that its class declares: not so while it is being made.

    Then a function that reaches it, such as one that makes its parts, has it
    as it is, and no transform takes it apart.
    """
    if not isinstance(root, Pytree) or not root._pytree__is_pytree:
        return True
    return layout_of(root).statuses.keys() <= vars(root).keys()

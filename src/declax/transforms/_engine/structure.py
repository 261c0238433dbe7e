"""What JAX sees of a call: which values are roots, its static structure, and its traces.

A root is a Variable, Pytree or Object among the arguments.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, NamedTuple, TypeVar, cast
from weakref import finalize

import jax

from declax._classes.pytree import Pytree, layout_of
from declax._graph.api import GraphState
from declax._graph.flattening import GraphDef
from declax._graph.nodes import Kind, is_number, kind_of
from declax._graph.orders import Orders
from declax._modes import is_graph, is_on, set_graph_updates
from declax._state.states import State
from declax._state.tree import FlatForm, LightVariable
from declax._tree.statuses import check_depth
from declax._typing import Path
from declax._variables.variable import Variable
from declax.errors import MAX_DEPTH, TransformError, describe, too_deep

T = TypeVar("T")


_STATES = frozenset({State, GraphState})


_is_leaf_class: dict[type, bool] = {}


class _RootClasses(dict[type, bool]):
    def __missing__(self, cls: type) -> bool:
        found = self[cls] = issubclass(cls, (Variable, Pytree)) and not issubclass(cls, LightVariable)
        return found


ROOT_CLASSES: Final = _RootClasses()
"""Whether instances of a class are roots."""


def is_root(value: object) -> bool:
    """Whether a value is a Variable, Pytree or Object."""
    return ROOT_CLASSES[type(value)]


def which_are_roots(values: Iterable[object]) -> tuple[bool, ...]:
    """Of each value, whether it is a root."""
    return tuple(map(ROOT_CLASSES.__getitem__, map(type, values)))


def _is_whole(value: object) -> bool:
    return ROOT_CLASSES[type(value)] or type(value) in _STATES


def flatten(tree: Any) -> tuple[list[Any], Any, bool]:
    """The leaves of a tree, with roots as leaves; its treedef, with States at one level; whether it has States."""
    treedef: Any
    leaves, treedef = jax.tree_util.tree_flatten(tree, is_leaf=_is_whole)
    if _STATES.isdisjoint(map(type, leaves)):
        return leaves, treedef, False
    forms = [FlatForm(leaf) if type(leaf) in _STATES else leaf for leaf in leaves]
    return *jax.tree_util.tree_flatten(treedef.unflatten(forms), is_leaf=is_root), True


def tree_of_jax(treedef: Any) -> Any:
    """The treedef of JAX for a treedef of `flatten`: States are nested, with the same leaves."""
    return jax.tree_util.tree_structure(treedef.unflatten(range(treedef.num_leaves)))


_NESTING = (list, tuple, dict)


def models_as_keys(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The models that are keys of dicts among the arguments.

    Refuses containers nested too deeply: with Python 3.11, jaxlib 0.10 fails at every later call once it gave up.
    """
    found: list[Any] = []
    level: list[Any] = [v for v in (*args, *kwargs.values()) if isinstance(v, _NESTING)]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            for name, value in (*enumerate(args), *kwargs.items()):
                check_depth(value, f"argument {name}")
            raise too_deep("the arguments, one of which holds itself", ())
        for table in level:
            if isinstance(table, dict) and any(map(ROOT_CLASSES.__getitem__, map(type, table))):
                found += filter(is_root, table)
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, _NESTING)
        ]
    return found


def contents_of_states(tree: Any) -> list[tuple[State[Any], dict[Path, Any]]]:
    """The States in a tree, each with its present leaves by path."""
    leaves = jax.tree_util.tree_leaves(tree, is_leaf=_is_whole)
    states = [leaf for leaf in leaves if type(leaf) in _STATES]
    return [(state, dict(zip(state.paths, state.leaves, strict=True))) for state in states]


def checked_function(where: str, name: str, function: T) -> T:
    """The argument of this name, which has to be a function."""
    if not callable(function):
        fix = f"dx.{where}(...), with a function as {name}"
        raise TransformError(f"{where}, {name}", "this is not a function", got=describe(function), fix=fix)
    return function


def is_leaf(value: object) -> bool:
    """Whether a value is an array or a number: a tree of one leaf."""
    found = _is_leaf_class.get(value.__class__)
    if found is None:
        found = _is_leaf_class[value.__class__] = kind_of(value) in (Kind.LEAF, Kind.REF) or is_number(value)
    return found


def is_array_like(value: object) -> bool:
    """Whether JAX can take a value for an array."""
    return is_leaf(value) or hasattr(value, "__jax_array__") or hasattr(value, "dtype")


_RETURN_ARRAYS: Final = "return arrays only, and make the rest of them outside: a name or an object does not change"


def no_array(where: str, value: object, fix: str = _RETURN_ARRAYS) -> TransformError:
    """The error of a result, or an argument, that JAX cannot hold."""
    return TransformError(
        where,
        "this is not an array, a number or a model",
        expected="a tree of arrays, numbers and models",
        got=describe(value),
        fix=fix,
    )


def no_ref(where: str, problem: str) -> TransformError:
    """The error of an array ref where only arrays can be."""
    return TransformError(
        where,
        problem,
        why="JAX can read and write an array ref, and do nothing else with it",
        fix="dx.to_arrays(model)        # a copy with arrays in the place of refs",
    )


_labels: Final[dict[int, tuple[Any, Path]]] = {}
"""For graphs of labels, by identity: the filters that gave the labels, or None, and the path that they see for it."""


def add_labels(graph: object, by_filter: Any, path: Path) -> None:
    """Records that a graph holds labels in place of arrays."""
    key = id(graph)
    _labels[key] = by_filter, path
    finalize(graph, _labels.pop, key, None).atexit = False


def is_labels(root: object) -> bool:
    """Whether a root holds labels, as from `prefix`: it is not a model, and transforms ignore it."""
    return id(root) in _labels


def filters_of_labels(graph: object) -> tuple[Any, Path]:
    """The filters that gave the labels of a graph, or None, and the path that they see for it."""
    return _labels.get(id(graph), (None, ()))


def is_finished(root: object) -> bool:
    """Whether a root is complete: during its construction it is not, and is not an argument."""
    if not isinstance(root, Pytree) or not root._pytree__is_pytree:
        return True
    return layout_of(root).statuses.keys() <= vars(root).keys()


class Mode(NamedTuple):
    """Which of these are allowed; others are errors.

    Attributes:
      graph: arguments that share objects; else they are trees.
      updates: changes of structure, which come back.
      returns: results with Variables of the arguments, as those of loops always are.
    """

    graph: bool = True
    updates: bool = True
    returns: bool = True

    @staticmethod
    def of(graph: bool | None, graph_updates: bool | None) -> Mode:
        """The mode of a transform that is made now, from its options and the defaults."""
        updates = is_on("graph_updates", graph_updates, set_graph_updates.current_value)
        updates = is_graph(graph) and updates
        return Mode(is_graph(graph), updates, updates)


class CaptureKey:
    """Identifies a function and its capture sites; calls with the same one run one program.

    `names` has what the function calls each captured model, `captures` refers to those of the last call.
    """

    __slots__ = ("captures", "function", "names")

    def __init__(self, function: Callable[..., Any], names: tuple[str | None, ...]) -> None:
        self.function: Callable[..., Any] = function
        self.names: tuple[str | None, ...] = names
        self.captures: Callable[[], Any] = lambda: None


class Statics(NamedTuple):
    """Static arguments of a call, by number and by name; the types tell 1 and True apart."""

    by_number: tuple[tuple[int, Any], ...]
    by_name: tuple[tuple[str, Any], ...]
    types: Hashable


class Structure(NamedTuple):
    """The static part of a call: calls with equal ones run one program.

    Attributes:
      tree: of ``(args, kwargs, captured)``, with roots as leaves.
      is_root: for each leaf of the tree, whether it is a root.
      graphdef: of the tuple of roots.
      orders: of the attributes of its nodes.
      has_states: whether a State is in the tree.
    """

    tree: Any
    is_root: tuple[bool, ...]
    graphdef: GraphDef[Any]
    orders: Orders
    key: CaptureKey | None = None
    statics: Statics | None = None
    has_states: bool = False

    @property
    def num_leaves(self) -> int:
        """The number of leaves of the graph."""
        return self.graphdef.num_leaves

    @property
    def static_numbers(self) -> tuple[int, ...]:
        """The positions of the static arguments."""
        return () if self.statics is None else tuple([number for number, _ in self.statics.by_number])

    def leaf_roots(self) -> list[int]:
        """For each leaf of the graph, the position of its root among all leaves."""
        at = [i for i, is_one in enumerate(self.is_root) if is_one]
        return [at[cast("int", path[0])] for path in self.graphdef.leaf_paths]


class Trace(NamedTuple):
    """One run of the user's function by JAX: its structure, and the shapes and dtypes of all leaves."""

    structure: Structure
    avals: tuple[Any, ...]

    @staticmethod
    def of(structure: Structure, leaves: Iterable[Any]) -> Trace:
        """The trace for these leaves."""
        return Trace(structure, jax.tree.map(jax.typeof, tuple(leaves)))


class Traces:
    """The traces of one function: how many, and the last two, which `explain_retrace` compares."""

    def __init__(self) -> None:
        self.count: int = 0
        self.last: deque[Trace] = deque(maxlen=2)
        self._lock = threading.Lock()

    def note(self, trace: Trace) -> None:
        """Takes note of a trace."""
        with self._lock:
            self.count += 1
            self.last.append(trace)

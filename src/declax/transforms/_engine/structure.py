"""The structure of a lifted call, and the names of its leaves in errors and in JAX.

A root is a Variable, Pytree or Object among the arguments.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import not_
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast
from weakref import finalize

import jax
import numpy as np
from jax.core import Tracer

from declax._classes.pytree import Pytree, layout_of
from declax._graph.abstract import abstract_model
from declax._graph.api import GraphState
from declax._graph.binding import bind
from declax._graph.differences import paths_of_objects
from declax._graph.flattening import GraphDef, Walk, class_of, walk_tokens
from declax._graph.nodes import Kind, is_number, kind_of, plain_key
from declax._modes import is_graph, is_on, set_graph_updates
from declax._module.running import note_original
from declax._state.states import State
from declax._state.tree import FlatForm, LightVariable
from declax._tree.statuses import check_depth
from declax._typing import Path
from declax._variables.donation import OWN_COPIES, is_deleted, why_deleted
from declax._variables.variable import Variable
from declax.errors import MAX_DEPTH, DeclaxError, TransformError, describe, format_path, too_deep, type_name

if TYPE_CHECKING:
    from declax._state.definition import LeafDef
    from declax.transforms._engine.lift import Call, Outcome, Plan

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


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree, with roots as leaves, and its treedef; States have their own leaves at one level."""
    treedef: Any
    leaves, treedef = jax.tree_util.tree_flatten(tree, is_leaf=_is_whole)
    if _STATES.isdisjoint(map(type, leaves)):
        return leaves, treedef
    forms = [FlatForm(leaf) if type(leaf) in _STATES else leaf for leaf in leaves]
    found: tuple[list[Any], Any] = jax.tree_util.tree_flatten(treedef.unflatten(forms), is_leaf=is_root)
    return found


_NESTING = (list, tuple, dict)


def check_arguments_depth(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses containers nested too deeply: with Python 3.11, jaxlib 0.10 fails at every later call once it gave up."""
    level: list[Any] = [v for v in (*args, *kwargs.values()) if isinstance(v, _NESTING)]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            for name, value in (*enumerate(args), *kwargs.items()):
                check_depth(value, f"argument {name}")
            raise too_deep("the arguments, one of which holds itself", ())
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, _NESTING)
        ]


def contents_of_states(tree: Any) -> list[tuple[State[Any], dict[Path, Any]]]:
    """The States in a tree, each with its present leaves by path."""
    leaves = jax.tree_util.tree_leaves(tree, is_leaf=_is_whole)
    states = [leaf for leaf in leaves if type(leaf) in _STATES]
    return [(state, dict(zip(state.paths, state.leaves, strict=True))) for state in states]


def check_states_kept(before: Sequence[tuple[State[Any], dict[Path, Any]]], output: Any) -> None:
    """Refuses a write to a State among the arguments whose value is not in the result: the caller would not see it."""
    for state, old in before:
        written = [
            (path, new) for path, new in zip(state.paths, state.leaves, strict=True) if old.get(path, new) is not new
        ]
        if not written:
            continue
        leaves, _ = flatten(output)
        values = chain.from_iterable(bind(leaf).read() if is_root(leaf) else (leaf,) for leaf in leaves)
        returned = set(map(id, values))
        for path, new in written:
            if id(new) not in returned:
                raise TransformError(
                    format_path(path),
                    "the function writes to a State that it got as an argument, and the write would be lost",
                    why="a State is a snapshot of values, and the State of the caller is another one",
                    fix="return state        # then dx.update(model, f(state)); or write to a copy, dx.State(state)",
                )


def tree_of_jax(treedef: Any) -> Any:
    """The treedef of JAX for a treedef of `flatten`: States are nested, with the same leaves."""
    return jax.tree_util.tree_structure(treedef.unflatten(range(treedef.num_leaves)))


def _is_whole(value: object) -> bool:
    return ROOT_CLASSES[type(value)] or type(value) in _STATES


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
    """

    tree: Any
    is_root: tuple[bool, ...]
    graphdef: GraphDef[Any]
    key: CaptureKey | None = None
    statics: Statics | None = None

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


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The parameters of a function by name; None where Python does not know them."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


def paths_in(tree: Any) -> list[tuple[Any, ...]]:
    """The path of each leaf of a tree."""
    numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return [tuple(map(plain_key, keys)) for keys, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]


def joined(name: str, path: Sequence[Any]) -> str:
    """The name of the object at a path."""
    text = format_path(path) if path else ""
    return f"{name}.{text}" if text and text[0] != "[" else name + text


def names_in_result(tree: Any) -> list[str]:
    """The name of each leaf of a result in errors."""
    return [joined("the result", path) for path in paths_in(tree)]


def leaves_set(structure: Structure, plan: Plan) -> Iterator[tuple[Path, LeafDef]]:
    """The argument and path, and the kind, of each leaf that the function set."""
    if plan.change is not None:
        definition = plan.change.graphdef.definition
        for path, leaf_def, kept in zip(definition.paths, definition.leaf_defs, plan.change.kept, strict=True):
            if kept < 0 and path[0] == 0:
                yield path[1:], leaf_def
    else:
        definition = structure.graphdef.definition
        for i in plan.changed:
            yield definition.paths[i], definition.leaf_defs[i]


def names_of_outputs(structure: Structure, plan: Plan, tree: Any = None) -> list[str]:
    """The names of the output arrays: the leaves that the function set, then those of its result, of this tree."""
    results = names_in_result(tree if plan.tree is None else plan.tree)
    names = [name_path(structure, path) for path, _ in leaves_set(structure, plan)]
    if plan.change is None:
        return names + results
    returned = list(compress(results, plan.is_root))
    pairs: Any = zip(plan.change.graphdef.definition.paths, plan.change.kept, strict=True)
    names += [joined(returned[path[1]], path[2:]) for path, kept in pairs if kept < 0 and path[0] == 1]
    return names + list(compress(results, map(not_, plan.is_root)))


def name_leaves(structure: Structure, name_argument: Callable[[int], str] | None = None) -> list[str]:
    """The name of each leaf of ``(args, kwargs, captured)`` in errors, by the parameters of the function."""
    name_argument = name_argument or _namer_of_call(structure)
    found: list[str] = []
    for part, first, *below in paths_in(structure.tree):
        if part == 2:
            found.append(f"captured {_name_captured(structure, first, sum(structure.is_root[: len(found)]))}")
        else:
            found.append(joined(name_argument(first) if part == 0 else str(first), below))
    return found


def _name_captured(structure: Structure, number: int, rank: int) -> str:
    variable = None if structure.key is None else structure.key.names[number]
    if variable is not None:
        return variable
    token = dict(walk_tokens(structure.graphdef.tokens))[rank,]
    return "model" if isinstance(token, int) else type_name(class_of(token))


def _namer_of_call(structure: Structure) -> Callable[[int], str]:
    """The names of arguments, from their numbers in a call without the static ones."""
    name_place = namer_of(None if structure.key is None else structure.key.function)

    def name(number: int) -> str:
        for taken in structure.static_numbers:
            if taken <= number:
                number += 1
        return name_place(number)

    return name


def namer_of(function: Any) -> Callable[[int], str]:
    """The names of the positional arguments of a function, which may be unknown, from their numbers."""
    known = (parameters(function) or {}).values()

    def name(place: int) -> str:
        for i, parameter in enumerate(known):
            if parameter.kind is parameter.VAR_POSITIONAL and place >= i:
                return f"{parameter.name}[{place - i}]"
            if i == place and parameter.kind <= parameter.POSITIONAL_OR_KEYWORD:
                return parameter.name
        return f"argument {place}"

    return name


def name_path(structure: Structure, path: Sequence[Any], name_argument: Callable[[int], str] | None = None) -> str:
    """The name of a place in the graph of a call in errors, from the rank of the root and the path below it."""
    return joined(name_roots(structure, name_argument)[path[0]], path[1:])


def name_roots(structure: Structure, name_argument: Callable[[int], str] | None = None) -> list[str]:
    """The name of each root of a call in errors."""
    return list(compress(name_leaves(structure, name_argument), structure.is_root))


def name_plain(structure: Structure) -> list[str]:
    """The name of each leaf of a call outside of models, in errors."""
    return list(compress(name_leaves(structure), map(not_, structure.is_root)))


def names_of_call(structure: Structure, name_argument: Callable[[int], str] | None = None) -> list[str]:
    """The name of each leaf of a call in errors: those of the graph, then the array leaves."""
    names = name_leaves(structure, name_argument)
    roots: Any = list(compress(names, structure.is_root))
    of_graph = [joined(roots[path[0]], path[1:]) for path in structure.graphdef.leaf_paths]
    return [*of_graph, *compress(names, map(not_, structure.is_root))]


# ----------------------------------------------------------------- what JAX calls a lifted function

MAX_NAMES = 4
"""So many leaves, or functions that have donated last, are named."""


def named(function: Callable[..., Outcome], user: Callable[..., Any], structure: Structure) -> Callable[..., Outcome]:
    """A lifted function that JAX calls by the user's name, and whose results are arrays."""

    def call(*leaves: Any) -> Outcome:
        outcome = function(*leaves)
        check_results(outcome, structure, user)
        return outcome

    made: Any = call
    made.__wrapped__ = traced_code(user)
    made.__name__ = made.__qualname__ = getattr(made.__wrapped__, "__name__", made.__name__)
    made.__signature__ = LeafNames(structure)
    return call


def traced_code(user: Callable[..., Any]) -> Any:
    """The function whose name and place errors show: of a partial, its function; of an object, its method."""
    found = inspect.unwrap(user)
    while isinstance(found, functools.partial):
        found = inspect.unwrap(found.func)
    return found if hasattr(found, "__name__") else type(found).__call__


class LeafNames(inspect.Signature):
    """A signature that binds leaves to their names in the user's code."""

    def __init__(self, structure: Structure) -> None:
        super().__init__([inspect.Parameter("leaves", inspect.Parameter.VAR_POSITIONAL)])
        self._structure = structure

    def bind(self, /, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """The leaves by name; a name that comes again gets a number."""
        bound = super().bind(*args, **kwargs)
        bound.arguments = {}
        seen: dict[str, int] = {}
        for name, leaf in zip(names_of_call(self._structure), args, strict=True):
            seen[name] = seen.get(name, 0) + 1
            bound.arguments[name if seen[name] == 1 else f"{name} ({seen[name]})"] = leaf
        return bound


# ----------------------------------------------------------------- results


def check_results(outcome: Outcome, structure: Structure, user: Callable[..., Any]) -> None:
    """Checks that the results of a function, and the values that it sets, are arrays and models."""
    if all(map(_is_array, jax.tree_util.tree_leaves((outcome.new, outcome.output)))):
        return
    values = (*outcome.new, *jax.tree_util.tree_leaves(outcome.output))
    names = names_of_outputs(structure, outcome.plan, jax.tree_util.tree_structure(outcome.output))
    for name, value in zip(names, values, strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            if not _is_array(leaf):
                raise no_array(f"{name_of(user)}, {name}{jax.tree_util.keystr(path)}", leaf)


def _is_array(leaf: Any) -> bool:
    return is_array_like(leaf) and not (isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSU")


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


def check_returned(
    structure: Structure,
    objects: Sequence[Any],
    leaves: Sequence[Any],
    tree: Any,
    mode: Mode,
    carried: Collection[int] = (),
) -> None:
    """Refuses Variables of the arguments in a result; and without sharing, objects that it has twice."""
    pattern = [is_one and i not in carried for i, is_one in enumerate(which_are_roots(leaves))]
    found = Walk()
    found.visit(tuple(compress(leaves, pattern)))
    names = list(compress(names_in_result(tree), pattern))
    inputs = {id(value): index for index, value in enumerate(objects) if isinstance(value, Variable)}
    for index, value in enumerate(found.objects):
        if id(value) in inputs:
            argument = name_path(structure, paths_of_objects(structure.graphdef)[inputs[id(value)]])
            name = _name_below(names, paths_of_objects(found.graphdef)[index])
            raise TransformError(
                name,
                "the function returns a Variable of its arguments, and Variables in results are new ones",
                got=f"Duplicate {type_name(type(value))} found at paths {argument} and {name}",
                why="graph_updates=False (or graph=False, or a default) does not support Variable aliasing",
                fix=f"dx.clone({argument})        # or return its value; graph_updates=True returns it",
            )
    if not mode.graph and found.graphdef.shared is not None:
        *paths, cls = found.graphdef.shared
        first, again = (_name_below(names, path) for path in paths)
        raise TransformError(
            again,
            "this is reached twice, so the result is not a tree",
            got=f"Duplicate {type_name(cls)} found at paths {first} and {again}",
            fix="graph=True        # keeps sharing",
        )


def _name_below(names: list[str], path: Any) -> str:
    return joined(names[path[0]], path[1:])


def name_of(user: Callable[..., Any]) -> str:
    """The name of a function in errors."""
    return str(getattr(traced_code(user), "__name__", type(user).__name__))


def note_tracers(
    error: BaseException, transform: str, user: Callable[..., Any], structure: Structure, labels: Sequence[Any]
) -> None:
    """Adds to an error which leaves have no values while a function is mapped: those with a label."""
    names = [n for n, label in zip(names_of_call(structure), labels, strict=True) if label is not None]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    listed = ", ".join(names[:MAX_NAMES]) + more
    error.add_note(f"{transform} maps {name_of(user)} over {listed}: inside of it, these have no values of their own")


def named_leaves(call: Call) -> Iterator[tuple[str, Any]]:
    """The leaves of a call with what to call them: those of the graph, then the plain ones."""
    return zip(names_of_call(call.structure), call.leaves, strict=True)


def _arrays_of(call: Call) -> Iterator[tuple[str, Any]]:
    for name, value in named_leaves(call):
        yield from ((name, leaf) for leaf in jax.tree_util.tree_leaves(value))


def deleted_leaves(call: Call) -> list[tuple[str, Any]]:
    """The arrays of a call that have lost their buffers, with what to call them."""
    return [(name, leaf) for name, leaf in _arrays_of(call) if is_deleted(leaf)]


_DONATED_ONCE: Final = "donate the same buffer twice|previously donated in the same call"


def explain(call: Call, error: BaseException) -> None:
    """Raises an error in the user's words for what JAX refused of a call, if the cause is known."""
    note_original(error, call.binding.objects())
    if isinstance(error, DeclaxError):
        return
    if isinstance(error, (RecursionError, SystemError, AttributeError)):
        call.binding.check_depth()  # too deep for JAX, which cannot read its own options at the end of its stack
    found: DeclaxError | None = None
    if isinstance(error, (RuntimeError, ValueError)) and "deleted" in str(error):
        found = _deleted(deleted_leaves(call))
    elif isinstance(error, (RuntimeError, ValueError)) and re.search(_DONATED_ONCE, str(error)):
        found = _donated_twice(call)
    elif isinstance(error, TypeError) and re.search("not a valid JAX type|as an abstract array", str(error)):
        found = _no_array_of_jax(call)
    if found is not None:
        raise found from error


def _deleted(found: list[tuple[str, Any]]) -> TransformError | None:
    if not found:
        return None
    (name, leaf), *more = found
    return TransformError(
        name,
        "this array was deleted, since its buffer was donated",
        got=describe(leaf) + (f"; and {len(more)} more" if more else ""),
        why=why_deleted(),
        fix=f"use what that function has returned or set; {OWN_COPIES}",
    )


def unless_deleted(function: Callable[..., Any], structure: Structure, donated: Sequence[int]) -> Callable[..., Any]:
    """A compiled function that refuses arrays of a State that it has taken: on several devices, XLA would crash."""

    def run(*leaves: Any) -> Any:
        first = leaves[donated[0]]
        if isinstance(first, jax.Array) and not isinstance(first, Tracer) and len(first.devices()) > 1:
            lost = [number for number in donated if is_deleted(leaves[number])]
            error = _deleted([(names_of_call(structure)[number], leaves[number]) for number in lost])
            if error is not None:
                raise error
        return function(*leaves)

    return run


def _donated_twice(call: Call) -> TransformError | None:
    first: dict[int, str] = {}
    for name, leaf in _arrays_of(call):
        if isinstance(leaf, jax.Array) and first.setdefault(id(leaf), name) != name:
            return TransformError(
                name,
                f"this array is also at {first[id(leaf)]}, and a buffer can be donated once",
                got=describe(leaf),
                why="dx.update and dx.merge share arrays, as does `a.value = b.value`",
                fix="dx.update(target, dx.state(model, copy=True))        # or dx.clone(model), which copies",
            )
    return None


def _no_array_of_jax(call: Call) -> DeclaxError | None:
    for name, leaf in _arrays_of(call):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return abstract_model(name, leaf, "f.eval_shape(model, x), or f.lower(model, x)")
        if not is_array_like(leaf):
            return TransformError(
                name,
                "this is in a Variable, or a child of the tree, and not an array",
                got=describe(leaf),
                fix="self.name = dx.static(value)        # other values are compiled in",
            )
    return None


def no_ref(where: str, problem: str) -> TransformError:
    """The error of an array ref where only arrays can be."""
    return TransformError(
        where,
        problem,
        why="JAX can read and write an array ref, and do nothing else with it",
        fix="dx.to_arrays(model)        # a copy with arrays in the place of refs",
    )

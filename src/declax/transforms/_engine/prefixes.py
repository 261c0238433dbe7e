"""Prefix trees: from the axes or shardings that a user wrote to one label for each leaf, and back to the results.

A label is an axis, a sharding, None or `Carry`. The spec of a root or of another leaf is a label; a `StateLabels`,
which gives labels by filter; or a graph of labels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import itemgetter, not_
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.experimental.layout import Format
from jax.sharding import Mesh

from declax._filters import Filter, PathIn, Predicate, as_written, to_predicate
from declax._graph.binding import bind
from declax._graph.differences import other_paths
from declax._graph.flattening import GraphDef
from declax._graph.nodes import Kind, is_ref, kind_of, open_container, plain_key
from declax._graph.unflattening import StructureChange
from declax._modes import is_graph
from declax._state.definition import LeafDef
from declax._state.states import State
from declax._text.objects import value_text
from declax._typing import MISSING, Immutable, Path
from declax._variables.placement import AnyMesh, make_spec, mesh_of_sharding
from declax._variables.variable import Variable, new_variable
from declax.errors import MissingKeyError, TransformError, describe, format_path, type_name
from declax.transforms._engine.names import joined, name_plain, name_roots, names_in_result, parameters
from declax.transforms._engine.outcome import (
    ARGUMENTS,
    RESULTS,
    TAKEN_OUT,
    Outcome,
    Plan,
    leaf_origins,
    leaf_paths,
)
from declax.transforms._engine.structure import Structure, filters_of_labels, is_labels, is_root

L = TypeVar("L")

_LISTED = 4

# --- what users write ----------------------------------------------------------


class Carry:
    """The label of arguments and results of `scan` that are passed from step to step.

    The class itself is the label.

    >>> import declax as dx
    >>> sum_all = dx.scan(lambda total, x: total + x, in_axes=(dx.Carry, 0), out_axes=dx.Carry)
    >>> int(sum_all(0, jax.numpy.arange(4)))
    6
    """


class StateLabels(Immutable, Mapping[Any, L]):
    """Labels by filter, of which the first match decides; or a State of labels by path."""

    filters: tuple[Filter, ...]
    labels: tuple[L, ...]
    predicates: tuple[Predicate, ...]

    def __init__(self, labels: Mapping[Any, L] | Iterable[tuple[Filter, L]], /) -> None:
        try:
            pairs = tuple(_pairs_of(labels))
            filters, values = tuple(f for f, _ in pairs), tuple(v for _, v in pairs)
        except (TypeError, ValueError):
            name = type(self).__name__
            raise TransformError(
                name,
                "these are not labels by filter",
                expected="a mapping from filters",
                got=describe(labels),
                fix=f"dx.{name}({{dx.Param: ..., ...: None}})",
            ) from None
        vars(self).update(filters=filters, labels=values, predicates=tuple(map(to_predicate, filters)))

    def map_prefix(self, path: Path, leaf: Any) -> L:
        """The label of the leaf at a path below a model: a Variable, or an array outside of Variables.

        Raises:
          TransformError: no filter matches the leaf.
        """
        return self.label_of(path, leaf, type(self).__name__)

    def label_of(self, path: Path, held: Any, where: str) -> L:
        """The label of the first filter that takes a Variable or array.

        Raises:
          TransformError: no filter does.
        """
        number = self.number_of(path, held)
        if number is not None:
            return self.labels[number]
        raise TransformError(
            f"{where}, {format_path(path)}",
            "no filter matches this leaf",
            expected=" or ".join(map(as_written, self.filters)),
            got=describe(held),
            fix="{..., ...: None}        # `...` as the last filter takes the rest",
        )

    def number_of(self, path: Path, held: Any) -> int | None:
        """The number of the first filter that takes a Variable or array."""
        return next((number for number, predicate in enumerate(self.predicates) if predicate(path, held)), None)

    def unused(self, used: Collection[int]) -> list[Filter]:
        """The filters that have selected nothing, from the numbers of those that have; ``...`` need not."""
        others = (filter_ for number, filter_ in enumerate(self.filters) if number not in used)
        return [filter_ for filter_ in others if filter_ is not ... and filter_ is not True]

    def check_usable(self, option: str) -> None:
        """Raises if an option of a transform cannot take these labels."""

    def below(self, path: Path) -> Any:
        """What labels the model at a path of a container; filters see the paths in each model."""
        return self

    def __getitem__(self, filter_: Filter) -> L:
        if filter_ not in self.filters:
            known = ", ".join(map(as_written, self.filters))
            raise MissingKeyError(type(self).__name__, "there is no such filter", expected=known, got=repr(filter_))
        return self.labels[self.filters.index(filter_)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.filters)

    def __len__(self) -> int:
        return len(self.filters)

    def __repr__(self) -> str:
        entries = ", ".join(f"{as_written(f)}: {value_text(v)}" for f, v in zip(self.filters, self.labels, strict=True))
        return f"{type(self).__name__}({{{entries}}})"


def _pairs_of(labels: Mapping[Any, L] | Iterable[tuple[Filter, L]]) -> Iterable[tuple[Filter, L]]:
    """The filters with their labels; of a State of labels, one for each of its paths."""
    if isinstance(labels, State):
        return [(PathIn(path), label) for path, label in zip(labels.paths, labels.leaves, strict=True)]
    if isinstance(labels, StateLabels):
        return zip(labels.filters, labels.labels, strict=True)
    if isinstance(labels, Mapping):
        return cast("Mapping[Any, L]", labels).items()
    return labels


class StateAxes(StateLabels["int | type[Carry] | None"]):
    """The axes of a model's leaves, by filter, for `vmap`, `pmap` and `scan`.

    Args:
      labels: for each filter an axis, None for leaves that all instances share, or `Carry` (in `scan`) for those that
        go from step to step. ``...`` as the last filter matches the rest.

    Raises:
      TransformError: `labels` are not pairs of filters and labels.

    >>> import declax as dx
    >>> axes = dx.StateAxes({dx.Param: 0, ...: None})
    >>> dx.vmap(lambda p, x: p * x, in_axes=(axes, None))(dx.Param(jnp.arange(3.0)), 2.0)
    Array([0., 2., 4.], dtype=float32)
    """

    @property
    def axes(self) -> tuple[int | type[Carry] | None, ...]:
        """The axis of each filter."""
        return self.labels


class LabelKind(NamedTuple):
    """The labels that two options of a transform take: the names of the options, a check, and what errors say."""

    names: tuple[str, str]
    is_label: Callable[[object], bool]
    expected: str
    example: str


def is_axis(label: object) -> bool:
    """Whether a value is an axis: the number of a dimension, or None for leaves that all instances share."""
    return label is None or (isinstance(label, int) and not isinstance(label, bool))


def is_step_axis(label: object) -> bool:
    """Whether a value is an axis of `scan`, `Carry` included."""
    return label is Carry or is_axis(label)


_AXES = ("in_axes", "out_axes")
AXES = LabelKind(_AXES, is_axis, "an int, None, or a tree of these and dx.StateAxes", "0")
STEP_AXES = LabelKind(_AXES, is_step_axis, "an int, None, dx.Carry, or a tree of these and dx.StateAxes", "0")


class Prefixes:
    """The prefixes that a user wrote for the arguments and the results of a function.

    Args:
      of_arguments, of_results: the prefixes.
      kind: the labels that the transform has.
      graph: the option of the transform; without graphs, labels by filter are refused.
    """

    def __init__(
        self, of_arguments: Any, of_results: Any, kind: LabelKind = AXES, *, graph: bool | None = None
    ) -> None:
        self.of_arguments: Any = tuple(of_arguments) if isinstance(of_arguments, list) else of_arguments
        self.of_results = of_results
        self._kind = kind
        for prefix, name in zip((self.of_arguments, of_results), kind.names, strict=True):
            is_leaf = functools.partial(is_spec, is_label=kind.is_label)
            specs, _ = jax.tree_util.tree_flatten_with_path(prefix, is_leaf=is_leaf)
            if not is_graph(graph):
                check_selects_nothing(name, [spec for _, spec in specs], StateLabels)
            for keys, spec in specs:
                if isinstance(spec, StateLabels):
                    spec.check_usable(name)
                others = [label for label in labels_of(spec) if not kind.is_label(label)]
                if others:
                    raise _not_a_label(joined(name, [*map(plain_key, keys)]), spec, others[0], kind)

    def labels(
        self,
        structure: Structure,
        leaves: Sequence[Any],
        function: Callable[..., Any],
        default: Any = None,
        of_keywords: Any = 0,
        skipped: Collection[int] = (),
    ) -> Labels:
        """The label of each leaf of a call."""
        arguments = positioned(function, structure.tree, skipped)
        found = spread(self.of_arguments, arguments, self._kind.names[0], self._kind.is_label)
        count = sum(part.num_leaves for part in structure.tree.children()[:2])
        specs = [found.get(number, of_keywords) for number in range(count)]
        return Labels(structure, leaves, specs, self.specs_of_result, self._kind.names, default)

    def specs_of_result(self, tree: Any) -> Sequence[Any]:
        """The spec of each leaf of a result."""
        numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
        return [*spread(self.of_results, numbered, self._kind.names[1], self._kind.is_label).values()]

    @property
    def batch_axes(self) -> set[str]:
        """The mesh axes along which labels of arguments expect the batch to be split."""
        specs = jax.tree_util.tree_leaves(self.of_arguments, is_leaf=lambda value: is_spec(value, self._kind.is_label))
        return {axis for spec in specs if isinstance(spec, StateSharding) for axis in spec.batch_axes}

    @functools.cached_property
    def mesh(self) -> Mesh | None:
        """The mesh of several devices of the first sharding that has one."""
        is_label = self._kind.is_label
        written = (label for prefix in (self.of_arguments, self.of_results) for label in labels_in(prefix, is_label))
        return next((mesh for mesh in map(mesh_of_sharding, written) if mesh is not None), None)

    def groups(self, labels: Labels, *more: Any) -> OutputGroups:
        """Of all labels that results can have, and of some more."""
        is_label = self._kind.is_label
        written = (label for prefix in (self.of_arguments, self.of_results) for label in labels_in(prefix, is_label))
        return OutputGroups((*more, *labels.leaves, *written))


def _not_a_label(where: str, spec: Any, label: Any, kind: LabelKind) -> TransformError:
    is_model, option = is_root(spec) and not is_labels(spec), where.partition("[")[0]
    return TransformError(
        where,
        "this is not a label of leaves",
        expected=kind.expected,
        got=describe(spec if is_model else label),
        why="the leaves of a model are arrays, and those of a prefix are labels" if is_model else None,
        fix=f"{option}={kind.example}" + "        # or dx.prefix(model, {...: label})" * is_model,
    )


def check_selects_nothing(option: str, specs: Iterable[Any], kind: type) -> None:
    """Raises for a selection by filter, of a kind, for a transform of trees."""
    for spec in specs:
        if isinstance(spec, kind):
            raise TransformError(
                option,
                "a selection by filter is of a graph, and graph=False, or dx.set_graph_mode(False), asks for trees",
                got=describe(spec),
                fix="graph=True        # or labels at the leaves: dx.prefix(model, {...: 0}, graph=False)",
            )


def positioned(function: Callable[..., Any], tree: Any, skipped: Collection[int] = ()) -> tuple[Any, ...]:
    """The arguments of a call that have a position, also by name, with numbers in place of their leaves; None for gaps.

    The call has no arguments at skipped positions.
    """
    args, kwargs, *_ = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    names = _places(function, skipped) if kwargs else []
    by_name = {names.index(name): value for name, value in kwargs.items() if name in names}
    end = max(by_name, default=-1) + 1  # an argument by name at a place that is taken is an error of the call
    return (*args, *(by_name.get(place) for place in range(len(args), end)))


def _places(function: Callable[..., Any], skipped: Collection[int]) -> list[str | None]:
    """The names of the parameters that have a position, in order; None for those that only have a position."""
    known = (parameters(function) or {}).values()
    found = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    # a name of a positional-only parameter may be one of the others, that `**kwargs` takes
    names = [p.name if p.kind is p.POSITIONAL_OR_KEYWORD else None for p in found]
    return [name for place, name in enumerate(names) if place not in skipped]


# --- from prefixes to leaves -----------------------------------------------------


def labels_in(prefix: Any, is_label: Callable[[object], bool]) -> Iterator[Any]:
    """All labels of a prefix, those inside of `StateLabels` and graphs of labels too."""
    for spec in jax.tree_util.tree_leaves(prefix, is_leaf=lambda value: is_spec(value, is_label)):
        yield from labels_of(spec)


def labels_of(spec: Any) -> Iterable[Any]:
    """The labels of a spec."""
    if isinstance(spec, StateLabels):
        return spec.labels
    if isinstance(spec, State):
        return spec.leaves
    if not is_root(spec):
        return (spec,)
    by_filter, _ = filters_of_labels(spec)
    in_graph = [_label_in(spec, path, "the prefix") for path in bind(spec).graphdef.definition.paths]
    return in_graph if by_filter is None else (*by_filter.labels, *in_graph)


def is_spec(value: object, is_label: Callable[[object], bool]) -> bool:
    """Whether a value is a spec, and not a container of some."""
    return is_label(value) or isinstance(value, (StateLabels, State)) or is_root(value)


def spread(prefix: Any, numbered: Any, where: str, is_label: Callable[[object], bool]) -> dict[int, Any]:
    """The spec of each leaf of a tree of numbers, in order, from a prefix of it."""
    specs: dict[int, Any] = {}

    def give(spec: Any, below: Any) -> None:
        if isinstance(spec, State) and isinstance(below, State):  # a prefix of it, not labels of a model's leaves
            jax.tree_util.tree_map(
                give, spec, below, is_leaf=lambda value: value is not spec and is_spec(value, is_label)
            )
            return
        if isinstance(spec, StateLabels):
            for keys, number in jax.tree_util.tree_leaves_with_path(below):
                specs[number] = spec.below(tuple(map(plain_key, keys)))
            return
        for number in jax.tree_util.tree_leaves(below):
            specs[number] = spec

    try:
        jax.tree_util.tree_map(give, prefix, numbered, is_leaf=lambda value: is_spec(value, is_label))
    except (ValueError, TypeError, KeyError) as error:
        example = 0 if is_label(0) else make_spec("data")
        raise TransformError(
            where,
            "the prefix does not fit the tree",
            expected=f"a prefix of {jax.tree_util.tree_map(lambda _: '*', numbered)!r}",
            got=repr(prefix),
            why=str(error).splitlines()[0],
            fix=f"{where}={example!r}        # one for all, or a tuple with one for each",
        ) from None
    return specs


class CheckedLabels:
    """Labels by filter for some leaves, and which of the filters have selected one."""

    __slots__ = ("_labels", "_leaves", "_used", "_where")

    def __init__(self, labels: StateLabels[Any], where: str) -> None:
        self._labels = labels
        self._where = where
        self._used: set[int] = set()
        self._leaves: list[str] = []

    def label(self, path: Path, leaf_def: LeafDef, value: Any) -> Any:
        """The label of a leaf."""
        held = held_at(leaf_def, value)
        number = self._labels.number_of(path, held)
        self._leaves.append(format_path(path))
        if number is None:
            return self._labels.label_of(path, held, self._where)
        self._used.add(number)
        return self._labels.labels[number]

    def check_all_select(self) -> None:
        """Raises if there are leaves, and a filter other than ``...`` has selected none."""
        unused = self._labels.unused(self._used) if self._leaves else []
        if unused:
            rest = len(self._leaves) - _LISTED
            more = f" and {rest} more" if rest > 0 else ""
            raise TransformError(
                self._where,
                f"the filter {as_written(unused[0])} selects nothing",
                expected=f"a filter that takes some of {', '.join(self._leaves[:_LISTED])}{more}",
                got=repr(self._labels),
                why="no leaf matches it that an earlier filter has left",
                fix="correct the filter, or leave it out",
            )


def held_at(leaf_def: LeafDef, value: Any) -> Any:
    """The value that filters see for a leaf: its Variable, or the array."""
    return value if leaf_def is None else new_variable(leaf_def[0], value, leaf_def[1], None)


def label_at(spec: Any, path: Path, leaf_def: LeafDef, value: Any, where: str) -> Any:
    """The label of the leaf at a path below a root."""
    if isinstance(spec, StateLabels):
        return spec.label_of(path, held_at(leaf_def, value), where)
    if isinstance(spec, (State, Variable)) or is_root(spec):
        return _label_in(spec, path, where, leaf_def, value)
    return spec


def _label_in(graph: Any, path: Path, where: str, leaf_def: LeafDef = None, value: Any = None) -> Any:
    """The label that a graph of labels has at a path, or at a place above; by filter for a leaf that was added."""
    if isinstance(graph, State):
        position = graph.definition.position(path)
        held = MISSING if position is None else graph.leaves[position]
    else:
        held = _walk(graph, path)
    if held is MISSING:
        by_filter, above = filters_of_labels(graph)
        if by_filter is not None:
            return by_filter.label_of((*above, *path), held_at(leaf_def, value), where)
        raise TransformError(where, f"the graph of labels has none at {format_path(path)}", got=describe(graph))
    return held._raw if isinstance(held, Variable) else held  # labels are not values, so `raw_value` must not warn


def _walk(held: Any, path: Path) -> Any:
    for key in path:
        kind = kind_of(held)
        if kind in (Kind.NODE, Kind.OBJECT):
            held = vars(held).get(key, MISSING)
        elif kind is Kind.CONTAINER:
            keys, children, _ = open_container(held)
            held = dict(zip(keys, children, strict=True)).get(key, MISSING)
        else:
            break
    return held


# --- the labels of a call -------------------------------------------------------


CAPTURED: Final = object()
"""The label of a capture: that of the argument that contains it, else the default."""


_Part: TypeAlias = tuple[str, Sequence[Any], Callable[[], list[str]]]
"""The option that labels a part of a graph, and the specs and names of its roots."""


class Labels:
    """The labels of the leaves of one call, and the specs of its roots."""

    __slots__ = ("_default", "_names", "_results", "_structure", "leaves", "of_roots")

    def __init__(
        self,
        structure: Structure,
        values: Sequence[Any],
        specs: Sequence[Any],
        results: Callable[[Any], Sequence[Any]],
        names: tuple[str, str],
        default: Any = None,
    ) -> None:
        """Finds the label of each leaf from the specs of ``(args, kwargs)``; captures follow."""
        specs = [*specs, *[CAPTURED] * (len(structure.is_root) - len(specs))]
        pairs = list(zip(specs, structure.is_root, strict=True))
        self._structure = structure
        self._results = results
        self._names = names
        self._default = default
        self.of_roots: list[Any] = [spec for spec, is_one in pairs if is_one]
        self.leaves: list[Any] = [default if spec is CAPTURED else spec for spec, is_one in pairs if not is_one]
        _check_plain(self.leaves, functools.partial(name_plain, structure), names[0])
        part: _Part = names[0], self.of_roots, functools.partial(name_roots, structure)
        paths = [(ARGUMENTS, *path) for path in structure.graphdef.leaf_paths]
        again = [(i, (ARGUMENTS, *path)) for i, path in other_paths(structure.graphdef)]
        self.leaves[:0] = self._of_graph(structure.graphdef, values, paths, again, {ARGUMENTS: part})

    @property
    def plain(self) -> list[Any]:
        """The labels of the leaves in no model."""
        return self.leaves[self._structure.num_leaves :]

    def _of_graph(
        self,
        graphdef: GraphDef[Any],
        values: Sequence[Any],
        paths: Sequence[Path],
        again: Iterable[tuple[int, Path]],
        parts: Mapping[Any, _Part],
        fixed: Mapping[int, Any] | None = None,
    ) -> list[Any]:
        """The label of each leaf of a graph, the same from wherever it is reached.

        `again` are the paths of leaves that are reached again. Each path starts with one of the `parts`.
        """
        definition = graphdef.definition
        selections: dict[tuple[Any, int], CheckedLabels] = {}

        def label(path: Any, i: int) -> Any:
            part, rank, *below = path
            option, specs, _ = parts[part]
            spec = specs[rank]
            if spec is None or spec.__class__ is int:  # most are
                return spec
            if isinstance(spec, StateSharding):
                one = selections.setdefault((part, id(spec)), CheckedLabels(spec, option))
                return one.label(tuple(below), definition.leaf_defs[i], values[i])
            return label_at(spec, tuple(below), definition.leaf_defs[i], values[i], option)

        def name(path: Any) -> tuple[str, str]:
            part, rank, *below = path
            option, _, names = parts[part]
            return option, joined(names()[rank], below)

        labels = [fixed[i] if fixed and i in fixed else label(path, i) for i, path in enumerate(paths)]
        for i, path in again:
            found = label(path, i)
            own = self._default if labels[i] is CAPTURED else labels[i]
            if found is not CAPTURED and not is_same_label(own, found):
                (_, one), (option, other) = name(paths[i]), name(path)
                options = " and ".join(dict.fromkeys(self._names))
                raise inconsistent_aliasing(f"{option}, {other}", found, one, own, options)
        for (part, _), selection in selections.items():
            if fixed is None or part == RESULTS:  # filters of arguments were checked when the call began
                selection.check_all_select()
        return [self._default if found is CAPTURED else found for found in labels]

    def keep(self, kept: Sequence[int], labels: Sequence[Any], values: Sequence[Any]) -> tuple[int, ...]:
        """Which leaves of a changed graph still have a value that went in, at its label; a ref is kept at any."""
        return tuple(
            i if i >= 0 and (is_ref(value) or is_same_label(self.leaves[i], label)) else -1
            for i, label, value in zip(kept, labels, values, strict=True)
        )

    def of_change(
        self, change: StructureChange, values: Sequence[Any], is_one: Sequence[bool], tree: Any
    ) -> tuple[list[Any], list[Any]]:
        """The labels of a changed graph, where a Variable that went in keeps its own, and of the plain results."""
        specs, is_plain = self._results(tree), list(map(not_, is_one))
        of_roots, of_plain = list(compress(specs, is_one)), list(compress(specs, is_plain))
        _check_plain(of_plain, lambda: list(compress(names_in_result(tree), is_plain)), self._names[1])
        fixed = {place: self.leaves[leaf] for place, leaf in leaf_origins(self._structure, change).items()}
        parts: dict[int, _Part] = {
            ARGUMENTS: (self._names[0], self.of_roots, functools.partial(name_roots, self._structure)),
            RESULTS: (self._names[1], of_roots, lambda: list(compress(names_in_result(tree), is_one))),
        }
        paths = leaf_paths(self._structure, change)
        again = [found for found in other_paths(change.graphdef) if found[1][0] != TAKEN_OUT]
        return self._of_graph(change.graphdef, values, paths, again, parts, fixed), of_plain

    def carried(self, tree: Any) -> set[int]:
        """The numbers of the leaves of a result that take the place of arguments of the next step."""
        return {number for number, spec in enumerate(self._results(tree)) if spec is Carry}

    def of_results(self, tree: Any) -> list[Any]:
        """The label of each leaf of a result without roots."""
        found = list(self._results(tree))
        _check_plain(found, lambda: names_in_result(tree), self._names[1])
        return found


def inconsistent_aliasing(where: str, found: Any, one: str, own: Any, options: str) -> TransformError:
    """The error for a Variable with the label `own` at the place `one`, and the label `found` here."""
    return TransformError(
        where,
        "Inconsistent aliasing detected: one Variable has two labels here",
        expected=f"{value_text(own)}, as at {one}",
        got=value_text(found),
        why="it is one Variable, reached twice",
        fix=f"give both places the same label in {options}",
    )


def _check_plain(labels: Sequence[Any], names: Callable[[], list[str]], where: str) -> None:
    for number, label in enumerate(labels):
        if isinstance(label, StateLabels):
            raise TransformError(
                f"{where}, {names()[number]}",
                f"a {type(label).__name__} is for a model, and this is in none",
                expected="one label for all of the array",
                got=repr(label),
                fix=f"{where}={'0' if where.endswith('axes') else 'sharding'}        # or a tuple with one for each",
            )


def is_same_label(a: Any, b: Any) -> bool:
    return a is b or bool(a == b and type(a) is type(b))


# --- axes and their sizes -------------------------------------------------------

_FIX_OF_AXES = "in_axes=(None, 0)        # None for what all share; dx.StateAxes for parts of a model"


def check_axis(where: str, axis: int, leaf: Any, ndim: int) -> None:
    """Checks that an array has an axis, or can get it."""
    if not -ndim <= axis < ndim:
        expected = f"an axis from {-ndim} to {ndim - 1}" if ndim else "None, since it is a scalar"
        problem = f"this cannot have the axis {axis}"
        raise TransformError(where, problem, expected=expected, got=describe(leaf), fix=_FIX_OF_AXES)


def size_along_axes(transform: str, leaves: Iterable[tuple[str, Any, Any]], size: int | None, option: str) -> int:
    """The one size that leaves, with their names and axes, have along these; or what an option says."""
    first = None if size is None else (size, option)
    for where, value, axis in leaves:
        for leaf in jax.tree_util.tree_leaves(value):
            shape = jnp.shape(leaf)
            check_axis(where, axis, leaf, len(shape))
            first = first or (shape[axis], where)
            if shape[axis] != first[0]:
                problem = "this has another size along its axis"
                expected, got = f"{first[0]}, as {first[1]}", str(shape[axis])
                raise TransformError(where, problem, expected=expected, got=got, fix=_FIX_OF_AXES)
    if first is None:
        problem = f"no argument has an axis, and there is no {option}"
        raise TransformError(transform, problem, fix=f"dx.{transform}(f, {option}=10)        # or in_axes=0")
    return first[0]


def kind_and_filter(path: Sequence[Any], leaf_def: LeafDef) -> tuple[str, str]:
    """The name of a leaf in errors, and a filter that selects it."""
    if leaf_def is None:
        return "leaf", f"dx.PathContains({path[-1]!r})"
    kind = type_name(leaf_def[0])
    return kind, f"dx.{kind}" if leaf_def[0].__module__.startswith("declax.") else kind


# --- results in groups of one label each ----------------------------------------


class OutputGroups:
    """Results in groups of one label each, since JAX needs the labels before the function runs."""

    __slots__ = ("known", "number")

    def __init__(self, labels: Iterable[Any]) -> None:
        self.known: list[Any] = []
        self.number: dict[Any, int] = {}
        self.add(labels)

    def add(self, labels: Iterable[Any]) -> None:
        """Adds groups for labels that have none."""
        for label in labels:
            if self.number.setdefault((type(label), label), len(self.known)) == len(self.known):
                self.known.append(label)


@jax.tree_util.register_static
class _StaticHalf:
    """The static half of grouped results; compares by identity."""

    __slots__ = ("count", "in_order", "plan", "tree")

    def __init__(self, plan: Plan, tree: Any, groups: Sequence[int]) -> None:
        self.plan = plan
        self.tree = tree
        self.count: int = len(groups) - tree.num_leaves
        positions = range(len(groups))
        by_group = sorted(positions, key=groups.__getitem__)
        order = sorted(positions, key=by_group.__getitem__)
        is_in_order = order == list(positions)
        self.in_order: Callable[[Sequence[Any]], Sequence[Any]] = tuple if is_in_order else itemgetter(*order)


Grouped = tuple[_StaticHalf, list[list[Any]]]


def in_groups(
    function: Callable[..., Outcome], groups: OutputGroups, check: Callable[[Plan, Sequence[Any]], None] | None = None
) -> Callable[..., Grouped]:
    """A function whose results come in groups."""

    def grouped(*leaves: Any) -> Grouped:
        outcome = function(*leaves)
        output, tree = jax.tree_util.tree_flatten(outcome.output)
        results = [*outcome.new, *output]  # a value of a Variable counts as one leaf, even if it is a tree
        if check is not None:
            check(outcome.plan, results)
        numbers = [groups.number[type(label), label] for label in outcome.plan.labels or [None] * len(results)]
        by_group: list[list[Any]] = [[] for _ in groups.known]
        for leaf, number in zip(results, numbers, strict=True):
            by_group[number].append(leaf)
        return _StaticHalf(outcome.plan, tree, numbers), by_group

    return grouped


def from_groups(result: Grouped) -> tuple[Plan, Sequence[Any], Any]:
    """The parts of the Outcome of a function that `in_groups` made."""
    static, by_group = result
    leaves = static.in_order([leaf for group in by_group for leaf in group])
    return static.plan, leaves[: static.count], jax.tree_util.tree_unflatten(static.tree, leaves[static.count :])


class StateSharding(StateLabels[Hashable]):
    """The shardings of a model's leaves, by filter, for `jit` and `shard_map`.

    Args:
      labels: for each filter a sharding or `PartitionSpec`, or None for leaves whose place JAX chooses.
      reasons: for some paths a reason, which `plan` shows.
      batch_axes: the mesh axes along which the batch is split too, as `fsdp` expects it.

    Raises:
      TransformError: `labels` are not pairs of filters and labels.

    >>> import declax as dx
    >>> import jax
    >>> dx.StateSharding({dx.Param: jax.P("data"), ...: None}).shardings
    (P('data',), None)
    """

    reasons: Mapping[Path, str] | None
    batch_axes: tuple[str, ...]

    def __init__(
        self,
        labels: Mapping[Any, Hashable] | Iterable[tuple[Filter, Hashable]],
        /,
        reasons: Mapping[Path, str] | None = None,
        batch_axes: Sequence[str] = (),
    ) -> None:
        super().__init__(labels)
        vars(self).update(reasons=reasons, batch_axes=tuple(batch_axes))

    def __eq__(self, other: object) -> bool:
        return (self.filters, self.labels) == (other.filters, other.labels) if type(other) is type(self) else False

    def __hash__(self) -> int:
        return hash((type(self), self.filters, self.labels))

    def on(self, mesh: AnyMesh) -> StateSharding:
        """The shardings on a mesh; those of filters are on any."""
        return self

    def check_leaves(self, where: str, paths: Sequence[Path]) -> None:
        """Raises if these are the shardings of another model."""

    @property
    def shardings(self) -> tuple[Any, ...]:
        """The sharding of each filter."""
        return self.labels


def is_sharding(label: object) -> bool:
    """Whether a value says where an array lies."""
    return label is None or isinstance(label, (jax.sharding.Sharding, jax.sharding.PartitionSpec, Format))


SHARDINGS = LabelKind(
    ("in_shardings", "out_shardings"),
    is_sharding,
    "a sharding, a PartitionSpec, None, or a tree of these and dx.StateSharding",
    "dx.StateSharding({dx.Param: jax.P('data'), ...: None})",
)

"""Prefix trees: from what the user wrote of axes or shardings to one label a leaf, and back to the results.

Vocabulary
----------
label:  what a transform does with a leaf: an axis, a sharding, None, `Carry`.
prefix: a tree of labels, each of which holds for all leaves below its place.
spec:   the label of one root or plain leaf: a label; a `StateLabels`, which
        says it by filter; or a graph of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import jax

from declax._filters import Filter, PathIn, Predicate, as_written, to_predicate
from declax._nodes import Kind, kind_of, open_container
from declax._state_def import LeafDef
from declax._typing import MISSING, Path
from declax._variables import Variable, new_variable
from declax.errors import TransformError, describe, format_path
from declax.graph.binding import bind
from declax.graph.flattening import HAS_INDEX, LEAF, GraphDef, walk_tokens
from declax.graph.unflattening import Change
from declax.states import State
from declax.transforms._lift import Call
from declax.transforms._output_groups import OutputGroups
from declax.transforms._structure import Structure, is_root, joined, name_plain, name_roots, names_in_result
from declax.transforms._wrapping import Positioned, positioned

L = TypeVar("L")

# --- what users write ----------------------------------------------------------


class Carry:
    """Says of an argument or result of `scan` that it goes from step to step.

    The class itself is the label: ``in_axes=(dx.Carry, 0)``.
    """


class StateLabels(Generic[L]):
    """Labels by filter; the first filter that takes a leaf decides.

    Immutable and hashable; the subclasses say what the labels mean. A State of
    labels in the place of the mapping gives one to each of its paths.

    Attributes:
      filters: the filters, in order.
      labels: the label of each.
      predicates: the filters as functions.
    """

    __slots__ = ("filters", "labels", "predicates")

    filters: tuple[Filter, ...]
    labels: tuple[L, ...]
    predicates: tuple[Predicate, ...]

    def __init__(self, labels: Mapping[Any, L] | Iterable[tuple[Filter, L]], /) -> None:
        name = type(self).__name__
        try:
            pairs = tuple(_pairs_of(labels))
            filters, values = tuple(f for f, _ in pairs), tuple(v for _, v in pairs)
        except (TypeError, ValueError):
            raise TransformError(
                name,
                "these are no labels by filter",
                expected="a mapping from filters",
                got=describe(labels),
                fix=f"dx.{name}({{dx.Param: ..., ...: None}})",
            ) from None
        for filter_, value in pairs:
            self._check(filter_, value)
        object.__setattr__(self, "filters", filters)
        object.__setattr__(self, "labels", values)
        object.__setattr__(self, "predicates", tuple(map(to_predicate, filters)))

    def _check(self, filter_: Filter, label: Any) -> None:
        """Raises TransformError for a value that is not a label."""

    def __setattr__(self, name: str, value: Any) -> None:
        name_ = type(self).__name__
        raise TransformError(f"{name_}.{name}", f"a {name_} cannot be changed", fix=f"dx.{name_}({{...}})")

    def items(self) -> Iterator[tuple[Filter, L]]:
        """The filters with their labels."""
        return zip(self.filters, self.labels, strict=True)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (self.filters, self.labels) == (other.filters, other.labels)

    def __hash__(self) -> int:
        return hash((self.filters, self.labels))

    def __repr__(self) -> str:
        entries = ", ".join(f"{as_written(f)}: {_text_of(v)}" for f, v in self.items())
        return f"{type(self).__name__}({{{entries}}})"


def _pairs_of(labels: Mapping[Any, L] | Iterable[tuple[Filter, L]]) -> Iterable[tuple[Filter, L]]:
    """The filters with their labels; of a State of labels, one for each of its paths."""
    if isinstance(labels, State):
        return [(PathIn(path), label) for path, label in zip(labels.paths, labels.leaves, strict=True)]
    if isinstance(labels, Mapping):
        return cast("Mapping[Any, L]", labels).items()
    return labels


def _text_of(label: object) -> str:
    return label.__name__ if isinstance(label, type) else repr(label)


class StateAxes(StateLabels["int | type[Carry] | None"]):
    """The axes of a model's leaves, by filter, for `vmap`, `pmap` and `scan`.

    Args:
      labels: for each filter an axis, None for leaves that all instances
        share, or `Carry` (in `scan`) for those that go from step to step.
        ``...`` as the last filter takes the rest.

    Raises:
      TransformError: for a value that is not an axis.

    >>> from declax._variables import Param
    >>> StateAxes({Param: 0, ...: None})
    StateAxes({Param: 0, ...: None})
    """

    __slots__ = ()

    @property
    def axes(self) -> tuple[int | type[Carry] | None, ...]:
        """The axis of each filter."""
        return self.labels

    def _check(self, filter_: Filter, label: Any) -> None:
        if not is_step_axis(label):
            raise _no_axis(f"StateAxes({as_written(filter_)})", label)


def is_axis(label: object) -> bool:
    """Whether a value is an axis: the number of a dimension, or None for leaves that all instances share."""
    return label is None or (isinstance(label, int) and not isinstance(label, bool))


def is_step_axis(label: object) -> bool:
    """Whether a value is an axis of `scan`, `Carry` included."""
    return label is Carry or is_axis(label)


def _no_axis(where: str, label: object) -> TransformError:
    return TransformError(
        where,
        "this is no axis",
        expected="an int, None, dx.Carry (in dx.scan), or a tree of these and dx.StateAxes",
        got=describe(label),
        fix="in_axes=(dx.StateAxes({dx.Param: 0, ...: None}), 0)",
    )


class Prefixes:
    """The prefixes that a user wrote for the arguments and the results of a function.

    Args:
      of_arguments: a prefix of the tuple of arguments.
      of_results: a prefix of the result.
      names: of the two options.
      is_label: whether a value is a label.
      refuse: the error for a value that is not a label, from the name of the option.

    Raises:
      TransformError: for a value that is not a label.
    """

    def __init__(
        self,
        of_arguments: Any,
        of_results: Any,
        names: tuple[str, str] = ("in_axes", "out_axes"),
        is_label: Callable[[object], bool] = is_axis,
        refuse: Callable[[str, object], TransformError] = _no_axis,
    ) -> None:
        self.of_arguments = tuple(of_arguments) if isinstance(of_arguments, list) else of_arguments
        self.of_results = of_results
        self._names = names
        self._is_label = is_label
        for prefix, name in zip((self.of_arguments, of_results), names, strict=True):
            for label in labels_in(prefix, is_label):
                if not is_label(label):
                    raise refuse(name, label)

    def labels(
        self,
        call: Call,
        function: Callable[..., Any],
        default: Any = None,
        of_keywords: Any = 0,
        skipped: Collection[int] = (),
    ) -> Labels:
        """The label of each leaf of a call.

        Args:
          call: the call.
          function: whose parameters say which arguments by name have a position.
          default: of what is captured.
          of_keywords: of arguments that have no position.
          skipped: the positions that the call does not have.

        Raises:
          TransformError: for prefixes that do not fit the arguments.
        """
        arguments = positioned(function, call.structure.tree, skipped)
        return self.labels_of(call.structure, call.values, arguments, default, of_keywords)

    def labels_of(
        self, structure: Structure, values: Sequence[Any], arguments: Positioned, default: Any, of_keywords: Any
    ) -> Labels:
        """As `labels`, from the parts of a call."""
        specs = [of_keywords] * (len(arguments.leaves) + len(arguments.named))
        for number, spec in zip(arguments.leaves, self._spread(0, arguments.tree), strict=True):
            specs[number] = spec
        return Labels(structure, values, specs, self.specs_of_result, self._names, default)

    def specs_of_result(self, tree: Any) -> Sequence[Any]:
        """The spec of each leaf of a result."""
        return self._spread(1, tree)

    def _spread(self, which: int, tree: Any) -> list[Any]:
        prefix = (self.of_arguments, self.of_results)[which]
        return spread(prefix, tree, self._names[which], self._is_label)

    def groups(self, labels: Labels, *more: Any) -> OutputGroups:
        """Of all labels that results can have, and of some more."""
        written = (labels_in(prefix, self._is_label) for prefix in (self.of_arguments, self.of_results))
        return OutputGroups((*more, *labels.values, *labels.plain, *(label for some in written for label in some)))


# --- from prefixes to leaves -----------------------------------------------------


def labels_in(prefix: Any, is_label: Callable[[object], bool]) -> Iterator[Any]:
    """All labels of a prefix, those inside of `StateLabels` and graphs of labels too."""
    for spec in jax.tree_util.tree_leaves(prefix, is_leaf=lambda value: is_spec(value, is_label)):
        if isinstance(spec, StateLabels):
            yield from spec.labels
        elif isinstance(spec, State):
            yield from spec.leaves
        elif is_root(spec):
            for path in bind(spec).graphdef.definition.paths:
                yield _label_in(spec, path, "the prefix")
        else:
            yield spec


def is_spec(value: object, is_label: Callable[[object], bool]) -> bool:
    """Whether a value is a spec, and not a container of some."""
    return is_label(value) or isinstance(value, (StateLabels, State)) or is_root(value)


def spread(prefix: Any, tree: Any, where: str, is_label: Callable[[object], bool]) -> list[Any]:
    """The spec of each leaf of a tree, from a prefix of it.

    Args:
      prefix: the prefix.
      tree: a PyTreeDef, with roots as leaves.
      where: what to call the prefix in errors.
      is_label: whether a value is a label.

    Raises:
      TransformError: for a prefix that does not fit, or that holds no labels.
    """
    specs: list[Any] = [None] * tree.num_leaves
    numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))

    def give(spec: Any, below: Any) -> None:
        if isinstance(spec, State) and isinstance(below, State):  # a prefix of it, not labels of a model's leaves
            jax.tree_util.tree_map(
                give, spec, below, is_leaf=lambda value: value is not spec and is_spec(value, is_label)
            )
            return
        if not is_spec(spec, is_label):
            raise TransformError(where, "this is no label of leaves", got=describe(spec))
        for number in jax.tree_util.tree_leaves(below):
            specs[number] = spec

    try:
        jax.tree_util.tree_map(give, prefix, numbered, is_leaf=lambda value: is_spec(value, is_label))
    except (ValueError, TypeError, KeyError) as error:
        raise _does_not_fit(prefix, numbered, where, error) from None
    return specs


def _does_not_fit(prefix: Any, numbered: Any, where: str, error: Exception) -> TransformError:
    problem = "the prefix does not fit the tree"
    why: str | None = str(error).splitlines()[0]
    if prefix.__class__ is tuple and numbered.__class__ is tuple and len(prefix) != len(numbered):
        problem += f": it has {len(prefix)} entries, for {len(numbered)} values"
        why = None
    return TransformError(
        where,
        problem,
        expected=f"a prefix of {jax.tree_util.tree_map(lambda _: '*', numbered)!r}",
        got=repr(prefix),
        why=why,
        fix=f"{where}=0        # one for all, or a tuple with one for each",
    )


def label_by_filter(spec: StateLabels[Any], path: Path, held: Any, where: str) -> Any:
    """The label of the first filter that takes a Variable or array.

    Raises:
      TransformError: no filter does.
    """
    for predicate, label in zip(spec.predicates, spec.labels, strict=True):
        if predicate(path, held):
            return label
    raise TransformError(
        f"{where}, {format_path(path)}",
        "no filter takes this leaf",
        expected=" or ".join(map(as_written, spec.filters)),
        got=describe(held),
        fix="{..., ...: None}        # `...` as the last filter takes the rest",
    )


def held_at(leaf_def: LeafDef, value: Any) -> Any:
    """What filters see of a leaf: its Variable, or the array where there is none."""
    return value if leaf_def is None else new_variable(leaf_def[0], value, leaf_def[1], None)


def label_at(spec: Any, path: Path, leaf_def: LeafDef, value: Any, where: str) -> Any:
    """The label of the leaf at a path below a root.

    Raises:
      TransformError: for a leaf that no filter takes, or a graph of labels that lacks it.
    """
    if isinstance(spec, StateLabels):
        return label_by_filter(spec, path, held_at(leaf_def, value), where)
    if isinstance(spec, (State, Variable)) or is_root(spec):
        return _label_in(spec, path, where)
    return spec


def _label_in(graph: Any, path: Path, where: str) -> Any:
    """The label that a graph of labels has at a path, or at a place above."""
    if isinstance(graph, State):
        position = graph.definition.position(path)
        held = MISSING if position is None else graph.leaves[position]
    else:
        held = _walk(graph, path)
    if held is MISSING:
        raise TransformError(where, f"the graph of labels has none at {format_path(path)}", got=describe(graph))
    return held._raw if isinstance(held, Variable) else held  # a label is no value, of which `raw_value` might warn


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


class _Captured:
    """The label of what is captured: that of the argument which it is too, else the default."""

    def __repr__(self) -> str:
        return "captured"


CAPTURED = _Captured()


class _Root(NamedTuple):
    """One of several roots.

    Attributes:
      spec: of its leaves.
      where: what to call the prefix in errors.
      names: says what to call the roots there.
      number: which of these it is.
    """

    spec: Any
    where: str
    names: Callable[[], list[str]]
    number: int

    def label(self, path: Path, leaf_def: LeafDef, value: Any) -> Any:
        """The label of the leaf at a path below."""
        if self.spec is None or self.spec.__class__ is int:  # most are
            return self.spec
        return label_at(self.spec, path, leaf_def, value, self.where)

    def place(self, path: Path) -> str:
        """What to call the leaf at a path below."""
        return joined(self.names()[self.number], path)


class Labels:
    """The labels of the leaves of one call.

    Attributes:
      values: of the leaves of the graph.
      plain: of the other leaves.
      of_roots: the specs of the roots.
    """

    __slots__ = ("_default", "_results", "_structure", "_where", "of_roots", "plain", "values")

    def __init__(
        self,
        structure: Structure,
        values: Sequence[Any],
        specs: Sequence[Any],
        results: Callable[[Any], Sequence[Any]],
        where: tuple[str, str],
        default: Any = None,
    ) -> None:
        """Finds the label of each leaf.

        Args:
          structure, values: of the call.
          specs: of the leaves of ``(args, kwargs)``; what is captured follows.
          results: the specs of the leaves of a result, from its tree.
          where: what to call the prefix of arguments and that of results in errors.
          default: the label of what is captured only.

        Raises:
          TransformError: for leaves without a label, and for those with two.
        """
        specs = [*specs, *[CAPTURED] * (len(structure.is_root) - len(specs))]
        pairs = list(zip(specs, structure.is_root, strict=True))
        self._structure = structure
        self._results = results
        self._where = where
        self._default = default
        self.of_roots = [spec for spec, is_one in pairs if is_one]
        self.plain: list[Any] = [default if spec is CAPTURED else spec for spec, is_one in pairs if not is_one]
        _check_plain(self.plain, lambda: name_plain(structure), where[0])
        self.values: list[Any] = []
        if structure.graphdef is not None:
            self.values = self._of_graph(structure.graphdef, values, [self._roots_of_arguments()])

    def _roots_of_arguments(self) -> list[_Root]:
        structure = self._structure
        return [
            _Root(spec, self._where[0], lambda: name_roots(structure), number)
            for number, spec in enumerate(self.of_roots)
        ]

    def _of_graph(
        self,
        graphdef: GraphDef[Any],
        values: Sequence[Any],
        roots: Sequence[Sequence[_Root]],
        fixed: Mapping[int, Any] | None = None,
    ) -> list[Any]:
        """The label of each leaf of a graph, the same from wherever it is reached.

        Args:
          graphdef, values: the graph, whose paths begin with the number of a root; if there are several lists of
            roots, with the number of the list.
          roots: the roots.
          fixed: the labels of some leaves.
        """
        definition = graphdef.definition
        fixed = fixed or {}

        def root_at(path: Any) -> tuple[_Root, Path]:
            return (roots[0][path[0]], path[1:]) if len(roots) == 1 else (roots[path[0]][path[1]], path[2:])

        def label(path: Path, i: int) -> Any:
            root, below = root_at(path)
            return root.label(below, definition.leaf_defs[i], values[i])

        labels = [fixed[i] if i in fixed else label(path, i) for i, path in enumerate(definition.paths)]
        for first, again in _references(graphdef) if graphdef.shared is not None else ():
            for i in definition.sub(first)[1]:
                path = (*again, *definition.paths[i][len(first) :])
                found = label(path, i)
                own = self._default if labels[i] is CAPTURED else labels[i]
                if found is not CAPTURED and not _is_same_label(own, found):
                    raise _two_labels(root_at(definition.paths[i]), own, root_at(path), found)
        return [self._default if label is CAPTURED else label for label in labels]

    def keep(self, kept: Sequence[int], labels: Sequence[Any]) -> tuple[int, ...]:
        """Which leaves of a changed graph still have a value that went in, at its label."""
        pairs = zip(kept, labels, strict=True)
        return tuple(i if i >= 0 and _is_same_label(self.values[i], label) else -1 for i, label in pairs)

    def of_change(
        self, change: Change, values: Sequence[Any], is_one: Sequence[bool], tree: Any
    ) -> tuple[list[Any], list[Any]]:
        """The labels of the leaves of a changed graph, and of the plain leaves of the result.

        A Variable that went in keeps its label; a new one has that of the
        place where it is found.
        """
        specs = self._results(tree)

        def names() -> list[str]:
            return [name for name, one in zip(names_in_result(tree), is_one, strict=True) if one]

        of_roots = [spec for spec, one in zip(specs, is_one, strict=True) if one]
        returned = [_Root(spec, self._where[1], names, number) for number, spec in enumerate(of_roots)]
        fixed: dict[int, Any] = {}
        if self._structure.graphdef is not None:
            before = leaves_of_objects(self._structure.graphdef)
            after = leaves_of_objects(change.graphdef)
            pairs = ((leaf, change.origins[index]) for index, leaf in after.items())
            fixed = {leaf: self.values[before[origin]] for leaf, origin in pairs if origin >= 0}
        labels = self._of_graph(change.graphdef, values, [self._roots_of_arguments(), returned], fixed)
        return labels, [spec for spec, one in zip(specs, is_one, strict=True) if not one]

    def of_changed(self, changed: Iterable[int], tree: Any) -> list[Any]:
        """The label of each leaf of the graph that got a new value, and of each leaf of the result."""
        return [self.values[i] for i in changed] + self.of_results(tree)

    def of_results(self, tree: Any) -> list[Any]:
        """The label of each leaf of a result without roots."""
        found = list(self._results(tree))
        _check_plain(found, lambda: names_in_result(tree), self._where[1])
        return found

    def path(self, position: int) -> str:
        """What to call a leaf of the graph in errors: its argument, and its path in there."""
        assert self._structure.graphdef is not None  # it has leaves
        path = self._structure.graphdef.definition.paths[position]
        return format_path(path[1:]) or f"argument {path[0]}"


def leaves_of_objects(graphdef: GraphDef[Any]) -> dict[int, int]:
    """The position of the leaf of each Variable and ref, by index of the object."""
    found: dict[int, int] = {}
    index = leaf = 0
    for token in graphdef.tokens:
        if isinstance(token, int):
            continue
        if token[0] in HAS_INDEX:
            if token[0] <= LEAF:
                found[index] = leaf
            index += 1
        leaf += token[0] <= LEAF
    return found


def _references(graphdef: GraphDef[Any]) -> Iterator[tuple[Path, Path]]:
    """The first path of each thing that is reached again, and the path where it is."""
    paths: list[Path] = []
    for path, token in walk_tokens(graphdef.tokens):
        if isinstance(token, int):
            yield paths[token], path
        elif token[0] in HAS_INDEX:
            paths.append(path)


def _check_plain(labels: Sequence[Any], names: Callable[[], list[str]], where: str) -> None:
    """Raises TransformError for a leaf outside of models that has labels for a model."""
    for number, label in enumerate(labels):
        if isinstance(label, StateLabels):
            raise TransformError(
                f"{where}, {names()[number]}",
                f"a {type(label).__name__} is for a model, and this is in none",
                expected="one label for all of the array",
                got=repr(label),
                why="it tells the Variables of a model apart by filters",
                fix=f"{where}={'0' if where.endswith('axes') else 'sharding'}        # or a tuple with one for each",
            )


def _is_same_label(a: Any, b: Any) -> bool:
    return a is b or bool(a == b and type(a) is type(b))


def _two_labels(first: tuple[_Root, Path], label: Any, second: tuple[_Root, Path], other: Any) -> TransformError:
    one, two = first[0], second[0]
    places = one.where if one.where == two.where else f"{one.where} and {two.where}"
    return TransformError(
        f"{two.where}, {two.place(second[1])}",
        "one Variable has two labels here",
        expected=f"{_text_of(label)}, as at {one.place(first[1])}",
        got=_text_of(other),
        why="it is reached twice, and is one thing",
        fix=f"give both places the same label in {places}",
    )

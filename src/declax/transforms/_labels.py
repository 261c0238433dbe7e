"""Labels of leaves: from what the user wrote to one label a leaf, and back to the results.

Vocabulary
----------
label:  what a transform is told of a leaf: an axis, a sharding, None, `Carry`.
prefix: a tree of labels, each of which holds for all leaves below its place.
spec:   the label of one root or plain leaf: a label; a `StateLabels`, which
        says it by filter; or a graph of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from declax._filters import as_written
from declax._nodes import Kind, kind_of, open_container
from declax._state_def import LeafDef
from declax._typing import MISSING, Path
from declax._variables import Variable, new_variable
from declax.errors import TransformError, describe, format_path
from declax.graph.change import Change
from declax.graph.defs import HAS_INDEX, LEAF, GraphDef, walk_tokens
from declax.states import State
from declax.transforms._arguments import Positioned
from declax.transforms._roots import is_root
from declax.transforms._structure import Structure, names_in_result, place
from declax.transforms.axes import StateLabels
from declax.transforms.axes import _text_of as text_of_label


class _Any:
    """The label of what is captured: that of the argument which it is too, else the default."""

    def __repr__(self) -> str:
        return "captured"


ANY = _Any()


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

    def is_spec(value: object) -> bool:
        return is_label(value) or isinstance(value, (StateLabels, State)) or is_root(value)

    def give(spec: Any, below: Any) -> None:
        if not is_spec(spec):
            raise TransformError(where, "this is no label of leaves", got=describe(spec))
        for number in jax.tree_util.tree_leaves(below):
            specs[number] = spec

    try:
        jax.tree_util.tree_map(give, prefix, numbered, is_leaf=is_spec)
    except (ValueError, TypeError, KeyError) as error:
        if prefix.__class__ is tuple and numbered.__class__ is tuple and len(prefix) != len(numbered):
            raise TransformError(
                where,
                f"the prefix does not fit the tree: it has {len(prefix)} entries, for {len(numbered)} values",
                expected=f"a prefix of {_text_of(tree)}",
                got=repr(prefix),
                fix=f"{where}=0        # one for all, or a tuple with one for each",
            ) from None
        raise TransformError(
            where,
            "the prefix does not fit the tree",
            expected=f"a prefix of {_text_of(tree)}",
            got=repr(prefix),
            why=str(error).splitlines()[0],
            fix=f"{where}=0      # one for all, or a tuple with one for each",
        ) from None
    return specs


def spread_over(
    prefix: Any, arguments: Positioned, of_named: Any, where: str, is_label: Callable[[object], bool]
) -> list[Any]:
    """The spec of each leaf of the arguments, from a prefix of those that have a position.

    Args:
      prefix, where, is_label: as in `spread`.
      arguments: the arguments.
      of_named: the spec of those that have no position.

    Raises:
      TransformError: as in `spread`.
    """
    specs: list[Any] = [of_named] * (len(arguments.leaves) + len(arguments.named))
    for number, spec in zip(arguments.leaves, spread(prefix, arguments.tree, where, is_label), strict=True):
        specs[number] = spec
    return specs


def _text_of(tree: Any) -> str:
    return repr(jax.tree_util.tree_unflatten(tree, ["*"] * tree.num_leaves))


def label_at(spec: Any, path: Path, leaf_def: LeafDef, value: Any, where: str) -> Any:
    """The label of the leaf at a path below a root.

    Raises:
      TransformError: for a leaf that no filter takes, or a graph of labels that lacks it.
    """
    if isinstance(spec, StateLabels):
        held: Any = value if leaf_def is None else new_variable(leaf_def[0], value, leaf_def[1], None)
        for predicate, label in zip(spec.predicates, spec.labels, strict=True):
            if predicate(path, held):
                return label
        raise TransformError(
            f"{where}, {format_path(path)}",
            "no filter takes this leaf",
            expected=" or ".join(map(as_written, spec.filters)),
            got=describe(held),
            fix=f"dx.{type(spec).__name__}({{..., ...: None}})        # `...` as the last filter takes the rest",
        )
    if isinstance(spec, (State, Variable)) or is_root(spec):
        return _label_in(spec, path, where)
    return spec


def _label_in(prefix: Any, path: Path, where: str) -> Any:
    """The label that a graph of labels has at a path, or at a place above."""
    if isinstance(prefix, State):
        position = prefix.definition.position(path)
        held = MISSING if position is None else prefix.leaves[position]
    else:
        held = prefix
        for key in path:
            kind = kind_of(held)
            if kind in (Kind.NODE, Kind.OBJECT):
                held = vars(held).get(key, MISSING)
            elif kind is Kind.CONTAINER:
                held = _child(held, key)
            else:
                break
    if held is MISSING:
        raise TransformError(where, f"the graph of labels has none at {format_path(path)}", got=describe(prefix))
    return held.raw_value if isinstance(held, Variable) else held


def _child(container: Any, key: Any) -> Any:
    """What a container has under a key; `MISSING` where it has nothing."""
    if container.__class__ in (list, tuple):
        return container[key] if isinstance(key, int) and key < len(container) else MISSING
    if isinstance(container, dict):
        return container.get(key, MISSING)
    keys, children, _ = open_container(container)
    return dict(zip(keys, children, strict=True)).get(key, MISSING)


class _Spot(NamedTuple):
    """A leaf of one of several roots.

    Attributes:
      spec: of its root.
      path: the number of the root, and the path below it.
      where: what to call the prefix in errors.
      names: says what to call the roots there.
    """

    spec: Any
    path: Any
    where: str
    names: Callable[[], list[str]]

    def label(self, leaf_def: LeafDef, value: Any) -> Any:
        """The label of the leaf."""
        if self.spec is None or self.spec.__class__ is int:  # most are
            return self.spec
        return label_at(self.spec, self.path[1:], leaf_def, value, self.where)

    def __str__(self) -> str:
        name: str = self.names()[self.path[0]]
        return place(self.path[1:], name)


class Labels:
    """The labels of the leaves of one call.

    Attributes:
      values: of the leaves of the graph.
      plain: of the other leaves.
    """

    __slots__ = ("_default", "_of_roots", "_results", "_structure", "_where", "plain", "values")

    def __init__(
        self,
        structure: Structure,
        values: Sequence[Any],
        specs: Sequence[Any],
        results: Callable[[Any], Sequence[Any]],
        where: str | tuple[str, str],
        default: Any = None,
    ) -> None:
        """Finds the label of each leaf.

        Args:
          structure, values: of the call.
          specs: of the leaves of ``(args, kwargs)``; what is captured follows.
          results: the specs of the leaves of a result, from its tree.
          where: what to call the prefix in errors, or that and the one for results.
          default: the label of what is captured only.

        Raises:
          TransformError: for leaves without a label, and for those with two.
        """
        specs = [*specs, *[ANY] * (len(structure.is_root) - len(specs))]
        pairs = list(zip(specs, structure.is_root, strict=True))
        self._structure = structure
        self._of_roots = [spec for spec, is_one in pairs if is_one]
        self._results = results
        self._where = (where, "the result") if isinstance(where, str) else where
        self._default = default
        self.plain: list[Any] = [default if spec is ANY else spec for spec, is_one in pairs if not is_one]
        _check_plain(self.plain, structure.names_of_plain, self._where[0])
        self.values: list[Any] = []
        if structure.graphdef is not None:
            names = structure.names_of_roots
            self.values = self._of_graph(
                structure.graphdef, values, lambda path: _Spot(self._of_roots[path[0]], path, self._where[0], names)
            )

    def _of_graph(
        self,
        graphdef: GraphDef[Any],
        values: Sequence[Any],
        spot_of: Callable[[Any], _Spot],
        fixed: dict[int, Any] | None = None,
    ) -> list[Any]:
        """The label of each leaf of a graph, the same from wherever it is reached."""
        definition = graphdef.definition
        fixed = fixed or {}
        labels = [
            fixed[i] if i in fixed else spot_of(path).label(leaf_def, values[i])
            for i, (path, leaf_def) in enumerate(zip(definition.paths, definition.leaf_defs, strict=True))
        ]
        if graphdef.shared is not None:
            for first, again in _references(graphdef):
                _, below = definition.sub(first)
                for i in below:
                    path = (*again, *definition.paths[i][len(first) :])
                    found = spot_of(path).label(definition.leaf_defs[i], values[i])
                    label = self._default if labels[i] is ANY else labels[i]
                    if found is not ANY and not _is_same_label(label, found):
                        raise _two_labels(spot_of(definition.paths[i]), label, spot_of(path), found)
        return [self._default if label is ANY else label for label in labels]

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
        returned = [spec for spec, one in zip(specs, is_one, strict=True) if one]

        def names() -> list[str]:
            return [name for name, one in zip(names_in_result(tree), is_one, strict=True) if one]

        def spot_of(path: Any) -> _Spot:
            if path[0]:
                return _Spot(returned[path[1]], path[1:], self._where[1], names)
            return _Spot(self._of_roots[path[1]], path[1:], self._where[0], self._structure.names_of_roots)

        fixed: dict[int, Any] = {}
        if self._structure.graphdef is not None:
            before = leaves_of_objects(self._structure.graphdef)
            after = leaves_of_objects(change.graphdef)
            pairs = ((leaf, change.origins[index]) for index, leaf in after.items())
            fixed = {leaf: self.values[before[origin]] for leaf, origin in pairs if origin >= 0}
        labels = self._of_graph(change.graphdef, values, spot_of, fixed)
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
    """Checks that what is in no model has labels that are for single leaves.

    Raises:
      TransformError: one has those of a model.
    """
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


def _two_labels(first: _Spot, label: Any, second: _Spot, other: Any) -> TransformError:
    places = first.where if first.where == second.where else f"{first.where} and {second.where}"
    return TransformError(
        f"{second.where}, {second}",
        "one Variable has two labels here",
        expected=f"{text_of_label(label)}, as at {first}",
        got=text_of_label(other),
        why="it is reached twice, and is one thing",
        fix=f"give both places the same label in {places}",
    )

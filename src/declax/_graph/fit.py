"""Whether a State fits a graph, and where its leaves go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from declax._graph.flattening import GraphDef
from declax._graph.nodes import Kind, is_number, kind_of
from declax._graph.unflattening import program_of
from declax._state.definition import LeafDef, StateDef
from declax._state.states import as_state
from declax._typing import Path
from declax.errors import GraphError, describe, format_path, type_name


class Mismatch(NamedTuple):
    """One thing that does not fit; `got` is empty where `expected` says it all."""

    path: Path
    expected: str
    got: str

    def __str__(self) -> str:
        if not self.got:
            return f"{format_path(self.path)}: {self.expected}"
        return f"{format_path(self.path)}: expected {self.expected}, got {self.got}"


def explain(where: str, mismatches: Iterable[Mismatch], fix: str | None = None) -> GraphError:
    """One error that lists all mismatches."""
    listed = list(mismatches)
    return GraphError(
        where,
        f"the State does not fit the graph at {len(listed)} path{'s' if len(listed) > 1 else ''}",
        got="\n".join(map(str, listed)),
        fix=fix,
    )


class UpdateReport(NamedTuple):
    """What became of the values of an `update` with ``strict=False``.

    Attributes:
      taken: the paths that got a value.
      mismatches: what did not fit, and was left out.
      missing: the paths of the graph that got no value.
    """

    taken: tuple[Path, ...]
    mismatches: tuple[Mismatch, ...]
    missing: tuple[Path, ...]

    def __bool__(self) -> bool:
        """Whether all values were taken."""
        return not self.mismatches

    def __str__(self) -> str:
        lines = [f"taken: {len(self.taken)} of {len(self.taken) + len(self.mismatches)} values"]
        if self.mismatches:
            lines += ["does not fit:", *(f"  {m}" for m in self.mismatches)]
        if self.missing:
            lines += ["no value for:", *(f"  {format_path(path)}" for path in self.missing)]
        return "\n".join(lines)


class Fit(NamedTuple):
    """How the leaves of a State go into a graph.

    Attributes:
      indexes: the leaves of the State that the graph has; None for all.
      positions: where they are in the graph; None for the same places.
      size: how many there are.
      faults: what does not fit.
      keeps_metadata: whether all have the metadata of the graph's Variables.
    """

    indexes: tuple[int, ...] | None
    positions: tuple[int, ...] | None
    size: int
    faults: tuple[Mismatch, ...]
    keeps_metadata: bool

    def pairs(self) -> list[tuple[int, int]]:
        """The index and the position of each leaf that goes in."""
        indexes = range(self.size) if self.indexes is None else self.indexes
        return list(zip(indexes, indexes if self.positions is None else self.positions, strict=True))


def fit_of(graph: StateDef, given: StateDef) -> Fit:
    """How the leaves of a State go into a graph; computed once for a pair of structures."""
    if given is graph:
        return Fit(None, None, len(graph.paths), (), True)
    found: Fit | None = graph.fits.get(given)
    if found is None:
        matched, faults = _match(graph, given)
        definitions = zip(matched, matched.values(), strict=True)
        keeps = all(given.leaf_defs[i] in (None, graph.leaf_defs[position]) for i, position in definitions)
        is_all = len(matched) == len(given.paths)
        indexes = None if is_all else tuple(matched)
        found = Fit(indexes, tuple(matched.values()), len(matched), tuple(faults), keeps)
        graph.fits[given] = found
    return found


def _match(graph: StateDef, given: StateDef) -> tuple[dict[int, int], list[Mismatch]]:
    """For the leaves of a State that the graph has, their positions there; and what does not fit."""
    found: dict[int, int] = {}
    mismatches: list[Mismatch] = []
    for index, (path, leaf_def) in enumerate(zip(given.paths, given.leaf_defs, strict=True)):
        position = graph.position(path)
        if position is None:
            mismatches.append(Mismatch(path, graph.why_missing(path), ""))
        elif not _kinds_fit(graph.leaf_defs[position], leaf_def):
            mismatches.append(Mismatch(path, _kind(graph.leaf_defs[position]), _kind(leaf_def)))
        else:
            found[index] = position
    return found, mismatches


def shape_mismatches(
    given: StateDef, pairs: Iterable[tuple[int, int]], old: Sequence[Any], new: Sequence[Any]
) -> Iterator[tuple[int, Mismatch]]:
    """The leaves of a State, by index, whose shape is not that of the value that they replace."""
    for index, position in pairs:
        before, after = old[position], new[index]
        expected = _misfit(before, after)
        if expected is not None:
            yield index, Mismatch(given.paths[index], expected, describe(after))


def _misfit(before: Any, after: Any) -> str | None:
    """What a value would have to be to take the place of another one; None where it may."""
    if kind_of(before) is Kind.CONTAINER:
        return _misfit_of_trees(before, after)
    shape = _shape(before)
    if shape is None:  # an object of its own kind, or nothing yet
        return None
    if _shape(after) != shape:
        return f"shape {shape}" if _shape(after) is not None else f"an array of shape {shape}"
    if isinstance(after, jax.ShapeDtypeStruct) and not isinstance(before, jax.ShapeDtypeStruct):
        return f"an array of shape {shape}, not its description"
    if isinstance(after, (np.ndarray, np.generic)) and after.dtype.kind in "OSUV":
        return f"an array of numbers of shape {shape}"
    if _is_key(before) != _is_key(after):
        return "keys of random numbers" if _is_key(before) else f"an array of {getattr(before, 'dtype', 'numbers')}"
    return None


def _misfit_of_trees(before: Any, after: Any) -> str | None:
    tree: Any = jax.tree.structure(before)
    if kind_of(after) is not Kind.CONTAINER or tree != jax.tree.structure(after):
        return f"a tree {tree}".replace("PyTreeDef", "")
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return next((f"{misfit} inside" for a, b in pairs if (misfit := _misfit(a, b))), None)


def _is_key(leaf: Any) -> bool:
    """Whether an array holds keys of random numbers, which no other array can stand for."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)


def _shape(leaf: Any) -> tuple[int, ...] | None:
    """The shape of an array or number; None for trees."""
    if isinstance(leaf, (int, float, complex)):
        return ()
    shape: tuple[int, ...] | None = getattr(leaf, "shape", None)
    return shape


KEPT_JOINS = 64
"""How many ways to put States together a GraphDef remembers; programs use few."""


def checked_plain(graphdef: GraphDef[Any], leaves: Sequence[Any]) -> list[Any]:
    """Leaves of which those in no Variable can stand there.

    A number in a container becomes an array, since one would not be a leaf there.
    """
    checked = list(leaves)
    program = program_of(graphdef)
    paths = graphdef.definition.paths
    mismatches = []
    for _, position in program.plain_leaves:
        value = leaves[position]
        if not can_stand_alone(value):
            mismatches.append(Mismatch(paths[position], "an array", describe(value)))
        elif position in program.contained:
            checked[position] = in_container(value)
    if mismatches:
        raise explain("merge", mismatches)
    return checked


def can_stand_alone(value: object) -> bool:
    """Whether a value is a leaf that needs no Variable around it."""
    return kind_of(value) in (Kind.LEAF, Kind.REF) or is_number(value)


def in_container(value: Any) -> Any:
    """A leaf as it is one in a container, where numbers are static."""
    return jnp.asarray(value) if kind_of(value) is Kind.STATIC else value


def join(graphdef: GraphDef[Any], states: Sequence[Any]) -> tuple[list[Any], list[Any] | None]:
    """The leaves of States in the order of a GraphDef, and the metadata where some differs from its own."""
    if not isinstance(graphdef, GraphDef):
        raise GraphError(
            "merge", "the first argument is no GraphDef", got=describe(graphdef), fix="dx.merge(graphdef, state)"
        )
    given = [as_state(s) for s in states]
    if len(given) == 1 and given[0].definition is graphdef.definition:
        return given[0].leaves, None
    key = tuple(s.definition for s in given)
    plan = graphdef._joins.get(key)
    if plan is None:
        plan = _plan_join(graphdef, key)
        if len(graphdef._joins) >= KEPT_JOINS:
            graphdef._joins.clear()
        graphdef._joins[key] = plan
    order, metadata = plan
    flat: list[Any] = []
    for state in given:
        flat.extend(state.leaves)
    return [flat[i] for i in order], metadata


def _plan_join(graphdef: GraphDef[Any], given: Sequence[StateDef]) -> tuple[tuple[int, ...], list[Any] | None]:
    graph = graphdef.definition
    order: dict[int, tuple[int, LeafDef]] = {}
    mismatches: list[Mismatch] = []
    offset = 0
    for definition in given:
        found, faults = _match(graph, definition)
        mismatches += faults
        for index, position in found.items():
            if position in order:
                mismatches.append(Mismatch(graph.paths[position], "one value", "a second one in another State"))
            order[position] = (offset + index, definition.leaf_defs[index])
        offset += len(definition.paths)
    said = {mismatch.path for mismatch in mismatches}
    mismatches += [
        Mismatch(path, _kind(graph.leaf_defs[i]), "nothing")
        for i, path in enumerate(graph.paths)
        if i not in order and path not in said
    ]
    if mismatches:
        raise explain("merge", mismatches)
    metadata = None
    if any(order[i][1] is not None and order[i][1] != graph.leaf_defs[i] for i in order):
        metadata = [
            (order[i][1] or graph.leaf_defs[i])[1]  # type: ignore[index]  # a Variable's leaf has a definition
            for i in range(len(graph.paths))
            if graph.leaf_defs[i] is not None
        ]
    return tuple(order[i][0] for i in range(len(graph.paths))), metadata


def _kinds_fit(graph: LeafDef, given: LeafDef) -> bool:
    if given is None or graph is given:
        return True
    return graph is not None and graph[0] is given[0]


def _kind(leaf_def: LeafDef) -> str:
    return "an array" if leaf_def is None else f"a {type_name(leaf_def[0])}"


__all__ = [
    "Fit",
    "Mismatch",
    "UpdateReport",
    "can_stand_alone",
    "checked_plain",
    "explain",
    "fit_of",
    "in_container",
    "join",
    "shape_mismatches",
]

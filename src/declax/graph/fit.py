"""Whether a State fits a graph, and where its leaves go.

Vocabulary
----------
places: for each leaf of a State, the position of the leaf of the graph that
        has the same path.
join:   the leaves of several States in the order of one GraphDef.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from declax._state_def import LeafDef, StateDef
from declax._typing import Path
from declax.errors import GraphError, describe, format_path, suggest, type_name
from declax.graph.binding import Binding
from declax.graph.defs import GraphDef
from declax.state import State


class Mismatch(NamedTuple):
    """One thing that does not fit.

    Attributes:
      path: where.
      expected: what the graph has there.
      got: what the State has.
    """

    path: Path
    expected: str
    got: str


def explain(where: str, mismatches: Iterable[Mismatch]) -> GraphError:
    """One error that lists all mismatches."""
    listed = list(mismatches)
    lines = [f"{format_path(m.path)}: expected {m.expected}, got {m.got}" for m in listed]
    return GraphError(
        where,
        f"the State does not fit the graph at {len(listed)} path{'s' if len(listed) > 1 else ''}",
        got="\n".join(lines),
    )


def places(graph: StateDef, given: StateDef, where: str) -> tuple[int, ...]:
    """For each leaf of a State, the position of the graph's leaf.

    Raises:
      GraphError: for paths that the graph does not have, and other kinds of
        Variables.
    """
    if given is graph:
        return tuple(range(len(graph.paths)))
    found, mismatches = _match(graph, given)
    if mismatches:
        raise explain(where, mismatches)
    return tuple(found.values())


def _match(graph: StateDef, given: StateDef) -> tuple[dict[int, int], list[Mismatch]]:
    """For the leaves of a State that the graph has, their positions there; and what does not fit."""
    found: dict[int, int] = {}
    mismatches = []
    for index, (path, leaf_def) in enumerate(zip(given.paths, given.leaf_defs, strict=True)):
        position = graph.position(path)
        if position is None:
            mismatches.append(Mismatch(path, _nearest(path, graph), "a leaf of the State"))
            continue
        found[index] = position
        if not _kinds_fit(graph.leaf_defs[position], leaf_def):
            mismatches.append(Mismatch(path, _kind(graph.leaf_defs[position]), _kind(leaf_def)))
    return found, mismatches


def check_values(given: StateDef, binding: Binding, positions: Sequence[int], leaves: Sequence[Any]) -> None:
    """Checks that new values have the shapes of those that they replace.

    Raises:
      GraphError: that lists all that do not.
    """
    mismatches = list(_shape_mismatches(given, positions, binding.read(), leaves))
    if mismatches:
        raise explain("update", mismatches)


def _shape_mismatches(
    given: StateDef, positions: Sequence[int], old: Sequence[Any], new: Sequence[Any]
) -> Iterator[Mismatch]:
    for path, position, leaf in zip(given.paths, positions, new, strict=True):
        before, after = _shape(old[position]), _shape(leaf)
        if before != after and before is not None and after is not None:
            yield Mismatch(path, f"shape {before}", describe(leaf))


def _shape(leaf: Any) -> tuple[int, ...] | None:
    """The shape of an array or number; None for trees."""
    if isinstance(leaf, (int, float, complex)):
        return ()
    shape: tuple[int, ...] | None = getattr(leaf, "shape", None)
    return shape


def join(graphdef: GraphDef[Any], states: Sequence[Any]) -> tuple[list[Any], list[Any] | None]:
    """The leaves of States in the order of a GraphDef.

    Returns:
      The leaves, and the metadata of the Variables where some differs from the
      GraphDef's.

    Raises:
      GraphError: for a State that is not the GraphDef's; lists each path.
    """
    if not isinstance(graphdef, GraphDef):
        raise GraphError(
            "merge", "the first argument is no GraphDef", got=describe(graphdef), fix="dx.merge(graphdef, state)"
        )
    given = [s if isinstance(s, State) else State(s) for s in states]
    if len(given) == 1 and given[0].definition is graphdef.definition:
        return given[0].leaves, None
    key = tuple(s.definition for s in given)
    plan = graphdef._joins.get(key)
    if plan is None:
        plan = graphdef._joins[key] = _plan_join(graphdef, key)
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
    mismatches += [
        Mismatch(path, _kind(graph.leaf_defs[i]), "nothing") for i, path in enumerate(graph.paths) if i not in order
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


def _nearest(path: Path, graph: StateDef) -> str:
    options = [format_path(p) for p in graph.paths]
    hint = suggest(format_path(path), options)
    return "no such path" + (f" ({hint})" if hint else "")


__all__ = ["Mismatch", "check_values", "explain", "join", "places"]

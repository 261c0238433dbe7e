"""Graphs without the values that modules sow: these may be added in every mode, and pass by reference through States.

During a captured call each module has a node in `__captures__`. `split` and `state` leave it out of the GraphDef, and
refer to it in the State; so a module that is merged from that State captures for the original one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from declax._classes.pytree import Pytree, layout_of, set_layout
from declax._fields.specifiers import Status
from declax._graph.binding import check_mode
from declax._graph.cells import Cell, Item
from declax._graph.flattening import GraphDef, walk
from declax._graph.nodes import path_of, walk_nodes, walk_values
from declax._graph.unflattening import note_sown
from declax._state.definition import StateDef
from declax._state.states import State, as_state, make_state
from declax._typing import CAPTURES_KEY, SOWN_KEY, Path
from declax._variables.metadata import Metadata

captured_calls: Final[list[object]] = []
"""The captured calls that run now; without any, no module has captures."""


def put_sown(holder: Pytree, name: str, variable: Any) -> None:
    """Sets an attribute, and notes that it was sown."""
    setattr(holder, name, variable)
    note_sown(holder, name)


def put_captures(module: Pytree, captures: Any) -> None:
    """Sets `__captures__`, bypassing the `__setattr__` of the module, which may be frozen or a Dict."""
    set_layout(module, layout_of(module).with_status(CAPTURES_KEY, Status.DATA))
    vars(module)[CAPTURES_KEY] = captures


def sown_attributes(objects: Iterable[Any]) -> Iterator[tuple[int, str]]:
    """The attributes that were sown while tracing, with the index of their node among some objects."""
    for index, value in enumerate(objects):
        if isinstance(value, Pytree):
            yield from ((index, name) for name in sorted(vars(value).get(SOWN_KEY, ())))


def graph_without_sown(roots: Any, objects: Sequence[Any]) -> tuple[GraphDef[Any], list[Any]]:
    """The GraphDef and the objects of a graph without the attributes that were sown while tracing."""
    with _hidden([(objects[index], name) for index, name in sown_attributes(objects)]):
        found = walk(roots)
    return found.graphdef, found.objects


class Reading(NamedTuple):
    """A graph without its captures; the definition and leaves of a State that refers to them; the cells of these."""

    graphdef: GraphDef[Any]
    definition: StateDef
    leaves: list[Any]
    cells: list[Cell]


def read_without_captures(node: Any, graph: bool | None) -> Reading:
    """Reads a graph during a captured call."""
    found = {
        (*path_of(link), CAPTURES_KEY): (value, vars(value)[CAPTURES_KEY])
        for link, value in walk_values(node)
        if isinstance(value, Pytree) and CAPTURES_KEY in vars(value)
    }
    with _hidden([(module, CAPTURES_KEY) for module, _ in found.values()]):
        own = walk(node)
    check_mode(own.graphdef, graph)
    definition = own.graphdef.definition
    kinds = [(captures.__kinds__[0], Metadata.EMPTY) for _, captures in found.values()]
    both = StateDef.of((*definition.paths, *found), (*definition.leaf_defs, *kinds))
    leaves = [*own.read(), *(captures for _, captures in found.values())]
    return Reading(own.graphdef, both, leaves, [*own.cells, *(Item(captures) for _, captures in found.values())])


def take_captures(states: Sequence[Any]) -> tuple[tuple[State[Any], ...], dict[Path, Any]]:
    """States without captures, and these by the path of their module."""
    found: dict[Path, Any] = {}
    rest = []
    for state in map(as_state, states):
        if any(path[-1:] == (CAPTURES_KEY,) for path in state.paths):
            pairs = list(zip(state.paths, state.leaves, strict=True))
            found.update({path[:-1]: leaf for path, leaf in pairs if path[-1:] == (CAPTURES_KEY,)})
            positions = tuple(i for i, path in enumerate(state.paths) if path[-1:] != (CAPTURES_KEY,))
            kept = [state.leaves[i] for i in positions]
            state = make_state(state.definition.select(positions), kept, owners=state._owners)
        rest.append(state)
    return tuple(rest), found


def give_captures(root: Any, found: dict[Path, Any]) -> None:
    """Gives the modules of a merged graph the captures at their paths."""
    for path, node in list(walk_nodes(root)) if found else ():
        if path in found:
            put_captures(node, found[path])


@contextmanager
def _hidden(attributes: Sequence[tuple[Pytree, str]]) -> Generator[None, None, None]:
    """Takes attributes out of nodes for the block of a ``with``; nobody else sees the nodes meanwhile."""
    kept = []
    for node, name in attributes:
        if name in vars(node):
            layout = layout_of(node)
            kept.append((node, name, vars(node).pop(name), layout))
            set_layout(node, layout.without(name))
    try:
        yield
    finally:
        for node, name, value, layout in reversed(kept):
            vars(node)[name] = value
            set_layout(node, layout)

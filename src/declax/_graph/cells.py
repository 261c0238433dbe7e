"""Cells: what reads, checks and writes the leaves of a graph, whether they have a Variable or not.

The cell of a leaf in a Variable is the Variable. An array outside of Variables is an attribute of a node, or an item of
a container.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from declax import _jax
from declax._classes.pytree import Pytree
from declax._tree.attributes import wrong_trace
from declax._tree.layout import TRACE_KEY
from declax._tree.read_only import WritesThrough
from declax._typing import MISSING
from declax._variables.variable import Variable, foreign_trace, raw_values, set_all_raw
from declax.errors import type_name, with_article


class Attribute(NamedTuple):
    """The cell of an attribute; it does not keep the node alive."""

    owner: weakref.ref[Pytree]
    name: Any


class Item(NamedTuple):
    """The cell of an item of a container, or of a root; only read, since a binding ends when a container changes."""

    value: Any


Cell: TypeAlias = Variable[Any] | Attribute | Item

_PLAIN: Final = frozenset({Attribute, Item})


def are_variables(cells: Iterable[Cell]) -> bool:
    """Whether all leaves are in Variables."""
    return _PLAIN.isdisjoint(map(type, cells))


def shown(cells: Iterable[Cell], leaves: Iterable[Any]) -> list[Any]:
    """The Variable of each leaf, or the leaf itself if it has none."""
    return [cell if isinstance(cell, Variable) else leaf for cell, leaf in zip(cells, leaves, strict=True)]


_Getter = Callable[[Any], Sequence[Any]]


def _getter(keys: Sequence[Any]) -> _Getter:
    return itemgetter(*keys) if len(keys) > 1 else lambda values: [values[key] for key in keys]


class _Columns(NamedTuple):
    """Cells by type, so that neither reading nor writing needs a frame of Python for each.

    Attributes:
      variables, items: the Variables, and the values of the items.
      nodes: each node once, with the names of its attributes, and what gets these from its dict.
      sort, unsort: put values in the order of Variables, attributes and items, and back.
    """

    variables: Sequence[Variable[Any]]
    items: Sequence[Any]
    nodes: Sequence[tuple[Callable[[], Any], Sequence[Any], _Getter]]
    sort: _Getter
    unsort: _Getter

    @staticmethod
    def of(cells: Sequence[Cell]) -> _Columns:
        """The columns of some cells."""
        owned: dict[int, list[tuple[int, Attribute]]] = {}
        for place, cell in enumerate(cells):
            if isinstance(cell, Attribute):
                owned.setdefault(id(cell.owner), []).append((place, cell))
        variables = {i: cell for i, cell in enumerate(cells) if isinstance(cell, Variable)}
        items = {i: cell.value for i, cell in enumerate(cells) if isinstance(cell, Item)}
        order = [*variables, *(place for group in owned.values() for place, _ in group), *items]
        names = [[cell.name for _, cell in group] for group in owned.values()]
        owners = [group[0][1].owner for group in owned.values()]
        return _Columns(
            [*variables.values()],
            [*items.values()],
            list(zip(owners, names, map(_getter, names), strict=True)),
            _getter(order),
            _getter(sorted(range(len(order)), key=order.__getitem__)),
        )

    def dicts(self) -> list[Any]:
        """The attributes of each node; of one that another thread has removed, an empty dict."""
        return [getattr(owner(), "__dict__", {}) for owner, _, _ in self.nodes]


class Cells(list[Cell]):
    """The cells of leaves, in order."""

    __slots__ = ("_chosen", "_columns")

    def __init__(self, cells: Iterable[Cell]) -> None:
        super().__init__(cells)
        self._columns: _Columns | None = None if are_variables(self) else _Columns.of(self)
        self._chosen: tuple[Sequence[int], Cells] | None = None

    @property
    def variables(self) -> Sequence[Any]:
        """Those that are Variables."""
        return self if self._columns is None else self._columns.variables

    @property
    def has_items(self) -> bool:
        """Whether some are items of containers."""
        return self._columns is not None and bool(self._columns.items)

    def at(self, positions: Sequence[int]) -> Cells:
        """The cells at some positions; remembers the last ones, since a loop writes the same ones."""
        chosen = self._chosen  # read once: another thread may choose others
        if chosen is None or chosen[0] is not positions:
            chosen = self._chosen = positions, Cells([self[i] for i in positions])
        return chosen[1]

    def read(self) -> list[Any]:
        """The raw value of each leaf now; `MISSING` for an attribute that another thread has removed."""
        columns = self._columns
        if columns is None:
            return raw_values(self)
        leaves = raw_values(columns.variables)
        try:
            for owner, _, get in columns.nodes:
                leaves += get(owner().__dict__)
        except (AttributeError, KeyError):
            pairs = zip(columns.nodes, columns.dicts(), strict=True)
            found = [attributes.get(name, MISSING) for (_, names, _), attributes in pairs for name in names]
            leaves[len(columns.variables) :] = found
        leaves += columns.items
        return list(columns.unsort(leaves))

    def check(self, what: str = "write-back") -> list[Variable[Any]]:
        """Checks that the leaves may be set at this trace level; returns the Variables that `publish` needs after that.

        Raises:
          TraceContextError: a Variable, or the node of an attribute, belongs to another trace.
        """
        views, columns = check_trace_tokens(self.variables, what), self._columns
        if columns is not None:
            here = _jax.current_trace()
            for (owner, names, _), attributes in zip(columns.nodes, columns.dicts(), strict=True):
                if attributes.get(TRACE_KEY, _jax.TOP) is not here and (node := owner()) is not None:
                    raise wrong_trace(node, names[0])
        return views

    def write(self, values: Iterable[Any], views: Iterable[Variable[Any]] = ()) -> None:
        """Sets the leaves, none of which is an item, past hooks; `views` are those of `check`."""
        columns, new = self._columns, tuple(values)
        if columns is None:
            set_all_raw(self, new)  # type: ignore[arg-type]  # all are Variables
        else:
            new = tuple(columns.sort(new))
            if columns.variables:
                set_all_raw(columns.variables, new)
            rest = islice(new, len(columns.variables), None)
            for (_, names, _), attributes in zip(columns.nodes, columns.dicts(), strict=True):
                attributes.update(zip(names, rest))  # noqa: B905  # the rest is longer
        publish(views)


def check_trace_tokens(variables: Iterable[Variable[Any]], what: str = "write-back") -> list[Variable[Any]]:
    """As `Cells.check`, of Variables."""
    trace_token = _jax.current_trace()
    views = []
    for variable in variables:
        if variable._trace is not trace_token:
            if not (isinstance(variable._trace, WritesThrough) and variable._trace.trace is trace_token):
                raise foreign_trace(variable, "value", f"{what} to {with_article(type_name(type(variable)))}")
            views.append(variable)
    return views


def publish(views: Iterable[Variable[Any]]) -> None:
    """Writes the values of views to their States."""
    for view in views:
        view._trace.publish(view)

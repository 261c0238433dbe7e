"""The order of the attributes of nodes, and of sets among them, which a GraphDef does not have.

What `merge` and JAX make has the order of its Layout: that of the entries in a Dict; in others data, then static
attributes, each sorted by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from declax._fields.interning import Shared
from declax._graph.nodes import object_names
from declax._tree.layout import LAYOUT_KEY

Names = tuple[Any, ...]


class Orders(Shared):
    """Orders for the nodes of a graph, by index; hashed once, since each call of a compiled function asks.

    Attributes:
      names: the attributes of nodes that have another order than the usual one.
      sets: the sets among the attributes of nodes: the name, then the members.
    """

    __slots__ = ("_hash", "names", "sets")

    def __init__(self, names: Mapping[int, Names], sets: Mapping[int, tuple[Names, ...]]) -> None:
        self.names: Mapping[int, Names] = names
        self.sets: Mapping[int, tuple[Names, ...]] = sets
        self._hash = hash((*names.items(), *sets.items())) if names or sets else 0

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Orders):
            return False
        if self.names is other.names and self.sets is other.sets:
            return True
        if self.names != other.names or self.sets != other.sets:
            return False
        other.names, other.sets = self.names, self.sets  # the next comparison, as at each call with a clone, is quick
        return True

    def are_of(self, nodes: Iterable[tuple[int, Any]]) -> bool:
        """Whether the attributes of all nodes of a graph have the order that they have here."""
        for index, node in nodes:
            order, usual = order_of(node)
            if order != self.names.get(index, usual):
                return False
        return True

    def restore_sets(self, objects: Sequence[Any]) -> None:
        """Gives the sets of copies this order."""
        for index, sets in self.sets.items():
            attributes = vars(objects[index])
            for name, *members in sets:
                attributes[name] = attributes[name].__class__(members)


USUAL = Orders({}, {})


def orders_of(nodes: Mapping[int, Any]) -> Orders:
    """The orders of nodes, given by their indexes."""
    names: dict[int, Names] = {}
    sets: dict[int, tuple[Names, ...]] = {}
    for index, node in nodes.items():
        order, usual = order_of(node)
        if order != usual:
            names[index] = order
        attributes = node.__dict__
        for name in order:
            value = attributes[name]
            if isinstance(value, (set, frozenset)):
                sets[index] = (*sets.get(index, ()), (name, *value))
    return Orders(names, sets) if names or sets else USUAL


def order_of(node: Any) -> tuple[Names, Names]:
    """The attributes of a node in their order, and in the usual one; of a List with elements, the latter twice."""
    attributes = node.__dict__
    if not node._pytree__is_pytree:
        usual = tuple(object_names(node))
        return tuple(filter(usual.__contains__, attributes)), usual
    layout = attributes.get(LAYOUT_KEY) or node._pytree__layout
    usual = layout.order
    return usual if layout.length else tuple(filter(layout.statuses.__contains__, attributes)), usual


def reorder(attributes: dict[Any, Any], names: Names) -> bool:
    """Gives attributes in a dict the order of these names, all of which are there; whether they had another order."""
    found = tuple(filter(frozenset(names).__contains__, attributes))
    if found == names:
        return False
    first = [a == b for a, b in zip(found, names, strict=True)].index(False)
    for name in names[first:]:
        attributes[name] = attributes.pop(name)
    return True

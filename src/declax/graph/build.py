"""Makes live objects from a description, or changes existing ones to fit it.

Vocabulary
----------
slot:    the place of each token's value in one flat list.
program: the instructions that fill the slots, derived once for a GraphDef.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from declax import _jax
from declax._layout import LAYOUT_KEY, TRACE_KEY
from declax._nodes import close_container
from declax._static import is_frozen, thaw
from declax._variables import _set_metadata as set_metadata
from declax._variables import _set_trace as set_mark
from declax._variables import set_raw
from declax.graph.defs import (
    CONTAINER,
    LEAF,
    NODE,
    OBJECT,
    STATIC,
    VARIABLE,
    GraphDef,
    child_keys,
    node_statics,
)

_new = object.__new__


class Program:
    """How to build the objects that a GraphDef describes.

    Attributes:
      count: the number of slots.
      variables: slots, classes and metadata of Variables, and their leaves.
      plain_leaves: slots and positions of leaves that are no Variable's.
      nodes: the slot, class, static attributes, names and child slots of each.
      containers: the slot, how, keys and child slots of each, inner ones first.
      statics: slots and values.
      references: slots and the slots that they repeat.
      indexed: the slot of each Variable and node, by index.
    """

    __slots__ = (
        "containers",
        "count",
        "indexed",
        "metadata",
        "nodes",
        "plain_leaves",
        "references",
        "statics",
        "variable_classes",
        "variable_leaves",
        "variable_slots",
    )

    def __init__(self, graphdef: GraphDef[Any]) -> None:
        tokens = graphdef.tokens
        children = _children_slots(graphdef)
        self.count = len(tokens)
        self.variable_slots: list[int] = []
        self.variable_classes: list[type] = []
        self.metadata: list[Any] = []
        self.variable_leaves: list[int] = []
        self.plain_leaves: list[tuple[int, int]] = []
        self.nodes: list[tuple[int, type, Any, tuple[Any, ...], tuple[int, ...]]] = []
        self.containers: list[tuple[int, Any, tuple[Any, ...], tuple[int, ...]]] = []
        self.statics: list[tuple[int, Any]] = []
        self.references: list[tuple[int, int]] = []
        self.indexed: list[int] = []
        leaf = 0
        for slot, token in enumerate(tokens):
            if isinstance(token, int):
                self.references.append((slot, self.indexed[token]))
                continue
            self._add(slot, token, leaf, children[slot])
            leaf += token[0] <= LEAF
        self.containers.reverse()

    def _add(self, slot: int, token: tuple[Any, ...], leaf: int, children: tuple[int, ...]) -> None:
        tag = token[0]
        if tag in (VARIABLE, NODE, OBJECT):
            self.indexed.append(slot)
        if tag == VARIABLE:
            self.variable_slots.append(slot)
            self.variable_classes.append(token[1])
            self.metadata.append(token[2])
            self.variable_leaves.append(leaf)
        elif tag == LEAF:
            self.plain_leaves.append((slot, leaf))
        elif tag == NODE:
            layout = token[1]
            fixed = {} if layout.is_closed else {LAYOUT_KEY: layout}
            statics = _Statics(dict(node_statics(token)), fixed)
            self.nodes.append((slot, layout.cls, statics, layout.data_names, children))
        elif tag == OBJECT:
            self.nodes.append((slot, token[1], _Statics({}, {}), token[2], children))
        elif tag == CONTAINER:
            self.containers.append((slot, token[1], token[2], children))
        elif tag == STATIC:
            self.statics.append((slot, token[1]))


class _Statics:
    """The static attributes of a node; mutable ones are made anew each time."""

    __slots__ = ("_frozen", "_shared")

    def __init__(self, values: dict[Any, Any], fixed: dict[Any, Any]) -> None:
        self._frozen = [(name, value) for name, value in values.items() if is_frozen(value)]
        self._shared = {**values, **fixed}

    def make(self) -> dict[Any, Any]:
        """The attributes by name."""
        if not self._frozen:
            return self._shared
        return {**self._shared, **{name: thaw(value) for name, value in self._frozen}}


def _children_slots(graphdef: GraphDef[Any]) -> list[tuple[int, ...]]:
    found: list[list[int]] = [[] for _ in graphdef.tokens]
    stack: list[int] = []
    for slot, token in enumerate(graphdef.tokens):
        if stack:
            found[stack.pop()].append(slot)
        if token.__class__ is tuple:
            stack.extend([slot] * len(child_keys(token)))  # type: ignore[arg-type]  # ints are no tuples
    return [tuple(slots) for slots in found]


def program_of(graphdef: GraphDef[Any]) -> Program:
    """The program of a GraphDef, made at first use."""
    if graphdef._program is None:
        graphdef._program = Program(graphdef)
    program: Program = graphdef._program
    return program


def build(graphdef: GraphDef[Any], leaves: Sequence[Any], metadata: Sequence[Any] | None = None) -> Any:
    """Makes new objects with these leaves.

    Args:
      graphdef: the description.
      leaves: the raw value of each leaf, in the order of the description.
      metadata: of each Variable, where it differs from the description.

    Returns:
      The root.
    """
    return build_slots(graphdef, leaves, metadata)[0]


def build_slots(
    graphdef: GraphDef[Any], leaves: Sequence[Any], metadata: Sequence[Any] | None = None
) -> list[Any]:
    """As `build`; returns the value of each slot."""
    program = program_of(graphdef)
    mark = _jax.trace_state.value
    slots: list[Any] = [None] * program.count
    variables = [_new(cls) for cls in program.variable_classes]
    if len(program.variable_leaves) == len(leaves):
        deque(map(set_raw, variables, leaves), 0)
    else:
        deque(map(set_raw, variables, [leaves[i] for i in program.variable_leaves]), 0)
    deque(map(set_metadata, variables, program.metadata if metadata is None else metadata), 0)
    for variable in variables:
        set_mark(variable, mark)
    for slot, variable in zip(program.variable_slots, variables, strict=True):
        slots[slot] = variable
    for slot, position in program.plain_leaves:
        slots[slot] = leaves[position]
    for slot, cls, *_ in program.nodes:
        slots[slot] = _new(cls)
    fill(program, slots, {})
    for slot, _, statics, names, children in program.nodes:
        attributes = slots[slot].__dict__
        attributes.update(statics.make())
        if len(children) > 1:
            attributes.update(zip(names, itemgetter(*children)(slots), strict=True))
        elif children:
            attributes[names[0]] = slots[children[0]]
        if mark is not _jax.TOP:
            attributes[TRACE_KEY] = mark
    return slots


def fill(program: Program, slots: list[Any], kept: Mapping[int, Any]) -> None:
    """Fills the slots of static values, references and containers."""
    for slot, value in program.statics:
        slots[slot] = thaw(value) if is_frozen(value) else value
    for slot, target in program.references:
        slots[slot] = slots[target]
    for slot, how, keys, children in program.containers:
        slots[slot] = kept[slot] if slot in kept else close_container(how, keys, [slots[c] for c in children])

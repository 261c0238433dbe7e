"""Reads a graph from live objects.

Vocabulary
----------
source: where a leaf that is no Variable's sits: in an attribute of a node, or
        in a container.
watch:  a container or a mutable static value: it cannot report its changes, so
        what was read from it is compared before it is used again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from operator import is_
from typing import Any

from declax._layout import BOUND_KEY, LAYOUT_KEY, Layout
from declax._nodes import Kind, enter_container, is_number, is_ref, kind_of, kinds, object_names, open_container
from declax._pytree import Pytree, is_settled, resettle, writes_by_itself
from declax._static import attributes_of, exact_types, freeze, is_fixed
from declax._variables import Variable, raw_values
from declax.graph.contents import Contents
from declax.graph.defs import (
    CONTAINER,
    LEAF_TOKEN,
    NODE,
    OBJECT,
    REF_TOKEN,
    STATIC,
    VARIABLE,
    GraphDef,
    Token,
    types_of,
)

Source = tuple["weakref.ref[Pytree]", Any] | None
"""The node and the name of the attribute; None inside of a container."""

Stack = list[tuple[Any, "Pytree | None", Any]]
"""Values that are yet to be read, each with the node and attribute that it sits in.

Inside of containers: with None, and the identities of the containers around it.
"""

Watch = Callable[[], bool]
"""Says whether what was read is still so."""


_VARIABLE = Kind.VARIABLE
_COPIED = frozenset({list, set})
_TOLD_APART = frozenset({str, bytes, type(None), type})
_TEXT = frozenset({str})


class Walk:
    """What one pass over a graph finds.

    Attributes:
      tokens: the description of the graph.
      types: the exact types of static values, which tell 1 and True apart.
      boxes: the Variable of each leaf; None for other leaves.
      plain: the leaves without a Variable by position, and where they sit.
      objects: the objects by index, those known from before first.
      nodes: the indexes of the nodes among them.
      watches: what must be compared before this is used again.
      live, kept: mutable static values, and copies to compare them with.
    """

    __slots__ = (
        "_base",
        "_index",
        "_is_binding",
        "boxes",
        "kept",
        "live",
        "nodes",
        "objects",
        "plain",
        "tokens",
        "types",
        "watches",
    )

    def __init__(self, *, is_binding: bool = False, known: Sequence[Any] = ()) -> None:
        self._is_binding = is_binding
        self._base = len(known)
        self.tokens: list[Token] = []
        self.types: list[Any] = []
        self.boxes: list[Variable[Any] | None] = []
        self.plain: dict[int, tuple[Any, Source]] = {}
        self.objects: list[Any] = list(known)
        self.nodes: list[int] = []
        self.watches: list[Watch] = []
        self.live: list[Any] = []
        self.kept: list[Any] = []
        self._index: dict[int, int] = {id(value): index for index, value in enumerate(known)}

    @property
    def graphdef(self) -> GraphDef[Any]:
        """The interned description."""
        return GraphDef.of(tuple(self.tokens), tuple(self.types), self._base)

    def read(self) -> list[Any]:
        """The raw value of each leaf."""
        if not self.plain:
            return raw_values(self.boxes)
        plain = self.plain
        return [plain[i][0] if box is None else box.raw_value for i, box in enumerate(self.boxes)]

    def is_in_container(self, position: int) -> bool:
        """Whether a leaf sits in a container, with no Variable around it."""
        return position in self.plain and self.plain[position][1] is None

    def visit(self, root: Any) -> None:
        """Reads a value and all below it; without recursion, however deep."""
        stack: Stack = [(root, None, None)]
        while stack:
            value, owner, name = stack.pop()
            kind = kinds.get(value.__class__) or kind_of(value)
            if kind is _VARIABLE:
                self._visit_variable(value)
            elif kind is Kind.NODE:
                if self._is_new(value):
                    self.nodes.append(len(self.objects) - 1)
                    self._visit_node(value, stack)
            elif kind is Kind.OBJECT:
                if self._is_new(value):
                    self.nodes.append(len(self.objects) - 1)
                    self._visit_object(value, stack)
            elif kind is Kind.LEAF or kind is Kind.REF or (owner is not None and is_number(value)):
                if not is_ref(value):
                    self.tokens.append(LEAF_TOKEN)
                elif self._is_new(value):
                    self.tokens.append(REF_TOKEN)
                else:
                    continue
                self.plain[len(self.boxes)] = value, None if owner is None else (weakref.ref(owner), name)
                self.boxes.append(None)
            elif kind is Kind.CONTAINER:
                self._visit_container(value, stack, () if owner is not None else name or ())
            else:
                self._visit_static(value)

    def _is_new(self, value: Any) -> bool:
        """Whether an object is met for the first time; otherwise, a token that refers to it is added."""
        rank = len(self.objects)
        known = self._index.setdefault(id(value), rank)
        if known != rank:
            self.tokens.append(known)
            return False
        self.objects.append(value)
        return True

    def _visit_variable(self, variable: Variable[Any]) -> None:
        if self._is_new(variable):
            self.tokens.append((VARIABLE, variable.__class__, variable._metadata))
            self.boxes.append(variable)

    def _visit_node(self, node: Any, stack: Stack) -> None:
        attributes: dict[Any, Any] = node.__dict__
        if self._is_binding:
            attributes.setdefault(BOUND_KEY, None)  # before reading: changes are seen from now on
        layout: Layout = attributes.get(LAYOUT_KEY) or node._pytree__layout
        if not is_settled(node, layout):
            layout = resettle(node)
        try:
            children, statics = layout.flatten(node)
        except KeyError:  # attributes were exchanged past `__setattr__`
            layout = resettle(node)
            children, statics = layout.flatten(node)
        if self._is_binding and writes_by_itself(node):
            self.watches.append(Contents([node]).are_same)
        tokens, objects, boxes, index = self.tokens, self.objects, self.boxes, self._index
        tokens.append((NODE, layout, statics))
        self.types.append(exact_types(statics))
        for name, place in layout.snapshots:
            if attributes[name] is not statics[place]:
                self._watch_static(attributes[name], statics[place])
        # Variables that come first are read here, as `_visit_variable` does: most nodes hold nothing else
        count = 0
        for child in children:
            cls = child.__class__
            if kinds.get(cls) is not _VARIABLE:
                names = layout.data_names
                if count:
                    children, names = children[count:], names[count:]
                stack.extend(zip(reversed(children), repeat(node), reversed(names)))  # one is endless
                return
            count += 1
            rank = len(objects)
            known = index.setdefault(id(child), rank)
            if known != rank:
                tokens.append(known)
                continue
            objects.append(child)
            tokens.append((VARIABLE, cls, child._metadata))
            boxes.append(child)

    def _visit_object(self, node: Any, stack: Stack) -> None:
        if self._is_binding:
            node.__dict__.setdefault(BOUND_KEY, None)
        names = tuple(object_names(node))
        self.tokens.append((OBJECT, node.__class__, names))
        values = [node.__dict__[name] for name in names]
        # a number is state only where a class declares it as data
        stack.extend(
            (value, None if kind_of(value) is Kind.STATIC else node, name)
            for name, value in zip(reversed(names), reversed(values), strict=True)
        )

    def _visit_container(self, value: Any, stack: Stack, within: tuple[Any, ...]) -> None:
        within = enter_container(value, within, self.objects)
        keys, children, how = open_container(value, is_data=True)
        token = (CONTAINER, how, keys)
        self.tokens.append(token)
        if value.__class__ is not tuple:
            if (types := types_of(token)) is not None:
                self.types.append(types)
            self._watch_container(value, keys, children, how)
        stack.extend(zip(reversed(children), repeat(None), repeat(within)))  # the latter are endless

    def _visit_static(self, value: Any) -> None:
        frozen = freeze(value)
        self.tokens.append((STATIC, frozen))
        self.types.append(exact_types(frozen))
        if frozen is not value:
            self._watch_static(value, frozen)

    def _watch_static(self, value: Any, frozen: Any) -> None:
        if value.__class__ in _COPIED and _is_plain(value):
            self.live.append(value)
            self.kept.append(value.copy())
        else:
            self.watches.append(_static_watch(value, frozen))

    def _watch_container(self, value: Any, keys: tuple[Any, ...], children: tuple[Any, ...], how: Any) -> None:
        if value.__class__ is list:
            self.watches.append(lambda: len(value) == len(children) and all(map(is_, value, children)))
            return

        types = None if _TEXT.issuperset(map(type, keys)) else exact_types(keys)  # 1 and True are equal keys

        def is_same() -> bool:
            now_keys, now, now_how = open_container(value)
            is_like = now_keys == keys and now_how == how and (types is None or exact_types(now_keys) == types)
            return is_like and all(map(is_, now, children))

        self.watches.append(is_same)


def _static_watch(value: Any, frozen: Any) -> Watch:
    """Says whether a value still has its snapshot; by the identities of its parts where these are fixed."""
    content = _content(value)
    if not content or not all(map(is_fixed, content.values())):
        return lambda: bool(freeze(value) == frozen)
    kept = [*content, *content.values()]

    def is_same() -> bool:
        now = _content(value) or {}
        is_known = 2 * len(now) == len(kept) and all(map(is_, chain(now, now.values()), kept))
        return is_known or bool(freeze(value) == frozen)

    return is_same


def _content(value: Any) -> dict[Any, Any] | None:
    return value if value.__class__ is dict else attributes_of(value)


def _is_plain(value: Any) -> bool:
    """Whether a copy and ``==`` tell each change: nothing nested, no numbers of equal value."""
    return all(item.__class__ in _TOLD_APART for item in value)


def walk(value: Any, *, is_binding: bool = False, known: Sequence[Any] = ()) -> Walk:
    """Reads the graph below a value.

    Args:
      value: the root.
      is_binding: whether the nodes shall report changes of their structure.
      known: objects from before, to which the graph may refer.

    Raises:
      StatusError: for a static value that cannot be hashed or snapshotted.
    """
    found = Walk(is_binding=is_binding, known=known)
    found.visit(value)
    return found

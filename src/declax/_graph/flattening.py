"""`GraphDef`, the description of a graph, and `Walk`, which reads it from live objects.

A GraphDef holds one *token* for each value of a graph, in one flat tuple, parents first. Objects (Variables, refs and
nodes) are numbered in this order; a token that is an int refers to an object.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from operator import attrgetter, is_, itemgetter
from typing import Any, ClassVar, Generic, TypeAlias

import jax
from typing_extensions import TypeVar

from declax._classes.pytree import Pytree, refresh_layout, writes_by_itself
from declax._fields.interning import Interned, Shared
from declax._fields.snapshots import NAN, attributes_of, exact_types, freeze, is_fixed, portable, with_one_nan
from declax._graph.cells import Attribute, Cell, Cells, Item
from declax._graph.nodes import Kind, enter_container, is_number, is_ref, kind_of, kinds, object_names, open_container
from declax._state.definition import StateDef
from declax._tree.attributes import class_attribute
from declax._tree.layout import BOUND_KEY, INTERNAL_KEYS, LAYOUT_KEY, Layout, place_of
from declax._typing import MISSING, Key, Path
from declax.errors import type_name

N = TypeVar("N", covariant=True, default=Any)

VARIABLE, REF, LEAF, NODE, OBJECT, CONTAINER, STATIC = range(7)
"""The first entry of a token gives its type; types up to LEAF have a leaf.

(VARIABLE, class, metadata), (REF,), (LEAF,), (NODE, layout, statics),
(OBJECT, class, names), (CONTAINER, how, keys), (STATIC, frozen value).
"""

HAS_INDEX = frozenset({VARIABLE, REF, NODE, OBJECT})

Token: TypeAlias = int | tuple[Any, ...]

LEAF_TOKEN: Token = (LEAF,)
REF_TOKEN: Token = (REF,)


def node_statics(token: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    """The names and frozen values of the static attributes in a node token."""
    layout: Layout = token[1]
    return zip(layout.static_names, token[2] if layout.is_closed else token[2][1:], strict=True)


def class_of(token: tuple[Any, ...]) -> type:
    """The class of the object that a token describes."""
    if token == REF_TOKEN:
        return jax.Ref
    cls: type = token[1].cls if token[0] == NODE else token[1]
    return cls


def child_keys(token: tuple[Any, ...]) -> tuple[Key, ...]:
    """The keys of the children that follow a token."""
    keys: tuple[Key, ...] = ()
    if token[0] == NODE:
        keys = token[1].data_names
    elif token[0] in (OBJECT, CONTAINER):
        keys = token[2]
    return keys


_TEXT_OR_INT = frozenset({str, int})


def types_of(token: Token) -> Hashable:
    """The `exact_types` of the static values of a token, or of the keys of a container; None if it has none."""
    if isinstance(token, int):
        return None
    tag = token[0]
    if tag == CONTAINER:
        has_plain_keys = token[1] is list or token[1] is tuple or _TEXT_OR_INT.issuperset(map(type, token[2]))
        return None if has_plain_keys else exact_types(token[2])
    return exact_types(token[-1]) if tag in (NODE, STATIC) else None


class GraphDef(Shared, Generic[N]):
    """The structure of a graph without its values; `merge` makes a graph from it and a State.

    Immutable, hashable and interned: graphs of equal structure have the same
    GraphDef object. It can be a static argument of a compiled function.

    Attributes:
      tokens: the description.
      num_leaves: the number of leaves of a State of this graph.
      base: the number of objects of graphs that were flattened before, with the same `ref_index`.
      outer: for each object, its outer index or -1; None outside of update contexts.
    """

    _interned: ClassVar[Interned[GraphDef[Any]]] = Interned()
    _merge: ClassVar[Callable[..., Any]]
    """The function `merge`, whose module sets it here."""
    _call: ClassVar[Callable[..., Any]]
    """The function `call`, likewise."""

    tokens: tuple[Token, ...]
    num_leaves: int
    base: int
    outer: tuple[int, ...] | None
    copied: list[Any]
    """The shapes and dtypes of the arrays that were copied last."""
    _blueprint: Any
    _joins: dict[Hashable, Any]

    @staticmethod
    def of(
        tokens: tuple[Token, ...],
        types: tuple[Any, ...] | None = None,
        base: int = 0,
        outer: tuple[int, ...] | None = None,
    ) -> GraphDef[Any]:
        """The one GraphDef with these tokens, and with `types_of` those tokens that have types, in order."""
        if types is None:
            types = tuple(found for found in map(types_of, tokens) if found is not None)

        def make() -> GraphDef[Any]:
            made: GraphDef[Any] = object.__new__(GraphDef)
            made.tokens = tokens
            made.num_leaves = sum([not isinstance(t, int) and t[0] <= LEAF for t in tokens])
            made.base, made.outer = base, outer
            made._blueprint, made._joins, made.copied = None, {}, []
            return made

        # 1, True and 1.0 are equal, but not the same
        return GraphDef._interned.find_or_make((tokens, types, base, outer), make)

    @cached_property
    def shared(self) -> tuple[Path | None, Path, type] | None:
        """Both paths and the class of the first object that is reached twice; None for a tree.

        An Object is in no tree: both paths are its path. The first path is None if the object is in an earlier graph.
        """
        seen: list[tuple[Path | None, type]] = [(None, object)] * self.base
        for path, token in walk_tokens(self.tokens):
            if isinstance(token, int):
                first, cls = seen[token]
                return first, path, cls
            if token[0] == OBJECT:
                return path, path, token[1]
            if token[0] in HAS_INDEX:
                seen.append((path, class_of(token)))
        return None

    @cached_property
    def definition(self) -> StateDef:
        """The definition of the State with all leaves of the graph."""
        leaves = [token for token in self.tokens if not isinstance(token, int) and token[0] <= LEAF]
        leaf_defs = [token[1:] if token[0] == VARIABLE else None for token in leaves]
        return StateDef.of(self.leaf_paths, tuple(leaf_defs))

    @property
    def classes(self) -> list[Any]:
        """The class of each object of the graph, by index."""
        tokens = (token for token in self.tokens if not isinstance(token, int) and token[0] in HAS_INDEX)
        return [object] * self.base + [class_of(token) for token in tokens]

    @cached_property
    def leaf_paths(self) -> tuple[Path, ...]:
        """The path of each leaf."""
        return tuple([p for p, token in walk_tokens(self.tokens) if not isinstance(token, int) and token[0] <= LEAF])

    def merge(self, state: Mapping[Any, Any], /, *states: Mapping[Any, Any], copy: bool = False) -> N:
        """A new graph of this structure; see `declax.merge`."""
        root: N = GraphDef._merge(self, state, *states, copy=copy)
        return root

    def apply(self, state: Mapping[Any, Any], *states: Mapping[Any, Any]) -> Any:
        """Calls a method of a new graph of this structure: ``declax.call((graphdef, state, ...))``."""
        return GraphDef._call((self, state, *states))

    def __repr__(self) -> str:
        nodes = [t for t in self.tokens if isinstance(t, tuple) and t[0] in (NODE, OBJECT)]
        root = self.tokens[0]
        name = "int"
        if isinstance(root, tuple):
            entry = root[1] if len(root) > 1 else "leaf"
            name = type_name(entry.cls) if isinstance(entry, Layout) else getattr(entry, "__name__", "tree")
        return f"GraphDef({name}, nodes={len(nodes)}, leaves={self.num_leaves})"

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphDef.of, (portable(self.tokens), None, self.base, self.outer)


def walk_tokens(tokens: tuple[Token, ...]) -> Iterator[tuple[Path, Token]]:
    """The tokens with the paths of their values, parents first."""
    stack: list[Path] = [()]
    for token in tokens:
        path = stack.pop()
        yield path, token
        if isinstance(token, tuple) and token[0] > LEAF:
            stack += [(*path, key) for key in child_keys(token)[::-1]]


# without leaves, so that a GraphDef may be an argument or result of a raw JAX transform
jax.tree_util.register_pytree_node(GraphDef, lambda graphdef: ((), graphdef), lambda graphdef, _: graphdef)


_attributes = attrgetter("__dict__")
_call: Any = operator.call  # its type takes no functions of several types
_LEAF = Kind.LEAF


class Contents:
    """The attributes of nodes, without arrays, which may be replaced at any time; the nodes are not kept alive."""

    __slots__ = ("_all_names", "_classes", "_counts", "_names", "_nodes", "_readers", "_values")

    def __init__(self, nodes: Sequence[Any]) -> None:
        attributes = [*map(dict, map(_attributes, nodes))]  # copies, since another thread may change nodes meanwhile
        self._nodes = [*map(weakref.ref, nodes)]
        self._classes = [*map(type, nodes)]
        self._counts = [*map(len, attributes)]
        self._all_names = [*map(tuple, attributes)]
        self._names = [*map(_compared_names, attributes)]
        self._readers = [*map(_reader, self._names)]
        self._values = [*chain.from_iterable(map(_call, self._readers, attributes))]

    def are_same(self) -> bool:
        """Whether the nodes still have the same attributes, by identity, and the same classes."""
        try:
            nodes = [*map(_call, self._nodes)]
            attributes = [*map(_attributes, nodes)]
            if [*map(len, attributes)] != self._counts or [*map(type, nodes)] != self._classes:
                return False
            return all(map(is_, chain.from_iterable(map(_call, self._readers, attributes)), self._values))
        except (AttributeError, KeyError):  # a node or an attribute is gone
            return False

    def written(self) -> str | None:
        """The first attribute that has another value, is new or is gone, with its class; none that a class computes."""
        values = iter(self._values)
        for node, names, before in zip(map(_call, self._nodes), self._names, self._all_names, strict=True):
            then = dict(zip((names[0], *names) if names else (), values, strict=False))
            now = {} if node is None else vars(node)
            written = [name for name, value in then.items() if now.get(name, MISSING) is not value]
            written += [name for name in (*before, *now) if (name in before) != (name in now)]
            for name in written if now else ():
                if name not in INTERNAL_KEYS and not isinstance(class_attribute(type(node), name), cached_property):
                    return f"{type_name(type(node))}.{name}"
        return None


def _compared_names(attributes: dict[Any, Any]) -> tuple[Any, ...]:
    """The names of a node's attributes, without those of arrays; the walk has asked for the kinds of all of them."""
    return tuple([n for n, v in attributes.items() if n not in INTERNAL_KEYS and kinds.get(v.__class__) is not _LEAF])


@functools.lru_cache(maxsize=1024)
def _reader(names: tuple[Any, ...]) -> Callable[[dict[Any, Any]], tuple[Any, ...]]:
    """Reads values from a dict; the first one twice, so that one name gives a tuple too."""
    return itemgetter(names[0], *names) if names else lambda _: ()


Stack = list[tuple[Any, "Pytree | None", Any]]
"""Values that are still to be read, each with the node and attribute that hold it.

Inside of containers: with None, and the containers around it.
"""


_VARIABLE = Kind.VARIABLE
_TEXT = frozenset({str})
_TOLD_APART = frozenset({str, bytes, type(None), type})


class Walk:
    """Reads the graph below one or more roots.

    Attributes:
      tokens: the description of the graph.
      types: the exact types of static values, which distinguish 1 from True.
      cells: the cell of each leaf.
      objects: the objects by index, those of earlier graphs first.
      nodes: the indexes of the nodes among them.
      watches: whether values are still the ones that were read; asked before this reading is used again.
    """

    def __init__(self, *, is_binding: bool = False, known: Sequence[Any] = ()) -> None:
        self._is_binding = is_binding
        self._base = len(known)
        self.tokens: list[Token] = []
        self.types: list[Any] = []
        self.cells: list[Cell] = []
        self.objects: list[Any] = list(known)
        self.nodes: list[int] = []
        self.watches: list[Callable[[], bool]] = []
        self._index: dict[int, int] = dict(zip(map(id, known), range(self._base), strict=True))

    @property
    def graphdef(self) -> GraphDef[Any]:
        """The interned description."""
        return GraphDef.of(tuple(self.tokens), tuple(self.types), self._base)

    def read(self) -> list[Any]:
        """The raw value of each leaf."""
        return Cells(self.cells).read()

    def visit(self, root: Any) -> None:
        """Reads a value and all below it; without recursion, however deep."""
        stack: Stack = [(root, None, None)]
        while stack:
            value, owner, name = stack.pop()
            kind = kinds.get(value.__class__) or kind_of(value)
            if kind is _VARIABLE:
                if self._is_new(value):
                    self.tokens.append((VARIABLE, value.__class__, value._metadata))
                    self.cells.append(value)
            elif kind is Kind.NODE or kind is Kind.OBJECT:
                if self._is_new(value):
                    self.nodes.append(len(self.objects) - 1)
                    visit = self._visit_node if kind is Kind.NODE else self._visit_object
                    visit(value, stack)
            elif kind is Kind.LEAF or kind is Kind.REF or (owner is not None and is_number(value)):
                if not is_ref(value):
                    self.tokens.append(LEAF_TOKEN)
                elif self._is_new(value):
                    self.tokens.append(REF_TOKEN)
                else:
                    continue
                self.cells.append(Item(value) if owner is None else Attribute(weakref.ref(owner), name))
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

    def _visit_node(self, node: Any, stack: Stack) -> None:
        attributes: dict[Any, Any] = node.__dict__
        if self._is_binding:
            attributes.setdefault(BOUND_KEY, None)  # before reading: changes are seen from now on
        layout: Layout = attributes.get(LAYOUT_KEY) or node._pytree__layout
        if not layout.fits(node):
            layout = refresh_layout(node)
        try:
            children, statics = layout.flatten(node)
        except KeyError:  # attributes were exchanged past `__setattr__`
            layout = refresh_layout(node)
            children, statics = layout.flatten(node)
        if self._is_binding and node.__class__.__setattr__ is not Pytree.__setattr__ and writes_by_itself(node):
            self.watches.append(Contents([node]).are_same)
        tokens, objects, cells, index = self.tokens, self.objects, self.cells, self._index
        types: Any = exact_types(statics) if statics else ()
        if NAN in types:
            statics = with_one_nan(statics)
        tokens.append((NODE, layout, statics))
        self.types.append(types)
        for name, place in layout.snapshots:
            if attributes[name] is not statics[place] and not is_fixed(attributes[name]):
                self.watches.append(_static_watch(attributes[name], statics[place], place_of(layout, name)))
        # Variables that come first are read here, as in `visit`: most nodes hold nothing else
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
            cells.append(child)

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
            if not (isinstance(value, tuple) and not hasattr(value, "__dict__")):  # a named tuple cannot change
                self._watch_container(value, keys, children, how)
        stack.extend(zip(reversed(children), repeat(None), repeat(within)))  # the latter are endless

    def _visit_static(self, value: Any) -> None:
        frozen = freeze(value)
        self.tokens.append((STATIC, frozen))
        self.types.append(exact_types(frozen))
        if frozen is not value and not is_fixed(value):
            self.watches.append(_static_watch(value, frozen, "static value"))

    def _watch_container(self, value: Any, keys: tuple[Any, ...], children: tuple[Any, ...], how: Any) -> None:
        if value.__class__ is list:
            self.watches.append(lambda: len(value) == len(children) and all(map(is_, value, children)))
            return
        types = None if _TEXT.issuperset(map(type, keys)) else exact_types(keys)  # 1 and True are equal keys
        if value.__class__ is dict and types is None:
            names, items = list(value), list(value.values())
            self.watches.append(lambda: list(value) == names and all(map(is_, value.values(), items)))
            return

        def is_same() -> bool:
            now_keys, now, now_how = open_container(value)
            is_like = now_keys == keys and now_how == how and (types is None or exact_types(now_keys) == types)
            return is_like and all(map(is_, now, children))

        self.watches.append(is_same)


def _static_watch(value: Any, frozen: Any, where: str) -> Callable[[], bool]:
    """Compares a mutable static value with its snapshot; by the identities of its parts if these are fixed."""
    if value.__class__ in (list, set) and all(item.__class__ in _TOLD_APART for item in value):
        kept = value.copy()
        return lambda: bool(value == kept)
    content = _content(value)
    if not content or not all(map(is_fixed, content.values())):
        return lambda: bool(freeze(value, where) == frozen)
    parts = [*content, *content.values()]

    def is_same() -> bool:
        now = _content(value) or {}
        is_known = 2 * len(now) == len(parts) and all(map(is_, chain(now, now.values()), parts))
        return is_known or bool(freeze(value, where) == frozen)

    return is_same


def _content(value: Any) -> dict[Any, Any] | None:
    return value if value.__class__ is dict else attributes_of(value)


def walk(value: Any, *, is_binding: bool = False, known: Sequence[Any] = ()) -> Walk:
    """Reads the graph below a value."""
    found = Walk(is_binding=is_binding, known=known)
    found.visit(value)
    return found

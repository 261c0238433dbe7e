"""The static description of a graph.

Vocabulary
----------
token:  describes one value of a graph: a Variable, a leaf, a node, a container
        or a static value. The tokens of a graph stand in one flat tuple, each
        parent before its children.
object: what has an identity: a Variable, a ref, a node.
index:  what an object is referred to by: its rank among the objects of the
        graph. A token that is an int is such a reference.
base:   the number of objects that come before those of this graph, where
        several graphs share one space of indexes.
outer:  the index of the same object in another space; see `graph.contexts`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import jax

from declax._layout import Layout
from declax._metadata import Metadata
from declax._state_def import LeafDef, StateDef
from declax._static import exact_types
from declax._typing import Key, Path
from declax._variables import Variable
from declax.errors import GraphError, type_name
from declax.states import State

N = TypeVar("N", covariant=True)

VARIABLE, REF, LEAF, NODE, OBJECT, CONTAINER, STATIC = range(7)
"""The first entry of a token says what it describes; those up to LEAF have a leaf.

(VARIABLE, class, metadata), (REF,), (LEAF,), (NODE, layout, statics),
(OBJECT, class, names), (CONTAINER, how, keys), (STATIC, frozen value).
"""

HAS_INDEX = frozenset({VARIABLE, REF, NODE, OBJECT})

Token: TypeAlias = int | tuple[Any, ...]

LEAF_TOKEN: Token = (LEAF,)
REF_TOKEN: Token = (REF,)


def variable_token(cls: type[Variable[Any]], metadata: Metadata) -> Token:
    """Describes a Variable."""
    return VARIABLE, cls, metadata


def node_statics(token: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    """The names and values, still frozen, of the static attributes that a node token holds."""
    layout: Layout = token[1]
    return zip(layout.static_names, token[2] if layout.is_closed else token[2][1:], strict=True)


def child_keys(token: tuple[Any, ...]) -> tuple[Key, ...]:
    """The keys of the children that follow a token."""
    tag = token[0]
    if tag == NODE:
        names: tuple[Key, ...] = token[1].data_names
        return names
    if tag in (OBJECT, CONTAINER):
        keys: tuple[Key, ...] = token[2]
        return keys
    return ()


_TEXT_OR_INT = frozenset({str, int})


def types_of(token: Token) -> Hashable:
    """The `exact_types` of the static values of a token, or of the keys of a container; None where it has none."""
    if isinstance(token, int):
        return None
    tag = token[0]
    if tag == CONTAINER:
        has_plain_keys = token[1] is list or token[1] is tuple or _TEXT_OR_INT.issuperset(map(type, token[2]))
        return None if has_plain_keys else exact_types(token[2])
    return exact_types(token[-1]) if tag in (NODE, STATIC) else None


def _types_of_all(tokens: tuple[Token, ...]) -> tuple[Hashable, ...]:
    return tuple(types for types in map(types_of, tokens) if types is not None)


class GraphDef(Generic[N]):
    """The structure of a graph without its values.

    Immutable, hashable and interned: two graphs of equal structure have the
    same GraphDef, so comparing is one look at the identity. Put it together
    with a State by `merge`.

    Attributes:
      tokens: the description.
      num_leaves: how many leaves a State of this graph has.
      base: how many objects come before those of this graph; 0 unless it was
        flattened together with others.
      outer: for each object, its index in an outer space or -1; None unless
        it was flattened in an update context.
    """

    __slots__ = (
        "__weakref__",
        "_definition",
        "_joins",
        "_program",
        "_shared",
        "base",
        "copied",
        "num_leaves",
        "outer",
        "tokens",
    )
    _interned: ClassVar[WeakValueDictionary[Any, GraphDef[Any]]] = WeakValueDictionary()
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _merge: ClassVar[Callable[..., Any]]
    """The function `merge`, which stands on this file and sets itself here."""

    tokens: tuple[Token, ...]
    num_leaves: int
    base: int
    outer: tuple[int, ...] | None
    copied: list[Any]
    """The shapes and dtypes of the arrays of such a graph that were copied last."""
    _definition: StateDef | None
    _program: Any
    _joins: dict[Hashable, Any]
    _shared: tuple[Path, Path] | None | Literal[False]

    def __init__(self) -> None:
        raise GraphError(
            "GraphDef", "a GraphDef is read from a graph, and not made", fix="graphdef, state = dx.split(model)"
        )

    @staticmethod
    def of(
        tokens: tuple[Token, ...],
        types: tuple[Any, ...] | None = None,
        base: int = 0,
        outer: tuple[int, ...] | None = None,
    ) -> GraphDef[Any]:
        """The description with these tokens; always the same object.

        Args:
          tokens: the tokens.
          types: the `types_of` the tokens that have some, in order, where
            the caller has them already.
          base, outer: see the attributes.
        """
        if types is None:
            types = _types_of_all(tokens)
        key = (tokens, types, base, outer)  # 1, True and 1.0 are equal, but not the same
        with GraphDef._lock:
            found = GraphDef._interned.get(key)
            if found is None:
                found = object.__new__(GraphDef)
                found.tokens = tokens
                found.num_leaves = sum([not isinstance(t, int) and t[0] <= LEAF for t in tokens])
                found.base, found.outer = base, outer
                found.copied = []
                found._shared = False
                found._definition = found._program = None
                found._joins = {}
                GraphDef._interned[key] = found
        return found

    @property
    def shared(self) -> tuple[Path, Path] | None:
        """The two paths of the first object that is reached twice; None for a tree."""
        if self._shared is False:
            self._shared = self._find_shared()  # set at once: other threads look at it
        return self._shared

    def _find_shared(self) -> tuple[Path, Path] | None:
        paths: list[Path] = []
        for path, token in walk_tokens(self.tokens):
            if isinstance(token, int):
                if token >= self.base:  # what is of an earlier graph is no matter of this one
                    return paths[token - self.base], path
            elif token[0] in HAS_INDEX:
                paths.append(path)
        return None

    @property
    def definition(self) -> StateDef:
        """The definition of the State with all leaves of the graph."""
        if self._definition is None:
            self._definition = self._define()
        return self._definition

    def _define(self) -> StateDef:
        """As `walk_tokens`, written out, since each new structure passes here."""
        paths: list[Path] = []
        leaf_defs: list[LeafDef] = []
        stack: list[Path] = [()]
        for token in self.tokens:
            path = stack.pop()
            if token.__class__ is int:
                continue
            tag = token[0]  # type: ignore[index]  # not an int
            if tag == VARIABLE:
                paths.append(path)
                leaf_defs.append(token[1:])  # type: ignore[index]  # as above
            elif tag <= LEAF:
                paths.append(path)
                leaf_defs.append(None)
            else:
                stack += [(*path, key) for key in child_keys(token)[::-1]]  # type: ignore[arg-type]  # as above
        return StateDef.of(tuple(paths), tuple(leaf_defs))

    def merge(self, state: State[Any], /, *states: State[Any], copy: bool = False) -> N:
        """Makes a new graph of this structure: `merge` with this GraphDef.

        >>> from declax._module import Module
        >>> graphdef, state = Module().split()
        >>> type(graphdef.merge(state)).__name__
        'Module'
        """
        root: N = GraphDef._merge(self, state, *states, copy=copy)
        return root

    def with_outer(self, outer: tuple[int, ...]) -> GraphDef[N]:
        """The same structure with the outer index of each object."""
        return GraphDef.of(self.tokens, None, self.base, outer)

    def __repr__(self) -> str:
        if not hasattr(self, "tokens"):
            return "GraphDef(uninitialised)"
        from_nodes = [t for t in self.tokens if isinstance(t, tuple) and t[0] in (NODE, OBJECT)]
        root = self.tokens[0]
        name = "int"
        if isinstance(root, tuple):
            entry = root[1] if len(root) > 1 else "leaf"
            name = type_name(entry.cls) if isinstance(entry, Layout) else getattr(entry, "__name__", "tree")
        return f"GraphDef({name}, nodes={len(from_nodes)}, leaves={self.num_leaves})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.tokens, self.base, self.outer)

    def __copy__(self) -> GraphDef[N]:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> GraphDef[N]:
        return self


def _restore(tokens: tuple[Token, ...], base: int = 0, outer: tuple[int, ...] | None = None) -> GraphDef[Any]:
    """A stored GraphDef, unless a class has other fields now."""
    for token in tokens:
        if not isinstance(token, tuple) or token[0] != NODE:
            continue
        layout, statics = token[1], token[2]
        was_closed = not (statics and isinstance(statics[0], Layout))
        if was_closed and not layout.is_closed:
            raise GraphError(
                type_name(layout.cls),
                "the class has other fields now than when this GraphDef was stored",
                expected=", ".join(map(str, layout.statuses)),
                fix="store the State, and dx.update a new model with it",
            )
    return GraphDef.of(tokens, None, base, outer)


def walk_tokens(tokens: tuple[Token, ...]) -> Iterator[tuple[Path, Token]]:
    """The tokens with the paths of what they describe, parents first."""
    stack: list[Path] = [()]
    for token in tokens:
        path = stack.pop()
        yield path, token
        if isinstance(token, tuple):
            stack.extend((*path, key) for key in reversed(child_keys(token)))


# without leaves, so that a GraphDef may be an argument or result of a raw JAX transform
jax.tree_util.register_pytree_node(GraphDef, lambda graphdef: ((), graphdef), lambda graphdef, _: graphdef)

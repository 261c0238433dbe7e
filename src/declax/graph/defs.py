"""The static description of a graph.

Vocabulary
----------
token: describes one value of a graph: a Variable, a leaf, a node, a container
       or a static value. The tokens of a graph stand in one flat tuple, each
       parent before its children.
index: what a Variable or node is referred to by: its rank among the Variables
       and nodes of the graph. A token that is an int is such a reference.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import jax

from declax._layout import Layout
from declax._metadata import Metadata
from declax._state_def import LeafDef, StateDef
from declax._static import exact_types
from declax._typing import Key, Path
from declax._variables import Variable
from declax.errors import GraphError, type_name

N = TypeVar("N", covariant=True)

VARIABLE, LEAF, NODE, OBJECT, CONTAINER, STATIC = range(6)
"""The first entry of a token says what it describes.

(VARIABLE, class, metadata), (LEAF,), (NODE, layout, statics),
(OBJECT, class, names), (CONTAINER, how, keys), (STATIC, frozen value).
"""

Token: TypeAlias = int | tuple[Any, ...]

LEAF_TOKEN: Token = (LEAF,)


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


class GraphDef(Generic[N]):
    """The structure of a graph without its values.

    Immutable, hashable and interned: two graphs of equal structure have the
    same GraphDef, so comparing is one look at the identity. Put it together
    with a State by `merge`.

    Attributes:
      tokens: the description.
      num_leaves: how many leaves a State of this graph has.
    """

    __slots__ = ("__weakref__", "_definition", "_hash", "_joins", "_program", "num_leaves", "tokens")
    _interned: ClassVar[WeakValueDictionary[Any, GraphDef[Any]]] = WeakValueDictionary()
    _lock: ClassVar[threading.RLock] = threading.RLock()

    tokens: tuple[Token, ...]
    num_leaves: int
    _definition: StateDef | None
    _program: Any
    _joins: dict[Hashable, Any]
    _hash: int

    @staticmethod
    def of(tokens: tuple[Token, ...], types: tuple[Any, ...] | None = None) -> GraphDef[Any]:
        """The description with these tokens; always the same object.

        Args:
          tokens: the tokens.
          types: the `exact_types` of the tokens that have static values, in
            order, where the caller has them already.
        """
        if types is None:
            types = tuple(exact_types(t[-1]) for t in tokens if isinstance(t, tuple) and t[0] in (NODE, STATIC))
        key = (tokens, types)  # 1, True and 1.0 are equal, but not the same
        with GraphDef._lock:
            found = GraphDef._interned.get(key)
            if found is None:
                found = object.__new__(GraphDef)
                found.tokens = tokens
                found.num_leaves = sum(isinstance(t, tuple) and t[0] <= LEAF for t in tokens)
                found._definition = found._program = None
                found._joins = {}
                found._hash = hash(key)
                GraphDef._interned[key] = found
        return found

    def __hash__(self) -> int:
        return self._hash

    @property
    def definition(self) -> StateDef:
        """The definition of the State with all leaves of the graph."""
        if self._definition is None:
            paths: list[Path] = []
            leaf_defs: list[LeafDef] = []
            for path, token in walk_tokens(self.tokens):
                if isinstance(token, tuple) and token[0] <= LEAF:
                    paths.append(path)
                    leaf_defs.append(None if token is LEAF_TOKEN or len(token) == 1 else token[1:])
            self._definition = StateDef.of(tuple(paths), tuple(leaf_defs))
        return self._definition

    def __repr__(self) -> str:
        from_nodes = [t for t in self.tokens if isinstance(t, tuple) and t[0] in (NODE, OBJECT)]
        root = self.tokens[0]
        name = "int"
        if isinstance(root, tuple):
            entry = root[1] if len(root) > 1 else "leaf"
            name = type_name(entry.cls) if isinstance(entry, Layout) else getattr(entry, "__name__", "tree")
        return f"GraphDef({name}, nodes={len(from_nodes)}, leaves={self.num_leaves})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.tokens,)

    def __copy__(self) -> GraphDef[N]:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> GraphDef[N]:
        return self


def _restore(tokens: tuple[Token, ...]) -> GraphDef[Any]:
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
    return GraphDef.of(tokens)


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

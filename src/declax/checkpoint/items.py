"""The items of a checkpoint as leaves by path, and values by path back into items."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
from jax.core import Tracer

from declax._classes.pytree import Pytree
from declax._graph.binding import bind
from declax._graph.flattening import (
    CONTAINER,
    HAS_INDEX,
    LEAF,
    NODE,
    VARIABLE,
    Token,
    child_keys,
    class_of,
    walk,
)
from declax._graph.nodes import OBJECTS, Kind, Link, close_container, kind_of, open_container, path_of, plain_key
from declax._state.definition import LeafDef, StateDef, values_of
from declax._state.states import State, make_state
from declax._tree.attributes import class_attribute
from declax._typing import MISSING, Missing, Path
from declax._variables.variable import Variable
from declax.checkpoint.arrays import SCALARS
from declax.checkpoint.files import has_half_pair
from declax.errors import CheckpointError, describe, format_path


class Leaf(NamedTuple):
    """A leaf of an item.

    Attributes:
      path: its keys below the item.
      value: an array of numpy or JAX, the shape of one, or a JSON scalar.
      leaf_def: the kind and metadata of its Variable, or None.
      depth: how many keys lead to the Variable, if it holds a tree; None if the leaf is all that is there.
    """

    path: Path
    value: Any
    leaf_def: LeafDef
    depth: int | None = None


class Graph(NamedTuple):
    """A graph that was read once.

    Attributes:
      tokens: its description; see `declax._graph.flattening`.
      objects: its nodes, Variables and refs.
      leaves: the raw value of each leaf.
    """

    tokens: Sequence[Token]
    objects: Sequence[Any]
    leaves: Sequence[Any]

    @classmethod
    def of(cls, value: Any) -> Graph:
        """Reads a value."""
        found = walk(value)
        return cls(found.tokens, found.objects, found.read())

    def places(self) -> Iterator[tuple[Link | Missing, Token]]:
        """The tokens with the paths of their values; with MISSING where a file does not keep a value."""
        stack: list[Any] = [None]
        for token in self.tokens:
            link = stack.pop()
            yield link, token
            if isinstance(token, tuple) and token[0] > LEAF:
                cls = class_of(token) if token[0] != CONTAINER else None
                for key in reversed(child_keys(token)):
                    is_kept = link is not MISSING and (cls is None or is_stored(cls, key))
                    stack.append((link, key) if is_kept else MISSING)


@dataclass(frozen=True)
class Item:
    """A value in ``{"model": model, "step": 12}``, read once.

    Attributes:
      name: its name.
      value: the value itself.
      leaves: its leaves by the text of their path, with the name of the item.
      graph: what was read, if it holds Pytrees, Variables or refs, which are written in place.
      is_json: whether it is plain data, which has no leaves.
    """

    name: str
    value: Any
    leaves: Mapping[str, Leaf]
    graph: Graph | None = None
    is_json: bool = False

    @property
    def is_graph(self) -> bool:
        """Whether it is a graph."""
        return self.graph is not None

    @property
    def objects(self) -> list[tuple[Link, Any]]:
        """The nodes, Variables and refs of a graph with their paths, what holds them first."""
        if self.graph is None:
            return []
        links = [link for link, token in self.graph.places() if isinstance(token, tuple) and token[0] in HAS_INDEX]
        return [(link, held) for link, held in zip(links, self.graph.objects, strict=True) if link is not MISSING]

    @property
    def classes(self) -> list[tuple[Link, type]]:
        """The class of each node of a graph with its path, what holds it first."""
        return [(link, type(held)) for link, held in self.objects if isinstance(held, Pytree)]

    def variables(self) -> list[tuple[Path, Any]]:
        """Each leaf with what filters see of it: its path, and a Variable or the value."""
        leaves = list(self.leaves.values())
        definition = StateDef.of(tuple([leaf.path for leaf in leaves]), tuple([leaf.leaf_def for leaf in leaves]))
        return list(zip(definition.paths, values_of(definition, [leaf.value for leaf in leaves]), strict=True))


def item_of(where: str, name: object, value: Any) -> Item:
    """Reads an item.

    Raises:
      CheckpointError: the name has a dot or is not a text, or a leaf can be stored neither as an array nor as JSON.
    """
    if not isinstance(name, str) or not name or "." in name or "/" in name or has_half_pair(name):
        raise CheckpointError(where, "the name of an item must be a text without dots", got=ascii(name)[:80])
    if is_json(value):
        return Item(name, value, {}, is_json=True)
    if isinstance(value, State):
        definition = value.definition
        triples = zip(definition.paths, value.leaves, definition.leaf_defs, strict=True)
        return Item(name, value, _by_text(where, name, [Leaf(*triple) for triple in triples]))
    if not holds_nodes(where, name, value):
        pairs, _ = jax.tree_util.tree_flatten_with_path(value)
        return Item(name, value, _by_text(where, name, [Leaf(_keys(path), leaf, None) for path, leaf in pairs]))
    outer = jax.tree_util.tree_leaves_with_path(value, is_leaf=_is_node)
    for path, leaf in outer:
        if isinstance(leaf, SCALARS):
            raise CheckpointError(
                f"{where}, {text_of(name, _keys(path))}",
                "a number or text beside models would not be saved",
                got=describe(leaf),
                why="the State of a model has arrays and Variables only",
                fix=f'{{"{name}": ..., "rest": {{...}}}}        # a separate item',
            )
    graph = Graph.of(value)
    leaves = _by_text(where, name, _leaves_of(graph))
    _check_names(where, name, graph)
    return Item(name, value, leaves, graph)


def _check_names(where: str, item: str, graph: Graph) -> None:
    """Raises for names of attributes and of metadata that no file can hold."""
    for link, token in graph.places():
        if link is MISSING or isinstance(token, int) or token[0] not in (NODE, VARIABLE):
            continue
        for name in token[1].statuses if token[0] == NODE else token[2]:
            if has_half_pair(str(name)):
                text = ascii(text_of(item, (*path_of(link), name)))
                raise CheckpointError(f"{where}, {text}", _HALF_PAIR)


_HALF_PAIR: Final = "a key has half of a surrogate pair, which no file can hold"


def _leaves_of(graph: Graph) -> Iterator[Leaf]:
    values = iter(graph.leaves)
    for link, token in graph.places():
        if isinstance(token, int) or token[0] > LEAF:
            continue
        leaf, leaf_def = next(values), token[1:] if token[0] == VARIABLE else None
        if leaf is None or link is MISSING:
            continue
        path = path_of(link)
        if kind_of(leaf) is not Kind.CONTAINER:
            yield Leaf(path, leaf, leaf_def)
            continue
        for keys, part in jax.tree_util.tree_flatten_with_path(leaf)[0]:
            yield Leaf((*path, *_keys(keys)), part, leaf_def, len(path))


def is_stored(cls: Any, name: Any) -> bool:
    """Whether a file keeps an attribute: not the values of cached properties, which are computed again."""
    is_of_typing = name == "__orig_class__"  # of an instance of a generic class
    return not is_of_typing and not isinstance(class_attribute(cls, str(name)), functools.cached_property)


def _by_text(where: str, name: str, leaves: Iterable[Leaf]) -> dict[str, Leaf]:
    found: dict[str, Leaf] = {}
    for leaf in leaves:
        text = text_of(name, leaf.path)
        problem = None
        if not all(map(_is_key_of_path, leaf.path)):
            problem = "a path must consist of texts, integers, and tuples of them"
        elif has_half_pair(text):
            text = ascii(text)
            problem = _HALF_PAIR
        elif text in found:
            problem = f"another path has the same text: {format_path(found[text].path)} and {format_path(leaf.path)}"
        elif isinstance(leaf.value, Tracer):
            problem = "the leaf is a tracer; save and load outside of transformed functions"
        elif not (isinstance(leaf.value, SCALARS) or hasattr(leaf.value, "dtype")) or isinstance(leaf.value, type):
            problem = "a checkpoint holds arrays, numbers and texts"
        if problem is not None:
            raise CheckpointError(f"{where}, {text}", problem, got=describe(leaf.value))
        found[text] = leaf._replace(value=leaf.value[...]) if isinstance(leaf.value, jax.Ref) else leaf
    return found


def _is_key_of_path(key: object) -> bool:
    parts = key if type(key) is tuple and key else (key,)
    return all(type(part) in (str, int) for part in parts)


def text_of(name: str, path: Path) -> str:
    """The text of a path: ``model.blocks.0.kernel``."""
    return ".".join([name, *map(str, path)])


def _keys(path: Iterable[Any]) -> Path:
    return tuple(map(plain_key, path))


def is_json(value: object) -> bool:
    """Whether JSON reads a value back as it is: no tuples, and no keys but texts."""
    try:
        return bool(_exact(json.loads(json.dumps(value)), value))
    except (TypeError, ValueError, RecursionError):
        return False


def _exact(found: Any, value: Any) -> bool:
    if type(found) is not type(value):
        return False
    if isinstance(value, dict):
        has_keys = found.keys() == value.keys() and not any(map(has_half_pair, value))
        return has_keys and all(_exact(found[key], value[key]) for key in value)
    if isinstance(value, list):
        return len(found) == len(value) and all(map(_exact, found, value))
    return bool(found == value) or value != value  # NaN


def holds_nodes(where: str, name: str, value: object) -> bool:
    """Whether a value is or contains a Pytree, a Variable, a ref or a State."""
    try:
        return any(map(_is_node, jax.tree.leaves(value, is_leaf=_is_node)))
    except (TypeError, ValueError) as error:
        got = str(error).splitlines()[0][:200]
        raise CheckpointError(
            f"{where}, {name}", "JAX cannot flatten the item, such as a dict whose keys cannot be sorted", got=got
        ) from None


def _is_node(value: object) -> bool:
    return isinstance(value, (Pytree, Variable, State, jax.Ref))


# --- values back into items -------------------------------------------------------------


def filled(item: Item, values: Mapping[str, Any]) -> Any:
    """A State, or a pytree of arrays and of objects that stay, with other values at some paths."""
    if isinstance(item.value, State):
        definition, old = item.value.definition, item.value.leaves
        texts = [text_of(item.name, path) for path in definition.paths]
        return make_state(definition, [values.get(text, leaf) for text, leaf in zip(texts, old, strict=True)])

    def fill(path: Path, leaf: Any) -> Any:
        return leaf if kind_of(leaf) in OBJECTS else values.get(text_of(item.name, path), leaf)

    return _filled(item.value, (), fill)


def texts_to_copy(item: Item) -> set[str]:
    """The texts of the leaves outside of objects, if one is in a tuple or another container that cannot change.

    These leaves get their new values in a copy of the containers.
    """
    loose: set[str] = set()
    is_fixed = False
    stack: list[tuple[Path, Any, bool]] = [((), item.value, False)]
    while stack:
        path, value, is_within = stack.pop()
        kind = kind_of(value)
        if kind is Kind.CONTAINER:
            keys, children, _ = open_container(value)
            is_within |= not hasattr(value, "__setitem__")
            stack += [((*path, key), child, is_within) for key, child in zip(keys, children, strict=True)]
        elif kind not in OBJECTS:
            loose.add(text_of(item.name, path))
            is_fixed |= is_within and text_of(item.name, path) in item.leaves
    return loose if is_fixed else set()


def _filled(value: Any, path: Path, fill: Callable[[Path, Any], Any]) -> Any:
    """A pytree with other leaves; dicts keep their order, which JAX does not."""
    if value is None or kind_of(value) is not Kind.CONTAINER:
        return value if value is None else fill(path, value)
    keys, children, how = open_container(value)
    return close_container(how, keys, [_filled(c, (*path, k), fill) for k, c in zip(keys, children, strict=True)])


def state_with(item: Item, values: Mapping[str, Any]) -> State[Any]:
    """The State of the graph of an item with new values; leaves without one are left out."""
    binding = bind(item.value, None)
    definition = binding.graphdef.definition
    positions: list[int] = []
    leaves: list[Any] = []
    for position, (path, leaf) in enumerate(zip(definition.paths, binding.read(), strict=True)):
        if kind_of(leaf) is Kind.CONTAINER:
            pairs, _ = jax.tree_util.tree_flatten_with_path(leaf)
            texts = [text_of(item.name, (*path, *_keys(keys))) for keys, _ in pairs]
            if not any(text in values for text in texts):
                continue
            new = _filled(leaf, path, lambda place, part: values.get(text_of(item.name, place), part))
        elif text_of(item.name, path) in values:
            new = values[text_of(item.name, path)]
        else:
            continue
        positions.append(position)
        leaves.append(new)
    return make_state(definition.select(tuple(positions)), leaves)


def without_target(leaves: Iterable[tuple[Path, Any]]) -> Any:
    """The State of leaves by path; a leaf at the root is returned itself."""
    pairs = list(leaves)
    if len(pairs) == 1 and pairs[0][0] == ():
        return pairs[0][1]
    return State.from_flat_path(pairs)

"""The items of a checkpoint as leaves by path, and values by path back into items."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax._classes.pytree import Pytree
from declax._graph.binding import bind
from declax._graph.nodes import Kind, close_container, kind_of, open_container, plain_key, walk_nodes
from declax._state.definition import LeafDef, StateDef, values_of
from declax._state.states import State, make_state
from declax._tree.attributes import class_attribute
from declax._typing import Path
from declax._variables.variable import Variable
from declax.checkpoint.file_arrays import FileArray, aligned
from declax.checkpoint.files import has_half_pair
from declax.checkpoint.safetensors import DTYPES, little
from declax.errors import CheckpointError, describe, format_path

SCALARS: Final = (bool, int, float, str)


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


@dataclass(frozen=True)
class Item:
    """A value in ``{"model": model, "step": 12}``, read once.

    Attributes:
      name: its name.
      value: the value itself.
      leaves: its leaves by the text of their path, with the name of the item.
      is_graph: whether it holds Pytrees, Variables or refs, which are written in place.
      is_json: whether it is plain data, which has no leaves.
    """

    name: str
    value: Any
    leaves: Mapping[str, Leaf]
    is_graph: bool = False
    is_json: bool = False

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
    return Item(name, value, _by_text(where, name, _leaves_of_graph(value)), is_graph=True)


def _leaves_of_graph(value: Any) -> list[Leaf]:
    binding = bind(value, None)
    definition = binding.graphdef.definition
    computed = _computed(value)
    leaves: list[Leaf] = []
    for path, leaf_def, leaf in zip(definition.paths, definition.leaf_defs, binding.read(), strict=True):
        if leaf is None or any(path[: len(place)] == place for place in computed):
            continue
        if kind_of(leaf) is not Kind.CONTAINER:
            leaves.append(Leaf(path, leaf, leaf_def))
            continue
        inner, _ = jax.tree_util.tree_flatten_with_path(leaf)
        leaves += [Leaf((*path, *_keys(keys)), part, leaf_def, len(path)) for keys, part in inner]
    return leaves


def _computed(value: Any) -> list[Path]:
    """The paths of the values of cached properties, which are computed again."""
    return [(*path, name) for path, node in walk_nodes(value) for name in vars(node) if not is_stored(type(node), name)]


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
            problem = "a key has half of a surrogate pair, which no file can hold"
        elif text in found:
            problem = f"another path has the same text: {format_path(found[text].path)} and {format_path(leaf.path)}"
        elif isinstance(leaf.value, Tracer):
            problem = "the leaf is a tracer; save and load outside of transformed functions"
        elif not (isinstance(leaf.value, SCALARS) or hasattr(leaf.value, "dtype")):
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
    """A State, or a pytree of arrays, with other values at some paths."""
    if isinstance(item.value, State):
        definition, old = item.value.definition, item.value.leaves
        texts = [text_of(item.name, path) for path in definition.paths]
        return make_state(definition, [values.get(text, leaf) for text, leaf in zip(texts, old, strict=True)])
    return _filled(item.value, (), lambda path, leaf: values.get(text_of(item.name, path), leaf))


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


# --- arrays as files hold them -----------------------------------------------------------

KEY: Final = "key<"
_RAW: Final = {
    str(dtype): dtype
    for name in ("complex128", "int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3")
    + ("float8_e4m3b11fnuz",)
    for dtype in [np.dtype(getattr(jnp, name))]
}
"""Dtypes of JAX that the format of the files does not have; their arrays are stored as bytes."""
_NAMES: Final = frozenset([*map(str, DTYPES.values()), *_RAW])


class Stored(NamedTuple):
    """An array on its way into a file.

    Attributes:
      shape, dtype: as the file has them.
      fetch: returns the array on the host.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fetch: Callable[[], np.ndarray[Any, Any]]

    @property
    def nbytes(self) -> int:
        """The size in the file."""
        return prod(self.shape) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return self.fetch()


def dtype_text(value: Any) -> str:
    """The dtype of an array as manifests write it: ``key<...>`` with the implementation for random keys."""
    if is_key(value):
        return f"{KEY}{jax.random.key_impl(value)}>" if isinstance(value, jax.Array) else str(value.dtype)
    return str(little(np.dtype(value.dtype)))


def check_storable(where: str, value: Any) -> None:
    """Raises unless a value is an array of numbers or random keys."""
    if isinstance(value, jax.ShapeDtypeStruct):
        raise CheckpointError(where, "an abstract model has no arrays to save", got=describe(value))
    if not (is_key(value) or dtype_text(value) in _NAMES):
        raise CheckpointError(where, "a checkpoint holds arrays of numbers", got=describe(value))


def is_key(value: Any) -> bool:
    """Whether an array holds typed keys of random numbers."""
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def stored(value: Any) -> Stored:
    """An array as a file holds it."""
    if is_key(value):
        data = jax.eval_shape(jax.random.key_data, value)
        return Stored(data.shape, np.dtype(data.dtype), lambda: np.asarray(jax.random.key_data(value)))
    dtype = np.dtype(value.dtype)
    if str(dtype) in _RAW:
        shape = (*value.shape, dtype.itemsize)
        return Stored(shape, np.dtype(np.uint8), lambda: _bytes_of(np.asarray(value)))
    return Stored(tuple(value.shape), dtype, lambda: np.asarray(value))


def _bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint8)


def from_file(where: str, dtype: str, content: FileArray) -> Any:
    """An array of a file in the dtype of the manifest, which is not read yet; random keys as `StoredKeys`."""
    if dtype.startswith(KEY) and dtype.endswith(">"):
        return StoredKeys(where, dtype[len(KEY) : -1], content)
    known = _RAW.get(dtype)
    if known is not None and content.dtype == np.uint8 and content.shape[-1:] == (known.itemsize,):
        return content.view(known)
    if str(content.dtype) != dtype:
        raise CheckpointError(
            where, "the file and the manifest have different dtypes", expected=dtype, got=str(content.dtype)
        )
    return content


class StoredKeys:
    """Random keys in a file: raw data and the name of an implementation."""

    def __init__(self, where: str, implementation: str, content: FileArray) -> None:
        try:
            key = jax.eval_shape(lambda: jax.random.key(0, impl=implementation))
        except ValueError as error:
            raise CheckpointError(where, "unknown implementation of random keys", got=str(error)[:200]) from None
        data = jax.eval_shape(jax.random.key_data, key)
        if content.dtype != data.dtype or content.shape[content.ndim - data.ndim :] != data.shape:
            raise CheckpointError(where, "the data are not those of random keys", got=describe(content))
        self.implementation = implementation
        self.content = content
        self.nbytes: int = content.nbytes
        self.dtype: jnp.dtype = key.dtype
        self.shape: tuple[int, ...] = content.shape[: content.ndim - data.ndim]

    def read(self) -> Any:
        """The keys."""
        return jax.random.wrap_key_data(jnp.asarray(self.content[...]), impl=self.implementation)


def _without_like(found: Any) -> Any:
    """A stored array of JAX; of numpy where JAX would change the dtype, as without 64-bit numbers."""
    if isinstance(found, StoredKeys):
        return found.read()
    if isinstance(found, SCALARS):
        return found
    is_same = jax.dtypes.canonicalize_dtype(found.dtype) == found.dtype
    return jax.device_put(_copied(found)) if is_same else np.array(found)


def _copied(found: FileArray | np.ndarray[Any, Any], index: Any = ...) -> np.ndarray[Any, Any]:
    """A copy of a part of an array, which JAX need not copy again."""
    if isinstance(found, FileArray):
        return found[index]
    part = found[index]
    copy = aligned(part.shape, part.dtype)
    copy[...] = part
    return copy


def on_device(found: Any, like: Any) -> Any:
    """A stored leaf as an array of the kind and on the devices of another one, a copy.

    Only the parts that this process holds are read.
    """
    if isinstance(found, SCALARS):
        is_array = hasattr(like, "dtype") and not isinstance(like, np.generic)
        return jnp.asarray(found, like.dtype) if is_array else found
    if like is None:
        return _without_like(found)
    if isinstance(found, StoredKeys):
        keys = found.read()
        sharding = getattr(like, "sharding", None)
        is_free = sharding is None or not getattr(like, "committed", True)
        return keys if is_free else jax.device_put(keys, sharding)
    if isinstance(like, np.ndarray):
        return np.array(found)
    if isinstance(like, np.generic):
        return np.asarray(found)[()]
    sharding = getattr(like, "sharding", None)
    if sharding is None or not getattr(like, "committed", True):
        return jax.device_put(_copied(found))
    return jax.make_array_from_callback(found.shape, sharding, lambda index: _copied(found, index))

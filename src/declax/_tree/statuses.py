"""The status of a value: data (a child of the tree), static, or a snapshot."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, cast

import jax
import numpy as np

from declax._fields.annotations import add_data_type, is_data_class
from declax._fields.snapshots import attributes_of, is_fixed, model_among_keys
from declax._fields.specifiers import Status
from declax._tree import epoch
from declax._tree.iterators import ITERATORS
from declax._typing import MISSING
from declax.errors import MAX_DEPTH, too_deep, type_name, with_article

PLAIN: Final = frozenset(
    {int, float, bool, complex, str, bytes, type(None), type, type(jax.numpy.float32)}
    | {types.FunctionType, types.BuiltinFunctionType}
)
CONTAINERS: Final = (list, tuple, dict, set, frozenset)


def is_data(value: object, /) -> bool:
    """Whether a value, by itself, is pytree data.

    Arrays, array refs, Variables, Pytrees and types registered by `register_data_type` are; all else is static.

    >>> import declax as dx
    >>> dx.is_data(jax.numpy.zeros(3)), dx.is_data(3), dx.is_data([jax.numpy.zeros(3)])
    (True, False, False)
    """
    cls = value.__class__
    return cls not in PLAIN and is_data_class(cls)


def has_data(value: object, /) -> bool:
    """Whether a value is data or, being a container, holds some.

    >>> import declax as dx
    >>> dx.has_data([1, {"a": jax.numpy.zeros(3)}])
    True
    """
    return next(data_within(value), None) is not None


def data_within(value: object) -> Iterator[object]:
    """All data in a value, or the value itself."""
    for item in items_within(value):
        if is_data(item):
            yield item
        elif item.__class__ is not types.MethodType and item.__class__ not in ITERATORS:
            yield from filter(is_data, jax.tree.leaves(item, is_leaf=is_data))


def data_in_static(value: object) -> object | None:
    """The first data in a static value, or None; dataclasses in it may hold random streams and NumPy arrays."""
    waiting, seen = [value], set[int]()
    while waiting:
        around = waiting.pop()
        is_record = around is not value
        for item in items_within(around):
            if is_record and item.__class__ is np.ndarray and not cast("Any", item).dtype.hasobject:
                continue
            attributes = attributes_of(item)
            if attributes is None or is_data(item):
                found = next(data_within(item), None)
                if found is not None:
                    return found
            elif id(item) not in seen:
                seen.add(id(item))
                waiting.append([part for part in attributes.values() if not getattr(part, "_pytree__draws", False)])
    return None


def items_within(value: Any, place: Callable[[], str] | None = None) -> Iterable[object]:
    """The values in nested containers that are neither plain nor containers; the value itself if it is one."""
    cls = value.__class__
    if cls is not list and cls is not dict and not _may_open(value):
        return () if cls in PLAIN else (value,)
    if PLAIN.issuperset(map(type, value.values() if isinstance(value, dict) else value)):
        return ()
    return _walk_items(value, place)


def _walk_items(value: Any, place: Callable[[], str] | None) -> Iterator[object]:
    around = {id(value): value}  # the containers that are open, outermost first
    stack: list[Iterator[Any]] = [iter(value.values() if isinstance(value, dict) else value)]
    while stack:
        for item in stack[-1]:
            cls = item.__class__
            if cls in _ATOMS:
                yield item
            elif cls in PLAIN:
                continue
            elif not _may_open(item):
                yield item
            elif id(item) not in around:
                if len(around) == MAX_DEPTH:
                    where = with_article(type_name(type(value))) if place is None else place()
                    raise too_deep(where, keys_between([*around.values(), item]))
                around[id(item)] = item
                stack.append(iter(item.values() if isinstance(item, dict) else item))
                break
        else:
            stack.pop()
            around.popitem()


def model_key_in(value: Any) -> object | None:
    """A model that is a key of a dict in nested containers; None if there is none."""
    waiting, seen = [value], set[int]()
    for container in waiting:
        if isinstance(container, dict):
            if not PLAIN.issuperset(map(type, container)) and (model := model_among_keys(container)) is not None:
                return model
            container = container.values()
        if not PLAIN.issuperset(map(type, container)) and set(map(type, container)).difference(PLAIN, _ATOMS):
            inner = [item for item in container if _may_open(item) and id(item) not in seen]
            seen.update(map(id, inner))
            waiting += inner
    return None


_ATOMS: Final[set[type]] = set()
"""Classes that were found to be no containers, so that each is asked once."""


def _may_open(value: object) -> bool:
    """Whether a value is a container, and not itself data."""
    if isinstance(value, CONTAINERS):
        return not is_data(value)
    if value.__class__ not in PLAIN:
        _ATOMS.add(value.__class__)
    return False


def check_depth(value: object, where: str) -> None:
    """Refuses containers that are nested too deeply."""
    for _ in items_within(value, lambda: where):
        pass


def own_containers(value: Any) -> Any:
    """The same leaves in new lists, dicts and tuples."""
    if not isinstance(value, (list, dict, tuple)):
        return value
    check_depth(value, "Variable.value")
    return jax.tree.map(lambda leaf: leaf, value)


def keys_between(containers: Iterable[Any]) -> Iterator[object]:
    """The keys that lead from each container to the next one, which it holds."""
    for outer, inner in pairwise(containers):
        items = outer.items() if isinstance(outer, dict) else enumerate(outer)
        yield next((key for key, item in items if item is inner), "?")


def register_data_type(cls: type, /) -> type:
    """Makes instances of a class data wherever they are assigned; usable as a decorator.

    >>> import declax as dx
    >>> @dx.register_data_type
    ... class Table: pass
    >>> dx.is_data(Table())
    True
    """
    add_data_type(cls)
    epoch.advance()  # graphs that hold an instance have one leaf more now
    return cls


def status_of_value(value: object) -> Status:
    """The status that a value gives an attribute that has none yet."""
    return Status.DATA if is_data(value) else static_status(value)


def static_status(value: object) -> Status:
    """Static, or static by snapshot where something in the value can change, and for a `functools.partial`."""
    is_own_snapshot = value.__class__ in PLAIN or (value.__class__ is not functools.partial and is_fixed(value))
    return Status.STATIC if is_own_snapshot else Status.SNAPSHOT


def same_value(a: Any, b: Any) -> bool:
    """Whether two values are equal: pytrees of one structure, whose arrays are equal element by element."""
    if a is b:
        return True
    flattened: Any = map(jax.tree.flatten, (a, b))
    (leaves, tree), (others, other_tree) = flattened
    return bool(tree == other_tree) and all(map(_same_leaf, leaves, others))


def _same_leaf(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, (jax.Array, np.ndarray)) or isinstance(b, (jax.Array, np.ndarray)):
        same_kind = np.shape(a) == np.shape(b) and getattr(a, "dtype", MISSING) == getattr(b, "dtype", MISSING)
        return same_kind and bool(jax.numpy.all(a == b))
    return bool(a == b)

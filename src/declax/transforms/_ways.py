"""What code says by names of objects that captures do not look into.

Vocabulary
----------
way: how code says where something is: ``experiment.parts.model``.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from declax._typing import MISSING
from declax.transforms._holders import (
    UNREADY,
    Sort,
    attributes_of,
    content_of,
    is_library,
    is_of_library,
    names_in,
    sort_of,
)

MOST_OBJECTS: Final = 1000
"""So many objects are looked at for what is in their attributes."""

_NOTHING: Final = types.MappingProxyType[str, Any]({})
NO_OBJECTS: Final = (types.ModuleType, types.MethodType, type)


def is_named_in(holder: Any) -> bool:
    """Whether code says by names what it reads of a holder: of a function, or of an object that has methods."""
    if isinstance(holder, types.FunctionType):
        return True
    return isinstance(own_names(holder), dict) and not isinstance(holder, NO_OBJECTS)


def own_names(content: Any) -> Mapping[str, Any]:
    """The attributes in the ``__dict__`` of an object or class; empty where a proxy has none to show."""
    try:
        own = content.__dict__
    except Exception:  # noqa: BLE001  # what a property of a user raises
        own = None
    return own if isinstance(own, (dict, types.MappingProxyType)) else _NOTHING


def used_by(holders: Iterable[Any]) -> frozenset[str]:
    """The names that functions look up, those of attributes among them."""
    return frozenset[str]().union(*(attributes_in(h.__code__) for h in holders if isinstance(h, types.FunctionType)))


def attributes_named(
    holder: Any, used: frozenset[str], known: Collection[int], *, is_wide: bool = False
) -> Iterator[tuple[str, Any]]:
    """The attributes of objects to which names lead, one after the other.

    Args:
      holder: a function, or an object that has methods.
      used: the names that all functions in question look up.
      known: the identities of objects that are looked into already.
      is_wide: whether what a function names may be read by other functions, to which
        it hands it, and by its own methods; else by the function itself.
    """
    if isinstance(holder, types.FunctionType):
        waiting = deque(contents_of(holder))
        used = used if is_wide else attributes_in(holder.__code__)
    else:
        attributes = attributes_of(holder).items()
        waiting = deque((f"self.{name}", value) for name, value in attributes if name in used)
    seen = set(known)
    while waiting and len(seen) < len(known) + MOST_OBJECTS:
        way, content = waiting.popleft()
        if id(content) in seen or sort_of(content) is Sort.ROOT or content is MISSING:
            continue
        seen.add(id(content))
        if issubclass(type(content), types.ModuleType) and is_of_library(content.__name__):
            continue
        own = own_names(content)
        names = used
        if is_wide and not issubclass(type(content), NO_OBJECTS):
            names = used | _used_by_methods(type(content), used)
        for attribute in filter(own.__contains__, names):
            value = own[attribute]
            yield f"{way}.{attribute}", value
            kind = type(value)
            if kind is types.SimpleNamespace or not (issubclass(kind, NO_OBJECTS) or is_library(value)):
                waiting.append((f"{way}.{attribute}", value))


def _used_by_methods(cls: type, used: frozenset[str]) -> frozenset[str]:
    """The names that the methods of these names look up, and those that they call."""
    if is_of_library(cls.__module__):
        return frozenset()
    found, waiting = set[str](), list(used)
    while waiting:
        name = waiting.pop()
        for base in cls.__mro__:
            method = vars(base).get(name)
            if isinstance(method, types.FunctionType):
                new = attributes_in(method.__code__) - found
                found |= new
                waiting += new
    return frozenset(found)


def contents_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of outer functions and the names of its module that a function looks up."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = [(name, content_of(cell)) for name, cell in cells]
    found += [(name, function.__globals__.get(name, MISSING)) for name in names_in(function.__code__).all]
    return ((name, content) for name, content in found if type(content) not in UNREADY)


@functools.lru_cache(maxsize=4096)
def attributes_in(code: types.CodeType) -> frozenset[str]:
    """The names that a function, and those inside of it, look up, those of attributes among them."""
    inner = (attributes_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*inner)

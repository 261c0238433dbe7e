"""What functions consist of, and where they keep things.

Vocabulary
----------
holder:  what a function consists of, and what can be made anew: functions,
         partials, methods, callable objects, other lifted functions, and the
         containers and records in which they are kept.
sort:    of a value: a root, one of the sorts of holders, or none of these.
record:  a `types.SimpleNamespace`, a `UserDict` or `UserList`, or an instance of
         a plain dataclass.
place:   where a holder keeps one thing: a cell, a default, a name, an attribute.
library: modules whose names hold no model of anybody.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import dataclasses
import dis
import enum
import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from declax._typing import MISSING
from declax.transforms._names import base_of
from declax.transforms._roots import is_root

LIBRARIES = frozenset({"declax", "jax", "jaxlib", "numpy", "optax"})
INERT = (types.ModuleType, type, types.BuiltinFunctionType, int, float, complex, str, bytes, jax.Array, np.ndarray)
"""What holds no model, and is not replaced by one."""


class Sort(enum.Enum):
    """What a value is for the search."""

    ROOT = enum.auto()
    FUNCTION = enum.auto()
    PARTIAL = enum.auto()
    METHOD = enum.auto()
    CLOSURE = enum.auto()
    LIFTED = enum.auto()
    CACHE = enum.auto()
    OBJECT = enum.auto()
    LIST = enum.auto()
    TUPLE = enum.auto()
    DICT = enum.auto()


CONTAINERS = frozenset({Sort.LIST, Sort.TUPLE, Sort.DICT})
SHELLS = frozenset({Sort.FUNCTION, Sort.OBJECT, Sort.LIST, Sort.DICT})
"""What can be part of a circle: it is made first, and filled later."""

_sorts: dict[type, Sort | None] = {
    types.FunctionType: Sort.FUNCTION,
    types.MethodType: Sort.METHOD,
    type(functools.lru_cache(lambda: None)): Sort.CACHE,
    list: Sort.LIST,
    deque: Sort.LIST,
    tuple: Sort.TUPLE,
    dict: Sort.DICT,
    collections.OrderedDict: Sort.DICT,
    collections.defaultdict: Sort.DICT,
}
WITHOUT_SORT: set[type] = set()
"""The classes of which it is known that their instances have no sort."""


UNREADY: set[type] = set()
"""The classes of proxies that answered nothing when they were first met; they are left alone."""


def sort_of(value: object) -> Sort | None:
    """What a value is; None for what is neither a root nor a holder.

    Of other objects, records are holders, and those whose class says in Python
    how they are called: of what C calls, nothing can be replaced.
    """
    cls = type(value)  # and not `value.__class__`, which a proxy may compute
    try:
        return _sorts[cls]
    except KeyError:
        if _is_unready(value):
            UNREADY.add(cls)
        found = _sorts[cls] = None if cls in UNREADY else _find_sort(value, cls)
        if found is None:
            WITHOUT_SORT.add(cls)
        return found


def set_sort(cls: type, sort: Sort) -> None:
    """Says what the instances of a class of this library are."""
    _sorts[cls] = sort


def _is_unready(value: object) -> bool:
    """Whether nothing can be asked of a value, as of a proxy of something that is not there yet."""
    try:
        return isinstance(value, Sort)  # which asks for `__class__`, and is not so
    except Exception:  # noqa: BLE001  # what a user's proxy raises
        return True


def _find_sort(value: object, cls: type) -> Sort | None:
    if is_root(value):
        return Sort.ROOT
    if issubclass(cls, functools.partial):
        return Sort.PARTIAL
    if is_of_library(cls.__module__) and hasattr(cls, "_over"):
        return Sort.LIFTED
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return Sort.TUPLE
    if issubclass(cls, INERT):
        return None
    is_record = issubclass(cls, _RECORDS) or (dataclasses.is_dataclass(cls) and not is_of_library(cls.__module__))
    return Sort.OBJECT if is_record or is_called_by_python(cls) else None


_RECORDS = (types.SimpleNamespace, collections.UserDict, collections.UserList)


def is_called_by_python(cls: type) -> bool:
    """Whether a class says in Python how its instances are called."""
    return isinstance(inspect.getattr_static(cls, "__call__", None), types.FunctionType)


class Place(NamedTuple):
    """Where a holder keeps something.

    Attributes:
      holder: the number of the holder; -1 for the function as a whole.
      kind: of the place: "variable", "name", "default", "attribute", ...
      key: which of them.
      content: what is there.
      source: where it is read again: a cell, the names of a module, an object.
    """

    holder: int
    kind: str
    key: Any
    content: Any
    source: Any = None

    @property
    def name(self) -> str:
        """Says where the place is."""
        return f"{self.kind} {self.key!r}"


def places_of(holder: Any, number: int, sort: Sort | None) -> Iterator[Place]:
    """All places of a holder where something is, or may come to be, that counts."""
    if sort is Sort.FUNCTION:
        return _places_of_function(holder, number)
    if sort is Sort.PARTIAL:
        return _places_of_partial(holder, number)
    if sort is Sort.METHOD:
        return _places_of_method(holder, number)
    if sort in CONTAINERS:
        items = tuple(holder.items() if sort is Sort.DICT else enumerate(holder))
        return (Place(number, "item", key, item) for key, item in items if sort_of(item) is not None)
    if sort is Sort.CLOSURE:
        return iter((Place(number, "function", 0, holder.function),))
    if sort is Sort.LIFTED:
        return iter((Place(number, "function", 0, holder._closure),))
    if sort is Sort.CACHE:
        return iter((Place(number, "function", 0, holder.__wrapped__),))
    if issubclass(type(holder), INERT):
        return iter(())
    attributes = attributes_of(holder).items()
    return (Place(number, "attribute", name, v, holder) for name, v in attributes if not issubclass(type(v), INERT))


def _places_of_function(function: types.FunctionType, number: int) -> Iterator[Place]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        content = content_of(cell)
        if not issubclass(type(content), INERT):
            yield Place(number, "variable", name, content, cell)
    if not is_library(function):
        yield from _places_of_names(function, number)
    given = function.__defaults__ or ()
    code = function.__code__
    for name, value in zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=True):
        if sort_of(value) is not None:
            yield Place(number, "default", name, value, function)
    for name, value in (function.__kwdefaults__ or {}).items():
        if sort_of(value) is not None:
            yield Place(number, "keyword default", name, value, function)
    for name, value in vars(function).items():
        if not issubclass(type(value), INERT):
            is_python = name.startswith("__")  # as `__wrapped__`, which nobody sets later
            yield Place(number, "attribute", name, value, None if is_python else function)


def _places_of_names(function: types.FunctionType, number: int) -> Iterator[Place]:
    names = function.__globals__
    for name in names_in(function.__code__).all:
        content = names.get(name, MISSING)
        if not issubclass(type(content), INERT) and not (content is MISSING and name in _BUILTINS):
            yield Place(number, "name", name, content, names)


def _places_of_partial(holder: functools.partial[Any], number: int) -> Iterator[Place]:
    yield Place(number, "function", 0, holder.func)
    for index, value in enumerate(holder.args):
        yield Place(number, "argument", index, value)
    for name, value in holder.keywords.items():
        yield Place(number, "keyword", name, value)


def _places_of_method(holder: types.MethodType, number: int) -> Iterator[Place]:
    yield Place(number, "function", 0, holder.__func__)
    if not issubclass(type(holder.__self__), INERT):
        yield Place(number, "owner", 0, holder.__self__)


_BUILTINS = vars(builtins)


class UsedNames(NamedTuple):
    """The names of a module that a function, and those inside of it, use.

    Attributes:
      all: those that it looks up or assigns.
      read_directly: of these, those that Python looks up in the dict itself: for bodies of classes.
      assigned: those that it assigns with ``global``.
      reads_any: whether it may look up names that its code does not tell.
    """

    all: tuple[str, ...]
    read_directly: tuple[str, ...]
    assigned: tuple[str, ...]
    reads_any: bool


_OPERATIONS = {
    "LOAD_GLOBAL": 0,
    "LOAD_NAME": 1,
    "LOAD_FROM_DICT_OR_GLOBALS": 1,
    "DELETE_GLOBAL": 1,
    "STORE_GLOBAL": 2,
}
_READERS_OF_ANY = frozenset({"eval", "exec", "globals", "vars"})


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> UsedNames:
    """The names that the code of a function uses."""
    found: tuple[dict[str, None], ...] = ({}, {}, {})
    codes = [code]
    while codes:
        code = codes.pop()
        for instruction in dis.get_instructions(code):
            operation = _OPERATIONS.get(instruction.opname)
            if operation is not None:
                found[operation][instruction.argval] = None
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    read, read_directly, assigned = found
    is_any = not _READERS_OF_ANY.isdisjoint(read)
    return UsedNames(tuple(read | read_directly | assigned), tuple(read_directly), tuple(assigned), is_any)


def content_of(cell: types.CellType) -> Any:
    """What a cell holds; `MISSING` where it is not filled yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def is_of_library(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES


def is_library(holder: Any) -> bool:
    """Whether a function or an object is of a library, whose names and cells nobody sets."""
    if not isinstance(holder, types.FunctionType):
        return is_of_library(type(holder).__module__)
    names = base_of(holder.__globals__)
    name = names.get("__name__")
    return is_of_library(name) and vars(sys.modules.get(str(name), types)) is names


def is_of_module(function: Callable[..., Any], holder: Any) -> bool:
    """Whether a name that a function looks up leads to another one of its module.

    Decorators count as what they decorate; so does what a library makes of it.
    """
    names = base_of(holder.__globals__)
    seen: dict[int, object] = {}
    found: Any = function
    while isinstance(found, types.FunctionType) and id(found) not in seen:
        seen[id(found)] = found
        if base_of(found.__globals__) is names:
            return True
        if "__wrapped__" in vars(found) and is_library(found):
            return True
        found = vars(found).get("__wrapped__")
    return sort_of(found) in (Sort.LIFTED, Sort.CACHE)


def attributes_of(holder: Any) -> dict[str, Any]:
    """The attributes that an object has itself, in its ``__dict__`` or in slots."""
    found = {}
    for name, member in _slots_of(type(holder)):
        with contextlib.suppress(AttributeError):  # a slot that is not filled
            found[name] = member.__get__(holder)
    return found | getattr(holder, "__dict__", {})


def set_attributes(holder: Any, attributes: dict[str, Any]) -> None:
    """Gives an object attributes, in slots and its ``__dict__``, past its own ``__setattr__``."""
    slots = dict(_slots_of(type(holder)))
    for name, value in attributes.items():
        if name in slots:
            slots[name].__set__(holder, value)
        else:
            holder.__dict__[name] = value


def remove_attribute(holder: Any, name: str) -> None:
    """Removes an attribute of an object, past its own ``__delattr__``."""
    slots = dict(_slots_of(type(holder)))
    if name in slots:
        slots[name].__delete__(holder)
    else:
        del holder.__dict__[name]


def attribute_of(holder: Any, name: str) -> Any:
    """An attribute that an object has itself; `MISSING` where it has none."""
    attributes = getattr(holder, "__dict__", None)
    if attributes is not None and name in attributes:
        return attributes[name]
    return getattr(holder, name, MISSING)


def _slots_of(cls: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, member)
        for base in cls.__mro__
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    )

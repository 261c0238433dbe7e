"""In which things captures are looked for, and where these keep what they hold.

Vocabulary
----------
holder: a function, or what is followed because functions keep things in it: a
        partial, a bound method, a lifted function, a list, a tuple or a dict.
kind:   of a value: a node, one of the kinds of holders, or None.
site:   where a holder keeps one thing: a cell, a default, a name, an item.
"""

from __future__ import annotations

import builtins
import collections
import dis
import enum
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from declax._typing import MISSING
from declax.transforms._names import base_of
from declax.transforms._roots import is_root

LIBRARIES: Final = frozenset({"declax", "jax", "jaxlib", "numpy", "optax"})
"""Modules whose names hold no model of anybody."""

INERT: Final = (
    types.ModuleType,
    type,
    types.BuiltinFunctionType,
    int,
    float,
    complex,
    str,
    bytes,
    jax.Array,
    np.ndarray,
)
"""What holds no model, and is not replaced by one."""


class CaptureKind(enum.Enum):
    """What a value is for the search."""

    NODE = enum.auto()
    FUNCTION = enum.auto()
    PARTIAL = enum.auto()
    METHOD = enum.auto()
    CLOSURE = enum.auto()
    LIFTED = enum.auto()
    LIST = enum.auto()
    TUPLE = enum.auto()
    DICT = enum.auto()


CONTAINERS: Final = frozenset({CaptureKind.LIST, CaptureKind.TUPLE, CaptureKind.DICT})
STUBS: Final = frozenset({CaptureKind.FUNCTION, CaptureKind.LIST, CaptureKind.DICT})
"""What can be part of a cycle: it is made first, and filled later."""

_kinds: Final[dict[type, CaptureKind | None]] = {
    types.FunctionType: CaptureKind.FUNCTION,
    types.MethodType: CaptureKind.METHOD,
    list: CaptureKind.LIST,
    tuple: CaptureKind.TUPLE,
    dict: CaptureKind.DICT,
    collections.OrderedDict: CaptureKind.DICT,
    collections.defaultdict: CaptureKind.DICT,
}
WITHOUT_KIND: Final[set[type]] = set()
"""The classes whose instances are known to have no kind."""


def capture_kind(value: object) -> CaptureKind | None:
    """What a value is; None for what is neither a node nor a holder."""
    cls = type(value)  # and not `value.__class__`, which a proxy may compute
    try:
        return _kinds[cls]
    except KeyError:
        found = _kinds[cls] = _kind_of_class(value, cls)
        if found is None:
            WITHOUT_KIND.add(cls)
        return found


def set_capture_kind(cls: type, kind: CaptureKind) -> None:
    """Sets the kind of the instances of a class of this library."""
    _kinds[cls] = kind


def _kind_of_class(value: object, cls: type) -> CaptureKind | None:
    if issubclass(cls, functools.partial):
        return CaptureKind.PARTIAL
    if is_of_library(cls.__module__) and hasattr(cls, "_over"):
        return CaptureKind.LIFTED
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return CaptureKind.TUPLE
    try:
        return CaptureKind.NODE if is_root(value) else None
    except Exception:  # noqa: BLE001  # what a user's proxy raises that has nothing to stand for yet
        return None


class CaptureSite(NamedTuple):
    """Where a holder keeps something.

    Attributes:
      holder: the number of the holder; -1 for the function as a whole.
      kind: of the site: "variable", "name", "default", "item", ...
      key: which of them.
      content: what is there.
    """

    holder: int
    kind: str
    key: Any
    content: Any


def sites_of(holder: Any, number: int) -> Iterator[CaptureSite]:
    """All sites of a holder where a model is, or may come to be."""
    kind = capture_kind(holder)
    if kind is CaptureKind.FUNCTION:
        yield from _sites_of_function(holder, number)
    elif kind is CaptureKind.PARTIAL:
        yield CaptureSite(number, "function", 0, holder.func)
        yield from (CaptureSite(number, "argument", *pair) for pair in enumerate(holder.args))
        yield from (CaptureSite(number, "keyword", *pair) for pair in holder.keywords.items())
    elif kind is CaptureKind.METHOD:
        yield CaptureSite(number, "function", 0, holder.__func__)
        yield CaptureSite(number, "owner", 0, holder.__self__)
    elif kind is CaptureKind.CLOSURE:
        yield CaptureSite(number, "function", 0, holder.function)
    elif kind is CaptureKind.LIFTED:
        yield CaptureSite(number, "function", 0, holder._closure)
    elif kind in CONTAINERS:
        items = tuple(holder.items() if kind is CaptureKind.DICT else enumerate(holder))
        yield from (CaptureSite(number, "item", *pair) for pair in items if capture_kind(pair[1]) is not None)


def _sites_of_function(function: types.FunctionType, number: int) -> Iterator[CaptureSite]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield CaptureSite(number, "variable", name, content_of(cell))
    if is_library(function):
        return
    for name in names_in(function.__code__).all:
        content = function.__globals__.get(name, MISSING)
        if content is not MISSING or not hasattr(builtins, name):
            yield CaptureSite(number, "name", name, content)
    given, code = function.__defaults__ or (), function.__code__
    for name, value in zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=True):
        if capture_kind(value) is not None:
            yield CaptureSite(number, "default", name, value)
    for name, value in (function.__kwdefaults__ or {}).items():
        if capture_kind(value) is not None:
            yield CaptureSite(number, "keyword default", name, value)


class UsedNames(NamedTuple):
    """The names of a module that a function, and those inside of it, use.

    Attributes:
      all: those that it looks up or assigns.
      read_directly: of these, those that Python looks up in the dict itself: for bodies of classes.
      reads_any: whether it may look up names that its code does not tell.
    """

    all: tuple[str, ...]
    read_directly: tuple[str, ...]
    reads_any: bool


_IS_DIRECT: Final = {
    "LOAD_GLOBAL": False,
    "STORE_GLOBAL": False,
    "LOAD_NAME": True,
    "LOAD_FROM_DICT_OR_GLOBALS": True,
    "DELETE_GLOBAL": True,
}
_READERS_OF_ANY: Final = frozenset({"eval", "exec", "globals", "vars"})


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> UsedNames:
    """The names that the code of a function uses."""
    found: dict[str, bool] = {}
    codes = [code]
    while codes:
        code = codes.pop()
        for instruction in dis.get_instructions(code):
            is_direct = _IS_DIRECT.get(instruction.opname)
            if is_direct is not None:
                found[instruction.argval] = found.get(instruction.argval, False) or is_direct
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    directly = tuple(name for name, is_direct in found.items() if is_direct)
    return UsedNames(tuple(found), directly, not _READERS_OF_ANY.isdisjoint(found))


def content_of(cell: types.CellType) -> Any:
    """What a cell holds; `MISSING` where it is not filled yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def is_of_library(module: object) -> bool:
    """Whether a module, given by name, holds no model of anybody."""
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES


def is_library(function: types.FunctionType) -> bool:
    """Whether a function is of a library, whose names and cells nobody sets."""
    names = base_of(function.__globals__)
    name = names.get("__name__")
    return is_of_library(name) and vars(sys.modules.get(str(name), types)) is names


def is_of_module(function: Any, names: dict[str, Any]) -> bool:
    """Whether a function, or one that it wraps, is of the module of these names, or was made by a library of such."""
    seen: set[int] = set()
    while isinstance(function, types.FunctionType) and id(function) not in seen:
        if base_of(function.__globals__) is base_of(names) or (
            is_library(function) and hasattr(function, "__wrapped__")
        ):
            return True
        seen.add(id(function))
        function = vars(function).get("__wrapped__")
    return capture_kind(function) is CaptureKind.LIFTED

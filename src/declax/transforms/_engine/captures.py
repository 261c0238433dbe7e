"""Models that a function captures are arguments that nobody has to write.

What a function reaches by closure, defaults, names of its module, partials, methods, containers and other functions
goes into a transform like an argument; `_rebinding` rebuilds the function over the copies. A *holder* keeps things at
*sites*: cells, defaults, names, items. Sites that may come to hold another model are looked at before each call.
"""

from __future__ import annotations

import builtins
import collections
import copy
import dis
import enum
import functools
import inspect
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from operator import is_
from typing import Any, Final, NamedTuple, Self

import jax
import numpy as np

from declax._graph.flattening import walk
from declax._typing import MISSING
from declax._variables.variable import Variable, end_trace
from declax.errors import TransformError, describe
from declax.transforms._engine.structure import CaptureKey, is_finished, is_labels, is_root


class Names(dict[str, Any]):
    """The names of a module (`base`), with other things in place of the captured ones (`replaced`).

    A function looks names up here first, and then in the module; what it assigns with ``global`` stays here. Python
    looks some names up without a call of `__missing__`: those are *lent*, which is to say copied from the module.
    """

    def __init__(self, base: dict[str, Any]) -> None:
        super().__init__()
        self.base = base
        self.replaced: dict[str, Any] = {}
        self._lent: dict[str, Any] = {}
        self.lend(["__builtins__", *[name for name in list(base_of(base)) if name[:2] == "__"]])

    def __missing__(self, name: str) -> Any:
        return self.base[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The thing of a name."""
        return self[name] if name in self else self.base.get(name, default)

    def lend(self, names: Iterable[str]) -> None:
        """Takes what the module has for some names; what is replaced stays so."""
        for name in names:
            value = self.base.get(name, MISSING)
            if value is not MISSING and name not in self:
                self[name] = self._lent[name] = value

    def replace(self, name: str, value: Any) -> None:
        """Puts another thing in the place of a captured one."""
        self[name] = self.replaced[name] = value

    def assigned(self) -> dict[str, Any]:
        """What a function has assigned with ``global``."""
        given = self._lent | self.replaced
        return {name: value for name, value in self.items() if given.get(name, MISSING) is not value}

    def release(self) -> None:
        """Has all names mean again what they mean in the module, also when that changes later."""
        self.replaced.clear()
        self.clear()
        self.lend(list(self._lent))


def base_of(names: dict[str, Any]) -> dict[str, Any]:
    """The names of the module itself."""
    while isinstance(names, Names):
        names = names.base
    return names


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
    """Where a holder, given by its number (-1: the function itself), keeps something: a "variable", an "item", ..."""

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
    for name in names_in(function.__code__):
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


_IS_DIRECT: Final = {
    "LOAD_GLOBAL": False,
    "STORE_GLOBAL": False,
    "DELETE_GLOBAL": False,
    "LOAD_NAME": True,
    "LOAD_FROM_DICT_OR_GLOBALS": True,
}


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> dict[str, bool]:
    """The names of its module that a function uses; whether, as in the body of a class, the dict itself is asked."""
    found: dict[str, bool] = {}
    codes = [code]
    while codes:
        code = codes.pop()
        for instruction in dis.get_instructions(code):
            is_direct = _IS_DIRECT.get(instruction.opname)
            if is_direct is not None:
                found[instruction.argval] = found.get(instruction.argval, False) or is_direct
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return found


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


MAX_KEYS: Final = 1024
"""For how many different captures one function keeps the keys; the oldest goes first."""


class Closure:
    """A function and what it captures in a call: what a transform keeps, so that its own result can be captured too.

    `user` is the function whose parameters name the arguments; the function itself by default.
    """

    __slots__ = ("__weakref__", "_keys", "captures", "function", "user")

    def __init__(self, function: Callable[..., Any], user: Callable[..., Any] | None = None) -> None:
        _check_returns(function)
        self.function: Callable[..., Any] = function
        self.user: Callable[..., Any] = function if user is None else user
        self.captures: Captures | None = None
        self._keys: dict[Hashable, CaptureKey] = {}

    def find(self) -> Captures:
        """What the function captures now; to be called once for a call."""
        captures = self.captures
        if captures is None or not captures.is_current():
            captures = Captures(self.function)
            if len(self._keys) >= MAX_KEYS:
                self._keys.clear()
            key = CaptureKey(self.user, captures.variables())
            captures.key = self._keys.setdefault(captures.describe() if captures.captured else (), key)
            captures.key.captures = weakref.ref(captures)
            self.captures = captures
        return captures

    def captures_of(self, key: CaptureKey) -> Captures:
        """The captures of the call that is traced now, also after the function has changed what it captures."""
        captures: Captures | None = key.captures()
        if captures is None or not captures.is_current():
            found = self.find()
            captures = found if captures is None or found.key is key else captures
        return captures


_kinds[Closure] = CaptureKind.CLOSURE

_WITHOUT_RESULT: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _check_returns(function: Any) -> None:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if isinstance(code, types.CodeType) and code.co_flags & _WITHOUT_RESULT:
        raise TransformError(
            f"the function {code.co_name}",
            "a generator function or coroutine cannot be transformed",
            expected="a function that returns arrays and models",
            got=describe(function),
            why="its body runs only after it has returned",
            fix="return a list in place of yielding, and await outside of the transform",
        )


class Captures:
    """What a function captures: found by one search along all that it reaches.

    Attributes:
      numbers: the number of each holder, by identity.
      captured: the sites where nodes are.
      values: the captured nodes, each once.
      key: stands for the function and the sites of what is captured.
      is_fixed: whether nothing that is reached can come to be a model.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        method = inspect.getattr_static(type(function), "__call__", None)
        if capture_kind(function) is None and isinstance(method, types.FunctionType):
            function = types.MethodType(method, function)
        self.function: Callable[..., Any] = function
        self.holders: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.sites: list[CaptureSite] = []
        self.captured: list[CaptureSite] = []
        self.key: CaptureKey
        self._has_unfinished = False  # a model that is being made is no argument yet, but will be one
        self._cells: list[types.CellType] = []
        self._names: list[tuple[dict[str, Any], str]] = []
        self._defaults: dict[int, tuple[types.FunctionType, Any, Any]] = {}
        self._items: list[tuple[Any, Sequence[Any]]] = []
        self._empty: list[Any] = []
        self._search()
        self._contents = self._read()
        self.values: tuple[Any, ...] = tuple({id(site.content): site.content for site in self.captured}.values())
        watched = self._contents or self._defaults or self._items or self._empty
        self.is_fixed: bool = not (watched or self.captured or self._has_unfinished)

    # ------------------------------------------------------------- the search

    def _search(self) -> None:
        if capture_kind(self.function) is CaptureKind.NODE:
            self._add(CaptureSite(-1, "self", 0, self.function))
            return
        watched: list[int] = []
        waiting = deque([(self.function, True)])
        while waiting:
            holder, is_watched = waiting.popleft()
            if id(holder) in self.numbers:
                continue
            number = self.numbers[id(holder)] = len(self.holders)
            self.holders.append(holder)
            if isinstance(holder, types.FunctionType):
                is_watched = not is_library(holder)
            if is_watched:
                watched.append(number)
            for site in sites_of(holder, number):
                if not issubclass(type(site.content), INERT) and self._add(site):
                    waiting.append((site.content, is_watched))
        self._watch(watched)

    def _add(self, site: CaptureSite) -> bool:
        """Notes a site; says whether a holder is there, to follow."""
        content = site.content
        kind = capture_kind(content)
        self.sites.append(site)
        if kind is CaptureKind.NODE:
            if not is_finished(content):
                self._has_unfinished = True
            elif not is_labels(content):
                self.captured.append(site)
            return False
        if site.kind == "name" and kind is CaptureKind.FUNCTION:
            return is_of_module(content, self.holders[site.holder].__globals__)
        return kind is not None

    def reaching(self, start: Iterable[int]) -> frozenset[int]:
        """The holders from which others are reached, and those themselves."""
        above: dict[int, list[int]] = {}
        for site in self.sites:
            number = self.numbers.get(id(site.content))
            if number is not None and site.holder >= 0:
                above.setdefault(number, []).append(site.holder)
        found = set(start)
        waiting = list(found)
        while waiting:
            new = set(above.get(waiting.pop(), ())) - found
            found |= new
            waiting += new
        return frozenset(found)

    def describe(self) -> Hashable:
        """Says which sites hold what is captured, which of them hold the same, and of which functions."""
        codes = tuple(h.__code__ if isinstance(h, types.FunctionType) else None for h in self.holders)
        ranks = {id(node): rank for rank, node in enumerate(self.values)}
        return codes, tuple((*site[:3], ranks[id(site.content)]) for site in self.captured)

    def variables(self) -> tuple[str | None, ...]:
        """What the function calls each thing that it captures; None where it has no name for it."""
        found: dict[int, str | None] = {}
        for site in self.captured:
            name = site.key if isinstance(site.key, str) and site.kind != "item" else None
            found[id(site.content)] = found.get(id(site.content)) or name
        return tuple(found[id(node)] for node in self.values)

    # ------------------------------------------------------------- what is watched

    def _watch(self, numbers: Sequence[int]) -> None:
        """Has the cells, names and items of these holders looked at before each call."""
        watched = set(numbers)
        for site in self.sites:
            holder = self.holders[site.holder]
            if site.holder not in watched:
                continue
            if site.kind == "variable":
                self._cells.append(holder.__closure__[holder.__code__.co_freevars.index(site.key)])
            elif site.kind == "name":
                self._names.append((holder.__globals__, site.key))
            elif site.kind in ("default", "keyword default"):
                self._defaults[site.holder] = holder, holder.__defaults__, _items_of(holder.__kwdefaults__ or {})
            elif site.kind == "keyword" and capture_kind(site.content):
                self._items.append((holder.keywords, _items_of(holder.keywords)))
        kinds = [capture_kind(holder) for holder in self.holders]
        if CONTAINERS.isdisjoint(kinds):
            return
        others = {number for number, kind in enumerate(kinds) if kind not in CONTAINERS}
        with_nodes = self.reaching(others | {site.holder for site in self.captured})
        for number in numbers:
            container = self.holders[number]
            if kinds[number] in (CaptureKind.LIST, CaptureKind.DICT):
                if number in with_nodes:
                    self._items.append((container, _items_of(container)))
                else:
                    self._empty.append(container)

    def _read(self) -> list[Any]:
        contents = list(map(content_of, self._cells))
        return contents + [names.get(name, MISSING) for names, name in self._names]

    def is_current(self) -> bool:
        """Whether all sites hold what they held."""
        if self.is_fixed:
            return True
        if self._has_unfinished or not all(map(is_, self._read(), self._contents)):
            return False
        for function, defaults, items in self._defaults.values():
            if function.__defaults__ is not defaults or not _holds_the_same(function.__kwdefaults__ or {}, items):
                return False
        return all(_holds_the_same(*pair) for pair in self._items) and all(map(self._is_empty_still, self._empty))

    def _is_empty_still(self, container: Any) -> bool:
        """Whether a container without models has got none."""
        items = container.values() if isinstance(container, dict) else container
        if WITHOUT_KIND.issuperset(map(type, items)):
            return True
        return not any(id(item) not in self.numbers and _holds_nodes(item) for item in tuple(items))

    def watched(self) -> list[tuple[Any, str | None, Any]] | None:
        """The cells and names that alone are watched, with their contents; None where more is, or one is empty."""
        if self._defaults or self._items or self._empty or self._has_unfinished:
            return None
        sites: list[tuple[Any, str | None]] = [*((cell, None) for cell in self._cells), *self._names]
        found = [(source, name, content) for (source, name), content in zip(sites, self._contents, strict=True)]
        return None if any(content is MISSING for *_, content in found) else found


def _items_of(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    return list(container)


def _holds_the_same(container: Any, items: Sequence[Any]) -> bool:
    if isinstance(container, dict):
        return 2 * len(container) == len(items) and all(map(is_, chain(container, container.values()), items))
    return len(container) == len(items) and all(map(is_, container, items))


def _holds_nodes(item: Any) -> bool:
    """Whether containers, one in the other, hold a node or a function."""
    waiting, seen = [item], set()
    while waiting:
        item = waiting.pop()
        kind = capture_kind(item)
        if kind is None or id(item) in seen:
            continue
        if kind not in CONTAINERS:
            return True
        seen.add(id(item))
        waiting += _items_of(item)
    return False


# ----------------------------------------------------------------- several functions in one call


def combine_functions(*functions: Callable[..., Any]) -> Closure:
    """One Closure for several functions, as the branches of a `cond`; a model that two of them reach is one thing."""
    return Closure(functools.partial(_hold, *functions), functions[0])


def _hold(*functions: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    return functions


def select_function(number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What picks one of several functions again, for `lifted`."""

    def select(held: Any) -> Callable[..., Any]:
        function: Callable[..., Any] = held.args[number]
        return function

    return select


# ----------------------------------------------------------------- the function over other nodes


class _Active(threading.local):
    """What this thread has rebuilt for the traces that it is in, the outermost first."""

    def __init__(self) -> None:
        self.closures: list[RebuiltClosure] = []


_active: Final = _Active()


class RebuiltClosure:
    """A function over other nodes than it captures; a context, at whose end it points back at the originals."""

    def __init__(self, captures: Captures, copies: Sequence[Any]) -> None:
        self._captures = captures
        self._copies = copies
        self._new = {id(node): made for node, made in zip(captures.values, copies, strict=True)}
        self._made: dict[int, Any] = {}
        self._cells: dict[int, tuple[types.CellType, types.CellType]] = {}
        self._names: dict[int, Names] = {}
        self._pairs: list[tuple[Any, Any]] = []
        self._inner: list[RebuiltClosure] = []
        reachable = captures.reaching(site.holder for site in captures.captured) - {-1}
        self._sites: dict[int, list[CaptureSite]] = {number: [] for number in sorted(reachable)}
        for site in captures.sites:
            if site.holder in reachable:
                self._sites[site.holder].append(site)
        self._rebuild()
        self.function: Any = self._stand_in(captures.function)

    # ------------------------------------------------------------- making

    def _rebuild(self) -> None:
        holders = self._captures.holders
        stubs = [number for number in self._sites if capture_kind(holders[number]) in STUBS]
        for number in stubs:
            self._made[number] = self._make_stub(number, holders[number])
        for number in self._sites:
            self._make_with_parts(number)
        for number in stubs:
            self._fill(number, holders[number], self._made[number])

    def _stand_in(self, content: Any) -> Any:
        """What stands for something; itself where nothing captured is reached from it."""
        if id(content) in self._new:
            return self._new[id(content)]
        number = self._captures.numbers.get(id(content), -1)
        return self._made.get(number, content)

    def _is_replaced(self, content: Any) -> bool:
        return id(content) in self._new or self._captures.numbers.get(id(content)) in self._sites

    def _make_stub(self, number: int, holder: Any) -> Any:
        if capture_kind(holder) is not CaptureKind.FUNCTION:
            return copy.copy(holder)
        cells = tuple(map(self._cell, holder.__closure__ or ()))
        names = self._names_for(number, holder)
        made = types.FunctionType(holder.__code__, names, holder.__name__, holder.__defaults__, cells or None)
        made.__kwdefaults__ = holder.__kwdefaults__
        made.__qualname__, made.__module__, made.__doc__ = holder.__qualname__, holder.__module__, holder.__doc__
        name = "__annotate__" if hasattr(holder, "__annotate__") else "__annotations__"  # made on demand from 3.14 on
        setattr(made, name, getattr(holder, name))
        made.__dict__ = holder.__dict__  # one dict for both, so that what the function sets on itself is kept
        return made

    def _cell(self, cell: types.CellType) -> types.CellType:
        if not self._is_replaced(content_of(cell)):
            return cell  # so that `nonlocal` goes on to work
        return self._cells.setdefault(id(cell), (types.CellType(), cell))[0]

    def _names_for(self, number: int, function: types.FunctionType) -> dict[str, Any]:
        base = function.__globals__
        if not any(site.kind == "name" and self._is_replaced(site.content) for site in self._sites[number]):
            return base
        names = self._names.setdefault(id(base), Names(base))
        names.lend([name for name, is_direct in names_in(function.__code__).items() if is_direct])
        return names

    def _make_with_parts(self, number: int) -> None:
        """Makes what cannot be filled later, after what it consists of."""
        waiting = [number]
        while waiting:
            number = waiting[-1]
            parts = {self._captures.numbers.get(id(site.content), -1) for site in self._sites[number]}
            parts = {part for part in parts if part in self._sites and part not in self._made}
            if number in self._made or not parts:
                waiting.pop()
            if number not in self._made and not parts:
                self._made[number] = self._make(self._captures.holders[number])
            elif number not in self._made:
                waiting += parts

    def _make(self, holder: Any) -> Any:
        kind = capture_kind(holder)
        if kind is CaptureKind.PARTIAL:
            named = {name: self._stand_in(value) for name, value in holder.keywords.items()}
            made = type(holder)(self._stand_in(holder.func), *map(self._stand_in, holder.args), **named)
            vars(made).update(vars(holder))
            return made
        if kind is CaptureKind.METHOD:
            return types.MethodType(self._stand_in(holder.__func__), self._stand_in(holder.__self__))
        if kind is CaptureKind.CLOSURE:
            return Closure(self._stand_in(holder.function), holder.user)
        if kind is CaptureKind.LIFTED:
            return holder._over(self._stand_in(holder._closure))
        items = map(self._stand_in, holder)
        return holder.__class__(items) if holder.__class__ is tuple else holder._make(items)

    def _fill(self, number: int, holder: Any, made: Any) -> None:
        for site in self._sites[number]:
            if site.kind == "item":
                made[site.key] = self._stand_in(site.content)
            elif site.kind == "name" and self._is_replaced(site.content):
                self._names[id(holder.__globals__)].replace(site.key, self._stand_in(site.content))
        if isinstance(made, types.FunctionType):
            for cell in holder.__closure__ or ():
                if id(cell) in self._cells:
                    self._cells[id(cell)][0].cell_contents = self._stand_in(cell.cell_contents)
            if made.__defaults__:
                made.__defaults__ = tuple(map(self._stand_in, made.__defaults__))
            if made.__kwdefaults__:
                made.__kwdefaults__ = {name: self._stand_in(value) for name, value in made.__kwdefaults__.items()}

    # ------------------------------------------------------------- the end of the trace

    def __enter__(self) -> Self:
        if self._sites or self._new:
            originals, copies = walk(self._captures.values).objects, walk(tuple(self._copies)).objects
            self._pairs = [pair for pair in zip(originals, copies, strict=True) if pair[0] is not pair[1]]
        _active.closures.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _active.closures.pop()
        if self._pairs:
            self.point_back()
            if _active.closures:  # the originals are copies too, and end with the trace around this one
                _active.closures[-1]._inner.append(self)

    def conclude(self) -> None:
        """Carries over what the function assigned to global names, and to attributes of lifted functions."""
        self._check()
        for names in self._names.values():
            names.base.update(names.assigned())
        for number, made in self._made.items():
            if capture_kind(made) is CaptureKind.LIFTED:
                own = {name: value for name, value in vars(made).items() if name[0] != "_"}
                vars(self._captures.holders[number]).update(own)

    def _check(self) -> None:
        for made, cell in self._cells.values():
            if content_of(made) is not self._stand_in(content_of(cell)):
                raise _rebinds("a variable of an outer function", content_of(cell))
        for names in self._names.values():
            for name, value in names.replaced.items():
                if dict.get(names, name) is not value:
                    raise _rebinds(f"the global name {name!r}", value)
        for number, made in self._made.items():
            holder = self._captures.holders[number]
            if isinstance(made, (list, dict)) and not self._stands_for(made, holder):
                raise _rebinds("a list or dict", holder)

    def _stands_for(self, made: Any, holder: Any) -> bool:
        """Whether a rebuilt list or dict holds what stands for the items of the original."""
        if len(made) != len(holder):
            return False
        pairs = zip(made.items(), holder.items(), strict=True) if isinstance(made, dict) else None
        if pairs is not None:
            return all(key is other and item is self._stand_in(old) for (key, item), (other, old) in pairs)
        return all(item is self._stand_in(old) for item, old in zip(made, holder, strict=True))

    def point_back(self) -> None:
        """Has everything that was rebuilt refer to the originals, in case the user's code has kept some of it."""
        for made, cell in self._cells.values():
            made.cell_contents = content_of(cell)
        for names in self._names.values():
            names.release()
        for number, made in self._made.items():
            _point_holder_back(self._captures.holders[number], made)
        for original, made in self._pairs:
            if isinstance(made, Variable):
                end_trace(made)
            else:
                object.__setattr__(made, "__dict__", original.__dict__)
        for inner in self._inner:
            inner.point_back()


def _point_holder_back(holder: Any, made: Any) -> None:
    if isinstance(made, list):
        made[:] = holder
    elif isinstance(made, dict):
        made.clear()
        made.update(holder)
    elif isinstance(made, types.FunctionType):
        made.__defaults__, made.__kwdefaults__ = holder.__defaults__, holder.__kwdefaults__


def _rebinds(what: str, given: object) -> TransformError:
    return TransformError(
        "the function",
        f"it assigns to {what}, where it captures a model",
        got=describe(given),
        why="while the function is traced a copy is there, and the assignment would be lost",
        fix="change the model in place, as by dx.update(model, ...), or return the new one",
    )

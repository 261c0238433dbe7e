"""Models that a function captures: found as arguments are given, and replaced while the function is traced.

A function reaches models through its *holders*: closures, defaults, module globals, partials, methods, containers and
other functions. `Captures` finds them in one search, and compares before each call what may have changed.
`RebuiltClosure` makes the holders again over other nodes. When the trace ends, everything that it made points back at
the originals, since user code may have kept it.
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
from collections import defaultdict, deque
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
        """As of the module."""
        return self[name] if name in self else self.base.get(name, default)

    def lend(self, names: Iterable[str]) -> None:
        """Copies the values of some names from the module, but not of replaced ones."""
        for name in names:
            value = self.base.get(name, MISSING)
            if value is not MISSING and name not in self:
                self[name] = self._lent[name] = value

    def replace(self, name: str, value: Any) -> None:
        """Replaces a captured object."""
        self[name] = self.replaced[name] = value

    def assigned(self) -> dict[str, Any]:
        """The names that a function has assigned with ``global``."""
        given = self._lent | self.replaced
        return {name: value for name, value in self.items() if given.get(name, MISSING) is not value}

    def release(self) -> None:
        """Gives all names the values of the module again, also when these change later."""
        self.replaced.clear()
        self.clear()
        self.lend(list(self._lent))


def base_of(names: dict[str, Any]) -> dict[str, Any]:
    """The names of the module itself."""
    while isinstance(names, Names):
        names = names.base
    return names


# ----------------------------------------------------------------- where a capture is looked for

LIBRARIES: Final = frozenset({"declax", "jax", "jaxlib", "numpy", "optax"})
"""Packages whose module globals hold no models."""

_NUMBERS_AND_TEXTS = (int, float, complex, str, bytes)
INERT: Final = (types.ModuleType, type, types.BuiltinFunctionType, jax.Array, np.ndarray, *_NUMBERS_AND_TEXTS)
"""Types that hold no model; a site with such a value is not compared again."""


class CaptureKind(enum.Enum):
    """The role of a value in the search: a node, or a kind of holder."""

    NODE = enum.auto()
    FUNCTION = enum.auto()
    PARTIAL = enum.auto()
    METHOD = enum.auto()
    CLOSURE = enum.auto()
    LIFTED = enum.auto()
    LIST = enum.auto()
    TUPLE = enum.auto()
    DICT = enum.auto()


STUBS: Final = frozenset({CaptureKind.FUNCTION, CaptureKind.LIST, CaptureKind.DICT})
"""Kinds that can be part of a cycle: they are made first, and filled later."""

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
    """The kind of a value; None if it is neither a node nor a holder."""
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
    """The site of a value in a holder, given by its number (-1: the function itself): a "variable", an "item", ..."""

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
    elif kind is not None:
        yield from (CaptureSite(number, "item", *pair) for pair in _entries(holder))


def _entries(container: Any) -> list[tuple[Any, Any]]:
    """The items of a list, tuple or dict that can hold a model, with their keys."""
    is_dict = isinstance(container, dict)
    if WITHOUT_KIND.issuperset(map(type, container.values() if is_dict else container)):
        return []
    items = tuple(container.items() if is_dict else enumerate(container))
    return [(key, item) for key, item in items if capture_kind(item) is not None]


def _sites_of_function(function: types.FunctionType, number: int) -> Iterator[CaptureSite]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield CaptureSite(number, "variable", name, content_of(cell))
    if is_library(function):
        return
    for name in names_in(code):
        content = function.__globals__.get(name, MISSING)
        if content is not MISSING or not hasattr(builtins, name):
            yield CaptureSite(number, "name", name, content)
    given = function.__defaults__ or ()
    named = dict(zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=True))
    for kind, defaults in (("default", named), ("keyword default", function.__kwdefaults__)):
        for name, content in _entries(defaults) if defaults else ():
            yield CaptureSite(number, kind, name, content)


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
    """The contents of a cell, or `MISSING`."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def is_of_library(module: object) -> bool:
    """Whether a module, given by name, belongs to a library."""
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES


def is_library(function: types.FunctionType) -> bool:
    """Whether a function belongs to a library; one of a doctest does not, whatever its module is called."""
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
    """A function and its captures in a call. A transform keeps it, so that its result can be captured too.

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
        """The captures of the function now; call it once for each call."""
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
        """The captures of the call that is traced now, also after the function has changed them."""
        captures: Captures | None = key.captures()
        return self.find() if captures is None else captures


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
    """The captures of a function, found by one search.

    Attributes:
      numbers: the number of each holder, by identity.
      captured: the sites where nodes are.
      values: the captured nodes, each once.
      key: identifies the function and the sites of what is captured.
      rebuilt: the numbers of all holders from which a node is reached, with their sites.
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
        self._has_unfinished = False  # a model under construction becomes an argument later
        self._cells: list[types.CellType] = []
        self._names: list[tuple[dict[str, Any], str]] = []
        self._defaults: list[tuple[types.FunctionType, Any, Any]] = []
        self._containers: list[tuple[Any, list[Any], dict[Any, Any]]] = []
        self._search()
        self._contents = self._read()
        self.values: tuple[Any, ...] = tuple({id(site.content): site.content for site in self.captured}.values())
        self.rebuilt: dict[int, list[CaptureSite]] = self._holders_of_nodes()
        watched = self._contents or self._defaults or self._containers
        self.is_fixed: bool = not (watched or self.captured or self._has_unfinished)

    # ------------------------------------------------------------- the search

    def _search(self) -> None:
        if capture_kind(self.function) is CaptureKind.NODE:
            self._add(CaptureSite(-1, "self", 0, self.function))
            return
        waiting = deque([(self.function, True)])
        while waiting:
            holder, is_watched = waiting.popleft()
            if id(holder) in self.numbers:
                continue
            number = self.numbers[id(holder)] = len(self.holders)
            self.holders.append(holder)
            if isinstance(holder, types.FunctionType):
                is_watched = not is_library(holder)
            sites = [site for site in sites_of(holder, number) if not issubclass(type(site.content), INERT)]
            waiting += [(site.content, is_watched) for site in sites if self._add(site)]
            if is_watched:
                self._watch(holder, sites)

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

    def _watch(self, holder: Any, sites: Sequence[CaptureSite]) -> None:
        kind, kinds_of_sites = capture_kind(holder), {site.kind for site in sites}
        if kind is CaptureKind.FUNCTION:
            cells = dict(zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True))
            self._cells += [cells[site.key] for site in sites if site.kind == "variable"]
            self._names += [(holder.__globals__, site.key) for site in sites if site.kind == "name"]
            if not kinds_of_sites.isdisjoint({"default", "keyword default"}):
                self._defaults.append((holder, holder.__defaults__, holder.__kwdefaults__))
            if "keyword default" in kinds_of_sites:
                self._watch_items(holder.__kwdefaults__)
        elif kind is CaptureKind.PARTIAL and _entries(holder.keywords):
            self._watch_items(holder.keywords)
        elif kind is CaptureKind.LIST or kind is CaptureKind.DICT:
            self._watch_items(holder)

    def _watch_items(self, container: Any) -> None:
        self._containers.append((container, _items_of(container), dict(_entries(container))))

    def _holders_of_nodes(self) -> dict[int, list[CaptureSite]]:
        if not self.captured:
            return {}
        above: dict[int, list[int]] = defaultdict(list)
        for site in self.sites:
            above[id(site.content)].append(site.holder)
        found: set[int] = set()
        waiting = [site.holder for site in self.captured]
        while waiting:
            number = waiting.pop()
            if number >= 0 and number not in found:
                found.add(number)
                waiting += above[id(self.holders[number])]
        sites: dict[int, list[CaptureSite]] = {number: [] for number in sorted(found)}
        for site in self.sites:
            if site.holder in found:
                sites[site.holder].append(site)
        return sites

    def describe(self) -> Hashable:
        """The key of calls that can run one program: the functions, and the sites that lead to each node."""
        codes = tuple(h.__code__ for h in self.holders if isinstance(h, types.FunctionType))
        ranks = {id(self.holders[number]): ("holder", rank) for rank, number in enumerate(self.rebuilt)}
        ranks |= {id(node): ("node", rank) for rank, node in enumerate(self.values)}
        sites = (site for sites in self.rebuilt.values() for site in sites if id(site.content) in ranks)
        return codes, tuple((ranks[id(self.holders[s.holder])], s.kind, s.key, ranks[id(s.content)]) for s in sites)

    def variables(self) -> tuple[str | None, ...]:
        """The name by which the function knows each captured node; None if it has none."""
        found: dict[int, str | None] = {}
        for site in self.captured:
            name = site.key if isinstance(site.key, str) and site.kind != "item" else None
            found[id(site.content)] = found.get(id(site.content)) or name
        return tuple(found[id(node)] for node in self.values)

    # ------------------------------------------------------------- before each call

    def _read(self) -> list[Any]:
        contents = list(map(content_of, self._cells))
        return contents + [names.get(name, MISSING) for names, name in self._names]

    def is_current(self) -> bool:
        """Whether the contents of all sites are unchanged."""
        if self.is_fixed:
            return True
        if self._has_unfinished or not all(map(is_, self._read(), self._contents)):
            return False
        for function, defaults, named in self._defaults:
            if function.__defaults__ is not defaults or function.__kwdefaults__ is not named:
                return False
        return all(_holds_the_same(container, items) for container, items, _ in self._containers) or all(
            map(self._holds_the_same_models, range(len(self._containers)))
        )

    def _holds_the_same_models(self, number: int) -> bool:
        """Whether only data came or went in a container."""
        container, items, models = self._containers[number]
        if not _holds_the_same(container, items):
            now = dict(_entries(container))
            if list(now) != list(models) or not all(map(is_, now.values(), models.values())):
                return False
            self._containers[number] = container, _items_of(container), models
        return True

    def watched(self) -> list[tuple[Any, str | None, Any]] | None:
        """The cells and names that alone are watched, with their contents; None where more is, or one is empty."""
        if self._defaults or self._containers or self._has_unfinished:
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


# ----------------------------------------------------------------- several functions in one call


def combine_functions(*functions: Callable[..., Any]) -> Closure:
    """One Closure for several functions, as the branches of a `cond`; a model that two of them reach is one thing."""
    return Closure(functools.partial(_hold, *functions), functions[0])


def _hold(*functions: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    return functions


def select_function(number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that selects one of several functions, for `lifted`."""

    def select(held: Any) -> Callable[..., Any]:
        function: Callable[..., Any] = held.args[number]
        return function

    return select


# ----------------------------------------------------------------- the function over other nodes


class _Active(threading.local):
    """The rebuilt objects of this thread's traces, the outermost first."""

    def __init__(self) -> None:
        self.closures: list[RebuiltClosure] = []


_active: Final = _Active()


class RebuiltClosure:
    """A function over other nodes than it captures; a context, at whose end it points back at the originals."""

    def __init__(self, captures: Captures, copies: Sequence[Any]) -> None:
        self._captures = captures
        self._copies = copies
        self._sites = captures.rebuilt
        self._new = {id(node): made for node, made in zip(captures.values, copies, strict=True)}
        self._replaced = {*self._new, *(id(captures.holders[number]) for number in self._sites)}
        self._cells: dict[int, tuple[types.CellType, types.CellType]] = {}
        self._names: dict[int, Names] = {}
        self._containers: list[tuple[Any, Any, list[Any]]] = []
        self._pairs: list[tuple[Any, Any]] = []
        self._inner: list[RebuiltClosure] = []
        self._rebuild()
        self.function: Any = self._stand_in(captures.function)

    # ------------------------------------------------------------- making

    def _rebuild(self) -> None:
        holders = [self._captures.holders[number] for number in self._sites]
        stubs = [holder for holder in holders if capture_kind(holder) in STUBS]
        for holder in stubs:
            self._new[id(holder)] = self._make(holder)
        for holder in holders:
            self._make_with_parts(holder)
        for holder in stubs:
            self._fill(holder, self._new[id(holder)])
        for made, cell in self._cells.values():
            made.cell_contents = self._stand_in(cell.cell_contents)

    def _stand_in(self, content: Any) -> Any:
        return self._new.get(id(content), content)

    def _sites_in(self, holder: Any) -> list[CaptureSite]:
        return self._sites[self._captures.numbers[id(holder)]]

    def _make_with_parts(self, holder: Any) -> None:
        """Makes what cannot be filled later, after its parts; a loop, since holders can be nested deeply."""
        waiting = [holder]
        while waiting:
            holder = waiting[-1]
            contents = [] if id(holder) in self._new else [site.content for site in self._sites_in(holder)]
            parts = [part for part in contents if id(part) in self._replaced and id(part) not in self._new]
            if parts:
                waiting += parts
                continue
            waiting.pop()
            if id(holder) not in self._new:
                self._new[id(holder)] = self._make(holder)

    def _make(self, holder: Any) -> Any:
        kind = capture_kind(holder)
        if kind is CaptureKind.FUNCTION:
            return self._make_function(holder)
        if kind is CaptureKind.LIST or kind is CaptureKind.DICT:
            return copy.copy(holder)
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

    def _make_function(self, holder: types.FunctionType) -> types.FunctionType:
        cells = tuple(map(self._cell, holder.__closure__ or ()))
        names = self._names_for(holder)
        made = types.FunctionType(holder.__code__, names, holder.__name__, holder.__defaults__, cells or None)
        made.__kwdefaults__ = holder.__kwdefaults__
        made.__qualname__, made.__module__, made.__doc__ = holder.__qualname__, holder.__module__, holder.__doc__
        name = "__annotate__" if hasattr(holder, "__annotate__") else "__annotations__"  # made on demand from 3.14 on
        setattr(made, name, getattr(holder, name))
        made.__dict__ = holder.__dict__  # one dict for both, so that what the function sets on itself is kept
        return made

    def _cell(self, cell: types.CellType) -> types.CellType:
        if id(content_of(cell)) not in self._replaced:
            return cell  # so that `nonlocal` goes on to work
        return self._cells.setdefault(id(cell), (types.CellType(), cell))[0]

    def _names_for(self, function: types.FunctionType) -> dict[str, Any]:
        base = function.__globals__
        replaced = [s for s in self._sites_in(function) if s.kind == "name" and id(s.content) in self._replaced]
        if not replaced:
            return base
        names = self._names.setdefault(id(base), Names(base))
        names.lend([name for name, is_direct in names_in(function.__code__).items() if is_direct])
        return names

    def _fill(self, holder: Any, made: Any) -> None:
        for site in self._sites_in(holder):
            if site.kind == "item":
                made[site.key] = self._stand_in(site.content)
            elif site.kind == "name" and id(site.content) in self._replaced:
                self._names[id(holder.__globals__)].replace(site.key, self._stand_in(site.content))
        if not isinstance(made, types.FunctionType):
            self._containers.append((holder, made, _items_of(made)))
            return
        if made.__defaults__:
            made.__defaults__ = tuple(map(self._stand_in, made.__defaults__))
        if made.__kwdefaults__:
            made.__kwdefaults__ = {name: self._stand_in(value) for name, value in made.__kwdefaults__.items()}

    # ------------------------------------------------------------- the end of the trace

    def __enter__(self) -> Self:
        if self._replaced:
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
        """Copies the assignments of the function to global names, and to attributes of lifted functions."""
        self._check()
        for names in self._names.values():
            names.base.update(names.assigned())
        for holder, made in self._made():
            if capture_kind(made) is CaptureKind.LIFTED:
                vars(holder).update({name: value for name, value in vars(made).items() if name[0] != "_"})

    def _made(self) -> Iterator[tuple[Any, Any]]:
        """Each rebuilt holder with its replacement."""
        for number in self._sites:
            holder = self._captures.holders[number]
            yield holder, self._new[id(holder)]

    def _check(self) -> None:
        for made, cell in self._cells.values():
            if content_of(made) is not self._stand_in(content_of(cell)):
                raise _rebinds("a variable of an outer function", content_of(cell))
        for names in self._names.values():
            for name, value in names.replaced.items():
                if dict.get(names, name) is not value:
                    raise _rebinds(f"the global name {name!r}", value)
        for holder, made, items in self._containers:
            if not _holds_the_same(made, items):
                raise _rebinds("a list or dict", holder)

    def point_back(self) -> None:
        """Has everything that was rebuilt refer to the originals, in case the user's code has kept some of it."""
        for made, cell in self._cells.values():
            made.cell_contents = content_of(cell)
        for names in self._names.values():
            names.release()
        for holder, made, _ in self._containers:
            made.clear()
            made.extend(holder) if isinstance(made, list) else made.update(holder)
        for holder, made in self._made():
            if isinstance(made, types.FunctionType):
                made.__defaults__, made.__kwdefaults__ = holder.__defaults__, holder.__kwdefaults__
        for original, made in self._pairs:
            if isinstance(made, Variable):
                end_trace(made)
            else:
                object.__setattr__(made, "__dict__", original.__dict__)
        for inner in self._inner:
            inner.point_back()


def _rebinds(what: str, given: object) -> TransformError:
    return TransformError(
        "the function",
        f"it assigns to {what}, where it captures a model",
        got=describe(given),
        why="while the function is traced a copy is there, and the assignment would be lost",
        fix="change the model in place, as by dx.update(model, ...), or return the new one",
    )

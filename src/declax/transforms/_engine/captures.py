"""Models that a function captures: found as arguments are given, and replaced while the function is traced.

A function reaches models through its *holders*: closures, defaults, module globals, partials, methods, containers and
other functions. `Captures` finds them in one search, and compares before each call what may have changed.
`RebuiltClosure` makes the holders again over other nodes. When the trace ends, everything that it made points back at
the originals, since user code may have kept it.
"""

from __future__ import annotations

import builtins
import collections
import dis
import enum
import functools
import inspect
import sys
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import chain
from operator import is_
from typing import Any, Final, NamedTuple, Self

import jax
import numpy as np

from declax._graph.flattening import walk
from declax._typing import MISSING
from declax._variables.variable import Variable, end_trace
from declax.errors import TransformError
from declax.transforms._engine.structure import ROOT_CLASSES, CaptureKey, is_finished, is_labels


class Names(dict[str, Any]):
    """The names of a module (`base`), with other objects in place of the captured ones (`replaced`).

    A function looks names up here first, and then in the module; what it assigns with ``global`` stays here. Python
    looks some names up without a call of `__missing__`: those are *lent*, which is to say copied from the module.
    """

    def __init__(self, base: dict[str, Any]) -> None:
        super().__init__()
        self.base = base
        self.replaced: dict[str, Any] = {}
        self._lent: dict[str, Any] = {}
        self.lend([name for name in list(base_of(base)) if name[:2] == "__"])

    def __missing__(self, name: str) -> Any:
        return self.base[name]

    def lend(self, names: Iterable[str]) -> None:
        """Copies the values of some names from the module, but not of replaced ones."""
        for name in names:
            value = content_of(self.base, name)
            if value is not MISSING and name not in self:
                self[name] = self._lent[name] = value

    def replace(self, name: str, value: Any) -> None:
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


CaptureKind = enum.Enum("CaptureKind", "NODE FUNCTION PARTIAL METHOD CLOSURE LIFTED LIST TUPLE DICT SET FROZENSET")
"""The role of a value in the search: a node, or a kind of holder."""

CHANGING_CONTAINERS: Final = frozenset({CaptureKind.LIST, CaptureKind.DICT, CaptureKind.SET})
CONTAINERS: Final = CHANGING_CONTAINERS | {CaptureKind.TUPLE, CaptureKind.FROZENSET}
CHANGING: Final = CHANGING_CONTAINERS | {CaptureKind.FUNCTION}
"""Kinds that can change, and so be part of a cycle: they are made first, and filled later."""

_ATTRIBUTES: Final[dict[CaptureKind | None, tuple[str, ...]]] = {
    CaptureKind.FUNCTION: ("__defaults__", "__kwdefaults__"),
    CaptureKind.PARTIAL: ("func", "args", "keywords"),
    CaptureKind.METHOD: ("__func__", "__self__"),
    CaptureKind.CLOSURE: ("function",),
    CaptureKind.LIFTED: ("_closure",),
}
"""The attributes of a holder that can be or hold a node; those of partials and functions are tuples and dicts."""


class _Kinds(dict[type, CaptureKind | None]):
    def __missing__(self, cls: type) -> CaptureKind | None:
        found = CaptureKind.NODE if ROOT_CLASSES[cls] else None
        if issubclass(cls, functools.partial):
            found = CaptureKind.PARTIAL
        elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
            found = CaptureKind.TUPLE
        elif is_of_library(cls.__module__) and hasattr(cls, "_over"):
            found = CaptureKind.LIFTED
        self[cls] = found
        return found


_kinds: Final = _Kinds(
    {
        types.FunctionType: CaptureKind.FUNCTION,
        types.MethodType: CaptureKind.METHOD,
        list: CaptureKind.LIST,
        tuple: CaptureKind.TUPLE,
        dict: CaptureKind.DICT,
        collections.OrderedDict: CaptureKind.DICT,
        collections.defaultdict: CaptureKind.DICT,
        weakref.WeakKeyDictionary: CaptureKind.DICT,
        set: CaptureKind.SET,
        weakref.WeakSet: CaptureKind.SET,
        frozenset: CaptureKind.FROZENSET,
    }
)


def capture_kind(value: object) -> CaptureKind | None:
    """The kind of a value; None if it is neither a node nor a holder."""
    return _kinds[type(value)]  # and not of `value.__class__`, which a proxy may compute


class CaptureSite(NamedTuple):
    """The site of a value in a holder.

    Attributes:
      holder: None for the function itself.
      kind: a "variable" or "name" of a function, an "attribute" of a holder, or an "item", "key" or "member" of a
        container.
      source: the cell, module or function in which it can change; None where its holder is compared as a whole.
    """

    holder: Any
    kind: str
    key: Any
    content: Any
    source: Any = None


def sites_of(holder: Any, *, of_user: bool) -> Iterator[CaptureSite]:
    """All sites of a holder where a model is, or may come to be; of a function of a library, the variables."""
    kind = capture_kind(holder)
    is_function = kind is CaptureKind.FUNCTION
    if is_function:
        yield from names_and_variables(holder, of_user=of_user)
    for name in _ATTRIBUTES.get(kind, ()) if of_user or not is_function else ():
        content = getattr(holder, name)
        if entries_of(content) if isinstance(content, (tuple, dict)) else content is not None:
            yield CaptureSite(holder, "attribute", name, content, holder if is_function else None)
    if kind in CONTAINERS:
        yield from (CaptureSite(holder, *entry) for entry in entries_of(holder))


def entries_of(container: Any) -> list[tuple[str, Any, Any]]:
    """What in a container can hold a model: kinds of sites, with their keys and contents."""
    if not any(map(_kinds.__getitem__, map(type, _items_of(container)))):
        return []
    kind = capture_kind(container)
    if kind is CaptureKind.DICT:
        keys, items = [("key", None, key) for key in list(container)], [("item", *item) for item in container.items()]
        entries = keys if type(container) is weakref.WeakKeyDictionary else keys + items  # its values are a cache
    elif kind in (CaptureKind.SET, CaptureKind.FROZENSET):
        entries = [("member", None, item) for item in tuple(container)]
    else:
        entries = [("item", *item) for item in enumerate(container)]
    return [entry for entry in entries if capture_kind(entry[2]) is not None]


def names_and_variables(function: types.FunctionType, *, of_user: bool) -> Iterator[CaptureSite]:
    """The sites of a function that are variables around it, or if a user wrote it, names of its module."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield CaptureSite(function, "variable", name, content_of(cell), cell)
    for name in names_in(function.__code__) if of_user else ():
        content = content_of(function.__globals__, name)
        if content is not MISSING or not hasattr(builtins, name):
            yield CaptureSite(function, "name", name, content, function.__globals__)


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> dict[str, bool]:
    """The names of its module that a function uses; whether, as in the body of a class, the dict itself is asked."""
    found: dict[str, bool] = {}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
    for instruction in dis.get_instructions(code):
        if "GLOBAL" in instruction.opname or instruction.opname == "LOAD_NAME":
            is_direct = not instruction.opname.endswith("_GLOBAL")
            found[instruction.argval] = found.get(instruction.argval, False) or is_direct
    return found


def content_of(source: Any, key: Any = None) -> Any:
    """What a cell, a name of a module or an attribute of a function holds, or `MISSING`."""
    try:
        if isinstance(source, types.CellType):
            return source.cell_contents
        return source[key] if isinstance(source, dict) else getattr(source, key)
    except (KeyError, ValueError):
        return MISSING


def put_content(source: Any, key: Any, content: Any) -> None:
    """Gives a cell, a name of a module or an attribute of a function another content."""
    if isinstance(source, types.CellType):
        source.cell_contents = content
    elif isinstance(source, Names):
        source.replace(key, content)
    else:
        setattr(source, key, content)


def put_items(made: Any, container: Any, replace: Callable[[Any], Any]) -> None:
    """Gives a list, dict or set the items of another one, with others in their place."""
    is_dict = capture_kind(container) is CaptureKind.DICT
    items = [(replace(k), replace(v)) for k, v in container.items()] if is_dict else list(map(replace, container))
    made.clear()
    made.extend(items) if isinstance(made, list) else made.update(items)


def is_of_library(module: object) -> bool:
    """Whether a module, given by name, belongs to a library."""
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES


def is_library(function: types.FunctionType) -> bool:
    """Whether a function belongs to a library; one of a doctest does not, whatever its module is called."""
    names = base_of(function.__globals__)
    name = names.get("__name__")
    return is_of_library(name) and vars(sys.modules.get(str(name), types)) is names


MAX_KEYS: Final = 1024
"""For how many different captures one function keeps the keys; the oldest goes first."""


class Closure:
    """A function and its captures in a call. A transform keeps it, so that its result can be captured too.

    `user` is the function whose parameters name the arguments; the function itself by default. As a function counts a
    tuple of several, such as the branches of a `cond`; a model that two of them reach is one thing.
    """

    __slots__ = ("__weakref__", "_keys", "captures", "function", "user")

    def __init__(self, function: Any, user: Callable[..., Any] | None = None) -> None:
        self.function: Any = function
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
            sites, names = (captures.describe(), captures.variables()) if captures.captured else ((), ())
            captures.key = self._keys.setdefault(sites, CaptureKey(self.user, names))
            captures.key.captures = weakref.ref(captures)
            self.captures = captures
        return captures


_kinds[Closure] = CaptureKind.CLOSURE


class Captures:
    """The captures of a function, found by one search.

    Attributes:
      sites: the sites in each holder, by its identity.
      captured: the sites where nodes are.
      values: the captured nodes, each once.
      rebuilt: the holders from which a node is reached, parts of an unchangeable one before it.
      functions: those of the user that were searched.
      key: identifies the function and the sites of what is captured.
      identities: what `identities` has found in plain objects, and not warned of; None before it searches.
    """

    def __init__(self, function: Any) -> None:
        method = inspect.getattr_static(type(function), "__call__", None)
        if capture_kind(function) is None and isinstance(method, types.FunctionType):
            function = types.MethodType(method, function)
        self.function: Any = function
        self.sites: dict[int, list[CaptureSite]] = {}
        self.captured: list[CaptureSite] = []
        self.key: CaptureKey
        self._has_unfinished = False  # a model under construction becomes an argument later
        self._watched: list[CaptureSite] = []
        self._containers: list[tuple[Any, list[Any], list[tuple[str, Any, Any]]]] = []
        self._holders: list[Any] = []
        self.functions: list[types.FunctionType] = []
        if self._notes(CaptureSite(None, "self", 0, function)):
            self._search()
        self.values: tuple[Any, ...] = tuple({id(site.content): site.content for site in self.captured}.values())
        self.rebuilt: list[Any] = self._reaching() if self.captured else []
        self.identities: Any = None

    # ------------------------------------------------------------- the search

    def _search(self) -> None:
        waiting = deque([(self.function, True, False)])
        while waiting:
            holder, is_watched, is_done = waiting.pop()
            kind = capture_kind(holder)
            is_function = kind is CaptureKind.FUNCTION
            if is_done:
                self._holders.append(holder)
                self.functions += [holder] if is_function and is_watched else []
            if id(holder) in self.sites:
                continue
            if is_function:
                is_watched = not is_library(holder)
            sites = sites_of(holder, of_user=is_watched)
            found = [site for site in sites if not issubclass(type(site.content), INERT)]
            self.sites[id(holder)] = found
            parts = [(site.content, is_watched, False) for site in found if self._notes(site)]
            waiting.append((holder, is_watched, True))
            if kind in CHANGING:  # which is filled later, so that its parts need not come before it
                waiting.extendleft(parts)
            else:
                waiting.extend(parts)
            if is_watched:
                self._watched += [site for site in found if site.source is not None]
                if kind in CHANGING_CONTAINERS:
                    self._containers.append((holder, _items_of(holder), entries_of(holder)))

    def _notes(self, site: CaptureSite) -> bool:
        """Notes a captured node; says whether a holder is there instead, to follow."""
        kind = capture_kind(site.content)
        if kind is CaptureKind.NODE:
            if not is_finished(site.content):
                self._has_unfinished = True
            elif not is_labels(site.content):
                self.captured.append(site)
            return False
        if site.kind == "name" and kind is CaptureKind.FUNCTION:
            # of the module, or, as `functools.wraps` makes it, looking like one of it; or made by a library
            return is_library(site.content) or site.content.__module__ == base_of(site.source).get("__name__")
        return kind is not None

    def plain_selves(self) -> list[Any]:
        """The plain objects whose methods were searched."""
        holders = self._holders
        return [m.__self__ for m in holders if isinstance(m, types.MethodType) and capture_kind(m.__self__) is None]

    def _reaching(self) -> list[Any]:
        """The holders from which a node is reached."""
        above: dict[int, list[Any]] = defaultdict(list)
        for site in chain.from_iterable(self.sites.values()):
            above[id(site.content)].append(site.holder)
        found: set[int] = set()
        waiting = [site.content for site in self.captured]
        while waiting:
            holders = above.pop(id(waiting.pop()), [])
            found.update(map(id, holders))
            waiting += holders
        return [holder for holder in self._holders if id(holder) in found]

    def describe(self) -> Hashable:
        """The key of calls that can run one program: the functions, and the sites that lead to each node."""
        codes = tuple(h.__code__ for h in self._holders if isinstance(h, types.FunctionType))
        ranks = {id(holder): ("holder", rank) for rank, holder in enumerate(self.rebuilt)}
        ranks |= {id(node): ("node", rank) for rank, node in enumerate(self.values)}
        sites = (site for holder in self.rebuilt for site in self.sites[id(holder)] if id(site.content) in ranks)
        places = ((ranks[id(s.holder)], s.kind, ranks.get(id(s.key), s.key), ranks[id(s.content)]) for s in sites)
        return codes, frozenset(places)  # sets have no order

    def variables(self) -> tuple[str | None, ...]:
        """The name by which the function knows each captured node; None if it has none."""
        names = {id(site.content): site.key for site in reversed(self.captured) if isinstance(site.key, str)}
        return tuple(names.get(id(node)) for node in self.values)

    # ------------------------------------------------------------- before each call

    def is_current(self) -> bool:
        """Whether the contents of all sites are unchanged, apart from data in containers."""
        for _, _, key, content, source in self._watched:
            if content_of(source, key) is not content:
                return False
        for container, items, entries in self._containers:
            if not _holds_the_same(container, items) and not _are_same_entries(entries_of(container), entries):
                return False
        return not self._has_unfinished

    def watched(self) -> list[tuple[Any, str | None, Any]] | None:
        """The cells and names that alone are watched, with their contents; None where more is, or one is empty."""
        is_plain = all(s.kind != "attribute" and s.content is not MISSING for s in self._watched)
        if self._containers or self._has_unfinished or not is_plain:
            return None
        return [(s.source, s.key if s.kind == "name" else None, s.content) for s in self._watched]


def _items_of(container: Any) -> list[Any]:
    is_dict = capture_kind(container) is CaptureKind.DICT
    return [*container.keys(), *container.values()] if is_dict else list(container)


def _are_same_entries(found: list[tuple[str, Any, Any]], known: list[tuple[str, Any, Any]]) -> bool:
    return len(found) == len(known) and all(
        a[0] == b[0] and (a[1] is b[1] or a[1] == b[1]) and a[2] is b[2] for a, b in zip(found, known, strict=True)
    )


def _holds_the_same(container: Any, items: Sequence[Any]) -> bool:
    held = _items_of(container)
    return len(held) == len(items) and all(map(is_, held, items))


# ----------------------------------------------------------------- the function over other nodes


_around: Final[ContextVar[RebuiltClosure | None]] = ContextVar("around", default=None)
"""The innermost one of this thread's traces."""


class RebuiltClosure:
    """A function over other nodes than it captures; a context, at whose end it points back at the originals."""

    def __init__(self, captures: Captures, copies: Sequence[Any]) -> None:
        self._captures = captures
        self._copies = copies
        self._new = {id(node): made for node, made in zip(captures.values, copies, strict=True)}
        self._replaced = {*self._new, *map(id, captures.rebuilt)}
        self._sources: dict[int, Any] = {}  # what was made of cells, names and functions, by identity
        self._filled: list[tuple[Any, CaptureSite]] = []
        self._containers: list[tuple[Any, Any, list[Any]]] = []
        self._pairs: list[tuple[Any, Any]] = []
        self._inner: list[RebuiltClosure] = []
        self._rebuild()
        self.function: Any = self._stand_in(captures.function)
        self.names: list[Names] = [made for made in self._sources.values() if isinstance(made, Names)]

    # ------------------------------------------------------------- making

    def _rebuild(self) -> None:
        holders = self._captures.rebuilt
        stubs = [holder for holder in holders if capture_kind(holder) in CHANGING]
        for holder in stubs:
            is_function = isinstance(holder, types.FunctionType)
            self._new[id(holder)] = self._make_function(holder) if is_function else holder.copy()
        for holder in holders:
            if id(holder) not in self._new:
                self._new[id(holder)] = self._make(holder)
        for holder in stubs:
            self._fill(holder, self._new[id(holder)])

    def _stand_in(self, content: Any) -> Any:
        return self._new.get(id(content), content)

    def _make(self, holder: Any) -> Any:
        kind = capture_kind(holder)
        if kind is CaptureKind.TUPLE:
            items = map(self._stand_in, holder)
            return tuple(items) if type(holder) is tuple else holder._make(items)
        if kind is CaptureKind.FROZENSET:
            return frozenset(map(self._stand_in, holder))
        parts = [self._stand_in(getattr(holder, name)) for name in _ATTRIBUTES[kind]]
        if kind is CaptureKind.METHOD:
            return types.MethodType(*parts)
        if kind is CaptureKind.CLOSURE:
            return Closure(parts[0], holder.user)
        if kind is CaptureKind.LIFTED:
            return holder._over(*parts)
        made = functools.partial.__new__(type(holder), parts[0])
        made.__setstate__((*parts, dict(vars(holder))))  # with this very dict of keywords, which is filled later
        return made

    def _make_function(self, holder: types.FunctionType) -> types.FunctionType:
        for site in self._captures.sites[id(holder)]:
            if site.kind != "attribute" and id(site.content) in self._replaced and id(site.source) not in self._sources:
                self._sources[id(site.source)] = types.CellType() if site.kind == "variable" else Names(site.source)
        # other cells stay, so that `nonlocal` goes on to work
        cells = tuple([self._sources.get(id(cell), cell) for cell in holder.__closure__ or ()])
        names = self._sources.get(id(holder.__globals__), holder.__globals__)
        if names is not holder.__globals__:
            names.lend([name for name, is_direct in names_in(holder.__code__).items() if is_direct])
        made = types.FunctionType(holder.__code__, names, holder.__name__, holder.__defaults__, cells or None)
        functools.update_wrapper(made, holder)
        made.__kwdefaults__ = holder.__kwdefaults__
        made.__dict__ = holder.__dict__  # one dict for both, so that what the function sets on itself is kept
        self._sources[id(holder)] = made
        return made

    def _fill(self, holder: Any, made: Any) -> None:
        if capture_kind(holder) in CHANGING_CONTAINERS:
            put_items(made, holder, self._stand_in)
            self._containers.append((holder, made, _items_of(made)))
            return
        for site in self._captures.sites[id(holder)]:
            if id(site.content) in self._replaced:
                source = self._sources[id(site.source)]
                put_content(source, site.key, self._stand_in(site.content))
                self._filled.append((source, site))

    # ------------------------------------------------------------- the end of the trace

    def __enter__(self) -> Self:
        if self._replaced:
            originals, copies = walk(self._captures.values).objects, walk(tuple(self._copies)).objects
            self._pairs = [pair for pair in zip(originals, copies, strict=True) if pair[0] is not pair[1]]
        self._token = _around.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _around.reset(self._token)
        around = _around.get()
        if self._pairs:
            self.point_back()
            if around is not None:  # the originals are copies too, and end with the trace around this one
                around._inner.append(self)

    def conclude(self) -> None:
        """Copies the assignments of the function to global names, and to attributes of lifted functions."""
        self._check()
        for names in self.names:
            names.base.update(names.assigned())
        for holder in self._captures.rebuilt:
            if capture_kind(holder) is CaptureKind.LIFTED:
                made = vars(self._stand_in(holder))
                vars(holder).update({name: value for name, value in made.items() if name[0] != "_"})

    def _check(self) -> None:
        """Refuses other contents of rebuilt holders, which would be lost."""
        filled = ((repr(site.key), content_of(source, site.key), site) for source, site in self._filled)
        changed = [name for name, content, site in filled if content is not self._stand_in(site.content)]
        changed += ["a container" for _, made, items in self._containers if not _holds_the_same(made, items)]
        if changed:
            raise TransformError(
                "the function",
                f"it assigns to {changed[0]}, where it captures a model",
                why="while the function is traced a copy is there, and the assignment would be lost",
                fix="change the model in place, as by dx.update(model, ...), or return the new one",
            )

    def point_back(self) -> None:
        """Makes all rebuilt holders refer to the originals again, in case the user's code has kept one."""
        for source, site in self._filled:
            put_content(source, site.key, content_of(site.source, site.key))
        for names in self.names:
            names.release()
        for holder, made, _ in self._containers:
            put_items(made, holder, lambda item: item)
        for original, made in self._pairs:
            if isinstance(made, Variable):
                end_trace(made)
            else:
                object.__setattr__(made, "__dict__", original.__dict__)
        for inner in self._inner:
            inner.point_back()

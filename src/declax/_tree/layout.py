"""Layouts: interned descriptions of a class with its data and static names, and the functions that (un)flatten it.

Instances have the *closed* layout of their class unless they deviate. Transitions to layouts with one name more, less
or of another status are cached, like the hidden classes of a JavaScript engine.
"""

from __future__ import annotations

import keyword
import linecache
import threading
import types
import weakref
from bisect import bisect
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from operator import itemgetter
from types import FunctionType
from typing import Any, ClassVar

import jax
import numpy as np

from declax import _jax
from declax._fields.class_info import info_of
from declax._fields.expressions import Declaration
from declax._fields.interning import Interned, Shared
from declax._fields.snapshots import freeze, thaw
from declax._fields.specifiers import Status, Tagged
from declax._tree.codegen import LateFunction, compile_functions
from declax._tree.iterators import ITERATORS
from declax._tree.statuses import CONTAINERS
from declax._typing import BOUND_KEY as BOUND_KEY
from declax._typing import INTERNAL_KEYS as INTERNAL_KEYS
from declax._typing import LAYOUT_KEY as LAYOUT_KEY
from declax._typing import RECORD_KEY as RECORD_KEY
from declax._typing import TRACE_KEY as TRACE_KEY
from declax.errors import type_name

Name = str | int
"""The name of an attribute; an index, in a List."""

Children = tuple[Any, ...]
Flatten = Callable[[Any], tuple[Children, tuple[Any, ...]]]
Unflatten = Callable[[Any, Iterable[Any]], Any]

ARRAY_CLASSES = frozenset({_jax.ArrayImpl, np.ndarray})
_LOOKED_INTO = frozenset({Tagged, Declaration, *CONTAINERS, *ITERATORS})
_WITH_ARRAYS = _LOOKED_INTO | ARRAY_CLASSES
_RECENT = 128
"""How many recent layouts a class holds, and how many names such a layout may have."""
_HASHED = 64
"""How many entries the hash of a layout counts."""
_MOST_TRANSITIONS = 256
"""How many transitions a layout caches before it forgets them all."""


class Layout(Shared):
    """One class with the status of each of its attributes.

    Attributes:
      cls: the class.
      statuses: the status of each name, in the order of the names.
      is_closed: whether it is the layout that its class has at creation.
      length: the number of elements, which have an index in place of a name.
      variables: the names of declared Variables, which an array must not replace.
      guarded: the names of which an assignment is looked at: all fields of a declared class, until it is known which
        decide what its parts are made of.
      unguarded: the status of each name but these.
      looked_into: the classes of values that an assignment to data checks.
    """

    _interned: ClassVar[Interned[Layout]] = Interned()
    """The layouts by class, whether they are closed, and statuses."""
    _deviants: ClassVar[weakref.WeakKeyDictionary[type, list[bool]]] = weakref.WeakKeyDictionary()
    """For each class a list that is not empty once there was a deviant."""

    cls: type
    statuses: Mapping[Name, Status]
    is_closed: bool
    length: int
    variables: frozenset[str]
    guarded: Collection[str]
    unguarded: Mapping[Name, Status]
    looked_into: frozenset[type]
    _transitions: dict[tuple[Name, str | None], weakref.ref[Layout]]
    _recent: deque[Layout] | None

    @staticmethod
    def of(owner: type, statuses: Mapping[Name, Status], *, is_closed: bool = False) -> Layout:
        """The layout of a class with these statuses; always the same object."""
        texts: list[str] = []
        numbers: list[int] = []
        for name in statuses:
            if isinstance(name, int):
                numbers.append(name)
            else:
                texts.append(name if name.__class__ is str else str.__str__(name))
        names: list[Name] = [*sorted(numbers), *(texts if _holds_elements(owner) else sorted(texts))]
        ordered = {name: statuses[name] for name in names}
        length = sum([name.__class__ is int for name in numbers]) if numbers else 0
        return Layout._intern(owner, ordered, length, is_closed)

    @staticmethod
    def _intern(owner: type, statuses: Mapping[Name, Status], length: int, is_closed: bool = False) -> Layout:
        """The layout with these statuses, which are in the order of the names."""

        def make() -> Layout:
            return Layout._make(owner, statuses, length, is_closed)

        # of the first entries only: a list of n elements changes n times
        hashed = hash((owner, len(statuses), *islice(statuses.items(), _HASHED)))
        order = tuple(statuses) if _holds_elements(owner) else ()
        # an instance that deviated and came back has the layout of its class again
        found = None if is_closed else Layout._interned.find((owner, True, statuses, order), hashed)
        return found or Layout._interned.find_or_make((owner, is_closed, statuses, order), make, hashed)

    @staticmethod
    def _make(owner: type, statuses: Mapping[Name, Status], length: int, is_closed: bool) -> Layout:
        layout = object.__new__(Layout)
        layout.cls, layout.statuses, layout.length, layout.is_closed = owner, statuses, length, is_closed
        info = info_of(owner)
        layout.variables = info.variables
        layout.guard(info.maker.guarded)
        layout.looked_into = _WITH_ARRAYS if layout.variables else _LOOKED_INTO
        layout._transitions = {}
        layout._recent = None
        root: Layout | None = owner.__dict__.get(LAYOUT_KEY)
        if not is_closed and (root is None or root.is_closed):
            _deviants_of(owner)[:] = [True]
        layout._keep()
        return layout

    def guard(self, names: Collection[str]) -> None:
        """Sets the names of which an assignment is looked at."""
        self.guarded = names
        self.unguarded = {n: s for n, s in self.statuses.items() if n not in names} if names else self.statuses

    def _keep(self) -> None:
        """Lets the class hold a small layout for a while, for its next instance."""
        root: Layout | None = self.cls.__dict__.get(LAYOUT_KEY)
        if root is not None and len(self.statuses) <= _RECENT:
            if root._recent is None:
                root._recent = deque(maxlen=_RECENT)
            root._recent.append(self)

    def with_status(self, name: Name, status: Status) -> Layout:
        """The layout with a name more, or with another status for a name."""
        cached = self._transitions.get((name, status._value_))
        found = cached and cached()
        return found or self._move(name, status)

    def without(self, name: Name) -> Layout:
        """The layout with a name less."""
        cached = self._transitions.get((name, None))
        found = cached and cached()
        return found or self._move(name, None)

    def _move(self, name: Name, status: Status | None) -> Layout:
        name = _exact(name)
        if status is None:
            statuses = {other: known for other, known in self.statuses.items() if other != name}
        else:
            statuses = _set(self.statuses, name, status, keeps_order=_holds_elements(self.cls))
        length = self.length + (len(statuses) - len(self.statuses)) * (name.__class__ is int)
        found = Layout._intern(self.cls, statuses, length)
        if len(self._transitions) >= _MOST_TRANSITIONS:
            self._transitions.clear()
        self._transitions[name, status and status._value_] = weakref.ref(found)
        return found

    def with_elements(self, statuses: Sequence[Status]) -> Layout:
        """The layout with these statuses of elements."""
        merged: dict[Name, Status] = dict(enumerate(statuses))
        merged.update(islice(self.statuses.items(), self.length, None))
        return Layout._intern(self.cls, merged, len(statuses))

    def fits(self, node: Any) -> bool:
        """Whether an instance has as many attributes as the layout, which is one of its class."""
        attributes = node.__dict__
        count = len(attributes) - len(INTERNAL_KEYS & attributes.keys())
        return count == len(self.statuses) and self.cls is node.__class__

    @cached_property
    def data_names(self) -> tuple[Name, ...]:
        """The names of the children, in order."""
        return tuple([n for n, s in self.statuses.items() if s is Status.DATA])

    @cached_property
    def static_names(self) -> tuple[Name, ...]:
        """The names of static attributes, in order."""
        return tuple([n for n, s in self.statuses.items() if s is not Status.DATA])

    @cached_property
    def order(self) -> tuple[Name, ...]:
        """All names in the order of the attributes of copies: of a Dict, that of its entries."""
        return tuple(self.statuses) if _holds_elements(self.cls) else self.data_names + self.static_names

    @cached_property
    def snapshots(self) -> tuple[tuple[Name, int], ...]:
        """The names of mutable static attributes, each with its place among the statics that `flatten` gives."""
        places = enumerate(self.static_names, 0 if self.is_closed else 1)
        return tuple([(name, place) for place, name in places if self.statuses[name] is Status.SNAPSHOT])

    @cached_property
    def _keys(self) -> tuple[Any, ...]:
        """The keys of the children in JAX."""
        return tuple(map(getattr(self.cls, "_pytree__make_key", jax.tree_util.GetAttrKey), self.data_names))

    @cached_property
    def late(self) -> tuple[LateFunction, LateFunction]:
        """`flatten` and `unflatten` of a class, which are written at their first calls: most have no instances."""
        return LateFunction(_flatten_first, self._write_flatten), LateFunction(_unflatten_first, self._write_unflatten)

    @cached_property
    def flatten(self) -> Flatten:
        """The generated function from an instance to children and statics."""
        return self.late[0].written() if self.is_closed else self._write_flatten({})

    def flatten_with_keys(self, node: Any) -> tuple[Children, tuple[Any, ...]]:
        """As `flatten`, each child with its key; an instance may deviate."""
        layout: Layout = node.__dict__.get(LAYOUT_KEY) or self
        children, statics = layout.flatten(node)
        return tuple(zip(layout._keys, children, strict=True)), statics

    @cached_property
    def unflatten(self) -> Unflatten:
        """The generated function from statics and children to an instance."""
        return self.late[1].written() if self.is_closed else self._write_unflatten({})

    def _write_flatten(self, namespace: dict[str, Any]) -> FunctionType:
        namespace.update(deviants=_deviants_of(self.cls), freeze=freeze)
        if len(self.data_names) > 1:
            namespace["read_data"] = itemgetter(*self.data_names)
        return self._compiled(_flatten_source(self), namespace)

    def _write_unflatten(self, namespace: dict[str, Any]) -> FunctionType:
        namespace.update(_NAMES, Class=self.cls, deviants=_deviants_of(self.cls))
        bare = _bare_class(self)
        if bare is None:
            namespace["new"] = blank_maker(self.cls)
            make = ["    self = new(Class)", "    fields = self.__dict__"]
            return self._compiled(_unflatten_source(self, "fields[{!r}]".format, make, []), namespace)
        namespace["Bare"] = bare
        make, finish = ["    self = Bare()"], ["    self.__class__ = Class"]
        return self._compiled(_unflatten_source(self, "self.{}".format, make, finish), namespace)

    def _compiled(self, source: str, namespace: dict[str, Any]) -> FunctionType:
        """The function of a source; it does not refer to the layout, which so dies without the garbage collector."""
        (function,) = compile_functions(type_name(self.cls), [source], {}, namespace)
        del namespace[function.__name__]  # a cycle
        forget = weakref.finalize(self, linecache.cache.pop, function.__code__.co_filename, None)
        forget.atexit = False
        return function

    def __repr__(self) -> str:
        statuses = ", ".join(f"{n}: {s.value}" for n, s in self.statuses.items())
        return f"Layout({type_name(self.cls)}: {statuses})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout.of, (self.cls, dict(self.statuses))  # the closed one only where the class still declares the same


def _holds_elements(owner: Any) -> bool:
    """Whether the order of names is seen by users, as in a Dict, and part of the layout."""
    return bool(owner._pytree__holds_elements)


def _set(statuses: Mapping[Name, Status], name: Name, status: Status, keeps_order: bool) -> dict[Name, Status]:
    """A copy with the status of a name, in the order of the names."""
    last: Any = next(reversed(statuses), None)
    if last is None or name in statuses or (keeps_order and isinstance(name, str)) or _order(last) < _order(name):
        copied = dict(statuses)
        copied[name] = status
        return copied
    names = list(statuses)
    names.insert(bisect(names, _order(name), key=_order), name)
    ordered = dict.fromkeys(names, status)
    ordered.update(statuses)
    return ordered


def _deviants_of(owner: type) -> list[bool]:
    with _deviants_lock:
        return Layout._deviants.setdefault(owner, [])


_deviants_lock = threading.RLock()  # again by a finaliser that runs while it is held


def _exact(name: Name) -> Name:
    # the name of an enum of texts is one too, but does not print as one
    return name if type(name) is str or isinstance(name, int) else str.__str__(name)


def _order(name: Name) -> tuple[bool, Any]:
    return isinstance(name, str), name


# --- generated code -----------------------------------------------------------


def _flatten_first(self: Any, written: Callable[[], Flatten]) -> Any:
    return written()(self)


def _unflatten_first(statics: Any, children: Any, written: Callable[[], Unflatten]) -> Any:
    return written()(statics, children)


_NAMES: Mapping[str, object] = {
    "Layout": Layout,
    "local_token": _jax.trace_state.get_local,
    "trace_state": _jax.trace_state,
    "TOP": _jax.TOP,
    "thaw": thaw,
}
"""What the functions that make an instance use."""


def _bare_class(layout: Layout) -> type | None:
    """A class without ``__setattr__`` whose instances can become instances of the layout's class; None without."""
    bare = type(layout.cls.__name__, (), {})
    probe: Any = bare()
    try:
        probe.__class__ = layout.cls
    except TypeError:
        return None
    object.__setattr__(probe, "__class__", bare)  # so that no `__del__` of the class sees a blank instance
    for name in layout.statuses:
        if not _is_plain(name) or hasattr(probe, str(name)):
            return None
    return bare


def blank_maker(cls: type) -> Callable[[type], Any]:
    """The ``__new__`` that makes an instance without any code of a user."""
    for base in cls.__mro__:
        new = base.__dict__.get("__new__")
        if isinstance(new, types.BuiltinFunctionType):
            return new
    return object.__new__


def _is_plain(name: Name) -> bool:
    # Python normalises identifiers beyond ASCII, so they may not find the name that was set
    return isinstance(name, str) and name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def _tuple_of(items: Iterable[str]) -> str:
    return f"({_targets(items)})"


def _targets(items: Iterable[str]) -> str:
    listed = list(items)
    return ", ".join(listed) + ("," if len(listed) == 1 else "")


def place_of(layout: Layout, name: Name) -> str:
    """The subject of an error of a snapshot."""
    place = f".{name}" if _is_plain(name) else f"[{name!r}]"
    return type_name(layout.cls) + place


def _statics(layout: Layout) -> str:
    values = [
        f"freeze(fields[{n!r}], {place_of(layout, n)!r})" if layout.statuses[n] is Status.SNAPSHOT else f"fields[{n!r}]"
        for n in layout.static_names
    ]
    if layout.is_closed:
        return _tuple_of(values)
    # no parameter: the functions would refer to the layout, which refers to them. Without names, it is of the class
    own = f'fields["{LAYOUT_KEY}"]' if layout.statuses else f"self.{LAYOUT_KEY}"
    return _tuple_of([own, *values])


def _flatten_source(layout: Layout) -> str:
    lines = ["def flatten(self):"]
    if layout.statuses or layout.is_closed:
        lines += ["    fields = self.__dict__"]
    if layout.is_closed:
        lines += [
            f'    if deviants and "{LAYOUT_KEY}" in fields:',
            f'        return fields["{LAYOUT_KEY}"].flatten(self)',
        ]
    names = layout.data_names
    children = "read_data(fields)" if len(names) > 1 else _tuple_of(map("fields[{!r}]".format, names))
    return "\n".join([*lines, f"    return {children}, {_statics(layout)}"])


def _unflatten_source(layout: Layout, place: Callable[[Name], str], make: Sequence[str], finish: Sequence[str]) -> str:
    """The function whose lines `make` an instance and `finish` it; `place` is an attribute of it in code."""
    lines = ["def unflatten(statics, children):"]
    statics = list(map(place, layout.static_names))
    if layout.is_closed:
        # a deviating instance puts its own layout in front of its statics
        lines += [
            "    if deviants and statics and statics[0].__class__ is Layout:",
            "        return statics[0].unflatten(statics, children)",
        ]
    else:
        statics = [place(LAYOUT_KEY), *statics]
    lines += make
    if not layout.length and layout.order != layout.data_names + layout.static_names:
        lines += [f"    self.__dict__.update(dict.fromkeys({layout.order!r}))"]
    if layout.data_names:
        lines += [f"    {_targets(map(place, layout.data_names))} = children"]
    if statics:
        lines += [f"    {_targets(statics)} = statics"]
    lines += [f"    {place(name)} = thaw({place(name)})" for name, _ in layout.snapshots]
    lines += [
        *finish,
        "    if local_token() is not TOP and trace_state.value is not TOP:",
        f'        self.__dict__["{TRACE_KEY}"] = trace_state.value',
        "    return self",
    ]
    return "\n".join(lines)

"""Interned descriptions of how instances of a class look to JAX.

Vocabulary
----------
layout:     one class with its data names and its static names, in order. It
            owns the generated functions that flatten and unflatten.
closed:     a layout that every instance of its class has, unless it deviates.
deviant:    a layout that some instance has instead of its class's closed one.
transition: from a layout to the one with a name more, less or of another
            status; cached, the way a JavaScript engine gives objects classes.
"""

from __future__ import annotations

import keyword
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar

import jax

from declax import _jax
from declax._codegen import compile_functions
from declax._fields import Status
from declax._static import freeze, thaw
from declax.errors import type_name

LAYOUT_KEY = "_pytree__layout"
TRACE_KEY = "_pytree__trace"
BOUND_KEY = "_pytree__bound"
INTERNAL_KEYS = frozenset({LAYOUT_KEY, TRACE_KEY, BOUND_KEY})

Name = str | int
"""The name of an attribute; an index, in a List."""

Children = tuple[Any, ...]
Flatten = Callable[[Any], tuple[Children, tuple[Any, ...]]]
Unflatten = Callable[[Any, Iterable[Any]], Any]


class Layout:
    """One class with the status of each of its attributes.

    Attributes:
      cls: the class.
      statuses: the status of each name, in the order of the names.
      data_names: the names of the children, in order.
      static_names: the names of static attributes, in order.
      snapshots: the names of mutable static attributes, each with its place
        among the statics that `flatten` gives.
      is_closed: whether it is the layout that its class has at creation.
      length: the number of elements, which have an index in place of a name.
      flatten: the generated function from an instance to children and statics.
      flatten_with_keys: as `flatten`, each child with its key.
      unflatten: the generated function from statics and children to an instance.
    """

    __slots__ = (
        "__weakref__",
        "_transitions",
        "cls",
        "data_names",
        "flatten",
        "flatten_with_keys",
        "is_closed",
        "length",
        "snapshots",
        "static_names",
        "statuses",
        "unflatten",
    )
    _interned: ClassVar[dict[Any, Layout]] = {}
    _deviants: ClassVar[dict[type, list[Layout]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    cls: type
    statuses: Mapping[Name, Status]
    data_names: tuple[Name, ...]
    static_names: tuple[Name, ...]
    is_closed: bool
    length: int
    snapshots: tuple[tuple[Name, int], ...]
    _transitions: dict[tuple[Name, Status | None], Layout]
    flatten: Flatten
    flatten_with_keys: Flatten
    unflatten: Unflatten

    @staticmethod
    def of(owner: type, statuses: Mapping[Name, Status], *, is_closed: bool = False) -> Layout:
        """The layout of a class with these statuses; always the same object."""
        items = tuple(sorted(((_exact(n), s) for n, s in statuses.items()), key=_order))
        key = (owner, items, is_closed)
        with Layout._lock:
            # an instance that deviated and came back has the layout of its class again
            layout = Layout._interned.get((owner, items, True)) or Layout._interned.get(key)
            if layout is None:
                layout = Layout._interned[key] = Layout._make(owner, dict(items), is_closed)
        return layout

    @staticmethod
    def _make(owner: type, statuses: Mapping[Name, Status], is_closed: bool) -> Layout:
        layout = object.__new__(Layout)
        layout.cls = owner
        layout.statuses = statuses
        layout.data_names = tuple(n for n, s in statuses.items() if s is Status.DATA)
        layout.static_names = tuple(n for n, s in statuses.items() if s is not Status.DATA)
        layout.is_closed = is_closed
        layout.length = sum(name.__class__ is int for name in statuses)
        layout.snapshots = tuple(
            (name, place)
            for place, name in enumerate(layout.static_names, 0 if is_closed else 1)
            if statuses[name] is Status.SNAPSHOT
        )
        layout._transitions = {}
        # stand in for the generated functions, which are made at the first use
        layout.flatten = partial(layout._compile_and_call, "flatten")
        layout.flatten_with_keys = partial(layout._compile_and_call, "flatten_with_keys")
        layout.unflatten = partial(layout._compile_and_call, "unflatten")
        if not is_closed:
            Layout._deviants.setdefault(owner, []).append(layout)
        return layout

    def with_status(self, name: Name, status: Status) -> Layout:
        """The layout with a name more, or with another status for a name."""
        found = self._transitions.get((name, status))
        if found is None:
            found = self._transitions[name, status] = Layout.of(self.cls, {**self.statuses, name: status})
        return found

    def without(self, name: Name) -> Layout:
        """The layout with a name less."""
        found = self._transitions.get((name, None))
        if found is None:
            rest = {n: s for n, s in self.statuses.items() if n != name}
            found = self._transitions[name, None] = Layout.of(self.cls, rest)
        return found

    def compile(self) -> None:
        """Puts the generated functions in place; their first use does so by itself."""
        self.flatten, self.flatten_with_keys, self.unflatten = _generate(self)

    def _compile_and_call(self, function: str, *args: Any) -> Any:
        self.compile()
        return getattr(self, function)(*args)

    def __repr__(self) -> str:
        statuses = ", ".join(f"{n}: {s.value}" for n, s in self.statuses.items())
        return f"Layout({type_name(self.cls)}: {statuses})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.cls, dict(self.statuses))

    def __copy__(self) -> Layout:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Layout:
        return self


def _exact(name: Name) -> Name:
    # the name of an enum of texts is one too, but does not print as one
    return name if type(name) is str or isinstance(name, int) else str.__str__(name)


def _order(item: tuple[Name, Status]) -> tuple[bool, Name]:
    return isinstance(item[0], str), item[0]


def _rebuild(cls: type, statuses: Mapping[Name, Status]) -> Layout:
    return Layout.of(cls, statuses)  # the closed one only where the class still declares the same


# --- generated code -----------------------------------------------------------


def _generate(layout: Layout) -> tuple[Flatten, Flatten, Unflatten]:
    make_key = getattr(layout.cls, "_pytree__make_key", jax.tree_util.GetAttrKey)
    parameters: dict[str, object] = {
        "Class": layout.cls,
        "Layout": Layout,
        "layout": layout,
        "deviants": Layout._deviants.setdefault(layout.cls, []),
        "local_mark": _jax.trace_state.get_local,
        "trace_state": _jax.trace_state,
        "TOP": _jax.TOP,
        "freeze": freeze,
        "thaw": thaw,
    }
    bare = _bare_class(layout)
    parameters.update({"new": blank_maker(layout.cls)} if bare is None else {"Bare": bare})
    if len(layout.data_names) > 1:
        parameters["read_data"] = itemgetter(*layout.data_names)
    for name in layout.data_names:
        parameters[_key_parameter(name)] = make_key(name)
    sources = [
        _flatten_source(layout),
        _flatten_with_keys_source(layout),
        _unflatten_source(layout) if bare is None else _unflatten_bare_source(layout),
    ]
    flatten, flatten_with_keys, unflatten = compile_functions(type_name(layout.cls), sources, parameters)
    return flatten, flatten_with_keys, unflatten


def _bare_class(layout: Layout) -> type | None:
    """A class whose instances can become instances of the layout's class.

    It has no ``__setattr__`` of its own, so that its attributes are set at the
    speed of the interpreter. None where the class cannot take its instances
    over, or where a name cannot be written as an attribute.
    """
    bare: Any = type(layout.cls.__name__, (), {})
    probe = bare()
    try:
        probe.__class__ = layout.cls
    except TypeError:
        return None
    object.__setattr__(probe, "__class__", bare)  # so that no `__del__` of the class sees a blank instance
    suits = all(_is_plain(name) and not hasattr(probe, str(name)) for name in layout.statuses)
    return bare if suits else None


def blank_maker(cls: type) -> Callable[[type], Any]:
    """The ``__new__`` that makes an instance without any code of a user."""
    found = (base.__dict__.get("__new__") for base in cls.__mro__)
    return next(new for new in found if isinstance(new, types.BuiltinFunctionType))


def _is_plain(name: Name) -> bool:
    # Python normalises identifiers beyond ASCII, so they may not find the name that was set
    return isinstance(name, str) and name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def _key_parameter(name: Name) -> str:
    if isinstance(name, int):
        return f"key_{name:d}"
    return f"key_{name}" if _is_plain(name) else f"hexkey_{name.encode('utf-8', 'surrogatepass').hex()}"


def _tuple_of(items: Iterable[str]) -> str:
    listed = list(items)
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"


def _targets(items: Iterable[str]) -> str:
    listed = list(items)
    return ", ".join(listed) + ("," if len(listed) == 1 else "")


def _where(layout: Layout, name: Name) -> str:
    """What an error of a snapshot is about, as a literal."""
    place = f".{name}" if _is_plain(name) else f"[{name!r}]"
    return repr(type_name(layout.cls) + place)


def _statics(layout: Layout) -> str:
    values = [
        f"freeze(fields[{n!r}], {_where(layout, n)})" if layout.statuses[n] is Status.SNAPSHOT else f"fields[{n!r}]"
        for n in layout.static_names
    ]
    return _tuple_of(values if layout.is_closed else ["layout", *values])


def _opening(layout: Layout, function: str) -> list[str]:
    lines = [f"def {function}(self):"]
    if layout.statuses or layout.is_closed:
        lines += ["    fields = self.__dict__"]
    if layout.is_closed:
        lines += [
            f'    if deviants and "{LAYOUT_KEY}" in fields:',
            f'        return fields["{LAYOUT_KEY}"].{function}(self)',
        ]
    return lines


def _flatten_source(layout: Layout) -> str:
    names = layout.data_names
    children = "read_data(fields)" if len(names) > 1 else _tuple_of(f"fields[{n!r}]" for n in names)
    return "\n".join([*_opening(layout, "flatten"), f"    return {children}, {_statics(layout)}"])


def _flatten_with_keys_source(layout: Layout) -> str:
    children = _tuple_of(f"({_key_parameter(n)}, fields[{n!r}])" for n in layout.data_names)
    return "\n".join([*_opening(layout, "flatten_with_keys"), f"    return {children}, {_statics(layout)}"])


def _unflatten_opening(layout: Layout) -> list[str]:
    lines = ["def unflatten(statics, children):"]
    if layout.is_closed:
        # a deviating instance puts its own layout in front of its statics
        lines += [
            "    if deviants and statics and statics[0].__class__ is Layout:",
            "        return statics[0].unflatten(statics, children)",
        ]
    return lines


_UNFLATTEN_CLOSING = [
    "    if local_mark() is not TOP and trace_state.value is not TOP:",
    f'        self.__dict__["{TRACE_KEY}"] = trace_state.value',
    "    return self",
]


def _unflatten_bare_source(layout: Layout) -> str:
    lines = [*_unflatten_opening(layout), "    self = Bare()"]
    if layout.data_names:
        lines += [f"    {_targets(f'self.{n}' for n in layout.data_names)} = children"]
    statics = [f"self.{n}" for n in layout.static_names]
    if not layout.is_closed:
        statics = [f"self.{LAYOUT_KEY}", *statics]
    if statics:
        lines += [f"    {_targets(statics)} = statics"]
    for name in layout.static_names:
        if layout.statuses[name] is Status.SNAPSHOT:
            lines += [f"    self.{name} = thaw(self.{name})"]
    return "\n".join([*lines, "    self.__class__ = Class", *_UNFLATTEN_CLOSING])


def _unflatten_source(layout: Layout) -> str:
    lines = [*_unflatten_opening(layout), "    self = new(Class)", "    fields = self.__dict__"]
    if layout.data_names:
        lines += [f"    {_targets(f'fields[{n!r}]' for n in layout.data_names)} = children"]
    statics = [f"fields[{n!r}]" for n in layout.static_names]
    if not layout.is_closed:
        statics = [f'fields["{LAYOUT_KEY}"]', *statics]
    if statics:
        lines += [f"    {_targets(statics)} = statics"]
    for name in layout.static_names:
        if layout.statuses[name] is Status.SNAPSHOT:
            lines += [f"    fields[{name!r}] = thaw(fields[{name!r}])"]
    return "\n".join([*lines, *_UNFLATTEN_CLOSING])

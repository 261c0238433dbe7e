"""Rebuilds a function over other nodes than it captures, for as long as it is traced.

When the trace ends, what was rebuilt points back at the originals, since a user's function may have kept it: a closure
that was made while tracing sees the real models. Only holders from which something captured is reached are rebuilt.
"""

from __future__ import annotations

import copy
import threading
import types
from collections.abc import Sequence
from typing import Any, Final, Self

from declax._graph.flattening import walk
from declax._variables.variable import Variable, end_trace
from declax.errors import TransformError, describe
from declax.transforms._engine.captures import (
    STUBS,
    CaptureKind,
    Captures,
    CaptureSite,
    Closure,
    Names,
    capture_kind,
    content_of,
    names_in,
)


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

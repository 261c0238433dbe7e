"""Makes functions anew over other things than they capture.

Vocabulary
----------
rebound: a function that was made anew. It has the code of the first one, and
         cells, defaults and names of its own where something was replaced.
needed:  a holder from which something captured is reached; others stay.
shell:   a new holder without its contents yet, since it may be part of a circle.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from declax._typing import MISSING
from declax.errors import TransformError, describe
from declax.transforms._closure import Closure, Survey, items_of
from declax.transforms._holders import (
    SHELLS,
    Place,
    Sort,
    attributes_of,
    content_of,
    names_in,
    remove_attribute,
    set_attributes,
    sort_of,
)
from declax.transforms._names import Names


class Rebound:
    """A function over other things than it captured.

    Args:
      survey: of the function.
      copies: what takes the place of each captured root.

    Attributes:
      function: the new function; the old one where nothing is captured.
    """

    def __init__(self, survey: Survey, copies: Sequence[Any]) -> None:
        self._survey = survey
        self._new = {id(root): made for root, made in zip(survey.values, copies, strict=True)}
        self._made: dict[int, Any] = {}
        self._cells: dict[int, types.CellType] = {}
        self._names: dict[int, Names] = {}
        self._places: dict[int, list[Place]] = {}
        self.function: Callable[..., Any] = survey.function
        if survey.captured:
            self._rebind()
        self._contents = [(cell, content_of(cell)) for cell in self._cells.values()]
        self._given = {number: self._state_of(number) for number in self._made}

    def _rebind(self) -> None:
        survey = self._survey
        needed = survey.reaching(place.holder for place in survey.captured) - {-1}
        self._places = {number: [] for number in sorted(needed)}
        for place in survey.places:
            if place.holder in needed:
                self._places[place.holder].append(place)
        for number in self._places:
            if _sort(survey, number) in SHELLS:
                self._made[number] = self._make_shell(number, survey.holders[number])
        for number in self._places:
            self._make_with_parts(number)
        for number in self._places:
            if _sort(survey, number) in SHELLS:
                self._fill(number, self._made[number])
        self.function = self._stand_in(survey.function)

    def _stand_in(self, content: Any) -> Any:
        """What stands for something; itself where nothing captured is reached from it."""
        if id(content) in self._new:
            return self._new[id(content)]
        number = self._survey.numbers.get(id(content), -1)
        return self._made.get(number, content)

    def _make_shell(self, number: int, holder: Any) -> Any:
        sort = _sort(self._survey, number)
        if sort is Sort.LIST or sort is Sort.DICT:
            return copy.copy(holder)
        if sort is Sort.OBJECT:
            return _copy_object(holder)
        cells = tuple(map(self._cell, holder.__closure__ or ()))
        names = self._names_for(number, holder)
        made = types.FunctionType(holder.__code__, names, holder.__name__, holder.__defaults__, cells or None)
        made.__kwdefaults__ = dict(holder.__kwdefaults__) if holder.__kwdefaults__ else None
        made.__qualname__, made.__module__, made.__doc__ = holder.__qualname__, holder.__module__, holder.__doc__
        name = "__annotate__" if hasattr(holder, "__annotate__") else "__annotations__"  # made on demand from 3.14 on
        setattr(made, name, getattr(holder, name))
        if not any(place.kind == "attribute" for place in self._replaced(number)):
            made.__dict__ = holder.__dict__  # one dict for both, so that what the function sets on itself is kept
        else:
            made.__dict__.update(holder.__dict__)
        return made

    def _is_replaced(self, content: Any) -> bool:
        return id(content) in self._new or self._survey.numbers.get(id(content)) in self._places

    def _replaced(self, number: int) -> list[Place]:
        """The places of a needed holder where something else stands now."""
        return [place for place in self._places[number] if self._is_replaced(place.content)]

    def _cell(self, cell: types.CellType) -> types.CellType:
        if not self._is_replaced(content_of(cell)):
            return cell  # so that `nonlocal` goes on to work
        return self._cells.setdefault(id(cell), types.CellType())

    def _names_for(self, number: int, function: types.FunctionType) -> dict[str, Any]:
        base = function.__globals__
        if not any(place.kind == "name" for place in self._replaced(number)):
            return base
        names = self._names.setdefault(id(base), Names(base))
        used = names_in(function.__code__)
        names.lend(None if used.reads_any else used.read_directly)
        return names

    def _make_with_parts(self, number: int) -> None:
        """Makes what cannot be filled later, after what it consists of."""
        waiting = [number]
        while waiting:
            number = waiting[-1]
            parts = {self._survey.numbers.get(id(place.content), -1) for place in self._places[number]}
            parts = {n for n in parts if n in self._places and n not in self._made}
            if number in self._made or not parts:
                waiting.pop()
            if number not in self._made and not parts:
                self._made[number] = self._make(number, self._survey.holders[number])
            elif number not in self._made:
                waiting += parts

    def _make(self, number: int, holder: Any) -> Any:
        sort = _sort(self._survey, number)
        if sort is Sort.PARTIAL:
            arguments = map(self._stand_in, holder.args)
            named = {name: self._stand_in(value) for name, value in holder.keywords.items()}
            made = type(holder)(self._stand_in(holder.func), *arguments, **named)
            vars(made).update(vars(holder))
            return made
        if sort is Sort.METHOD:
            return types.MethodType(self._stand_in(holder.__func__), self._stand_in(holder.__self__))
        if sort is Sort.CLOSURE:
            return Closure(self._stand_in(holder.function))
        if sort is Sort.LIFTED:
            return holder._over(self._stand_in(holder._closure))
        if sort is Sort.CACHE:
            return functools.lru_cache(**holder.cache_parameters())(self._stand_in(holder.__wrapped__))
        items = map(self._stand_in, holder)
        return holder.__class__(items) if holder.__class__ is tuple else holder._make(items)

    def _fill(self, number: int, made: Any) -> None:
        holder = self._survey.holders[number]
        replaced = [(p.kind, p.key, self._stand_in(p.content)) for p in self._replaced(number)]
        set_attributes(made, {name: new for kind, name, new in replaced if kind == "attribute"})
        for kind, key, new in replaced:
            if kind == "item":
                made[key] = new
            elif kind == "name":
                self._names[id(holder.__globals__)].replace(key, new)
        if isinstance(made, types.FunctionType):
            self._fill_function(holder, made)

    def _fill_function(self, holder: types.FunctionType, made: types.FunctionType) -> None:
        for cell in holder.__closure__ or ():
            if id(cell) in self._cells:
                self._cells[id(cell)].cell_contents = self._stand_in(cell.cell_contents)
        if made.__defaults__:
            made.__defaults__ = tuple(map(self._stand_in, made.__defaults__))
        if made.__kwdefaults__:
            made.__kwdefaults__ = {name: self._stand_in(value) for name, value in made.__kwdefaults__.items()}

    def _state_of(self, number: int) -> Any:
        """What a new holder consists of, to see what the function does to it."""
        sort, holder = _sort(self._survey, number), self._survey.holders[number]
        if sort is Sort.LIST or sort is Sort.DICT:
            return items_of(self._made[number])
        if sort is Sort.OBJECT:
            return attributes_of(self._made[number])
        if sort is Sort.LIFTED or (sort is Sort.FUNCTION and vars(self._made[number]) is not vars(holder)):
            return dict(vars(self._made[number]))
        return None

    def conclude(self) -> None:
        """Carries over what the function did to names and attributes, once it has returned.

        Raises:
          TransformError: it put something else in the place of what it
            captured; nothing is carried over then.
        """
        for cell, given in self._contents:
            if content_of(cell) is not given:
                raise _rebinds("a variable of an outer function", given)
        names = [(n, name, value) for n in self._names.values() for name, value in n.assigned()]
        for of_module, name, _ in names:
            if name in of_module.replaced:
                raise _rebinds(f"the global name {name!r}", of_module.replaced[name])
        changes = [(number, self._changes_of(number)) for number in self._made]
        for of_module, name, value in names:
            if value is MISSING:
                of_module.base.pop(name, None)
            else:
                of_module.base[name] = value
        for number, changed in changes:
            holder = self._survey.holders[number]
            set_attributes(holder, {name: value for name, value in changed.items() if value is not MISSING})
            for name in [name for name, value in changed.items() if value is MISSING]:
                remove_attribute(holder, name)

    def _changes_of(self, number: int) -> dict[str, Any]:
        """The attributes of a new holder that the function has set; `MISSING` for those that it has removed."""
        sort, given = _sort(self._survey, number), self._given[number]
        if given is None:
            return {}
        now = self._state_of(number)
        if sort is Sort.LIST or sort is Sort.DICT:
            if len(now) != len(given) or not all(a is b for a, b in zip(now, given, strict=True)):
                raise _rebinds("a list or dict", self._made[number])
            return {}
        if sort is Sort.LIFTED:  # its own attributes are of this trace only
            given = {name: value for name, value in given.items() if name[:1] != "_"}
            now = {name: value for name, value in now.items() if name[:1] != "_"}
        changed = {name: value for name, value in now.items() if given.get(name, MISSING) is not value}
        changed |= dict.fromkeys(given.keys() - now.keys(), MISSING)
        replaced = {place.key for place in self._replaced(number) if place.kind == "attribute"}
        for name in changed:
            if name in replaced:
                raise _rebinds(f"the attribute {name!r}", given[name])
        return changed


def _sort(survey: Survey, number: int) -> Sort:
    """The sort of a holder; what is none of the others is an object, as the owner of a method."""
    return sort_of(survey.holders[number]) or Sort.OBJECT


def _copy_object(holder: Any) -> Any:
    """A shallow copy, past what the class itself says of copies where that goes."""
    try:
        made = object.__new__(type(holder))
    except TypeError:  # an instance of a class that is written in C, in part
        return copy.copy(holder)
    set_attributes(made, attributes_of(holder))
    return made


def _rebinds(what: str, given: object) -> TransformError:
    return TransformError(
        "the function",
        f"it assigns to {what}, where it captures a model",
        got=describe(given),
        why="inside of a transform a copy stands there, so that the assignment would be lost",
        fix="change the model in place, as by dx.update(model, ...), or return the new one",
    )

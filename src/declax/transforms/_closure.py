"""Models that a function closes over are arguments that nobody has to write.

A function reaches models by its closure, its defaults, the names of its module,
a `functools.partial`, as a bound method, and by other functions that it calls.
What is found there goes into a transform like an argument; inside, the
function is made anew over what the transform has put in its place.

Vocabulary
----------
captured: a root in a place that a function reaches.
survey:   one look at all places that a function reaches.
watched:  a place that is looked at again before each call, since it may come
          to hold another model.
quiet:    a container in which there is nothing to capture.
"""

from __future__ import annotations

import inspect
import types
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain, islice
from operator import is_
from typing import Any

from declax._typing import MISSING
from declax.errors import TransformError, describe
from declax.transforms import _holders as holders
from declax.transforms._holders import CONTAINERS, Place, Sort, attribute_of, content_of, is_library, sort_of
from declax.transforms._roots import is_finished, is_labels
from declax.transforms._structure import Captured

MAX_QUIET = 64
"""Of so many items of a container without models, and of so many containers in others, each is looked at again."""

MAX_KEYS = 1024
"""For how many different surveys one function keeps the keys; the oldest goes first."""


class Closure:
    """A function, and what it captures.

    A transform keeps a Closure in place of the function, so that a function
    which calls the transformed one reaches what it captures.

    Args:
      function: the function.

    Attributes:
      function: the function.
      survey: the last look at it.

    Raises:
      TransformError: for generator functions and coroutines.
    """

    __slots__ = ("__weakref__", "_keys", "function", "survey")

    def __init__(self, function: Callable[..., Any]) -> None:
        _check_returns(function)
        self.function: Callable[..., Any] = function
        self.survey: Survey | None = None
        self._keys: dict[Hashable, Captured] = {}

    def find(self) -> Survey:
        """What the function captures now.

        In steady state, a comparison of identities for each place that might
        come to hold a model.
        """
        survey = self.survey
        if survey is None or not survey.is_current():
            survey = Survey(self.function)
            if survey.captured:
                if len(self._keys) >= MAX_KEYS:
                    self._keys.clear()
                survey.key = self._keys.setdefault(survey.describe(), Captured(survey.variables()))
            self.survey = survey
        return survey


holders.set_sort(Closure, Sort.CLOSURE)

_WITHOUT_RESULT = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


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


class Survey:
    """All that a function reaches.

    Args:
      function: the function.

    Attributes:
      function: the function.
      holders: in the order in which they were found.
      numbers: the number of each holder, by identity.
      places: all of them.
      captured: those where roots are.
      values: the captured roots, each once.
      key: stands for the places of what is captured; None where there are none.
      is_fixed: whether nothing that is reached can come to be a model.
    """

    __slots__ = (
        "_attributes",
        "_cells",
        "_contents",
        "_is_passing",
        "_items",
        "_names",
        "_quiet",
        "captured",
        "function",
        "holders",
        "is_fixed",
        "key",
        "numbers",
        "places",
        "values",
    )

    function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        if (
            sort_of(function) is Sort.OBJECT
            and holders.is_called_by_python(type(function))
            and not is_library(function)
        ):
            function = types.MethodType(type(function).__call__, function)  # which may capture something itself
        self.function = function
        self.holders: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.places: list[Place] = []
        self.captured: list[Place] = []
        self.key: Captured | None = None
        self._is_passing = False  # a model that is being made is no argument yet, but will be one
        self._cells: list[types.CellType] = []
        self._names: list[tuple[dict[str, Any], str]] = []
        self._attributes: list[tuple[Any, str]] = []
        if sort_of(function) is Sort.ROOT:
            self._add(Place(-1, "self", 0, function))
        elif sort_of(function) is not None:
            self._follow(function)
        self._contents = self._read()
        self.values: tuple[Any, ...] = tuple({id(place.content): place.content for place in self.captured}.values())
        self._items: list[tuple[Any, Sequence[Any]]] = []
        self._quiet: list[list[Any]] = []
        self._watch_containers()
        self.is_fixed: bool = not (self._contents or self._items or self._quiet or self.captured or self._is_passing)

    def describe(self) -> Hashable:
        """Says which places hold what is captured, which of them hold the same, and of which functions."""
        codes = tuple(h.__code__ if isinstance(h, types.FunctionType) else None for h in self.holders)
        ranks = {id(root): rank for rank, root in enumerate(self.values)}
        return codes, tuple((*place[:3], ranks[id(place.content)]) for place in self.captured)

    def variables(self) -> tuple[str | None, ...]:
        """What the function calls each thing that it captures; None where it has no name for it."""
        found: dict[int, str | None] = {}
        for place in self.captured:
            found[id(place.content)] = found.get(id(place.content)) or (
                place.key if isinstance(place.key, str) and place.kind != "item" else None
            )
        return tuple(found[id(root)] for root in self.values)

    def is_current(self) -> bool:
        """Whether all places hold what they held."""
        if self.is_fixed:
            return True
        if self._is_passing or not all(map(is_, self._read(), self._contents)):
            return False
        if self._items and not all(_is_as_it_was(*pair) for pair in self._items):
            return False
        return not self._quiet or not any(map(_is_loud, self._quiet))

    def watched(self) -> list[tuple[Any, str | None, Any]] | None:
        """What is looked at again before each call: a cell, or the names of a module and one of them; and its content.

        None where more than that is looked at, or where something has no content yet.
        """
        if self._attributes or self._items or self._quiet or self._is_passing:
            return None
        places: list[tuple[Any, str | None]] = [*((cell, None) for cell in self._cells), *self._names]
        found = [(source, name, content) for (source, name), content in zip(places, self._contents, strict=True)]
        return None if any(content is MISSING for *_, content in found) else found

    def reaching(self, start: Iterable[int]) -> frozenset[int]:
        """The holders from which others are reached, and those themselves."""
        above: dict[int, list[int]] = {}
        for place in self.places:
            number = self.numbers.get(id(place.content))
            if number is not None and place.holder >= 0:
                above.setdefault(number, []).append(place.holder)
        found = set(start)
        waiting = list(found)
        while waiting:
            new = set(above.get(waiting.pop(), ())) - found
            found |= new
            waiting += new
        return frozenset(found)

    def _read(self) -> list[Any]:
        contents = []
        if self._cells:
            try:
                contents = [cell.cell_contents for cell in self._cells]
            except ValueError:  # a cell that is not filled yet
                contents = list(map(content_of, self._cells))
        if self._names:
            contents += [names.get(name, MISSING) for names, name in self._names]
        if self._attributes:
            contents += [attribute_of(source, name) for source, name in self._attributes]
        return contents

    def _follow(self, holder: Any) -> None:
        waiting = deque((holder,))
        while waiting:
            holder = waiting.popleft()
            if id(holder) in self.numbers:
                continue
            number = self.numbers[id(holder)] = len(self.holders)
            self.holders.append(holder)
            places = holders.places_of(holder, number, sort_of(holder))
            waiting += [place.content for place in places if self._add(place)]

    def _add(self, place: Place) -> bool:
        """Takes note of a place; says whether a holder is there, to follow."""
        content: Any = place.content
        sort = sort_of(content)
        self.places.append(place)
        if place.source is not None:
            self._watch(place)
        if sort is Sort.ROOT:
            if is_labels(content):
                return False
            if is_finished(content):
                self.captured.append(place)
            else:
                self._is_passing = True
            return False
        if place.kind == "name" and sort is Sort.FUNCTION:
            return holders.is_of_module(content, self.holders[place.holder])
        return sort is not None or place.kind == "owner"

    def _watch(self, place: Place) -> None:
        holder = self.holders[place.holder]
        if is_library(holder):
            return
        if place.kind == "variable":
            self._cells.append(place.source)
        elif place.kind == "name":
            self._names.append((place.source, place.key))
        elif place.kind == "attribute":
            self._attributes.append((place.source, place.key))
        elif place.kind == "default":
            self._attributes.append((holder, "__defaults__"))
        else:
            self._attributes.append((holder, "__kwdefaults__"))
            self._names.append((holder.__kwdefaults__, place.key))

    def _watch_containers(self) -> None:
        sorts = [sort_of(holder) for holder in self.holders]
        if CONTAINERS.isdisjoint(sorts):
            return
        start = {number for number, sort in enumerate(sorts) if sort not in CONTAINERS}
        loud = self.reaching(start | {place.holder for place in self.captured})
        inner, of_users = set(), set()
        for place in self.places:
            number = self.numbers.get(id(place.content), -1)
            if place.kind == "item":
                inner.add(number)
            is_item = sorts[place.holder] in CONTAINERS
            if place.holder in of_users if is_item else not is_library(self.holders[place.holder]):
                of_users.add(number)
        for number, (holder, sort) in enumerate(zip(self.holders, sorts, strict=True)):
            if sort not in CONTAINERS or sort is Sort.TUPLE or number not in of_users:
                continue
            if number in loud:
                self._items.append((holder, items_of(holder)))
            elif number not in inner or len(self._quiet) < MAX_QUIET:
                self._quiet.append([holder, len(holder), self.numbers])


def items_of(container: Any) -> list[Any]:
    """The items of a list, or the keys and values of a dict."""
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    return list(container)


def _is_as_it_was(container: Any, items: Sequence[Any]) -> bool:
    if isinstance(container, dict):
        return 2 * len(container) == len(items) and all(map(is_, chain(container, container.values()), items))
    return len(container) == len(items) and all(map(is_, container, items))


def _is_loud(entry: list[Any]) -> bool:
    """Whether there is something now in a quiet container; in a long one, behind its end."""
    container, seen, numbers = entry
    items: Iterable[Any] = container.values() if isinstance(container, dict) else container
    length = len(container)
    if length <= MAX_QUIET and holders.WITHOUT_SORT.issuperset(map(type, items)):
        return False
    if length > MAX_QUIET:
        items = islice(items, min(seen, length), None)
    if any(sort_of(item) is not None and id(item) not in numbers and _holds_any(item) for item in tuple(items)):
        return True
    entry[1] = length
    return False


def _holds_any(item: Any) -> bool:
    """Whether containers, one in the other, hold a root or a function."""
    waiting, seen = [item], set()
    while waiting:
        item = waiting.pop()
        sort = sort_of(item)
        if sort is None or id(item) in seen:
            continue
        if sort not in CONTAINERS:
            return True
        seen.add(id(item))
        waiting += items_of(item)
    return False

"""Iterators that give models, and how that is known without using them up.

A generator, a `map` or a `zip` in an attribute is static, as each object without children: models that it gives are in
no State, and the first loop uses it up. Iterators of Python name what they hold to the collector of garbage, and
functions name in their code what they call.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import Any, Final

from declax._fields.annotations import is_data_class
from declax._fields.bytecode import all_called, code_of
from declax._fields.call import Unmade
from declax.errors import StatusError, describe, type_name

_OF_FUNCTIONS: Final = (
    map, filter, itertools.starmap, itertools.takewhile, itertools.dropwhile, itertools.filterfalse,
    itertools.accumulate, itertools.groupby,
)  # fmt: skip
"""Iterators that call a function, which may be a model."""

_EMPTY: Final[dict[str, str]] = {}
_VIEWS: Final = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))

_SOME: Final[tuple[Iterator[object], ...]] = (
    iter(()),
    iter([""]),
    iter(set[str]()),
    iter(_EMPTY),
    iter(_EMPTY.values()),
    iter(_EMPTY.items()),
)

ITERATORS: Final[frozenset[type]] = frozenset(
    {
        *_VIEWS,
        *_OF_FUNCTIONS,
        *map(type, _SOME),
        type(iter(lambda: None, None)),
        GeneratorType,
        zip,
        enumerate,
        reversed,
        type(reversed([""])),
        type(reversed(_EMPTY.values())),
        itertools.chain,
        itertools.cycle,
        itertools.islice,
        itertools.repeat,
        itertools.product,
        itertools.zip_longest,
    }
)
"""The iterators and views of Python; instances of other classes may be anything."""


_ENOUGH: Final = 100
"""How many items of a container are looked at: a data set may have millions, all of one kind."""


def check_iterators(values: Iterable[Any], where: str, fix: str, kind: str = "list", *, is_part: bool = False) -> None:
    """Refuses iterators that give models among the values of an attribute; all of them if it is surely a part.

    `fix` takes the list of a kind in their place.
    """
    for iterator in filter(_is_iterator, values):
        given = models_given(iterator)
        if given is not None or is_part:
            raise StatusError(
                where,
                "an iterator cannot be a part",
                expected="a list, a tuple or a dict of parts",
                got=describe(iterator) if given is None else f"{describe(iterator)} that {given}",
                why="what it gives is no child of the tree: no State has it, and the first loop uses it up",
                fix=fix.format(made_once(iterator, kind)),
            )


def _is_iterator(value: object) -> bool:
    return value.__class__ in ITERATORS


def made_once(iterator: Any, kind: str = "list") -> str:
    """The list that holds all that an iterator gives, as code."""
    if isinstance(iterator, GeneratorType) and iterator.__name__ == "<genexpr>":
        return "[... for ... in ...]" if kind == "list" else f"{kind}([... for ... in ...])"
    if isinstance(iterator, _VIEWS):
        return f"{kind}(parts.{type_name(type(iterator)).removeprefix('dict_')}())"
    name = type_name(type(iterator))
    is_class = type(iterator) in (map, filter, zip, enumerate)
    return f"{kind}({name}(...))" if is_class else f"{kind}(...)"


def models_given(iterator: Any) -> str | None:
    """What models an iterator gives, or None if it gives none or that is not known; it is not used up."""
    if iterator.__class__ in _VIEWS and any(is_data_class(type(item)) for item in itertools.islice(iterator, _ENOUGH)):
        return "holds arrays or models"
    waiting, seen = [iterator], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if _is_model(each):
            return f"holds a {type_name(type(each))}"
        if is_model_class(each):
            return f"makes {type_name(each)}"
        if isinstance(each, (list, tuple, set, frozenset)):
            waiting += itertools.islice(each, _ENOUGH)
        elif isinstance(each, dict):
            waiting += itertools.islice(each.values(), _ENOUGH)
        elif each.__class__ in ITERATORS:
            waiting += _within(each)
        elif isinstance(each, functools.partial):
            waiting.append(each.func)
        else:
            waiting += filter(is_model_class, all_called(each) if code_of(each) is not None else ())
    return None


def _within(iterator: Any) -> Iterable[Any]:
    """What an iterator goes through, and what makes its items."""
    if isinstance(iterator, GeneratorType):
        code = code_of(iterator)
        items = () if code is None else (code.variables.get(".0"), iterator.gi_yieldfrom)
        return (*items, *filter(is_model_class, all_called(iterator)))
    within: Iterator[Any] = iter(gc.get_referents(iterator))
    if isinstance(iterator, _OF_FUNCTIONS):
        return (each for each in within if not _is_model(each))
    return within


def _is_model(value: Any) -> bool:
    """Whether a value is a Module, a container of some, a Variable, or an expression that may give one."""
    cls: Any = type(value)
    return isinstance(value, Unmade) or is_model_class(cls) or getattr(cls, "_pytree__holds_elements", False)


def is_model_class(value: Any) -> bool:
    """Whether a value is a class of Modules or Variables."""
    is_class = isinstance(value, type)
    return is_class and (getattr(value, "_pytree__is_module", False) or hasattr(value, "raw_value"))

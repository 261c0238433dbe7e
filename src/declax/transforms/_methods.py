"""Says so when the methods of a model read another model past its attributes.

A class is nobody's argument, so its methods are not made anew, as functions that
capture something are: what they read by the names of their module, or of the
function that the class is made in, is a constant of what is traced.

Vocabulary
----------
reached: of a method: one that a function may call: some code that runs under it
         names it.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterator
from typing import Any, Final

from declax.graph.binding import bind
from declax.graph.defs import NODE, GraphDef, walk_tokens
from declax.transforms._closure import Closure, Survey
from declax.transforms._holders import Sort, is_library, is_of_library, sort_of
from declax.transforms._overlooked import warn_once
from declax.transforms._ways import attributes_in

_looked_at: Final[weakref.WeakKeyDictionary[GraphDef[Any], set[int]]] = weakref.WeakKeyDictionary()
"""The functions, by identity of their code, that were looked at for a structure."""

_WRAPPERS: Final = (Sort.LIFTED, Sort.CACHE)


def warn_of_methods(closure: Closure, graphdef: GraphDef[Any] | None) -> None:
    """Warns of models that methods of models read by names; looks once for each function and structure.

    Args:
      closure: of the function that calls the methods.
      graphdef: of the models that it gets.
    """
    if graphdef is None:
        return
    code = getattr(closure.function, "__code__", None)
    seen = _looked_at.get(graphdef)
    if seen is None:
        seen = _looked_at[graphdef] = set()
    if id(code) in seen:
        return
    seen.add(id(code))
    for name, survey in _reached(closure.find(), graphdef):
        for place in survey.captured:
            if bind(place.content).graphdef.num_leaves:
                holder = survey.holders[place.holder] if place.holder >= 0 else survey.function
                warn_once(
                    getattr(holder, "__code__", type(holder)),
                    f"{name!r} reads",
                    place.key,
                    place.content,
                    "by a name, and captures do not look into methods of models",
                    f"Keep it as an attribute, self.{place.key} = {place.key}, or pass it as an argument",
                )


def _reached(survey: Survey, graphdef: GraphDef[Any]) -> Iterator[tuple[str, Survey]]:
    """The methods that a function may call, each with what is found in it."""
    classes = {
        token[1].cls for _, token in walk_tokens(graphdef.tokens) if isinstance(token, tuple) and token[0] == NODE
    }
    methods = [method for method in _methods_of(classes) if id(method[2]) not in survey.numbers]
    names = {"__call__"}.union(*map(_names_in, survey.holders))
    while methods:
        called = [method for method in methods if method[1] in names]
        if not called:
            return
        methods = [method for method in methods if method[1] not in names]
        for where, _, function in called:
            found = Survey(function)
            names = names.union(*map(_names_in, found.holders))
            yield where, found


def _names_in(holder: Any) -> frozenset[str]:
    return attributes_in(holder.__code__) if isinstance(holder, types.FunctionType) else frozenset()


def _methods_of(classes: set[type]) -> Iterator[tuple[str, str, Any]]:
    """The functions that the classes of a user define: what to call each, its name, and itself."""
    bases = dict.fromkeys(base for cls in sorted(classes, key=lambda cls: cls.__qualname__) for base in cls.__mro__)
    for base in bases:
        if is_of_library(base.__module__):
            continue
        for name, value in vars(base).items():
            for function in _functions_of(value):
                sort = sort_of(function)
                if sort in _WRAPPERS or (sort is Sort.FUNCTION and not is_library(function)):
                    yield f"{base.__name__}.{name}", name, function


def _functions_of(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget,)
    return (value.func,) if isinstance(value, functools.cached_property) else (value,)


__all__ = ["warn_of_methods"]

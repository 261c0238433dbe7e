"""Says so when a function reads a model by a way on which captures are not looked for.

Vocabulary
----------
overlooked: a model in an attribute of a plain object or module that a function
            names, in a set, or behind a weak reference. Its values are
            constants of what is traced.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from declax import _jax, _strays
from declax._variables import Variable
from declax.errors import OverlookedModelWarning, type_name
from declax.graph.iteration import iter_graph
from declax.transforms._holders import Sort, attributes_of, is_library, sort_of
from declax.transforms._roots import is_root
from declax.transforms._ways import attributes_named, contents_of, is_named_in, used_by

_told: Final[set[tuple[object, str]]] = set()
"""The functions and ways that a warning has named; each is named once."""


def forget_told() -> None:
    """Has each way named again; for tests."""
    _told.clear()
    _strays.forget_told()


def warn_of_overlooked(holders: list[Any], numbers: dict[int, int]) -> None:
    """Warns of models that functions name by attributes of what is not followed, and of those in sets.

    Args:
      holders: what a function reaches.
      numbers: of these, by identity.
    """
    used = used_by(holders)
    for holder in holders:
        if is_library(holder):
            continue
        if is_named_in(holder):
            for way, model in attributes_named(holder, used, numbers):
                if sort_of(model) is not Sort.ROOT:
                    continue
                name = way.rpartition(".")[2]
                mend = f"Pass it as an argument, or write `{name} = {way}` before the function, and use {name} inside"
                warn_once(*_named(holder), way, model, _BY_OBJECT, mend)
        for name, kind, models in _unordered(holder, used):
            mend = f"Put them in a {_INSTEAD[kind]}" if kind in _INSTEAD else "Hold the model itself"
            where = f"in a {kind}, which captures do not look into"
            warn_once(*_named(holder), name, models[0], where, mend)
            for model in models:
                _is_told(model)


_BY_OBJECT: Final = "through an object that captures do not look into"
_INSTEAD: Final = {"set": "list", "frozenset": "tuple"}


def _named(holder: Any) -> tuple[object, str]:
    """What stands for a holder among those that were told of, and what to call it."""
    if isinstance(holder, types.FunctionType):
        return holder.__code__, f"{holder.__name__!r} reads"
    return type(holder), f"a {type_name(type(holder))} holds"


def _unordered(holder: Any, used: frozenset[str]) -> Iterator[tuple[str, str, list[Any]]]:
    """The models that a holder has in sets, which have no order to make them anew in, and by weak references."""
    for name, content in _kept_in(holder, used):
        if isinstance(content, (set, frozenset)):
            models = list(filter(is_root, content))
        elif isinstance(content, weakref.ref):
            models = list(filter(is_root, (content(),)))
        else:
            continue
        if models:
            kind = "weak reference" if isinstance(content, weakref.ref) else type_name(type(content))
            yield name, kind, models


def _kept_in(holder: Any, used: frozenset[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(holder, types.FunctionType):
        yield from contents_of(holder)
        for value in (*(holder.__defaults__ or ()), *(holder.__kwdefaults__ or {}).values()):
            yield "a default", value
    elif isinstance(holder, dict):
        yield from ((repr(key), value) for key, value in tuple(holder.items()))
    elif isinstance(holder, (list, tuple, deque)):
        yield from ((f"[{index}]", value) for index, value in enumerate(tuple(holder)))
    elif isinstance(holder, functools.partial):
        yield from ((f"argument {index}", value) for index, value in enumerate(holder.args))
        yield from holder.keywords.items()
    elif not isinstance(holder, types.MethodType):
        yield from ((name, value) for name, value in attributes_of(holder).items() if name in used)


def warn_once(by: object, reads: str, way: str, model: object, why: str, mend: str) -> None:
    """Warns of a model that is overlooked, unless it was named already.

    Args:
      by: the code of what reads it, or a class: each way is named once for it.
      reads: who reads it.
      way: how the code says it.
      model: what is read.
      why: why it is overlooked.
      mend: what to do.
    """
    if (by, way) in _told:
        return
    _told.add((by, way))
    _is_told(model)
    warnings.warn(
        f"{reads} {way}, a {type_name(type(model))}, {why}: its values are constants of what is traced, "
        f"and later ones are not seen. {mend}.",
        OverlookedModelWarning,
        stacklevel=_jax.level_of_user(sys._getframe(0)),
    )


def _is_told(model: object) -> None:
    """Has nothing said of the Variables of a model when they are read."""
    for _, part in iter_graph(model):
        if isinstance(part, Variable):
            _strays.is_told(part)

"""Says so when a function reads a model by a way on which captures are not looked for.

Vocabulary
----------
overlooked: a model in an attribute of a plain object or module that a function
            names. Its values are constants of what is traced.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any, Final

from declax import _jax
from declax._typing import MISSING
from declax.errors import OverlookedModelWarning, type_name
from declax.transforms._holders import content_of, is_library, names_in
from declax.transforms._roots import is_root

_told: Final[set[tuple[types.CodeType, str]]] = set()
"""The functions and ways that a warning has named; each is named once."""


def forget_told() -> None:
    """Has each way named again; for tests."""
    _told.clear()


def warn_of_overlooked(holders: list[Any], numbers: dict[int, int]) -> None:
    """Warns of models that functions name by attributes of what is not followed.

    Args:
      holders: what a function reaches.
      numbers: of these, by identity.
    """
    for holder in holders:
        if not isinstance(holder, types.FunctionType) or is_library(holder):
            continue
        for way, model in _ways(holder, numbers):
            if (holder.__code__, way) not in _told:
                _told.add((holder.__code__, way))
                _warn(holder.__name__, way, model)


def _ways(function: types.FunctionType, numbers: dict[int, int]) -> Iterator[tuple[str, Any]]:
    attributes = _attributes_in(function.__code__)
    for name, content in _contents(function):
        if id(content) in numbers or is_root(content) or content is MISSING:
            continue
        own = getattr(content, "__dict__", None)
        if not isinstance(own, (dict, types.MappingProxyType)) or attributes.isdisjoint(own):
            continue
        for attribute in attributes & own.keys():
            if is_root(own[attribute]):
                yield f"{name}.{attribute}", own[attribute]


def _contents(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, content_of(cell)
    for name in names_in(function.__code__).all:
        yield name, function.__globals__.get(name, MISSING)


@functools.lru_cache(maxsize=4096)
def _attributes_in(code: types.CodeType) -> frozenset[str]:
    """The names that a function, and those inside of it, look up, those of attributes among them."""
    inner = (_attributes_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*inner)


def _warn(function: str, way: str, model: object) -> None:
    name = way.rpartition(".")[2]
    warnings.warn(
        f"{function!r} reads {way}, a {type_name(type(model))}, through an object that captures do not look into: "
        f"its values are constants of what is traced, and later ones are not seen. Pass it as an argument, or write "
        f"`{name} = {way}` before the function, and use {name} inside.",
        OverlookedModelWarning,
        stacklevel=_jax.level_of_user(sys._getframe(0)),
    )

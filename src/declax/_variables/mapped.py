"""How many axes `dx.vmap` has taken away from arrays in the function that it maps."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import Final

_count: Final[ContextVar[int]] = ContextVar("mapped_axes", default=0)


def mapped_axes() -> int:
    """How many `dx.vmap` the code runs in, each of which may have taken an axis away.

    It is no part of the key of a program: only a result that has fewer dimensions than names asks, which is an error
    elsewhere.
    """
    return _count.get()


@contextlib.contextmanager
def one_axis_less() -> Generator[None]:
    """The block in which JAX maps a function."""
    before = _count.set(_count.get() + 1)
    try:
        yield
    finally:
        _count.reset(before)

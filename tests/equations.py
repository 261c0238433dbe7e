"""The equations of a program of JAX, those of its parts as well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def equations(program: Any, *names: str) -> list[Any]:
    """Those of the primitives of these names."""
    return [equation for equation in _all(program) if equation.primitive.name in names]


def _all(part: Any) -> Iterator[Any]:
    if isinstance(part, (list, tuple)):
        for item in part:
            yield from _all(item)
    for equation in getattr(getattr(part, "jaxpr", part), "eqns", ()):
        yield equation
        yield from _all(list(equation.params.values()))

"""Several functions in one call, such as the branches of a `cond`.

What they capture, and what they are given, goes into one call, so that a model
which two of them reach is one thing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from declax.transforms._captures import Closure


def together(*functions: Callable[..., Any]) -> Closure:
    """One Closure for several functions.

    The functions are the arguments of a partial: what stands for a partial
    inside of a transform has what stands for its arguments.
    """
    return Closure(functools.partial(_hold, *functions))


def _hold(*functions: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    return functions


def nth(number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What picks one of several functions again, for `lifted`."""

    def pick(held: Callable[..., Any]) -> Callable[..., Any]:
        function: Callable[..., Any] = held.args[number]  # type: ignore[attr-defined]  # a partial
        return function

    return pick

"""Makes the function of a transform look like the user's.

Vocabulary
----------
wrapper: what a transform returns; its ``__wrapped__`` is the user's function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from declax.transforms._roots import is_root

F = TypeVar("F")


def look_like(wrapper: F, function: Callable[..., Any]) -> F:
    """Gives a wrapper the name, docstring and signature of a function.

    Of a callable model, without its attributes: those are its fields.
    """
    made: Any = wrapper
    if is_root(function):
        made.__wrapped__ = type(function).__call__
        made.__name__ = made.__qualname__ = type(function).__name__
        made.__doc__ = type(function).__call__.__doc__
    else:
        functools.update_wrapper(made, function)
    return wrapper

"""What the parameters of a function say of the arguments of a call.

Vocabulary
----------
positional: given by position, or by name to a parameter that has one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def positional(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments by position, as far as parameters have one; the rest stays in `kwargs`.

    So that a prefix for the positional arguments holds for those that are
    given by name. Takes what it can out of `kwargs`.
    """
    if not kwargs:
        return args
    known = parameters(function) or {}
    listed = list(args)
    for name, parameter in list(known.items())[len(args) :]:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or not kwargs.keys() & known.keys():
            break
        if name in kwargs:
            listed.append(kwargs.pop(name))
        elif parameter.default is parameter.empty:
            break
        else:
            listed.append(parameter.default)
    return tuple(listed)


def positions(function: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, int]:
    """The positions that arguments by name would have, where their parameters have one.

    So that a prefix for the positional arguments holds for them too, while
    they are passed by name: what is not given keeps its default.
    """
    if not kwargs:
        return {}
    known = parameters(function) or {}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return {name: i for i, (name, p) in enumerate(known.items()) if p.kind is kind and name in kwargs}


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The parameters of a function by name; None where Python does not know them."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None

"""What the check of a field has against the value of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from declax._fields import objection
from declax.config._data import FrozenList, Ref, SpecData


def problem_of(check: Callable[[Any], object], value: Any) -> str | None:
    """What a check has against a value; None where it has nothing, and for parts, which are not made yet.

    >>> problem_of(lambda size: size % 2 == 0, 3)
    'the value does not pass the check of its field'
    """
    if value is None or _has_parts(value):
        return None
    try:
        return objection(check, value)
    except Exception as error:  # noqa: BLE001  # the function of a user, on data of anybody
        return f"the check of the field raised {type(error).__name__}: {error}"


def _has_parts(value: Any) -> bool:
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if isinstance(here, (SpecData, Ref)):
            return True
        if isinstance(here, (list, tuple, FrozenList)):
            waiting += here
        elif isinstance(here, Mapping):
            waiting += here.values()
    return False

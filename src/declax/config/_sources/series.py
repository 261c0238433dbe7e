"""Values of a sweep that a function gives: ``range(1,9,2)``, ``log(1e-4,1e-1,4)``, ``uniform(0,1)``."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from declax.errors import ConfigError, suggest

MAX_VALUES: Final = 10_000

_DIGITS: Final = 12
_DIGITS_OF_DRAWS: Final = 6  # so that names of runs are short

_CALL: Final = re.compile(r"([a-z]+)\((.*)\)", re.DOTALL)


class Draw(NamedTuple):
    """Random values: `of` takes a generator, and gives one."""

    text: str
    of: Callable[[random.Random], Any]


def call_in(text: str) -> tuple[str, str] | None:
    """The name and the arguments of a function of this module in the text of a value; None for other values."""
    found = _CALL.fullmatch(text)
    return (found[1], found[2]) if found is not None and found[1] in FUNCTIONS else None


def series(name: str, arguments: Sequence[Any], where: str) -> list[Any] | Draw:
    """The values of a function.

    >>> series("log", [1e-4, 1e-1, 4], "rate"), series("range", [64, 257, 64], "hidden")
    ([0.0001, 0.001, 0.01, 0.1], [64, 128, 192, 256])

    Raises:
      ConfigError: there is no such function, or its arguments are wrong; `where` names the place.
    """
    if name not in FUNCTIONS:
        raise ConfigError(
            where, f"a sweep has no function {name!r}", expected=", ".join(FUNCTIONS), fix=suggest(name, FUNCTIONS)
        )
    function = FUNCTIONS[name]
    found = function.make(arguments) if function.accepts(arguments) else None
    if found is None or (isinstance(found, list) and not 0 < len(found) <= MAX_VALUES):
        got = f"{name}({', '.join(map(str, arguments))})"
        raise ConfigError(
            where, "these are no values of a sweep", expected=function.form, got=got, fix=function.example
        )
    return found


class _Function(NamedTuple):
    form: str
    example: str
    accepts: Callable[[Sequence[Any]], bool]
    make: Callable[[Sequence[Any]], list[Any] | Draw | None]


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # type: ignore[arg-type]  # it is a number


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_VALUES


def _are_numbers(arguments: Sequence[Any]) -> bool:
    return len(arguments) == 2 and all(map(_is_number, arguments)) and arguments[0] < arguments[1]


def _are_positive(arguments: Sequence[Any]) -> bool:
    return _are_numbers(arguments) and arguments[0] > 0


def _are_steps(arguments: Sequence[Any]) -> bool:
    return len(arguments) == 3 and all(map(_is_number, arguments[:2])) and _is_count(arguments[2])


def _rounded(values: Sequence[float], ends: Sequence[Any]) -> list[Any]:
    """The values, with the ends as they are said; as ints if all are, and the ends are."""
    found = [float(f"{value:.{_DIGITS}g}") for value in values]
    if all(type(end) is int for end in ends) and all(value.is_integer() for value in found):
        return [int(value) for value in found]
    return found


def _range(arguments: Sequence[Any]) -> list[Any]:
    values = range(*arguments)
    return list(values) if len(values) <= MAX_VALUES else []


def _lin(arguments: Sequence[Any]) -> list[Any]:
    low, high, count = arguments
    return _rounded([low + (high - low) * index / max(1, count - 1) for index in range(count)], (low, high))


def _log(arguments: Sequence[Any]) -> list[Any] | None:
    low, high, count = arguments
    if low <= 0 or high <= 0:
        return None
    return _rounded([low * (high / low) ** (index / max(1, count - 1)) for index in range(count)], (low, high))


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS_OF_DRAWS}g}")


def _uniform(arguments: Sequence[Any]) -> Draw:
    low, high = arguments
    return Draw(f"uniform({low}, {high})", lambda source: _short(source.uniform(low, high)))


def _loguniform(arguments: Sequence[Any]) -> Draw:
    low, high = arguments
    return Draw(f"loguniform({low}, {high})", lambda source: _short(low * (high / low) ** source.random()))


def _randint(arguments: Sequence[Any]) -> Draw:
    low, high = arguments
    return Draw(f"randint({low}, {high})", lambda source: source.randint(low, high))


def _choice(arguments: Sequence[Any]) -> Draw:
    held = list(arguments)
    return Draw(f"choice of {len(held)}", lambda source: source.choice(held))


FUNCTIONS: Final[Mapping[str, _Function]] = MappingProxyType(
    {
        "range": _Function(
            "range(start, stop, step), with integers",
            "range(64, 257, 64)",
            lambda found: 1 <= len(found) <= 3 and all(type(one) is int for one in found) and found[2:] != [0],
            _range,
        ),
        "lin": _Function("lin(first, last, count)", "lin(0.0, 0.5, 6)", _are_steps, _lin),
        "log": _Function("log(first, last, count), above 0", "log(1e-4, 1e-1, 4)", _are_steps, _log),
        "uniform": _Function("uniform(low, high)", "uniform(0.0, 0.5)", _are_numbers, _uniform),
        "loguniform": _Function("loguniform(low, high), above 0", "loguniform(1e-4, 1e-1)", _are_positive, _loguniform),
        "randint": _Function(
            "randint(low, high), with integers; both can come",
            "randint(1, 8)",
            lambda found: _are_numbers(found) and all(type(one) is int for one in found),
            _randint,
        ),
        "choice": _Function("choice(a, b, ...)", "choice(adam, sgd)", lambda found: len(found) > 0, _choice),
    }
)

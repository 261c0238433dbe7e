"""Values that follow others: arithmetic over numbers and paths, without calls."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, Final

MAX_TOKENS: Final = 200
MAX_BITS: Final = 128
"""The size of ints, also of intermediate ones."""

_MAX_DEPTH: Final = 30
_PATH: Final = r"\.*[A-Za-z_]\w*(?:\.(?:[A-Za-z_]\w*|\d+)|\[\d+\])*"
_TOKEN: Final = re.compile(
    rf"\s*(?:(?P<number>\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|(?P<path>{_PATH})"
    r"|(?P<sign>\*\*|//|==|!=|<=|>=|[-+*/%<>()]))"
)
_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SUMS: Final[dict[str, Callable[[Any, Any], Any]]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
_LEVELS: Final = (_SUMS, _PRODUCTS)
_BOOLS: Final = {"true": True, "True": True, "false": False, "False": False}


class NoValueError(Exception):
    """What is wrong with an expression, for people."""


def tokens_of(text: str) -> list[tuple[str, str]]:
    """The tokens of an expression with their kinds: number, path, or sign.

    >>> tokens_of(".dim * 4")
    [('path', '.dim'), ('sign', '*'), ('number', '4')]
    """
    found: list[tuple[str, str]] = []
    end, text = 0, text.rstrip()
    while end < len(text):
        token = _TOKEN.match(text, end)
        if token is None:
            raise NoValueError(f"{text[end : end + 20].strip()!r} is no number, path or sign")
        found.append((str(token.lastgroup), token[str(token.lastgroup)]))
        end = token.end()
        if len(found) > MAX_TOKENS:
            raise NoValueError(f"it has more than {MAX_TOKENS} tokens")
    return found


def evaluate(text: str, value_at: Callable[[str], Any]) -> Any:
    """The value of an expression.

    Args:
      text: paths, numbers, ``true``, ``false``, the operators of Python for numbers, comparisons, and parentheses.
      value_at: gives the value at a path. A path alone may have a value of any type.

    Raises:
      NoValueError: the expression cannot be parsed or computed.

    >>> evaluate("dim * 4 // heads", {"dim": 8, "heads": 3}.__getitem__)
    10
    >>> evaluate("2 ** 200", dict)
    Traceback (most recent call last):
    declax.config._sources.expressions.NoValueError: a number has more than 128 bits
    """
    tokens = tokens_of(text)
    if len(tokens) == 1 and tokens[0][0] == "path" and tokens[0][1] not in _BOOLS:
        return value_at(tokens[0][1])
    parser = _Parser(tokens, value_at)
    found = parser.comparison(0)
    if parser.next is not None:
        raise NoValueError(f"{parser.next!r} does not fit here")
    return found


class _Parser:
    """Parses and computes at the same time, by recursive descent."""

    def __init__(self, tokens: list[tuple[str, str]], value_at: Callable[[str], Any]) -> None:
        self._tokens = tokens
        self._i = 0
        self._value_at = value_at

    @property
    def next(self) -> str | None:
        return self._tokens[self._i][1] if self._i < len(self._tokens) else None

    def _take(self, table: dict[str, Callable[[Any, Any], Any]]) -> Callable[[Any, Any], Any] | None:
        found = table.get(self.next or "")
        self._i += found is not None
        return found

    def comparison(self, depth: int) -> Any:
        left = self._binary(depth, 0)
        fits: list[bool] = []
        while compare := self._take(_COMPARISONS):
            right = self._binary(depth, 0)
            fits.append(compare(left, right))
            left = right
        return all(fits) if fits else left

    def _binary(self, depth: int, level: int) -> Any:
        if level == len(_LEVELS):
            return self._signed(depth)
        left = self._binary(depth, level + 1)
        while compute := self._take(_LEVELS[level]):
            left = _computed(compute, left, self._binary(depth, level + 1))
        return left

    def _signed(self, depth: int) -> Any:
        negative = False
        while self.next in ("-", "+"):
            negative = negative != (self.next == "-")
            self._i += 1
        found = self._power(depth)
        return _computed(operator.mul, -1, found) if negative else found

    def _power(self, depth: int) -> Any:
        base = self._atom(depth)
        if self.next != "**":
            return base
        self._i += 1
        return _computed(_bounded_power, base, self._signed(depth + 1))

    def _atom(self, depth: int) -> Any:
        if self.next is None:
            raise NoValueError("it ends too early")
        if depth > _MAX_DEPTH:
            raise NoValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
        kind, text = self._tokens[self._i]
        self._i += 1
        if kind == "number":
            return _number(text)
        if kind == "path":
            return _BOOLS[text] if text in _BOOLS else _operand(text, self._value_at(text))
        if text != "(":
            raise NoValueError(f"{text!r} does not fit here")
        found = self.comparison(depth + 1)
        if self.next != ")":
            raise NoValueError("a ) is missing")
        self._i += 1
        return found


def _number(text: str) -> int | float:
    try:
        is_int = text.replace("_", "").isdecimal() and len(text) < 60
        found: int | float = _bounded(int(text) if is_int else float(text))
    except ValueError:
        raise NoValueError(f"{text!r} is not a number") from None
    return found


def _operand(path: str, value: Any) -> Any:
    if not isinstance(value, (int, float)):
        raise NoValueError(f"{path} is {type(value).__name__}, and not a number")
    return value


def _computed(compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    try:
        return _bounded(compute(left, right))
    except ArithmeticError as error:
        raise NoValueError(str(error)) from None


def _bounded_power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > 2 * MAX_BITS:
        raise NoValueError(f"a number has more than {MAX_BITS} bits")
    found = base**exponent
    if isinstance(found, complex):
        raise NoValueError("a root of a negative number")
    return found


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise NoValueError(f"a number has more than {MAX_BITS} bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise NoValueError("a number is out of the range of floats")
    return value

"""The grammar of sizes and of conditions on them: parsed, never evaluated as Python.

    size       = term (("+" | "-") term)*
    term       = factor (("*" | "//" | "%") factor)*
    factor     = number | name | "{self.field}" | ("max" | "min") "(" size "," size ")" | "(" size ")" | "-" factor
    condition  = size (("<" | "<=" | ">" | ">=" | "==") size)+
    shape      = axis*                      # separated by spaces, as in jaxtyping
    axis       = "..." | "_" | "*"name | "#"axis | name"="size | size

A *name* is free: it stands for one size within one call. A field is the attribute of the object that is called; in the
braces, `self.` marks fields, and other names are free. The texts that JAX prints of symbolic sizes are read too:
`n^2`, `floordiv(n, 2)`, `mod(n, 2)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from declax.errors import FieldError


class Symbol(NamedTuple):
    """A free name, as ``n``, or a field, as ``self.dim``."""

    key: str

    @property
    def is_field(self) -> bool:
        """Whether it is a field."""
        return self.key.startswith(FIELD)


class Operation(NamedTuple):
    """An operation on sizes: its sign or name, and the operands."""

    sign: str
    operands: tuple[Size, ...]


Size: TypeAlias = int | Symbol | Operation


class Condition(NamedTuple):
    """A comparison of two sizes, as it was written in `text`."""

    left: Size
    sign: str
    right: Size
    text: str

    @classmethod
    def of(cls, left: Size, sign: str, right: Size) -> Condition:
        """A condition with its text."""
        texts = [text_of(side, field=braced) for side in (left, right)]
        return cls(left, sign, right, f"{texts[0]} {sign} {texts[1]}")

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether the condition holds of numbers."""
        return COMPARISONS[self.sign](evaluate(self.left, values), evaluate(self.right, values))

    def simplified(self) -> Condition:
        """The same condition, with the number alone on the right side where there is one."""
        left, sign, right = self.left, self.sign, self.right
        if isinstance(left, int) and not isinstance(right, int):
            left, sign, right = right, FLIPPED[sign], left
        while isinstance(left, Operation) and isinstance(right, int):
            first, second = left.operands
            if left.sign in ("+", "-") and isinstance(second, int):
                right = right - second if left.sign == "+" else right + second
                left = first
            elif (other := _open_operand(left, sign, right)) is not None:
                left = other
            else:
                break
        return Condition.of(left, sign, right)

    def symbols(self) -> list[str]:
        """The keys of the symbols on both sides."""
        return list(dict.fromkeys([*symbols_of(self.left), *symbols_of(self.right)]))


def _open_operand(size: Operation, sign: str, limit: int) -> Size | None:
    """The operand of a minimum or maximum on which ``size sign limit`` depends, if the other is a number."""
    numbers = [operand for operand in size.operands if isinstance(operand, int)]
    if size.sign not in ("min", "max") or len(numbers) != 1 or sign == "==":
        return None
    both_must = (size.sign == "max") is (sign in ("<", "<="))
    is_open = COMPARISONS[sign](numbers[0], limit) is both_must
    return next(operand for operand in size.operands if not isinstance(operand, int)) if is_open else None


class Axis(NamedTuple):
    """One axis of a shape in an annotation.

    Attributes:
      size: None if any size fits.
      rest: the name of several axes, ``""`` for those without one; None for a single axis.
      is_broadcast: whether the size may be 1 as well.
    """

    size: Size | None
    rest: str | None = None
    is_broadcast: bool = False


FIELD: Final = "self."
COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
}
FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}
"""The comparisons with their sides exchanged."""
_ARITHMETIC: Final[Mapping[str, Callable[..., Any]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": lambda a, b: max(a, b) if _are_numbers(a, b) else a.max(b) if hasattr(a, "rmax") else b.max(a),
    "min": lambda a, b: min(a, b) if _are_numbers(a, b) else a.min(b) if hasattr(a, "rmin") else b.min(a),
    "^": pow,
}


def _are_numbers(*values: object) -> bool:
    """Whether values are numbers; symbolic sizes of JAX have methods in place of `max` and `min`."""
    return all(isinstance(value, int) for value in values)


_JAX_NAMES: Final = {"floordiv": "//", "mod": "%", "max": "max", "min": "min"}
_TOKEN: Final = re.compile(r"\s*(\d+|[A-Za-z_][\w.]*|//|<=|>=|==|[-+*%<>(){},^])")
_RANKS: Final = ({"+", "-"}, {"*", "//", "%"})
_MOST_TOKENS: Final = 200


def parse_size(text: str, where: str = "shape") -> Size:
    """The size that a text says.

    Raises:
      FieldError: the text is no size.

    >>> text_of(parse_size("4*{self.dim} - n // 2"))
    '4*dim - n//2'
    """
    parser = _Parser(text, where)
    found = parser.size()
    parser.end()
    return found


def parse_condition(text: str, where: str = "where") -> list[Condition]:
    """The comparisons of a condition; a chain, as ``1 <= n <= 8``, has several.

    Raises:
      FieldError: the text is no condition.

    >>> [str(c.text) for c in parse_condition("1 <= n <= {self.length}")]
    ['1 <= n', 'n <= {self.length}']
    """
    parser = _Parser(text, where)
    sides, signs = [parser.size()], []
    while parser.next in COMPARISONS:
        signs.append(parser.take())
        sides.append(parser.size())
    parser.end(is_condition=not signs)
    return [Condition.of(left, sign, right) for left, sign, right in zip(sides, signs, sides[1:], strict=False)]


def parse_shape(text: str, where: str = "shape") -> tuple[Axis, ...]:
    """The axes of a shape, in the convention of jaxtyping.

    Raises:
      FieldError: the text is no shape.

    >>> [axis.rest for axis in parse_shape("*batch n {self.dim}")]
    ['batch', None, None]
    """
    axes = tuple(_axis(word, where) for word in re.findall(r"(?:\{[^}]*\}|\([^)]*\)|\S)+", text))
    if sum(axis.rest is not None for axis in axes) > 1:
        raise FieldError(where, "a shape has several entries for any number of axes", got=repr(text), expected="one")
    return axes


def is_input(value: object) -> bool:
    """Whether a value is a text of the form ``int32[b, n]``."""
    return isinstance(value, str) and _INPUT.fullmatch(value) is not None


def parse_input(text: str, where: str) -> tuple[str, tuple[Axis, ...]]:
    """The dtype and the axes of the array that a text such as ``int32[b, n]`` describes.

    Raises:
      FieldError: the text describes none.
    """
    found = _INPUT.fullmatch(text)
    if found is None:
        expected = 'such as "float32[b, n, 8]"'
        raise FieldError(where, "this does not describe an array", expected=expected, got=repr(text))
    sizes = [part.replace(" ", "") for part in found[2].split(",")]
    return found[1], parse_shape(" ".join(sizes), where)


_INPUT: Final = re.compile(r"\s*([a-z]\w*)\s*\[([^\[\]]*)\]\s*")


def _axis(word: str, where: str) -> Axis:
    if word == "...":
        return Axis(None, "")
    is_broadcast = word.startswith("#")
    word = word.removeprefix("#").removeprefix("?")
    if word.startswith("*"):
        name = word.lstrip("*#")
        return Axis(None, "" if name.startswith("_") else name, is_broadcast or "#" in word)
    if word.startswith("_") and word.isidentifier():
        return Axis(None)
    name, equals, size = word.partition("=")
    if equals and not size.startswith("=") and name.isidentifier():
        word = size
    return Axis(parse_size(word, where), None, is_broadcast)


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        self._tokens = list(self._split())
        self._at = 0
        if not self._tokens or len(self._tokens) > _MOST_TOKENS:
            raise self._error("it is empty" if not self._tokens else f"it has more than {_MOST_TOKENS} words")

    def _split(self) -> Iterator[str]:
        position, text = 0, self._text.rstrip()
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                raise self._error(f"{text[position:].lstrip()[:1]!r} is no part of it")
            yield found[1]
            position = found.end()

    @property
    def next(self) -> str:
        """The next word; ``""`` at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def take(self, expected: str | None = None) -> str:
        """The next word, behind which reading goes on."""
        token = self.next
        if expected is not None and token != expected:
            raise self._error(f"{expected!r} is missing" + (f" before {token!r}" if token else ""))
        self._at += 1
        return token

    def end(self, *, is_condition: bool = False) -> None:
        """Raises if something is left; or if a condition has no comparison."""
        if self.next:
            raise self._error(f"{self.next!r} is not expected here")
        if is_condition:
            raise self._error("it compares nothing")

    def size(self, rank: int = 0) -> Size:
        """A sum, or, at rank 1, a product."""
        if rank == len(_RANKS):
            return self._factor()
        found = self.size(rank + 1)
        while self.next in _RANKS[rank]:
            sign = self.take()
            found = operation(sign, found, self.size(rank + 1))
        return found

    def _factor(self) -> Size:
        token = self.take()
        if token == "-":
            return operation("-", 0, self._factor())
        if token.isdecimal():
            found: Size = int(token)
        elif token == "(":
            found = self.size()
            self.take(")")
        elif token == "{":
            found = self.size()
            self.take("}")
        elif self.next == "(" and token in _JAX_NAMES:
            self.take("(")
            first = self.size()
            self.take(",")
            found = operation(_JAX_NAMES[token], first, self.size())
            self.take(")")
        elif all(map(str.isidentifier, token.split("."))) and ("." not in token or token.startswith(FIELD)):
            found = Symbol(token)
        else:
            raise self._error(f"{token!r} is not a size" if token else "it ends too early")
        if self.next == "^":
            self.take()
            power = self.take()
            if not power.isdecimal():
                raise self._error(f"{power!r} is no power")
            found = operation("^", found, int(power))
        return found

    def _error(self, problem: str) -> FieldError:
        return FieldError(
            self._where,
            "this is no size or condition",
            got=repr(self._text),
            why=problem,
            expected="numbers, names and {self.field}, with + - * // % min max, and < <= > >= == between sizes",
        )


# --- operations -------------------------------------------------------------------


def operation(sign: str, left: Size, right: Size) -> Size:
    """An operation, or its value if both operands are numbers."""
    if sign == "+" and isinstance(right, int) and right < 0:
        sign, right = "-", -right
    if sign == "*" and isinstance(left, int) and isinstance(right, Operation) and isinstance(right.operands[0], int):
        if right.sign == "*":
            left, right = left * right.operands[0], right.operands[1]
    if sign == "*" and isinstance(left, Operation) and left.sign == "-" and left.operands[0] == 0:
        return operation("-", 0, operation("*", left.operands[1], right))
    if sign == "//" and isinstance(left, Operation) and left.sign == "*" and right in left.operands and right != 0:
        return left.operands[left.operands[0] == right]
    if isinstance(left, int) and isinstance(right, int) and not (sign in ("//", "%") and right == 0):
        value: int = _ARITHMETIC[sign](left, right)
        return value
    return Operation(sign, (left, right))


def evaluate(size: Size, values: Mapping[str, Any]) -> Any:
    """The value of a size; division by zero is a `ZeroDivisionError`, a symbol without a value a `KeyError`."""
    if isinstance(size, int):
        return size
    if isinstance(size, Symbol):
        return values[size.key]
    return _ARITHMETIC[size.sign](*[evaluate(operand, values) for operand in size.operands])


def linear(size: Size) -> tuple[int, str, int] | None:
    """The numbers a and c, and the symbol x, of a size ``a*x + c``; None for other sizes.

    >>> linear(parse_size("3 - 2*n"))
    (-2, 'n', 3)
    """
    if isinstance(size, int):
        return None
    if isinstance(size, Symbol):
        return 1, size.key, 0
    left, right = size.operands
    if isinstance(left, int) and size.sign in ("+", "-", "*"):
        found = linear(right)
        if found is None:
            return None
        scale, key, rest = found
        if size.sign == "*":
            return left * scale, key, left * rest
        return (scale, key, left + rest) if size.sign == "+" else (-scale, key, left - rest)
    if isinstance(right, int) and size.sign in ("+", "-"):
        found = linear(left)
        return None if found is None else (*found[:2], found[2] + (right if size.sign == "+" else -right))
    return None


def substitute(size: Size, sizes: Mapping[str, Size]) -> Size:
    """A size with others in place of some symbols."""
    if isinstance(size, int):
        return size
    if isinstance(size, Symbol):
        return sizes.get(size.key, size)
    left, right = (substitute(operand, sizes) for operand in size.operands)
    return operation(size.sign, left, right)


def symbols_of(size: Size) -> list[str]:
    """The keys of the symbols in a size, each once."""
    if isinstance(size, int):
        return []
    if isinstance(size, Symbol):
        return [size.key]
    return list(dict.fromkeys(key for operand in size.operands for key in symbols_of(operand)))


def numbers_in(size: Size) -> list[int]:
    """The numbers in a size."""
    if isinstance(size, int):
        return [size]
    return [] if isinstance(size, Symbol) else [n for operand in size.operands for n in numbers_in(operand)]


# --- text -------------------------------------------------------------------------


def braced(key: str) -> str:
    """A symbol as it stands in annotations and conditions."""
    return f"{{{key}}}" if key.startswith(FIELD) else key


def _shown(key: str) -> str:
    return key.removeprefix(FIELD)


def text_of(size: Size, *, field: Callable[[str], str] = _shown) -> str:
    """The text of a size; `field` gives that of a symbol, by its key."""
    return _text(size, 0, field)


def _text(size: Size, rank: int, field: Callable[[str], str]) -> str:
    if isinstance(size, int):
        return str(size) if size >= 0 or rank == 0 else f"({size})"
    if isinstance(size, Symbol):
        return field(size.key)
    left, right = size.operands
    if size.sign in ("max", "min"):
        return f"{size.sign}({_text(left, 0, field)}, {_text(right, 0, field)})"
    own = 3 if size.sign == "^" else 1 if size.sign in _RANKS[0] else 2
    space = " " if own == 1 else ""
    is_negative = size.sign == "-" and left == 0
    first = "" if is_negative else _text(left, own, field)
    if size.sign == "%":
        space = " "
    is_rounded = is_negative and isinstance(right, Operation) and right.sign in ("//", "%")  # -(n//2) is not -n//2
    second = _text(right, 3 if is_rounded else own + 1, field)
    text = f"{first}{space if first else ''}{size.sign}{space if first else ''}{second}"
    return f"({text})" if own < rank or (is_negative and rank) else text


def shape_text(sizes: Iterable[Size | str]) -> str:
    """The text of a shape."""
    texts = [size if isinstance(size, str) else text_of(size) for size in sizes]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def product(sizes: Sequence[Size]) -> Size:
    """The product of sizes."""
    found: Size = math.prod(size for size in sizes if isinstance(size, int))
    for size in sizes:
        if not isinstance(size, int):
            found = size if found == 1 else Operation("*", (found, size))
    return found

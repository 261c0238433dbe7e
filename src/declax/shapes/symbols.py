"""Symbolic sizes of JAX for the names of a domain, and their text in the names of the user."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import jax.export

from declax._jax import is_symbolic
from declax._text.dimensions import (
    FIELD,
    Condition,
    Operation,
    Size,
    Symbol,
    evaluate,
    operation,
    parse_size,
    shape_text,
    symbols_of,
    text_of,
)
from declax.errors import FieldError
from declax.shapes.domains import Domain
from declax.shapes.rounding import floors_in, normalized

Dimension: TypeAlias = Any
"""A number, or a symbolic size of JAX, of which the class is private."""


class Symbols:
    """One scope of symbolic sizes.

    Attributes:
      domain: the names and conditions.
      sizes: the symbolic size of each name.
      rules: equations between sizes that hold for all numbers; JAX replaces the left sides.
    """

    def __init__(self, domain: Domain, rules: Sequence[str] = ()) -> None:
        self.domain = domain
        self.rules: tuple[str, ...] = tuple(rules)
        self._names = _jax_names([*domain.names, *domain.multiples])
        self._keys = {name: key for key, name in self._names.items()}
        self._sizes = self._free(self._new_scope())
        self.sizes: dict[str, Dimension] = {name: self.size(Symbol(name)) for name in domain.names}

    def _free(self, scope: Any) -> dict[str, Dimension]:
        """The symbolic sizes of the free symbols in a scope."""
        keys = self.domain.free
        made = jax.export.symbolic_shape("".join(f"{self._names[key]}," for key in keys), scope=scope) if keys else ()
        return dict(zip(keys, made, strict=True))

    def _new_scope(self) -> Any:
        """A scope with those conditions that JAX takes; the others are not assumed."""
        kept: list[str] = []
        sizes = self._free(jax.export.SymbolicScope([]))
        for condition in self.domain.remaining:
            try:
                left, right = (evaluate(side, sizes) for side in (condition.left, condition.right))
            except jax.errors.InconclusiveDimensionOperation:  # of a maximum for which JAX searches too long
                continue
            sign = condition.sign
            if sign in ("<", ">"):
                right, sign = right - 1 if sign == "<" else right + 1, f"{sign}="
            kept = _with(kept, f"{left} {sign} {right}")
        for rule in self.rules:
            kept = _with(kept, rule)
        return jax.export.SymbolicScope(kept)

    def rules_for(self, sizes: Iterable[Size]) -> list[str]:
        """Equations of rounded sizes with equal ones of one form, of which JAX sees that they are equal."""
        found = dict[str, None]()
        for floor in (floor for size in sizes for floor in floors_in(self.domain.substituted(size))):
            plain, normal = (evaluate(size, self._sizes) for size in (floor, normalized(floor)))
            if is_symbolic(plain) and str(plain) != str(normal) and str(plain).startswith(("floordiv(", "mod(")):
                found[f"{plain} == {normal}"] = None
        return [rule for rule in found if rule not in self.rules]

    def size(self, size: Size) -> Dimension:
        """The symbolic size, or number, of a size."""
        return evaluate(self.domain.substituted(size), self._sizes)

    # --- back to the user -----------------------------------------------------------

    def read(self, dimension: Dimension) -> Size:
        """A size of JAX, made of the free symbols of the domain."""
        return int(dimension) if not is_symbolic(dimension) else self._renamed(parse_size(str(dimension)))

    def _renamed(self, size: Size) -> Size:
        if isinstance(size, Symbol):
            return Symbol(self._keys.get(size.key, size.key))
        if isinstance(size, Operation):
            left, right = map(self._renamed, size.operands)
            return operation(size.sign, left, right)
        return size

    def read_text(self, text: str) -> Size:
        """A size that JAX has printed, made of the names of the user."""
        return self.domain.written(self._renamed(parse_size(text)))

    def number(self, dimension: Dimension, values: Mapping[str, int]) -> int:
        """The number of a size of JAX at some numbers of the names."""
        free = self.domain.free_values(values)
        found: int = evaluate(self.read(dimension), free)
        return found

    def text(self, dimension: Dimension) -> str:
        """A size in the names of the user."""
        return text_of(self.written(dimension))

    def written(self, dimension: Dimension) -> Size:
        """A size, made of the names of the user."""
        return self.domain.written(self.read(dimension))

    def sizes_in(self, text: str) -> Iterator[Size]:
        """The sizes with names in the shapes, and in the calls such as ``mod(n, 2)``, that JAX has printed."""
        shapes = (_split(found[2]) for found in _SHAPE.finditer(text))
        for part in (*itertools.chain.from_iterable(shapes), *_CALL.findall(text)):
            size = self._try(part)
            if size is not None and symbols_of(size):
                yield size

    def message(self, text: str) -> str:
        """A text of JAX, with its shapes in the names of the user."""
        return _CALL.sub(self._size_in_names, _SHAPE.sub(self._shape_in_names, text))

    def _size_in_names(self, found: re.Match[str]) -> str:
        size = self._try(found[0])
        return found[0] if size is None else text_of(size)

    def _shape_in_names(self, found: re.Match[str]) -> str:
        parts = [part for part in _split(found[2]) if part.strip()]
        sizes = [size for part in parts if (size := self._try(part)) is not None]
        if len(sizes) < len(parts) or not any(map(symbols_of, sizes)):
            return found[0]
        if found[1] == "(":
            return shape_text(sizes) if "," in found[2] else f"({text_of(sizes[0])})"
        return f"[{','.join(map(text_of, sizes))}]"

    def _try(self, text: str) -> Size | None:
        """The size that a text says, if its names are those of this scope."""
        try:
            size = parse_size(text)
        except FieldError:
            return None
        return self.domain.written(self._renamed(size)) if self._keys.keys() >= set(symbols_of(size)) else None


class Scopes:
    """The scopes of one check: subjects with equal names and conditions share one.

    Within a scope JAX knows its programs again, so a function that is traced once is not traced a second time, and
    nothing in it is watched then. Therefore a scope is forgotten as soon as something is found in it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Symbols] = {}

    def of(self, domain: Domain, rules: Sequence[str] = ()) -> Symbols:
        """The scope of a domain, with equations that hold for all numbers."""
        key = (tuple(domain.names), tuple(domain.conditions), tuple(rules))
        return self._known.get(key) or self._known.setdefault(key, Symbols(domain, rules))

    def forget(self, symbols: Symbols) -> None:
        """Lets later subjects have a scope of their own."""
        self._known = {key: known for key, known in self._known.items() if known is not symbols}


def _with(constraints: list[str], text: str) -> list[str]:
    """Constraints of a scope with one more, if JAX takes it."""
    try:
        jax.export.SymbolicScope([*constraints, text])
    except (ValueError, NotImplementedError, AssertionError, jax.errors.InconclusiveDimensionOperation):
        return constraints
    return [*constraints, text]


_PLAIN: Final = r"[^()\[\]]"
_DEEP: Final = functools.reduce(lambda inner, _: rf"(?:{_PLAIN}|(?<=\w)\({inner}*\))", range(5), _PLAIN)
"""A character, or a call in parentheses, in which there may be others."""
_SHAPE: Final = re.compile(rf"([(\[])({_DEEP}+)([)\]])")
_CALL: Final = re.compile(rf"\b(?:mod|floordiv|max|min)\({_DEEP}*\)")


def _split(text: str) -> list[str]:
    """The parts of a text between its commas, but not those inside of parentheses."""
    depths = itertools.accumulate((character == "(") - (character == ")") for character in text)
    marked = (
        "\n" if character == "," and depth == 0 else character for character, depth in zip(text, depths, strict=True)
    )
    return "".join(marked).split("\n")


def decided(condition: Condition, values: Mapping[str, Dimension]) -> bool | None:
    """Whether a condition on symbolic sizes holds; None if JAX cannot decide it."""
    try:
        if condition.sign == "==":
            difference = evaluate(condition.left, values) - evaluate(condition.right, values)
            if not is_symbolic(difference):
                return bool(difference == 0)
            return False if difference > 0 or difference < 0 else None
        return condition.holds(values)
    except jax.errors.InconclusiveDimensionOperation:
        return None


def differ(left: Dimension, right: Dimension) -> bool | None:
    """Whether two sizes differ; None if that is not decided for all sizes."""
    equal = decided(Condition(Symbol("a"), "==", Symbol("b"), ""), {"a": left, "b": right})
    return None if equal is None else not equal


def _jax_names(keys: Iterable[str]) -> dict[str, str]:
    """An identifier for each key; a field has its own name, unless a free name is the same."""
    found: dict[str, str] = {}
    for key in sorted(keys, key=lambda key: (":" in key, key.startswith(FIELD))):
        name = base = re.sub(r"\W", "_", key.removeprefix(FIELD))
        number = 0
        while name in found.values() or name in ("max", "min", "mod", "floordiv"):
            number += 1
            name = f"{base}_{number}"
        found[key] = name
    return found

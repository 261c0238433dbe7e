"""Sizes that are rounded down, in one form: JAX does not see that ``-(-h // 2)`` is ``(h - 1)//2 + 1``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeGuard

from declax._text.dimensions import Operation, Size, Symbol, operation
from declax.shapes.domains import Domain, sum_of

_NAMELESS = Domain((), ())


def floors_in(size: Size) -> Iterator[Operation]:
    """The rounded sizes and the rests in a size, the inner ones first."""
    if isinstance(size, Operation):
        for operand in size.operands:
            yield from floors_in(operand)
        if size.sign in ("//", "%"):
            yield size


def normalized(size: Size) -> Size:
    """An equal size without rests; in rounded parts, the first term is above 0, and the number from 1 - divisor to 0.

    Of ``-(-h // 2)`` and ``(h + 1)//2`` it is ``(h - 1)//2 + 1``.
    """
    if not isinstance(size, Operation):
        return size
    left, right = (normalized(operand) for operand in size.operands)
    if size.sign == "//" and isinstance(right, Symbol):
        return _by_symbol(left, right)
    if size.sign == "%" and isinstance(right, int) and right > 0:
        rounded = operation("*", right, normalized(operation("//", left, right)))
        return sum_of(_NAMELESS.terms(operation("-", left, rounded)))
    if not (size.sign == "//" and isinstance(right, int) and right > 0):
        return sum_of(_NAMELESS.terms(operation(size.sign, left, right)))
    terms = dict(_NAMELESS.terms(left))
    constant = terms.pop((), 0)
    first = min(terms, key=str, default=())
    is_negative = terms.get(first, 0) < 0
    if is_negative:  # a floor of -x is the ceiling of x, with another sign
        terms = {atoms: -scale for atoms, scale in terms.items()}
        constant = right - 1 - constant
    ((inner,), scale), *others = terms.items() if terms and all(len(atoms) == 1 for atoms in terms) else [((0,), 0)]
    if scale == 1 and not others and _is_floor(inner):  # (x // a + c) // b is (x + a*c) // (a*b)
        inner_left, factor = inner.operands
        assert isinstance(factor, int)  # as of all floors
        terms, constant, right = dict(_NAMELESS.terms(inner_left)), factor * constant, factor * right
        constant += terms.pop((), 0)
    shared = math.gcd(right, *terms.values())
    terms, constant, right = {atoms: n // shared for atoms, n in terms.items()}, constant // shared, right // shared
    whole = {atoms: n // right for atoms, n in terms.items() if n % right == 0}
    rest = -(-constant % right)
    floor = operation("//", sum_of({**{atoms: n for atoms, n in terms.items() if n % right}, (): rest}), right)
    found = operation("+", operation("+", sum_of(whole), floor), (constant - rest) // right)
    return sum_of(_NAMELESS.terms(operation("-", 0, found) if is_negative else found))


def _by_symbol(size: Size, divisor: Symbol) -> Size:
    """``(k*v - 1) // v`` is ``k - 1``, as v is at least 1."""
    terms = _NAMELESS.terms(size)
    whole = {atoms: scale for atoms, scale in terms.items() if divisor in atoms}
    rest = {atoms: scale for atoms, scale in terms.items() if divisor not in atoms and scale}
    if not whole or not (not rest or rest == {(): -1}):
        return operation("//", size, divisor)
    found = {_without(atoms, divisor): scale for atoms, scale in whole.items()}
    return operation("+", sum_of(found), -1) if rest else sum_of(found)


def _without(atoms: tuple[Size, ...], divisor: Symbol) -> tuple[Size, ...]:
    at = atoms.index(divisor)
    return (*atoms[:at], *atoms[at + 1 :])


def _is_floor(size: Size) -> TypeGuard[Operation]:
    if not isinstance(size, Operation) or size.sign != "//":
        return False
    divisor = size.operands[1]
    return isinstance(divisor, int) and divisor > 0

"""Sizes as polynomials: what holds of them for all numbers of their symbols, and their text."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from declax._text.dimensions import Size, Symbol

Polynomial: TypeAlias = Counter[tuple[str, ...]]
"""The numbers of products of symbols, each with its symbols in order."""


def polynomial_of(size: Size, starts: Mapping[str, int]) -> Polynomial | None:
    """The polynomial of a size in what its symbols are above their starts; None if it is not one.

    Of ``n*m`` from 1, it is that of ``(1 + n)*(1 + m)``.
    """
    if isinstance(size, int):
        return Counter({(): size})
    if isinstance(size, Symbol):
        return Counter({(size.key,): 1, (): starts.get(size.key, 0)})
    left, right = (polynomial_of(operand, starts) for operand in size.operands)
    if left is None or right is None:
        return None
    if size.sign in ("+", "-"):
        found = Counter(left)
        (found.update if size.sign == "+" else found.subtract)(right)
        return found
    if size.sign == "*":
        return _product(left, right)
    if size.sign == "^" and isinstance(size.operands[1], int):
        power: Polynomial = Counter({(): 1})
        for _ in range(size.operands[1]):
            power = _product(power, left)
        return power
    return None


def is_never_negative(size: Size, starts: Mapping[str, int]) -> bool:
    """Whether a size is at least 0 for all symbols from their starts; False if this does not show it."""
    found = polynomial_of(size, starts)
    return found is not None and all(number >= 0 for number in found.values())


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    found: Polynomial = Counter()
    for (one, number), (other, factor) in itertools.product(left.items(), right.items()):
        found[tuple(sorted((*one, *other)))] += number * factor
    return found

"""The least and greatest values of integers: of `arange`, sizes and literals, followed through arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from declax._jax import is_symbolic
from declax._text.dimensions import Condition, Operation, Symbol, evaluate
from declax.shapes.symbols import Dimension, decided

Range: TypeAlias = tuple[Dimension, Dimension]
"""The least and the greatest value."""

_KEEPS_VALUES: Final = frozenset(
    """broadcast_in_dim reshape squeeze transpose slice rev copy convert_element_type expand_dims stop_gradient
    optimization_barrier sharding_constraint dynamic_slice reduce_max reduce_min""".split()
)
"""The operations whose results have values of their first operand only."""
_COMPARISONS: Final = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LEFT, _RIGHT = Symbol("left"), Symbol("right")
_LEAST, _GREATEST = Operation("min", (_LEFT, _RIGHT)), Operation("max", (_LEFT, _RIGHT))


def is_at_most(left: Dimension, right: Dimension) -> bool | None:
    """Whether a size is at most another; None if that is not decided."""
    return decided(Condition(_LEFT, "<=", _RIGHT, ""), {"left": left, "right": right})


def range_of_literal(literal: Any) -> Range | None:
    """The range of a number in a program."""
    value = literal.val
    is_integer = isinstance(value, int) or (hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.integer))
    return (int(value), int(value)) if is_integer and getattr(value, "shape", ()) == () else None


def range_of(equation: Any, index: int, ranges: Sequence[Range | None]) -> Range | None:
    """The range of a result of an operation; None if it is not known, or if the result has no integers.

    Args:
      equation: the operation.
      index: which of its results.
      ranges: those of its operands.
    """
    dtype = getattr(equation.outvars[index].aval, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_)):
        return None
    try:
        return _range_of(equation, index, ranges)
    except (jax.errors.InconclusiveDimensionOperation, TypeError, ValueError):
        return None


def wrapped(which: Any, cases: Sequence[Any], ranges: Sequence[Range | None]) -> Range | None:
    """The range of ``select(x < 0, x, x + size)``, by which JAX counts negative indices from the end; else None.

    Args:
      which: the equation of the condition, or None.
      cases: the variables of the cases.
      ranges: those of the cases.
    """
    plain, shifted = ranges
    if which is None or which.primitive.name != "lt" or plain is None or shifted is None:
        return None
    variable, zero = which.invars
    if variable is not cases[0] or not isinstance(zero, Literal) or range_of_literal(zero) != (0, 0):
        return None
    (low, high), (shifted_low, shifted_high) = plain, shifted
    if is_at_most(0, low):
        return low, high
    if is_at_most(high, -1):
        return shifted_low, shifted_high
    return least([0, shifted_low]), greatest([high, shifted_high - high - 1])


def least(values: Sequence[Dimension]) -> Dimension:
    """The least of sizes."""
    return functools.reduce(lambda one, other: evaluate(_LEAST, {"left": one, "right": other}), values)


def greatest(values: Sequence[Dimension]) -> Dimension:
    """The greatest of sizes."""
    return functools.reduce(lambda one, other: evaluate(_GREATEST, {"left": one, "right": other}), values)


def _range_of(equation: Any, index: int, ranges: Sequence[Range | None]) -> Range | None:
    name, params = equation.primitive.name, equation.params
    if name == "iota":
        return 0, params["shape"][params["dimension"]] - 1
    if name == "dim_as_value":
        return (params["dim"],) * 2
    if name in ("argmax", "argmin"):
        return 0, equation.invars[0].aval.shape[params["axes"][0]] - 1
    if name == "top_k" and index == 1:
        return 0, equation.invars[0].aval.shape[-1] - 1
    if name == "sort":
        return ranges[index]
    if name == "select_n":
        return _selected(ranges)
    if name == "and" and (0, 0) in ranges:
        return 0, 0
    known = [found for found in ranges if found is not None]
    if len(known) < len(ranges) or not known:
        return None
    (low, high), *others = known
    if name in _KEEPS_VALUES:
        return low, high
    if name == "concatenate":
        return least([pair[0] for pair in known]), greatest([pair[1] for pair in known])
    if name in _COMPARISONS:
        return _compared(name, known)
    if name in ("eq", "ne") and low is high and others[0][0] is others[0][1]:
        answer = int((low == others[0][0]) is (name == "eq"))
        return answer, answer
    if name == "neg":
        return -high, -low
    if name == "clamp":
        (middle_low, middle_high), (high_low, high_high) = others
        return least([greatest([low, middle_low]), high_low]), least([greatest([high, middle_high]), high_high])
    return _arithmetic(name, known[0], others[0]) if len(others) == 1 else None


def _arithmetic(name: str, one: Range, other: Range) -> Range | None:
    """The range of an operation on two integers."""
    (low, high), (other_low, other_high) = one, other
    if name == "add":
        return low + other_low, high + other_high
    if name == "sub":
        return low - other_high, high - other_low
    if name == "max":
        return greatest([low, other_low]), greatest([high, other_high])
    if name == "min":
        return least([low, other_low]), least([high, other_high])
    if name == "mul":
        return _product(one, other)
    if name == "rem" and low >= 0 and other_low > 0:
        return 0, other_high - 1
    if name == "div" and low >= 0 and other_low > 0:
        return low // other_high, high // other_low
    return None


def _product(one: Range, other: Range) -> Range | None:
    (low, high), (other_low, other_high) = one, other
    for (factor, same), (start, end) in ((one, other), (other, one)):
        if factor is same and not is_symbolic(factor):
            return (factor * start, factor * end) if factor >= 0 else (factor * end, factor * start)
    return (low * other_low, high * other_high) if low >= 0 and other_low >= 0 else None


def _compared(name: str, pairs: Sequence[Range]) -> Range:
    """0 and 1 of a comparison, or one of them if it is decided."""
    (low, high), (other_low, other_high) = pairs
    sign = _COMPARISONS[name]
    best, worst = (
        ((low, other_high), (high, other_low)) if sign in ("<", "<=") else ((high, other_low), (low, other_high))
    )
    condition = Condition(_LEFT, sign, _RIGHT, "")
    if decided(condition, dict(zip(("left", "right"), worst, strict=True))):
        return 1, 1
    if decided(condition, dict(zip(("left", "right"), best, strict=True))) is False:
        return 0, 0
    return 0, 1


def _selected(ranges: Sequence[Range | None]) -> Range | None:
    """Those of the cases that may be chosen."""
    which, *cases = ranges
    if which is not None and not is_symbolic(which[0]) and not is_symbolic(which[1]) and which[0] == which[1]:
        number = int(which[0])
        return cases[number] if number < len(cases) else None
    known = [found for found in cases if found is not None]
    if len(known) < len(cases):
        return None
    return least([found[0] for found in known]), greatest([found[1] for found in known])

"""What stands between a check and a proof."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from declax._text.dimensions import Condition, Operation, Size, Symbol, linear
from declax.shapes.places import Place


class Kind(enum.Enum):
    """The kind of a problem; its value is the sentence that says it."""

    ERROR = "the call fails"
    ARGUMENT = "the shape of an argument is not the annotated one"
    RESULT = "the shape of the result is not the annotated one"
    CONDITION = "the condition of a method that is called does not follow"
    RESHAPE = "a reshape changes the number of elements"
    INDEX = "indices go beyond the size of their axis"
    COMPARISON = "the code compares sizes, and the answer depends on them"
    STOP = "the code needs a number"


class Problem(NamedTuple):
    """One problem of an evaluation.

    Attributes:
      kind: its kind.
      place: the user's line.
      text: what happens there.
      expected, got: shapes or sizes, in the names of the user.
      annotation: the place of the annotation, for arguments and results.
      splits: conditions that cover all sizes together, for each of which the code may be asked again.
      candidates: conditions, each of which may be what the code needs.
      is_branch: whether the user's code compares; otherwise a function that it calls checks its arguments.
      sizes: those of which something was not decided.
    """

    kind: Kind
    place: Place | None
    text: str
    expected: str | None = None
    got: str | None = None
    annotation: Place | None = None
    splits: tuple[Condition, ...] = ()
    candidates: tuple[Condition, ...] = ()
    is_branch: bool = True
    sizes: tuple[Size, ...] = ()


def candidates_of(sizes: Iterable[Size]) -> tuple[Condition, ...]:
    """Conditions under which rounded and limited sizes, such as ``n // 2`` and ``min(n, 32)``, are simple ones."""
    return tuple(dict.fromkeys(condition for size in sizes for condition in _within(size)))


def _within(size: Size) -> Iterable[Condition]:
    if not isinstance(size, Operation):
        return
    left, right = size.operands
    if size.sign in ("//", "%"):
        yield _divides(right, left)
    if size.sign in ("min", "max"):
        left, right = (right, left) if isinstance(left, int) else (left, right)
        yield Condition.of(left, "<=", right)
        yield Condition.of(left, ">=", right)
    yield from _within(left)
    yield from _within(right)


def _divides(factor: Size, size: Size) -> Condition:
    """That a size is a multiple of another; of ``n + 1`` and 2, that ``n % 2 == 1``."""
    found = linear(size)
    if found is not None and abs(found[0]) == 1 and isinstance(factor, int) and factor > 1:
        scale, key, rest = found
        return Condition.of(Operation("%", (Symbol(key), factor)), "==", -rest * scale % factor)
    return Condition.of(Operation("%", (size, factor)), "==", 0)


def residues_of(
    conditions: Iterable[Condition], most: int, among: Sequence[Condition] | None = None
) -> tuple[Condition, ...]:
    """The cases of the first name whose rest by a small number a condition asks for; none if none does.

    Args:
      conditions: such as ``n % 2 == 0``.
      most: the largest number.
      among: the cases that count; None for all.
    """
    for condition in conditions:
        left = condition.left
        if isinstance(left, Operation) and left.sign == "%" and isinstance(condition.right, int):
            name, factor = left.operands
            if isinstance(name, Symbol) and isinstance(factor, int) and 1 < factor <= most:
                cases = (Condition.of(left, "==", rest) for rest in range(factor))
                return tuple(case for case in cases if among is None or case in among)
    return ()

"""Checks of the operations of a jaxpr with symbolic sizes: what JAX leaves to the run.

*Reshapes*: JAX does not compare the numbers of elements. *Indices*: it clamps or drops those beyond an axis; here the
ranges of integers are followed (`ranges`). *Chance broadcasts*: an elementwise operation puts two axes of one size
beside each other, as of ``(b, 1) - (b,)``. *Empty arrays*: sizes that may be 0,
at which the call is evaluated in numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from declax._jax import is_symbolic
from declax._text.dimensions import Condition, Size, shape_text, text_of
from declax.shapes.places import Place, PlaceOf, place_of_equation
from declax.shapes.problems import Kind, Problem, candidates_of
from declax.shapes.ranges import Range, is_at_most, range_of, range_of_literal, wrapped
from declax.shapes.symbols import Dimension, differ

_ELEMENTWISE: Final = frozenset(
    """add sub mul div rem pow max min atan2 nextafter and or xor eq ne lt le gt ge select_n clamp
    shift_left shift_right_logical shift_right_arithmetic add_any complex""".split()
)
_MOST_EMPTY: Final = 8


@dataclasses.dataclass(frozen=True)
class Fact:
    """What is known of an array.

    Attributes:
      is_input: whether it depends on the arguments of the call.
      written: the axes of size 1 that somebody wrote, as by ``x[:, None]`` or ``keepdims=True``.
      range: the least and the greatest value of integers; None if not known.
      columns: the ranges of integers by their place on the last axis; None if one range is for all.
    """

    is_input: bool = False
    written: frozenset[int] = frozenset()
    range: Range | None = None
    columns: tuple[Range | None, ...] | None = None


_NO_AXES: Final = frozenset[int]()
_NOTHING: Final = Fact()


class Reading:
    """Walks the equations of a jaxpr once.

    Attributes:
      problems: of reshapes and indices.
      warnings: of chance broadcasts.
      indices: places at which values of arguments are indices, which nothing is said about.
      empty: conditions under which an array has no elements.
    """

    def __init__(self, written: Callable[[Dimension], Size]) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.indices: dict[Place | None, None] = {}
        self.empty: list[Condition] = []
        self._written = written
        self._seen = set[Dimension]()

    def read(self, jaxpr: ClosedJaxpr, count_of_inputs: int) -> None:
        """Reads a jaxpr whose last inputs are the arguments of the call."""
        is_input = [False] * (len(jaxpr.jaxpr.invars) - count_of_inputs) + [True] * count_of_inputs
        facts = [Fact(is_input=flag) for flag in is_input]
        self._walk(jaxpr.jaxpr, facts, lambda: None)

    # --- programs -------------------------------------------------------------------

    def _walk(self, jaxpr: Jaxpr, inputs: Sequence[Fact], around: PlaceOf) -> list[Fact]:
        known: dict[Any, Fact] = dict(zip(jaxpr.invars, inputs, strict=True))
        makers: dict[Any, tuple[Any, PlaceOf]] = {}
        for equation in jaxpr.eqns:
            place = functools.partial(place_of_equation, equation, around)
            facts = [_fact_of_literal(v) if isinstance(v, Literal) else known.get(v, _NOTHING) for v in equation.invars]
            name = equation.primitive.name
            inner = [] if name.startswith("scatter") else list(_programs(equation.params))
            if inner:
                outputs = self._within(equation, inner, facts, place)
            else:
                if name == "reshape":
                    self._check_reshape(equation, place)
                elif name == "gather":
                    self._check_gather(equation, facts, place)
                elif name.startswith("scatter"):
                    self._check_scatter(equation, facts, place)
                elif name in ("dynamic_slice", "dynamic_update_slice"):
                    self._check_slice(equation, facts, place)
                elif name in _ELEMENTWISE:
                    self._check_broadcast(equation, facts, place, makers, known)
                outputs = [_fact_of(equation, index, facts, makers) for index in range(len(equation.outvars))]
            self._note_empty(equation)
            makers.update((var, (equation, place)) for var in equation.outvars)
            known.update(zip(equation.outvars, outputs, strict=True))
        return [_fact_of_literal(v) if isinstance(v, Literal) else known.get(v, _NOTHING) for v in jaxpr.outvars]

    def _note_empty(self, equation: Any) -> None:
        """Notes the sizes of results that may be 0."""
        sizes = {size for var in equation.outvars for size in getattr(var.aval, "shape", ()) if is_symbolic(size)}
        for size in sizes - self._seen:
            self._seen.add(size)
            if len(self.empty) < _MOST_EMPTY and not is_at_most(1, size):
                self.empty.append(Condition.of(self._written(size), "<", 1))

    def _within(self, equation: Any, programs: Sequence[Jaxpr], facts: list[Fact], place: PlaceOf) -> list[Fact]:
        """Reads the programs of one equation; what a loop carries has no known values."""
        name = equation.primitive.name
        is_input = any(fact.is_input for fact in facts)
        results: list[list[Fact]] = []
        for program in programs:
            count = len(program.invars)
            given = facts[len(facts) - count :] if count <= len(facts) else [Fact(is_input=is_input)] * count
            if name in ("scan", "while"):
                given = [Fact(fact.is_input or is_input, fact.written) for fact in given]
            results.append(self._walk(program, given, place))
        found = results[0]
        if name in ("scan", "while", "cond") or len(found) != len(equation.outvars):
            return [Fact(is_input=is_input)] * len(equation.outvars)
        return found

    # --- reshapes -------------------------------------------------------------------

    def _check_reshape(self, equation: Any, place: PlaceOf) -> None:
        before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        if not any(map(is_symbolic, (*before, *after))):
            return
        old, new = math.prod(before), math.prod(after)
        if differ(old, new) is not False:
            sizes = self._sizes(after), self._sizes(before)
            difference = self._written(old - new)
            text = f"a reshape of {shape_text(sizes[1])} to {shape_text(sizes[0])} changes the number of elements"
            shapes = shape_text(sizes[1]), shape_text(sizes[0])
            sizes_of_both = (*sizes[0], *sizes[1], difference)
            self.problems.append(
                Problem(
                    Kind.RESHAPE, place(), text, *shapes, candidates=candidates_of(sizes_of_both), sizes=sizes_of_both
                )
            )

    def _sizes(self, shape: Sequence[Dimension]) -> list[Size]:
        return list(map(self._written, shape))

    # --- indices --------------------------------------------------------------------

    def _check_gather(self, equation: Any, facts: Sequence[Fact], place: PlaceOf) -> None:
        """Checks that indices with known values stay inside of their axes."""
        params, shape = equation.params, equation.invars[0].aval.shape
        axes = params["dimension_numbers"].start_index_map
        self._check_indices(equation, axes, [params["slice_sizes"][axis] for axis in axes], shape, facts[1], place)

    def _check_scatter(self, equation: Any, facts: Sequence[Fact], place: PlaceOf) -> None:
        """Checks that elements with known indices are inside of the array that takes them."""
        numbers, shape = equation.params["dimension_numbers"], equation.invars[0].aval.shape
        absent = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        window = [axis for axis in range(len(shape)) if axis not in absent]
        updates = equation.invars[2].aval.shape
        sizes = {axis: updates[at] for axis, at in zip(window, numbers.update_window_dims, strict=True)}
        axes = numbers.scatter_dims_to_operand_dims
        self._check_indices(equation, axes, [sizes.get(axis, 1) for axis in axes], shape, facts[1], place)

    def _check_indices(
        self,
        equation: Any,
        axes: Sequence[int],
        sizes: Sequence[Dimension],
        shape: Sequence[Dimension],
        indices: Fact,
        place: PlaceOf,
    ) -> None:
        """Checks an array of indices, of which the last axis has one for each of some axes of another array."""
        if equation.params["mode"] is jax.lax.GatherScatterMode.CLIP:  # as somebody wrote
            return
        columns = indices.columns or (indices.range,) * len(axes)
        for axis, size, known in zip(axes, sizes, columns, strict=True):
            self._check_inside(known, size, shape[axis], place)

    def _check_slice(self, equation: Any, facts: Sequence[Fact], place: PlaceOf) -> None:
        """Checks that a slice with a known start stays inside; JAX moves the start of one that does not."""
        is_update = equation.primitive.name == "dynamic_update_slice"
        sizes = equation.invars[1].aval.shape if is_update else equation.params["slice_sizes"]
        starts = facts[1 + is_update :]
        for start, size, length in zip(starts, sizes, equation.invars[0].aval.shape, strict=True):
            self._check_inside(start.range, size, length, place)

    def _check_inside(self, known: Range | None, size: Dimension, length: Dimension, place: PlaceOf) -> None:
        """Checks that the first and the last of some indices are inside of an axis."""
        if known is None:
            self.indices[place()] = None
            return
        low, high = known
        end = high + size
        if not (is_at_most(end, length) or differ(end, length) is False):
            last, sides = self._written(end - 1), (self._written(end), "<=", self._written(length))
            self._note_index(f"indices up to {text_of(last)}", sides, length, place)
        if not is_at_most(0, low):
            self._note_index(
                f"indices from {text_of(self._written(low))}", (self._written(low), ">=", 0), length, place
            )

    def _note_index(self, what: str, sides: tuple[Size, str, Size], length: Dimension, place: PlaceOf) -> None:
        needed = Condition.of(*sides).simplified()
        text = f"{what} select from an axis of size {text_of(self._written(length))}"
        expected = needed.text if needed.symbols() else None
        self.problems.append(
            Problem(Kind.INDEX, place(), text, expected, candidates=(needed,), sizes=(needed.left, needed.right))
        )

    # --- chance broadcasts ------------------------------------------------------------

    def _check_broadcast(
        self,
        equation: Any,
        facts: Sequence[Fact],
        place: PlaceOf,
        makers: Mapping[Any, tuple[Any, PlaceOf]],
        known: Mapping[Any, Fact],
    ) -> None:
        """Checks that no operand got leading axes so that one symbolic size stands on two axes."""
        shape = equation.outvars[0].aval.shape
        if sum(map(is_symbolic, shape)) < 2:
            return
        operands = [
            _operand(var, fact, place, makers, known, len(shape))
            for var, fact in zip(equation.invars, facts, strict=True)
        ]
        for one in operands:
            for other in operands:
                pair = _pair_of_axes(one, other, shape)
                if pair is not None:
                    left, right = (shape_text(self._sizes(operand.shape)) for operand in (other, one))
                    result = shape_text(self._sizes(shape))
                    text = f"arrays of the shapes {left} and {right} become one of shape {result}"
                    self.warnings.append(Problem(Kind.RESULT, place(), text, None, result))
                    return


@dataclasses.dataclass(frozen=True)
class _Operand:
    """An operand before it was broadcast: its shape, and the first of its axes in the result."""

    shape: tuple[Dimension, ...]
    start: int
    fact: Fact

    def size(self, axis: int) -> Dimension | None:
        """The size at an axis of the result; None where it had none."""
        return self.shape[axis - self.start] if axis >= self.start else None


def _operand(
    var: Any,
    fact: Fact,
    place: PlaceOf,
    makers: Mapping[Any, tuple[Any, PlaceOf]],
    known: Mapping[Any, Fact],
    rank: int,
) -> _Operand:
    shape = var.aval.shape
    made = None if isinstance(var, Literal) else makers.get(var)
    is_broadcast = made is not None and made[0].primitive.name == "broadcast_in_dim"
    if made is not None and is_broadcast and made[1]() == place() and not isinstance(made[0].invars[0], Literal):
        source = made[0].invars[0]
        start = rank - len(source.aval.shape)
        if tuple(made[0].params["broadcast_dimensions"]) == tuple(range(start, rank)):
            return _Operand(source.aval.shape, start, known.get(source, _NOTHING))
    return _Operand(shape, rank - len(shape), fact)


def _pair_of_axes(one: _Operand, other: _Operand, shape: Sequence[Dimension]) -> tuple[int, int] | None:
    """Two axes of one size: the first from `other`, which `one` lacks; the second from `one`, where `other` has 1."""
    if one is other or one.start == 0 or not (one.fact.is_input and other.fact.is_input):
        return None
    for first in range(one.start):
        size = other.size(first)
        if size is None or not is_symbolic(size):
            continue
        for second in range(max(one.start, other.start), len(shape)):
            is_one = other.size(second) == 1 and second - other.start not in other.fact.written
            if is_one and differ(one.size(second), size) is False:
                return first, second
    return None


def _programs(params: Mapping[str, Any]) -> Iterator[Jaxpr]:
    """The programs among the parameters of an equation, but not rules of derivatives."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


# --- facts ------------------------------------------------------------------------


def _fact_of_literal(literal: Any) -> Fact:
    return Fact(range=range_of_literal(literal))


def _fact_of(equation: Any, index: int, facts: Sequence[Fact], makers: Mapping[Any, tuple[Any, PlaceOf]]) -> Fact:
    """What is known of one result of an operation."""
    is_input = any(fact.is_input for fact in facts)
    has_shape = hasattr(equation.outvars[index].aval, "shape")
    written = _written_axes(equation, facts) if has_shape else _NO_AXES
    ranges = [fact.range for fact in facts]
    found = range_of(equation, index, ranges)
    if equation.primitive.name == "select_n" and len(facts) == 3 and not isinstance(equation.invars[0], Literal):
        maker, _ = makers.get(equation.invars[0], (None, None))
        found = wrapped(maker, equation.invars[1:], ranges[1:]) or found
    return Fact(is_input, written, found, _columns_of(equation, facts))


def _columns_of(equation: Any, facts: Sequence[Fact]) -> tuple[Range | None, ...] | None:
    """The ranges on the last axis of indices that were joined there."""
    shape = getattr(equation.outvars[0].aval, "shape", ())
    if equation.primitive.name != "concatenate" or equation.params["dimension"] != len(shape) - 1:
        return None
    sizes = [var.aval.shape[-1] for var in equation.invars]
    return None if any(map(is_symbolic, sizes)) or sum(sizes) > 8 else tuple(
        known for fact, size in zip(facts, sizes, strict=True) for known in (fact.columns or (fact.range,) * size)
    )  # fmt: skip


def _written_axes(equation: Any, facts: Sequence[Fact]) -> frozenset[int]:
    name, shape = equation.primitive.name, equation.outvars[0].aval.shape
    ones = {axis for axis, size in enumerate(shape) if not is_symbolic(size) and size == 1}
    if not ones:
        return _NO_AXES
    if name == "broadcast_in_dim":
        kept = {to: at for at, to in enumerate(equation.params["broadcast_dimensions"])}
        return frozenset(axis for axis in ones if axis not in kept or kept[axis] in facts[0].written)
    if name in ("reshape", "expand_dims"):
        return frozenset(ones)
    if name == "transpose":
        order = equation.params["permutation"]
        return frozenset(axis for axis in ones if order[axis] in facts[0].written)
    pairs = zip(facts, equation.invars, strict=True)
    same = [fact for fact, var in pairs if len(getattr(var.aval, "shape", ())) == len(shape)]
    same = [fact for fact in same if fact.is_input] or same
    return frozenset(ones).intersection(*(fact.written for fact in same)) if same else _NO_AXES

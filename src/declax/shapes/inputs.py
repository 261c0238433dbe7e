"""The arguments of a call: what annotations leave open is chosen, and shapes become abstract arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from declax._random.streams import Rngs
from declax._text.dimensions import Axis, Symbol, evaluate, symbols_of
from declax.errors import ShapeError
from declax.shapes.annotations import KEY, ArrayOf, EntriesOf, ItemsOf, OneOf, OptionalOf, Parameter, Pattern, arrays_in
from declax.shapes.symbols import Dimension

RANKS: Final = (1, 0, 2)
"""The numbers of axes in place of ``...`` and ``*names``."""


class Choice(NamedTuple):
    """What annotations leave open.

    Attributes:
      rank: the number of axes in place of ``...``.
      is_given: whether optional arguments are given.
      is_one: whether sizes that may be 1 are.
      alternative: the index of those of a union.
    """

    rank: int = 1
    is_given: bool = False
    is_one: bool = False
    alternative: int = 0


def choices_for(patterns: Iterable[Pattern]) -> list[Choice]:
    """The choices that make a difference for some patterns."""
    known = list(patterns)
    axes = [axis for pattern in known for array in arrays_in(pattern) for axis in array.axes]
    ranks = RANKS if any(axis.rest is not None for axis in axes) else RANKS[:1]
    given = (False, True) if any(isinstance(pattern, OptionalOf) for pattern in known) else (False,)
    ones = (False, True) if any(axis.is_broadcast and axis.rest is None for axis in axes) else (False,)
    plain = [pattern.inner if isinstance(pattern, OptionalOf) else pattern for pattern in known]
    most = max((len(pattern.alternatives) for pattern in plain if isinstance(pattern, OneOf)), default=1)
    return list(itertools.starmap(Choice, itertools.product(ranks, given, ones, range(most))))


def chosen(pattern: Pattern, choice: Choice, numbers: Iterator[int]) -> Pattern:
    """A pattern of arrays with one size for each axis."""
    if isinstance(pattern, ArrayOf):
        axes = tuple(size for axis in pattern.axes for size in _axes(axis, choice, numbers))
        return pattern._replace(axes=axes)
    if isinstance(pattern, OptionalOf):
        return chosen(pattern.inner, choice, numbers) if choice.is_given else None
    if isinstance(pattern, OneOf):
        return chosen(pattern.alternatives[choice.alternative % len(pattern.alternatives)], choice, numbers)
    if isinstance(pattern, ItemsOf):
        items = pattern.items * 2 if pattern.is_repeated else pattern.items
        return pattern._replace(items=tuple(chosen(item, choice, numbers) for item in items), is_repeated=False)
    if isinstance(pattern, EntriesOf):
        return pattern._replace(entries={key: chosen(one, choice, numbers) for key, one in pattern.entries.items()})
    return None


def _axes(axis: Axis, choice: Choice, numbers: Iterator[int]) -> Iterator[Axis]:
    if axis.rest is not None:
        for index in range(choice.rank):
            name = axis.rest + (str(index) if index else "") if axis.rest else f"axis{next(numbers)}"
            yield Axis(Symbol(name))
    elif axis.is_broadcast and choice.is_one:
        yield Axis(1)
    else:
        yield Axis(Symbol(f"axis{next(numbers)}") if axis.size is None else axis.size)


def names_of(pattern: Pattern) -> list[str]:
    """The keys of the names in a chosen pattern, fields too."""
    return [key for array in arrays_in(pattern) for axis in array.axes for key in symbols_of(axis.size or 0)]


def made(pattern: Pattern, sizes: Mapping[str, Dimension]) -> Any:
    """Abstract arrays of a chosen pattern, at sizes of the names."""
    if isinstance(pattern, ArrayOf):
        shape = tuple(evaluate(axis.size or 0, sizes) for axis in pattern.axes)
        return jax.ShapeDtypeStruct(shape, _dtype(pattern.dtype))  # type: ignore[no-untyped-call]  # of JAX
    if isinstance(pattern, ItemsOf):
        return pattern.cls(made(item, sizes) for item in pattern.items)
    if isinstance(pattern, EntriesOf):
        if pattern.cls is None:
            raise ShapeError("check_shapes", "the keys of a dict are not known")
        return pattern.cls(**{key: made(one, sizes) for key, one in pattern.entries.items()})
    return None


def _dtype(dtype: Any) -> Any:
    return jax.random.key(0).dtype if dtype == KEY else jnp.dtype(dtype)


def value_without_shape(parameter: Parameter, annotation: Any) -> Any:
    """The argument for a required parameter whose annotation has no shape."""
    if annotation is Rngs or (isinstance(annotation, str) and annotation.rpartition(".")[2] == "Rngs"):
        return Rngs(0)
    if annotation in (bool, "bool"):
        return True
    raise ShapeError(
        "check_shapes",
        f"the parameter {parameter.name!r} has no shape: annotate it, or give all inputs: dx.check_shapes(..., "
        '"float32[b, n]")',
    )

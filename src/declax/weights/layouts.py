"""How tensors of a file are laid out in a model: named operations, each of which works in both directions.

A destination is the path of a parameter, or an operation and the destinations of its results. It is data: nothing runs
until a model and a file are known. The shapes of the parameters decide the shape that the tensor must have.
"""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from declax.errors import WeightsError
from declax.weights.parts import Array, Part, Permuted, Rearranged, Section, Shape


@dataclass(frozen=True)
class Layout:
    """An operation on a tensor of a file, and where its results go.

    Attributes:
      to: the paths or further operations that get the results.
    """

    to: tuple[Destination, ...]

    @abstractmethod
    def source_shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of the tensor whose results have these shapes."""

    @abstractmethod
    def forward(self, tensor: Part, shapes: Sequence[Shape]) -> Sequence[Part]:
        """The results, of these shapes."""

    @abstractmethod
    def backward(self, results: Sequence[Array]) -> Array:
        """The tensor with these results."""


Destination: TypeAlias = "str | Layout"
"""The path of a parameter, or an operation whose results go to parameters."""


# --- a destination as a tree --------------------------------------------------------


def paths_of(destination: Destination) -> Iterator[str]:
    """The paths of a destination, from left to right."""
    if isinstance(destination, str):
        yield destination
        return
    for part in destination.to:
        yield from paths_of(part)


def tensor_shape(destination: Destination, shape_of: Callable[[str], Shape]) -> Shape:
    """The shape of the tensor for parameters of these shapes; raises WeightsError if there is none."""
    if isinstance(destination, str):
        return shape_of(destination)
    return destination.source_shape([tensor_shape(part, shape_of) for part in destination.to])


def take(destination: Destination, tensor: Part, path: str, shape_of: Callable[[str], Shape]) -> Part:
    """The part of a tensor that goes to one path of the destination, which is not read yet."""
    while not isinstance(destination, str):
        shapes = [tensor_shape(part, shape_of) for part in destination.to]
        chosen = [path in paths_of(part) for part in destination.to].index(True)
        tensor = destination.forward(tensor, shapes)[chosen]
        destination = destination.to[chosen]
    return tensor


def join(destination: Destination, value_of: Callable[[str], Array]) -> Array:
    """The tensor that gives these values; the inverse of `take`."""
    if isinstance(destination, str):
        return value_of(destination)
    return destination.backward([join(part, value_of) for part in destination.to])


# --- the operations -----------------------------------------------------------------


@dataclass(frozen=True)
class Transpose(Layout):
    """See `transpose`."""

    axes: tuple[int, ...]

    def _axes(self, shape: Shape) -> tuple[int, ...]:
        axes = self.axes or tuple(reversed(range(len(shape))))
        if sorted(axes) != [*range(len(shape))]:
            raise _shape_error("transpose", f"axes {axes} are not those of the parameter", shape)
        return axes

    def source_shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape before the axes are permuted."""
        (shape,) = shapes
        return tuple(shape[axis] for axis in np.argsort(self._axes(shape)))

    def forward(self, tensor: Part, shapes: Sequence[Shape]) -> Sequence[Part]:
        """The tensor with permuted axes."""
        return (Permuted(tensor, self._axes(tensor.shape)),)

    def backward(self, results: Sequence[Array]) -> Array:
        """The tensor whose permutation it is."""
        (result,) = results
        return result.transpose(np.argsort(self._axes(result.shape)))


@dataclass(frozen=True)
class Reshape(Layout):
    """See `reshape`."""

    pattern: str
    given: tuple[tuple[str, int], ...]
    before: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...]

    def _sizes(self, shape: Shape) -> dict[str, int]:
        """The size of each name, for a result of a shape."""
        sizes = dict(self.given)
        if len(shape) != len(self.after):
            raise _shape_error("reshape", f"the right side of {self.pattern!r} has {len(self.after)} axes", shape)
        for names, size in zip(self.after, shape, strict=True):
            unknown = [name for name in names if name not in sizes]
            if len(unknown) > 1:
                fix = f"reshape(..., {self.pattern!r}, {unknown[0]}=...)"
                raise _shape_error(
                    "reshape", f"the sizes of {', '.join(unknown)} in {self.pattern!r} are unknown", shape, fix
                )
            known = prod(sizes.get(name, 1) for name in names)
            if unknown:
                sizes[unknown[0]] = size // known
            if known * (sizes[unknown[0]] if unknown else 1) != size:
                raise _shape_error("reshape", f"the sizes of {self.pattern!r} do not fit the parameter", shape)
        return sizes

    def source_shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of the left side."""
        sizes = self._sizes(shapes[0])
        return tuple(prod(sizes[name] for name in names) for names in self.before)

    def forward(self, tensor: Part, shapes: Sequence[Shape]) -> Sequence[Part]:
        """From the left side to the right side."""
        return (Rearranged(tensor, self._sizes(shapes[0]), self.before, self.after),)

    def backward(self, results: Sequence[Array]) -> Array:
        """From the right side to the left side."""
        return np.asarray(Rearranged(results[0], self._sizes(results[0].shape), self.after, self.before))


@dataclass(frozen=True)
class Split(Layout):
    """See `split`."""

    axis: int

    def source_shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape with the sum of the sizes along the axis."""
        return _joined_shape("split", shapes, self.axis)

    def forward(self, tensor: Part, shapes: Sequence[Shape]) -> Sequence[Part]:
        """The parts."""
        sizes = [shape[self.axis] for shape in shapes]
        starts = itertools.accumulate(sizes, initial=0)
        axis = self.axis % len(tensor.shape)
        return [Section(tensor, axis, start, size) for start, size in zip(starts, sizes, strict=False)]

    def backward(self, results: Sequence[Array]) -> Array:
        """The parts, one after the other."""
        return np.concatenate(results, axis=self.axis)


@dataclass(frozen=True)
class Concatenate(Layout):
    """See `concatenate`; `forward` gets the joined tensor, and `parts_of` tells how it was joined."""

    axis: int
    sizes: tuple[int, ...]

    def source_shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of the joined tensor."""
        return shapes[0]

    def forward(self, tensor: Part, shapes: Sequence[Shape]) -> Sequence[Part]:
        """The joined tensor."""
        return (tensor,)

    def backward(self, results: Sequence[Array]) -> Array:
        """The joined tensor."""
        return results[0]

    def part_shapes(self, shape: Shape, count: int) -> list[Shape]:
        """The shapes of the tensors that make one of a shape."""
        if not -len(shape) <= self.axis < len(shape):
            raise _shape_error("concatenate", f"the parameter has no axis {self.axis}", shape)
        axis = self.axis % len(shape)
        sizes = self.sizes or (shape[axis] // count,) * count
        if len(sizes) != count or sum(sizes) != shape[axis]:
            fix = "concatenate(..., sizes=(...))        # the size of each tensor along the axis"
            raise _shape_error(
                "concatenate", f"the sizes {sizes} along axis {self.axis} do not fit the parameter", shape, fix
            )
        return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


def _joined_shape(operation: str, shapes: Sequence[Shape], axis: int) -> Shape:
    first = shapes[0]
    if not -len(first) <= axis < len(first):
        raise _shape_error(operation, f"a parameter has no axis {axis}", first)
    axis %= len(first)
    others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(others) > 1:
        raise _shape_error(operation, f"the shapes of the parts differ outside of axis {axis}", shapes)
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def _shape_error(operation: str, problem: str, got: object, fix: str | None = None) -> WeightsError:
    return WeightsError(operation, problem, got=str(got), fix=fix)


# --- how a map is written -----------------------------------------------------------


def transpose(to: Destination, *axes: int) -> Layout:
    """Permutes the axes of a tensor, as `numpy.transpose`.

    Args:
      to: where the result goes.
      *axes: the axes of the tensor in the order of the result; none reverses them.

    >>> import declax as dx
    >>> linear = {"fc.weight": dx.weights.transpose("fc.kernel"), "fc.bias": "fc.bias"}
    """
    return Transpose((to,), axes)


def reshape(to: Destination, pattern: str, **sizes: int) -> Layout:
    """Splits, joins and permutes axes, in the notation of einops.

    Each side names axes. A group in parentheses is one axis, in the order of rows. `1` is an axis of size 1.

    Args:
      to: where the result goes.
      pattern: the axes of the tensor in the file, and of the result. Both sides have the same names.
      **sizes: sizes of names, where the shape of the parameter does not tell them.

    Raises:
      WeightsError: the pattern is not understood.

    Rogozhnikov, "Einops", https://openreview.net/forum?id=oapKSVM2bcj.

    >>> import declax as dx
    >>> conv = dx.weights.reshape("conv.kernel", "o i h w -> h w i o")
    >>> query = dx.weights.reshape("attention.query.kernel", "(h d) i -> i h d")
    """
    sides = [_groups(side) for side in pattern.split("->")]
    names = [sorted(name for group in side or () for name in group) for side in sides]
    if len(sides) != 2 or None in sides or names[0] != names[1] or len(set(names[0])) < len(names[0]):
        raise WeightsError(
            "reshape",
            "this is not a pattern",
            expected='a text such as "(h d) i -> i h d", with each name once on both sides',
            got=repr(pattern),
        )
    unknown = sizes.keys() - set(names[0])
    if unknown:
        raise WeightsError("reshape", f"the pattern has no axis {min(unknown)!r}", got=repr(pattern))
    before, after = sides
    return Reshape((to,), pattern, tuple(sizes.items()), before or (), after or ())


_AXES = re.compile(r"\(([^()]*)\)|(\S+)")
_NAME = re.compile(r"[A-Za-z_]\w*")


def _groups(side: str) -> tuple[tuple[str, ...], ...] | None:
    """The names of each axis; None if the text is not a list of axes."""
    groups = []
    for inner, single in _AXES.findall(side):
        names = tuple(name for name in (single or inner).split() if name != "1")
        if not all(map(_NAME.fullmatch, names)):
            return None
        groups.append(names)
    return tuple(groups)


def split(*to: Destination, axis: int) -> Layout:
    """Splits a tensor along an axis; the shapes of the parameters tell where.

    Args:
      *to: where each part goes.
      axis: the axis of the tensor.

    >>> import declax as dx
    >>> names = ("query", "key", "value")
    >>> parts = [dx.weights.reshape(f"attention.{name}.kernel", "i (h d) -> i h d") for name in names]
    >>> fused = {"attn.c_attn.weight": dx.weights.split(*parts, axis=1)}
    """
    return Split(to, axis)


def concatenate(to: Destination, *, axis: int, sizes: Sequence[int] = ()) -> Layout:
    """Joins several tensors of the file along an axis; the key in the map is a tuple of their names.

    Args:
      to: where the joined tensor goes.
      axis: the axis of the tensors.
      sizes: the size of each tensor along it; none means equal sizes.

    >>> import declax as dx
    >>> fused = {("gate.weight", "up.weight"): dx.weights.concatenate(dx.weights.transpose("mlp.kernel"), axis=0)}
    """
    return Concatenate((to,), axis, tuple(sizes))

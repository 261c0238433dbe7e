"""Tensors that are not read yet, and what operations make of them: an index reads the part that it needs.

An index is a tuple of slices, one for each axis, with a start and a stop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = np.ndarray[Any, Any]
Index: TypeAlias = tuple[slice, ...]

BLOCK: Final = 1 << 26
"""How many bytes of a tensor are in memory beside the array that they go to."""


class Part(Protocol):
    """An array of numpy, an array in a file, or one of the classes below."""

    @property
    def shape(self) -> Shape:
        """Its shape."""
        ...

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        ...

    def __getitem__(self, index: Any, /) -> Any:
        """The values at slices."""
        ...


def whole(shape: Shape) -> Index:
    """The index of all of an array."""
    return tuple([slice(0, size) for size in shape])


def fill(into: Array, part: Part, index: Index) -> None:
    """Writes a part of a tensor into an array of its shape, which may have another dtype, in blocks."""
    axis = _outer_axis(part)
    sizes = [each.stop - each.start for each in index]
    nbytes = prod(sizes) * int(np.dtype(part.dtype).itemsize)
    if axis is None or nbytes <= BLOCK:
        into[...] = part[index]
        return
    first, last = index[axis].start, index[axis].stop
    rows = max(1, BLOCK // (nbytes // sizes[axis]))
    for start in range(first, last, rows):
        stop = min(start + rows, last)
        block = part[(*index[:axis], slice(start, stop), *index[axis + 1 :])]
        into[(*[slice(None)] * axis, slice(start - first, stop - first))] = block


def _outer_axis(part: Part) -> int | None:
    """The axis along which a part is in one piece of its file, if there is one."""
    return part.outer_axis if isinstance(part, View) else 0 if part.shape else None


class View:
    """What an operation makes of a tensor, by index.

    Attributes:
      shape, dtype: of the result.
      outer_axis: the axis along which it is in one piece of its file, if there is one.
    """

    def __init__(self, shape: Shape, dtype: Any, outer_axis: int | None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.outer_axis = outer_axis

    @abstractmethod
    def __getitem__(self, index: Index, /) -> Array:
        """The values at slices."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[whole(self.shape)], dtype)


class Permuted(View):
    """A tensor with permuted axes."""

    def __init__(self, base: Part, axes: tuple[int, ...]) -> None:
        outer = _outer_axis(base)
        super().__init__(
            tuple([base.shape[axis] for axis in axes]), base.dtype, None if outer is None else axes.index(outer)
        )
        self._base, self._axes = base, axes

    def __getitem__(self, index: Index, /) -> Array:
        by_axis = dict(zip(self._axes, index, strict=True))
        found: Array = self._base[tuple([by_axis[axis] for axis in range(len(index))])]
        return found.transpose(self._axes)


class Section(View):
    """The part of a tensor from a start along an axis."""

    def __init__(self, base: Part, axis: int, start: int, size: int) -> None:
        super().__init__((*base.shape[:axis], size, *base.shape[axis + 1 :]), base.dtype, _outer_axis(base))
        self._base, self._axis, self._start = base, axis, start

    def __getitem__(self, index: Index, /) -> Array:
        along = index[self._axis]
        moved = slice(along.start + self._start, along.stop + self._start)
        found: Array = self._base[(*index[: self._axis], moved, *index[self._axis + 1 :])]
        return found


class Joined(View):
    """Tensors one after the other along an axis."""

    def __init__(self, bases: Sequence[Part], axis: int) -> None:
        first = bases[0]
        size = sum([base.shape[axis] for base in bases])
        super().__init__((*first.shape[:axis], size, *first.shape[axis + 1 :]), first.dtype, _outer_axis(first))
        self._bases, self._axis = bases, axis

    def __getitem__(self, index: Index, /) -> Array:
        axis, along = self._axis, index[self._axis]
        found: list[Array] = []
        end = 0
        for base in self._bases:
            start, end = end, end + base.shape[axis]
            first, last = max(along.start, start), min(along.stop, end)
            if first < last or not found:  # the first one gives an empty part its shape
                part = slice(first - start, max(first, last) - start)
                found.append(base[(*index[:axis], part, *index[axis + 1 :])])
        return np.concatenate(found, axis)


class Rearranged(View):
    """A tensor whose axes are groups of names, with these names in other groups."""

    def __init__(
        self, base: Part, sizes: Mapping[str, int], before: Sequence[tuple[str, ...]], after: Sequence[tuple[str, ...]]
    ) -> None:
        outer = _outer_axis(base)
        first = before[outer][:1] if outer is not None else ()
        axis = next((axis for axis, group in enumerate(after) if first and group[:1] == first), None)
        super().__init__(tuple([prod([sizes[name] for name in group]) for group in after]), base.dtype, axis)
        self._base, self._sizes, self._before, self._after = base, sizes, before, after

    def __getitem__(self, index: Index, /) -> Array:
        wanted, rest = self._wanted(index)
        outer = {group[0] for group in self._before if group}
        read = {name: wanted[name] if name in outer else slice(0, size) for name, size in self._sizes.items()}
        names = [name for group in self._before for name in group]
        separate = self._base[tuple([self._along(group, read) for group in self._before])].reshape(
            [_length(read[name]) for name in names]
        )
        found = separate[tuple([_within(wanted[name], read[name]) for name in names])]
        found = found.transpose([names.index(name) for group in self._after for name in group])
        made: Array = found.reshape([prod([_length(wanted[name]) for name in group]) for group in self._after])[rest]
        return made

    def _inner(self, group: tuple[str, ...]) -> int:
        """How many entries an axis has for each of the first name of its group."""
        return prod([self._sizes[name] for name in group[1:]])

    def _wanted(self, index: Index) -> tuple[dict[str, slice], Index]:
        """The part of each name that has a part of the result, and where this part lies in it.

        Of a group, that is a part of the first name, with all of the others.
        """
        wanted = {name: slice(0, size) for name, size in self._sizes.items()}
        rest: list[slice] = []
        for group, along in zip(self._after, index, strict=True):
            inner = max(self._inner(group), 1)
            first, last = along.start // inner, -(-along.stop // inner)
            wanted |= dict.fromkeys(group[:1], slice(first, last))
            rest.append(slice(along.start - first * inner, along.stop - first * inner))
        return wanted, tuple(rest)

    def _along(self, group: tuple[str, ...], read: Mapping[str, slice]) -> slice:
        """What is read along an axis of the tensor."""
        if not group:
            return slice(0, 1)
        inner = self._inner(group)
        return slice(read[group[0]].start * inner, read[group[0]].stop * inner)


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _within(part: slice, outer: slice) -> slice:
    return slice(part.start - outer.start, part.stop - outer.start)

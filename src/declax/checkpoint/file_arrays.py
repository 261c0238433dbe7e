"""Arrays in files, of which the parts that are asked for are copied.

They are not mapped: the system ends a process that reads a mapped file after another one has made it shorter.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

from declax.checkpoint.files import OpenFile

_ALIGNMENT: Final = 64  # of memory that JAX on the CPU uses as it is
_BLOCK: Final = 1 << 20
_PAGE: Final = 1 << 12  # what a disk reads at least


class FileArray:
    """An array in a file. Each index reads the bytes that it needs, and gives a new array.

    Attributes:
      shape, dtype: of the array.
    """

    def __init__(self, file: OpenFile, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._file = file
        self._start = start
        self.shape = shape
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Its size in the file."""
        return prod(self.shape) * self.dtype.itemsize

    def view(self, dtype: np.dtype[Any]) -> FileArray:
        """Bytes, whose last axis has the bytes of one item, as items of another dtype."""
        return FileArray(self._file, self._start, self.shape[:-1], dtype)

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        """The array, or the part of it at slices without steps, in memory that JAX need not copy again.

        Raises:
          CheckpointError: the file ended, or cannot be read.
        """
        slices = () if index is ... else index if isinstance(index, tuple) else (index,)
        given = [part.indices(size)[:2] for part, size in zip(slices, self.shape, strict=False)]
        bounds = given + [(0, size) for size in self.shape[len(given) :]]
        found = aligned(tuple([stop - start for start, stop in bounds]), self.dtype)
        if found.size:
            self._read(found, self._start, self.shape, bounds)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        found = self[...]
        return found if dtype is None else found.astype(dtype, copy=False)

    def _read(
        self, into: np.ndarray[Any, Any], start: int, shape: tuple[int, ...], bounds: list[tuple[int, int]]
    ) -> None:
        """Fills an array with the part of the array of a shape that starts at a byte."""
        if all(part == (0, size) for part, size in zip(bounds[1:], shape[1:], strict=True)):
            row = prod(shape[1:]) * self.dtype.itemsize
            self._file.read_into(into.reshape(-1).view(np.uint8).data, start + (bounds[0][0] * row if bounds else 0))
            return
        (first, last), inner = bounds[0], shape[1:]
        row = prod(inner) * self.dtype.itemsize
        rows = _BLOCK // row
        piece = into.nbytes // (last - first)
        if rows == 0 or (piece >= _PAGE and 2 * piece <= row):  # less is read in pieces than in whole rows
            for number in range(first, last):
                self._read(into[number - first], start + number * row, inner, bounds[1:])
            return
        part = tuple([slice(*each) for each in bounds[1:]])
        for number in range(first, last, rows):
            block = np.empty((min(rows, last - number), *inner), self.dtype)
            self._file.read_into(block.reshape(-1).view(np.uint8).data, start + number * row)
            into[number - first : number - first + len(block)] = block[(slice(None), *part)]


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """New memory for an array, which JAX on the CPU uses as it is."""
    size = prod(shape) * dtype.itemsize
    memory: np.ndarray[Any, Any] = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)

"""Large arrays that stay whole on each device, and the sizes with which a mesh could split them."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from declax import _jax
from declax._text.arrays import bytes_text
from declax._text.folding import Line, folded
from declax._typing import Path, Shape
from declax.errors import ReplicationWarning, format_path

_LISTED = 4
_SHARE = 10
"""Arrays that stay whole are warned of from a tenth of all bytes on."""


class Whole(NamedTuple):
    """A large array that is whole on each device.

    Attributes:
      shape_text, nbytes: what it is.
      sizes: those of its dimensions that may be split.
    """

    shape_text: str
    nbytes: int
    sizes: Shape

    def text(self, path: Path, times: int, count: int) -> str:
        """What it is, how often, and how `count` devices, or fewer of them, could split it."""
        what = f"{format_path(path)} {self.shape_text} ({bytes_text(times * self.nbytes)})"
        if any(size % count == 0 for size in self.sizes):
            return f"{what}: give a dimension a name with a rule, or strategy=dx.fsdp"
        largest = max(self.sizes, default=0)
        fewer = max((math.gcd(size, count) for size in self.sizes), default=1)
        padded = f": pad {largest} to {-(-largest // count) * count}" if largest else ""
        return f"{what}{padded}" + (f", or a mesh axis of {fewer}" if fewer > 1 else "")


def warn_of_whole(where: str, why: str, whole: Sequence[Line[Whole]], total: int, count: int) -> None:
    """Warns of large arrays that are whole on each device, if they have a tenth of all bytes.

    Args:
      where: the function that a user has called.
      why: the reason.
      whole: the arrays; equal ones of several layers have one line.
      total: the bytes of all arrays.
      count: the size of the mesh axes that could split them.
    """
    nbytes = sum(line.content.nbytes for line in whole)
    if count == 1 or nbytes * _SHARE <= total:
        return
    large = sorted(folded(whole), key=lambda line: -line.times * line.content.nbytes)
    lines = [f"  {line.content.text(line.path, line.times, count)}" for line in large[:_LISTED]]
    lines += [f"  and {len(large) - _LISTED} more"] if len(large) > _LISTED else []
    text = f"{where}: {bytes_text(nbytes)} of {bytes_text(total)} are whole on each device, {why}:\n"
    warnings.warn(text + "\n".join(lines), ReplicationWarning, stacklevel=_jax.level_of_user(sys._getframe()))

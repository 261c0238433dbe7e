"""The mesh axes that split the batch of a model, where this is known of its Variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from weakref import finalize

_axes: Final[dict[int, tuple[str, ...]]] = {}
"""For Variables that `fsdp` has placed, by identity: the axes that it expects to split the batch."""


def note_batch_axes(variable: Any, axes: tuple[str, ...]) -> None:
    """Records that the axes that split a Variable split the batch too."""
    key = id(variable)
    if key not in _axes:
        finalize(variable, _axes.pop, key, None).atexit = False
    _axes[key] = axes


def batch_axes_of(variables: Iterable[Any]) -> set[str]:
    """The axes that were recorded for some Variables."""
    return {axis for variable in variables if id(variable) in _axes for axis in _axes[id(variable)]}

"""Arrays that have lost their buffers to a compiled function: which functions take them, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import jax
from jax.core import Tracer

from declax._typing import Path
from declax.errors import format_path, type_name

_donors: dict[str, None] = {}
"""The names of the functions that donate, in the order in which they were compiled."""

_MOST: Final = 4
_NOTE: Final = "_declax_deleted"

OWN_COPIES: Final = "dx.clone(model) and dx.update(target, dx.state(model, copy=True)) give arrays of their own"


def note_donor(name: str) -> None:
    """Notes that a compiled function donates."""
    _donors[name] = None


def why_deleted() -> str:
    """Why an array may have no buffer."""
    *others, last = list(_donors)[-_MOST:] or ["a function"]
    names = f"{', '.join(others)} or {last}" if others else last
    return f"{names}, which donates its arguments, has taken it, or array.delete() was called"


def is_deleted(leaf: Any) -> bool:
    """Whether a value is an array without a buffer."""
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted()


def note_deleted(error: Exception, model: Any, leaves: Iterable[tuple[Path, Any]]) -> None:
    """Adds to an error which leaves of a model have lost their buffers, in place of what was said of its parts."""
    lost = [format_path(path) for path, leaf in leaves if any(map(is_deleted, jax.tree.leaves(leaf)))]
    if not lost:
        return
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    note = f"{lost[0]} of {type_name(type(model))}{more} was deleted: {why_deleted()}.\n{OWN_COPIES}."
    before = error.__dict__.get(_NOTE)
    if before is not None:
        error.__notes__.remove(before)
    error.__dict__[_NOTE] = note
    error.add_note(note)

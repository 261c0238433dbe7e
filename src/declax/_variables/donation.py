"""Arrays that have lost their buffers to a compiled function: which functions take them, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import jax
from jax.core import Tracer

from declax._typing import Path
from declax.errors import GraphError, describe, format_path, type_name

_donors: dict[str, None] = {}
"""The names of the functions that donate, in the order in which they were compiled."""

_MOST: Final = 4
_NOTE: Final = "_declax_deleted"

OWN_COPIES: Final = "dx.clone(model) and dx.update(target, dx.state(model)) give arrays of their own"


BETWEEN_STEPS: Final = f"{OWN_COPIES}.\nIf another thread trains: one lock around each of its steps, and around this"


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


def lost_in(leaves: Iterable[tuple[Path, Any]]) -> list[str]:
    """The paths of the leaves that have lost a buffer."""
    return [format_path(path) for path, leaf in leaves if any(map(is_deleted, jax.tree.leaves(leaf)))]


def check_alive(where: str, value: Any, is_leaf: Callable[[Any], bool] | None = None) -> None:
    """Raises if the value of a Variable or attribute, which is pickled or copied, has lost its buffer."""
    lost = next(filter(is_deleted, jax.tree.leaves(value, is_leaf)), None)
    if lost is not None:
        problem = "this array was deleted, so it can be neither read nor copied"
        raise GraphError(where, problem, got=describe(lost), why=why_deleted(), fix=BETWEEN_STEPS)


class Pickled:
    """An array that is pickled as itself; raises if a step of another thread takes its buffer."""

    __slots__ = ("_place", "_value")

    def __init__(self, value: Any, place: str) -> None:
        self._value = value
        self._place = place

    def __reduce_ex__(self, protocol: Any) -> Any:
        try:
            return self._value.__reduce_ex__(protocol)
        except RuntimeError:
            check_alive(self._place, self._value)
            raise


def note_deleted(error: Exception, model: Any, leaves: Iterable[tuple[Path, Any]]) -> None:
    """Adds to an error which leaves of a model have lost their buffers, in place of what was said of its parts."""
    lost = lost_in(leaves)
    if not lost:
        return
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    note = f"{lost[0]} of {type_name(type(model))}{more} was deleted: {why_deleted()}.\n{OWN_COPIES}."
    before = error.__dict__.get(_NOTE)
    if before is not None:
        error.__notes__.remove(before)
    error.__dict__[_NOTE] = note
    error.add_note(note)

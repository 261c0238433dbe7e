"""Warns of writes to the Variables of a raw transform of JAX that nobody reads, so that they are lost.

``jax.jit(step)(model)`` calls `step` with a copy of the model. A write to it is kept where the function returns the
copy, or a value that it reads from it. The token of such a copy sends its first write here, which costs other Variables
nothing. Whatever reads a Variable while `uncaptured_reads.is_watching` says that the write was not lost.
"""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any, Final
from weakref import finalize, ref

import jax
from jax.tree_util import keystr, tree_leaves_with_path

from declax import _jax
from declax._tree.read_only import WritesThrough
from declax._typing import TRACE_KEY
from declax._variables import uncaptured_reads
from declax.errors import LostWriteWarning, type_name, with_article

_trace_state: Final = _jax.trace_state


class RawCopy(WritesThrough):
    """The token of the Variables that JAX makes for one raw trace; `is_told` once a lost write was warned of."""

    __slots__ = ("is_told", "places", "trace")

    def __init__(self, trace: Any) -> None:
        self.trace: Any = trace
        self.is_told = False
        self.places: dict[int, tuple[ref[Any], str]] = {}

    def write(self, variable: Any, method: str, *args: Any, **options: Any) -> None:
        """Applies a method to the Variable itself."""
        object.__setattr__(variable, "_trace", self.trace)
        try:
            getattr(variable, method)(*args, **options)
        finally:
            object.__setattr__(variable, "_trace", self)
        self.publish(variable)

    def publish(self, variable: Any) -> None:
        """Takes note that a value was written, which is lost if nobody reads it; a ref is the caller's."""
        if not isinstance(variable._raw, jax.Ref):
            object.__setattr__(variable, "_trace", _Unread(self, variable))


class _Unread(RawCopy):
    """The token of a copy whose last value nobody has read."""

    __slots__ = ("_copy", "_finalizer")

    def __init__(self, copy: RawCopy, variable: Any) -> None:
        super().__init__(copy.trace)
        self._copy = copy
        code = (frame := _jax.frame_of_user(sys._getframe())).f_code
        uncaptured_reads.watch()
        what = _named(variable, copy, frame)
        self._finalizer: Any = finalize(variable, _warn, copy, what, code.co_filename, frame.f_lineno)

    def publish(self, variable: Any) -> None:
        """The write before this one is lost with it, or with none."""

    def read(self, variable: Any) -> None:
        """Takes note that somebody reads the value."""
        if self._finalizer.detach():
            uncaptured_reads.watch(False)
        object.__setattr__(variable, "_trace", self._copy)


def _named(variable: Any, copy: RawCopy, frame: types.FrameType | None) -> str:
    """The path and kind of a Variable."""
    known, place = copy.places.get(id(variable), (None, ""))
    if known is None or known() is not variable:
        found = _places(copy.trace, frame)
        _, place = found.setdefault(id(variable), (ref(variable), ""))
        copy.places |= found
    kind = with_article(type_name(type(variable)))
    return f"{place}, {kind}," if place else kind


def _places(trace: Any, frame: types.FrameType | None) -> dict[int, tuple[ref[Any], str]]:
    """The paths of the copies in a trace, which begin with the name of a local in the outermost frame that has one."""
    places: dict[int, tuple[ref[Any], str]] = {}
    while frame is not None:
        # The locals of JAX are left alone: Python keeps what `f_locals` gave, and JAX would find its tracers leaked.
        for name, value in () if _jax.is_of_library(frame) else list(frame.f_locals.items()):
            if getattr(value, "__dict__", {}).get(TRACE_KEY) is trace:
                found = tree_leaves_with_path(value, is_leaf=_is_copy)
                places |= {id(leaf): (ref(leaf), name + keystr(path)) for path, leaf in found if _is_copy(leaf)}
        frame = frame.f_back
    return places


def _is_copy(value: Any) -> bool:
    return isinstance(getattr(value, "_trace", None), RawCopy)


def _warn(copy: RawCopy, what: str, filename: str, number: int) -> None:
    uncaptured_reads.watch(False)
    if not copy.is_told:
        copy.is_told = True
        warnings.warn_explicit(
            f"{what} is written here, and nobody reads the value. A transform of JAX calls "
            "the function with a copy of the model, so that the caller's model does not change. Use that of declax "
            "(dx.jit, dx.grad, ...), or return the model",
            LostWriteWarning,
            filename,
            number,
        )


def trace_of(variable: Any) -> Any:
    """The token of the trace in which a Variable can be changed."""
    token = variable._trace
    return token.trace if isinstance(token, RawCopy) else token


_last = RawCopy(_jax.TOP)


def token_of_copy(trace: Any) -> Any:
    """The token of a Variable that JAX makes in a trace: where declax has begun the trace, that of the trace."""
    global _last
    if uncaptured_reads.is_of_body(trace):
        return trace
    if _last.trace is not trace:
        _last = RawCopy(trace)
    return _last

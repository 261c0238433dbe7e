"""Tells why a compiled function was traced again.

Vocabulary
----------
retrace: a further trace of a function that was traced before, since JAX or
         declax met a structure, a static value, or shapes that were new to it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from declax.errors import TransformError, describe
from declax.transforms._retraces import Traces, differences
from declax.transforms.compilation import JitWrapped


def explain_retrace(f: Callable[..., Any], /, *, limit: int | None = 20) -> None:
    """Prints why a function of `jit` was traced the last time: what no earlier trace had.

    Of the earlier traces, the one that differs least is compared. Names the path
    of each static value, each change of structure, each static argument, or
    each shape and dtype, with what it was and what it is.

    Args:
      f: the function, as `jit` or `jit_partial` returned it.
      limit: how many differences are listed; None for all.

    Raises:
      TransformError: for what is no function of `jit`.

    >>> from declax._module import Module
    >>> from declax.transforms.compilation import jit
    >>> m = Module()
    >>> m.calls = 0
    >>> f = jit(lambda m, x: x + m.calls)
    >>> _ = f(m, 1.0)
    >>> m.calls += 1
    >>> _ = f(m, 1.0)
    >>> explain_retrace(f)
    <lambda> was traced 2 times. What changed the last time:
      calls of argument 0: the static value was 0, and is 1
    """
    if isinstance(f, functools.partial):  # as `jit_partial` returns it
        f = f.func
    if isinstance(f, types.MethodType):
        f = f.__func__
    if not isinstance(f, JitWrapped):
        raise TransformError(
            "explain_retrace",
            "this is no function of dx.jit",
            got=describe(f),
            fix="f = dx.jit(f); dx.explain_retrace(f)",
        )
    name = getattr(f, "__name__", repr(f))
    print("\n".join(_lines(name, f._traces, limit)))  # noqa: T201  # to print is what it is for


def _lines(name: str, traces: Traces, limit: int | None) -> list[str]:
    last, nearest = traces.last, traces.nearest()
    if last is None:
        return [f"{name} was not traced yet."]
    if nearest is None:
        return [f"{name} was traced once."]
    found = differences(nearest, last)
    since = next(ago for ago, earlier in enumerate(reversed(traces.earlier), 1) if earlier is nearest)
    changed = (
        "What changed the last time"
        if since == 1
        else f"What differs from the nearest one, trace {traces.count - since}"
    )
    lines = [f"{name} was traced {traces.count} times. {changed}:"]
    if not found:
        lines.append("  nothing that declax sees: JAX dropped its trace, or its configuration was changed")
    lines += [f"  {difference}" for difference in found[:limit]]
    if limit is not None and len(found) > limit:
        lines.append(f"  and {len(found) - limit} more")
    return lines

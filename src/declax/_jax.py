"""The few private names of jax that are worth their risk; nothing else imports them.

Vocabulary
----------
trace:  the level at which JAX runs now. The top level is eager; every `jit`,
        `vmap`, `grad` ... pushes one while it traces a function.
mark:   an object that stands for a trace without keeping it alive. Two marks
        of one trace are the same object, so marks compare with ``is``.

``tests/unit/test_jax.py`` tells when one of these names moves.
"""

from __future__ import annotations

from typing import Any, Final

from jax._src import core as _core

trace_state: Final[Any] = _core.trace_state
"""Its ``value`` is the mark of the current trace: one C call, about 25 ns.

The public way to ask (an opaque trace state) costs over thirty times as much,
and the question is asked whenever a pytree is rebuilt.
"""

TOP: Final[Any] = _core.eval_trace._weakref
"""The mark of the top level, outside of all transforms."""


def current_trace() -> Any:
    """The mark of the trace at which JAX runs now."""
    return trace_state.value


def trace_of(tracer: Any) -> Any:
    """The mark of the trace that a tracer belongs to."""
    return tracer._trace._weakref

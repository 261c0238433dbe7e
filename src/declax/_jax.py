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

from types import FrameType
from typing import Any, Final

from jax._src import core as _core
from jax._src import dispatch as _dispatch

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


def is_of_outer_trace(tracer: Any) -> bool:
    """Whether a tracer belongs to a trace around the current one, so that it has a value when that is over."""
    trace = trace_state.value()
    while trace is not None:
        trace = getattr(trace, "parent_trace", None)
        if trace is tracer._trace:
            return True
    return False


def is_mapped(tracer: Any) -> bool:
    """Whether a tracer has the axis of the `vmap` that is tracing now; a rule of JAX may make one that has not."""
    return tracer._trace._weakref is trace_state.value and getattr(tracer, "batch_dim", None) is not None


# --- what calls back ----------------------------------------------------------

_runtime_tokens: Final[Any] = _dispatch.runtime_tokens


def callback_tokens() -> tuple[Any, ...]:
    """What can be waited for of the programs with callbacks that this thread has started last, one a device.

    JAX has them until `jax.effects_barrier`. The public way waits for all of
    them at once, also for those of other callers, and fails for them.
    """
    found = _runtime_tokens.output_runtime_tokens
    return tuple(found.values()) if found else ()


def forget_callbacks() -> None:
    """Has JAX forget what calls back; for tests of callbacks that fail, which JAX may report again at exit."""
    _runtime_tokens.clear()


# --- who calls ----------------------------------------------------------------
#
# JAX does not say what it makes a tree for. The functions that call it do: one
# makes the arguments of a function that is being transformed, others results.

_UNFLATTENING: Final = {
    "declax._generated",
    "declax._pytree",
    "declax._variables",
    "jax._src.tree_util",
    "jax._src.flattree",
}
_UNFLATTEN_NAMES: Final = {"unflatten", "tree_unflatten", "_unflatten_open", "<genexpr>"}

_MAKERS: Final = {
    ("jax._src.interpreters.partial_eval", "trace_to_jaxpr"),
    ("jax._src.interpreters.partial_eval", "trace_to_jaxpr_nocache"),
    ("jax._src.interpreters.batching", "flatten_fun_for_vmap"),
    ("jax._src.interpreters.ad", "linearize"),
    ("jax._src.interpreters.ad", "jvp"),
    ("jax._src.api_util", "flatten_fun"),
    ("jax._src.api_util", "flatten_fun_nokwargs"),
    ("jax._src.shard_map", "f_wrapped"),
    ("jax._src.pmap", "_fun"),
}
"""The functions of jax that make the arguments of a transformed function, call it and flatten what it returns."""

_TRANSFORMS: Final = {
    ("jax._src.pjit", "cache_miss"): "jax.jit",
    ("jax._src.pjit", "jit_trace"): "jax.jit",
    ("jax._src.pjit", "jit_lower"): "jax.jit",
    ("jax._src.api", "vmap_f"): "jax.vmap",
    ("jax._src.api", "grad_f"): "jax.grad",
    ("jax._src.api", "grad_f_aux"): "jax.grad",
    ("jax._src.api", "value_and_grad_f"): "jax.value_and_grad",
    ("jax._src.api", "vjp"): "jax.vjp",
    ("jax._src.api", "jvp"): "jax.jvp",
    ("jax._src.api", "linearize"): "jax.linearize",
    ("jax._src.api", "eval_shape"): "jax.eval_shape",
    ("jax._src.api", "make_jaxpr_f"): "jax.make_jaxpr",
    ("jax._src.ad_checkpoint", "fun_remat"): "jax.checkpoint",
    ("jax._src.shard_map", "wrapped"): "jax.shard_map",
    ("jax._src.lax.control_flow.loops", "scan"): "jax.lax.scan",
    ("jax._src.lax.control_flow.loops", "while_loop"): "jax.lax.while_loop",
    ("jax._src.lax.control_flow.loops", "fori_loop"): "jax.lax.fori_loop",
    ("jax._src.lax.control_flow.conditionals", "cond"): "jax.lax.cond",
    ("jax._src.lax.control_flow.conditionals", "switch"): "jax.lax.switch",
}
_PMAP: Final = {("jax._src.pmap", "wrapped"), ("jax._src.pmap", "lower")}
_MAPPED_BY_PMAP: Final = ("jax._src.pmap", "_fun")
_WITHIN: Final = ("jax.", "contextlib", "functools")


def name_of(frame: FrameType) -> tuple[str, str]:
    """The module and the name of the function that a frame runs."""
    return str(frame.f_globals.get("__name__")), frame.f_code.co_name


def level_of_user(frame: FrameType | None) -> int:
    """How many frames a frame is below the user's code, as ``stacklevel=`` of a warning counts them.

    Args:
      frame: the one that warns.
    """
    level, found = 1, frame
    while found is not None and name_of(found)[0].partition(".")[0] in _LIBRARIES:
        level, found = level + 1, found.f_back
    return 2 if found is None else level


_LIBRARIES: Final = {"declax", "jax", "functools", "contextlib"}


def makes_arguments(frame: FrameType | None) -> bool:
    """Whether an unflatten function was called by JAX, to make what it calls a function with.

    Args:
      frame: of the unflatten function.
    """
    while frame is not None:
        module, name = name_of(frame)
        if module not in _UNFLATTENING or name not in _UNFLATTEN_NAMES:
            return (module, name) in _MAKERS
        frame = frame.f_back
    return False


def transform_of(frame: FrameType | None) -> tuple[str | None, FrameType | None]:
    """The innermost transform that a frame runs under.

    Returns:
      Its name, and the frame that called it; None where none is known.
    """
    found, is_named, is_inner = None, False, False
    while frame is not None:
        name = name_of(frame)
        if name[0].startswith(_WITHIN):
            if name in _PMAP and found == "jax.shard_map" and not is_inner:
                found = "jax.pmap"  # which has a `shard_map` under a `jit` make its arguments
            is_inner = is_inner or (found is not None and name == _MAPPED_BY_PMAP)
            is_named = is_named or (found is not None and name in _MAKERS)  # what follows is a transform around it
            if not is_named:
                found = _TRANSFORMS.get(name, found)  # the last one: a transform may be made of others
        elif found is not None:
            break
        frame = frame.f_back
    return found, frame

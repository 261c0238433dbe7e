"""One lifted call from its arguments to the write-back, for all transforms.

Threads may share models. So the values that a call has read are compared with
those that are there when it is about to commit: where another thread was
faster, it runs again. No write is lost so, and no random key comes twice.

Vocabulary
----------
body:     what a transform does with a call: it has JAX run, and says what came out.
conflict: a leaf, which a call is about to set, is not what it has read.
token:    what JAX gives for a program that calls back, to be waited for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, TypeVar

import jax

from declax import _jax
from declax._threads import committing, is_alone
from declax.graph.binding import Binding
from declax.transforms._explaining import explain
from declax.transforms._lift import UNCHANGED, Call, Outcome, Plan, commit

T = TypeVar("T")


def run(
    take: Callable[[], Call], body: Callable[[Call], Outcome], first: Call | None = None, *, is_known: bool = False
) -> Any:
    """Runs a call and commits it.

    Args:
      take: takes the arguments apart; is called again after a conflict.
      body: what the transform does.
      first: the call, where it is known.
      is_known: whether the transform has the program of JAX, and so knows
        whether it calls back; it waits itself then.

    Returns:
      What the user's function returned.

    Raises:
      TraceContextError: for changed objects of another trace level; nothing is
        changed then.
    """
    return run_with(take, lambda call: (body(call), None), first, is_known=is_known)[0]


def run_with(
    take: Callable[[], Call],
    body: Callable[[Call], tuple[Outcome, T]],
    first: Call | None = None,
    *,
    is_known: bool = False,
) -> tuple[Any, T]:
    """As `run`, with something else that the body makes, which does not go to the caller's models.

    Raises:
      TraceContextError: as `run`.
    """
    call = take() if first is None else first
    try:
        finish = body if is_known else functools.partial(_run_to_end, body)
        if is_alone():
            outcome, extra = finish(call)
            return commit(call, outcome), extra
        return _run_among_threads(call, take, finish)
    except (RecursionError, SystemError):
        if call.binding is not None:
            call.binding.check_depth()  # something has grown in a Variable that JAX cannot take apart
        raise
    except Exception as error:
        explain(call, error)
        raise


def _run_among_threads(
    call: Call, take: Callable[[], Call], finish: Callable[[Call], tuple[Outcome, T]]
) -> tuple[Any, T]:
    """Runs a call until there is no conflict.

    The lock is held while Variables are read, compared and written, never
    while JAX runs, so that a function that calls back cannot wait for itself.
    """
    while True:
        with committing:  # so that no other call has written half of them
            call.read_again()
        outcome, extra = finish(call)
        with committing:
            if has_its_values(call.binding, outcome.plan, call.values) and _has_its_structure(call, outcome, take):
                return commit(call, outcome), extra
        call = take()


def has_its_values(binding: Binding | None, plan: Plan, read: Sequence[Any]) -> bool:
    """Whether the leaves that an outcome is about to set have the values that the call has read."""
    if binding is None or plan is UNCHANGED:
        return True
    now = binding.read()
    if plan.change is not None:
        return all(map(is_, now, read))
    return all(now[i] is read[i] for i in plan.changed)


def _has_its_structure(call: Call, outcome: Outcome, take: Callable[[], Call]) -> bool:
    """Whether the graph that an outcome is about to change has the structure that the call has found."""
    if outcome.plan.change is None or call.binding is None or call.binding.is_valid():
        return True
    found = take()
    return (
        found.structure == call.structure
        and found.binding is not None
        and all(map(is_, found.binding.objects(), call.binding.objects()))
    )


# ----------------------------------------------------------------- callbacks


wait: Callable[[Any], Any] = jax.block_until_ready  # without types
"""Waits until arrays are computed. What fails in a callback fails here, at the latest."""


_called_back = False
"""Whether this process is known to have run a program that calls back."""


def _run_to_end(body: Callable[[Call], tuple[Outcome, T]], call: Call) -> tuple[Outcome, T]:
    """Runs a call; where what it ran may still fail in a callback, waits for it before something is committed.

    A transform that has JAX run the function eagerly does not see the programs
    of jitted functions that are called in there. JAX has tokens of those that
    call back; of one with a `pure_callback` only when it runs for the first
    time. So nothing is waited for until the first token of the process is
    seen, and every call that sets something is from then on.
    """
    global _called_back
    before = _jax.callback_tokens()
    outcome, extra = body(call)
    after = _jax.callback_tokens()
    if after:
        _called_back = True
    if _called_back and (outcome.plan.changed or outcome.plan.change is not None):
        if _jax.trace_state.value is _jax.TOP:
            wait((outcome.new, outcome.output))
            for token in after:
                if not any(token is known for known in before):
                    token.block_until_ready()
    return outcome, extra


def calls_back(jaxpr: Any) -> bool:
    """Whether a program of JAX calls functions of Python while it runs.

    JAX gives back arrays before such a program has ended, and it may fail
    after that. So nothing of it is committed before it has run to its end.
    """
    waiting = [jaxpr]
    while waiting:
        item = waiting.pop()
        if hasattr(item, "eqns"):
            for equation in item.eqns:
                if equation.primitive.name == "debug_print" or "callback" in equation.primitive.name:
                    return True
                waiting += equation.params.values()
        elif hasattr(item, "jaxpr"):
            waiting.append(item.jaxpr)
        elif isinstance(item, (list, tuple)):
            waiting += item
    return False

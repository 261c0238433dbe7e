"""One lifted call from its arguments to the write-back, for all transforms.

Threads may share models. A call compares the Variables that it is about to write
with the values that it has read. If they differ, another thread has written them,
and the call runs again. This prevents lost updates and repeated random keys.

Vocabulary
----------
body:     what a transform does with a call: it runs JAX, and returns what came out.
conflict: a leaf that a call is about to write does not have the value that it has read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Final, TypeVar

import jax

from declax._threads import committing
from declax.errors import TransformError
from declax.graph.binding import Binding, bind_many
from declax.transforms._explaining import explain
from declax.transforms._lift import UNCHANGED, Call, Outcome, Plan, commit
from declax.transforms._retraces import roots_of

T = TypeVar("T")

MAX_RUNS: Final = 1000
"""A call that had a conflict in each of so many runs fails."""

wait: Callable[[Any], Any] = jax.block_until_ready  # without types
"""Waits until arrays are computed, so that a callback that fails does so before something is committed."""


def run(take: Callable[[], Call], body: Callable[[Call], Outcome]) -> Any:
    """Runs a call and commits it.

    Args:
      take: takes the arguments apart; is called again after a conflict.
      body: what the transform does.

    Returns:
      What the user's function returned.

    Raises:
      TraceContextError: for changed objects of another trace level; nothing is
        changed then.
      TransformError: for a conflict in each of `MAX_RUNS` runs.
    """
    for _ in range(MAX_RUNS):
        call = take()
        outcome = _run_once(call, body)
        with committing:
            if is_current(call.binding, outcome.plan, call.values):
                return commit(call, outcome)
    raise TransformError(
        "the call",
        f"what it is about to write was written by others during each of {MAX_RUNS} runs",
        why="it runs again until it can write without losing what others wrote",
        fix="return the value that a callback of the function writes, and set it in the function",
    )


def run_with(take: Callable[[], Call], body: Callable[[Call], tuple[Outcome, T]]) -> tuple[Any, T]:
    """As `run`, with something else that the body makes, which does not go to the caller's models.

    Raises:
      TraceContextError, TransformError: as `run`.
    """
    extra: list[T] = []

    def keep_extra(call: Call) -> Outcome:
        outcome, made = body(call)
        extra[:] = [made]  # that of the last run
        return outcome

    output = run(take, keep_extra)
    return output, extra[0]


def _run_once(call: Call, body: Callable[[Call], Outcome]) -> Outcome:
    """Runs the body, and explains what JAX refuses."""
    try:
        return body(call)
    except (RecursionError, SystemError):
        if call.binding is not None:
            call.binding.check_depth()  # something has grown in a Variable that JAX cannot take apart
        raise
    except Exception as error:
        explain(call, error)
        raise


def is_current(binding: Binding | None, plan: Plan, read: Sequence[Any]) -> bool:
    """Whether what a call is about to change is as the call has found it.

    Args:
      binding: of the models.
      plan: what the call changes.
      read: the values of the leaves that the call has read.
    """
    if binding is None or plan is UNCHANGED:
        return True
    now = binding.read()
    if plan.change is None:
        return all(map(is_, map(now.__getitem__, plan.changed), map(read.__getitem__, plan.changed)))
    return all(map(is_, now, read)) and _has_its_structure(binding)


def _has_its_structure(binding: Binding) -> bool:
    """Whether the graph has the structure and the objects that were bound."""
    if binding.is_valid():
        return True
    found = bind_many(tuple(root() for root in roots_of(binding)))
    return found.graphdef is binding.graphdef and all(map(is_, found.objects(), binding.objects()))


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

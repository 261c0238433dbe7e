"""Running a call, and writing its outcome to the caller's objects, all or nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import is_
from typing import Any, Final, TypeVar

import jax

from declax import _jax
from declax._graph.binding import Binding, bind_many
from declax._graph.unflattening import StructureChange, apply_change, blueprint_of
from declax._tree import epoch
from declax._tree.epoch import committing
from declax.errors import TransformError
from declax.transforms._engine.call import Call
from declax.transforms._engine.diagnostics import explain
from declax.transforms._engine.names import names_of_call
from declax.transforms._engine.outcome import Outcome, Plan, apply
from declax.transforms._engine.structure import Structure

T = TypeVar("T")

_trace_state = _jax.trace_state

CONFLICT: Final = object()
"""The result of a commit that wrote nothing: another thread wrote first, so the call runs again."""


def commit(binding: Binding, read: Sequence[Any], result: tuple[Plan, Any, Any], structure: Structure) -> Any:
    """Writes the changes of a function to the caller's objects, all or none; returns its output, or `CONFLICT`.

    `read` are the leaves of the call, and `structure` is its structure.
    """
    plan, new, output = result
    if plan.change is None and not plan.changed:
        return output
    with committing:
        if not _is_current(binding, plan, read):
            if plan.calls_back and _is_alone():
                raise _written_by_callback(binding, plan, read, structure)
            return CONFLICT
        if plan.change is not None:
            return apply(Outcome(*result), binding.objects(), read)
        write(binding, plan.changed, new)
    return output


def _is_alone() -> bool:
    """Whether no other thread of the user runs; those in which JAX calls back are dummies to Python."""
    return sum(not isinstance(thread, threading._DummyThread) for thread in threading.enumerate()) == 1


def _written_by_callback(binding: Binding, plan: Plan, read: Sequence[Any], structure: Structure) -> TransformError:
    """The error of a call whose own callback has written what the function sets."""
    now = binding.read()
    positions = plan.changed or range(len(now))
    first = next((i for i in positions if now[i] is not read[i]), None)
    return TransformError(
        "the call" if first is None else names_of_call(structure)[first],
        "a callback of the function wrote this while the program ran, and the function sets it too",
        why="one of the two values would be lost",
        fix="return the value that a callback of the function writes, and set it in the function",
    )


def write(binding: Binding, changed: tuple[int, ...], new: Iterable[Any]) -> None:
    """Sets leaves of a graph whose structure is unchanged; sets none if some are of another trace level."""
    cells = binding.cells if len(changed) == len(binding.cells) else binding.cells.at(changed)
    if cells.has_items:  # containers are values: what holds them gets new ones
        objects, kept = binding.objects(), [*range(len(binding.cells))]
        for position in changed:
            kept[position] = -1
        change = StructureChange(binding.graphdef, tuple(kept), tuple(range(len(objects))))
        apply_change(change, objects, binding.read(), new)
        return
    cells.write(new, () if binding.is_kept and _trace_state.value is _jax.TOP else cells.check())


def _is_current(binding: Binding, plan: Plan, read: Sequence[Any]) -> bool:
    """Whether the leaves that a call is about to set, or the whole graph if it changes that, are as they were read."""
    now = binding.read()
    if plan.change is not None:  # plain leaves follow in `read`
        return all(map(is_, now, read)) and (binding.is_valid() or _is_same_graph(binding, read))
    is_same = all(map(is_, map(now.__getitem__, plan.changed), map(read.__getitem__, plan.changed)))
    return is_same and (binding._token is epoch.token or _still_has(binding, plan.changed))


def _is_same_graph(binding: Binding, read: Sequence[Any]) -> bool:
    """Whether a graph still has its objects and leaves, those in containers too."""
    found = bind_many(_roots_of(binding))
    is_same = found.graphdef is binding.graphdef and all(map(is_, found.objects(), binding.objects()))
    return is_same and all(map(is_, found.read(), read))


def _still_has(binding: Binding, positions: Iterable[int]) -> bool:
    """Whether a graph still has the Variables and nodes of some leaves, so that a write to them is not lost."""
    now, before = bind_many(_roots_of(binding)).identities(), binding.identities()
    return {*map(before.__getitem__, positions)} <= {*now}


def _roots_of(binding: Binding) -> tuple[Any, ...]:
    blueprint = blueprint_of(binding.graphdef)
    known = dict(zip(blueprint.indexed, binding.objects(), strict=True))
    repeated = dict(blueprint.references)
    *_, (_, _, _, slots) = blueprint.containers  # the tuple of all roots is the outermost one
    return tuple([known[repeated.get(slot, slot)] for slot in slots])


MAX_RUNS: Final = 1000
"""The number of runs with a conflict after which a call fails."""


wait: Callable[[Any], Any] = jax.block_until_ready  # without types
"""Waits until arrays are computed, so that a callback that fails does so before something is committed."""


def attempts() -> Iterator[None]:
    """The runs that a call may need, each after a conflict; raises TransformError after the last."""
    yield from itertools.repeat(None, MAX_RUNS)
    raise TransformError(
        "the call",
        f"other threads wrote what it is about to write during each of {MAX_RUNS} runs",
        why="a call with a conflict runs again, so that it does not overwrite what others wrote",
        fix="return the value that a callback of the function writes, and set it in the function",
    )


@_jax.with_short_tracebacks
def run(bind: Callable[[], Call], execute: Callable[[Call], Outcome]) -> Any:
    """Binds the arguments of a call, executes it and commits; again after a conflict."""
    output: Any = CONFLICT
    for _ in attempts():
        call = bind()
        try:
            outcome = execute(call)
        except Exception as error:
            explain(call, error)
            raise
        output = commit(call.binding, call.leaves, outcome.parts(), call.structure)
        if output is not CONFLICT:
            break
    return output


@_jax.with_short_tracebacks
def run_with(bind: Callable[[], Call], execute: Callable[[Call], tuple[Outcome, T]]) -> tuple[Any, T]:
    """As `run`, with something else that is made beside the outcome, and that does not go to the caller's models."""
    extra: list[T] = []

    def keep_extra(call: Call) -> Outcome:
        outcome, made = execute(call)
        extra[:] = [made]  # that of the last run
        return outcome

    output = run(bind, keep_extra)
    return output, extra[0]


def calls_back(jaxpr: Any) -> bool:
    """Whether a program of JAX calls Python while it runs, so that it may fail after its arrays were given back."""
    return any(name == "debug_print" or "callback" in name for name in _jax.primitives_of(jaxpr))

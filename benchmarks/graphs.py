"""Measures models as data, of 120 to 100,000 leaves: ``python -m benchmarks.graphs --help``.

An operation (see `benchmarks.systems.Operations`) processes a whole model once. Its time a leaf is the time of the
operation divided by the number of leaves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, replace
from functools import cache, partial

import jax

from benchmarks.core import run
from benchmarks.figures import LEAVES_OF_A_BLOCK, OURS, PEER, Figure, Measure
from benchmarks.harness import PARTS, WARM_UPS, Effort, Sampler, Samples, compare, interleave
from benchmarks.systems import Operations, System, repeat

SMALL, LARGE, HUGE = 120, 9_996, 99_996
SMALL_OURS = f"declax, {SMALL} leaves"
MANY_OURS = f"declax, {HUGE // SMALL} models of {SMALL} leaves"
LIST = "a list"
COPIES = 20


@cache
def _operations(system: System, leaves: int) -> Operations:
    """Models are made once; a large one takes longer to make than to measure."""
    assert system.make_operations is not None
    return system.make_operations(leaves // LEAVES_OF_A_BLOCK)


def _rounds(effort: Effort, leaves: int) -> Effort:
    return replace(effort, rounds=max(5, effort.rounds // (2 if leaves == SMALL else 12 if leaves == LARGE else 20)))


def _against_peers(operation: str, leaves: int) -> Measure:
    def take(systems: Sequence[System], effort: Effort) -> Samples:
        able = [system for system in systems if system.make_operations]
        samplers = {system.name: _sampler(_operations(system, leaves), operation) for system in able}
        return interleave(samplers, _rounds(effort, leaves).rounds)

    return take


def _a_leaf(operation: str) -> Measure:
    """A very large model over a small one, both divided by their leaves."""

    def take(systems: Sequence[System], effort: Effort) -> Samples:
        samplers: dict[str, Sampler] = {}
        for system in systems:
            if system.name == OURS:
                for name, leaves in ((SMALL_OURS, SMALL), (OURS, HUGE)):
                    samplers[name] = _divided(_sampler(_operations(system, leaves), operation), leaves)
        return interleave(samplers, _rounds(effort, HUGE).rounds)

    return take


def _a_leaf_in_turns(operation: str) -> Measure:
    """A very large model over as many small ones as have its leaves, one after the other."""

    def take(systems: Sequence[System], effort: Effort) -> Samples:
        samplers: dict[str, Sampler] = {}
        for system in systems:
            if system.name == OURS and system.make_operations:
                samplers[MANY_OURS] = _divided(_sampler(_in_turns(system), operation), HUGE)
                samplers[OURS] = _divided(_sampler(_operations(system, HUGE), operation), HUGE)
        return interleave(samplers, _rounds(effort, HUGE).rounds)

    return take


@cache
def _in_turns(system: System) -> Operations:
    assert system.make_operations is not None
    each = [system.make_operations(SMALL // LEAVES_OF_A_BLOCK) for _ in range(HUGE // SMALL)]

    def all_of(name: str) -> Callable[[], object]:
        works = [getattr(operations, name) for operations in each]
        return lambda: [work() for work in works]

    return Operations(**{f.name: all_of(f.name) for f in fields(Operations) if f.name != "a_state"}, a_state=None)


def _divided(sample: Sampler, leaves: int) -> Sampler:
    return lambda: sample() / leaves


def _sampler(operations: Operations, operation: str) -> Sampler:
    """Times an operation; the preparation of each `pop` and `state_written` is not timed."""
    work: Callable[[], object] = getattr(operations, operation)
    prepare: Callable[[], object] | None = {"pop": operations.sow, "state_written": operations.write}.get(operation)
    for _ in range(WARM_UPS):
        if prepare:
            prepare()
        work()

    def sample() -> float:
        times = []
        for _ in range(PARTS):
            if prepare:
                prepare()
            start = time.perf_counter_ns()
            result = work()
            times.append(time.perf_counter_ns() - start)
            del result  # freeing it is no part of the work
        return float(min(times))

    return sample


def _flatten_states(leaves: int) -> Measure:
    def take(systems: Sequence[System], effort: Effort) -> Samples:
        flatten = jax.tree.flatten
        batches = {}
        for system in systems:
            if system.make_operations:
                state = _operations(system, leaves).a_state
                batches[system.name] = repeat(partial(flatten, state))
                if system.name == OURS:
                    plain = list(flatten(state)[0])
                    batches[LIST] = repeat(partial(flatten, plain))
        return compare(batches, _rounds(effort, leaves))

    return take


def _flatten_new_states(leaves: int) -> Measure:
    """States that JAX has not seen yet; their definition is known."""

    def take(systems: Sequence[System], effort: Effort) -> Samples:
        samplers: dict[str, Sampler] = {}
        for system in systems:
            if system.name == OURS and system.make_operations:
                state = _operations(system, leaves).a_state
                samplers[OURS] = _of_copies(state)
                samplers[LIST] = _of_copies(list(jax.tree.flatten(state)[0]))
        return interleave(samplers, _rounds(effort, leaves).rounds)

    return take


def _of_copies(tree: object) -> Sampler:
    """Times the flattening of copies, which are made before."""

    def sample() -> float:
        flatten, times = jax.tree.flatten, []
        for _ in range(PARTS):
            copies = [copy(tree) for _ in range(COPIES)]
            start = time.perf_counter_ns()
            for each in copies:
                flatten(each)
            times.append(time.perf_counter_ns() - start)
        return min(times) / COPIES

    return sample


OPERATIONS = {
    "split_two": "split with two filters",
    "merge": "merge",
    "state": "state",
    "state_written": "state after a write",
    "update": "update",
    "clone": "clone",
    "pop": "pop",
}


PEER_BARS = {"merge": 0.11, "clone": 0.2}
"""Bars over the peer that are not 0.1."""


def _scale_bar(operation: str) -> float | None:
    """None if a very large model cannot reach the cost of a small one, which fits into the caches of the processor."""
    return None if operation == "state_written" else 1.5


FIGURES = (
    # first: glibc returns JAX's lists of nodes more slowly in a process that has held the very large models
    *(
        Figure("state", f"jax.tree.flatten of a State again, {leaves} leaves", LIST, _flatten_states(leaves), bar)
        for leaves, bar in ((SMALL, 10), (LARGE, None))
    ),
    *(
        Figure("state", f"the same, the first time, {leaves} leaves", LIST, _flatten_new_states(leaves), bar)
        for leaves, bar in ((SMALL, 25), (LARGE, None))
    ),
    *(
        Figure("peer", f"{title}, {leaves} leaves", PEER, _against_peers(name, leaves), PEER_BARS.get(name, 0.1))
        for leaves in (SMALL, LARGE)
        for name, title in OPERATIONS.items()
    ),
    *(
        Figure("scale", f"{title}: a leaf of {HUGE} over one of {SMALL}", SMALL_OURS, _a_leaf(name), _scale_bar(name))
        for name, title in OPERATIONS.items()
    ),
    *(
        Figure("scale", f"{title}: the same, over small models in turns", MANY_OURS, _a_leaf_in_turns(name), bar=1.5)
        for name, title in OPERATIONS.items()
    ),
)


def main(words: Sequence[str] | None = None) -> int:
    """Measures, prints, and returns the exit status."""
    return run(FIGURES, "graphs", "Models as data, measured", __doc__, words)


if __name__ == "__main__":
    sys.exit(main())

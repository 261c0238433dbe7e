"""Alternating rounds: subjects are measured in turns in one process, and compared within a round.

A batch is a function that repeats the measured work ``n`` times, loop included. A sampler measures once and returns
nanoseconds for one repetition; it times several parts and takes the fastest, since other programs only add time. A
round takes one sample of each subject, within milliseconds, so that a change of the machine's clock affects all of
them. Reports give the median over the rounds, and the quartiles (the spread).
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

Batch: TypeAlias = Callable[[int], object]
Sampler: TypeAlias = Callable[[], float]
Samples: TypeAlias = dict[str, list[float]]


PARTS = 5
WARM_UPS = 3


@dataclass(frozen=True)
class Effort:
    """How much time a comparison may take: rounds, and milliseconds for one sample."""

    rounds: int = 101
    sample_ms: float = 5.0


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)


def ratio(samples: Samples, subject: str, over: str) -> Spread:
    """The time of `subject` divided by that of `over`, round by round."""
    return Spread.of([mine / theirs for mine, theirs in zip(samples[subject], samples[over], strict=True)])


def difference(samples: Samples, subject: str, over: str) -> Spread:
    """The nanoseconds that `subject` takes longer than `over`, round by round."""
    return Spread.of([mine - theirs for mine, theirs in zip(samples[subject], samples[over], strict=True)])


def compare(batches: Mapping[str, Batch], effort: Effort, repeats: int | None = None) -> Samples:
    """Measures all batches in alternating rounds.

    Args:
        batches: the subjects by name.
        effort: rounds, and the length of a sample.
        repeats: repetitions in each part of a sample; chosen for each batch from `effort` where None.
    """
    samplers = {}
    with collector_off():
        for name, batch in batches.items():
            warm_up(batch)
            samplers[name] = sampler(batch, *((repeats, PARTS) if repeats else division(batch, effort.sample_ms)))
    return interleave(samplers, effort.rounds)


def interleave(samplers: Mapping[str, Sampler], rounds: int) -> Samples:
    """Takes `rounds` samples of each, in turns; every second round goes backwards, so that no one is always first."""
    samples: Samples = {name: [] for name in samplers}
    order = list(samplers)
    with collector_off():
        for _ in range(rounds):
            for name in order:
                samples[name].append(samplers[name]())
            order.reverse()
    return samples


def sampler(batch: Batch, repeats: int, parts: int) -> Sampler:
    """A sampler that times `parts` times `repeats` repetitions; one repetition of the fastest part is the sample."""

    def sample() -> float:
        times = []
        for _ in range(parts):
            start = time.perf_counter_ns()
            batch(repeats)
            times.append(time.perf_counter_ns() - start)
        return min(times) / repeats

    return sample


def warm_up(batch: Batch, times: int = WARM_UPS) -> None:
    """Fills caches and compiles, before the measurement."""
    for _ in range(times):
        batch(1)


def division(batch: Batch, sample_ms: float) -> tuple[int, int]:
    """The repetitions of a part, and the parts, that fill a sample; one of each where the work itself is longer."""
    whole, repeats = 1e6 * sample_ms, 1
    while True:
        elapsed = sampler(batch, repeats, parts=1)() * repeats
        if elapsed > 0.3 * whole / PARTS:
            break
        repeats *= 4
    repetitions = max(1, round(repeats * whole / elapsed))
    parts = min(PARTS, repetitions)
    return max(1, repetitions // parts), parts


@contextmanager
def collector_off() -> Iterator[None]:
    """Collects garbage before the measurement, and disables the collector during it."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

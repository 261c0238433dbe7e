"""Alternating rounds: subjects take turns in one process, and are compared round by round.

Vocabulary
----------
batch:   a function that repeats the measured work ``n`` times, loop included.
sampler: a function that measures once and returns nanoseconds for one repetition.
part:    a sample is taken in a few parts, of which the fastest counts.
round:   one sample of every subject, one after the other.
spread:  the quartiles of a quantity over the rounds.

Machines drift: clocks change, neighbours come and go. Samples of one round are
taken within milliseconds of each other, so a ratio is formed within a round,
and the median over the rounds is what gets reported. What a neighbour takes
only ever adds to a time, so the fastest part of a sample is the least wrong.
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
    """How many times as long `subject` takes as `over`, formed round by round."""
    return Spread.of([mine / theirs for mine, theirs in zip(samples[subject], samples[over], strict=True)])


def difference(samples: Samples, subject: str, over: str) -> Spread:
    """How many nanoseconds longer `subject` takes than `over`, formed round by round."""
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
    """Fills caches and compiles; what happens only once is not what is measured."""
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
    """Collects garbage now, and not while measuring."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

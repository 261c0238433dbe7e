"""Looks for a program that declax runs otherwise than the oracle.

`python -m fuzz.searching SEED COUNT SECONDS SHRINKING LIBRARY...`, the seconds for the search and for a smaller program
"""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax

from fuzz.programs import program, smaller, source_of, text_of
from fuzz.running import difference

BOTH = ("eager", "compiled")


class Found(NamedTuple):
    """How many programs were run, and the last one's seed, difference and source; None if all agree."""

    count: int
    seed: int | None = None
    difference: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        if self.difference is None:
            return f"{self.count} programs, no difference"
        return f"{self.count} programs; seed {self.seed}: {self.difference}\n{self.source}"


def search(seeds: Iterable[int], seconds: float, libraries: Sequence[str] = BOTH, shrinking: float = 0.0) -> Found:
    """Runs the programs of these seeds until one differs or the time is over, and makes that one smaller."""
    end = time.monotonic() + seconds
    count = 0
    for count, seed in enumerate(seeds, 1):
        try:
            found = difference(source_of(program(seed)), libraries)
        except Exception as error:
            error.add_note(f"the oracle cannot run the program of seed {seed}")
            raise
        if found is not None:
            return shrunk(Found(count, seed, found), libraries, shrinking)
        if time.monotonic() > end:
            break
        if count % 40 == 0:
            jax.clear_caches()
    return Found(count)


def shrunk(found: Found, libraries: Sequence[str], seconds: float) -> Found:
    """The same difference, in a smaller program."""
    assert found.seed is not None
    end = time.monotonic() + seconds

    def is_alike(source: str) -> bool:
        if time.monotonic() > end:
            return False
        try:
            now = difference(source, libraries)
        except Exception:  # noqa: BLE001  # what the program no longer defines
            return False
        return now is not None and kind_of(now) == kind_of(found.difference)

    made = smaller(program(found.seed), is_alike)
    return found._replace(difference=difference(source_of(made), libraries), source="\n".join(text_of(made)))


def kind_of(text: str | None) -> str:
    """The library, and the error's type if there is one."""
    return re.split(r" at lines|: look| \d", text or "")[0]


if __name__ == "__main__":
    first, count, seconds, shrinking, *libraries = sys.argv[1:]
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    warnings.simplefilter("error")
    seeds = range(int(first), int(first) + int(count))
    result = search(seeds, float(seconds), libraries or BOTH, float(shrinking))
    print(result)
    sys.exit(result.difference is not None)

"""What every test runs under: the CPU, strict dtype promotion, and a Hypothesis profile."""

import gc
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")
# The tests compile thousands of tiny programs, each run once or twice: optimizing them costs more than it saves, and
# equal programs of several tests, of both workers and of the next run are compiled once.
# `XLA_FLAGS= pytest` compiles as users do.
if "XLA_FLAGS" not in os.environ:
    flags = ["backend_optimization_level=0"]
    if version("jaxlib").startswith("0.10."):  # XLA ends the process at a flag that it does not know
        flags += ["cpu_use_fusion_emitters=false", "cpu_parallel_codegen_split_count=1"]
    os.environ["XLA_FLAGS"] = " ".join(f"--xla_{flag}" for flag in flags)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "programs"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest
from hypothesis import HealthCheck, settings

from declax._variables import kinds as variable_kinds

jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compiling with XLA and drawing module graphs are slow at the first example, which says nothing about a test.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("default", max_examples=10, derandomize=True, **_COMMON)
settings.register_profile("ci", max_examples=30, derandomize=True, **_COMMON)
settings.register_profile("slow", max_examples=1000, **_COMMON)


def _profile() -> str:
    chosen = os.environ.get("HYPOTHESIS_PROFILE")
    in_ci = os.environ.get("CI", "").lower() in ("1", "true", "yes")
    return chosen or ("ci" if in_ci else "default")


settings.load_profile(_profile())


PROGRAMS = 500
"""How many programs of XLA are kept from file to file; each takes about a megabyte."""

_compiled = 0


def _count(event: str, seconds: float, **_: object) -> None:
    global _compiled
    _compiled += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_count)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all but a few cases of each test under `sampled` as slow."""
    cases = defaultdict[object, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for same in cases.values():
        (wanted,) = same[0].get_closest_marker("sampled").args
        # By a hash: equal steps would pick one value of an inner parameter again and again.
        for item in sorted(same, key=lambda item: zlib.crc32(item.name.encode()))[wanted:]:
            item.add_marker("slow")


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """Clears the caches of JAX at the end of a file, if they have grown large."""
    global _compiled
    yield
    if _compiled > PROGRAMS:
        jax.clear_caches()
        gc.collect()
        _compiled = 0


@pytest.fixture(autouse=True)
def names_of_kinds() -> Iterator[None]:
    """Forgets the kinds of Variables that a test has registered."""
    kinds = variable_kinds._kinds
    before = dict(kinds)
    yield
    if kinds != before:
        kinds.clear()
        kinds.update(before)


@pytest.fixture(scope="module")
def quick_to_collect() -> Iterator[None]:
    """Has the collector look at what the tests of a file make, not at all of JAX; for those that call it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()

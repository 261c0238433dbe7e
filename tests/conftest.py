"""What every test runs under: the CPU, strict dtype promotion, and a Hypothesis profile."""

import gc
import os
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")

import jax
import pytest
from hypothesis import HealthCheck, settings

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


@pytest.fixture(scope="module")
def quick_to_collect() -> Iterator[None]:
    """Has the collector look at what the tests of a file make, not at all of JAX; for those that call it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()

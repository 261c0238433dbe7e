"""What all tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def optax_mixes_dtypes() -> Iterator[None]:
    """The tests run with strict dtype promotion; optax itself does not hold to it."""
    with jax.numpy_dtype_promotion("standard"):
        yield

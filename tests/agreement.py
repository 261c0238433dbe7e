"""Runs one program under declax and under Flax NNX, and compares the numbers that it returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import declax as dx


def agrees(program: Callable[[Any], Any]) -> Callable[[], None]:
    """Makes a test of `program(nnx)`: what it returns under both libraries must be equal to the last bit."""

    @functools.wraps(program)
    def test() -> None:
        peer = pytest.importorskip("flax.nnx")
        assert_same(program(dx), program(peer))

    del test.__wrapped__  # pytest would take `nnx` for a fixture
    return test


def assert_same(ours: Any, theirs: Any) -> None:
    """Compares two trees of plain containers: paths, shapes, dtypes and values."""
    mine, others = _by_path(ours), _by_path(theirs)
    assert list(mine) == list(others)
    assert mine, "the program returned no number"
    for path, value in mine.items():
        assert value.dtype == others[path].dtype, path
        np.testing.assert_array_equal(value, others[path], err_msg=path)


def _by_path(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): _as_numbers(leaf) for path, leaf in leaves}


def _as_numbers(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)

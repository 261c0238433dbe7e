"""Whether a value fits a leaf: what each caller takes, and paths as texts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax import weights as w
from declax._graph.fit import CAST, COMPLETE, DERIVATIVE, MERGE, REPORT, STORED, STRICT, UPDATE, misfit
from declax.errors import dotted, written_path

RULES = {"update": UPDATE, "strict": STRICT, "stored": STORED, "cast": CAST, "derivative": DERIVATIVE}
ARRAY, SHAPE = jnp.zeros(2), jax.ShapeDtypeStruct((2,), jnp.float32)

# the value that a leaf has, a new one, and who takes it
CASES = {
    "another array": (ARRAY, jnp.ones(2), "update strict stored cast derivative"),
    "another shape": (ARRAY, jnp.ones(3), ""),
    "another float": (ARRAY, jnp.ones(2, jnp.bfloat16), "update cast"),
    "another sort": (ARRAY, jnp.ones(2, jnp.int32), "update"),
    "float64 of numpy": (ARRAY, np.ones(2), "update strict cast derivative"),
    "a number": (jnp.zeros(()), 1.0, "update strict stored cast derivative"),
    "a number of another sort": (jnp.zeros(()), 1, "update stored cast"),
    "an array for a number": (1.0, jnp.zeros(()), "update strict stored cast derivative"),
    "numbers": (1.0, 2, "update"),
    "an array for a description": (
        jax.ShapeDtypeStruct((2,), jnp.float32),
        ARRAY,
        "update strict stored cast derivative",
    ),
    "a description for an array": (ARRAY, jax.ShapeDtypeStruct((2,), jnp.float32), ""),
    "a text for an array": (ARRAY, "a", ""),
    "texts of numpy": (ARRAY, np.array(["a", "b"]), ""),
    "a text for a text": ("a", "b", "update strict stored cast derivative"),
    "an array for a text": ("a", ARRAY, "update"),
    "an array for nothing": (None, ARRAY, "update strict stored cast derivative"),
    "keys for numbers": (jnp.uint32(0), jax.random.key(0), ""),
    "keys": (jax.random.key(0), jax.random.key(1), "update strict stored cast derivative"),
    "other keys": (jax.random.key(0), jax.random.key(0, impl="rbg"), "update"),
    "a tree": ([ARRAY, {"a": ARRAY}], [ARRAY, {"a": ARRAY}], "update strict stored cast derivative"),
    "a tree of other dtypes": ([ARRAY], [jnp.ones(2, jnp.bfloat16)], "update cast"),
    "another tree": ([ARRAY], (ARRAY,), ""),
}


@pytest.mark.parametrize("case", CASES)
def test_how_strict_a_caller_is_is_data(case):
    like, new, takers = CASES[case]
    assert [name for name, rules in RULES.items() if misfit(like, new, rules) is None] == takers.split()


def test_rules_that_differ_in_what_is_missing():
    assert COMPLETE._replace(missing="stays") == REPORT._replace(missing="stays") == UPDATE
    assert not MERGE.values


def test_the_reports_are_one_class():
    assert dx.UpdateReport is dx.RestoreReport is dx.WeightsReport is w.WeightsReport is dx.Fit
    assert w.TensorMismatch is dx.Difference


@given(st.lists(st.one_of(st.integers(0, 99), st.from_regex(r"[a-z_][a-z0-9_ -]*", fullmatch=True)), min_size=1))
def test_a_path_as_in_code_and_with_dots_is_one(path):
    assert dotted(written_path(path)) == dotted(".".join(map(str, path))) == ".".join(map(str, path))

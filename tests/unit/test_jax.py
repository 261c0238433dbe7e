"""What `_jax` takes of jax that is private: tells when one of these names moves."""

import jax
import jax.numpy as jnp
import pytest

from declax import _jax


def test_the_mark_of_the_top_level():
    assert _jax.current_trace() is _jax.trace_state.value is _jax.TOP


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, jax.checkpoint])
def test_a_trace_has_one_mark(transform):
    marks = []

    def f(x):
        marks.append((_jax.current_trace(), _jax.trace_state.get_local(), _jax.trace_of(x)))
        return x * 2

    transform(f)(jnp.ones(2) if transform is jax.vmap else 1.0)
    ((current, local, of_tracer),) = marks
    assert current is local is of_tracer
    assert current is not _jax.TOP


def test_the_class_of_arrays():
    assert type(jnp.ones(2)) is _jax.ArrayImpl

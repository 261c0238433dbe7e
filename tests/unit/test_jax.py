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


def test_programs_that_call_back_leave_a_token():
    """Also where nothing of it goes into a result. The callback waits, so that the call is over before it is."""
    jax.effects_barrier()
    assert _jax.callback_tokens() == ()
    jax.jit(lambda x: x + 1)(1.0)
    assert _jax.callback_tokens() == ()
    seen = []
    jax.jit(lambda x: jax.debug.callback(seen.append, x))(1.0)
    (token,) = _jax.callback_tokens()
    token.block_until_ready()
    assert seen == [1.0]
    assert _jax.callback_tokens() == (token,)
    _jax.forget_callbacks()
    assert _jax.callback_tokens() == ()

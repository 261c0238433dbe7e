"""What JAX and the peer raise as a TypeError or a ValueError can be caught as such."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import declax as dx


def model(nnx: Any) -> Any:
    return nnx.Linear(2, 2, rngs=nnx.Rngs(0))


PROGRAMS = {
    "a loss that is not a scalar": lambda nnx: nnx.grad(lambda m: m(jnp.ones(2)))(model(nnx)),
    "an int argument of grad": lambda nnx: nnx.grad(lambda x: x * 2)(3),
    "argnums out of range": lambda nnx: nnx.grad(lambda m: 1.0, argnums=3)(model(nnx)),
    "no argnums": lambda nnx: nnx.grad(lambda x: x, argnums=())(3.0),
    "a carry that changes": lambda nnx: nnx.scan(
        lambda c, x: (c.astype(jnp.int32), x), in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0)
    )(jnp.zeros(()), jnp.ones(3)),
    "branches that differ": lambda nnx: nnx.cond(True, lambda m: jnp.ones(2), lambda m: 1, model(nnx)),
    "a loop that changes its carry": lambda nnx: nnx.while_loop(lambda c: False, lambda c: (c, c), jnp.ones(1)),
    "merge without a graphdef": lambda nnx: nnx.merge(None),
    "an input of the wrong size": lambda nnx: model(nnx)(jnp.ones(3)),
    "an unknown filter": lambda nnx: nnx.split(model(nnx), 3),
    "a State that does not fit": lambda nnx: nnx.merge(nnx.graphdef(model(nnx)), nnx.State({})),
}


def error_of(library: Any, program: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever it is, the test compares it
        program(library)
    return caught.value


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_errors_are_of_the_builtin_type_that_the_peer_raises(program: Any) -> None:
    nnx = pytest.importorskip("flax.nnx")
    theirs, ours = error_of(nnx, program), error_of(dx, program)
    kinds = [kind for kind in (TypeError, ValueError) if isinstance(theirs, kind)]
    assert kinds, f"the peer raises {type(theirs)}"
    assert isinstance(ours, tuple(kinds))
    assert isinstance(ours, dx.DeclaxError)


def test_they_are_also_raised_without_the_peer() -> None:
    with pytest.raises(TypeError, match="loss"):
        dx.grad(lambda x: x)(jnp.ones(2))
    with pytest.raises(ValueError, match="loss"):
        dx.grad(lambda x: x)(jnp.ones(2))


def test_at_least_one_argument_is_differentiated() -> None:
    with pytest.raises(dx.errors.TransformError, match="argnums: no argument is selected"):
        dx.grad(lambda x: x, argnums=())(3.0)

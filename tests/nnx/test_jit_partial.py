"""Stages of functions whose first arguments are given once, as in Flax NNX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx

flax_nnx = pytest.importorskip("flax.nnx")
X = jnp.ones((1, 2))


def run(nnx: Any) -> list[Any]:
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    train = nnx.jit_partial(step, model, optimizer, graph_updates=False)
    compiled = train.lower(X).compile()
    return [train(X), compiled(X), train(X), optimizer.step[...], model.kernel[...]]


def test_a_lowered_function_takes_the_other_arguments() -> None:
    with jax.numpy_dtype_promotion("standard"):
        for ours, peers in zip(run(dx), run(flax_nnx), strict=True):
            np.testing.assert_allclose(ours, peers, rtol=1e-6)


def test_the_stages() -> None:
    model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    call = dx.jit_partial(lambda model, x, *, scale: scale * model(x), model)
    assert call.eval_shape(X, scale=2.0).shape == (1, 3)
    assert call.trace(X, scale=2.0).out_info.dtype == jnp.float32
    assert "stablehlo" in call.lower(X, scale=2.0).as_text()
    with pytest.raises(ValueError, match="it was compiled for other arguments"):
        call.lower(X, scale=2.0).compile()(jnp.ones((4, 2)), scale=2.0)


@pytest.mark.parametrize("nnx", [dx, flax_nnx], ids=["declax", "peer"])
def test_partial_arguments_of_a_tree_share_nothing(nnx: Any) -> None:
    scale = nnx.Param(jnp.array(1.0))
    with pytest.raises(ValueError, match=r"reached twice|Duplicate"):
        nnx.jit_partial(lambda a, b, x: x, nnx.Dict(a=scale), nnx.Dict(a=scale), graph=False, graph_updates=False)

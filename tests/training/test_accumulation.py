"""Gradients in parts: equal to those of the whole, with the memory of one part."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx


class Net(dx.Module):
    def __init__(self, rngs: dx.Rngs) -> None:
        self.hidden = dx.Linear(3, 64, rngs=rngs)
        self.norm = dx.BatchNorm(64, rngs=rngs)
        self.dropout = dx.Dropout(0.5, rngs=rngs)
        self.out = dx.Linear(64, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.dropout(self.norm(self.hidden(x))))


def loss_of(model: dx.Linear, x: jax.Array, y: dict[str, jax.Array], scale: float = 1.0) -> jax.Array:
    return scale * jnp.mean((model(x) - y["target"]) ** 2)


def batch(size: int) -> tuple[jax.Array, dict[str, jax.Array]]:
    return jax.random.normal(jax.random.key(0), (size, 3)), {"target": jnp.ones((size, 1))}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 8])
def test_the_gradient_is_that_of_the_whole_batch(steps: int) -> None:
    model = dx.Linear(3, 1, rngs=dx.Rngs(0))
    x, y = batch(8)
    loss, grads = dx.jit(dx.accumulate(loss_of, steps))(model, x, y)
    whole, expected = dx.value_and_grad(loss_of)(model, x, y)
    np.testing.assert_allclose(loss, whole, rtol=1e-5)
    np.testing.assert_allclose(grads.kernel.value, expected.kernel.value, rtol=1e-5)
    twice, _ = dx.accumulate(loss_of, steps)(model, x, y, scale=2.0)
    np.testing.assert_allclose(twice, 2 * whole, rtol=1e-5)
    assert dx.accumulate(loss_of, steps, wrt=dx.PathContains("bias"))(model, x, y)[1].paths == (("bias",),)


@pytest.mark.slow
def test_statistics_and_streams_go_on_from_part_to_part() -> None:
    model, other = Net(dx.Rngs(0)), Net(dx.Rngs(0))
    x, y = batch(64)  # parts of 16, whose variances are far from 0
    loss, grads = dx.accumulate(loss_of, steps=4)(model, x, y)
    losses = []
    for part in range(4):
        rows = slice(part, None, 4)
        one, gradient = dx.value_and_grad(loss_of)(other, x[rows], {"target": y["target"][rows]})
        losses.append((one, gradient.hidden.kernel.value))
    np.testing.assert_allclose(loss, sum(one for one, _ in losses) / 4, rtol=1e-5)
    np.testing.assert_allclose(grads.hidden.kernel.value, sum(g for _, g in losses) / 4, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.norm.mean.value, other.norm.mean.value, rtol=1e-5)
    assert int(model.dropout.rngs.count.value) == int(other.dropout.rngs.count.value) == 4


@pytest.mark.slow
def test_it_takes_the_memory_of_one_part() -> None:
    model = Net(dx.Rngs(0))
    x, y = batch(4096)

    def temporary(step: object) -> int:
        compiled = dx.jit(step).lower(model, x, y).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(dx.accumulate(loss_of, steps=16)) < temporary(dx.value_and_grad(loss_of)) / 4


def test_an_axis_that_the_steps_do_not_divide() -> None:
    model = dx.Linear(3, 1, rngs=dx.Rngs(0))
    before = model.kernel.value
    with pytest.raises(dx.errors.TransformError, match=r"\[1\]\['target'\] of the batch: 4 steps do not divide"):
        dx.accumulate(loss_of, steps=4)(model, jnp.ones((8, 3)), {"target": jnp.ones((7, 1))})
    assert model.kernel.value is before


def test_steps_and_batches_that_do_not_fit() -> None:
    model = dx.Linear(3, 1, rngs=dx.Rngs(0))
    for steps in (0, -1, 2.0, True):
        with pytest.raises(dx.errors.TransformError, match="this is not a number of steps"):
            dx.accumulate(loss_of, steps)  # type: ignore[arg-type]  # refused
    text = r"the arrays have first axes of different sizes(?s:.)*got:      4, 8"
    with pytest.raises(dx.errors.TransformError, match=text):
        dx.accumulate(loss_of, steps=4)(model, jnp.ones((8, 3)), {"target": jnp.ones((4, 1))})

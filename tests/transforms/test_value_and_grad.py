"""Values together with gradients."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import declax as dx
from counted import Counted, each_mode
from differentiated import X, assert_gradients, expected, gradients, loss, net_of


@given(gradients())
def test_random_models_against_jax_on_explicit_state(asked):
    assert_gradients(dx.value_and_grad, asked)


def test_values_and_auxiliary_results():
    net = net_of()
    value, grads = dx.value_and_grad(loss)(net, X)
    np.testing.assert_allclose(value, loss(net, X))

    def with_aux(net, x):
        net.new = dx.Cache(jnp.ones(1))
        return loss(net, x), {"net": net, "part": net.first, "new": net.new, "x": x, "text": 3}

    (value, aux), grads = dx.value_and_grad(with_aux, has_aux=True)(net, X)
    np.testing.assert_allclose(value, loss(net, X))
    assert aux["net"] is net
    assert aux["part"] is net.first
    assert aux["new"] is net.new
    assert aux["text"] == 3
    np.testing.assert_allclose(grads["first"]["kernel"].value, expected(0))
    grads, aux = dx.grad(with_aux, has_aux=True)(net, X)
    assert aux["net"] is net
    np.testing.assert_allclose(grads["first"]["kernel"].value, expected(0))
    grads, (aux, more) = dx.grad(lambda n, x: (loss(n, x), (1, 2)), has_aux=True)(net, X)
    assert (aux, more) == (1, 2)


@each_mode
@pytest.mark.parametrize("around", [lambda f, **_: f, dx.jit], ids=["eager", "jit"])
def test_what_is_captured_comes_back(mode, around):
    model = Counted(3.0)
    take = around(dx.value_and_grad(lambda x: model.step(x).sum(), **mode), **mode)
    for count in (1, 2):
        value, slope = take(jnp.ones(2))
        assert (float(value), slope.tolist()) == (6.0 * count, [3.0 * count] * 2)
        assert int(model.seen.value) == count
        model.scale.value = model.scale.value * 2


def test_numbers_and_shapes_of_argnums():
    net = net_of()
    value, (of_x, of_net) = dx.value_and_grad(loss, argnums=(1, 0))(net, X)
    np.testing.assert_allclose(value, loss(net, X))
    np.testing.assert_allclose(of_x, expected(4))
    np.testing.assert_allclose(of_net["first"]["kernel"].value, expected(0))


@pytest.mark.slow
def test_a_function_that_raises_changes_nothing():
    model = Counted()

    def fail(model, x):
        model.step(x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dx.value_and_grad(fail)(model, jnp.ones(2))
    assert int(model.seen.value) == 0

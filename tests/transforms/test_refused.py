"""What JAX refuses of the arguments of a transform is said with the name of the leaf."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx


class Holding(dx.Module):
    def __init__(self):
        self.weight = dx.Param(jnp.ones(3))


@pytest.mark.parametrize("transform", [dx.jit, dx.grad, lambda f: dx.jit(f, donate_argnums=0)])
def test_an_abstract_model_is_named(transform):
    model = dx.eval_shape(Holding)
    with pytest.raises(dx.errors.AbstractModelError, match="shapes in place of arrays") as caught:
        transform(lambda model: model.weight.value.sum())(model)
    assert "model.weight" in str(caught.value)


def test_a_variable_that_holds_no_array_is_named():
    model = Holding()
    model.name = dx.Variable("a text")
    with pytest.raises(dx.errors.TransformError, match="or a child of the tree, and not an array"):
        dx.jit(lambda model: model.weight * 2)(model)


def test_numbers_of_parameters_are_numbers():
    with pytest.raises(dx.errors.TransformError, match="this is not the number of a parameter") as caught:
        dx.jit(lambda model, k: k, static_argnums="k")
    assert "static_argnames='k'" in str(caught.value)
    assert int(dx.jit(lambda x, k: x + k, static_argnums=np.int64(1))(1, 2)) == 3

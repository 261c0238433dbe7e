"""A model and its loss, the gradients that raw JAX gives for it, and a loss of any model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import declax as dx
from strategies import Open, variables_of

FILTERS: tuple[Any, ...] = (dx.Param, dx.BatchStat, dx.Any(dx.Param, dx.Cache), dx.PathContains("kernel"), dx.Variable)


def sum_of_squares(model: Any, x: jax.Array, *, has_aux: bool = False) -> Any:
    """Depends on all Variables and on x, and doubles the statistics."""
    total = jnp.sin(x)
    for number, variable in enumerate(variables_of(model)):
        total = total + jnp.sum(variable.value**2) * (number + 1) * x
        if isinstance(variable, dx.BatchStat):
            variable.value = variable.value * 2
    return (total, total) if has_aux else total


def net_of() -> Open:
    net = Open()
    net.first, net.second = Open(), Open()
    net.first.kernel = dx.Param(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    net.second.kernel = dx.Param(jnp.array([0.5, -1.0]))
    net.mean = dx.BatchStat(jnp.array([1.0, 1.0]))
    net.raw = jnp.array([2.0, 3.0])
    return net


def loss(net, x):
    return jnp.sum((x @ net.first.kernel.value) * net.second.kernel.value * net.raw + net.mean.value**2)


def loss_of_arrays(first, second, mean, raw, x):
    return jnp.sum((x @ first) * second * raw + mean**2)


X = jnp.array([[1.0, -2.0]])


def expected(argnums):
    net = net_of()
    arrays = net.first.kernel.value, net.second.kernel.value, net.mean.value, net.raw, X
    return jax.grad(loss_of_arrays, argnums=argnums)(*arrays)

"""A model and its loss, the gradients that raw JAX gives for it, and a loss of any model."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import declax as dx
from declax.errors import TransformError
from strategies import Open, Recipe, build, modes_and_recipes, on_state, same_graph, variables_of

FILTERS: tuple[Any, ...] = (dx.Param, dx.BatchStat, dx.Any(dx.Param, dx.Cache), dx.PathContains("kernel"), dx.Variable)


def sum_of_squares(model: Any, x: jax.Array, *, has_aux: bool = False) -> Any:
    """Depends on all Variables and on x, and doubles the statistics."""
    total = jnp.sin(x)
    for number, variable in enumerate(variables_of(model)):
        total = total + jnp.sum(variable.value**2) * (number + 1) * x
        if isinstance(variable, dx.BatchStat):
            variable.value = variable.value * 2
    return (total, total) if has_aux else total


class Asked(NamedTuple):
    """What a gradient is asked for: of which model, for which leaves of it, in which form."""

    mode: dict[str, bool]
    recipe: Recipe
    kind: Any
    has_aux: bool
    with_x: bool
    is_compiled: bool


def gradients() -> st.SearchStrategy[Asked]:
    """Models with what is asked of them."""
    forms = st.tuples(st.sampled_from(FILTERS), st.booleans(), st.booleans(), st.booleans())
    return st.tuples(modes_and_recipes(), forms).map(lambda drawn: Asked(*drawn[0], *drawn[1]))


def assert_gradients(transform: Any, asked: Asked) -> None:
    """Checks `grad` or `value_and_grad` against raw JAX on explicit state."""
    if asked.mode.get("graph") is False:  # trees have no filters
        asked = asked._replace(mode={"graph_updates": False})
    model, x = build(asked.recipe), jnp.float32(0.5)
    graphdef, chosen, rest = dx.split(model, asked.kind, ...)
    argnums = (dx.DiffState(0, asked.kind), 1) if asked.with_x else dx.DiffState(0, asked.kind)
    of_loss = functools.partial(sum_of_squares, has_aux=asked.has_aux)
    take = transform(of_loss, argnums=argnums, has_aux=asked.has_aux, **asked.mode)
    take = dx.jit(take, **asked.mode) if asked.is_compiled else take
    if not chosen.leaves and not asked.with_x:
        with pytest.raises(TransformError, match="there is nothing to differentiate"):
            take(model, x)
        return

    def explicit(chosen: Any, x: Any) -> Any:
        return on_state(graphdef, sum_of_squares)(dx.State.merge(chosen, rest), x)

    (value, after), slopes = jax.value_and_grad(explicit, argnums=(0, 1), has_aux=True)(chosen, x)
    given = take(model, x)
    if transform is dx.value_and_grad:
        np.testing.assert_allclose(given[0], (value, value) if asked.has_aux else value, rtol=1e-5)
        grads = given[1]
    else:
        grads, aux = given if asked.has_aux else (given, value)
        np.testing.assert_allclose(aux, value, rtol=1e-5)
    of_model, of_x = grads if asked.with_x else (grads, slopes[1])
    assert of_model.paths == chosen.paths
    np.testing.assert_allclose(of_x, slopes[1], rtol=1e-5)
    for one, other in zip(of_model.leaves, slopes[0].leaves, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert same_graph(model, dx.merge(graphdef, after))


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

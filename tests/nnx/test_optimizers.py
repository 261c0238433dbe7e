"""Programs with optimizers, which do the same with `import declax as nnx` as with Flax NNX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx

flax_nnx = pytest.importorskip("flax.nnx")
X = jnp.arange(6.0).reshape(3, 2)

TRANSFORMATIONS = {
    "adam": lambda: optax.adam(0.1),
    "injected": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=0.1, weight_decay=1e-3),
    "lbfgs": optax.scale_by_lbfgs,
    "chain": lambda: optax.chain(optax.clip(1.0), optax.trace(0.9), optax.scale(-0.1)),
    "factored": lambda: optax.adafactor(0.1, min_dim_size_to_factor=2),
    "masked": lambda: optax.masked(optax.adam(0.1), lambda params: jax.tree.map(lambda x: x.ndim > 0, params)),
}


def both(program: Any) -> tuple[Any, Any]:
    """What a program does with declax, and with the peer."""
    with jax.numpy_dtype_promotion("standard"):
        return program(dx), program(flax_nnx)


def model_of(nnx: Any) -> Any:
    return nnx.Linear(2, 3, rngs=nnx.Rngs(0))


def gradients(nnx: Any, model: Any) -> Any:
    return nnx.grad(lambda m: (m(X) ** 2).mean())(model)


def assert_same(found: tuple[Any, Any]) -> None:
    ours, peers = map(jax.tree.leaves, found)
    for one, other in zip(ours, peers, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def positions_below(tree: Any, nnx: Any) -> Any:
    """Shapes by position: of the items of tuples, in order; of other levels, by key."""
    if isinstance(tree, nnx.Variable):
        return tree[...].shape
    is_tuple = hasattr(tree, "_fields") or isinstance(tree, tuple)
    keys = range(len(tree)) if is_tuple else sorted(tree)
    return [positions_below(tree[key], nnx) for key in keys]


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_the_optax_state_is_read_by_position(name: str) -> None:
    def program(nnx: Any) -> Any:
        optimizer = nnx.Optimizer(model_of(nnx), TRANSFORMATIONS[name](), wrt=nnx.Param)
        return positions_below(optimizer.opt_state, nnx)

    ours, peers = both(program)
    assert ours == peers


def test_positions_count_from_the_end_and_can_be_assigned() -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        optimizer.opt_state[0][-1]["kernel"][...] = jnp.full((2, 3), 4.0)
        (adam, _), kept = optimizer.opt_state, list(optimizer.opt_state[0])
        optimizer.update(model, gradients(nnx, model))
        return model.kernel[...], adam.nu["kernel"][...], kept[1]["bias"][...], len(optimizer.opt_state)

    assert_same(both(program))


def test_gradients_for_more_than_wrt() -> None:
    def program(nnx: Any) -> Any:
        special = type("Special", (nnx.Param,), {})
        model = nnx.Dict(a=nnx.Param(jnp.ones(2)), b=special(jnp.ones(2)))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=special)
        optimizer.update(model, nnx.grad(lambda m: (m.a * m.b).sum())(model))
        return model.a[...], model.b[...]

    assert_same(both(program))


def test_several_models_with_one_optimizer() -> None:
    def program(nnx: Any) -> Any:
        models = [model_of(nnx), {"second": model_of(nnx)}]
        optimizer = nnx.Optimizer(models, optax.adam(0.1), wrt=nnx.Param, graph=True)
        grads = nnx.grad(lambda a, b: (a(X) * b["second"](X)).mean(), argnums=(0, 1))(*models)
        optimizer.update(models, grads)
        return models[0].kernel[...], models[1]["second"].bias[...]

    assert_same(both(program))


@pytest.mark.parametrize("how", ["paths", "map_state", "is_leaf", "callable"])
def test_labels_for_partition(how: str) -> None:
    def label(path: Any) -> str:
        return "bias" if "bias" in str(path) else "kernel"

    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        params = nnx.state(model, nnx.Param)
        labels = {
            "paths": lambda: nnx.map_state(lambda path, v: path[-1], params),
            "map_state": lambda: lambda params: nnx.map_state(lambda path, v: label(path), params),
            "is_leaf": lambda: jax.tree.map_with_path(
                lambda path, v: label(path), params, is_leaf=lambda x: isinstance(x, nnx.Variable)
            ),
            "callable": lambda: lambda params: jax.tree.map_with_path(lambda path, v: label(path), params),
        }[how]()
        tx = optax.partition({"kernel": optax.sgd(0.1), "bias": optax.adam(1.0)}, labels)
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        for _ in range(2):
            optimizer.update(model, gradients(nnx, model))
        return model.kernel[...], model.bias[...]

    assert_same(both(program))


def test_update_takes_its_arguments_by_name():
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)
        optimizer.update(model=model, grads=gradients(nnx, model))
        kept = nnx.ModelAndOptimizer(model, optax.sgd(0.5))
        kept.update(gradients(nnx, model))
        return model.kernel[...]

    assert_same(both(program))

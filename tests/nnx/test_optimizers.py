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


def injected() -> Any:
    return optax.inject_hyperparams(optax.adam)(learning_rate=0.1)


def value_of(nnx: Any, found: Any) -> tuple[str, Any]:
    return type(found).__name__, found.get_value() if isinstance(found, nnx.Variable) else found


def test_optax_finds_and_sets_entries_of_the_state() -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        optimizer = nnx.Optimizer(model, injected(), wrt=nnx.Param)
        rates = optax.tree_utils.tree_get_all_with_path(optimizer.opt_state, "learning_rate")
        found = [optax.tree_utils.tree_get(optimizer.opt_state, name) for name in ("learning_rate", "b1", "none")]
        optimizer.opt_state = optax.tree_utils.tree_set(optimizer.opt_state, learning_rate=0.5)
        optimizer.update(model, gradients(nnx, model))
        moments = optax.tree_utils.tree_get(optimizer.opt_state, "mu")
        shown = [str(path) for path, _ in rates], [value_of(nnx, x)[0] for x in found]
        return shown, [x.get_value() for x in found[:2]], jax.tree.leaves(moments), jax.tree.leaves(nnx.state(model))

    (shown, *ours), (peers_shown, *peers) = both(program)
    assert shown == peers_shown
    assert_same((ours, peers))


def test_hyperparameters_are_set_between_jitted_steps() -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        optimizer = nnx.Optimizer(model, injected(), wrt=nnx.Param)
        step = nnx.jit(lambda model, optimizer: optimizer.update(model, gradients(nnx, model)) and None)
        for rate in (0.1, 0.1, 0.5):
            optimizer.opt_state.hyperparams["learning_rate"].set_value(jnp.array(rate))
            step(model, optimizer)
        return jax.tree.leaves(nnx.state(model)), sorted(optimizer.opt_state.hyperparams)

    (ours, names), (peers, peers_names) = both(program)
    assert names == peers_names
    assert_same((ours, peers))


def test_the_state_consists_of_the_tuples_and_dicts_of_optax() -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        optimizer.update(model, gradients(nnx, model))
        adam, *_ = optimizer.opt_state[:1]
        assert isinstance(optimizer.opt_state, tuple)
        assert isinstance(adam, optax.ScaleByAdamState)
        assert type(nnx.clone(optimizer).opt_state[0]) is optax.ScaleByAdamState
        labels = nnx.map_state(lambda path, _: path[-1], nnx.state(model, nnx.Param))
        partition = optax.partition({"bias": injected(), "kernel": optax.sgd(0.1)}, labels)
        parts = nnx.Optimizer(model, partition, wrt=nnx.Param)
        assert isinstance(parts.opt_state.inner_states["bias"].inner_state.hyperparams, dict)
        for fail, error in (
            (lambda: adam.other, AttributeError),
            (lambda: adam.mu.other, AttributeError),
            (lambda: adam.mu["other"], KeyError),
            (lambda: adam[9], IndexError),
            (lambda: setattr(adam, "count", 1), AttributeError),
        ):
            with pytest.raises(error):
                fail()
        reset = adam._replace(count=jnp.zeros_like(adam.count))
        optimizer.opt_state = jax.tree.map(jnp.zeros_like, optimizer.opt_state)
        optimizer.update(model, gradients(nnx, model))
        return jax.tree.leaves((reset, optimizer.opt_state, nnx.state(model))), jax.tree.leaves(adam.mu)

    assert_same(both(program))


USES_OF_A_STATE = {
    "to_pure_dict": lambda nnx, params: (nnx.to_pure_dict(params), params.to_pure_dict()),
    "to_flat_state": lambda nnx, params: [(path[-1] == "bias", v[...]) for path, v in nnx.to_flat_state(params)],
    "flat_state": lambda nnx, params: dict(params.flat_state())[("kernel",)].get_value(),
    "map_state": lambda nnx, params: nnx.map_state(lambda path, v: v.get_value() * len(path), params),
    "map": lambda nnx, params: params.map(lambda path, v: v.get_value() * 2),
    "filter": lambda nnx, params: (nnx.filter_state(params, nnx.PathContains("bias")), params.filter(nnx.Variable)),
    "split": lambda nnx, params: params.split(nnx.PathContains("bias"), ...),
    "a write": lambda nnx, params: nnx.to_flat_state(params)[0][1].set_value(jnp.full(3, 7.0)),
    "replace_by_pure_dict": lambda nnx, params: nnx.replace_by_pure_dict(params, {"bias": jnp.full(3, 5.0)}),
}


@pytest.mark.filterwarnings("ignore:.flax.nnx.State. will be deprecated:DeprecationWarning")
@pytest.mark.parametrize("use", USES_OF_A_STATE)
@pytest.mark.parametrize("of", [lambda ema, optimizer: ema.params, lambda ema, optimizer: optimizer.opt_state[0].mu])
def test_what_mirrors_the_parameters_is_used_as_a_state(of: Any, use: str) -> None:
    def program(nnx: Any) -> Any:
        model = model_of(nnx)
        ema, optimizer = nnx.EMA(model, decay=0.5), nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        optimizer.update(model, gradients(nnx, model))
        ema.update(model)
        params = of(ema, optimizer)
        result = USES_OF_A_STATE[use](nnx, params)
        return jax.tree.leaves(result), params["bias"][...], params.kernel[...]

    assert_same(both(program))

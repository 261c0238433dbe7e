"""`Optimizer`: optax inside of a Pytree, for every shape of optax state, eagerly and jitted."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax import errors
from declax.training._opt_state import OptArray, OptLayout
from declax.training._transformation import StaticTransformation

pytestmark = pytest.mark.sampled(6)


class LoRA(dx.Variable[jax.Array]): ...


class Dense(dx.Module):
    def __init__(self, inputs: int, outputs: int, key: int = 0) -> None:
        self.kernel = dx.Param(jax.random.normal(jax.random.key(key), (inputs, outputs)))
        self.bias = dx.Param(jnp.zeros((outputs,)))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel + self.bias


class Net(dx.Module):
    def __init__(self, width: int = 4) -> None:
        self.layers = dx.List([Dense(3, width), Dense(width, 2, key=1)])
        self.calls = dx.BatchStat(jnp.zeros((), jnp.int32))
        self.lora = LoRA(jnp.ones((2,)))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls.value = self.calls.value + 1
        first, second = self.layers
        return second(jnp.tanh(first(x))) * self.lora


X, Y = jnp.arange(12.0).reshape(4, 3) / 12, jnp.ones((4, 2))


def loss_of(model: Net) -> jax.Array:
    return jnp.mean((model(X) - Y) ** 2)


def arrays(tree: Any) -> list[np.ndarray]:
    keys = jax.dtypes.prng_key
    leaves = [x for x in jax.tree.leaves(tree) if x.dtype != jax.dtypes.float0]
    return [np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, keys) else x) for x in leaves]


def assert_same(left: Any, right: Any, tolerance: float = 1e-6) -> None:
    for a, b in zip(arrays(left), arrays(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def is_matrix(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


def label(params: Any) -> Any:
    return jax.tree.map(lambda x: "matrix" if x.ndim > 1 else "vector", params)


TRANSFORMATIONS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "adamw": lambda: optax.adamw(optax.cosine_decay_schedule(1e-2, 10), weight_decay=1e-2),
    "bare": optax.scale_by_adam,
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.chain(optax.adam(1e-2), optax.scale(0.5))),
    "masked": lambda: optax.masked(optax.adam(1e-2), is_matrix),
    "multi_transform": lambda: optax.multi_transform({"matrix": optax.adam(1e-2), "vector": optax.sgd(0.1)}, label),
    "inject": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1e-2),
    "inject_schedule": lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=optax.linear_schedule(1.0, 0.0, 5)),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2),
    "multi_steps_transform": lambda: optax.MultiSteps(optax.adam(1e-2), 2).gradient_transformation(),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "noise": lambda: optax.noisy_sgd(0.1, key=0),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 3),
    "ema": lambda: optax.chain(optax.sgd(0.1), optax.ema(0.9)),
}


def plain_steps(tx: Any, steps: int) -> tuple[Any, Any]:
    """The same training by optax alone, on a dict of arrays."""
    graphdef, params, rest = dx.split(Net(), dx.Param, ...)
    opt_state = tx.init(params)
    for _ in range(steps):
        grads = jax.grad(lambda p: loss_of(dx.merge(graphdef, p, rest)))(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    return params, opt_state


def lifted_step(model: Net, optimizer: dx.Optimizer[Net]) -> jax.Array:
    loss, grads = dx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def opt_values(optimizer: dx.Optimizer[Any]) -> list[Any]:
    """The optax state's arrays, in the order of the optax state."""
    return jax.tree.leaves(optimizer.optax_state())


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_jitted_training_agrees_with_optax_alone(name: str) -> None:
    model, make = Net(), TRANSFORMATIONS[name]
    optimizer = dx.Optimizer(model, make(), wrt=dx.Param)
    step = dx.jit(lifted_step)
    with jax.checking_leaks():
        for _ in range(3):
            step(model, optimizer)
    params, opt_state = plain_steps(make(), 3)
    assert_same(dx.state(model, dx.Param), params, 1e-5)
    assert_same(opt_values(optimizer), opt_state, 1e-5)
    assert int(optimizer.step.value) == 3
    assert optimizer.step.value.dtype == jnp.uint32
    assert int(model.calls.value) == 3


@pytest.mark.parametrize("name", ["momentum", "adamw", "multi_transform", "adafactor"])
def test_eager_training_agrees_with_optax_alone(name: str) -> None:
    model, make = Net(), TRANSFORMATIONS[name]
    optimizer = dx.Optimizer(model, make(), dx.Param)
    for _ in range(2):
        lifted_step(model, optimizer)
    params, opt_state = plain_steps(make(), 2)
    assert_same(dx.state(model, dx.Param), params)
    assert_same(opt_values(optimizer), opt_state)


@pytest.mark.filterwarnings("ignore::declax.errors.LostWriteWarning")  # of `jax.grad`, which drops the counted calls
@pytest.mark.parametrize("name", ["bare", "adamw", "masked", "multi_steps", "noise"])
def test_raw_jit_takes_and_returns_an_optimizer(name: str) -> None:
    model, make = Net(), TRANSFORMATIONS[name]

    @jax.jit
    def step(model: Net, optimizer: dx.Optimizer[Net]) -> tuple[Net, dx.Optimizer[Net]]:
        grads = jax.grad(loss_of, allow_int=True)(model)
        optimizer.update(model, grads)
        return model, optimizer

    optimizer = dx.Optimizer(model, make(), wrt=dx.Param)
    with jax.checking_leaks():
        for _ in range(2):
            model, optimizer = step(model, optimizer)
    params, opt_state = plain_steps(make(), 2)
    assert_same(dx.state(model, dx.Param), params, 1e-5)
    assert_same(opt_values(optimizer), opt_state, 1e-5)
    assert int(optimizer.step) == 2


def traces_of_three(make: Callable[[], Any]) -> int:
    """How often one step is traced for three models, each with its optimizer."""
    traces = []

    @dx.jit
    def step(model: Net, optimizer: dx.Optimizer[Net]) -> None:
        traces.append(1)
        lifted_step(model, optimizer)

    for _ in range(3):
        model = Net()
        step(model, dx.Optimizer(model, make(), wrt=dx.Param))
    return len(traces)


def test_one_transformation_gives_one_trace_and_three_give_three() -> None:
    tx = optax.adam(1e-3)
    assert traces_of_three(lambda: tx) == 1
    assert traces_of_three(lambda: optax.adam(1e-3)) == 3


def test_the_trace_of_another_transformation_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    step, model = dx.jit(lifted_step), Net()
    for _ in range(2):
        step(model, dx.Optimizer(model, optax.adam(1e-3), wrt=dx.Param))
    dx.explain_retrace(step)
    explained = capsys.readouterr().out
    assert re.search(r"optimizer\._tx: the static value was <GradientTransformation\w* at 0x\w+>", explained)


SPECS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: dx.spec(optax.adamw, dx.spec(optax.cosine_decay_schedule, 1e-2, 10), weight_decay=1e-2),
    "chain": lambda: dx.spec(optax.chain, dx.spec(optax.clip_by_global_norm, 1.0), dx.spec(optax.adam, 1e-2)),
    "multi_steps": lambda: dx.spec(optax.MultiSteps, dx.spec(optax.adam, 1e-2), every_k_schedule=2),
}


@pytest.mark.parametrize("name", SPECS)
def test_transformations_from_equal_specs_give_one_trace(name: str) -> None:
    assert traces_of_three(lambda: SPECS[name]().build()) == 1


def test_transformations_from_files_give_one_trace() -> None:
    config = {"kind": "adam", "learning_rate": 1e-3}
    assert traces_of_three(lambda: dx.from_config(optax.GradientTransformation, config)) == 1


def test_different_optimizers_do_not_share_a_trace() -> None:
    step = dx.jit(lifted_step)
    results = []
    for rate in (0.1, 0.2):
        model = Net()
        step(model, dx.Optimizer(model, dx.spec(optax.sgd, rate).build(), wrt=dx.Param))
        results.append(model.layers[0].kernel.value)
    assert not np.allclose(results[0], results[1])


def test_the_paths_of_the_state_read_like_optax() -> None:
    optimizer = dx.Optimizer(Net(), optax.adam(1e-3), wrt=dx.Param)
    kinds = {path: type(value) for path, value in dx.state(optimizer).flat_state()}
    assert kinds["opt_state", 0, "mu", "layers", 0, "kernel"] is dx.OptVariable
    assert kinds["opt_state", 0, "nu", "layers", 1, "bias"] is dx.OptVariable
    assert kinds["opt_state", 0, "count"] is OptArray
    assert kinds["step",] is dx.OptState
    assert len(kinds) == 2 + 2 * 4
    assert issubclass(dx.OptVariable, dx.OptState)
    assert issubclass(OptArray, dx.OptState)


def test_hyperparameters_are_assigned_in_place() -> None:
    model = Net()
    optimizer = dx.Optimizer(model, optax.inject_hyperparams(optax.sgd)(learning_rate=1.0), wrt=dx.Param)
    step = dx.jit(lifted_step)
    before = model.layers[0].kernel.value
    optimizer.opt_state.hyperparams["learning_rate"].value = jnp.array(0.0)
    step(model, optimizer)
    np.testing.assert_array_equal(model.layers[0].kernel.value, before)
    optimizer.opt_state.hyperparams["learning_rate"] = jnp.array(0.5)  # an array instead of its Variable
    lifted_step(model, optimizer)
    assert not np.allclose(model.layers[0].kernel.value, before)
    assert isinstance(optimizer.opt_state.hyperparams["learning_rate"], OptArray)


def test_a_state_with_a_hole_is_said() -> None:
    model = Net()
    optimizer = dx.Optimizer(model, optax.inject_hyperparams(optax.sgd)(learning_rate=1.0), wrt=dx.Param)
    grads = dx.grad(loss_of)(model)
    optimizer.opt_state.hyperparams["rate"] = optimizer.opt_state.hyperparams.pop("learning_rate")
    structure = "(?s)does not have the structure of the state of the transformation"
    with pytest.raises(errors.OptimizerError, match=f"{structure}.*'rate'"):
        optimizer.update(model, grads)
    optimizer.opt_state = optimizer.opt_state.inner_state
    with pytest.raises(errors.OptimizerError, match=structure):
        optimizer.optax_state()
    stateless = dx.Optimizer(model, optax.sgd(0.1))
    stateless.opt_state = [optax.EmptyState(), optax.EmptyState()]
    with pytest.raises(errors.OptimizerError, match=structure):
        stateless.update(model, grads)


def test_mirrors_keep_the_metadata_but_no_hooks() -> None:
    class Model(dx.Module):
        def __init__(self) -> None:
            hook = lambda variable, value: value * 2  # noqa: E731
            self.weight = dx.Param(jnp.ones((2, 3)), sharding=("a", "b"), on_get_value=hook, tag="t")

    model = Model()
    optimizer = dx.Optimizer(model, optax.adam(0.1), wrt=dx.Param)
    mu = optimizer.opt_state[0].mu["weight"]
    assert mu.get_metadata("out_sharding") == ("a", "b")
    assert mu.get_metadata("tag") == "t"
    assert not mu.has_metadata("on_get_value")
    optimizer.update(model, dx.state(model, dx.Param))
    np.testing.assert_allclose(model.weight.raw_value, 0.9, rtol=1e-5)
    factored = dx.Optimizer(model, optax.adafactor(1e-2, min_dim_size_to_factor=2), wrt=dx.Param)
    rows = {path: v for path, v in dx.state(factored).flat_state() if "v_row" in path}
    assert rows
    assert all(isinstance(v, OptArray) for v in rows.values())  # of another shape than the parameter


@pytest.mark.parametrize(
    ("wrt", "paths"),
    [
        (LoRA, {("lora",)}),
        ((LoRA, "bias"), {("lora",), ("layers", 0, "bias"), ("layers", 1, "bias")}),
        (dx.All(dx.Param, dx.PathContains("bias")), {("layers", 0, "bias"), ("layers", 1, "bias")}),
        (lambda path, value: "bias" in path, {("layers", 0, "bias"), ("layers", 1, "bias")}),
    ],
)
def test_wrt_takes_any_filter(wrt: Any, paths: set[Any]) -> None:
    if isinstance(wrt, tuple):
        wrt = dx.Any(LoRA, dx.PathContains("bias"))
    model = Net()
    before = {path: np.asarray(v.value) for path, v in dx.state(model).flat_state()}
    optimizer = dx.Optimizer(model, optax.sgd(0.1), wrt=wrt)
    grads = dx.grad(loss_of, argnums=dx.DiffState(0, wrt))(model)
    optimizer.update(model, grads)
    after = {path: np.asarray(v.value) for path, v in dx.state(model).flat_state()}
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == paths | {("calls",)}
    assert optimizer.wrt is wrt


def test_default_wrt_and_positional_wrt() -> None:
    model = Net()
    assert dx.Optimizer(model, optax.sgd(0.1)).wrt is dx.is_trainable
    assert dx.Optimizer(model, optax.sgd(0.1), LoRA).wrt is LoRA


def test_update_returns_the_updates() -> None:
    model = Net()
    before = dx.state(model, dx.Param)
    grads = dx.grad(loss_of)(model)
    updates = dx.Optimizer(model, optax.sgd(0.5), wrt=dx.Param).update(model, grads)
    assert isinstance(updates, dx.State)
    assert_same(updates, jax.tree.map(lambda g: -0.5 * g, grads))
    assert all(isinstance(update, jax.Array) for _, update in updates.flat_state())
    assert_same(dx.state(model, dx.Param), jax.tree.map(jnp.add, dx.as_pure(before), updates))


def test_extra_arguments_reach_the_transformation() -> None:
    model = Net()
    tx = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1, factor=0.5))
    optimizer = dx.Optimizer(model, tx, wrt=dx.Param)

    @dx.jit
    def step(model: Net, optimizer: dx.Optimizer[Net]) -> None:
        _, grads = dx.value_and_grad(loss_of)(model)
        optimizer.update(model, grads, value=jnp.array(1.0))

    for _ in range(4):
        step(model, optimizer)
    assert float(optimizer.opt_state[1].scale.value) < 1


def test_a_line_search_takes_value_grad_and_value_fn() -> None:
    model = Net()
    optimizer = dx.Optimizer(model, optax.lbfgs(), wrt=dx.Param)

    @dx.jit
    def step(model: Net, optimizer: dx.Optimizer[Net]) -> jax.Array:
        graphdef, params, rest = dx.split(model, dx.Param, ...)

        def value_fn(params: Any) -> jax.Array:
            return loss_of(dx.merge(graphdef, params, rest))

        value, grads = jax.value_and_grad(value_fn)(params)
        optimizer.update(model, grads, value=value, grad=grads, value_fn=value_fn)
        return value

    losses = [float(step(model, optimizer)) for _ in range(15)]
    assert losses[-1] < 1e-3 * losses[0]


def unchanged(model: Any, optimizer: Any) -> Callable[[], None]:
    """A check, to be made later, that both still hold the very same arrays."""
    before = [*dx.state(model).leaves, *dx.state(optimizer).leaves]

    def check() -> None:
        after = [*dx.state(model).leaves, *dx.state(optimizer).leaves]
        assert all(a is b for a, b in zip(before, after, strict=True))

    return check


def refused(model: Any, grads: Any, message: str, optimizer: Any = None) -> errors.OptimizerError:
    net = Net()
    optimizer = optimizer or dx.Optimizer(net, optax.adam(0.1), wrt=dx.Param)
    check = unchanged(net, optimizer)
    with pytest.raises(errors.OptimizerError, match=message) as caught:
        optimizer.update(model, grads)
    check()
    return caught.value


def test_a_state_in_place_of_the_model() -> None:
    model = Net()
    error = refused(dx.grad(loss_of)(model), model, "the first argument is a State, a snapshot")
    assert error.expected == "update(model, grads)"


def test_gradients_that_are_no_state() -> None:
    model = Net()
    for wrong, got, fix in (
        (dx.value_and_grad(loss_of)(model), "a value of type tuple", "loss, grads = dx.value_and_grad(loss_fn)(model)"),
        (3.0, "float 3.0", "grads = dx.grad("),
    ):
        error = refused(model, wrong, "the gradients do not match the parameters")
        assert error.got == got
        assert str(error.fix).startswith(fix)
        assert error.expected == "a State with a gradient for each of the 4 Variables that Param matches"


def test_gradients_of_another_filter() -> None:
    model = Net()
    error = refused(model, dx.state(model, dx.PathContains("bias")), "the gradients do not match")
    assert error.got == "missing: layers[0].kernel, layers[1].kernel"
    pairs = list(dx.state(model, dx.Param).flat_state())
    renamed = dx.State.from_flat_path([((*p[:-1], p[-1].replace("el", "le")), v) for p, v in pairs])
    error = refused(model, renamed, "the gradients do not match")
    assert error.got is not None
    assert "unexpected: layers[0].kernle" in error.got
    unknown = dx.State.from_flat_path([*pairs, (("other",), dx.Param(jnp.ones(2)))])
    assert refused(model, unknown, "do not match").got == "unexpected: other"


def test_gradients_in_another_order_and_for_other_variables() -> None:
    grads = dx.grad(loss_of)(Net())
    pairs = [*grads.flat_state(), *dx.state(Net(), dx.BatchStat, LoRA)[1].flat_state()]
    backwards = dx.State.from_flat_path(dx.FlatState(pairs[::-1]))  # plain pairs would be put in order
    results = []
    for given in (grads, backwards):
        model = Net()
        updates = dx.Optimizer(model, optax.sgd(0.1)).update(model, given)
        assert len(updates.paths) == 4
        results.append(dx.state(model))
    assert_same(*results)


def test_gradients_of_another_shape() -> None:
    model = Net()
    grads = jax.tree.map(lambda g: g[..., :1], dx.state(model, dx.Param))
    error = refused(model, grads, "the gradients do not match")
    assert error.got is not None
    assert error.got.startswith("other shapes: layers[0].bias has (1,), not (4,)")


def test_a_parameter_of_another_shape_is_named_once() -> None:
    optimizer = dx.Optimizer(dx.Linear(2, 3, use_bias=False, rngs=dx.Rngs(0)), optax.adam(0.1))  # two averages of it
    wide = dx.Linear(2, 5, use_bias=False, rngs=dx.Rngs(0))
    with pytest.raises(errors.OptimizerError) as caught:
        optimizer.update(wide, dx.state(wide, dx.Param))
    assert caught.value.got == "other shapes: kernel has (2, 5), not (2, 3)"


def test_another_model() -> None:
    class Deeper(Net):
        def __init__(self) -> None:
            super().__init__()
            self.layers.append(Dense(2, 2))

    other = Deeper()
    message = "the model does not have the parameters that the optimizer was made for"
    assert refused(other, dx.state(other, dx.Param), message).got == "unexpected: layers[2].bias, layers[2].kernel"
    wide = Net(width=8)
    error = refused(wide, dx.state(wide, dx.Param), message)
    assert error.got is not None
    assert error.got.startswith("other shapes: layers[0].bias has (8,), not (4,), ")
    assert error.got.endswith("layers[1].kernel has (8, 2), not (4, 2)")
    many = dx.List([Dense(1, 1) for _ in range(4)])
    error = refused(many, dx.state(many, dx.Param), message)
    assert error.got is not None
    assert error.got.endswith("and 4 more")


def test_a_wrt_that_selects_nothing() -> None:
    with pytest.raises(errors.OptimizerError, match="the filter Cache matches nothing in the model"):
        dx.Optimizer(Net(), optax.sgd(0.1), wrt=dx.Cache)
    with pytest.raises(errors.OptimizerError, match="the filter is_trainable matches nothing"):
        dx.Optimizer(dx.Module(), optax.sgd(0.1))


def test_a_tx_that_is_none() -> None:
    with pytest.raises(errors.OptimizerError, match="this is not an optax transformation"):
        dx.Optimizer(Net(), optax.adam)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(errors.OptimizerError, match="this is not an optax transformation"):
        dx.Optimizer(Net(), dx.Param)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(errors.OptimizerError, match=r"by_filter\['head\.\*'\]: this is not an optax transformation"):
        dx.by_filter({"head.*": 3, ...: optax.sgd(0.1)})  # type: ignore[dict-item]  # the mistake under test
    with pytest.raises(errors.OptimizerError, match=r"dynamic_loss_scale\.tx: this is not an optax transformation"):
        dx.dynamic_loss_scale(8.0)  # type: ignore[arg-type]  # the mistake under test


def test_an_optax_state_with_something_else_than_arrays() -> None:
    tx = optax.GradientTransformation(lambda params: {"mode": "fast"}, lambda g, s, p=None: (g, s))
    with pytest.raises(errors.OptimizerError, match=r"a value other than an array at mode"):
        dx.Optimizer(Net(), tx)


def test_an_update_from_another_trace_changes_nothing() -> None:
    model = Net()
    optimizer = dx.Optimizer(model, optax.adam(0.1), wrt=dx.Param)
    check = unchanged(model, optimizer)

    @jax.jit
    def captured(x: jax.Array) -> jax.Array:
        grads = jax.tree.map(lambda p: p * x, dx.state(model, dx.Param))
        optimizer.update(model, grads)
        return x

    @jax.jit
    def captured_optimizer(model: Net) -> Net:
        optimizer.update(model, dx.state(model, dx.Param))
        return model

    for call in (lambda: captured(jnp.ones(())), lambda: captured_optimizer(model)):
        with pytest.raises(errors.TraceContextError, match="trace"):
            call()
        check()


def test_a_transformation_that_raises_changes_nothing() -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no update")

    model = Net()
    optimizer = dx.Optimizer(model, optax.GradientTransformation(lambda params: jnp.ones(2), fail), wrt=dx.Param)
    check = unchanged(model, optimizer)
    with pytest.raises(RuntimeError, match="no update"):
        dx.jit(lifted_step)(model, optimizer)
    with pytest.raises(RuntimeError, match="no update"):
        optimizer.update(model, dx.state(model, dx.Param))
    check()


def test_the_state_owns_its_buffers() -> None:
    model = Net()
    keep = optax.GradientTransformation(lambda params: (params, params), lambda g, s, p=None: (g, s))
    optimizer = dx.Optimizer(model, keep, wrt=dx.Param)
    buffers = [id(leaf) for leaf in (*dx.state(model).leaves, *dx.state(optimizer).leaves)]
    assert len(set(buffers)) == len(buffers)


class Custom(NamedTuple):
    inner: Any
    nothing: None
    number: float


@jax.tree_util.register_pytree_with_keys_class
class Box:
    """A node that only jax knows."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("content"), self.content),), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Box:
        return cls(*children)


def test_states_of_any_shape() -> None:
    def init(params: Any) -> Any:
        per_param = jax.tree.map(lambda p: {"a": p, "b": (jnp.zeros(()), optax.MaskedNode())}, params)
        return [Custom(Box(per_param), None, 1.0), (), {}, {"z": np.ones(2), "a": Box([params])}]

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        return grads, jax.tree.map(lambda x: x + 1, state)

    model = Net()
    optimizer = dx.Optimizer(model, optax.GradientTransformation(init, update), wrt=dx.Param)
    assert optimizer.opt_state[0].inner.content["layers"][0]["kernel"]["a"].shape == (3, 4)
    before = opt_values(optimizer)
    step = dx.jit(lifted_step)
    step(model, optimizer)
    step(model, optimizer)
    assert_same(opt_values(optimizer), [value + 2 for value in before])


def test_a_state_that_changes_its_structure() -> None:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        return grads, (*state, jnp.ones(len(state)))

    model = Net()
    optimizer = dx.Optimizer(model, optax.GradientTransformation(lambda params: (), update), wrt=dx.Param)
    step = dx.jit(lifted_step)
    for count in (1, 2, 3):
        step(model, optimizer)
        assert [leaf.shape for leaf in opt_values(optimizer)] == [(n,) for n in range(count)]


def test_a_model_with_names_and_indices_on_one_level() -> None:
    class Layers(dx.List[Any]):
        def __init__(self) -> None:
            super().__init__([dx.Param(jnp.ones(2))])

    class Model(dx.Module):
        def __init__(self) -> None:
            self.table = dx.data({0: dx.Param(jnp.ones(1)), 10: dx.Param(jnp.ones(2))})
            self.layers = Layers()

    model = Model()
    optimizer = dx.Optimizer(model, optax.adam(0.1), wrt=dx.Param)
    optimizer.update(model, dx.state(model, dx.Param))
    assert len(jax.tree.leaves(optimizer)) == 2 + 2 * 3


def test_optimizers_copy_and_print() -> None:
    model = Net()
    optimizer = dx.Optimizer(model, optax.adam(0.1), wrt=dx.Param)
    copied = dx.clone(optimizer)
    lifted_step(model, copied)
    assert int(optimizer.step) == 0
    assert int(copied.step) == 1
    assert copied.tx is optimizer.tx
    assert "step=OptState(" in repr(optimizer)


@pytest.mark.parametrize("name", ["adamw", "multi_transform", "inject_schedule", "multi_steps", "adafactor"])
def test_optimizers_of_closures_pickle_by_cloudpickle(name: str) -> None:
    pytest.importorskip("cloudpickle")
    model = Net()
    optimizer = dx.Optimizer(model, TRANSFORMATIONS[name](), wrt=dx.Param)
    lifted_step(model, optimizer)
    copied = pickle.loads(pickle.dumps(optimizer))
    assert_same(dx.state(copied), dx.state(optimizer))
    twin = dx.clone(model)
    lifted_step(model, optimizer)
    lifted_step(twin, copied)
    assert_same(dx.state(twin), dx.state(model))


@pytest.mark.parametrize("name", SPECS)
def test_optimizers_from_specs_pickle_by_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    model = Net()
    optimizer = dx.Optimizer(model, SPECS[name]().build(), wrt=dx.Param)
    lifted_step(model, optimizer)
    copied = pickle.loads(pickle.dumps(optimizer))
    assert jax.tree.structure(copied) == jax.tree.structure(optimizer)
    assert_same(dx.state(copied), dx.state(optimizer))
    twin = dx.clone(model)
    lifted_step(model, optimizer)
    lifted_step(twin, copied)
    assert_same(dx.state(twin), dx.state(model))


def identity_of(updates: Any, state: Any, params: Any = None) -> Any:
    return updates, state


def no_state(params: Any) -> Any:
    return ()


def test_transformations_of_named_functions_pickle_without_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    optimizer = dx.Optimizer(Net(), optax.GradientTransformation(no_state, identity_of), wrt=dx.Param)
    assert pickle.loads(pickle.dumps(optimizer)).tx == optimizer.tx


def test_closures_without_cloudpickle_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cloudpickle")
    optimizer = dx.Optimizer(Net(), optax.adam(1e-3), wrt=dx.Param)
    assert pickle.loads(pickle.dumps(optimizer)).wrt is optimizer.wrt
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(errors.MissingExtraError, match=r"closures, which cannot be pickled without cloudpickle"):
        pickle.dumps(optimizer)


def test_what_no_spec_describes_equals_only_itself() -> None:
    tx = dx.spec(optax.sgd, 0.1).build()
    static = StaticTransformation(tx)
    assert static == StaticTransformation(dx.spec(optax.sgd, 0.1).build())
    assert hash(static) == hash(StaticTransformation(dx.spec(optax.sgd, 0.1).build()))
    assert static != StaticTransformation(optax.GradientTransformation(no_state, tx.update))
    assert static != tx
    assert copy.copy(static) is copy.deepcopy(static) is static
    assert repr(static) == "spec(sgd, learning_rate=0.1)"


def test_branches_read_and_write() -> None:
    (adam, _) = dx.Optimizer(Net(), optax.adam(0.1)).opt_state
    layer = adam.mu["layers"][0]
    assert list(adam.mu) == ["layers"]
    assert list(layer) == ["bias", "kernel"]
    assert len(layer) == 2
    assert layer.kernel is layer["kernel"] is dict(layer.items())["kernel"]
    assert "bias" in layer
    assert layer.get("scale") is None
    assert layer != adam.nu["layers"][0]
    with pytest.raises(errors.MissingKeyError, match=r"Branch\['kernl'\]: there is no key 'kernl'") as caught:
        layer["kernl"]
    assert caught.value.fix == "did you mean 'kernel'?"
    with pytest.raises(errors.MissingKeyError, match="there is no key 'scale'"):
        layer["scale"] = 1
    layer["bias"] = OptArray(jnp.array(3))
    assert layer.bias.value == 3

    @jax.jit
    def leak(x: jax.Array) -> jax.Array:
        layer["bias"] = x
        return x

    with pytest.raises(errors.TraceContextError, match="from a different trace level"):
        leak(jnp.ones(()))


def test_a_jitted_step_sees_another_entry_of_the_state() -> None:
    model = Net()
    optimizer = dx.Optimizer(model, optax.inject_hyperparams(optax.sgd)(learning_rate=1.0), wrt=dx.Param)
    rate_of = dx.jit(lambda optimizer: optimizer.opt_state.hyperparams["learning_rate"] + 0)
    assert [float(rate_of(optimizer)) for _ in range(3)] == [1.0] * 3
    optimizer.opt_state.hyperparams["learning_rate"] = OptArray(jnp.array(0.5))
    assert float(rate_of(optimizer)) == 0.5
    optimizer.opt_state = optimizer.opt_state._replace(hyperparams={"learning_rate": jnp.array(0.25)})
    assert float(rate_of(optimizer)) == 0.25


def test_the_layout_compares_by_value() -> None:
    one, two = OptLayout((1, {"a": 2}), ()), OptLayout((1, {"a": 2}), ())
    assert one == two
    assert hash(one) == hash(two)
    assert one != OptLayout((1, {"b": 2}), ())
    assert one != OptLayout((1, {"a": 2}), (("x",),))
    assert one != 1


def test_importing_declax_does_not_import_optax() -> None:
    code = "import sys, declax; sys.exit('optax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_perturbations_made_after_the_optimizer_do_not_disturb_it() -> None:
    class Model(dx.Module):
        def __init__(self) -> None:
            self.first, self.second = Dense(3, 4), Dense(4, 2, key=1)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.second(self.perturb("hidden", jnp.tanh(self.first(x))))

    model = Model()
    optimizer = dx.Optimizer(model, optax.sgd(0.1), wrt=dx.Param)
    model(X)

    @dx.jit
    def step(model: Model, optimizer: dx.Optimizer[Model]) -> tuple[jax.Array, Any]:
        graphdef, params, perturbations = dx.split(model, dx.Param, dx.Perturbation)

        def loss_fn(params: Any, perturbations: Any) -> jax.Array:
            model = dx.merge(graphdef, params, perturbations)
            return jnp.mean((model(X) - Y) ** 2)

        loss, (grads, inner) = dx.value_and_grad(loss_fn, argnums=(0, 1))(params, perturbations)
        optimizer.update(model, grads)
        return loss, inner

    (first, inner), (second, _) = step(model, optimizer), step(model, optimizer)
    assert second < first
    assert inner["hidden"].shape == (4, 4)
    assert np.any(np.asarray(inner["hidden"]))
    assert int(optimizer.step) == 2

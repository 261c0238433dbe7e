"""Parts of the parameters for optax: labels and masks by filters, `trainable` and `weight_decay`."""

from __future__ import annotations

import tomllib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.errors import OptimizerError


@dx.dataclass
class Net(dx.Layer):
    body: dx.MLP = dx.MLP(2, 4)
    head: dx.Linear = dx.Linear(2, 2)
    gain: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones, weight_decay=False)
    fixed: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones, trainable=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.body(x)) * self.gain + self.fixed


def loss_of(net: Net) -> jax.Array:
    return (net(jnp.ones((3, 2))) ** 2).sum()


def changes(tx: optax.GradientTransformation, wrt: dx.Filter = dx.Param) -> dict[str, np.ndarray]:
    """By path, how a compiled step changes the parameters."""
    net = Net(rngs=dx.Rngs(0))
    before = dx.state(net)
    optimizer = dx.Optimizer(net, tx, wrt=wrt)

    @dx.jit
    def step(net, optimizer):
        optimizer.update(net, dx.grad(loss_of, argnums=dx.DiffState(0, wrt))(net))

    step(net, optimizer)
    rows = zip(before.paths, dx.state(net).leaves, before.leaves, strict=True)
    return {".".join(map(str, path)): np.asarray(new - old) for path, new, old in rows}


def gradients() -> dict[str, np.ndarray]:
    grads = dx.grad(loss_of)(Net(rngs=dx.Rngs(0)))
    return {".".join(map(str, path)): np.asarray(leaf) for path, leaf in zip(grads.paths, grads.leaves, strict=True)}


@pytest.mark.slow
def test_each_parameter_is_treated_by_the_first_filter_that_takes_it():
    tx = dx.by_filter({"head.*": optax.sgd(1.0), dx.PathContains("kernel"): optax.sgd(0.1), ...: optax.set_to_zero()})
    expected = {"head.kernel": -1.0, "head.bias": -1.0, "body.up.kernel": -0.1, "body.down.kernel": -0.1}
    grads = gradients()
    for path, change in changes(tx).items():
        np.testing.assert_allclose(
            change, expected.get(path, 0.0) * grads.get(path, 0.0), rtol=1e-3, atol=1e-5, err_msg=path
        )


def test_weight_decay_false_on_a_field():
    decayed = changes(optax.adamw(1.0, weight_decay=0.5, mask=dx.mask_by(dx.is_decayed)))
    plain = changes(optax.adamw(1.0, weight_decay=0.0))
    np.testing.assert_allclose(decayed["gain"], plain["gain"], atol=1e-5)
    kernel = Net(rngs=dx.Rngs(0)).head.kernel.value
    np.testing.assert_allclose(decayed["head.kernel"], plain["head.kernel"] - 0.5 * kernel, atol=1e-5)


def test_trainable_is_one_filter_for_gradients_and_optimizer():
    net = Net(rngs=dx.Rngs(0))
    assert ("fixed",) not in dx.state(net, dx.is_trainable).paths
    assert len(dx.state(net, dx.is_trainable).paths) == len(dx.state(net, dx.Param).paths) - 1
    changed = changes(optax.sgd(0.1), wrt=dx.is_trainable)
    assert not changed["fixed"].any()
    assert changed["gain"].any()


def test_gradients_and_optimizers_leave_out_what_is_not_trainable():
    net = Net(rngs=dx.Rngs(0))
    fixed = net.fixed.value
    trained = dx.state(net, dx.is_trainable).paths
    assert dx.grad(loss_of)(net).paths == trained
    assert dx.grad(loss_of, argnums=dx.DiffState(0))(net).paths == trained
    assert dx.accumulate(lambda net, x: loss_of(net), 1)(net, jnp.ones(1))[1].paths == trained
    for optimizer in (dx.Optimizer(net, optax.sgd(0.1)), dx.ModelAndOptimizer(net, optax.sgd(0.1))):
        assert optimizer.wrt is dx.is_trainable
        given = (dx.grad(loss_of)(net),)
        optimizer.update(*given if isinstance(optimizer, dx.ModelAndOptimizer) else (net, *given))
    assert net.fixed.value is fixed


def test_a_filter_says_what_is_taken():
    net = Net(rngs=dx.Rngs(0))
    grads = dx.grad(loss_of, argnums=dx.DiffState(0, dx.Param))(net)
    assert ("fixed",) in grads.paths
    optimizer = dx.Optimizer(net, optax.sgd(0.1), wrt=dx.Param)
    with pytest.raises(OptimizerError, match="missing: fixed"):
        optimizer.update(net, dx.grad(loss_of)(net))
    fixed = net.fixed.value
    optimizer.update(net, grads)
    assert (net.fixed.value != fixed).all()


def test_metadata_that_changes_is_seen():
    net = Net(rngs=dx.Rngs(0))
    dx.set_metadata(net, only=dx.PathContains("body"), trainable=False)
    dx.set_metadata(net, only=dx.PathContains("fixed"), trainable=True)
    assert {path[0] for path in dx.grad(loss_of)(net).paths} == {"fixed", "gain", "head"}


def test_without_metadata_the_filter_is_that_of_params():
    model = dx.MLP(2, 4, rngs=dx.Rngs(0))
    assert dx.state(model, dx.is_trainable).definition is dx.state(model, dx.Param).definition
    assert repr(dx.is_trainable) == "is_trainable"


def test_a_mask_sees_shapes():
    net = Net(rngs=dx.Rngs(0))
    mask = dx.mask_by(lambda path, value: value.ndim > 1)(dx.state(net, dx.Param))
    taken = {".".join(path) for path, value in zip(mask.paths, mask.leaves, strict=True) if value}
    assert taken == {"body.up.kernel", "body.down.kernel", "head.kernel"}


def test_filters_that_leave_something_out():
    net = Net(rngs=dx.Rngs(0))
    with pytest.raises(OptimizerError, match=r"by_filter: no filter matches the parameter body\.down\.bias"):
        dx.Optimizer(net, dx.by_filter({"head.*": optax.sgd(0.1)}))
    with pytest.raises(OptimizerError, match=r"by_filter: the filter PathMatches\('tail\.\*'\) matches no parameter"):
        dx.Optimizer(net, dx.by_filter({"tail.*": optax.sgd(0.1), ...: optax.sgd(0.1)}))
    with pytest.raises(OptimizerError, match="mask_by: filters need the paths and kinds of a State"):
        dx.mask_by(dx.Param)({"a": jnp.ones(2)})


def net_with(tx: Any) -> dx.Optimizer[Net]:
    return dx.Optimizer(Net(rngs=dx.Rngs(0)), tx)


@pytest.mark.parametrize(
    ("mask", "written"),
    [
        ("kernel", "dx.PathContains('kernel')"),
        ("*.kernel", "dx.PathMatches('*.kernel')"),
        (["kernel", "gain"], "(dx.PathContains('kernel'), dx.PathContains('gain'))"),
        ({"head": "kernel"}, "dx.PathContains('kernel')"),
        (dx.Param, "Param"),
        (dx.is_decayed, "is_decayed"),
        (..., "..."),
    ],
)
def test_names_and_filters_are_no_masks(mask: Any, written: str):
    adamw = optax.adamw(1e-3, mask=mask)
    for tx in (adamw, optax.chain(optax.clip(1.0), adamw), optax.MultiSteps(adamw, 2), dx.by_filter({...: adamw})):
        with pytest.raises(OptimizerError, match=r"Optimizer\.tx: a mask of optax is no name and no filter") as caught:
            net_with(tx)
        assert caught.value.fix == f"mask=dx.mask_by({written})"


def test_a_spec_refuses_names_as_masks():
    spec = dx.spec(optax.chain, dx.spec(optax.adamw, 1e-3, mask="kernel"))
    with pytest.raises(OptimizerError, match="adamw: a mask of optax is no name") as caught:
        spec.build()
    assert "mask=dx.spec(dx.mask_by, dx.PathContains('kernel'))" in str(caught.value.fix)
    table = {"kind": "adamw", "learning_rate": 1e-3, "mask": ["kernel"]}
    with pytest.raises(OptimizerError, match="adamw: a mask of optax is no name") as caught:
        dx.from_config(optax.GradientTransformation, table)
    _, line, _ = str(caught.value.fix).splitlines()
    written = tomllib.loads(line)  # the fix is a line of a file
    tx = dx.from_config(optax.GradientTransformation, table | written, extra=[dx.mask_by, dx.PathContains])
    assert net_with(tx).optax_state()
    by_spec = dx.spec(optax.adamw, 1e-3, mask=dx.spec(dx.mask_by, dx.PathContains("kernel")))
    assert net_with(by_spec.build()).tx is not None


def test_masks_that_are_no_names_are_accepted():
    kernels = dx.mask_by(dx.PathContains("kernel"))
    net = Net(rngs=dx.Rngs(0))
    for mask in (
        True,
        np.bool_(False),
        kernels,
        kernels(dx.state(net, dx.is_trainable)),
        lambda params: True,
        dx.mask_by(None),
    ):
        net_with(optax.adamw(1e-3, mask=mask))
    labels = jax.tree.map(lambda _: "all", dx.state(net, dx.is_trainable))
    net_with(optax.multi_transform({"all": optax.sgd(0.1)}, labels))
    net_with(dx.by_filter({"body.**": optax.adamw(1e-3, mask=kernels), ...: optax.sgd(0.1)}))

    def own(mask: str) -> optax.GradientTransformation:
        return optax.GradientTransformation(lambda params: optax.EmptyState(), lambda g, s, p=None: (g, (s, mask)[0]))

    net_with(own("kernel"))


def test_a_mask_that_takes_nothing():
    with pytest.raises(OptimizerError, match="mask_by: the filter 'kernel' matches no parameter") as caught:
        net_with(optax.adamw(1e-3, mask=dx.mask_by("kernel")))
    assert "dx.mask_by(dx.PathContains('kernel'))" in str(caught.value.fix)

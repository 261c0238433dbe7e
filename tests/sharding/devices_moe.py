"""`MoE` on eight devices: the values and gradients of one device, and what the compiled program exchanges."""

from __future__ import annotations

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx

P = jax.P
NAMES = {"out_sharding": ("experts", None, "mlp")}
DOWN = {"out_sharding": ("experts", "mlp", None)}
BATCH = (16, 12, 6)

MESHES = {
    "experts": ({"expert": 8}, {"experts": "expert"}, P("expert")),
    "batch and experts": ({"data": 2, "expert": 4}, {"experts": "expert"}, P(("data", "expert"))),
    "both ways": ({"data": 2, "expert": 2, "model": 2}, {"experts": "expert", "mlp": "model"}, P(("data", "expert"))),
    "experts along the batch": ({"data": 8}, {"experts": "data"}, P("data")),
    "batch alone": ({"data": 8}, {}, P("data")),
}
ON_BOTH = pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])


def make(factor, **options):
    return dx.MoE(
        6, 16, 8, capacity_factor=factor, kernel_metadata=NAMES, down_kernel_metadata=DOWN, rngs=dx.Rngs(0), **options
    )


def loss_of(layer, x):
    y, sown = dx.capture(layer, dx.Intermediate)(x)
    loss = jnp.tanh(y).sum() + 10 * sown["balance_loss"].value[0]
    return loss, (y, sown["balance_loss"].value[0])


@dx.jit
def step(layer, x):
    (loss, (y, balance)), grads = dx.value_and_grad(loss_of, has_aux=True)(layer, x)
    return loss, y, balance, grads


def mesh_and_rules(where, kind):
    sizes, rules, batch = MESHES[where]
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))
    return mesh, {"experts": None, "mlp": None, **rules}, batch


def exchanges(text):
    """How often a compiled program has each collective operation."""
    found = re.findall(r" (all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute)(?:-start)?\(", text)
    return Counter(found)


@pytest.mark.parametrize(
    ("where", "kind", "factor"),
    [
        ("batch and experts", AxisType.Auto, 0.75),
        ("batch and experts", AxisType.Auto, None),
        ("both ways", AxisType.Explicit, 0.75),
        ("experts along the batch", AxisType.Auto, None),
        ("batch alone", AxisType.Auto, None),
    ],
)
def test_eight_devices_compute_what_one_does(where, kind, factor):
    x = jax.random.normal(jax.random.key(1), BATCH)
    expected = step(make(factor), x)
    mesh, rules, batch = mesh_and_rules(where, kind)
    with jax.set_mesh(mesh), dx.sharding_rules(rules):
        layer = make(factor)
        found = step(layer, jax.device_put(x, batch))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    for parameter, grad in zip(jax.tree.leaves(dx.state(layer)), jax.tree.leaves(found[-1]), strict=True):
        assert grad.sharding.is_equivalent_to(parameter.sharding, grad.ndim)


@pytest.mark.parametrize("where", ["batch and experts", "experts along the batch"])
@ON_BOTH
def test_tokens_go_to_their_experts_and_back(where, kind):
    """Two all-to-alls forward, and one backward, since the input has no gradient; no kernel is gathered."""
    mesh, rules, batch = mesh_and_rules(where, kind)
    with jax.set_mesh(mesh), dx.sharding_rules(rules):
        layer = make(1.25)
        x = jax.device_put(jnp.ones(BATCH), batch)
        forward = dx.jit(lambda layer, x: layer(x)).lower(layer, x).compile().as_text()
        both = step.lower(layer, x).compile().as_text()
    assert exchanges(forward)["all-to-all"] == 2
    assert exchanges(both)["all-to-all"] == 3
    assert not exchanges(forward)["all-gather"]
    whole = {"8,6,16", "8,16,6"}
    assert not whole & set(re.findall(r"f32\[([\d,]+)\]", both)), "a device holds the kernels of all experts"


@ON_BOTH
def test_dropless_gathers_the_kernels(kind):
    mesh, rules, batch = mesh_and_rules("experts", kind)
    with jax.set_mesh(mesh), dx.sharding_rules(rules):
        layer = make(None)
        x = jax.device_put(jnp.ones(BATCH), batch)
        text = dx.jit(lambda layer, x: layer(x)).lower(layer, x).compile().as_text()
    assert exchanges(text) == {"all-gather": 3}


def test_a_batch_that_the_axis_does_not_divide_is_computed_too():
    x = jax.random.normal(jax.random.key(1), (3, 12, 6))
    mesh, rules, _ = mesh_and_rules("experts", AxisType.Auto)
    with jax.set_mesh(mesh), dx.sharding_rules(rules):
        y = dx.jit(lambda layer, x: layer(x))(make(1.25), x)
    np.testing.assert_allclose(y, make(1.25)(x), rtol=1e-4, atol=1e-5)


def test_without_set_mesh_the_mesh_is_that_of_the_arguments():
    mesh, rules, batch = mesh_and_rules("experts", AxisType.Auto)
    x = jax.random.normal(jax.random.key(1), BATCH)
    expected = make(1.25)(x)
    with dx.sharding_rules(rules):
        layer = dx.init_sharded(make, 1.25, mesh=mesh)
        run = dx.jit(lambda layer, x: layer(x))
        placed = jax.device_put(x, NamedSharding(mesh, batch))
        np.testing.assert_allclose(run(layer, placed), expected, rtol=1e-4, atol=1e-5)
        assert exchanges(run.lower(layer, placed).compile().as_text())["all-to-all"] == 2


def test_blocks_of_a_stack_exchange_in_their_loop():
    mesh, rules, batch = mesh_and_rules("batch and experts", AxisType.Auto)
    x = jax.random.normal(jax.random.key(1), BATCH)

    def stack():
        blocks = dx.Stacked(
            lambda rngs: dx.MoE(
                6, 8, 4, capacity_factor=1.0, kernel_metadata=NAMES, down_kernel_metadata=DOWN, rngs=rngs
            ),
            3,
            rngs=dx.Rngs(0),
        )
        return blocks, dx.Optimizer(blocks, optax.sgd(0.1), wrt=dx.Param)

    @dx.jit
    def train(blocks, optimizer, x):
        loss, grads = dx.value_and_grad(lambda blocks: ((blocks(x) - x) ** 2).mean())(blocks)
        optimizer.update(blocks, grads)
        return loss

    alone = stack()
    expected = [float(train(*alone, x)) for _ in range(3)]
    with jax.set_mesh(mesh), dx.sharding_rules(rules):
        pair = dx.init_sharded(stack)
        x = jax.device_put(x, batch)
        assert exchanges(train.lower(*pair, x).compile().as_text())["all-to-all"] == 4
        found = [float(train(*pair, x)) for _ in range(3)]
        assert train.num_compilations == 2  # of one device, and of eight
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_experts_that_a_shard_map_splits_are_an_error():
    mesh, _, _ = mesh_and_rules("experts", AxisType.Auto)
    layer = dx.MoE(6, 16, 8, rngs=dx.Rngs(0))
    specs = dx.StateSharding({dx.PathContains("router"): None, ...: P("expert")})
    call = dx.shard_map(lambda layer, x: layer(x), mesh=mesh, in_specs=(specs, P("expert")), out_specs=P("expert"))
    with pytest.raises(dx.errors.LayerError, match="sees only a part of the experts"):
        call(layer, jnp.ones(BATCH))
    whole = dx.shard_map(lambda layer, x: layer(x), mesh=mesh, in_specs=(None, P("expert")), out_specs=P("expert"))
    np.testing.assert_allclose(whole(layer, jnp.ones(BATCH)), layer(jnp.ones(BATCH)), rtol=1e-4, atol=1e-5)


SPLIT_TOKENS = {
    "tokens": ((16, 12, 6), P(None, "data"), P("data")),
    "examples and tokens": ((16, 12, 6), P("model", "data"), P(("model", "data"))),
    "too few examples": ((3, 12, 6), P(None, "data"), P()),
    "one example": ((12, 6), P("data"), None),
    "two axes of examples": ((2, 8, 12, 6), P(None, "data", "model"), P()),
}


@pytest.mark.parametrize("factor", [None, 1.25])
@pytest.mark.parametrize("case", SPLIT_TOKENS)
def test_explicit_axes_that_split_the_tokens_of_an_example(case, factor):
    """The result is split as the input is, and the layer computes with whole examples."""
    shape, spec, within = SPLIT_TOKENS[case]
    if within is None:
        within = spec if factor is None else P()
    x = jax.random.normal(jax.random.key(1), shape)
    alone = dx.MoE(6, 16, 8, capacity_factor=factor, rngs=dx.Rngs(0))
    _, y, balance, grads = step(alone, x)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    with jax.set_mesh(mesh):
        layer = dx.init_sharded(lambda: dx.MoE(6, 16, 8, capacity_factor=factor, rngs=dx.Rngs(0)))
        split = jax.device_put(x, NamedSharding(mesh, spec))
        _, found, balance_found, grads_found = step(layer, split)
        assert jax.typeof(layer._with_whole_examples(split)).sharding.is_equivalent_to(
            NamedSharding(mesh.abstract_mesh, within), len(shape)
        )
        assert jax.typeof(layer(split)).sharding.is_equivalent_to(NamedSharding(mesh.abstract_mesh, spec), len(shape))
    np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(balance_found, balance, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(grads_found), jax.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)

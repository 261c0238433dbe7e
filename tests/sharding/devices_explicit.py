"""One transformer on meshes of explicit axes: fully sharded, tensor and sequence parallel, as its names say."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import declax as dx

P = jax.P
ACTIVATIONS = ("batch", "length", "embed")


def named(parameter, activations):
    return {"out_sharding": parameter, "act_names": activations}


@dx.dataclass
class Block(dx.Layer):
    width: int = dx.field()
    norm = dx.LayerNorm(width)
    attention = dx.MultiHeadAttention(
        4,
        width,
        decode=False,
        kernel_metadata=named(("embed", "heads", None), ("batch", None, "heads", None)),
        out_kernel_metadata=named(("heads", None, "embed"), ACTIVATIONS),
    )
    mlp_norm = dx.RMSNorm(width)
    mlp = dx.GatedMLP(
        width,
        4 * width,
        kernel_metadata=named(("embed", "mlp"), ("batch", None, "mlp")),
        down_kernel_metadata=named(("mlp", "embed"), ACTIVATIONS),
    )

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.mlp_norm(x))


@dx.dataclass
class Transformer(dx.Layer):
    vocabulary: int = dx.field()
    width: int = dx.field()
    depth: int = dx.field()
    embed = dx.Embed(vocabulary, width, embedding_metadata=named(("vocabulary", "embed"), ACTIVATIONS))
    blocks = dx.Stacked(Block(width), depth)
    norm = dx.LayerNorm(width)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        logits = self.embed.attend(self.norm(self.blocks(self.embed(tokens))))
        return dx.with_sharding_constraint(logits, ("batch", "length", None))


WHOLE = dict.fromkeys(("batch", "length", "embed", "heads", "mlp", "vocabulary"))
TENSOR = {"heads": "model", "mlp": "model"}
STRATEGIES = {
    "data": ((8, 1), {"batch": "data"}, False),
    "fsdp": ((8, 1), {"batch": "data"}, True),
    "tensor": ((1, 4), TENSOR, False),
    "fsdp and tensor": ((2, 4), {"batch": "data", **TENSOR}, True),
    "vocabulary": ((2, 4), {"batch": "data", "vocabulary": "model"}, False),
    "sequence": ((2, 4), {"batch": "data", "length": "model", **TENSOR}, False),
    "fsdp and sequence": ((2, 4), {"batch": "data", "length": "model", **TENSOR}, True),
}


def make():
    model = Transformer(32, 16, 2, rngs=dx.Rngs(0))
    return model, dx.Optimizer(model, optax.adam(1e-2))


def loss_of(model, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens), tokens).mean()


@dx.jit
def train_step(model, optimizer, tokens):
    loss, grads = dx.value_and_grad(loss_of)(model, tokens)
    optimizer.update(model, grads)
    return loss


def tokens_of(mesh=None, spec=None):
    tokens = jax.random.randint(jax.random.key(1), (8, 16), 0, 32)
    return tokens if mesh is None else jax.device_put(tokens, jax.NamedSharding(mesh, spec))


@functools.cache
def losses_alone():
    model, optimizer = make()
    return [float(train_step(model, optimizer, tokens_of())) for _ in range(3)]


def run(name, kind):
    sizes, rules, is_fully_sharded = STRATEGIES[name]
    count = sizes[0] * sizes[1]
    mesh = jax.make_mesh(sizes, ("data", "model"), axis_types=(kind,) * 2, devices=jax.devices()[:count])
    with jax.set_mesh(mesh), dx.sharding_rules({**WHOLE, **rules}):
        shardings = functools.partial(dx.fsdp, min_size=64) if is_fully_sharded else None
        model, optimizer = dx.init_sharded(make, shardings=shardings)
        before = jax.tree.map(lambda leaf: leaf.sharding, dx.state((model, optimizer)))
        tokens = tokens_of(mesh, P("data" if "batch" in rules else None))
        step = dx.jit(train_step)
        losses = [float(step(model, optimizer, tokens)) for _ in range(3)]
        after = jax.tree.map(lambda leaf: leaf.sharding, dx.state((model, optimizer)))
        for leaf, one, two in zip(
            jax.tree.leaves(dx.state((model, optimizer))), jax.tree.leaves(before), jax.tree.leaves(after), strict=True
        ):
            assert one.is_equivalent_to(two, leaf.ndim)
        assert step.num_traces == step.num_compilations == 1
        return losses, model, tokens


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, AxisType.Explicit) for name in STRATEGIES), ("fsdp and sequence", AxisType.Auto)]
)
def test_a_transformer_trains_as_on_one_device(name, kind):
    losses, *_ = run(name, kind)
    np.testing.assert_allclose(losses, losses_alone(), rtol=1e-5)


def exchanges(text):
    kinds = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
    return {kind for kind in kinds if f" {kind}(" in text or f" {kind}-start(" in text}


def program_of(rules, *, is_fully_sharded=False, sizes=(2, 4)):
    mesh = jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh), dx.sharding_rules({**WHOLE, **rules}):
        shardings = functools.partial(dx.fsdp, min_size=64) if is_fully_sharded else None
        block = dx.init_sharded(Block, 16, rngs=dx.Rngs(0), shardings=shardings)
        place = P(*(rules.get(name) for name in ("batch", "length", "embed")))
        x = jax.device_put(jnp.ones((8, 16, 16)), place)
        forward = dx.jit(lambda block, x: block(x))
        assert jax.typeof(forward(block, x)).sharding.spec == P(*place)
        return forward.lower(block, x).compile().as_text()


def test_the_collectives_of_the_forward_pass():
    assert exchanges(program_of({"batch": "data"})) == set()
    assert exchanges(program_of({"batch": "data"}, is_fully_sharded=True, sizes=(8, 1))) == {"all-gather"}
    assert exchanges(program_of({"batch": "data", **TENSOR})) == {"all-reduce"}
    assert "all-gather" in exchanges(program_of({"batch": "data", "length": "model", **TENSOR}))


@dx.dataclass
class Map(dx.Layer):
    names: tuple[str | None, ...] = dx.field()
    width: int = dx.field(default=8)
    up = dx.Linear(width, 2 * width, kernel_metadata={"out_sharding": (None, "model"), "act_names": names})

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.up(x)


def test_accumulated_gradients():
    """The sums that the loop carries have the shardings of the gradients."""
    layer, x = dx.Linear(16, 8, rngs=dx.Rngs(0)), jax.random.normal(jax.random.key(0), (32, 16))
    compute = dx.jit(dx.accumulate(lambda layer, x: jnp.tanh(layer(x)).mean(), steps=2))
    expected = compute(layer, x)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        shardings = functools.partial(dx.fsdp, min_size=1)
        made = dx.init_sharded(dx.Linear, 16, 8, rngs=dx.Rngs(0), shardings=shardings)
        loss, grads = compute(made, jax.device_put(x, P("data")))
        assert grads["kernel"].value.sharding.spec == made.kernel.sharding.spec == P("data", None)
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    np.testing.assert_allclose(grads["kernel"].value, expected[1]["kernel"].value, rtol=1e-5)


def test_uneven_sizes_of_activations():
    names = {"act_names": (None, "model")}
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        layer, x = dx.Linear(8, 6, kernel_metadata=names, rngs=dx.Rngs(0)), jnp.ones((8, 8))
        with pytest.raises(dx.errors.ShardingError, match=r"dimension 1 of \(8, 6\).*not divisible by 4"):
            layer(x)
        rules = dx.sharding_rules({}, otherwise="replicate")
        with rules, pytest.warns(dx.errors.ReplicationWarning, match="act_names"):
            assert jax.typeof(layer(x)).sharding.spec == P(None, None)


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_functions_of_one_example_in_vmap(kind):
    """They use the names of the batch, also in loops and compiled functions: the first name is left out."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
    tokens = jax.random.randint(jax.random.key(0), (4, 8), 0, 32)

    def make():
        return Transformer(32, 16, 2, rngs=dx.Rngs(0))

    def of_each(model, tokens):
        return dx.vmap(lambda model, tokens: model.blocks(model.embed(tokens)), in_axes=(None, 0))(model, tokens)

    def summed(model, tokens):
        return jnp.sum(model.blocks(model.embed(tokens)) ** 2)

    def grads_of_each(model, tokens):
        return dx.vmap(dx.grad(summed), in_axes=(None, 0))(model, tokens)

    hidden, grads = of_each(make(), tokens), grads_of_each(make(), tokens)
    rules = {"batch": "data", "length": None, "embed": None, "heads": "model", "mlp": "model", "vocabulary": None}
    with jax.set_mesh(mesh), dx.sharding_rules(rules):
        model, split = make(), jax.device_put(tokens, P("data"))
        for compute in (of_each, dx.jit(of_each), dx.jit(dx.remat(of_each))):
            found = compute(model, split)
            np.testing.assert_allclose(found, hidden, rtol=1e-5, atol=1e-6)
            assert found.sharding.shard_shape(found.shape) == (2, 8, 16)
        for found, expected in zip(*map(jax.tree.leaves, (dx.jit(grads_of_each)(model, split), grads)), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
        twice = dx.vmap(of_each, in_axes=(None, 0))
        assert dx.jit(twice)(model, jnp.stack([tokens, tokens])).shape == (2, 4, 8, 16)


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_names_of_activations_in_vmap(kind):
    """As many may be left out as there are mapped axes; those of all dimensions of one example stay as they are."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
    x = jnp.ones((4, 6, 8))
    with jax.set_mesh(mesh):
        for names in (("data", None, "model"), (None, "model")):
            model = Map(names, rngs=dx.Rngs(0))
            y = dx.jit(lambda model, x: dx.vmap(model)(x))(model, x)
            assert y.sharding.shard_shape(y.shape)[1:] == (6, 4)
        for names in ((None, "data", None, "model"), ("model",)):
            model = Map(names, rngs=dx.Rngs(0))
            with pytest.raises(dx.errors.LayerError, match="2 names or None, one for each dimension"):
                dx.vmap(model)(x)
        with pytest.raises(dx.errors.LayerError, match="vmap leaves out the first name") as caught:
            jax.vmap(Map(("data", None, "model"), rngs=dx.Rngs(0)))(x)
        assert "act_names, in up of Map" in str(caught.value)
        y = dx.jit(lambda model, x: dx.vmap(model, spmd_axis_name="data")(x))(Map((None, "model"), rngs=dx.Rngs(0)), x)
        assert y.sharding.shard_shape(y.shape) == ((2, 6, 4) if kind is AxisType.Auto else (4, 6, 4))
        with pytest.raises(dx.errors.LayerError):  # and afterwards all names count
            Map(("data", None, "model"), rngs=dx.Rngs(0))(x[0])


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_names_of_activations_that_do_not_fit(kind):
    x = jnp.ones((8, 8))
    layer = Map((None, None, "model"), rngs=dx.Rngs(0))
    assert layer(x).shape == jax.vmap(layer)(x[None]).shape[1:] == (8, 16)  # without a mesh they have no effect
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        made = Map((None, None, "model"), rngs=dx.Rngs(0))
        with pytest.raises(dx.errors.LayerError, match="2 names or None, one for each dimension") as caught:
            dx.jit(lambda model, x: model(x))(made, x)
        assert "act_names, in up of Map" in str(caught.value)
        unknown = Map(("batsch", "model"), rngs=dx.Rngs(0))
        with pytest.raises(dx.errors.ShardingError, match="batsch"):
            dx.jit(lambda model, x: model(x))(unknown, x)


def test_a_rule_that_only_activations_use_is_no_slip():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    rules = {**WHOLE, "batch": "data"}
    with dx.sharding_rules(rules):
        assert "rules that no Variable uses" not in str(dx.plan(dx.eval_shape(make)[0], mesh))
    del rules["length"]
    with dx.sharding_rules({**rules, "lenght": "model"}), pytest.raises(dx.errors.ShardingError, match="length"):
        dx.plan(dx.eval_shape(make)[0], mesh)


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_the_names_survive_a_checkpoint_and_a_copy(tmp_path, kind):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        layer = Map(("data", "model"), rngs=dx.Rngs(0))
        dx.save(tmp_path / "saved", {"layer": layer})
        loaded = dx.load(tmp_path / "saved", extra=[Map])["layer"]
        for one in (layer, loaded, dx.clone(layer), dx.merge(*dx.split(layer))):
            y = dx.jit(lambda model, x: model(x))(one, jnp.ones((8, 8)))
            assert y.sharding.spec == P("data", "model")


def test_a_whole_batch_on_shards_of_fsdp():
    """As in an evaluation of few examples: shards that no name declares are gathered, and split no activation."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.random.normal(jax.random.key(0), (3, 8))
    with jax.set_mesh(mesh):
        for axis in ("data", ("data", "model"), ("model", "data")):
            shardings = functools.partial(dx.fsdp, axis=axis, min_size=1)
            layer = dx.init_sharded(dx.MLP, 8, 16, rngs=dx.Rngs(0), shardings=shardings)
            assert not layer.up.kernel.sharding.is_fully_replicated
            y = dx.jit(lambda layer, x: layer(x))(layer, x)
            assert jax.typeof(y).sharding.spec == P(None, None)
            np.testing.assert_allclose(y, dx.MLP(8, 16, rngs=dx.Rngs(0))(np.asarray(x)), rtol=1e-5, atol=1e-6)


def test_names_on_the_automatic_axes_of_a_mesh():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with jax.set_mesh(mesh):
        layer = Map((None, "model"), rngs=dx.Rngs(0))
        y = dx.jit(lambda layer, x: layer(x))(layer, jax.device_put(jnp.ones((4, 8)), P("data")))
    np.testing.assert_allclose(y, Map((None, None), rngs=dx.Rngs(0))(jnp.ones((4, 8))), rtol=1e-5)


LAYERS_WITH_NAMES = {
    "Linear": lambda names: dx.Linear(16, 8, kernel_metadata=names, rngs=dx.Rngs(0)),
    "LinearGeneral": lambda names: dx.LinearGeneral(16, 8, kernel_metadata=names, rngs=dx.Rngs(0)),
    "Einsum": lambda names: dx.Einsum("bli,io->blo", (16, 8), (8,), kernel_metadata=names, rngs=dx.Rngs(0)),
    "Conv": lambda names: dx.Conv(16, 8, (3,), kernel_metadata=names, rngs=dx.Rngs(0)),
    "LoRALinear": lambda names: dx.LoRALinear(16, 8, lora_rank=2, kernel_metadata=names, rngs=dx.Rngs(0)),
}


@pytest.mark.parametrize("name", LAYERS_WITH_NAMES)
def test_the_argument_of_a_call_goes_before_the_names(name):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        layer = LAYERS_WITH_NAMES[name]({"act_names": ("data", None, None)})
        x = jax.device_put(jnp.ones((4, 8, 16)), P("data"))
        assert jax.typeof(layer(x)).sharding.spec == P("data", None, None)
        place = P("data", None, "model")
        y = dx.jit(lambda layer, x: layer(x, out_sharding=place))(layer, x)
        assert jax.typeof(layer(x, out_sharding=place)).sharding.spec == y.sharding.spec == place


@pytest.mark.parametrize("name", sorted({*LAYERS_WITH_NAMES} - {"Einsum"}))  # whose equation names the batch
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_layers_with_names_in_vmap(name, kind):
    x = jax.random.normal(jax.random.key(0), (4, 8, 16))
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        layer = LAYERS_WITH_NAMES[name]({"act_names": ("data", "model", None)})
        y = dx.jit(lambda layer, x: dx.vmap(layer)(x))(layer, jax.device_put(x, P("data")))
        assert y.sharding.shard_shape(y.shape) == (2, 2, 8)
    np.testing.assert_allclose(y, LAYERS_WITH_NAMES[name]({})(x), rtol=1e-4, atol=1e-5)


def test_the_mesh_of_the_arguments():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    names = {"out_sharding": ("model", None), "act_names": ("data", None)}
    layer = dx.init_sharded(dx.Linear, 16, 8, kernel_metadata=names, rngs=dx.Rngs(0), mesh=mesh)
    x = jax.device_put(jnp.ones((4, 16)), jax.NamedSharding(mesh, P("data", "model")))
    assert dx.jit(lambda layer, x: layer(x))(layer, x).sharding.spec == P("data", None)


def test_names_of_the_result_of_a_norm():
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    with jax.set_mesh(mesh):
        norm = dx.LayerNorm(16, scale_metadata={"act_names": ("data", "model", None)}, rngs=dx.Rngs(0))
        assert norm(jnp.ones((4, 8, 16))).sharding.spec == P("data", "model", None)

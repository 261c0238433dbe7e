"""`Dropout`: what it keeps, where its keys come from, and the peer's numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declax._random.streams import Rngs, RngStream
from declax.errors import LayerError
from declax.nn import Dropout, DropPath


@given(st.floats(0.01, 0.99), st.lists(st.integers(1, 4), max_size=3), st.integers(0, 9))
def test_what_is_kept_is_scaled_and_the_rest_is_zero(rate, shape, seed):
    layer = Dropout(rate, rngs=Rngs(seed))
    key = jax.random.fold_in(layer.rngs.key.value, 0)
    x = jax.random.normal(jax.random.key(1), tuple(shape))
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    y = layer(x)
    np.testing.assert_allclose(y, np.where(keep, np.asarray(x) / (1 - rate), 0), rtol=1e-5)


def test_each_call_draws_anew_and_the_mean_stays():
    layer = Dropout(0.25, rngs=Rngs(0))
    x = jnp.ones(20_000)
    first, second = layer(x), layer(x)
    assert (first != second).any()
    assert abs(float((first == 0).mean()) - 0.25) < 0.02
    assert abs(float(first.mean()) - 1) < 0.02


@pytest.mark.parametrize(
    ("streams", "collection"),
    [
        ({"default": 3}, "dropout"),
        ({"default": 3}, "default"),
        ({"default": 3, "dropout": 4}, "dropout"),
        ({"default": 3, "dropout": 4}, "default"),
        ({"dropout": 5}, "dropout"),
    ],
)
@pytest.mark.parametrize("dims", [(), (1,), (0, -1)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dropout_has_the_numbers_of_the_peer(nnx, normal, streams, collection, dims, dtype):
    options = {"broadcast_dims": dims, "rng_collection": collection}
    x = normal(3, 4, 5, dtype=dtype)
    mine, others = Rngs(**streams), nnx.Rngs(**streams)
    for _ in range(2):
        ours, theirs = Dropout(0.4, **options, rngs=mine), nnx.Dropout(0.4, **options, rngs=others)
        for _ in range(2):
            y = ours(x)
            np.testing.assert_array_equal(y, theirs(x))
            assert y.dtype == dtype
    np.testing.assert_array_equal(jax.random.key_data(mine[collection]()), jax.random.key_data(others[collection]()))


@pytest.mark.parametrize("given_as", ["rngs", "stream", "key"])
def test_keys_given_to_the_call_come_first(nnx, normal, given_as):
    def source(rngs, key):
        return {"rngs": rngs, "stream": rngs.dropout, "key": key}[given_as]

    x, key = normal(3, 4), jax.random.key(7)
    mine, others = Rngs(dropout=8), nnx.Rngs(dropout=8)
    ours, theirs = Dropout(0.5, rngs=Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    for _ in range(2):
        np.testing.assert_array_equal(ours(x, rngs=source(mine, key)), theirs(x, rngs=source(others, key)))
    assert int(ours.rngs.count.value) == 0


def test_a_layer_made_of_a_stream_forks_it(nnx, normal):
    ours = Dropout(0.5, rngs=Rngs(dropout=2).dropout)
    theirs = nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=2).dropout)
    assert isinstance(ours.rngs, RngStream)
    np.testing.assert_array_equal(ours(normal(9)), theirs(normal(9)))


def test_layers_of_one_rngs_differ():
    rngs, x = Rngs(0), jnp.ones(64)
    assert (Dropout(0.5, rngs=rngs)(x) != Dropout(0.5, rngs=rngs)(x)).any()


def test_a_deterministic_layer_needs_no_keys(normal):
    x = normal(3)
    assert Dropout(0.5, deterministic=True)(x) is x
    assert Dropout(0.5)(x, deterministic=True) is x
    assert Dropout(0.0)(x) is x
    assert Dropout(0)(jnp.arange(3)).dtype == jnp.int32


def test_a_call_overrides_the_attribute(normal):
    layer = Dropout(0.9, deterministic=True, rngs=Rngs(0))
    assert (layer(normal(50), deterministic=False) == 0).any()


@pytest.mark.parametrize("rate", [1, 1.0])
def test_at_rate_1_all_is_zero_and_the_gradient_too(rate):
    layer, x = Dropout(rate), jnp.ones(3)
    np.testing.assert_array_equal(layer(x), jnp.zeros(3))
    np.testing.assert_array_equal(jax.grad(lambda x: layer(x).sum())(x), jnp.zeros(3))


def test_train_and_eval_switch_it():
    layer = Dropout(0.5, rngs=Rngs(0))
    layer.eval()
    assert layer.deterministic is True
    assert (layer(jnp.ones(50)) == 1).all()
    layer.train()
    assert layer.deterministic is False
    assert (layer(jnp.ones(50)) == 0).any()


def test_broadcast_axes_share_one_fate(normal):
    kept = Dropout(0.5, broadcast_dims=(0, -1), rngs=Rngs(0))(jnp.ones((3, 40, 2))) != 0
    np.testing.assert_array_equal(kept, jnp.broadcast_to(kept[:1, :, :1], kept.shape))
    assert len(set(kept[0, :, 0].tolist())) == 2


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan"), "0.5", True, None])
def test_a_rate_outside_of_0_to_1(rate):
    with pytest.raises(LayerError, match=r"Dropout.rate: this value (is out of bounds|has the wrong type)") as caught:
        Dropout(rate)
    assert caught.value.expected == "a number from 0 to 1"


@pytest.mark.parametrize("dims", ["0", (0.5,), None])
def test_bad_broadcast_axes(dims):
    with pytest.raises(LayerError, match=r"Dropout.broadcast_dims: this names no axes"):
        Dropout(0.5, broadcast_dims=dims)


def test_broadcast_axes_that_the_input_lacks():
    layer = Dropout(0.5, broadcast_dims=(2,), rngs=Rngs(0))
    with pytest.raises(LayerError, match=r"Dropout.broadcast_dims: axis 2 is not one of 'inputs'") as caught:
        layer(jnp.ones((2, 3)))
    assert caught.value.expected == "an array of at least 3 axes"
    assert "(2, 3)" in caught.value.got


def test_without_keys_it_says_where_to_give_them():
    with pytest.raises(LayerError, match=r"Dropout.rngs: there is no source of random numbers") as caught:
        Dropout(0.5)(jnp.ones(3))
    assert "model.eval()" in caught.value.fix


def test_nothing_else_gives_keys():
    with pytest.raises(LayerError, match=r"Dropout.rngs: this is not a source of random keys") as caught:
        Dropout(0.5, rngs=3)
    assert (caught.value.expected, caught.value.got) == ("an Rngs, an RngStream or None", "int 3")
    with pytest.raises(LayerError, match=r"Dropout.rngs: this is not a source of random keys") as caught:
        Dropout(0.5, rngs=Rngs(0))(jnp.ones(3), rngs="x")
    assert caught.value.expected == "an Rngs, an RngStream, a key or None"


def test_it_has_to_be_decided_whether_to_drop():
    layer = Dropout(0.5, deterministic=None, rngs=Rngs(0))
    with pytest.raises(LayerError, match=r"Dropout.deterministic: this flag is not set"):
        layer(jnp.ones(3))
    assert (layer(jnp.ones(3), deterministic=True) == 1).all()


def test_integers_cannot_be_scaled():
    with pytest.raises(LayerError, match=r"Dropout.rate: dropout cannot scale values of this dtype") as caught:
        Dropout(0.5, rngs=Rngs(0))(jnp.arange(3))
    assert "int32" in caught.value.got


@pytest.mark.parametrize("dims", [(), (0,), (1,)])
def test_dropout_follows_the_layout_of_its_input(monkeypatch, dims):
    asked, bernoulli = [], jax.random.bernoulli

    def spied(*args, out_sharding):
        asked.append(out_sharding.spec)
        return bernoulli(*args, out_sharding=out_sharding)

    monkeypatch.setattr(jax.random, "bernoulli", spied)
    layer = Dropout(0.5, broadcast_dims=dims, rngs=Rngs(0))
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((4, 3)), jax.P("data", None))
        y = layer(x, rngs=jax.random.key(0))
    assert y.sharding.spec == jax.P("data", None)
    assert asked == [jax.P(None, None) if dims == (0,) else jax.P("data", None)]
    np.testing.assert_array_equal(y, layer(jnp.ones((4, 3)), rngs=jax.random.key(0)))


@pytest.mark.parametrize("shape", [(64,), (64, 3), (64, 2, 2, 3)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_drop_path_drops_whole_examples(shape, dtype):
    layer = DropPath(0.25, rngs=Rngs(0))
    key = jax.random.fold_in(layer.rngs.key.value, 0)
    x = jnp.ones(shape, dtype)
    keep = jax.random.bernoulli(key, 0.75, (64, *(1,) * (len(shape) - 1)))
    y = layer(x)
    np.testing.assert_array_equal(y, jnp.where(keep, x / 0.75, 0).astype(dtype))
    assert y.dtype == dtype
    same = Dropout(0.25, broadcast_dims=tuple(range(1, len(shape))), rngs=Rngs(0)) if len(shape) > 1 else None
    assert same is None or (same(x) == y).all()


def test_drop_path_is_switched_as_dropout_is():
    layer = DropPath(0.5, rngs=Rngs(0))
    layer.eval()
    assert (layer(jnp.ones((8, 2))) == 1).all()
    assert (layer(jnp.ones((64, 2)), deterministic=False) == 0).any()
    with pytest.raises(LayerError, match=r"DropPath\.rngs: there is no source of random numbers"):
        DropPath(0.5)(jnp.ones((2, 2)))
    with pytest.raises(TypeError, match="broadcast_dims"):
        DropPath(0.5, broadcast_dims=(1,))

"""`BatchNorm` and `LayerNorm`: the formulas, the peer's numbers, running statistics, and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declax._random.streams import Rngs
from declax._variables.kinds import BatchStat
from declax.errors import LayerError
from declax.initializers import normal as normal_init
from declax.nn import BatchNorm, LayerNorm
from declax.nn.dtypes import promote_dtype

pytestmark = pytest.mark.sampled(3)

NOISE = {"scale_init": normal_init(1.0), "bias_init": normal_init(1.0)}
SHAPES = st.lists(st.integers(2, 3), min_size=1, max_size=2)

# ================================================================= BatchNorm


@given(SHAPES, st.integers(1, 4), st.floats(0, 1), st.booleans(), st.booleans())
def test_batch_norm_in_training(batch, features, momentum, is_fast, masked):
    layer = BatchNorm(features, momentum=momentum, use_fast_variance=is_fast, **NOISE, rngs=Rngs(0))
    random = np.random.default_rng(0)
    x = random.standard_normal((*batch, features), np.float32)
    mask = random.random((*batch, 1)) < 0.5 if masked else np.ones((*batch, 1), bool)
    mask.flat[0] = True
    axes = tuple(range(len(batch)))
    mean, var = np.mean(x, axes, where=mask), np.var(x, axes, where=mask)
    y = layer(x, mask=jnp.asarray(mask) if masked else None)
    expected = (x - mean) / np.sqrt(var + 1e-5) * np.asarray(layer.scale.value) + np.asarray(layer.bias.value)
    if var.min() > 1e-2:  # where it is about 0, the output is rounding errors
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(layer.mean.value, (1 - momentum) * mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.var.value, momentum + (1 - momentum) * var, rtol=1e-4, atol=1e-5)


def test_batch_norm_by_the_running_statistics(normal):
    layer = BatchNorm(3, epsilon=0.1, use_running_average=True, **NOISE, rngs=Rngs(0))
    layer.mean.value, layer.var.value = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 1.0, 2.0])
    x = normal(4, 3)
    factor = np.asarray(layer.scale.value) / np.sqrt(np.array([0.6, 1.1, 2.1]))
    expected = (np.asarray(x) - np.array([1.0, 2.0, 3.0])) * factor + np.asarray(layer.bias.value)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(layer.mean.value, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(layer(x[0]), expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("uses_running", [True, False])
@pytest.mark.parametrize("options", [{}, {"use_scale": False, "use_bias": False}])
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_batch_norm_has_the_numbers_of_the_peer(same, close, normal, uses_running, options, dtype, x_dtype):
    x = (4 * normal(8, 5, 3) + 1).astype(x_dtype)
    options = {"use_running_average": uses_running, "dtype": dtype, **NOISE, **options}
    ours, theirs = same(BatchNorm, 3, call=(x,), **options)
    close(ours.mean.value, theirs.mean[...])
    close(ours.var.value, theirs.var[...])


@pytest.mark.parametrize(
    "options",
    [
        {"axis": 1},
        {"axis": -3},
        {"momentum": 0.5, "epsilon": 0.1},
        {"use_fast_variance": False},
        {"param_dtype": jnp.bfloat16},
        {"use_bias": False},
        {"use_scale": False},
    ],
)
def test_options_of_batch_norm_like_the_peer(same, close, normal, options):
    x = normal(4, 4, 4) + 2
    ours, theirs = same(BatchNorm, 4, call=(x,), **NOISE, **options)
    close(ours.mean.value, theirs.mean[...])
    close(ours.var.value, theirs.var[...])
    ours.eval()
    theirs.eval()
    with jax.numpy_dtype_promotion("standard"):
        close(ours(x), theirs(x))


@pytest.mark.parametrize("shape", [(4, 5, 3), (4, 1, 1), (5, 3), (1, 5, 1)])
@pytest.mark.parametrize("is_fast", [True, False])
def test_masks_of_batch_norm_like_the_peer(same, close, normal, shape, is_fast):
    mask = (normal(*shape, seed=1) > -0.5).at[..., :1].set(True)
    ours, theirs = same(
        BatchNorm, 3, call=(normal(4, 5, 3),), call_options={"mask": mask}, use_fast_variance=is_fast, **NOISE
    )
    close(ours.mean.value, theirs.mean[...])
    close(ours.var.value, theirs.var[...])


def test_batch_norm_of_complex_input(normal):
    x = jax.lax.complex(normal(6, 3), normal(6, 3, seed=1))
    layer, plain = BatchNorm(3, dtype=jnp.complex64, rngs=Rngs(0)), np.asarray(x)
    for kept in (0.01, 0.0199):
        np.testing.assert_allclose(layer(x), (plain - plain.mean(0)) / np.sqrt(plain.var(0) + 1e-5), rtol=1e-4)
        np.testing.assert_allclose(layer.mean.value, kept * plain.mean(0), rtol=1e-4)
        np.testing.assert_allclose(layer.var.value, 1 - kept + kept * plain.var(0), rtol=1e-4)


@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible", "ignore:Casting complex values to real")
def test_the_running_mean_of_complex_input_keeps_what_the_peer_drops(nnx, normal):
    x = jax.lax.complex(normal(6, 3), normal(6, 3, seed=1))
    ours, theirs = BatchNorm(3, rngs=Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    with jax.numpy_dtype_promotion("standard"):  # as the peer needs it
        np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-5)
    np.testing.assert_allclose(ours.mean.value.real, theirs.mean[...], rtol=1e-5)
    np.testing.assert_allclose(ours.var.value, theirs.var[...], rtol=1e-5)
    assert (ours.mean.value.dtype, theirs.mean[...].dtype) == (jnp.complex64, jnp.float32)


def test_the_running_statistics_keep_their_dtype(normal):
    layer = BatchNorm(3, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16, rngs=Rngs(0))
    assert layer(normal(4, 3)).dtype == jnp.bfloat16
    assert isinstance(layer.mean, BatchStat)
    assert layer.mean.value.dtype == layer.var.value.dtype == jnp.float32
    assert layer.scale.value.dtype == jnp.bfloat16


def test_statistics_in_double_precision(normal):
    with jax.enable_x64(True):
        layer = BatchNorm(3, dtype=jnp.float64, rngs=Rngs(0))
        x = normal(50, 3, dtype=jnp.float64)
        np.testing.assert_allclose(np.asarray(layer(x)).var(0), np.ones(3), rtol=1e-4)
        assert layer(x).dtype == jnp.float64
        assert layer.mean.value.dtype == jnp.float32


def test_train_and_eval_switch_the_statistics(normal):
    layer, x = BatchNorm(3, rngs=Rngs(0)), normal(4, 3) + 1
    layer.eval()
    assert layer.use_running_average is True
    layer(x)
    np.testing.assert_array_equal(layer.mean.value, jnp.zeros(3))
    layer.train()
    layer(x)
    assert (layer.mean.value > 0).all()


def test_a_call_overrides_use_running_average(normal):
    layer, x = BatchNorm(3, use_running_average=True, rngs=Rngs(0)), normal(4, 3) + 1
    layer(x, use_running_average=False)
    assert (layer.mean.value > 0).all()


@pytest.mark.parametrize("is_fast", [True, False])
def test_statistics_over_a_mapped_axis(normal, is_fast):
    x = normal(4, 5, 3) + 1

    def run(x):
        layer = BatchNorm(3, axis_name="devices", use_fast_variance=is_fast, momentum=0.0, rngs=Rngs(0))
        return layer(x), layer.mean.value, layer.var.value

    y, mean, var = jax.vmap(run, axis_name="devices", out_axes=(0, None, None))(x)
    whole = BatchNorm(3, momentum=0.0, rngs=Rngs(0))
    np.testing.assert_allclose(y, whole(x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(mean, whole.mean.value, rtol=1e-4)
    np.testing.assert_allclose(var, whole.var.value, rtol=1e-4)


@pytest.mark.parametrize("cls", [BatchNorm, LayerNorm])
def test_groups_of_a_mapped_axis_are_handed_on(monkeypatch, normal, cls):
    asked = []

    def pmean(x, axis_name, *, axis_index_groups):  # jax has groups under shard_map and pmap only
        asked.append((axis_name, axis_index_groups))
        return x

    monkeypatch.setattr(jax.lax, "pmean", pmean)
    groups = [[0, 1], [2, 3]]
    layer = cls(3, axis_name="devices", axis_index_groups=groups, rngs=Rngs(0))
    np.testing.assert_array_equal(layer(normal(2, 3)), cls(3, rngs=Rngs(0))(normal(2, 3)))
    assert asked == [("devices", groups)]


def test_single_examples_may_be_averaged_over_a_mapped_axis(normal):
    x = normal(4, 3)

    def run(example):
        layer = BatchNorm(3, axis_name="batch", rngs=Rngs(0))  # made here, for it is changed here
        return layer(example)

    y = jax.vmap(run, axis_name="batch")(x)
    np.testing.assert_allclose(y, BatchNorm(3, rngs=Rngs(0))(x), rtol=1e-4, atol=1e-4)


def test_scale_is_drawn_before_bias():
    layer, keys = BatchNorm(3, **NOISE, rngs=Rngs(5)), Rngs(5)
    for variable in (layer.scale, layer.bias):
        np.testing.assert_array_equal(variable.value, normal_init(1.0)(keys.params(), (3,), jnp.float32))


@pytest.mark.parametrize("cls", [BatchNorm, LayerNorm])
def test_norms_give_metadata_to_their_parameters(cls):
    layer = cls(2, scale_metadata={"tag": "s"}, bias_metadata={"tag": "b"}, rngs=Rngs(0))
    assert (layer.scale.get_metadata()["tag"], layer.bias.get_metadata()["tag"]) == ("s", "b")


@pytest.mark.parametrize(("cls", "count"), [(BatchNorm, 5), (LayerNorm, 3)])
def test_norms_call_the_promotion_they_are_given(normal, cls, count):
    asked = []

    def promote(args, /, *, dtype=None, inexact=True):
        asked.append((len(args), dtype))
        return promote_dtype(args, dtype=dtype, inexact=inexact)

    cls(3, promote_dtype=promote, dtype=jnp.float32, rngs=Rngs(0))(normal(4, 3))
    assert asked == [(count, jnp.float32)]


@pytest.mark.parametrize("cls", [BatchNorm, LayerNorm])
def test_the_fast_variance_is_never_negative(cls):
    y = cls(3, rngs=Rngs(0))(jnp.full((4, 3), 1000.1))
    np.testing.assert_allclose(y, jnp.zeros((4, 3)), atol=0.1)


# ================================================================= LayerNorm


@given(SHAPES, st.integers(1, 4), st.booleans())
def test_layer_norm_formula(batch, features, is_fast):
    layer = LayerNorm(features, use_fast_variance=is_fast, epsilon=0.01, **NOISE, rngs=Rngs(0))
    x = np.random.default_rng(0).standard_normal((*batch, features), np.float32)
    centred = x - x.mean(-1, keepdims=True)
    factor = np.asarray(layer.scale.value) / np.sqrt(x.var(-1, keepdims=True) + 0.01)
    np.testing.assert_allclose(layer(x), centred * factor + np.asarray(layer.bias.value), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"use_scale": False, "use_bias": False}])
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_layer_norm_has_the_numbers_of_the_peer(same, normal, options, dtype, param_dtype, x_dtype):
    x = (4 * normal(2, 5, 8) + 1).astype(x_dtype)
    same(LayerNorm, 8, call=(x,), dtype=dtype, param_dtype=param_dtype, **NOISE, **options)


@pytest.mark.parametrize(
    ("features", "options"),
    [
        (3, {"reduction_axes": (-1, -2)}),
        (3, {"reduction_axes": [1, 2], "epsilon": 0.5}),
        (3, {"reduction_axes": 0, "use_fast_variance": False}),
        (3, {"use_bias": False}),
        (3, {"use_scale": False}),
        (15, {"reduction_axes": (1, 2), "feature_axes": (1, 2)}),
        (5, {"feature_axes": 1}),
        (12, {"feature_axes": (-1, 0), "reduction_axes": 1}),
    ],
)
def test_axes_of_layer_norm_like_the_peer(same, normal, features, options):
    same(LayerNorm, features, call=(normal(4, 5, 3),), **NOISE, **options)


@pytest.mark.parametrize("shape", [(4, 5, 3), (4, 1, 3), (3,)])
@pytest.mark.parametrize("is_fast", [True, False])
def test_masks_of_layer_norm_like_the_peer(same, normal, shape, is_fast):
    mask = (normal(*shape, seed=1) > 0).at[..., :1].set(True)
    options = {"use_fast_variance": is_fast, "epsilon": 0.1, **NOISE}
    same(LayerNorm, 3, call=(normal(4, 5, 3),), call_options={"mask": mask}, **options)


def test_layer_norm_of_complex_input(same, normal):
    same(LayerNorm, 3, call=(jax.lax.complex(normal(6, 3), normal(6, 3, seed=1)),))


def test_layer_norm_over_a_mapped_axis(normal):
    x = normal(4, 2, 3)
    layer = LayerNorm(3, axis_name="parts", rngs=Rngs(0))
    y = jax.vmap(layer, in_axes=1, out_axes=1, axis_name="parts")(x)
    mean, var = np.asarray(x).mean((1, 2), keepdims=True), np.asarray(x).var((1, 2), keepdims=True)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-6), rtol=1e-4, atol=1e-4)


# ================================================================= bad input


@pytest.mark.parametrize("cls", [BatchNorm, LayerNorm])
@pytest.mark.parametrize("options", [{}, {"use_scale": False, "use_bias": False}])
@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_a_bad_number_of_features(cls, options, size):
    with pytest.raises(LayerError, match=f"{cls.__name__}.num_features: this value (is out|has the wrong)"):
        cls(size, rngs=Rngs(0), **options)


@pytest.mark.parametrize("cls", [BatchNorm, LayerNorm])
@pytest.mark.parametrize("epsilon", [-1e-5, "1", None])
def test_a_bad_epsilon(cls, epsilon):
    with pytest.raises(LayerError, match=f"{cls.__name__}.epsilon: this value (is out|has the wrong)") as caught:
        cls(2, epsilon=epsilon, rngs=Rngs(0))
    assert caught.value.expected == "a number of at least 0"


@pytest.mark.parametrize("momentum", [-0.1, 1.1, True])
def test_a_bad_momentum(momentum):
    with pytest.raises(LayerError, match=r"BatchNorm.momentum: this value (is out|has the wrong)") as caught:
        BatchNorm(2, momentum=momentum, rngs=Rngs(0))
    assert caught.value.expected == "a number from 0 to 1"


@pytest.mark.parametrize("axis", [(0,), 1.0, None])
def test_batch_norm_has_one_axis(axis):
    with pytest.raises(LayerError, match=r"BatchNorm.axis: this names no axis"):
        BatchNorm(2, axis=axis, rngs=Rngs(0))


@pytest.mark.parametrize("field", ["reduction_axes", "feature_axes"])
@pytest.mark.parametrize("axes", [(), 1.0, (1, "2"), "1", None])
def test_bad_axes_of_layer_norm(field, axes):
    with pytest.raises(LayerError, match=f"LayerNorm.{field}: this names no axes"):
        LayerNorm(2, **{field: axes}, rngs=Rngs(0))


def test_axes_that_the_input_lacks():
    with pytest.raises(LayerError, match=r"BatchNorm.axis: axis 2 is not one of 'x'"):
        BatchNorm(2, axis=2, rngs=Rngs(0))(jnp.ones((2, 2)))
    with pytest.raises(LayerError, match=r"LayerNorm.reduction_axes: axis -3 is not one of 'x'") as caught:
        LayerNorm(2, reduction_axes=(-1, -3), rngs=Rngs(0))(jnp.ones((2, 2)))
    assert caught.value.expected == "an array of at least 3 axes"


def test_an_axis_that_is_named_twice():
    layer = LayerNorm(2, reduction_axes=(-1, 1), rngs=Rngs(0))
    with pytest.raises(LayerError, match=r"LayerNorm.reduction_axes: one axis is named twice") as caught:
        layer(jnp.ones((2, 2)))
    assert "(-1, 1)" in caught.value.got


@pytest.mark.parametrize("cls", [BatchNorm, LayerNorm])
@pytest.mark.parametrize("size", [1, 4])
def test_an_input_of_other_features(cls, size):
    with pytest.raises(LayerError, match=f"{cls.__name__}.num_features: 'x' has another number of features") as caught:
        cls(3, rngs=Rngs(0))(jnp.ones((2, size)))
    assert caught.value.expected == "3, along axis 1"
    assert caught.value.got.startswith(f"{size}, of ")


def test_features_over_several_axes_are_counted_together():
    layer = LayerNorm(6, feature_axes=(0, 2), rngs=Rngs(0))
    assert layer(jnp.ones((2, 5, 3))).shape == (2, 5, 3)
    with pytest.raises(LayerError, match="another number of features") as caught:
        layer(jnp.ones((2, 5, 4)))
    assert caught.value.expected == "6, along axes 0, 2"


@pytest.mark.parametrize("cls", [BatchNorm, LayerNorm])
@pytest.mark.parametrize("shape", [(3,), (1, 4, 2), (4, 3)])
def test_a_mask_of_another_shape(cls, shape):
    with pytest.raises(LayerError, match="'mask' does not broadcast to 'x'") as caught:
        cls(2, rngs=Rngs(0))(jnp.ones((4, 2)), mask=jnp.ones(shape, bool))
    assert caught.value.where == f"{cls.__name__}.__call__"
    assert caught.value.expected == "a shape that broadcasts to (4, 2)"


def test_one_example_has_no_batch_statistics():
    layer = BatchNorm(3, rngs=Rngs(0))
    with pytest.raises(LayerError, match="'x' has no axes to take the mean and variance over"):
        layer(jnp.ones(3))
    assert layer(jnp.ones(3), use_running_average=True).shape == (3,)


@pytest.mark.parametrize(
    "layer", [BatchNorm(3, axis_name="rows", rngs=Rngs(0)), LayerNorm(3, axis_name="rows", rngs=Rngs(0))]
)
def test_an_axis_name_that_no_transform_has(layer):
    text = rf"{type(layer).__name__}\.axis_name: no transform around this call has the axis 'rows'"
    with pytest.raises(LayerError, match=text):
        layer(jnp.ones((2, 3)))


def test_it_has_to_be_decided_which_statistics_to_use():
    layer = BatchNorm(3, use_running_average=None, rngs=Rngs(0))
    with pytest.raises(LayerError, match=r"BatchNorm.use_running_average: this flag is not set"):
        layer(jnp.ones((2, 3)))

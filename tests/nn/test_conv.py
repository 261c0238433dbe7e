"""`Conv` and `ConvTranspose`: a plain sum over the kernel, the peer's numbers, and what bad options get."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declax._random.streams import Rngs
from declax.errors import LayerError
from declax.initializers import normal as normal_init
from declax.nn import Conv, ConvTranspose
from declax.nn.dtypes import promote_dtype

pytestmark = pytest.mark.sampled(3)

NOISE = normal_init(1.0)


def spread(x, dilations):
    """The array with zeros between its elements along the axes from 1 on."""
    for axis, dilation in enumerate(dilations, 1):
        shape = list(x.shape)
        shape[axis] = (shape[axis] - 1) * dilation + 1
        wide = np.zeros(shape, x.dtype)
        wide[(slice(None),) * axis + (slice(None, None, dilation),)] = x
        x = wide
    return x


def convolve(x, kernel, *, strides, pairs, mode, input_dilation, kernel_dilation, groups):
    """The formula: a sum over the elements of the kernel, on an input of one batch axis."""
    around = ((0, 0), *pairs, (0, 0))
    x = np.pad(spread(x, input_dilation), around, mode=mode)
    *sizes, _, out_features = kernel.shape
    reach = [(size - 1) * dilation for size, dilation in zip(sizes, kernel_dilation, strict=True)]
    counts = [(n - r - 1) // s + 1 for n, r, s in zip(x.shape[1:-1], reach, strides, strict=True)]
    y = np.zeros((x.shape[0], *counts, out_features), x.dtype)
    share_in, share_out = x.shape[-1] // groups, out_features // groups
    for index in np.ndindex(*sizes):
        at = [
            slice(i * dilation, i * dilation + (count - 1) * stride + 1, stride)
            for i, dilation, count, stride in zip(index, kernel_dilation, counts, strides, strict=True)
        ]
        seen = x[(slice(None), *at)]
        for g in range(groups):
            ins, outs = slice(g * share_in, (g + 1) * share_in), slice(g * share_out, (g + 1) * share_out)
            y[..., outs] += seen[..., ins] @ kernel[index][:, outs]
    return y


def pairs_of(name, sizes, dilations, spatial, strides):
    """What each named padding adds, before and after each axis."""
    if name == "VALID":
        return ((0, 0),) * len(sizes)
    reach = [(size - 1) * dilation for size, dilation in zip(sizes, dilations, strict=True)]
    if name == "CAUSAL":
        return ((reach[0], 0),)
    if name in ("CIRCULAR", "REFLECT"):
        return tuple((r // 2, r - r // 2) for r in reach)
    totals = [max((math.ceil(n / s) - 1) * s + r + 1 - n, 0) for n, s, r in zip(spatial, strides, reach, strict=True)]
    return tuple((t // 2, t - t // 2) if name == "SAME" else (t - t // 2, t // 2) for t in totals)


MODES = {"CIRCULAR": "wrap", "REFLECT": "reflect"}


@st.composite
def cases(draw):
    rank = draw(st.integers(1, 2))
    groups = draw(st.integers(1, 2))
    per_axis = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    names = ["SAME", "SAME_LOWER", "VALID", "CIRCULAR", "REFLECT"] + ["CAUSAL"] * (rank == 1)
    return {
        "sizes": per_axis(1, 3),
        "spatial": per_axis(5, 8),
        "strides": per_axis(1, 3),
        "kernel_dilation": per_axis(1, 2),
        "groups": groups,
        "features": (groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))),
        "padding": draw(st.sampled_from(names)),
    }


@pytest.mark.slow
@given(cases())
def test_conv_is_a_sum_over_the_kernel(case):
    layer = Conv(
        *case["features"],
        case["sizes"],
        case["strides"],
        padding=case["padding"],
        kernel_dilation=case["kernel_dilation"],
        feature_group_count=case["groups"],
        bias_init=NOISE,
        rngs=Rngs(0),
    )
    x = np.random.default_rng(0).standard_normal((2, *case["spatial"], case["features"][0]), np.float32)
    pairs = pairs_of(case["padding"], case["sizes"], case["kernel_dilation"], case["spatial"], case["strides"])
    expected = convolve(
        x,
        np.asarray(layer.kernel.value),
        strides=case["strides"],
        pairs=pairs,
        mode=MODES.get(case["padding"], "constant"),
        input_dilation=(1,) * len(case["sizes"]),
        kernel_dilation=case["kernel_dilation"],
        groups=case["groups"],
    ) + np.asarray(layer.bias.value)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", [0, 2, (1, 2), ((0, 3), (2, 1)), [1, (2, 0)]])
@pytest.mark.parametrize("input_dilation", [(1, 1), (2, 3)])
def test_numbers_as_padding(same, normal, padding, input_dilation):
    x = normal(2, 6, 5, 3)
    ours, _ = same(Conv, 3, 2, (3, 2), call=(x,), padding=padding, input_dilation=input_dilation, use_bias=False)
    sides = [padding] * 2 if isinstance(padding, int) else padding
    expected = convolve(
        np.asarray(x),
        np.asarray(ours.kernel.value),
        strides=(1, 1),
        pairs=[(side, side) if np.isscalar(side) else side for side in sides],
        mode="constant",
        input_dilation=input_dilation,
        kernel_dilation=(1, 1),
        groups=1,
    )
    np.testing.assert_allclose(ours(x), expected, rtol=1e-4, atol=1e-4)


def test_padding_may_be_of_numpy_and_lists(normal):
    ours, same = (Conv(3, 2, (3, 2), padding=p, rngs=Rngs(0)) for p in ((np.int64(1), [2, 0]), (1, (2, 0))))
    np.testing.assert_array_equal(ours(normal(6, 5, 3)), same(normal(6, 5, 3)))


def test_negative_padding_crops(same, normal):
    ours, _ = same(Conv, 3, 2, 3, call=(normal(2, 6, 3),), padding=[(-1, -2)])
    np.testing.assert_allclose(ours(normal(2, 6, 3)), Conv(3, 2, 3, padding=0, rngs=Rngs(3))(normal(2, 6, 3)[:, 1:-2]))


# ================================================================= the peer's numbers

NAMED = ["SAME", "SAME_LOWER", "VALID", "CIRCULAR", "REFLECT"]


@pytest.mark.parametrize("padding", [*NAMED, "CAUSAL"])
@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize(("strides", "dilation"), [(1, 1), (2, 1), (3, 2)])
def test_one_axis_has_the_numbers_of_the_peer(same, normal, padding, size, strides, dilation):
    same(Conv, 4, 6, size, strides, call=(normal(2, 9, 4),), padding=padding, kernel_dilation=dilation, bias_init=NOISE)


@pytest.mark.parametrize("padding", [*NAMED, 1])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strides": 2, "kernel_dilation": (1, 2)},
        {"strides": None, "input_dilation": None, "kernel_dilation": None, "precision": "highest"},
        {"feature_group_count": 2},
        {"feature_group_count": 4, "use_bias": False},
    ],
)
def test_two_axes_have_the_numbers_of_the_peer(same, normal, padding, options):
    same(Conv, 4, 8, (3, 2), call=(normal(2, 6, 7, 4),), padding=padding, bias_init=NOISE, **options)


@pytest.mark.parametrize("size", [[3, 2], (2, 1, 2)])
@pytest.mark.parametrize("batch", [(), (2, 3), (1, 2, 2), (0,), (2, 0)])
def test_any_number_of_batch_axes_like_the_peer(same, normal, size, batch):
    spatial = (4,) * len(size)
    if 0 in batch:
        y = Conv(3, 2, size, rngs=Rngs(0))(jnp.zeros((*batch, *spatial, 3)))
        assert y.shape == (*batch, *spatial, 2)
    else:
        same(Conv, 3, 2, size, call=(normal(*batch, *spatial, 3),))


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
@pytest.mark.parametrize("mask_dtype", [None, bool, jnp.float32])
def test_dtypes_and_masks_like_the_peer(same, normal, dtype, param_dtype, x_dtype, mask_dtype):
    x = (4 * normal(2, 5, 3)).astype(x_dtype)
    mask = None if mask_dtype is None else (normal(3, 3, 2, seed=1) > 0).astype(mask_dtype)
    options = {"dtype": dtype, "param_dtype": param_dtype, "mask": mask, "bias_init": NOISE}
    if param_dtype == jnp.bfloat16 and mask_dtype == jnp.float32:  # the peer lets the mask widen the output
        assert Conv(3, 2, 3, **options, rngs=Rngs(0))(x.astype(jnp.bfloat16)).dtype == (dtype or jnp.bfloat16)
    else:
        same(Conv, 3, 2, 3, call=(x,), **options)


def test_conv_accumulates_in_the_preferred_type(same, normal):
    x = normal(2, 5, 3, dtype=jnp.bfloat16)
    ours, _ = same(Conv, 3, 2, 3, call=(x,), dtype=jnp.bfloat16, preferred_element_type=jnp.float32, bias_init=NOISE)
    assert ours(x).dtype == jnp.float32


# ================================================================= what it is


def test_causal_outputs_see_no_later_input(normal):
    layer, x = Conv(1, 1, 3, padding="CAUSAL", kernel_dilation=2, rngs=Rngs(0)), normal(9, 1)
    seen = jax.jacobian(lambda x: layer(x[:, None])[:, 0])(x[:, 0])
    np.testing.assert_array_equal(jnp.triu(seen, 1), jnp.zeros((9, 9)))
    assert (jnp.diagonal(seen) != 0).all()


def test_circular_convolution_commutes_with_rolling(normal):
    layer, x = Conv(2, 3, (3, 2), padding="circular", rngs=Rngs(0)), normal(5, 6, 2)
    np.testing.assert_allclose(layer(jnp.roll(x, 2, 0)), jnp.roll(layer(x), 2, 0), rtol=1e-5, atol=1e-5)


def test_a_mask_is_data_and_takes_part_in_each_call(normal):
    mask = jnp.ones((3, 2, 1)).at[0].set(0)
    layer = Conv(2, 1, 3, mask=mask, rngs=Rngs(0))
    assert any(leaf is mask for leaf in jax.tree.leaves(layer))
    x = normal(1, 7, 2)
    whole = Conv(2, 1, 3, rngs=Rngs(0))
    whole.kernel.value = layer.kernel.value * mask
    np.testing.assert_array_equal(layer(x), whole(x))
    layer.mask = jnp.zeros((3, 2, 1))
    np.testing.assert_array_equal(layer(x), jnp.zeros((1, 7, 1)))


def test_sizes_are_kept_as_a_tuple():
    layer = Conv(4, 6, [3, 2], feature_group_count=2, rngs=Rngs(0))
    assert layer.kernel_size == (3, 2)
    assert layer.kernel_shape == layer.kernel.value.shape == (3, 2, 2, 6)
    assert Conv(4, 6, 5, rngs=Rngs(0)).kernel_size == (5,)
    assert Conv(4, 6, 5, use_bias=False, rngs=Rngs(0)).bias is None


def test_conv_gives_metadata_to_its_parameters():
    layer = Conv(2, 3, 1, kernel_metadata={"tag": "k"}, bias_metadata={"tag": "b"}, rngs=Rngs(0))
    assert (layer.kernel.get_metadata()["tag"], layer.bias.get_metadata()["tag"]) == ("k", "b")


def test_conv_calls_the_functions_it_is_given(normal):
    asked = []

    def promote(args, /, *, dtype=None, inexact=True):
        asked.append(("promote", len(args), dtype))
        return promote_dtype(args, dtype=dtype, inexact=inexact)

    def convolution(x, kernel, strides, padding, **options):
        asked.append(("conv", strides, padding, sorted(options)))
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)

    Conv(3, 2, 3, promote_dtype=promote, conv_general_dilated=convolution, rngs=Rngs(0))(normal(2, 4, 3))
    names = ["dimension_numbers", "feature_group_count", "lhs_dilation", "precision", "rhs_dilation"]
    assert asked == [("promote", 3, None), ("conv", (1,), "SAME", names)]


def test_conv_lays_its_output_out_as_asked(normal):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    layer, x = Conv(3, 4, 3, rngs=Rngs(0)), normal(2, 5, 3)
    with jax.set_mesh(mesh):
        y = layer(x, out_sharding=jax.P("data", None, None))
    assert y.sharding.spec == jax.P("data", None, None)


def test_two_equal_convs_are_traced_once(normal):
    traced = []

    @jax.jit
    def run(layer, x):
        traced.append(layer)
        return layer(x)

    for seed in (0, 1):
        run(Conv(3, 4, [3], strides=[1], padding=[(1, 1)], rngs=Rngs(seed)), normal(2, 5, 3))
    assert len(traced) == 1


# ================================================================= bad input


@pytest.mark.parametrize("field", ["in_features", "out_features", "feature_group_count"])
@pytest.mark.parametrize("size", [0, -1, 1.0])
def test_a_bad_size_of_conv(field, size):
    given = {"in_features": 2, "out_features": 2, "kernel_size": 3, field: size}
    with pytest.raises(LayerError, match=f"Conv.{field}: this value (is out of bounds|has the wrong type)"):
        Conv(**given, rngs=Rngs(0))


@pytest.mark.parametrize("field", ["in_features", "out_features"])
def test_features_that_cannot_be_grouped(field):
    given = {"in_features": 4, "out_features": 4, field: 5}
    with pytest.raises(LayerError, match=f"Conv.{field}: the features cannot be split into equal groups") as caught:
        Conv(**given, kernel_size=3, feature_group_count=2, rngs=Rngs(0))
    assert (caught.value.expected, caught.value.got) == ("a multiple of feature_group_count=2", "int 5")


@pytest.mark.parametrize("size", [0, (3, 0), (), "3", None, (3, 1.0), True, {3}])
def test_a_bad_kernel_size(size):
    with pytest.raises(LayerError, match=r"Conv.kernel_size: these are not sizes of spatial axes") as caught:
        Conv(1, 1, size, rngs=Rngs(0))
    assert caught.value.expected == "an integer of at least 1, or any number of them"
    assert caught.value.got == repr(size)


@pytest.mark.parametrize("field", ["strides", "input_dilation", "kernel_dilation"])
@pytest.mark.parametrize("sizes", [0, (1,), (1, 1, 1), (1, 0), (2, "1")])
def test_bad_strides_and_dilations(field, sizes):
    with pytest.raises(LayerError, match=f"Conv.{field}: these are not sizes of spatial axes") as caught:
        Conv(1, 1, (3, 3), **{field: sizes}, rngs=Rngs(0))
    assert caught.value.expected == "an integer of at least 1, or a sequence of 2"


@pytest.mark.parametrize("padding", ["SOME", (1,), (1, 2, 3), ((1, 2, 3), 1), 1.5, None, ("SAME", "SAME"), True])
def test_a_bad_padding(padding):
    with pytest.raises(LayerError, match=r"Conv.padding: this is not a padding of 2 spatial axes") as caught:
        Conv(1, 1, (3, 3), padding=padding, rngs=Rngs(0))
    assert "one of SAME, SAME_LOWER, VALID, CIRCULAR, REFLECT, CAUSAL; an integer;" in caught.value.expected
    assert caught.value.got == repr(padding)


def test_a_misspelt_padding_gets_a_suggestion():
    with pytest.raises(LayerError, match="did you mean 'CIRCULAR'") as caught:
        Conv(1, 1, 3, padding="circlar", rngs=Rngs(0))
    assert "padding of 1 spatial axis" in str(caught.value)


@pytest.mark.parametrize("padding", ["SAME", "same_lower", "CIRCULAR", "REFLECT"])
def test_a_named_padding_of_a_dilated_input(padding):
    with pytest.raises(LayerError, match="is not defined for an input that is dilated") as caught:
        Conv(1, 1, (3, 2), padding=padding, input_dilation=(1, 2), rngs=Rngs(0))
    assert caught.value.problem.startswith(repr(padding.upper()))
    assert (caught.value.got, caught.value.fix) == ("input_dilation=(1, 2)", "padding=(1, 0)")


def test_a_dilated_input_without_padding(normal):
    ours, same = (Conv(3, 2, 3, padding=p, input_dilation=2, rngs=Rngs(0)) for p in ("VALID", 0))
    np.testing.assert_array_equal(ours(normal(6, 3)), same(normal(6, 3)))


def test_causal_padding_is_for_one_axis():
    with pytest.raises(LayerError, match=r"'CAUSAL' is for one spatial axis$"):
        Conv(1, 1, (3, 3), padding="CAUSAL", rngs=Rngs(0))


def test_a_mask_of_another_shape():
    with pytest.raises(LayerError, match=r"Conv.mask: a mask has the shape of the kernel") as caught:
        Conv(2, 1, 3, mask=jnp.ones((3, 1, 1)), rngs=Rngs(0))
    assert caught.value.expected == "an array of shape (3, 2, 1)"
    assert "(3, 1, 1)" in caught.value.got


def test_an_input_of_too_few_axes():
    with pytest.raises(LayerError, match=r"Conv.kernel_size: 'inputs' has too few axes") as caught:
        Conv(2, 1, (3, 3), rngs=Rngs(0))(jnp.ones((5, 2)))
    assert "2 spatial axes and one of features" in caught.value.expected
    assert "(5, 2)" in caught.value.got


def test_an_input_of_other_features():
    with pytest.raises(LayerError, match=r"Conv.in_features: the last axis of 'inputs' has the wrong size"):
        Conv(2, 1, (3, 3), rngs=Rngs(0))(jnp.ones((5, 5, 3)))


# ================================================================= transposed


def transposed_pairs(name, strides, reach):
    """What each named padding adds to the spread input, before and after an axis."""
    full = (reach, strides - 1 + max(reach + 1 - strides, 0))
    before = reach if strides > reach else -(-(reach + strides - 1) // 2)
    return {"VALID": full, "SAME": (before, reach + strides - 1 - before), "CAUSAL": (reach, strides - 1)}[name]


@st.composite
def transposed_cases(draw):
    rank = draw(st.integers(1, 2))
    per_axis = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    return {
        "sizes": per_axis(1, 3),
        "spatial": per_axis(2, 5),
        "strides": per_axis(1, 3),
        "kernel_dilation": per_axis(1, 2),
        "padding": draw(st.sampled_from(["SAME", "VALID"] + ["CAUSAL"] * (rank == 1))),
        "transpose_kernel": draw(st.booleans()),
    }


@given(transposed_cases())
def test_a_transposed_convolution_is_one_of_the_spread_input(case):
    given = {name: case[name] for name in ("padding", "kernel_dilation", "transpose_kernel")}
    layer = ConvTranspose(3, 2, case["sizes"], case["strides"], **given, bias_init=NOISE, rngs=Rngs(0))
    x = np.random.default_rng(0).standard_normal((2, *case["spatial"], 3), np.float32)
    kernel = np.asarray(layer.kernel.value)
    if case["transpose_kernel"]:
        kernel = np.flip(kernel, range(len(case["sizes"]))).swapaxes(-1, -2)
    reaches = [(size - 1) * d for size, d in zip(case["sizes"], case["kernel_dilation"], strict=True)]
    expected = convolve(
        x,
        kernel,
        strides=(1,) * len(reaches),
        pairs=[transposed_pairs(case["padding"], *each) for each in zip(case["strides"], reaches, strict=True)],
        mode="constant",
        input_dilation=case["strides"],
        kernel_dilation=case["kernel_dilation"],
        groups=1,
    ) + np.asarray(layer.bias.value)
    assert layer.kernel_shape == layer.kernel.shape
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("padding", "strides"), [("VALID", 1), ("VALID", 3), ("CIRCULAR", 1), ("CIRCULAR", 2)])
def test_with_the_kernel_of_a_conv_it_is_the_transpose_of_it(normal, padding, strides):
    conv = Conv(3, 2, 3, strides, padding=padding, use_bias=False, rngs=Rngs(0))
    layer = ConvTranspose(2, 3, 3, strides, padding=padding, transpose_kernel=True, use_bias=False, rngs=Rngs(1))
    layer.kernel.value = conv.kernel.value
    x = jax.ShapeDtypeStruct((2, 6 if padding == "CIRCULAR" else 3 + 2 * strides, 3), jnp.float32)
    y = normal(*jax.eval_shape(conv, x).shape)
    (expected,) = jax.linear_transpose(conv, x)(y)
    np.testing.assert_allclose(layer(y), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR", 1, [(1, 2)]])
@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize(("strides", "dilation"), [(1, 1), (2, 1), (3, 2), (None, None)])
def test_transposed_along_one_axis_like_the_peer(same, normal, padding, size, strides, dilation):
    options = {"padding": padding, "kernel_dilation": dilation, "bias_init": NOISE}
    same(ConvTranspose, 4, 6, size, strides, call=(normal(2, 5, 4),), **options)


@pytest.mark.parametrize("padding", ["SAME", "CIRCULAR", (1, 2)])
@pytest.mark.parametrize("batch", [(), (2, 3), (1, 2, 2)])
@pytest.mark.parametrize("transpose_kernel", [False, True])
def test_transposed_along_two_axes_like_the_peer(same, normal, padding, batch, transpose_kernel):
    options = {"padding": padding, "transpose_kernel": transpose_kernel, "use_bias": not transpose_kernel}
    same(ConvTranspose, 3, 2, (3, 2), (1, 2), call=(normal(*batch, 4, 5, 3),), precision="highest", **options)


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("mask_dtype", [None, bool])
@pytest.mark.parametrize("preferred", [None, jnp.float32])
def test_transposed_dtypes_and_masks_like_the_peer(same, normal, dtype, param_dtype, mask_dtype, preferred):
    mask = None if mask_dtype is None else (normal(3, 3, 2, seed=1) > 0).astype(mask_dtype)
    options = {"dtype": dtype, "param_dtype": param_dtype, "mask": mask, "preferred_element_type": preferred}
    same(ConvTranspose, 3, 2, 3, call=(normal(2, 5, 3, dtype=param_dtype),), bias_init=NOISE, **options)


def test_transposed_over_four_axes(normal):
    layer = ConvTranspose(2, 3, (1, 2, 1, 2), strides=(1, 2, 1, 1), use_bias=False, rngs=Rngs(0))
    y = layer(normal(1, 2, 2, 1, 3, 2))
    assert y.shape == (1, 2, 4, 1, 3, 3)
    assert layer(jnp.zeros((0, 2, 2, 1, 3, 2))).shape == (0, 2, 4, 1, 3, 3)


def test_causal_outputs_of_a_transpose_see_no_later_input(normal):
    layer = ConvTranspose(1, 1, 5, strides=2, padding="causal", rngs=Rngs(0))
    seen = jax.jacobian(lambda x: layer(x[:, None])[:, 0])(normal(4))
    assert seen.shape == (8, 4)
    np.testing.assert_array_equal(jnp.triu(seen[::2], 1), jnp.zeros((4, 4)))
    np.testing.assert_array_equal(jnp.triu(seen[1::2], 1), jnp.zeros((4, 4)))
    assert (jnp.diagonal(seen[::2]) != 0).all()


@pytest.mark.parametrize("padding", ["REFLECT", "SAME_LOWER", "SOME", (1, 2), None])
def test_a_bad_padding_of_a_transpose(padding):
    with pytest.raises(LayerError, match=r"ConvTranspose.padding: this is not a padding of 1 spatial axis") as caught:
        ConvTranspose(1, 1, 3, padding=padding, rngs=Rngs(0))
    assert "one of SAME, VALID, CIRCULAR, CAUSAL; an integer;" in caught.value.expected


def test_other_bad_arguments_of_a_transpose():
    with pytest.raises(LayerError, match=r"ConvTranspose.kernel_size: these are not sizes of spatial axes"):
        ConvTranspose(1, 1, 0, rngs=Rngs(0))
    with pytest.raises(LayerError, match=r"ConvTranspose.strides: these are not sizes of spatial axes"):
        ConvTranspose(1, 1, 2, strides=(1, 2), rngs=Rngs(0))
    with pytest.raises(LayerError, match=r"ConvTranspose.mask: a mask has the shape of the kernel") as caught:
        ConvTranspose(2, 1, 3, mask=jnp.ones((3, 2, 1)), transpose_kernel=True, rngs=Rngs(0))
    assert caught.value.expected == "an array of shape (3, 1, 2)"
    with pytest.raises(LayerError, match=r"ConvTranspose.in_features: the last axis of 'inputs' has the wrong size"):
        ConvTranspose(2, 1, (3, 3), rngs=Rngs(0))(jnp.ones((5, 5, 3)))


@pytest.mark.parametrize(("size", "strides", "padding"), [(4, 2, 1), (3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2)])
def test_the_padding_of_pytorch_in_a_transpose(size, strides, padding):
    """As the page for users of PyTorch says; that takes the padding off the output."""
    layer = ConvTranspose(2, 3, (size,), strides, padding=size - 1 - padding, rngs=Rngs(0))
    x = jnp.arange(16.0).reshape(1, 8, 2)
    assert layer(x).shape == (1, (8 - 1) * strides - 2 * padding + size, 3)
    whole = ConvTranspose(2, 3, (size,), strides, padding=size - 1, rngs=Rngs(0))(x)
    np.testing.assert_allclose(layer(x), whole[:, padding : whole.shape[1] - padding], rtol=1e-5)

"""Wrappers that normalize weights: the formula, the numbers of the peer, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import declax as dx

pytestmark = pytest.mark.sampled(3)

X = jax.random.normal(jax.random.key(1), (5, 3))


def normed(nnx: Any, **options: Any) -> Any:
    rngs = nnx.Rngs(0)
    inner = nnx.Linear(3, 4, param_dtype=options.get("param_dtype", jnp.float32), rngs=rngs)
    return nnx.WeightNorm(inner, rngs=rngs, **options), rngs


def kernel_of(layer: Any) -> jax.Array:
    return layer.layer_instance.kernel[...]


@pytest.mark.parametrize("use_scale", [True, False])
@pytest.mark.parametrize("axes", [-1, 0, (0, 1), None])
def test_the_weight_is_that_of_the_formula(axes: Any, use_scale: bool) -> None:
    layer, _ = normed(dx, feature_axes=axes, use_scale=use_scale, scale_init=dx.initializers.constant(3.0), epsilon=0.1)
    summed = {-1: 0, 0: 1, (0, 1): (), None: None}[axes]
    before = np.asarray(kernel_of(layer))
    expected = before / np.sqrt((before**2).sum(summed, keepdims=True) + 0.1) * (3 if use_scale else 1)
    np.testing.assert_allclose(layer(X), X @ expected, rtol=1e-5)
    np.testing.assert_allclose(kernel_of(layer), expected, rtol=1e-6)
    shapes = {-1: (4,), 0: (3,), (0, 1): (3, 4), None: ()}
    assert layer.scales is None if not use_scale else layer.scales[("kernel",)].shape == shapes[axes]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"feature_axes": None},
        {"feature_axes": (-2,), "use_scale": False},
        {"param_dtype": jnp.float16},
        {"param_dtype": jnp.bfloat16, "use_scale": False},
        {"dtype": jnp.bfloat16},
    ],
)
def test_a_weight_norm_is_that_of_the_peer(options: dict[str, Any]) -> None:
    nnx = pytest.importorskip("flax.nnx")
    (ours, rngs), (theirs, their_rngs) = normed(dx, **options), normed(nnx, **options)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(2):
            np.testing.assert_array_equal(ours(X), theirs(X))
    assert kernel_of(ours).dtype == kernel_of(theirs).dtype
    assert rngs.params.count[...] == their_rngs.params.count[...]
    flat, theirs_flat = dx.to_flat_state(dx.state(ours)), nnx.to_flat_state(nnx.state(theirs))
    assert [path for path, _ in flat] == [path for path, _ in theirs_flat]
    for (path, mine), (_, other) in zip(flat, theirs_flat, strict=True):
        np.testing.assert_array_equal(jnp.asarray(mine[...]), jnp.asarray(other[...]), err_msg=str(path))


def gradients(nnx: Any, wrapper: str) -> tuple[Any, Any]:
    rngs = nnx.Rngs(0)
    layer = getattr(nnx, wrapper)(nnx.Linear(3, 4, rngs=rngs), rngs=rngs)
    return nnx.grad(lambda layer: (layer(X) ** 2).sum())(layer)["layer_instance"]["kernel"][...], kernel_of(layer)


@pytest.mark.parametrize("wrapper", ["WeightNorm", "SpectralNorm"])
def test_gradients_go_through_the_normalization(wrapper: str) -> None:
    nnx = pytest.importorskip("flax.nnx")
    for mine, other in zip(gradients(dx, wrapper), gradients(nnx, wrapper), strict=True):
        np.testing.assert_array_equal(mine, other)


def output(layer: Any, x: jax.Array) -> jax.Array:
    return layer(x)


def with_kernel(wrapper: type[dx.Module], kernel: jax.Array, **options: Any) -> Any:
    layer: Any = wrapper(dx.Linear(3, 4, rngs=dx.Rngs(0)), rngs=dx.Rngs(1), **options)
    layer.layer_instance.kernel[...] = kernel
    return layer


WRAPPERS = pytest.mark.parametrize("wrapper", [dx.WeightNorm, dx.SpectralNorm])


@WRAPPERS
def test_wrappers_work_in_all_transforms(wrapper: type[dx.Module]) -> None:
    kernel = jax.random.normal(jax.random.key(2), (3, 4))

    def made() -> Any:
        return with_kernel(wrapper, kernel)

    expected = made()(X)
    step = dx.jit(output)
    layer = made()
    with jax.numpy_dtype_promotion("strict"):
        for _ in range(2):
            step(layer, X)
    assert step.num_traces == 1
    np.testing.assert_allclose(step(made(), X), expected, rtol=1e-5)
    np.testing.assert_allclose(dx.remat(output)(made(), X), expected, rtol=1e-5)
    _, rows = dx.scan(lambda layer, x: (layer, layer(x)), out_axes=(dx.Carry, 0))(made(), X[:1])
    np.testing.assert_allclose(rows, expected[:1], rtol=1e-5)


@WRAPPERS
def test_wrappers_are_made_abstractly_and_in_a_stack(wrapper: type[dx.Module]) -> None:
    abstract = dx.eval_shape(lambda: with_kernel(wrapper, jnp.ones((3, 4))))
    assert abstract.layer_instance.kernel.shape == (3, 4)
    stack = dx.vmap(lambda key: wrapper(dx.Linear(3, 4, rngs=dx.Rngs(key)), rngs=dx.Rngs(key)))(
        jax.random.split(jax.random.key(0), 2)
    )
    assert dx.vmap(output, in_axes=(0, None))(stack, X).shape == (2, 5, 4)


@WRAPPERS
def test_gradients_are_those_of_differences(wrapper: type[dx.Module]) -> None:
    kernel = jax.random.normal(jax.random.key(2), (3, 4))
    # The vectors count as constants; at the singular vectors, sigma depends on them in second order only.
    options = {"n_steps": 100} if wrapper is dx.SpectralNorm else {}
    check_grads(lambda kernel: with_kernel(wrapper, kernel, **options)(X), (kernel,), order=1, modes=["rev"], rtol=1e-2)


@WRAPPERS
def test_a_layer_must_be_callable_and_complete(wrapper: type[dx.Module]) -> None:
    with pytest.raises(dx.errors.LayerError, match="the layer cannot be called"):
        wrapper(dx.Module(), rngs=dx.Rngs(0))
    layer: Any = wrapper(dx.Sequential(dx.Linear(3, 3, rngs=dx.Rngs(0))), rngs=dx.Rngs(0))
    layer.layer_instance.layers.append(dx.Linear(3, 3, rngs=dx.Rngs(0)))
    before = layer.layer_instance.layers[0].kernel[...]
    with pytest.raises(dx.errors.LayerError, match=r"a Param that it did not have .*: layers\[1\]\.kernel"):
        layer(X)
    assert layer.layer_instance.layers[0].kernel[...] is before


def test_a_filter_must_match() -> None:
    with pytest.raises(dx.errors.LayerError, match="the filter matches no Param of the layer"):
        dx.WeightNorm(dx.Embed(3, 4, rngs=dx.Rngs(0)), rngs=dx.Rngs(0))
    with pytest.raises(dx.errors.LayerError, match="axis 2 is not one of 'weight'"):
        normed(dx, feature_axes=2)
    with pytest.raises(dx.errors.LayerError, match="this names no axes"):
        normed(dx, feature_axes="last")


def test_scales_may_be_random() -> None:
    layer, rngs = normed(dx, scale_init=dx.initializers.normal())
    same = dx.Rngs(0)
    keys = [same.params() for _ in range(3)]  # of kernel, bias and scale
    np.testing.assert_array_equal(layer.scales[("kernel",)], dx.initializers.normal()(keys[2], (4,)))
    assert rngs.params.count[...] == 3


def test_wrappers_pass_on_further_arguments() -> None:
    class Scaled(dx.Linear):
        def __call__(self, x: jax.Array, factor: float = 1.0, *, shift: float = 0.0) -> jax.Array:  # type: ignore[override]  # another call
            return super().__call__(x) * factor + shift

    layer = dx.WeightNorm(Scaled(3, 4, rngs=dx.Rngs(0)), rngs=dx.Rngs(0))
    plain: Callable[..., Any] = layer.layer_instance
    expected = layer(X)
    np.testing.assert_allclose(layer(X, 2.0, shift=1.0), expected * 2 + 1, rtol=1e-5)
    np.testing.assert_allclose(plain(X), expected, rtol=1e-5)


def spectral(nnx: Any, *, inner_dtype: Any = jnp.float32, **options: Any) -> Any:
    rngs = nnx.Rngs(0)
    inner = nnx.Sequential(
        nnx.Conv(3, 4, (2,), param_dtype=inner_dtype, rngs=rngs), nnx.Linear(4, 2, param_dtype=inner_dtype, rngs=rngs)
    )
    return nnx.SpectralNorm(inner, rngs=rngs, **options), rngs


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_steps": 3},
        {"update_stats": False},
        {"dtype": jnp.bfloat16},
        {"param_dtype": jnp.float16},
        {"inner_dtype": jnp.float16},
    ],
)
@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning")  # from the peer's writes
def test_a_spectral_norm_is_that_of_the_peer(options: dict[str, Any]) -> None:
    nnx = pytest.importorskip("flax.nnx")
    (ours, rngs), (theirs, their_rngs) = spectral(dx, **options), spectral(nnx, **options)
    with jax.numpy_dtype_promotion("standard"):
        for decided in (None, True, False):
            np.testing.assert_array_equal(ours(X, decided), theirs(X, decided))
    assert rngs.params.count[...] == their_rngs.params.count[...]
    flat, theirs_flat = dx.to_flat_state(dx.state(ours)), nnx.to_flat_state(nnx.state(theirs))
    assert [path for path, _ in flat] == [path for path, _ in theirs_flat]
    for (path, mine), (_, other) in zip(flat, theirs_flat, strict=True):
        np.testing.assert_array_equal(mine[...], other[...], err_msg=str(path))
        assert mine.dtype == other.dtype


def test_the_largest_singular_value_becomes_1() -> None:
    layer, _ = spectral(dx, n_steps=50)
    kernels = [
        np.asarray(inner.kernel[...]).reshape(-1, inner.kernel.shape[-1]) for inner in layer.layer_instance.layers
    ]
    layer(X)
    for position, kernel in enumerate(kernels):
        sigma = np.linalg.svd(kernel)[1].max()
        np.testing.assert_allclose(layer.batch_stats["layers", position, "kernel", "sigma"][...], sigma, rtol=1e-4)
        after = layer.layer_instance.layers[position].kernel[...]
        np.testing.assert_allclose(after.reshape(kernel.shape), kernel / sigma, rtol=1e-3, atol=1e-6)


def test_evaluation_keeps_the_statistics() -> None:
    layer, _ = spectral(dx)
    before = layer.batch_stats["layers", 0, "kernel", "u"][...]
    layer.eval()
    layer(X)
    assert layer.batch_stats["layers", 0, "kernel", "u"][...] is before
    layer.train()
    layer(X)
    assert not jnp.array_equal(layer.batch_stats["layers", 0, "kernel", "u"][...], before)


def test_weights_of_three_axes_may_be_refused() -> None:
    with pytest.raises(dx.errors.LayerError, match=r"layers\[0\]\.kernel is not a matrix"):
        spectral(dx, error_on_non_matrix=True)


def test_a_spectral_norm_without_steps_is_refused() -> None:
    with pytest.raises(dx.errors.LayerError, match=r"SpectralNorm\.n_steps: this value is out of bounds(?s:.)*least 1"):
        spectral(dx, n_steps=0)

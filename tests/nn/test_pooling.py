"""Pooling, against plain loops over windows and against the peer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declax import errors
from declax.nn import pooling

pytestmark = pytest.mark.sampled(3)


def windows(
    x: np.ndarray[Any, Any],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[tuple[int, int], ...],
    reduce: Callable[..., Any],
    fill: float,
) -> np.ndarray[Any, Any]:
    """Reduces each window of an array ``(*spatial, channels)``, one by one."""
    padded = np.pad(x.astype(np.float64), (*pads, (0, 0)), constant_values=fill)
    counts = [(n - w) // s + 1 for n, w, s in zip(padded.shape[:-1], window, strides, strict=True)]
    out = np.zeros((*counts, x.shape[-1]))
    for place in itertools.product(*map(range, counts)):
        cut = tuple(slice(i * s, i * s + w) for i, s, w in zip(place, strides, window, strict=True))
        out[place] = reduce(padded[cut], axis=tuple(range(len(window))))
    return out


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    count = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(3, 5)) for _ in range(count))
    window = tuple(draw(st.integers(1, 3)) for _ in range(count))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(count))
    # Padding below the window, so that no window is padding only.
    pads = tuple((draw(st.integers(0, w - 1)), draw(st.integers(0, w - 1))) for w in window)
    values = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(*shape, 2)).astype(np.float32)
    return values, window, strides, pads


@settings(max_examples=12, deadline=None)
@given(cases())
def test_against_loops(case: tuple[Any, ...]) -> None:
    x, window, strides, pads = case
    expected = {
        "max_pool": windows(x, window, strides, pads, np.max, -np.inf),
        "min_pool": windows(x, window, strides, pads, np.min, np.inf),
        "avg_pool": windows(x, window, strides, pads, np.mean, 0.0),
    }
    for name, values in expected.items():
        got = getattr(pooling, name)(x, window, strides, pads)
        np.testing.assert_allclose(got, values, rtol=1e-5, atol=1e-6, err_msg=name)
    uncounted = windows(x, window, strides, pads, np.nanmean, np.nan)
    got = pooling.avg_pool(x, window, strides, pads, count_include_pad=False)
    np.testing.assert_allclose(got, uncounted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("name", ["max_pool", "min_pool", "avg_pool"])
def test_any_batch_axes(name: str, batch: tuple[int, ...]) -> None:
    x = jax.random.normal(jax.random.key(0), (*batch, 5, 4, 3))
    got = getattr(pooling, name)(x, (2, 2), padding="SAME")
    flat = jax.vmap(lambda y: getattr(pooling, name)(y, (2, 2), padding="SAME"))(x.reshape(-1, 5, 4, 3))
    assert got.shape == x.shape
    np.testing.assert_allclose(got, flat.reshape(x.shape), rtol=1e-6)


@pytest.mark.parametrize("padding", ["VALID", "SAME", "same", "SAME_LOWER", ((1, 1), (0, 1)), [[1, 1], [0, 1]]])
@pytest.mark.parametrize(("strides", "shape"), [(None, (2, 5, 5, 3)), ((1, 3), (5, 5, 3))])
def test_against_the_peer(padding: Any, strides: Any, shape: tuple[int, ...]) -> None:
    nnx = pytest.importorskip("flax.nnx")
    x = jax.random.normal(jax.random.key(0), shape)

    def compare(name: str, *args: Any, **options: Any) -> None:
        def value_and_slope(pool: Callable[..., Any]) -> tuple[Any, Any]:
            return pool(x, *args, **options), jax.grad(lambda y: pool(y, *args, **options).sum())(x)

        ours = value_and_slope(getattr(pooling, name))
        with jax.numpy_dtype_promotion("standard"):  # the peer cannot run under strict promotion
            theirs = value_and_slope(getattr(nnx, name))
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6)

    for name in ("max_pool", "min_pool", "avg_pool"):
        compare(name, (2, 3), strides, padding)
    compare("avg_pool", (2, 3), strides, padding, count_include_pad=False)
    compare("pool", 0.0, jax.lax.add, (2, 3), strides, padding)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int32", "uint8", "bool"])
def test_dtypes(dtype: str) -> None:
    x = jnp.arange(12).reshape(4, 3, 1).astype(dtype)
    for name, reduce in (("max_pool", np.max), ("min_pool", np.min)):
        got = getattr(pooling, name)(x, (2, 2), padding="SAME")
        assert got.dtype == x.dtype
        fill = -np.inf if name == "max_pool" else np.inf
        values = windows(np.asarray(x), (2, 2), (1, 1), ((0, 1), (0, 1)), reduce, fill)
        np.testing.assert_array_equal(np.asarray(got).astype(np.float64), values)


@pytest.mark.parametrize(("dtype", "result"), [("float16", "float16"), ("bfloat16", "bfloat16"), ("int32", "float32")])
def test_dtype_of_the_mean(dtype: str, result: str) -> None:
    x = jnp.arange(12).reshape(4, 3, 1).astype(dtype)
    with jax.numpy_dtype_promotion("strict"):
        for counted in (True, False):
            got = pooling.avg_pool(x, (2, 2), padding="SAME", count_include_pad=counted)
            assert got.dtype == result
    np.testing.assert_array_equal(pooling.avg_pool(x, (2, 1))[..., 0], np.arange(9.0).reshape(3, 3) + 1.5)


def test_under_transforms() -> None:
    x = jnp.ones((2, 4, 4, 1))
    listed = pooling.max_pool(x, [2, 2], strides=[1, 2])
    assert listed.shape == (2, 3, 2, 1)
    with jax.checking_leaks():
        assert jax.jit(lambda y: pooling.max_pool(y, (2, 2)))(x).shape == (2, 3, 3, 1)
    hessian = jax.hessian(lambda y: (pooling.avg_pool(y, (2, 2)) ** 2).sum())(x[:1, :3, :3])
    assert hessian.shape == (1, 3, 3, 1, 1, 3, 3, 1)


X = jnp.ones((2, 5, 5, 3))
POOLS = [pooling.max_pool, pooling.min_pool, pooling.avg_pool]


@pytest.mark.parametrize("pool", POOLS)
def test_bad_windows(pool: Callable[..., Any]) -> None:
    name = pool.__name__
    fix = r"(?s)window_shape: is not a sequence of integers.*fix: +window_shape=\(2, 2\)"
    with pytest.raises(errors.LayerError, match=name + r"\." + fix[4:].replace(".*", r"[\s\S]*")):
        pool(X, 2)
    with pytest.raises(errors.LayerError, match=r"window_shape: is not a sequence of integers"):
        pool(X, (2.0, 2))
    with pytest.raises(errors.LayerError, match=r"window_shape: has an entry below 1"):
        pool(X, (0, 2))
    with pytest.raises(errors.LayerError, match=r"(?s)inputs: has too few axes for the window.*shape \(5,\)"):
        pool(jnp.ones(5), (2, 2))
    with pytest.raises(errors.LayerError, match=r"window_shape: does not fit into the inputs"):
        pool(X, (9, 2))


def test_bad_strides() -> None:
    with pytest.raises(errors.LayerError, match=r"max_pool.strides: has another number of axes than the window"):
        pooling.max_pool(X, (2, 2), strides=(2,))
    with pytest.raises(errors.LayerError, match=r"(?s)strides: is not a sequence of integers.*strides=\(3, 3\)"):
        pooling.max_pool(X, (2, 2), strides=3)  # type: ignore[arg-type]  # under test
    with pytest.raises(errors.LayerError, match=r"strides: has an entry below 1"):
        pooling.max_pool(X, (2, 2), strides=(0, 1))


def test_bad_paddings() -> None:
    with pytest.raises(errors.LayerError, match=r"(?s)there is no padding called 'SANE'.*did you mean 'SAME'"):
        pooling.max_pool(X, (2, 2), padding="SANE")
    with pytest.raises(
        errors.LayerError, match=r"(?s)is not a padding for this window.*fix: +padding=\(\(1, 1\), \(1, 1\)\)"
    ):
        pooling.max_pool(X, (2, 2), padding=1)  # type: ignore[arg-type]  # under test
    for padding in (((1, 1),), (1, 1), ((1, 1), (1, 1, 1)), ((1.5, 1), (1, 1))):
        with pytest.raises(errors.LayerError, match=r"avg_pool.padding: is not a padding for this window"):
            pooling.avg_pool(X, (2, 2), padding=padding)  # type: ignore[arg-type]  # under test


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 4, 5, 3), (2, 2, 3, 4, 3)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_global_pooling_reduces_the_spatial_axes(shape, dtype):
    x = jax.random.randint(jax.random.key(0), shape, -9, 9).astype(dtype)
    rows = x.reshape(2, -1, 3)
    np.testing.assert_array_equal(pooling.global_max_pool(x), rows.max(1))
    np.testing.assert_array_equal(pooling.global_avg_pool(x), jnp.mean(x, tuple(range(1, len(shape) - 1))))
    np.testing.assert_allclose(
        np.asarray(pooling.global_avg_pool(x), np.float32), np.asarray(rows, np.float32).mean(1), atol=0.05
    )
    assert pooling.global_max_pool(x).dtype == dtype
    assert pooling.global_avg_pool(x, keepdims=True).shape == (2, *(1,) * (len(shape) - 2), 3)
    np.testing.assert_array_equal(pooling.global_max_pool(x[0], axis=0), x[0].max(0))


def test_global_pooling_needs_a_batch():
    with pytest.raises(errors.LayerError, match=r"global_avg_pool\.inputs: has too few axes"):
        pooling.global_avg_pool(jnp.ones((4, 3)))
    with pytest.raises(errors.LayerError, match=r"global_max_pool\.inputs: has too few axes"):
        pooling.global_max_pool(jnp.ones((4, 3)))

"""What the tests of layers share: the peer, inputs, and the comparison with the peer's layer."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from declax._random.streams import Rngs
from declax._variables.variable import Variable


@pytest.fixture
def nnx() -> Any:
    return pytest.importorskip("flax.nnx")


@pytest.fixture
def normal() -> Callable[..., jax.Array]:
    """Makes normal inputs: ``normal(2, 3)``, ``normal(2, dtype=jnp.bfloat16)``."""

    def make(*shape: int, dtype: Any = jnp.float32, seed: int = 0) -> jax.Array:
        return jax.random.normal(jax.random.key(seed), shape, dtype)

    return make


def assert_close(ours: jax.Array, theirs: jax.Array) -> None:
    """Same shape and dtype, and values within a few units of the dtype's precision."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    eps = float(jnp.finfo(ours.dtype).eps) if jnp.issubdtype(ours.dtype, jnp.inexact) else 0.0
    wide = np.complex128 if jnp.iscomplexobj(ours) else np.float64
    np.testing.assert_allclose(np.asarray(ours, wide), np.asarray(theirs, wide), rtol=16 * eps, atol=16 * eps)


@pytest.fixture
def close() -> Callable[[jax.Array, jax.Array], None]:
    return assert_close


@pytest.fixture
def same(nnx: Any) -> Callable[..., Any]:
    """Compares a layer with the peer's: parameters bit by bit, and outputs.

    Returns both layers, for what a test wants to look at besides.
    """

    def compare(
        layer: type, *args: Any, call: tuple[Any, ...], call_options: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        ours = layer(*args, rngs=Rngs(3), **options)
        theirs = getattr(nnx, layer.__name__)(*args, rngs=nnx.Rngs(3), **options)
        for name in ("kernel", "bias", "embedding", "scale", "mean", "var"):
            mine, other = getattr(ours, name, None), getattr(theirs, name, None)
            assert (mine is None) == (other is None), name
            if isinstance(mine, Variable):
                np.testing.assert_array_equal(mine.value, other[...], err_msg=name)
                assert mine.value.dtype == other[...].dtype
        # The peer promotes where declax casts, so it cannot run under strict promotion. What no `dtype` decides,
        # declax promotes as well.
        dtypes = {x.dtype for x in call if hasattr(x, "dtype")} | {jnp.dtype(options.get("param_dtype", jnp.float32))}
        is_mixed = options.get("dtype") is None and len(dtypes) > 1
        with jax.numpy_dtype_promotion("standard"):
            expected = theirs(*call, **(call_options or {}))
        with jax.numpy_dtype_promotion("standard" if is_mixed else "strict"):
            got = ours(*call, **(call_options or {}))
        assert_close(got, expected)
        return ours, theirs

    return compare

"""Modules: clones with and without their arrays, calls of split graphs, and texts of `view_info`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import GraphError


@pytest.fixture(params=["declax", "flax.nnx"])
def nnx(request):
    return pytest.importorskip(request.param)


def test_a_clone_with_its_own_arrays_can_be_donated(nnx):
    class Pair(nnx.Module):
        def __init__(self, rngs):
            self.online = nnx.Linear(2, 3, rngs=rngs)
            self.target = nnx.clone(self.online, arrays=True)

    state = nnx.state(Pair(nnx.Rngs(0)))
    moved = jax.jit(lambda state: jax.tree.map(lambda x: x + 1.0, state), donate_argnums=0)(state)
    np.testing.assert_array_equal(moved["online"]["kernel"][...], moved["target"]["kernel"][...])


def test_a_clone_shares_arrays_on_request(nnx):
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    shared = nnx.clone(model, arrays=False)
    assert shared.kernel is not model.kernel
    assert shared.kernel[...] is model.kernel[...]
    with pytest.raises(ValueError, match="arrays"):
        nnx.clone(model, variables=False, arrays=True)


def test_a_clone_that_shares_arrays_owns_what_can_be_written_to():
    model = dx.Dict(a=dx.Param(np.ones(2)), b=dx.Param(jnp.ones(2), ref=True))
    shared = dx.clone(model, arrays=False)
    shared.a.get_raw_value()[0] = 5.0
    shared.b[...] = jnp.zeros(2)
    np.testing.assert_array_equal(model.a[...], [1.0, 1.0])
    np.testing.assert_array_equal(model.b[...], [1.0, 1.0])
    with pytest.raises(GraphError, match="only with its Variables can a graph have copies of their arrays"):
        dx.clone(model, variables=False, arrays=True)


def test_a_graphdef_applies_a_state(nnx):
    class Scale(nnx.Module):
        def __init__(self):
            self.factor = nnx.Param(jnp.array(2.0))
            self.calls = nnx.Variable(jnp.array(0))

        def __call__(self, x, *, shift=0.0):
            self.calls[...] += 1
            return self.factor * x + shift

    model = Scale()
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    y, (graphdef, state) = graphdef.apply(params, rest)(3.0, shift=1.0)
    assert (float(y), int(state["calls"][...])) == (7.0, 1)
    y, (_, state) = graphdef.apply(state)(1.0)
    assert (float(y), int(state["calls"][...])) == (2.0, 2)


def test_view_info_describes_each_argument(nnx):
    class Block(nnx.Module):
        def set_view(self, mode: str | None = None, size: int | None = None, **kwargs):
            """Sets both.

            Args:
              mode: of the block.
              size: of the cache,
                in tokens.
            """
            return kwargs

    expected = (
        "  mode: str | None = None\n    of the block.\n  size: int | None = None\n    of the cache,\n    in tokens."
    )
    assert nnx.view_info(Block()).partition(":\n")[2].rstrip() == expected

"""Sharing that a transform cannot keep is refused, as by the peer, and what the caller holds is as it was."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

MODES = [{"graph_updates": True}, {"graph_updates": False}, {"graph": False}]
FUNCTIONAL = MODES[1:]


@pytest.fixture(params=["declax", "flax.nnx"])
def nnx(request):
    return pytest.importorskip(request.param)


def two_axes(nnx, v, mode):
    nnx.vmap(lambda a, b: None, in_axes=(0, None), **mode)(v, v)


def two_axes_in_models(nnx, v, mode):
    nnx.vmap(lambda a, b: None, in_axes=(0, 1), **mode)(nnx.Dict(v=v), nnx.Dict(v=v))


def a_carry_that_is_scanned_too(nnx, v, mode):
    nnx.scan(lambda carry, x: carry, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, **mode)(v, v)


def two_shardings(nnx, v, mode):
    with jax.set_mesh(jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))):
        nnx.jit(lambda a, b: a + b, in_shardings=(jax.P(), jax.P("x")), **mode)(v, v)


def a_gradient_of_one_use(nnx, v, mode):
    nnx.grad(lambda a, b: (a * b).sum(), **mode)(v, v)


def an_argument_as_the_result(nnx, v, mode):
    nnx.jit(lambda v: v, **mode)(v)


def an_argument_within_the_result(nnx, v, mode):
    nnx.vmap(lambda model: {"kept": model.v}, **mode)(nnx.Dict(v=v))


def a_captured_variable_as_the_result(nnx, v, mode):
    nnx.jit(lambda x: v, **mode)(1.0)


def twice_in_a_tree(nnx, v, mode):
    nnx.jit(lambda a, b: None, **mode)(v, nnx.Dict(v=v))


CASES = [
    *[(f, mode) for f in (two_axes, two_axes_in_models, a_carry_that_is_scanned_too) for mode in MODES],
    *[(f, mode) for f in (two_shardings, a_gradient_of_one_use) for mode in MODES],
    *[(f, mode) for f in (an_argument_as_the_result, an_argument_within_the_result) for mode in FUNCTIONAL],
    *[(a_captured_variable_as_the_result, mode) for mode in FUNCTIONAL],
    (twice_in_a_tree, {"graph": False}),
]


@pytest.mark.parametrize(("program", "mode"), CASES, ids=lambda value: getattr(value, "__name__", None) or str(value))
def test_sharing_that_is_refused(nnx, program, mode):
    v = nnx.Param(jnp.arange(3.0).reshape(3, 1) * jnp.ones((3, 3)))
    before = v.get_value()
    with pytest.raises(ValueError, match=r"aliasing|Duplicate|identity|references|captured|one of its uses|in place"):
        program(nnx, v, mode)
    assert v.get_value() is before


def test_sharing_that_is_kept(nnx):
    v = nnx.Param(jnp.arange(3.0))
    nnx.jit(lambda a, b: a.set_value(b + 1))(v, nnx.Dict(v=v).v)
    first, second = nnx.jit(lambda v: (v, {"again": v}))(v)
    assert first is second["again"] is v
    assert v[...].tolist() == [1.0, 2.0, 3.0]

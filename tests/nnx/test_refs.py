"""Array refs that transformed functions make, compared with the peer where it accepts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import declax as dx

BOTH = ["declax", "flax.nnx"]


@pytest.fixture(params=BOTH)
def nnx(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


def doubled(x: Any) -> jax.Ref:
    ref = jax.new_ref(x)
    ref[...] *= 2
    return ref


def holder(nnx: Any) -> Any:
    class Holder(nnx.Module):
        def __init__(self) -> None:
            self.ref = jax.new_ref(jnp.ones(2))
            self.weight = nnx.Param(jnp.ones(2))

    return Holder()


def test_a_ref_in_a_model_that_jit_returns(nnx: Any) -> None:
    @nnx.jit(graph=True, graph_updates=True)
    def make(model: Any) -> Any:
        return nnx.with_vars(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), ref=True)

    made = make(nnx.with_vars(nnx.Linear(1, 1, rngs=nnx.Rngs(1)), ref=True))
    assert isinstance(made.kernel.get_raw_value(), jax.Ref)
    assert (made.kernel[...] == nnx.Linear(1, 1, rngs=nnx.Rngs(0)).kernel[...]).all()


def test_a_ref_that_becomes_part_of_the_argument(nnx: Any) -> None:
    @nnx.jit(graph=True, graph_updates=True)
    def change(model: Any) -> None:
        model.ref[0] += 1
        model.other = doubled(model.ref[...])
        model.weight = nnx.Param(jnp.zeros(2))

    model = holder(nnx)
    ref = model.ref
    change(model)
    assert model.ref is ref
    assert model.ref[...].tolist() == [2.0, 1.0]
    assert isinstance(model.other, jax.Ref)
    assert model.other[...].tolist() == [4.0, 2.0]


def test_a_ref_takes_the_place_of_another() -> None:
    @dx.jit
    def change(model: Any) -> None:
        model.ref = doubled(model.ref[...])
        model.weight.set_value(doubled(model.weight.value))

    model = holder(dx)
    before = model.ref
    change(model)
    assert model.ref is not before
    assert [before[...].tolist(), model.ref[...].tolist()] == [[1.0, 1.0], [2.0, 2.0]]
    assert isinstance(model.weight.raw_value, jax.Ref)
    assert model.weight.raw_value[...].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "transform",
    [
        dx.jit,
        dx.remat,
        lambda f: lambda x: dx.cond(True, f, f, x),
        lambda f: dx.jit(dx.jit(f)),
        lambda f: lambda x: dx.grad(lambda x: (x.sum(), f(x)), has_aux=True)(x)[1],
    ],
    ids=["jit", "remat", "cond", "nested", "grad"],
)
def test_a_new_ref_as_result(transform: Callable[..., Any]) -> None:
    made = transform(doubled)(jnp.ones(2))
    assert isinstance(made, jax.Ref)
    assert made[...].tolist() == [2.0, 2.0]


def test_new_refs_of_many_calls_and_steps() -> None:
    mapped = dx.vmap(doubled)(jnp.arange(2.0))
    stacked = dx.scan(lambda carry, x: (carry, doubled(x)), in_axes=(dx.Carry, 0), out_axes=(dx.Carry, 0))
    steps = stacked(0.0, jnp.arange(3.0))[1]
    assert isinstance(mapped, jax.Ref)
    assert isinstance(steps, jax.Ref)
    assert [mapped[...].tolist(), steps[...].tolist()] == [[0.0, 2.0], [0.0, 2.0, 4.0]]
    assert dx.eval_shape(doubled, jnp.ones(2)).shape == (2,)


@pytest.mark.parametrize(
    "transform",
    [
        lambda nnx, f: nnx.jit(f),
        lambda nnx, f: nnx.remat(f),
        lambda nnx, f: nnx.jit(nnx.jit(f)),
        lambda nnx, f: nnx.vmap(f),
        lambda nnx, f: lambda ref, x: nnx.cond(True, f, f, ref, x),
        lambda nnx, f: lambda ref, x: nnx.grad(lambda x, ref: (x.sum(), f(ref, x)), has_aux=True)(x, ref)[1],
    ],
    ids=["jit", "remat", "nested", "vmap", "cond", "grad"],
)
def test_a_ref_of_the_arguments_that_is_returned(nnx: Any, transform: Callable[..., Any]) -> None:
    def twice(ref: Any, x: Any) -> Any:
        ref[...] = ref[...] * 2
        return {"ref": ref, "x": x}

    ref = jax.new_ref(jnp.ones(2))
    function = transform(nnx, twice)
    assert function(ref, jnp.ones(2))["ref"] is ref
    assert function(ref, jnp.ones(2))["ref"] is ref
    assert ref[...].tolist() == [4.0, 4.0]


def test_a_ref_is_returned_beside_changes_of_a_model() -> None:
    @dx.jit
    def step(model: Any, ref: Any) -> Any:
        model.count[...] += 1
        model.new = dx.Variable(ref[...])
        return model, [ref, ref]

    model, ref = dx.Dict(count=dx.Variable(jnp.array(0))), jax.new_ref(jnp.ones(2))
    for count in (1, 2):
        returned, refs = step(model, ref)
        assert returned is model
        assert refs[0] is refs[1] is ref
        assert int(model.count[...]) == count
    other = jax.new_ref(jnp.ones(2))
    assert step(model, other)[1][0] is other


def test_refs_that_cannot_be_returned() -> None:
    outer = jax.new_ref(jnp.ones(1))
    twice = lambda ref: (ref, dx.Param(ref))  # noqa: E731  # short
    for function, args in ((lambda: outer, ()), (lambda x: twice(doubled(x)), (1.0,))):
        with pytest.raises(ValueError, match="cannot be returned"):
            dx.jit(function)(*args)
    with pytest.raises(ValueError, match="changes the structure or type"):
        dx.fori_loop(0, 2, lambda i, ref: doubled(ref[...]), outer)
    assert outer[...] == 1.0

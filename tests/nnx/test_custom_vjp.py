"""`custom_vjp` without changes of structure, compared with the peer."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import declax as dx

nnx = pytest.importorskip("flax.nnx")

MODES = [{"graph_updates": False}, {"graph": False}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)


def model_of(lib):
    class Model(lib.Module):
        def __init__(self):
            self.x, self.y = lib.Param(jnp.array(1.0)), lib.Param(jnp.array(2.0))
            self.count = lib.Variable(jnp.array(0))

    return Model()


@each_mode
@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_updates_of_mutated_arguments(mode, is_compiled):
    found = []
    for lib in (dx, nnx):
        seen = []

        def compute(m, x):
            m.count[...] = m.count[...] + 1
            m.x[...] = m.x[...] * 3
            return jnp.sin(m.x[...]) * m.y[...] * x

        f = lib.custom_vjp(compute, **mode)

        def bwd(residuals, g, updates_g, lib=lib, seen=seen):
            of_model, of_x = updates_g
            kinds = [type(getattr(of_model, name)).__name__ for name in ("x", "y", "count")]
            seen.append((type(of_model).__name__, kinds, of_x))
            made = lib.clone(residuals[0])
            made.x[...] = g * 10 + of_model.x[...]
            made.y[...] = g * 20
            return made, g * 30

        f.defvjp(lambda m, x, f=f: (f(m, x), (m,)), bwd)
        model = model_of(lib)

        def loss(m, x, f=f):
            value = f(m, x)
            return value + m.x[...] ** 2

        take = lib.grad(loss, argnums=(0, 1), allow_int=True, **mode)
        of_model, of_x = (lib.jit(take, **mode) if is_compiled else take)(model, 5.0)
        found.append((seen, float(of_model.x[...]), float(of_model.y[...]), float(of_x), int(model.count[...])))
    assert found[0] == found[1]
    assert found[0][0][0] == ("Model", ["Param", "NoneType", "Variable"], None)


@each_mode
def test_a_variable_without_gradient(mode):
    found = []
    for lib in (dx, nnx):
        seen = []

        def compute(m, state, x):
            state[...] = state[...] - 1
            return m.x[...] * m.y[...] * x

        f = lib.custom_vjp(compute, nondiff_argnums=(1,), **mode)

        def bwd(state, residuals, g, lib=lib, seen=seen):
            seen.append(type(state).__name__)
            made = lib.clone(residuals)
            made.x[...], made.y[...] = g * 10, g * state[...]
            return made, g

        f.defvjp(lambda m, state, x, f=f: (f(m, state, x), m), bwd)
        model, state = model_of(lib), lib.BatchStat(jnp.array(7.0))
        value = f(model, state, 2.0)
        found.append((float(value), float(state[...]), seen))
        if lib is dx:  # the peer hands a leaked tracer to bwd
            step = lambda m, s, f=f: dx.grad(lambda m: f(m, s, 2.0), allow_int=True, **mode)(m)  # noqa: E731
            grads = dx.jit(step)(model, state)
            assert (float(grads.x[...]), float(grads.y[...])) == (10.0, 6.0)
            assert seen == ["BatchStat"]
            seen.clear()
    assert found[0] == found[1]


def test_a_variable_with_and_without_gradient():
    for lib in (dx, nnx):
        f = lib.custom_vjp(lambda a, b: a[...] + b[...], nondiff_argnums=(1,), graph_updates=False)
        f.defvjp(lambda a, b, f=f: (f(a, b), ()), lambda b, residuals, g: (g,))
        variable = lib.Param(jnp.array(1.0))
        with pytest.raises(ValueError, match=r"this Variable is differentiated in another argument|Duplicate"):
            f(variable, variable)


def test_models_in_nondiff_argnums_need_a_mode_in_the_peer_only():
    for lib in (dx, nnx):
        f = lib.custom_vjp(lambda a, b: a[...] + b[...], nondiff_argnums=(1,))
        f.defvjp(lambda a, b, f=f: (f(a, b), ()), lambda b, residuals, g: (b[...] * g[1],))
        a, b = lib.Param(jnp.array(1.0)), lib.Param(jnp.array(3.0))
        if lib is nnx:
            with pytest.raises((ValueError, TypeError), match="not supported"):
                f(a, b)
        else:
            assert float(f(a, b)) == 4
            assert float(dx.grad(f)(a, b).value) == 3

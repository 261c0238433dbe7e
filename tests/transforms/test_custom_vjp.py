"""`dx.custom_vjp`: gradients by rules, in all modes, beside what models hold, share and capture."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

import declax as dx
from declax.errors import GraphError, TransformError
from declax.transforms._engine.prefixes import StateAxes
from declax.transforms.autodiff import DiffState, grad, value_and_grad
from declax.transforms.compilation import jit
from declax.transforms.custom_rules import CustomVjp, custom_vjp
from declax.transforms.differentials import vjp
from declax.transforms.vectorization import vmap
from strategies import Open, build, modes_and_recipes, objects_of, same_graph

pytestmark = pytest.mark.sampled(6)

MODES = [{}, {"graph_updates": False}, {"graph": False}]
ALL = (dx.Param, dx.BatchStat)


def foo(x=1.0, y=2.0, z=3.0) -> Open:
    made = Open()
    made.x, made.y, made.z = dx.Param(jnp.array(x)), dx.Param(jnp.array(y)), dx.BatchStat(jnp.array(z))
    made.n = dx.Variable(jnp.array(7))
    return made


def compute(m, x):
    m.z.value = m.z.value * 5
    return jnp.sin(m.x.value) * m.y.value * x


def make(scale=1.0, **mode):
    """`compute` with rules that multiply what is right by a scale, so that it shows that they are used."""
    f = custom_vjp(compute, **mode)

    def fwd(m, x):
        return f(m, x), (m.x.value, m, x)

    def bwd(residuals, g):
        before, m, x = residuals
        (updates, none), g = g if f._mode.updates else ((None, None), g)
        assert none is None
        z = 5 * updates["z"].value if updates is not None else None
        m_g = {"x": jnp.cos(before) * m.y.value * x * g * scale, "y": jnp.sin(before) * x * g * scale, "z": z}
        return dx.State({k: v for k, v in m_g.items() if v is not None}), jnp.sin(before) * m.y.value * g * scale

    f.defvjp(fwd, bwd)
    return f


# ================================================================= numbers


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("around", [lambda f: f, jit], ids=["eager", "jit"])
def test_rules_are_used_and_right(mode, around):
    for scale in (1.0, 10.0):
        m = foo()
        take = around(grad(make(scale, **mode), argnums=(0, 1)))
        of_m, of_x = take(m, 3.0)
        theirs = jax.grad(lambda x, y, k: jnp.sin(x) * y * k, argnums=(0, 1, 2))(1.0, 2.0, 3.0)
        np.testing.assert_allclose([of_m["x"].value, of_m["y"].value, of_x], scale * np.array(theirs), rtol=1e-6)
        assert float(m.z.value) == 15.0
        assert int(m.n.value) == 7


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_called_without_gradients(mode):
    m = foo()
    f = make(**mode)
    np.testing.assert_allclose(f(m, 3.0), np.sin(1.0) * 6, rtol=1e-6)
    np.testing.assert_allclose(jit(f)(m, x=3.0), np.sin(1.0) * 6, rtol=1e-6)
    assert float(m.z.value) == 75.0
    assert isinstance(f, CustomVjp)
    assert f.__name__ == "compute"


def test_cotangents_of_what_was_set():
    def loss(m, x):
        return make()(m, x) * m.z.value**2

    def explicit(x, y, z, k):
        return jnp.sin(x) * y * k * (5 * z) ** 2

    m = foo()
    of_m, of_x = grad(loss, argnums=(DiffState(0, ALL), 1))(m, 3.0)
    theirs = jax.grad(explicit, argnums=(0, 1, 2, 3))(1.0, 2.0, 3.0, 3.0)
    ours = [of_m[name].value for name in "xyz"]
    np.testing.assert_allclose([*ours, of_x], theirs, rtol=1e-5)


@pytest.mark.parametrize(("returned", "mode"), [*((False, mode) for mode in MODES), (True, {})], ids=str)
def test_what_is_not_set_goes_past_the_rules(mode, returned):
    """Also where structure changes, or the model is returned."""
    f = custom_vjp(lambda m: (m, m.y.value * 2) if returned else m.y.value * 2, **mode)
    f.defvjp(lambda m: (f(m), None), lambda residuals, g: (dx.State({"y": jnp.array(100.0)}),))

    def loss(m):
        out = f(m)
        return (out[1] if returned else out) + 1000 * m.x.value

    for around in (lambda f: f, jit):
        grads = around(grad(loss))(foo())
        assert float(grads["x"].value) == 1000
        assert float(grads["y"].value) == 100


def test_returned_and_new_models():
    seen = []

    def compute(m, x):
        m.new = dx.Param(m.x.value * x)
        return {"m": m, "new": m.new, "x": x * 2}

    f = custom_vjp(compute)

    def bwd(x, g):
        (of_m,), of_x = g[0][:1], g[1]["x"]
        new = g[1]["new"].value
        assert isinstance(g[1]["new"], dx.Param)
        assert isinstance(g[1]["m"], dx.State)
        if not isinstance(new, jax.core.Tracer):
            seen.append(float(g[1]["m"]["new"].value))
        return dx.State({"x": of_m["x"].value + new * x}), of_x * 2

    f.defvjp(lambda m, x: (f(m, x), x), bwd)

    def loss(m, x):
        out = f(m, x)
        assert out["m"] is m
        return out["new"].value * 3 + out["x"] + m.new.value + m.x.value

    m = foo()
    of_m, of_x = grad(loss, argnums=(0, 1))(m, 2.0)
    assert float(m.new.value) == 2
    assert float(of_m["x"].value) == 9  # (3 + 1) * x through the rule, 1 past it
    assert float(of_x) == 2
    assert seen == [4.0]
    again = jit(grad(loss, argnums=(0, 1)))(foo(), 2.0)
    assert float(again[0]["x"].value) == 9


def test_updates_by_name():
    for mode in MODES[1:]:
        f = custom_vjp(compute, **mode)
        seen = []

        def bwd(residuals, g, *, updates_g, seen=seen):
            seen.append(updates_g)
            return dx.State({"z": 5 * updates_g[0].z.value}), None

        f.defvjp(lambda m, x, f=f: (f(m, x), None), bwd)
        grads = grad(lambda m, f=f: f(m, 3.0) + m.z.value**2, argnums=DiffState(0, ALL))(foo())
        assert float(grads["z"].value) == 5 * 2 * 15
        assert isinstance(seen[0][0], type(foo()))
        assert (seen[0][0].x, seen[0][0].y, seen[0][0].n) == (None, None, None)
        assert seen[0][1] is None


def test_forms_of_cotangents():
    def bwd_of(give):
        f = custom_vjp(lambda m: m.x.value * m.y.value, graph_updates=False)
        f.defvjp(lambda m: (f(m), m), lambda m, g: (give(m, g),))
        grads = grad(f)(foo())
        return [float(leaf) for leaf in grads.leaves]

    def as_model(m, g):
        m_g = dx.clone(m)
        m_g.x.value, m_g.y.value = g * 10, g * 20
        return m_g

    assert bwd_of(as_model) == [10.0, 20.0]
    assert bwd_of(lambda m, g: dx.State({"y": g * 20})) == [0.0, 20.0]
    assert bwd_of(lambda m, g: None) == [0.0, 0.0]
    assert bwd_of(lambda m, g: jax.tree.map(lambda leaf: leaf * g, dx.state(m))) == [1.0, 2.0]


def test_arrays_and_trees_of_arrays_are_as_in_jax():
    def compute(tree, y):
        return {"a": jnp.sin(tree["a"]) * y, "b": tree["b"][0]}

    def fwd(tree, y):
        return compute(tree, y), (tree, y)

    def bwd(residuals, g):
        tree, y = residuals
        return {"a": jnp.cos(tree["a"]) * y * g["a"] * 7, "b": [None, None]}, None

    ours, theirs = custom_vjp(compute, graph_updates=False), jax.custom_vjp(compute)
    ours.defvjp(fwd, bwd)
    theirs.defvjp(fwd, bwd)
    args = {"a": jnp.ones(2), "b": [3.0, 4]}, jnp.array(2.0)
    a = jax.grad(lambda *args: ours(*args)["a"].sum(), argnums=(0, 1), allow_int=True)(*args)
    b = jax.grad(lambda *args: theirs(*args)["a"].sum(), argnums=(0, 1), allow_int=True)(*args)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_models_and_variables_in_containers():
    f = custom_vjp(lambda tree, v: tree["m"][0].x.value * v.value)
    seen = []

    def bwd(residuals, g):
        (tree, v), g = g
        seen.append((type(tree["m"][0]), type(v)))
        return {"m": (dx.State({"x": g * 3}),)}, dx.Param(g * 4)

    f.defvjp(lambda tree, v: (f(tree, v), None), bwd)
    tree, v = grad(f, argnums=(0, 1))({"m": (foo(),)}, dx.Param(5.0, note=1))
    assert float(tree["m"][0]["x"].value) == 3
    assert (float(v.value), v.note) == (4.0, 1)
    assert seen == [(dx.State, dx.Param)]


def test_a_variable_that_two_arguments_share():
    first, second = Open(), Open()
    first.a = second.z = dx.Param(jnp.array(3.0))
    f = custom_vjp(lambda m, n: m.a.value * n.z.value)
    f.defvjp(
        lambda m, n: (f(m, n), (m, n)),
        lambda held, g: (dx.State({"a": g[1] * held[1].z.value}), dx.State({"z": g[1] * held[0].a.value})),
    )
    of_first, _ = grad(f, argnums=(0, 1))(first, second)
    assert float(of_first["a"].value) == 6  # the contributions of the arguments add up


# ================================================================= what is not differentiated


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_fixed_arguments(mode):
    seen = []

    def compute(n, m, x, how):
        assert isinstance(n, int)
        return m.x.value * x**n if how == "up" else x

    f = custom_vjp(compute, nondiff_argnums=(0, -1), **mode)

    def fwd(n, m, x, how):
        seen.append((n, how))
        return f(n, m, x, how), m

    def bwd(n, how, m, g):
        seen.append((n, how))
        return None, jnp.array(100.0)

    f.defvjp(fwd, bwd)
    for around in (lambda f: f, jit):
        assert float(around(grad(lambda m, x: f(3, m, x, how="up"), argnums=1))(foo(), 2.0)) == 100
    assert seen == [(3, "up")] * 4


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_leaves_that_a_filter_takes(mode):
    chosen = DiffState(0, dx.PathContains("x"))
    f = custom_vjp(lambda m: jnp.sin(m.x.value) * m.y.value, nondiff_argnums=chosen, **mode)
    f.defvjp(lambda m: (f(m), m), lambda m, g: (dx.State({"x": jnp.array(10.0)}),))
    assert float(grad(f, argnums=chosen)(foo())["x"].value) == 10
    with pytest.raises(TransformError, match=r"m\.y: the rules give no gradient for this"):
        grad(f)(foo())
    g = custom_vjp(lambda m: m.x.value * m.y.value, nondiff_argnums=[chosen], **mode)
    g.defvjp(lambda m: (g(m), m), lambda m, g: (dx.State({"y": jnp.array(10.0)}),))
    with pytest.raises(TransformError, match=r"(?s)the result of bwd for m\.y: .*this leaf is not differentiated"):
        grad(g, argnums=chosen)(foo())


def test_integers_in_models_have_no_cotangent():
    f = custom_vjp(lambda m, r: m.x.value * m.n.value + 0 * r.normal(()), graph_updates=False)
    f.defvjp(lambda m, r: (f(m, r), (m, r)), lambda held, g: held)
    rngs = dx.Rngs(0)
    assert float(grad(f)(foo(), rngs)["x"].value) == 1.0
    assert int(rngs.default.count) == 1


def test_symbolic_zeros():
    seen = []
    f = custom_vjp(lambda m, x: (m.x.value * m.y.value, x), graph_updates=False)

    def fwd(m, x):
        assert isinstance(m.x.value, CustomVJPPrimal)
        seen.append([m.x.value.perturbed, m.z.value.perturbed, x.perturbed])
        return (m.x.value.value * m.y.value.value, x.value), m.y.value.value

    def bwd(y, g):
        assert isinstance(g[1], SymbolicZero)
        return dx.State({"x": y * g[0]}), None

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    assert float(grad(lambda m: f(m, 3.0)[0])(foo())["x"].value) == 2
    assert seen == [[True, False, False]]


# ================================================================= captures

statistics = foo()


@custom_vjp
def scaled(m, x):
    statistics.z.value = statistics.z.value + 1
    return m.x.value * x * statistics.y.value


def scaled_fwd(m, x):
    return scaled(m, x), (m, x)


def scaled_bwd(residuals, g):
    _, x = residuals
    return dx.State({"x": 10 * x * g[1] * statistics.y.value}), None


scaled.defvjp(scaled_fwd, scaled_bwd)


@pytest.fixture
def fresh():
    statistics.y.value, statistics.z.value = jnp.array(2.0), jnp.array(0.0)
    return statistics


@pytest.mark.parametrize("around", [lambda f: f, jit], ids=["eager", "jit"])
def test_what_the_three_capture(around, fresh):
    take = around(grad(scaled))
    with jax.checking_leaks():
        assert float(take(foo(), 3.0)["x"].value) == 60
    assert float(fresh.z.value) == 1
    fresh.y.value = jnp.array(5.0)
    assert float(take(foo(), 3.0)["x"].value) == 150
    assert float(fresh.z.value) == 2


@pytest.mark.slow
def test_what_is_traced_now_and_differentiated_later(fresh):
    compiled = jit(lambda m, x: scaled(m, x) * 2)
    with jax.checking_leaks():
        assert float(compiled(foo(), 3.0)) == 12
        assert float(grad(compiled)(foo(), 3.0)["x"].value) == 120
    fresh.y.value = jnp.array(5.0)
    assert float(grad(compiled)(foo(), 3.0)["x"].value) == 300
    assert float(fresh.z.value) == 3


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_captured_in_a_closure_and_passed(mode):
    m = foo()
    f = custom_vjp(lambda n, x: m.x.value * n.x.value * x, **mode)
    f.defvjp(lambda n, x: (f(n, x), None), lambda _, g: (dx.State({"x": jnp.array(10.0)}), None))
    assert float(grad(f)(m, 1.0)["x"].value) == 10
    held = custom_vjp(functools.partial(compute, m), **mode)
    held.defvjp(lambda x: (held(x), None), lambda _, g: (jnp.array(4.0),))
    assert float(jit(grad(held))(1.0)) == 4
    assert float(m.z.value) == 15


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("way", ["default", "partial"])
def test_captured_by_a_keyword_that_nobody_gives(mode, way):
    factor = dx.Param(jnp.array(3.0))

    def by_default(x, *, held=factor):
        return x * held.value

    def by_name(x, held):
        return x * held.value

    f = by_default if way == "default" else functools.partial(by_name, held=factor)
    g = custom_vjp(f, **mode)
    g.defvjp(lambda x: (f(x), factor.value), lambda kept, ct: (10 * kept * (ct[1] if mode == {} else ct),))
    for value in (3.0, 5.0):
        factor.value = jnp.array(value)
        assert float(g(2.0)) == 2 * value
        assert float(grad(g)(2.0)) == 10 * value
    with pytest.raises(TransformError, match="argument 'held': a function with gradient rules"):
        g(2.0, held=dx.Param(jnp.array(1.0)))


def test_a_gradient_of_what_is_captured_is_refused(fresh):
    with pytest.raises(TransformError, match=r"captured statistics\.x: the rules give no gradient"):
        grad(lambda s, m: scaled(m, 1.0))(fresh, foo())


def test_bwd_sets_nothing_of_what_it_captures():
    m = foo()
    f = custom_vjp(lambda x: x * 2)

    def bwd(_, g):
        m.x.value = m.x.value + 1
        return (g[1],)

    f.defvjp(lambda x: (f(x), None), bwd)
    with pytest.raises(TransformError, match="the rule changes a captured model"):
        grad(f)(1.0)
    assert float(m.x.value) == 1


def test_methods():
    class Layer(dx.Module):
        def __init__(self):
            self.k = dx.Param(jnp.array(3.0))
            self.calls = dx.Variable(jnp.array(0))

        @custom_vjp
        def __call__(self, x):
            self.calls.value = self.calls.value + 1
            return self.k.value * x

        def fwd(self, x):
            return self(x), x

        def bwd(x, g):
            return dx.State({"k": 100 * x * g[1]}), None

        __call__.defvjp(fwd, bwd)

    layer = Layer()
    assert float(layer(2.0)) == 6
    assert float(grad(lambda m: m(2.0))(layer)["k"].value) == 200
    assert float(jit(grad(lambda m: m(2.0)))(layer)["k"].value) == 200
    assert int(layer.calls.value) == 3
    assert "custom_vjp" in repr(Layer.__call__)


# ================================================================= inside of other transforms


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_inside_of_vmap(mode):
    f = make(10.0, **mode)
    m, xs = foo(), jnp.arange(3.0)
    graphdef, state = dx.split(m)
    theirs = jax.vmap(jax.grad(lambda s, x: jnp.sin(s["x"].value) * s["y"].value * x * 10, allow_int=True), (None, 0))(
        state, xs
    )
    for take in (
        jax.vmap(jax.grad(lambda s, x: f(dx.merge(graphdef, s), x), allow_int=True), (None, 0)),
        jax.jit(jax.vmap(jax.grad(lambda s, x: f(dx.merge(graphdef, s), x), allow_int=True), (None, 0))),
    ):
        np.testing.assert_allclose(take(state, xs)["x"].value, theirs["x"].value, rtol=1e-6)
    m.z.value = xs
    axes = StateAxes({dx.BatchStat: 0, ...: None})
    total = grad(lambda x: vmap(f, in_axes=(axes, 0))(m, x * xs).sum())(1.0)
    np.testing.assert_allclose(total, 10 * np.sin(1.0) * 2 * xs.sum(), rtol=1e-6)
    np.testing.assert_allclose(m.z.value, 5 * xs)
    of_m = grad(lambda m: vmap(f, in_axes=(axes, 0))(m, xs).sum())(m)
    np.testing.assert_allclose(of_m["x"].value, 10 * np.cos(1.0) * 2 * xs.sum(), rtol=1e-6)


def test_inside_of_raw_scan_and_remat():
    f = make(10.0)
    graphdef, state = dx.split(foo())

    def step(s, x):
        return s, f(dx.merge(graphdef, s), x)

    def loss(s):
        return jax.lax.scan(jax.checkpoint(step), s, jnp.arange(3.0))[1].sum()

    grads = jax.grad(loss, allow_int=True)(state)
    np.testing.assert_allclose(grads["x"].value, 10 * np.cos(1.0) * 2 * 3, rtol=1e-6)


def test_second_derivatives_go_through_the_rules():
    f = custom_vjp(lambda m: m.x.value**3, graph_updates=False)
    f.defvjp(lambda m: (f(m), m.x.value), lambda x, g: (dx.State({"x": g * 3 * x**2}),))
    slope = grad(lambda m: grad(f)(m)["x"].value)
    assert float(slope(foo(x=2.0))["x"].value) == 12
    assert float(jit(slope)(foo(x=2.0))["x"].value) == 12


def test_a_pullback_of_a_function_with_rules():
    m = foo()
    _, pullback = vjp(make(10.0), m, 3.0)
    of_m, _ = pullback(1.0)
    np.testing.assert_allclose(of_m["y"].value, 10 * np.sin(1.0) * 3, rtol=1e-6)
    assert float(m.z.value) == 15


@pytest.mark.slow
def test_no_tracer_leaks():
    with jax.checking_leaks():
        f = make()
        grad(f)(foo(), 3.0)
        jit(grad(f))(foo(), 3.0)
        compiled = jit(lambda m, x: f(m, x) * 2)
        compiled(foo(), 3.0)
        grad(compiled)(foo(), 3.0)


# ================================================================= against jax and the peer


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(modes_and_recipes(), st.booleans())
def test_right_rules_change_nothing(moded, compiled):
    """Rules that `jax.vjp` makes give the gradients that there are without rules."""

    mode, recipe = moded

    def compute(model, x):
        total = x
        for i, thing in enumerate(objects_of(model)):
            if isinstance(thing, dx.Variable):
                total = total + jnp.sum(jnp.asarray(thing.value) ** 2) * (i + 1) * x
                if isinstance(thing, dx.BatchStat):
                    thing.value = thing.value * 2
        return total

    f = custom_vjp(compute, **mode)

    def fwd(model, x):
        graphdef, state = dx.split(model)

        def pure(state, x):
            m = dx.merge(graphdef, state)
            out = compute(m, x)
            return out, dx.state(m)

        (_, after), pull = jax.vjp(pure, state, x)
        zeros = jax.tree.map(jnp.zeros_like, after)
        return f(model, x), (pull, zeros)

    def bwd(residuals, g, *, updates_g):
        pull, zeros = residuals
        g = g[1] if mode.get("graph_updates") else g
        is_state = isinstance(updates_g[0], dx.State)
        updates = updates_g[0] if is_state else dx.state(updates_g[:1])
        set_ = dict(zip((path[not is_state :] for path in updates.paths), updates.leaves, strict=True))
        after = zeros.map(lambda path, v: set_.get(path, getattr(v, "value", v)))
        cotangent = jax.tree.unflatten(jax.tree.structure(zeros), jax.tree.leaves(after))
        of_state, of_x = pull((g, cotangent))
        return of_state, of_x

    f.defvjp(fwd, bwd)

    def loss(call):
        def of(model, x):
            value = call(model, x)
            stats = sum((jnp.sum(v.value**2) for v in objects_of(model) if isinstance(v, dx.BatchStat)), start=0.0)
            return value + stats

        return of

    take = lambda call: value_and_grad(loss(call), argnums=(DiffState(0, dx.Variable), 1))  # noqa: E731  # short
    mine, theirs = build(recipe), build(recipe)
    if not dx.state(mine, dx.Variable).leaves:
        return
    ours = (jit(take(f)) if compiled else take(f))(mine, 2.0)
    expected = take(compute)(theirs, 2.0)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), ours, expected)
    assert same_graph(mine, theirs)


def test_the_numbers_of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    def compute(m, x):
        m.z[...] = m.z[...] * 5
        return m.x[...] * m.y[...] * x

    def run(lib, m):
        f = lib.custom_vjp(compute, **({"graph_updates": True} if lib is nnx else {}))

        def fwd(m, x):
            m.z[...] = m.z[...] * 7
            return f(m, x), (m.x[...] * 1, m)

        def bwd(residuals, g):
            (m_g, x_g), out_g = g
            assert x_g is None
            held, m_after = residuals
            m_g = jax.tree.map(lambda leaf: leaf, m_g)
            m_g["x"][...] = out_g * 10.0 * held
            m_g["y"][...] = out_g * 20.0 * m_after.y[...]
            m_g["z"][...] = m_g["z"][...] * 2 + m_after.z[...]
            return m_g, out_g * 30.0

        f.defvjp(fwd, bwd)
        chosen = lib.DiffState(0, (lib.Param, lib.BatchStat))
        return lib.grad(lambda m, x: f(m, x) * m.z[...] ** 2, argnums=(chosen, 1))(m, 3.0)

    theirs = nnx.Module()
    theirs.x, theirs.y, theirs.z = nnx.Param(jnp.array(1.0)), nnx.Param(jnp.array(2.0)), nnx.BatchStat(jnp.array(3.0))
    ours = foo()
    del ours.n

    class Ours:
        custom_vjp, grad, DiffState = staticmethod(custom_vjp), staticmethod(grad), DiffState
        Param, BatchStat = dx.Param, dx.BatchStat

    (a, b), (c, d) = run(Ours, ours), run(nnx, theirs)
    for name in "xyz":
        np.testing.assert_allclose(a[name].value, c[name][...])
    np.testing.assert_allclose(b, d)
    np.testing.assert_allclose(ours.z.value, theirs.z[...])


# ================================================================= what is refused


def test_without_rules():
    with pytest.raises(TransformError, match="the function has no gradient rules yet"):
        custom_vjp(compute)(foo(), 1.0)
    with pytest.raises(TransformError, match="custom_vjp, fun: this is not a function"):
        custom_vjp(3)
    for rules, name in (((None, compute), "fwd"), ((compute, 3), "bwd")):
        with pytest.raises(TransformError, match=f"custom_vjp, {name}: this is not a function"):
            custom_vjp(compute).defvjp(*rules)


def test_argnums_that_are_none():
    for wrong in ("0", None, 1.5, [None], True, (0, "x")):
        with pytest.raises(TransformError, match="these are not positions of arguments"):
            custom_vjp(compute, nondiff_argnums=wrong)
    for wrong in (2, -3, DiffState(2, ...)):
        f = custom_vjp(compute, nondiff_argnums=wrong)
        f.defvjp(compute, compute)
        with pytest.raises(TransformError, match="nondiff_argnums: there is no positional argument"):
            f(foo(), 1.0)


def test_fixed_arguments_that_are_no_values():
    def with_rules(argnums):
        f = custom_vjp(lambda m, x: x * m.x.value if isinstance(m, Open) else x, nondiff_argnums=argnums)
        f.defvjp(lambda m, x: (f(m, x), None), lambda fixed, _, g: (g[1],))
        return f

    model = foo()
    np.testing.assert_allclose(with_rules(0)(model, 2.0), 2.0 * model.x.value)
    np.testing.assert_allclose(grad(with_rules(0), argnums=1)(model, 2.0), 1.0)
    np.testing.assert_allclose(jax.jit(with_rules(0))(jnp.ones(2), 1.0), 1.0)
    np.testing.assert_allclose(with_rules(0)(np.ones(2), 1.0), 1.0)


def test_errors_count_the_fixed_arguments():
    f = custom_vjp(lambda n, m, other: n * m.x.value, nondiff_argnums=(0, DiffState(2, dx.BatchStat)))
    f.defvjp(lambda n, m, other: (f(n, m, other), None), lambda n, r, g: (None, None))
    model = foo()
    with pytest.raises(TransformError, match=r"^other\.n: this Variable is differentiated in another") as caught:
        f(2, model, model)
    assert caught.value.got == "the same Variable as m.n"


def test_arguments_by_name_only():
    f = custom_vjp(lambda m, *, x: x)
    f.defvjp(lambda m, x: (x, None), lambda _, g: (None, None))
    with pytest.raises(TransformError, match="takes positional arguments only"):
        f(foo(), x=1.0)


def test_rules_that_return_something_else():
    def run(fwd=lambda m, x: (compute(m, x), None), bwd=lambda _, g: (None, None), argnums=0):
        f = custom_vjp(compute)
        f.defvjp(fwd, bwd)
        return grad(f, argnums=argnums)(foo(), 1.0)

    with pytest.raises(TransformError, match="the rule does not return a pair"):
        run(fwd=compute)
    with pytest.raises(TransformError, match="must return one cotangent for each argument"):
        run(bwd=lambda _, g: None)
    with pytest.raises(TransformError, match=r"(?s)must return one cotangent for each argument.*tuple of 2.*length 1"):
        run(bwd=lambda _, g: (None,))
    with pytest.raises(TransformError, match=r"the result of bwd for m\.x: this does not match"):
        run(bwd=lambda _, g: (dx.State({"x": jnp.ones(3)}), None))
    with pytest.raises(TransformError, match=r"(?s)the result of bwd for m: .*a State with the paths"):
        run(bwd=lambda _, g: (3.0, None))


def test_fwd_does_what_the_function_does():
    def extra(m, x):
        m.y.value = m.y.value + 1
        return compute(m, x), None

    def new(m, x):
        m.new = dx.Param(1.0)
        return compute(m, x), None

    for fwd in (extra, new):
        f = custom_vjp(compute)
        f.defvjp(fwd, lambda _, g: (None, None))
        m = foo()
        grad(f)(m, 1.0)  # nothing was traced before
        with pytest.raises(TransformError, match="the rule changes the arguments differently from the function"):
            grad(jit(lambda m, f=f: f(m, 1.0) * 2))(foo())
    less = custom_vjp(compute)
    less.defvjp(lambda m, x: (x * 1.0, None), lambda _, g: (None, None))
    m = foo()
    grad(jit(lambda m: less(m, 1.0) * 2))(m)
    assert float(m.z.value) == 3  # what fwd does is what happens


def test_structure_that_changes():
    def grow(m):
        m.new = dx.Param(m.x.value * 2)
        m.z.value = m.z.value * 3
        return m.new.value

    f = custom_vjp(grow)
    f.defvjp(lambda m: (f(m), None), lambda _, g: (dx.State({"x": 2 * g[1], "z": 3 * g[0][0]["z"].value}),))
    for around in (lambda f: f, jit):
        m = foo()
        grads = around(grad(lambda m: f(m) + m.z.value, argnums=DiffState(0, ALL)))(m)
        assert [float(grads[name].value) for name in "xyz"] == [2.0, 0.0, 3.0]
        assert float(m.new.value) == 2
        m = foo()
        grads = around(grad(jit(lambda m: f(m) + m.z.value), argnums=DiffState(0, ALL)))(m)
        assert [float(grads[name].value) for name in "xyz"] == [2.0, 0.0, 3.0]
    refused = custom_vjp(grow, graph_updates=False)
    refused.defvjp(lambda m: (refused(m), None), lambda _, g: (None,))
    with pytest.raises(TransformError, match="changes of structure do not come back"):
        refused(foo())


def test_graphs_where_trees_are_asked_for():
    m = foo()
    m.again = m.x
    with pytest.raises(GraphError, match="reached twice"):
        make(graph=False)(m, 1.0)


def test_an_exception_leaves_all_as_it_was():
    def fail(m, x):
        compute(m, x)
        m.new = 3
        raise RuntimeError("inside")

    f = custom_vjp(fail)
    f.defvjp(lambda m, x: (f(m, x), None), lambda _, g: (None, None))
    m = foo()
    for take in (f, grad(f), jit(f)):
        with pytest.raises(RuntimeError, match="inside"):
            take(m, 1.0)
    late = custom_vjp(compute)
    late.defvjp(lambda m, x: (late(m, x), None), fail)
    with pytest.raises((RuntimeError, AttributeError)):
        grad(late)(m, 1.0)
    assert same_graph(m, foo())

"""`dx.jvp`: how results move with models, arrays and trees of both."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import declax as dx
from declax.errors import TransformError
from declax.transforms.autodiff import grad
from declax.transforms.compilation import jit
from declax.transforms.differentials import jvp, vjp
from strategies import Open, build, modes_and_recipes, objects_of, same_graph

MODES = [{}, {"graph_updates": False}, {"graph": False}]


def net_of() -> Open:
    net = Open()
    net.kernel = dx.Param(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    net.mean = dx.BatchStat(jnp.array([1.0, 1.0]))
    net.count = dx.Variable(jnp.array(0))
    net.rngs = dx.Rngs(0)
    net.raw = jnp.array([2.0, 3.0])
    return net


def apply(net, x):
    net.count.value = net.count.value + 1
    net.mean.value = net.mean.value * 2
    return (x @ net.kernel.value) * net.raw + net.mean.value**2


def apply_to_arrays(kernel, mean, raw, x):
    return (x @ kernel) * raw + (mean * 2) ** 2


X, XT = jnp.array([[1.0, -2.0]]), jnp.array([[0.5, 0.25]])
TANGENTS = {"kernel": jnp.full((2, 2), 0.1), "mean": jnp.array([1.0, -1.0]), "raw": jnp.array([2.0, 5.0])}


def expected(x_tangent=XT, **tangents):
    net = net_of()
    primals = net.kernel.value, net.mean.value, net.raw, X
    given = [tangents.get(name, jnp.zeros_like(p)) for name, p in zip(("kernel", "mean", "raw"), primals, strict=False)]
    return jax.jvp(apply_to_arrays, primals, (*given, x_tangent))


# ================================================================= tangents


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_tangents_as_a_state_of_all_leaves(mode):
    net = net_of()
    tangent = jax.tree.map(jnp.ones_like, dx.state(net, (dx.Param, dx.BatchStat)))
    out, out_tangent = jvp(apply, (net, X), (tangent, XT), **mode)
    theirs, tangent_theirs = expected(kernel=jnp.ones((2, 2)), mean=jnp.ones(2))
    np.testing.assert_allclose(out, theirs)
    np.testing.assert_allclose(out_tangent, tangent_theirs)
    assert int(net.count.value) == 1
    np.testing.assert_allclose(net.mean.value, [2.0, 2.0])
    np.testing.assert_allclose(tangent["mean"].value, [1.0, 1.0])  # a tangent is never set


@pytest.mark.parametrize("names", [["kernel"], ["mean", "raw"], [], ["kernel", "mean", "raw"]], ids=str)
def test_tangents_of_a_part(names):
    tangents = {name: TANGENTS[name] for name in names}
    _, got = jvp(apply, (net_of(), X), (dx.State(tangents), XT))
    np.testing.assert_allclose(got, expected(**tangents)[1])


def test_tangents_as_a_model():
    net, like = net_of(), net_of()
    for name, value in TANGENTS.items():
        held = getattr(like, name)
        if isinstance(held, dx.Variable):
            held.value = value
        else:
            like.raw = value
    _, got = jvp(apply, (net, X), (like, XT))  # keys and counts in it do not move
    np.testing.assert_allclose(got, expected(**TANGENTS)[1])
    assert int(like.count.value) == 0
    ones = jax.tree.map(jnp.ones_like, dx.state(net, dx.Param))
    _, got = jvp(apply, (net_of(), X), (ones, XT))
    np.testing.assert_allclose(got, expected(kernel=jnp.ones((2, 2)))[1])


def test_nothing_moves():
    net = net_of()
    out, got = jvp(apply, (net, X), (None, XT))
    np.testing.assert_allclose(got, expected()[1])
    out, got = jvp(apply, (net_of(), X), (None, jnp.zeros_like(X)))
    np.testing.assert_allclose(out, expected()[0])
    np.testing.assert_allclose(got, jnp.zeros((1, 2)))
    out, got = jvp(lambda net: apply(net, X), (net_of(),), (None,))
    np.testing.assert_allclose(got, jnp.zeros((1, 2)))


def test_arrays_and_trees_of_arrays_are_as_in_jax():
    def f(x, tree, n):
        return {"a": x**2 * tree["a"], "n": n}

    primals = jnp.ones(2), {"a": jnp.full(2, 3.0), "b": None}, 3
    tangents = jnp.full(2, 2.0), {"a": jnp.ones(2), "b": None}, np.zeros((), jax.dtypes.float0)
    ours, theirs = jvp(f, primals, tangents), jax.jvp(f, primals, tangents)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_variables_and_containers():
    def f(tree):
        return tree["a"][0].value * tree["net"].raw.sum()

    tree = {"a": [dx.Param(2.0)], "net": net_of()}
    _, got = jvp(f, (tree,), ({"a": [dx.Param(1.0)], "net": None},))
    assert float(got) == 5
    _, got = jvp(f, (tree,), ({"a": [1.0], "net": dx.State({"raw": jnp.ones(2)})},))
    assert float(got) == 9


def test_models_that_are_returned():
    net = Open()
    net.x, net.s = dx.Param(jnp.array(1.0)), dx.BatchStat(jnp.array(4.0))

    def f(net, x):
        net.new = dx.Param(x * net.x.value)
        net.s.value = net.s.value * x
        return net, {"a": net.new}, x

    (out, parts, _), (out_tangent, parts_tangent, x_tangent) = jvp(
        f, (net, jnp.array(2.0)), (dx.State({"x": jnp.array(10.0)}), jnp.array(1.0))
    )
    assert out is net
    assert parts["a"] is net.new
    assert isinstance(out_tangent, dx.State)
    tangents = [float(out_tangent[n].value) for n in ("x", "new", "s")]
    assert tangents == [10.0, 21.0, 4.0]
    assert isinstance(parts_tangent["a"], dx.Param)
    assert float(parts_tangent["a"].value) == 21
    assert float(x_tangent) == 1


def test_auxiliary_results():
    net = net_of()
    out, tangent, aux = jvp(lambda net, x: (apply(net, x), (net, x)), (net, X), (None, XT), has_aux=True)
    assert aux[0] is net
    np.testing.assert_allclose(aux[1], X)
    np.testing.assert_allclose(out, expected()[0])
    np.testing.assert_allclose(tangent, expected()[1])


def test_as_a_decorator():
    @jvp
    def first(net, x):
        """About."""
        return apply(net, x)

    @jvp(has_aux=True, graph=False)
    def second(net, x):
        return apply(net, x), 1

    np.testing.assert_allclose(first((net_of(), X), (None, XT))[1], expected()[1])
    assert first.__doc__ == "About."
    assert list(inspect.signature(first).parameters) == ["primals", "tangents"]
    _, tangent, aux = second((net_of(), X), (None, XT))
    assert aux == 1
    np.testing.assert_allclose(tangent, expected()[1])
    np.testing.assert_allclose(jvp(apply)([net_of(), X], [None, XT])[1], expected()[1])


# ================================================================= captures


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_is_captured_changes_and_does_not_move(mode):
    net = net_of()

    def f(x):
        return apply(net, x)

    moved = jvp(f, **mode)
    np.testing.assert_allclose(moved((X,), (XT,))[1], expected()[1])
    assert int(net.count.value) == 1
    net.kernel.value = 3 * net.kernel.value
    np.testing.assert_allclose(moved((X,), (XT,))[1], 3 * expected()[1], rtol=1e-6)
    assert int(net.count.value) == 2


def test_captured_and_passed_is_one_thing():
    net = net_of()
    _, got = jvp(lambda m: net.raw * m.raw, (net,), (dx.State({"raw": jnp.ones(2)}),))
    np.testing.assert_allclose(got, 2 * net.raw)


# ================================================================= inside of other transforms


def test_inside_of_jit():
    net = net_of()
    _, got = jit(lambda net, x, t: jvp(apply, (net, x), (dx.State(TANGENTS), t)))(net, X, XT)
    np.testing.assert_allclose(got, expected(**TANGENTS)[1], rtol=1e-6)
    assert int(net.count.value) == 1


def test_products_with_a_hessian():
    net = Open()
    net.a, net.b = dx.Param(jnp.array([1.0, 2.0])), dx.Param(jnp.array([3.0, 4.0]))

    def loss(net):
        return jnp.sum(net.a.value**3 * net.b.value)

    direction = dx.State({"a": dx.Param(jnp.array([1.0, 0.0])), "b": dx.Param(jnp.array([0.0, 1.0]))})
    grads, products = jvp(grad(loss), (net,), (direction,))
    assert isinstance(products, dx.State)
    np.testing.assert_allclose(grads["a"].value, 3 * net.a.value**2 * net.b.value)
    np.testing.assert_allclose(products["a"].value, [18.0, 12.0])
    np.testing.assert_allclose(products["b"].value, [3.0, 0.0])
    _, tangent = jvp(lambda net: vjp(loss, net)[1](1.0)[0], (net,), (direction,))
    np.testing.assert_allclose(tangent["a"].value, [18.0, 12.0])
    slope = grad(lambda net: jvp(loss, (net,), (direction,))[1])(net)
    np.testing.assert_allclose(slope["a"].value, [18.0, 12.0])


def test_columns_of_a_jacobian():
    net = net_of()

    def column(direction):
        return jvp(lambda m: (X @ m.kernel.value)[0], (net,), (dx.State({"kernel": direction}),))[1]

    columns = jax.vmap(column)(jnp.eye(4).reshape(4, 2, 2))
    theirs = jax.jacfwd(lambda k: (X @ k)[0])(net.kernel.value)
    np.testing.assert_allclose(columns.T.reshape(2, 2, 2), theirs)


def test_no_tracer_leaks():
    net = net_of()
    with jax.checking_leaks():
        jvp(apply, (net, X), (dx.State(TANGENTS), XT))
        jit(lambda net: jvp(apply, (net, X), (None, XT)))(net)


# ================================================================= against jax and the peer


@settings(max_examples=25, deadline=None)
@given(modes_and_recipes(), st.booleans(), st.randoms(use_true_random=False))
def test_numbers_are_those_of_jax(moded, compiled, random):
    mode, recipe = moded

    def f(model, x):
        total = x
        for i, thing in enumerate(objects_of(model)):
            if isinstance(thing, dx.Variable):
                total = total + jnp.sum(jnp.asarray(thing.value) ** 2) * (i + 1) * x
                if isinstance(thing, dx.BatchStat):
                    thing.value = thing.value + 1
        return total

    model, x = build(recipe), jnp.float32(2)
    graphdef, state = dx.split(model)
    tangent = jax.tree.map(lambda leaf: jnp.full_like(leaf, random.randint(-3, 3)), state)
    theirs = jax.jvp(lambda s, x: f(dx.merge(graphdef, s), x), (state, x), (tangent, jnp.float32(3)))

    def moved(model, x):
        return jvp(f, (model, x), (tangent, jnp.float32(3)), **mode)

    ours = (jit(moved) if compiled else moved)(model, x)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)
    for before, after in zip(state.filter(dx.BatchStat).leaves, dx.state(model, dx.BatchStat).leaves, strict=True):
        np.testing.assert_allclose(after, before + 1)


def test_the_numbers_of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    def f(model, x):
        model.mean[...] = model.mean[...] * 5
        return (x @ model.kernel[...]) * model.mean[...]

    theirs = nnx.Module()
    theirs.kernel, theirs.mean = nnx.Param(jnp.arange(4.0).reshape(2, 2)), nnx.BatchStat(jnp.ones(2))
    ours = Open()
    ours.kernel, ours.mean = dx.Param(jnp.arange(4.0).reshape(2, 2)), dx.BatchStat(jnp.ones(2))
    a = nnx.jvp(f, (theirs, X), (jax.tree.map(jnp.ones_like, theirs), XT), graph=False)
    b = jvp(f, (ours, X), (jax.tree.map(jnp.ones_like, dx.state(ours)), XT), graph=False)
    jax.tree.map(np.testing.assert_allclose, b, a)
    np.testing.assert_allclose(ours.mean.value, theirs.mean[...])


# ================================================================= what is refused


def test_an_exception_leaves_all_as_it_was():
    net = net_of()

    def fail(net, x):
        apply(net, x)
        net.new = 3
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        jvp(fail, (net, X), (dx.State(TANGENTS), XT))
    assert same_graph(net, net_of())


def test_tangents_that_do_not_fit():
    net = net_of()
    for primals, tangents in (((net, X), None), (net, (None,)), ((net, X), (None,))):
        with pytest.raises(TransformError, match="primals and tangents are not two tuples of the same length"):
            jvp(apply, primals, tangents)
    with pytest.raises(TransformError, match=r"tangents, net\.kernel: this does not match its value"):
        jvp(apply, (net, X), (dx.State({"kernel": jnp.ones(3)}), XT))
    with pytest.raises(TransformError, match=r"(?s)expected: float32\[2\].*dtype int32"):
        jvp(apply, (net, X), (dx.State({"raw": jnp.ones(2, jnp.int32)}), XT))
    with pytest.raises(TransformError, match=r"(?s)net\.raw: this does not match.*got: +str 'x'"):
        jvp(apply, (net, X), (dx.State({"raw": "x"}), XT))
    with pytest.raises(TransformError, match=r"(?s)net\.other: .*this leaf is not differentiated"):
        jvp(apply, (net, X), (dx.State({"other": jnp.ones(3)}), XT))
    with pytest.raises(TransformError, match=r"(?s)tangents, net: .*a State with the paths of the model"):
        jvp(apply, (net, X), (jnp.ones(2), XT))
    with pytest.raises(TransformError, match="tangents, x: this does not match"):
        jvp(lambda x: x[0], ([1.0, 2.0],), ([1.0],))
    assert same_graph(net, net_of())


def test_two_tangents_of_one_variable():
    first, second = Open(), Open()
    first.a = second.z = dx.Param(jnp.array(3.0))

    def f(m, n):
        return m.a.value * n.z.value

    with pytest.raises(TransformError, match="one Variable has two tangents"):
        jvp(f, (first, second), (dx.State({"a": jnp.array(1.0)}), dx.State({"z": jnp.array(1.0)})))
    assert float(jvp(f, (first, second), (dx.State({"a": jnp.array(1.0)}), None))[1]) == 6


def test_other_mistakes():
    with pytest.raises(TransformError, match="jvp, f: this is not a function"):
        jvp(3)
    with pytest.raises(TransformError, match="the function does not return a pair"):
        jvp(apply, (net_of(), X), (None, XT), has_aux=True)
    with pytest.raises(TransformError, match="changes of structure do not come back"):
        jvp(lambda net: setattr(net, "new", dx.Param(1.0)), (net_of(),), (None,), graph_updates=False)

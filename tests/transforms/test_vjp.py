"""`dx.vjp`: pulling cotangents back to models, arrays and trees of both."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import declax as dx
from declax.errors import GraphError, TransformError
from declax.transforms.autodiff import grad
from declax.transforms.compilation import jit
from declax.transforms.differentials import Pullback, vjp
from strategies import Box, Open, build, modes_and_recipes, objects_of, same_graph

MODES = [{}, {"graph_updates": False}, {"graph": False}]


def net_of() -> Open:
    net = Open()
    net.first, net.second = Open(), Open()
    net.first.kernel = dx.Param(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    net.second.kernel = dx.Param(jnp.array([0.5, -1.0]))
    net.mean = dx.BatchStat(jnp.array([1.0, 1.0]))
    net.count = dx.Variable(jnp.array(0))
    net.raw = jnp.array([2.0, 3.0])
    return net


def apply(net, x):
    net.count.value = net.count.value + 1
    return (x @ net.first.kernel.value) * net.second.kernel.value * net.raw + net.mean.value**2


def apply_to_arrays(first, second, mean, raw, x):
    return (x @ first) * second * raw + mean**2


X = jnp.array([[1.0, -2.0]])
CT = jnp.array([[1.0, 10.0]])
PATHS = [("first", "kernel"), ("second", "kernel"), ("mean",), ("raw",)]


def expected():
    net = net_of()
    arrays = net.first.kernel.value, net.second.kernel.value, net.mean.value, net.raw, X
    return jax.vjp(apply_to_arrays, *arrays)


# ================================================================= gradients


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_gradients_of_models_and_arrays(mode):
    net = net_of()
    out, pullback = vjp(apply, net, X, **mode)
    theirs, pull = expected()
    np.testing.assert_allclose(out, theirs)
    net_grad, x_grad = pullback(CT)
    *by_leaf, x_theirs = pull(CT)
    np.testing.assert_allclose(x_grad, x_theirs)
    assert isinstance(net_grad, dx.State if not mode or mode.get("graph_updates") else Open)
    net_grad = dx.state(net_grad) if isinstance(net_grad, Open) else net_grad
    assert set(net_grad.paths) == {*PATHS, ("count",)}
    for path, theirs in zip(PATHS, by_leaf, strict=True):
        np.testing.assert_allclose(dict(zip(net_grad.paths, net_grad.leaves, strict=True))[path], theirs)
    assert net_grad["count"].value.dtype == jax.dtypes.float0
    assert isinstance(net_grad["mean"], dx.BatchStat)
    assert net_grad.filter(dx.Param).paths == dx.state(net, dx.Param).paths


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_changes_come_back_once_and_the_pullback_is_pure(mode):
    net = net_of()
    calls = []

    def f(net, x):
        calls.append(1)
        return apply(net, x)

    _, pullback = vjp(f, net, X, **mode)
    assert int(net.count.value) == 1
    first = pullback(CT)
    second = pullback(CT)
    assert int(net.count.value) == 1
    assert len(calls) == 1
    jax.tree.map(np.testing.assert_array_equal, first, second)
    net.second.kernel.value = jnp.zeros(2)  # later changes do not reach it
    jax.tree.map(np.testing.assert_array_equal, first, pullback(CT))


def test_linear_in_the_cotangent():
    _, pullback = vjp(apply, net_of(), X)
    one, ten = pullback(CT)[0], pullback(10 * CT)[0]
    np.testing.assert_allclose(10 * one["first"]["kernel"].value, ten["first"]["kernel"].value)


def test_arrays_and_trees_of_arrays_are_as_in_jax():
    def f(x, tree, y):
        return {"a": x**2 * tree["a"], "b": [tree["b"][0] * y, tree["n"]]}

    args = jnp.ones(2), {"a": jnp.full(2, 3.0), "b": [jnp.full(2, 4.0), None], "n": 3}, 2.0
    ours, pullback = vjp(f, *args)
    theirs, pull = jax.vjp(f, *args)
    cotangent = {"a": jnp.ones(2), "b": [jnp.ones(2), np.zeros((), jax.dtypes.float0)]}
    jax.tree.map(np.testing.assert_allclose, ours, theirs)
    a, b = pullback(cotangent), pull(cotangent)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_containers_of_models_variables_and_objects():
    box = Box()
    box.held, box.text = [dx.Param(jnp.array(3.0)), jnp.array(2.0)], "t"

    def f(tree, v):
        return tree["nets"][0].mean.value.sum() * v.value * tree["box"].held[0].value

    _, pullback = vjp(f, {"nets": (net_of(),), "box": box}, dx.Param(jnp.array(5.0), note=1))
    tree, variable = pullback(1.0)
    assert isinstance(tree["nets"], tuple)
    np.testing.assert_allclose(tree["nets"][0]["mean"].value, [15.0, 15.0])
    assert tree["box"].paths == (("held", 0), ("held", 1))
    assert float(tree["box"]["held"][0].value) == 10
    assert isinstance(variable, dx.Param)
    assert (float(variable.value), variable.note) == (6.0, 1)


def test_a_variable_that_two_arguments_share():
    first, second = Open(), Open()
    first.a = second.z = dx.Param(jnp.array(3.0))
    _, pullback = vjp(lambda m, n: m.a.value * n.z.value, first, second)
    one, two = pullback(1.0)
    assert float(one["a"].value) == 6.0
    assert not two.leaves
    _, pullback = vjp(lambda m, n: m.a.value * n.z.value, first, second, graph_updates=False)
    one, two = pullback(1.0)
    assert float(one.a.value) == 6.0
    assert one.a is two.z


def test_random_keys_have_no_gradient():
    rngs = dx.Rngs(0)
    out, pullback = vjp(lambda r, s: r.normal((2,)) * s, rngs, 2.0)
    key_grad, scale_grad = pullback(jnp.ones(2))
    assert {leaf.dtype for leaf in key_grad.leaves} == {jax.dtypes.float0}
    np.testing.assert_allclose(scale_grad, out.sum() / 2)
    assert int(rngs.default.count) == 1


# ================================================================= what is returned


def test_models_that_are_returned():
    net = Open()
    net.x, net.s = dx.Param(jnp.array(1.0)), dx.BatchStat(jnp.array(4.0))

    def f(net, x):
        net.new = dx.Param(x * net.x.value)
        return net, x * 2, {"a": net.new}

    (out, double, parts), pullback = vjp(f, net, jnp.array(2.0))
    assert out is net
    assert parts["a"] is net.new
    assert float(double) == 4
    net_grad, x_grad = pullback((dx.State({"x": 1.0, "new": 10.0}), 1.0, {"a": None}))
    assert float(net_grad["x"].value) == 21
    assert float(x_grad) == 12
    assert float(net_grad["s"].value) == 0
    net_grad, x_grad = pullback((dx.State({"x": 1.0, "new": 10.0}), 1.0, {"a": dx.Param(100.0)}))
    assert float(net_grad["x"].value) == 221  # the cotangents of one Variable add up
    like = dx.clone(out)
    like.x.value, like.new.value, like.s.value = jnp.array(1.0), jnp.array(10.0), jnp.array(7.0)
    net_grad, x_grad = pullback((like, 0.0, {"a": 100.0}))
    assert float(net_grad["x"].value) == 221
    assert float(net_grad["s"].value) == 7


def test_variables_that_hold_containers():
    v = dx.Variable([jnp.array(2.0), {"n": jnp.array(3)}])

    def f(v):
        v.value = [v.value[0] * 5, v.value[1]]
        return v

    def pulled(v):
        return vjp(f, v)

    for take in (pulled, jit(pulled)):
        out, pullback = take(v)
        assert out is v
        (grads,) = pullback(None)
        assert float(grads.value[0]) == 0
        (grads,) = pullback([jnp.array(2.0), {"n": np.zeros((), jax.dtypes.float0)}])
        assert float(grads.value[0]) == 10
        assert grads.value[1]["n"].dtype == jax.dtypes.float0
    assert float(v.value[0]) == 50


def test_auxiliary_results():
    net = net_of()

    def f(net, x):
        net.new = dx.Cache(jnp.ones(1))
        return apply(net, x), {"net": net, "new": net.new, "n": 3}

    out, pullback, aux = vjp(f, net, X, has_aux=True)
    assert aux["net"] is net
    assert aux["new"] is net.new
    assert aux["n"] == 3
    theirs, pull = expected()
    np.testing.assert_allclose(out, theirs)
    np.testing.assert_allclose(pullback(CT)[1], pull(CT)[-1])
    out, pullback, aux = vjp(lambda x: (x**2, x + 1), 3.0, has_aux=True)
    assert (float(out), float(aux), float(pullback(1.0)[0])) == (9.0, 4.0, 6.0)


def test_as_a_decorator():
    @vjp
    def first(net, x):
        """About."""
        return apply(net, x)

    @vjp(has_aux=True, graph_updates=False)
    def second(net, x):
        return apply(net, x), 1

    _, pull = expected()
    np.testing.assert_allclose(first(net_of(), X)[1](CT)[1], pull(CT)[-1])
    assert first.__doc__ == "About."
    _, pullback, aux = second(net_of(), X)
    assert aux == 1
    np.testing.assert_allclose(pullback(CT)[1], pull(CT)[-1])


# ================================================================= captures


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_is_captured_changes_and_is_not_differentiated(mode):
    net, other = net_of(), net_of()

    def f(x):
        return apply(net, x)

    out, pullback = vjp(f, X, **mode)
    theirs, pull = expected()
    np.testing.assert_allclose(out, theirs)
    np.testing.assert_allclose(pullback(CT)[0], pull(CT)[-1])
    assert int(net.count.value) == 1
    again = vjp(f, **mode)
    again(X)
    net.mean.value = jnp.zeros(2)
    np.testing.assert_allclose(again(X)[0], theirs - 1)
    assert int(net.count.value) == 3
    assert same_graph(other, net_of())


def test_captured_and_passed_is_one_thing():
    net = net_of()
    _, pullback = vjp(lambda m: net.mean.value * m.mean.value, net)
    np.testing.assert_allclose(pullback(jnp.ones(2))[0]["mean"].value, [2.0, 2.0])
    _, pullback = vjp(functools.partial(apply, net), X)
    np.testing.assert_allclose(pullback(CT)[0], expected()[1](CT)[-1])
    assert int(net.count.value) == 1


def test_methods():
    class Layer(dx.Module):
        def __init__(self):
            self.k = dx.Param(jnp.array(3.0))
            self.calls = dx.Variable(jnp.array(0))

        def __call__(self, x):
            self.calls.value = self.calls.value + 1
            return self.k.value * x

        @vjp
        def with_pullback(self, x):
            return self(x)

    layer = Layer()
    assert float(vjp(layer, 2.0)[1](1.0)[0]) == 3
    assert float(vjp(layer.__call__, 2.0)[1](1.0)[0]) == 3
    layer_grad, x_grad = layer.with_pullback(2.0)[1](1.0)
    assert float(layer_grad["k"].value) == 2
    assert float(x_grad) == 3
    assert int(layer.calls.value) == 3


# ================================================================= inside of other transforms


def test_inside_of_jit_and_out_of_it():
    net = net_of()
    _, pull = expected()
    _, pullback = jit(lambda net, x: vjp(apply, net, x))(net, X)
    assert isinstance(pullback, Pullback)
    assert int(net.count.value) == 1
    np.testing.assert_allclose(pullback(CT)[1], pull(CT)[-1])
    np.testing.assert_allclose(jax.jit(lambda p, ct: p(ct)[1])(pullback, CT), pull(CT)[-1])
    net_grad = jit(lambda net, x: vjp(apply, net, x)[1](CT)[0])(net, X)
    np.testing.assert_allclose(net_grad["first"]["kernel"].value, pull(CT)[0])
    assert int(net.count.value) == 2


def test_derivatives_of_pullbacks():
    net = Open()
    net.a = dx.Param(jnp.array(2.0))

    def slope(net):
        return vjp(lambda n: n.a.value**3, net)[1](1.0)[0]["a"].value

    assert float(slope(net)) == 12
    assert float(grad(slope)(net)["a"].value) == 12
    _, pullback = vjp(grad(lambda n: n.a.value**4), net)
    (second,) = pullback(dx.State({"a": dx.Param(jnp.array(1.0))}))
    assert float(second["a"].value) == 48


def test_rows_of_a_jacobian():
    net = net_of()
    _, pullback = vjp(lambda net: apply(net, X)[0], net)
    rows = jax.vmap(lambda ct: pullback(ct)[0]["first"]["kernel"].value)(jnp.eye(2))
    theirs = jax.jacrev(
        lambda k: apply_to_arrays(k, *[getattr(v, "value", v) for v in (net.second.kernel, net.mean, net.raw)], X)[0]
    )(net.first.kernel.value)
    np.testing.assert_allclose(rows, theirs)


def test_no_tracer_leaks():
    net = net_of()
    with jax.checking_leaks():
        vjp(apply, net, X)[1](CT)
        jit(lambda net, x: vjp(apply, net, x))(net, X)


# ================================================================= against jax and the peer


@settings(max_examples=25, deadline=None)
@given(modes_and_recipes(), st.booleans())
def test_numbers_are_those_of_jax(moded, compiled):
    mode, recipe = moded

    def f(model, x):
        total = x
        for i, thing in enumerate(objects_of(model)):
            if isinstance(thing, dx.Variable):
                total = total + jnp.sum(jnp.asarray(thing.value) ** 2) * (i + 1) * x
                if isinstance(thing, dx.BatchStat):
                    thing.value = thing.value + 1
        return total

    def pulled(model, x):
        out, pullback = vjp(f, model, x, **mode)
        return out, pullback(3.0)

    model, x = build(recipe), jnp.float32(2)
    graphdef, state = dx.split(model)
    theirs, pull = jax.vjp(lambda s, x: f(dx.merge(graphdef, s), x), state, x)
    out, (model_grad, x_grad) = (jit(pulled) if compiled else pulled)(model, x)
    np.testing.assert_allclose(out, theirs, rtol=1e-5)
    by_model, by_x = pull(jnp.float32(3))
    model_grad = model_grad if isinstance(model_grad, dx.State) else dx.state(model_grad)
    assert model_grad.paths == by_model.paths
    for a, b in zip(model_grad.leaves, by_model.leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(x_grad, by_x, rtol=1e-5)
    for before, after in zip(state.filter(dx.BatchStat).leaves, dx.state(model, dx.BatchStat).leaves, strict=True):
        np.testing.assert_allclose(after, before + 1)


def test_the_numbers_of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    def f(model, x):
        model.mean[...] = model.mean[...] + x.sum()
        return (x @ model.kernel[...]) * model.mean[...]

    theirs = nnx.Module()
    theirs.kernel, theirs.mean = nnx.Param(jnp.arange(4.0).reshape(2, 2)), nnx.BatchStat(jnp.ones(2))
    ours = Open()
    ours.kernel, ours.mean = dx.Param(jnp.arange(4.0).reshape(2, 2)), dx.BatchStat(jnp.ones(2))
    out, pull = nnx.vjp(f, theirs, X, graph=False)
    mine, pullback = vjp(f, ours, X, graph=False)
    np.testing.assert_allclose(mine, out)
    np.testing.assert_allclose(ours.mean.value, theirs.mean[...])
    (a, b), (c, d) = pullback(CT), pull(CT)
    np.testing.assert_allclose(a.kernel.value, c.kernel[...])
    np.testing.assert_allclose(a.mean.value, c.mean[...])
    np.testing.assert_allclose(b, d)


# ================================================================= what is refused


def test_an_exception_leaves_all_as_it_was():
    net = net_of()

    def fail(net, x):
        apply(net, x)
        net.new = 3
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        vjp(fail, net, X)
    assert same_graph(net, net_of())


def test_all_cotangents_that_do_not_fit_are_in_one_error():
    model = dx.Module()
    model.a, model.b, model.c = (dx.Param(jnp.ones(size)) for size in (2, 3, 4))
    _, pullback = vjp(lambda model, x: (model, x), model, X)
    wrong = dx.State({"a": jnp.ones(5), "b": jnp.ones(3), "c": jnp.ones(4, jnp.int32), "none": jnp.ones(1)})
    with pytest.raises(TransformError, match="derivatives do not match their values at 4 paths") as caught:
        pullback((wrong, jnp.ones(7)))
    assert [line.partition(": ")[0] for line in caught.value.got.splitlines()] == [
        "the cotangent[0].none",
        "the cotangent[0].a",
        "the cotangent[0].c",
        "the cotangent[1]",
    ]


def test_cotangents_that_do_not_fit():
    _, pullback = vjp(lambda net, x: {"y": apply(net, x)}, net_of(), X)
    with pytest.raises(TransformError, match=r"(?s)the cotangent: this does not match its value.*\{'y': '\*'\}"):
        pullback([CT])
    for nothing in (None, {"y": None}):
        assert pullback(nothing)[1].tolist() == [[0.0, 0.0]]
    net = net_of()
    _, pullback = vjp(lambda net: net, net)
    for wrong in (jnp.ones(3), jnp.ones(2, jnp.int32)):
        with pytest.raises(TransformError, match=r"(?s)the cotangent\.raw: this does.*expected: float32\[2\]"):
            pullback(dx.State({"raw": wrong}))
    with pytest.raises(TransformError, match=r"(?s)the cotangent\.other: this does not match.*is not differentiated"):
        pullback(dx.State({"other": jnp.ones(3)}))
    with pytest.raises(TransformError, match=r"(?s)the cotangent: this does not match.*a State with the paths"):
        pullback(3.0)
    assert float(pullback(dx.State({"raw": jnp.ones(2)}))[0]["raw"][0]) == 1


def test_other_mistakes():
    for wrong in ((3,), (net_of(), X)):
        with pytest.raises(TransformError, match="vjp, f: this is not a function"):
            vjp(*wrong)
    with pytest.raises(TransformError, match="the function does not return a pair"):
        vjp(apply, net_of(), X, has_aux=True)
    net = net_of()
    net.again = net.first.kernel
    with pytest.raises(GraphError, match="reached twice"):
        vjp(apply, net, X, graph=False)
    with pytest.raises(TransformError, match="changes of structure do not come back"):
        vjp(lambda net: setattr(net, "new", dx.Param(1.0)), net_of(), graph_updates=False)

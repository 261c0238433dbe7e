"""`dx.remat`: what a function does happens once, and its gradients are the same."""

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.ad_checkpoint import checkpoint_name

import declax as dx
from declax.errors import GraphError, TransformError
from declax.transforms.autodiff import grad, value_and_grad
from declax.transforms.compilation import jit
from declax.transforms.differentials import jvp, vjp
from declax.transforms.rematerialization import remat
from strategies import Open, apply_edits, build, edits, modes_and_recipes, objects_of, recipes, same_graph

MODES = [{}, {"graph_updates": False}, {"graph": False}]


class Block(dx.Module):
    def __init__(self, scale=2.0):
        self.k = dx.Param(jnp.array(scale))
        self.count = dx.Variable(jnp.array(0))

    def __call__(self, x):
        self.count.value = self.count.value + 1
        return jnp.sin(jnp.sin(x * self.k.value)).sum()


X = jnp.array([1.0, 2.0])


def expected(scale=2.0, x=X):
    return jax.value_and_grad(lambda k: jnp.sin(jnp.sin(x * k)).sum())(jnp.array(scale))


def num_sines(f, *args):
    """How many sines and cosines a program computes, within rematerialized parts too."""
    return sum(str(jax.make_jaxpr(f)(*args)).count(f" {name} ") for name in ("sin", "cos"))


# ================================================================= numbers, and state


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("around", [lambda f: f, jit], ids=["eager", "jit"])
def test_state_comes_back_once(mode, around):
    block = Block()
    f = remat(lambda m, x: m(x), **mode)
    value, grads = around(value_and_grad(f))(block, X)
    np.testing.assert_allclose(value, expected()[0], rtol=1e-6)
    np.testing.assert_allclose(grads["k"].value, expected()[1], rtol=1e-6)
    assert int(block.count.value) == 1
    np.testing.assert_allclose(f(block, X), expected()[0], rtol=1e-6)
    assert int(block.count.value) == 2


def test_values_are_computed_again():
    block = Block()

    def program(f):
        g, params, rest = dx.split(block, dx.Param, ...)
        return num_sines(jax.grad(lambda p: f(dx.merge(g, p, rest), X)), params)

    plain = program(lambda m, x: m(x))
    assert program(remat(lambda m, x: m(x))) > plain
    assert program(remat(lambda m, x: m(x), policy=jax.checkpoint_policies.everything_saveable)) <= program(
        remat(lambda m, x: m(x))
    )


def test_policies_say_what_is_kept():
    def f(m, x):
        return jnp.sin(checkpoint_name(jnp.sin(x * m.k.value), "kept")).sum()

    def saved(policy):
        return str(jax.make_jaxpr(lambda x: jax.vjp(lambda x: remat(f, policy=policy)(Block(), x), x)[1](1.0))(X))

    policies = jax.checkpoint_policies
    nothing, named = saved(policies.nothing_saveable), saved(policies.save_only_these_names("kept"))
    raw = str(
        jax.make_jaxpr(
            lambda x: jax.vjp(
                jax.checkpoint(lambda x: f(Block(), x), policy=policies.save_only_these_names("kept")), x
            )[1](1.0)
        )(X)
    )
    assert nothing.count(" sin ") > named.count(" sin ")
    assert named.count(" sin ") == raw.count(" sin ")


def test_prevent_cse():
    def flag(**options):
        return str(jax.make_jaxpr(remat(jnp.sin, **options))(1.0))

    assert "prevent_cse=True" in flag()
    assert "prevent_cse=False" in flag(prevent_cse=False)


def test_the_same_random_numbers_again():
    rngs = dx.Rngs(0)

    def f(x, rngs):
        noise = rngs.normal(x.shape)
        return jnp.sum(jnp.sin(x * noise) * noise)

    twin = dx.Rngs(0)
    noise = twin.normal(X.shape)
    np.testing.assert_allclose(grad(remat(f))(X, rngs), jnp.cos(X * noise) * noise**2, rtol=1e-6)
    assert int(rngs.default.count) == 1
    noise = twin.normal(X.shape)
    np.testing.assert_allclose(grad(remat(f))(X, rngs), jnp.cos(X * noise) * noise**2, rtol=1e-6)


def test_structure_that_changes_and_models_that_are_returned():
    def grow(m, x):
        m.new = dx.Cache(x * 2)
        return m, m(x), [m.new]

    block = Block()
    same, _, (new,) = remat(grow)(block, X)
    assert same is block
    assert new is block.new
    np.testing.assert_allclose(block.new.value, 2 * X)
    fresh = Block()
    grads = jit(grad(lambda m: remat(grow)(m, X)[1]))(fresh)
    np.testing.assert_allclose(grads["k"].value, expected()[1], rtol=1e-6)
    np.testing.assert_allclose(fresh.new.value, 2 * X)


@settings(max_examples=25, deadline=None)
@given(recipes(max_nodes=4), edits(max_size=3))
def test_edits_inside_are_edits_outside(recipe, todo):
    inside, outside = build(recipe), build(recipe)
    known = list(zip(objects_of(inside), objects_of(outside), strict=True))
    remat(lambda m: apply_edits(m, todo))(inside)
    apply_edits(outside, todo)
    assert same_graph(inside, outside, known)


@settings(max_examples=25, deadline=None)
@given(modes_and_recipes(), st.booleans())
def test_gradients_are_those_of_jax(moded, compiled):
    mode, recipe = moded

    def f(model):
        total = jnp.float32(0)
        for i, thing in enumerate(objects_of(model)):
            if isinstance(thing, dx.Variable):
                total = total + jnp.sum(jnp.sin(jnp.asarray(thing.value))) * (i + 1)
                if isinstance(thing, dx.BatchStat):
                    thing.value = thing.value + 1
        return total

    model = build(recipe)
    graphdef, params, rest = dx.split(model, dx.Param, ...)
    if not params.leaves:
        return
    theirs = jax.grad(jax.checkpoint(lambda p: f(dx.merge(graphdef, p, rest))))(params)
    take = grad(remat(f, **mode), argnums=dx.DiffState(0, dx.Param))  # also those with trainable=False
    ours = (jit(take) if compiled else take)(model)
    assert ours.paths == params.paths
    for a, b in zip(ours.leaves, theirs.leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    for before, after in zip(rest.filter(dx.BatchStat).leaves, dx.state(model, dx.BatchStat).leaves, strict=True):
        np.testing.assert_allclose(after, before + 1)


# ================================================================= methods, static arguments


def test_methods():
    class Layer(Block):
        @remat
        def __call__(self, x, power=2, *, offset=0.0):
            """About."""
            return super().__call__(x) ** power + offset

        @remat(static_argnums=2)
        def repeat(self, x, times):
            for _ in range(times):
                x = jnp.sin(x * self.k.value)
            return x.sum()

    layer = Layer()
    value, slope = expected()
    np.testing.assert_allclose(layer(X), value**2, rtol=1e-6)
    np.testing.assert_allclose(grad(lambda m: m(X, 3, offset=1.0))(layer)["k"].value, 3 * value**2 * slope, rtol=1e-5)
    assert int(layer.count.value) == 2
    assert Layer.__call__.__doc__ == "About."
    assert "remat(" in repr(Layer.repeat)
    twice = jax.grad(lambda k: jnp.sin(jnp.sin(X * k) * k).sum())(2.0)
    np.testing.assert_allclose(grad(lambda m: m.repeat(X, 2))(layer)["k"].value, twice, rtol=1e-5)
    np.testing.assert_allclose(remat(Block())(X), value, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 2},
        {"static_argnums": (2, 3)},
        {"static_argnums": (-1, -2)},
        {"static_argnames": "n"},
        {"static_argnames": ("n", "how")},
        {"static_argnums": 3, "static_argnames": ["n"]},
    ],
    ids=str,
)
def test_static_arguments(options):
    def f(m, x, n, how="plus"):
        for _ in range(n):
            x = jnp.sin(x * m.k.value)
        return x.sum() if how == "plus" or not isinstance(how, str) else -x.sum()

    call = remat(f, **options)
    theirs = jax.grad(lambda k: jnp.sin(jnp.sin(X * k) * k).sum())(2.0)
    names_how = options in ({"static_argnums": (2, 3)}, {"static_argnums": (-1, -2)}, {"static_argnames": ("n", "how")})
    names_how = names_how or ("static_argnums" in options and options["static_argnums"] == 3)
    for args, kwargs in [((2,), {}), ((), {"n": 2})] + (
        [((2, "minus"), {}), ((2,), {"how": "minus"})] if names_how else []
    ):
        sign = -1 if "minus" in (*args, *kwargs.values()) else 1
        ours = grad(lambda m, args=args, kwargs=kwargs: call(m, X, *args, **kwargs))(Block())
        np.testing.assert_allclose(ours["k"].value, sign * theirs, rtol=1e-5)
    assert float(call(Block(), X, 1)) != float(call(Block(), X, 2))


def test_arguments_by_name_and_trees():
    f = remat(lambda tree, *, m: m(tree["x"][0]) + tree["y"])
    grads = grad(lambda m: f({"x": [X], "y": 1.0}, m=m))(Block())
    np.testing.assert_allclose(grads["k"].value, expected()[1], rtol=1e-6)


def test_one_trace_for_blocks_alike():
    traces = []

    @remat
    def call(m, x):
        traces.append(1)
        return m(x)

    blocks = [Block(float(i)) for i in range(4)]

    def loss(blocks, x):
        return sum(call(block, x) for block in blocks)

    grads = jit(grad(loss))(blocks, X)
    for i, got in enumerate(grads):
        np.testing.assert_allclose(got["k"].value, expected(float(i))[1], rtol=1e-5, atol=1e-6)
    grad(loss)(blocks, X)
    assert len(traces) == 1
    blocks[0].mode = "another"
    grad(loss)(blocks, X)
    assert len(traces) == 2
    call(blocks[1], jnp.ones(3))
    assert len(traces) == 3


# ================================================================= captures


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("around", [lambda f: f, jit], ids=["eager", "jit"])
def test_what_is_captured(mode, around):
    block = Block()

    @functools.partial(remat, **mode)
    def f(x):
        return block(x)

    take = around(grad(f))
    theirs = jax.grad(lambda x: jnp.sin(jnp.sin(x * 2.0)).sum())
    np.testing.assert_allclose(take(X), theirs(X), rtol=1e-6)
    assert int(block.count.value) == 1
    block.k.value = jnp.array(0.0)
    assert take(X).tolist() == [0.0, 0.0]
    assert int(block.count.value) == 2


def test_captured_models_are_differentiated_from_outside():
    def loss(m):
        return remat(m)(X)

    block = Block()
    np.testing.assert_allclose(grad(loss)(block)["k"].value, expected()[1], rtol=1e-6)
    np.testing.assert_allclose(jit(grad(loss))(block)["k"].value, expected()[1], rtol=1e-6)
    assert int(block.count.value) == 2
    both = grad(lambda m: remat(lambda n, x: m.k.value * n.k.value * x)(m, 3.0))(block)
    assert float(both["k"].value) == 12


# ================================================================= inside of other transforms


def test_under_other_derivatives():
    block = Block()
    f = remat(lambda m, x: m(x))
    _, pullback = vjp(f, block, X)
    np.testing.assert_allclose(pullback(1.0)[0]["k"].value, expected()[1], rtol=1e-6)
    _, tangent = jvp(f, (block, X), (dx.State({"k": jnp.array(1.0)}), jnp.zeros(2)))
    np.testing.assert_allclose(tangent, expected()[1], rtol=1e-6)
    assert int(block.count.value) == 2
    slope = grad(lambda m: grad(f)(m, X)["k"].value)(block)
    theirs = jax.grad(jax.grad(lambda k: jnp.sin(jnp.sin(X * k)).sum()))(2.0)
    np.testing.assert_allclose(slope["k"].value, theirs, rtol=1e-5)
    nested = remat(lambda m, x: f(m, x) * 2)
    np.testing.assert_allclose(grad(nested)(block, X)["k"].value, 2 * expected()[1], rtol=1e-6)


def test_no_tracer_leaks():
    block = Block()
    f = remat(lambda m, x: m(x))
    captured = remat(lambda x: block(2 * x))
    with jax.checking_leaks():
        grad(f)(block, X)
        jit(grad(f))(block, X)
        jit(grad(captured))(X)


def test_threads_that_only_read():
    block = Block()
    f = remat(lambda m, x: jnp.sin(x * m.k.value).sum())
    found = []
    threads = [threading.Thread(target=lambda: found.append(float(grad(f)(block, X)["k"].value))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 8


def test_the_numbers_of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    def f(m, x, n):
        for _ in range(n):
            m.mean[...] = m.mean[...] + x.sum()
            x = jnp.sin(x * m.k[...] * m.mean[...])
        return x.sum()

    theirs = nnx.Module()
    theirs.k, theirs.mean = nnx.Param(jnp.array(2.0)), nnx.BatchStat(jnp.array(1.0))
    ours = Open()
    ours.k, ours.mean = dx.Param(jnp.array(2.0)), dx.BatchStat(jnp.array(1.0))
    of_theirs = nnx.grad(nnx.remat(f, static_argnums=2))(theirs, X, 3)
    of_ours = grad(lambda m: remat(f, static_argnums=2)(m, X, 3))(ours)
    np.testing.assert_allclose(of_ours["k"].value, of_theirs["k"][...], rtol=1e-6)
    np.testing.assert_allclose(ours.mean.value, theirs.mean[...], rtol=1e-6)


# ================================================================= what is refused


def test_mistakes():
    with pytest.raises(TransformError, match="remat, f: this is not a function"):
        remat(3)
    with pytest.raises(TransformError, match="the argument is a class"):
        remat(Block)
    with pytest.raises(TransformError, match="remat, policy: this is not a function"):
        remat(Block(), policy="dots")
    with pytest.raises(TransformError, match="the function has no positional parameter 5"):
        remat(lambda m, x: x, static_argnums=5)
    with pytest.raises(TransformError, match="the function has no parameter 'y'"):
        remat(lambda m, x: x, static_argnames="y")
    with pytest.raises(TransformError, match="a static argument is not hashable"):
        remat(lambda m, x: x, static_argnums=1)(Block(), [1])
    with pytest.raises(TransformError, match="changes of structure do not come back"):
        remat(lambda m: setattr(m, "new", dx.Param(1.0)), graph_updates=False)(Block())
    block = Block()
    block.again = block.k
    with pytest.raises(GraphError, match="reached twice"):
        remat(lambda m: m.k.value, graph=False)(block)


def test_an_exception_leaves_all_as_it_was():
    block = Block()

    @remat
    def fail(m, x):
        m(x)
        m.new = 3
        raise RuntimeError("inside")

    for take in (fail, grad(fail), jit(fail)):
        with pytest.raises(RuntimeError, match="inside"):
            take(block, X)
    assert same_graph(block, Block())

"""`while_loop`: what each step does to models happens to the caller's, in the end."""

from __future__ import annotations

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from counted import Counted, assert_refused, assert_same_values, each_mode, values_of
from declax.errors import TransformError
from declax.transforms.loops import while_loop
from declax.transforms.vectorization import vmap
from strategies import build, modes_and_recipes, objects_of, recipes, same_graph, set_some


def is_below(value):
    return value[1] < 5


def advance(value):
    model, i, x = value
    return model, i + 1, model.step(x)


# ================================================================= against raw JAX, and against Python's loops


@each_mode
def test_while_against_lax_on_explicit_state(mode):
    model, x = Counted(2.0), jnp.array([1.0, -1.0])
    graphdef, state = dx.split(model)

    def pure(value):
        made = dx.merge(graphdef, value[0])
        _, i, x = advance((made, *value[1:]))
        return dx.state(made), i, x

    expected = jax.lax.while_loop(is_below, pure, (state, 0, x))
    returned, i, x = while_loop(is_below, advance, (model, 0, x), **mode)
    assert returned is model
    assert int(i) == int(expected[1]) == 5
    np.testing.assert_allclose(x, expected[2])
    assert_same_values(model, dx.merge(graphdef, expected[0]))


@given(modes_and_recipes(), st.lists(st.integers(0, 7), max_size=4), st.integers(0, 3))
def test_random_models_against_lax_on_explicit_state(moded, numbers, count):
    mode, recipe = moded
    model = build(recipe)
    graphdef, state = dx.split(model)

    def is_less(value):
        return (value[1] < count) & jnp.isfinite(value[2])

    def pure(value):
        made = dx.merge(graphdef, value[0])
        total = set_some(numbers, made)
        return dx.state(made), value[1] + 1, value[2] * 0.5 + total

    def body(value):
        return value[0], value[1] + 1, value[2] * 0.5 + set_some(numbers, value[0])

    state, steps, expected = jax.lax.while_loop(is_less, pure, (state, 0, jnp.float32(1)))
    parts = objects_of(model)
    returned, ours, output = while_loop(is_less, body, (model, 0, jnp.float32(1)), **mode)
    assert returned is model
    assert all(map(operator.is_, objects_of(model), parts))
    assert int(ours) == int(steps) == count
    np.testing.assert_allclose(output, expected, rtol=1e-5)
    assert same_graph(model, dx.merge(graphdef, state))


def test_without_compilation():
    model = Counted(2.0)
    with jax.disable_jit():
        assert int(while_loop(is_below, advance, (model, 0, jnp.ones(2)))[1]) == 5
    assert int(model.seen.value) == 5


@given(recipes(), st.lists(st.integers(0, 7), max_size=4), st.integers(0, 3))
def test_a_loop_over_what_is_captured(recipe, numbers, count):
    inside, outside = build(recipe), build(recipe)
    known = list(zip(objects_of(inside), objects_of(outside), strict=True))

    def body(i):
        set_some(numbers, inside)
        return i + 1

    assert int(while_loop(lambda i: i < count, body, 0)) == count
    for _ in range(count):
        set_some(numbers, outside)
    assert same_graph(inside, outside, known)


def test_no_step_at_all():
    model = Counted()
    before = values_of(model)
    returned, i, x = while_loop(is_below, advance, (model, 7, jnp.ones(2)))
    assert returned is model
    assert (int(i), x.tolist()) == (7, [1.0, 1.0])
    jax.tree.map(np.testing.assert_array_equal, values_of(model), before)


# ================================================================= what is not set stays out


def test_only_what_is_set_is_carried():
    model = Counted()
    untouched = model.scale.value
    jaxpr = jax.make_jaxpr(lambda x: while_loop(lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1] * model.scale), (0, x)))(
        jnp.ones(2)
    )
    (loop,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "while"]
    assert (loop.params["body_nconsts"], len(loop.outvars)) == (1, 2)
    while_loop(lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1] * model.scale), (0, jnp.ones(2)))
    assert model.scale.value is untouched


@each_mode
def test_captures(mode):
    model = Counted()

    def run(n):
        return while_loop(lambda i: i < n, lambda i: i + model.step(jnp.ones(2)).sum().astype(jnp.int32), 0, **mode)

    for function in (run, dx.jit(run, **mode)):
        model.seen.value = jnp.array(0)
        model.scale.value = jnp.full((2,), 1.0)
        assert int(function(4)) == 4
        assert int(model.seen.value) == 2
        model.scale.value = jnp.full((2,), 2.0)
        assert int(function(4)) == 4
        assert int(model.seen.value) == 3


def test_a_condition_that_captures():
    model = Counted()

    def body(x):
        model.seen.value = model.seen.value + 1
        return x

    while_loop(lambda _: model.seen.value < 4, body, None)
    assert int(model.seen.value) == 4


# ================================================================= inside of other transforms


def test_under_vmap():
    model = Counted(2.0)

    def run(x, n):
        return while_loop(lambda v: v[0] < n, lambda v: (v[0] + 1, v[1] * model.scale), (0, x))[1]

    output = vmap(run)(jnp.ones((3, 2)), jnp.arange(3))
    assert output.tolist() == [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]


def test_each_function_is_traced_once():
    traces = []

    def condition(value):
        traces.append("cond")
        return value[1] < 5

    def body(value):
        traces.append("body")
        return advance(value)

    with jax.checking_leaks():
        dx.jit(lambda m: while_loop(condition, body, (m, 0, jnp.ones(2)))[1])(Counted())
        assert sorted(traces) == ["body", "cond"]
        while_loop(condition, body, (Counted(), 0, jnp.ones(2)))
        assert sorted(traces[2:]) == ["body", "cond"]


# ================================================================= array refs


class Refs(dx.Module):
    def __init__(self):
        self.limit = dx.Variable(dx.array_ref(jnp.full((), 3.0)))
        self.count = dx.Variable(dx.array_ref(jnp.zeros(())))


@pytest.mark.parametrize("jit", [lambda f: f, dx.jit], ids=["eager", "jit"])
def test_a_condition_cannot_read_a_ref_that_the_body_writes(jit):
    """A loop that JAX has compiled would ask for the first value each time, and not end."""

    def count(refs):
        refs.count[...] += 1
        return refs

    refs = Refs()
    with pytest.raises(TransformError, match="cond_fun reads an array ref that body_fun uses too") as caught:
        jit(lambda refs: dx.while_loop(lambda refs: refs.count[...] < refs.limit[...], count, refs))(refs)
    assert caught.value.got == "refs.count"
    assert float(refs.count[...]) == 0


def test_a_condition_cannot_read_a_closed_over_ref_that_the_body_writes():
    ref = dx.array_ref(jnp.zeros(()))

    def count(i):
        ref[...] += 1
        return i + 1

    with pytest.raises(TransformError, match="cond_fun reads an array ref that body_fun uses too") as caught:
        jax.jit(lambda: dx.while_loop(lambda i: ref[...] + i < 3, count, 0))()
    assert caught.value.got == "a ref of a closure"


def test_a_condition_can_read_a_ref_that_nobody_writes():
    refs = Refs()

    def count(carried):
        refs, i = carried
        refs.count[...] += 1
        return refs, i + 1

    for loop in (dx.while_loop, dx.jit(dx.while_loop, static_argnums=(0, 1))):
        dx_refs, i = loop(lambda carried: carried[1] < carried[0].limit[...], count, (refs, 0))
        assert dx_refs is refs
        assert int(i) == 3
    assert float(refs.count[...]) == 6


# ================================================================= errors


def count(value):
    value[0].seen.value = value[0].seen.value + 1
    return value[1] < 5


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (lambda m: while_loop(count, lambda v: v, (m, 0)), r"while_loop, init_val\[0\]\.seen: cond_fun changes this"),
        (
            lambda m: while_loop(lambda m: setattr(m, "new", dx.Param(jnp.ones(1))) is None, lambda m: m, m),
            "cond_fun changes this",
        ),
        (lambda m: while_loop(lambda x: x, lambda x: x, 0), r"(?s)cond_fun: this is not one boolean.*got: +int32\[\]"),
        (lambda m: while_loop(lambda x: None, lambda x: x, 0), "cond_fun: this is not an array"),
        (
            lambda m: while_loop(lambda v: v[1] < 5, lambda v: (dx.clone(v[0]), v[1] + 1), (m, 0)),
            r"while_loop, init_val\[0\]: body_fun returns a new model in place of this one",
        ),
        (lambda m: while_loop(3, lambda x: x, 0), "while_loop, cond_fun: this is not a function"),
        (lambda m: while_loop(lambda x: x, None, 0), "while_loop, body_fun: this is not a function"),
    ],
)
def test_errors(run, text):
    assert_refused(run, text)

"""`fori_loop`: what each step does to models happens to the caller's, in the end."""

from __future__ import annotations

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from counted import Counted, assert_refused, assert_same_values, each_mode
from declax.errors import GraphError
from declax.transforms.loops import fori_loop
from equations import equations
from strategies import Open, build, modes_and_recipes, objects_of, recipes, same_graph, set_some

# ================================================================= against raw JAX, and against Python's loops


@each_mode
@pytest.mark.parametrize("unroll", [None, 2, True])
def test_fori_against_lax_on_explicit_state(mode, unroll):
    model, x = Counted(2.0), jnp.array([1.0, -1.0])
    graphdef, state = dx.split(model)

    def pure(i, value):
        made = dx.merge(graphdef, value[0])
        return dx.state(made), made.step(value[1]) + i

    def advance(i, value):
        return value[0], value[0].step(value[1]) + i

    expected_state, expected = jax.lax.fori_loop(2, 6, pure, (state, x))
    _, output = fori_loop(2, 6, advance, (model, x), unroll=unroll, **mode)
    np.testing.assert_allclose(output, expected)
    assert int(model.seen.value) == 4
    assert_same_values(model.scale, dx.merge(graphdef, expected_state).scale)


@given(
    modes_and_recipes(),
    st.lists(st.integers(0, 7), max_size=4),
    st.integers(-2, 2),
    st.integers(0, 3),
    st.sampled_from([None, 1, 2, True]),
)
def test_random_models_against_lax_on_explicit_state(moded, numbers, lower, count, unroll):
    mode, recipe = moded
    model, upper = build(recipe), lower + count
    graphdef, state = dx.split(model)

    def pure(i, value):
        made = dx.merge(graphdef, value[0])
        total = set_some(numbers, made) + i
        return dx.state(made), value[1] * 0.5 + total

    def body(i, value):
        total = set_some(numbers, value[0]) + i
        return value[0], value[1] * 0.5 + total

    state, expected = jax.lax.fori_loop(lower, upper, pure, (state, jnp.float32(1)), unroll=unroll)
    parts = objects_of(model)
    returned, output = fori_loop(lower, upper, body, (model, jnp.float32(1)), unroll=unroll, **mode)
    assert returned is model
    assert all(map(operator.is_, objects_of(model), parts))
    np.testing.assert_allclose(output, expected, rtol=1e-5)
    assert same_graph(model, dx.merge(graphdef, state))


@given(recipes(), st.lists(st.integers(0, 7), max_size=4), st.integers(0, 3))
def test_a_loop_is_a_loop(recipe, numbers, count):
    inside, outside = build(recipe), build(recipe)
    known = list(zip(objects_of(inside), objects_of(outside), strict=True))
    assert fori_loop(0, count, lambda i, m: (set_some(numbers, m), m)[1], inside) is inside
    for _ in range(count):
        set_some(numbers, outside)
    assert same_graph(inside, outside, known)


@pytest.mark.parametrize(("unroll", "expected"), [(1, 1), (2, 2), (True, 4)])
def test_how_many_steps_are_one(unroll, expected):
    made = jax.make_jaxpr(lambda x: fori_loop(0, 4, lambda i, x: x + 1, x, unroll=unroll))(0.0)
    (loop,) = equations(made, "scan")
    assert loop.params["unroll"] == expected


def test_against_the_peer():
    nnx = pytest.importorskip("flax.nnx")

    def program(lib, while_loop, fori_loop):
        class Counter(lib.Module):
            def __init__(self):
                self.count = lib.Variable(jnp.array(0))
                self.total = lib.Param(jnp.array(1.0))

        def body(value):
            counter, x = value
            counter.count.set_value(counter.count.get_value() + 1)
            return counter, x + counter.total.get_value()

        def numbered(i, value):
            counter, x = value
            counter.total.set_value(counter.total.get_value() + i)
            return counter, x * counter.total.get_value()

        counter = Counter()
        same, x = while_loop(lambda value: value[1] < 4.0, body, (counter, 0.5))
        _, y = fori_loop(1, 4, numbered, (counter, x))
        return [same is counter, x, y, counter.count.get_value(), counter.total.get_value()]

    expected = program(nnx, nnx.while_loop, nnx.fori_loop)
    assert np.allclose(program(dx, dx.while_loop, dx.fori_loop), expected)


# ================================================================= what is handed on


def test_new_models_may_be_returned():
    model = Counted(1.0)

    def body(i, value):
        model, x = value
        made = dx.clone(model)
        made.scale.value = made.scale.value * 2
        return made, x + made.scale.value.sum()

    returned, x = fori_loop(0, 3, body, (model, 0.0))
    assert returned is not model
    assert isinstance(returned, Counted)
    assert returned.scale.value.tolist() == [8.0, 8.0]
    assert model.scale.value.tolist() == [1.0, 1.0]
    assert float(x) == 28.0


def test_functional_style():
    model = Counted(1.0)
    graphdef = dx.graphdef(model)

    def body(i, model):
        state = jax.tree.map(lambda leaf: leaf + 1, dx.state(model))
        return dx.merge(graphdef, state)

    returned = fori_loop(0, 3, body, model)
    assert returned.scale.value.tolist() == [4.0, 4.0]
    assert int(returned.seen.value) == 3
    assert int(model.seen.value) == 0


def test_one_model_stays_and_one_is_new():
    kept, renewed = Counted(1.0), Counted(1.0)

    def body(i, value):
        kept, other = value["kept"], value["renewed"]
        kept.step(jnp.ones(2))
        made = Counted(0.0)
        made.scale.value = other.scale.value + kept.seen.value
        return {"kept": kept, "renewed": made}

    returned = fori_loop(0, 3, body, {"kept": kept, "renewed": renewed})
    assert returned["kept"] is kept
    assert int(kept.seen.value) == 3
    assert returned["renewed"].scale.value.tolist() == [7.0, 7.0]
    assert renewed.scale.value.tolist() == [1.0, 1.0]


def test_new_models_that_share():
    shared = dx.Param(jnp.ones(()))
    one, other = Open(), Open()
    one.kernel = other.kernel = shared

    def body(i, pair):
        made = dx.Param(pair[0].kernel.value * 2)
        one, other = Open(), Open()
        one.kernel = other.kernel = made
        return one, other

    first, second = fori_loop(0, 3, body, (one, other))
    assert first.kernel is second.kernel
    assert float(first.kernel.value) == 8.0


def test_one_model_twice():
    model = Counted()

    def body(i, pair):
        pair[0].seen.value = pair[0].seen.value + 1
        return pair

    first, second = fori_loop(0, 3, body, (model, model))
    assert first is second is model
    assert int(model.seen.value) == 3


def test_a_variable_alone():
    total = dx.Variable(jnp.array(1))

    def double(i, total):
        total.value = total.value * 2
        return total

    assert fori_loop(0, 4, double, total) is total
    assert int(total.value) == 16


def test_a_first_value_of_weak_type_takes_the_type_of_the_steps():
    output = fori_loop(0, 3, lambda i, x: x + 1.5, 0)
    assert output == jax.lax.fori_loop(0, 3, lambda i, x: x + 1.5, 0)
    assert output.dtype == jnp.float32
    count = dx.Variable(0)

    def add(i, x):
        count.value = count.value + jnp.float32(0.5)
        return x

    fori_loop(0, 3, add, None)
    assert float(count.value) == 1.5


def test_values_that_are_trees():
    cache = dx.Cache({"k": jnp.zeros(2), "n": jnp.array(0)})

    def body(i, x):
        cache.value = {"k": cache.value["k"] + x, "n": cache.value["n"] + 1}
        return x * 2

    fori_loop(0, 3, body, 1.0)
    assert cache.value["k"].tolist() == [7.0, 7.0]
    assert int(cache.value["n"]) == 3


def test_bounds_that_are_arrays():
    for lower, upper in [(0, jnp.int32(3)), (jnp.int8(0), jnp.int8(3)), (jnp.uint32(1), jnp.uint32(4))]:

        def body(i, x):
            return x + i.astype(jnp.int32)

        def run(lower, upper, loop):
            return loop(lower, upper, body, jnp.int32(0))

        assert run(lower, upper, fori_loop) == run(lower, upper, jax.lax.fori_loop)
        traced = jax.jit(run, static_argnums=2)
        assert traced(lower, upper, fori_loop) == traced(lower, upper, jax.lax.fori_loop)


def test_streams_of_random_numbers():
    rngs, same = dx.Rngs(0), dx.Rngs(0)
    total = fori_loop(0, 3, lambda i, x: x + rngs.uniform(), 0.0)
    np.testing.assert_allclose(total, sum(same.uniform() for _ in range(3)), rtol=1e-6)
    assert rngs.uniform() == same.uniform()


# ================================================================= captures, and other transforms


@each_mode
def test_captured_and_handed_on_is_one_thing(mode):
    model = Counted()

    def body(i, given):
        given.seen.value = given.seen.value + 1
        model.seen.value = model.seen.value + 10
        return given

    assert fori_loop(0, 3, body, model, **mode) is model
    assert int(model.seen.value) == 33


def test_gradients_through_a_fixed_number_of_steps():
    model = Counted(3.0)

    def loss(model, loop):
        return loop(0, 3, lambda i, x: x * model.scale, jnp.ones(2)).sum()

    np.testing.assert_allclose(dx.grad(loss)(model, fori_loop)["scale"].value, [27.0, 27.0])


def test_without_compilation():
    model = Counted(2.0)
    with jax.disable_jit():
        fori_loop(0, 3, lambda i, x: model.step(x), jnp.ones(2))
    assert int(model.seen.value) == 3


# ================================================================= errors


def grow(i, model):
    model.new = dx.Param(jnp.ones(1))
    return model


def forget(i, model):
    del model.raw
    return model


def replace(i, model):
    model.scale = dx.BatchStat(model.scale.value)
    return model


def set_and_return_another(i, model):
    model.seen.value = model.seen.value + 1
    return Counted()


def set_type(i, model):
    model.seen.value = jnp.ones(3)
    return model


class Moded(dx.Module):
    def __init__(self):
        self.mode = "a"


def set_mode(i, model):
    model.mode = "b"
    return model


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            lambda m: fori_loop(0, 3, grow, m),
            r"fori_loop, init_val\.new: body_fun changes the structure or type of this",
        ),
        (
            lambda m: fori_loop(0, 3, set_mode, Moded()),
            r"(?s)init_val\.mode: body_fun changes.*expected: 'a'.*got: +'b'",
        ),
        (
            lambda m: fori_loop(0, 3, forget, m),
            r"fori_loop, init_val\.raw: body_fun changes the structure or type of this",
        ),
        (
            lambda m: fori_loop(0, 3, replace, m),
            r"fori_loop, init_val\.scale: body_fun changes the structure or type of this",
        ),
        (lambda m: fori_loop(0, 3, lambda i, x: (grow(i, m), x)[1], 0), r"captured m\.new: body_fun changes"),
        (lambda m: fori_loop(0, 3, lambda i, m: 1, m), "body_fun changes the structure or type of this"),
        (lambda m: fori_loop(0, 3, lambda i, v: v[0], (m, 1)), r"(?s)expected: \(model, \*\).*got: +model"),
        (lambda m: fori_loop(0, 3, lambda i, v: {"a": 1, "c": 2}, {"a": 1, "b": 2}), r"fori_loop, init_val\.b: "),
        (lambda m: fori_loop(0, 3, lambda i, v: v[::-1], (m, Counted())), "changes the structure or type of this"),
        (lambda m: fori_loop(0, 3, lambda i, v: Open(), m), "changes the structure or type of this"),
        (
            lambda m: fori_loop(0, 3, lambda i, v: (m.step(jnp.ones(2)), dx.clone(v))[1], m.scale),
            "changes the structure or type of this",
        ),
        (
            lambda m: fori_loop(0, 3, set_and_return_another, m),
            r"init_val\.seen: body_fun sets this, and returns a new",
        ),
        (
            lambda m: fori_loop(0, 3, set_type, m),
            r"(?s)init_val\.seen: body_fun changes the structure or type of this.*int32\[\].*got: +float32\[3\]",
        ),
        (
            lambda m: fori_loop(0, 3, lambda i, v: (v[1], v[1]), (jnp.ones(1), jnp.ones(2))),
            r"fori_loop, init_val\[0\]: ",
        ),
        (
            lambda m: fori_loop(0, 3, lambda i, x: x.astype(jnp.int32), jnp.ones(2)),
            "changes the structure or type of this",
        ),
        (lambda m: fori_loop(0, 3, None, 0), "fori_loop, body_fun: this is not a function"),
    ],
)
def test_errors(run, text):
    assert_refused(run, text)


def test_trees_share_nothing_where_the_mode_says_so():
    model = Counted()
    with pytest.raises(GraphError, match="so the argument is not a tree"):
        fori_loop(0, 3, lambda i, v: v, (model, model), graph=False)


def test_a_step_that_raises_changes_nothing():
    model = Counted()

    def fail(i, model):
        model.step(jnp.ones(2))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fori_loop(0, 3, fail, model)
    assert int(model.seen.value) == 0

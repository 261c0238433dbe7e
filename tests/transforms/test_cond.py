"""`cond`: what the branch that runs does to models happens to the caller's."""

from __future__ import annotations

import operator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from counted import MODES, Counted, assert_refused, assert_same_values, each_mode
from declax.errors import TransformError
from declax.transforms.branching import cond
from strategies import Box, Open, build, modes_and_recipes, objects_of, on_state, recipes, same_graph, set_some


def observe(model, x):
    model.seen.value = model.seen.value + 1
    return x * model.scale


def rescale(model, x):
    model.scale.value = model.scale.value * 2
    model.raw = model.raw + 1
    return x


# ================================================================= against raw JAX, and against calls without one


@pytest.mark.parametrize("pred", [True, False])
@each_mode
def test_against_lax_on_explicit_state(pred, mode):
    model, x = Counted(3.0), jnp.array([1.0, -1.0])
    graphdef, state = dx.split(model)

    branches = (on_state(graphdef, observe), on_state(graphdef, rescale))
    expected, expected_state = jax.lax.cond(pred, *branches, state, x)
    output = cond(pred, observe, rescale, model, x, **mode)
    np.testing.assert_allclose(output, expected)
    assert_same_values(model, dx.merge(graphdef, expected_state))


@given(modes_and_recipes(), *[st.lists(st.integers(0, 7), max_size=3)] * 2, st.booleans(), st.booleans())
def test_random_models_against_lax_on_explicit_state(moded, first, second, pred, is_traced):
    mode, recipe = moded
    model = build(recipe)
    graphdef, state = dx.split(model)

    def run(model, pred):
        return cond(pred, partial(set_some, first), partial(set_some, second), model, **mode)

    branches = [on_state(graphdef, partial(set_some, numbers)) for numbers in (first, second)]
    expected, state = jax.lax.cond(pred, *branches, state)
    parts = objects_of(model)
    output = (dx.jit(run, **mode) if is_traced else run)(model, pred)
    assert all(map(operator.is_, objects_of(model), parts))
    np.testing.assert_allclose(output, expected, rtol=1e-5)
    assert same_graph(model, dx.merge(graphdef, state))


@given(recipes(), st.booleans())
def test_a_change_of_structure_in_all_branches(recipe, pred):
    def tag(number):
        def run(model):
            set_some([number], model)
            model.link = dx.data(dx.Param(jnp.full((), float(number))))
            model.self = dx.data(model)
            return model

        return run

    inside, outside = build(recipe), build(recipe)
    known = list(zip(objects_of(inside), objects_of(outside), strict=True))
    assert cond(pred, tag(1), tag(2), inside) is inside
    tag(1 if pred else 2)(outside)
    assert same_graph(inside, outside, known)


def test_against_the_peer():
    nnx = pytest.importorskip("flax.nnx")

    def program(lib, cond, switch):
        class Counter(lib.Module):
            def __init__(self):
                self.count = lib.Variable(jnp.array(0))
                self.total = lib.Param(jnp.array(1.0))

            def step(self, x):
                self.count.set_value(self.count.get_value() + 1)
                self.total.set_value(self.total.get_value() * x)
                return self.total.get_value() + 1.0

        counter = Counter()
        results = [cond(pred, lambda m: m.step(3.0), lambda m: m.total.get_value(), counter) for pred in (True, False)]
        results += [switch(i, [lambda m, x: m.step(x), lambda m, x: x], counter, 2.0) for i in (0, 1)]
        return [*results, counter.count.get_value(), counter.total.get_value()]

    expected = program(nnx, nnx.cond, nnx.switch)
    assert np.allclose(program(dx, dx.cond, dx.switch), expected)


# ================================================================= what is set, and what is not


def test_only_what_a_branch_sets_is_set():
    model = Counted()
    untouched, set_by_none = model.scale.value, model.raw
    cond(False, observe, lambda model, x: x * model.scale, model, jnp.ones(2))
    assert model.scale.value is untouched
    assert model.raw is set_by_none
    assert int(model.seen.value) == 0
    cond(True, observe, lambda model, x: x * model.scale, model, jnp.ones(2))
    assert int(model.seen.value) == 1


def test_returned_models_are_those_that_were_given():
    model = Counted()
    returned = cond(True, lambda m: (m, 1), lambda m: (m, 2), model)
    assert returned[0] is model
    assert int(returned[1]) == 1


@pytest.mark.parametrize("pred", [True, False])
def test_new_models_are_new(pred):
    made = cond(pred, lambda: Counted(1.0), lambda: Counted(2.0))
    assert isinstance(made, Counted)
    assert made.scale.value.tolist() == ([1.0, 1.0] if pred else [2.0, 2.0])


def test_arrays_in_containers_of_objects():
    box = Box()
    box.a = [jnp.zeros(1), jnp.ones(1)]

    def add(box):
        box.a = [x + 1 for x in box.a]

    cond(True, add, lambda box: None, box)
    assert [float(x[0]) for x in box.a] == [1.0, 2.0]
    cond(False, add, lambda box: None, box)
    assert [float(x[0]) for x in box.a] == [1.0, 2.0]


def test_values_that_change_places():
    model = Open()
    model.a, model.b = dx.Param(jnp.zeros(())), dx.Param(jnp.ones(()))

    def swap(model):
        model.a.value, model.b.value = model.b.value, model.a.value
        model.note = "same in both"

    def keep(model):
        model.note = "same in both"

    cond(True, swap, keep, model)
    assert (float(model.a.value), float(model.b.value), model.note) == (1.0, 0.0, "same in both")
    cond(False, swap, keep, model)
    assert (float(model.a.value), float(model.b.value)) == (1.0, 0.0)


def test_weak_types_meet_strong_ones():
    output = cond(True, lambda: 1.0, lambda: jnp.float32(2.0))
    assert output.dtype == jnp.float32
    assert float(output) == 1.0


def test_numbers_stay_weakly_typed():
    out = dx.cond(True, lambda x: x, lambda x: x * 2, 2.0)
    assert out.weak_type
    assert (out * jnp.bfloat16(1)).dtype == jnp.bfloat16


def test_streams_of_random_numbers():
    rngs, same = dx.Rngs(0), dx.Rngs(0)
    drawn = cond(True, lambda rngs: rngs.uniform(), lambda rngs: jnp.zeros(()), rngs)
    assert drawn == same.uniform()
    assert rngs.uniform() == same.uniform()
    cond(False, lambda rngs: rngs.uniform(), lambda rngs: jnp.zeros(()), rngs)
    assert rngs.uniform() == same.uniform()


# ================================================================= captures


@each_mode
def test_what_branches_capture(mode):
    model, other = Counted(), Counted()

    def first(x):
        return observe(model, x)

    def second(x):
        return rescale(other, x) + model.scale

    def run(pred):
        return cond(pred, first, second, jnp.ones(2), **mode)

    for function in (run, dx.jit(run, **mode)):
        before = int(model.seen.value)
        model.scale.value = jnp.full((2,), 5.0)
        assert function(True).tolist() == [5.0, 5.0]
        assert int(model.seen.value) == before + 1
        other.scale.value = jnp.ones(2)
        assert function(False).tolist() == [6.0, 6.0]
        assert other.scale.value.tolist() == [2.0, 2.0]
        assert int(model.seen.value) == before + 1


@each_mode
def test_captured_and_given_is_one_thing(mode):
    model = Counted()

    def both(given):
        given.seen.value = given.seen.value + 1
        model.seen.value = model.seen.value + 10
        return given.seen.value

    assert int(cond(True, both, lambda given: model.seen.value, model, **mode)) == 11
    assert int(model.seen.value) == 11


def test_two_branches_that_capture_one_model():
    model = Counted()

    def first():
        model.scale.value = model.scale.value + 1

    def second():
        model.scale.value = model.scale.value * 10

    cond(True, first, second)
    cond(False, first, second)
    assert model.scale.value.tolist() == [20.0, 20.0]


def test_models_and_methods_are_functions_too():
    linear, other = dx.Linear(2, 2, rngs=dx.Rngs(0)), dx.Linear(2, 2, rngs=dx.Rngs(1))
    x = jnp.ones((1, 2))
    np.testing.assert_allclose(cond(True, linear, other, x), linear(x))
    np.testing.assert_allclose(dx.switch(1, [linear, other.__call__], x), other(x))


# ================================================================= inside of other transforms


def test_gradients_go_through_the_branch_that_runs():
    model = Counted(3.0)

    def loss(model, pred):
        return cond(pred, observe, lambda m, x: x * m.scale**2, model, jnp.ones(2)).sum()

    assert dx.grad(loss)(model, True)["scale"].value.tolist() == [1.0, 1.0]
    assert dx.grad(loss)(model, False)["scale"].value.tolist() == [6.0, 6.0]
    assert int(model.seen.value) == 1


def test_each_function_is_traced_once():
    traces = []

    def counted(name):
        def run(model, x):
            traces.append(name)
            return observe(model, x)

        return run

    with jax.checking_leaks():
        dx.jit(lambda m, p: cond(p, counted("a"), counted("b"), m, jnp.ones(2)))(Counted(), True)
        assert traces == ["a", "b"]
        dx.switch(0, [counted("c"), counted("d")], Counted(), jnp.ones(2))
        assert traces[2:] == ["c", "d"]


def test_refs_go_through_loops_and_branches():
    class Counter(dx.Module):
        def __init__(self):
            self.count = dx.Variable(jnp.zeros(2))

    def add(counter):
        counter.count.value = counter.count.value + 1

    counter = dx.to_refs(Counter())
    dx.cond(True, add, lambda counter: None, counter)
    dx.fori_loop(0, 3, lambda i, counter: (add(counter), counter)[1], counter)
    dx.scan(lambda counter, x: (counter, add(counter)), length=2)(counter, jnp.zeros(2))
    assert counter.count.value.tolist() == [6.0, 6.0]


# ================================================================= errors


def grow(model):
    model.new = dx.Param(jnp.ones(1))


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            lambda m: cond(True, grow, lambda m: None, m),
            "false_fun differs from true_fun in structure or type",
        ),
        (lambda m: cond(True, grow, lambda m: None, m), r"cond, operand 0\.new: "),
        (
            lambda m: cond(True, lambda m: setattr(m, "sizes", [1]), lambda m: setattr(m, "sizes", [1, 2]), m),
            r"(?s)operand 0\.sizes: false_fun differs.*expected: \[1\].*got: +\[1, 2\].*set 'sizes', which is static",
        ),
        (
            lambda m: cond(True, lambda m: setattr(m, "gain", 2.0), lambda m: setattr(m, "gain", 2), m),
            r"(?s)operand 0\.gain: .*expected: 2\.0.*got: +2\n",
        ),
        (
            lambda m: cond(True, lambda m: m, dx.clone, m),
            "false_fun differs from",
        ),
        (
            lambda m: cond(True, lambda: (1, 2), lambda: 1),
            "false_fun differs from true_fun in structure or type",
        ),
        (
            lambda m: cond(True, lambda: (1, m), lambda: (1, 2)),
            "false_fun differs from true_fun in structure or type",
        ),
        (
            lambda m: cond(True, lambda: setattr(m.seen, "value", jnp.ones(3)), lambda: None),
            r"(?s)cond, captured m\.seen: false_fun differs from.*expected: float32.*int32",
        ),
        (lambda m: cond(True, lambda: (1, m), lambda: (m, 1)), r"cond, the output\[0\]: false_fun differs from"),
        (
            lambda m: cond(True, lambda m: (m, {"x": 1.0}), lambda m: (m, {"x": jnp.ones(2)}), m),
            r"(?s)cond, the output\[1\]\.x: false_fun differs from.*expected: float32\[\]\n.*got: +float32\[2\]",
        ),
        (lambda m: cond(True, 3, lambda: 1), "cond, true_fun: this is not a function"),
    ],
)
def test_errors(run, text):
    assert_refused(run, text)


@pytest.mark.parametrize("mode", MODES[:2], ids=["tree", "no-updates"])
def test_structure_stands_where_the_mode_says_so(mode):
    model = Counted()
    with pytest.raises(TransformError, match="changes of structure do not come back"):
        cond(True, grow, grow, model, **mode)
    cond(True, grow, grow, model)
    assert model.new.value.tolist() == [1.0]


def test_a_branch_that_raises_changes_nothing():
    model = Counted()

    def fail(model, x):
        model.scale.value = model.scale.value * 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cond(False, observe, fail, model, jnp.ones(2))
    assert model.scale.value.tolist() == [1.0, 1.0]
    assert int(model.seen.value) == 0

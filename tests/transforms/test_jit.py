"""What a compiled function does to its arguments happens to the caller's."""

from __future__ import annotations

import collections
import dataclasses
import functools
import subprocess
import sys
import textwrap
import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import declax as dx
from declax.errors import MAX_DEPTH, DepthError, TransformError
from declax.transforms._engine import programs
from strategies import Box, Declared, Open, apply_edits, build, edits, objects_of, recipes, same_graph

pytestmark = pytest.mark.sampled(6)


class Counter(dx.Module):
    def __init__(self):
        self.count = dx.Variable(jnp.array(0))
        self.limit = dx.Variable(jnp.array(10))
        self.raw = jnp.zeros(2)
        self.name = "counter"

    def step(self, by=1):
        self.count.value = self.count.value + by
        return self.count.value


def traced(function, **options):
    """A jitted function that counts its traces."""

    @functools.wraps(function)
    def counting(*args, **kwargs):
        wrapped.traces += 1
        return function(*args, **kwargs)

    wrapped = dx.jit(counting, **options)
    wrapped.traces = 0
    return wrapped


# ================================================================= against the same edits made eagerly


@settings(max_examples=40)
@given(recipes(), edits())
def test_edits_inside_are_edits_outside(recipe, todo):
    inside, outside = build(recipe), build(recipe)
    known = list(zip(objects_of(inside), objects_of(outside), strict=True))
    dx.jit(lambda m: apply_edits(m, todo))(inside)
    apply_edits(outside, todo)
    assert same_graph(inside, outside, known)


@given(recipes(), edits(), edits())
def test_two_calls_in_a_row_and_what_stands_between(recipe, first, second):
    inside, outside = build(recipe), build(recipe)
    known = list(zip(objects_of(inside), objects_of(outside), strict=True))
    step = dx.jit(lambda m: apply_edits(m, first))
    for _ in range(2):
        step(inside)
        apply_edits(outside, first)
        apply_edits(inside, second)
        apply_edits(outside, second)
        assert same_graph(inside, outside, known)


@given(recipes(max_nodes=3), recipes(max_nodes=3), edits())
def test_two_models_that_share_and_are_returned(one, other, todo):
    def step(m, n):
        m.shared = dx.data(n)
        apply_edits(n, todo)
        apply_edits(m, todo)
        return {"m": m, "parts": [n, objects_of(m)[-1]]}

    models = [build(one), build(other)]
    twins = [build(one), build(other)]
    known = [
        pair for a, b in zip(models, twins, strict=True) for pair in zip(objects_of(a), objects_of(b), strict=True)
    ]
    assert same_graph(dx.jit(step)(*models), step(*twins), known)
    assert same_graph(models, twins, known)


@settings(max_examples=10)
@given(
    recipes(max_nodes=3), st.lists(st.sampled_from([("scale", 0, 0), ("scale", 1, 0), ("scale_raw", 0, 0)]), max_size=3)
)
def test_results_are_those_of_explicit_state(recipe, todo):
    def compute(m, x):
        apply_edits(m, todo)
        return sum((jnp.sum(jnp.asarray(leaf)) for leaf in dx.state(m).leaves), start=x)

    def explicit(graphdef, state, x):
        m = dx.merge(graphdef, state)
        y = compute(m, x)
        return y, dx.state(m)

    model, x = build(recipe), jnp.float32(1)
    graphdef, state = dx.split(model)
    expected, after = jax.jit(functools.partial(explicit, graphdef))(state, x)
    got = dx.jit(compute)(model, x)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    for a, b in zip(dx.state(model).leaves, after.leaves, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)


# ================================================================= in place


def test_variables_and_raw_leaves_are_set_in_place():
    model = Counter()
    variable = model.count

    @dx.jit
    def step(m, x):
        m.count.value = m.count.value + 1
        m.raw = m.raw + x
        return m.limit.value

    assert int(step(model, jnp.ones(2))) == 10
    step(model, jnp.ones(2))
    assert model.count is variable
    assert int(variable.value) == 2
    assert model.raw.tolist() == [2.0, 2.0]


def test_what_is_not_set_keeps_its_value():
    model = Counter()
    limit, raw = model.limit.value, model.raw
    dx.jit(lambda m: m.step())(model)
    assert model.limit.value is limit
    assert model.raw is raw


def test_sharing_inside_and_between_arguments():
    model = Open()
    model.a, model.part = dx.Param(jnp.zeros(2)), Open()
    model.b, model.part.c = model.a, model.a

    @dx.jit
    def step(m, part, again):
        assert m.a is m.b is part.c
        assert m is again["m"]
        assert m.part is part
        part.c.value = m.a.value + 1
        return m.b.value

    assert step(model, model.part, {"m": model}).tolist() == [1.0, 1.0]
    assert model.a is model.b is model.part.c
    assert model.a.value.tolist() == [1.0, 1.0]


def test_variables_that_swap_their_values():
    model = Open()
    model.a, model.b = dx.Param(jnp.zeros(2)), dx.Param(jnp.ones(2))

    @dx.jit
    def swap(m):
        m.a.value, m.b.value = m.b.value, m.a.value

    swap(model)
    assert (model.a.value.tolist(), model.b.value.tolist()) == ([1.0, 1.0], [0.0, 0.0])


def test_variables_with_trees():
    model = Open()
    model.seen = dx.Intermediate((jnp.ones(2),))

    @dx.jit
    def sow(m):
        m.seen.value = (*m.seen.value, jnp.zeros(1))

    sow(model)
    sow(model)
    assert [x.shape for x in model.seen.value] == [(2,), (1,), (1,)]


def test_variables_as_arguments_and_results():
    variable = dx.Param(jnp.ones(2), note=1)

    @dx.jit
    def double(v):
        v.value = v.value * 2
        return v

    assert double(variable) is variable
    assert variable.value.tolist() == [2.0, 2.0]
    made = dx.jit(lambda v: dx.BatchStat(v.value + 1, note=2))(variable)
    assert isinstance(made, dx.BatchStat)
    assert made.note == 2
    made.value = made.value + 1


def test_numbers_that_are_data():
    model = Open()
    model.rate = dx.data(0.5)
    step = traced(lambda m, x: x * m.rate)
    assert step(model, jnp.float32(2)) == 1
    model.rate = 2.0
    assert step(model, jnp.float32(2)) == 4
    assert step.traces == 1
    assert model.rate == 2.0

    @dx.jit
    def halve(m):
        m.rate = m.rate / 2

    halve(model)
    assert float(model.rate) == 1
    assert isinstance(model.rate, jax.Array)


def test_objects_with_plain_containers():
    box = Box()
    box.a = [jnp.array(1), jnp.array(2)]
    box.b = "hello"
    box.b = jnp.array(3)

    @dx.jit
    def double(box):
        box.a = [x * 2 for x in box.a]
        box.b *= 2

    double(box)
    double(box)
    assert [int(x) for x in box.a] == [4, 8]
    assert int(box.b) == 12


def test_containers_that_do_not_change_are_the_same():
    model = Open()
    model.plain, model.sizes = dx.data([jnp.ones(1), {"x": dx.Param(jnp.ones(1))}]), [1, 2]
    plain, sizes, inner = model.plain, model.sizes, model.plain[1]
    dx.jit(lambda m: setattr(m, "new", jnp.ones(1)))(model)
    assert model.plain is plain
    assert model.plain[1] is inner
    assert model.sizes is sizes
    dx.jit(lambda m: setattr(m.plain[1]["x"], "value", jnp.zeros(1)))(model)
    assert model.plain is plain
    assert plain[1]["x"].value.tolist() == [0.0]


def test_leaves_inside_of_containers():
    model = Open()
    model.plain = dx.data([jnp.ones(1), (jnp.ones(2), {"x": jnp.ones(3)})])

    @dx.jit
    def step(m):
        m.plain[0] = m.plain[0] * 2
        m.plain[1][1]["x"] = m.plain[1][1]["x"] * 3

    step(model)
    step(model)
    assert model.plain[0].tolist() == [4.0]
    assert model.plain[1][0].tolist() == [1.0, 1.0]
    assert model.plain[1][1]["x"].tolist() == [9.0] * 3


def test_random_streams():
    rngs, twin = dx.Rngs(0, dropout=1), dx.Rngs(0, dropout=1)
    draw = traced(lambda r: (r.normal((2,)), r.dropout()))
    for _ in range(3):
        noise, key = draw(rngs)
        np.testing.assert_allclose(noise, twin.normal((2,)), rtol=1e-6)
        assert jax.random.key_data(key).tolist() == jax.random.key_data(twin.dropout()).tolist()
    assert draw.traces == 1
    assert int(rngs.default.count) == 3


# ================================================================= structure


def test_new_and_deleted_attributes():
    model = Counter()

    @dx.jit
    def change(m):
        del m.raw
        m.new = dx.Param(m.count.value * 2)
        m.fresh = jnp.ones(1)
        m.text = "static"
        m.nothing = None

    change_twice = model.count
    change(model)
    assert not hasattr(model, "raw")
    assert int(model.new) == 0
    assert model.fresh.tolist() == [1.0]
    assert (model.text, model.nothing) == ("static", None)
    assert model.count is change_twice
    model.new.value = jnp.ones(1)
    model.more = jnp.ones(1)


def test_new_objects_belong_to_the_caller():
    model = Open()

    @dx.jit
    def grow(m):
        m.part = Open()
        m.part.kernel = dx.Param(jnp.ones(2))
        m.part.box = Box()
        m.part.declared = Declared(kernel=m.part.kernel)
        m.elements = dx.List([Open()])

    grow(model)
    model.part.new = 1
    model.part.kernel.value = jnp.zeros(2)
    model.part.kernel.set_metadata(note=1)
    model.part.box.new = 1
    model.part.declared.width = 7
    model.elements.append(1)
    model.elements[0].new = 3
    assert model.part.declared.kernel is model.part.kernel
    twin = Open()
    grow(twin)
    assert twin.part is not model.part


def test_sown_values_stay_and_pop():
    class Net(dx.Module):
        def __init__(self):
            self.linear = dx.Linear(2, 2, rngs=dx.Rngs(0))

        def __call__(self, x):
            y = self.linear(x)
            self.sow(dx.Intermediate, "seen", y)
            return y

    net = Net()
    step = traced(lambda m, x: m(x))
    y = step(net, jnp.ones((1, 2)))
    np.testing.assert_allclose(dx.pop(net, dx.Intermediate)["seen"].value[0], y)
    step(net, jnp.ones((1, 2)))
    dx.pop(net, dx.Intermediate)
    assert step.traces == 1


def test_list_edits():
    model = Open()
    model.layers = dx.List([Open() for _ in range(3)])
    layers, first, last = model.layers, model.layers[0], model.layers[2]

    @dx.jit
    def edit(m):
        m.layers.append(dx.Param(jnp.ones(1)))
        del m.layers[1]
        m.layers.insert(0, "text")
        m.layers[1].mark = 1

    edit(model)
    assert model.layers is layers
    assert len(layers) == 4
    assert layers[0] == "text"
    assert layers[1] is first
    assert layers[2] is last
    assert first.mark == 1
    assert isinstance(layers[3], dx.Param)
    edit_dict = Open()
    edit_dict.entries = dx.Dict(a=jnp.ones(1), b=2)

    @dx.jit
    def change(m):
        del m.entries["a"]
        m.entries["c"] = dx.Param(jnp.ones(1))
        m.entries.b = 3

    change(edit_dict)
    assert set(edit_dict.entries) == {"b", "c"}
    assert edit_dict.entries.b == 3


def test_cycles_and_swapped_references():
    model = Open()
    model.a, model.b = Open(), Open()
    model.a.kernel = dx.Param(jnp.ones(1))
    a, b = model.a, model.b

    @dx.jit
    def swap(m):
        m.a, m.b = m.b, m.a
        m.a.up = m
        m.b.peer = m.a

    swap(model)
    assert model.a is b
    assert model.b is a
    assert b.up is model
    assert a.peer is b
    swap(model)
    assert model.a is a
    assert a.up is model
    assert a.peer is b
    assert b.peer is a


def test_kinds_and_metadata():
    model = Open()
    model.a, model.b = dx.Param(jnp.ones(1)), dx.Param(jnp.ones(1), note=1)
    b = model.b

    @dx.jit
    def change(m):
        m.a = dx.BatchStat(m.a.value)
        m.b.set_metadata(note=2)
        m.b.value = m.b.value + 1

    change(model)
    assert isinstance(model.a, dx.BatchStat)
    assert model.b is b
    assert b.note == 2
    assert b.value.tolist() == [2.0]


def test_static_containers_changed_inside_and_outside():
    model = Open()
    model.sizes, model.table = [1, 2], {"a": [1]}

    @dx.jit
    def grow(m):
        m.sizes.append(len(m.sizes))
        m.table["a"].append(9)
        return jnp.array(sum(m.sizes))

    assert int(grow(model)) == 5
    assert model.sizes == [1, 2, 2]
    model.sizes.append(100)
    assert int(grow(model)) == 109
    assert model.table == {"a": [1, 9, 9]}


def test_an_object_cut_off_inside_keeps_what_it_was():
    model = Open()
    model.part = Open()
    model.part.kernel = dx.Param(jnp.ones(1))
    part = model.part
    dx.jit(lambda m: delattr(m, "part"))(model)
    assert not hasattr(model, "part")
    assert part.kernel.value.tolist() == [1.0]


# ================================================================= results


def test_returned_objects_are_the_callers():
    model = Counter()
    model.part = Open()

    @dx.jit
    def step(m, n):
        m.step()
        return m, {"part": m.part, "count": [m.count, m.count.value]}, n, 3

    first, parts, second, three = step(model, model)
    assert first is second is model
    assert parts["part"] is model.part
    assert parts["count"][0] is model.count
    assert int(parts["count"][1]) == 1
    assert int(three) == 3


def test_new_models_are_returned_each_time_anew():
    @dx.jit
    def make(x):
        model = Open()
        model.kernel = dx.Param(x)
        model.sizes = [1]
        return model, model.kernel

    (a, kernel), (b, _) = make(jnp.ones(1)), make(jnp.zeros(1))
    assert a is not b
    assert a.kernel is kernel
    assert a.kernel.value.tolist() == [1.0]
    a.sizes.append(2)
    a.new = 1
    assert b.sizes == [1]
    assert not hasattr(b, "new")
    assert make(jnp.ones(1))[0].sizes == [1]


def test_a_method_and_a_decorator_with_options():
    class Net(dx.Module):
        def __init__(self):
            self.count = dx.Variable(jnp.array(0))

        @dx.jit
        def step(self, by):
            """Steps."""
            self.count.value = self.count.value + by
            return self

        @dx.jit(static_argnames="name")
        def get(self, name):
            return getattr(self, name).value

    net = Net()
    assert net.step(jnp.array(2)) is net
    assert Net.step(net, jnp.array(3)) is net
    assert int(net.get("count")) == 5
    assert int(net.get(name="count")) == 5
    assert Net.step.__doc__ == "Steps."
    assert Net.step.__name__ == "step"
    assert "jit" in repr(Net.step)


def test_states_and_definitions_are_arguments():
    model = Counter()
    graphdef, state = dx.split(model)

    @dx.jit
    def step(graphdef, state):
        inner = dx.merge(graphdef, state)
        inner.step()
        return dx.split(inner)

    again, after = step(graphdef, state)
    assert again is graphdef
    assert int(after["count"].value) == 1
    assert int(state["count"].value) == 0


# ================================================================= arguments


def test_kwargs_defaults_and_starred_arguments():
    @dx.jit
    def f(m, x=1.0, *rest, y=2.0, **more):
        m.step(jnp.array(len(rest) + len(more)))
        return x + y + sum(rest) + sum(more.values())

    model = Counter()
    assert f(model) == 3
    assert f(model, 2.0) == 4
    assert f(model, x=2.0, y=1.0) == 3
    assert f(model, 1.0, 2.0, 3.0, y=0.0, z=1.0) == 7
    assert int(model.count.value) == 3
    assert f(m=model, x=5.0) == 7
    with pytest.raises(TypeError):
        f()


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1},
        {"static_argnums": (1,)},
        {"static_argnums": -2},
        {"static_argnames": "name"},
        {"static_argnames": ["name"]},
    ],
)
def test_static_arguments(options):
    def f(m, name, x):
        assert isinstance(name, str)
        return getattr(m, name).value * x

    g = traced(f, **options)
    model = Counter()
    assert int(g(model, "limit", 2)) == 20
    assert int(g(model, name="limit", x=2)) == 20
    assert int(g(model, "count", 2)) == 0
    assert int(g(model, "limit", 3)) == 30
    assert g.traces <= 3


def test_static_defaults():
    @dx.jit(static_argnums=(0, 2))
    def f(n, x, m=3):
        assert isinstance(n, int)
        assert isinstance(m, int)
        return x * n + m

    assert int(f(2, 5)) == 13
    assert int(f(2, 5, 4)) == 14
    assert int(f(2, 5, m=4)) == 14
    assert int(f(n=2, x=5, m=4)) == 14


def test_static_arguments_of_equal_values_and_other_types():
    f = dx.jit(jnp.asarray, static_argnums=0)
    assert [f(n).dtype.kind for n in (1, True, 1.0)] == ["i", "b", "f"]


def test_static_attributes_of_equal_values_and_other_types():
    model = Open()
    f = dx.jit(lambda m: jnp.asarray(m.n))
    kinds = []
    for n in (1, True, 1.0):
        model.n = n
        kinds.append(f(model).dtype.kind)
    assert kinds == ["i", "b", "f"]


def test_static_arguments_without_a_hash():
    f = dx.jit(lambda sizes, x: x, static_argnums=0)
    with pytest.raises(TransformError, match="a static argument is not hashable"):
        f([1, 2], 3)
    with pytest.raises(TransformError, match="a static argument is not hashable"):
        f(sizes=[1, 2], x=3)


def test_numbers_from_the_end_of_any_number_of_arguments():
    def scaled(x, *rest):
        return x * len(rest[-1])

    f = dx.jit(scaled, static_argnums=-1)
    assert float(f(2.0, 1.0, "abc")) == 6.0
    assert float(f(2.0, "ab")) == 4.0
    assert float(dx.remat(scaled, static_argnums=-1)(2.0, 1.0, "abc")) == 6.0
    assert float(f(3.0, 1.0, "abc")) == 9.0
    assert f.num_traces == 2
    assert float(dx.jit(lambda *given: given[0], static_argnums=-2)(1.0)) == 1.0  # as in JAX, it selects none
    arrays = [jnp.full(3, number) for number in (1.0, 2.0, 3.0)]
    for function in (lambda x, *rest: rest[-1] + 1, lambda *given: given[-1] + 1):
        last = jnp.full(3, 4.0)
        dx.jit(function, donate_argnums=-1)(*arrays, last)
        assert last.is_deleted()
        assert not any(array.is_deleted() for array in arrays)
    model = dx.Param(jnp.ones(3))
    dx.jit(lambda x, *rest: rest[0] + rest[1], donate_argnums=(-2,))(model, arrays[0], arrays[1])
    assert [array.is_deleted() for array in arrays] == [True, False, False]
    assert not model.value.is_deleted()


def test_options_that_name_nothing():
    with pytest.raises(TransformError, match="the function has no parameter 'nmae'"):
        dx.jit(lambda name: name, static_argnames="nmae")
    with pytest.raises(TransformError, match="the function has no positional parameter 3"):
        dx.jit(lambda name: name, static_argnums=3)
    with pytest.raises(TransformError, match="the function has no positional parameter -2"):
        dx.jit(lambda name: name, donate_argnums=-2)
    with pytest.raises(TransformError, match="jit, fun: this is not a function"):
        dx.jit(3)


@pytest.mark.parametrize("static", [{"static_argnums": 0}, {"static_argnames": "n"}])
@pytest.mark.parametrize("donated", [{"donate_argnums": (1, 0)}, {"donate_argnames": ["n"]}])
def test_what_is_static_cannot_be_donated(static, donated):
    with pytest.raises(ValueError, match="intersect"):
        jax.jit(lambda n, x: x, **static, **donated)
    with pytest.raises(TransformError, match="argument n: it is static, and donated too"):
        dx.jit(lambda n, x: x, **static, **donated)
    with pytest.raises(TransformError, match="argument 0: it is static, and donated too"):
        dx.pmap(lambda *given: given, static_broadcasted_argnums=0, donate_argnums=0)


def test_functions_without_a_signature_are_taken():
    class Odd:
        __signature__ = "none"

        def __call__(self, n, x):
            return x * n

    assert int(dx.jit(Odd(), static_argnums=0)(3, jnp.array(2))) == 6
    assert dx.jit(functools.partial(jnp.add, 1))(2) == 3


def test_shapes_may_vary():
    f = traced(lambda m, x: m.raw.sum().astype(jnp.float32) + x.sum())
    model = Counter()
    for size in (1, 2, 1, 3, 2):
        f(model, jnp.ones(size))
    assert f.traces == 3
    model.raw = jnp.zeros((5, 5))
    f(model, jnp.ones(1))
    assert f.traces == 4
    model.raw = jnp.zeros((5, 5), jnp.int32)
    f(model, jnp.ones(1))
    assert f.traces == 5


def test_what_a_function_sets_may_depend_on_shapes():
    @dx.jit
    def f(m, x):
        if x.shape[0] == 1:
            m.count.value = m.count.value + 1
        elif x.shape[0] == 2:
            m.raw = m.raw + 1
        elif x.shape[0] == 3:
            m.grown = jnp.ones(1)

    model = Counter()
    for size in (1, 2, 1, 2, 3, 1):
        f(model, jnp.ones(size))
    assert int(model.count.value) == 3
    assert model.raw.tolist() == [2.0, 2.0]
    assert model.grown.tolist() == [1.0]


# ================================================================= traces


def test_no_retrace_in_steady_state():
    model, rngs = dx.Linear(2, 2, rngs=dx.Rngs(0)), dx.Rngs(1)

    def f(m, r, x):
        m.kernel.value = m.kernel.value + r.normal((2, 2))
        return m(x)

    step = traced(f)
    for i in range(10):
        step(model, rngs, jnp.full((1, 2), float(i)))
    assert step.traces == 1
    step(dx.clone(model), dx.Rngs(2), jnp.full((1, 2), 1.0))
    assert step.traces == 1


def test_returning_the_model_does_not_retrace():
    model = Counter()

    def f(m):
        m.step()
        return m

    step = traced(f)
    for _ in range(5):
        model = step(model)
    assert step.traces == 1


def test_train_and_eval_are_traced_once_each():
    class Net(dx.Module):
        def __init__(self):
            self.norm = dx.BatchNorm(2, rngs=dx.Rngs(0))
            self.drop = dx.Dropout(0.5, rngs=dx.Rngs(1))

    net = Net()
    step = traced(lambda m, x: m.drop(m.norm(x)))
    x = jnp.arange(8.0).reshape(4, 2)
    outputs = []
    for _ in range(3):
        net.train()
        step(net, x)
        net.eval()
        outputs.append(step(net, x))
    assert step.traces == 2
    np.testing.assert_allclose(outputs[-1], net.drop(net.norm(x)), rtol=1e-5)
    assert float(net.norm.mean.value.sum()) != 0


def test_an_unrelated_change_does_not_retrace():
    model, other = Counter(), Counter()
    step = traced(lambda m: m.step())
    step(model)
    step(other)
    other.new = 1
    step(model)
    assert step.traces == 1
    step(other)
    assert step.traces == 2
    del other.new
    step(other)
    assert step.traces == 2


def test_a_lambda_as_static_is_one_trace():
    model = Open()
    model.f = jnp.tanh
    step = traced(lambda m, x: m.f(x))
    step(model, 1.0)
    step(dx.clone(model), 1.0)
    assert step.traces == 1


# ================================================================= donation


def test_donated_models_live_on():
    model = Counter()
    count, limit, raw = model.count.value, model.limit.value, model.raw
    step = dx.jit(lambda m: m.step(), donate_argnums=0)
    for _ in range(3):
        step(model)
    assert int(model.count.value) == 3
    assert model.limit.value is limit
    assert model.raw is raw
    assert not limit.is_deleted()
    assert not raw.is_deleted()
    assert count.is_deleted()


def test_donation_by_name_and_of_plain_arguments():
    @dx.jit(donate_argnames=("m", "x"))
    def step(m, x, y):
        m.raw = m.raw + x
        return x + y

    model, x, y = Counter(), jnp.ones(2), jnp.ones(2)
    raw = model.raw
    assert step(model, x, y).tolist() == [2.0, 2.0]
    assert raw.is_deleted()
    assert x.is_deleted()
    assert not y.is_deleted()
    step(x=jnp.ones(2), y=y, m=model)
    assert model.raw.tolist() == [2.0, 2.0]


def test_donation_where_shapes_decide_what_is_set():
    @dx.jit(donate_argnums=0)
    def step(m, x):
        if x.shape[0] == 1:
            m.count.value = m.count.value + 1
        else:
            m.limit.value = m.limit.value + 1

    model = Counter()
    for size in (1, 2, 1, 2):
        step(model, jnp.ones(size))
    assert int(model.count.value) == 2
    assert int(model.limit.value) == 12


def test_donation_beside_static_arguments():
    @dx.jit(static_argnums=0, donate_argnums=1)
    def step(n, m, x):
        m.raw = m.raw + x * n
        return x

    model, x = Counter(), jnp.ones(2)
    raw = model.raw
    step(2, model, x)
    assert not x.is_deleted()
    assert raw.is_deleted()
    assert model.raw.tolist() == [2.0, 2.0]


def test_donation_of_what_is_shared_with_another_argument():
    @dx.jit(donate_argnums=1)
    def step(m, n):
        n.count.value = n.count.value + m.count.value + 1

    first, second = Counter(), Counter()
    second.count = first.count
    step(first, second)
    assert int(first.count.value) == 1


def test_one_buffer_cannot_be_donated_twice():
    model, target = dx.Dict(w=dx.Param(jnp.ones(2))), dx.Dict(w=dx.Param(jnp.zeros(2)))
    dx.update(target, dx.state(model), copy=False)  # which shares the arrays

    @dx.jit(donate_argnums=(0, 1))
    def move(model, target):
        model["w"][...] = model["w"][...] + 1
        target["w"][...] = target["w"][...] + 1

    with pytest.raises(dx.errors.TransformError, match=r"this array is also at model\.w, and a buffer can be"):
        move(model, target)
    dx.update(target, dx.state(model))
    move(model, target)
    same = dx.Dict(a=dx.Param(jnp.ones(2)))
    same["b"] = dx.Param(same["a"].value)

    @dx.jit(donate_argnums=0)
    def both(pair):
        pair["a"][...] = pair["a"][...] + 1
        pair["b"][...] = pair["b"][...] + 1

    variable = dx.Param(jnp.ones(2))
    with pytest.raises(dx.errors.TransformError, match=r"x: this array is also at v, and a buffer"):
        dx.jit(lambda v, x: setattr(v, "value", v.value + x), donate_argnums=0)(variable, variable.value)
    assert not variable.value.is_deleted()
    with pytest.raises(dx.errors.TransformError, match="this array is also at"):
        both(same)
    assert not same["a"].value.is_deleted()


def test_donation_with_a_new_structure():
    @dx.jit(donate_argnums=0)
    def step(m):
        m.raw = m.raw + 1
        m.kept = m.limit
        m.moved = m.count.value
        return m

    model = Counter()
    limit = model.limit.value
    assert step(model) is model
    assert int(model.limit.value) == 10
    assert int(model.moved) == 0
    assert int(model.count.value) == 0
    assert not limit.is_deleted()
    assert model.kept is model.limit


def test_a_variable_cut_off_inside_is_not_donated():
    @dx.jit(donate_argnums=0)
    def step(m):
        m.raw = m.raw + m.cut.value
        del m.cut

    model = Counter()
    model.cut = cut = dx.Param(jnp.ones(2))
    step(model)
    assert cut.value.tolist() == [1.0, 1.0]


def test_a_donated_call_that_fails_leaves_the_model_alive():
    @dx.jit(donate_argnums=0)
    def step(m, fail):
        m.step()
        if fail.shape:
            raise RuntimeError("inside")

    model = Counter()
    step(model, jnp.array(0))
    with pytest.raises(RuntimeError, match="inside"):
        step(model, jnp.zeros(1))
    assert int(model.count.value) == 1
    step(model, jnp.array(0))
    assert int(model.count.value) == 2


# ================================================================= exceptions

MUTATIONS = {
    "value": lambda m: setattr(m.part.kernel, "value", m.part.kernel.value + 1),
    "raw": lambda m: setattr(m, "raw", m.raw + 1),
    "new": lambda m: setattr(m, "new", jnp.ones(1)),
    "delete": lambda m: delattr(m, "raw"),
    "static": lambda m: setattr(m, "dim", 4),
    "static list": lambda m: m.sizes.append(3),
    "plain": lambda m: m.plain.append(jnp.ones(1)),
    "plain set": lambda m: m.plain.__setitem__(0, jnp.ones(1)),
    "list": lambda m: m.elements.append(Open()),
    "reference": lambda m: setattr(m.part, "up", m),
    "metadata": lambda m: m.part.kernel.set_metadata(note=1),
    "kind": lambda m: setattr(m.part, "kernel", dx.Cache(m.part.kernel.value)),
    "object": lambda m: m.box.held.append(jnp.ones(1)),
    "pop": lambda m: dx.pop(m, dx.Param),
    "update": lambda m: dx.update(m, jax.tree.map(lambda x: x + 1, dx.state(m, dx.Param))),
    "mode": lambda m: m.eval(),
}


def model_of():
    model = Open()
    model.part = Open()
    model.part.kernel = dx.Param(jnp.ones(2))
    model.raw, model.dim, model.sizes = jnp.zeros(2), 3, [1]
    model.plain, model.elements = dx.data([jnp.zeros(1)]), dx.List([Open()])
    model.box = Box()
    model.box.held = [jnp.zeros(1)]
    model.drop = dx.Dropout(0.5, rngs=dx.Rngs(0))
    return model


@pytest.mark.parametrize("name", MUTATIONS)
def test_an_exception_leaves_all_arguments_as_they_were(name):
    def fail(m):
        MUTATIONS[name](m)
        raise RuntimeError("inside")

    model, twin = model_of(), model_of()
    known = list(zip(objects_of(model), objects_of(twin), strict=True))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="inside"):
            dx.jit(fail)(model)
        assert same_graph(model, twin, known)
    dx.jit(MUTATIONS[name])(model)
    MUTATIONS[name](twin)
    assert same_graph(model, twin, known)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_result_that_jax_refuses_leaves_all_arguments_as_they_were(name):
    def refuse(m):
        MUTATIONS[name](m)
        return "text"

    model = model_of()
    with pytest.raises(TransformError, match="refuse, the result: this is not an array"):
        dx.jit(refuse)(model)
    assert same_graph(model, model_of())


def test_a_captured_model_is_changed():
    model = model_of()

    @dx.jit
    def f(x):
        model.raw = x
        model.part.kernel.value = x

    f(jnp.full(2, 7.0))
    assert model.raw.tolist() == model.part.kernel.value.tolist() == [7.0, 7.0]


# ================================================================= nesting


def test_jit_inside_of_jit():
    inner = dx.jit(lambda m, x: MUTATIONS["new"](m) or MUTATIONS["value"](m) or m.part.kernel.value + x)

    @dx.jit
    def outer(m, x):
        y = inner(m, x)
        assert m.new.shape == (1,)
        del m.new
        return inner(m, y)

    model, twin = model_of(), model_of()
    kernel = model.part.kernel
    outer(model, jnp.ones(2))
    for _ in range(2):
        MUTATIONS["value"](twin)
    MUTATIONS["new"](twin)
    assert same_graph(model, twin)
    assert model.part.kernel is kernel


@pytest.mark.parametrize(
    "name", ["value", "raw", "new", "delete", "static", "plain", "plain set", "list", "metadata", "object"]
)
def test_an_outer_model_cannot_be_changed_from_inside_of_a_raw_trace(name):
    model = model_of()
    change = dx.jit(MUTATIONS[name])

    @jax.jit
    def raw(x):
        change(model)
        return x

    with pytest.raises(dx.TraceContextError, match=r"(another|a different) trace level"):
        raw(jnp.ones(1))
    assert same_graph(model, model_of())


def test_a_raw_leaf_of_an_outer_model_does_not_get_a_tracer():
    model = Open()
    model.raw = jnp.zeros(())
    add = dx.jit(lambda m, x: setattr(m, "raw", m.raw + x))

    @jax.jit
    def raw(x):
        add(model, x)
        return x

    with pytest.raises(dx.TraceContextError, match="different trace level"):
        raw(jnp.ones(()))
    assert not isinstance(model.raw, jax.core.Tracer)


def test_a_model_made_inside_of_a_raw_trace():
    @jax.jit
    def raw(x):
        model = Open()
        model.kernel = dx.Param(x)
        model.raw = x
        dx.jit(lambda m: [setattr(m.kernel, "value", m.kernel.value * 2), setattr(m, "raw", m.raw * 3)])(model)
        return model.kernel.value, model.raw

    a, b = raw(jnp.ones(2))
    assert (a.tolist(), b.tolist()) == ([2.0, 2.0], [3.0, 3.0])


def test_lower():
    model = Counter()
    lowered = dx.jit(lambda m, x: m.step(x)).lower(model, jnp.array(3))
    assert "add" in lowered.as_text()
    assert int(model.count.value) == 0


@pytest.mark.slow
def test_no_tracer_leaks():
    model = model_of()
    with jax.checking_leaks():
        for name in ("value", "raw", "new", "static list", "plain", "list", "reference", "metadata", "object"):
            dx.jit(MUTATIONS[name])(model)
        dx.jit(lambda m: (m, m.part, m.part.kernel.value))(model)
        dx.jit(dx.Param)(jnp.ones(1))
        outer = dx.jit(dx.jit(MUTATIONS["value"]))
        outer(model)
        dx.jit(dx.jit(MUTATIONS["delete"]))(model)


# ================================================================= threads


@pytest.mark.parametrize("kind", ["module", "object"])
def test_eight_threads_read_one_model(kind):
    faults = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            model = dx.Linear(4, 4, rngs=dx.Rngs(0))
            if kind == "object":
                inner, model = model, Box()
                model.parts = [inner]
            forward = dx.jit(lambda m, x: m(x) if isinstance(m, dx.Linear) else m.parts[0](x))
            x = jnp.ones((2, 4))
            expected = model(x) if kind == "module" else model.parts[0](x)
            barrier = threading.Barrier(8)

            def work(model=model, forward=forward, expected=expected, x=x, barrier=barrier):
                try:
                    barrier.wait()
                    for _ in range(10):
                        np.testing.assert_allclose(forward(model, x), expected, rtol=1e-6)
                except BaseException as error:  # noqa: BLE001  # whatever it is, the test shows it
                    faults.append(error)

            threads = [threading.Thread(target=work) for _ in range(8)]
            [t.start() for t in threads]
            [t.join() for t in threads]
    finally:
        sys.setswitchinterval(interval)
    assert faults == []


def test_eight_threads_with_models_of_their_own():
    step = dx.jit(lambda m: MUTATIONS["value"](m) or MUTATIONS["new"](m))
    models = [model_of() for _ in range(8)]
    faults = []

    def work(model):
        try:
            for _ in range(10):
                step(model)
                del model.new
        except BaseException as error:  # noqa: BLE001  # as above
            faults.append(error)

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert faults == []
    assert [m.part.kernel.value.tolist() for m in models] == [[11.0, 11.0]] * 8


# ================================================================= depth

DEEP = """
import jax, jax.numpy as jnp
import declax as dx

class Node(dx.Module):
    pass

def chain(depth, wrap):
    root = node = Node()
    for _ in range(depth):
        inner = Node()
        node.next = wrap(inner)
        node = inner
    node.kernel = dx.Param(jnp.ones(1))
    return root, node

def deep_list(depth):
    value = [jnp.ones(1)]
    for _ in range(depth):
        value = [value]
    return value

for depth in (500, 3000):
    for wrap in (lambda n: n, lambda n: dx.data([n])):
        root, last = chain(depth, wrap)

        def step(m, last=last):
            while hasattr(m, "next"):
                m = m.next if not isinstance(m.next, list) else m.next[0]
            m.kernel.value = m.kernel.value + 1
            m.new = jnp.ones(1)

        try:
            dx.jit(step)(root)
        except dx.DeclaxError as error:
            print("error", type(error).__name__)
        else:
            assert last.kernel.value.tolist() == [2.0]
            assert last.new.tolist() == [1.0]
    try:
        dx.jit(lambda x: 1)(deep_list(depth))
    except dx.DeclaxError as error:
        print("error", type(error).__name__)
    assert int(jax.jit(lambda x: x + 1)(1)) == 2
    assert int(dx.jit(lambda m: m.kernel.value[0])(last)) == 2
    while root is not None:  # freed link by link, since Python's own deletion recurses
        following = getattr(root, "next", None)
        following = following[0] if isinstance(following, list) else following
        root = following
print("done")
"""


def test_deep_models_give_a_result_or_an_error_of_declax():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DEEP)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("done\n")


def test_containers_of_arguments_have_a_limit():
    deep = [jnp.ones(1)]
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(DepthError, match="a container is nested more than"):
        dx.jit(lambda x: 1)(deep)
    assert int(dx.jit(lambda x: x + 1)(1)) == 2


def test_threads_that_share_an_rngs_never_draw_one_key_twice():
    rngs = dx.Rngs(0)
    draw = dx.jit(lambda r: jax.random.key_data(r()))
    draw(rngs)
    keys: list[tuple[int, ...]] = []

    def work():
        keys.extend(tuple(draw(rngs).tolist()) for _ in range(40))

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(set(keys)) == 320


def test_threads_that_train_one_model_lose_no_step():
    model = Counter()
    step = dx.jit(lambda m: m.step())
    step(model)
    threads = [threading.Thread(target=lambda: [step(model) for _ in range(50)]) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert int(model.count.value) == 201


def test_a_deep_argument_is_named_with_the_path():
    deep = [jnp.ones(1)]
    for _ in range(3000):
        deep = [deep]
    keys = r"\[0\]\[0\].* \.\.\. 384 more keys \.\.\. .*\[0\]"
    with pytest.raises(DepthError, match=rf"argument 1{keys}: a container is nested more than {MAX_DEPTH} levels"):
        dx.jit(lambda x, y: 1)(1, deep)
    with pytest.raises(DepthError, match=r"argument other\['k'\]\[0\]"):
        dx.jit(lambda x, *, other: 1)(1, other={"k": deep})


def test_an_argument_that_holds_itself():
    endless = []
    endless.append(endless)
    with pytest.raises(DepthError, match="the arguments, one of which holds itself"):
        dx.jit(lambda x: 1)(endless)


class Settings(NamedTuple):
    x: object


@dataclasses.dataclass(frozen=True)
class FrozenSettings:
    x: object


@pytest.mark.parametrize("make", [Settings, FrozenSettings, lambda x: (Settings(x),), lambda x: [FrozenSettings(x)]])
def test_static_records_of_equal_numbers_are_traced_apart(make):
    model, seen = dx.Module(), []
    model.scale = dx.Param(jnp.ones(2))

    @dx.jit
    def look(m):
        seen.append(repr(m.settings))
        return m.scale.value

    for x in (1, True, 1.0, 1, True):
        model.settings = make(x)
        look(model)
    assert seen == [repr(make(x)) for x in (1, True, 1.0)]


@dataclasses.dataclass
class Options:
    scale: object = 2
    sizes: object = (1, 2)


@dataclasses.dataclass(eq=False, slots=True)
class SlottedOptions:
    scale: object = 2
    sizes: object = (1, 2)


def reordered(content):
    content["x"] = content.pop("x")


CHANGES_OF_STATICS = {
    "dataclass": (Options, lambda options: setattr(options, "scale", 3)),
    "equal number": (lambda: Options(1), lambda options: setattr(options, "scale", True)),
    "new attribute": (Options, lambda options: setattr(options, "further", 1)),
    "list in a dataclass": (lambda: Options(sizes=[1]), lambda options: options.sizes.append(2)),
    "dataclass with slots": (SlottedOptions, lambda options: setattr(options, "scale", 3)),
    "dataclass in a tuple": (lambda: (SlottedOptions(),), lambda held: setattr(held[0], "scale", 3)),
    "order of a dict": (lambda: {"x": 1, "y": 2}, reordered),
    "order of an OrderedDict": (lambda: collections.OrderedDict(x=1, y=2), reordered),
}


@pytest.mark.parametrize("name", CHANGES_OF_STATICS)
def test_a_change_of_a_static_value_in_place_traces_again(name):
    make, change = CHANGES_OF_STATICS[name]
    model, seen = dx.Module(), []
    model.scale, model.settings = dx.Param(jnp.ones(2)), make()

    @dx.jit
    def look(m):
        seen.append(str(m.settings))
        return m.scale.value

    look(model), look(model)
    assert len(seen) == 1
    change(model.settings)
    look(model), look(model)
    assert len(seen) == 2
    assert dx.split(model)[0] != dx.split(dx.with_attributes(model, settings=make()))[0]


def test_a_traced_function_may_change_a_dataclass():
    model = dx.Module()
    model.scale, model.options = dx.Param(jnp.ones(())), Options(scale=1)

    @dx.jit
    def step(m):
        m.options.scale += 1
        return m.scale.value * m.options.scale

    assert [float(step(model)) for _ in range(3)] == [2.0, 3.0, 4.0]
    assert model.options == Options(scale=4)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_static_dicts_of_another_order_are_traced_apart(kind):
    class Steps(dx.Module):
        def __init__(self, steps):
            self.w, self.steps = dx.Param(jnp.array(3.0)), kind(steps)

        def __call__(self):
            x = self.w[...]
            for name, n in self.steps.items():
                x = x + n if name == "add" else x * n
            return x

    run = dx.jit(lambda steps: steps())
    first, second = Steps([("add", 2), ("mul", 5)]), Steps([("mul", 5), ("add", 2)])
    assert [float(run(first)), float(run(second))] == [float(first()), float(second())] == [25.0, 17.0]


# ================================================================= what may come in


@pytest.mark.parametrize("transform", [dx.jit, dx.vmap], ids=["jit", "vmap"])
def test_what_is_no_array_is_named(transform):
    with pytest.raises(TransformError, match=r"mode: this is not an array, a number or a model") as caught:
        transform(lambda m, mode: m)(jnp.ones(2), "train")
    assert caught.value.fix.startswith('dx.jit(f, static_argnames="mode")')
    with pytest.raises(TransformError, match=r"m\.mode: this is not an array, a number or a model") as caught:
        transform(lambda m: m)({"mode": "train"})
    assert caught.value.fix.startswith('dx.jit(f, static_argnames="...")')


def test_a_model_is_no_static_argument():
    f = dx.jit(lambda x, m: m.kernel * x, static_argnums=1)
    with pytest.raises(TransformError, match="a model cannot be a static argument"):
        f(1.0, dx.Linear(2, 2, rngs=dx.Rngs(0)))
    assert dx.jit(lambda x, m: x, static_argnums=1)(1.0, dx.Module()) == 1.0  # nothing in it can change unseen


@pytest.mark.parametrize(
    ("callback", "count"),
    [
        (lambda x: jax.pure_callback(lambda x: x, x, x), 2),
        (lambda x: jax.lax.cond(True, lambda: jax.debug.print("{}", x), lambda: None), 2),
        (lambda x: x + 1, 0),
    ],
    ids=["pure_callback", "print in cond", "none"],
)
def test_only_a_program_that_calls_back_is_waited_for(callback, count, monkeypatch):
    waits = []
    monkeypatch.setattr(programs, "wait", waits.append)
    model = dx.Linear(2, 2, rngs=dx.Rngs(0))

    @dx.jit
    def step(model):
        callback(model.bias.value)
        model.bias.value = model.bias.value + 1

    step(model), step(model)
    assert (len(waits), step.num_traces) == (count, 1)


def test_a_donating_function_that_sets_other_variables_for_other_shapes():
    """What one trace sets, and another one reads, keeps its buffer."""
    model = dx.Module()
    model.a, model.b = dx.Variable(jnp.zeros(())), dx.Variable(jnp.zeros(()))

    @dx.jit(donate_argnums=0)
    def step(model, x):
        if x.shape[0] == 2:
            model.a.value = model.a.value + 1
        else:
            model.b.value = model.b.value + model.a.value

    for size in (2, 2, 3, 3, 2, 3):
        step(model, jnp.ones(size))
    assert (float(model.a.value), float(model.b.value)) == (3.0, 7.0)


def test_a_donating_function_traces_once_for_each_shape():
    model = dx.Module()
    model.a = dx.Variable(jnp.zeros(()))

    @dx.jit(donate_argnums=0)
    def step(model, x):
        model.a.value = model.a.value + x.sum()

    for size in (2, 2, 3, 3, 4, 2):
        before = model.a.raw_value
        step(model, jnp.ones(size))
        assert before.is_deleted()
    assert step.num_traces == 3
    assert float(model.a.value) == 16.0


def test_a_function_that_calls_itself_compiled():
    model = dx.Module()
    model.a = dx.Variable(jnp.zeros(()))

    @dx.jit
    def step(model, x):
        model.a.value = model.a.value + 1
        if x.shape[0] > 1:
            step(model, x[1:])

    for size in (3, 3, 2, 4):
        step(model, jnp.ones(size))
    assert float(model.a.value) == 12.0

"""`while_loop` and `fori_loop`: what each step does to models happens to the caller's, in the end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.errors import GraphError, TransformError
from declax.transforms.loops import fori_loop, while_loop
from declax.transforms.vectorization import vmap
from strategies import Open, build, objects_of, recipes, same_graph

MODES = [{"graph": False}, {"graph_updates": False}, {"graph_updates": True}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=["tree", "no-updates", "updates"])


class Model(dx.Module):
    def __init__(self, scale=1.0):
        self.scale = dx.Param(jnp.full((2,), scale))
        self.seen = dx.BatchStat(jnp.array(0))
        self.raw = jnp.zeros(2)

    def step(self, x):
        self.seen.value = self.seen.value + 1
        self.raw = self.raw + x
        return x * self.scale


def values_of(model):
    return jax.tree.map(np.asarray, dx.to_pure_dict(dx.state(model)))


def assert_same_values(a, b):
    jax.tree.map(np.testing.assert_allclose, values_of(a), values_of(b))


def is_below(value):
    return value[1] < 5


def advance(value):
    model, i, x = value
    return model, i + 1, model.step(x)


# ================================================================= against raw JAX, and against Python's loops


@each_mode
def test_while_against_lax_on_explicit_state(mode):
    model, x = Model(2.0), jnp.array([1.0, -1.0])
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


@each_mode
@pytest.mark.parametrize("unroll", [None, 2, True])
def test_fori_against_lax_on_explicit_state(mode, unroll):
    model, x = Model(2.0), jnp.array([1.0, -1.0])
    graphdef, state = dx.split(model)

    def pure(i, value):
        made = dx.merge(graphdef, value[0])
        return dx.state(made), made.step(value[1]) + i

    def advance(i, value):
        return value[0], value[0].step(value[1]) + i

    expected_state, expected = jax.lax.fori_loop(2, 6, lambda i, v: pure(i, v)[::1], (state, x))
    _, output = fori_loop(2, 6, advance, (model, x), unroll=unroll, **mode)
    np.testing.assert_allclose(output, expected)
    assert int(model.seen.value) == 4
    assert_same_values(model.scale, dx.merge(graphdef, expected_state).scale)


def set_some(numbers, model):
    variables = [o for o in objects_of(model) if isinstance(o, dx.Variable)]
    for number in numbers:
        if variables:
            one, other = variables[number % len(variables)], variables[number // 2 % len(variables)]
            if one.value.shape == other.value.shape:
                one.value, other.value = other.value * 0.5, one.value + number
    return model


@given(recipes(), st.lists(st.integers(0, 7), max_size=4), st.integers(0, 3))
def test_a_loop_is_a_loop(recipe, numbers, count):
    inside, outside = build(recipe), build(recipe)
    known = list(zip(objects_of(inside), objects_of(outside), strict=True))
    assert fori_loop(0, count, lambda i, m: set_some(numbers, m), inside) is inside
    for _ in range(count):
        set_some(numbers, outside)
    assert same_graph(inside, outside, known)


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
    assert np.allclose(program(dx, while_loop, fori_loop), expected)


# ================================================================= what is handed on


def test_no_step_at_all():
    model = Model()
    before = values_of(model)
    returned, i, x = while_loop(is_below, advance, (model, 7, jnp.ones(2)))
    assert returned is model
    assert (int(i), x.tolist()) == (7, [1.0, 1.0])
    jax.tree.map(np.testing.assert_array_equal, values_of(model), before)


@each_mode
def test_new_models_may_be_returned(mode):
    model = Model(1.0)

    def body(i, value):
        model, x = value
        made = dx.clone(model)
        made.scale.value = made.scale.value * 2
        return made, x + made.scale.value.sum()

    returned, x = fori_loop(0, 3, body, (model, 0.0), **mode)
    assert returned is not model
    assert isinstance(returned, Model)
    assert returned.scale.value.tolist() == [8.0, 8.0]
    assert model.scale.value.tolist() == [1.0, 1.0]
    assert float(x) == 28.0


def test_functional_style():
    model = Model(1.0)
    graphdef = dx.graphdef(model)

    def body(i, model):
        state = jax.tree.map(lambda leaf: leaf + 1, dx.state(model))
        return dx.merge(graphdef, state)

    returned = fori_loop(0, 3, body, model)
    assert returned.scale.value.tolist() == [4.0, 4.0]
    assert int(returned.seen.value) == 3
    assert int(model.seen.value) == 0


def test_one_model_stays_and_one_is_new():
    kept, renewed = Model(1.0), Model(1.0)

    def body(i, value):
        kept, other = value["kept"], value["renewed"]
        kept.step(jnp.ones(2))
        made = Model(0.0)
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
    model = Model()

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


# ================================================================= what is not set stays out


def test_only_what_is_set_is_carried():
    model = Model()
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
    model = Model()

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


@each_mode
def test_captured_and_handed_on_is_one_thing(mode):
    model = Model()

    def body(i, given):
        given.seen.value = given.seen.value + 1
        model.seen.value = model.seen.value + 10
        return given

    assert fori_loop(0, 3, body, model, **mode) is model
    assert int(model.seen.value) == 33


def test_a_condition_that_captures():
    model = Model()

    def body(x):
        model.seen.value = model.seen.value + 1
        return x

    while_loop(lambda _: model.seen.value < 4, body, None)
    assert int(model.seen.value) == 4


# ================================================================= inside of other transforms


def test_gradients_through_a_fixed_number_of_steps():
    model = Model(3.0)

    def loss(model, loop):
        return loop(0, 3, lambda i, x: x * model.scale, jnp.ones(2)).sum()

    np.testing.assert_allclose(dx.grad(loss)(model, fori_loop)["scale"].value, [27.0, 27.0])


def test_under_vmap():
    model = Model(2.0)

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

    def numbered(i, model):
        traces.append("numbered")
        model.step(jnp.ones(2))
        return model

    with jax.checking_leaks():
        dx.jit(lambda m: while_loop(condition, body, (m, 0, jnp.ones(2)))[1])(Model())
        assert sorted(traces) == ["body", "cond"]
        while_loop(condition, body, (Model(), 0, jnp.ones(2)))
        assert sorted(traces[2:]) == ["body", "cond"]
        fori_loop(0, 3, numbered, Model())
        assert traces[4:] == ["numbered"]


def test_without_compilation():
    model = Model(2.0)
    with jax.disable_jit():
        assert int(while_loop(is_below, advance, (model, 0, jnp.ones(2)))[1]) == 5
        fori_loop(0, 3, lambda i, x: model.step(x), jnp.ones(2))
    assert int(model.seen.value) == 8


# ================================================================= errors


def grow(i, model):
    model.new = dx.Param(jnp.ones(1))
    return model


def forget(i, model):
    del model.raw
    return model


def replace(i, model):
    model.scale = dx.Param(model.scale.value)
    return model


def set_and_return_another(i, model):
    model.seen.value = model.seen.value + 1
    return Model()


def set_type(i, model):
    model.seen.value = jnp.ones(3)
    return model


def count(value):
    value[0].seen.value = value[0].seen.value + 1
    return value[1] < 5


class Moded(dx.Module):
    def __init__(self):
        self.mode = "a"


def set_mode(i, model):
    model.mode = "b"
    return model


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (lambda m: fori_loop(0, 3, grow, m), r"fori_loop, init_val\.new: body_fun changes the structure here"),
        (
            lambda m: fori_loop(0, 3, set_mode, Moded()),
            r"(?s)init_val\.mode: body_fun changes.*expected: 'a'.*got: +'b'",
        ),
        (lambda m: fori_loop(0, 3, forget, m), r"fori_loop, init_val\.raw: body_fun changes the structure here"),
        (lambda m: fori_loop(0, 3, replace, m), r"fori_loop, init_val\.scale: body_fun changes the structure here"),
        (lambda m: fori_loop(0, 3, lambda i, x: (grow(i, m), x)[1], 0), r"the captured Model\.new: body_fun changes"),
        (lambda m: fori_loop(0, 3, lambda i, m: 1, m), "body_fun returns another structure than it is given"),
        (lambda m: fori_loop(0, 3, lambda i, v: v[0], (m, 1)), r"(?s)expected: \(model, \*\).*got: +model"),
        (lambda m: fori_loop(0, 3, lambda i, v: {"a": 1, "c": 2}, {"a": 1, "b": 2}), r"fori_loop, init_val\.b: "),
        (lambda m: fori_loop(0, 3, lambda i, v: v[::-1], (m, Model())), "differs from what is returned for it"),
        (lambda m: fori_loop(0, 3, lambda i, v: Open(), m), "differs from what is returned for it"),
        (
            lambda m: fori_loop(0, 3, lambda i, v: (m.step(jnp.ones(2)), dx.clone(v))[1], m.scale),
            "is shared with what is not returned anew",
        ),
        (
            lambda m: fori_loop(0, 3, set_and_return_another, m),
            r"init_val\.seen: body_fun sets this, and returns a new",
        ),
        (
            lambda m: fori_loop(0, 3, set_type, m),
            r"(?s)init_val\.seen: body_fun gives this another type than it had.*int32\[\].*got: +float32\[3\]",
        ),
        (
            lambda m: fori_loop(0, 3, lambda i, v: (v[1], v[1]), (jnp.ones(1), jnp.ones(2))),
            r"fori_loop, init_val\[0\]: ",
        ),
        (
            lambda m: fori_loop(0, 3, lambda i, x: x.astype(jnp.int32), jnp.ones(2)),
            "gives this another type than it had",
        ),
        (lambda m: while_loop(count, lambda v: v, (m, 0)), r"while_loop, init_val\[0\]\.seen: cond_fun changes this"),
        (lambda m: while_loop(lambda m: grow(0, m) is None, lambda m: m, m), "cond_fun changes this"),
        (lambda m: while_loop(lambda x: x, lambda x: x, 0), r"(?s)the condition is no boolean.*got: +int32\[\]"),
        (lambda m: while_loop(lambda x: None, lambda x: x, 0), "the condition is no boolean"),
        (lambda m: while_loop(3, lambda x: x, 0), "while_loop, cond_fun: this is no function"),
        (lambda m: while_loop(lambda x: x, None, 0), "while_loop, body_fun: this is no function"),
        (lambda m: fori_loop(0, 3, None, 0), "fori_loop, body_fun: this is no function"),
    ],
)
def test_errors(run, text):
    model = Model()
    before, names = values_of(model), set(vars(model))
    with pytest.raises(TransformError, match=text):
        run(model)
    jax.tree.map(np.testing.assert_array_equal, values_of(model), before)
    assert set(vars(model)) == names


def test_trees_share_nothing_where_the_mode_says_so():
    model = Model()
    with pytest.raises(GraphError, match="so the argument is no tree"):
        fori_loop(0, 3, lambda i, v: v, (model, model), graph=False)


def test_a_step_that_raises_changes_nothing():
    model = Model()

    def fail(i, model):
        model.step(jnp.ones(2))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fori_loop(0, 3, fail, model)
    assert int(model.seen.value) == 0


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
    with pytest.raises(TransformError, match="the condition reads an array ref that body_fun uses too") as caught:
        jit(lambda refs: dx.while_loop(lambda refs: refs.count[...] < refs.limit[...], count, refs))(refs)
    assert caught.value.got == "count of argument 0"
    assert float(refs.count[...]) == 0


def test_a_condition_cannot_read_a_closed_over_ref_that_the_body_writes():
    ref = dx.array_ref(jnp.zeros(()))

    def count(i):
        ref[...] += 1
        return i + 1

    with pytest.raises(TransformError, match="the condition reads an array ref that body_fun uses too") as caught:
        jax.jit(lambda: dx.while_loop(lambda i: ref[...] + i < 3, count, 0))()
    assert caught.value.got == "a ref that both functions close over"


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


def test_numbers_stay_weakly_typed():
    out = dx.cond(True, lambda x: x, lambda x: x * 2, 2.0)
    assert out.weak_type
    assert (out * jnp.bfloat16(1)).dtype == jnp.bfloat16

"""Values that a loop of compiled calls owes to its Variables: whoever looks sees them, and nobody loses one."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax import _kept_values
from declax.graph import keeping
from declax.graph.binding import bind_many

ENOUGH = keeping.SHORTEST + 4


class Part(dx.Module):
    def __init__(self):
        self.weight = dx.Param(jnp.zeros(2))


class Model(dx.Module):
    def __init__(self):
        self.part = Part()
        self.count = dx.BatchStat(jnp.zeros(()))
        self.fixed = dx.Param(jnp.full((), 3.0))


@dx.jit
def step(model):
    model.part.weight.value = model.part.weight.value + 1
    model.count.value = model.count.value + model.fixed.value


@dx.jit
def step_all(model):
    step(model)
    model.fixed.value = model.fixed.value + 0


STEPS = {"some": step, "all": step_all}


def owes(*models):
    """Whether the Variables of models are empty now; looks past what would fill them."""
    slot = dx.Variable.__dict__["raw_value"]
    found = set()
    for model in models:
        for variable in (model.part.weight, model.count):
            try:
                slot.__get__(variable)
            except AttributeError:
                found.add(True)
            else:
                found.add(False)
    assert len(found) == 1, "some are empty, and some are not"
    return found.pop()


def owing_model(function=step, steps=ENOUGH):
    model = Model()
    for _ in range(steps):
        function(model)
    assert owes(model), "nothing is owed, so that the test says nothing"
    return model


def in_context(model):
    with dx.update_context("tag"):
        return dx.split(model)[1]["count"].value


def by_grad(model):
    return dx.value_and_grad(lambda model: model.count.value + 0 * model.part.weight.value.sum())(model)[0]


READERS = {
    "value": lambda m: m.count.value,
    "get_value": lambda m: m.count.get_value(),
    "raw value": lambda m: m.count.raw_value,
    "get_raw_value": lambda m: m.count.get_raw_value(),
    "getattr with a default": lambda m: getattr(m.count, "raw_value", None),
    "index": lambda m: m.count[...],
    "float": lambda m: float(m.count),
    "an operator": lambda m: m.count + 0,
    "jnp": lambda m: jnp.add(m.count, 0),
    "an attribute of the array": lambda m: m.count.real,
    "copy": lambda m: m.count.copy().value,
    "copy.copy": lambda m: copy.copy(m.count).value,
    "copy.deepcopy": lambda m: copy.deepcopy(m).count.value,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)).count.value,
    "to_state": lambda m: m.count.to_state().value,
    "tree.leaves": lambda m: jax.tree.leaves(m.count)[0],
    "tree.map of the model": lambda m: jax.tree.map(lambda x: x, m).count.value,
    "state": lambda m: dx.state(m)["count"].value,
    "state of a part": lambda m: dx.state(m.part)["weight"].value[0] * 3,
    "split": lambda m: dx.split(m, dx.BatchStat, ...)[1]["count"].value,
    "clone": lambda m: dx.clone(m).count.value,
    "variables that are shared": lambda m: dx.clone(m, variables=False).count.value,
    "vars": lambda m: vars(m)["count"].value,
    "another compiled function": dx.jit(lambda m: m.count.value),
    "a capture": lambda m: dx.jit(lambda: m.count.value)(),
    "raw jit": jax.jit(lambda m: m.count.value),
    "an eager transform": by_grad,
    "a scan": lambda m: dx.scan(lambda m, x: (m, m.count.value), length=1)(m, None)[1][0],
    "a context": in_context,
    "eval_shape, then value": lambda m: (dx.eval_shape(lambda m: m, m), m.count.value)[1],
    "repr": lambda m: float(repr(m.count).partition("Array(")[2].partition(",")[0]),
    "an optimizer": lambda m: (dx.Optimizer(m, optax.sgd(0.1), wrt=dx.Param), m.count.value)[1],
    "update with its own state": lambda m: (dx.update(m, dx.state(m)), m.count.value)[1],
    "replace": lambda m: dx.BatchStat(jnp.zeros(())).replace(m.count).value,
    "pop": lambda m: dx.pop(dx.clone(m), dx.BatchStat)["count"].value,
}


@pytest.mark.parametrize("function", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_whoever_reads_sees_the_last_step(read, function):
    model = owing_model(function)
    assert float(read(model)) == 3.0 * ENOUGH
    for _ in range(2):
        function(model)
        assert float(read(model)) == float(model.part.weight.value[0] * 3)
    assert float(model.count.value) == 3.0 * (ENOUGH + 2)


WRITERS = {
    "value": lambda m: setattr(m.count, "value", jnp.array(100.0)),
    "set_value": lambda m: m.count.set_value(100.0),
    "set_raw_value": lambda m: m.count.set_raw_value(jnp.array(100.0)),
    "item": lambda m: m.count.__setitem__(..., 100.0),
    "update": lambda m: dx.update(m, {"count": jnp.array(100.0)}),
    "copy_from": lambda m: m.count.copy_from(dx.BatchStat(jnp.array(100.0))),
    "jit": dx.jit(lambda m: m.count.set_value(100.0)),
    "another variable": lambda m: setattr(m, "count", dx.BatchStat(jnp.array(100.0))),
    "an eager transform": dx.grad(lambda m: (m.count.set_value(jnp.array(100.0)), m.part.weight.value.sum())[1]),
}


@pytest.mark.parametrize("function", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_write_of_one_loses_no_other(write, function):
    model = owing_model(function)
    write(model)
    assert (float(model.count.value), model.part.weight.value.tolist()) == (100.0, [ENOUGH, ENOUGH])
    function(model)
    assert (float(model.count.value), float(model.part.weight.value[1])) == (103.0, ENOUGH + 1)


def test_metadata_and_structure_are_read_without_a_value():
    model = owing_model()
    assert (model.count.type, dict(model.count.get_metadata()), type(model.part)) == (dx.BatchStat, {}, Part)
    assert owes(model)


def test_a_changed_structure_loses_no_value():
    model = owing_model()
    model.extra = dx.Param(jnp.zeros(()))
    step(model)
    assert float(model.count.value) == 3.0 * (ENOUGH + 1)


def test_changed_metadata_lose_no_value():
    model = owing_model()
    model.count.set_metadata(tag="a")
    assert float(model.count.value) == 3.0 * ENOUGH


def test_a_variable_outlives_its_model():
    gc.disable()
    try:
        model = owing_model()
        count = model.count
        del model
        assert float(count.value) == 3.0 * ENOUGH
    finally:
        gc.enable()


def test_a_variable_outlives_a_model_in_a_cycle():
    model = owing_model()
    count, part = model.count, model.part
    model.itself = dx.List([model])  # a change of structure: the old binding goes with the next one
    for _ in range(ENOUGH):
        step(model)
    assert owes(model)
    del model
    gc.collect()
    assert (float(count.value), float(part.weight.value[0])) == (6.0 * ENOUGH, 2 * ENOUGH)


def test_arrays_that_were_overwritten_are_freed():
    model = owing_model()
    array = weakref.ref(model.count.value)
    for _ in range(2 * ENOUGH):  # it waits longer now
        step(model)
    assert owes(model)
    assert array() is None


def test_a_dead_model_keeps_no_array():
    gc.disable()
    try:
        model = owing_model()
        array = weakref.ref(bind_many((model,)).record.values[0])
        assert owes(model)
        del model
        assert array() is None
    finally:
        gc.enable()


def test_a_call_that_fails_leaves_the_values():
    @dx.jit
    def fallible(model, x):
        model.part.weight.value = model.part.weight.value + x
        model.count.value = model.count.value + 1
        if x.size % 2 and x.ndim:
            raise ValueError("the size must be even")

    model = Model()
    for _ in range(ENOUGH):
        fallible(model, jnp.ones(()))
    assert owes(model)
    with pytest.raises(dx.errors.TransformError, match="no array, no number"):
        fallible(model, "no number")
    with pytest.raises(ValueError, match="must be even"):
        fallible(model, jnp.ones(1))
    assert float(model.count.value) == ENOUGH
    fallible(model, jnp.ones(()))
    assert model.part.weight.value.tolist() == [ENOUGH + 1, ENOUGH + 1]


def test_a_program_that_fails_while_it_runs_leaves_the_values():
    @dx.jit
    def divide(model, x):
        model.part.weight.value = model.part.weight.value + 0 * x / x
        model.count.value = model.count.value + 1

    with jax.debug_nans(True):
        model = Model()
        for _ in range(ENOUGH):
            divide(model, jnp.ones(()))
        assert owes(model)
        with pytest.raises(FloatingPointError):
            divide(model, jnp.zeros(()))
        assert (float(model.count.value), model.part.weight.value.tolist()) == (ENOUGH, [0.0, 0.0])
        divide(model, jnp.ones(()))
        assert float(model.count.value) == ENOUGH + 1


def test_a_donating_loop():
    donating = dx.jit(step._closure.function, donate_argnums=0)
    model = owing_model(donating)
    assert float(model.count.value) == 3.0 * ENOUGH
    for _ in range(2 * keeping.LONGEST):
        donating(model)
    assert float(model.count.value) == 3.0 * (ENOUGH + 2 * keeping.LONGEST)


def test_two_loops_in_turns_both_owe():
    first, second = Model(), Model()
    for _ in range(2 * ENOUGH):
        step(first), step_all(second)
    assert owes(first, second)
    assert float(first.count.value) == 6.0 * ENOUGH
    assert not owes(first)
    assert owes(second)
    assert float(second.count.value) == 6.0 * ENOUGH


def test_a_write_elsewhere_disturbs_no_loop():
    model, rngs, other = owing_model(), dx.Rngs(0), dx.Param(jnp.zeros(()))
    rngs.noise()
    other.value = jnp.ones(())
    assert owes(model)
    step(model)
    assert owes(model)
    assert float(model.count.value) == 3.0 * (ENOUGH + 1)


def test_two_functions_over_one_model():
    model = Model()
    look = dx.jit(lambda model: (model.count.value, model.part.weight.value[0]))
    for n in range(1, 3 * ENOUGH):
        step(model)
        if n % 3 == 0:
            step_all(model)
            model.count.value = model.count.value - 3
            model.part.weight.value = model.part.weight.value - 1
        assert [float(x) for x in look(model)] == [3.0 * n, n]


def test_parts_of_one_model_in_turns():
    @dx.jit
    def step_part(part):
        part.weight.value = part.weight.value + 1

    model = Model()
    for n in range(1, 4 * ENOUGH):
        step(model), step_part(model.part)
        if n % ENOUGH == 0:
            assert (float(model.count.value), float(model.part.weight.value[0])) == (3.0 * n, 2 * n)
    for _ in range(ENOUGH):
        step(model)
    for _ in range(ENOUGH):
        step_part(model.part)
    assert model.part.weight.value.tolist() == [10 * ENOUGH - 2] * 2
    assert float(model.count.value) == 3.0 * (5 * ENOUGH - 1)


def test_who_reads_at_each_step_is_waited_for():
    model = Model()
    owed = 0
    for n in range(300):
        step(model)
        owed += owes(model)
        assert float(model.count.value) == 3.0 * (n + 1)
    assert 1 <= owed <= 8, "a binding whose values are read at once owes rarely"


def test_who_reads_now_and_then_is_not():
    model = Model()
    owed = 0
    for n in range(400):
        step(model)
        owed += owes(model)
        if n % 40 == 39:
            assert float(model.count.value) == 3.0 * (n + 1)
    assert owed > 300


def test_kinds_with_lookups_of_their_own_are_written():
    class Own(dx.BatchStat):
        def __getattr__(self, name):
            raise AttributeError(name)

    class Owned(dx.Module):
        def __init__(self):
            self.a = Own(jnp.zeros(()))
            self.b = dx.Param(jnp.zeros(()))

    @dx.jit
    def add(model):
        model.a.set_value(model.a.get_value() + 1)
        model.b.set_value(model.b.get_value() + 1)

    model = Owned()
    for _ in range(ENOUGH):
        add(model)
    assert float(model.a.get_value()) == ENOUGH
    assert float(dx.Variable.__dict__["raw_value"].__get__(model.b)) == ENOUGH


def test_other_shapes_in_the_middle_of_a_loop():
    @dx.jit
    def add(model, x):
        model.count.value = model.count.value + x.sum()
        if x.ndim:
            model.part.weight.value = model.part.weight.value + 1

    model = Model()
    for _ in range(ENOUGH):
        add(model, jnp.array(1.0))
    for _ in range(ENOUGH):
        add(model, jnp.ones(2))
    add(model, jnp.array(1.0))
    assert (float(model.count.value), model.part.weight.value[0]) == (3 * ENOUGH + 1, ENOUGH)


def test_a_function_that_changes_the_structure_now_and_then():
    @dx.jit
    def grow(model):
        model.count.value = model.count.value + 1
        model.more = dx.Param(model.count.value)

    model = owing_model()
    grow(model)
    for _ in range(ENOUGH):
        step(model)
    assert (float(model.count.value), float(model.more.value)) == (6.0 * ENOUGH + 1, 3.0 * ENOUGH + 1)


def test_inside_of_a_trace():
    model = owing_model()

    @jax.jit
    def outer(x):
        return model.count.value + x

    assert float(outer(1.0)) == 3.0 * ENOUGH + 1
    model = owing_model()

    @dx.jit
    def nested(model):
        for _ in range(3):
            step(model)

    nested(model)
    assert float(model.count.value) == 3.0 * (ENOUGH + 3)


def test_threads_that_look_while_a_loop_runs():
    model, stop, seen = Model(), threading.Event(), []

    def look():
        last = 0.0
        while not stop.is_set():
            now = float(model.count.value)
            seen.append(now >= last and now % 3 == 0)
            last = now

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(400):
        step(model)
    stop.set()
    for thread in threads:
        thread.join()
    assert all(seen)
    assert len(seen) > 3
    assert float(model.count.value) == 1200.0


def test_a_thread_that_does_nothing_changes_nothing(monkeypatch):
    """In a notebook, there are always some."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        model = Model()
        step(model)
        with monkeypatch.context() as patch:
            patch.setattr(type(step), "_call_anew", lambda *_: pytest.fail("the call goes the longer way"))
            for _ in range(ENOUGH):
                step(model)
        assert owes(model)
        assert float(model.count.value) == 3.0 * (ENOUGH + 1)
    finally:
        stop.set()
        thread.join()


def test_threads_that_train_one_model_after_a_loop():
    model = owing_model()
    threads = [threading.Thread(target=lambda: [step(model) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert float(model.count.value) == 3.0 * (ENOUGH + 200)


@pytest.mark.filterwarnings("ignore::declax.errors.OverlookedModelWarning")  # what it is about
def test_a_callback_that_looks():
    model, seen = Model(), []
    holder = [model]

    class Hiding:
        inside = holder

    def look(x):
        seen.append(float(Hiding.inside[0].count.value))
        return x

    @dx.jit
    def looking(x):
        return jax.pure_callback(look, x, x)

    for n in range(2 * ENOUGH):
        step(model)
        if n % ENOUGH == ENOUGH - 1:
            looking(jnp.ones(())).block_until_ready()
    assert seen == [3.0 * ENOUGH, 6.0 * ENOUGH]


@given(
    st.lists(
        st.sampled_from([("step", 0), ("step", 1), ("part", 0), ("read", 0), ("read", 1), ("write", 0), ("clone", 0)]),
        max_size=60,
    ),
    st.sampled_from([0, 1, 3]),
)
def test_any_order_of_steps_and_looks(actions, patience):
    models, expected = (Model(), Model()), [[0.0, 0.0], [0.0, 0.0]]
    for model in models:
        bind_many((model,))._patience = patience
    bind_many((models[0].part,))._patience = patience
    for name, number in actions:
        model, state = models[number], expected[number]
        if name == "step":
            (step, step_all)[number](model)
            state[0], state[1] = state[0] + 1, state[1] + 3
        elif name == "part":
            add_to_part(model.part)
            state[0] += 1
        elif name == "read":
            assert float(model.count.value) == state[1]
        elif name == "write":
            model.count.value = jnp.array(7.0)
            state[1] = 7.0
        else:
            assert float(dx.clone(model).part.weight.value[0]) == state[0]
    for model, (weight, count) in zip(models, expected, strict=True):
        assert (model.part.weight.value.tolist(), float(model.count.value)) == ([weight, weight], count)


@dx.jit
def add_to_part(part):
    part.weight.value = part.weight.value + 1


def test_a_loop_that_is_read_now_and_then_owes_again_at_once():
    model = Model()
    for _ in range(ENOUGH + keeping.SURELY_WORTH_OWING):
        step(model)
    assert owes(model)
    count = float(model.count.value)
    assert not owes(model)
    step(model)
    assert owes(model)
    assert float(model.count.value) == count + 3


def test_few_hold_at_a_time():
    models = [Model() for _ in range(3 * _kept_values.MOST)]
    for _ in range(ENOUGH):
        for model in models:
            step(model)
    for model in models:
        for _ in range(ENOUGH):
            step(model)
    assert len(_kept_values.records) <= _kept_values.MOST
    assert [float(model.count.value) for model in models] == [6.0 * ENOUGH] * len(models)


def test_a_new_variable_has_no_value_that_somebody_owes():
    with pytest.raises(dx.errors.MissingAttributeError, match="there is no such attribute"):
        object.__new__(dx.Param).raw_value  # to read it is the test

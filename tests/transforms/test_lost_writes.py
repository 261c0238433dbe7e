"""Writes to copies that JAX made, and that nobody returned, are told; nothing else is."""

import copy
import functools
import gc
import pickle
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import _lost_writes
from declax.errors import LostWriteWarning

X = jnp.ones((4, 3))


class Net(dx.Module):
    """A model that writes: statistics, counts of its streams, and a plain array."""

    def __init__(self, rngs):
        self.linear = dx.Linear(3, 3, rngs=rngs)
        self.norm = dx.BatchNorm(3, rngs=rngs)
        self.dropout = dx.Dropout(0.5, rngs=rngs)
        self.blocks = dx.List([dx.BatchNorm(3, rngs=rngs)])
        self.calls = jnp.array(0.0)
        self.mode = "train"
        self.sizes = [1, 2]

    def __call__(self, x):
        self.calls = self.calls + 1
        return self.blocks[0](self.dropout(self.norm(self.linear(x))))


REMEDY = "            return output, model        # or return the {}; or dx.split it, and dx.merge it in the function"
WRITTEN = {"calls", "blocks[0].mean", "blocks[0].var", "dropout.rngs.count", "norm.mean", "norm.var"}


class Counter(dx.Module):
    def __init__(self, value=0.0):
        self.count = dx.Variable(jnp.array(value))
        self.total = jnp.array(value)

    def __call__(self, x=1.0):
        self.count.value = self.count.value + x
        return x


@pytest.fixture(autouse=True)
def forget():
    _lost_writes.forget_told()


@pytest.fixture
def net():
    return Net(dx.Rngs(0))


def call(model, *args):
    return model(*args)


def fresh(function):
    """The same function, which JAX has not traced yet."""
    return functools.partial(function)


def copied(model):
    return jax.tree.map(lambda leaf: leaf, model)


def call_and_sum(model, *args):
    return jnp.sum(model(*args))


def call_and_sum_of_count(model):
    model()
    return model.count.value


def lost_by(function, *args):
    """The texts of the warnings that a call gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
        gc.collect()
    assert all(w.category is LostWriteWarning for w in caught), [str(w.message) for w in caught]
    return [str(w.message) for w in caught]


def paths_of(text):
    return set(text.partition(": what was written")[0].split(", "))


def stacked(tree):
    return jax.tree.map(lambda leaf: leaf[None], tree)


STAGED = {
    "jax.jit": lambda net: jax.jit(fresh(call))(net, X),
    "jax.checkpoint": lambda net: jax.checkpoint(fresh(call))(net, X),
    "jax.lax.scan": lambda net: jax.lax.scan(lambda c, m: (c, m(X)), None, stacked(net)),
    "jax.lax.cond": lambda net: jax.lax.cond(True, fresh(call), lambda m, x: x, net, X),
    "jax.lax.switch": lambda net: jax.lax.switch(0, [fresh(call), lambda m, x: x], net, X),
}
EAGER = {
    "jax.vmap": lambda m: jax.vmap(fresh(call))(stacked(m)),
    "jax.grad": jax.grad(call_and_sum_of_count),
    "jax.value_and_grad": jax.value_and_grad(call_and_sum_of_count),
    "jax.linearize": lambda m: jax.linearize(fresh(call), m),
    "jax.vjp": lambda m: jax.vjp(call_and_sum_of_count, m),
    "jax.jvp": lambda m: jax.jvp(call_and_sum_of_count, (m,), (m,)),
}


# ================================================================= what is lost


@pytest.mark.parametrize("transform", STAGED)
def test_what_is_lost_is_named_with_its_path(net, transform):
    (text,) = lost_by(STAGED[transform], net)
    assert paths_of(text) == {f"Net.{path}" for path in WRITTEN}
    assert f": what was written here under {transform} is lost. [lost-write]" in text


@pytest.mark.parametrize("transform", EAGER)
def test_transforms_that_run_eagerly(transform):
    (text,) = lost_by(EAGER[transform], Counter())
    assert text.startswith(f"Counter.count: what was written here under {transform} is lost. [lost-write]\n")


def test_the_whole_text():
    (text,) = lost_by(jax.jit(fresh(call)), Counter())
    assert text.splitlines() == [
        "Counter.count: what was written here under jax.jit is lost. [lost-write]",
        "  why:      jax.jit calls the function with a copy of the Counter, which the function did not return",
        "  fix:      dx.jit(...)        # in place of jax.jit: what is written comes back",
        REMEDY.format("Counter"),
    ]


def test_a_transform_without_a_counterpart_has_the_other_remedy():
    (text,) = lost_by(EAGER["jax.linearize"], Counter())
    assert "fix:      return output, model" in text
    assert "dx.linearize" not in text


def test_many_paths_are_counted():
    (text,) = lost_by(
        jax.jit(lambda ms: [m() for m in ms.values()] and 0), dx.Dict({f"m{i}": Counter() for i in range(9)})
    )
    assert "Dict.m5.count and 3 more: what was written" in text


def test_the_warning_is_of_the_line_that_calls_the_transform():
    step = jax.jit(fresh(call))
    with pytest.warns(LostWriteWarning, match=r"Counter\.count: what was written here") as caught:
        step(Counter())  # this line
    assert caught[0].filename == __file__
    with open(__file__, encoding="utf-8") as lines:
        assert lines.readlines()[caught[0].lineno - 1].strip() == "step(Counter())  # this line"


def test_once_a_path():
    assert len(lost_by(jax.jit(fresh(call)), Counter())) == 1
    assert lost_by(jax.jit(lambda m: m(2.0)), Counter()) == []

    class Other(Counter):
        pass

    assert paths_of(*lost_by(jax.jit(fresh(call)), Other())) == {"Other.count"}


def test_each_argument_by_itself():
    texts = lost_by(jax.jit(lambda m, rest: (m(), rest["net"](X))[0]), Counter(), {"net": Net(dx.Rngs(0))})
    assert {text.partition(".")[0] for text in texts} == {"Counter", "Net"}


def test_an_array_in_an_attribute():
    def add(model):
        model.total = model.total + 1
        return 0

    assert paths_of(*lost_by(jax.jit(add), Counter())) == {"Counter.total"}


def test_a_new_attribute_a_new_part_and_an_element():
    def change(model):
        model.extra = dx.Param(jnp.zeros(2))
        model.linear = dx.Linear(3, 3, rngs=dx.Rngs(1))
        model.blocks.append(dx.Param(jnp.ones(3)))
        return 0

    assert paths_of(*lost_by(jax.jit(change), Net(dx.Rngs(0)))) == {"Net.extra", "Net.linear", "Net.blocks[1]"}


def test_a_static_attribute():
    class Steps(Counter):
        def __init__(self):
            super().__init__()
            self.steps, self.sizes, self.note, self.part = 0, [1], "train", Counter()

        def __call__(self, x=1.0):
            self.steps += 1
            self.sizes = [1, 2]
            self.part.last_shape = (3,)
            return x

    (text,) = lost_by(jax.jit(fresh(call)), Steps())
    assert paths_of(text) == {"Steps.steps", "Steps.sizes", "Steps.part.last_shape"}
    assert lost_by(jax.jit(lambda m: (m(), m)[1]), Steps()) == []
    _lost_writes.forget_told()
    assert lost_by(jax.jit(lambda m: (m(), m)[1]), Steps()) == []
    assert lost_by(jax.jit(lambda m: (m(), dx.split(m))[1]), Steps()) == []


def test_a_static_attribute_that_cannot_be_compared():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError

        __hash__ = object.__hash__

    class Holder(Counter):
        def __init__(self):
            super().__init__()
            self.odd = Odd()

    assert paths_of(*lost_by(jax.jit(lambda m: setattr(m, "odd", Odd())), Holder())) == {"Holder.odd"}


def test_what_is_in_plain_containers():
    class Holder(dx.Module):
        def __init__(self):
            self.parts = dx.data([Counter(), {"a": dx.Param(jnp.zeros(2))}, (jnp.ones(2),)])

    def write(holder):
        holder.parts[0]()
        holder.parts[1]["a"][...] += 1
        return 0

    assert paths_of(*lost_by(jax.jit(write), Holder())) == {"Holder.parts[0].count", "Holder.parts[1].a"}


def test_a_draw_moves_a_count_that_is_lost():
    (text,) = lost_by(jax.jit(lambda rngs: rngs.noise.uniform()), dx.Rngs(0, noise=1))
    assert paths_of(text) == {"Rngs.noise.count"}


def test_writes_of_an_optimizer_and_of_update():
    def step(model, state):
        dx.update(model, state)
        return 0

    assert paths_of(*lost_by(jax.jit(step), Counter(), dx.state(Counter(2.0)))) == {"Counter.count", "Counter.total"}


def test_what_a_transform_of_declax_writes_back_to_a_copy():
    (text,) = lost_by(jax.jit(dx.grad(lambda m: jnp.sum(m.kernel[...]) * m.counter())), with_counter())
    assert paths_of(text) == {"Linear.counter.count"}


def with_counter():
    linear = dx.Linear(2, 2, rngs=dx.Rngs(0))
    linear.counter = Counter()
    return linear


def test_only_a_part_returned():
    (text,) = lost_by(jax.jit(lambda net: (net(X), net.norm)), Net(dx.Rngs(0)))
    assert paths_of(text) == {f"Net.{path}" for path in WRITTEN if not path.startswith("norm")}


def test_written_after_it_was_read_as_a_state():
    (text,) = lost_by(jax.jit(lambda m: (dx.state(m), m())[0]), Counter())
    assert paths_of(text) == {"Counter.count"}


def test_nested_transforms_name_the_inner_one():
    (text,) = lost_by(jax.jit(jax.vmap(fresh(call))), stacked(Counter()))
    assert "under jax.vmap" in text


# ================================================================= what is not


KEPT = {
    "read only": lambda net: net.linear(X),
    "returned": lambda net: (net(X), net),
    "returned in a container": lambda net: (net(X), {"net": [net]}),
    "state": lambda net: (net(X), dx.state(net)),
    "split": lambda net: (net(X), dx.split(net)),
    "split twice": lambda net: (dx.split(net), net(X), dx.split(net)[1])[2],
    "merged": lambda net: dx.merge(*dx.split(net))(X),
    "clone": lambda net: dx.clone(net)(X),
    "a mapped copy": lambda net: (copied(net)(X), 0)[1],
    "leaves": lambda net: (net(X), jax.tree.leaves(net)),
    "eval": lambda net: (net.eval(), net.norm(X, use_running_average=True))[1],
    "switches": lambda net: (net.set_attributes(deterministic=True), setattr(net, "mode", "eval"))[1],
    "an equal static value": lambda net: setattr(net, "sizes", [*net.sizes]),
    "the same value": lambda net: setattr(net.linear.kernel, "value", net.linear.kernel.value),
    "popped": lambda net: (net.linear.sow(dx.Intermediate, "y", X), dx.pop(net, dx.Intermediate))[1],
    "made inside": lambda net: Net(dx.Rngs(0))(X),
}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("jit", [jax.jit, jax.checkpoint], ids=["jit", "checkpoint"])
def test_nothing_is_said_of_what_is_kept(net, kept, jit):
    assert lost_by(jit(fresh(KEPT[kept])), net) == []


def test_a_carry_comes_back(net):
    assert lost_by(lambda: jax.lax.scan(lambda m, _: (m, m(X)), net, None, length=2)) == []
    assert lost_by(lambda: jax.lax.fori_loop(0, 2, lambda _, m: (m(X), m)[1], net)) == []


def test_auxiliary_output_comes_back():
    def f(m):
        return call_and_sum_of_count(m), m

    assert lost_by(lambda: jax.value_and_grad(f, has_aux=True)(Counter())) == []
    assert lost_by(lambda: jax.vjp(f, Counter(), has_aux=True)) == []


@pytest.mark.parametrize("lifted", [dx.jit, dx.grad, dx.value_and_grad], ids=["jit", "grad", "value_and_grad"])
def test_transforms_of_declax_keep_what_is_written(net, lifted):
    assert lost_by(lifted(call_and_sum), net, X) == []
    assert float(net.calls) == 1.0


def test_states_under_raw_transforms(net):
    graphdef, state = dx.split(net)
    assert lost_by(jax.jit(lambda state: dx.merge(graphdef, state)(X)), state) == []


@pytest.mark.parametrize(
    "shape", [jax.eval_shape, lambda f, *a: jax.make_jaxpr(f)(*a)], ids=["eval_shape", "make_jaxpr"]
)
def test_nothing_is_computed(net, shape):
    assert lost_by(shape, fresh(call), net, X) == []


def test_a_function_that_raises_has_lost_nothing_else(net):
    def fail(net):
        net(X)
        raise ZeroDivisionError

    def attempt():
        with pytest.raises(ZeroDivisionError):
            jax.jit(fail)(net)

    assert lost_by(attempt) == []


def test_a_captured_model_is_an_error_as_ever():
    counter = Counter()
    with pytest.raises(dx.errors.TraceContextError, match="was changed from another trace level than its own"):
        jax.jit(counter)(1.0)


# ================================================================= copies are what they were


def test_outside_of_traces_nothing_is_looked_after(net):
    again = jax.tree.unflatten(jax.tree.structure(net), jax.tree.leaves(net))
    assert type(vars(again)) is dict
    again(X)
    del again


def test_a_copy_can_be_used_as_ever(net):
    def use(net):
        assert vars(net.norm) == {**vars(net.norm)}
        pairs = dx.state(net).paths, dx.state(copy.copy(net)).paths, dx.state(dx.clone(net)).paths
        assert pairs[0] == pairs[1] == pairs[2]
        net.norm.note = "static"
        del net.calls
        assert net.norm.note == "static"
        assert not hasattr(net, "calls")
        assert jax.tree.structure(net) == jax.tree.structure(copied(net))
        return net.linear(X)

    assert lost_by(jax.jit(use), net) == []


def test_what_comes_back_is_no_copy(net):
    out, back = jax.jit(lambda net: (net(X), net))(net)
    assert type(vars(back)) is type(vars(back.norm)) is dict
    assert float(back.calls) == 1.0
    assert pickle.loads(pickle.dumps(back)).linear.kernel.shape == (3, 3)
    np.testing.assert_array_equal(out, net(X))


def test_no_tracer_leaks(net):
    with jax.checking_leaks():
        assert len(lost_by(jax.jit(fresh(call)), net, X)) == 1
        assert len(lost_by(jax.jit(fresh(call)), Counter())) == 1


def test_threads():
    kinds = [type(f"Kind{i}", (Counter,), {}) for i in range(8)]
    barrier = threading.Barrier(len(kinds))

    def work(kind):
        model = kind()
        barrier.wait()
        jax.jit(fresh(call))(model)

    def all_at_once():
        threads = [threading.Thread(target=work, args=(kind,)) for kind in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(text.partition(".")[0] for text in lost_by(all_at_once)) == [kind.__name__ for kind in kinds]


def test_warnings_as_errors_do_not_harm(monkeypatch):
    raised = []
    monkeypatch.setattr("sys.unraisablehook", lambda found: raised.append(found.exc_value))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jax.jit(fresh(call))(Counter(), 3.0) == 3.0
    assert [type(error) for error in raised] == [LostWriteWarning]


class Ring(dx.Module):
    """One that can be part of itself."""

    me: dx.Data[object]

    def __init__(self):
        self.count = dx.Variable(jnp.array(0.0))
        self.me = None


def write_in_a_cycle(ring):
    ring.me = ring
    ring.count.value = ring.count.value + 1


def write(variable):
    variable.value = variable.value + 1


@pytest.mark.parametrize(("function", "make"), [(write, lambda: dx.Variable(jnp.array(0.0))), (write_in_a_cycle, Ring)])
def test_the_two_that_are_not_looked_after(function, make):
    """A Variable has no `__del__`, which each one would pay for; a cycle is freed when the trace is over."""
    assert lost_by(jax.jit(fresh(function)), make()) == []
    made = make()
    dx.jit(function)(made)
    assert float(made.value if isinstance(made, dx.Variable) else made.count.value) == 1

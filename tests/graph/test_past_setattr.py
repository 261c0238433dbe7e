"""Changes of a model that no `__setattr__` of declax sees."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

import declax as dx
from declax._graph.binding import bind
from declax.errors import StaleValueWarning


class Net(dx.Module):
    def __init__(self):
        self.w, self.scale = dx.Param(jnp.zeros(())), 1.0
        self.child = dx.Module()


class Overriding(Net):
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


def used(cls=Net):
    """A model that a compiled function and a split have seen, and the function."""
    run = dx.jit(lambda net: net.w[...] + net.scale + getattr(net, "offset", 0.0))
    net = cls()
    run(net), dx.split(net)
    return net, run


CHANGES = {
    "__dict__": lambda net, name, value: vars(net).__setitem__(name, value),
    "object.__setattr__": object.__setattr__,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_variable_is_seen_by_state_split_and_clone(change):
    net, _ = used()
    change(net, "w", dx.Param(jnp.array(5.0)))
    assert float(dx.state(net)["w"].value) == 5.0
    assert float(dx.merge(*dx.split(net)).w.value) == 5.0
    change(net, "w", dx.Param(jnp.array(6.0)))
    assert float(dx.clone(net).w.value) == 6.0
    assert float(dx.jit(lambda net: net.w[...])(net)) == 6.0


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_static_value_and_a_new_attribute_are_seen_by_split(change):
    net, run = used()
    before = dx.graphdef(net)
    change(net, "scale", 10.0)
    assert dx.graphdef(net) != before
    assert float(run(net)) == 10.0
    change(net, "offset", dx.Param(jnp.array(5.0)))
    assert len(jax.tree.leaves(dx.state(net))) == 2
    assert float(run(net)) == 15.0


def test_an_optimizer_updates_the_variable_that_is_there():
    net, _ = used()
    object.__setattr__(net, "w", dx.Param(jnp.array(5.0)))
    optimizer = dx.Optimizer(net, optax.sgd(0.1), wrt=dx.Param)
    optimizer.update(net, dx.grad(lambda net: net.w[...] ** 2)(net))
    assert float(net.w.value) == 4.0


def test_a_removed_and_an_exchanged_attribute():
    net, _ = used()
    vars(net).pop("w")
    assert jax.tree.leaves(dx.state(net)) == []
    vars(net)["v"] = dx.Param(jnp.ones(()))
    vars(net).pop("scale")
    assert list(dx.state(net)) == ["v"]


def test_arrays_that_are_replaced_are_no_change():
    net = Net()
    net.raw = jnp.ones(2)
    binding = bind(net)
    net.raw = jnp.zeros(2)
    vars(net)["raw"] = jnp.ones(2)
    assert bind(net) is binding
    dx.state(net.child)
    assert bind(net) is binding


def test_a_class_that_overrides_setattr_is_compared_at_each_call():
    net, run = used(Overriding)
    net.scale = 10.0
    assert float(run(net)) == 10.0
    net.w = dx.Param(jnp.array(5.0))
    assert float(run(net)) == 15.0
    net.offset = 1.0
    assert float(run(net)) == 16.0
    binding = bind(net)
    assert bind(net) is binding


class Offset(Net):
    @property
    def offset(self):
        return 100.0


@pytest.mark.parametrize("change", [setattr, object.__setattr__])
def test_another_class_is_seen(change):
    """As `%autoreload` of IPython gives it: a new class, past `__setattr__`."""

    class Reloaded(Offset):
        pass

    net, run = used()
    change(net, "__class__", type("Reloaded", (Offset,), {}) if change is object.__setattr__ else Reloaded)
    assert float(run(net)) == 101.0
    assert type(dx.clone(net)) is type(net)


def test_another_class_that_is_known_is_seen_by_split():
    Offset()
    net, _ = used()
    object.__setattr__(net, "__class__", Offset)
    assert type(dx.merge(*dx.split(net))) is Offset


class Lazy(dx.Module):
    def __init__(self):
        self.v = dx.Param(jnp.zeros(()))

    @functools.cached_property
    def head(self):
        return Net()

    @functools.cached_property
    def heads(self):
        return [Net()]

    @functools.cached_property
    def factor(self):
        return 2.0

    @functools.cached_property
    def table(self):
        return jnp.ones(2)


def test_a_submodule_of_a_cached_property_is_state():
    net = Lazy()
    net.head.w[...] = 3.0

    @dx.jit
    def step(net):
        net.head.w[...] += 1
        return net.head.w[...]

    assert [float(step(net)) for _ in range(3)] == [4.0, 5.0, 6.0]
    assert float(net.head.w.value) == 6.0
    assert len(jax.tree.leaves(dx.state(net))) == 2
    del net.head
    assert len(jax.tree.leaves(dx.state(net))) == 1


def test_a_submodule_that_a_traced_function_makes_comes_back():
    net = Lazy()

    @dx.jit
    def step(net):
        net.head.w[...] += 1
        net.heads[0].w[...] += 2
        return net.head.w[...]

    assert [float(step(net)) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert float(net.head.w.value) == 3.0
    assert float(net.heads[0].w.value) == 6.0


def test_what_else_a_cached_property_computes_is_no_part_of_the_tree():
    net = Lazy()
    before = dx.graphdef(net)
    assert net.factor == 2.0
    assert net.table.shape == (2,)
    assert dx.graphdef(net) is before
    vmapped = dx.vmap(lambda net, x: x * net.factor, in_axes=(None, 0), graph_updates=False)
    assert vmapped(net, jnp.ones(2)).tolist() == [2.0, 2.0]


# ----------------------------------------------------------------- compiled functions


class Scaled(dx.Module):
    def __init__(self):
        self.scale = 2.0
        self.w = dx.Param(jnp.array(3.0))

    @functools.cached_property
    def cached(self):
        return 5


def scaled(model):
    return model.w * model.scale


def test_the_second_call_sees_what_was_written_past_setattr():
    model, f = Scaled(), dx.jit(scaled)
    assert f(model) == 6.0
    vars(model)["scale"] = 10.0
    with pytest.warns(StaleValueWarning, match=r"^Scaled.scale was written past `__setattr__`") as caught:
        assert f(model) == 30.0
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda model: vars(model).update(scale=10.0), 30.0),
        (lambda model: object.__setattr__(model, "w", dx.Param(jnp.array(7.0))), 14.0),
    ],
)
def test_later_calls_see_it_in_the_end(write, expected):
    model, f = Scaled(), dx.jit(scaled)
    for _ in range(100):
        f(model)
    write(model)
    with pytest.warns(StaleValueWarning):
        results = [float(f(model)) for _ in range(61)]
    assert results[-1] == expected


EAGER = {
    "vmap": dx.vmap(lambda model, x: scaled(model) * x, in_axes=(None, 0)),
    "remat": dx.remat(lambda model, x: scaled(model) * x),
    "grad": lambda model, x: dx.grad(lambda model: scaled(model) ** 2 / 2)(model)["w"].value / model.scale,
    "scan": lambda model, x: dx.scan(lambda model, x: (model, scaled(model) * x))(model, x)[1],
    "cond": lambda model, x: dx.cond(True, scaled, lambda model: 0 * scaled(model), model),
    "vjp": lambda model, x: dx.vjp(scaled, model)[0],
}


@pytest.mark.parametrize("f", EAGER.values(), ids=EAGER)
def test_other_transforms_see_it_in_each_call(f):
    model, x = Scaled(), jnp.ones(1)
    for scale in (2.0, 10.0, 20.0):
        vars(model)["scale"] = scale
        assert float(jnp.squeeze(f(model, x))) == 3 * scale
    vars(model)["w"] = dx.Param(jnp.array(5.0))
    assert float(jnp.squeeze(f(model, x))) == 100.0


def test_a_compiled_function_with_static_arguments_sees_it_in_the_second_call():
    model, f = Scaled(), dx.jit(lambda model, times: scaled(model) * times, static_argnames="times")
    assert f(model, 2) == 12.0
    vars(model)["scale"] = 10.0
    with pytest.warns(StaleValueWarning, match="^Scaled.scale"):
        assert f(model, 2) == 60.0


def test_calls_of_two_models_in_turns_see_it_in_the_end():
    models, f = [Scaled(), Scaled()], dx.jit(scaled)
    for _ in range(5):
        assert [*map(f, models)] == [6.0, 6.0]
    for model in models:
        vars(model)["scale"] = 10.0
    with pytest.warns(StaleValueWarning):
        results = [[*map(f, models)] for _ in range(61)]
    assert results[-1] == [30.0, 30.0]


@pytest.mark.parametrize("options", [{}, {"static_argnames": "times"}, {"donate_argnames": "model"}], ids=str)
def test_a_function_that_gives_the_model_back_does_not_put_an_old_value_back(options):
    model, f = Scaled(), dx.jit(lambda model, times=1: (model, model.w * model.scale * times), **options)
    for _ in range(10):
        f(model, times=1)
    for scale in (10.0, 20.0):
        vars(model)["scale"] = scale
        with pytest.warns(StaleValueWarning):
            same, result = f(model, times=1)
        assert (same is model, float(result), model.scale) == (True, 3 * scale, scale)


def test_a_scan_does_not_put_an_old_value_back():
    model, f = Scaled(), dx.scan(lambda model, x: (model, scaled(model) * x))
    for scale in (2.0, 10.0, 20.0):
        vars(model)["scale"] = scale
        assert [float(f(model, jnp.ones(1))[1][0]) for _ in range(3)] == [3 * scale] * 3
        assert model.scale == scale


@pytest.mark.parametrize(
    ("name", "write", "expected"),
    [
        ("extra", lambda attributes: attributes.update(extra=4.0), 24.0),
        ("scale", lambda attributes: attributes.pop("scale"), 3.0),
    ],
)
def test_new_and_removed_attributes_are_warned_of(name, write, expected):
    model = Scaled()
    f = dx.jit(lambda model: model.w * getattr(model, "scale", 1.0) * getattr(model, "extra", 1.0))
    f(model)
    write(vars(model))
    with pytest.warns(StaleValueWarning, match=rf"^Scaled.{name} was written past"):
        assert f(model) == expected


def test_a_cached_property_is_not_warned_of():
    model, f = Scaled(), dx.jit(scaled)
    f(model)
    assert model.cached == 5
    assert [float(f(model)) for _ in range(70)] == [6.0] * 70
    del vars(model)["cached"]
    assert [float(f(model)) for _ in range(70)] == [6.0] * 70
    assert f.num_traces == 1

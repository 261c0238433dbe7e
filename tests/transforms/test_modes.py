"""`graph=` and `graph_updates=` of transforms."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import GraphError, TransformError

pytestmark = pytest.mark.sampled(6)


class Model(dx.Module):
    def __init__(self):
        self.scale = dx.Param(jnp.ones(2))
        self.mode = "a"


def double(model, *others):
    model.scale.value = model.scale.value * 2
    return (model.scale.value**2).sum()


def add_attribute(model, *others):
    model.new = dx.Param(jnp.ones(1))
    return double(model)


def set_static(model, *others):
    model.mode = "b"
    return double(model)


def swap_variable(model, *others):
    model.scale = dx.Param(model.scale.value)
    return double(model)


TRANSFORMS = {"jit": dx.jit, "grad": dx.grad, "value_and_grad": dx.value_and_grad}
each_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
MODES = [{"graph": False}, {"graph_updates": False}, {"graph": True, "graph_updates": False}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)
each_change = pytest.mark.parametrize(
    ("change", "path"), [(add_attribute, "model.new"), (set_static, "model.mode"), (swap_variable, "model.scale")]
)


@each_transform
@each_mode
def test_variables_are_written_in_each_mode(transform, mode):
    model = Model()
    transform(double, **mode)(model)
    assert model.scale.value.tolist() == [2, 2]


@each_transform
@each_mode
@each_change
def test_a_changed_structure_is_an_error_where_it_does_not_come_back(transform, mode, change, path):
    model = Model()
    graphdef, state = dx.split(model)
    with pytest.raises(TransformError, match="changes the structure of its arguments") as caught:
        transform(change, **mode)(model)
    assert f"{path}: the function changes" in str(caught.value)
    assert dx.split(model) == (graphdef, state)


@each_transform
@each_change
def test_a_changed_structure_comes_back_by_default(transform, change, path):
    model = Model()
    transform(change)(model)
    assert model.scale.value.tolist() == [2, 2]
    assert (hasattr(model, "new"), model.mode) == (change is add_attribute, "b" if change is set_static else "a")


@each_transform
def test_a_change_that_is_undone_is_none(transform):
    def sow_and_pop(model):
        model.sow(dx.Intermediate, "seen", model.scale.value)
        assert len(dx.pop(model, dx.Intermediate)) == 1
        return double(model)

    transform(sow_and_pop, graph_updates=False)(Model())


@pytest.mark.parametrize("name", ["jit", "grad", "value_and_grad"])
def test_trees_share_nothing(name):
    transform = DECORATORS[name]
    shared = Model()
    transform(double)(shared, shared)
    with pytest.raises(GraphError, match="reached twice") as caught:
        transform(double, graph=False)(shared, shared)
    assert "found at paths [0] and [1]" in str(caught.value)
    transform(double, graph_updates=False)(shared, shared)
    assert shared.scale.value.tolist() == [4, 4]


def test_new_models_may_be_returned_in_each_mode():
    for mode in MODES:
        made = dx.jit(lambda m: Model(), **mode)(Model())
        assert made.scale.value.tolist() == [1, 1]


@pytest.mark.parametrize("run", [dx.jit, dx.remat, dx.vmap, dx.checkify, dx.make_jaxpr], ids=lambda run: run.__name__)
@each_mode
def test_variables_of_arguments_in_results(run, mode):
    model = Model()
    state = dx.state(model)
    for f, where in ((lambda m: [m], "the result[0].scale"), (lambda m: (1, {"a": m.scale}), "the result[1].a")):
        with pytest.raises(TransformError, match="returns a Variable of its arguments") as caught:
            run(f, **mode)(model)
        assert str(caught.value).startswith(f"{where}:")
        assert "m.scale" in str(caught.value)
    assert dx.state(model).leaves == state.leaves
    assert dx.jit(lambda m: [m])(model)[0] is model
    run(dx.clone, **mode)(model)


def test_trees_in_results_share_nothing():
    def twice():
        made = Model()
        return [made, made]

    with pytest.raises(TransformError, match=r"the result\[1\]: this is reached twice, so the result is not a tree"):
        dx.jit(twice, graph=False)()
    one, other = dx.jit(twice, graph_updates=False)()
    assert one is other


def test_a_transform_takes_the_default_where_it_is_made():
    with dx.set_graph_updates(False):
        strict = dx.jit(set_static)
    with dx.set_graph_mode(False):
        of_trees = dx.jit(double)
    model = Model()
    with pytest.raises(TransformError, match="changes the structure"):
        strict(model)
    with pytest.raises(GraphError, match="reached twice"):
        of_trees(model, model)
    with dx.set_graph_mode(False), dx.set_graph_updates(False):
        dx.jit(set_static, graph=True, graph_updates=True)(model)
    assert model.mode == "b"


# ================================================================= a table of all transforms


def with_rules(made):
    made.defvjp(lambda *models: (made(*models), None), lambda residuals, g: (None, None))
    return made


def over_steps(*function, **mode):
    return dx.scan(*function, in_axes=0, out_axes=0, **mode)


def on_one_device(*function, **mode):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return dx.shard_map(*function, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), **mode)


def on_each_device(*function, **mode):
    made = dx.pmap(*function, in_axes=(None, None, 0), out_axes=None, **mode)
    return (lambda *models: made(*models, jnp.zeros(1))) if function else lambda f: on_each_device(f, **mode)


def tangents_of(models):
    return tuple(dx.state(model, dx.Param) for model in models)


def looped_while(f, models, **mode):
    return dx.while_loop(lambda v: v[1] < 1, lambda v: (f(*v[0]), (v[0], v[1] + 1))[1], (models, 0), **mode)


def looped_for(f, models, **mode):
    return dx.fori_loop(0, 1, lambda i, models: (f(*models), models)[1], models, **mode)


def as_function(make):
    return lambda f, models, **mode: make(f, **mode)(*models)


def as_decorator(make):
    return lambda f, models, **mode: make(**mode)(f)(*models)


DECORATORS = {
    "jit": dx.jit,
    "vmap": dx.vmap,
    "scan": over_steps,
    "grad": functools.partial(dx.grad, argnums=(0, 1)),
    "value_and_grad": functools.partial(dx.value_and_grad, argnums=(0, 1)),
    "remat": dx.remat,
    "make_jaxpr": dx.make_jaxpr,
    "shard_map": on_one_device,
    "pmap": on_each_device,
}
WAYS = {
    **{name: as_function(make) for name, make in DECORATORS.items()},
    **{f"@{name}": as_decorator(make) for name, make in DECORATORS.items()},
    "jit_partial": lambda f, models, **mode: dx.jit_partial(f, models[0], **mode)(*models[1:]),
    "while_loop": looped_while,
    "fori_loop": looped_for,
    "cond": lambda f, models, **mode: dx.cond(True, f, f, *models, **mode),
    "switch": lambda f, models, **mode: dx.switch(1, [f, f], *models, **mode),
    "vjp": lambda f, models, **mode: dx.vjp(f, *models, **mode),
    "@vjp": as_decorator(dx.vjp),
    "jvp": lambda f, models, **mode: dx.jvp(f, models, tangents_of(models), **mode),
    "@jvp": lambda f, models, **mode: dx.jvp(**mode)(f)(models, tangents_of(models)),
    "custom_vjp": lambda f, models, **mode: with_rules(dx.custom_vjp(f, **mode))(*models),
    "@custom_vjp": lambda f, models, **mode: with_rules(dx.custom_vjp(**mode)(f))(*models),
    "checkify": lambda f, models, **mode: dx.checkify(f, **mode)(*models),
    "eval_shape": lambda f, models, **mode: dx.eval_shape(f, *models, **mode),
}
TRACED_ONLY = {"make_jaxpr", "@make_jaxpr", "eval_shape"}
LOOPS = {"while_loop", "fori_loop"}


def each_way(without=()):
    ways = [pytest.param(run, id=name) for name, run in WAYS.items() if name not in without]
    return pytest.mark.parametrize("run", ways)


def pair_that_shares():
    one, other = Model(), Model()
    other.scale = one.scale
    return one, other


def given(run, f, models, **mode):
    run(f, models, **mode)


def as_default(run, f, models, *, graph=True, graph_updates=True):
    with dx.set_graph_mode(graph), dx.set_graph_updates(graph_updates):
        run(f, models)


each_giving = pytest.mark.parametrize("give", [given, as_default])


@each_way()
@each_giving
def test_each_transform_of_trees_refuses_what_is_shared(run, give):
    models = pair_that_shares()
    give(run, double, models, graph_updates=False)
    before = models[0].scale.value
    with pytest.raises(GraphError, match="reached twice"):
        give(run, double, models, graph=False)
    assert models[0].scale.value is before


@each_way(without={"eval_shape"})
@each_giving
@each_mode
def test_each_transform_refuses_a_changed_structure_where_the_mode_says_so(run, give, mode):
    models = Model(), Model()
    before = dx.split(models)
    text = "the function changes the structure of its arguments here"  # loops say something else by default
    with pytest.raises(TransformError, match=text):
        give(run, add_attribute, models, **mode)
    assert dx.split(models) == before


@each_way(without=TRACED_ONLY)
@pytest.mark.parametrize("mode", [*MODES, {}], ids=str)
def test_each_transform_gives_back_what_is_set_in_each_mode(run, mode):
    models = Model(), Model()
    run(lambda one, other, *_: double(one) + double(other), models, **mode)
    assert [model.scale.value.tolist() for model in models] == [[2, 2]] * 2


@each_way(without=TRACED_ONLY | LOOPS)
def test_each_transform_gives_back_a_changed_structure_by_default(run):
    one, other = models = Model(), Model()
    run(add_attribute, models)
    assert (one.scale.value.tolist(), hasattr(one, "new"), hasattr(other, "new")) == ([2, 2], True, False)
    with dx.set_graph_mode(False), dx.set_graph_updates(False):
        run(swap_variable, (other, one), graph=True, graph_updates=True)
    assert (one.scale.value.tolist(), other.scale.value.tolist()) == ([2, 2], [2, 2])

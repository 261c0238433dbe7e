"""`graph=` and `graph_updates=` of transforms."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import GraphError, TransformError


class Model(dx.Module):
    def __init__(self):
        self.scale = dx.Param(jnp.ones(2))
        self.mode = "a"


def double(model, *others):
    model.scale.value = model.scale.value * 2
    return (model.scale.value**2).sum()


def add_attribute(model):
    model.new = dx.Param(jnp.ones(1))
    return double(model)


def set_static(model):
    model.mode = "b"
    return double(model)


def swap_variable(model):
    model.scale = dx.Param(model.scale.value)
    return double(model)


TRANSFORMS = {"jit": dx.jit, "grad": dx.grad, "value_and_grad": dx.value_and_grad}
each_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
MODES = [{"graph": False}, {"graph_updates": False}, {"graph": True, "graph_updates": False}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)
each_change = pytest.mark.parametrize(
    ("change", "path"), [(add_attribute, "new of "), (set_static, ""), (swap_variable, "scale of ")]
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
    assert f"{path}argument 0: the function changes" in str(caught.value)
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


@each_transform
def test_trees_share_nothing(transform):
    shared = Model()
    transform(double)(shared, shared)
    with pytest.raises(GraphError, match="reached twice") as caught:
        transform(double, graph=False)(shared, shared)
    assert "at [0] and at [1]" in str(caught.value)
    transform(double, graph_updates=False)(shared, shared)
    assert shared.scale.value.tolist() == [4, 4]


def test_models_may_be_returned_in_each_mode():
    for mode in MODES:
        model = Model()
        assert dx.jit(lambda m: m, **mode)(model) is model
        made = dx.jit(lambda m: Model(), **mode)(model)
        assert made.scale.value.tolist() == [1, 1]


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

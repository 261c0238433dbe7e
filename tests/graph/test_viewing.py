"""Models that share Variables with another and have other attributes."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given

import declax as dx
from declax._module.viewing import view, view_info, with_attributes
from declax.errors import FieldError, GraphError, StatusError
from strategies import graphs, objects_of, same_graph


class Block(dx.Module):
    def __init__(self, rngs=None):
        rngs = dx.Rngs(0) if rngs is None else rngs
        self.linear = dx.Linear(2, 2, rngs=rngs)
        self.tied = self.linear
        self.dropout = dx.Dropout(0.5, rngs=rngs)
        self.norm = dx.BatchNorm(2, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.dropout(self.linear(x)))


class Mode(dx.Module):
    def __init__(self):
        self.size = 1
        self.inner = dx.List([dx.Dropout(0.1)])

    def set_view(self, size: int | None = None, deterministic: bool | None = None, **kwargs: Any) -> dict[str, Any]:
        if size is not None:
            self.size = size
        return kwargs


# ================================================================= with_attributes


@given(graphs(max_nodes=4))
def test_a_model_with_no_other_attributes_is_a_copy_with_the_same_variables(model):
    made = with_attributes(model)
    assert same_graph(made, model)
    shared = [{id(o) for o in objects_of(m) if isinstance(o, dx.Variable)} for m in (made, model)]
    assert shared[0] == shared[1]
    nodes = [{id(o) for o in objects_of(m) if isinstance(o, dx.Pytree)} for m in (made, model)]
    assert not nodes[0] & nodes[1]


def test_attributes_are_set_in_a_new_model():
    model = Block()
    made = with_attributes(model, deterministic=True, use_running_average=True)
    assert (made.dropout.deterministic, made.norm.use_running_average) == (True, True)
    assert (model.dropout.deterministic, model.norm.use_running_average) == (False, False)
    assert made.linear is made.tied is not model.linear
    assert made.linear.kernel is model.linear.kernel


def test_only_some_modules_get_attributes():
    model = Block()
    model.other = dx.Dropout(0.5)
    made = with_attributes(model, only=dx.PathContains("dropout"), rate=0.25)
    assert (made.dropout.rate, made.other.rate) == (0.25, 0.5)
    made = with_attributes(model, only=(dx.Dropout, dx.Linear), deterministic=True)
    assert (made.dropout.deterministic, made.other.deterministic) == (True, True)


def test_an_unknown_attribute_is_an_error_with_a_suggestion():
    with pytest.raises(
        GraphError, match=r"no module inside has the attributes \['deterministik'\]; did you mean 'deterministic'"
    ):
        with_attributes(Block(), deterministik=True, rate=0.1)
    with pytest.raises(GraphError, match=r"has the attributes \['deterministic'\]"):
        with_attributes(Block(), only=dx.BatchNorm, deterministic=True)
    made = with_attributes(Block(), deterministik=True, rate=0.1, raise_if_not_found=False)
    assert made.dropout.rate == 0.1
    assert not hasattr(made, "deterministik")


def test_values_that_cannot_be_set_are_refused():
    model = Block()
    with pytest.raises(StatusError, match=r"Dropout\.rate: data was assigned"):
        with_attributes(model, rate=jnp.ones(1))
    with pytest.raises(FieldError, match="hides a method"):
        with_attributes(model, sow=True)


def test_attributes_of_frozen_modules_and_of_modules_in_containers():
    @dx.dataclass(frozen=True)
    class Frozen(dx.Module):
        weight: dx.Param[jax.Array]
        width: int = 2

    frozen = Frozen(dx.Param(jnp.ones(1)))
    one, two = with_attributes([frozen, frozen], width=3)
    assert one is two
    assert (one.width, frozen.width) == (3, 2)
    assert one.weight is frozen.weight


def test_an_attribute_may_be_a_module():
    model = Block()
    made = with_attributes(model, only=Block, tied=dx.Linear(3, 3, rngs=dx.Rngs(0)))
    assert made.tied.in_features == 3
    assert model.tied is model.linear


def test_with_attributes_as_the_peer():
    nnx = pytest.importorskip("flax.nnx")
    ours, theirs = dx.Dropout(0.5), nnx.Dropout(0.5)
    assert with_attributes(ours, rate=0.1).rate == nnx.with_attributes(theirs, rate=0.1).rate
    for function, model in ((with_attributes, ours), (nnx.with_attributes, theirs)):
        with pytest.raises(ValueError, match=r"attributes.*\['nope'\]"):
            function(model, nope=1)
        assert type(function(model, nope=1, raise_if_not_found=False)) is type(model)


# ================================================================= view


def test_a_view_has_other_attributes_and_the_same_variables():
    model = Block()
    made = view(model, deterministic=True, use_running_average=True)
    assert (made.dropout.deterministic, made.norm.use_running_average) == (True, True)
    assert (model.dropout.deterministic, model.norm.use_running_average) == (False, False)
    assert made.tied is made.linear
    assert view(made, deterministic=None).dropout.deterministic is True  # None leaves it


def test_training_the_original_shows_in_the_view():
    model = Block()
    evaluated = view(model, deterministic=True, use_running_average=True)
    optimizer = dx.Optimizer(model, optax.sgd(0.1), wrt=dx.Param)

    @dx.jit
    def step(model, optimizer, x):
        grads = dx.grad(lambda m: jnp.sum(m(x) ** 3))(model)
        optimizer.update(model, grads)

    x = jnp.array([[1.0, 2.0], [3.0, 5.0]])
    before = evaluated(x)
    step(model, optimizer, x)
    assert not jnp.allclose(evaluated(x), before)
    assert evaluated.linear.kernel is model.linear.kernel
    assert (evaluated.norm.mean.value == model.norm.mean.value).all()


@pytest.mark.parametrize("flag", ["deterministic", "use_running_average"])
def test_every_layer_that_evaluation_changes_has_a_view_for_it(flag):
    classes = [
        cls for name in dir(dx.nn) if isinstance(cls := getattr(dx.nn, name), type) and issubclass(cls, dx.Module)
    ]
    of_flag = [c for c in classes if dataclasses.is_dataclass(c) and flag in {f.name for f in dataclasses.fields(c)}]
    assert len(of_flag) > 1
    assert all(flag in inspect.signature(cls.set_view).parameters for cls in of_flag)


def test_a_set_view_of_ones_own():
    made = view(Mode(), size=5)
    assert made.size == 5
    # what a module does not return, it has used
    assert view(Mode(), deterministic=True).inner[0].deterministic is True


def test_a_set_view_without_kwargs_is_given_what_it_names():
    class Plain(dx.Module):
        def __init__(self):
            self.size, self.drop = 1, dx.Dropout(0.5)

        def set_view(self, size=None):
            if size is not None:
                self.size = size

    made = view(Plain(), size=2, deterministic=True)
    assert (made.size, made.drop.deterministic) == (2, True)
    assert view(Plain(), deterministic=True).size == 1


def test_a_set_view_that_returns_nothing_has_used_what_it_names():
    class Plain(dx.Module):
        def set_view(self, size=None, **kwargs):
            self.size = size

    assert view(Plain(), size=2).size == 2
    with pytest.raises(GraphError, match=r"uses \['sise'\]; did you mean 'size'"):
        view(Plain(), sise=2)


def test_arguments_that_no_module_uses():
    model = Block()
    with pytest.raises(
        GraphError, match=r"no `set_view` of a module inside uses \['deterministik'\]; did you mean 'deterministic'"
    ):
        view(model, deterministik=True)
    with pytest.raises(GraphError, match=r"expected: +deterministic, use_running_average"):
        view(model, xyz=True)
    with pytest.raises(GraphError, match="no module inside has a `set_view`"):
        view(dx.Linear(1, 1, rngs=dx.Rngs(0)), deterministic=True)
    assert view(model, deterministik=True, use_running_average=True, raise_if_not_found=False).norm.use_running_average


def test_an_error_of_a_set_view_leaves_the_original():
    class Bad(dx.Module):
        def __init__(self):
            self.size = 1

        def set_view(self, size):
            self.size = size
            raise KeyError("bad")

    model = Bad()
    with pytest.raises(KeyError, match="bad"):
        view(model, size=2)
    assert model.size == 1


def test_views_of_a_tree_only():
    for function in (view, with_attributes):
        with pytest.raises(GraphError, match="paths linear and tied"):
            function(Block(), deterministic=True, graph=False)
    with pytest.raises(GraphError, match="paths linear and tied"):
        view_info(Block(), graph=False)


def test_view_as_the_peer():
    nnx = pytest.importorskip("flax.nnx")

    def models(lib):
        class Net(lib.Module):
            def __init__(self, rngs):
                self.drop, self.norm = lib.Dropout(0.5, rngs=rngs), lib.BatchNorm(2, rngs=rngs)
                self.size = 1

            def set_view(self, size: int | None = None, **kwargs):
                if size is not None:
                    self.size = size
                return kwargs

        return Net(lib.Rngs(0))

    ours, theirs = models(dx), models(nnx)
    for arguments in ({"size": 3}, {"deterministic": True}, {"use_running_average": True, "size": 2}):
        made, expected = view(ours, **arguments), nnx.view(theirs, **arguments)
        assert made.size == expected.size
        assert made.drop.deterministic == expected.drop.deterministic
        assert made.norm.use_running_average == expected.norm.use_running_average
        assert (made.norm.mean is ours.norm.mean) == (expected.norm.mean is theirs.norm.mean)
    for function, model in ((view, ours.drop), (nnx.view, theirs.drop)):
        with pytest.raises(ValueError, match=r"\['nope'\]"):
            function(model, nope=1)
    assert [line for line in view_info(ours.drop).splitlines() if not line.startswith("    ")] == [
        line for line in nnx.view_info(theirs.drop).splitlines() if not line.startswith("    ")
    ]


# ================================================================= view_info


def test_view_info_of_layers():
    assert (
        view_info(Block())
        == """\
BatchNorm:
  use_running_average: bool | None = None
    normalize by the running mean and variance, and leave them unchanged.
Dropout:
  deterministic: bool | None = None
    return the input unchanged."""
    )
    assert view_info(Block(), only=dx.Dropout).startswith("Dropout:")
    assert view_info(Block().linear) == ""


def test_view_info_of_ones_own():
    class Odd(dx.Module):
        def set_view(self, first, second: dx.Module = 3, *, third: Any = ...):
            """Sets.

            Args:
              first (int): the first,
                and more: of it.
              third:
                the third.

            Returns:
              second: nothing.
            """

    expected = f"{Odd.__qualname__}:\n  first\n    the first,\n    and more: of it.\n"
    expected += "  second: dx.Module = 3\n  third: Any = Ellipsis\n    the third."
    assert view_info(Odd()) == expected
    assert view_info([Mode()], only=Mode) == "Mode:\n  size: int | None = None\n  deterministic: bool | None = None"


@pytest.mark.parametrize("only", [dx.Linear, dx.Param])
def test_an_error_says_what_only_takes(only):
    model, which = Block(), f"that only={only.__name__} selects"
    with pytest.raises(GraphError, match=f"no `set_view` of a module {which} uses") as caught:
        view(model, only=only, deterministic=True)
    assert f"no module {which} has a `set_view`" in caught.value.expected
    with pytest.raises(GraphError, match=rf"no module {which} has the attributes \['momentum'\]"):
        with_attributes(model, only=only, momentum=0.5)

"""`diff` of two models: what differs, in the order structure and arrays, and what `structure` says of the same pair."""

from __future__ import annotations

import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import GraphError


class Model(dx.Module):
    def __init__(self, rngs: dx.Rngs) -> None:
        self.layers = dx.List([dx.Linear(2, 3, rngs=rngs), dx.Linear(3, 3, rngs=rngs)])
        self.drop = dx.Dropout(0.5, rngs=rngs)
        self.act = lambda x: dx.relu(x) + 1
        self.sizes = (1, 2)
        self.pair = dx.data([dx.Param(jnp.ones(2)), dx.Param(jnp.array(jnp.nan))])
        self.table = np.arange(3)
        self.tied = self.layers[0]
        self.gain = 1.0
        self.marker = object()


def model() -> Model:
    return Model(dx.Rngs(0))


def written(m: Model) -> str:
    """The structure as text, which tells 1 from 1.0."""
    return json.dumps(dx.structure(m))


CHANGES: dict[str, tuple[Callable[[Model], object], tuple[str, str, str]]] = {
    "a static value": (lambda m: setattr(m.drop, "rate", 0.1), ("drop.rate", "0.5", "0.1")),
    "a static tuple": (lambda m: setattr(m, "sizes", (1, 3)), ("sizes", "(1, 2)", "(1, 3)")),
    "its exact type": (lambda m: setattr(m, "sizes", (1, 2.0)), ("sizes", "(1, 2)", "(1, 2.0)")),
    "an item": (lambda m: m.layers.append(dx.Dropout(0.1)), ("layers[2]", "not there", "Dropout")),
    "no item": (lambda m: m.layers.pop(1), ("layers[1]", "Linear", "not there")),
    "a static list": (lambda m: setattr(m, "sizes", [1, 2]), ("sizes", "(1, 2)", "[1, 2]")),
    "a class": (lambda m: setattr(m, "drop", dx.Linear(1, 1, rngs=dx.Rngs(0))), ("drop", "Dropout", "Linear")),
    "a kind": (lambda m: m.pair.__setitem__(0, dx.BatchStat(jnp.ones(2))), ("pair[0]", "Param", "BatchStat")),
    "metadata": (
        lambda m: dx.set_metadata(m.layers[1].bias, tag="x"),
        ("layers[1].bias", "Param", "Param with {'tag': 'x'}"),
    ),
    "a new attribute": (lambda m: setattr(m, "note", "x"), ("note", "not there", "'x'")),
    "sharing": (lambda m: setattr(m, "tied", dx.clone(m.tied)), ("tied", "the same object as layers[0]", "Linear")),
    "a tie": (
        lambda m: setattr(m.layers[1], "bias", m.layers[0].bias),
        ("layers[1].bias", "Param", "the same object as layers[0].bias"),
    ),
    "a container": (lambda m: setattr(m, "pair", tuple(m.pair)), ("pair", "[0, 1]", "tuple of [0, 1]")),
    "an array of NumPy": (lambda m: setattr(m, "table", jnp.arange(3)), ("table", "an array of NumPy", "an array")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_structure_is_told(name):
    change, expected = CHANGES[name]
    first, second = model(), model()
    change(second)
    assert [tuple(one) for one in dx.diff(first, second)] == [expected]
    path, before, after = expected
    assert [tuple(one) for one in dx.diff(second, first)] == [(path, after, before)]
    assert written(first) != written(second)


ARRAYS: dict[str, tuple[Callable[[Model], object], tuple[str, str, str]]] = {
    "a shape": (
        lambda m: m.layers[0].kernel.set_value(jnp.ones((2, 4))),
        ("layers[0].kernel", "shape (2, 3)", "shape (2, 4)"),
    ),
    "a dtype": (
        lambda m: m.layers[0].bias.set_value(jnp.zeros(3, jnp.bfloat16)),
        ("layers[0].bias", "dtype float32", "dtype bfloat16"),
    ),
    "values": (
        lambda m: m.pair[0].set_value(jnp.array([1.0, 2.0])),
        ("pair[0]", "equal values", "other ones in 1 of 2 places"),
    ),
    "one number": (lambda m: m.pair[1].set_value(jnp.array(2.0)), ("pair[1]", "nan", "2.0")),
    "a count": (lambda m: m.drop(jnp.ones(2)), ("drop.rngs.count", "0", "1")),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_change_of_arrays_is_told(name):
    change, expected = ARRAYS[name]
    first, second = model(), model()
    change(second)
    assert [tuple(one) for one in dx.diff(first, second)] == [expected]
    assert written(first) == written(second)


def test_equal_models_have_no_differences():
    first, second = model(), model()
    assert dx.diff(first, second) == ()
    assert written(first) == written(second)
    assert dx.diff(first, dx.clone(first)) == dx.diff(first, first) == ()
    assert dx.diff([first, first], [second, second]) == ()


def test_what_is_below_a_difference_is_left_out():
    assert [tuple(one) for one in dx.diff(model(), dx.Linear(2, 3, rngs=dx.Rngs(0)))] == [
        ("the model", "Model", "Linear")
    ]
    one = model()
    assert [one.path for one in dx.diff([one, one], [one, model()])] == ["[1]"]


def test_classes_of_one_name_are_told_apart():
    def made() -> type[dx.Module]:
        class Part(dx.Module):
            pass

        Part.__module__ = f"module_{len(classes)}"
        return Part

    classes: list[type[dx.Module]] = []
    classes += [made()]
    classes += [made()]
    (found,) = dx.diff(*(cls() for cls in classes))
    assert found.expected.startswith("module_0.")
    assert found.got.startswith("module_1.")


def test_abstract_models_are_compared_by_shapes():
    first = dx.as_abstract(model())
    assert dx.diff(first, dx.as_abstract(model())) == ()
    other = dx.eval_shape(lambda: dx.Linear(2, 4, rngs=dx.Rngs(0)))
    assert [one.path for one in dx.diff(dx.as_abstract(dx.Linear(2, 3, rngs=dx.Rngs(0))), other)][:1] == [
        "out_features"
    ]
    assert "the description of an array" in str(dx.diff(model(), first)[0])


def test_random_keys_and_refs_are_compared():
    keys = [dx.Variable(jax.random.key(n)) for n in (0, 0, 1)]
    assert dx.diff([keys[0]], [keys[1]]) == ()
    assert str(dx.diff([keys[0]], [keys[2]])[0]).startswith("[0]: expected equal values")
    refs = [dx.Variable(jax.new_ref(jnp.full(2, n))) for n in (0, 0, 1)]
    assert dx.diff([refs[0]], [refs[1]]) == ()
    assert len(dx.diff([refs[0]], [refs[2]])) == 1


def test_states_are_subtracted_as_before():
    state = dx.state(dx.Linear(2, 3, rngs=dx.Rngs(0)))
    assert dx.diff(state, {"bias": 0}).paths == (("kernel",),)


def test_a_model_and_a_state_are_refused():
    layer = dx.Linear(2, 3, rngs=dx.Rngs(0))
    with pytest.raises(GraphError, match="this compares two models or two States"):
        dx.diff(layer, dx.state(layer))


@pytest.mark.parametrize("place", ["first", "second"])
def test_a_deleted_array_is_named(place):
    model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    lost = dx.clone(model)
    lost.kernel.value.delete()
    models = (lost, model) if place == "first" else (model, lost)
    with pytest.raises(GraphError, match=f"^{place}.kernel: this array was deleted"):
        dx.diff(*models)

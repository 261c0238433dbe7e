"""From models back to specs."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from config.spec_models import Block, Gate, Mlp, Model, Open, Train, half, small
from declax.errors import ConfigError, DepthError


@pytest.mark.parametrize(
    "spec",
    [
        small(),
        small(0),
        small(3, named={"b": dx.spec(Gate, 1), "a": dx.spec(Mlp, 1)}, proto=dx.spec(Block, dx.spec(Gate, 1))),
        dx.spec(Train, small(), dx.Ref("/model/blocks/0/mixer"), steps=3),
        dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.relu, dx.spec(dx.Dropout, 0.5), dx.spec(Open, 4)),
        dx.spec(dx.List, [1, "x", dx.spec(dx.Dict, {"a": dx.spec(Gate, 2)}), [dx.Ref("/elements/2")]]),
        dx.spec(dx.Conv, 3, 4, kernel_size=(3, 3), strides=2, param_dtype=jnp.bfloat16),
        dx.spec(dx.BatchNorm, 3, use_bias=False),
    ],
)
def test_the_spec_of_what_is_built_is_the_spec(spec):
    assert dx.spec_of(spec.build(rngs=dx.Rngs(0))) == spec


def test_the_spec_of_a_model_made_by_hand():
    rngs = dx.Rngs(0)
    model = dx.Sequential(dx.Linear(3, 4, use_bias=False, rngs=rngs), half, Open(4, width=3, rngs=rngs))
    spec = dx.spec_of(model)
    assert spec == dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4, use_bias=False), half, dx.spec(Open, 4, width=3))


def test_shared_parts_become_refs_by_identity():
    gate = Gate(4, rngs=dx.Rngs(0))
    several = [gate, Gate(4, rngs=dx.Rngs(0))]
    spec = dx.spec_of(dx.List([gate, several, gate, several]))
    shared = dx.Ref("/elements/0")
    elements = [dx.spec(Gate, 4), [shared, dx.spec(Gate, 4)], shared, dx.Ref("/elements/1")]
    assert spec == dx.Spec(dx.List, {"elements": elements})
    rebuilt = spec.build(rngs=dx.Rngs(0))
    assert rebuilt[1][0] is rebuilt[0] is rebuilt[2]
    assert rebuilt[3] is rebuilt[1]


def test_an_equal_model_comes_out_after_a_change():
    model = small().build(rngs=dx.Rngs(0))
    model.blocks.append(Block(Gate(4, rngs=dx.Rngs(1)), rate=0.5))
    spec = dx.spec_of(model)
    assert spec["blocks.2"] == dx.spec(Block, dx.spec(Gate, 4), rate=0.5)
    assert dx.graphdef(spec.build(rngs=dx.Rngs(5))) == dx.graphdef(model)


def test_abstract_models_have_no_specs():
    with pytest.raises(ConfigError, match=r"Model.embed.embedding_init: this Embed has no record"):
        dx.spec_of(dx.eval_shape(lambda: small().build(rngs=dx.Rngs(0))))


def test_frozen_values_stay_values():
    @dataclasses.dataclass(frozen=True)
    class Range:
        low: int
        high: int

    model = dx.List([Range(1, 2)])
    assert dx.spec_of(model) == dx.spec(dx.List, [Range(1, 2)])


@pytest.mark.parametrize("thing", [3, "model", Model, half])
def test_what_has_no_spec(thing):
    with pytest.raises(ConfigError, match="spec_of: not a model"):
        dx.spec_of(thing)


def test_arrays_of_constructors_are_refused():
    @dx.dataclass
    class Table(dx.Module):
        values: jax.Array

    with pytest.raises(ConfigError, match="a spec cannot hold an array") as caught:
        dx.spec_of(dx.List([Table(jnp.zeros(2))]))
    assert caught.value.where == "List.elements.0.values"


def test_arguments_that_no_attribute_tells():
    class Forgets(dx.Module):
        def __init__(self, size):
            self.kept = 2 * size

    @dx.dataclass
    class Scaled(dx.Module):
        factor: dx.InitVar[float] = 1.0
        offset: dx.InitVar[jax.Array | None] = None

    with pytest.raises(ConfigError, match="Forgets takes 'size', but has no attribute of that name"):
        dx.spec_of(Forgets(3))
    with pytest.raises(ConfigError, match="this Scaled was made with an array for 'offset', which a spec cannot hold"):
        dx.spec_of(Scaled(2.0, jnp.ones(2)))
    assert dx.spec_of(Scaled(2.0)) == dx.spec(Scaled, 2.0)


def test_a_part_in_itself_has_no_spec():
    loop = dx.List([1])
    loop.append(loop)
    with pytest.raises(ConfigError, match="the part contains itself; it is also at"):
        dx.spec_of(loop)


def test_models_are_limited_in_depth():
    deep = dx.List([1])
    for _ in range(10_000):
        deep = dx.List([deep])
    with pytest.raises(DepthError, match="a model is nested more than 100 levels deep for a spec"):
        dx.spec_of(deep)


def test_arguments_have_the_form_that_constructors_keep():
    found = dx.spec_of(dx.spec(dx.Conv, 4, 6, 3).build(rngs=dx.Rngs(0)))
    assert found == dx.spec(dx.Conv, 4, 6, (3,)) != dx.spec(dx.Conv, 4, 6, 3)
    assert dx.spec_of(found.build(rngs=dx.Rngs(0))) == found

"""Every layer of declax is written to a configuration and read again, also where an annotation names a base."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from config.schema_checks import refused_by
from declax._typing import Initializer
from declax.errors import LayerError
from nn.test_every_layer import CASES, made

NAMES = [name for name in CASES if name != "Stacked"]  # which a function makes there

MORE: dict[str, Any] = {
    "Stacked": lambda rngs: dx.Stacked(dx.spec(dx.Linear, 8, 8), 2, rngs=rngs, unroll=2),
    "RoPE": lambda rngs: dx.RoPE(),
    "Dict": lambda rngs: dx.Dict({"a": dx.Linear(2, 3, rngs=rngs), "b": dx.PReLU(0.3)}),
    "List": lambda rngs: dx.List([dx.Linear(2, 3, rngs=rngs), dx.PReLU()]),
    "Sequential": lambda rngs: dx.Sequential(dx.Linear(2, 3, rngs=rngs), dx.relu, dx.PReLU(0.1)),
    "PReLU, with a slope": lambda rngs: dx.PReLU(0.25),
    "RNN, reversed": lambda rngs: dx.RNN(dx.LSTMCell(2, 3, rngs=rngs), reverse=True, keep_order=True, rngs=rngs),
}


def layer(name: str) -> Any:
    return MORE[name](dx.Rngs(0)) if name in MORE else made(name)


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_a_layer_is_written_and_read_again(name):
    model = layer(name)
    spec = dx.spec_of(model)
    data = dx.to_config(spec)
    for annotation in (type(model), Any, dx.Module):
        read = dx.spec_from_config(annotation, {"kind": type(model).__name__, **data})
        assert read == spec, annotation
        assert read.fingerprint() == spec.fingerprint()
    again = read.build(rngs=dx.Rngs(0))
    assert dx.spec_of(again) == spec
    assert jax.tree.structure(dx.state(again)) == jax.tree.structure(dx.state(model))
    assert dx.to_config(spec, full=True).keys() >= data.keys()


@pytest.mark.parametrize(
    "name", ["RNN", "SpectralNorm", "WeightNorm", "PReLU", "Bidirectional", "Stacked", "in Sequential"]
)
def test_a_saved_layer_is_loaded_as_a_model(name, tmp_path):
    wrap = {
        "RNN": lambda: dx.RNN(dx.GRUCell(2, 3, rngs=dx.Rngs(0))),
        "in Sequential": lambda: dx.Sequential(dx.RNN(dx.GRUCell(2, 3, rngs=dx.Rngs(0))), dx.PReLU()),
    }
    model = wrap[name]() if name in wrap else layer(name)
    dx.save(tmp_path / "saved", {"model": model})
    found = dx.load(tmp_path / "saved")["model"]
    assert type(found) is type(model)
    assert dx.split(found)[0] == dx.split(model)[0]
    for mine, other in zip(jax.tree.leaves(dx.state(found)), jax.tree.leaves(dx.state(model)), strict=True):
        if jnp.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, other = jax.random.key_data(mine), jax.random.key_data(other)
        np.testing.assert_array_equal(mine, other)


@dx.dataclass
class Wrapper(dx.Module):
    inner: dx.Module


@dx.dataclass
class OfLayer(dx.Module):
    inner: dx.Layer | None = None
    more: list[dx.Pytree] = dx.field(default_factory=list)
    cell: dx.RNNCellBase[Any] | None = None


M = TypeVar("M", bound=dx.Module)


def taking(inner: M) -> M:
    return inner


LINEAR = {"kind": "Linear", "in_features": 2, "out_features": 3}


@pytest.mark.parametrize("target", [Wrapper, OfLayer, taking])
def test_a_base_of_the_library_admits_its_layers(target):
    assert dx.spec_from_config(target, {"inner": LINEAR}) == dx.spec(target, inner=dx.spec(dx.Linear, 2, 3))


def test_the_schema_has_the_layers_of_a_base():
    schema = dx.json_schema(Wrapper)
    assert not refused_by(schema, {"inner": LINEAR})
    assert not refused_by(schema, {"inner": {"kind": "Stacked", "build": LINEAR, "n": 2}})
    for wrong in ({**LINEAR, "in_feature": 1}, {"kind": "Linear"}, {"kind": "RNNCellBase"}, {"in_features": 2}):
        assert refused_by(schema, {"inner": wrong}), wrong


def test_the_kind_is_needed_and_near_names_are_told():
    with pytest.raises(dx.ConfigError, match="'kind'"):
        dx.spec_from_config(Wrapper, {"inner": {"in_features": 2}})
    with pytest.raises(dx.ConfigError, match="did you mean 'Linear'"):
        dx.spec_from_config(Wrapper, {"inner": {"kind": "Linaer", "in_features": 2}})
    with pytest.raises(dx.ConfigError, match="unknown kind"):  # a base does not admit what is not below it
        dx.spec_from_config(OfLayer, {"cell": LINEAR})
    with pytest.raises(dx.ConfigError, match="unknown kind"):
        dx.spec_from_config(Wrapper, {"inner": {"kind": "RNNCellBase"}})


def test_a_class_of_a_user_takes_the_name_of_a_layer():
    class Linear(dx.Module):
        def __init__(self, width: int):
            self.width = width

    spec = dx.spec_from_config(Wrapper, {"inner": {"kind": "Linear", "width": 3}}, extra=[Linear])
    assert spec["inner"].target is Linear

    def take(inner: Linear | dx.Module) -> None: ...

    take.__annotations__["inner"] = Linear | dx.Module
    assert dx.spec_from_config(take, {"inner": {"kind": "Linear", "width": 3}})["inner"].target is Linear
    take.__annotations__["inner"] = dx.Module | Linear


def test_a_base_of_a_user_admits_no_other_layers():
    class Mixer(dx.Module): ...

    def take(mixer): ...

    take.__annotations__["mixer"] = Mixer
    with pytest.raises(dx.ConfigError, match="unknown kind"):
        dx.spec_from_config(take, {"mixer": LINEAR})


def test_directions_are_tables():
    gru = {"kind": "RNN", "cell": {"kind": "GRUCell", "in_features": 2, "hidden_features": 3}}
    model = dx.from_config(dx.Bidirectional, {"forward_rnn": gru, "backward_rnn": gru}, rngs=dx.Rngs(0))
    assert model(jnp.ones((1, 4, 2))).shape == (1, 4, 6)
    shared = {"forward_rnn": gru, "backward_rnn": {"$ref": "/forward_rnn"}}
    model = dx.from_config(dx.Bidirectional, shared, rngs=dx.Rngs(0))
    assert model.forward_rnn is model.backward_rnn
    with pytest.raises(dx.ConfigError, match="unknown kind"):
        dx.spec_from_config(dx.Bidirectional, {"forward_rnn": gru, "backward_rnn": LINEAR})


def make_block(rngs: dx.Rngs, dim: int = 4) -> dx.Linear:
    return dx.Linear(dim, dim, rngs=rngs)


def test_a_stack_from_a_file_is_the_stack_of_python():
    data = {"build": {"kind": "Linear", "in_features": 4, "out_features": 4}, "n": 3}
    read = dx.from_config(dx.Stacked, data, rngs=dx.Rngs(0))
    mine = dx.Stacked(lambda rngs: dx.Linear(4, 4, rngs=rngs), 3, rngs=dx.Rngs(0))
    np.testing.assert_array_equal(read.layers.kernel[...], mine.layers.kernel[...])
    assert read(jnp.ones((2, 4))).shape == (2, 4)
    assert dx.split(read)[0] == dx.split(dx.from_config(dx.Stacked, data, rngs=dx.Rngs(1)))[0]
    of_function = dx.spec(dx.Stacked, make_block, 2)
    assert of_function.build(rngs=dx.Rngs(0)).length == 2
    data = {"build": {"kind": "make_block", "dim": 5}, "n": 2}
    called = dx.spec_from_config(dx.Stacked, data, extra=[make_block])
    assert called == dx.spec(dx.Stacked, dx.spec(make_block, dim=5), 2)
    assert called.build(rngs=dx.Rngs(0)).layers.kernel.shape == (2, 5, 5)
    with pytest.raises(dx.ConfigError):
        dx.spec_from_config(dx.Stacked, {"build": {"kind": "Linear", "in_features": 4}, "n": 3})


def test_a_stack_of_a_function_has_no_spec():
    stack = dx.Stacked(functools.partial(make_block, dim=4), 2, rngs=dx.Rngs(0))
    with pytest.raises(dx.ConfigError, match="a function made the layers"):
        dx.spec_of(stack)
    with pytest.raises(LayerError, match="this is not a function that makes a layer, or a Spec"):
        dx.Stacked(3, 2)


def test_an_array_is_no_argument_of_a_spec():
    with pytest.raises(dx.ConfigError, match="was made with an array for 'negative_slope_init'"):
        dx.spec_of(dx.PReLU(jnp.ones(3)))
    assert dx.spec_of(dx.PReLU()) == dx.spec(dx.PReLU)
    assert dx.replace(dx.PReLU(0.25), param_dtype=jnp.bfloat16).negative_slope[...] == 0.25


def test_a_changed_stack_has_no_spec():
    stack = dx.Stacked(dx.spec(dx.Linear, 4, 4), 2, rngs=dx.Rngs(0))
    stack.layers.bias = None
    with pytest.raises(dx.ConfigError, match="differs from what its Spec makes"):
        dx.spec_of(stack)


def test_initializers_are_no_layers():
    def take(init): ...

    take.__annotations__["init"] = Initializer
    with pytest.raises(dx.ConfigError):
        dx.spec_from_config(take, {"init": LINEAR})

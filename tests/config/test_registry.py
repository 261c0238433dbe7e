"""A closed world: what data may choose, and how code lets more in."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax import initializers
from declax._typing import Initializer
from declax.config import registry
from declax.nn import activations


@pytest.fixture(autouse=True)
def _nothing_stays_registered(monkeypatch):
    monkeypatch.setattr(registry, "_KINDS", {})
    registry.on_change(lambda: None)
    yield
    for notify in registry._on_change:
        notify()


class Mixer(dx.Module):
    def __init__(self, size: int = 1):
        self.size = size


class Shift(Mixer):
    pass


@dx.dataclass
class Block(dx.Module):
    mixer: Mixer


def test_a_base_does_not_let_its_subclasses_in():
    assert isinstance(dx.from_config(Block, {"mixer": {"kind": "Mixer"}}).mixer, Mixer)
    with pytest.raises(dx.ConfigError, match="the configuration has one problem") as caught:
        dx.from_config(Block, {"mixer": {"kind": "Shift"}})
    assert caught.value.problems[0].code == "unknown-kind"


def test_code_lets_them_in():
    assert dx.register_kind(Mixer, Shift) is Shift
    assert type(dx.from_config(Block, {"mixer": {"kind": "Shift", "size": 2}}).mixer) is Shift
    with pytest.raises(dx.ConfigError, match="the configuration has one problem") as caught:
        dx.from_config(Block, {"mixer": {"size": 2}})
    assert caught.value.problems[0].code == "missing-kind"


def test_a_kind_may_have_another_name_and_be_a_function():
    @dx.register_kind(Mixer, name="wide")
    def make_wide(factor: int = 2) -> Mixer:
        return Mixer(64 * factor)

    config = {"kind": "Block", "mixer": {"kind": "wide", "factor": 3}}
    spec = dx.spec_from_config(Block, config)
    assert spec == dx.spec(Block, dx.spec(make_wide, 3))
    assert dx.to_config(spec) == config
    assert spec.build().mixer.size == 192


def test_extra_classes_stand_for_their_bases_once():
    assert type(dx.from_config(Block, {"mixer": {"kind": "Shift"}}, extra=[Shift]).mixer) is Shift
    with pytest.raises(dx.ConfigError, match="the configuration has"):
        dx.from_config(Block, {"mixer": {"kind": "Shift"}}, extra=[Block])
    with pytest.raises(dx.ConfigError, match="the configuration has"):
        dx.from_config(Block, {"mixer": {"kind": "Shift"}})


class Encoder(ABC):
    @abstractmethod
    def encode(self): ...


class Sum(Encoder):
    def encode(self):
        return 1


class Scorer(Protocol):
    def score(self) -> int: ...


class Ones:
    def score(self) -> int:
        return 1


@dx.dataclass
class Model(dx.Module):
    encoder: Encoder = dx.static()
    scorer: Scorer | None = dx.static(default=None)


def test_abstract_classes_and_protocols_have_only_what_is_registered():
    with pytest.raises(dx.ConfigError, match="the configuration has one problem") as caught:
        dx.from_config(Model, {"encoder": {}})
    assert caught.value.problems[0].code == "no-data"
    dx.register_kind(Encoder, Sum)
    dx.register_kind(Scorer, Ones)
    model = dx.from_config(Model, {"encoder": {}, "scorer": {"kind": "Ones"}})
    assert (type(model.encoder), type(model.scorer)) == (Sum, Ones)


def test_a_name_is_taken_once():
    dx.register_kind(Mixer, Shift)
    dx.register_kind(Mixer, Shift)
    with pytest.raises(dx.DeclaxError, match="another kind of Mixer has the name 'Shift'"):
        dx.register_kind(Mixer, Block, name="Shift")


def test_a_module_that_runs_again_registers_its_classes_again():
    first = type("Again", (), {"__module__": "m", "__qualname__": "Again"})
    second = type("Again", (), {"__module__": "m", "__qualname__": "Again"})
    dx.register_kind(Mixer, first)
    assert dx.register_kind(Mixer, second) is second
    assert registry.kinds_of(Mixer)["Again"] is second


def my_activation(x: jax.Array) -> jax.Array:
    return x * 2


def my_init(scale: float = 1.0):
    return initializers.constant(scale)


@dx.dataclass
class Acting(dx.Module):
    act: Callable[[jax.Array], jax.Array] = dx.static(default=dx.relu)
    init: Initializer = dx.static(default=initializers.zeros)


def test_functions_and_initializers_get_names():
    with pytest.raises(dx.ConfigError, match="the configuration has 2 problems"):
        dx.from_config(Acting, {"act": "my_activation", "init": {"kind": "my_init"}})
    dx.register_kind(Callable, my_activation)
    dx.register_kind(Initializer, my_init)
    model = dx.from_config(Acting, {"act": "my_activation", "init": {"kind": "my_init", "scale": 2.0}})
    assert model.act is my_activation
    assert model.init == initializers.constant(2.0)
    assert dx.to_config(dx.spec(Acting, act=my_activation)) == {"kind": "Acting", "act": "my_activation"}


def test_a_base_may_be_written_with_arguments():
    dx.register_kind(typing.Callable, my_activation)
    assert dx.from_config(Acting, {"act": "my_activation"}).act is my_activation


def test_a_schedule_of_one_s_own():
    def steps(every: int):
        return lambda step: step // every

    dx.register_kind(optax.Schedule, steps)
    config = {"kind": "sgd", "learning_rate": {"kind": "steps", "every": 2}}
    assert dx.spec_from_config(optax.GradientTransformation, config).arguments["learning_rate"] == dx.spec(steps, 2)
    with pytest.raises(dx.ConfigError, match="the configuration has one problem"):
        dx.from_config(Acting, {"act": "steps"})


def test_bases_that_have_no_hash_have_no_kinds():
    assert not registry.kinds_of([])


def test_the_tables_hold_what_the_modules_do():
    for name, function in registry.ACTIVATIONS.items():
        assert getattr(activations, name) is function
    factories = {
        n for n in vars(initializers) if n.islower() and not n.startswith("_") and callable(getattr(initializers, n))
    }
    others = {"adapted", "cast", "dataclass", "get_args", "on_mesh", "put", "with_metadata", "with_partitioning"}
    others.add("without_metadata")
    assert factories - others - {"ones_init", "zeros_init"} == set(registry.INITIALIZERS)
    for name, dtype in registry.DTYPES.items():
        assert jnp.dtype(dtype).name == name
        assert registry.dtype_name(np.dtype(dtype)) == name
    assert registry.dtype_name("float32") is None
    assert registry.transformations()["adamw"].__module__.startswith("optax")


class Mixes(Protocol):
    size: int

    def mix(self, x: float) -> float: ...


class Adds(dx.Module):
    def __init__(self, size: int = 1):
        self.size = size

    def mix(self, x: float) -> float:
        return x + self.size


class Sums(dx.Module):
    pass


class Takes(dx.Module):
    def __init__(self, mixer: Mixes, other: Mixer | None = None, call: Callable[[float], float] | None = None):
        self.mixer, self.other, self.call = mixer, other, call


def twice(x: float) -> float:
    return 2 * x


def test_extra_classes_stand_for_a_protocol_whose_methods_they_have():
    built = dx.from_config(Takes, {"mixer": {"kind": "Adds", "size": 2}}, extra=[Adds, Sums])
    assert type(built.mixer) is Adds
    with pytest.raises(dx.ConfigError, match="unknown kind"):
        dx.from_config(Takes, {"mixer": {"kind": "Sums"}}, extra=[Adds, Sums])
    assert dx.json_schema(Takes, extra=[Adds])["properties"]["mixer"]
    runtime = typing.runtime_checkable(Mixes)
    assert list(registry.implementations(runtime, [Adds, Sums])) == ["Adds"]


def test_a_protocol_without_implementations_is_no_function():
    with pytest.raises(dx.ConfigError, match="a configuration cannot give a Mixes") as caught:
        dx.from_config(Takes, {"mixer": {"kind": "Adds"}})
    assert "extra=" in str(caught.value)
    assert "function" not in str(caught.value)


def test_extra_functions_stand_for_functions():
    data = {"mixer": {"kind": "Adds"}, "call": "twice"}
    extra = [Adds, twice]
    spec = dx.spec_from_config(Takes, data, extra=extra)
    assert spec.build().call is twice
    assert dx.spec_from_config(Takes, dx.to_config(spec, extra=extra), extra=extra) == spec
    with pytest.raises(dx.ConfigError, match="the configuration has"):
        dx.from_config(Takes, {"mixer": {"kind": "twice"}}, extra=extra)

"""`dx.CallableModule`: the annotation of a model of any class that is called."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import ConstructionError

X = jnp.ones((2, 3))


class Table(dx.Module):
    pass


class Doubled(dx.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return 2 * x


class Compiled(dx.Module):
    @dx.jit
    def __call__(self, x: jax.Array) -> jax.Array:
        return 2 * x


class Inherited(Doubled):
    pass


@dx.dataclass
class Holder(dx.Layer):
    inner: dx.CallableModule = dx.field()
    others: list[dx.CallableModule] = dx.field(default_factory=list)
    maybe: dx.CallableModule | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.inner(x)


def linear() -> dx.Linear:
    return dx.Linear(3, 3, rngs=dx.Rngs(0))


@pytest.mark.parametrize("model", [Doubled(), Compiled(), Inherited(), linear(), dx.Sequential(Doubled())], ids=repr)
def test_modules_with_a_call_are_instances(model: dx.Module) -> None:
    assert isinstance(model, dx.CallableModule)
    assert issubclass(type(model), dx.CallableModule)
    assert Holder(model)(X).shape == X.shape


@pytest.mark.parametrize("value", [Table(), dx.Module(), dx.List([]), dx.Param(X), jnp.sin, Doubled, None], ids=type)
def test_others_are_none(value: object) -> None:
    assert not isinstance(value, dx.CallableModule)


@pytest.mark.parametrize("value", [Table(), jnp.sin, 3])
def test_a_field_refuses_others(value: object) -> None:
    for arguments in ({"inner": value}, {"inner": Doubled(), "others": [value]}, {"inner": Doubled(), "maybe": value}):
        with pytest.raises(ConstructionError, match="the given part is of the wrong class") as caught:
            Holder(**arguments)
        assert "dx.CallableModule" in str(caught.value)


def test_a_field_is_data() -> None:
    holder = Holder(linear(), [Doubled(), linear()])
    assert len(jax.tree.leaves(holder)) == 4
    assert [*dx.state(holder)] == ["inner", "others"]
    graphdef, state = dx.split(holder)
    assert jnp.array_equal(dx.merge(graphdef, state)(X), holder(X))


def test_a_configuration_may_give_it() -> None:
    spec = dx.spec(Holder, dx.spec(dx.Linear, 3, 4))
    assert spec.build(rngs=dx.Rngs(0))(X).shape == (2, 4)
    table = {"inner": {"kind": "Linear", "in_features": 3, "out_features": 4}}
    assert dx.from_config(Holder, table, extra=[dx.Linear], rngs=dx.Rngs(0))(X).shape == (2, 4)


def test_it_is_an_annotation_and_makes_no_instance() -> None:
    with pytest.raises(TypeError, match="abstract"):
        dx.CallableModule()


def test_a_class_that_derives_from_it_is_a_module() -> None:
    class Own(dx.CallableModule):
        def __call__(self, x: jax.Array) -> jax.Array:
            return x

    assert isinstance(Own(), dx.Module)
    assert not isinstance(Doubled(), Own)

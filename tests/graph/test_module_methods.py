"""The graph API as methods, and what custom lifted modules are made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import FieldError, FilterError, GraphError


class Count(dx.Variable):
    pass


class CounterLinear(dx.Module):
    def __init__(self, din: int, dout: int, *, rngs: dx.Rngs):
        self.linear = dx.Linear(din, dout, rngs=rngs)
        self.count = Count(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.count += 1
        return self.linear(x)


class LinearEnsemble(dx.Module):
    """Vectorises its own construction and its own call over the models that it holds."""

    def __init__(self, din: int, dout: int, *, num_models: int, rngs: dx.Rngs):
        keys = rngs.fork(num_models)

        def construct(keys):
            return CounterLinear(din, dout, rngs=dx.Rngs(keys)).split(dx.Param, Count)

        static, params, counts = jax.vmap(construct, in_axes=(0,), out_axes=(None, 0, None))(keys)
        self.models = static.merge(params, counts)

    def __call__(self, x):
        static, params, counts = self.models.split(dx.Param, Count)

        def apply(x, params, counts):
            model = static.merge(params, counts)
            y = model(x)
            return y, *model.split(dx.Param, Count)

        y, static, params, counts = jax.vmap(apply, in_axes=(None, 0, None), out_axes=(0, None, 0, None))(
            x, params, counts
        )
        self.models.update(static, params, counts)
        return y


def test_an_ensemble_vectorises_construction_and_call():
    ensemble = LinearEnsemble(4, 3, num_models=8, rngs=dx.Rngs(0))
    shapes = jax.tree.map(jnp.shape, ensemble.get_state())
    assert shapes.to_pure_dict() == {"models": {"count": (), "linear": {"bias": (8, 3), "kernel": (8, 4, 3)}}}
    x = jnp.arange(4.0)
    y = ensemble(x)
    kernels = ensemble.models.linear.kernel.value
    np.testing.assert_allclose(y, jnp.einsum("i,nio->no", x, kernels), rtol=1e-5)
    assert len({float(k) for k in kernels[:, 0, 0]}) == 8, "each model has its own kernel"
    assert ensemble.models.count.value == 1
    ensemble(x)
    assert ensemble.models.count.value == 2


def test_an_ensemble_goes_through_jit_and_grad():
    ensemble = LinearEnsemble(4, 3, num_models=2, rngs=dx.Rngs(0))
    grads = dx.grad(lambda model, x: model(x).sum())(ensemble, jnp.ones(4))
    assert grads["models"]["linear"]["kernel"].shape == (2, 4, 3)
    np.testing.assert_allclose(grads["models"]["linear"]["kernel"].value, np.ones((2, 4, 3)))
    before = ensemble.models.count.value
    assert dx.jit(lambda model, x: model(x))(ensemble, jnp.ones(4)).shape == (2, 3)
    assert ensemble.models.count.value == before + 1


def test_methods_are_the_functions():
    model = CounterLinear(2, 3, rngs=dx.Rngs(0))
    graphdef, params, counts = model.split(dx.Param, Count)
    assert graphdef is dx.graphdef(model)
    assert params == dx.state(model, dx.Param)
    assert model.get_state() == dx.state(model)
    assert model.get_state(dx.Param, Count) == (params, counts)
    again = graphdef.merge(counts, params)
    assert dx.state(again) == dx.state(model)
    assert again.linear.kernel is not model.linear.kernel


def test_get_state_can_own_its_arrays():
    model = CounterLinear(2, 3, rngs=dx.Rngs(0))
    owned = model.get_state(copy=True)
    assert owned.linear.kernel.value is not model.linear.kernel.value
    assert owned == model.get_state()


def test_merge_of_a_graphdef_copies_where_asked():
    model = CounterLinear(2, 3, rngs=dx.Rngs(0))
    graphdef, state = model.split()
    assert graphdef.merge(state).linear.kernel.value is model.linear.kernel.value
    assert graphdef.merge(state, copy=True).linear.kernel.value is not model.linear.kernel.value


def test_update_takes_back_what_split_gave():
    model = CounterLinear(2, 3, rngs=dx.Rngs(0))
    graphdef, params, rest = model.split(dx.Param, ...)
    model.update(graphdef, jax.tree.map(lambda x: x * 0, params), rest)
    assert not model.linear.kernel.value.any()


def test_update_refuses_another_structure():
    model, other = CounterLinear(2, 3, rngs=dx.Rngs(0)), dx.Linear(2, 3, rngs=dx.Rngs(0))
    kernel = model.linear.kernel.value
    with pytest.raises(GraphError, match="this GraphDef is not the module's own") as caught:
        model.update(dx.graphdef(other), dx.state(model))
    assert "GraphDef(CounterLinear" in str(caught.value)
    assert "GraphDef(Linear" in str(caught.value)
    assert model.linear.kernel.value is kernel


def test_errors_are_those_of_the_functions():
    model = CounterLinear(2, 3, rngs=dx.Rngs(0))
    with pytest.raises(FilterError, match="no filter matches this leaf"):
        model.split(dx.Param)
    with pytest.raises(GraphError, match="no such path"):
        model.update({"cont": 1})
    model.again = model.linear
    with pytest.raises(GraphError, match="reached twice"):
        model.split(graph=False)
    with pytest.raises(GraphError, match="reached twice"):
        model.get_state(graph=False)


def test_modules_may_have_their_own_method_of_that_name():
    class Average(dx.Module):
        def __init__(self):
            self.total = Count(jnp.zeros(()))

        def update(self, *, values):
            self.total += values.sum()

    average = Average()
    average.update(values=jnp.ones(3))
    assert average.total.value == 3


def test_names_of_the_methods_of_nnx_are_taken():
    model = dx.Module()
    with pytest.raises(FieldError, match="hides a method of its base class"):
        model.sow = 3


def test_attributes_may_have_the_names_of_shorthands():
    class Automaton(dx.Module):
        def __init__(self, rngs):
            self.split = dx.Linear(2, 4, rngs=rngs)
            self.update = dx.Linear(4, 2, rngs=rngs)
            self.train = True

        def __call__(self, x):
            return x + self.update(self.split(x)) if self.train else x

    @dx.dataclass
    class Declared(dx.Module):
        update: dx.Linear = dx.field()
        get_state: int = 3
        eval: bool = False

    model = Automaton(dx.Rngs(0))
    assert dx.jit(lambda model, x: model(x))(model, jnp.ones(2)).shape == (2,)
    assert sorted(dx.state(model)) == ["split", "update"]
    assert Declared(model.update).update is model.update


def test_containers_update_as_containers():
    parts = dx.Dict(a=dx.Param(1))
    parts.update(b=dx.Param(2))
    assert sorted(parts) == ["a", "b"]
    graphdef, state = dx.List([dx.Param(1.0)]).split()
    assert graphdef.merge(state)[0].value == 1.0

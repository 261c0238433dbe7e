"""A prefix for the positional arguments holds for those that are given by name; what is not given keeps its default."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import TransformError
from declax.transforms._engine.prefixes import positioned
from declax.transforms.replication import pmap

MESH = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
ROWS = jax.sharding.NamedSharding(MESH, jax.P("data"))


class Scale(dx.Module):
    def __init__(self):
        self.factor = dx.Param(jnp.full((), 2.0))


def apply(model, mode="double", x=1.0, *, power=1):
    """The default in the middle is a text, which is nothing that JAX could trace."""
    return model.factor * x ** (2 if mode == "square" else 1) * power


def step(carry, mode="add", x=1.0):
    return carry + x if mode == "add" else carry, x


X = jnp.arange(4.0)
ALONG = {"mesh": MESH, "in_specs": (None, None, jax.P("data")), "out_specs": jax.P("data")}
CALLS = {
    "vmap": lambda f, **named: dx.vmap(f, in_axes=(None, None, 0))(**named),
    "jit": lambda f, **named: dx.jit(f, in_shardings=(None, None, ROWS))(**named),
    "shard_map": lambda f, **named: dx.shard_map(f, **ALONG)(**named),
    "pmap": lambda f, **named: pmap(f, in_axes=(None, None, 0))(**{**named, "x": named["x"][None]})[0],
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_given_keeps_its_default(name):
    assert CALLS[name](apply, model=Scale(), x=X).tolist() == (2 * X).tolist()


@pytest.mark.parametrize("name", CALLS)
def test_the_order_of_names_means_nothing(name):
    assert CALLS[name](apply, x=X, model=Scale()).tolist() == (2 * X).tolist()


def test_static_arguments_have_no_place_in_a_prefix():
    run = dx.jit(apply, static_argnames="mode", in_shardings=(None, ROWS))
    assert run(x=X, mode="square", model=Scale()).tolist() == (2 * X**2).tolist()
    assert run(Scale(), "square", X).tolist() == (2 * X**2).tolist()
    assert run(Scale(), x=X).tolist() == (2 * X).tolist()
    mapped = pmap(apply, in_axes=(None, None, 0), static_broadcasted_argnums=1)
    assert mapped(x=X[None], mode="square", model=Scale())[0].tolist() == (2 * X**2).tolist()


def test_static_arguments_by_name_of_make_jaxpr():
    make = dx.make_jaxpr(apply, static_argnums=1)
    assert "integer_pow[y=2]" in str(make(x=1.0, mode="square", model=Scale()))
    assert "integer_pow[y=2]" not in str(make(x=1.0, model=Scale()))


def test_steps_of_a_scan_by_name():
    scan = dx.scan(step, in_axes=(dx.Carry, None, 0), out_axes=(dx.Carry, 0))
    for total, seen in (scan(x=X, carry=jnp.zeros(())), scan(jnp.zeros(()), x=X)):
        assert float(total) == 6
        assert seen.tolist() == X.tolist()


def test_a_model_that_is_carried_by_name():
    def count(x, model):
        model.factor.value = model.factor.value + x
        return model

    model = Scale()
    assert dx.scan(count, in_axes=(0, dx.Carry), out_axes=dx.Carry)(model=model, x=X) is model
    assert float(model.factor.value) == 8


def test_a_prefix_of_too_few_is_refused_by_name_too():
    with pytest.raises(TransformError, match="the prefix does not fit the tree"):
        dx.vmap(apply, in_axes=(None, 0))(model=Scale(), x=X)


def test_names_that_are_no_positions():
    """`**named` takes also the name of a parameter that only has a position."""

    def function(x, /, y=0.0, **named):
        return x + y + named["x"] + named["z"]

    mapped = dx.vmap(function, in_axes=(0, None))
    assert mapped(X, x=X, z=X, y=1.0).tolist() == (3 * X + 1).tolist()
    tree = jax.tree.structure(((1,), {"x": (2, 3), "y": 4, "z": 5}))
    found = positioned(function, tree)
    assert found == (0, 3)


def test_an_argument_that_is_given_twice_is_an_error_of_python():
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        dx.vmap(lambda x: x)(X, x=X)


def test_metadata_of_axes_with_a_default_between():
    class Named(dx.Module):
        def __init__(self):
            self.kernel = dx.Param(jnp.ones((3, 2)), out_sharding=("rows", "columns"))

    seen = []

    def look(model, mode="double", x=1.0):
        seen.append(model.kernel.out_sharding)
        return x

    model = Named()
    dx.vmap(look, in_axes=(0, None, 0), transform_metadata={"partition_name": "rows"})(model=model, x=np.ones(3))
    assert seen == [("columns",)]
    assert model.kernel.out_sharding == ("rows", "columns")

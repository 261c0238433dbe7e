"""What JAX refuses of the arguments of a transform is said with the name of the leaf."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx


class Holding(dx.Module):
    def __init__(self):
        self.weight = dx.Param(jnp.ones(3))


@pytest.mark.parametrize("transform", [dx.jit, dx.grad, lambda f: dx.jit(f, donate_argnums=0)])
def test_an_abstract_model_is_named(transform):
    model = dx.eval_shape(Holding)
    with pytest.raises(dx.errors.AbstractModelError, match="shapes in place of arrays") as caught:
        transform(lambda model: model.weight.value.sum())(model)
    assert "model.weight" in str(caught.value)


def test_a_variable_that_holds_no_array_is_named():
    model = Holding()
    model.name = dx.Variable("a text")
    with pytest.raises(dx.errors.TransformError, match="or a child of the tree, and not an array"):
        dx.jit(lambda model: model.weight * 2)(model)


def test_numbers_of_parameters_are_numbers():
    with pytest.raises(dx.errors.TransformError, match="this is not the number of a parameter") as caught:
        dx.jit(lambda model, k: k, static_argnums="k")
    assert "static_argnames='k'" in str(caught.value)
    assert int(dx.jit(lambda x, k: x + k, static_argnums=np.int64(1))(1, 2)) == 3


def mesh():
    return jax.make_mesh((1,), ("a",))


PREFIXES = {
    "in_axes[0]": [
        lambda f, given: dx.vmap(f, in_axes=(given,)),
        lambda f, given: dx.pmap(f, in_axes=(given,)),
        lambda f, given: dx.scan(f, in_axes=(given, dx.Carry), out_axes=dx.Carry),
    ],
    "in_axes[0].net": [lambda f, given: dx.vmap(f, in_axes=({"net": given},))],
    "out_axes": [lambda f, given: dx.vmap(f, out_axes=given)],
    "out_axes[1]": [lambda f, given: dx.scan(f, out_axes=(dx.Carry, given))],
    "in_shardings[1]": [lambda f, given: dx.jit(f, in_shardings=(None, given))],
    "out_shardings": [lambda f, given: dx.jit(f, out_shardings=given)],
    "in_specs[0]": [
        lambda f, given: dx.shard_map(f, mesh=mesh(), in_specs=(given,), out_specs=jax.P()),
    ],
}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (Holding, "a value of type Holding"),
        (lambda: Holding().weight, "Param of shape (3,)"),
        (lambda: dx.eval_shape(Holding), "a value of type Holding"),
    ],
    ids=["model", "Variable", "abstract"],
)
@pytest.mark.parametrize(("where", "wrap"), [(where, wrap) for where in PREFIXES for wrap in PREFIXES[where]])
def test_a_model_as_a_prefix_is_named_where_the_function_is_wrapped(where, wrap, given, named):
    with pytest.raises(dx.errors.TransformError) as caught:
        wrap(lambda *args: args[0], given())
    error = caught.value
    assert (error.where, error.problem) == (where, "this is not a label of leaves")
    assert error.got.startswith(named)
    assert error.why == "the leaves of a model are arrays, and those of a prefix are labels"
    assert error.fix.startswith(where.partition("[")[0] + "=")
    assert error.fix.endswith("# or dx.prefix(model, {...: label})")


def test_models_of_labels_are_prefixes():
    model = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), Holding())
    for axes in (dx.prefix(model, {...: 0}), jax.tree.map(lambda _: 0, model)):
        assert dx.vmap(lambda model: model.weight * 1, in_axes=(axes,))(model).shape == (2, 3)
    with pytest.raises(dx.errors.TransformError) as caught:
        dx.vmap(lambda model: 0, in_axes=(dx.prefix(model, {...: "a"}),))
    assert (caught.value.where, caught.value.got, caught.value.fix) == ("in_axes[0]", "str 'a'", "in_axes=0")


def test_a_jaxpr_gives_no_changes_of_structure_back():
    for graph in (None, True):
        with pytest.raises(dx.errors.TransformError) as caught:
            dx.make_jaxpr(lambda model: model.weight * 1, graph=graph, graph_updates=True)
        assert str(caught.value) == (
            "make_jaxpr: a jaxpr has no changes of structure, which graph_updates=True asks for. [transform]\n"
            "  fix:      make_jaxpr(f)        # its outputs include the values that f sets"
        )

"""What gradients look like in each mode, compared with the peer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax._graph.nodes import plain_key

nnx = pytest.importorskip("flax.nnx")

MODES = [{}, {"graph_updates": False}, {"graph": False}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)
BOTH = (dx, nnx)


def as_text(lib, tree):
    """The classes and leaves of a tree of gradients, in words that both libraries share."""
    is_whole = lambda value: isinstance(value, (lib.Module, lib.State))  # noqa: E731  # short
    parts = []
    for value in jax.tree.leaves(tree, is_leaf=is_whole):
        leaves = jax.tree_util.tree_leaves_with_path(value)
        texts = sorted(f"{path[:1] and plain_key(path[0])} {leaf.dtype} {np.shape(leaf)}" for path, leaf in leaves)
        parts.append((type(value).__name__.removesuffix("Impl"), texts))
    return parts


def models(lib):
    class Layer(lib.Module):
        def __init__(self, value):
            self.weight = lib.Param(jnp.array(value))
            self.mean = lib.BatchStat(jnp.array(10.0))

        def __call__(self, x):
            self.mean[...] = self.mean[...] + x
            return self.weight[...] * x + 2 * self.mean[...]

    class Identity(lib.Module):
        def __call__(self, x):
            return x * 2

    return Layer, Identity


@each_mode
def test_the_gradient_of_a_model(mode):
    found = []
    for lib in BOTH:
        layer = models(lib)[0](3.0)
        value, grads = lib.value_and_grad(lambda m, x: m(x), **mode)(layer, 5.0)
        found.append((as_text(lib, grads), float(value), float(grads.weight[...]), float(layer.mean[...])))
        if mode:
            assert float(grads.mean[...]) == 2.0
    assert found[0] == found[1]


@each_mode
def test_a_model_without_parameters_among_others(mode):
    found = []
    for lib in BOTH:
        identity = models(lib)[1]()
        grads = lib.grad(lambda m, x: m(x).sum(), argnums=(0, 1), **mode)(identity, jnp.ones(2))
        assert isinstance(grads[0], lib.State if not mode else lib.Module)
        assert jax.tree.leaves(grads[0]) == []
        found.append(grads[1].tolist())
    assert found[0] == found[1] == [2.0, 2.0]


@each_mode
def test_integers_have_no_gradient(mode):
    class Counting(dx.Module):
        def __init__(self):
            self.weight = dx.Param(jnp.array(3.0))
            self.count = dx.Variable(jnp.array(0))

    loss = lambda m: m.weight[...] ** 2  # noqa: E731  # short
    if mode:
        with pytest.raises(ValueError, match=r"m\.count: this is not a real or complex number"):
            dx.grad(loss, **mode)(Counting())
        grads = dx.grad(loss, allow_int=True, **mode)(Counting())
        assert grads.count[...].dtype == jax.dtypes.float0
    if mode.get("graph") is False:
        return
    chosen = dx.grad(loss, argnums=dx.DiffState(0, dx.Param), **mode)(Counting())
    assert isinstance(chosen, dx.State)
    assert float(chosen.weight[...]) == 6.0


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
@pytest.mark.parametrize("argnums", [(0, 1), 0, 1], ids=str)
def test_a_variable_that_two_arguments_share(mode, argnums):
    found = []
    for lib in BOTH:
        first, second = lib.Dict(a=lib.Param(jnp.array(3.0))), lib.Dict(b=lib.Param(jnp.array(5.0)))
        second.shared = first.a
        loss = lambda m, n: m.a[...] * n.shared[...] * n.b[...]  # noqa: E731  # short
        try:
            grads = lib.grad(loss, argnums=argnums, **mode)(first, second)
        except ValueError:
            found.append("refused")
        else:
            found.append((as_text(lib, grads), float(grads[0]["a"][...]), float(grads[1]["b"][...])))
    assert found[0] == found[1]
    assert (found[0] == "refused") == (argnums != (0, 1))


@each_mode
def test_the_gradients_of_a_container_of_variables(mode):
    found = []
    for lib in BOTH:
        first = lib.Param(jnp.array(10.0))
        model = {"a": [first, lib.Param(jnp.array(20.0))]} | ({} if "graph" in mode else {"b": first})
        loss = lambda m: m["a"][0][...] * m["a"][1][...] + m.get("b", m["a"][0])[...]  # noqa: E731  # short
        grads = lib.grad(loss, **mode)(model)
        assert all(isinstance(grad, lib.Param) for grad in grads["a"])
        found.append(([float(grad) for grad in jax.tree.leaves(grads)], "b" in grads and type(grads["b"]).__name__))
    assert found[0] == found[1]


def test_pullbacks_and_tangents_of_trees():
    mode = {"graph": False}
    found = []
    for lib in BOTH:
        layer = models(lib)[0](3.0)

        def f(m, x, lib=lib):
            return m(x), lib.Dict(out=lib.Param(m.weight[...] * 2))

        _, pullback = lib.vjp(f, layer, 5.0, **mode)
        _, tangent = lib.jvp(f, (layer, 5.0), (jax.tree.map(jnp.ones_like, layer), 1.0), **mode)
        cotangent = 1.0, jax.tree.map(jnp.ones_like, tangent[1])
        of_layer, of_x = pullback(cotangent)
        numbers = [of_layer.weight[...], of_layer.mean[...], of_x, tangent[0], tangent[1].out[...]]
        found.append((as_text(lib, (of_layer, tangent)), list(map(float, numbers))))
    assert found[0] == found[1]


def test_gradients_of_states():
    for lib in BOTH:
        layer = models(lib)[0](3.0)
        graphdef, params, rest = lib.split(layer, lib.Param, ...)

        def loss(state, x, lib=lib, graphdef=graphdef, rest=rest):
            return lib.merge(graphdef, state, rest).weight[...] ** 2 * x

        of_state, of_x = lib.grad(loss, argnums=(0, 1))(params, 2.0)
        assert isinstance(of_state, lib.State)
        assert (float(of_state["weight"][...]), float(of_x)) == (12.0, 9.0)


def gradients_of_a_state_and_its_model(lib):
    model = lib.Dict(weight=lib.Param(jnp.array(1.0)), shift=lib.Perturbation(jnp.array(3.0)))
    graphdef, shift, rest = lib.split(model, lib.Perturbation, ...)

    def loss(model, state):
        return lib.merge(graphdef, state, rest)["shift"][...] ** 2 * model["weight"][...]

    return [jax.tree.map(float, jax.tree.leaves(grads)) for grads in lib.grad(loss, argnums=(0, 1))(model, shift)]


def test_the_gradient_of_a_state_beside_the_model_that_it_was_made_from():
    assert gradients_of_a_state_and_its_model(dx) == [[9.0], [6.0]]
    assert gradients_of_a_state_and_its_model(pytest.importorskip("flax.nnx")) == [[9.0], []]


def calls_by_name(lib):
    model = lib.Linear(1, 1, rngs=lib.Rngs(0))
    power = lambda x, y=2.0: x**2 * y  # noqa: E731  # short

    def loss(model, x, y=0.5):
        return ((model(x) - y) ** 2).mean()

    x = jnp.ones((2, 1))
    return [
        lib.grad(power)(x=3.0),
        lib.grad(power)(y=4.0, x=3.0),
        lib.grad(power, argnums=1)(3.0),
        lib.grad(power, argnums=(0, 1))(3.0, y=4.0),
        lib.grad(power, argnums=-1)(3.0),
        lib.grad(power, argnums=-1)(3.0, y=4.0),
        lib.grad(lambda x, y: (x * y, y), has_aux=True)(x=3.0, y=2.0),
        lib.grad(lambda x, mode="square": x**2 if mode == "square" else x)(x=3.0, mode="same"),
        *(
            jax.tree.leaves(lib.value_and_grad(loss)(**given))
            for given in ({"model": model, "x": x}, {"x": x, "model": model})
        ),
        jax.tree.leaves(lib.value_and_grad(loss, argnums=(0, 2))(model, x=x)),
        jax.tree.leaves(lib.grad(loss, argnums=lib.DiffState(0, lib.Param))(x=x, y=x, model=model)),
    ]


def test_differentiated_arguments_by_name():
    jax.tree.map(np.testing.assert_array_equal, *map(calls_by_name, BOTH))


@each_mode
def test_arguments_that_have_no_position(mode):
    for lib in BOTH:
        with pytest.raises(TypeError):
            lib.grad(lambda x, **more: x, **mode)(y=3.0)
    with pytest.raises(TypeError, match="there is no positional argument 1"):
        dx.grad(lambda x, *, y: x * y, argnums=1, **mode)(3.0, y=2.0)
    assert dx.grad(lambda x, *, y: x * y, **mode)(3.0, y=2.0) == 2.0
    assert dx.grad(lambda *both: both[0] * both[1], argnums=1, **mode)(3.0, 2.0) == 3.0


def test_trees_are_differentiated_by_position():
    for lib in BOTH:
        for mode in MODES[1:]:
            with pytest.raises(TypeError):
                lib.grad(lambda x: x, **mode)(x=3.0)
            assert lib.grad(lambda x, y: x**2 * y, argnums=-1, **mode)(3.0, y=2.0) == 12.0


SELECTIONS = {
    "vmap": lambda nnx, f, **mode: nnx.vmap(f, in_axes=(nnx.StateAxes({...: 0}),), **mode),
    "pmap": lambda nnx, f, **mode: nnx.pmap(f, in_axes=(nnx.StateAxes({...: 0}),), **mode),
    "scan": lambda nnx, f, **mode: nnx.scan(
        f, in_axes=(nnx.StateAxes({...: 0}), nnx.Carry), out_axes=nnx.Carry, **mode
    ),
    "jit": lambda nnx, f, **mode: nnx.jit(f, in_shardings=(nnx.StateSharding({...: None}),), **mode),
    "jit, results": lambda nnx, f, **mode: nnx.jit(f, out_shardings=nnx.StateSharding({...: None}), **mode),
    "shard_map": lambda nnx, f, **mode: nnx.shard_map(
        f, mesh=jax.make_mesh((1,), ("a",)), in_specs=(nnx.StateSharding({...: None}),), out_specs=None, **mode
    ),
    "grad": lambda nnx, f, **mode: nnx.grad(f, argnums=nnx.DiffState(0, nnx.Param), **mode),
    "value_and_grad": lambda nnx, f, **mode: nnx.value_and_grad(f, argnums=nnx.DiffState(0, nnx.Param), **mode),
    "custom_vjp": lambda nnx, f, **mode: nnx.custom_vjp(f, nondiff_argnums=(nnx.DiffState(0, nnx.Param),), **mode),
}


@pytest.mark.parametrize("by_default", [False, True])
@pytest.mark.parametrize("wrap", SELECTIONS.values(), ids=SELECTIONS)
def test_selections_by_filter_of_trees_are_refused_where_the_function_is_wrapped(wrap, by_default):
    texts = {dx: "a selection by filter is of a graph, and graph=False, or dx.set_graph_mode", nnx: "cannot contain"}
    for lib, text in texts.items():
        with lib.set_graph_mode(not by_default), pytest.raises(ValueError, match=text):
            wrap(lib, lambda m: m, graph=None if by_default else False)
        with lib.set_graph_mode(False):
            assert callable(wrap(lib, lambda m: m, graph=True))

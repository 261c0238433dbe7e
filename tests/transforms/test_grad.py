"""Gradients with respect to models, States, Variables and arrays."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import declax as dx
from declax.errors import TransformError
from differentiated import X, assert_gradients, expected, gradients, loss, loss_of_arrays, net_of
from naming import name_of
from strategies import Box, Open, same_graph

# ================================================================= what it is taken with respect to


def test_params_of_a_model():
    net = net_of()
    grads = dx.grad(loss)(net, X)
    assert isinstance(grads, dx.State)
    assert grads.paths == (("first", "kernel"), ("second", "kernel"))
    assert isinstance(grads["first"]["kernel"], dx.Param)
    first, second = expected((0, 1))
    np.testing.assert_allclose(grads["first"]["kernel"].value, first)
    np.testing.assert_allclose(grads.second.kernel.value, second)
    assert same_graph(net, net_of())


def test_gradients_go_together_with_params():
    net = net_of()
    grads = dx.grad(loss)(net, X)
    dx.update(net, jax.tree.map(lambda p, g: p - 0.1 * g, dx.state(net, dx.Param), grads))
    np.testing.assert_allclose(net.second.kernel.value, net_of().second.kernel.value - 0.1 * expected(1))


@pytest.mark.parametrize(
    ("argnums", "shape"),
    [
        (0, "state"),
        (-2, "state"),
        (1, "array"),
        (-1, "array"),
        ((0,), ("state",)),
        ([0, 1], ("state", "array")),
        ((1, 0), ("array", "state")),
        (range(2), ("state", "array")),
        (dx.DiffState(0), "state"),
        (dx.DiffState(0, dx.Param), "state"),
        ((dx.DiffState(0, dx.Param), 1), ("state", "array")),
        ((dx.DiffState(1, ...),), ("array",)),
        ((0, 0), ("state", "state")),
    ],
    ids=str,
)
def test_forms_of_argnums(argnums, shape):
    def check(grads, kind):
        if kind == "state":
            assert isinstance(grads, dx.State)
            np.testing.assert_allclose(grads["first"]["kernel"].value, expected(0))
        else:
            np.testing.assert_allclose(grads, expected(4))

    for grads in (
        dx.grad(loss, argnums=argnums)(net_of(), X),
        dx.value_and_grad(loss, argnums=argnums)(net_of(), X)[1],
    ):
        if isinstance(shape, str):
            check(grads, shape)
            continue
        assert type(grads) is tuple
        assert len(grads) == len(shape)
        for got, kind in zip(grads, shape, strict=True):
            check(got, kind)


@pytest.mark.parametrize(
    ("chosen", "paths"),
    [
        (dx.BatchStat, [("mean",)]),
        ((dx.BatchStat, dx.PathContains("second")), [("mean",), ("second", "kernel")]),
        (dx.PathIn(("raw",)), [("raw",)]),
        (..., [("first", "kernel"), ("mean",), ("raw",), ("second", "kernel")]),
        (lambda path, value: path[0] == "first", [("first", "kernel")]),
        (dx.All(dx.Param, dx.Not(dx.PathContains("first"))), [("second", "kernel")]),
    ],
    ids=name_of,
)
def test_leaves_that_a_filter_takes(chosen, paths):
    where = {("first", "kernel"): 0, ("second", "kernel"): 1, ("mean",): 2, ("raw",): 3}
    (grads,) = dx.grad(loss, argnums=(dx.DiffState(0, chosen),))(net_of(), X)
    assert list(grads.paths) == paths
    for path, leaf in zip(grads.paths, grads.leaves, strict=True):
        np.testing.assert_allclose(leaf, expected(where[path]))


def test_arrays_and_trees_of_arrays_are_as_in_jax():
    def f(x, tree, y):
        return jnp.sum(x**2) + jnp.sum(tree["a"] * tree["b"][0]) * y

    args = jnp.ones(2), {"a": jnp.full(2, 3.0), "b": [jnp.full(2, 4.0), None]}, 2.0
    for argnums in (0, 1, 2, (0, 1, 2), (2, 0)):
        ours, theirs = dx.grad(f, argnums=argnums)(*args), jax.grad(f, argnums=argnums)(*args)
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        jax.tree.map(np.testing.assert_allclose, ours, theirs)


def test_variables_give_variables():
    grads = dx.grad(lambda v: (v.value**2).sum())(dx.Param(jnp.array([3.0]), note=1))
    assert isinstance(grads, dx.Param)
    assert grads.value.tolist() == [6.0]
    assert grads.note == 1
    grads = dx.grad(lambda tree: tree["a"][0].value * tree["b"])({"a": [dx.Param(2.0)], "b": 5.0})
    assert float(grads["a"][0].value) == 5
    assert float(grads["b"]) == 2


def test_models_in_containers():
    grads = dx.grad(lambda nets: loss(nets[0], X) + loss(nets[1]["net"], 2 * X))([net_of(), {"net": net_of()}])
    np.testing.assert_allclose(grads[0]["first"]["kernel"].value, expected(0))
    np.testing.assert_allclose(grads[1]["net"]["first"]["kernel"].value, 2 * expected(0))


def test_states_are_arguments():
    graphdef, params, rest = dx.split(net_of(), dx.Param, ...)

    def f(params, rest, x):
        return loss(dx.merge(graphdef, params, rest), x)

    grads = dx.grad(f)(params, rest, X)
    assert isinstance(grads, dx.State)
    np.testing.assert_allclose(grads["first"]["kernel"].value, expected(0))
    value, (grads, others) = dx.value_and_grad(f, argnums=(0, 1))(params, rest, X)
    np.testing.assert_allclose(others["mean"].value, expected(2))
    np.testing.assert_allclose(value, loss(net_of(), X))


def test_objects():
    box = Box()
    box.held, box.text = [dx.Param(jnp.array(3.0)), jnp.array(2.0)], "t"
    grads = dx.grad(lambda b: b.held[0].value ** 2 * b.held[1])(box)
    assert grads.paths == (("held", 0),)
    assert float(grads["held"][0].value) == 12


def test_keyword_arguments_are_not_differentiated():
    net = net_of()
    grads = dx.grad(lambda x, net: loss(net, x))(X, net=net)
    np.testing.assert_allclose(grads, expected(4))


# ================================================================= sharing


def test_a_shared_param_has_one_gradient():
    net = Open()
    net.a = dx.Param(jnp.array(3.0))
    net.b = net.a
    grads = dx.grad(lambda n: n.a.value * n.b.value)(net)
    assert grads.paths == (("a",),)
    assert float(grads["a"].value) == 6


def test_a_param_shared_between_arguments():
    first, second = Open(), Open()
    first.a = second.z = dx.Param(jnp.array(3.0))
    second.b = dx.Param(jnp.array(5.0))
    f = lambda m, n: m.a.value * n.z.value * n.b.value  # noqa: E731  # short
    one, two = dx.grad(f, argnums=(0, 1))(first, second)
    assert float(one["a"].value) == 30
    assert two.paths == (("b",),)
    assert float(two["b"].value) == 9
    one, two = dx.grad(f, argnums=(0, 1), graph_updates=False)(first, second)
    assert float(one.a.value) == 30
    assert one.a is two.z


@pytest.mark.parametrize("number", [0, 1])
def test_a_param_that_only_one_of_its_arguments_differentiates(number):
    first, second = Open(), Open()
    first.a = second.z = dx.Param(jnp.array(3.0))
    with pytest.raises(TransformError, match="is differentiated in another argument, and not here") as caught:
        dx.grad(lambda m, n: m.a.value * n.z.value, argnums=number)(first, second)
    assert str(caught.value).startswith("n.z:" if number == 0 else "m.a:")
    with pytest.raises(TransformError, match="is differentiated in another argument"):
        dx.grad(lambda m, *, n: m.a.value * n.z.value)(first, n=second)


def test_params_shared_under_each_others_names():
    first, second = Open(), Open()
    first.x, first.y = dx.Param(jnp.array(2.0)), dx.Param(jnp.array(5.0))
    second.x, second.y = first.y, first.x
    f = lambda m, n: n.x.value**2 + 3.0 * n.y.value  # noqa: E731  # short
    grads, rest = dx.grad(f, argnums=(0, 1))(first, second)
    assert float(grads["y"].value) == 10
    assert float(grads["x"].value) == 3
    assert not rest.leaves


def test_one_array_in_two_places_of_a_container():
    array = jnp.array(2.0)
    net, other = Open(), Open()
    net.plain, other.a = dx.data([array, array]), dx.Param(jnp.array(1.0))
    (grads,) = dx.grad(lambda m, n: m.plain[0] ** 2 + 3.0 * m.plain[1] * n.a.value, argnums=(dx.DiffState(0, ...),))(
        net, other
    )
    assert [float(g) for g in grads.leaves] == [4.0, 3.0]


def test_one_array_in_two_models():
    array = jnp.array(2.0)
    first, second = Open(), Open()
    first.a, second.a = array, array
    first.plain, second.plain = dx.data([array]), dx.data([array])
    f = lambda m, n: m.a + 10.0 * n.a + 100.0 * m.plain[0] + 1000.0 * n.plain[0]  # noqa: E731  # short
    one, two = dx.grad(f, argnums=(dx.DiffState(0, ...), dx.DiffState(1, ...)))(first, second)
    assert [float(g) for g in one.leaves] == [1.0, 100.0]
    assert [float(g) for g in two.leaves] == [10.0, 1000.0]


def test_containers_of_a_part_that_two_arguments_share():
    part, first, second = Open(), Open(), Open()
    part.plain = dx.data([jnp.array(2.0), jnp.array(3.0)])
    first.part, second.deep = part, Open()
    second.deep.part = part
    (grads,) = dx.grad(lambda m, n: n.deep.part.plain[0] * m.part.plain[1], argnums=(dx.DiffState(1, ...),))(
        first, second
    )
    assert [float(g) for g in grads.leaves] == [3.0, 2.0]


# ================================================================= changes come back


def test_mutation_comes_back():
    net = net_of()
    kernel = net.first.kernel

    def f(net, x):
        value = loss(net, x)
        net.mean.value = net.mean.value + jax.lax.stop_gradient(value)
        net.raw = net.raw + 1
        net.first.new = dx.Cache(value)
        net.seen = [1]
        return value

    value, grads = dx.value_and_grad(f)(net, X)
    np.testing.assert_allclose(net.mean.value, 1 + value)
    assert net.raw.tolist() == [3.0, 4.0]
    np.testing.assert_allclose(net.first.new.value, value)
    assert net.seen == [1]
    assert net.first.kernel is kernel
    np.testing.assert_allclose(grads["first"]["kernel"].value, expected(0))
    for leaf in jax.tree.leaves(dx.state(net)):
        assert not isinstance(leaf, jax.core.Tracer)
    net.first.new.value = jnp.zeros(())


def test_differentiated_params_may_be_set_inside():
    net = Open()
    net.a = dx.Param(jnp.array(3.0))

    def f(net):
        value = net.a.value**2
        net.a.value = value * 2
        return value + net.a.value

    assert float(dx.grad(f)(net)["a"].value) == 18
    assert float(net.a.value) == 18


def test_statistics_of_a_norm_come_back():
    norm, twin = dx.BatchNorm(2, momentum=0.5, rngs=dx.Rngs(0)), dx.BatchNorm(2, momentum=0.5, rngs=dx.Rngs(0))
    x = jnp.array([[1.0, 2.0], [3.0, 6.0]])
    grads = dx.grad(lambda m: (m(x) ** 3).sum())(norm)
    twin(x)
    assert set(grads) == {"bias", "scale"}
    np.testing.assert_allclose(norm.mean.value, twin.mean.value)
    np.testing.assert_allclose(norm.var.value, twin.var.value)


def test_random_streams_advance():
    rngs, net = dx.Rngs(0), net_of()
    dx.grad(lambda n, r: loss(n, r.normal((1, 2))))(net, rngs)
    assert int(rngs.default.count) == 1


def test_an_exception_leaves_all_as_it_was():
    net = net_of()

    def fail(net):
        net.mean.value = net.mean.value + 1
        net.new = 3
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        dx.grad(fail)(net)
    with pytest.raises(TransformError, match="a loss must be a single real number"):
        dx.grad(lambda net: setattr(net, "new", 1) or net.raw * net.first.kernel.value)(net)
    assert same_graph(net, net_of())


def test_as_a_decorator():
    @dx.grad(argnums=1)
    def first(net, x):
        """About."""
        return loss(net, x)

    @dx.value_and_grad(argnums=1, has_aux=True)
    def second(net, x):
        return loss(net, x), 1

    np.testing.assert_allclose(first(net_of(), X), expected(4))
    assert first.__doc__ == "About."
    np.testing.assert_allclose(second(net_of(), X)[1], expected(4))


@pytest.mark.parametrize("take", [dx.grad, dx.value_and_grad])
def test_options_of_jax_as_a_decorator(take):
    def of_complex(z):
        return z**2

    def slopes(result):
        return result[1] if take is dx.value_and_grad else result

    z = jnp.array(1.0 + 2.0j)
    for made in (take(of_complex, holomorphic=True), take(holomorphic=True)(of_complex)):
        np.testing.assert_allclose(slopes(made(z)), 2 * z)
    for made in (take(lambda n: n * 2.0, allow_int=True), take(allow_int=True)(lambda n: n * 2.0)):
        assert slopes(made(jnp.array(3))).dtype == jax.dtypes.float0


def test_complex_and_integer_options():
    net = Open()
    net.z = dx.Param(jnp.array(1.0 + 2.0j))
    grads = dx.grad(lambda m: m.z.value**2, holomorphic=True)(net)
    np.testing.assert_allclose(grads["z"].value, 2 * (1 + 2j))
    net.z = dx.Param(jnp.array(3))

    def fail(m):
        raise AssertionError("it is not called")

    for f in (lambda m: m.z.value * 2.0, fail):
        with pytest.raises(TransformError, match=r"(?s)m\.z: this is not a real or complex number.*int32"):
            dx.grad(f)(net)
    with pytest.raises(TransformError, match="n: this is not a real or complex number"):
        dx.grad(lambda m, n: 1.0 * n, argnums=-1)(net, 3)
    with pytest.raises(TypeError, match="requires inputs with complex dtype"):
        dx.grad(lambda x: x, holomorphic=True)(1.0)
    with pytest.raises(TypeError, match="unsupported operand"):
        dx.grad(lambda x: x + "text")(1.0)
    grads = dx.grad(lambda m: m.z.value.astype(jnp.float32) * 2.0, allow_int=True)(net)
    assert grads["z"].value.dtype == jax.dtypes.float0


# ================================================================= inside of other transforms


def test_inside_of_jit():
    net = net_of()
    traces = []

    @dx.jit
    def step(net, x):
        traces.append(1)
        value, grads = dx.value_and_grad(loss)(net, x)
        dx.update(net, jax.tree.map(lambda p, g: p - 0.1 * g, dx.state(net, dx.Param), grads))
        net.mean.value = net.mean.value + 1
        return value, grads

    value, grads = step(net, X)
    np.testing.assert_allclose(value, loss(net_of(), X))
    np.testing.assert_allclose(grads["first"]["kernel"].value, expected(0), rtol=1e-6)
    np.testing.assert_allclose(net.first.kernel.value, net_of().first.kernel.value - 0.1 * expected(0), rtol=1e-6)
    step(net, X)
    assert len(traces) == 1


def test_mutation_inside_of_jit():
    net = net_of()

    @dx.jit
    def step(net, x):
        def f(net, x):
            net.first.new = dx.Cache(jnp.ones(1))
            net.mean.value = net.mean.value + 1
            return loss(net, x)

        return dx.grad(f)(net, x)

    step(net, X)
    assert net.first.new.value.tolist() == [1.0]
    assert net.mean.value.tolist() == [2.0, 2.0]


def test_gradients_of_gradients():
    net = Open()
    net.a, net.count = dx.Param(jnp.array(2.0)), dx.Variable(jnp.array(0))

    def cube(net):
        net.count.value = net.count.value + 1
        return net.a.value**3

    def slope(net):
        return dx.grad(cube)(net)["a"].value

    assert float(slope(net)) == 12
    assert float(dx.grad(slope)(net)["a"].value) == 12
    assert float(dx.grad(lambda n: dx.grad(slope)(n)["a"].value)(net)["a"].value) == 6
    assert int(net.count.value) == 3
    assert float(dx.jit(dx.grad(slope))(net)["a"].value) == 12
    assert int(net.count.value) == 4


def test_second_derivatives_in_the_shape_of_the_state():
    net = Open()
    net.a, net.b = dx.Param(jnp.array([1.0, 2.0])), dx.Param(jnp.array(3.0))

    def f(net):
        return jnp.sum(net.a.value**3) * net.b.value

    graphdef, state = dx.split(net)

    def hessian(f):
        def at(state):
            return jax.jacfwd(lambda s: dx.grad(f)(dx.merge(graphdef, s)))(state)

        return at(state)

    ours = hessian(f)
    theirs = jax.hessian(lambda p: jnp.sum(p["a"] ** 3) * p["b"])({"a": net.a.value, "b": net.b.value})
    for one in ("a", "b"):
        for two in ("a", "b"):
            np.testing.assert_allclose(ours[one].value[two].value, theirs[one][two])
    of_states = dx.grad(lambda n: sum(jnp.sum(leaf**2) for leaf in dx.grad(f)(n).leaves))(net)
    raw = jax.grad(lambda p: sum(jnp.sum(v**2) for v in jax.grad(lambda p: jnp.sum(p["a"] ** 3) * p["b"])(p).values()))
    np.testing.assert_allclose(of_states["a"].value, raw({"a": net.a.value, "b": net.b.value})["a"])


# ================================================================= captures

MODES = [{}, {"graph_updates": False}, {"graph": False}]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("around", [lambda f: f, dx.jit], ids=["eager", "jit"])
def test_what_is_captured_changes_and_is_not_differentiated(mode, around):
    net = net_of()

    def f(x):
        net.mean.value = net.mean.value + 1
        net.raw = net.raw * 2
        return loss(net, x)

    take = around(dx.value_and_grad(f, **mode))
    arrays = net.first.kernel.value, net.second.kernel.value, net.mean.value + 1, net.raw * 2, X
    value, grads = take(X)
    np.testing.assert_allclose(value, loss_of_arrays(*arrays), rtol=1e-6)
    np.testing.assert_allclose(grads, jax.grad(loss_of_arrays, 4)(*arrays), rtol=1e-6)
    assert net.mean.value.tolist() == [2.0, 2.0]
    assert net.raw.tolist() == [4.0, 6.0]
    net.raw = jnp.zeros(2)
    assert take(X)[1].tolist() == [[0.0, 0.0]]
    assert net.mean.value.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_argnums_are_those_of_the_user_beside_captures(mode):
    net, other = net_of(), net_of()

    def f(x, m, *, y=0.0):
        return loss(net, x) * 10 + loss(m, x) + y

    grads = dx.grad(f, argnums=dx.DiffState(-1, dx.Param), **mode)(X, other, y=1.0)
    np.testing.assert_allclose(grads["first"]["kernel"].value, expected(0))
    with pytest.raises(TransformError, match="there is no positional argument 2"):
        dx.grad(f, argnums=2, **mode)(X, other)


@pytest.mark.parametrize("mode", MODES[:2], ids=str)
def test_captured_and_passed_is_one_thing(mode):
    net = net_of()
    argnums = dx.DiffState(0, dx.Param)
    grads = dx.grad(lambda m: loss(m, X) + loss(net, X), argnums=argnums, **mode)(net)
    np.testing.assert_allclose(grads["first"]["kernel"].value, 2 * expected(0))
    grads = dx.grad(partial(lambda held, m: loss(held, X), net), argnums=argnums, **mode)(net)
    np.testing.assert_allclose(grads["first"]["kernel"].value, expected(0))


def test_methods():
    class Layer(dx.Module):
        def __init__(self):
            self.k = dx.Param(jnp.array(3.0))
            self.calls = dx.Variable(jnp.array(0))

        def loss(self, x):
            self.calls.value = self.calls.value + 1
            return self.k.value**2 * x

        @dx.grad(argnums=(0, 1))
        def slopes(self, x):
            return self.loss(x)

    layer = Layer()
    assert float(dx.grad(layer.loss)(2.0)) == 9
    of_layer, of_x = layer.slopes(2.0)
    assert (float(of_layer["k"].value), float(of_x)) == (12.0, 9.0)
    assert int(layer.calls.value) == 2


def test_a_captured_model_that_raises_is_as_it_was():
    net = net_of()

    def f(x):
        net.raw = net.raw + x
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        dx.grad(f)(jnp.ones(2))
    assert same_graph(net, net_of())


def test_raw_grad_of_a_function_with_a_lifted_one():
    net = net_of()
    first = jax.grad(lambda x: dx.value_and_grad(loss)(net, x)[0])(X)
    np.testing.assert_allclose(first, expected(4))


def test_no_tracer_leaks():
    net = net_of()
    with jax.checking_leaks():
        dx.grad(loss)(net, X)
        dx.jit(dx.grad(loss))(net, X)
        dx.value_and_grad(lambda n, x: (loss(n, x), n), has_aux=True)(net, X)


@given(gradients())
def test_random_models_against_jax_on_explicit_state(asked):
    assert_gradients(dx.grad, asked)


# ================================================================= what is refused


def test_argnums_that_are_none():
    for wrong in ("0", None, 1.5, [None], True, (0, "x")):
        with pytest.raises(TransformError, match="argnums: these are not positions of arguments"):
            dx.grad(loss, argnums=wrong)
    with pytest.raises(TransformError, match="there is no positional argument 2"):
        dx.grad(loss, argnums=2)(net_of(), X)
    with pytest.raises(TransformError, match="there is no positional argument -3"):
        dx.grad(loss, argnums=-3)(net_of(), X)
    with pytest.raises(TransformError, match=r"(?s)there is no positional argument 0.*a function of \(net\)"):
        dx.grad(lambda net: 1.0, graph_updates=False)(net=net_of())
    with pytest.raises(TransformError, match="empty: there is nothing to differentiate"):
        dx.grad(lambda net, empty: 1.0, argnums=-1)(net_of(), [])


def test_filters_that_take_nothing():
    with pytest.raises(TransformError, match="there is nothing to differentiate with respect to"):
        dx.grad(loss, argnums=dx.DiffState(0, dx.Cache))(net_of(), X)
    with pytest.raises(TransformError, match="there is nothing to differentiate"):
        dx.grad(lambda nothing: 1.0)([])


def test_auxiliary_results_that_are_missing():
    with pytest.raises(TransformError, match="the function does not return a pair"):
        dx.grad(loss, has_aux=True)(net_of(), X)
    with pytest.raises(TransformError, match="the function does not return a pair"):
        dx.grad(lambda n: (n, 1, 2), has_aux=True)(net_of())
    with pytest.raises(TransformError, match="the function does not return a pair"):
        dx.grad(lambda n: n, has_aux=True)(net_of())


def test_a_function_that_is_none():
    for wrong in (3, net_of()):
        with pytest.raises(TransformError, match="grad, f: this is not a function"):
            dx.grad(wrong)


def test_partial_functions():
    grads = dx.grad(partial(loss, x=X))(net_of())
    np.testing.assert_allclose(grads["first"]["kernel"].value, expected(0))


def test_the_numbers_of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    def f(model, x):
        model.mean[...] = model.mean[...] + x.sum()
        return jnp.sum((x @ model.kernel[...]) * model.mean[...])

    theirs = nnx.Module()
    theirs.kernel, theirs.mean = nnx.Param(jnp.arange(4.0).reshape(2, 2)), nnx.BatchStat(jnp.ones(2))
    ours = Open()
    ours.kernel, ours.mean = dx.Param(jnp.arange(4.0).reshape(2, 2)), dx.BatchStat(jnp.ones(2))
    of_theirs = nnx.grad(f, argnums=(nnx.DiffState(0, nnx.BatchStat), 1))(theirs, X)
    of_ours = dx.grad(f, argnums=(dx.DiffState(0, dx.BatchStat), 1))(ours, X)
    np.testing.assert_allclose(of_ours[0]["mean"].value, of_theirs[0]["mean"][...])
    np.testing.assert_allclose(of_ours[1], of_theirs[1])
    np.testing.assert_allclose(ours.mean.value, theirs.mean[...])

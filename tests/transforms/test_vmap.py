"""`vmap` of functions of models: the numbers of `jax.vmap` on explicit state, and what the caller's objects become."""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import declax as dx
from declax import _jax
from declax.errors import GraphError, TransformError
from declax.transforms.labels import prefix
from declax.transforms.scanning import scan
from equations import equations
from strategies import apply_edits, build, edits, recipes, same_graph

SIZE = 3
X = jnp.arange(6.0).reshape(SIZE, 2)
MODES = [{"graph": False}, {"graph_updates": False}, {}]


class Net(dx.Module):
    """A Param and a statistic for each instance, and what they share."""

    def __init__(self):
        self.weight = dx.Param(jnp.arange(1.0, 4.0))
        self.mean = dx.BatchStat(jnp.array(1.0))
        self.raw = jnp.array(2.0)
        self.parts = dx.data({"a": [dx.Cache(jnp.zeros((2, SIZE)))]})


AXES = dx.StateAxes({dx.Param: 0, dx.Cache: -1, ...: None})


def snapshot(model):
    return dx.clone(model)


def filled(axes, model):
    """A copy of a model whose leaves have the axes that they are said to have."""
    graphdef, *states = dx.split(model, *axes.filters)
    parts = zip(states, axes.axes, strict=True)
    return dx.merge(graphdef, *[s if a is None else jax.tree.map(lambda x, a=a: stacked(x, a), s) for s, a in parts])


def stacked(x, axis):
    return jnp.stack([jnp.asarray(x) * (i + 1) for i in range(SIZE)], axis)


def by_hand(axes, model, f, *args, in_axes=(), out_axes=0):
    """The model that `f` makes of another, by `jax.vmap` on explicit state, and what it returns."""
    graphdef, *states = dx.split(model, *axes.filters)
    defs = []

    def body(states, *args):
        inner = dx.merge(graphdef, *states)
        result = f(inner, *args)
        changed, *parts = dx.split(inner, *axes.filters)
        defs.append(changed)
        return parts, result

    mapped = jax.vmap(body, (list(axes.axes), *in_axes), (list(axes.axes), out_axes), axis_size=SIZE)
    parts, result = mapped(states, *args)
    return dx.merge(defs[-1], *parts), result


axes_by_filter = st.builds(
    lambda a, b, c: dx.StateAxes({dx.Param: a, (dx.BatchStat, dx.Cache): b, ...: c}),
    *[st.sampled_from([0, -1, None])] * 3,
)


# ================================================================= against jax.vmap on explicit state


@settings(max_examples=60)
@given(recipes(), axes_by_filter, edits())
def test_edits_inside_are_those_of_jax_on_states(recipe, axes, todo):
    model = filled(axes, build(recipe))
    before = snapshot(model)
    try:
        expected, _ = by_hand(axes, model, lambda m: apply_edits(m, todo))
    except ValueError:  # what has no axis came to differ
        expected = None
    mapped = dx.vmap(lambda m: apply_edits(m, todo), in_axes=(axes,), axis_size=SIZE)
    if expected is None:
        with pytest.raises(TransformError, match="this differs between instances but has no axis"):
            mapped(model)
        assert same_graph(model, before)
    else:
        mapped(model)
        assert same_graph(model, expected)


@given(recipes(max_nodes=3), axes_by_filter, edits(max_size=3), st.sampled_from(MODES[1:]))
def test_returned_models_are_those_of_jax_on_states(recipe, axes, todo, mode):
    model = filled(axes, build(recipe))

    def change(m):
        made = dx.clone(m)
        apply_edits(made, of_values)
        return made

    of_values = [edit for edit in todo if edit[0] in ("scale", "scale_raw", "set_static", "tag")]
    expected, _ = by_hand(axes, model, lambda m: apply_edits(m, of_values))
    before = snapshot(model)
    made = dx.vmap(change, in_axes=(axes,), out_axes=axes, axis_size=SIZE, **mode)(model)
    assert same_graph(made, expected)
    assert same_graph(model, before)


@given(
    st.integers(1, 3).flatmap(lambda rank: st.tuples(st.just(rank), *[st.integers(-rank, rank - 1)] * 2)),
    st.sampled_from(MODES),
)
def test_axes_of_variables_and_arrays(drawn, mode):
    rank, axis, out = drawn
    shape = [2] * rank
    shape[axis] = SIZE
    value = jnp.arange(float(np.prod(shape))).reshape(shape)
    variable = dx.Param(value)

    def double(v, x):
        v.value = v.value * 2
        return x + 1

    result = dx.vmap(double, in_axes=(axis, axis), out_axes=out, **mode)(variable, value)
    np.testing.assert_array_equal(variable.value, value * 2)
    np.testing.assert_array_equal(result, jax.vmap(lambda x: x + 1, axis, out)(value))


def test_trees_of_arguments_and_results():
    net, other = Net(), dx.Param(X)

    def f(given, y, *, z=None):
        assert given["none"] is None
        given["net"].weight.value = given["net"].weight.value + y
        return {"sum": given["list"][0].value.sum() + (0.0 if z is None else z), "same": [y, None]}

    arguments = {"net": net, "list": [other, "text"], "none": None}
    in_axes = [{"net": AXES, "list": [0, None], "none": None}, 0]
    result = dx.vmap(f, in_axes=in_axes, out_axes={"sum": 0, "same": None}, axis_size=SIZE)
    with pytest.raises(TransformError, match=r"the result.same\[0\]: this differs between instances"):
        result(arguments, jnp.ones(SIZE))
    found = dx.vmap(f, in_axes=in_axes)(arguments, jnp.ones(SIZE), z=jnp.ones(SIZE))
    assert found["sum"].tolist() == [2.0, 6.0, 10.0]
    assert net.weight.value.tolist() == [2.0, 3.0, 4.0]


def test_values_of_variables_may_be_trees():
    v = dx.Variable({"a": jnp.arange(3.0), "b": [jnp.ones((3, 2))]})

    def f(v):
        v.value = {"a": v.value["a"] + 1, "b": v.value["b"]}
        return dx.Variable(v.value)

    made = dx.vmap(f)(v)
    assert v.value["a"].tolist() == made.value["a"].tolist() == [1.0, 2.0, 3.0]
    assert made.value["b"][0].shape == (3, 2)
    with pytest.raises(TransformError, match="this differs between instances but has no axis"):
        dx.vmap(lambda v, x: v.set_value({"a": x, "b": []}), in_axes=(None, 0))(v, X)


# ================================================================= arguments by name


def test_arguments_by_name_have_the_axis_of_their_position():
    def f(x, flag=True, y=None, *, z=0.0):
        assert flag is True
        return x * (1.0 if y is None else y) + z

    y = jnp.array([2.0, 3.0])
    np.testing.assert_array_equal(dx.vmap(f, in_axes=(0, 0, None))(X, y=y), X * y)
    np.testing.assert_array_equal(dx.vmap(f, in_axes=(0, None, None))(y=y, x=X), X * y)
    np.testing.assert_array_equal(dx.vmap(f)(X, y=X, z=jnp.ones(SIZE)), X * X + 1)
    np.testing.assert_array_equal(dx.vmap(f, in_axes=1)(X.T, y=X.T, z=jnp.ones(SIZE)), X * X + 1)
    np.testing.assert_array_equal(dx.vmap(lambda **kw: kw["x"] + 1)(x=X), X + 1)
    net = Net()
    assert dx.vmap(lambda x, net: net.weight * x.sum(), in_axes=(0, AXES))(net=net, x=X).tolist() == [1.0, 10.0, 27.0]
    with pytest.raises(TransformError, match="the prefix does not fit the tree"):
        dx.vmap(f, in_axes=(0, None))(X, y=y)


def test_names_of_axes_with_arguments_by_name():
    def f(x, flag=True, layer=None):
        assert layer.out_sharding == ("out",)
        return layer * x

    layer = dx.Param(jnp.ones((SIZE, 2)), sharding_names=("layers", "out"))
    mapped = dx.vmap(f, in_axes=(0, None, 0), transform_metadata={"partition_name": "layers"})
    assert mapped(X, layer=layer).shape == (SIZE, 2)
    assert layer.out_sharding == ("layers", "out")


# ================================================================= what has no axis


def test_what_has_no_axis_is_set_to_one_value():
    net = Net()

    def f(net, x):
        net.mean.value = jax.lax.pmean(x.sum(), "batch")
        net.raw = net.raw + 1

    dx.vmap(f, in_axes=(AXES, 0), axis_name="batch")(net, X)
    assert (float(net.mean.value), float(net.raw)) == (5.0, 3.0)


def test_values_that_pass_through_rules_of_jax_are_one():
    p = dx.Param(jnp.array(-1.0))
    dx.vmap(lambda p, x: p.set_value(jax.nn.relu(p.value)), in_axes=(None, 0))(p, X)
    assert float(p.value) == 0.0


def test_jax_tells_which_tracers_are_mapped():
    seen = {}

    def f(x, y):
        seen["x"], seen["y"] = _jax.is_mapped(x), _jax.is_mapped(jax.nn.relu(y))
        return jax.vmap(lambda z: seen.setdefault("outer", _jax.is_mapped(x)) and z)(jnp.ones(2))

    jax.vmap(f, (0, None))(X, 1.0)
    assert seen == {"x": True, "y": False, "outer": False}


@pytest.mark.parametrize(
    ("f", "where", "fix"),
    [
        (
            lambda n, x: n.mean.set_value(x.sum()),
            "n.mean: this differs between instances",
            "{dx.BatchStat: 0",
        ),
        (
            lambda n, x: setattr(n, "raw", x),
            "n.raw: this differs between instances",
            "{dx.PathContains('raw'): 0",
        ),
        (
            lambda n, x: setattr(n, "new", dx.BatchStat(x)),
            "n.new: this differs between instances",
            "{dx.BatchStat",
        ),
        (lambda n, x: setattr(n, "own", Own(x)), "n.own: this differs between instances", "{Own: 0"),
    ],
)
def test_what_has_no_axis_and_differs_is_an_error(f, where, fix):
    net = Net()
    before = snapshot(net)
    with pytest.raises(TransformError) as caught:
        dx.vmap(f, in_axes=(AXES, 0))(net, X)
    assert where in str(caught.value)
    assert fix in str(caught.value)
    assert same_graph(net, before)


class Own(dx.Variable):
    pass


def test_sown_values_need_an_axis():
    net = Net()

    def f(net, x):
        net.sow(dx.Intermediate, "seen", x.sum())

    with pytest.raises(TransformError, match=r"in_axes=dx.StateAxes\(\{dx.Intermediate: 0, ...: None\}\)"):
        dx.vmap(f, in_axes=(None, 0))(net, X)
    assert not hasattr(net, "seen")
    dx.vmap(f, in_axes=(dx.StateAxes({dx.Intermediate: 0, ...: None}), 0))(net, X)
    assert net.seen.value[0].tolist() == [1.0, 5.0, 9.0]


@pytest.mark.parametrize(
    ("f", "out_axes", "where"),
    [
        (lambda x: x, None, "the result: this differs between instances"),
        (lambda x: {"k": [1.0, x]}, None, "the result.k[1]: this differs between instances"),
        (lambda x: (x, dx.Param(x)), (0, None), "the result[1]: this differs between instances"),
        (lambda x: (dx.Param(x), {"a": x}), (0, None), "the result[1].a: this differs between instances"),
        (lambda x: [dx.List([dx.Param(x)])], None, "the result[0][0]: this differs between instances"),
    ],
)
def test_results_that_differ_need_an_axis(f, out_axes, where):
    with pytest.raises(TransformError) as caught:
        dx.vmap(f, out_axes=out_axes)(X)
    assert where in str(caught.value)


def test_results_without_an_axis():
    made, number = dx.vmap(lambda x: (dx.Param(jnp.ones(2)), 1.0), out_axes=None)(X)
    assert made.value.tolist() == [1.0, 1.0]
    assert float(number) == 1.0


# ================================================================= axes


def test_graphs_of_axes():
    net = Net()
    axes = prefix(net, {dx.Param: 0, dx.Cache: -1, ...: None})
    found = dx.vmap(lambda n, x: n.weight * x.sum() + n.mean, in_axes=(axes, 0))(net, X)
    assert found.tolist() == [2.0, 11.0, 28.0]
    layer = dx.Linear(2, 2, use_bias=False, rngs=dx.Rngs(0))
    columns = dx.state(prefix(layer, {...: -1}))
    assert dx.vmap(lambda n: n.kernel[0], in_axes=(columns,))(layer).tolist() == layer.kernel.value[0].tolist()
    made = dx.vmap(dx.clone, in_axes=(axes,), out_axes=axes)(net)
    assert same_graph(made, net)
    dx.vmap(lambda n: setattr(n, "new", dx.Param(2 * n.weight.value.sum())), in_axes=(axes,))(net)
    assert net.new.shape == (3,)  # the axis of its filter
    axes = prefix(Net(), {dx.Param: 0, dx.BatchStat: None, dx.Cache: -1, dx.PathContains("raw"): None})
    with pytest.raises(TransformError, match=r"in_axes, new: no filter matches this leaf"):
        dx.vmap(lambda n: setattr(n, "new", dx.Intermediate(1.0)), in_axes=(axes,))(Net())


def test_axes_that_do_not_fit():
    net = Net()
    with pytest.raises(TransformError, match="this is not a label of leaves"):
        dx.vmap(lambda n: n, in_axes="a")
    with pytest.raises(TransformError, match="this is not a label of leaves"):
        dx.vmap(lambda n: n, in_axes=dx.StateAxes({...: dx.Carry}))
    with pytest.raises(TransformError, match="this is not a label of leaves"):
        dx.vmap(lambda n: n, out_axes=True)
    with pytest.raises(TransformError, match="the prefix does not fit the tree"):
        dx.vmap(lambda n: 1.0, in_axes=(AXES, 0))(net)
    with pytest.raises(TransformError, match="no filter matches this leaf"):
        dx.vmap(lambda n: 1.0, in_axes=(dx.StateAxes({dx.Param: 0}),))(net)
    with pytest.raises(TransformError, match=r"n\.raw: this cannot have the axis 0"):
        dx.vmap(lambda x, n: 1.0, in_axes=(None, dx.StateAxes({dx.BatchStat: None, ...: 0})))(1.0, net)
    with pytest.raises(TransformError, match=r"x\.x: this has another size along its axis") as caught:
        dx.vmap(lambda n, x, k: 1.0, in_axes=(AXES, {"x": 0}, 0))(net, {"x": jnp.ones(4)}, k=X)
    assert caught.value.expected == "3, as n.parts.a[0]"
    with pytest.raises(TransformError, match="this has another size along its axis"):
        dx.vmap(lambda x: x, axis_size=4)(X)
    with pytest.raises(ValueError, match="the user's own"):
        dx.vmap(lambda x: (_ for _ in ()).throw(ValueError("the user's own")))(X)
    with pytest.raises(TransformError, match="vmap, f: this is not a function"):
        dx.vmap(3)


def test_what_is_reached_twice_has_one_axis():
    v = dx.Param(jnp.arange(3.0))
    dx.vmap(lambda a, b: a.set_value(b.value + 1))(v, v)
    assert v.value.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(TransformError, match="in_axes, b: Inconsistent aliasing detected: one Variable") as caught:
        dx.vmap(lambda x, a, b: None, in_axes=(None, 0, None))(1.0, v, v)
    assert "0, as at a" in str(caught.value)
    dx.vmap(lambda a: a.set_value(v.value + 1))(v)  # captured and passed
    assert v.value.tolist() == [2.0, 3.0, 4.0]
    holder = dx.List([v])
    with pytest.raises(TransformError, match=r"in_axes, last\[0\]: Inconsistent aliasing detected: one Variable"):
        dx.vmap(lambda a, *, last: None, in_axes=None)(v, last=holder)
    with pytest.raises(GraphError):
        dx.vmap(lambda a, b: None, graph=False)(v, v)


def test_results_that_are_arguments_have_their_axes():
    net = Net()
    assert dx.vmap(lambda n: n, in_axes=(AXES,), out_axes=AXES)(net) is net
    part, again = dx.vmap(lambda n: (n.weight, n.weight), in_axes=(AXES,))(net)
    assert part is again is net.weight
    with pytest.raises(
        TransformError,
        match=r"out_axes, the result\.mean: Inconsistent aliasing detected: one Variable",
    ) as caught:
        dx.vmap(lambda n: n, in_axes=(AXES,))(net)
    assert "None, as at n.mean" in str(caught.value)
    assert "the same label in in_axes and out_axes" in str(caught.value)
    one, two = dx.vmap(lambda x: (lambda p: (dx.List([p]), dx.List([p])))(dx.Param(x)))(X)
    assert one[0] is two[0]
    with pytest.raises(
        TransformError,
        match=r"out_axes, the result\[1\]\[0\]: Inconsistent aliasing detected: one Variable",
    ):
        dx.vmap(lambda x: (lambda p: (dx.List([p]), dx.List([p])))(dx.Param(x)), out_axes=(0, 1))(X)


# ================================================================= structure


def test_structure_that_changes_inside_is_changed_outside():
    net = Net()

    def f(net, x):
        net.extra = dx.Param(x)
        del net.parts
        net.note = "seen"
        net.mean = dx.BatchStat(2.0)

    dx.vmap(f, in_axes=(AXES, 0))(net, X)
    assert net.extra.value.tolist() == X.tolist()
    assert not hasattr(net, "parts")
    assert net.note == "seen"
    with pytest.raises(TransformError, match="the function changes the structure of its arguments here"):
        dx.vmap(f, in_axes=(AXES, 0), graph_updates=False)(Net(), X)


def test_a_variable_that_is_moved_keeps_its_axis():
    a, b = dx.List([dx.Param(jnp.arange(3.0))]), dx.List([])
    dx.vmap(lambda a, b: b.append(a.pop()), in_axes=(0, None))(a, b)
    assert len(a) == 0
    assert b[0].value.tolist() == [0.0, 1.0, 2.0]


def test_models_are_made_under_vmap():
    def make(rngs):
        return dx.Linear(2, 4, rngs=rngs)

    made = dx.vmap(make, in_axes=dx.StateAxes({dx.RngState: 0}))(dx.Rngs(0).split(SIZE))
    assert made.kernel.shape == (SIZE, 2, 4)
    assert len({float(k.sum()) for k in made.kernel.value}) == SIZE
    bare = dx.vmap(lambda: dx.Param(jnp.ones(2)), axis_size=4)()
    assert bare.shape == (4, 2)
    forward = dx.vmap(lambda layer, x: layer(x))(made, X)
    expected = jnp.einsum("ni,nio->no", X, made.kernel.value) + made.bias.value
    np.testing.assert_allclose(forward, expected, rtol=1e-6)


def test_rows_of_weights_start_as_single_models_do():
    keys = jax.random.split(jax.random.key(0), SIZE)
    made = dx.vmap(lambda key: dx.Linear(2, 4, rngs=dx.Rngs(key)))(keys)
    for i, key in enumerate(keys):
        np.testing.assert_allclose(made.kernel.value[i], dx.Linear(2, 4, rngs=dx.Rngs(key)).kernel.value, rtol=1e-6)


# ================================================================= with other transforms


@pytest.mark.parametrize("mode", MODES)
def test_captured_models_have_no_axis(mode):
    layer, count = dx.Linear(2, 2, rngs=dx.Rngs(0)), dx.Variable(jnp.array(0))

    @dx.vmap(**mode)
    def f(x):
        count.value = count.value + 1
        return layer(x)

    np.testing.assert_allclose(f(X), layer(X), rtol=1e-6)
    layer.kernel.value = layer.kernel.value * 0
    np.testing.assert_allclose(f(X), X * 0 + layer.bias.value)
    np.testing.assert_allclose(dx.jit(f, **mode)(X), X * 0 + layer.bias.value)
    assert int(count.value) == 3
    with pytest.raises(TransformError, match=r"captured layer.kernel: this differs between instances"):
        dx.vmap(lambda x: setattr(layer.kernel, "value", x))(X)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.get("graph") is not False])
def test_inside_and_outside_of_jit_and_grad(mode):
    def energy(w, x):
        w.count.value = w.count.value + 1
        return (w.weight * x.sum()) ** 2

    class Weighted(dx.Module):
        def __init__(self):
            self.weight = dx.Param(jnp.arange(1.0, 4.0))
            self.count = dx.Variable(jnp.zeros(SIZE, jnp.int32))

    expected = [2 * w * s**2 for w, s in zip([1.0, 2.0, 3.0], [1.0, 5.0, 9.0], strict=True)]
    model = Weighted()
    grad = functools.partial(dx.grad, argnums=dx.DiffState(0, dx.Param), **mode)
    grads = dx.vmap(grad(energy), **mode)(model, X)
    assert grads["weight"].value.tolist() == expected
    grads = dx.jit(grad(lambda m, x: dx.vmap(energy, **mode)(m, x).sum()), **mode)(model, X)
    assert grads["weight"].value.tolist() == expected
    assert dx.vmap(dx.jit(energy, **mode), **mode)(model, X).tolist() == [1.0, 100.0, 729.0]
    assert model.count.value.tolist() == [3, 3, 3]


def test_one_in_the_other():
    p = dx.Param(jnp.arange(6.0).reshape(2, 3))
    q = dx.Param(jnp.ones(3))

    def inner(p, q, x):
        p.value = p.value + x
        return p * q

    found = dx.vmap(lambda p, x: dx.vmap(inner, in_axes=(0, 0, None))(p, q, x), in_axes=(0, 0))(p, jnp.arange(2.0))
    assert p.value.tolist() == [[0.0, 1.0, 2.0], [4.0, 5.0, 6.0]]
    assert found.tolist() == p.value.tolist()
    with pytest.raises(TransformError, match=r"captured q: this differs between instances"):
        dx.vmap(lambda p, q: dx.vmap(lambda p: q.set_value(p.value))(p), in_axes=(0, None))(p, q)


def test_inside_of_scan():
    p = dx.Param(jnp.zeros(3))

    def step(p, x):
        dx.vmap(lambda p: p.set_value(p.value + x))(p)
        return p

    scan(step, in_axes=(dx.Carry, 0), out_axes=dx.Carry)(p, jnp.arange(4.0))
    assert p.value.tolist() == [6.0, 6.0, 6.0]


def test_no_tracer_leaks():
    net = Net()
    with jax.checking_leaks():
        dx.vmap(lambda n, x: n.weight.set_value(n.weight * x.sum()), in_axes=(AXES, 0))(net, X)
        dx.jit(dx.vmap(lambda n, x: setattr(n, "new", dx.Param(x)), in_axes=(AXES, 0)))(net, X)
    assert net.new.shape == (SIZE, 2)


def test_names_of_mapped_axes():
    assert dx.vmap(lambda x: jax.lax.psum(x, "rows"), axis_name="rows")(X).tolist() == [[6.0, 9.0]] * SIZE
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        found = jax.jit(dx.vmap(lambda x: jax.lax.with_sharding_constraint(x, jax.P()), spmd_axis_name="data"))(X)
        made = jax.make_jaxpr(dx.vmap(lambda x: jax.lax.with_sharding_constraint(x, jax.P()), spmd_axis_name="data"))(X)
    assert found.tolist() == X.tolist()
    (constraint,) = equations(made, "sharding_constraint")
    assert constraint.params["sharding"].spec[0] == "data"


def test_as_a_decorator_of_methods():
    class Scale(dx.Module):
        def __init__(self):
            self.by = dx.Param(jnp.array(2.0))

        @dx.vmap(in_axes=(None, 0))
        def rows(self, x):
            """Rows."""
            return x * self.by

    assert Scale().rows(X).tolist() == (X * 2).tolist()
    assert Scale.rows.__doc__ == "Rows."


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_errors_leave_all_as_it_was(error):
    net, shared = Net(), dx.Param(jnp.zeros(3))
    before = snapshot(net)

    def f(net, x):
        net.weight.value = net.weight * 2
        net.new = dx.Param(x)
        shared.value = shared.value + 1
        del net.parts
        raise error("stop")

    with pytest.raises(error):
        dx.vmap(f, in_axes=(AXES, 0))(net, X)
    assert same_graph(net, before)
    assert shared.value.tolist() == [0.0, 0.0, 0.0]


# ================================================================= layers


def test_batch_norm_over_instances():
    norm = dx.BatchNorm(2, rngs=dx.Rngs(0))
    axes = dx.StateAxes({...: None})
    x = jnp.arange(24.0).reshape(SIZE, 4, 2)
    with pytest.raises(TransformError, match="this differs between instances but has no axis"):
        dx.vmap(lambda n, x: n(x), in_axes=(axes, 0))(norm, x)
    synced = dx.BatchNorm(2, rngs=dx.Rngs(0), axis_name="rows")
    found = dx.vmap(lambda n, x: n(x), in_axes=(axes, 0), axis_name="rows")(synced, x)
    np.testing.assert_allclose(found, norm(x.reshape(-1, 2)).reshape(x.shape), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(synced.mean.value, norm.mean.value, rtol=1e-6)


class Noisy(dx.Module):
    def __init__(self, rngs):
        self.dropout = dx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(x)


ONES = jnp.ones((SIZE, 64))


def rows_of(masks):
    return len({tuple(row) for row in masks.tolist()})


def test_shared_streams_draw_the_same_and_say_so_once():
    model = Noisy(dx.Rngs(0))
    f = dx.vmap(lambda m, x: m(x), in_axes=(None, 0))
    with pytest.warns(UserWarning, match=r"the stream 'default' \(m.dropout.rngs.count\)") as caught:
        masks = f(model, ONES)
    assert [w.filename for w in caught] == [__file__]
    assert "dx.split_rngs(model, splits=n, only='default')" in str(caught[0].message)
    assert "with dx.broadcast_rngs('default')" in str(caught[0].message)
    assert rows_of(masks) == 1
    count = int(model.dropout.rngs.count.value)
    f(model, ONES)  # warns once a path
    assert int(model.dropout.rngs.count.value) == count + 1


def test_the_warning_points_to_the_user_inside_of_other_transforms():
    model = Noisy(dx.Rngs(0))

    def f(model):
        return dx.vmap(lambda m, x: m(x), in_axes=(None, 0))(model, ONES)

    with pytest.warns(UserWarning, match="each instance draws the same random numbers") as caught:
        dx.jit(f)(model)
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, f.__code__.co_firstlineno + 1)]


def test_draws_that_are_meant_are_no_matter():
    model = Noisy(dx.Rngs(0))
    f = dx.vmap(lambda m, x: m(x), in_axes=(None, 0))
    with dx.broadcast_rngs():
        assert rows_of(f(model, ONES)) == 1
    with dx.broadcast_rngs("default"):
        f(model, ONES)
    with dx.broadcast_rngs("other"), pytest.warns(UserWarning, match="draws the same random numbers"):
        f(model, ONES)


def test_streams_with_an_axis_draw_each_their_own():
    model = Noisy(dx.Rngs(0))
    axes = dx.StateAxes({dx.RngState: 0, ...: None})
    with dx.split_rngs(model, splits=SIZE):
        masks = dx.vmap(lambda m, x: m(x), in_axes=(axes, 0))(model, ONES)
    assert rows_of(masks) == SIZE


def test_keys_with_an_axis_make_a_shared_count_no_matter():
    stream = dx.Rngs(0).default
    stream.key.value = jax.random.split(stream.key.value, SIZE)
    f = dx.vmap(lambda s: jax.random.uniform(s()), in_axes=(dx.StateAxes({dx.RngKey: 0, ...: None}),))
    assert len(set(f(stream).tolist())) == SIZE


def test_nobody_is_warned_where_nothing_is_drawn():
    model = Noisy(dx.Rngs(0))
    model.eval()
    made = dx.vmap(lambda m, x: (m(x), dx.Param(x), setattr(m, "note", "a"))[1], in_axes=(None, 0))(model, ONES)
    assert made.shape == ONES.shape
    assert model.note == "a"


# ================================================================= the peer


def linear_of(linear, rngs):
    return linear(2, 4, rngs=rngs)


def test_the_same_program_in_the_peer():
    nnx = pytest.importorskip("flax.nnx")
    found = []
    for lib in (dx, nnx):
        rngs = lib.Rngs(0)

        make = functools.partial(linear_of, lib.Linear)
        layers = lib.vmap(make, in_axes=(lib.StateAxes({...: 0}),))(rngs.split(SIZE))
        norm = lib.BatchNorm(4, rngs=lib.Rngs(1), axis_name="rows")
        axes = lib.StateAxes({lib.Param: 0, ...: None})

        @lib.vmap(in_axes=(axes, None, 0), axis_name="rows")
        def forward(layer, norm, x):
            return norm(layer(x[None]))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            out = forward(layers, norm, X)
        found.append((layers.kernel[...], out, norm.mean[...]))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)

"""Mistakes that JAX reports in its own words: errors name the user's function, argument and path, and a remedy."""

import functools
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import DeclaxError, MissingKeyError, OverlookedModelWarning, TraceContextError, TransformError


class Net(dx.Module):
    kernel: dx.Param
    count: dx.Variable


def net(shape=(3,)):
    made = Net()
    made.kernel = dx.Param(jnp.ones(shape))
    made.count = dx.Variable(jnp.array(0))
    return made


ONE_DEVICE = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def with_refs(shape=(3,)):
    return dx.to_refs(net(shape))


X = jnp.ones(3)


# ================================================================= what depends on values


def my_step(model, x, flag=False):
    return x + 1 if flag else x


def by_flag(model, x, flag):
    return x + 1 if flag else x


def by_model(model, x):
    return x + 1 if model.count[...] > 0 else x


def by_star(*models):
    return 1 if models[1].count[...] > 0 else 0


def by_keyword(x, *, model):
    return 1 if model.count[...] > 0 else 0


def by_index(model):
    return [1, 2, 3][model.count[...]]


def by_numpy(model):
    return np.sin(model.kernel[...])


def by_float(model, x):
    return float(x["a"][0])


def captured_by(transform):
    model = net()

    def read_it(*xs):
        return xs if model.count[...] > 0 else xs[::-1]

    return transform(read_it)


def carry_on(carry, x):
    return (carry + 1 if x > 0 else carry), x


def body_of_loop(x):
    return x + 1 if x > 0 else x


def loss_by_sign(model):
    return model.kernel[...].sum() if model.kernel[...].sum() > 0 else 0.0


BOOL, INTEGER = jax.errors.TracerBoolConversionError, jax.errors.TracerIntegerConversionError
ARRAY, CONCRETE = jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError

CONCRETISATIONS = {
    "an argument of jit": (lambda: dx.jit(by_flag)(net(), X, True), BOOL, "function by_flag at", "the argument flag."),
    "a model of jit": (lambda: dx.jit(by_model)(net(), X), BOOL, "function by_model at", "argument model.count."),
    "by name": (lambda: dx.jit(by_flag)(net(), X, flag=True), BOOL, "function by_flag", "the argument flag."),
    "beside a static one": (
        lambda: dx.jit(lambda n, flag: n if flag else -n, static_argnums=0)(1, True),
        BOOL,
        "the argument flag.",
    ),
    "one of many": (lambda: dx.jit(by_star)(net(), net()), BOOL, "argument models[1].count."),
    "by keyword only": (lambda: dx.jit(by_keyword)(1.0, model=net()), BOOL, "argument model.count."),
    "a captured model": (lambda: captured_by(dx.jit)(X), BOOL, "function read_it", "argument captured model.count."),
    "a partial": (
        lambda: dx.jit(functools.partial(by_model, net()))(X),
        BOOL,
        "function by_model",
        "argument captured Net.count.",
    ),
    "an index": (lambda: dx.jit(by_index)(net()), INTEGER, "function by_index", "argument model.count."),
    "numpy": (lambda: dx.jit(by_numpy)(net()), ARRAY, "function by_numpy", "argument model.kernel."),
    "a number": (lambda: dx.jit(by_float)(net(), {"a": X}), CONCRETE, "function by_float", "the argument x.a."),
    "a shape": (
        lambda: dx.jit(lambda model: jnp.zeros(model.count[...]))(net()),
        TypeError,
        "argument model.count.",
    ),
    "jit of grad": (lambda: dx.jit(dx.grad(loss_by_sign))(net()), BOOL, "function loss_by_sign", "model.kernel."),
    "remat": (lambda: dx.remat(loss_by_sign)(net()), BOOL, "function loss_by_sign", "argument model.kernel."),
    "scan": (lambda: dx.scan(carry_on)(0.0, X), BOOL, "function carry_on", "the argument x."),
    "scan, captured": (
        lambda: captured_by(dx.scan)(0.0, X),
        BOOL,
        "function read_it",
        "argument captured model.count.",
    ),
    "cond": (lambda: dx.cond(True, by_model, my_step, net(), X), BOOL, "function by_model", "model.count."),
    "switch": (lambda: dx.switch(0, [my_step, by_model], net(), X), BOOL, "function by_model", "model.count."),
    "while_loop": (lambda: dx.while_loop(lambda x: x < 3, body_of_loop, 0), BOOL, "body_of_loop at", "argument x."),
    "while_loop, the condition": (
        lambda: dx.while_loop(lambda x: bool(x < 3), lambda x: x + 1, 0),
        BOOL,
        "function <lambda> at",
        "the argument x.",
    ),
    "fori_loop": (lambda: dx.fori_loop(0, 3, lambda i, x: body_of_loop(i), 0), BOOL, "the argument i."),
    "vmap": (lambda: dx.vmap(by_flag, in_axes=(None, 0, 0))(net(), X, X > 0), BOOL, "by_flag"),
}


def texts_of(error):
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize("name", CONCRETISATIONS)
def test_what_depends_on_values_is_named_as_in_the_users_code(name):
    mistake, kind, *pieces = CONCRETISATIONS[name]
    with pytest.raises(kind) as caught:
        mistake()
    for piece in pieces:
        assert piece in texts_of(caught.value)
    for internal in (" flat ", "leaves[", "values[", "plain[", "call_on_leaves"):
        assert internal not in texts_of(caught.value)


def test_jax_calls_a_compiled_function_as_the_user_does():
    assert "jit_by_model" in dx.jit(lambda_named("by_model")).lower(net(), X).as_text()


def lambda_named(name):
    def made(model, x):
        return model.kernel[...] * x

    made.__name__ = made.__qualname__ = name
    return made


# ================================================================= errors of declax


def pair_of(second):
    def make_pair(model, x):
        return {"loss": x, "info": [model, second]}

    return make_pair


def sets_text(model):
    model.count.value = "text"


def grows_too(model, x):
    model.new = dx.Param(x)
    return {"text": "text", "model": model}


def capturing(function, **options):
    model = net()
    return lambda transform: transform(lambda *xs: function(model, *xs), **options)


def set_count(model, x):
    model.count.value = x


def grow(model, *xs):
    model.new = dx.Variable(1)


def compiled(*args, **kwargs):
    return dx.jit(my_step, **kwargs).lower(*args).compile()


def other_model():
    made = net()
    made.rate = 3
    return made


def donated_state():
    model = net()
    old = dx.state(model)
    dx.jit(bump, donate_argnums=0)(model)
    return dx.merge(dx.graphdef(model), old)


def bump(model):
    model.kernel[...] += 1


def donated_array():
    x = jnp.ones(7)
    dx.jit(double, donate_argnums=0)(x)
    return x


def double(x):
    return 2 * x


def twice_donated():
    x = jnp.ones(7)
    f = dx.jit(double, donate_argnums=0)
    f(x)
    f(x)


def donated_by_the_same_binding():
    f = dx.jit(lambda model: model.kernel[...] * 2)
    model = net()
    for _ in range(3):
        f(model)
    model.kernel[...].delete()
    f(model)


def pulled(cotangent, f=lambda model, x: {"y": model.kernel[...] * x}):
    _, pullback = dx.vjp(f, net(), 2.0)
    pullback(cotangent)


def loss_of_vector(model):
    return model.kernel[...]


def loss_of_count(model):
    return model.count[...]


def complex_loss(model):
    return model.kernel[...].sum().astype(complex)


def no_loss(model):
    model.kernel[...].sum()


def loss_and_more(model):
    return model.kernel[...].sum(), 1


def loss_is_model(model):
    return model


def writes_ref(model, x):
    model.kernel[...] += x
    return (model.kernel[...] * x).sum()


def read_ref(model, *xs):
    return model.kernel[...]


def keyed(model):
    model.count[...] += 1
    return model


def no_params():
    made = dx.Module()
    made.rate = dx.Variable(1.0)
    return made


def write_behind_a_module():
    module = types.ModuleType("settings")
    module.model = net()

    def write(x):
        module.model.kernel.value = x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlookedModelWarning)
        dx.jit(write)(X)


def grow_behind_a_module():
    module = types.ModuleType("settings")
    module.model = net()

    def write(x):
        module.model.new = 3

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlookedModelWarning)
        dx.jit(write)(X)


AXES = dx.StateAxes({dx.Param: 0, ...: None})

MISTAKES = {
    # results
    "a text from jit": (
        lambda: dx.jit(pair_of("text"))(net(), X),
        "make_pair, the result.info[1]",
        "got:      str",
    ),
    "an object": (lambda: dx.jit(pair_of(object()))(net(), X), "make_pair, the result.info[1]", "of type object"),
    "an array of texts": (dx.jit(lambda: np.array(["a"])), "<lambda>, the result: this is not an array"),
    "a text in a Variable": (lambda: dx.jit(sets_text)(net()), "sets_text, model.count: this is not an array"),
    "a text beside a new Variable": (lambda: dx.jit(grows_too)(net(), X), "grows_too, the result.text"),
    "a text in a new Variable": (
        lambda: dx.jit(lambda model: setattr(model, "new", dx.Variable("text")))(net()),
        "model.new: this is not an array",
    ),
    "a text from scan": (lambda: dx.scan(lambda c, x: (c, "text"))(0.0, X), "<lambda>, the result[1]"),
    "a text from cond": (lambda: dx.cond(True, lambda: "a", lambda: "b"), "<lambda>, the result: this is not an array"),
    "a text from remat": (lambda: dx.remat(lambda model: "a")(net()), "<lambda>, the result: this is not an array"),
    "a text from vmap": (lambda: dx.vmap(lambda x: {"a": "text"})(X), "the result.a: this is not an array"),
    "a text from vjp": (lambda: dx.vjp(lambda x: {"a": "text"}, X), "the result.a: this is not an array"),
    # losses
    "a vector": (
        lambda: dx.grad(loss_of_vector)(net()),
        "result of loss_of_vector: a loss must be a single real number",
        "loss.mean()",
    ),
    "an integer": (
        lambda: dx.value_and_grad(loss_of_count)(net()),
        "a loss must be a single real number, or a Variable holding one",
        "int32",
    ),
    "a complex number": (lambda: dx.grad(complex_loss)(net()), "a loss must be a single real number", "complex64"),
    "a real number": (
        lambda: dx.grad(lambda x: x.real, holomorphic=True)(1j),
        "a loss must be a single complex number",
    ),
    "no loss": (lambda: dx.grad(no_loss)(net()), "result of no_loss: a loss must be a single", "None"),
    "a tuple": (lambda: dx.grad(loss_and_more)(net()), "a loss must be a single real", "has_aux=True"),
    "a text": (lambda: dx.grad(lambda model: "text")(net()), "a loss must be a single real", "str 'text'"),
    "a model": (lambda: dx.grad(loss_is_model)(net()), "a loss must be a single real", "type State"),
    "a vector with aux": (
        lambda: dx.grad(lambda model: (model.kernel[...], 1), has_aux=True)(net()),
        "a loss must be a single real number",
    ),
    "no pair": (
        lambda: dx.grad(loss_of_vector, has_aux=True)(net()),
        "the function does not return a pair",
        "return loss, ",
    ),
    "arguments without Params": (
        lambda: dx.grad(lambda model, other: 1.0, argnums=(1, 0))(no_params(), no_params()),
        "other: there is nothing to differentiate",
        "dx.DiffState(1, ...)",
    ),
    # branches and loops
    "pred of many": (lambda: dx.cond(X > 0, double, double, X), "cond, pred: this is an array of several", "bool[3]"),
    "pred of no array": (lambda: dx.cond("yes", double, double, X), "cond, pred: this is not an array", "str 'yes'"),
    "pred is None": (lambda: dx.cond(None, double, double, X), "cond, pred: this is not an array", "one boolean"),
    "pred is a model": (lambda: dx.cond(net(), double, double, X), "cond, pred: this is not an array", "of type Net"),
    "index of many": (lambda: dx.switch(jnp.arange(2), [double], X), "switch, index: this is an array of several"),
    "index no integer": (lambda: dx.switch(1.0, [double, double], X), "switch, index: this is not one integer"),
    "index is a text": (lambda: dx.switch("1", [double, double], X), "switch, index: this is not an array"),
    "one branch": (lambda: dx.switch(0, double, X), "switch, branches: this is not a sequence of functions", "[f, g]"),
    "bound no integer": (lambda: dx.fori_loop(0, 3.0, lambda i, x: x, X), "fori_loop, upper: this is not one integer"),
    "bound no float": (lambda: dx.fori_loop(0.0, 3, lambda i, x: x, X), "fori_loop, upper: this is not one float"),
    "bound of many": (lambda: dx.fori_loop(0, jnp.arange(3), lambda i, x: x, X), "fori_loop, upper: this is an array"),
    "bound is a text": (lambda: dx.fori_loop(0, "3", lambda i, x: x, X), "fori_loop, upper: this is not an array"),
    # vmap
    "an axis that a result cannot have": (
        lambda: dx.vmap(lambda x: {"a": x}, out_axes=3)(X),
        "the result.a: this cannot have the axis 3",
        "an axis from -1 to 0",
    ),
    "an axis that a Variable cannot have": (
        lambda: dx.vmap(
            lambda m, x: setattr(m.kernel, "value", x), in_axes=(dx.StateAxes({dx.Param: 1, ...: None}), 0)
        )(net((2, 3)), X),
        "m.kernel: this cannot have the axis 1",
    ),
    "no axis": (
        lambda: dx.vmap(lambda x: x, in_axes=None)(X),
        "no argument has an axis, and there",
        "axis_size=10",
    ),
    "no argument": (captured_by(dx.vmap), "no argument has an axis"),
    "StateAxes of an array": (
        lambda: dx.vmap(double, in_axes=(AXES,))(X),
        "in_axes, x: a ",
        " is for a model, and this is in none",
    ),
    "StateAxes of a result": (lambda: dx.vmap(double, out_axes=AXES)(X), "out_axes, the result: a StateAxes is for"),
    "StateAxes of a result beside a model": (
        lambda: dx.vmap(lambda x: {"model": dx.Param(x), "x": x}, out_axes=AXES)(X),
        "out_axes, the result.x: a StateAxes is for",
    ),
    "too many axes": (lambda: dx.vmap(double, in_axes=(0, 0))(X), "the prefix does not fit the tree", "one for all"),
    "too few axes": (lambda: dx.vmap(by_model, in_axes=(0,))(net(), X), "the prefix does not fit the tree"),
    "a captured model is set": (
        lambda: capturing(set_count)(dx.vmap)(X),
        "captured model.count: this differs between instances",
        "captured models have none",
    ),
    "a captured model grows": (
        lambda: capturing(grow, graph_updates=False)(dx.jit)(X),
        "captured model.new: the function changes",
        "graph_updates=True",
    ),
    "an argument grows": (
        lambda: dx.jit(lambda a, b: grow(b), graph_updates=False)(net(), net()),
        "b.new: the function changes",
    ),
    # vjp and jvp
    "cotangent of another shape": (
        lambda: pulled({"y": jnp.ones(2)}),
        "the cotangent.y: this does not match",
        "shape (2,) and dtype float32",
    ),
    "cotangent of another dtype": (
        lambda: pulled({"y": jnp.ones(3, int)}),
        "the cotangent.y: this does not match",
        "int32",
    ),
    "cotangent of another tree": (lambda: pulled(X), "the cotangent: this does not match", "jax.tree.map(jnp.ones"),
    "cotangent of other keys": (lambda: pulled({"z": X}), "the cotangent: this does not match", "{'y': '*'}"),
    "cotangent is a text": (lambda: pulled({"y": "text"}), "the cotangent.y: this does not match", "str 'text'"),
    "tangent of another shape": (lambda: dx.jvp(double, (X,), (jnp.ones(2),)), "tangents, x: this does not match"),
    "tangent of another dtype": (
        lambda: dx.jvp(double, (X,), (jnp.ones(3, int),)),
        "tangents, x: this does not match",
    ),
    # donation
    "a donated model": (
        lambda: dx.jit(lambda model: model.kernel[...])(donated_state()),
        "model.kernel: this array was deleted, since its buffer was donated",
        "dx.clone(model)",
    ),
    "a donated model under grad": (
        lambda: dx.grad(lambda m: m.kernel[...].sum())(donated_state()),
        "m.kernel: this array was deleted",
    ),
    "a donated array under vmap": (lambda: dx.vmap(double)(donated_array()), "x: this array was deleted"),
    "donated twice": (twice_donated, "x: this array was deleted"),
    "deleted in a known model": (donated_by_the_same_binding, "model.kernel: this array was deleted"),
    # stages
    "a compiled stage, another shape": (
        lambda: compiled(net(), X)(net(), jnp.ones(4)),
        "my_step, compiled: it was compiled for other arguments",
        "the shape or dtype was float32[3], and is float32[4]",
    ),
    "a compiled stage, another dtype": (
        lambda: compiled(net(), X)(net((1,)), X),
        "model.kernel: the shape or dtype was float32[3]",
    ),
    "a compiled stage, another tree": (lambda: compiled(net(), X)(net(), [X]), "the arguments: the tree was"),
    "a compiled stage, another model": (
        lambda: compiled(net(), X)(other_model(), X),
        "model.rate: the structure was not there, and is 3",
    ),
    "a compiled stage, another static": (
        lambda: compiled(net(), X, False, static_argnames="flag")(net(), X, True),
        "the static argument was False, and is True",
    ),
    # selections
    "a static number": (lambda: dx.jit(my_step, static_argnums=5), "no positional parameter 5", "static_argnums=2"),
    "a negative number": (lambda: dx.jit(my_step, static_argnums=-5), "no positional parameter -5", "2 for '"),
    "no parameters": (
        lambda: dx.jit(lambda: 1, static_argnums=0),
        "no positional parameters",
        "leave out static_argnums",
    ),
    "a donated number": (lambda: dx.jit(my_step, donate_argnums=3), "no positional parameter 3", "donate_argnums=2"),
    "a static name": (lambda: dx.jit(my_step, static_argnames="flog"), "no parameter 'flog'", "static_argnames='flag'"),
    # array refs
    "grad of a ref": (
        lambda: dx.grad(lambda m: m.kernel[...].sum())(with_refs()),
        "m.kernel: this is an array ref",
    ),
    "vjp of a ref": (
        lambda: dx.vjp(read_ref, with_refs()),
        "model.count: this is an array ref, which has no gradient",
    ),
    "jvp of a ref": (
        lambda: dx.jvp(read_ref, (with_refs(),), (dx.state(net(), dx.Param),)),
        "model.kernel: this is an array ref, which has no gradient",
    ),
    "a ref along the steps of scan": (
        lambda: dx.scan(read_ref, in_axes=(0, 0), out_axes=0)(with_refs_only(), X),
        "scan, model.kernel: this is an array ref, which cannot be scanned",
    ),
    "a ref over devices": (
        lambda: dx.pmap(read_ref, in_axes=(dx.StateAxes({dx.Param: 0, ...: None}), 0))(with_refs((1,)), jnp.ones(1)),
        "model.kernel: this is an array ref, which pmap cannot split",
    ),
    "a ref over a mesh": (
        lambda: dx.shard_map(read_ref, mesh=ONE_DEVICE, in_specs=(None, None), out_specs=jax.P())(with_refs(), X),
        "model.count: this is an array ref, which shard_map cannot split",
    ),
    "a captured ref over a mesh": (
        lambda: dx.shard_map(functools.partial(read_ref, with_refs()), mesh=ONE_DEVICE, in_specs=None, out_specs=None)(
            X
        ),
        "captured Net.count",
        "this is an array ref, which shard_map cannot split",
    ),
    "a condition on a ref": (
        lambda: dx.while_loop(lambda model: model.count[...] < 3, keyed, with_refs()),
        "while_loop, cond_fun: cond_fun reads an array ref",
        "model.count",
    ),
}


def with_refs_only():
    made = dx.Module()
    made.kernel = dx.Param(jnp.ones(3))
    return dx.to_refs(made)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_in_the_users_words(name):
    mistake, *pieces = MISTAKES[name]
    with pytest.raises(TransformError) as caught:
        mistake()
    for piece in pieces:
        assert piece in str(caught.value)
    assert caught.value.fix
    for internal in (" flat ", "leaves[", "argument [", "call_on_leaves", "DynamicJaxprTracer"):
        assert internal not in str(caught.value)


@pytest.mark.parametrize("mistake", [write_behind_a_module, grow_behind_a_module])
def test_a_model_that_was_overlooked(mistake):
    with pytest.raises(TraceContextError) as caught:
        mistake()
    assert "names of the function's module" in str(caught.value)
    assert "not in other objects, classes or modules" in str(caught.value)
    assert "as an argument" in str(caught.value)


def test_paths_that_a_state_lacks():
    state = dx.state(net())
    with pytest.raises(MissingKeyError, match=r"kernle: there is no such path; did you mean 'kernel'\?"):
        state["kernle"]
    with pytest.raises(MissingKeyError, match=r"\[3\]: there is no such path(.|\n)*count, kernel"):
        state[3]


# ================================================================= what is no mistake


def test_a_loss_in_a_variable_is_a_number():
    def new(model):
        return dx.Variable((model.kernel[...] ** 2).sum())

    def own(model):
        model.loss.value = (model.kernel[...] ** 2).sum()
        return model.loss

    def with_aux(model):
        return new(model), {"model": model, "n": 3}

    model = net()
    model.loss = dx.Variable(jnp.array(0.0))
    for loss in (new, own):
        value, grads = dx.value_and_grad(loss)(model)
        assert grads["kernel"].value.tolist() == [2.0, 2.0, 2.0]
        assert float(value.value) == 3.0
    assert value is model.loss
    grads, aux = dx.grad(with_aux, has_aux=True)(model)
    assert grads["kernel"].value.tolist() == [2.0, 2.0, 2.0]
    assert (aux["model"], aux["n"]) == (model, 3)
    assert dx.jit(dx.grad(own))(model)["kernel"].value.tolist() == [2.0, 2.0, 2.0]


def test_losses_that_jax_takes():
    for loss in (1.0, np.float32(1), jnp.bfloat16(1), np.ones(())):
        assert float(dx.grad(lambda x, loss=loss: loss)(2.0)) == 0.0
    assert complex(dx.grad(lambda x: x * x, holomorphic=True)(1j)) == 2j


def test_predicates_and_bounds_in_variables():
    assert float(dx.cond(dx.Variable(jnp.array(True)), double, my_double, 2.0)) == 4.0
    assert float(dx.cond(1.0, double, my_double, 2.0)) == 4.0
    assert float(dx.switch(dx.Variable(jnp.array(1)), [double, my_double], 2.0)) == 5.0
    assert float(dx.fori_loop(0, dx.Variable(jnp.array(3)), lambda i, x: x + i, 0.0)) == 3.0


def my_double(x):
    return 2.5 * x


def test_integer_results_need_no_cotangent():
    (_, n), pull = dx.vjp(lambda model, x: (model.kernel[...] * x, model.count[...] + 1), net(), 2.0)
    for of_integer in (1, None, n):
        assert float(pull((X, of_integer))[1]) == 3.0
    y, tangent = dx.jvp(lambda x, n: x * n, (2.0, 3), (1.0, 1))
    assert (float(y), float(tangent)) == (6.0, 3.0)


def test_an_error_of_the_users_own_stays():
    class Own(Exception):
        pass

    def fails(*args):
        raise Own("array reference deleted by the user")

    model = donated_state()
    for transform in (dx.jit, dx.vmap, dx.grad, dx.remat, dx.scan):
        with pytest.raises(Own, match="deleted by the user"):
            transform(fails)(net((1,)) if transform is not dx.vmap else X, jnp.ones(1) if transform is dx.scan else X)
    with pytest.raises(DeclaxError, match="this array was deleted"):
        dx.jit(double)(model.kernel)


def test_nothing_is_named_twice():
    both = net()
    with pytest.raises(BOOL, match=r"the arguments a\.count and b\.count"):
        dx.jit(lambda a, b: 1 if a.count[...] + b.count[...] else 0)(net(), net())
    with pytest.raises(BOOL, match=r"argument a\.count\."):
        dx.jit(lambda a, b: 1 if b.count[...] else 0)(both, both)
    with pytest.raises(BOOL, match=r"arguments captured model\.count and captured model\.count \(2\)"):
        two_of_one_name()()


def two_of_one_name():
    def inner():
        model = net()
        return lambda: model.count[...]

    model, read = net(), inner()
    return dx.jit(lambda: 1 if model.count[...] + read() else 0)

"""The stages of a compiled function: what each tells, and that the last one keeps what the function sets."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import TransformError


class Model(dx.Module):
    def __init__(self):
        self.linear = dx.Linear(2, 3, rngs=dx.Rngs(0))
        self.count = dx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x, scale=1.0):
        self.count += 1
        return self.linear(x) * scale


X = jnp.ones((4, 2))


@dx.jit
def forward(model, x):
    return model(x)


def test_tracing_and_lowering_run_nothing():
    model = Model()
    traced = forward.trace(model, X)
    lowered = traced.lower()
    assert int(model.count) == 0
    assert (traced.out_info.shape, traced.out_info.dtype) == ((4, 3), jnp.float32)
    assert "dot_general" in str(traced.jaxpr)
    assert "dot_general" in lowered.as_text()
    assert "dot_general" in forward.lower(model, X).as_text("stablehlo")
    assert lowered.compiler_ir() is not None
    assert lowered.cost_analysis()["flops"] > 0


def test_a_compiled_function_keeps_what_is_set():
    model, other = Model(), Model()
    compiled = forward.lower(model, X).compile()
    y = compiled(model, X)
    np.testing.assert_array_equal(y, other(X))
    assert int(model.count) == 1
    compiled(other, 2 * X)  # another model of the same structure
    assert int(other.count) == 2
    assert "HloModule" in compiled.as_text()
    assert compiled.cost_analysis()["flops"] > 0
    assert compiled.memory_analysis() is not None
    leaves = 4  # kernel, bias, count, and the argument
    assert len(jax.tree.leaves(compiled.input_shardings)) == leaves


def test_another_structure_is_refused():
    model, other = Model(), Model()
    compiled = forward.lower(model, X).compile()
    other.extra = dx.Param(jnp.ones(2))
    with pytest.raises(TransformError, match="it was compiled for other arguments"):
        compiled(other, X)
    assert int(other.count) == 0
    with pytest.raises(TransformError, match="the shape or dtype was float32"):
        compiled(model, jnp.ones((5, 2)))
    assert int(model.count) == 0


def test_static_arguments_are_given_again():
    model = Model()
    f = dx.jit(lambda m, x, scale: m(x, scale), static_argnames="scale")
    compiled = f.lower(model, X, 2.0).compile()
    np.testing.assert_allclose(compiled(model, X, 2.0), 2 * Model()(X))
    with pytest.raises(TransformError, match="it was compiled for other arguments"):
        compiled(model, X, 3.0)


def test_captured_models_and_methods():
    model = Model()
    compiled = dx.jit(lambda x: 1 * model(x)).lower(X).compile()
    compiled(X)
    assert int(model.count) == 1
    model.linear.bias.value = jnp.full(3, 100.0)
    assert float(compiled(X).min()) > 50
    dx.jit(model).lower(X).compile()(X)
    dx.jit(model.__call__).lower(X).compile()(X)
    assert int(model.count) == 4


def test_a_changed_structure_comes_back():
    @dx.jit
    def grow(model):
        model.extra = dx.Param(model.linear.bias + 1)

    model = Model()
    lowered = grow.lower(model)
    assert not hasattr(model, "extra")
    lowered.compile()(model)
    assert model.extra.shape == (3,)


def test_eval_shape():
    model = Model()
    assert forward.eval_shape(model, X).shape == (4, 3)
    made = dx.jit(Model).eval_shape()
    assert isinstance(made, Model)
    assert isinstance(made.linear.kernel.value, jax.ShapeDtypeStruct)
    assert made.linear.kernel.shape == (2, 3)
    shared = dx.jit(lambda m: (m, m.linear)).eval_shape(model)
    assert shared[0].linear is shared[1]
    assert isinstance(model.linear.kernel.value, jax.Array)
    assert int(model.count) == 0


def test_abstract_arguments():
    model, shape = dx.eval_shape(Model), jax.ShapeDtypeStruct((4, 2), jnp.float32)
    compiled = forward.lower(model, shape).compile()
    assert forward.eval_shape(model, shape).shape == (4, 3)
    real = Model()
    compiled(real, X)
    assert int(real.count) == 1


def test_donation_through_the_stages():
    model = Model()
    f = dx.jit(lambda m, x: m(x), donate_argnums=0)
    compiled = f.lower(model, X).compile()
    before, kernel = model.count.value, model.linear.kernel.value
    compiled(model, X)
    assert before.is_deleted()
    assert not kernel.is_deleted()
    assert int(model.count) == 1


def test_lowering_for_another_platform():
    text = forward.trace(Model(), X).lower(lowering_platforms=("tpu",)).as_text()
    assert "dot_general" in text


def test_export_of_captured_models():
    model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    exported = jax.export.export(dx.jit(model))(X)
    assert [aval.shape for aval in exported.in_avals] == [X.shape]
    np.testing.assert_allclose(exported.call(X), model(X), rtol=1e-6)
    slope = jax.grad(lambda x: exported.call(x).sum())(X)
    np.testing.assert_allclose(slope, jnp.broadcast_to(model.kernel.value.sum(1), X.shape), rtol=1e-6)


def test_export_of_models_as_arguments():
    model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    exported = jax.export.export(dx.jit(lambda model, x: model(x)))(model, X)
    assert len(exported.in_avals) == 3
    other = dx.Linear(2, 3, rngs=dx.Rngs(1))
    np.testing.assert_allclose(exported.call(other, X), other(X), rtol=1e-6)


def test_export_of_symbolic_shapes_for_several_platforms():
    model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    (batch,) = jax.export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((batch, 2), jnp.float32)
    exported = jax.export.export(dx.jit(model), platforms=("cpu", "tpu"))(shape)
    assert exported.platforms == ("cpu", "tpu")
    assert str(exported.out_avals[0].shape) == "(b, 3)"
    np.testing.assert_allclose(exported.call(jnp.ones((7, 2))), model(jnp.ones((7, 2))), rtol=1e-6)


def test_export_with_static_and_first_arguments():
    def f(x: jax.Array, n: int, *, negative: bool) -> jax.Array:
        return -n * x if negative else n * x

    exported = jax.export.export(dx.jit(f, static_argnums=1, static_argnames="negative"))(X, 3, negative=True)
    assert jnp.array_equal(exported.call(X), -3 * X)
    model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    partial = dx.jit_partial(lambda model, n, x: n * model(x), model, 2, static_argnums=1)
    exported = jax.export.export(partial)(X)
    np.testing.assert_allclose(exported.call(X), 2 * model(X), rtol=1e-6)


def test_export_refuses_a_function_that_changes_its_arguments():
    with pytest.raises(TransformError, match=r"jax\.export: an exported program returns results only") as caught:
        jax.export.export(forward)(Model(), X)
    assert caught.value.got is not None
    assert "count" in caught.value.got
    with pytest.raises(TransformError, match="a model in the result"):
        jax.export.export(dx.jit(lambda x: dx.Dict(x=dx.Param(x))))(X)


def test_stages_keep_no_model_alive():
    gc.disable()
    try:
        model = Model()
        seen = weakref.ref(model)
        compiled = forward.lower(model, X).compile()
        compiled(model, X)
        del model
        assert seen() is None
    finally:
        gc.enable()


def test_options_of_jit():
    options = {"inline": True, "keep_unused": True, "compiler_options": {}}
    assert float(dx.jit(lambda x, y: x, **options)(1.0, 2.0)) == 1.0
    with pytest.raises(TransformError, match="jit, fun: this is not a function"):
        dx.jit(3)


def first_of_two(x, y):
    return x * 2


each_jit = pytest.mark.parametrize("jit", [dx.jit, dx.jit_partial])


@each_jit
@pytest.mark.parametrize("options", [{"inline": True}, {"keep_unused": True}])
@pytest.mark.parametrize("donated", [None, 0], ids=["kept", "donated"])
def test_options_of_jit_are_those_of_jax(jit, options, donated):
    def settings(jit, **options):
        (equation,) = jax.make_jaxpr(jit(first_of_two, donate_argnums=donated, **options))(1.0, 2.0).eqns
        return equation.primitive.name, [equation.params.get(name) for name in ("inline", "keep_unused")]

    assert settings(jit, **options) == settings(jax.jit, **options) != settings(jit)


def test_arguments_that_are_not_used():
    for keep in (False, True):
        assert ("%arg1:" in dx.jit(first_of_two, keep_unused=keep).lower(1.0, 2.0).as_text()) is keep


@each_jit
def test_options_of_the_compiler(jit):
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'no_such'"):
        jit(first_of_two, compiler_options={"no_such": True})(1.0, 2.0)


@each_jit
@pytest.mark.filterwarnings("ignore:backend and device:DeprecationWarning")
def test_backends_and_devices(jit):
    device = jax.devices()[0]
    assert jit(first_of_two, device=device)(1.0, 2.0).devices() == {device}
    with pytest.raises(RuntimeError, match="Unknown backend"):
        jit(first_of_two, backend="no_such")(1.0, 2.0)
    with pytest.raises(ValueError, match="can't specify both a device and a backend"):
        jit(first_of_two, device=device, backend="cpu")(1.0, 2.0)


def test_a_donated_call_that_fails_says_what_is_lost():
    model = Model()

    def fail(_):
        raise ValueError("the callback failed")

    @dx.jit(donate_argnums=0)
    def step(model, x):
        model.count += 1
        jax.debug.callback(fail, x)
        model.linear.bias[...] = model.linear.bias + 1

    def run():
        step(model, jnp.ones(()))
        jax.effects_barrier()

    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        run()
    lost = [n for n, v in (("count", model.count), ("linear.bias", model.linear.bias)) if v.value.is_deleted()]
    notes = "".join(getattr(caught.value, "__notes__", []))
    assert lost, "nothing was donated"
    for name in lost:
        assert name in notes
    assert "linear.kernel" not in notes
    assert not model.linear.kernel.value.is_deleted()


def test_a_donated_call_that_fails_while_tracing_loses_nothing():
    model = Model()

    @dx.jit(donate_argnums=0)
    def step(model):
        model.count += 1
        raise KeyError("early")

    with pytest.raises(KeyError) as caught:
        step(model)
    assert "lost their buffers" not in "".join(getattr(caught.value, "__notes__", []))
    assert int(model.count) == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_error_leaves_all_as_it_was(error):
    model = Model()
    captured = Model()
    before = dx.state((model, captured), copy=True)

    @dx.jit
    def step(model):
        model.count += 1
        captured.count += 1
        model.new = dx.Param(1.0)
        del captured.linear
        raise error("in the middle")

    with pytest.raises(error):
        step(model)
    assert dx.state((model, captured)) == before
    assert not hasattr(model, "new")


def test_a_failing_callback_leaves_all_as_it_was():
    model = Model()
    before = dx.state(model, copy=True)

    def fail(_):
        raise ValueError("the callback failed")

    @dx.jit
    def step(model, x):
        y = model(x)
        z = jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.float32), y.sum())
        for _ in range(20):
            x = x @ x
        model.linear.bias[...] = model.linear.bias + z + x.sum()

    with pytest.raises(jax.errors.JaxRuntimeError):
        step(model, jnp.ones((2, 2)))
    assert dx.state(model) == before

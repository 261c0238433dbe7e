"""A jitted function goes to another process and comes back, with its options and without programs."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import declax as dx

cloudpickle = pytest.importorskip("cloudpickle")


def sent(value):
    return pickle.loads(cloudpickle.dumps(value))


def make_step(scale):
    def step(model, x, *, power=1):
        model.calls += 1
        return (scale * model.kernel * x) ** power

    return step


def make_model():
    model = dx.Module()
    model.kernel, model.calls = dx.Param(jnp.arange(3.0)), dx.Variable(0)
    return model


def test_a_function_with_its_options():
    step = dx.jit(make_step(2.0), static_argnames="power", donate_argnums=0, keep_unused=True, graph_updates=False)
    step(make_model(), 1.0, power=2)
    found, model = sent(step), make_model()
    assert found.num_traces == 0
    before = model.kernel.value
    assert (found(model, 3.0, power=2) == (6.0 * jnp.arange(3.0)) ** 2).all()
    assert found(model, 3.0, power=3).shape == (3,)
    assert (found.num_traces, step.num_traces) == (2, 1)  # the power is static
    assert model.calls.value == 2
    assert not before.is_deleted()  # of a model, what the function sets is donated
    assert found.__name__ == "step"
    assert found._mode == step._mode
    assert found._options == step._options
    assert found._donated.numbers == step._donated.numbers
    assert sent(found)(model, 3.0, power=2).shape == (3,)


def test_donated_arguments():
    found = sent(dx.jit(lambda x: x + 1, donate_argnums=0))
    x = jnp.ones(3)
    found(x)
    assert x.is_deleted()


def test_shardings():
    mesh = jax.make_mesh((1,), ("a",))
    with jax.set_mesh(mesh):
        found = sent(dx.jit(lambda x: x + 1, in_shardings=PartitionSpec("a"), out_shardings=PartitionSpec()))
        assert found(jnp.ones(2)).sharding.spec == PartitionSpec()


def test_methods_nested_functions_and_captured_models():
    class Net(dx.Module):
        def __init__(self):
            self.w = dx.Param(2.0)

        @dx.jit
        def __call__(self, x):
            return self.w * x

    assert sent(Net)()(3.0) == 6.0
    assert sent(Net())(3.0) == 6.0
    assert sent(dx.jit(dx.jit(lambda x: x + 1)))(1) == 2
    model = make_model()
    found = sent(dx.jit(lambda x: model.kernel * x))
    model.kernel.value = jnp.zeros(3)
    assert (found(2.0) == 2 * jnp.arange(3.0)).all()  # with a copy of what it captures


def test_a_copy_has_programs_of_its_own():
    step = dx.jit(make_step(2.0))
    step.note = "mine"
    step(make_model(), 1.0)
    copied = copy.copy(step)
    assert (copied.num_traces, step.num_traces, copied.note) == (0, 1, "mine")
    assert (copied(make_model(), 1.0) == step(make_model(), 1.0)).all()


def _run(connection):
    """In another process: runs a step, and sends it back with what it gave."""
    step, model = pickle.loads(connection.recv_bytes())
    result = float(step(model, 2.0).sum())
    connection.send_bytes(cloudpickle.dumps((step, model, result)))


def test_a_step_goes_to_a_spawned_process_and_back():
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_run, args=(there,))
    process.start()
    here.send_bytes(cloudpickle.dumps((dx.jit(make_step(1.0), donate_argnums=0), make_model())))
    assert here.poll(120)
    step, model, result = pickle.loads(here.recv_bytes())
    process.join()
    assert result == 6.0
    assert model.calls.value == 1
    assert step(model, 2.0).sum() == 6.0


def test_a_function_with_shardings_by_filter_in_a_process_that_works_with_trees():
    step = dx.jit(lambda model: model.kernel * 2, in_shardings=(dx.StateSharding({...: None}),))
    pickled = cloudpickle.dumps(step)
    with dx.set_graph_mode(False):
        assert pickle.loads(pickled)(make_model()).tolist() == [0.0, 2.0, 4.0]

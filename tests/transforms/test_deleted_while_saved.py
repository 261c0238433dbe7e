"""A model that is saved, pickled or copied while another thread runs a donating step: the error names the array."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx


class Net(dx.Module):
    def __init__(self):
        self.first = dx.Param(jnp.zeros(4))
        self.raw = jnp.zeros(4)
        self.parts = dx.List([dx.Param(jnp.ones(4))])
        self.key = dx.Variable(jax.random.key(0))


def trained():
    net = Net()

    @dx.jit(donate_argnums=0)
    def train_step(net):
        net.first.value = net.first.value + 1
        net.raw = net.raw + 1
        net.parts[0].value = net.parts[0].value + 1
        net.key.value = jax.random.fold_in(net.key.value, 1)

    train_step(net)
    return net


class Deleter:
    """A static value that deletes an array when it is reduced, as a step of another thread may at any moment."""

    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        self.array.delete()
        return Deleter, (None,)

    def __eq__(self, other):
        return isinstance(other, Deleter)

    def __hash__(self):
        return 1


WAYS = {"pickle": pickle.dumps, "deepcopy": copy.deepcopy, "clone": dx.clone}
LOST = r"(?s){}: this array was deleted.*train_step, which donates its arguments.*dx\.clone.*one lock around each"


@pytest.mark.parametrize("name", ["first", "raw"])
@pytest.mark.parametrize("way", WAYS)
def test_an_array_that_is_gone(way, name):
    net = trained()
    jax.tree.leaves(getattr(net, name))[0].delete()
    with pytest.raises(dx.errors.GraphError, match=LOST.format(f"Net, {name}")):
        WAYS[way](net)


@pytest.mark.parametrize("name", ["first", "raw", "inner"])
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_an_array_that_goes_meanwhile(way, name):
    net = trained()
    net.inner = dx.Module()
    net.inner.array = jnp.ones(3)
    array = net.inner.array if name == "inner" else jax.tree.leaves(getattr(net, name))[0]
    net.parts.append(dx.static(Deleter(array)))
    vars(net).update({name: vars(net).pop(name)})  # is reached last
    place = {"pickle": "Net, ", "deepcopy": "Net, " if name == "first" else "(Net|Module)."}[way]
    with pytest.raises(dx.errors.GraphError, match=LOST.format(place + name.replace("inner", r"(inner\.)?array"))):
        WAYS[way](net)


@pytest.mark.parametrize("name", ["first", "raw", "pair", "inner"])
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_an_array_of_a_model_that_no_function_has_seen(way, name):
    """As after ``jax.jit(step, donate_argnums=0)(model)``."""
    net = Net()
    net.inner = dx.Module()
    net.inner.array = jnp.ones(3)
    net.pair = dx.data((jnp.ones(1), {"a": jnp.ones(2)}))
    jax.tree.leaves(getattr(net, name))[0].delete()
    place = "Module.array" if name == "inner" else f"Net.{name}"
    with pytest.raises(dx.errors.GraphError, match=f"^{place}: this array was deleted, so it can be neither"):
        WAYS[way](net)


COPIES = {
    "state": lambda model: dx.state(model, dx.Param, copy=True),
    "EMA": lambda model: dx.EMA(model, 0.5),
    "merge": lambda model: dx.merge(*dx.split(model), copy=True),
    "update": lambda model: dx.update(dx.clone(Net()), dx.state(model)),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_name_the_array(way):
    net = trained()
    net.parts[0].value.delete()
    with pytest.raises(dx.errors.GraphError, match=LOST.format(r"(Net|the State), parts\[0\]")):
        COPIES[way](net)


def noted(error, text):
    """Whether a note names an array, and the function that took it, perhaps among others that donate."""
    notes = [note for note in error.__notes__ if note.startswith(f"{text} was deleted: ")]
    return any("train_step, which donates its arguments" in note for note in notes)


LOSSES = {
    "the model": (lambda model, grads, optimizer: model, "parts[0] of Net"),
    "the gradients": (lambda model, grads, optimizer: grads, "first of State"),
    "the optimizer": (lambda model, grads, optimizer: optimizer.opt_state, "opt_state[0].trace.first of Optimizer"),
}


@pytest.mark.parametrize("of", LOSSES)
def test_an_update_of_an_optimizer_names_the_array(of):
    net = trained()
    optimizer = dx.Optimizer(net, optax.sgd(0.1, momentum=0.9))
    grads = jax.tree.map(jnp.ones_like, dx.state(net, dx.Param))
    lost, text = LOSSES[of]
    leaves = jax.tree.leaves(dx.state(lost(net, grads, optimizer)))
    leaves[-2 if of == "the model" else 0].delete()
    with pytest.raises(RuntimeError, match="deleted") as caught:
        optimizer.update(net, grads)
    assert noted(caught.value, text)


@pytest.mark.parametrize("of", ["the model", "the average"])
def test_an_update_of_an_average_names_the_array(of):
    net = trained()
    ema = dx.EMA(net, 0.5, only=dx.Param)
    (net if of == "the model" else ema.params).first.value.delete()
    with pytest.raises(RuntimeError, match="deleted") as caught:
        ema.update(net)
    text = "first of Net" if of == "the model" else "params.first of EMA"
    assert noted(caught.value, text)


def test_the_value_of_a_pickled_variable_is_itself():
    net = trained()
    net.parts[0].value = net.first.value
    found = pickle.loads(pickle.dumps(net))
    assert found.parts[0].value is found.first.value
    assert type(found.first.value) is type(net.first.value)
    assert len(pickle.dumps(net.first)) < len(pickle.dumps(net))
    big = dx.Module()
    big.one, big.other = dx.Param(jnp.zeros(10_000)), dx.Param(jnp.zeros(1))
    big.other.value = big.one.value
    assert len(pickle.dumps(big)) < 45_000
    dx.state(big)
    assert len(pickle.dumps(big)) < 45_000


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_variable_alone(way):
    net = trained()
    net.first.value.delete()
    text = "Param: this array was deleted, so it can be neither read nor copied"
    with pytest.raises(dx.errors.GraphError, match=text):
        WAYS[way](net.first)


@pytest.mark.parametrize("name", ["first", "raw", "key"])
@pytest.mark.parametrize("engine", ["declax", "orbax"])
def test_an_array_that_goes_while_it_is_saved(engine, name, tmp_path, monkeypatch):
    if engine == "orbax":
        pytest.importorskip("orbax.checkpoint")
    net = trained()
    arrays = jax.tree.leaves(getattr(net, name))
    done = "declax.checkpoint.saving._numbers"  # what is called between the checks and the writing
    if engine == "orbax":
        done = "declax.checkpoint.orbax_engine.counter_of"
    monkeypatch.setattr(done, lambda *args: arrays[0].delete() or ({} if engine == "declax" else None))
    with pytest.raises(dx.errors.CheckpointError, match=LOST.format(f"model.{name}")):
        dx.save(tmp_path / "c", {"model": net}, engine=engine)
    assert not (tmp_path / "c").exists()
    monkeypatch.undo()
    other = trained()
    dx.save(tmp_path / "c", {"model": other}, engine=engine)
    np.testing.assert_array_equal(dx.load(tmp_path / "c", extra=[Net], engine=engine)["model"].first.value, np.ones(4))

"""A model that is pickled while other threads train it is that of one moment."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax._tree import moment


def python_dumps(value):
    file = io.BytesIO()
    pickle._Pickler(file).dump(value)
    return file.getvalue()


PICKLERS = {"C": pickle.dumps, "Python": python_dumps}


class Part(dx.Module):
    def __init__(self):
        self.w = dx.Param(jnp.array(0))
        self.raw = jnp.array(0)


class Net(dx.Module):
    def __init__(self):
        self.first = dx.Param(jnp.array(0))
        self.raw = jnp.array(0)
        self.parts = dx.List([Part(), Part()])
        self.last = dx.Param(jnp.array(0))


class Meddler:
    """A static value that trains the model when it is pickled, as another thread may at any moment."""

    def __init__(self, train):
        self.train = train

    def __reduce__(self):
        self.train()
        return Meddler, (None,)

    def __eq__(self, other):
        return isinstance(other, Meddler)

    def __hash__(self):
        return 1


@dx.jit
def step(net):
    for variable in jax.tree.leaves(net, is_leaf=lambda x: isinstance(x, dx.Variable)):
        if isinstance(variable, dx.Variable):
            variable.value = variable.value + 1
    net.raw = net.raw + 1
    for part in net.parts:
        part.raw = part.raw + 1


def values(net):
    return [int(leaf) for leaf in jax.tree.leaves(net)]


def meddled():
    """A model with a value between its Variables that trains it once."""
    net = Net()
    net.parts[0].between = dx.static(Meddler(lambda: step(net)))
    step(net)
    return net


@pytest.mark.parametrize("dumps", PICKLERS.values(), ids=PICKLERS)
def test_a_step_in_between(dumps):
    net = meddled()
    found = pickle.loads(dumps(net))
    assert values(found) == [1] * 7
    assert values(net) == [2] * 7
    assert values(pickle.loads(dumps(net))) == [2] * 7
    assert not moment._local.moments


def test_a_step_in_between_of_a_copy():
    net = meddled()
    assert values(copy.deepcopy(net)) == [1] * 7
    assert values(net) == [2] * 7
    assert not moment._local.moments


def test_a_copy_of_what_holds_a_trained_model():
    net = meddled()
    holder = dx.Module()
    holder.average, holder.net = dx.clone(net), net
    found = copy.deepcopy(holder)
    assert values(found) == [1] * 14
    assert values(holder.net) == [2] * 7


def test_a_step_in_between_of_a_copy_of_a_class_with_its_own_reduction():
    net = Reduced()
    net.parts[0].between = dx.static(Meddler(lambda: step(net)))
    step(net)
    assert values(copy.deepcopy(net)) == [1] * 7
    assert not moment._local.moments


class Reduced(Net):
    def __reduce_ex__(self, protocol):
        return super().__reduce_ex__(protocol)


def test_an_error_in_between_of_a_copy_leaves_nothing():
    net = Net()
    step(net)

    def fail():
        raise RuntimeError("full")

    net.parts[1].between = dx.static(Meddler(fail))
    with pytest.raises(RuntimeError, match="full"):
        copy.deepcopy(net)
    assert not moment._local.moments


def test_copies_within_a_trace():
    net = Net()
    step(net)

    @dx.jit
    def doubled(net):
        net.first.value = net.first.value * 2
        return copy.deepcopy(net).first.value

    assert int(doubled(net)) == 2


def test_roots_of_any_kind_share_what_they_share():
    net = meddled()
    whole, part, listed = pickle.loads(pickle.dumps((net, net.parts[0], [net.first])))
    assert part is whole.parts[0]
    assert listed[0] is whole.first
    assert values(whole) == [1] * 7
    part, whole = pickle.loads(pickle.dumps((net.parts[1], net)))
    assert part is whole.parts[1]


@pytest.mark.parametrize("dumps", PICKLERS.values(), ids=PICKLERS)
def test_an_error_in_between_leaves_nothing(dumps):
    net = Net()
    step(net)

    def fail():
        raise RuntimeError("full")

    net.parts[1].between = dx.static(Meddler(fail))
    with pytest.raises(RuntimeError, match="full") as caught:
        dumps(net)
    step(net)
    del net.parts[1].between
    assert values(pickle.loads(dumps(net))) == [2] * 7  # while the error is at hand
    del caught
    gc.collect()
    step(net)
    assert int(pickle.loads(dumps(net.first)).value) == 3
    assert not moment._local.moments


def test_a_model_of_one_attribute_and_one_that_holds_itself():
    net = dx.Module()
    net.w = dx.Param(jnp.array(0))
    step_of_one = dx.jit(lambda net: net.w.set_value(net.w.value + 1))
    step_of_one(net)
    assert int(pickle.loads(pickle.dumps(net)).w.value) == 1
    net = Net()
    net.parts[0].whole = net
    dx.state(net)
    found = pickle.loads(pickle.dumps(net))
    assert found.parts[0].whole is found


def test_protocols():
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        net = meddled()
        assert values(pickle.loads(pickle.dumps(net, protocol))) == [1] * 7


COPIES = {"pickle": lambda net: pickle.loads(pickle.dumps(net)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_another_thread_trains(copied):
    net = Net()
    step(net)
    done = threading.Event()

    def train():
        while not done.is_set():
            step(net)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        found = [values(copied(net)) for _ in range(200)]
    finally:
        done.set()
        thread.join()
    assert all(len(set(numbers)) == 1 for numbers in found)
    assert len({numbers[0] for numbers in found}) > 1

# ruff: noqa: PLW0108  # a lambda is a new function, which JAX traces
"""Warnings of lost writes to the copies that raw transforms of JAX make."""

import gc
import re
import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

import declax as dx
from declax._variables import uncaptured_reads
from declax.errors import LostWriteWarning, TraceContextError


class Net(dx.Module):
    def __init__(self):
        self.linear = dx.Linear(2, 2, rngs=dx.Rngs(0))
        self.norm = dx.BatchNorm(2, rngs=dx.Rngs(0))
        self.dropout = dx.Dropout(0.5, rngs=dx.Rngs(0))
        self.scale = dx.Param(jnp.ones(2))

    def __call__(self, x):
        return self.dropout(self.norm(self.linear(x))) * self.scale


def loss(net, x):
    return net(x).sum()


def double(net):
    net.scale.value = net.scale.value * 2


def train(net, x):
    grads = dx.grad(loss)(net, x)
    dx.Optimizer(net, optax.sgd(0.1), wrt=dx.Param).update(net, grads)


X = jnp.ones((3, 2))

LOST = {
    "jit": lambda net: jax.jit(lambda net: double(net))(net),
    "by setattr": lambda net: jax.jit(lambda net: setattr(net.scale, "value", net.scale.value + 1))(net),
    "batch statistics": lambda net: jax.jit(loss)(net, X),
    "a training step": lambda net: jax.jit(train)(net, X),
    "vmap": lambda net: jax.vmap(loss, in_axes=(None, 0))(net, X[:, None]),
    "update": lambda net: jax.jit(lambda net: dx.update(net, jax.tree.map(jnp.zeros_like, dx.state(net))))(net),
    "in place": lambda net: jax.jit(lambda net: net.scale.__setitem__(0, 3.0))(net),
    "after a read": lambda net: jax.jit(lambda net: (double(net), net.scale.sum(), double(net))[1])(net),
    "inside of declax": lambda net: dx.jit(lambda net: jax.jit(lambda net: double(net))(net))(net),
    "a map inside of declax": lambda net: dx.jit(
        lambda net: jax.vmap(lambda net, x: (double(net), x)[1], in_axes=(None, 0))(net, X)
    )(net),
}


@pytest.mark.parametrize("program", LOST.values(), ids=list(LOST))
def test_lost_writes_are_told_once(program):
    net = Net()
    with pytest.warns(LostWriteWarning, match="is written here, and nobody reads the value") as caught:
        program(net)
    assert len(caught) == 1
    assert not uncaptured_reads.is_watching


def test_the_warning_names_the_path_the_kind_and_the_line():
    with pytest.warns(LostWriteWarning, match="^model.scale, a Param, is written here") as caught:
        jax.jit(lambda model: double(model))(Net())
    assert (caught[0].filename, caught[0].lineno) == (__file__, double.__code__.co_firstlineno + 1)


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (lambda net: jax.jit(lambda net: net.norm(X))(net), "net.norm.mean, a BatchStat, is"),
        (lambda net: jax.jit(lambda all_: double(all_[0]))(dx.List([net])), "all_[0].scale, a Param, is"),
        (lambda net: jax.jit(lambda *nets: double(nets[0]))(net), "net.scale, a Param, is"),
        (lambda net: jax.jit(lambda *nets: setattr(nets[0].scale, "value", X))(net), "a Param is"),
    ],
)
def test_a_path_begins_with_a_name_of_the_users_function(program, named):
    with pytest.warns(LostWriteWarning, match=f"^{re.escape(named)} written here"):
        program(Net())


def scanned(net):
    def step(net, _):
        double(net)
        return net, None

    return jax.lax.scan(step, net, length=3)[0]


KEPT = {
    "returned": lambda net: jax.jit(lambda net: (loss(net, X), net))(net),
    "returned as States": lambda net: jax.jit(lambda net: (loss(net, X), dx.state(net)))(net),
    "split": lambda net: jax.jit(lambda net: (loss(net, X), dx.split(net)[1]))(net),
    "a value": lambda net: jax.jit(lambda net: (double(net), net.scale.value)[1])(net),
    "used": lambda net: jax.jit(lambda net: (double(net), net.scale.sum())[1])(net),
    "a carry": lambda net: jax.jit(scanned)(net),
    "no write": lambda net: jax.jit(lambda net: net.scale.sum())(net),
    "declax": lambda net: dx.jit(loss)(net, X),
    "a copy in declax": lambda net: dx.jit(lambda net: double(jax.tree.map(lambda x: x, net)))(net),
    "made inside": lambda net: jax.jit(lambda x: loss(Net(), x))(X),
    "a copy in a copy of declax": lambda net: dx.jit(lambda net: jax.jit(lambda net: (double(net), net)[1])(net))(net),
    "reads inside of declax": lambda net: dx.jit(jax.vmap(lambda net, x: net.linear(x), in_axes=(None, 0)))(net, X),
    "a copy outside": lambda net: double(jax.tree.map(lambda x: x, net)),
}


@pytest.mark.parametrize("program", KEPT.values(), ids=list(KEPT))
def test_other_writes_are_not_told(program):
    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program(net)
        gc.collect()
    assert not uncaptured_reads.is_watching


def test_a_copy_of_an_outer_trace_is_still_refused():
    def outer(net):
        jax.grad(lambda x: (double(net), x)[1])(1.0)

    with pytest.raises(TraceContextError):
        jax.jit(outer)(Net())

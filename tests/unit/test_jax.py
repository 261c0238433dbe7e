"""What `_jax` takes of jax that is private: tells when one of these names moves."""

import functools
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, PartitionSpec

from declax import _jax

MESH = Mesh(jax.devices()[:1], ("i",))


def test_the_mark_of_the_top_level():
    assert _jax.current_trace() is _jax.trace_state.value is _jax.TOP


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, jax.checkpoint])
def test_a_trace_has_one_mark(transform):
    marks = []

    def f(x):
        marks.append((_jax.current_trace(), _jax.trace_state.get_local(), _jax.trace_of(x)))
        return x * 2

    transform(f)(jnp.ones(2) if transform is jax.vmap else 1.0)
    ((current, local, of_tracer),) = marks
    assert current is local is of_tracer
    assert current is not _jax.TOP


# ================================================================= who calls


class Probe:
    """A pytree that notes who makes it under a trace."""

    made: list = []

    def __init__(self, x):
        self.x = x

    def flatten(self):
        return (self.x,), None

    @staticmethod
    def unflatten(_, children):
        if _jax.current_trace() is not _jax.TOP:
            frame = sys._getframe(1)
            Probe.made.append((_jax.makes_arguments(frame), *_jax.transform_of(frame)))
        return Probe(children[0])


jax.tree_util.register_pytree_node(Probe, Probe.flatten, Probe.unflatten)


def total(probe):
    return jnp.sum(probe.x)


TRANSFORMS = {
    "jax.jit": jax.jit(functools.partial(total)),
    "jax.vmap": jax.vmap(total),
    "jax.grad": jax.grad(total),
    "jax.value_and_grad": jax.value_and_grad(total),
    "jax.vjp": lambda p: jax.vjp(total, p),
    "jax.jvp": lambda p: jax.jvp(total, (p,), (p,)),
    "jax.linearize": lambda p: jax.linearize(total, p),
    "jax.checkpoint": jax.checkpoint(total),
    "jax.eval_shape": lambda p: jax.eval_shape(functools.partial(total), p),
    "jax.make_jaxpr": jax.make_jaxpr(functools.partial(total)),
    "jax.lax.scan": lambda p: jax.lax.scan(lambda c, p: (c, total(p)), 0.0, p),
    "jax.lax.while_loop": lambda p: jax.lax.while_loop(lambda p: total(p) < 0, lambda p: p, p),
    "jax.lax.fori_loop": lambda p: jax.lax.fori_loop(0, 2, lambda _, p: p, p),
    "jax.lax.cond": lambda p: jax.lax.cond(True, total, total, p),
    "jax.lax.switch": lambda p: jax.lax.switch(0, [total, total], p),
    "jax.pmap, lowered": jax.pmap(functools.partial(total), devices=jax.devices()[:1]).lower,
    "jax.pmap": jax.pmap(functools.partial(total), devices=jax.devices()[:1]),
    "jax.shard_map": jax.shard_map(
        lambda p: total(p)[None], mesh=MESH, in_specs=PartitionSpec("i"), out_specs=PartitionSpec("i")
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_makers_of_arguments_are_known(name):
    Probe.made.clear()
    TRANSFORMS[name](Probe(jnp.ones((1, 2) if "pmap" in name else 2)))
    made = [(transform, frame.f_code.co_filename) for is_argument, transform, frame in Probe.made if is_argument]
    assert made
    assert set(made) == {(name.partition(",")[0], __file__)}


@pytest.mark.parametrize(
    "make",
    [
        lambda p: jax.tree.map(lambda x: x * 2, p),
        lambda p: jax.tree.unflatten(jax.tree.structure(p), jax.tree.leaves(p)),
        lambda p: jax.tree.structure(p).unflatten(jax.tree.leaves(p)),
        lambda p: jax.jit(Probe)(p.x),
        lambda p: jax.vmap(Probe)(p.x),
    ],
    ids=["map", "unflatten", "treedef", "output of jit", "output of vmap"],
)
def test_what_others_make_is_no_argument(make):
    def f(x):
        make(Probe(x))
        return 0

    Probe.made.clear()
    jax.jit(f)(jnp.ones(2))
    assert Probe.made
    assert not any(is_argument for is_argument, _, _ in Probe.made)


def test_programs_that_call_back_leave_a_token():
    """Also where nothing of it goes into a result. The callback waits, so that the call is over before it is."""
    jax.effects_barrier()
    assert _jax.callback_tokens() == ()
    jax.jit(lambda x: x + 1)(1.0)
    assert _jax.callback_tokens() == ()
    seen = []
    jax.jit(lambda x: jax.debug.callback(seen.append, x))(1.0)
    (token,) = _jax.callback_tokens()
    token.block_until_ready()
    assert seen == [1.0]
    assert _jax.callback_tokens() == (token,)
    _jax.forget_callbacks()
    assert _jax.callback_tokens() == ()

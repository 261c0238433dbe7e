"""Transforms of transforms, over random models, in each mode and each way of having a model, against raw JAX.

A program is a chain of one to three transforms around one computation. Ours is given the model, or captures it;
theirs is the same chain of raw JAX, around a function of explicit state that returns the state anew.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax.experimental import checkify

import declax as dx
from declax.errors import TransformError
from strategies import build, modes_and_recipes, objects_of, on_state, same_graph, variables_of

KINDS = (dx.Param, dx.BatchStat, dx.Any(dx.Param, dx.Cache), dx.PathContains("kernel"))

# ================================================================= the computation


def compute(numbers, model, x):
    """Reads all Variables, and sets those of these numbers, each by itself and another one; x changes no Variable."""
    variables = variables_of(model)
    for number in numbers if variables else ():
        one, other = variables[number % len(variables)], variables[number // 2 % len(variables)]
        one.value = one.value * 0.5 + jnp.tanh(jnp.sum(other.value)) + number
    return sum((jnp.sum(jnp.sin(v.value)) * (i + 1) for i, v in enumerate(variables)), start=jnp.sin(x))


# ================================================================= transforms, ours and raw
#
# Ours makes of a function of (x) or (model, x) another one; theirs of a function of (state, x) -> (y, state).


@dataclasses.dataclass(frozen=True)
class Options:
    """What all transforms of a program share."""

    mode: dict[str, bool]
    filter: Any


def jitted(f, options):
    return dx.jit(f, **options.mode)


def rematted(f, options):
    return dx.remat(f, **options.mode)


def checked(f, options):
    return lambda *given: dx.checkify(f, **options.mode)(*given)[1]


def branched(f, options):
    def other(*given):
        return given[-1]

    return lambda *given: dx.cond(given[-1] > 0, f, other, *given, **options.mode)


def switched(f, options):
    def other(*given):
        return given[-1]

    return lambda *given: dx.switch(jnp.int32(given[-1] > 0), [other, f], *given, **options.mode)


def scanned(f, options):
    def run(*given):
        axes = (
            *(dx.prefix(model, {...: dx.Carry}, graph=options.mode.get("graph")) for model in given[:-1]),
            dx.Carry,
            0,
        )
        step = dx.scan(lambda *g: f(*g[:-2], g[-2] + g[-1]), in_axes=axes, out_axes=dx.Carry, **options.mode)
        return step(*given, jnp.arange(2.0))

    return run


def counted(f, options):
    def step(i, value):
        return *value[:-1], f(*value) + 1.0

    return lambda *given: dx.fori_loop(0, 2, step, given, **options.mode)[-1]


def looped(f, options):
    def step(value):
        i, *given = value
        return i + 1, *given[:-1], f(*given)

    return lambda *given: dx.while_loop(lambda value: value[0] < 2, step, (0, *given), **options.mode)[-1]


def mapped(f, options):
    def run(*given):
        *model, x = given
        rows = dx.vmap(f, in_axes=(*[None] * len(model), 0), **options.mode)(*model, jnp.stack([x, x + 1]))
        return jnp.sum(rows)

    return run


def by_x(f, options):
    def run(*given):
        y, slope = dx.value_and_grad(f, argnums=len(given) - 1, **options.mode)(*given)
        return y + slope

    return run


def by_model(f, options):
    def run(*given):
        if len(given) == 1:  # what is captured is not differentiated
            return by_x(f, options)(*given)
        of_trees = options.mode.get("graph") is False  # by all leaves, in a model
        argnums = 0 if of_trees else dx.DiffState(0, options.filter)
        y, slopes = dx.value_and_grad(f, argnums=argnums, **options.mode)(*given)
        selected = dx.state(slopes, options.filter) if of_trees else slopes
        return y + sum(jnp.sum(leaf) for leaf in selected.leaves)

    return run


def pulled_back(f, options):
    def run(*given):
        y, back = dx.vjp(lambda x: f(*given[:-1], x), given[-1], **options.mode)
        return y + back(1.0 + 0 * y)[0]

    return run


def pushed_forward(f, options):
    def run(*given):
        return sum(dx.jvp(lambda x: f(*given[:-1], x), (given[-1],), (jnp.ones(()),), **options.mode))

    return run


def raw_jitted(f, options):
    return jax.jit(f)


def raw_rematted(f, options):
    return jax.checkpoint(f)


def raw_checked(f, options):
    return lambda state, x: checkify.checkify(f)(state, x)[1]


def raw_branched(f, options):
    return lambda state, x: jax.lax.cond(x > 0, f, lambda state, x: (x, state), state, x)


def raw_scanned(f, options):
    def run(state, x):
        def step(carry, x):
            y, state = f(carry[0], carry[1] + x)
            return (state, y), None

        (state, y), _ = jax.lax.scan(step, (state, x), jnp.arange(2.0))
        return y, state

    return run


def raw_counted(f, options):
    def step(i, value):
        y, state = f(*value)
        return state, y + 1.0

    return lambda state, x: jax.lax.fori_loop(0, 2, step, (state, x))[::-1]


def raw_looped(f, options):
    def step(value):
        y, state = f(*value[1:])
        return value[0] + 1, state, y

    return lambda state, x: jax.lax.while_loop(lambda value: value[0] < 2, step, (0, state, x))[:0:-1]


def raw_mapped(f, options):
    def run(state, x):
        y, state = jax.vmap(f, (None, 0), (0, None))(state, jnp.stack([x, x + 1]))
        return jnp.sum(y), state

    return run


def raw_by_x(f, options):
    def run(state, x):
        (y, state), slope = jax.value_and_grad(f, argnums=1, has_aux=True)(state, x)
        return y + slope, state

    return run


def raw_by_model(f, options):
    def run(state, x):
        chosen, rest = state.split(options.filter, ...)
        (y, state), slopes = jax.value_and_grad(lambda chosen: f(dx.State.merge(chosen, rest), x), has_aux=True)(chosen)
        return y + sum(jnp.sum(leaf) for leaf in slopes.leaves), state

    return run


def raw_pulled_back(f, options):
    def run(state, x):
        y, back, state = jax.vjp(lambda x: f(state, x), x, has_aux=True)
        return y + back(1.0 + 0 * y)[0], state

    return run


def raw_pushed_forward(f, options):
    def run(state, x):
        y, tangent, state = jax.jvp(lambda x: f(state, x), (x,), (jnp.ones(()),), has_aux=True)
        return y + tangent, state

    return run


Wrap = Callable[[Any, Options], Any]
PAIRS: dict[str, tuple[Wrap, Wrap]] = {
    "jit": (jitted, raw_jitted),
    "remat": (rematted, raw_rematted),
    "checkify": (checked, raw_checked),
    "cond": (branched, raw_branched),
    "switch": (switched, raw_branched),
    "scan": (scanned, raw_scanned),
    "fori_loop": (counted, raw_counted),
    "while_loop": (looped, raw_looped),
    "vmap": (mapped, raw_mapped),
    "grad by x": (by_x, raw_by_x),
    "grad by the model": (by_model, raw_by_model),
    "vjp": (pulled_back, raw_pulled_back),
    "jvp": (pushed_forward, raw_pushed_forward),
}
BACKWARDS = {"grad by x", "grad by the model", "vjp"}


def is_possible(chain):
    """Whether JAX has it: no gradient goes back through a while loop, no checks into one, or under vmap."""
    outside = set()
    for name in chain:
        if name == "while_loop" and outside & BACKWARDS:
            return False
        outside.add(name)
    return True


chains = st.lists(st.sampled_from(sorted(PAIRS)), min_size=1, max_size=3).filter(is_possible)

# ================================================================= ways of having a model


class Holder(dx.Module):
    """A module whose method reaches the model."""

    def __init__(self, f, model):
        self.f, self.model = f, model

    def method(self, x):
        return self.f(self.model, x)


def in_a_cell(f, model):
    return lambda x: f(model, x)


def in_a_partial(f, model):
    return functools.partial(f, model)


def in_a_default(f, model):
    def run(x, *, model=model):
        return f(model, x)

    return run


def behind_a_wrapper(f, model):
    run = in_a_cell(f, model)

    @functools.wraps(run)
    def wrapper(*given):
        return run(*given)

    return wrapper


def bound_to_a_module(f, model):
    return Holder(f, model).method


WAYS = {way.__name__: way for way in (in_a_cell, in_a_partial, in_a_default, behind_a_wrapper, bound_to_a_module)}

# ================================================================= the programs


def theirs(chain, options, numbers, model, x):
    """The results of two calls, and the model after them."""
    graphdef, state = dx.split(model)

    pure = on_state(graphdef, functools.partial(compute, numbers))
    for name in reversed(chain):
        pure = PAIRS[name][1](pure, options)
    first, state = pure(state, x)
    second, state = pure(state, x + 1)
    return (first, second), dx.merge(graphdef, state)


@pytest.mark.slow
@given(
    modes_and_recipes(),
    chains,
    st.sampled_from(["given", *WAYS]),
    st.sampled_from(KINDS),
    st.lists(st.integers(0, 7), max_size=3),
)
def test_a_chain_of_transforms_is_that_of_raw_jax(moded, chain, way, kind, numbers):
    mode, recipe = moded
    model = build(recipe)
    parts = objects_of(model)
    if "grad by the model" in chain and way == "given":
        assume(dx.state(model, kind).leaves)
    chain = ["grad by x" if name == "grad by the model" and way != "given" else name for name in chain]
    options, x = Options(mode, kind), jnp.float32(0.5)
    try:
        expected, after = theirs(chain, options, numbers, model, x)
    except ValueError as error:
        if "got axis spec None but output was batched" not in str(error):
            raise
        # A `cond` by x sets what `vmap` has no axis for: both refuse. Where nothing is set, ours goes on.
        expected, after = None, dx.clone(model)
    f = functools.partial(compute, numbers)
    run = f if way == "given" else WAYS[way](f, model)
    for name in reversed(chain):
        run = PAIRS[name][0](run, options)
    given_model = (model,) if way == "given" else ()
    if expected is None and not numbers:
        run(*given_model, x)
    elif expected is None:
        with pytest.raises(TransformError, match="this differs between instances but has no axis"):
            run(*given_model, x)
    else:
        got = run(*given_model, x), run(*given_model, x + 1)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert same_graph(model, after)
    assert all(map(operator.is_, objects_of(model), parts))

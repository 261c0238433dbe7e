"""Draws of initializers in programs: apart from other equations, with the numbers of eager construction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from declax import _jax
from declax._modes import Default
from declax._variables.placement import is_explicit_split, put

_apart = ContextVar("apart", default=False)

is_apart: Callable[[], bool] = _apart.get
"""Whether draws are equations of their own."""


class apart(Default[bool]):  # noqa: N801  # reads as a function
    """Sets whether draws are equations of their own while a program is traced."""

    _current: ClassVar[ContextVar[bool]] = _apart


def _draw(init: Any, key: Any, shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.Array:
    """An array at a sharding, if there is one, with the numbers of operations that run one by one."""
    make: Any = functools.partial(_as_eager, init) if init.needs_key else init
    make = functools.partial(make, shape=shape, dtype=dtype)
    if init.needs_key and is_explicit_split(sharding):
        # With types for each step, all of them but the last would be whole on each device.
        make = jax.sharding.auto_axes(make, out_sharding=sharding)
    made: jax.Array = make(key)
    return made if sharding is None else put(made, sharding)


def _as_eager(init: Any, key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """An array in a program, with barriers around each operation.

    XLA rounds last digits differently where it simplifies across operations, or computes with constants.
    """
    with apart(False):
        program = jax.make_jaxpr(lambda key: init(key, shape, dtype))(key)
    values: dict[Any, Any] = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    values.update(zip(program.jaxpr.invars, [key], strict=True))
    for equation in program.jaxpr.eqns:
        alone, constants = _jax.without_literals(equation)
        values.update((var, _barrier(value)) for var, value in constants.items())
        _jax.run_equations(program.jaxpr, [alone], values)
        floats = [var for var in equation.outvars if jnp.issubdtype(var.aval.dtype, jnp.inexact)]
        values.update((var, _barrier(values[var])) for var in floats)
    made: jax.Array = _jax.value_of(program.jaxpr.outvars[0], values)
    return made


_barrier: Any = jax.lax.optimization_barrier

make_placed = jax.jit(_draw, static_argnums=(0, 2, 3, 4), inline=True)
"""Compiled for the sharding, so that each device makes its shards only."""


@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4))
def draw(init: Any, key: Any, shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.Array:
    """The same as one equation of a program."""
    return _draw(init, key, shape, dtype, sharding)

"""Programs that make models, run leaf by leaf: equal layers share what is compiled, within a model and later ones.

A program that makes 48 blocks makes the same kinds of arrays 48 times, from other keys. XLA would compile each anew.
Here keys and other small values are computed first, operation by operation. Then each leaf has a program of its own,
from small values to the leaf with its sharding. It is the same one for all leaves that are made alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, DropVar, Literal, jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding

from declax import _jax
from declax._typing import Immutable
from declax._variables.placement import make_spec

SMALL: Final = 16
"""Arrays of up to this many elements are computed operation by operation."""

TWICE: Final = 2
"""How many times an equation may run on average, since several leaves need what it gives."""

KEPT: Final = 512
"""How many programs of leaves are kept."""

_PLACING: Final = {"sharding_constraint", "reshard"}
"""Operations that compiled programs alone run on arrays that are not on the mesh yet."""


class LeafProgram(Immutable):
    """How a leaf is made from small values; equal for leaves that are made alike.

    Attributes:
      steps: for each equation its primitive, its parameters, its context, such as how keys are split over devices, and
        what it reads and gives, numbered in order.
      program: the equations.
    """

    steps: tuple[Hashable, ...]
    program: ClosedJaxpr

    def __init__(self, program: ClosedJaxpr) -> None:
        number: dict[Any, int] = {}

        def numbered(var: Any) -> Hashable:
            if isinstance(var, Literal):
                return var.aval, np.asarray(var.val).tobytes()
            return number.setdefault(var, len(number)), var.aval

        steps = [tuple(map(numbered, program.jaxpr.invars))]
        for equation in program.jaxpr.eqns:
            of = tuple([(name, _identity(value)) for name, value in sorted(equation.params.items())])
            ends = *map(numbered, equation.invars), *map(numbered, equation.outvars)
            steps.append((equation.primitive, of, equation.ctx, *ends))
        vars(self).update(steps=(*steps, *map(numbered, program.jaxpr.outvars)), program=program)

    def __eq__(self, other: object) -> bool:
        return self.steps == other.steps if isinstance(other, LeafProgram) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.steps)


def _identity(value: Any) -> Hashable:
    """A parameter of an equation by its value, or else by its identity, which the program keeps alive."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value, type(value)


@functools.lru_cache(KEPT)
def _compiled(leaf: LeafProgram) -> Any:
    return jax.jit(jaxpr_as_fun(leaf.program))


def run_by_leaf(program: ClosedJaxpr, arguments: Sequence[Any], mesh: Mesh) -> list[Any]:
    """Runs a program on a mesh, leaf by leaf if that is better than the whole of it."""
    constants = [_moved(value, mesh) for value in program.consts]
    values: dict[Any, Any] = dict(zip(program.jaxpr.constvars, constants, strict=True))
    values.update(zip(program.jaxpr.invars, arguments, strict=True))
    early, makers = _split(program.jaxpr.eqns, set(values))
    slices = [_slice(var, makers) for var in program.jaxpr.outvars]
    if program.effects or sum(map(len, slices)) > TWICE * len(program.jaxpr.eqns):
        return list(jax.jit(jaxpr_as_fun(program))(*arguments))
    _jax.run_equations(program.jaxpr, _needed(early, slices, program.jaxpr.outvars), values)
    found = []
    for var, equations in zip(program.jaxpr.outvars, slices, strict=True):
        if equations or isinstance(var, Literal):
            inputs = [*dict.fromkeys(v for e in equations for v in _variables(e.invars) if v in values)]
            run = _compiled(LeafProgram(_jax.part_of(program.jaxpr, inputs, equations, [var])))
            found += run(*map(values.__getitem__, inputs))
        else:
            found.append(values[var])
    return found


def _moved(constant: Any, mesh: Mesh) -> Any:
    """A constant on the mesh, if it is committed to other devices, which a compiled program refuses as an argument."""
    is_elsewhere = isinstance(constant, jax.Array) and constant.committed and len(constant.sharding.device_set) == 1
    return jax.device_put(constant, NamedSharding(mesh, make_spec())) if is_elsewhere else constant


_Makers: TypeAlias = "dict[Any, tuple[int, Any]]"
"""The equation that makes each variable, with its number."""


def _split(equations: Sequence[Any], known: set[Any]) -> tuple[list[Any], _Makers]:
    """The equations from small values to small values, and those that make the other variables."""
    early: list[Any] = []
    makers: _Makers = {}
    for number, equation in enumerate(equations):
        is_early = equation.primitive.name not in _PLACING and all(map(_is_small, equation.outvars))
        if is_early and known.issuperset(_variables(equation.invars)):
            early.append(equation)
            known.update(equation.outvars)
        else:
            makers.update((var, (number, equation)) for var in equation.outvars)
    return early, makers


def _needed(early: Sequence[Any], slices: Iterable[Sequence[Any]], results: Iterable[Any]) -> list[Any]:
    """The early equations that leaves need: most keys are those of zeros and ones, which draw nothing."""
    read = {var for equations in slices for equation in equations for var in _variables(equation.invars)}
    read.update(_variables(results))
    found: list[Any] = []
    for equation in reversed(early):
        if not read.isdisjoint(equation.outvars):
            found.append(equation)
            read.update(_variables(equation.invars))
    return found[::-1]


def _slice(var: Any, makers: _Makers) -> list[Any]:
    """The equations that a leaf needs, in order."""
    found: dict[int, Any] = {}
    waiting = _variables([var])
    while waiting:
        number, equation = makers.get(waiting.pop(), (-1, None))
        if equation is not None and number not in found:
            found[number] = equation
            waiting += _variables(equation.invars)
    return [found[number] for number in sorted(found)]


def _variables(inputs: Iterable[Any]) -> list[Any]:
    return [var for var in inputs if not isinstance(var, Literal)]


def _is_small(var: Any) -> bool:
    return isinstance(var, DropVar) or math.prod(getattr(var.aval, "shape", ())) <= SMALL

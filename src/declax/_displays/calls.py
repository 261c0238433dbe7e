"""The calls of the parts of a model while it is traced once, with inputs, outputs and the cost that XLA counts.

While the methods of the parts are wrapped, each runs as a separate program inside the traced one. JAX keeps it as
one equation, whose program is then lowered for XLA to count. A tag on each part gives its path, also in copies that
transforms make.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from declax._classes.pytree import Pytree
from declax._fields.specifiers import static
from declax._graph.api import clone
from declax._graph.nodes import walk_nodes
from declax._module.capturing import unwrap_methods, wrap_methods
from declax._random.streams import Rngs, RngStream
from declax._state.states import State
from declax._typing import Path
from declax._variables.variable import Variable
from declax.errors import GraphError, describe, suggest, type_name
from declax.transforms.abstract import make_jaxpr
from declax.transforms.compilation import jit


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one call, as XLA counts it before it optimizes.

    Attributes:
      flops: floating-point operations.
      nbytes: bytes of the operands and results of all operations.
    """

    flops: int
    nbytes: int


@dataclasses.dataclass
class Call:
    """One call of a method of a part.

    Attributes:
      path: of the part; a part that is shared has its first.
      type: the class of the part.
      method: the name of the method.
      inputs: its arguments, positional and by name, with `jax.ShapeDtypeStruct` in place of arrays.
      outputs: its result, in the same form.
      cost: None if it was not asked for.
      vjp_cost: that of the pullback, with the forward pass; None if it was not asked for.
    """

    path: Path
    type: type
    method: str
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    outputs: Any = None
    cost: Cost | None = None
    vjp_cost: Cost | None = None


def check_depth(where: str, depth: int | None) -> None:
    """Checks a limit of the lengths of paths."""
    if depth is not None and (type(depth) is not int or depth < 0):
        raise GraphError(
            f"{where}.depth",
            "this is not the length of a path",
            expected="an integer of at least 0, or None for no limit",
            got=describe(depth),
            fix="depth=0        # one row, for the whole model",
        )


def calls_of(
    model: Any,
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    cost: bool = False,
    vjp_cost: bool = False,
) -> list[Call]:
    """All calls of parts during one call of a model, callers first; nothing is computed and nothing changes."""
    if not callable(getattr(model, method, None)):
        names = [name for name in dir(type(model)) if not name.startswith("_")]
        problem = "the model cannot be called with inputs" if method == "__call__" else "there is no such method"
        raise GraphError(f"{type_name(type(model))}.{method}", problem, fix=suggest(method, names))
    model = clone(model, variables=False, graph=True)
    classes = _tag(model)
    recording = _Recording()
    data, rest = parted((args, kwargs))

    def run(model: Any, data: dict[str, Any]) -> None:
        args, kwargs = rest.joined(data)
        getattr(model, method)(*args, **kwargs)

    with _wrapped(classes, recording):
        jaxpr = make_jaxpr(run, graph=True)(model, data)
    if cost or vjp_cost:
        programs = dict(_named_programs(jaxpr.jaxpr))
        known: dict[str, tuple[Cost, Cost | None]] = {}
        for name, call in recording.calls.items():
            if name in programs:  # the program of a part whose results are not used is gone
                text = str(programs[name])
                if text not in known:
                    known[text] = _cost(programs[name]), _vjp_cost(programs[name]) if vjp_cost else None
                call.cost, call.vjp_cost = known[text]
    return list(recording.calls.values())


# --- recording ------------------------------------------------------------------

_TAG: Final = "_displayed_path"
_lock: Final = threading.RLock()
"""Held while methods are wrapped, which other threads pass through."""


def _tag(model: Any) -> set[type]:
    """Writes its path into each part of a copy of a model; returns the classes."""
    classes = set()
    for path, node in walk_nodes(model):
        if isinstance(node, Rngs | RngStream):
            continue
        Pytree.__setattr__(node, _TAG, static(path))
        classes.add(type(node))
    return classes


@contextmanager
def _wrapped(classes: set[type], recording: _Recording) -> Generator[None, None, None]:
    thread = threading.get_ident()

    def recorder(cls: type, name: str, method: Any) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if type(self) is not cls or threading.get_ident() != thread or not hasattr(self, _TAG):
                return method.__get__(self)(*args, **kwargs)
            return recording.run(name, method, self, args, kwargs)

        return call

    with _lock:
        originals = {cls: wrap_methods(cls, recorder) for cls in classes}
        try:
            yield
        finally:
            for cls, methods in originals.items():
                unwrap_methods(cls, methods)


class _Recording:
    """The calls of one trace, by the names of their programs."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}

    def run(self, name: str, method: Any, node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a method as a separate program."""
        call = Call(getattr(node, _TAG), type(node), name, _shapes((args, kwargs)))
        program_name = f"declax_part_{len(self.calls)}"
        self.calls[program_name] = call
        data, rest = parted((args, kwargs))
        rest_of_output: list[_Rest] = []

        def program(node: Any, data: dict[str, Any]) -> dict[str, Any]:
            args, kwargs = rest.joined(data)
            data, found = parted(method.__get__(node)(*args, **kwargs))
            rest_of_output.append(found)
            return data

        program.__name__ = program_name
        data = jit(program, graph=True)(node, data)
        found = rest_of_output[-1].joined(data)
        call.outputs = _shapes(found)
        return found


@dataclasses.dataclass
class _Rest:
    """A tree without its data: its structure, and its other leaves."""

    structure: Any
    constants: list[Any]

    def joined(self, data: Mapping[str, Any]) -> Any:
        """The tree with this data."""
        leaves = [data.get(str(position), constant) for position, constant in enumerate(self.constants)]
        return jax.tree.unflatten(self.structure, leaves)


def parted(tree: Any) -> tuple[dict[str, Any], _Rest]:
    """The data of a tree, by position, and the rest of it: JAX would trace numbers, and refuse strings."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_object)
    data = {str(position): leaf for position, leaf in enumerate(leaves) if _is_data(leaf)}
    return data, _Rest(structure, [None if _is_data(leaf) else leaf for leaf in leaves])


def _is_object(value: Any) -> bool:
    return value is None or isinstance(value, (Pytree, Variable, State))


def _is_data(value: Any) -> bool:
    return value is not None and (
        _is_object(value) or isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct, jax.Ref))
    )


def shape_of_array(array: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array, a tracer or an abstract value."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype)  # type: ignore[no-untyped-call]  # of JAX


def _shapes(tree: Any) -> Any:
    """A tree with shapes in place of arrays, which keeps no tracer alive, and classes in place of objects."""

    def shape_of(leaf: Any) -> Any:
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, Variable):
            return shape_of_array(leaf)
        return type(leaf) if isinstance(leaf, (Pytree, Variable, State)) else leaf

    return jax.tree.map(shape_of, tree, is_leaf=_is_object)


# --- costs ----------------------------------------------------------------------


def _named_programs(jaxpr: Jaxpr) -> Iterator[tuple[str, ClosedJaxpr]]:
    """All programs inside of one, by their names."""
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(inner, ClosedJaxpr):
                    yield equation.params.get("name", ""), inner
                    inner = inner.jaxpr
                if isinstance(inner, Jaxpr):
                    yield from _named_programs(inner)


def _inputs(program: ClosedJaxpr) -> list[jax.ShapeDtypeStruct]:
    return list(map(shape_of_array, program.in_avals))


def _cost(program: ClosedJaxpr) -> Cost:
    return _counted(jaxpr_as_fun(program), *_inputs(program))


def _vjp_cost(program: ClosedJaxpr) -> Cost:
    """The cost of the pullback with respect to all inexact inputs, with the forward pass."""
    inputs = _inputs(program)
    inexact = [i for i, aval in enumerate(inputs) if _is_inexact(aval)]

    def pullback(values: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        def forward(*differentiated: Any) -> list[Any]:
            given = dict(zip(inexact, differentiated, strict=True))
            outputs = jaxpr_as_fun(program)(*(given.get(i, value) for i, value in enumerate(values)))
            return [output for output in outputs if _is_inexact(output)]

        _, pull = jax.vjp(forward, *(values[i] for i in inexact))
        return pull(list(cotangents))

    return _counted(pullback, inputs, [shape_of_array(aval) for aval in program.out_avals if _is_inexact(aval)])


def _is_inexact(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact)


def _counted(function: Callable[..., Any], *args: Any) -> Cost:
    lowered = jax.jit(function).lower(*args)
    found = lowered.cost_analysis() or lowered.compile().cost_analysis() or {}
    return Cost(int(found.get("flops", 0)), int(found.get("bytes accessed", 0)))


__all__ = ["Call", "Cost", "calls_of"]

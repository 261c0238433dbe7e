"""The layers of a `Stacked`: how they are made, put together, and taken apart.

Vocabulary
----------
stacked: of an array: of all layers, along the first axis.
drawn:   how many keys one layer takes of a stream.
shared:  of a part: reached from outside of its layer. The arrays of a stack are
         those of its layers, so a shared part would become one of each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from declax import _jax
from declax._layout import BOUND_KEY, TRACE_KEY
from declax._module import Module
from declax._pytree import Pytree
from declax._read_only import ReadOnly
from declax._typing import Path
from declax._variables import Variable
from declax._variables import _set_trace as set_mark
from declax.errors import LayerError, describe, format_path
from declax.graph.api import clone, merge, split
from declax.graph.iteration import iter_graph
from declax.rngs import RngCount, Rngs, RngStream
from declax.transforms._captures import Captures
from declax.transforms._structure import is_finished, is_root
from declax.transforms.prefixes import StateAxes
from declax.transforms.vectorization import vmap

EXAMPLE: Final = "dx.Stacked(lambda rngs: Block(rngs=rngs), 12, rngs=rngs)"

# ================================================================= making


def make_layers(build: Callable[..., Any], n: int, rngs: Rngs | None, metadata: dict[str, Any]) -> Any:
    """The layers in one vectorised construction.

    Raises:
      LayerError: for what makes no Module, and for a part that layers share.
    """
    if rngs is None:
        return vmap(lambda: _checked(build(), build), axis_size=n, transform_metadata=metadata)()
    make = functools.partial(_make_layer, build)
    graphdef, before = split(rngs)
    # what one layer draws of each stream; the compiler drops the rest of the layer
    after = jax.jit(lambda values: _counts(make, merge(graphdef, values)))(before)
    own = clone(rngs)
    for name, stream in own.items():
        drawn = after[name] - stream.count.value
        stream.count.value = stream.count.value + drawn * jnp.arange(n, dtype=drawn.dtype)
        after[name] = rngs[name].count.value + n * drawn
    axes = StateAxes({RngCount: 0, ...: None})
    layers = vmap(make, in_axes=(axes,), axis_size=n, transform_metadata=metadata)(own)
    for name, count in after.items():
        rngs[name].count.value = count
    return layers


def _make_layer(build: Callable[..., Any], rngs: Rngs) -> Any:
    """A layer that shares no stream with the Rngs which it is made from."""
    layer = _checked(build(rngs), build)
    streams = {id(stream) for _, stream in rngs.items()}
    kept = [path for path, node in iter_graph(layer) if id(node) in streams]
    if not kept:
        return layer
    copied = clone(layer)
    for path, node in iter_graph(copied):
        if path in kept and isinstance(node, RngStream):
            drawn = rngs[node.tag]()
            node.key.value, node.count.value = drawn, jnp.zeros_like(node.count.value)
    return copied


def _counts(make: Callable[[Rngs], Any], rngs: Rngs) -> dict[str, Any]:
    make(rngs)
    return {name: stream.count.value for name, stream in rngs.items()}


def _checked(layer: Any, build: Callable[..., Any]) -> Any:
    if not isinstance(layer, Module):
        raise LayerError("Stacked", "the function makes no Module", got=describe(layer), fix=EXAMPLE)
    mark = _jax.current_trace()
    outer: dict[int, str] | None = None
    for path, part in _with_arrays(layer):
        outer = _outside(build) if outer is None else outer
        if id(part) in outer or _mark_of(part) is not mark:
            raise _shared(f"layer{_behind(path)}", outer.get(id(part), "somewhere outside of the function"))
    return layer


def _outside(build: Callable[..., Any]) -> dict[int, str]:
    """What a function reaches without making it: where each Variable and node is, by identity."""
    found: dict[int, str] = {}
    for site in Captures(build).sites:
        for name, root in _finished(site.content):
            for path, part in iter_graph(root):
                found.setdefault(id(part), f"{site.key}{name}{_behind(path)}")
    return found


def _finished(value: Any) -> list[tuple[str, Any]]:
    """A model, or the parts that it has already while it is being made."""
    if not is_root(value):
        return []
    if is_finished(value):
        return [("", value)]
    return [(f".{name}", part) for name, part in vars(value).items() if is_root(part)]


def _with_arrays(node: Any) -> Iterator[tuple[Path, Any]]:
    """The nodes that hold Variables or arrays, and the Variables, outer ones first."""
    found = list(iter_graph(node))
    holding = {path[:depth] for path, part in found if isinstance(part, _ARRAYS) for depth in range(len(path) + 1)}
    above = sorted(found, key=lambda pair: len(pair[0]))
    return ((path, part) for path, part in above if path in holding and isinstance(part, (Pytree, Variable)))


_ARRAYS: Final = (Variable, jax.Array, np.ndarray)


def _mark_of(part: Any) -> Any:
    return part._trace if isinstance(part, Variable) else vars(part).get(TRACE_KEY, _jax.TOP)


def _behind(path: Path) -> str:
    text = format_path(path) if path else ""
    return text if not text or text.startswith("[") else f".{text}"


def _shared(place: str, other: str) -> LayerError:
    return LayerError(
        "Stacked",
        "a part is shared by all layers",
        got=f"one object at {place} and at {other}",
        why="a stack has one array of each kind for all layers, so that each would get a part of its own",
        fix="y = blocks(x, part)        # give it to the call: each layer reads it, called with (x, part)\n"
        "dx.List([...])        # for layers that hold what they share",
    )


# ================================================================= putting together, taking apart


def stack(layers: list[Any], axis_name: str | None) -> Any:
    """One module with the arrays of all layers.

    Raises:
      LayerError: they differ, or share a part.
    """
    graphdef, _ = split(layers[0])
    parts: list[Any] = []
    seen: dict[int, str] = {}
    for number, layer in enumerate(layers):
        other, state = split(layer)
        if other is not graphdef:
            raise LayerError(
                f"Stacked.of, layer {number}",
                "it has another structure than layer 0",
                expected=repr(graphdef),
                got=repr(other),
                why="the program of a stack is that of one layer",
                fix="dx.List(layers)        # for layers that differ",
            )
        places = {id(part): f"layers[{number}]{_behind(path)}" for path, part in _with_arrays(layer)}
        for identity, place in places.items():
            if identity in seen:
                raise _shared(place, seen[identity])
        seen |= places
        parts.append(state)
    try:
        made = merge(graphdef, jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts))
    except ValueError as error:
        raise LayerError("Stacked.of", "the layers have arrays of different shapes", why=str(error)) from None
    if axis_name is not None:
        for variable in _variables(made):
            variable.add_axis(0, axis_name)
    return made


def layer_of(stacked: Any, number: int, axis_name: str | None) -> Any:
    """A copy of one layer."""
    graphdef, state = split(stacked)
    layer = merge(graphdef, jax.tree.map(lambda leaf: leaf[number], state))
    if axis_name is not None:
        for variable in _variables(layer):
            variable.remove_axis(0, axis_name)
    return layer


def _variables(node: Any) -> Iterator[Variable[Any]]:
    return (part for _, part in list(iter_graph(node)) if isinstance(part, Variable))


def read_only(copy: Any, index: int | slice) -> Any:
    """The same copy of a layer, or of some, which from now on refuses to be changed."""
    if isinstance(index, slice):
        bounds = [index.start, index.stop] if index.step is None else [index.start, index.stop, index.step]
        place = f"stack[{':'.join('' if bound is None else str(bound) for bound in bounds)}]"
        mended = f"part = dx.clone({place})        # a stack of its own, which can be changed"
    else:
        place = f"stack[{index}]"
        mended = f"layer = dx.clone({place}); ...; {place} = layer        # change a copy, and put it back"
    mark = ReadOnly(
        f"a copy, made by {place}",
        "the arrays of all layers are one, so an index, a slice or iteration copies, and what is set there is lost",
        f"{mended}\nstack.scan(f, x)        # or run a function on layer after layer",
    )
    for _, part in list(iter_graph(copy)):
        if isinstance(part, Variable):
            set_mark(part, mark)
        elif isinstance(part, Pytree):
            vars(part)[TRACE_KEY] = mark
            vars(part).pop(BOUND_KEY, None)  # what is bound knows the mark of the Variables
    return copy


__all__ = ["EXAMPLE", "layer_of", "make_layers", "read_only", "stack"]

"""Checks of the sizes and inputs of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax import errors
from declax._jax import is_symbolic


def field_of(layer: object, field: str) -> str:
    """``Class.field``, the place that an error is about."""
    return f"{errors.type_name(type(layer))}.{field}"


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number, or a symbolic size; True and False are none here."""
    is_number = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    return is_number or is_symbolic(value)


def decide(layer: object, field: str, given: bool | None, fix: str) -> bool:
    """The flag of a call, or that of the layer; an error if both are None."""
    decided: bool | None = getattr(layer, field) if given is None else given
    if decided is None:
        expected = "True or False, from the call or the attribute"
        raise errors.LayerError(
            field_of(layer, field), "this flag is not set", expected=expected, got="None from both", fix=fix
        )
    return decided


def no_random_numbers(layer: object, why: str, fix: str) -> errors.LayerError:
    """The error of a layer that has to draw, and got no `rngs`."""
    return errors.LayerError(
        field_of(layer, "rngs"),
        "there is no source of random numbers",
        expected="rngs, from the constructor or the call",
        got="None from both",
        why=why,
        fix=fix,
    )


CHANNELS_LAST = "channels are the last axis, as in (batch, height, width, channels)"


def check_last_axis(
    layer: object,
    field: str,
    inputs: jax.Array,
    argument: str = "inputs",
    size: int | None = None,
    other_axis: int | None = None,
) -> None:
    """Checks that the last axis has the size of a field; `other_axis` is where other libraries have the channels."""
    size = getattr(layer, field) if size is None else size
    if inputs.ndim == 0 or inputs.shape[-1] != size:
        made = f"the layer was made with {field}={getattr(layer, field)}"
        is_first = other_axis is not None and inputs.shape[other_axis] == size
        raise errors.LayerError(
            field_of(layer, field),
            f"the last axis of {argument!r} has the wrong size",
            expected=f"an array of shape (..., {size})",
            got=errors.describe(inputs),
            why=f"{made}; {CHANNELS_LAST}" if is_first else made,
            fix=f"jnp.moveaxis({argument}, {other_axis}, -1)" if is_first else None,
        )


def check_broadcasts(where: str, argument: str, array: jax.Array, to: str, shape: tuple[int, ...]) -> None:
    """Checks that an array broadcasts to a shape, which stays as it is."""
    given = jnp.shape(array)
    pairs = zip(reversed(given), reversed(shape), strict=False)
    if len(given) > len(shape) or any(size not in (1, wanted) for size, wanted in pairs):
        raise errors.LayerError(
            where,
            f"{argument!r} does not broadcast to {to}",
            expected=f"a shape that broadcasts to {shape}",
            got=errors.describe(array),
        )


def check_mask(where: str, mask: jax.Array | None, fix: str) -> None:
    """Checks that a mask of floats has no negative numbers, if they are known: all numbers but 0 count as True.

    Positive ones stay legal: `make_attention_mask` multiplies what it is given.
    """
    if mask is None or not jnp.issubdtype(mask.dtype, jnp.floating):
        return
    if isinstance(mask, Tracer) or not getattr(mask, "is_fully_addressable", True) or bool(jnp.all(mask >= 0)):
        return
    raise errors.LayerError(
        where,
        "this mask has negative numbers",
        expected="True or 1 where a query may look at a key, and False or 0 elsewhere",
        got=f"{errors.describe(mask)}, with numbers from {jnp.min(mask):.6g} to {jnp.max(mask):.6g}",
        why="every number but 0 counts as True",
        fix=fix,
    )


def check_axes_type(layer: object, field: str) -> None:
    """Checks that a field is an integer or a sequence of at least one."""
    axes = getattr(layer, field)
    if is_integer(axes):
        return
    if isinstance(axes, (str, bytes)) or not isinstance(axes, Sequence) or not axes or not all(map(is_integer, axes)):
        raise errors.LayerError(
            field_of(layer, field),
            "this names no axes",
            expected="an integer, or a sequence of at least one",
            got=repr(axes),
        )


def axes_of(layer: object, field: str, x: jax.Array, argument: str) -> tuple[int, ...]:
    """The axes of an input that a field names, counted from 0, in order."""
    named = getattr(layer, field)
    axes = (named,) if is_integer(named) else tuple(named)
    for axis in axes:
        if not -x.ndim <= axis < x.ndim:
            raise errors.LayerError(
                field_of(layer, field),
                f"axis {axis} is not one of {argument!r}",
                expected=f"an array of at least {axis + 1 if axis >= 0 else -axis} axes",
                got=errors.describe(x),
            )
    counted = sorted(axis % x.ndim for axis in axes)
    if len(set(counted)) < len(counted):
        raise errors.LayerError(
            field_of(layer, field),
            "one axis is named twice",
            expected="each axis once",
            got=f"{named!r}, which are the axes {tuple(counted)} of an array with {x.ndim} axes",
        )
    return tuple(counted)

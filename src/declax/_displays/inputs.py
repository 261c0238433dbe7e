"""Inputs that are given as texts, such as ``int32[b, n]``: arrays whose sizes are symbols."""

from __future__ import annotations

from typing import Any

import jax
import jax.export

from declax._text.dimensions import evaluate, is_input, parse_input, symbols_of
from declax.errors import FieldError


def with_symbols(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """Arguments with abstract arrays in place of texts, and whether there are any; a name is one size in all of them.

    Raises:
      FieldError: a text has a shape without one size for each axis.
    """
    texts = [value for value in (*args, *kwargs.values()) if is_input(value)]
    if not texts:
        return args, kwargs, False
    arrays = {text: parse_input(text, "inputs") for text in texts}
    sizes = [axis.size for _, axes in arrays.values() for axis in axes]
    names = list(dict.fromkeys(name for size in sizes if size is not None for name in symbols_of(size)))
    if None in sizes or any("." in name for name in names):
        raise FieldError(
            "inputs", "each axis of an input needs one size", expected='such as "int32[b, n]"', got=str(texts)
        )
    known = dict(zip(names, jax.export.symbolic_shape(",".join([*names, ""])) if names else (), strict=True))

    def array(value: Any) -> Any:
        if not is_input(value):
            return value
        dtype, axes = arrays[value]
        shape = tuple(evaluate(axis.size or 0, known) for axis in axes)
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # of JAX

    return tuple(map(array, args)), {name: array(value) for name, value in kwargs.items()}, bool(names)

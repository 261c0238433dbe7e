"""The functions, dtypes, initializers and optimizers that data may name."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from declax import initializers
from declax.config._reading.parameters import allowed_classes, is_dtype
from declax.initializers import NamedInitializer
from declax.nn import activations

_ACTIVATIONS: Final = (
    "celu elu gelu glu hard_sigmoid hard_silu hard_tanh identity leaky_relu log_sigmoid log_softmax mish relu relu6 "
    "selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus standardize tanh "
    "hard_swish swish"
).split()

_DTYPES: Final = (
    "float32 bfloat16 float16 float64 int32 int8 int16 int64 uint8 uint16 uint32 uint64 bool complex64 complex128 int4 "
    "uint4 float8_e4m3fn float8_e5m2 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2fnuz float8_e3m4 "
    "float8_e8m0fnu float4_e2m1fn int2 uint2"
).split()


def _is_initializer(name: str, made: object) -> bool:
    if inspect.isfunction(made):
        return not name.startswith("_") and made.__annotations__.get("return") == NamedInitializer.__name__
    return isinstance(made, NamedInitializer)


ACTIVATIONS: Final[Mapping[str, Any]] = MappingProxyType({name: getattr(activations, name) for name in _ACTIVATIONS})

INITIALIZERS: Final[Mapping[str, Any]] = MappingProxyType(
    {n: made for n, made in vars(initializers).items() if not n.endswith("_init") and _is_initializer(n, made)}
)
"""The factories in `declax.initializers`, and the initializers `zeros` and `ones`."""

DTYPES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        name: getattr(jnp, name if name != "bool" else "bool_")
        for name in _DTYPES
        if hasattr(jnp, name) or name == "bool"
    }
)


@functools.cache
def transformations() -> Mapping[str, Callable[..., Any]]:
    """The functions of optax that return a `GradientTransformation`, by name; loads optax."""
    import optax

    found = _returning(optax.GradientTransformation, optax.GradientTransformationExtraArgs)
    return MappingProxyType({"MultiSteps": optax.MultiSteps, **found})


@functools.cache
def schedules() -> Mapping[str, Callable[..., Any]]:
    """The functions of optax that return a schedule, by name; loads optax."""
    import optax

    return MappingProxyType(_returning(optax.Schedule))


def _returning(*annotations: Any) -> dict[str, Callable[..., Any]]:
    """The public functions of optax that return one of some types, and that data can call."""
    found = {}
    for name, function in vars(sys.modules["optax"]).items():
        inner = getattr(function, "func", function)  # of a partial
        if inspect.isfunction(inner) and inner.__annotations__.get("return") in annotations:
            parameters = inspect.signature(inner).parameters.values()
            if not name.startswith("_") and not any(map(_needs_function, parameters)):
                found[name] = function
    return found


def _needs_function(parameter: inspect.Parameter) -> bool:
    """Whether a parameter requires a function (not a schedule) or a tree of arrays."""
    if parameter.default is not inspect.Parameter.empty:
        return False
    return any(
        getattr(member, "_is_protocol", False)
        or any(isinstance(arg, typing.ForwardRef) for arg in typing.get_args(member))  # trees name themselves
        or (typing.get_origin(member) is collections.abc.Callable and member != sys.modules["optax"].Schedule)
        for member in allowed_classes(parameter.annotation)
    )


def is_transformation_class(annotation: object) -> bool:
    """Whether an annotation is a transformation class of optax; False if optax is not loaded."""
    optax = sys.modules.get("optax")
    if optax is None or not isinstance(annotation, type):
        return False
    return annotation in (optax.GradientTransformation, optax.GradientTransformationExtraArgs)


def name_in(table: Mapping[str, Any], value: object) -> str | None:
    """The first name of an object in a table, by identity."""
    return next((name for name, named in table.items() if named is value), None)


def dtype_name(value: object) -> str | None:
    if not is_dtype(value):
        return None
    dtype: Any = value if isinstance(value, (np.dtype, type)) else getattr(value, "dtype", None)
    name = np.dtype(dtype).name
    return name if name in DTYPES else None

"""The names of functions, dtypes, initializers and optimizers that data may use.

A name that stands in no table here and was not registered by code means nothing in a configuration: data never names a
module, an attribute or a function.

Vocabulary
----------
table: names, and what they stand for.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from declax import initializers
from declax.config._unions import is_dtype
from declax.nn import activations

_ACTIVATIONS: Final = (
    "celu elu gelu glu hard_sigmoid hard_silu hard_tanh identity leaky_relu log_sigmoid log_softmax mish relu relu6 "
    "selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus standardize tanh "
    "hard_swish swish"
).split()

_INITIALIZERS: Final = (
    "zeros ones constant uniform normal truncated_normal variance_scaling glorot_uniform glorot_normal lecun_uniform "
    "lecun_normal he_uniform he_normal orthogonal delta_orthogonal "
    "xavier_uniform xavier_normal kaiming_uniform kaiming_normal"
).split()

_DTYPES: Final = (
    "float32 bfloat16 float16 float64 int32 int8 int16 int64 uint8 uint16 uint32 uint64 bool complex64 complex128 int4 "
    "uint4 float8_e4m3fn float8_e5m2 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2fnuz float8_e3m4 "
    "float8_e8m0fnu float4_e2m1fn int2 uint2"
).split()

_NOT_DATA: Final = frozenset(
    "masked partition multi_transform freeze selective_transform inject_hyperparams inject_stateful_hyperparams "
    "stateless stateless_with_tree_map conditionally_mask conditionally_transform measure_with_ema monitor snapshot "
    "lookahead optimistic_adam GradientTransformation GradientTransformationExtraArgs".split()
)
"""Functions of optax that take masks, functions or pairs of parameters, and one that is deprecated."""


def _named(holder: Any, names: Sequence[str]) -> Mapping[str, Any]:
    return MappingProxyType({name: getattr(holder, name) for name in names if hasattr(holder, name)})


ACTIVATIONS: Final = _named(activations, _ACTIVATIONS)
"""The functions of `jax.nn`, by name."""

INITIALIZERS: Final = _named(initializers, _INITIALIZERS)
"""The factories of `declax.initializers`; `zeros` and `ones` are initializers themselves."""

DTYPES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        name: getattr(jnp, name if name != "bool" else "bool_")
        for name in _DTYPES
        if hasattr(jnp, name) or name == "bool"
    }
)
"""The scalar types of `jax.numpy`, by name."""


@functools.cache
def transformations() -> Mapping[str, Callable[..., Any]]:
    """The functions of optax that return a `GradientTransformation`, by name; loads optax."""
    import optax

    classes = (optax.GradientTransformation, optax.GradientTransformationExtraArgs)
    return MappingProxyType({"MultiSteps": optax.MultiSteps, **_returning(optax, classes)})


@functools.cache
def schedules() -> Mapping[str, Callable[..., Any]]:
    """The functions of optax that return a schedule, by name; loads optax."""
    import optax

    return MappingProxyType(_returning(optax, (optax.Schedule,)))


def _returning(module: Any, annotations: tuple[Any, ...]) -> dict[str, Callable[..., Any]]:
    """The public functions of a module that are annotated to return one of some types."""
    found = {}
    for name, function in vars(module).items():
        inner = getattr(function, "func", function)  # of a partial
        if inspect.isfunction(inner) and name not in _NOT_DATA and not name.startswith("_"):
            if inner.__annotations__.get("return") in annotations:
                found[name] = function
    return found


def is_transformation_class(annotation: object) -> bool:
    """Whether an annotation is of optax's transformations; where optax is not loaded, none is."""
    optax = sys.modules.get("optax")
    if optax is None or not isinstance(annotation, type):
        return False
    return annotation in (optax.GradientTransformation, optax.GradientTransformationExtraArgs)


def name_in(table: Mapping[str, Any], value: object) -> str | None:
    """The first name in a table of an object, looked up by identity."""
    return next((name for name, named in table.items() if named is value), None)


def dtype_name(value: object) -> str | None:
    """The name of a dtype that data may use.

    >>> dtype_name(jnp.bfloat16), dtype_name(np.dtype("int8")), dtype_name(float)
    ('bfloat16', 'int8', None)
    """
    if not is_dtype(value):
        return None
    dtype: Any = value if isinstance(value, (np.dtype, type)) else getattr(value, "dtype", None)
    name = np.dtype(dtype).name
    return name if name in DTYPES else None

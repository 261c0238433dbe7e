"""The classes, functions, dtypes and initializers that a configuration may name: registered ones, and tables."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar, overload

import jax.numpy as jnp
import numpy as np
import typing_extensions

from declax import initializers, nn
from declax._classes.pytree import Object, Pytree
from declax._fields.meanings import AliasType, CallableType, ClassType, CollectionType, MappingType, members_of
from declax._module.containers import Dict, List, Sequential
from declax._module.module import Module
from declax._module.running import refuse_call
from declax._typing import MISSING
from declax.config._reading.parameters import Parameter, is_dtype, parameters_of, plain_target, target_name
from declax.errors import RegistryError
from declax.initializers import NamedInitializer
from declax.nn import activations
from declax.nn.cells import RNNCellBase
from declax.nn.layer import Layer

C = TypeVar("C", bound=Callable[..., Any])

_BASES: Final = (Pytree, Object, Module, Layer, RNNCellBase)
"""Classes of declax that only subclasses make useful."""

_KINDS: dict[Any, dict[str, Callable[..., Any]]] = {}
_on_change: list[Callable[[], object]] = []


@overload
def register_kind(base: Any, kind: C, /, *, name: str | None = None) -> C: ...
@overload
def register_kind(base: Any, /, *, name: str | None = None) -> Callable[[C], C]: ...
def register_kind(base: Any, kind: Any = None, /, *, name: str | None = None) -> Any:
    """Allows configurations to choose a class where an annotation names its base.

    A field annotated ``Mixer`` accepts only the class `Mixer`. Register a subclass, an implementation of a protocol, or
    a function that returns such an object, to choose it by its tag: ``kind = "Attention"``.

    Args:
      base: the class or protocol that annotations name.
      kind: the class, or a function that returns an instance. Without it, `register_kind` returns a decorator.
      name: the tag; by default the name of the class or function.

    Returns:
      The class or function itself.

    Raises:
      RegistryError: another class has this name.

    >>> import declax as dx
    >>> class Mixer(dx.Module): ...
    >>> @dx.register_kind(Mixer)
    ... class Shift(Mixer): ...
    >>> type(dx.from_config(Mixer, {"kind": "Shift"})).__name__
    'Shift'
    """
    if kind is None:
        return functools.partial(register_kind, base, name=name)
    tag = name or target_name(kind).rpartition(".")[2]
    origin: Any = typing.get_origin(base)
    if isinstance(origin, type) and (origin is not collections.abc.Callable or not typing.get_args(base)):
        base = origin  # a registration for `Base[int]` or `typing.Callable` applies to the class
    kinds = _KINDS.setdefault(base, {})
    taken = kinds.get(tag)
    if taken is not None and not _is_again(taken, kind):
        raise RegistryError(
            "register_kind",
            f"another kind of {target_name(base)} has the name {tag!r}",
            expected="an unused name",
            got=f"{taken.__module__}.{target_name(taken)}, and {kind.__module__}.{target_name(kind)}",
            fix=f"dx.register_kind({target_name(base)}, {target_name(kind)}, name=...)",
        )
    kinds[tag] = kind
    for notify in _on_change:
        notify()
    return kind


def kinds_of(base: Any) -> Mapping[str, Callable[..., Any]]:
    """The kinds registered for a base, by name."""
    try:
        return _KINDS.get(base, {})
    except TypeError:  # an annotation without a hash
        return {}


def registered_kinds() -> list[Callable[..., Any]]:
    """All registered classes and functions."""
    return [kind for kinds in _KINDS.values() for kind in kinds.values()]


def on_change(notify: Callable[[], object]) -> None:
    """Calls a function after each registration, to clear caches."""
    _on_change.append(notify)


def implementations(base: Any, targets: Iterable[Any]) -> dict[str, Any]:
    """The classes that are subclasses of a base or implement its protocol, by name."""
    classes = [cls for cls in map(plain_target, targets) if isinstance(cls, type) and isinstance(base, type)]
    return {target_name(cls).rpartition(".")[2]: cls for cls in classes if _stands_for(cls, base)}


def extra_functions(extra: Iterable[Any]) -> dict[str, Any]:
    """The functions among the extra targets, by name; annotations with a callable allow them."""
    return {target_name(kind).rpartition(".")[2]: kind for kind in extra if isinstance(kind, types.FunctionType)}


def _stands_for(cls: type, base: type) -> bool:
    if base in cls.__mro__:
        return True
    if not getattr(base, "_is_protocol", False):
        return issubclass(cls, base)
    # constructors set members that are only annotated, so the class cannot be tested for them
    names = [name for name in typing_extensions.get_protocol_members(base) if hasattr(base, name)]
    return all(_has_member(cls, name) for name in names)


def _has_member(cls: type, name: str) -> bool:
    if name == "__call__":  # each class has the one of its metaclass
        return any(vars(base).get(name) not in (None, refuse_call) for base in cls.__mro__)
    return getattr(cls, name, None) is not None


def choices_of(base: Any, extra: Iterable[Any] = ()) -> dict[str, Any]:
    """The targets that an annotation allows, by tag: the base if it is concrete, extra and registered ones, layers."""
    found = {} if is_abstract(base) else {target_name(base).rpartition(".")[2]: base}
    found = {**found, **implementations(base, extra), **kinds_of(base)}
    return {**found, **{tag: layer for tag, layer in layers_of(base).items() if tag not in found}}


@functools.cache
def layers() -> Mapping[str, Any]:
    """The layers and containers of declax, by name; loads all."""
    public = ((name, getattr(nn, name)) for name in dir(nn))
    found = {n: cls for n, cls in public if isinstance(cls, type) and issubclass(cls, Pytree) and not is_abstract(cls)}
    return MappingProxyType({**found, "Sequential": Sequential, "List": List, "Dict": Dict})


def layers_of(base: Any) -> Mapping[str, Any]:
    """The layers of declax that a base of declax admits, by name; empty for a class of a user."""
    recurrent = sys.modules.get("declax.nn.recurrent")
    if recurrent is not None and base is recurrent.RNNBase:
        return {cls.__name__: cls for cls in (recurrent.RNN, recurrent.Bidirectional)}
    if base not in _BASES:
        return {}
    return {name: cls for name, cls in layers().items() if issubclass(cls, base)}


def is_abstract(base: Any) -> bool:
    """Whether a class has no instances but those of its subclasses."""
    return base in _BASES or inspect.isabstract(base) or bool(getattr(base, "_is_protocol", False))


def _is_again(taken: Any, kind: Any) -> bool:
    """Whether two classes are one, or a module was run again and defined a class again."""
    if taken is kind:
        return True
    names = [(getattr(k, "__module__", None), getattr(k, "__qualname__", None)) for k in (taken, kind)]
    return names[0] == names[1] and "<locals>" not in str(names[0][1])


def registered_name(kind: Any) -> str | None:
    """The first name with which a class or function was registered."""
    return next((tag for kinds in _KINDS.values() for tag, known in kinds.items() if known is kind), None)


# --- tables of declax, JAX and optax ----------------------------------------------


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
    """The functions of optax that return a `GradientTransformation`, by name, and that data can call; loads optax."""
    return MappingProxyType(_callable_by_data(named_transformations()))


@functools.cache
def named_transformations() -> Mapping[str, Callable[..., Any]]:
    """As `transformations`, also those that need a function, such as `optax.masked`."""
    import optax

    found = _returning(optax.GradientTransformation, optax.GradientTransformationExtraArgs)
    return MappingProxyType({"MultiSteps": optax.MultiSteps, **found})


@functools.cache
def schedules() -> Mapping[str, Callable[..., Any]]:
    """The functions of optax that return a schedule, by name, and that data can call; loads optax."""
    import optax

    return MappingProxyType(_callable_by_data(_returning(optax.Schedule)))


def _returning(*annotations: Any) -> dict[str, Callable[..., Any]]:
    """The public functions of optax that return one of some types."""
    return {
        name: function
        for name, function in vars(sys.modules["optax"]).items()
        if inspect.isfunction(inner := _inner(function))
        and inner.__annotations__.get("return") in annotations
        and not name.startswith("_")
    }


def _inner(function: Any) -> Any:
    """The function that a partial calls."""
    return getattr(function, "func", function)


def _callable_by_data(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    return {
        name: function
        for name, function in functions.items()
        if isinstance(function, type) or not any(map(_needs_function, parameters_of(_inner(function))))
    }


def _needs_function(parameter: Parameter) -> bool:
    """Whether a parameter requires a function (not a schedule) or a tree of arrays."""
    if parameter.default is not MISSING:
        return False
    return any(
        (isinstance(member, ClassType) and getattr(member.cls, "_is_protocol", False))
        or (isinstance(member, (CollectionType, MappingType)) and isinstance(member.item, AliasType))  # a tree
        or (isinstance(member, CallableType) and member.annotation != sys.modules["optax"].Schedule)
        for member in members_of(parameter.meaning())
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
    """The name of a dtype in data; None for other values."""
    if not is_dtype(value):
        return None
    dtype: Any = value if isinstance(value, (np.dtype, type)) else getattr(value, "dtype", None)
    name = np.dtype(dtype).name
    return name if name in DTYPES else None

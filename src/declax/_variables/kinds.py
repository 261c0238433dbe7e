"""The kinds of Variables, and their names, as collections are called in checkpoints and in Linen."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

import jax

from declax import errors
from declax._typing import MISSING, Missing, T
from declax._variables.variable import Variable

K = TypeVar("K", bound=type[Variable[Any]])


class Param(Variable[T]):
    """A parameter, which optimizers change.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> kernel = dx.Param(jnp.ones((2, 3)))
    >>> (jnp.ones(2) @ kernel).shape
    (3,)
    """

    __slots__ = ()


class BatchStat(Variable[T]):
    """A running statistic of the data, which the forward pass updates and optimizers leave alone.

    >>> import declax as dx
    >>> dx.state(dx.BatchNorm(2, rngs=dx.Rngs(0)), dx.BatchStat).paths
    (('mean',), ('var',))
    """

    __slots__ = ()


class Cache(Variable[T]):
    """Values that a layer keeps between calls, such as the keys and values of attention."""

    __slots__ = ()


class Intermediate(Variable[T]):
    """A value that a module records in a call, by `Module.sow`; `capture` and `pop` return it.

    >>> import declax as dx
    >>> model = dx.Module()
    >>> _ = model.sow(dx.Intermediate, "seen", 1.0)
    >>> dx.pop(model, dx.Intermediate)["seen"].value
    (1.0,)
    """

    __slots__ = ()


class Perturbation(Intermediate[T]):
    """Zeros that `Module.perturb` adds to a value; their gradient is the gradient of the value.

    >>> import declax as dx
    >>> model = dx.Module()
    >>> loss = lambda model: 3 * model.perturb("hidden", jax.numpy.ones(2)).sum()
    >>> _ = loss(model)
    >>> dx.grad(loss, argnums=dx.DiffState(0, dx.Perturbation))(model)["hidden"].value.tolist()
    [3.0, 3.0]
    """

    __slots__ = ()


class RngState(Variable[jax.Array]):
    """The Variables of a stream: its key and its count. Selects both as a filter."""

    __slots__ = ()
    tag: str


class RngKey(RngState):
    """The key of a stream; draws do not change it."""

    __slots__ = ()


class RngCount(RngState):
    """The number of keys that a stream has drawn."""

    __slots__ = ()


VariableState = Variable
"""The Variables of a State are Variables; the name is kept for older programs."""


# --- names ------------------------------------------------------------------------

_kinds: Final[dict[str, type[Variable[Any]]]] = {
    "params": Param,
    "batch_stats": BatchStat,
    "cache": Cache,
    "intermediates": Intermediate,
    "perturbations": Perturbation,
}
_lock: Final = threading.RLock()


@overload
def register_variable_name(name: str, typ: K, *, overwrite: bool = False) -> K: ...
@overload
def register_variable_name(name: str, *, overwrite: bool = False) -> Callable[[K], K]: ...
def register_variable_name(name: str, typ: Any = MISSING, *, overwrite: bool = False) -> Any:
    """Gives a kind of Variable a name, or makes a decorator that does; `overwrite` takes it from another kind.

    Raises:
      RegistryError: another kind has the name, or ``typ`` is not a kind of Variable.

    >>> import declax as dx
    >>> @dx.register_variable_name("visits")
    ... class Visits(dx.Variable[int]):
    ...     pass
    >>> dx.variable_type_from_name("visits") is Visits
    True
    """
    if isinstance(typ, Missing):
        return functools.partial(register_variable_name, name, overwrite=overwrite)
    if not (isinstance(typ, type) and issubclass(typ, Variable)):
        raise errors.RegistryError(
            repr(name), "only kinds of Variable have names", expected="a subclass of Variable", got=errors.describe(typ)
        )
    with _lock:
        if not overwrite and _kinds.get(name, typ) is not typ:
            raise errors.RegistryError(
                repr(name),
                "another kind has this name",
                expected=errors.type_name(_kinds[name]),
                got=errors.type_name(typ),
                fix="register_variable_name(..., overwrite=True) takes the name from it",
            )
        _kinds[name] = typ
    return typ


def variable_type_from_name(
    name: str, *, base: type[Variable[Any]] = Variable, allow_register: bool = False
) -> type[Variable[Any]]:
    """The kind of a name; with `allow_register`, a name that has none gets a new one, which derives from `base`.

    Raises:
      RegistryError: no kind has the name.

    >>> import declax as dx
    >>> dx.variable_type_from_name("params").__name__
    'Param'
    """
    with _lock:
        kind = _kinds.get(name)
        if kind is None:
            if not allow_register:
                raise errors.RegistryError(
                    repr(name),
                    "no kind of Variable has this name",
                    expected=f"one of {', '.join(sorted(_kinds))}",
                    fix=errors.suggest(name, _kinds) or "register_variable_name(name, kind), or allow_register=True",
                )
            kind = _kinds[name] = type(name, (base,), {"__slots__": ()})
        return kind


def variable_name_from_type(typ: type[Variable[Any]], *, allow_register: bool = False) -> str:
    """The name of a kind; with `allow_register`, a kind that has none is registered under that of its class.

    Raises:
      RegistryError: the kind has no name, or the name of its class is taken.

    >>> import declax as dx
    >>> dx.variable_name_from_type(dx.BatchStat)
    'batch_stats'
    """
    with _lock:
        for name, kind in _kinds.items():
            if kind is typ:
                return name
        if not allow_register:
            raise errors.RegistryError(
                errors.type_name(typ),
                "this kind of Variable has no name",
                fix=f"@register_variable_name({typ.__name__.lower()!r}), or allow_register=True",
            )
        register_variable_name(typ.__name__, typ)
        return typ.__name__

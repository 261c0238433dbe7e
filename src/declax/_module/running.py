"""The path of the module that runs: the named scope of its operations, and a part of the text of its errors.

A module does not know its path, since it may have several. The module around it is known while both run, and holds it
in an attribute or a container, where it is found by identity.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import FrameType, FunctionType
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from declax import _jax
from declax._classes.pytree import Pytree
from declax._graph.binding import bind
from declax._graph.iteration import iter_graph
from declax._modes import has_named_scopes
from declax._module.left_out import use_of_none
from declax._typing import INTERNAL_KEYS, Path
from declax._variables.donation import note_deleted
from declax._variables.placement import explicit_spec, is_on_host
from declax._variables.policy import POLICY, Policy
from declax._variables.variable import Variable
from declax.errors import DeclaxError, LayerError, LayerWarning, format_path, note_part, type_name

_around: Final[ContextVar[Any]] = ContextVar("declax_running", default=None)
"""The innermost module that runs while JAX traces."""

_CONTAINERS: Final = (list, tuple, dict)
MAX_NESTING: Final = 3
"""Levels of containers in which a part is looked for."""


def with_path(call: Any) -> Any:
    """A ``__call__`` whose operations and errors carry the path of the module; anything but a function as it is."""
    if not isinstance(call, FunctionType) or hasattr(call, "__wrapped_by_declax__"):
        return call

    @functools.wraps(call)
    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:  # stands in for one
        try:
            if _jax.trace_state.value is _jax.TOP:
                output = call(self, *args, **kwargs)
            else:
                output = _call_in_scope(call, self, args, kwargs)
            return output if POLICY not in self.__dict__ else _in_output_dtype(output, self.__dict__[POLICY])
        except Exception as error:
            missing = use_of_none(error)
            _note_module(missing or error, self)
            if isinstance(error, (RuntimeError, ValueError)) and "deleted" in str(error):
                _note_deleted(error, self)
            _jax.hide_frames(error)
            if missing is not None:
                raise missing from None
            raise

    __call__.__wrapped_by_declax__ = True  # type: ignore[attr-defined]  # of a function
    return __call__


def refuse_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The ``__call__`` of a class with ``forward``, unless a base has another one: says that it is not the same."""
    calls = (base.__dict__.get("__call__") for base in type(self).__mro__)
    own = next((call for call in calls if call is not None and call is not refuse_call), None)
    if own is not None:
        return own(self, *args, **kwargs)
    cls = type_name(type(self))
    raise LayerError(
        f"{cls}.__call__",
        f"{cls} has a method 'forward', and no '__call__', which a call of the object runs",
        fix="def __call__(self, ...): ...        # in place of forward\nmodel.forward(...)        # calls the method",
    )


def _call_in_scope(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    around = _around.get()
    if around is module or not has_named_scopes():  # `module` calls the method of its base
        return call(module, *args, **kwargs)
    path = None if around is None else path_in(around, module)
    token = _around.set(module)
    try:
        with jax.named_scope(format_path(path) if path else type_name(type(module))):
            return call(module, *args, **kwargs)
    finally:
        _around.reset(token)


def _in_output_dtype(output: Any, policy: object) -> Any:
    """What a module with a policy returns: the floating-point arrays of containers, in the dtype of the policy."""
    if not isinstance(policy, Policy) or policy.output is None:
        return output
    dtype = jnp.dtype(policy.output)

    def cast(value: Any) -> Any:
        is_array = isinstance(value, (jax.Array, np.ndarray))
        return value.astype(dtype) if is_array and jnp.issubdtype(value.dtype, jnp.floating) else value

    return jax.tree.map(cast, output, is_leaf=lambda value: isinstance(value, (Pytree, Variable)))


def path_in(holder: Any, part: Any, nesting: int = MAX_NESTING) -> Path | None:
    """The path of a part in the module that holds it, itself or in containers; None if it does not."""
    items = (holder if type(holder) is dict else enumerate(holder)) if isinstance(holder, _CONTAINERS) else vars(holder)
    pairs: list[tuple[Any, Any]] = list(items.items() if isinstance(items, dict) else items)
    for key, value in pairs:
        if value is part and key not in INTERNAL_KEYS:
            return (key,)
    for key, value in pairs if nesting else ():
        if isinstance(value, _CONTAINERS) or (isinstance(value, Pytree) and not _has_call(value)):
            found = path_in(value, part, nesting - 1)
            if found is not None:
                return (key, *found)
    return None


def _has_call(value: object) -> bool:
    return callable(value) and type(value).__call__ is not refuse_call


def _deep_path_in(holder: Any, part: Any) -> Path | None:
    """As `path_in` at any depth, which takes longer: also of a part in a module that did not run."""
    return next((path for path, value in iter_graph(holder, graph=True) if value is part), None)


_RUNNING: Final = "_declax_running"


class _Copy(NamedTuple):
    """A module in an error that a transform has rebuilt, and its position among what is rebuilt."""

    copy: Any
    position: int


def note_copy(error: Exception, copies: Sequence[Any]) -> None:
    """Notes which of the objects that a transform has rebuilt is the module in an error."""
    inner, path = error.__dict__.get(_RUNNING, (None, ()))
    for position, copy in enumerate(copies):
        if copy is inner:
            error.__dict__[_RUNNING] = _Copy(copy, position), path


def note_original(error: BaseException, originals: Sequence[Any]) -> None:
    """Puts the object of the caller in place of a copy, so that the modules around it find its path."""
    inner, path = error.__dict__.get(_RUNNING, (None, ()))
    if isinstance(inner, _Copy):
        error.__dict__[_RUNNING] = originals[inner.position], path


def _note_module(error: Exception, module: Any) -> None:
    """Adds one more module, from the inside out, to the path in an error."""
    inner, path = error.__dict__.get(_RUNNING, (None, ()))
    inner = inner.copy if isinstance(inner, _Copy) else inner
    if inner is module:
        return
    if inner is None and type(error).__name__ == "ShardingTypeError":
        _note_splits(error, module)
    if inner is None and type(error) is ValueError and str(error).startswith("memory_space of all inputs"):
        _note_host_memory(error, module)
    if inner is not None:
        path = (*(path_in(module, inner) or _deep_path_in(module, inner) or (type_name(type(inner)),)), *path)
    error.__dict__[_RUNNING] = module, path
    if path:
        note_part(error, f"{format_path(path)} of {type_name(type(module))}")


def warn_by(error: LayerError) -> None:
    """Warns by the text of an error, with the path of the module in those that call it; not under transforms."""
    if _jax.trace_state.value is not _jax.TOP:
        return
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "__call__" and frame.f_globals is globals():
            _note_module(error, frame.f_locals["self"])
        frame = frame.f_back
    warnings.warn(str(error), LayerWarning, stacklevel=_jax.level_of_user(sys._getframe()))


def _note_deleted(error: Exception, module: Any) -> None:
    """Adds the arrays of a module that have lost their buffers to an error of JAX about such an array."""
    if not isinstance(error, DeclaxError):
        binding = bind(module)
        note_deleted(error, module, zip(binding.graphdef.definition.paths, binding.read(), strict=True))


def _note_host_memory(error: Exception, module: Any) -> None:
    """Adds the arrays of a layer that are in host memory to an error of JAX about arrays of two memories."""
    names = [repr(name) for name, held in vars(module).items() if isinstance(held, Variable) and is_on_host(held.value)]
    if names:
        error.add_note(
            f"{type_name(type(module))}: {', '.join(names)} in host memory, where no device computes; "
            "call a copy of the model in device memory: jax.device_put(model, jax.memory.Space.Device)(x)"
        )


def _note_splits(error: Exception, module: Any) -> None:
    """Adds the split dimensions of a layer's parameters to an error of JAX about explicit axes."""
    splits = []
    for name, value in vars(module).items():
        array = value.value if isinstance(value, Variable) else None
        if isinstance(array, jax.Array):
            pairs = enumerate(explicit_spec(array) or ())
            splits += [
                f"dimension {number} of {name!r}, of shape {array.shape}, is split by {axis!r}"
                for number, axis in pairs
                if axis is not None
            ]
    fix = (
        "; pass the sharding of the result, as out_sharding=jax.P(...), or name its axes in the metadata of the "
        'parameter, as {"act_names": (...)}'
        if "out_sharding" in str(error)
        else ""
    )
    if splits:
        error.add_note(f"{type_name(type(module))}: {', '.join(splits)}{fix}")

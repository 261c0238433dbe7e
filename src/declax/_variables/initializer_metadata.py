"""Initializers that say more than a value: what its Variable shall know about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

from declax import errors
from declax._variables.metadata import Metadata
from declax._variables.variable import Variable, VariableMetadata

F = TypeVar("F", bound=Callable[..., Any])

ValueHook: TypeAlias = Callable[[Variable[Any], Any], Any]
AxisHook: TypeAlias = Callable[[Variable[Any], int, str | None], None]
ValueHooks: TypeAlias = ValueHook | Sequence[ValueHook]
AxisHooks: TypeAlias = AxisHook | Sequence[AxisHook]


@dataclass(frozen=True)
class InitializerWithMetadata:
    """An initializer whose values bring metadata; equal to another of the same parts.

    Being hashable and equal by value, it can be a static field without causing retraces.
    """

    initializer: Callable[..., Any]
    metadata: Metadata

    def __call__(self, *args: Any, **options: Any) -> VariableMetadata[Any]:
        """Makes the value, and hands it on with the metadata."""
        made = self.initializer(*args, **options)
        if isinstance(made, VariableMetadata):  # wrapped twice: the outer one has the last word
            return VariableMetadata(made.value, {**made.metadata, **self.metadata})
        return VariableMetadata(made, self.metadata)


def with_metadata(
    initializer: F,
    on_set_value: ValueHooks = (),
    on_get_value: ValueHooks = (),
    on_create_value: ValueHooks = (),
    on_add_axis: AxisHooks = (),
    on_remove_axis: AxisHooks = (),
    **metadata: Any,
) -> F:
    """Wraps an initializer so that the Variable made from its value carries metadata.

    Args:
      initializer: a function that makes a value, as those of `jax.nn.initializers`.
      on_set_value: one or several functions ``(variable, value) -> value``, run on each value that is put in.
      on_get_value: the same, run on each value that is read.
      on_create_value: the same, run on the first value.
      on_add_axis: one or several functions ``(variable, axis_index, axis_name)``, run when a transform adds an axis.
      on_remove_axis: the same, run when a transform removes one.
      **metadata: what else the Variable shall carry, such as ``sharding``. The older names ``set_value_hooks``,
        ``get_value_hooks``, ``create_value_hooks``, ``add_axis_hooks`` and ``remove_axis_hooks`` add to the hooks.

    Returns:
      An initializer of the same arguments. Where a layer passes metadata of its own, that of the initializer wins.

    Raises:
      MetadataError: the initializer or a hook is no function.
      StatusError: the value of a name has no hash.

    >>> import jax
    >>> from declax._variables.variable import Param
    >>> zeros = with_metadata(jax.nn.initializers.zeros, sharding=("in", "out"))
    >>> Param(zeros(jax.random.key(0), (2, 3))).sharding
    ('in', 'out')
    """
    if not callable(initializer):
        raise errors.MetadataError(
            "with_metadata",
            "an initializer must be a function",
            expected="a function such as jax.nn.initializers.zeros",
            got=errors.describe(initializer),
        )
    given = {
        "set_value": on_set_value,
        "get_value": on_get_value,
        "create_value": on_create_value,
        "add_axis": on_add_axis,
        "remove_axis": on_remove_axis,
    }
    for name, hooks in given.items():
        together = (*_as_tuple(hooks), *_as_tuple(metadata.pop(f"{name}_hooks", ())))
        if together:
            metadata[f"on_{name}"] = together[0] if len(together) == 1 else together
    return cast(F, InitializerWithMetadata(initializer, Metadata.of(metadata, "with_metadata")))


def _as_tuple(hooks: Any) -> tuple[Any, ...]:
    return tuple(hooks) if isinstance(hooks, (tuple, list)) else (hooks,)

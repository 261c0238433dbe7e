"""The state of a training loop as one immutable value, for loops of pure functions."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Self, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

from declax._graph.api import Caller, call
from declax._graph.flattening import GraphDef
from declax._state.states import State
from declax._variables.placement import in_device_memory, in_memory_of
from declax.errors import GraphError, describe, type_name
from declax.training._transformation import Transformation

M = TypeVar("M")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class FrozenTree:
    """A pytree each of whose subclasses is a frozen dataclass without a decorator."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        changed: Any = dataclasses.dataclass(frozen=True)(cls)  # in place
        is_static = {
            field.name: field.metadata.get("static", not field.metadata.get("pytree_node", True))
            for field in dataclasses.fields(changed)
        }
        data = [name for name, static in is_static.items() if not static]
        jax.tree_util.register_dataclass(cls, data, [name for name in is_static if name not in data])

    def replace(self, **changes: Any) -> Self:
        """A copy with other values in some fields."""
        copied: Self = dataclasses.replace(self, **changes)  # type: ignore[type-var]  # subclasses are dataclasses
        return copied


class TrainState(FrozenTree, Generic[M]):
    """A split model, its optimizer state and the number of steps, as a frozen dataclass and a pytree.

    A subclass adds fields, and needs no decorator. ``dataclasses.field(metadata={"static": True})`` makes a field
    static.

    Args:
      graphdef: the structure of the model.
      params: the State of the trained parameters.
      opt_state: the state of the transformation.
      step: the number of updates.
      tx: an optax transformation; static.

    >>> import jax.numpy as jnp, optax
    >>> import declax as dx
    >>> graphdef, params = dx.split(dx.Linear(2, 3, rngs=dx.Rngs(0)))
    >>> state = dx.TrainState.create(graphdef, params=params, tx=optax.sgd(0.1))
    >>> output, _ = state.apply("params")(jnp.ones(2))
    >>> output.shape, int(state.apply_gradients(state.params).step)
    ((3,), 1)
    """

    graphdef: GraphDef[M]
    params: State[M]
    opt_state: Any
    step: jax.Array
    tx: Transformation = dataclasses.field(metadata={"static": True})

    @classmethod
    def create(
        cls, graphdef: GraphDef[M], *, params: State[M], tx: Transformation, step: int = 0, **fields: Any
    ) -> Self:
        """The state before training; `fields` are those of a subclass."""
        opt_state, counted = tx.init(params), jnp.asarray(step)
        return cls(graphdef=graphdef, params=params, opt_state=opt_state, step=counted, tx=tx, **fields)

    def apply(self, state: State[Any] | str, *states: State[Any] | str) -> Caller[tuple[GraphDef[M], State[M]]]:
        """As `declax.call` of the model with these States, or those in the fields of these names.

        Raises:
          GraphError: a field does not hold a State.
        """
        return call((self.graphdef, self._state_of(state), *[self._state_of(other) for other in states]))

    def _state_of(self, given: State[Any] | str) -> State[Any]:
        found = getattr(self, given) if isinstance(given, str) else given
        if isinstance(found, State):
            return found
        where = f"{type_name(type(self))}.{given}" if isinstance(given, str) else f"{type_name(type(self))}.apply"
        raise GraphError(where, "this is not a State", got=describe(found), fix="state.apply('params')")

    def apply_gradients(self, grads: State[Any], **changes: Any) -> Self:
        """The state after a step with these gradients; `changes` are of further fields."""
        moved, state, here = map(in_device_memory, (grads, self.opt_state, self.params))
        updates, opt_state = self.tx.update(moved, state, here)
        params = in_memory_of(self.params, jax.tree.map(_updated, here, updates))
        opt_state = in_memory_of(self.opt_state, opt_state)
        return self.replace(params=params, opt_state=opt_state, step=self.step + 1, **changes)


def _updated(value: Any, update: Any) -> Any:
    return jnp.asarray(value + update).astype(jnp.asarray(value).dtype)

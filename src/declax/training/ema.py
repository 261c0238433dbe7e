"""Exponential moving averages of parameters."""

from __future__ import annotations

from functools import partial
from typing import Any, Generic, overload

import jax
import jax.numpy as jnp
from typing_extensions import TypeVar

from declax import _jax, errors
from declax._classes.pytree import Pytree
from declax._fields.specifiers import data, static
from declax._filters import Filter, as_written
from declax._graph.api import state as state_of
from declax._graph.binding import bind, bind_and_read
from declax._graph.unflattening import build
from declax._state.states import State
from declax._variables.donation import note_deleted
from declax._variables.placement import in_device_memory, in_memory_of
from declax._variables.variable import Variable, new_variable
from declax.training._branches import Branch, branches_of, find
from declax.training._comparison import difference, resized, shape_of

M = TypeVar("M", default=Any)
N = TypeVar("N")


class EMA(Pytree, Generic[M]):
    """An exponential moving average of the parameters of a model.

    ``average = decay * average + (1 - decay) * parameter``, in the dtype of the parameter

    Integers and random keys have no average: `update` copies their values.

    Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", https://doi.org/10.1137/0330046.

    Args:
      params: a model, a container of models, or a State of one. It is read, not kept.
      decay: how much of the average an update keeps, from 0 to 1.
      only: which Variables are averaged.
      graph: False if the model must be a tree; None for the default of `set_graph_mode`.

    Attributes:
      decay: the argument of this name, as are `filter` and `graph`.
      params: the averages, in Variables of the kinds and metadata of the model's, by the paths of the model:
        ``ema.params["blocks"][0]["kernel"]`` or ``ema.params.blocks[0].kernel``.

    Raises:
      OptimizerError: `only` matches nothing, or something that is not in a Variable.

    >>> import declax as dx
    >>> model = dx.Linear(1, 1, use_bias=False, rngs=dx.Rngs(0))
    >>> model.kernel.value = jnp.zeros((1, 1))
    >>> ema = dx.EMA(model, decay=0.75)
    >>> model.kernel.value = jnp.ones((1, 1))
    >>> ema.update(model)
    >>> ema.apply_to(model)(jnp.ones(1)).tolist(), model(jnp.ones(1)).tolist()
    ([0.25], [1.0])
    """

    params: Branch[M]
    decay: float
    filter: Filter
    graph: bool | None

    @overload
    def __init__(
        self: EMA[N], params: State[N], decay: float, *, only: Filter = ..., graph: bool | None = None
    ) -> None: ...
    @overload
    def __init__(self, params: M, decay: float, *, only: Filter = ..., graph: bool | None = None) -> None: ...
    def __init__(self, params: Any, decay: float, *, only: Filter = ..., graph: bool | None = None) -> None:
        if not 0 <= decay <= 1:
            raise errors.OptimizerError(
                "EMA.decay",
                "decay is out of range",
                expected="a number from 0 to 1, near 1",
                got=repr(decay),
                fix="dx.EMA(model, decay=0.999)",
            )
        given = state_of(params, only, copy=True, graph=graph)
        if not given.paths:
            raise errors.OptimizerError(
                "EMA.only",
                f"the filter {as_written(only)} matches nothing in the model",
                expected="a filter that matches Variables of the model",
                got=errors.describe(params),
            )
        self.decay = decay
        self.filter = static(only)
        self.graph = graph
        self._paths = static(given.paths)
        self.params = data(branches_of(given.paths, _variables_of(given)))

    def update(self, updates: M | State[M]) -> None:
        """Moves the averages towards new values, in place.

        Args:
          updates: the model, or a State of its values.

        Raises:
          OptimizerError: paths or shapes are not those that the average was made for; nothing is changed.
          TraceContextError: the average belongs to another trace.
        """
        new = self._values_of(updates, "EMA.update")
        variables = self._variables()
        try:
            averages = [
                jax.tree.map(partial(_average, self.decay), variable.raw_value, value)
                for variable, value in zip(variables, new, strict=True)
            ]
        except RuntimeError as error:  # of JAX
            for owner, state in (updates, state_of(updates, graph=self.graph)), (self, state_of(self)):
                note_deleted(error, owner, zip(state.paths, state.leaves, strict=True))
            raise
        for variable in variables:
            variable.set_raw_value(variable.raw_value)  # raises if it belongs to another trace
        for variable, average in zip(variables, averages, strict=True):
            variable.set_raw_value(average)

    def apply_to(self, model: N) -> N:
        """A new model with the averages in place of its Variables; Variables without an average stay those of `model`.

        Its parameters are those of `params`, so that it follows each later update.

        Args:
          model: the model that the average was made for, or one of the same structure.

        Raises:
          OptimizerError: paths or shapes are not those that the average was made for.
        """
        self._values_of(model, "EMA.apply_to")
        binding, values = bind_and_read(bind, model, self.graph)
        average_at = dict(zip(self._paths, self._variables(), strict=True))
        paths = binding.graphdef.definition.paths
        variables = [average_at.get(path, old) for path, old in zip(paths, binding.cells, strict=True)]
        averaged: N = build(binding.graphdef, list(values), variables=variables, orders=binding.orders)
        return averaged

    def _variables(self) -> list[Variable[Any]]:
        return [find(self.params, path) for path in self._paths]

    def _values_of(self, given: Any, where: str) -> list[Any]:
        """The values of a model at the paths of the averages; raises if it has others."""
        state: State[Any] = state_of(given, self.filter, graph=self.graph)
        value_at = dict(zip(state.paths, state.leaves, strict=True))
        misfit = difference(self._paths, state.paths) or resized(
            (path, shape_of(variable.raw_value), shape_of(value_at[path]))
            for path, variable in zip(self._paths, self._variables(), strict=True)
        )
        if not misfit:
            return [value_at[path] for path in self._paths]
        raise errors.OptimizerError(
            where,
            "the model does not have the Variables that the average was made for",
            expected="the model that it was made for, or one of the same structure",
            got=misfit,
            fix="ema = dx.EMA(model, decay=...)        # again, after changing the model",
        )


def _average(decay: float, old: Any, new: Any) -> Any:
    here, value = in_device_memory((old, new))
    if jnp.issubdtype(jnp.result_type(new), jnp.inexact):
        value = jnp.asarray(decay * here + (1.0 - decay) * value, jnp.result_type(old))
    return in_memory_of(old, value)


def _variables_of(state: State[Any]) -> list[Variable[Any]]:
    """New Variables with the values, kinds and metadata of a State."""
    made = []
    for path, value, leaf_def in zip(state.paths, state.leaves, state.definition.leaf_defs, strict=True):
        if leaf_def is None:
            raise errors.OptimizerError(
                "EMA.only",
                f"the value at {errors.format_path(path)} is not in a Variable",
                expected="Variables",
                got=errors.describe(value),
                fix="dx.EMA(model, decay, only=dx.Param)",
            )
        kind, metadata = leaf_def
        made.append(new_variable(kind, value, metadata, _jax.current_trace()))
    return made

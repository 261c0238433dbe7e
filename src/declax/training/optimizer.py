"""`Optimizer`: an optax transformation, its state, and the parameters that it updates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic

import jax
import jax.numpy as jnp
from typing_extensions import TypeVar

from declax import errors
from declax._classes.pytree import Pytree
from declax._fields.specifiers import data, static
from declax._filters import Filter, as_written
from declax._graph.api import advise_param, graphdef
from declax._graph.api import state as state_of
from declax._graph.array_refs import as_pure
from declax._graph.updating import update as update_graph
from declax._lazy import lazy_names
from declax._state.definition import StateDef, raw_of
from declax._state.states import FlatState, State, make_state
from declax._typing import MISSING, Path, PyTree
from declax._variables.donation import note_deleted
from declax._variables.placement import in_device_memory, in_memory_of
from declax._variables.selection import is_trainable
from declax._variables.variable import Variable
from declax.training._comparison import difference, resized, shape_of
from declax.training._opt_state import OptArray as OptArray
from declax.training._opt_state import OptLayout, OptState, OptVariable, variables_of
from declax.training._transformation import StaticTransformation, Transformation, check_masks, check_transformation

if TYPE_CHECKING:
    import optax

M = TypeVar("M", default=Any)


class Optimizer(Pytree, Generic[M]):
    """Updates the parameters of a model by an optax transformation.

    Args:
      model: a Module, or any tree or graph of them. It is read, not kept.
      tx: an optax transformation, or `optax.MultiSteps`.
      wrt: a filter that selects the parameters; use the same for the gradient. By default the Params that are not
        declared with ``trainable=False``.
      graph: False if the model must be a tree; None for the default of `set_graph_mode`.

    Attributes:
      step: the number of updates so far, a uint32 in an `OptState`.
      opt_state: the optax state, each array in a Variable: an `OptVariable` with the metadata of the parameter that it
        mirrors, or an `OptArray`. The parts that mirror the parameters are mappings:
        ``opt_state[0].mu["linear"]["kernel"]``. Variables can be assigned to:
        ``optimizer.opt_state.hyperparams["learning_rate"].value = 1e-4``.

    Raises:
      OptimizerError: `wrt` matches nothing, `tx` is not a transformation, or its
        state holds something else than arrays.

    Two optimizers share compiled steps if they have the same `tx` object, or transformations built from equal Specs
    (``dx.spec(optax.adam, 1e-3).build()``), which also pickle by the Spec. Other transformations need cloudpickle for
    that, the extra `pickle`.

    >>> import optax
    >>> import declax as dx
    >>> model = dx.Linear(2, 2, rngs=dx.Rngs(0))
    >>> optimizer = dx.Optimizer(model, optax.sgd(1.0), wrt=dx.Param)
    >>> updates = optimizer.update(model, dx.state(model, dx.Param))
    >>> bool((model.kernel == 0).all()), int(optimizer.step)
    (True, 1)
    """

    step: OptState[jax.Array]
    opt_state: PyTree

    def __init__(self, model: M, tx: Transformation, wrt: Filter = is_trainable, *, graph: bool | None = None) -> None:
        check_transformation("Optimizer.tx", tx, "optimizer = dx.Optimizer(model, optax.adam(1e-3), wrt=dx.Param)")
        check_masks("Optimizer.tx", tx, "mask=dx.mask_by({})")
        parameters = state_of(model, wrt, graph=graph)
        if not parameters.paths:
            raise errors.OptimizerError(
                "Optimizer.wrt",
                f"the filter {as_written(wrt)} matches nothing in the model",
                expected="a filter that matches Variables of the model",
                got=errors.describe(model),
                fix=advise_param(model, wrt),
            )
        with jax.numpy_dtype_promotion("standard"):  # which optax needs
            tree = tx.init(in_device_memory(parameters))
        self.step = OptState(jnp.zeros((), jnp.uint32))
        self._tx = StaticTransformation(tx)
        self._wrt = static(wrt)
        self._layout = OptLayout(tree, parameters.paths)
        self.opt_state = data(self._layout.store(variables_of(tree, parameters)))

    @property
    def tx(self) -> optax.GradientTransformation:
        """The optax transformation."""
        return self._tx.tx  # type: ignore[return-value]  # MultiSteps has init and update as well

    @property
    def wrt(self) -> Filter:
        """The filter of the optimized Variables."""
        return self._wrt

    def optax_state(self) -> PyTree:
        """A snapshot of the state with arrays in place of Variables, for functions such as `optax.tree.get`."""
        return self._layout.unflatten(map(raw_of, self._layout.slots_of(self.opt_state)))

    def update(self, model: M, grads: State[M] | M, **extra: Any) -> State[M]:
        """Updates the model's parameters, the optimizer's state and the step, in place.

        Args:
          model: the model that the optimizer was made for, or one whose parameters have the same paths and shapes.
          grads: their gradients: a `State`, as `dx.grad` returns, or a tree with the structure of the model, as of
            `jax.grad`; for a list, tuple or dict of models, one of States. Gradients of other Variables of the model
            are ignored.
          **extra: arguments of the transformation, such as ``value=loss`` for `optax.contrib.reduce_on_plateau`, or
            ``value=, grad=, value_fn=`` for `optax.lbfgs`, where ``value_fn`` takes a State of the parameters.

        Returns:
          The updates that were added to the parameters: a State of arrays.

        Raises:
          OptimizerError: the gradients or the model do not fit; nothing is changed.
          TraceContextError: the model or the optimizer belongs to another trace.
        """
        if grads is MISSING:
            raise errors.OptimizerError(
                "Optimizer.update",
                "one of the model and the gradients is missing",
                expected="update(model, grads)",
                got=f"update({errors.describe(model)})",
                why="an optimizer does not keep its model",
                fix="optimizer.update(model, grads)",
            )
        import optax  # declax starts without it

        slots = self._layout.slots_of(self.opt_state)
        parameters = self._parameters_of(model, slots)
        gradients = self._gradients_for(model, parameters, grads)
        before = self._layout.unflatten(map(raw_of, slots))
        tx: Any = self.tx  # optax types its trees so that no State is one
        try:
            here, state, moved = map(in_device_memory, (parameters, before, gradients))
            with jax.numpy_dtype_promotion("standard"):  # which optax needs
                updates, after = tx.update(moved, state, here, **extra)
                applied: Any = optax.apply_updates(here, updates)
            applied = in_memory_of(parameters, applied)
            if jax.tree.structure(after) == self._layout.treedef:
                after = in_memory_of(before, after)
        except RuntimeError as error:  # of JAX
            for owner, state in (model, parameters), (grads, gradients), (self, state_of(self)):
                note_deleted(error, owner, zip(state.paths, state.leaves, strict=True))
            raise
        self._write(model, applied, slots, after)
        return as_pure(updates)

    def _parameters_of(self, model: M, slots: list[Any]) -> State[Any]:
        """The parameters of a model; raises if the optimizer was made for other paths or shapes."""
        if isinstance(model, State):
            raise errors.OptimizerError(
                "Optimizer.update",
                "the first argument is a State, a snapshot whose update changes no model",
                expected="update(model, grads)",
                got=errors.describe(model),
                fix="optimizer.update(model, grads)",
            )
        parameters: State[Any] = state_of(model, self.wrt)
        misfit = difference(self._layout.targets, parameters.paths)
        if not misfit:
            shapes = dict(zip(parameters.paths, map(shape_of, parameters.leaves), strict=True))
            mirrors = zip(self._layout.sources, slots, strict=True)
            pairs = [(path, slot) for path, slot in mirrors if path is not None and isinstance(slot, OptVariable)]
            misfit = resized((path, shape_of(slot.raw_value), shapes[path]) for path, slot in pairs)
        if misfit:
            raise errors.OptimizerError(
                "Optimizer.update",
                "the model does not have the parameters that the optimizer was made for",
                expected="the model that it was made for, or one of the same structure",
                got=misfit,
                fix="optimizer = dx.Optimizer(model, tx, wrt=...)   # again, after changing the model",
            )
        return parameters

    def _gradients_for(self, model: M, parameters: State[Any], grads: Any) -> State[Any]:
        """The gradients under the definition of the parameters: they may have lost the metadata."""
        fix = "grads = dx.grad(loss_fn, argnums=dx.DiffState(0, wrt))(model)   # the same filter"
        given, grads = grads, _combined(grads)
        if isinstance(grads, Pytree) and not isinstance(grads, State):
            grads = state_of(grads, self.wrt)
        if isinstance(grads, State):
            if grads.paths != parameters.paths:
                grads = _relevant(grads, parameters.paths, graphdef(model).definition)
            rows = zip(parameters.paths, map(shape_of, parameters.leaves), map(shape_of, grads.leaves), strict=False)
            misfit = difference(parameters.paths, grads.paths) or resized(rows)
            if not misfit:
                return make_state(parameters.definition, list(grads.leaves))
        else:
            misfit = errors.describe(given)
            fix = "loss, grads = dx.value_and_grad(loss_fn)(model)" if isinstance(given, tuple) else fix
        raise errors.OptimizerError(
            "Optimizer.update",
            "the gradients do not match the parameters",
            expected=f"a State with a gradient for each of the {len(parameters.paths)} Variables "
            f"that {as_written(self.wrt)} matches",
            got=misfit,
            fix=fix,
        )

    def _write(self, model: M, parameters: State[Any], slots: list[Any], after: PyTree) -> None:
        """Writes the results; whatever can fail comes before the first change."""
        is_alike = jax.tree.structure(after) == self._layout.treedef and all(isinstance(s, Variable) for s in slots)
        variables = None if is_alike else variables_of(after, parameters)
        for kept in (self.step, *slots):
            if isinstance(kept, Variable):
                kept.set_raw_value(kept.raw_value)  # raises if it belongs to another trace
        update_graph(model, parameters)
        step = self.step.raw_value
        self.step.set_raw_value(in_memory_of(step, in_device_memory(step) + jnp.uint32(1)))
        if variables is None:
            for slot, value in zip(slots, jax.tree.leaves(after), strict=True):
                slot.set_raw_value(value)
        else:
            self._layout = OptLayout(after, parameters.paths)
            self.opt_state = self._layout.store(variables)


class ModelAndOptimizer(Optimizer[M]):
    """An `Optimizer` that keeps its model, so that `update` takes gradients alone.

    Args:
      model: a Module, or any tree or graph of them; kept as the attribute `model`.
      tx: an optax transformation, or `optax.MultiSteps`.
      wrt: a filter that selects the parameters, as for `Optimizer`.
      graph: False if the model must be a tree; None for the default of `set_graph_mode`.

    Raises:
      OptimizerError: as `Optimizer`.

    >>> import optax
    >>> import declax as dx
    >>> optimizer = dx.ModelAndOptimizer(dx.Linear(2, 2, rngs=dx.Rngs(0)), optax.sgd(1.0))
    >>> updates = optimizer.update(dx.state(optimizer.model, dx.Param))
    >>> bool((optimizer.model.kernel == 0).all())
    True
    """

    model: M

    def __init__(self, model: M, tx: Transformation, wrt: Filter = is_trainable, *, graph: bool | None = None) -> None:
        super().__init__(model, tx, wrt, graph=graph)
        self.model = model

    def update(self, grads: State[M] | M, **extra: Any) -> State[M]:  # type: ignore[override]  # it has the model
        """As `Optimizer.update`, of the model that it keeps."""
        return super().update(self.model, grads, **extra)


setattr(Optimizer.update, "__defaults__", (MISSING,))  # noqa: B010  # to word the error; checkers see it as required


def _combined(grads: Any) -> Any:
    """One State for a list, tuple or dict of States, nested to any depth; anything else as it is."""
    if isinstance(grads, (list, tuple)):
        grads = dict(enumerate(grads))
    if type(grads) is not dict:
        return grads
    parts = {key: _combined(part) for key, part in grads.items()}
    return State(parts) if all(isinstance(part, State) for part in parts.values()) else grads


def _relevant(grads: State[Any], paths: Iterable[Path], known: StateDef) -> State[Any]:
    """The gradients at some paths, in this order, and those at paths that are not known."""
    given = dict(grads._read_pairs())
    chosen = [path for path in paths if path in given] + [path for path in given if known.position(path) is None]
    return State(FlatState([(path, given[path]) for path in chosen]))


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

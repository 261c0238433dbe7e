"""`Optimizer`: an optax transformation, its state, and the parameters that it updates.

Vocabulary
----------
tx:        the optax transformation: how gradients become updates.
wrt:       the filter that selects what is optimised.
opt_state: what the transformation remembers, in Variables (`_opt_state`).
targets:   the paths of the parameters that the optimizer was made for.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from declax import errors
from declax._fields import static
from declax._filters import Filter
from declax._pytree import Pytree
from declax._typing import Path, PyTree
from declax._variables import Param, Variable
from declax.graph.api import state as state_of
from declax.graph.updating import update as update_graph
from declax.states import State, make_state
from declax.training._opt_state import OptLayout, OptState, OptVariable, slots_of, store
from declax.training._transformation import StaticTransformation, Transformation, is_transformation

if TYPE_CHECKING:
    import optax

M = TypeVar("M")


_LISTED = 4


class Optimizer(Pytree, Generic[M]):
    """Updates the parameters of a model by an optax transformation.

    Args:
      model: a Module, or any tree or graph of them. It is read, not kept.
      tx: an optax transformation; of `optax.MultiSteps`, too.
      wrt: a filter for what is optimised. It should be the filter of the
        gradient, which is `Param` unless said otherwise.

    Attributes:
      step: the number of updates so far, a uint32 in an `OptState`.
      opt_state: the optax state, each array in a Variable: an `OptVariable`
        with the metadata of its parameter where it mirrors one, an `OptArray`
        elsewhere. It reads like the optax state:
        ``optimizer.opt_state[0].mu["linear"]["kernel"]``. The
        paths in ``dx.state(optimizer)`` are the same, so a checkpoint shows
        what it holds, and a model that gains a layer keeps the names of the
        others. Variables can be assigned to, as in
        ``optimizer.opt_state.hyperparams["learning_rate"].value = 1e-4``.

    Raises:
      OptimizerError: `wrt` selects nothing, `tx` is no transformation, or its
        state holds something else than arrays.

    Two optimizers share compiled steps if they have the same `tx` object, or
    transformations that were built from equal Specs
    (``dx.spec(optax.adam, 1e-3).build()``). Two calls of `optax.adam` give two
    transformations that are not equal.

    An optimizer is pickled with its Spec if `tx` was built from one. Otherwise
    pickling the functions of optax takes cloudpickle, the extra `pickle`.

    >>> import optax
    >>> from declax._module import Module
    >>> class Scale(Module):
    ...     def __init__(self):
    ...         self.weight = Param(jnp.ones(2))
    >>> model = Scale()
    >>> optimizer = Optimizer(model, optax.sgd(0.5), wrt=Param)
    >>> gradient = state_of(model, Param)
    >>> _ = optimizer.update(model, gradient)
    >>> model.weight.value
    Array([0.5, 0.5], dtype=float32)
    >>> int(optimizer.step)
    1
    """

    step: OptState[jax.Array]
    opt_state: PyTree

    def __init__(
        self,
        model: M,
        tx: Transformation,
        wrt: Filter = Param,
    ) -> None:
        if not is_transformation(tx):
            raise _no_transformation(tx)
        parameters = state_of(model, wrt)
        if not parameters.paths:
            raise _selects_nothing(model, wrt)
        with jax.numpy_dtype_promotion("standard"):  # which optax counts on
            tree = tx.init(parameters)
        self.step = OptState(jnp.zeros((), jnp.uint32))
        self.opt_state = store(tree, parameters)
        self._tx = StaticTransformation(tx)
        self._wrt = static(wrt)
        self._layout = OptLayout(tree, parameters.paths)

    @property
    def tx(self) -> optax.GradientTransformation:
        """The optax transformation."""
        return self._tx.tx  # type: ignore[return-value]  # MultiSteps has init and update as well

    @property
    def wrt(self) -> Filter:
        """The filter that selects what is optimised."""
        return self._wrt

    def optax_state(self) -> PyTree:
        """The state as optax has it: arrays where `opt_state` has Variables; a snapshot.

        What works on optax states takes it, such as `optax.tree.get`.
        """
        return self._layout.unflatten(map(_content, slots_of(self.opt_state, self._layout)))

    def update(self, model: M, grads: State[M] | M, /, **extra: Any) -> State[M]:
        """Updates the model's parameters, the optimizer's state and the step, in place.

        Args:
          model: the model; its parameters have the paths and shapes of those
            that the optimizer was made for.
          grads: their gradients, a `State` with the same paths, as `grad` and
            `value_and_grad` give; a tree with the model's own structure, as
            `jax.grad` gives, is taken too.
          **extra: arguments for transformations that take them, such as
            ``value=loss`` for `optax.contrib.reduce_on_plateau`, or
            ``value=, grad=, value_fn=`` for `optax.lbfgs`, where ``value_fn``
            takes a State of the parameters.

        Returns:
          The updates that were added to the parameters.

        Raises:
          OptimizerError: the gradients or the model do not fit; nothing has
            changed then.
          TraceContextError: the model or the optimizer belongs to another trace.
        """
        parameters = self._parameters_of(model, grads)
        gradients = self._gradients_for(parameters, grads)
        self._check_extra(extra)
        slots = slots_of(self.opt_state, self._layout)
        _check_mirrors(parameters, slots, self._layout.sources)
        before = self._layout.unflatten(map(_content, slots))
        tx: Any = self.tx  # optax types its trees so that no State is one
        with jax.numpy_dtype_promotion("standard"):  # which optax counts on
            updates, after = tx.update(gradients, before, parameters, **extra)
            _check_shapes(parameters, updates, before, after)
            applied = _applied(parameters, updates)
        self._write(model, applied, slots, after)
        return updates  # type: ignore[no-any-return]  # a tree map over the gradients keeps their type

    def _parameters_of(self, model: M, grads: Any) -> State[Any]:
        if isinstance(model, State):
            raise _swapped(model, grads)
        parameters = state_of(model, self.wrt)
        if parameters.paths != self._layout.targets:
            raise _other_model(_difference(self._layout.targets, parameters.paths))
        return parameters

    def _gradients_for(self, parameters: State[Any], grads: Any) -> State[Any]:
        if isinstance(grads, Pytree) and not isinstance(grads, State):
            grads = state_of(grads, self.wrt)
        if not isinstance(grads, State):
            raise _no_gradients(grads)
        if grads.paths != parameters.paths:
            raise _other_gradients(parameters, _difference(parameters.paths, grads.paths), self.wrt)
        if shapes := _other_shapes(parameters, grads):
            raise _other_gradients(parameters, f"gradients of other shapes: {_listed(shapes)}", self.wrt)
        # One definition for both: a gradient may have lost the metadata of its parameter.
        return make_state(parameters.definition, list(grads.leaves))

    def _check_extra(self, extra: dict[str, Any]) -> None:
        if not extra:
            return
        known = inspect.signature(self.tx.update).parameters
        if any(p.kind is p.VAR_KEYWORD for p in known.values()) or extra.keys() <= known.keys():
            return
        raise errors.OptimizerError(
            "Optimizer.update",
            f"the transformation takes no extra arguments, and was given {', '.join(sorted(extra))}",
            expected="no more than (model, grads)",
            why="it is no optax.GradientTransformationExtraArgs",
            fix="tx = optax.with_extra_args_support(tx)   # ignores them",
        )

    def _write(self, model: M, parameters: State[Any], slots: list[Any], after: PyTree) -> None:
        """Puts in what was computed; what can fail comes before the first change."""
        is_alike = _structure(after) == self._layout.treedef and all(isinstance(s, Variable) for s in slots)
        stored = None if is_alike else store(after, parameters)
        for kept in (self.step, *slots):
            if isinstance(kept, Variable):
                kept.set_raw_value(kept.raw_value)  # raises where it belongs to another trace
        update_graph(model, parameters)
        self.step.set_raw_value(self.step.raw_value + jnp.uint32(1))
        if is_alike:
            for slot, value in zip(slots, jax.tree.leaves(after), strict=True):
                slot.set_raw_value(value)
        else:
            self.opt_state = stored
            self._layout = OptLayout(after, parameters.paths)


def _content(slot: Any) -> Any:
    return slot.raw_value if isinstance(slot, Variable) else slot


def _applied(parameters: State[Any], updates: PyTree) -> State[Any]:
    import optax  # declax starts without it

    applied: Any = optax.apply_updates(parameters, updates)
    return applied  # type: ignore[no-any-return]  # it keeps the type of the tree


def _check_mirrors(parameters: State[Any], slots: list[Any], sources: tuple[Path | None, ...]) -> None:
    """Refuses parameters whose shapes have changed since their momenta were made."""
    by_path = dict(zip(parameters.paths, parameters.leaves, strict=True))
    resized = [
        f"{errors.format_path(source)} has {_shape(by_path[source])}, its optimizer state {_shape(slot.raw_value)}"
        for slot, source in zip(slots, sources, strict=True)
        if isinstance(slot, OptVariable) and source is not None and _shape(by_path[source]) != _shape(slot.raw_value)
    ]
    if resized:
        raise _other_model(f"other shapes: {_listed(resized)}")


def _check_shapes(parameters: State[Any], updates: PyTree, before: PyTree, after: PyTree) -> None:
    """Refuses what broadcasting has hidden: updates or state of other shapes than before."""
    is_regrown = _structure(before) == _structure(after) and _shapes(before) != _shapes(after)
    if is_regrown or _shapes(updates) != _shapes(parameters):
        raise _other_model("other shapes than those that the optimizer's state was made for")


def _structure(tree: PyTree) -> Any:
    return jax.tree.structure(tree)


def _shapes(tree: PyTree) -> list[Any]:
    return [_shape(leaf) for leaf in jax.tree.leaves(tree)]


def _shape(leaf: Any) -> Any:
    return getattr(leaf, "shape", ())


# --- what bad input gets ------------------------------------------------------


def _no_transformation(tx: object) -> errors.OptimizerError:
    fix = "optimizer = dx.Optimizer(model, tx, wrt=dx.Param)"
    if callable(tx):
        fix = f"call it first: {getattr(tx, '__name__', 'tx')}(learning_rate)"
    return errors.OptimizerError(
        "Optimizer.tx",
        "this is no optax transformation",
        expected="an object with init and update, such as optax.adam(1e-3)",
        got=errors.describe(tx),
        fix=fix,
    )


def _selects_nothing(model: object, wrt: Filter) -> errors.OptimizerError:
    leaf_defs = state_of(model).definition.leaf_defs
    kinds = sorted({errors.type_name(leaf_def[0]) for leaf_def in leaf_defs if leaf_def is not None})
    return errors.OptimizerError(
        "Optimizer.wrt",
        f"the filter {_filter_text(wrt)} selects nothing of the model, so there is nothing to optimise",
        expected="a filter that selects some of the model's Variables",
        got=f"a model with {', '.join(kinds) or 'no Variables'}",
    )


def _swapped(model: object, grads: object) -> errors.OptimizerError:
    is_swapped = not isinstance(grads, State)
    return errors.OptimizerError(
        "Optimizer.update",
        "the arguments are swapped: gradients came first" if is_swapped else "the model is a State",
        expected="update(model, grads)",
        got=f"update({errors.type_name(type(model))}, {errors.type_name(type(grads))})",
        why="a State is a snapshot; updating it would change no model",
        fix="optimizer.update(model, grads)",
    )


def _no_gradients(grads: object) -> errors.OptimizerError:
    is_pair = isinstance(grads, tuple) and len(grads) == 2
    return errors.OptimizerError(
        "Optimizer.update",
        "the gradients are no State",
        expected="the State that dx.grad gives",
        got=errors.describe(grads),
        why="value_and_grad gives the loss first" if is_pair else None,
        fix="loss, grads = dx.value_and_grad(loss_fn)(model)" if is_pair else "grads = dx.grad(loss_fn)(model)",
    )


def _other_gradients(parameters: State[Any], got: str, wrt: Filter) -> errors.OptimizerError:
    return errors.OptimizerError(
        "Optimizer.update",
        "the gradients do not match what the optimizer updates",
        expected=f"a gradient for each of the {len(parameters.paths)} Variables that {_filter_text(wrt)} selects",
        got=got,
        fix="take the gradient by the same filter: dx.grad(loss_fn, argnums=dx.DiffState(0, wrt))",
    )


def _other_model(got: str) -> errors.OptimizerError:
    return errors.OptimizerError(
        "Optimizer.update",
        "the model does not have the parameters that the optimizer was made for",
        expected="the model that it was made for, or one of the same structure",
        got=got,
        why="the optimizer's state belongs to parameters by their paths",
        fix="optimizer = dx.Optimizer(model, tx, wrt=...)   # again, after changing the model",
    )


def _difference(wanted: tuple[Path, ...], given: tuple[Path, ...]) -> str:
    """Which paths are missing, and which are too much."""
    missing = [errors.format_path(path) for path in wanted if path not in set(given)]
    unexpected = [errors.format_path(path) for path in given if path not in set(wanted)]
    hints = [f"{name} ({hint})" if (hint := errors.suggest(name, missing)) else name for name in unexpected]
    lines = [f"missing: {_listed(missing)}"] if missing else []
    lines += [f"unexpected: {_listed(hints)}"] if hints else []
    return "\n".join(lines) or "the same paths in another order"


def _other_shapes(parameters: State[Any], grads: State[Any]) -> list[str]:
    return [
        f"{errors.format_path(path)} has {_shape(grad)}, not {_shape(value)}"
        for path, value, grad in zip(parameters.paths, parameters.leaves, grads.leaves, strict=True)
        if _shape(value) != _shape(grad)
    ]


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _filter_text(wrt: Filter) -> str:
    return errors.type_name(wrt) if isinstance(wrt, type) else repr(wrt)

"""One call of a function with rules for its gradients.

JAX may call the function now, or `fwd` in its place; or trace the function now
and `fwd` later, when what it has traced is differentiated. So both return what
the function set as the same plan says it, and what is kept for later holds no
arrays and no models of this call.

Vocabulary
----------
rules:     the function, `fwd` and `bwd`, in this order.
residuals: what `fwd` keeps for `bwd`.
perturbed: of a leaf: whether a gradient with respect to it is asked for.
hollow:    of a model: without values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from declax import _uncaptured_reads
from declax._state_def import StateDef
from declax.errors import TransformError, describe, format_path
from declax.graph.binding import bind, bind_many
from declax.graph.unflattening import build_slots, program_of
from declax.states import make_state
from declax.transforms._captures import Captures, base_of
from declax.transforms._differentiated import (
    Part,
    Slopes,
    Target,
    add_slopes,
    fitted,
    is_differentiable,
    shape_of,
    zeros_for,
)
from declax.transforms._lift import Call, Outcome, Plan, Rebuilt, is_same_value
from declax.transforms._planned import as_planned, keep_unset, updates_of
from declax.transforms._rebinding import RebuiltClosure
from declax.transforms._structure import Mode, Structure


class Residuals:
    """What `fwd` keeps for `bwd`: a pytree of the leaves, whose static part is their structure."""

    __slots__ = ("plain", "structure", "values")

    def __init__(self, structure: Structure, values: Any, plain: Any) -> None:
        self.structure = structure
        self.values = values
        self.plain = plain


jax.tree_util.register_pytree_node(
    Residuals,
    lambda kept: ((kept.values, kept.plain), kept.structure),
    lambda structure, children: Residuals(structure, *children),
)


class RuleOptions(NamedTuple):
    """How rules are called.

    Attributes:
      mode: of the transform.
      is_symbolic: whether `fwd` and `bwd` see what JAX knows of zeros.
      takes_updates: whether `bwd` has a parameter for the cotangents of updates.
    """

    mode: Mode
    is_symbolic: bool
    takes_updates: bool


class Argument(NamedTuple):
    """An argument that is not fixed.

    Attributes:
      name: what errors call it.
      number: its position.
      whole: all its leaves.
      differentiated: those for which `bwd` gives cotangents.
    """

    name: str
    number: int
    whole: Target
    differentiated: Target


class CustomCall:
    """The three functions of flat leaves that JAX gets, with what is static of a call.

    Args:
      structure: of the call.
      captures: of the rules.
      arguments: those that are not fixed.
      fixed: the others, by number.
      options: of the rules.
    """

    def __init__(
        self,
        structure: Structure,
        captures: Captures,
        arguments: Sequence[Argument],
        fixed: tuple[tuple[int, Any], ...],
        options: RuleOptions,
    ) -> None:
        self._captures = captures
        self._of_bwd = Captures(captures.function.args[2])  # type: ignore[attr-defined]  # a partial
        self._structure = structure
        self._arguments = arguments
        self._fixed = fixed
        self._options = options
        self._plan: Plan | None = None
        self._shapes: tuple[list[Any], list[Any]] = [], []

    def run(self, call: Call) -> Outcome:
        """Calls the function, or leaves it to JAX which of its rules is called."""
        function: Any = jax.custom_vjp(self.primal)
        function.defvjp(self.forward, self.backward, symbolic_zeros=True)
        outcome: Outcome = function(call.values, call.plain)
        leaves = jax.tree_util.tree_leaves((call.values, call.plain))
        if self._captures.captured and any(isinstance(leaf, Tracer) for leaf in leaves):
            self._hollow_out()
        return outcome

    def _hollow_out(self) -> None:
        """Puts hollow models in the place of those that the rules capture.

        What is called later gets others in their place anyway.
        """
        nothing = [None] * (0 if self._structure.graphdef is None else self._structure.graphdef.num_leaves)
        rebuilt = Rebuilt(self._structure, nothing, [None] * len(self._structure.is_root))
        hollow = RebuiltClosure(self._captures, rebuilt.captured)
        for names in hollow._names.values():
            names.base = base_of(names.base)  # those between are of a trace around this call, and hold its models
        self._captures = Captures(hollow.function)
        self._of_bwd = Captures(hollow.function.args[2])

    def _with_fixed(self, args: Sequence[Any]) -> list[Any]:
        listed = list(args)
        for number, value in self._fixed:
            listed.insert(number, value)
        return listed

    # ------------------------------------------------------------- the function

    def primal(self, values: Sequence[Any], plain: Sequence[Any]) -> Outcome:
        """The function."""
        rebuilt = Rebuilt(self._structure, values, plain)
        with RebuiltClosure(self._captures, rebuilt.captured) as rules:
            with _uncaptured_reads.body():
                output = rules.function.args[0](*self._with_fixed(rebuilt.args))
                outcome = keep_unset(rebuilt.conclude(output, self._options.mode), self._structure, values)
            rules.conclude()  # last, since it changes what is outside
        self._plan = outcome.plan
        return outcome

    # ------------------------------------------------------------- fwd

    def forward(self, values: Sequence[Any], plain: Sequence[Any]) -> tuple[Outcome, Residuals]:
        """The rule for the result."""
        self._check_perturbed(values)
        bare, bare_plain = _without_marks(values), _without_marks(plain)
        self._shapes = list(map(shape_of, bare)), list(map(shape_of, bare_plain))
        if not self._options.is_symbolic:
            values, plain = bare, bare_plain
        rebuilt = Rebuilt(self._structure, values, plain)
        with RebuiltClosure(self._captures, rebuilt.captured) as rules:
            with _uncaptured_reads.body():
                pair = rules.function.args[1](*self._with_fixed(rebuilt.args))
            outcome = self._conclude_forward(rebuilt, pair, values)
            rules.conclude()
            copies = dict(zip(map(id, self._captures.values), rebuilt.captured, strict=True))
            kept = Call((pair[1], tuple(copies[id(root)] for root in self._of_bwd.values)), {})
        residuals = Residuals(kept.structure, kept.values, kept.plain)
        return _without_marks(outcome), _without_marks(residuals)

    def _conclude_forward(self, rebuilt: Rebuilt, pair: Any, values: Sequence[Any]) -> Outcome:
        """What the rule returned for the result, and changed."""
        if not isinstance(pair, tuple) or len(pair) != 2:
            expected, fix = "(result, residuals)", "return f(...), residuals"
            raise TransformError("fwd", "the rule returns no pair", expected=expected, got=describe(pair), fix=fix)
        outcome = keep_unset(rebuilt.conclude(pair[0], self._options.mode), self._structure, values)
        return outcome if self._plan is None else as_planned(outcome, self._plan, values)

    def _check_perturbed(self, values: Sequence[Any]) -> None:
        """Checks that no gradient is asked for that the rules do not give.

        Raises:
          TransformError: one is.
        """
        known = {i for argument in self._arguments for i in argument.differentiated.values}
        for position, value in enumerate(values):
            if position in known or not any(map(_is_perturbed, jax.tree_util.tree_leaves(value, is_leaf=_is_marked))):
                continue
            assert self._structure.graphdef is not None  # it has leaves
            for name, number, whole, _ in self._arguments:
                if position in whole.values:
                    raise TransformError(
                        whole.place(name, position),
                        "a gradient is asked for, but nondiff_argnums leaves this leaf out",
                        fix=f"dx.grad(f, argnums=dx.DiffState({number}, ...))        # the filter of nondiff_argnums",
                    )
            path = self._structure.graphdef.definition.paths[position]
            raise TransformError(
                f"what the function captures, {format_path(path[1:])}",
                "a gradient is asked for, but rules give gradients for arguments only",
                fix="pass the model as an argument too",
            )

    # ------------------------------------------------------------- bwd

    def backward(self, residuals: Residuals, cotangent: Outcome) -> tuple[list[Any], list[Any]]:
        """The rule for the cotangents of the arguments."""
        rebuilt = Rebuilt(residuals.structure, residuals.values, residuals.plain)
        kept, captured = rebuilt.args
        before = bind_many(captured).read() if captured else []
        if not self._options.is_symbolic:
            cotangent = jax.tree_util.tree_map(_as_array, cotangent)
        updates = updates_of(cotangent, self._structure)
        of_result = self._of_result(cotangent)
        given: Any = (self._all_updates(updates), of_result) if self._options.mode.updates else of_result
        options = {"updates_g": self._only_updates(updates)} if self._options.takes_updates else {}
        with RebuiltClosure(self._of_bwd, captured) as rule:
            found = rule.function(*(value for _, value in self._fixed), kept, given, **options)
            rule.conclude()
            if captured and not all(map(is_same_value, bind_many(captured).read(), before)):
                raise TransformError(
                    "bwd",
                    "the rule sets something of a model that it captures",
                    why="it runs when JAX pulls cotangents back, where changes of models do not come back",
                    fix="set it in fwd",
                )
        return self._cotangents(found)

    def _all_updates(self, updates: Slopes) -> tuple[Any, ...]:
        """For each argument the cotangents of what its leaves were set to, zero where they were not."""
        every = {i: updates[i] if i in updates else zeros_for(shape) for i, shape in enumerate(self._shapes[0])}
        return tuple(argument.whole.assemble(every, {}) for argument in self._arguments)

    def _only_updates(self, updates: Slopes) -> tuple[Any, ...]:
        """For each argument the cotangents of what was set."""
        return tuple(_narrowed(argument.whole, updates).assemble(updates, {}) for argument in self._arguments)

    def _of_result(self, cotangent: Outcome) -> Any:
        """The cotangent of the result, with States or models for models."""
        plan = cotangent.plan
        if plan.change is None:
            return cotangent.output
        new = iter(cotangent.new)
        leaves = [next(new) if i < 0 else zeros_for(self._shapes[0][i]) for i in plan.change.kept]
        _, roots = build_slots(plan.change.graphdef, leaves)[program_of(plan.change.graphdef).root]
        returned, plain = map(self._shown, roots), iter(cotangent.output)
        return jax.tree_util.tree_unflatten(plan.tree, [next(returned) if one else next(plain) for one in plan.is_root])

    def _shown(self, root: Any) -> Any:
        binding = bind(root)
        definition: StateDef = binding.graphdef.definition
        is_shown_as_it_is = not self._options.mode.updates or definition.paths == ((),)
        return root if is_shown_as_it_is else make_state(definition, binding.read())

    def _cotangents(self, found: Any) -> tuple[list[Any], list[Any]]:
        """What `bwd` returned, as JAX wants it: one for each leaf, None for zeros."""
        if not isinstance(found, (tuple, list)) or len(found) != len(self._arguments):
            count = len(self._arguments)
            raise TransformError(
                "bwd",
                "the rule does not return one cotangent for each argument",
                expected=f"a tuple of {count}",
                got=f"{describe(found)}" + (f" of length {len(found)}" if isinstance(found, (tuple, list)) else ""),
                fix="return (model_cotangent,)        # a tuple, also for one argument",
            )
        values: Slopes = {}
        plain: Slopes = {}
        for (name, _, whole, target), given in zip(self._arguments, found, strict=True):
            where = f"what bwd returns for {name}"
            of_values, of_plain = target.take_apart(given, where)
            for position, slope in of_values:
                if is_differentiable(self._shapes[0][position]):
                    fit = fitted(slope, self._shapes[0][position], whole.place(where, position))
                    add_slopes([(position, fit)], values)
            plain |= of_plain
        return [values.get(i) for i in range(len(self._shapes[0]))], [plain.get(i) for i in range(len(self._shapes[1]))]


def _narrowed(target: Target, updates: Slopes) -> Target:
    """A target with only the leaves that were set, and without plain ones."""
    parts = []
    for definition, positions in target.parts:
        if definition is None:
            parts.append(Part(None, positions))
            continue
        taken = tuple(rank for rank, i in enumerate(positions) if i in updates)
        parts.append(Part(definition.select(taken), tuple(positions[rank] for rank in taken)))
    return Target(target.tree, tuple(parts))


# ================================================================= marks of JAX


def _is_marked(value: object) -> bool:
    return isinstance(value, CustomVJPPrimal)


def _is_perturbed(value: Any) -> bool:
    return isinstance(value, CustomVJPPrimal) and bool(value.perturbed)


def _without_marks(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf.value if _is_marked(leaf) else leaf, tree, is_leaf=_is_marked)


def _as_array(value: Any) -> Any:
    if not isinstance(value, SymbolicZero):
        return value
    zeros: Any = np.zeros if value.dtype == jax.dtypes.float0 else jnp.zeros
    return zeros(value.shape, value.dtype)

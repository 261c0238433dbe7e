"""`custom_vjp`: functions of models with gradient rules.

JAX may call the function, or `fwd` in its place; or trace the function now, and `fwd` when that trace is
differentiated. One plan describes the Variables that both set, and the kept state holds neither arrays nor models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from declax._filters import Filter
from declax._graph.binding import bind_many
from declax._graph.fit import Difference
from declax._graph.rewriting import recursive_map
from declax._typing import MISSING, Missing, Path
from declax._variables import uncaptured_reads
from declax._variables.variable import Variable
from declax.errors import TransformError, describe
from declax.transforms._argnums import Argnums, DiffState, parse_argnums
from declax.transforms._differentiated import (
    ArgumentLeaves,
    Derivatives,
    DifferentiatedTree,
    add_derivatives,
    arguments_of,
    by_position,
    check_derivatives,
    position_of,
    result_leaves,
    result_of,
    shape_of,
    target_of_result,
    zeros_for,
)
from declax.transforms._engine.call import Call
from declax.transforms._engine.captures import Captures, Closure, RebuiltClosure, base_of
from declax.transforms._engine.commit import run
from declax.transforms._engine.names import namer_of, names_of_call, parameters
from declax.transforms._engine.outcome import Outcome, Plan, Rebuilt, is_same_value
from declax.transforms._engine.structure import Mode, Statics, Structure, checked_function, is_root
from declax.transforms._engine.tracing import kept_leaves, new_values, values_at, written_leaves
from declax.transforms._engine.wrapped import P, R, Wrapped

if TYPE_CHECKING:
    from declax.transforms._engine.signatures import ModeOptions


@overload
def custom_vjp(
    fun: Callable[P, R], *, nondiff_argnums: Argnums = (), **options: Unpack[ModeOptions]
) -> CustomVjp[P, R]: ...
@overload
def custom_vjp(
    *, nondiff_argnums: Argnums = (), **options: Unpack[ModeOptions]
) -> Callable[[Callable[P, R]], CustomVjp[P, R]]: ...
def custom_vjp(
    fun: Callable[..., Any] | Missing = MISSING,
    *,
    nondiff_argnums: Argnums = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """A function of models with rules for its gradients, as `jax.custom_vjp`.

    ``f.defvjp(fwd, bwd)`` sets the rules. ``fwd`` takes the arguments of the function, and returns its result and
    residuals, which may hold models. ``bwd`` takes the residuals and the cotangent, and returns a tuple with one
    cotangent for each argument: for a model, a State of some or all of its leaves, or a model of its kind; None for
    zeros.

    With ``graph_updates=True``, ``bwd`` receives a pair: a tuple with, for each model among the arguments, a State of
    the cotangents of the values that the function set in it, or zeros; and the cotangent of the result.
    Otherwise it receives the latter only. If it has a parameter ``updates_g``, this is a tuple of the arguments with
    the cotangents of the values that the function set, and None in place of all other Variables and arrays.

    Args:
      fun: the function; omit it to use `custom_vjp` as a decorator with options.
      nondiff_argnums: the arguments that are not differentiated. An int names an argument, which ``bwd`` receives
        first. A `DiffState` selects the leaves of a model that *are* differentiated.
      graph, graph_updates: as in `jit`.

    Returns:
      The function, with the method ``defvjp``; usable as a method.

    Raises:
      TransformError: it has no rules when called, the rules do not match it, or a captured model is differentiated.

    >>> import declax as dx
    >>> @dx.custom_vjp
    ... def double(m):
    ...     return m.scale * 2.0
    >>> def forward(m):
    ...     return double(m), None
    >>> def backward(residuals, cotangent):
    ...     _, of_result = cotangent
    ...     return (dx.State({"scale": 100.0 * of_result}),)
    >>> double.defvjp(forward, backward)
    >>> m = dx.Module()
    >>> m.scale = dx.Param(3.0)
    >>> float(dx.grad(double)(m)["scale"].value)
    100.0
    """

    def make(fun: Callable[..., Any]) -> CustomVjp[..., Any]:
        return CustomVjp(fun, parse_argnums("nondiff_argnums", nondiff_argnums, graph), Mode.of(graph, graph_updates))

    return make if fun is MISSING else make(fun)


class RuleOptions(NamedTuple):
    """The mode; whether rules see symbolic zeros; whether `bwd` has the parameter `updates_g`."""

    mode: Mode
    is_symbolic: bool
    takes_updates: bool


class CustomVjp(Wrapped[P, R]):
    """A function with gradient rules; see `custom_vjp`."""

    _transform = "custom_vjp"

    def __init__(self, fun: Callable[P, R], argnums: list[int | DiffState], mode: Mode) -> None:
        checked_function("custom_vjp", "fun", fun)
        super().__init__(fun, mode)
        self._parameters = parameters(fun)
        self._argnums = argnums
        self._options: RuleOptions | None = None

    def defvjp(
        self,
        fwd: Callable[P, tuple[R, Any]],
        bwd: Callable[..., Sequence[Any]],
        symbolic_zeros: bool = False,
    ) -> None:
        """Sets the rules.

        Args:
          fwd: computes the result and the residuals.
          bwd: computes the cotangents of the arguments.
          symbolic_zeros: as in `jax.custom_vjp`: ``fwd`` receives a `jax.custom_derivatives.CustomVJPPrimal` for each
            array, and ``bwd`` may receive a `jax.custom_derivatives.SymbolicZero`.

        Raises:
          TransformError: a rule is not a function.
        """
        for name, rule in (("fwd", fwd), ("bwd", bwd)):
            checked_function("custom_vjp", name, rule)
        fun = self._closure.user
        self._closure = Closure((fun, fwd, bwd), fun)
        self._options = RuleOptions(self._mode, symbolic_zeros, "updates_g" in (parameters(bwd) or ()))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function with the arguments of its signature."""
        options = self._options
        if options is None:
            name = getattr(self, "__name__", "f")
            fix = f"{name}.defvjp(fwd, bwd)"
            raise TransformError(f"custom_vjp of {name}", "the function has no gradient rules yet", fix=fix)
        given, user = self._positional(args, kwargs), self._closure.user
        fixed: dict[int, Any] = {}
        chosen: dict[int, Filter] = {}
        held: set[int] = set()
        for entry in self._argnums:
            number = entry.argnum if isinstance(entry, DiffState) else entry
            number = position_of("nondiff_argnums", number, len(given), user)
            if isinstance(entry, DiffState):
                chosen[number] = entry.filter
            elif _is_traced(given[number]):
                held.add(number)
            else:
                fixed[number] = given[number]
        numbers = [i for i in range(len(given)) if i not in fixed]
        rest, statics = tuple(given[i] for i in numbers), Statics(tuple(sorted(fixed.items())), (), ())

        def call_by_rules(call: Call) -> Outcome:
            arguments = ArgumentLeaves(call, rest, user)
            listed, name = [], namer_of(user)
            for i, number in enumerate(numbers):
                differentiated = None if number in held else arguments.target(i, chosen.get(number, ...))
                listed.append(_Argument(number, name(number), arguments.target(i), differentiated))
            arguments.check_aliasing([one.differentiated for one in listed if one.differentiated is not None])
            captures = call.captures or self._closure.find()
            return _CustomCall(call.structure, captures, listed, statics.by_number, options).run(arguments.leaves)

        result: R = run(lambda: Call(rest, {}, self._mode, self._closure.find(), statics), call_by_rules)
        return result

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, with defaults, as in JAX."""
        bound, by_name = by_position(self._parameters, args, kwargs)
        for name in by_name:
            raise TransformError(
                f"argument {name!r}",
                "a function with gradient rules takes positional arguments only",
                why="bwd returns one cotangent for each position",
            )
        return bound


def _is_traced(value: Any) -> bool:
    """Whether a value holds a model or a traced array."""
    leaves = jax.tree_util.tree_leaves(value, is_leaf=is_root)
    return any(is_root(leaf) or isinstance(leaf, Tracer) for leaf in leaves)


class _Residuals:
    """The residuals, and the models that `bwd` captures: a pytree of leaves, whose static part is their structure."""

    __slots__ = ("leaves", "structure")

    def __init__(self, structure: Structure, leaves: Any) -> None:
        self.structure = structure
        self.leaves = leaves


jax.tree_util.register_dataclass(_Residuals, data_fields=["leaves"], meta_fields=["structure"])


class _Argument(NamedTuple):
    """An argument with leaves; `bwd` returns cotangents of those that are differentiated, unless this is None."""

    number: int
    name: str
    whole: DifferentiatedTree
    differentiated: DifferentiatedTree | None


@dataclasses.dataclass(eq=False)
class _CustomCall:
    """One call, by three functions of flat leaves; `fixed` are the other arguments, with their numbers."""

    structure: Structure
    captures: Captures
    arguments: Sequence[_Argument]
    fixed: Sequence[tuple[int, Any]]
    options: RuleOptions
    plan: Plan | None = None
    shapes: list[Any] = dataclasses.field(default_factory=list)

    def run(self, leaves: list[Any]) -> Outcome:
        """Calls the function; JAX chooses which rule runs."""
        function: Any = jax.custom_vjp(self.primal)
        function.defvjp(self.forward, self.backward, symbolic_zeros=True)
        outcome: Outcome = function(leaves)
        if self.captures.captured and any(isinstance(leaf, Tracer) for leaf in jax.tree_util.tree_leaves(leaves)):
            self._drop_captured_values()
        return outcome

    def _drop_captured_values(self) -> None:
        """Replaces the captured models by ones without values, so that later traces do not hold them."""
        rebuilt = Rebuilt(self.structure, [None] * (self.structure.num_leaves + len(self.structure.is_root)))
        hollow = RebuiltClosure(self.captures, rebuilt.captured)
        for names in hollow.names:
            names.base = base_of(names.base)  # those between are of a trace around this call, and hold its models
        self.captures = Captures(hollow.function)

    # ------------------------------------------------------------- the function, and fwd

    def primal(self, leaves: Sequence[Any]) -> Outcome:
        rebuilt = Rebuilt(self.structure, leaves)
        with RebuiltClosure(self.captures, rebuilt.captured) as rules:
            with uncaptured_reads.body():
                output = rebuilt.call(rules.function[0], *self._with_fixed(rebuilt.args))
                outcome = rebuilt.conclude(output, self.options.mode)
            rules.conclude()  # last, since it changes what is outside
        self.plan = outcome.plan
        return outcome

    def forward(self, marked: Sequence[Any]) -> tuple[Outcome, _Residuals]:
        """The rule for the result and the residuals."""
        self._check_perturbed(marked)
        bare = _without_marks(marked)
        self.shapes = list(map(shape_of, bare))
        leaves = marked if self.options.is_symbolic else bare
        rebuilt = Rebuilt(self.structure, leaves)
        with RebuiltClosure(self.captures, rebuilt.captured) as rules:
            with uncaptured_reads.body():
                pair = rebuilt.call(rules.function[1], *self._with_fixed(rebuilt.args))
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TransformError(
                    "fwd",
                    "the rule does not return a pair",
                    expected="(result, residuals)",
                    got=describe(pair),
                    fix="return f(...), residuals",
                )
            outcome = rebuilt.conclude(pair[0], self.options.mode)
            if self.plan is not None:
                outcome = _by_plan(self.structure, outcome, self.plan, leaves)
            rules.conclude()
            copies = dict(zip(map(id, self.captures.values), rebuilt.captured, strict=True))
            of_bwd = tuple(copies[id(root)] for root in self._captures_of_bwd().values)
            kept = Call((pair[1], of_bwd, self._held(leaves)), {})
        residuals = _Residuals(kept.structure, kept.leaves)
        return _without_marks(outcome), _without_marks(residuals)

    def _held(self, leaves: Sequence[Any]) -> list[Any]:
        """The arguments of nondiff_argnums that have leaves, as they were at the call."""
        args = Rebuilt(self.structure, leaves).args
        return [arg for arg, argument in zip(args, self.arguments, strict=True) if argument.differentiated is None]

    def _with_fixed(self, args: Sequence[Any], fixed: Mapping[int, Any] | None = None) -> list[Any]:
        listed = list(args)
        for number, value in (dict(self.fixed) if fixed is None else fixed).items():
            listed.insert(number, value)
        return listed

    def _check_perturbed(self, leaves: Sequence[Any]) -> None:
        """Checks that the rules give each gradient that is requested."""
        targets = [argument.differentiated for argument in self.arguments if argument.differentiated is not None]
        known = {i for target in targets for i in target.positions}
        for position, leaf in enumerate(leaves):
            arrays = jax.tree_util.tree_leaves(leaf, is_leaf=_is_marked)
            if position not in known and any(_is_marked(array) and array.perturbed for array in arrays):
                raise TransformError(
                    names_of_call(self.structure)[position],
                    "the rules give no gradient for this",
                    why="only arguments are differentiated, of a model the leaves of a DiffState in nondiff_argnums",
                    fix="dx.grad(f, argnums=dx.DiffState(0, ...))        # that filter; pass captured models",
                )

    # ------------------------------------------------------------- bwd

    def backward(self, residuals: _Residuals, cotangent: Outcome) -> tuple[list[Any]]:
        """The cotangents of the arguments as JAX expects them: one for each leaf, None for zeros."""
        kept, captured, held = Rebuilt(residuals.structure, residuals.leaves).args
        before = bind_many(captured).read() if captured else []
        if not self.options.is_symbolic:
            cotangent = jax.tree_util.tree_map(_as_array, cotangent)
        given: Any = self._of_result(cotangent)
        if self.options.mode.updates:
            given = self._of_updates(cotangent), given
        options = {"updates_g": self._of_updates(cotangent)} if self.options.takes_updates else {}
        with RebuiltClosure(self._captures_of_bwd(), captured) as rule:
            found = rule.function(*self._nondifferentiated(held), kept, given, **options)
            rule.conclude()
            if captured and not all(map(is_same_value, bind_many(captured).read(), before)):
                raise TransformError(
                    "bwd",
                    "the rule changes a captured model",
                    why="JAX runs bwd apart from the call, so its changes would be lost",
                    fix="set it in fwd",
                )
        arguments = [argument for argument in self.arguments if argument.differentiated is not None]
        if not isinstance(found, (tuple, list)) or len(found) != len(arguments):
            raise TransformError(
                "bwd",
                "the rule must return one cotangent for each argument",
                expected=f"a tuple of {len(arguments)}",
                got=f"{describe(found)}" + (f" of length {len(found)}" if isinstance(found, (tuple, list)) else ""),
                fix="return (model_cotangent,)        # a tuple, also for one argument",
            )
        cotangents: Derivatives = {}
        wrong: list[Difference] = []
        for argument, value in zip(arguments, found, strict=True):
            assert argument.differentiated is not None  # by the selection above
            where = f"the result of bwd for {argument.name}"
            add_derivatives(argument.differentiated.flatten(value, self.shapes, where, wrong), cotangents)
        check_derivatives(wrong)
        return ([cotangents.get(i) for i in range(len(self.shapes))],)

    def _captures_of_bwd(self) -> Captures:
        return Captures(self.captures.function[2])

    def _nondifferentiated(self, held: Sequence[Any]) -> list[Any]:
        """The values of nondiff_argnums by position."""
        numbers = [argument.number for argument in self.arguments if argument.differentiated is None]
        values = {**dict(self.fixed), **dict(zip(numbers, held, strict=True))}
        return [values[number] for number in sorted(values)]

    def _of_result(self, cotangent: Outcome) -> Any:
        """The cotangent of the result; zero for leaves that the function did not set."""
        change = cotangent.plan.change
        past = {} if change is None else {i: zeros_for(self.shapes[i]) for i in change.kept if i >= 0}
        found = dict(enumerate(result_leaves(cotangent, past)))
        if self.options.mode.updates:
            return target_of_result(cotangent).unflatten(found)
        return result_of(cotangent, found)

    def _of_updates(self, cotangent: Outcome) -> tuple[Any, ...]:
        """For each argument, the cotangents of the values that the function set in it.

        With changes of structure, they are States, with zeros for the others; without, arguments with None for these.
        """
        written = written_leaves(self.structure, cotangent.plan)
        updates: Derivatives = {leaf: cotangent.new[position] for leaf, position in written.items()}
        if not self.options.mode.updates:
            masked = recursive_map(_without_empty, arguments_of(self.structure, updates), graph=True)
            return tuple(self._with_fixed(masked, dict.fromkeys(dict(self.fixed))))
        every = {i: updates[i] if i in updates else zeros_for(self.shapes[i]) for i in range(self.structure.num_leaves)}
        return tuple(argument.whole.unflatten(every) for argument in self.arguments)


def _without_empty(path: Path, node: Any) -> Any:
    return None if isinstance(node, Variable) and node.raw_value is None else node


def _by_plan(structure: Structure, outcome: Outcome, plan: Plan, leaves: Sequence[Any]) -> Outcome:
    """The outcome of `fwd`, by the plan of the function, which JAX traced before."""
    kept, wanted = kept_leaves(structure, outcome.plan), kept_leaves(structure, plan)
    if _form(outcome.plan) != _form(plan) or any(b >= 0 and a != b for a, b in zip(kept, wanted, strict=True)):
        raise TransformError(
            "fwd",
            "the rule changes the arguments differently from the function",
            why="the function was traced first, and its changes are applied",
            fix="return f(...), residuals        # calls the function, which sets the same",
        )
    return Outcome(plan, tuple(values_at(structure, [*new_values(plan)], outcome, leaves)), outcome.output)


def _form(plan: Plan) -> Any:
    return None if plan.change is None else (plan.change.graphdef, plan.change.origins, plan.tree, plan.is_root)


def _is_marked(value: object) -> bool:
    return isinstance(value, CustomVJPPrimal)


def _without_marks(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf.value if _is_marked(leaf) else leaf, tree, is_leaf=_is_marked)


def _as_array(value: Any) -> Any:
    if not isinstance(value, SymbolicZero):
        return value
    zeros: Any = np.zeros if value.dtype == jax.dtypes.float0 else jnp.zeros
    return zeros(value.shape, value.dtype)

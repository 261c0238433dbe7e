"""`grad` and `value_and_grad` for functions of models.

Vocabulary
----------
differentiated: the leaves that the gradient is taken with respect to: of a
                model, those that a filter takes; of other arguments, all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

import jax

from declax._filters import Filter, as_written
from declax._jax import current_trace
from declax._state_def import StateDef
from declax._typing import MISSING, Missing
from declax._variables import Param, new_variable
from declax.errors import TransformError, describe
from declax.graph.binding import bind
from declax.state import make_state
from declax.transforms._lift import Call, Mode, Outcome, commit, is_root, lifted

P = ParamSpec("P")
R = TypeVar("R")


class DiffState(NamedTuple):
    """An argument, and the leaves of it to differentiate with respect to.

    Attributes:
      argnum: the position of the argument.
      filter: which leaves.
    """

    argnum: int
    filter: Filter = Param


Argnums = int | DiffState | Sequence[int | DiffState]


@overload
def grad(
    f: Callable[P, Any],
    /,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[P, Any]: ...
@overload
def grad(
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
def grad(
    f: Callable[..., Any] | Missing = MISSING,
    /,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """The gradient of a function whose arguments may be models.

    Args:
      f: the function; its result, or the first of it with `has_aux`, is a
        scalar. Leave it out to use `grad` as a decorator with options.
      argnums: the arguments to differentiate with respect to. Of a model, the
        Params; ``DiffState(argnum, filter)`` says otherwise.
      has_aux: whether `f` returns a pair of the scalar and something else.
      holomorphic, allow_int, reduce_axes: as in `jax.grad`.
      graph, graph_updates: as in `jit`.

    Returns:
      A function with the arguments of `f` that returns the gradient: a State
      for a model, with the paths of the leaves; a tuple for several argnums;
      with `has_aux`, a pair with the auxiliary result.

    Raises:
      TransformError: for argnums that are no position, and where there is
        nothing to differentiate.

    >>> from declax._module import Module
    >>> m = Module()
    >>> m.scale = Param(3.0)
    >>> grads = grad(lambda m: m.scale**2)(m)
    >>> float(grads["scale"].value)
    6.0
    """
    options: dict[str, Any] = {
        "argnums": argnums,
        "has_aux": has_aux,
        "holomorphic": holomorphic,
        "allow_int": allow_int,
        "graph": graph,
        "graph_updates": graph_updates,
    }
    if f is MISSING:
        return functools.partial(grad, **options, reduce_axes=reduce_axes)
    with_value = value_and_grad(f, **options, reduce_axes=reduce_axes)

    @functools.wraps(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = with_value(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient


@overload
def value_and_grad(
    f: Callable[P, R],
    /,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[P, tuple[R, Any]]: ...
@overload
def value_and_grad(
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Any]]]: ...
def value_and_grad(
    f: Callable[..., Any] | Missing = MISSING,
    /,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """The value and the gradient of a function whose arguments may be models.

    As `grad`, but returns a pair of the function's result and the gradient.

    Args:
      f: the function; its result, or the first of it with `has_aux`, is a
        scalar.
      argnums: the arguments to differentiate with respect to.
      has_aux: whether `f` returns a pair of the scalar and something else.
      holomorphic, allow_int, reduce_axes: as in `jax.value_and_grad`.
      graph, graph_updates: as in `jit`.

    Returns:
      A function with the arguments of `f`.

    Raises:
      TransformError: for argnums that are no position, and where there is
        nothing to differentiate.

    >>> from declax._module import Module
    >>> m = Module()
    >>> m.scale = Param(3.0)
    >>> value, grads = value_and_grad(lambda m: m.scale**2)(m)
    >>> float(value)
    9.0
    """
    if f is MISSING:
        return functools.partial(
            value_and_grad,
            argnums=argnums,
            has_aux=has_aux,
            holomorphic=holomorphic,
            allow_int=allow_int,
            reduce_axes=reduce_axes,
            graph=graph,
            graph_updates=graph_updates,
        )
    if not callable(f):
        raise TransformError(
            "value_and_grad", "the argument is no function", got=describe(f), fix="dx.value_and_grad(function)"
        )
    wanted = _parse_argnums(argnums)
    mode = Mode.of(graph, graph_updates)
    options: dict[str, Any] = {"holomorphic": holomorphic, "allow_int": allow_int}
    if reduce_axes:
        options["reduce_axes"] = reduce_axes

    @functools.wraps(f)
    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        call = Call(args, kwargs, mode)
        targets = [_target(call, args, diff) for diff in wanted]
        function = lifted(f, call.structure, mode)

        def on_differentiated(leaves: dict[int, Any], plain_leaves: dict[int, Any]) -> tuple[Any, Outcome]:
            values, plain = list(call.values), list(call.plain)
            for i, leaf in leaves.items():
                values[i] = leaf
            for i, leaf in plain_leaves.items():
                plain[i] = leaf
            outcome = function(values, plain)
            return _scalar(outcome, has_aux), outcome

        leaves = {i: call.values[i] for t in targets for i in t.values}
        plain = {i: call.plain[i] for t in targets for i in t.plain}
        differentiate = jax.value_and_grad(on_differentiated, argnums=(0, 1), has_aux=True, **options)
        (_, outcome), (leaf_grads, plain_grads) = differentiate(leaves, plain)
        result = commit(call, outcome)
        grads = tuple(t.assemble(leaf_grads, plain_grads) for t in targets)
        return result, grads[0] if isinstance(argnums, (int, DiffState)) else grads

    return value_and_gradient


def _parse_argnums(argnums: Argnums) -> list[DiffState]:
    listed: list[Any] = [argnums]
    if isinstance(argnums, Sequence) and not isinstance(argnums, (DiffState, str)):
        listed = list(argnums)
    found = []
    for entry in listed:
        if isinstance(entry, DiffState):
            found.append(entry)
        elif isinstance(entry, int) and not isinstance(entry, bool):
            found.append(DiffState(entry, Param))
        else:
            raise TransformError(
                "argnums", "argnums are positions of arguments", expected="ints or DiffState", got=describe(entry)
            )
    return found


class _Target:
    """One differentiated argument.

    Attributes:
      values: positions of its leaves among those of the graph.
      plain: positions of its leaves among the plain ones.
    """

    def __init__(self, tree: Any, parts: list[tuple[StateDef | None, tuple[int, ...]]]) -> None:
        self._tree = tree
        self._parts = parts
        self.values = [i for definition, positions in parts if definition is not None for i in positions]
        self.plain = [i for definition, positions in parts if definition is None for i in positions]

    def assemble(self, leaf_grads: dict[int, Any], plain_grads: dict[int, Any]) -> Any:
        """The gradient in the shape of the argument, with States for models."""
        leaves = [
            plain_grads[positions[0]]
            if definition is None
            else _gradient_of_root(definition, [leaf_grads[i] for i in positions])
            for definition, positions in self._parts
        ]
        return jax.tree_util.tree_unflatten(self._tree, leaves)


def _gradient_of_root(definition: StateDef, leaves: list[Any]) -> Any:
    """A State; for a root that is a Variable itself, a Variable of its kind."""
    if definition.paths == ((),) and definition.leaf_defs[0] is not None:
        kind, metadata = definition.leaf_defs[0]
        return new_variable(kind, leaves[0], metadata, current_trace())
    return make_state(definition, leaves)


def _target(call: Call, args: tuple[Any, ...], diff: DiffState) -> _Target:
    number = diff.argnum
    if not -len(args) <= number < len(args):
        raise TransformError(
            "argnums",
            f"there is no positional argument {number}",
            expected=f"a position below {len(args)}",
            fix="pass what is differentiated by position",
        )
    number %= len(args)
    before = len(jax.tree_util.tree_leaves(args[:number], is_leaf=is_root))
    leaves, tree = jax.tree_util.tree_flatten(args[number], is_leaf=is_root)
    pattern = call.structure.is_root
    parts: list[tuple[StateDef | None, tuple[int, ...]]] = []
    for index, leaf in enumerate(leaves, before):
        if pattern[index]:
            parts.append(_root_part(call, leaf, diff.filter))
        else:
            parts.append((None, (index - sum(pattern[:index]),)))
    if not any(positions for _, positions in parts):
        raise TransformError(
            f"argument {number}",
            "there is nothing to differentiate with respect to",
            got=describe(args[number]),
            why=f"the filter {as_written(diff.filter)} takes no leaf",
            fix="argnums=dx.DiffState(0, ...)",
        )
    return _Target(tree, parts)


def _root_part(call: Call, root: Any, chosen: Filter) -> tuple[StateDef, tuple[int, ...]]:
    """The definition of a root's differentiated leaves, and where the call has them.

    A leaf that the root shares with another argument is one leaf of the call.
    """
    own = bind(root)
    ((definition, positions),), _ = own.graphdef.definition.group((chosen,), own.read())
    binding = call.binding
    assert binding is not None  # there is a root
    if sum(call.structure.is_root) == 1:
        return definition, positions
    where = {identity: i for i, identity in enumerate(binding.identities())}
    known = own.identities()
    return definition, tuple(where[known[i]] for i in positions)


def _scalar(outcome: Outcome, has_aux: bool) -> Any:
    plan = outcome.plan
    if plan.change is None:
        output = outcome.output
    else:
        output = _plain_output(outcome)
    if not has_aux:
        return output
    if not isinstance(output, tuple) or len(output) != 2:
        raise TransformError(
            "has_aux", "the function returns no pair", expected="(scalar, auxiliary result)", got=describe(output)
        )
    return output[0]


def _plain_output(outcome: Outcome) -> Any:
    """The output with None in place of returned objects."""
    plain = iter(outcome.output)
    leaves = [None if is_one else next(plain) for is_one in outcome.plan.is_root]
    return jax.tree_util.tree_unflatten(outcome.plan.tree, leaves)

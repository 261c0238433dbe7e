"""What errors and JAX call the parts of a lifted function, and what some errors of JAX mean in terms of models.

JAX reads the name and the place of a function from ``__wrapped__``, and what to call its arguments from
``__signature__``. Only tracing reads them, so that they cost a call nothing.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np
from jax.core import Tracer

from declax._graph.nodes import is_ref
from declax.errors import AbstractModelError, DeclaxError, TransformError, describe
from declax.transforms._engine.structure import (
    Structure,
    is_array_like,
    joined,
    name_roots,
    names_in_result,
    names_of_call,
)

if TYPE_CHECKING:
    from declax.transforms._engine.lift import Call, Outcome

MAX_NAMES = 4
"""So many leaves, or functions that have donated last, are named."""

Lifted = Callable[[Sequence[Any], Sequence[Any]], "Outcome"]


def named(function: Lifted, user: Callable[..., Any], structure: Structure) -> Lifted:
    """A lifted function that JAX calls by the user's name, and whose results are arrays."""

    def call(values: Sequence[Any], plain: Sequence[Any]) -> Outcome:
        outcome = function(values, plain)
        check_results(outcome, structure, user)
        return outcome

    _look_like(call, traced_code(user), LeafNames(structure))
    return call


def _look_like(made: Any, user: Any, names: LeafNames) -> None:
    made.__name__ = made.__qualname__ = getattr(user, "__name__", made.__name__)
    made.__signature__ = names
    made.__wrapped__ = user


def look_flat(flat: Callable[..., Any], function: Lifted) -> None:
    """Has JAX call a function of one leaf after the other as it calls a named one of two sequences."""
    told: Any = function
    _look_like(flat, told.__wrapped__, told.__signature__.flat())


def traced_code(user: Callable[..., Any]) -> Any:
    """The function whose name and place errors show: of a partial, its function; of an object, its method."""
    found = inspect.unwrap(user)
    while isinstance(found, functools.partial):
        found = inspect.unwrap(found.func)
    return found if hasattr(found, "__name__") else type(found).__call__


_FLAT = [inspect.Parameter("leaves", inspect.Parameter.VAR_POSITIONAL)]
_IN_SEQUENCES = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("values", "plain")]


class LeafNames(inspect.Signature):
    """A signature that binds leaves, in two sequences or each an argument, to their names in the user's code."""

    def __init__(self, structure: Structure, *, is_flat: bool = False) -> None:
        super().__init__(_FLAT if is_flat else _IN_SEQUENCES)
        self._structure = structure
        self._is_flat = is_flat

    def flat(self) -> LeafNames:
        """The same where each leaf is an argument of its own."""
        return LeafNames(self._structure, is_flat=True)

    def bind(self, /, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """The leaves by name; a name that comes again gets a number."""
        bound = super().bind(*args, **kwargs)
        bound.arguments = {}
        seen: dict[str, int] = {}
        for name, leaf in zip(names_of_call(self._structure), args if self._is_flat else chain(*args), strict=True):
            seen[name] = seen.get(name, 0) + 1
            bound.arguments[name if seen[name] == 1 else f"{name} ({seen[name]})"] = leaf
        return bound


# ----------------------------------------------------------------- results


def check_results(outcome: Outcome, structure: Structure, user: Callable[..., Any]) -> None:
    """Checks that what a function returns and sets are arrays and models."""
    if all(map(_is_array, jax.tree_util.tree_leaves((outcome.new, outcome.output)))):
        return
    for where, value in _results(outcome, structure, user):
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            if not _is_array(leaf):
                raise no_array(where + jax.tree_util.keystr(path), leaf)


def _is_array(leaf: Any) -> bool:
    return is_array_like(leaf) and not (isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSU")


def no_array(where: str, value: object) -> TransformError:
    """The error of a result that JAX cannot hold."""
    return TransformError(
        where,
        "this is no array, no number and no model",
        expected="a tree of arrays, numbers and models, as the result of a function that JAX traces",
        got=describe(value),
        fix="return arrays only, and make the rest of them outside: a name, a text or an object does not change",
    )


def _results(outcome: Outcome, structure: Structure, user: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """What a function set and returned, with what to call it."""
    plan, name = outcome.plan, name_of(user)
    if plan.change is None:
        names = names_of_call(structure)
        set_ = [names[i] for i in plan.changed]
        returned = names_in_result(jax.tree_util.tree_structure(outcome.output))
    else:
        definition = plan.change.graphdef.definition
        places: list[Any] = [definition.paths[i] for i, kept in enumerate(plan.change.kept) if kept < 0]
        in_result = names_in_result(plan.tree)
        roots = name_roots(structure), [n for n, is_one in zip(in_result, plan.is_root, strict=True) if is_one]
        set_ = [joined(roots[part][rank], below) for part, rank, *below in places]
        returned = [n for n, is_one in zip(in_result, plan.is_root, strict=True) if not is_one]
    values = (*outcome.new, *jax.tree_util.tree_leaves(outcome.output))
    yield from zip((f"{name}, {where}" for where in (*set_, *returned)), values, strict=True)


def name_of(user: Callable[..., Any]) -> str:
    """What to call a function in errors."""
    return str(getattr(traced_code(user), "__name__", type(user).__name__))


def note_tracers(
    error: BaseException, transform: str, user: Callable[..., Any], structure: Structure, labels: Sequence[Any]
) -> None:
    """Adds to an error which leaves have no values while a function is mapped: those with a label."""
    names = [n for n, label in zip(names_of_call(structure), labels, strict=True) if label is not None]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    listed = ", ".join(names[:MAX_NAMES]) + more
    error.add_note(f"{transform} maps {name_of(user)} over {listed}: inside of it, these have no values of their own")


def named_leaves(call: Call) -> Iterator[tuple[str, Any]]:
    """The leaves of a call with what to call them: those of the graph, then the plain ones."""
    return zip(names_of_call(call.structure), (*call.values, *call.plain), strict=True)


def deleted_leaves(call: Call) -> list[tuple[str, Any]]:
    """The arrays of a call that have lost their buffers, with what to call them."""
    return [
        (name, leaf)
        for name, value in named_leaves(call)
        for leaf in jax.tree_util.tree_leaves(value)
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted()
    ]


def explain(call: Call, error: Exception) -> None:
    """Says what JAX has refused of a call, where it can be told."""
    if isinstance(error, DeclaxError):
        return
    if isinstance(error, (RuntimeError, ValueError)) and "deleted" in str(error):
        _check_deleted(call, error)
    elif isinstance(error, (RuntimeError, ValueError)) and _DONATED_ONCE.search(str(error)):
        _check_donated_once(call, error)
    elif isinstance(error, TypeError) and _REFUSED.search(str(error)):
        _check_arrays(call, error)
    elif type(error) is Exception and "array reference" in str(error):
        _check_refs_written(call, error)


def _check_deleted(call: Call, error: Exception) -> None:
    found = deleted_leaves(call)
    if not found:
        return
    (name, leaf), *more = found
    raise TransformError(
        name,
        "this array was deleted, since its buffer was donated",
        got=describe(leaf) + (f"; and {len(more)} more" if more else ""),
        why="a function that donates it has taken it, or array.delete() was called",
        fix="use what that function has returned or set; or give it dx.clone(model), which owns its arrays",
    ) from error


_DONATED_ONCE: Final = re.compile("donate the same buffer twice|previously donated in the same call")


def _check_donated_once(call: Call, error: Exception) -> None:
    seen: dict[Any, str] = {}
    for name, value in named_leaves(call):
        for leaf in jax.tree_util.tree_leaves(value):
            if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer) or leaf.is_deleted():
                continue
            buffer = tuple(shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards)
            if buffer in seen:
                raise TransformError(
                    name,
                    f"this array is also at {seen[buffer]}, and a buffer can be donated once",
                    got=describe(leaf),
                    why="dx.update and dx.merge share arrays, as does `a.value = b.value`",
                    fix="dx.update(target, dx.state(model, copy=True))        # or dx.clone(model): arrays of its own",
                ) from error
            seen[buffer] = name


_REFUSED: Final = re.compile("not a valid JAX type|as an abstract array")


def _check_arrays(call: Call, error: Exception) -> None:
    """Says which leaves of models are no arrays, where JAX has refused one."""
    for name, value in named_leaves(call):
        for leaf in jax.tree_util.tree_leaves(value):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                raise AbstractModelError(
                    name,
                    "the model has shapes in the place of arrays, so that nothing can be computed with it",
                    got=f"a leaf of shape {leaf.shape} and dtype {leaf.dtype}",
                    fix="f.eval_shape(model, x), or f.lower(model, x)        # what a function of dx.jit would do",
                ) from error
            if not is_array_like(leaf):
                raise TransformError(
                    name,
                    "this is in a Variable, or a child of the tree, and no array",
                    got=describe(leaf),
                    fix="self.name = dx.static(value)        # an attribute that is no array is compiled in",
                ) from error


def _check_refs_written(call: Call, error: Exception) -> None:
    """Says which array refs there are, where JAX has refused a write to one."""
    names = [name for name, value in named_leaves(call) if is_ref(value)]
    if not names:
        return
    is_mapped = "vmapped" in str(error)
    depends = "differs between instances" if is_mapped else "depends on what is differentiated"
    raise TransformError(
        " or ".join(names[:MAX_NAMES]),
        f"the function writes a value that {depends} into this array ref",
        why="the ref has no axis, and one value cannot hold those of all instances"
        if is_mapped
        else "JAX writes into a ref what has no derivative, or differentiates the ref too",
        fix="in_axes=0        # an axis for the ref; or dx.to_arrays(model), whose Variables can be set"
        if is_mapped
        else "ref[...] = jax.lax.stop_gradient(value)        # or dx.to_arrays(model), whose Variables can be set",
    ) from error


def no_ref(where: str, problem: str) -> TransformError:
    """The error of an array ref where only arrays can be."""
    return TransformError(
        where,
        problem,
        why="JAX can read and write an array ref, and do nothing else with it",
        fix="dx.to_arrays(model)        # a copy with arrays in the place of refs",
    )

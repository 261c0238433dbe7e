"""Errors of JAX in the user's words, and the names by which JAX knows a lifted function."""

from __future__ import annotations

import re
import textwrap
import types
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import jax
import numpy as np
from jax.core import Tracer

from declax._graph.abstract import abstract_model
from declax._module.running import note_original
from declax._variables.donation import OWN_COPIES, is_deleted, why_deleted
from declax.errors import DeclaxError, TraceContextError, TransformError, describe, type_name, with_article
from declax.transforms._engine.call import Call, _arrays_of, deleted_leaves
from declax.transforms._engine.captures import Captures, names_and_variables
from declax.transforms._engine.identities import plain_owners
from declax.transforms._engine.names import MAX_NAMES, LeafNames, name_of, names_of_call, traced_code
from declax.transforms._engine.outcome import Outcome, names_of_outputs
from declax.transforms._engine.structure import Structure, is_array_like, no_array


def named(function: Callable[..., Outcome], user: Callable[..., Any], structure: Structure) -> Callable[..., Outcome]:
    """A lifted function that JAX calls by the user's name, and whose results are arrays."""

    def call(*leaves: Any) -> Outcome:
        outcome = function(*leaves)
        check_results(outcome, structure, user)
        return outcome

    made: Any = call
    made.__wrapped__ = traced_code(user)
    made.__name__ = made.__qualname__ = getattr(made.__wrapped__, "__name__", made.__name__)
    made.__signature__ = LeafNames(structure)
    return call


def check_results(outcome: Outcome, structure: Structure, user: Callable[..., Any]) -> None:
    """Checks that the results of a function, and the values that it sets, are arrays and models."""
    if all(map(_is_array, jax.tree_util.tree_leaves((outcome.new, outcome.output)))):
        return
    values = (*outcome.new, *jax.tree_util.tree_leaves(outcome.output))
    names = names_of_outputs(structure, outcome.plan, jax.tree_util.tree_structure(outcome.output))
    for name, value in zip(names, values, strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            if not _is_array(leaf):
                raise no_array(f"{name_of(user)}, {name}{jax.tree_util.keystr(path)}", leaf)


def _is_array(leaf: Any) -> bool:
    return is_array_like(leaf) and not (isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSU")


def note_tracers(
    error: BaseException, transform: str, user: Callable[..., Any], structure: Structure, labels: Sequence[Any]
) -> None:
    """Adds to an error which leaves have no values while a function is mapped: those with a label."""
    names = [n for n, label in zip(names_of_call(structure), labels, strict=True) if label is not None]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    listed = ", ".join(names[:MAX_NAMES]) + more
    error.add_note(f"{transform} maps {name_of(user)} over {listed}: inside of it, these have no values of their own")


_DONATED_ONCE: Final = "donate the same buffer twice|previously donated in the same call"


def explain(call: Call, error: BaseException) -> None:
    """Raises an error in the user's words for what JAX refused of a call, if the cause is known."""
    note_original(error, call.binding.objects())
    if isinstance(error, TraceContextError) and call.captures is not None:
        _note_plain_owners(error, call.captures)
    if isinstance(error, DeclaxError):
        return
    if isinstance(error, (RecursionError, SystemError, AttributeError)):
        call.binding.check_depth()  # too deep for JAX, which cannot read its own options at the end of its stack
    found: DeclaxError | None = None
    if isinstance(error, (RuntimeError, ValueError)) and "deleted" in str(error):
        found = _deleted(deleted_leaves(call))
    elif isinstance(error, (RuntimeError, ValueError)) and re.search(_DONATED_ONCE, str(error)):
        found = _donated_twice(call)
    elif isinstance(error, TypeError) and re.search("not a valid JAX type|as an abstract array", str(error)):
        found = _no_array_of_jax(call)
    if found is not None:
        raise found from error


def _note_plain_owners(error: BaseException, captures: Captures) -> None:
    """Adds to the error of a write which plain objects hold models, and how these become arguments."""
    sites = chain.from_iterable(names_and_variables(each, of_user=True) for each in captures.functions)
    known = [("self", owner) for owner in captures.plain_selves()]
    for name, value in known + [(str(site.key), site.content) for site in sites]:
        owners = None if isinstance(value, (type, types.ModuleType)) else plain_owners(name, value)
        if owners is not None:
            paths, fix = owners
            owner, verb = with_article(type_name(type(value))), "is neither" if len(paths) == 1 else "are neither"
            error.add_note(
                f"{name!r} is {owner}, no module: {', '.join(paths)} {verb} passed nor captured. Write\n"
                + textwrap.indent(fix, "  ")
            )


def _deleted(found: list[tuple[str, Any]]) -> TransformError | None:
    if not found:
        return None
    (name, leaf), *more = found
    return TransformError(
        name,
        "this array was deleted, since its buffer was donated",
        got=describe(leaf) + (f"; and {len(more)} more" if more else ""),
        why=why_deleted(),
        fix=f"use what that function has returned or set; {OWN_COPIES}",
    )


def unless_deleted(function: Callable[..., Any], structure: Structure, donated: Sequence[int]) -> Callable[..., Any]:
    """A compiled function that refuses arrays of a State that it has taken: on several devices, XLA would crash."""

    def run(*leaves: Any) -> Any:
        first = leaves[donated[0]]
        if isinstance(first, jax.Array) and not isinstance(first, Tracer) and len(first.devices()) > 1:
            lost = [number for number in donated if is_deleted(leaves[number])]
            error = _deleted([(names_of_call(structure)[number], leaves[number]) for number in lost])
            if error is not None:
                raise error
        return function(*leaves)

    return run


def _donated_twice(call: Call) -> TransformError | None:
    first: dict[int, str] = {}
    for name, leaf in _arrays_of(call):
        if isinstance(leaf, jax.Array) and first.setdefault(id(leaf), name) != name:
            return TransformError(
                name,
                f"this array is also at {first[id(leaf)]}, and a buffer can be donated once",
                got=describe(leaf),
                why="dx.update and dx.merge share arrays, as does `a.value = b.value`",
                fix="dx.update(target, dx.state(model))        # or dx.clone(model), which copies",
            )
    return None


def _no_array_of_jax(call: Call) -> DeclaxError | None:
    for name, leaf in _arrays_of(call):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return abstract_model(name, leaf, "f.eval_shape(model, x), or f.lower(model, x)")
        if not is_array_like(leaf):
            return TransformError(
                name,
                "this is in a Variable, or a child of the tree, and not an array",
                got=describe(leaf),
                fix="self.name = dx.static(value)        # other values are compiled in",
            )
    return None

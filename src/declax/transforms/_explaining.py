"""What some errors of JAX mean, in terms of the user's models.

Nothing here is asked before JAX has refused something.

Vocabulary
----------
donation: JAX may reuse the buffers of what is donated; the arrays that had them are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import jax
from jax.core import Tracer

from declax._nodes import is_ref
from declax.errors import AbstractModelError, DeclaxError, TransformError, describe
from declax.transforms._lift import Call
from declax.transforms._roots import is_array_like
from declax.transforms._structure import place

MAX_NAMES = 4
"""So many functions that have donated last are named."""

_donating: Final[dict[str, None]] = {}


def note_donating(name: str) -> None:
    """Takes note of a function that has been compiled to donate arguments."""
    _donating.pop(name, None)
    _donating[name] = None
    while len(_donating) > MAX_NAMES:
        _donating.pop(next(iter(tuple(_donating))), None)


def named_leaves(call: Call) -> Iterator[tuple[str, Any]]:
    """The leaves of a call with what to call them: those of the graph, then the plain ones."""
    structure = call.structure
    if structure.graphdef is not None:
        names = structure.names_of_roots()
        for path, value in zip(structure.graphdef.definition.paths, call.values, strict=True):
            yield place(path[1:], names[path[0]]), value  # type: ignore[call-overload]  # the first is a number
    yield from zip(structure.names_of_plain(), call.plain, strict=True)


def deleted_leaves(call: Call) -> list[tuple[str, Any]]:
    """The arrays of a call that have lost their buffers, with what to call them."""
    return [
        (name, leaf)
        for name, value in named_leaves(call)
        for leaf in jax.tree_util.tree_leaves(value)
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted()
    ]


def explain(call: Call, error: Exception) -> None:
    """Says what JAX has refused of a call, where it can be told.

    Raises:
      AbstractModelError: names a leaf that has no value.
      TransformError: names what is no array, what was deleted, or donated twice, or the array refs that were written.
    """
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
    names = " or ".join(reversed(tuple(_donating)))
    raise TransformError(
        name,
        "this array was deleted, since its buffer was donated",
        got=describe(leaf) + (f"; and {len(more)} more" if more else ""),
        why=f"{names} has taken it: what is given to a function as donated is gone after the call"
        if names
        else "a function of jax.jit has taken it, or array.delete() was called",
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
    """Says which leaves of models are no arrays, where JAX has refused one; looked for only then.

    Raises:
      AbstractModelError, TransformError: names the first.
    """
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


def refs_in(call: Call) -> list[str]:
    """What to call the array refs of a call."""
    return [name for name, value in named_leaves(call) if is_ref(value)]


def _check_refs_written(call: Call, error: Exception) -> None:
    """Says which array refs there are, where JAX has refused a write to one.

    Raises:
      TransformError: names them.
    """
    names = refs_in(call)
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

"""Tells why a compiled function was traced again."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax

from declax._graph.differences import STATIC_VALUE, differing, paths_of_objects
from declax._graph.unflattening import blueprint_of
from declax.errors import TransformError, describe
from declax.transforms._engine.names import name_path, namer_of, names_of_call
from declax.transforms._engine.structure import Structure, Trace, Traces


def differences(before: Trace, after: Trace) -> list[str]:
    """All differences of two traces in words, the likely causes first."""
    found = [*_of_statics(before.structure, after.structure), *_of_graphs(before.structure, after.structure)]
    trees = before.structure.tree, after.structure.tree
    texts = [repr(jax.tree_util.tree_unflatten(tree, ["*"] * tree.num_leaves)[:2]) for tree in trees]
    if texts[0] != texts[1]:
        found.append(_text("the arguments", "tree", *texts))
    if before.structure.key is not after.structure.key:
        found.append(_text("the function", "place of captured models", "another", "this"))
    found += _of_orders(before.structure, after.structure)
    known: dict[str, list[Any]] = {}
    for name, old in zip(names_of_call(before.structure), before.avals, strict=True):
        known.setdefault(name, []).append(old)  # two captured models may have one name
    for name, new in zip(names_of_call(after.structure), after.avals, strict=True):
        old = known[name].pop(0) if known.get(name) else new
        if old != new:
            is_mesh = _text_of(old) == _text_of(new)
            what, text = ("mesh", _mesh_of) if is_mesh else ("shape or dtype", _text_of)
            found.append(_text(name, what, text(old), text(new)))
    return found


def _text(where: str, what: str, before: str, after: str) -> str:
    return f"{where}: the {what} was {before}, and is {after}"


def _of_statics(before: Structure, after: Structure) -> Iterator[str]:
    name_place = namer_of(None if after.key is None else after.key.function)
    old, new = [dict([*s.statics.by_number, *s.statics.by_name]) if s.statics else {} for s in (before, after)]
    for label in {**old, **new}:
        texts = [repr(given[label]) if label in given else "not given" for given in (old, new)]
        if texts[0] != texts[1] or old.get(label) != new.get(label):
            name = name_place(label) if isinstance(label, int) else str(label)
            yield _text(name, "static argument", *texts)


def _of_graphs(before: Structure, after: Structure) -> Iterator[str]:
    """The differences of two structures: static values by path, and what came and went."""
    for path, fact, old, new in differing(before.graphdef, after.graphdef):
        texts = (repr(old), repr(new)) if fact == STATIC_VALUE else (old, new)
        where = name_path(before if new == "not there" else after, path) if path else "the models"
        yield _text(where, fact, *texts)


def _of_orders(before: Structure, after: Structure) -> Iterator[str]:
    """The nodes of equal graphs whose attributes, or the members of a set, came in another order."""
    if before.graphdef is after.graphdef:
        paths = paths_of_objects(after.graphdef)
        old, new = before.orders, after.orders
        blueprint = blueprint_of(after.graphdef)
        for index in {**old.names, **new.names, **old.sets}:
            where = name_path(after, paths[index])
            names = [", ".join(map(str, blueprint.order_of(index, orders))) for orders in (old, new)]
            if names[0] != names[1]:
                yield _text(where, "order of attributes", *names)
            for one, other in zip(old.sets.get(index, ()), new.sets.get(index, ()), strict=True):
                if one != other:
                    yield _text(f"{where}.{one[0]}", "order of the set", repr(one[1:]), repr(other[1:]))


def _text_of(aval: Any) -> str:
    if not hasattr(aval, "weak_type"):
        return repr(aval)
    text = str(aval).removeprefix("~")  # with the explicit axes that split each dimension
    return f"{text}, weakly typed" if aval.weak_type else text


def _mesh_of(aval: Any) -> str:
    mesh = aval.sharding.mesh
    axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return "none" if mesh.empty else ", ".join(f"{name}={size} ({kind.name})" for name, size, kind in axes)


def explain_retrace(f: Callable[..., Any], /) -> None:
    """Prints why a function of `jit` was traced the last time: what differs from the trace before.

    Names the path of each static value, each change of structure, each static argument, or each shape and dtype, with
    what it was and what it is.

    Args:
      f: the function, as `jit` or `jit_partial` returned it.

    Raises:
      TransformError: the argument is not a function of `jit`.

    >>> import declax as dx
    >>> m = dx.Dict(calls=0)
    >>> f = dx.jit(lambda m, x: x + m.calls)
    >>> _ = f(m, 1.0)
    >>> m.calls += 1
    >>> _ = f(m, 1.0)
    >>> dx.explain_retrace(f)
    <lambda> was traced 2 times. What changed the last time:
      m.calls: the static value was 0, and is 1
    """
    if isinstance(f, functools.partial):  # as `jit_partial` returns it
        f = f.func
    if isinstance(f, types.MethodType):
        f = f.__func__
    traces: Traces | None = getattr(f, "_traces", None)
    if traces is None:
        raise TransformError(
            "explain_retrace",
            "this is not a function of dx.jit",
            got=describe(f),
            fix="f = dx.jit(f); dx.explain_retrace(f)",
        )
    name = getattr(f, "__name__", repr(f))
    print("\n".join(_lines(name, traces)))  # noqa: T201  # its purpose


def _lines(name: str, traces: Traces) -> list[str]:
    if len(traces.last) < 2:
        return [f"{name} was traced once." if traces.last else f"{name} was not traced yet."]
    found = differences(*traces.last)
    found = found or ["nothing that declax sees: JAX dropped its trace, or its configuration was changed"]
    return [f"{name} was traced {traces.count} times. What changed the last time:", *(f"  {one}" for one in found)]

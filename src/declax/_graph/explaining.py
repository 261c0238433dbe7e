"""What filters do with a graph, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from declax._filters import Filter, Predicate, as_written, ask, predicates_of
from declax._graph.binding import bind
from declax._state.states import make_state
from declax._typing import Path
from declax._variables.variable import Variable
from declax.errors import describe, format_path, type_name


def explain_filters(node: Any, /, *filters: Filter, limit: int | None = 20, graph: bool | None = None) -> None:
    """Prints which leaves each filter takes, which filters take nothing, and what is left over.

    Args:
      node: a model, or a container of models.
      *filters: as for `split` and `state`; the first that fits a leaf takes it.
      limit: how many leaves of each filter are listed; None for all.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Raises:
      FilterError: for what is no filter, and for ``...`` before the last place.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import BatchStat, Param
    >>> m = Module()
    >>> m.scale, m.mean = Param(2.0), BatchStat(0.0)
    >>> explain_filters(m, Param, "dropout")
    Param takes 1 of 2 leaves
      scale: Param, float 2.0
    'dropout' takes nothing: the kinds here are BatchStat, Param
    left over: 1 leaf
      mean: BatchStat, float 0.0
    """
    predicates = predicates_of(filters, "explain_filters")
    binding = bind(node, graph)
    entries = list(make_state(binding.graphdef.definition, binding.read()).flat_state())
    print("\n".join(_lines(entries, filters, predicates, limit)))  # noqa: T201  # to print is what it is for


_Entries = Sequence[tuple[Path, Any]]


def _lines(
    entries: _Entries, filters: Sequence[Filter], predicates: Sequence[Predicate], limit: int | None
) -> Iterator[str]:
    takers = [next((i for i, p in enumerate(predicates) if ask(p, path, value)), None) for path, value in entries]
    for i, wanted in enumerate(filters):
        taken = [entry for entry, taker in zip(entries, takers, strict=True) if taker == i]
        if taken:
            yield f"{as_written(wanted)} takes {len(taken)} of {_count(len(entries))}"
            yield from _listed(taken, limit)
        else:
            yield f"{as_written(wanted)} takes nothing: {_what_there_is(entries)}"
    rest = [entry for entry, taker in zip(entries, takers, strict=True) if taker is None]
    yield f"left over: {_count(len(rest)) if rest else 'nothing'}"
    yield from _listed(rest, limit)


def _listed(entries: _Entries, limit: int | None) -> Iterator[str]:
    for path, value in entries[:limit]:
        yield f"  {format_path(path)}: {_leaf_text(value)}"
    if limit is not None and len(entries) > limit:
        yield f"  ... and {len(entries) - limit} more; limit=None lists all"


def _leaf_text(value: Any) -> str:
    if not isinstance(value, Variable):
        return _short(value)
    tag = _tag_of(value)
    return f"{type_name(type(value))}, {_short(value.raw_value)}" + (f", tag {tag!r}" if tag is not None else "")


def _short(value: Any) -> str:
    if isinstance(value, (jax.Array, jax.ShapeDtypeStruct)):
        return f"{value.dtype}{list(value.shape)}"
    return describe(value)


def _tag_of(variable: Variable[Any]) -> Any:
    return variable.get_metadata().get("tag", getattr(type(variable), "tag", None))


def _what_there_is(entries: _Entries) -> str:
    if not entries:
        return "the graph has no leaves"
    kinds = dict.fromkeys("jax.Array" if isinstance(v, jax.Array) else type_name(type(v)) for _, v in entries)
    tags = {_tag_of(value) for _, value in entries if isinstance(value, Variable)} - {None}
    found = f", and the tags {', '.join(sorted(map(repr, tags)))}" if tags else ""
    return f"the kinds here are {', '.join(kinds)}{found}"


def _count(leaves: int) -> str:
    return f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"

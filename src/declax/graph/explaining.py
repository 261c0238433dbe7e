"""What filters do with a graph, in words.

Vocabulary
----------
takes:     of a filter and a leaf: the filter is the first that fits the leaf.
left over: a leaf that no filter fits; `split` refuses such, `state` leaves it out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from declax._filters import Filter, Predicate, as_written, ask, predicates_of
from declax._typing import Path
from declax._variables import Variable
from declax.errors import describe, format_path, suggest, type_name
from declax.graph.binding import bind
from declax.states import make_state


def explain_filters(node: Any, /, *filters: Filter, limit: int | None = 20, graph: bool | None = None) -> None:
    """Prints which leaves each filter takes, which filters take nothing and why, and what is left over.

    Args:
      node: a model, or a container of models.
      *filters: as for `split` and `state`; the first that fits a leaf takes it.
      limit: how many leaves of each filter are listed; None for all.
      graph: False where the node has to be a tree; None for the default of
        `set_graph_mode`.

    Raises:
      FilterError: for what is no filter, and for ``...`` before the last place.
      GraphError: for a graph where a tree is asked for.

    >>> from declax._module import Module
    >>> from declax._variables import BatchStat, Param
    >>> m = Module()
    >>> m.scale, m.mean = Param(2.0), BatchStat(0.0)
    >>> explain_filters(m, Param, "dropout")
    Param takes 1 of 2 leaves
      scale: Param, float 2.0
    'dropout' takes nothing: no leaf here has a tag, and the kinds here are BatchStat, Param
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
    for i, (wanted, predicate) in enumerate(zip(filters, predicates, strict=True)):
        taken = [entry for entry, taker in zip(entries, takers, strict=True) if taker == i]
        if taken:
            yield f"{as_written(wanted)} takes {len(taken)} of {_count(len(entries))}"
            yield from _listed(taken, limit)
        else:
            taken_before = [
                (e, taker) for e, taker in zip(entries, takers, strict=True) if taker is not None and taker < i
            ]
            earlier = [taker for entry, taker in taken_before if _would_fit(predicate, entry)]
            why = _taken_before(filters, earlier) if earlier else _why_nothing(wanted, predicate, entries)
            yield f"{as_written(wanted)} takes nothing: {why}"
    rest = [entry for entry, taker in zip(entries, takers, strict=True) if taker is None]
    yield f"left over: {_count(len(rest)) if rest else 'nothing'}"
    yield from _listed(rest, limit)


def _would_fit(predicate: Predicate, entry: tuple[Path, Any]) -> bool:
    """Whether a filter fits a leaf that it is never asked about, and that may be none of its business."""
    try:
        return bool(predicate(*entry))
    except Exception:  # noqa: BLE001  # whatever a user's function makes of such a leaf
        return False


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


def _taken_before(filters: Sequence[Filter], earlier: Sequence[int]) -> str:
    takers = list(dict.fromkeys(as_written(filters[taker]) for taker in earlier))
    return f"{_count(len(earlier))} would fit, but {' and '.join(takers)} took them before; put it first"


def _why_nothing(wanted: Filter, predicate: Predicate, entries: _Entries) -> str:
    if not entries:
        return "the graph has no leaves"
    kinds = list(dict.fromkeys(_kind_of(value) for _, value in entries))
    here = f"the kinds here are {', '.join(kinds)}"
    if isinstance(wanted, str):
        tags = sorted({str(tag) for tag in _tags_of(entries)})
        found = f"the tags here are {', '.join(map(repr, tags))}" if tags else "no leaf here has a tag"
        hint = suggest(wanted, tags) or _hint_of_kind(wanted, kinds)
        return f"{found}, and {here}" + (f"; {hint}" if hint else "")
    if isinstance(wanted, type):
        hint = None if wanted.__name__ in kinds else suggest(type_name(wanted), kinds)
        return here + (f"; {hint}" if hint else "")
    return f"no leaf fits {predicate!r}"


def _hint_of_kind(name: str, kinds: Sequence[str]) -> str | None:
    """A hint for a text that is the name of a kind, or nearly so."""
    by_lower = {kind.lower(): kind for kind in kinds}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.8)
    return f"did you mean the kind {by_lower[near[0]]}, without quotes?" if near else None


def _kind_of(value: Any) -> str:
    """The kind of a leaf, as it is written in a filter."""
    return "jax.Array" if isinstance(value, jax.Array) else type_name(type(value))


def _tags_of(entries: _Entries) -> Iterator[Any]:
    for _, value in entries:
        tag = _tag_of(value) if isinstance(value, Variable) else None
        if tag is not None:
            yield tag


def _count(leaves: int) -> str:
    return f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"

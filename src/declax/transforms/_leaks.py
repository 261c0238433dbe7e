"""What a traced function has kept outside of itself, where it has no value later.

Vocabulary
----------
kept: a tracer in something that outlives the call: a captured list, dict or
      set, a variable of an outer function, a global name, an attribute.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from jax.core import Tracer

from declax import _jax
from declax._typing import MISSING
from declax.errors import TransformError, describe
from declax.graph.walk import Walk
from declax.transforms._closure import Survey
from declax.transforms._holders import UNREADY, Sort, attributes_of, content_of, is_library, names_in, sort_of
from declax.transforms._roots import is_finished, is_root
from declax.transforms._ways import attributes_named, is_named_in, used_by

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)


def tracers_in(content: Any) -> Iterator[Any]:
    """The tracers that containers and models hold, or one itself."""
    waiting, seen = [content], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, Tracer):
            yield item
        elif isinstance(item, _CONTAINERS) and id(item) not in seen:
            seen.add(id(item))
            waiting += item.values() if isinstance(item, dict) else item
        elif is_root(item) and is_finished(item):
            found = Walk()
            found.visit((item,))
            waiting += found.read()


def tracers_kept(survey: Survey) -> dict[int, tuple[Any, str]]:
    """The tracers that a function reaches, with where they are; not those of what it captures."""
    captured = {id(root) for root in survey.values}
    found: dict[int, tuple[Any, str]] = {}
    for where, content in _reached(survey):
        if id(content) in captured or content is MISSING or type(content) in UNREADY:
            continue
        if not isinstance(content, _CONTAINERS):
            for tracer in tracers_in(content):
                found.setdefault(id(tracer), (tracer, where))
            continue
        for key, item in content.items() if isinstance(content, dict) else enumerate(content):
            if id(item) not in captured and not _is_surely_none(item):
                for tracer in tracers_in(item):
                    found.setdefault(id(tracer), (tracer, f"{where}, at {key!r}"))
    return found


def _is_surely_none(item: Any) -> bool:
    """Whether an item holds no tracer, at a glance: most items of long lists are numbers."""
    return sort_of(item) is None and not isinstance(item, (Tracer, set, frozenset))


def _reached(survey: Survey) -> Iterator[tuple[str, Any]]:
    for place in survey.growing:
        yield place.name, place.content
    for holder in survey.holders:
        if isinstance(holder, types.FunctionType):
            if is_library(holder):
                continue
            for name, cell in zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True):
                yield f"variable {name!r}", content_of(cell)
            for name in names_in(holder.__code__).assigned:
                yield f"name {name!r}", holder.__globals__.get(name, MISSING)
            for name, value in vars(holder).items():
                yield f"attribute {name!r} of {holder.__name__}", value
        elif sort_of(holder) is Sort.OBJECT or sort_of(holder) is None:
            for name, value in attributes_of(holder).items():
                yield f"attribute {name!r}", value
    used = used_by(survey.holders)
    for holder in survey.holders:
        if is_named_in(holder) and not is_library(holder):
            for way, value in attributes_named(holder, used, survey.numbers, is_wide=True):
                if isinstance(value, (Tracer, *_CONTAINERS)):
                    yield f"in {way}", value


def is_lost(tracer: Any) -> bool:
    """Whether a tracer has no value once the current trace is over."""
    return not _jax.is_of_outer_trace(tracer)


def check_kept(where: str, content: Any, before: dict[int, tuple[Any, str]]) -> None:
    """Refuses a tracer that was not there before.

    Raises:
      TransformError: says where it is.
    """
    for tracer in tracers_in(content):
        if id(tracer) not in before and is_lost(tracer):
            raise keeps(where, tracer)


def check_all_kept(survey: Survey, before: dict[int, tuple[Any, str]]) -> None:
    """Refuses tracers that a function reaches, and that were not there before.

    Raises:
      TransformError: says where one is.
    """
    for identity, (tracer, where) in tracers_kept(survey).items():
        if identity not in before and is_lost(tracer):
            raise keeps(where, tracer)


def keeps(where: str, tracer: object) -> TransformError:
    """The error for a tracer that was kept."""
    return TransformError(
        f"the function, {where}",
        "it keeps an array of the trace in a place that outlives the call",
        got=describe(tracer),
        why="after the trace such an array has no value",
        fix="return it, or keep it in the model: self.sow(dx.Intermediate, 'name', value)",
    )

"""Refs that stay true when their spec becomes a part of another, or is taken out of it.

A Ref is a path from the root of a whole. A spec whose Refs lead to its own
parts can be put into another: they lead to the same parts there. Refs that
lead to nothing in it are left as they are, and mean the whole that it will be in.

A spec that is kept is a whole of its own in Python: its Refs start there. In a file all start at the root.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from declax.config._building import annotation_at, keeps_spec, locate
from declax.config._data import MAX_DEPTH, FrozenDict, FrozenList, Ref, SpecData, freeze
from declax.config._unions import element_annotation
from declax.config.problems import Path
from declax.errors import ConfigError

S = TypeVar("S", bound=SpecData)


def moved_in(value: Any, annotation: Any, path: Path, depth: int = 0) -> Any:
    """A value as it has to be at a path of another spec: the Refs of the specs in it lead to the same parts.

    >>> from declax._containers import List
    >>> pair = SpecData(List, {"elements": [SpecData(List), Ref("/elements/0")]})
    >>> moved_in(pair, Any, ("elements", 3)).arguments["elements"][1]
    Ref('/elements/3/elements/0')
    """
    if isinstance(value, SpecData):
        if not value.has_refs or keeps_spec(annotation):
            return value
        whole = value
        return rewritten(whole, lambda ref: Ref.to((*path, *ref.keys)) if _leads_inside(whole, ref) else ref)
    if type(value) not in (list, tuple, dict, FrozenList, FrozenDict) or depth > MAX_DEPTH:
        return value  # what is too deep is refused where it is frozen

    def moved(key: Any, item: Any) -> Any:
        return moved_in(item, element_annotation(annotation, value, key), (*path, key), depth + 1)

    return _each(value, moved)


def moved_out(value: S, path: Path) -> S:
    """A part at a path as a whole of its own: Refs to what is in it start there."""
    if not value.has_refs or not path:
        return value
    start = tuple(map(str, path))
    inside = len(start)
    return rewritten(value, lambda ref: Ref.to(ref.keys[inside:]) if _is_below(ref.keys, start) else ref)


def _is_below(keys: tuple[str, ...], start: tuple[str, ...]) -> bool:
    return len(keys) > len(start) and keys[: len(start)] == start


def _leads_inside(whole: SpecData, ref: Ref) -> bool:
    try:
        locate(whole, ref, ())
    except ConfigError:
        return False
    return True


def rewritten(spec: S, change: Callable[[Ref], Ref]) -> S:
    """The spec with other Refs; those of specs that are kept are their own."""
    parameters = spec.parameters
    arguments = {}
    for name, value in spec.arguments.items():
        arguments[name] = _rewritten(value, annotation_at(parameters, name), change)
    return spec.with_arguments(arguments)


def _rewritten(value: Any, annotation: Any, change: Callable[[Ref], Ref]) -> Any:
    if isinstance(value, Ref):
        return change(value)
    if isinstance(value, SpecData):
        return value if not value.has_refs or keeps_spec(annotation) else rewritten(value, change)
    if type(value) not in (tuple, FrozenList, FrozenDict):
        return value
    return _each(value, lambda key, item: _rewritten(item, element_annotation(annotation, value, key), change))


def taken_out(spec: S, path: Path, kept: dict[Path, bool]) -> S:
    """A spec as files mean it, where all Refs start at the root: those of what is kept start there.

    Args:
      spec: the spec.
      path: where it is in the whole.
      kept: receives the paths of what is kept, with whether that is a spec and no Ref.
    """
    arguments = {
        name: _taken_out(value, annotation_at(spec.parameters, name), (*path, name), kept)
        for name, value in spec.arguments.items()
    }
    is_same = all(arguments[name] is value for name, value in spec.arguments.items())
    return spec if is_same else spec.with_arguments(arguments)


def _taken_out(value: Any, annotation: Any, path: Path, kept: dict[Path, bool]) -> Any:
    if isinstance(value, (SpecData, Ref)) and keeps_spec(annotation):
        kept[path] = isinstance(value, SpecData)
    if isinstance(value, SpecData):
        return taken_out(moved_out(value, path) if path in kept else value, path, kept)
    if type(value) not in (tuple, FrozenList, FrozenDict):
        return value
    children: Any = value
    items = children.items() if isinstance(value, FrozenDict) else enumerate(children)
    found = {
        key: _taken_out(item, element_annotation(annotation, value, key), (*path, key), kept) for key, item in items
    }
    is_same = all(found[key] is children[key] for key in found)
    return value if is_same else _each(value, lambda key, _: found[key])


def put_in(value: Any, annotation: Any, path: Path) -> Any:
    """An argument as files have it: the Refs of what is kept start at the root. The other way of `taken_out`.

    Refs of what is kept in specs are left, as these have paths of their own.
    """
    if isinstance(value, SpecData):
        is_moved = value.has_refs and keeps_spec(annotation)
        return rewritten(value, lambda ref: Ref.to((*path, *ref.keys))) if is_moved else value
    if annotation is Any or type(value) not in (tuple, FrozenList, FrozenDict):
        return value
    return freeze(_each(value, lambda k, v: put_in(v, element_annotation(annotation, value, k), (*path, k))))


def _each(value: Any, change: Callable[[Any, Any], Any]) -> Any:
    if isinstance(value, (dict, FrozenDict)):
        return {key: change(key, item) for key, item in value.items()}
    items = [change(index, item) for index, item in enumerate(value)]
    return tuple(items) if type(value) is tuple else items

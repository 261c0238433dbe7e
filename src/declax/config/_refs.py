"""Paths in specs: the targets of Refs, which start at the root of a spec; reading and changing values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from declax._fields.overrides import DeclaredPart
from declax.config._data import MAX_DEPTH, FrozenDict, FrozenList, Ref, SpecData, key_like
from declax.config._declared import ClassBodyScope
from declax.config._reading.readers import Reader, WrappingReader
from declax.config._supplied import shown_value
from declax.config.problems import EACH, Path, did_you_mean, path_text, shown, steps_of
from declax.errors import ConfigError, describe

S = TypeVar("S", bound=SpecData)
Rewrite: TypeAlias = Callable[[Any, "Reader | None", Any], Any]
"""The replacement of an item, by its reader and key."""

_CONTAINERS: Final = (list, tuple, dict, FrozenList, FrozenDict)

# --- cursors --------------------------------------------------------------


def keeps_specs(reader: Reader | None) -> bool:
    """Whether the annotation is `Spec[...]`, so that a spec stays unbuilt."""
    while isinstance(reader, WrappingReader):
        reader = reader.reader
    return reader is not None and reader.keeps_specs


class Cursor(NamedTuple):
    """A value in a spec, its path with Refs resolved, and the reader of its annotation."""

    path: Path
    value: Any
    reader: Reader | None


def keys_of(value: Any) -> Iterable[Any]:
    if isinstance(value, SpecData):
        return list(value.arguments)
    if isinstance(value, Mapping):
        return list(value)
    return range(len(value)) if type(value) in _CONTAINERS else ()


def reader_below(value: Any, reader: Reader | None, key: Any) -> Reader | None:
    if isinstance(value, SpecData):
        return value.reader_of(key)
    return None if reader is None else reader.below(value, key)


def child(cursor: Cursor, key: str, *, has_defaults: bool = False) -> Cursor | None:
    """The value below a cursor at a key, given as text; None if there is none."""
    value: Any = cursor.value
    held: Any = value
    step: str | int | None = None
    if isinstance(value, SpecData):
        held = value.full_arguments if has_defaults and key not in value.arguments else value.arguments
        step = key if key in held else None
    elif isinstance(value, FrozenDict):
        step = key_like(value, key)
    elif type(value) in (tuple, FrozenList) and key.isdecimal() and int(key) < len(value):
        step = int(key)
    if step is None:
        return None
    return Cursor((*cursor.path, step), held[step], reader_below(value, cursor.reader, step))


def where(root: SpecData, path: Path) -> str:
    return f"{root.parameters.name}.{path_text(path)}" if path else root.parameters.name


def locate(root: SpecData, ref: Ref) -> Cursor | None:
    """The target of a Ref; None if there is none, or if its owner makes it, or it is built separately."""
    cursor = Cursor((), root, None)
    for key in ref.keys:
        if cursor.path and isinstance(cursor.value, SpecData) and keeps_specs(cursor.reader):
            return None
        below = child(cursor, key)
        if below is None or isinstance(getattr(below.value, "target", None), DeclaredPart):
            return None
        cursor = below
    return None if cursor.value == ref else cursor


# --- rewriting Refs -------------------------------------------------------------


def _mapped(holder: Any, change: Rewrite, reader: Reader | None) -> Any:
    """A spec, list or dict with a function applied to its items, by their readers and keys."""
    items = holder.arguments if isinstance(holder, SpecData) else holder
    found = {key: change(items[key], reader_below(holder, reader, key), key) for key in keys_of(holder)}
    return holder if all(found[key] is items[key] for key in found) else with_items(holder, found)


def with_items(value: Any, changed: Mapping[Any, Any]) -> Any:
    """A copy of a spec, list, tuple or dict with other values at some keys."""
    if isinstance(value, SpecData):
        return type(value)(value.target, {**value.arguments, **changed})
    if isinstance(value, Mapping):
        return {**value, **changed}
    items = [changed.get(index, item) for index, item in enumerate(value)]
    return tuple(items) if type(value) is tuple else items


def _rewritten(value: Any, change: Callable[[Ref], Ref], reader: Reader | None = None) -> Any:
    """A value with a function applied to its Refs, except those inside unbuilt specs."""
    if isinstance(value, Ref):
        return change(value)
    if keeps_specs(reader) or not (type(value) in _CONTAINERS or (isinstance(value, SpecData) and value.has_refs)):
        return value
    return _mapped(value, lambda item, inner, _: _rewritten(item, change, inner), reader)


def moved_in(value: Any, reader: Reader | None, path: Path) -> Any:
    """A value for a path of another spec: the Refs of specs in it still point at the same parts."""
    if isinstance(value, SpecData):
        if keeps_specs(reader):
            return value
        return _rewritten(value, lambda ref: Ref.to((*path, *ref.keys)) if locate(value, ref) else ref)
    if type(value) not in _CONTAINERS or len(path) > MAX_DEPTH:  # freezing refuses a value that is too deep
        return value
    return _mapped(value, lambda item, inner, key: moved_in(item, inner, (*path, key)), reader)


def moved_out(value: S, path: Path) -> S:
    """A part at a path as a separate spec: its internal Refs start at the part. The inverse of `moved_in`."""
    start = tuple(map(str, path))
    inside = len(start)

    def move(ref: Ref) -> Ref:
        is_below = len(ref.keys) > inside and ref.keys[:inside] == start
        return Ref.to(ref.keys[inside:]) if is_below else ref

    made: S = _rewritten(value, move) if path else value
    return made


# --- reading and changing by paths ------------------------------------------------


def parse_path(text: str) -> tuple[str, ...]:
    keys = steps_of(str(text))
    if keys is None:
        expected = "names and indices, such as blocks.0.hidden, blocks[0].hidden, or blocks.*.hidden"
        raise ConfigError("spec", f"{text!r} is not a path", expected=expected)
    return keys


def get(spec: SpecData, text: str) -> Any:
    cursor = Cursor((), spec, None)
    start = 0  # the length of the path of the innermost unbuilt spec, where Refs start
    for key in parse_path(text):
        owner, cursor = cursor.value, _child(spec, cursor, key)
        if isinstance(owner, SpecData):
            cursor = cursor._replace(value=ClassBodyScope(owner).value(cursor.value))
        if isinstance(cursor.value, SpecData) and keeps_specs(cursor.reader):
            start = len(cursor.path)
    value = shown_value(cursor.value)
    return moved_out(value, cursor.path[start:]) if isinstance(value, SpecData) else value


def _child(root: SpecData, cursor: Cursor, key: str) -> Cursor:
    found, value = child(cursor, key, has_defaults=True), cursor.value
    if found is not None:
        return found
    options = list(map(str, value.full_arguments if isinstance(value, SpecData) else keys_of(value)))
    hint = did_you_mean(key, options)
    raise ConfigError(
        where(root, cursor.path),
        f"there is no {shown(key)} at {path_text(cursor.path)}" + (f"; {hint}" if hint else ""),
        expected="one of " + ", ".join(options[:20]) if options else "the path of a part of this spec",
        got=None if options else describe(value),
    )


def replace(spec: S, changes: Mapping[str, object]) -> S:
    found = spec
    for text, value in changes.items():
        found = changed(found, parse_path(text), lambda cursor, value=value: value)  # type: ignore[misc]  # mypy has no type for its default
    return found


def changed(spec: S, keys: tuple[str, ...], change: Callable[[Cursor], object]) -> S:
    """A copy of a spec with the results of a function in the place of the values at a path."""
    found: S = _replaced(spec, Cursor((), spec, None), keys, change)
    return found


def _replaced(root: SpecData, cursor: Cursor, keys: tuple[str, ...], change: Callable[[Cursor], object]) -> Any:
    if not keys:
        return moved_in(change(cursor), cursor.reader, cursor.path)
    value = cursor.value
    key, *rest = keys
    if key == EACH and isinstance(value, (tuple, FrozenList, FrozenDict)):
        steps = [
            Cursor((*cursor.path, each), value[each], reader_below(value, cursor.reader, each))
            for each in keys_of(value)
        ]
    elif not rest and (
        value.parameters.get(key) is not None
        if isinstance(value, SpecData)
        else isinstance(value, FrozenDict) and key_like(value, key) is None
    ):
        held = child(cursor, key, has_defaults=True)
        steps = [held or Cursor((*cursor.path, key), None, reader_below(value, cursor.reader, key))]
    else:
        steps = [_child(root, cursor, key)]
    return with_items(value, {step.path[-1]: _replaced(root, step, (*rest,), change) for step in steps})

"""Finding the targets of Refs, and rewriting Refs. A Ref starts at the root of the spec that is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from declax._fields.overrides import DeclaredPart
from declax.config._data import MAX_DEPTH, FrozenDict, FrozenList, Ref, SpecData, freeze, key_like
from declax.config._reading.readers import Reader, WrappingReader
from declax.config.problems import Path, Report, did_you_mean, path_text, shown
from declax.errors import ConfigError, DepthError, describe

S = TypeVar("S", bound=SpecData)
Rewrite: TypeAlias = Callable[[Any, "Reader | None", Path], Any]
"""The replacement of a spec or Ref, by its reader and path."""

MAX_AHEAD: Final = 20
"""The limit of Refs that point at unfinished parts, one inside the other."""

CYCLE: Final = "the Refs form a cycle, so none of the parts can be built first"
WRITE_OUT: Final = "write the part out, as a second part"
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


def no_part(at: str, cursor: Cursor, key: str, start: str = "") -> ConfigError:
    value = cursor.value
    has_defaults = isinstance(value, SpecData) and not start
    options = list(map(str, value.full_arguments if has_defaults else keys_of(value)))
    hint = did_you_mean(key, options)
    return ConfigError(
        at,
        f"{start}there is no {shown(key)} at {path_text(cursor.path)}" + (f"; {hint}" if hint else ""),
        expected="one of " + ", ".join(options[:20]) if options else "the path of a part of this spec",
        got=None if options else describe(value),
    )


def locate(root: SpecData, ref: Ref, at: Path) -> Cursor:
    """The target of a Ref at a path; follows Refs on the way."""
    keys, seen = ref.keys, [ref.path]
    cursor = Cursor((), root, None)
    index = 0
    while index < len(keys) or isinstance(cursor.value, Ref):
        if isinstance(cursor.value, Ref):
            if cursor.value.path in seen:
                raise cycle_error(root, at, [*seen, cursor.value.path])
            if len(seen) > MAX_AHEAD:
                raise chain_error(root, at)
            seen.append(cursor.value.path)
            keys, index, cursor = (*cursor.value.keys, *keys[index:]), 0, Cursor((), root, None)
            continue
        part = cursor.value if cursor.path and isinstance(cursor.value, SpecData) else None
        if part is not None and (keeps_specs(cursor.reader) or isinstance(part.target, DeclaredPart)):
            problem = f"the Ref to {shown(ref.path)} points into {path_text(cursor.path)}, which is built separately"
            raise ConfigError(where(root, at), problem, fix=WRITE_OUT)
        found = child(cursor, keys[index])
        if found is None:
            raise no_part(where(root, at), cursor, keys[index], f"the Ref to {shown(ref.path)} has no target: ")
        cursor = found
        index += 1
    return cursor


def cycle_error(root: SpecData, at: Path, paths: Iterable[str]) -> ConfigError:
    return ConfigError(
        where(root, at),
        CYCLE,
        got=" -> ".join(paths),
        fix="write the spec of the part in place of one Ref",
    )


def chain_error(root: SpecData, at: Path) -> DepthError:
    return DepthError(
        where(root, at),
        f"a chain of more than {MAX_AHEAD} Refs points at parts that are not built yet",
        fix="let Refs point at earlier parts",
    )


# --- rewriting Refs -------------------------------------------------------------


def mapped(value: Any, change: Rewrite, reader: Reader | None = None, path: Path = ()) -> Any:
    """A value with a function applied to its outermost specs and its Refs; lists and dicts may be mutable."""
    if isinstance(value, (SpecData, Ref)):
        return change(value, reader, path)
    if type(value) not in _CONTAINERS or len(path) > MAX_DEPTH:  # freezing refuses a value that is too deep
        return value
    return _mapped_items(value, value, change, reader, path)


def mapped_inside(spec: S, change: Rewrite, path: Path = ()) -> S:
    return spec if not spec.has_refs else _mapped_items(spec, spec.arguments, change, None, path)


def _mapped_items(holder: Any, items: Any, change: Rewrite, reader: Reader | None, path: Path) -> Any:
    found = {
        key: mapped(items[key], change, reader_below(holder, reader, key), (*path, key)) for key in keys_of(holder)
    }
    return holder if all(found[key] is items[key] for key in found) else with_items(holder, found)


def with_items(value: Any, changed: Mapping[Any, Any]) -> Any:
    """A copy of a spec, list, tuple or dict with other values at some keys."""
    if isinstance(value, SpecData):
        return type(value)(value.target, {**value.arguments, **changed})
    if isinstance(value, Mapping):
        return {**value, **changed}
    items = [changed.get(index, item) for index, item in enumerate(value)]
    return tuple(items) if type(value) is tuple else items


def _rewritten(spec: S, change: Callable[[Ref], Ref]) -> S:
    """The spec with a function applied to its Refs, except those inside unbuilt specs."""

    def go(value: Any, reader: Reader | None, path: Path) -> Any:
        if isinstance(value, Ref):
            return change(value)
        return value if keeps_specs(reader) else mapped_inside(value, go)

    return mapped_inside(spec, go)


def moved_in(value: Any, reader: Reader | None, path: Path) -> Any:
    """A value for a path of another spec: the Refs of specs in it still point at the same parts."""

    def move(whole: Any, known: Reader | None, at: Path) -> Any:
        if isinstance(whole, Ref) or keeps_specs(known):
            return whole
        return _rewritten(whole, lambda ref: Ref.to((*at, *ref.keys)) if _leads_inside(whole, ref) else ref)

    return mapped(value, move, reader, path)


def _leads_inside(whole: SpecData, ref: Ref) -> bool:
    try:
        locate(whole, ref, ())
    except ConfigError:
        return False
    return True


def moved_out(value: S, path: Path) -> S:
    """A part at a path as a separate spec: its internal Refs start at the part. The inverse of `moved_in`."""
    start = tuple(map(str, path))
    inside = len(start)

    def move(ref: Ref) -> Ref:
        is_below = len(ref.keys) > inside and ref.keys[:inside] == start
        return Ref.to(ref.keys[inside:]) if is_below else ref

    return _rewritten(value, move) if path else value


def put_in(value: Any, reader: Reader | None, path: Path) -> Any:
    """An argument as in a file, where the Refs of unbuilt specs start at the root. The inverse of `taken_out`."""

    def move(part: Any, known: Reader | None, at: Path) -> Any:
        is_moved = isinstance(part, SpecData) and keeps_specs(known)
        return _rewritten(part, lambda ref: Ref.to((*at, *ref.keys))) if is_moved else part

    found = mapped(value, move, reader, path)
    return value if found is value else freeze(found)


def taken_out(spec: S, report: Report, start: Path = (), path: Path = ()) -> S:
    """A spec of a file, in which the Refs of an unbuilt spec (at the path `start`) now start at that spec."""
    keys = tuple(map(str, start))

    def move(value: Any, reader: Reader | None, at: Path) -> Any:
        if isinstance(value, SpecData):
            return taken_out(value, report, at if keeps_specs(reader) else start, at)
        if value.keys[: len(keys)] != keys:
            message = f"the reference points out of /{'/'.join(keys)}, which is built separately"
            add_border(report, at, message, value)
            return value
        return Ref.to(value.keys[len(keys) :])

    return mapped_inside(spec, move, path)


def add_border(report: Report, path: Path, message: str, ref: Ref) -> None:
    expected = "the path of a part that is built together with this part"
    report.add("ref-border", path, message, expected=expected, got=shown(ref.path), hint=WRITE_OUT)

"""Specs compared and changed, by the paths of their parts.

Vocabulary
----------
path:   names and indices, written ``blocks.0.hidden`` or ``blocks[0].hidden``; ``*`` means each element.
change: one path at which two specs differ.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from declax._typing import MISSING
from declax.config._building import annotation_at, keeps_spec
from declax.config._data import FrozenDict, FrozenList, Ref, SpecData, key_like, key_of
from declax.config._parameters import RNGS
from declax.config._printing import short_text
from declax.config._refs import moved_in, moved_out
from declax.config._unions import element_annotation
from declax.config.problems import Path, did_you_mean, path_text
from declax.errors import ConfigError, ConstructionError, describe

S = TypeVar("S", bound=SpecData)

EACH: Final = "*"
_LISTS: Final = (tuple, FrozenList)
_STEP: Final = re.compile(
    r"""\.?(?P<name>[^.\[\]'"\s][^.\[\]]*) | \[(?P<index>\d+|\*)\] | \.?\[?(?P<quoted>'[^']*'|"[^"]*")\]?""", re.VERBOSE
)


def parse_path(text: str) -> tuple[str, ...]:
    """The names, indices and ``*`` of a written path.

    Raises:
      ConfigError: for what is no path.

    >>> parse_path("blocks[0].mixer.'a b'"), parse_path("blocks.*.hidden")
    (('blocks', '0', 'mixer', 'a b'), ('blocks', '*', 'hidden'))
    """
    keys: list[str] = []
    end, given = 0, str(text)
    while end < len(given):
        found = _STEP.match(given, end)
        if found is None or (end == 0 and given[0] == "."):
            break
        keys.append(found["name"] or found["index"] or found["quoted"][1:-1])
        end = found.end()
    if end < len(given) or not keys:
        raise ConfigError(
            "spec",
            f"{text!r} is no path of a part",
            expected="names and indices, such as blocks.0.hidden, blocks[0].hidden, or blocks.*.hidden",
        )
    return tuple(keys)


def get(spec: SpecData, text: str) -> Any:
    """The value at a path; see `Spec.__getitem__`."""
    value: Any = spec
    annotation: Any = Any
    path: Path = ()
    start = 0  # of the whole whose Refs those of the value are: a spec that is kept is one
    for key in parse_path(text):
        if key == EACH:
            raise ConfigError(
                _where(spec, path), "* means several parts, and one is asked for", fix=f"[spec[{text!r}] for ...]"
            )
        holder = value
        step, value = _child(spec, value, key, path)
        annotation = _annotation_below(holder, annotation, step)
        path = (*path, step)
        if isinstance(value, SpecData) and keeps_spec(annotation):
            start = len(path)
    return moved_out(value, path[start:]) if isinstance(value, SpecData) else value


def _annotation_below(value: Any, annotation: Any, key: str | int) -> Any:
    if isinstance(value, SpecData):
        return annotation_at(value.parameters, str(key))
    return element_annotation(annotation, value, key)


def _where(root: SpecData, path: Path) -> str:
    return f"{root.parameters.name}.{path_text(path)}" if path else root.parameters.name


def _child(root: SpecData, value: Any, key: str, path: Path) -> tuple[str | int, Any]:
    """The key as the value has it, and what is there."""
    if isinstance(value, SpecData):
        if value.parameters.get(key) is None or key not in (full := value.full_arguments):
            raise _no_parameter(root, value, key, path)
        return key, full[key]
    if type(value) in (tuple, FrozenList):
        if not key.isdecimal() or int(key) >= len(value):
            raise ConfigError(
                _where(root, path),
                f"there is no element {key!r}",
                expected=f"an index from 0 to {len(value) - 1}" if len(value) else "nothing, since it is empty",
            )
        return int(key), value[int(key)]
    if isinstance(value, FrozenDict):
        known = key_like(value, key)
        if known is None:
            hint = did_you_mean(key, map(str, value))
            problem = f"there is no key {key!r}" + (f"; {hint}" if hint else "")
            raise ConfigError(_where(root, path), problem, expected="one of " + ", ".join(map(repr, value)))
        return known, value[known]
    raise _no_parts(root, value, key, path)


def _no_parameter(root: SpecData, spec: SpecData, key: str, path: Path) -> ConstructionError:
    names = spec.parameters.by_name
    hint = did_you_mean(key, names)
    owner = spec.parameters.name
    if key == RNGS:
        problem = "rngs are no part of a spec; build takes them"
    elif key in names:
        problem = f"{owner} was given no {key!r}, and its default is no value of a spec"
    else:
        problem = f"{owner} has no parameter {key!r}" + (f"; {hint}" if hint else "")
    return ConstructionError(_where(root, path), problem, expected=", ".join(names) or "no arguments", got=key)


def _no_parts(root: SpecData, value: Any, key: str, path: Path) -> ConfigError:
    if isinstance(value, Ref):
        return ConfigError(
            _where(root, path),
            f"this is a Ref to another part, so that {key!r} is found there",
            got=repr(value),
            fix=f"the path {value.path[1:].replace('/', '.')}.{key}",
        )
    return ConfigError(_where(root, path), f"this value has no part {key!r}", got=short_text(value))


# --- replace ------------------------------------------------------------------


def replace(spec: S, changes: Mapping[str, object]) -> S:
    """The spec with other values at some paths; see `Spec.replace`."""
    found: Any = spec
    for text, value in changes.items():
        found = _replaced(spec, found, parse_path(text), (value, Any), ())
    made: S = found
    return made


def _replaced(root: SpecData, value: Any, keys: tuple[str, ...], change: tuple[object, Any], path: Path) -> Any:
    new, annotation = change
    if not keys:
        return moved_in(new, annotation, path)
    key, *rest = keys

    def go(step: str | int, inner: Any) -> Any:
        below = _annotation_below(value, annotation, step)
        return _replaced(root, inner, (*rest,), (new, below), (*path, step))

    if key == EACH and type(value) in (tuple, FrozenList, FrozenDict):
        steps: Iterable[tuple[str | int, Any]] = value.items() if isinstance(value, FrozenDict) else enumerate(value)
        return _with(value, {step: go(step, item) for step, item in steps})
    if isinstance(value, SpecData):
        if key == RNGS or value.parameters.get(key) is None:
            raise _no_parameter(root, value, key, path)
        inner = None if not rest else _child(root, value, key, path)[1]
        return value.with_arguments({**value.arguments, key: go(key, inner)})
    if isinstance(value, FrozenDict) and not rest:
        known = key_like(value, key)
        step = key if known is None else known
        return {**value, step: go(step, None)}
    step, inner = _child(root, value, key, path)
    return _with(value, {step: go(step, inner)})


def _with(value: Any, changed: Mapping[Any, Any]) -> Any:
    if isinstance(value, FrozenDict):
        return {**value, **changed}
    items = [changed.get(index, item) for index, item in enumerate(value)]
    return items if isinstance(value, FrozenList) else tuple(items)


# --- diff ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class SpecChange:
    """One difference of two specs.

    Attributes:
      path: where.
      old: the value in the first spec, defaults included; MISSING where it has none.
      new: the value in the second.
    """

    path: Path
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{path_text(self.path)}: {_side(self.old)} → {_side(self.new)}"


def _side(value: Any) -> str:
    return "(absent)" if value is MISSING else short_text(value)


class SpecDiff(tuple[SpecChange, ...]):
    """The differences of two specs, in the order of the parameters; prints one a line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__


def diff(old: SpecData, new: object) -> SpecDiff:
    """The differences of two specs; see `Spec.diff`."""
    if not isinstance(new, SpecData):
        raise ConfigError("Spec.diff", "a spec is compared with another", expected="a dx.Spec", got=describe(new))
    found: list[SpecChange] = []
    _compare((), old, new, found)
    return SpecDiff(found)


def _compare(path: Path, old: Any, new: Any, found: list[SpecChange]) -> None:
    if old is new or (old is not MISSING and new is not MISSING and key_of(old) == key_of(new)):
        return
    if isinstance(old, SpecData) and isinstance(new, SpecData) and old.target == new.target:
        _compare_entries(path, old.full_arguments, new.full_arguments, found)
    elif type(old) is type(new) and isinstance(old, _LISTS) and isinstance(new, _LISTS):
        _compare_entries(path, dict(enumerate(old)), dict(enumerate(new)), found)
    elif isinstance(old, FrozenDict) and isinstance(new, FrozenDict) and _same_order(old, new):
        _compare_entries(path, old, new, found)
    else:
        found.append(SpecChange(path, old, new))


def _compare_entries(path: Path, old: Mapping[Any, Any], new: Mapping[Any, Any], found: list[SpecChange]) -> None:
    for key in [*old, *(key for key in new if key not in old)]:
        _compare((*path, key), old.get(key, MISSING), new.get(key, MISSING), found)


def _same_order(old: FrozenDict[Any], new: FrozenDict[Any]) -> bool:
    return [key for key in old if key in new] == [key for key in new if key in old]

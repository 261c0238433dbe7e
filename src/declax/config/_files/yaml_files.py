"""Reads YAML by the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2, 10.3), with the parser of PyYAML."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any, Final

from declax.config._files.documents import MAX_DEPTH, TOO_DEEP, Document, Position, float_of, unreadable
from declax.config.problems import Path, shown
from declax.errors import ConfigError, MissingExtraError

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]+\Z")
_BASED: Final = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_SPECIAL: Final = re.compile(r"(?:([-+]?)\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")


def yaml_library(where: str) -> Any:
    """PyYAML; raises if it is not installed."""
    try:
        return importlib.import_module("yaml")
    except ImportError:
        raise MissingExtraError(
            where,
            "YAML files need PyYAML, which is not installed",
            fix='pip install "declax[yaml]"  # TOML and JSON need no extra',
        ) from None


def parse_yaml(text: str, name: str | None) -> Document:
    yaml = yaml_library(name or "YAML")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml gives the same events, faster
    composer = _Composer(yaml, name, yaml.parse(text, Loader=loader))
    try:
        data = composer.document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        position = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
        said = " ".join(filter(None, (getattr(error, "context", None), getattr(error, "problem", None))))
        message = f"not valid YAML: {said or getattr(error, 'reason', error)}"
        raise unreadable(name, message, position) from None
    return Document(name, data, find_places=lambda: composer.places)


class _Composer:
    def __init__(self, yaml: Any, name: str | None, events: Iterator[Any]) -> None:
        self.places: dict[Path, Position] = {}
        self._yaml = yaml
        self._name = name
        self._events = events

    def document(self) -> Any:
        """The data of the document; an empty table if the file is empty."""
        data: Any = {}
        documents = 0
        for event in self._events:
            if isinstance(event, self._yaml.NodeEvent):
                data = self._node(event, ())
            elif isinstance(event, self._yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refused("the file has two documents", (), event)
        return data

    def _refused(self, message: str, path: Path, event: Any, hint: str | None = None) -> ConfigError:
        return unreadable(self._name, message, _position(event), path=path, hint=hint)

    def _node(self, event: Any, path: Path) -> Any:
        if isinstance(event, self._yaml.CollectionStartEvent) and len(path) >= MAX_DEPTH:
            raise unreadable(self._name, TOO_DEEP, _position(event), hint="flatten them", code="too-deep")
        self.places.setdefault(path, _position(event))
        if isinstance(event, self._yaml.AliasEvent):
            hint = "write the value again, or { $ref: /path } for one object in two places"
            raise self._refused("YAML aliases are not allowed", path, event, hint)
        self._check_tag(event, path)
        if isinstance(event, self._yaml.ScalarEvent):
            return self._scalar(event, path)
        if isinstance(event, self._yaml.MappingStartEvent):
            return self._table(path)
        found: list[Any] = []
        while not isinstance(inner := next(self._events), self._yaml.SequenceEndEvent):
            found.append(self._node(inner, (*path, len(found))))
        return found

    def _table(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), self._yaml.MappingEndEvent):
            if not isinstance(event, self._yaml.ScalarEvent):
                raise self._refused("a key must be a string", path, event)
            self._check_tag(event, path)
            key = str(event.value)
            if key in found:
                raise self._refused("the key is given twice", (*path, key), event)
            self.places[(*path, key)] = _position(event)
            found[key] = self._node(next(self._events), (*path, key))
        return found

    def _scalar(self, event: Any, path: Path) -> Any:
        if not event.implicit[0]:  # in quotes
            return event.value
        try:
            return core_scalar(event.value)
        except ValueError as error:  # an int with more digits than Python accepts
            raise self._refused(f"not a number: {error}", path, event) from None

    def _check_tag(self, event: Any, path: Path) -> None:
        if event.tag is not None:
            hint = "write kind: NAME, with the name of an allowed class"
            raise self._refused(f"YAML tags are not allowed: {shown(event.tag)}", path, event, hint)


def _position(event: Any) -> Position:
    return event.start_mark.line + 1, event.start_mark.column + 1


def core_scalar(text: str) -> Any:
    """The value of a plain scalar by the core schema of YAML 1.2.

    >>> [core_scalar(text) for text in ("no", "1e-3", "0o17", "~", "1_000")]
    ['no', 0.001, 15, None, '1_000']
    """
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if text[0] not in "-+.0123456789":
        return text
    if _INT.match(text):
        return int(text)
    if _BASED.match(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    if _FLOAT.match(text):
        return float_of(text)
    if special := _SPECIAL.match(text):
        return float("nan") if special[1] is None else float(special[1] + "inf")
    return text

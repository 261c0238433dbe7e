"""YAML: the events of PyYAML, made into plain data by the rules of YAML 1.2.

PyYAML resolves plain scalars by YAML 1.1, where ``no`` is a bool and ``1e-3`` a string, and takes the last of two
equal keys. So only its parser is used, which gives text and places; what a scalar means is decided here, by the core
schema of YAML 1.2 (https://yaml.org/spec/1.2.2, section 10.3).

Vocabulary
----------
event:   the start or the end of a table or list, a scalar, or an alias.
anchor:  a name for a part of a file (``&block``) that aliases (``*block``) repeat. A repetition is a copy.
weight:  how many values a part has, those that aliases repeat counted each time.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from declax.config.files.documents import MAX_DEPTH, MAX_NODES, Document, float_of, too_deep, too_many
from declax.config.files.json_files import duplicate
from declax.config.problems import Path, Place, Problem, shown
from declax.errors import MissingExtraError

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]+\Z")
_BASED: Final = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_SPECIAL: Final = re.compile(r"(?:([-+]?)\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
_CORE: Final = "tag:yaml.org,2002:"
_TAGS: Final = {_CORE + word for word in ("str", "int", "float", "bool", "null", "map", "seq")}


class _StopError(Exception):
    """Ends the reading of a file at a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem


def parse_yaml(text: str, name: str | None) -> Document:
    """A document from the text of a YAML file; what is wrong with it is among its problems.

    Raises:
      MissingExtraError: PyYAML is not installed.
    """
    yaml: Any = _pyyaml(name or "YAML")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same events; the first is of libyaml, and quick
    composer = _Composer(yaml, name, yaml.parse(text, Loader=loader))
    try:
        data = composer.document()
    except yaml.YAMLError as error:
        return Document(name, None, [*composer.problems, _broken(error, name)])
    except _StopError as error:
        return Document(name, None, [*composer.problems, error.problem])
    return Document(name, data, composer.problems, lambda: composer.places)


def _pyyaml(where: str) -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError:
        raise MissingExtraError(
            where,
            "YAML files need PyYAML, which is not installed",
            fix='pip install "declax[yaml]"  # the extra `yaml`; TOML and JSON need none',
        ) from None


def _broken(error: Any, name: str | None) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = Place(name) if mark is None else Place(name, mark.line + 1, mark.column + 1)
    said = " ".join(str(part) for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part)
    hint = "indent with spaces" if "'\\t'" in said or "cannot start any token" in said else None
    return Problem("syntax", (), f"not valid YAML: {said or getattr(error, 'reason', error)}", hint=hint, place=place)


class _Composer:
    """Makes data of events.

    Attributes:
      problems: keys that are given twice.
      places: the line and column of each path; for a member of a table, those of its key.
    """

    def __init__(self, yaml: Any, name: str | None, events: Iterator[Any]) -> None:
        self.problems: list[Problem] = []
        self.places: dict[Path, tuple[int, int | None]] = {}
        self._yaml = yaml
        self._name = name
        self._events = events
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._total = 0

    def document(self) -> Any:
        """The data of the only document; an empty table where there is none."""
        data: Any = {}
        documents = 0
        for event in self._events:
            if isinstance(event, self._yaml.NodeEvent):
                data, _ = self._node(event, ())
            elif isinstance(event, self._yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._stop("syntax", "there are two documents in one file", (), event)
        return data

    def _stop(self, code: str, message: str, path: Path, event: Any, hint: str | None = None) -> NoReturn:
        raise _StopError(Problem(code, path, message, hint=hint, place=self._place(event)))

    def _place(self, event: Any) -> Place:
        return Place(self._name, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, path: Path) -> tuple[Any, int]:
        """A value, and its weight."""
        place = self._place(event)
        if isinstance(event, self._yaml.CollectionStartEvent) and len(path) >= MAX_DEPTH:
            raise _StopError(too_deep(path, place))
        self.places.setdefault(path, (event.start_mark.line + 1, event.start_mark.column + 1))
        if isinstance(event, self._yaml.AliasEvent):
            return self._alias(event, path)
        self._count(event, 1)
        self._check_tag(event, path)
        if isinstance(event, self._yaml.ScalarEvent):
            found: tuple[Any, int] = self._scalar(event, path), 1
        elif isinstance(event, self._yaml.MappingStartEvent):
            found = self._table(path)
        else:
            found = self._list(path)
        if event.anchor is not None:
            self._anchors[event.anchor] = found
        return found

    def _table(self, path: Path) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        weight = 1
        for event in self._events:
            if isinstance(event, self._yaml.MappingEndEvent):
                break
            inside = (*path, self._key(event, path))
            if event.value in found:
                self.problems.append(duplicate(inside, self.places[inside][0], self._place(event)))
            else:
                self.places.setdefault(inside, (event.start_mark.line + 1, event.start_mark.column + 1))
            value, inner = self._node(next(self._events), inside)
            found.setdefault(event.value, value)
            weight += inner
        return found, weight

    def _key(self, event: Any, path: Path) -> str:
        if not isinstance(event, self._yaml.ScalarEvent):
            is_alias = isinstance(event, self._yaml.AliasEvent)
            self._stop("syntax", "a key cannot be an alias" if is_alias else "a key must be a string", path, event)
        self._check_tag(event, path)
        self._count(event, 1)
        return str(event.value)

    def _list(self, path: Path) -> tuple[list[Any], int]:
        found: list[Any] = []
        weight = 1
        for event in self._events:
            if isinstance(event, self._yaml.SequenceEndEvent):
                break
            value, inner = self._node(event, (*path, len(found)))
            found.append(value)
            weight += inner
        return found, weight

    def _alias(self, event: Any, path: Path) -> tuple[Any, int]:
        if event.anchor not in self._anchors:
            message = f"the alias *{shown(event.anchor)[1:-1]} stands for nothing, or for a part that contains it"
            self._stop("alias", message, path, event, "write the anchor (&) first")
        found = self._anchors[event.anchor]
        self._count(event, 1 + found[1])
        return found

    def _scalar(self, event: Any, path: Path) -> Any:
        is_plain = event.implicit[0] and event.tag is None
        if not is_plain and event.tag in (None, _CORE + "str"):
            return event.value
        try:
            return core_scalar(event.value)
        except ValueError as error:  # an int of more digits than Python reads
            self._stop("syntax", f"not a number: {error}", path, event)

    def _count(self, event: Any, weight: int) -> None:
        self._total += weight
        if self._total > MAX_NODES:
            raise _StopError(too_many(self._place(event)))

    def _check_tag(self, event: Any, path: Path) -> None:
        if event.tag is not None and event.tag not in _TAGS:
            hint = "write kind: NAME, which is looked up among the classes that fit"
            self._stop("tag", f"a tag of YAML names no class here: {shown(event.tag)}", path, event, hint)


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

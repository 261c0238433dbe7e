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
from typing import Any, Final

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


def parse_yaml(text: str, name: str | None) -> Document:
    """A document from the text of a YAML file; what is wrong with it is among its problems.

    Raises:
      MissingExtraError: PyYAML is not installed.
    """
    yaml: Any = _pyyaml(name or "YAML")
    composer = _Composer(yaml, name)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same events; the first is of libyaml, and quick
    try:
        for event in yaml.parse(text, Loader=loader):
            if not composer.take(event):
                break
    except yaml.YAMLError as error:
        composer.problems.append(_broken(error, name))
        return Document(name, None, composer.problems)
    return Document(name, composer.data, composer.problems, lambda: composer.places)


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


class _Frame:
    """A table or list that is being filled."""

    __slots__ = ("anchor", "items", "key", "path", "weight")

    def __init__(self, items: dict[str, Any] | list[Any], path: Path, anchor: str | None) -> None:
        self.items = items
        self.path = path
        self.anchor = anchor
        self.key: str | None = None  # of a table: the key whose value comes next
        self.weight = 1


class _Composer:
    """Makes data of events, one after the other."""

    def __init__(self, yaml: Any, name: str | None) -> None:
        self.name = name
        self.data: Any = {}
        self.problems: list[Problem] = []
        self.places: dict[Path, tuple[int, int | None]] = {}
        self._frames: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._documents = 0
        self._total = 0
        self._actions = {
            yaml.ScalarEvent: self._scalar,
            yaml.AliasEvent: self._alias,
            yaml.MappingStartEvent: lambda event: self._start(event, {}),
            yaml.SequenceStartEvent: lambda event: self._start(event, []),
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.DocumentStartEvent: self._document,
        }

    def take(self, event: Any) -> bool:
        """Takes an event; False where the file is given up."""
        action = self._actions.get(type(event))
        return action is None or bool(action(event))

    def _give_up(self, problem: Problem) -> bool:
        self.problems.append(problem)
        self.data = None
        return False

    def _place(self, event: Any) -> Place:
        return Place(self.name, event.start_mark.line + 1, event.start_mark.column + 1)

    def _document(self, event: Any) -> bool:
        self._documents += 1
        if self._documents == 1:
            return True
        place = self._place(event)
        return self._give_up(Problem("syntax", (), "there are two documents in one file", place=place))

    def _start(self, event: Any, items: dict[str, Any] | list[Any]) -> bool:
        if len(self._frames) >= MAX_DEPTH:
            return self._give_up(too_deep(self._path(), self._place(event)))
        if not self._check_tag(event):
            return self._give_up(self._tagged(event))
        if self._awaits_key():
            return self._give_up(Problem("syntax", self._path(), "a key must be a string", place=self._place(event)))
        path = self._path()
        self._note(path, event)
        self._frames.append(_Frame(items, path, event.anchor))
        return self._count(event)

    def _end(self, event: Any) -> bool:
        frame = self._frames.pop()
        return self._put(frame.items, frame.weight, frame.anchor)

    def _alias(self, event: Any) -> bool:
        if self._awaits_key():
            return self._give_up(Problem("syntax", self._path(), "a key cannot be an alias", place=self._place(event)))
        if event.anchor not in self._anchors:
            message = f"the alias *{shown(event.anchor)[1:-1]} stands for nothing, or for a part that contains it"
            return self._give_up(
                Problem("alias", self._path(), message, hint="write the anchor (&) first", place=self._place(event))
            )
        value, weight = self._anchors[event.anchor]
        self._note(self._path(), event)
        self._total += weight
        return self._count(event) and self._put(value, weight, None)

    def _scalar(self, event: Any) -> bool:
        if not self._check_tag(event):
            return self._give_up(self._tagged(event))
        if self._awaits_key():
            return self._key(event)
        self._note(self._path(), event)
        is_plain = event.implicit[0] and event.tag is None
        try:
            value = core_scalar(event.value) if is_plain or event.tag not in (None, _CORE + "str") else event.value
        except ValueError as error:  # an int of more digits than Python reads
            return self._give_up(
                Problem("syntax", self._path(), f"this is no number: {error}", place=self._place(event))
            )
        return self._count(event) and self._put(value, 1, event.anchor)

    def _key(self, event: Any) -> bool:
        frame = self._frames[-1]
        path = (*frame.path, event.value)
        place = self._place(event)
        if event.value in frame.items:
            self.problems.append(duplicate(path, self.places[path][0], place))
        else:
            self._note(path, event)
        frame.key = event.value
        return self._count(event)

    def _awaits_key(self) -> bool:
        return bool(self._frames) and isinstance(self._frames[-1].items, dict) and self._frames[-1].key is None

    def _path(self) -> Path:
        if not self._frames:
            return ()
        frame = self._frames[-1]
        if isinstance(frame.items, list):
            return (*frame.path, len(frame.items))
        return frame.path if frame.key is None else (*frame.path, frame.key)

    def _note(self, path: Path, event: Any) -> None:
        if path not in self.places:  # those of the members of a table are the places of their keys
            self.places[path] = (event.start_mark.line + 1, event.start_mark.column + 1)

    def _put(self, value: Any, weight: int, anchor: str | None) -> bool:
        if anchor is not None:
            self._anchors[anchor] = (value, weight)
        if not self._frames:
            self.data = value
            return True
        frame = self._frames[-1]
        frame.weight += weight
        if isinstance(frame.items, list):
            frame.items.append(value)
        elif frame.key is not None:
            frame.items.setdefault(frame.key, value)
            frame.key = None
        return True

    def _count(self, event: Any) -> bool:
        self._total += 1
        return self._total <= MAX_NODES or self._give_up(too_many(self._place(event)))

    def _check_tag(self, event: Any) -> bool:
        return event.tag is None or event.tag in _TAGS

    def _tagged(self, event: Any) -> Problem:
        return Problem(
            "tag",
            self._path(),
            f"a tag of YAML names no class here: {shown(event.tag)}",
            hint="write kind: NAME, which is looked up among the classes that fit",
            place=self._place(event),
        )


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

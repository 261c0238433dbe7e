"""YAML: its reading, its places and its writing. None is ``null``.

YAML has the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2, 10.3), with the parser of PyYAML.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from declax.config._files.documents import (
    MAX_DEPTH,
    NUMBER_HINT,
    Document,
    float_of,
    problem_of_text,
    repeated_key,
    too_deep,
    unreadable,
)
from declax.config._files.scanning import Lines, Repeat, Scan
from declax.config.problems import Path, Problem, shown
from declax.errors import ConfigError, MissingExtraError

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]+\Z")
_BASED: Final = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_SPECIAL: Final = re.compile(r"(?:([-+]?)\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
_HINTS: Final = {
    "mapping values are not allowed": "a line of its own for each key; strings with a colon have quotes",
    "could not find expected ':'": "a : and a space behind the key",
    "did not find expected key": "the same indentation for all keys of a table",
    "expected <block end>": "the same indentation for all keys of a table",
    "expected ',' or": "a comma between two values, or a bracket that closes the value around them",
    "cannot start any token": "quotes around strings that start with @, `, % or a tab",
}
"""What fixes the errors of the parser, by words in them."""
_MAX_PROBLEMS: Final = 1000
_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


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
    """Reads a text; of a key that is given twice the first value counts, and a tag does not count."""
    scan = YamlScan(text, name)
    return Document(name, scan.data, scan.problems, find_places=lambda: scan.places, broken=scan.broken)


class YamlScan(Scan):
    """Reads a YAML text and notes its places.

    Attributes:
      data: of the first document; an empty table if it is empty.
      problems, broken: as in `Document`.
      blocks: where the first key of a table without braces is, and the first dash of a list without brackets.
    """

    def __init__(self, text: str, name: str | None = None) -> None:
        super().__init__(text)
        self.data: Any = {}
        self.problems: list[Problem] = []
        self.broken: set[Path] = set()
        self.blocks: dict[Path, int] = {}
        self._name = name
        self._lines = Lines(text)
        self._end = 0
        self._yaml = yaml_library(name or "YAML")
        # libyaml gives the same events, faster
        loader = getattr(self._yaml, "CSafeLoader", self._yaml.SafeLoader)
        self._events = self._yaml.parse(text, Loader=loader)
        try:
            self._documents()
        except self._yaml.YAMLError as error:
            raise self._wrong_syntax(error) from None

    def _documents(self) -> None:
        documents = 0
        for event in self._events:
            if isinstance(event, self._yaml.DocumentStartEvent):
                documents += 1
                if documents == 2:
                    message = "the file has two documents, of which only the first is read"
                    self._add(message, (), event, "remove the ---")
            elif isinstance(event, self._yaml.NodeEvent) and documents == 1:
                self.data = self._node(event, (), 0)

    def _wrong_syntax(self, error: Any) -> ConfigError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        said = " ".join(filter(None, (getattr(error, "context", None), getattr(error, "problem", None))))
        message, hint = said or str(getattr(error, "reason", error)), None
        position = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
        if isinstance(error, self._yaml.reader.ReaderError) and (found := _UNPRINTABLE.search(self.text)):
            message, hint = f"the control character {found[0]!a}", 'remove it, or write "\\x" and its number'
            position = self._lines.position(found.start())
        elif "quoted scalar" in message and "end of stream" in message:
            context = getattr(error, "context_mark", None)
            position = position if context is None else (context.line + 1, context.column + 1)
            message, hint = "the string is not closed", "a quote at its end"
        elif mark is not None and self.text[mark.index : mark.index + 1] == "\t":
            hint = "indent with spaces"
        else:
            hint = next((hint for words, hint in _HINTS.items() if words in message), None)
        return unreadable(self._name, problem_of_text(self._name, f"not valid YAML: {message}", position, hint=hint))

    def _add(self, message: str, path: Path | None, event: Any, hint: str | None = None) -> None:
        if path is not None and len(self.problems) < _MAX_PROBLEMS:
            position = self._lines.position(event.start_mark.index)
            self.problems.append(problem_of_text(self._name, message, position, path=path, hint=hint))

    def _node(self, event: Any, path: Path | None, depth: int) -> Any:
        """The value that starts with an event; places and problems are not noted if the path is None."""
        yaml, start = self._yaml, event.start_mark.index
        if isinstance(event, yaml.CollectionStartEvent) and depth >= MAX_DEPTH:
            raise too_deep(self._name, self._lines.position(start))
        if path is not None:
            self.starts.setdefault(path, start)
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias:
            hint = "write the value again, or { $ref: /path } for one object in two places"
            self._add("YAML aliases are not allowed", path, event, hint)
        else:
            self._check_tag(event, path)
        if path is not None and (is_alias or event.tag is not None):
            self.broken.add(path)
        self._end = event.end_mark.index
        value: Any = None
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, path)
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._table(path, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._list(path, depth)
        if isinstance(event, yaml.CollectionStartEvent) and path is not None and not event.flow_style:
            self.blocks[path] = start
        if path is not None:
            self.values[path] = start, self._end
        return value

    def _list(self, path: Path | None, depth: int) -> list[Any]:
        found: list[Any] = []
        for event in self._inside(self._yaml.SequenceEndEvent):
            inner = None if path is None else (*path, len(found))
            found.append(self._node(event, inner, depth + 1))
        return found

    def _table(self, path: Path | None, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for event in self._inside(self._yaml.MappingEndEvent):
            if not isinstance(event, self._yaml.ScalarEvent):
                self._add("a key must be a string", path, event)
                self._node(event, None, depth + 1)
                self._node(next(self._events), None, depth + 1)
                continue
            self._check_tag(event, path)
            key = str(event.value)
            inner = None if path is None else (*path, key)
            if key in found:
                self._repeat(inner, event)
                self._node(next(self._events), None, depth + 1)
                continue
            if inner is not None:
                self.starts[inner] = event.start_mark.index
                self.keys.append((inner, event.start_mark.index, event.end_mark.index))
            found[key] = self._node(next(self._events), inner, depth + 1)
        return found

    def _inside(self, end: Any) -> Iterator[Any]:
        """The events in a table or list, which ends at its bracket, or else at its last value."""
        for event in self._events:
            if isinstance(event, end):
                start, stop = event.start_mark.index, event.end_mark.index
                self._end = stop if self.text[start:stop] in ("]", "}") else self._end
                return
            yield event

    def _repeat(self, path: Path | None, event: Any) -> None:
        if path is not None and len(self.problems) < _MAX_PROBLEMS:
            start = event.start_mark.index
            self.repeats.append(Repeat(path, start, (start, event.end_mark.index), path))
            first = self._lines.position(self.starts[path])
            self.problems.append(repeated_key(self._name, path, self._lines.position(start), first))

    def _scalar(self, event: Any, path: Path | None) -> Any:
        if event.style:  # in quotes, or in lines of its own
            return event.value
        try:
            return core_scalar(event.value)
        except ValueError as error:  # also an int with more digits than Python accepts
            self._add(f"not a number: {error}", path, event, NUMBER_HINT)
            if path is not None:
                self.broken.add(path)
            return None

    def _check_tag(self, event: Any, path: Path | None) -> None:
        if event.tag is not None:
            hint = "write kind: NAME, with the name of an allowed class"
            self._add(f"YAML tags are not allowed: {shown(event.tag)}", path, event, hint)


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


# --- writing --------------------------------------------------------------------


def format_yaml(data: Mapping[str, Any]) -> str:
    """YAML in blocks; quotes strings that any version of YAML could read as another type.

    >>> print(format_yaml({"kind": "Net", "parts": [{"kind": "A", "on": "no"}, "1e3"]}), end="")
    kind: Net
    parts:
    - kind: A
      'on': 'no'
    - "1e3"
    """
    return dumped(data, flow=False)


def dumped(data: Any, *, flow: bool) -> str:
    """Data as YAML, in blocks or with brackets in one line."""
    yaml = yaml_library("YAML")
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})
    dumper.add_representer(str, _yaml_string)
    text: str = yaml.dump(
        data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=math.inf, default_flow_style=flow
    )
    return text


def _yaml_string(dumper: Any, text: str) -> Any:
    # PyYAML quotes only what YAML 1.1 reads as a number, and folds lines in single quotes
    is_quoted = text[:1] in "-+.0123456789" or not text.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if is_quoted else None)

"""Reads TOML, JSON and YAML files into documents; a file that cannot be parsed is one error.

YAML has the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2, 10.3), with the parser of PyYAML.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import importlib
import itertools
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from declax.config._files.bounded_json import TOO_MUCH, takes_too_much
from declax.config._files.documents import MAX_BYTES, MAX_DEPTH, TOO_DEEP, Document, Position, float_of, unreadable
from declax.config.problems import Path as KeyPath
from declax.config.problems import did_you_mean, shown
from declax.errors import ConfigError, MissingExtraError

_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_QUOTES: Final = "strings need quotes, bools are true and false, and TOML has no null"


def read_document(path: str | os.PathLike[str]) -> Document:
    """Reads a file; its suffix selects the format."""
    name = os.fspath(path)
    parse = _PARSERS.get(Path(name).suffix.lower())
    if parse is None:
        hint = did_you_mean(Path(name).suffix.lower(), FORMATS)
        raise ConfigError(name, "unknown suffix of a configuration file", expected=", ".join(FORMATS), fix=hint)
    try:
        with open(name, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(name, "the file cannot be read", why=str(error)) from None
    if len(content) > MAX_BYTES:
        raise ConfigError(
            name,
            "the file is too large for a configuration",
            expected=f"at most {MAX_BYTES // 1024} KiB",
            fix="keep data in separate files, and name those here",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise unreadable(name, f"the file is not UTF-8: {error.reason}", (line, None)) from None
    found = parse(text, name)
    found.file = name
    return found


def read_text(text: str, name: str | None, suffix: str) -> Document:
    """Reads a text in the format of a suffix."""
    parse = _PARSERS.get(suffix.lower())
    if parse is None:
        raise ConfigError(name or "the configuration", "unknown format", expected=", ".join(FORMATS), got=suffix)
    return parse(text, name)


def parse_toml(text: str, name: str | None) -> Document:
    text = text.replace("\r\n", "\n")
    try:
        data = None if has_long_key(text) else tomllib.loads(text, parse_float=float_of)
    except RecursionError:
        data = None
    except ValueError as error:  # also an int with more digits than Python accepts
        message = str(error)
        position: Position = (None, None)
        if found := _AT.search(message):
            position = (int(found[1]), int(found[2])) if found[1] else (text.rstrip().count("\n") + 1, None)
        hint = _QUOTES if message.startswith("Invalid value") else None
        raise unreadable(name, f"not valid TOML: {_AT.sub('', message)}", position, hint=hint) from None
    if data is None or _is_too_deep(data):
        raise unreadable(name, TOO_DEEP, hint="flatten them", code="too-deep")
    return Document(name, data, find_places=lambda: Scan(text).places)


def parse_json(text: str, name: str | None) -> Document:
    repeated: list[dict[str, Any]] = []

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            repeated.append(made)
        return made

    data: object = None
    is_too_deep = True
    if takes_too_much(text.encode(errors="surrogatepass")):
        raise unreadable(name, TOO_MUCH)
    try:
        data = json.loads(text, object_pairs_hook=table, parse_float=float_of)
        is_too_deep = _is_too_deep(data)
    except RecursionError:
        pass
    except ValueError as error:
        position: Position = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (None, None)
        raise unreadable(name, f"not valid JSON: {getattr(error, 'msg', error)}", position) from None
    if is_too_deep:
        raise unreadable(name, TOO_DEEP, hint="flatten them", code="too-deep")
    if repeated:
        path, position = Scan(text, is_json=True).repeated
        raise unreadable(name, "the key is given twice", position, path=path)
    return Document(name, data, find_places=lambda: Scan(text, is_json=True).places)


def _is_too_deep(data: object) -> bool:
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        tables = [value for value in level if isinstance(value, (dict, list))]
        level = [inner for value in tables for inner in (value.values() if isinstance(value, dict) else value)]
    return bool(level)


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
        self.places: dict[KeyPath, Position] = {}
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

    def _refused(self, message: str, path: KeyPath, event: Any, hint: str | None = None) -> ConfigError:
        return unreadable(self._name, message, _position(event), path=path, hint=hint)

    def _node(self, event: Any, path: KeyPath) -> Any:
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

    def _table(self, path: KeyPath) -> dict[str, Any]:
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

    def _scalar(self, event: Any, path: KeyPath) -> Any:
        if not event.implicit[0]:  # in quotes
            return event.value
        try:
            return core_scalar(event.value)
        except ValueError as error:  # an int with more digits than Python accepts
            raise self._refused(f"not a number: {error}", path, event) from None

    def _check_tag(self, event: Any, path: KeyPath) -> None:
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


_PARSERS: Final[Mapping[str, Callable[[str, str | None], Document]]] = {
    ".toml": parse_toml,
    ".json": parse_json,
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
}

FORMATS: Final = tuple(_PARSERS)
"""The suffixes of files that can be read."""


# --- places: one pass over the tokens, when the first problem needs a place --------

MAX_TOKENS: Final = 200_000
"""The number of tokens that are searched for places; later values get the place of a part around them."""

# An unclosed string ends at the end of its line or of the text, so the scan is linear.
# Groups are not possessive, since Python before 3.11.5 has a bug in backtracking over these.
_TEXT: Final = r'[^"\\]*+(?:\\.[^"\\]*+)*'
_SKIPPED: Final = (
    r"\#[^\n]*+",
    rf'"""{_TEXT}(?:"(?!""){_TEXT})*"{{0,5}}',
    r"'''[^']*+(?:'(?!'')[^']*+)*'{0,5}",
    r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"?',
    r"'[^'\n]*+'?",
)
_COMMENTS_AND_STRINGS: Final = re.compile("|".join(_SKIPPED), re.DOTALL)
_TOKENS: Final = re.compile(
    "|".join((*_SKIPPED, r"[A-Za-z0-9_-]++", r"[\[\]{}=,.\n]", r"[^\s\w\[\]{}=,.\#\"'-]++")), re.DOTALL
)
_LONG_KEY: Final = re.compile(rf'(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"")[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}')


def has_long_key(text: str) -> bool:
    """Whether a TOML text has a dotted key that is too deep; the parser is slow for these."""
    if text.count(".") < MAX_DEPTH:
        return False
    return _LONG_KEY.search(_COMMENTS_AND_STRINGS.sub('""', text)) is not None


class Scan:
    """The positions of the values in a text that a parser has accepted."""

    def __init__(self, text: str, *, is_json: bool = False) -> None:
        self.places: dict[KeyPath, Position] = {(): (1, 1)}
        self.keys: list[tuple[KeyPath, int, int]] = []  # each key that is written, with its start and end in the text
        self.repeated: tuple[KeyPath, Position] = ((), (None, None))
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        found = itertools.islice(_TOKENS.finditer(text), MAX_TOKENS)
        self._tokens = [(token[0], token.start()) for token in found if token[0][0] != "#"]
        self._i = 0
        self._unnoted: collections.deque[tuple[str, int]] = collections.deque()
        self._last_items: dict[KeyPath, int] = {}  # the index of the last table of each list of tables
        with contextlib.suppress(IndexError):  # the tokens end
            self._value(()) if is_json else self._statements()

    def _next(self) -> tuple[str, int]:
        self._i += 1
        return self._tokens[self._i - 1]

    def _note(self, path: KeyPath, start: int, known: int = 0) -> None:
        """Records the position of a path, and of the tables that a dotted key creates above it."""
        line = bisect.bisect_right(self._starts, start)
        position = line, start - self._starts[line - 1] + 1
        if path in self.places and not self.repeated[0]:
            self.repeated = path, position
        for size in range(known + 1, len(path) + 1):
            self.places.setdefault(path[:size], position)

    def _statements(self) -> None:
        table: KeyPath = ()
        while True:
            token, start = self._next()
            if token == "[":
                table = self._header(start)
            elif token != "\n":
                self._i -= 1
                self._member(table)

    def _header(self, start: int) -> KeyPath:
        is_list = self._tokens[self._i][0] == "["
        self._i += is_list
        *above, last = self._keys("]")
        self._i += is_list
        path: KeyPath = ()
        for key in above:
            path = (*path, key)
            self._note_key(path)
            if path in self._last_items:
                path = (*path, self._last_items[path])
        path = (*path, last)
        self._note_key(path)
        if is_list:
            self._note(path, start)
            self._last_items[path] = self._last_items.get(path, -1) + 1
            path = (*path, self._last_items[path])
        self._note(path, start)
        return path

    def _member(self, table: KeyPath) -> None:
        start = self._tokens[self._i][1]
        path = (*table, *self._keys("=:"))
        for size in range(len(table) + 1, len(path) + 1):
            self._note_key(path[:size])
        self._note(path, start, len(table))
        self._value(path)

    def _keys(self, end: str) -> list[str]:
        """The parts of a dotted key; consumes the token that ends it."""
        keys: list[str] = []
        while (token := self._next())[0] not in end:
            if token[0] not in ".\n":
                keys.append(_unquoted(token[0]))
                self._unnoted.append(token)
        return keys

    def _note_key(self, path: KeyPath) -> None:
        """Records where the next of the keys that were read is written."""
        token, start = self._unnoted.popleft()
        self.keys.append((path, start, start + len(token)))

    def _value(self, path: KeyPath) -> None:
        while (token := self._next()[0]) == "\n":
            pass
        if token == "[":
            self._list(path)
        elif token == "{":
            while (token := self._next()[0]) != "}":
                if token not in ",\n":
                    self._i -= 1
                    self._member(path)
        else:
            while self._tokens[self._i][0] not in "]},\n":
                self._i += 1

    def _list(self, path: KeyPath) -> None:
        index = 0
        while True:
            token, start = self._next()
            if token == "]":
                return
            if token == ",":
                index += 1
            elif token != "\n":
                self._note((*path, index), start, len(path))
                self._i -= 1
                self._value((*path, index))


def _unquoted(token: str) -> str:
    if token[0] not in "\"'":
        return token
    if token[0] == "'" or "\\" not in token:
        return token[1:-1]
    try:
        found: str = json.loads(token)
    except ValueError:  # an escape of TOML
        found = tomllib.loads(f"key = {token}")["key"]
    return found

"""TOML: the values by the standard library, the places by a scan of the text where they are needed.

The standard library stops at a key that is given twice. The scan finds all of these, and takes the second ones out, so
that a report names what else is wrong.

Vocabulary
----------
token:     a string, a bare key, a bracket or another mark; spaces and comments are none.
statement: a header in brackets, or a key with its value.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import tomllib
from typing import Any, Final

from declax.config.files.documents import MAX_DEPTH, Document, float_of, too_deep
from declax.config.files.json_files import MAX_TOKENS, Lines, duplicate
from declax.config.problems import Path, Place, Problem

# Groups are not possessive: Python before 3.11.5 forgets where such a one began when it cannot go on.
_TEXT: Final = r'[^"\\]*+(?:\\.[^"\\]*+)*'
_STRINGS: Final = (
    rf'"""{_TEXT}(?:"(?!""){_TEXT})*"{{3,5}}',
    r"'''[^']*+(?:'(?!'')[^']*+)*'{3,5}",
    r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*"',
    r"'[^'\n]*+'",
)
_TOKENS: Final = re.compile(
    "|".join(
        (
            r"(?P<comment>\#[^\n]*+)",
            *_STRINGS,
            r"[A-Za-z0-9_-]++",
            r"[\[\]{}=,.\n]",
            r"[^\s\w\[\]{}=,.\#\"'-]++",
            r"[\"']",
        )
    ),
    re.DOTALL,
)
_PART: Final = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY: Final = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}\.[ \t]*+){{{MAX_DEPTH}}}")
_MOST_BROKEN: Final = 8
_MENDED_CHARACTERS: Final = 200_000
_POSITION: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def parse_toml(text: str, name: str | None) -> Document:
    """A document from the text of a TOML file; what is wrong with it is among its problems."""
    text = text.replace("\r\n", "\n")
    if _may_have_long_keys(text):
        scan = _Scan(text)
        if scan.is_too_deep or scan.is_cut:
            return Document(name, None, [too_deep((), Place(name, *scan.lines.place(scan.at)))])
    try:
        return Document(name, tomllib.loads(text, parse_float=float_of), find_places=lambda: _Scan(text).places)
    except tomllib.TOMLDecodeError as error:
        return _mended(text, name, error)
    except RecursionError:
        return Document(name, None, [too_deep((), Place(name, *_place_of_depth(text)))])
    except ValueError as error:  # an int of more digits than Python reads
        return Document(name, None, [Problem("syntax", (), f"this is no TOML: {error}", place=Place(name))])


def _place_of_depth(text: str) -> tuple[int | None, int | None]:
    scan = _Scan(text)
    return scan.lines.place(scan.at) if scan.is_too_deep else (None, None)


def _mended(text: str, name: str | None, error: tomllib.TOMLDecodeError) -> Document:
    """What can be read of a file in which keys are given twice, or single lines are broken."""
    scan = _Scan(text)
    problems = [duplicate(path, first, Place(name, *place)) for path, first, place in scan.repeated]
    rest = scan.repaired()
    broken: list[Problem] = []
    for _ in range(_MOST_BROKEN if len(text) <= _MENDED_CHARACTERS else 1):
        try:
            data = tomllib.loads(rest, parse_float=float_of)
        except tomllib.TOMLDecodeError as again:
            broken.append(_broken(again, rest, name))
            shorter = _without_line(rest, broken[-1].place.line)
            if shorter is None:
                break
            path = scan.path_at(broken[-1].place.line or 1)
            broken[-1] = dataclasses.replace(broken[-1], path=path)
            rest = shorter
        except ValueError as again:
            broken.append(_broken(again, rest, name))
            break
        else:
            for path in scan.aside:
                _drop(data, path)
            return Document(name, data, [*problems, *broken], lambda: scan.places, frozenset(p.path for p in broken))
    first = broken[0] if broken else _broken(error, text, name)
    return Document(name, None, [*problems, first])


def _drop(data: Any, path: Path) -> None:
    """Takes out what was put aside, where it is still there."""
    *outer, last = path
    for key in outer:
        is_there = key in data if isinstance(data, dict) else isinstance(data, list) and int(key) < len(data)
        if not is_there:
            return
        held: Any = data
        data = held[key]
    if isinstance(data, dict):
        data.pop(last, None)


def _without_line(text: str, number: int | None) -> str | None:
    """A text with one line made empty; None where that cannot leave the rest as it is."""
    lines = text.split("\n")
    line = "" if number is None else lines[number - 1].strip()
    if number is None or not line or line.startswith(("[", "]", "}")):
        return None
    lines[number - 1] = ""
    return "\n".join(lines)


def _broken(error: Exception, text: str, name: str | None) -> Problem:
    message = str(error)
    found = _POSITION.search(message)
    line = int(found[1]) if found and found[1] else None
    column = int(found[2]) if found and found[2] else None
    hint = None
    if line is not None:
        written = text.split("\n")[line - 1]
        value = written.partition("=")[2].strip()
        if re.match(r"(True|False)\b", value):
            hint = f"{written.partition('=')[0].strip()} = {value.lower()}"
        elif re.match(r"(None|null|nil)\b", value):
            hint = "TOML has no null: leave the key out where None is the default"
        elif re.fullmatch(r"[A-Za-z_][\w./-]*", value):
            hint = f'text stands in quotes: {written.partition("=")[0].strip()} = "{value}"'
        elif ":" in written and "=" not in written:
            hint = "TOML writes key = value"
    elif found:
        line = text.rstrip().count("\n") + 1
    said = _POSITION.sub("", message)
    return Problem("syntax", (), f"this is no TOML: {said}", hint=hint, place=Place(name, line, column))


def _may_have_long_keys(text: str) -> bool:
    """Whether there may be a dotted key of more parts than tables may be deep, for which parsers take long."""
    if text.count(".") < MAX_DEPTH:
        return False
    return any(line.count(".") >= MAX_DEPTH and _LONG_KEY.search(line) for line in text.split("\n"))


@dataclasses.dataclass(slots=True)
class _Frame:
    """A list (with the next index) or an inline table (with -1) that the scan is inside of."""

    path: Path
    index: int


class _Scan:
    """One pass over the tokens of a TOML file.

    Attributes:
      places: the line and column of each path.
      repeated: the paths that are given twice, the line of the first, the place of the second.
      repairs: stretches of the text that must change for the rest to be read, with what stands in their place.
      aside: the paths that repeated tables, and repeated values of inline tables, are put aside under.
      headers: the line and the path of each header.
      is_cut: whether there were more tokens than are looked at.
      is_too_deep: whether tables and lists are nested too deeply; the scan ends at `at` then.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = Lines(text)
        self.places: dict[Path, tuple[int, int | None]] = {(): (1, 1)}
        self.repeated: list[tuple[Path, int, tuple[int, int | None]]] = []
        self.repairs: list[tuple[int, int, str]] = []
        self.aside: list[Path] = []
        self.is_too_deep = False
        self.headers: list[tuple[int, Path]] = []
        found = _TOKENS.finditer(text)
        self._tokens = [(t[0], t.start(), t.end()) for t in itertools.islice(found, MAX_TOKENS) if t.lastgroup is None]
        self.is_cut = next(found, None) is not None
        self._tokens.append(("\n", len(text), len(text)))
        self.at = 0
        self._i = 0
        self._counts: dict[Path, int] = {}  # the index of the last table of each list of tables
        self._values: set[Path] = set()
        self._tables: set[Path] = set()
        self._aside_names: set[str | int] = set()
        self._run()

    def repaired(self) -> str:
        """The text, with what is given twice taken out; no line moves."""
        parts, at = [], 0
        for start, end, stand_in in self.repairs:
            parts += [self.text[at:start], stand_in]
            at = end
        return "".join([*parts, self.text[at:]])

    def path_at(self, line: int) -> Path:
        """The path of the value in a line that may be broken."""
        table = next((path for start, path in reversed(self.headers) if start < line), ())
        key = re.match(r"\s*([A-Za-z0-9_-]+)", self.text.split("\n")[line - 1])
        return table if key is None else (*table, key[1])

    def _run(self) -> None:
        table: Path = ()
        while self._i < len(self._tokens) and not self.is_too_deep:
            token, start, _ = self._tokens[self._i]
            if token == "\n":
                self._i += 1
            elif token == "[":
                table = self._header(start)
            else:
                self._pair(table, start)

    def _keys(self) -> list[str]:
        """A dotted key, up to what is no part of one."""
        keys: list[str] = []
        is_dot = True
        while True:
            token = self._tokens[self._i][0]
            if is_dot and (
                token[0] in "\"'" or token.replace("_", "").replace("-", "").isalnum() or token in ("-", "_")
            ):
                keys.append(_unquoted(token))
            elif is_dot or token != ".":
                break
            is_dot = not is_dot
            self._i += 1
            if len(keys) > MAX_DEPTH:
                self.is_too_deep, self.at = True, self._tokens[self._i][1]
                break
        return keys

    def _skip_line(self) -> None:
        while self._tokens[self._i][0] != "\n":
            self._i += 1

    def _resolved(self, table: Path, keys: list[str]) -> Path:
        """The path of keys, those of lists of tables followed by the index of their last table."""
        for key in keys:
            table = (*table, key)
            if table in self._counts:
                table = (*table, self._counts[table])
        return table

    def _header(self, start: int) -> Path:
        line, column = self.lines.place(start)
        self._i += 1
        is_list = self._tokens[self._i][:2] == ("[", start + 1)
        self._i += is_list
        keys = self._keys()
        end = self._tokens[self._i][2] + is_list
        path = self._resolved((), keys[:-1])
        path = (*path, *keys[-1:])
        self._skip_line()
        if is_list and path not in self._values:
            self._counts[path] = self._counts.get(path, -1) + 1
            self.places.setdefault(path, (line, column))
            path = (*path, self._counts[path])
        elif path in self._tables or path in self._values or path in self._counts:
            self._repeat(path, (line, column))
            path = self._put_aside((), start, end, "[{}]")
        self._tables.add(path)
        self.headers.append((line, path))
        self.places.setdefault(path, (line, column))
        return path

    def _put_aside(self, table: Path, start: int, end: int, form: str) -> Path:
        """Has a name that nothing else has stand for a key that is given twice; the path of what it names."""
        name = f"given twice {len(self.aside)}"
        self.repairs.append((start, end, form.format(f'"{name}"')))
        self.aside.append((*table, name))
        self._aside_names.add(name)
        return self.aside[-1]

    def _repeat(self, path: Path, place: tuple[int, int | None]) -> None:
        if not self._aside_names.isdisjoint(path):
            return  # what stands in a value that is left out
        self.repeated.append((path, self.places.get(path, place)[0], place))

    def _pair(self, table: Path, start: int) -> None:
        keys = self._keys()
        if not keys or self._tokens[self._i][0] != "=":
            self._skip_line()
            return
        self._i += 1
        path = self._resolved(table, keys)
        is_repeated = self._define(path, len(table), self.lines.place(start))
        count, repairs = len(self.repeated), len(self.repairs)
        self._value(path)
        self._skip_line()
        if is_repeated:
            del self.repeated[count:], self.repairs[repairs:]  # what stands in a value that is left out
            end = self._tokens[self._i - 1][2]
            self.repairs.append((start, end, "\n" * self.text.count("\n", start, end)))

    def _define(self, path: Path, base: int, place: tuple[int, int]) -> bool:
        """Notes a key and its place; whether it was there before."""
        is_repeated = path in self._values or path in self._tables
        if is_repeated:
            self._repeat(path, place)
        for length in range(base + 1, len(path)):
            self.places.setdefault(path[:length], place)
        self.places.setdefault(path, place)
        self._values.add(path)
        return is_repeated

    def _value(self, path: Path) -> None:
        """Passes over a value, and notes what is inside."""
        frames: list[_Frame] = []
        last = len(self._tokens) - 1
        while True:
            token, start, _ = self._tokens[self._i]
            if token == "\n" and (not frames or self._i == last):
                return
            if frames and token not in "]},\n":
                frame = frames[-1]
                if frame.index < 0:
                    keys = self._keys()
                    if not keys or self._tokens[self._i][0] != "=":
                        self._i += not keys
                        continue
                    path = (*frame.path, *keys)
                    if self._define(path, len(frame.path), self.lines.place(start)):
                        path = self._put_aside(frame.path, start, self._tokens[self._i - 1][2], "{}")
                    self._i += 1
                    token, start, _ = self._tokens[self._i]
                    if self._i == last:
                        return
                else:
                    path = (*frame.path, frame.index)
                    self.places.setdefault(path, self.lines.place(start))
            if token in "[{":
                if len(path) + 1 > MAX_DEPTH:
                    self.is_too_deep, self.at = True, start
                    return
                frames.append(_Frame(path, 0 if token == "[" else -1))
            elif token in "]}":
                if frames:
                    frames.pop()
            elif token == ",":
                if frames and frames[-1].index >= 0:
                    frames[-1].index += 1
            self._i += 1
            if not frames:
                return
            self._rest_of_scalar(token)

    def _rest_of_scalar(self, token: str) -> None:
        """Passes over what follows the first token of a number or date, such as its fraction."""
        if token in "[]{},\n":
            return
        while self._tokens[self._i][0] not in "]},\n":
            self._i += 1


def _unquoted(token: str) -> str:
    if token[0] == "'":
        return token[1:-1]
    if token[0] != '"':
        return token
    try:
        found: str = tomllib.loads(f"key = {token}")["key"]
    except ValueError:  # a broken escape; the parser has named it
        return token[1:-1]
    return found

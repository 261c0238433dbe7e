"""TOML: the values by the standard library, the places by a scan of the text where they are needed.

The standard library stops at the first mistake. The scan finds the statements: those that are wrong are reported and
left out, and the rest is read. After a statement that does not end nothing is read.

Vocabulary
----------
token:     a string, a bare key, a bracket or another mark; spaces and comments are none.
statement: a header in brackets, or a key with its value; it occupies whole lines.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator
from typing import Final, NamedTuple

from declax.config.files.documents import MAX_DEPTH, Document, float_of, too_deep
from declax.config.files.json_files import MAX_TOKENS, Lines, duplicate
from declax.config.problems import Path, Place, Problem

# Groups are not possessive: Python before 3.11.5 forgets where such a one began when it cannot go on.
_TEXT: Final = r'[^"\\]*+(?:\\.[^"\\]*+)*'
_STRINGS: Final = (
    rf'"""{_TEXT}(?:"(?!""){_TEXT})*"{{3,5}}',
    r"'''[^']*+(?:'(?!'')[^']*+)*'{3,5}",
    r"\"\"\"|'''",  # of a string that is not closed
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
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_OPEN_STRINGS: Final = ('"""', "'''")
_MOST_BROKEN: Final = 8
_POSITION: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def parse_toml(text: str, name: str | None) -> Document:
    """A document from the text of a TOML file; what is wrong with it is among its problems."""
    text = text.replace("\r\n", "\n")
    if _may_have_long_keys(text):
        scan = _Scan(text, name)
        if scan.is_cut or scan.is_too_deep:
            return Document(name, None, [scan.fault or too_deep((), Place(name))])
    try:
        return Document(name, tomllib.loads(text, parse_float=float_of), find_places=lambda: _Scan(text, name).places)
    except RecursionError:
        return Document(name, None, [_Scan(text, name).fault or too_deep((), Place(name))])
    except ValueError as error:  # also an int of more digits than Python reads
        return _recovered(text, name, error)


def _recovered(text: str, name: str | None, error: ValueError) -> Document:
    """What can be read of a file with mistakes; nothing where the tables or their ends are not known."""
    scan = _Scan(text, name)
    if scan.is_cut:
        return Document(name, None, [_broken(error, text, name)])
    lines = text.split("\n")
    problems: list[Problem] = []
    broken: set[Path] = set()
    is_lost = scan.fault is not None
    for statement, problem in itertools.islice(_wrong_statements(scan, lines, name), _MOST_BROKEN):
        problems.append(problem)
        if problem.code == "syntax":
            is_lost = is_lost or statement.is_header
            broken.update(statement.path[:size] for size in range(1, len(statement.path) + 1))
    problems += [scan.fault] if scan.fault is not None else []
    if is_lost or len(problems) >= _MOST_BROKEN:
        return Document(name, None, problems)
    try:
        data = tomllib.loads("\n".join(lines), parse_float=float_of)
    except ValueError as again:  # a table and a value of one name, in other ways than the scan looks for
        return Document(name, None, [*problems, _broken(again, "\n".join(lines), name)])
    return Document(name, data, problems, lambda: scan.places, frozenset(broken))


class _Statement(NamedTuple):
    """A header, or a key with its value.

    Attributes:
      path: of the table or value; the empty one where there is no key.
      first, last: its lines.
      column: where it begins.
      given: the line of an earlier statement with the same path, or None.
      is_header: whether it is a header.
    """

    path: Path
    first: int
    last: int
    column: int
    given: int | None
    is_header: bool


def _wrong_statements(scan: _Scan, lines: list[str], name: str | None) -> Iterator[tuple[_Statement, Problem]]:
    """The statements that cannot be read, which are taken out of the lines.

    With a table that is given twice go its statements.
    """
    is_left_out = False
    for statement in scan.statements:
        if statement.is_header:
            is_left_out = statement.given is not None
        text = "\n".join(lines[statement.first - 1 : statement.last])
        problem = None
        if statement.given is not None:
            problem = duplicate(statement.path, statement.given, Place(name, statement.first, statement.column))
        elif not is_left_out:
            problem = _problem_of(text, statement, name)
        if is_left_out or problem is not None:
            lines[statement.first - 1 : statement.last] = [""] * (statement.last + 1 - statement.first)
        if problem is not None and (statement.is_header or not is_left_out):
            yield statement, problem


def _problem_of(text: str, statement: _Statement, name: str | None) -> Problem | None:
    """What is wrong with the text of one statement."""
    try:
        tomllib.loads(text, parse_float=float_of)
    except ValueError as error:
        return _broken(error, text, name, statement)
    return None


def _broken(error: Exception, text: str, name: str | None, statement: _Statement | None = None) -> Problem:
    """The problem of an error of the standard library, in a whole text or in that of one statement."""
    first, last = (1, text.rstrip().count("\n") + 1) if statement is None else (statement.first, statement.last)
    line: int | None = None if statement is None else first
    column: int | None = None
    if (found := _POSITION.search(str(error))) is not None:
        line, column = (first - 1 + int(found[1]), int(found[2])) if found[1] else (last, None)
    hint = _hint(text.split("\n")[line - first]) if line is not None else None
    message = f"not valid TOML: {_POSITION.sub('', str(error))}"
    path = () if statement is None else statement.path
    return Problem("syntax", path, message, hint=hint, place=Place(name, line, column))


def _hint(written: str) -> str | None:
    """What TOML has in the place of the common mistakes in a line."""
    key, _, value = (part.strip() for part in written.partition("="))
    if re.match(r"(True|False)\b", value):
        return f"{key} = {value.lower()}"
    if re.match(r"(None|null|nil)\b", value):
        return "TOML has no null: leave the key out where None is the default"
    if re.fullmatch(r"[A-Za-z_][\w./-]*", value):
        return f'text stands in quotes: {key} = "{value}"'
    return "TOML writes key = value" if ":" in written and "=" not in written else None


def _may_have_long_keys(text: str) -> bool:
    """Whether there may be a dotted key of more parts than tables may be deep, for which parsers take long."""
    if text.count(".") < MAX_DEPTH:
        return False
    return any(line.count(".") >= MAX_DEPTH and _LONG_KEY.search(line) for line in text.split("\n"))


class _Scan:
    """One pass over the tokens of a TOML file.

    Attributes:
      places: the line and column of each path.
      statements: in the order of the file; up to the fault.
      is_cut: whether there were more tokens than are looked at.
      fault: the problem at which the scan stopped: too many levels, or a bracket or string that is not closed.
    """

    def __init__(self, text: str, name: str | None) -> None:
        self.places: dict[Path, tuple[int, int | None]] = {(): (1, 1)}
        self.statements: list[_Statement] = []
        self.fault: Problem | None = None
        self._name = name
        self._lines = Lines(text)
        found = _TOKENS.finditer(text)
        self._tokens = [(t[0], t.start()) for t in itertools.islice(found, MAX_TOKENS) if t.lastgroup is None]
        self.is_cut = next(found, None) is not None
        self._tokens.append(("\n", len(text)))
        self._i = 0
        self._counts: dict[Path, int] = {}  # the index of the last table of each list of tables
        self._given: dict[Path, int] = {}  # the line of the statement of each path
        self._run()

    @property
    def is_too_deep(self) -> bool:
        """Whether tables and lists are nested too deeply."""
        return self.fault is not None and self.fault.code == "too-deep"

    def _run(self) -> None:
        table: Path = ()
        while self._i < len(self._tokens) and self.fault is None:
            token, start = self._tokens[self._i]
            if token == "\n":
                self._i += 1
            elif token == "[":
                table = self._header(start)
            else:
                self._pair(table, start)

    def _place(self, start: int) -> Place:
        return Place(self._name, *self._lines.place(start))

    def _keys(self) -> list[str]:
        """A dotted key, up to what is no part of one."""
        keys: list[str] = []
        is_dot = True
        while True:
            token, start = self._tokens[self._i]
            if (
                is_dot
                and token not in _OPEN_STRINGS
                and ((len(token) > 1 and token[0] in "\"'") or _BARE_KEY.match(token))
            ):
                keys.append(_unquoted(token))
            elif is_dot or token != ".":
                return keys
            is_dot = not is_dot
            self._i += 1
            if len(keys) > MAX_DEPTH:
                self.fault = too_deep((), self._place(start))
                return keys

    def _end(self, path: Path, start: int, *, is_header: bool, given: int | None) -> None:
        """Notes a statement, which ends with its line."""
        while self._tokens[self._i][0] != "\n":
            self._i += 1
        if self.fault is None:
            line, column = self._lines.place(start)
            last = self._lines.place(self._tokens[self._i][1])[0]
            self.statements.append(_Statement(path, line, last, column, given, is_header))

    def _note(self, path: Path, start: int, base: int = 0) -> None:
        """Notes the place of a path, and of what a dotted key makes on the way to it."""
        place = self._lines.place(start)
        for size in range(base + 1, len(path) + 1):
            self.places.setdefault(path[:size], place)

    def _resolved(self, table: Path, keys: list[str]) -> Path:
        """The path of keys, those of lists of tables followed by the index of their last table."""
        for key in keys:
            table = (*table, key)
            if table in self._counts:
                table = (*table, self._counts[table])
        return table

    def _header(self, start: int) -> Path:
        self._i += 1
        is_list = self._tokens[self._i] == ("[", start + 1)
        self._i += is_list
        keys = self._keys()
        path = (*self._resolved((), keys[:-1]), *keys[-1:])
        given = self._given.get(path)
        if is_list and given is None:
            self._counts[path] = self._counts.get(path, -1) + 1
            self._note(path, start)
            path = (*path, self._counts[path])
        elif path in self._counts:
            given = self.places[path][0]
        self._given.setdefault(path, self._lines.place(start)[0])
        self._note(path, start)
        self._end(path, start, is_header=True, given=given)
        return path

    def _pair(self, table: Path, start: int) -> None:
        keys = self._keys()
        path = self._resolved(table, keys)
        given = self._given.get(path) if keys else None
        if keys:
            self._given.setdefault(path, self._lines.place(start)[0])
            self._note(path, start, len(table))
        if keys and self._tokens[self._i][0] == "=":
            self._i += 1
            self._value(path)
        self._end(path if keys else (), start, is_header=False, given=given)

    def _value(self, path: Path) -> None:
        """Passes over a value, and notes what is inside."""
        token, start = self._tokens[self._i]
        if token in _OPEN_STRINGS:
            self.fault = Problem("syntax", path, "not valid TOML: a string is not closed", place=self._place(start))
        elif token not in ("[", "{"):
            while self._tokens[self._i][0] not in "]},=\n":
                self._i += 1
        elif len(path) >= MAX_DEPTH:
            self.fault = too_deep((), self._place(start))
        else:
            self._i += 1
            is_closed = self._list(path) if token == "[" else self._table(path)
            if not is_closed and self.fault is None:
                message = f"not valid TOML: the bracket {token} is not closed"
                self.fault = Problem("syntax", path, message, place=self._place(start))

    def _list(self, path: Path) -> bool:
        """Passes over the items of a list; whether it is closed. A ``=`` shows that another statement has begun."""
        index = 0
        while self.fault is None:
            token, start = self._tokens[self._i]
            if token in "]}=" or self._i == len(self._tokens) - 1:
                self._i += token == "]"
                return token == "]"
            if token in ",\n":
                self._i += 1
                index += token == ","
            else:
                self._note((*path, index), start, len(path))
                self._value((*path, index))
        return False

    def _table(self, path: Path) -> bool:
        """Passes over the members of an inline table; whether it is closed."""
        while self.fault is None:
            token, start = self._tokens[self._i]
            if token in "[]}" or self._i == len(self._tokens) - 1:
                self._i += token == "}"
                return token == "}"
            keys = self._keys()
            if keys and self._tokens[self._i][0] == "=":
                inside = (*path, *keys)
                self._note(inside, start, len(path))
                self._i += 1
                self._value(inside)
            else:
                self._i += not keys
        return False


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

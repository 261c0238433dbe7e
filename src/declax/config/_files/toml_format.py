"""TOML: its reading, its places and its writing. None is ``{ "$none" = true }``."""

from __future__ import annotations

import contextlib
import enum
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from declax.config._files.documents import (
    MAX_DEPTH,
    NUMBER_HINT,
    Document,
    Numbers,
    Position,
    deep_path,
    problem_of_text,
    repeated_key,
    replace_values,
    too_deep,
    unreadable,
)
from declax.config._files.scanning import (
    SKIPPED,
    Edit,
    Key,
    Lines,
    Repeat,
    TokenScan,
    blank,
    bracket_around,
    deep_bracket,
    open_quote,
    spliced,
)
from declax.config.problems import Path, Problem, path_text
from declax.errors import ConfigError

NONE: Final = "$none"
"""The key of the table that is None, since TOML has no null."""

_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_REPEATED: Final = re.compile(r"Cannot (?:declare|overwrite|mutate|redefine)|Duplicate inline table key")
_LONG_INT: Final = re.compile(r"[-+]?[0-9][0-9_]{3999,}\Z")
_INT_LIMIT: Final = "Exceeds the limit"
_MAX_BODIES: Final = 20
_HINTS: Final = {
    "Invalid value": f'strings need quotes, bools are true and false, and None is {{ "{NONE}" = true }}',
    "Expected newline": "a line of its own for each key, and quotes around strings",
    "Expected '=' after a key": "key = value",
    "Expected ']'": "[name] in a line of its own",
    "Unescaped '\\'": r"\\ for each \, or single quotes around the string",
}
"""What fixes the errors of the parser, by their beginnings."""

_COMMENTS_AND_STRINGS: Final = re.compile("|".join(SKIPPED), re.DOTALL)
_LONG_KEY: Final = re.compile(rf'(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"")[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}')


def parse_toml(text: str, name: str | None) -> Document:
    """Reads a text; of a key or table that is given twice, the first counts, and gets the other keys of the second."""
    if (start := _long_key(text)) is not None:
        raise too_deep(name, Lines(text).position(start))
    numbers = Numbers()
    problems: list[Problem] = []
    broken: set[Path] = set()
    try:
        data = tomllib.loads(text, parse_float=numbers.read_float)
    except RecursionError:
        raise _too_deep(text, name, ()) from None
    except ValueError as error:
        data, problems, broken = _repaired(text, name, error, numbers)
    if (path := deep_path(data)) is not None:
        raise _too_deep(text, name, path)
    document = Document(name, data, problems, find_places=lambda: TomlScan(text).places, broken=broken)
    for path, why in numbers.without_lost(data).items():
        place = document.place_of(path)
        document.problems.append(problem_of_text(name, why, (place.line, place.column), path=path, hint=NUMBER_HINT))
        broken.add(path)
    if NONE in text or broken:
        replace_values(data, _none_of)
    return document


def _none_of(value: Any, path: Path) -> Any:
    is_none = path and isinstance(value, dict) and value.keys() == {NONE} and value[NONE] is True
    return None if is_none else value


def _long_key(text: str) -> int | None:
    """The offset of a dotted key that is too deep; the parser is slow for these."""
    if text.count(".") < MAX_DEPTH or _LONG_KEY.search(_COMMENTS_AND_STRINGS.sub('""', text)) is None:
        return None
    found = _LONG_KEY.search(_COMMENTS_AND_STRINGS.sub(lambda token: '""'.ljust(len(token[0])), text))
    return 0 if found is None else found.start()


def _too_deep(text: str, name: str | None, path: Path) -> ConfigError:
    bracket = deep_bracket(text)
    start = TomlScan(text).starts.get(path) if bracket is None else bracket
    return too_deep(name, (None, None) if start is None else Lines(text).position(start))


# --- what the parser refuses: repeated statements, and the one syntax error -----------


def _repaired(
    text: str, name: str | None, error: ValueError, numbers: Numbers
) -> tuple[dict[str, Any], list[Problem], set[Path]]:
    """The data of a text without its repeated statements, the problems for these, and the paths that are broken."""
    if not _is_repairable(error):
        raise _wrong_syntax(text, name, error)
    scan, lines = TomlScan(text), Lines(text)
    problems = [_problem_of_repeat(name, scan, lines, repeat) for repeat in scan.repeats]
    edits = [blank(text, repeat.span) for repeat in scan.repeats]
    broken = {path for path, span in scan.values.items() if _LONG_INT.match(text, *span)}
    for path in broken:
        start, end = scan.values[path]
        message = f"not a number: an int of {end - start} digits"
        problems.append(problem_of_text(name, message, lines.position(start), path=path, hint=NUMBER_HINT))
        edits.append(Edit(start, end, value_text(None).ljust(end - start)))
    shorter = spliced(text, edits)
    bodies = [(repeat, repeat.body) for repeat in scan.repeats if repeat.body is not None]
    data = _loaded(spliced(shorter, [blank(shorter, body) for _, body in bodies]), name, numbers, problems)
    for repeat, (start, end) in [found for found in bodies if found[0].fits][:_MAX_BODIES]:
        line, column = lines.position(start)
        body = "\n" * (line - 1) + " " * (column - 1) + shorter[start:end]
        _add_body(data, repeat.path, _loaded(body, name, numbers, problems))
    return data, problems, broken


def _is_repairable(error: ValueError) -> bool:
    return _REPEATED.match(str(error)) is not None or str(error).startswith(_INT_LIMIT)


def _loaded(text: str, name: str | None, numbers: Numbers, known: Iterable[Problem]) -> dict[str, Any]:
    """The data of a text; if more is repeated than a scan finds, the error has the known problems too."""
    try:
        return tomllib.loads(text, parse_float=numbers.read_float)
    except RecursionError:
        raise _too_deep(text, name, ()) from None
    except ValueError as error:
        found = _wrong_syntax(text, name, error)
        wrong = unreadable(name, *known, *found.problems) if _is_repairable(error) else found
        raise wrong from None


def _add_body(data: Any, path: Path, body: dict[str, Any]) -> None:
    """Adds the keys of a table to the table at a path, where there are none yet."""
    for key in path:
        if isinstance(data, dict) and isinstance(key, str):
            data = data.setdefault(key, {})
        elif isinstance(data, list) and key in range(len(data)):
            data = data[int(key)]
    if isinstance(data, dict):
        _merge(data, body)


def _merge(table: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        held = table.setdefault(key, value)
        if held is not value and isinstance(held, dict) and isinstance(value, dict):
            _merge(held, value)


def _problem_of_repeat(name: str | None, scan: TomlScan, lines: Lines, repeat: Repeat) -> Problem:
    first, position = lines.position(scan.starts[repeat.first]), lines.position(repeat.start)
    if repeat.first != repeat.path:
        message = f"{path_text(repeat.first)} of line {first[0]} is complete, and gets no further keys here"
        hint = f"write the key there, or make it a table with the header [{header_text(repeat.first)}]"
    elif scan.text[repeat.start] == "[" and repeat.fits:
        message = f"the table is declared twice; the first is in line {first[0]}"
        hint = f"move its keys to the table in line {first[0]}, and remove this header"
    else:
        return repeated_key(name, repeat.path, position, first)
    return problem_of_text(name, message, position, path=repeat.path, hint=hint, code="duplicate-key")


def _wrong_syntax(text: str, name: str | None, error: ValueError) -> ConfigError:
    """The one error of a text that is no TOML, with the fix of a common mistake."""
    found = _AT.search(str(error))
    message = _AT.sub("", str(error))
    if found is None:
        return unreadable(name, problem_of_text(name, f"not valid TOML: {message}"))
    unix = text.replace("\r\n", "\n")  # as the parser has it
    lines = Lines(unix)
    hint = next((hint for start, hint in _HINTS.items() if message.startswith(start)), None)
    offset = lines.offset(int(found[1]), int(found[2])) if found[1] else len(unix)
    position: Position = (int(found[1]), int(found[2])) if found[1] else (unix.rstrip().count("\n") + 1, None)
    character = unix[offset : offset + 1]
    bracket, quote = bracket_around(unix, offset), open_quote(unix, offset)
    if quote is not None:
        position = lines.position(quote)
        message, hint = "the string is not closed", f"a {unix[quote]} at its end, or {3 * unix[quote]} around lines"
    elif bracket is not None and unix[bracket] == "{" and character in "\n#":
        position = lines.position(bracket)
        message = "a table in { } must end in the line in which it starts"
        hint = "a [header] and one key in each line, or all in one line"
    elif character == "}" and unix[:offset].rstrip().endswith(","):
        message, hint = "a table in { } has no comma after its last value", "remove the comma"
    elif message.startswith("Unclosed array") and bracket is not None:
        hint = f"a ] at the end of the list that starts in line {lines.position(bracket)[0]}"
    elif character and not character.isprintable() and character not in "\t\r\n":
        message, hint = f"the control character {character!a}", "remove it; in strings write \\u and its number"
    return unreadable(name, problem_of_text(name, f"not valid TOML: {message}", position, hint=hint))


# --- places ---------------------------------------------------------------------


class Statement(NamedTuple):
    """A key with its value.

    Attributes:
      path: of the value.
      start, end: of the statement.
    """

    path: Path
    start: int
    end: int


class Section:
    """A header and the statements below it; the first section of a text has no header."""

    def __init__(self, path: Path, start: int, end: int, *, is_item: bool = False) -> None:
        self.path = path
        self.start = start
        self.end = end
        self.is_item = is_item
        self.statements: list[Statement] = []


class _Kind(enum.Enum):
    VALUE = enum.auto()
    INLINE = enum.auto()  # a table in braces
    DOTTED = enum.auto()  # a table of dotted keys
    ABOVE = enum.auto()  # a table that headers of other tables make
    TABLE = enum.auto()  # a table with a header
    LIST = enum.auto()  # a list of tables with headers


class TomlScan(TokenScan):
    """The places in a TOML text that the parser has accepted, but for what is in `repeats`.

    Attributes:
      sections: in their order.
    """

    def __init__(self, text: str) -> None:
        self.sections: list[Section] = [Section((), 0, 0)]
        self._kinds: dict[Path, _Kind] = {}
        self._last_items: dict[Path, int] = {}  # the index of the last table of each list of tables
        self._table_path: Path | None = ()
        self._open: int | None = None  # the repeat whose body is being read
        super().__init__(text)

    def _scan(self) -> None:
        while True:
            token, start = self._next()
            if token == "[":
                self._header(start)
            elif token != "\n":
                self._i -= 1
                begun = start
                made = self._member(self._table_path, None)
                if made is not None:
                    self.sections[-1].statements.append(Statement(made, begun, self._end))
                self.sections[-1].end = self._end

    def _header(self, start: int) -> None:
        self._close(start)
        is_list = self._tokens[self._i][0] == "["
        self._i += is_list
        keys = self._keys("]")
        self._i += is_list
        self._table_path = self._declared(keys, start, is_list=is_list) if keys else None
        if self._table_path is not None:
            self.sections.append(Section(self._table_path, start, self._end, is_item=is_list))

    def _close(self, end: int) -> None:
        """Ends the body of a repeated header."""
        if self._open is not None:
            repeat = self.repeats[self._open]
            self.repeats[self._open] = repeat._replace(body=(repeat.span[1], end))
            self._open = None

    def _declared(self, keys: list[Key], start: int, *, is_list: bool) -> Path | None:
        """The path of the table of a header; None if its keys have no place."""
        *above, last = keys
        path: Path = ()
        for key in above:
            path = (*path, key.name)
            kind = self._kinds.setdefault(path, _Kind.ABOVE)
            if kind in (_Kind.VALUE, _Kind.INLINE):
                return self._refused((*(key.name for key in keys),), path, start, kind)
            self.starts.setdefault(path, start)
            self.keys.append((path, key.start, key.end))
            path = (*path, self._last_items[path]) if kind is _Kind.LIST else path
        path = (*path, last.name)
        kind = self._kinds.setdefault(path, _Kind.LIST if is_list else _Kind.ABOVE)
        if kind is not (_Kind.LIST if is_list else _Kind.ABOVE):
            return self._refused(path, path, start, None if is_list else kind)
        self.starts.setdefault(path, start)
        self.keys.append((path, last.start, last.end))
        if is_list:
            self._last_items[path] = self._last_items.get(path, -1) + 1
            path = (*path, self._last_items[path])
            self.starts[path] = start
        self._kinds[path] = _Kind.TABLE
        return path

    def _refused(self, path: Path, first: Path, start: int, kind: _Kind | None) -> Path | None:
        """Records a repeated header; its path, if the keys below it can be added to the first table."""
        fits = kind in (_Kind.TABLE, _Kind.DOTTED, _Kind.INLINE)
        self._open = len(self.repeats)
        self.repeats.append(Repeat(path, start, (start, self._end), first, (self._end, len(self.text)), fits))
        if fits:
            self.starts.setdefault(path, start)
        return path if fits else None

    def _member(self, table: Path | None, comma: int | None) -> Path | None:
        """Notes an entry of a table; returns its path, or None if it is repeated."""
        keys = self._keys("=")
        path, first = self._entered(table, keys)
        if path is None or first is not None:
            self._value(None)
            if path is not None and first is not None:
                start = keys[0].start
                self.repeats.append(Repeat(path, start, (start if comma is None else comma, self._end), first))
            return None
        is_inline = self._value(path) == "{"
        self._kinds[path] = _Kind.INLINE if is_inline else _Kind.VALUE
        return path

    def _entered(self, table: Path | None, keys: list[Key]) -> tuple[Path | None, Path | None]:
        """The path of an entry, and the path of what is there already or cannot be extended."""
        if table is None or not keys:
            return None, None
        path = table
        for key in keys:
            path = (*path, key.name)
            is_last = key is keys[-1]
            kind = self._kinds.get(path)
            if kind is not None and (is_last or kind not in (_Kind.DOTTED, _Kind.ABOVE)):
                return (*table, *(key.name for key in keys)), path
            self._kinds.setdefault(path, _Kind.VALUE if is_last else _Kind.DOTTED)
            self.starts.setdefault(path, keys[0].start)
            self.keys.append((path, key.start, key.end))
        return path, None

    @staticmethod
    def _unquoted(token: str) -> str:
        if token[0] not in "\"'":
            return token
        if token[0] == "'" or "\\" not in token:
            return token[1:-1]
        found: str
        for text in (token, f"key = {token}"):  # the second has the escapes of TOML
            with contextlib.suppress(ValueError):
                found = json.loads(text) if text is token else tomllib.loads(text)["key"]
                return found
        return token


# --- writing --------------------------------------------------------------------

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_SHORT: Final = 80


def format_toml(data: Mapping[str, Any]) -> str:
    """TOML: plain values and short tables first, then tables with headers.

    >>> part = {"kind": "Part", "y": {"z": None, "w": {}}}
    >>> print(format_toml({"a": {"$ref": "/x"}, "kind": "Net", "x": part}), end="")
    a = { "$ref" = "/x" }
    kind = "Net"
    <BLANKLINE>
    [x]
    kind = "Part"
    <BLANKLINE>
    [x.y]
    z = { "$none" = true }
    w = {}

    Raises:
      ConfigError: a table would be read as None.
    """
    return "\n".join(table_lines(data, ())).strip("\n") + "\n"


def table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The lines of a table, whose header is written already."""
    later: list[tuple[str, Any]] = []
    inline = [_is_inline(value) for value in table.values()]
    # headers would change the order of a mixed table, which matters in a dict
    keeps_order = "kind" not in table and inline != sorted(inline, reverse=True)
    for key, value in table.items():
        if keeps_order or _is_inline(value):
            yield f"{key_text(key)} = {value_text(value)}"
        else:
            later.append((key, value))
    for key, value in later:
        inside = (*path, key)
        header = header_text(inside)
        if isinstance(value, dict):
            yield from ("", f"[{header}]", *table_lines(value, inside))
        else:
            for item in value:
                yield from ("", f"[[{header}]]", *table_lines(item, inside))


def header_text(path: Path) -> str:
    """The dotted key of a path, without the indices of lists."""
    return ".".join(key_text(key) for key in path if isinstance(key, str))


def _is_inline(value: Any) -> bool:
    """Whether a value is written in one line; lists of tables and larger tables get headers."""
    if isinstance(value, dict):
        is_flat = not any(isinstance(v, (dict, list)) for v in value.values())
        return is_flat and (len(value) < 2 or ("kind" not in value and len(value_text(value)) <= _SHORT))
    if isinstance(value, list):
        return not value or not all(isinstance(item, dict) for item in value)
    return True


def key_text(key: str) -> str:
    return key if _BARE.match(key) else _quoted(key)


def value_text(value: Any) -> str:
    """A value in one line."""
    if value is None:
        return f'{{ "{NONE}" = true }}'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if _none_of(value, (NONE,)) is None:
        raise ConfigError("TOML", f"a table with the key {NONE!r} alone would be read as None", fix="another key")
    inner = ", ".join(f"{key_text(k)} = {value_text(v)}" for k, v in value.items())
    return f"{{ {inner} }}" if inner else "{}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

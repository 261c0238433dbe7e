"""JSON: its reading, its places and its writing. None is ``null``."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from declax.config._files.bounded_json import TOO_MUCH, takes_too_much
from declax.config._files.documents import (
    NUMBER_HINT,
    Document,
    Numbers,
    deep_path,
    problem_of_text,
    repeated_key,
    too_deep,
    unreadable,
)
from declax.config._files.scanning import Lines, Repeat, TokenScan, deep_bracket, open_quote
from declax.config.problems import Path
from declax.errors import ConfigError

_WORDS: Final = {"True": "true", "False": "false", "None": "null", "nan": "NaN", "inf": "Infinity"}
_HINTS: Final = {
    "Expecting ',' delimiter": "a comma between two values, or a bracket that closes the value around them",
    "Expecting ':' delimiter": '"key": value',
    "Extra data": "one value in a file: remove the rest, or a bracket that closes too early",
    "Invalid \\escape": r"\\ for each \ in a string",
}
"""What fixes the errors of the parser, by their beginnings."""
_WORD: Final = re.compile(r"[A-Za-z]+")


def parse_json(text: str, name: str | None) -> Document:
    """Reads a text; of a key that is given twice, the first value counts."""
    if takes_too_much(text.encode(errors="surrogatepass")):
        raise unreadable(name, problem_of_text(name, TOO_MUCH))
    numbers, is_repeated = Numbers(), False

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal is_repeated
        made = dict(pairs)
        if len(made) < len(pairs):
            is_repeated = True
            made.update(reversed(pairs))  # the first value of each key
        return made

    try:
        data = _loaded(text, table, numbers)
    except RecursionError:
        raise _too_deep(text, name, ()) from None
    except json.JSONDecodeError as error:
        if deep_bracket(text[: error.pos]) is not None:  # which the parsers of some Pythons follow to the end
            raise _too_deep(text, name, ()) from None
        raise _wrong_syntax(text, name, error) from None
    if (path := deep_path(data)) is not None:
        raise _too_deep(text, name, path)
    document = Document(name, data, find_places=lambda: JsonScan(text).places)
    for path, why in numbers.without_lost(data).items():
        place = document.place_of(path)
        document.problems.append(problem_of_text(name, why, (place.line, place.column), path=path, hint=NUMBER_HINT))
        document.broken.add(path)
    if is_repeated:
        _add_repeats(text, document)
    return document


def _loaded(text: str, table: Any, numbers: Numbers) -> Any:
    try:
        return json.loads(text, object_pairs_hook=table, parse_float=numbers.read_float)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an int with more digits than Python accepts
        return json.loads(text, object_pairs_hook=table, parse_float=numbers.read_float, parse_int=numbers.read_int)


def _add_repeats(text: str, document: Document) -> None:
    lines, scan = Lines(text), JsonScan(text)
    for repeat in scan.repeats:
        places = lines.position(repeat.start), lines.position(scan.starts[repeat.first])
        document.problems.append(repeated_key(document.name, repeat.path, *places))
    if not scan.repeats:
        message = f"a key is given twice, after the first {len(scan.starts)} values"
        document.problems.append(problem_of_text(document.name, message, code="duplicate-key"))


def _too_deep(text: str, name: str | None, path: Path) -> ConfigError:
    lines, bracket = Lines(text), deep_bracket(text)
    start = JsonScan(text).starts.get(path) if bracket is None else bracket
    return too_deep(name, (None, None) if start is None else lines.position(start))


def _wrong_syntax(text: str, name: str | None, error: json.JSONDecodeError) -> ConfigError:
    """The one error of a text that is no JSON, with the fix of a common mistake."""
    offset, message = error.pos, error.msg
    hint = next((hint for start, hint in _HINTS.items() if message.startswith(start)), None)
    before = len(text[:offset].rstrip()) - 1
    rest = text[offset:]
    comma = offset if rest.startswith(",") and "trailing comma" in message else before
    word = _WORD.match(rest)
    if text[comma : comma + 1] == "," and text[comma + 1 :].lstrip().startswith(("]", "}")):
        offset, message, hint = comma, "there is a comma after the last value", "remove the comma"
    elif rest.startswith(("//", "/*", "#")):
        message, hint = "JSON has no comments", "remove it, or write the file as TOML or YAML, which have comments"
    elif message.startswith("Invalid control character") and rest.startswith(("\n", "\r")):
        offset = open_quote(text, offset) or offset
        message, hint = "the string is not closed in its line", 'a " at its end; a line break in a string is \\n'
    elif message.startswith("Unterminated string"):
        message, hint = "the string is not closed", 'a " at its end'
    elif rest.startswith("'"):
        hint = 'strings and keys have double quotes: "..."'
    elif message.startswith("Expecting property name") and word is not None:
        hint = f'keys have double quotes: "{word[0][:40]}"'
    elif message.startswith("Expecting value") and word is not None:
        hint = f"write {_WORDS[word[0]]}" if word[0] in _WORDS else "strings have double quotes"
    elif message.startswith("Invalid control character"):
        message = f"the control character {rest[0]!a} in a string"
        hint = f"write {json.dumps(rest[0])[1:-1]}, or remove it"
    problem = problem_of_text(name, f"not valid JSON: {message}", Lines(text).position(offset), hint=hint)
    return unreadable(name, problem)


class JsonScan(TokenScan):
    """The places in a JSON text that the parser has accepted."""

    def _scan(self) -> None:
        self._value(())

    def _member(self, table: Path | None, comma: int | None) -> Path | None:
        key = self._keys(":")[0]
        path = None if table is None else (*table, key.name)
        if path is None or path in self.starts:
            self._value(None)
            if path is not None:
                self.repeats.append(Repeat(path, key.start, (key.start, self._end), path))
            return None
        self.starts[path] = key.start
        self.keys.append((path, key.start, key.end))
        self._value(path)
        return path

    @staticmethod
    def _unquoted(token: str) -> str:
        if "\\" not in token:
            return token[1:-1]
        found: str = json.loads(token)
        return found


def format_json(data: Any) -> str:
    """Indented JSON; other values become strings."""
    return json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n"

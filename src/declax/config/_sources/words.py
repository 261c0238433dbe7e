"""Words that change a configuration, such as `model.dim=4`, with one value or several (a sweep)."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from declax.config._files.documents import MAX_DEPTH, float_of
from declax.config._files.formats import SUFFIXES
from declax.config._files.toml_format import NONE, parse_toml
from declax.config._sources.series import Draw, call_in, series
from declax.config.problems import Path, path_text, shown, steps_of

SET: Final = "="
INSERT: Final = "+="
REMOVE: Final = "~"

ANYWHERE: Final = "**"
"""The step of a path that stands for any number of steps; a class follows it."""


_MOST_SHOWN: Final = 200


class Word(NamedTuple):
    """A word of a command line that changes a configuration.

    Attributes:
      text: as it is written.
      path: of the value. A star selects each element.
      action: sets a value, inserts an item into a list, or removes a value.
      values: the value, or those of a sweep.
      others: what they are if the field refuses them; see `other_reading`.
      file: the file with the sweep that has the word, or empty.
    """

    text: str
    path: Path
    action: str
    values: tuple[Any, ...]
    others: tuple[Any, ...]
    file: str = ""

    @property
    def origin(self) -> str:
        text = self.text if len(self.text) <= _MOST_SHOWN else f"{self.text[:_MOST_SHOWN]}..."
        return f"{self.file or 'command line'}: {text}"


class Run(NamedTuple):
    """One combination of the values of a sweep: each word with a value and its other reading."""

    name: str
    chosen: tuple[tuple[Word, Any, Any], ...]

    def words(self, others: Collection[str | None] = ()) -> list[tuple[Word, Any]]:
        """The words with their values; those with some origins in the other reading."""
        return [(word, other if word.origin in others else value) for word, value, other in self.chosen]

    @property
    def texts(self) -> list[str]:
        """The words as this run has them: with one value each."""
        return [
            f"{path_text(word.path)}={short(value)}" if len(word.values) > 1 or word.file else word.text
            for word, value, _ in self.chosen
        ]


def is_word(text: str) -> bool:
    """Whether a word of a command line changes a configuration; other words are files, classes and parts.

    >>> is_word("blocks.0.hidden=3"), is_word("~schedule"), is_word("blocks+=3"), is_word("model.toml")
    (True, True, True, False)
    """
    return _parts(text) is not None


def _parts(text: str) -> tuple[str, str, str] | None:
    """The path, action and value of a word."""
    if text.startswith(REMOVE):
        is_path = "/" not in text and _steps(text[1:]) is not None
        return (text[1:], REMOVE, "") if is_path else None
    written, equals, value = text.partition("=")
    path = written.removesuffix("+")
    is_file = "/" in path and value.lower().endswith(SUFFIXES)
    if not equals or is_file or _steps(path) is None:
        return None
    return path, SET if path == written else INSERT, value


def _steps(path: str) -> tuple[str, ...] | None:
    """The steps of a path; `**` may come first."""
    if not path.startswith(f"{ANYWHERE}."):
        return steps_of(path)
    rest = steps_of(path[3:])
    return None if rest is None else (ANYWHERE, *rest)


def parse_word(text: str) -> Word:
    """Parses a word; see `is_word`.

    Values are written as in TOML, but strings need no quotes, also in lists. The last item of a path may be a star.

    >>> parse_word("blocks[*].hidden=64,128").path, parse_word("blocks[*].hidden=64,128").values
    (('blocks', '*', 'hidden'), (64, 128))
    >>> parse_word("names=[a, b]").values, parse_word("kind=Mlp").values
    ((['a', 'b'],), ('Mlp',))
    >>> parse_word("rate=log(1e-3,1e-1,3)").values
    (0.001, 0.01, 0.1)
    """
    written, action, value = _parts(text) or (text, SET, "")
    path = tuple(int(step) if step.isdecimal() else step for step in _steps(written) or ())
    texts = [part.strip() for part in _split(value)] if action != REMOVE else [""]
    pairs = [pair for one in texts for pair in _readings(one, text)]
    return Word(text, path, action, tuple(value for value, _ in pairs), tuple(other for _, other in pairs))


def _readings(written: str, word: str) -> list[tuple[Any, Any]]:
    """The values of a text, each with its other reading: one, or those of a function such as ``range(1,9)``."""
    if (call := call_in(written)) is None:
        value = value_of(written)
        return [(value, other_reading(written, value))]
    found = series(call[0], [value_of(part.strip()) for part in _split(call[1])] if call[1].strip() else [], word)
    return [(found, found)] if isinstance(found, Draw) else [(value, value) for value in found]


def _split(text: str) -> Iterator[str]:
    """The values of a sweep: separated by commas outside brackets and quotes."""
    depth, quote, begun = 0, "", 0
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[begun:position]
            begun = position + 1
    yield text[begun:]


def value_of(text: str, depth: int = 0) -> Any:
    """The value of a string: of TOML, null, a list of these and of strings without quotes; or the string itself."""
    if text == "null":
        return None
    try:
        if "\n" not in text:
            value = tomllib.loads(f"value = {text}", parse_float=float_of)["value"]
            tomllib.loads(f"value = [{text}]")  # raises if the value contains a comment, such as `8#9`
            return parse_toml(f"value = {text}", None).data["value"] if NONE in text else value  # type: ignore[index]  # a table
    except (ValueError, RecursionError):
        pass
    if text.startswith("[") and text.endswith("]") and depth <= MAX_DEPTH:
        return [value_of(part.strip(), depth + 1) for part in _split(text[1:-1])]
    return text


def other_reading(text: str, value: Any) -> Any:
    """The other reading of a value: its text, or the bool or number that an unquoted string spells in Python.

    >>> other_reading("3", 3), other_reading("True", "True"), other_reading("007", "007"), other_reading("high", "high")
    ('3', True, 7, 'high')
    """
    if not isinstance(value, str):
        return text
    if text in ("True", "False"):
        return text == "True"
    for read in (int, float_of):
        try:
            return read(text)
        except ValueError:
            continue
    return value


def short(value: Any) -> str:
    """A value in the name of a run."""
    return str(value) if isinstance(value, (str, list, dict)) else shown(value)

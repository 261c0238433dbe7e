"""The problems of a configuration, and their report."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from declax.errors import ConfigError, labelled, suggest

Path: TypeAlias = tuple[str | int, ...]

KIND: Final = "kind"
"""The key that selects a class."""

REF: Final = "$ref"
"""The key of a table that is a reference to another part."""

EACH: Final = "*"
"""The step of a path that selects each element."""

MAX_PROBLEMS: Final = 100
"""The number of problems that a report keeps; further ones are counted."""

_MAX_SHOWN: Final = 60
_MAX_KEY: Final = 40
_MAX_KEYS: Final = 24
_SIGNS: Final = str.maketrans("", "", "_-$")
_BIG: Final = 1 << 256  # Python may refuse to print longer numbers


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The place of a value in a file.

    Attributes:
      file: the name of the file; None for data from Python.
      line: from 1, as is `column`; None if they are unknown.
    """

    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = (self.file or "", self.line, self.column)
        return ":".join(str(part) for part in parts if part is not None)


NOWHERE: Final = Place()


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a configuration.

    Attributes:
      code: the kind of problem, such as ``unknown-key``.
      path: its path in the configuration.
      message: one sentence without a full stop.
      expected: the expected value.
      got: the given value.
      hint: the fix.
      place: the file, line and column.
      other: another path that the message is about; the report adds its place to `got`.
    """

    code: str
    path: Path
    message: str
    expected: str | None = None
    got: str | None = None
    hint: str | None = None
    place: Place = NOWHERE
    other: Path | None = None

    @property
    def written(self) -> Path:
        """The path of the wrong text: for a reference, its key ``$ref``."""
        return (*self.path, REF) if self.code.startswith("ref") else self.path

    def is_of(self, broken: Collection[Path]) -> bool:
        """Whether it only repeats that a value of the file could not be read."""
        if self.place is not NOWHERE or self.code == "unknown-key":
            return False
        return self.written in broken or (self.code == "missing-kind" and (*self.path, KIND) in broken)

    def __str__(self) -> str:
        place = str(self.place)
        head = f"  {place} {path_text(self.path)}" if place else f"  {path_text(self.path)}"
        parts = {"expected": self.expected, "got": self.got, "fix": self.hint}
        return "\n".join([f"{head}: {self.message}", *labelled(parts, "    ")])


class Report:
    """Collects problems; counts those beyond `MAX_PROBLEMS`."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.count: int = 0

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def is_full(self) -> bool:
        """Whether further problems are only counted."""
        return self.count >= MAX_PROBLEMS

    def count_one(self) -> None:
        """Counts a problem that is not shown."""
        self.count += 1

    def add(
        self,
        code: str,
        path: Path,
        message: str,
        *,
        expected: str | None = None,
        got: str | None = None,
        hint: str | None = None,
        other: Path | None = None,
    ) -> None:
        """Adds a problem."""
        self.extend([Problem(code, path, message, expected, got, hint, other=other)])

    def extend(self, problems: Iterable[Problem]) -> None:
        """Adds problems."""
        for problem in problems:
            self.count += 1
            if self.count <= MAX_PROBLEMS:
                self.problems.append(problem)

    def merge(self, other: Report) -> None:
        """Adds the problems of another report, also those that it only counted."""
        self.extend(other.problems)
        self.count += other.count - len(other.problems)

    def leave_out(self, broken: Collection[Path]) -> None:
        """Removes the problems of values that could not be read, for which the report has a problem already."""
        kept = [problem for problem in self.problems if not problem.is_of(broken)]
        self.count -= len(self.problems) - len(kept)
        self.problems = kept

    def error(self, where: str, place_of: Callable[[Path], Place] | None = None) -> ConfigError:
        """The error that lists all problems, in the order of the file."""
        found = self.problems
        if place_of is not None:
            found = [p if p.place is not NOWHERE else _placed(p, place_of) for p in found]
            found.sort(key=lambda p: (p.place.file or "", p.place.line or 0))
        left = self.count - len(found)
        said = "one problem" if self.count == 1 else f"{self.count} problems"
        return ConfigError(
            where,
            f"the configuration has {said}" + (f", of which the first {len(found)} are shown" if left else ""),
            problems=found,
        )


def _placed(problem: Problem, place_of: Callable[[Path], Place]) -> Problem:
    """A problem with its place in the file, and with that of the other path in the text."""
    got, other = problem.got, NOWHERE if problem.other is None else place_of(problem.other)
    if other.line is not None:
        got = f"{got}: line {other.line}"
    return dataclasses.replace(problem, place=place_of(problem.written), got=got)


_STEP: Final = re.compile(
    r"""\.?(?P<name>[^.\[\]'"\s][^.\[\]]*) | \[(?P<index>\d+|\*)\] | \.?\[?(?P<quoted>'[^']*'|"[^"]*")\]?""", re.VERBOSE
)


def steps_of(text: str) -> tuple[str, ...] | None:
    """The names, indices and ``*`` of a written path; None if it is not a path.

    >>> steps_of("blocks[0].mixer.'a b'"), steps_of("blocks.*.hidden"), steps_of("a..b")
    (('blocks', '0', 'mixer', 'a b'), ('blocks', '*', 'hidden'), None)
    """
    keys: list[str] = []
    end = 0
    while found := _STEP.match(text, end):
        keys.append(found["name"] or found["index"] or found["quoted"][1:-1])
        end = found.end()
    return tuple(keys) if keys and end == len(text) and text[0] != "." else None


def path_text(path: Path) -> str:
    """A path in dotted form; long keys and long paths are cut.

    >>> path_text(("blocks", 0, "mixer", "a b"))
    "blocks.0.mixer.'a b'"
    """
    if len(path) > _MAX_KEYS:
        half = _MAX_KEYS // 2
        return f"{path_text(path[:half])} ... {len(path) - 2 * half} more keys ... {path_text(path[-half:])}"
    return ".".join(map(_key_text, path)) or "(the root)"


def _key_text(key: str | int) -> str:
    if isinstance(key, int):
        return str(key)
    is_plain = len(key) <= _MAX_KEY and key.isprintable() and key.translate(_SIGNS).isalnum()
    return key if is_plain else shown(key, _MAX_KEY)


def shown(value: object, size: int = _MAX_SHOWN) -> str:
    """A short text for plain data of any size.

    >>> shown("x" * 1000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxx'"
    """
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and not -_BIG < value < _BIG:
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, Mapping):
        keys = ", ".join(shown(key, 20) for key, _ in zip(value, range(4), strict=False))
        count = "1 key" if len(value) == 1 else f"{len(value)} keys"
        return f"a table of {count} ({keys}{', ...' if len(value) > 4 else ''})" if value else "an empty table"
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):  # not FrozenList: that would load JAX
        return f"a list of {len(value)}" if value else "an empty list"
    short = reprlib.Repr()
    short.maxstring = short.maxother = size
    return short.repr(value)


def described(value: object) -> str:
    """A value with the name of its type, where the value alone is ambiguous.

    >>> described("3"), described(True), described(0.5)
    ("the string '3'", 'the bool true', 'the float 0.5')
    """
    word = _WORDS.get(cast("type[Any]", type(value)))
    return shown(value) if word is None else f"the {word} {shown(value)}"


_WORDS: Final[dict[type[Any], str]] = {str: "string", bool: "bool", int: "int", float: "float"}


def did_you_mean(name: object, options: Iterable[str]) -> str | None:
    """A suggestion for a misspelt or abbreviated name; None for very long names, whose comparison is slow.

    >>> did_you_mean("lr", ["learning_rate", "eps"])
    "did you mean 'learning_rate'?"
    """
    if not isinstance(name, str) or len(name) > _MAX_SHOWN:
        return None
    options = list(options)
    lowered = {option.lower(): option for option in options}
    if name.lower() in lowered:
        return f"did you mean {lowered[name.lower()]!r}?"
    meant = [option for option in options if "_" in option and _initials_of(option) == name]
    return f"did you mean {meant[0]!r}?" if len(meant) == 1 else suggest(name, options)


def _initials_of(name: str) -> str:
    """The first letters of the words of a name, by which people abbreviate it."""
    return "".join(word[:1] for word in name.split("_"))

"""The words of a command line: a class, which is imported, files, a part, and changes of values."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

from declax.config._cli.output import usage_error
from declax.config._files.formats import SUFFIXES
from declax.config._sources.words import Word, is_word, parse_word
from declax.config.problems import NOWHERE, Place, Problem
from declax.errors import ConfigError, DeclaxError, suggest

_TARGET: Final = re.compile(r"[\w./\\-]+:[A-Za-z_][\w.]*")
STANDARD_INPUT: Final = "-"
_EXPECTED: Final = "module:Class, or file.py:Class"


class Words(NamedTuple):
    """The words of a command line, without options: a class, files, a part, and words that change values."""

    target: str | None
    files: tuple[str, ...]
    part: str | None
    changes: tuple[Word, ...]


def read_words(words: Sequence[str], *, takes_part: bool = True) -> Words:
    """Sorts the words of a command line.

    >>> read_words(["models:Net", "net.toml", "blocks.0"])
    Words(target='models:Net', files=('net.toml',), part='blocks.0', changes=())
    """
    changes = tuple(parse_word(word) for word in words if is_word(word))
    rest = [word for word in words if not is_word(word)]
    targets = [word for word in rest if _TARGET.fullmatch(word)]
    others = [word for word in rest if word not in targets]
    files = tuple(word for word in others if _is_file(word) or not takes_part)
    parts = [word for word in others if word not in files]
    return Words(_only("class", targets), files, _only("part", parts), changes)


def _only(kind: str, words: Sequence[str]) -> str | None:
    if len(words) > 1:
        raise usage_error(f"more than one {kind}", got=", ".join(words), fix="name one")
    return words[0] if words else None


def _is_file(word: str) -> bool:
    """Whether a word is a file: by its suffix, or because it cannot be the path of a part."""
    return word.lower().endswith(SUFFIXES) or "/" in word or word == STANDARD_INPUT or not is_word(f"{word}=")


def load_module(name: str, word: str | None = None) -> Any:
    """The module of a name, or of a file ``models.py``; `word` is what the error names."""
    folder, word = "", word or name
    if name.endswith(".py"):
        if not FilePath(name).is_file():
            raise ConfigError(name, "the file does not exist", expected=_EXPECTED)
        folder, name = str(FilePath(name).resolve().parent), FilePath(name).stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # code of the user ran, which may do anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not (name == missing or name.startswith(f"{missing}.")):
            raise _import_error(word, error) from error
        fix = suggest(name, sorted(path.stem for path in FilePath().glob("*.py")))
        raise ConfigError(word, f"there is no module {name!r}", expected=_EXPECTED, fix=fix) from None


def _import_error(word: str, error: BaseException) -> ConfigError:
    """The error for a module that cannot be imported: one line with the place of the user's code, as of compilers.

    The place is among the `problems` too, which the JSON of the command has.
    """
    place, parts, said = _place_of(error), {}, str(error)
    if isinstance(error, DeclaxError):
        parts = {name: getattr(error, name) for name in ("expected", "got", "why", "fix")}
        said = f"{error.where}: {error.problem}"
    elif isinstance(error, SyntaxError):
        said = error.msg  # without the place
    where = f"{place}: error" if str(place) else word
    found = ConfigError(where, f"the import fails: {type(error).__name__}: {said}", **parts)
    found.problems = (Problem("import", (), found.problem, found.expected, found.got, found.fix, place),)
    return found


def _place_of(error: BaseException) -> Place:
    """Where Python could not read a file, or where the user's code raised."""
    places = importlib.import_module("declax.shapes.places")  # loads JAX
    if isinstance(error, SyntaxError) and error.filename is not None and FilePath(error.filename).is_file():
        found = places.Place(error.filename, error.lineno or 1, error.offset or None, "")
    else:
        found = places.place_of_error(error)
    if found is None or found.file == importlib.__file__:  # the name itself is wrong, and no code ran
        return NOWHERE
    return Place(found.shown_file, found.line, found.column)


def load_target(word: str) -> Any:
    """The class or function that ``module:Class`` or ``file.py:Class`` names.

    The user of a command line may import code; a configuration file may not. Modules are also found in the current
    folder, and in the folder of ``file.py``.

    >>> load_target("declax:Linear").__name__
    'Linear'
    """
    module_name, _, path = word.rpartition(":")
    found = load_module(module_name, word)
    try:
        return functools.reduce(getattr, path.split("."), found)
    except AttributeError as error:
        hint = suggest(str(error.name), dir(error.obj))
        raise ConfigError(word, f"{module_name} has no {error.name!r}", fix=hint) from None

"""The words of a command line: a class, files, a part, and overrides with one value or several (a sweep)."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple, TypeVar

from declax.config._cli.output import usage_error
from declax.config._files.documents import Document, float_of
from declax.config._files.formats import SUFFIXES, read_document
from declax.config.problems import EACH, KIND, NOWHERE, REF, Path, Place, Problem, Report, path_text, shown, steps_of
from declax.errors import ConfigError, DeclaxError, suggest

T = TypeVar("T")


class Override(NamedTuple):
    text: str
    path: Path
    values: tuple[Any, ...]
    others: tuple[Any, ...]

    @property
    def origin(self) -> str:
        return f"command line: {self.text}"


class Run(NamedTuple):
    """One combination of the values of a sweep."""

    name: str
    source: Document
    chosen: tuple[tuple[Override, Any, Any], ...]

    def document(self, others: Collection[str | None] = ()) -> Document:
        """The configuration with the overrides, their places and problems."""
        before = self.source
        made = _OverriddenDocument(
            before.name,
            copy.deepcopy(before.data),
            list(before.problems),
            before.find_places,
            broken=set(before.broken),
        )
        for override, value, other in self.chosen:
            made.apply(override, other if override.origin in others else value)
        return made


def is_override(word: str) -> bool:
    """Whether a word of a command line is an override.

    >>> is_override("blocks.0.hidden=3"), is_override("model.toml")
    (True, False)
    """
    path, equals, _ = word.partition("=")
    return bool(equals) and steps_of(path) is not None


def parse_override(word: str) -> Override:
    """Parses an override; see `is_override`.

    Values are written as in TOML, but strings need no quotes, also in lists. The last item of a path may be a star.

    >>> parse_override("blocks[*].hidden=64,128").path, parse_override("blocks[*].hidden=64,128").values
    (('blocks', '*', 'hidden'), (64, 128))
    >>> parse_override("names=[a, b]").values, parse_override("kind=Mlp").values
    ((['a', 'b'],), ('Mlp',))
    """
    written, _, text = word.partition("=")
    path = tuple(int(step) if step.isdecimal() else step for step in steps_of(written) or ())
    texts = [part.strip() for part in _split(text)]
    values = tuple(map(_value, texts))
    return Override(word, path, values, tuple(map(_other, texts, values)))


def _split(text: str) -> Iterator[str]:
    """The values of a sweep: separated by commas outside brackets and quotes."""
    depth, quote, begun = 0, "", 0
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[begun:position]
            begun = position + 1
    yield text[begun:]


def _value(text: str) -> Any:
    """The value of a string: of TOML, null, a list of these and of strings without quotes; or the string itself."""
    if text == "null":
        return None
    try:
        if "\n" not in text:
            value = tomllib.loads(f"value = {text}", parse_float=float_of)["value"]
            tomllib.loads(f"value = [{text}]")  # raises if the value contains a comment, such as `8#9`
            return value
    except ValueError:
        pass
    if text.startswith("[") and text.endswith("]"):
        return [_value(part.strip()) for part in _split(text[1:-1])]
    return text


def _other(text: str, value: Any) -> Any:
    """The other reading of a value: its text, or the bool or number that an unquoted string spells in Python.

    >>> _other("3", 3), _other("True", "True"), _other("007", "007"), _other("high", "high")
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


def expand(document: Document, overrides: Sequence[Override]) -> Iterator[Run]:
    """One run for each combination of values; the last override varies fastest."""
    sweeps = [override for override in overrides if len(override.values) > 1]
    choices = [[(o, *pair) for pair in zip(o.values, o.others, strict=True)] for o in overrides]
    for chosen in itertools.product(*choices):
        name = ",".join(f"{path_text(o.path)}={_short(value)}" for o, value, _ in chosen if o in sweeps)
        yield Run(name, document, chosen)


def _short(value: Any) -> str:
    return str(value) if isinstance(value, (str, list, dict)) else shown(value)


class _OverriddenDocument(Document):
    """A copy of a document, to which overrides are applied."""

    def apply(self, override: Override, value: Any) -> None:
        """Sets a value at each place that an override selects."""
        self._set((), self.data, override.path, override, value)

    def _set(self, path: Path, holder: Any, steps: Path, override: Override, value: Any) -> None:
        """Sets a value below a table or list. Creates missing tables, which also replace other values on the way."""
        step, *rest = steps
        keys = _keys_at(holder, step)
        if not keys:
            message = f"there is no item {step}" + (f" at {path_text(path)}" if path else "")
            self.problems.append(Problem("override", path, message, place=Place(override.origin)))
        for key in keys:
            at = (*path, key)
            if not rest:
                self._put(at, holder, override, copy.deepcopy(value))
                continue
            if not isinstance(inner := _item(holder, key), (dict, list)):
                self._put(at, holder, override, inner := {})
            self._set(at, inner, (*rest,), override, value)

    def _put(self, path: Path, holder: Any, override: Override, value: Any) -> None:
        """Puts a value into a table or list; another kind removes the other values of the file from its table."""
        *above, key = path
        if key == KIND and isinstance(holder, dict) and (holder.get(KIND, value) != value or REF in holder):
            size = len(above)
            kept = {at[size] for at in self.origins if len(at) > size and at[:size] == (*above,)}
            for other in [name for name in holder if name not in kept]:
                del holder[other]
            self.origins[(*above,)] = Place(override.origin)
        if not isinstance(holder, dict) and key == len(holder):
            holder.append(value)
        else:
            holder[key] = value
        self.origins = {at: place for at, place in self.origins.items() if at[: len(path)] != path}
        self.origins[path] = Place(override.origin)


def _keys_at(holder: Any, step: str | int) -> list[Any]:
    """The keys that an item of a path selects in a table or list, including a new one."""
    if isinstance(holder, dict):
        return list(holder) if step == EACH else [str(step)]
    indices = range(len(holder)) if isinstance(holder, list) else ()
    if step == EACH:
        return list(indices)
    return [step] if isinstance(holder, list) and isinstance(step, int) and step <= len(indices) else []


def _item(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict):
        return holder.get(key)
    return holder[key] if key < len(holder) else None


# --- all words, and their runs --------------------------------------------------

_TARGET: Final = re.compile(r"[\w./\\-]+:[A-Za-z_][\w.]*")
_EXPECTED: Final = "module:Class, or file.py:Class"


class Words(NamedTuple):
    """The words of a command line, without options."""

    target: str | None
    files: tuple[str, ...]
    part: str | None
    overrides: tuple[Override, ...]


def read_words(words: Sequence[str], *, takes_part: bool = True) -> Words:
    """Sorts words into a class, files, a part and overrides.

    >>> read_words(["models:Net", "net.toml", "blocks.0"])
    Words(target='models:Net', files=('net.toml',), part='blocks.0', overrides=())
    """
    overrides = tuple(parse_override(word) for word in words if is_override(word))
    rest = [word for word in words if not is_override(word)]
    targets = [word for word in rest if _TARGET.fullmatch(word)]
    others = [word for word in rest if word not in targets]
    files = tuple(word for word in others if _is_file(word) or not takes_part)
    parts = [word for word in others if word not in files]
    return Words(_only("class", targets), files, _only("part", parts), overrides)


def _only(kind: str, words: Sequence[str]) -> str | None:
    if len(words) > 1:
        raise usage_error(f"more than one {kind}", got=", ".join(words), fix="name one")
    return words[0] if words else None


def _is_file(word: str) -> bool:
    """Whether a word is a file: by its suffix, or because it cannot be the path of a part."""
    return word.lower().endswith(SUFFIXES) or "/" in word or not is_override(f"{word}=")


def document_of(words: Words) -> Document:
    file = _only("file", words.files)
    return Document(None, {}) if file is None else read_document(file)


def read_runs(
    document: Document, overrides: Sequence[Override], read: Callable[[Document], T]
) -> tuple[list[tuple[Run, T]], ConfigError | None]:
    """The result of each run, and one error with the problems of all runs, each once."""
    found: list[tuple[Run, T]] = []
    failures: list[ConfigError] = []
    for run in expand(document, overrides):
        try:
            found.append((run, _read_fitting(run, read)))
        except ConfigError as error:
            failures.append(error)
    problems = dict.fromkeys(problem for error in failures for problem in error.problems)
    if len(failures) < 2 or not problems:
        return found, failures[0] if failures else None
    report = Report()
    report.extend(problems)
    return found, report.error(failures[0].where)


def read_all(words: Words, read: Callable[[Document], T]) -> list[tuple[Run, T]]:
    found, error = read_runs(document_of(words), words.overrides, read)
    if error is not None:
        raise error
    return found


def _read_fitting(run: Run, read: Callable[[Document], T]) -> T:
    """Reads a run; if a field refuses a value, tries the other reading of the value."""
    try:
        return read(run.document())
    except ConfigError as error:
        sizes = {override.origin: len(override.path) for override, _, _ in run.chosen}
        found = [problem for problem in error.problems if problem.place.file in sizes]
        # A table or list with a wrong part is reported: its text would fit into many a field.
        wrong = {p.place.file for p in found if p.code.startswith("ref") or len(p.path) > sizes[str(p.place.file)]}
        refused = {problem.place.file for problem in found} - wrong
        if not refused:
            raise
    try:
        return read(run.document(refused))
    except ConfigError as error:
        wrong = {problem.place.file for problem in error.problems if problem.code == "wrong-type"}
        return read(run.document(refused - wrong))


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

"""Values that a command line gives in the place of those of a file.

Vocabulary
----------
override: a path and the texts of its values: ``blocks.0.hidden=128``; ``*`` stands for each item of a list or table.
sweep:    an override with several values, ``hidden=64,128``, which makes as many runs. A list is written in brackets.
run:      the plain data of one combination of values, and what it is called.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from declax.config.files.documents import Document, float_of
from declax.config.problems import Path, Place, Problem, described, did_you_mean, path_text, shown
from declax.errors import ConfigError

MAX_RUNS: Final = 10_000
"""How many runs a sweep may have; a typing mistake should not fill a cluster."""

_P = TypeVar("_P")

COMMAND_LINE: Final = "command line"
_KIND: Final = "kind"
_REF: Final = "$ref"
_NUMBERS: Final = frozenset({"int", "float", "integer", "number"})
_PATH: Final = re.compile(r"(?:[^.\[\]=]+|\[(?:\d+|\*)\])(?:\.[^.\[\]=]+|\[(?:\d+|\*)\])*")
PART: Final = re.compile(r"[^.\[\]]+")


class Override(NamedTuple):
    """One word of a command line.

    Attributes:
      text: as it was written.
      path: where; ``"*"`` for each item.
      values: plain data; several of a sweep.
      is_removal: whether it takes the value away, ``~path``.
    """

    text: str
    path: Path
    values: tuple[Any, ...]
    is_removal: bool = False


class Run(NamedTuple):
    """What one combination of values describes.

    Attributes:
      name: the values that the sweep varies, as ``hidden=64,rate=0.1``; empty where there is no sweep.
      document: the plain data, and where each part of it comes from.
    """

    name: str
    document: Document


def is_override(word: str) -> bool:
    """Whether a word of a command line is an override.

    >>> is_override("blocks.0.hidden=3"), is_override("~blocks[1]"), is_override("model.toml")
    (True, True, False)
    """
    path = word[1:] if word.startswith("~") else word.partition("=")[0]
    return (word.startswith("~") or "=" in word) and _PATH.fullmatch(path) is not None


def parse_override(word: str) -> Override:
    """The override that a word is; see `is_override`.

    Values are those of TOML; a text needs no quotes. The last item of a path may be a star.

    >>> parse_override("blocks[*].hidden=64,128")
    Override(text='blocks[*].hidden=64,128', path=('blocks', '*', 'hidden'), values=(64, 128), is_removal=False)
    >>> parse_override("sizes=[1, 2]").values, parse_override("kind=Mlp").values
    (([1, 2],), ('Mlp',))
    """
    if word.startswith("~"):
        return Override(word, _path(word[1:]), (), is_removal=True)
    path, _, text = word.partition("=")
    return Override(word, _path(path), tuple(map(_value, _split(text))))


def _path(text: str) -> Path:
    return tuple(int(part) if part.isdecimal() else part for part in PART.findall(text))


def _split(text: str) -> Iterator[str]:
    """The values of a sweep: what commas separate that stand in no brackets and no quotes."""
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
    stripped = text.strip()
    if stripped == "null":
        return None
    try:
        if "\n" not in stripped:
            value = tomllib.loads(f"value = {stripped}", parse_float=float_of)["value"]
            tomllib.loads(f"value = [{stripped}]")  # which a comment would leave open: `8#9` is no 8
            return value
    except tomllib.TOMLDecodeError:
        pass
    return stripped


def expand(document: Document, overrides: Sequence[Override]) -> Iterator[Run]:
    """A run for each combination of the values of overrides; the last override varies fastest.

    Problems with overrides are among the problems of the run's document.

    Args:
      document: what is overridden; it stays as it is.
      overrides: the overrides, of which later ones count more.
    """
    sweeps = [override for override in overrides if len(override.values) > 1]
    choices = [[(override, value) for value in override.values or (None,)] for override in overrides]
    count = 1
    for several in choices:
        count *= len(several)
    if count > MAX_RUNS:
        problem = _problem(sweeps[0], f"the sweep has {count} runs", hint=f"at most {MAX_RUNS} at once")
        yield Run("", Document(document.name, None, [*document.problems, problem]))
        return
    for chosen in itertools.product(*choices):
        name = ",".join(f"{path_text(o.path)}={_short(value)}" for o, value in chosen if o in sweeps)
        yield Run(name, _overridden(document, chosen))


def _short(value: Any) -> str:
    return value if isinstance(value, str) else shown(value) if not isinstance(value, (list, dict)) else str(value)


def _overridden(document: Document, chosen: Iterable[tuple[Override, Any]]) -> Document:
    made = _Overridden(document)
    for override, value in _in_order(chosen):
        if (ref := _ref_on_the_way(made.data, override)) is not None:
            made.problems.append(ref)
            continue
        if not override.is_removal:
            _make_tables(made, override)
        places = list(_places(made.data, override.path[:-1]))
        if not places:
            made.problems.append(_no_place(made.data, override))
        for path, holder in places:
            _put(made, holder, path, override, copy.deepcopy(value))
    return made


def _ref_on_the_way(data: Any, override: Override) -> Problem | None:
    """The problem of a path that leads into a reference; a tag, and another reference, may stand in its place."""
    for size in range(1, len(override.path)):
        if size == len(override.path) - 1 and override.path[-1] in (_KIND, _REF):
            break
        for at, holder in _places(data, override.path[:size]):
            if isinstance(holder, dict) and isinstance(target := holder.get(_REF), str):
                inner = path_text((*(key for key in target.split("/") if key), *override.path[size:]))
                hint = f"override the part itself, at {inner}, or choose a part here with {path_text((*at, _KIND))}=..."
                return _problem(override, f"what stands here is a reference to {target}", path=at, hint=hint)
    return None


class _Overridden(Document):
    """A document that overrides change, and with it where its parts are written."""

    def __init__(self, document: Document) -> None:
        self._moves: list[tuple[Path, int | None]] = []
        super().__init__(
            document.name,
            _copied(document.data),
            list(document.problems),
            lambda: functools.reduce(_moved, self._moves, document.find_places()),
            document.broken,
            dict(document.origins),
        )

    def note(self, path: Path, override: Override) -> None:
        """Notes that what is at a path comes from the command line."""
        self._move(path, None)
        self.origins[path] = Place(f"{COMMAND_LINE}: {override.text}")

    def note_without(self, path: Path, index: int) -> None:
        """Notes that an item of a list was taken away."""
        self._move(path, index)

    def _move(self, path: Path, index: int | None) -> None:
        self._moves.append((path, index))
        self.origins = _moved(self.origins, (path, index))


def _copied(data: Any) -> Any:
    """A copy in which nothing stands twice, as what an alias of YAML repeats does: an override changes one place."""
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(value) for value in data] if isinstance(data, list) else data


def _moved(places: Mapping[Path, _P], move: tuple[Path, int | None]) -> dict[Path, _P]:
    """Places without those inside of a path, or where an index is said, with those of the items after it moved up."""
    above, index = move
    size = len(above)
    made: dict[Path, _P] = {}
    for path, place in places.items():
        if len(path) <= size or path[:size] != above:
            made[path] = place
        elif index is not None and isinstance(at := path[size], int) and at != index:
            made[(*above, at - (at > index), *path[size + 1 :])] = place
    return made


def _in_order(chosen: Iterable[tuple[Override, Any]]) -> list[tuple[Override, Any]]:
    """The overrides as they were given, but that a tag comes before what was given for its table.

    A changed tag starts its table anew, and what the same command line says for that table is meant for the new one.
    """
    made: list[tuple[Override, Any]] = []
    for override, value in chosen:
        at = len(made)
        table = override.path[:-1]
        if override.path[-1] == _KIND and not override.is_removal:
            for index in range(len(made) - 1, -1, -1):
                earlier = made[index][0]
                if _decides(earlier, table):
                    break
                if _leads(table, earlier.path):
                    at = index
        made.insert(at, (override, value))
    return made


def _decides(earlier: Override, table: Path) -> bool:
    """Whether an earlier override says what a table is, or where, so that no later one may come before it."""
    above = earlier.path[:-1]
    if _leads(earlier.path, table):
        return True
    return _leads(above, table) and (
        earlier.path[-1] == _KIND or (earlier.is_removal and not isinstance(earlier.path[-1], str))
    )


def _leads(above: Path, path: Path) -> bool:
    """Whether a path is of something in the other's place, or inside of it; a star is in each."""
    if len(above) > len(path):
        return False
    return all(str(a) == str(b) or "*" in (a, b) for a, b in zip(above, path, strict=False))


def _make_tables(made: _Overridden, override: Override) -> None:
    """Makes tables that a file leaves out, as it may where there is a default; the validator knows their names.

    A tag makes a table of what is a name or a number, and appends one to a list.
    """
    path = override.path
    found: list[tuple[Path, Any]] = [((), made.data)]
    for depth, key in enumerate(path[:-1]):
        is_tagged = depth == len(path) - 2 and path[-1] == _KIND
        can_be_made = is_tagged or all(isinstance(k, str) and k != "*" for k in path[depth:-1])
        for at, holder in found:
            for name in _keys_to_make(holder, key) if can_be_made else ():
                known = None if name not in _keys(holder) else holder[name]
                if known is None or (is_tagged and not isinstance(known, (dict, list))):
                    _set(holder, name, {})
                    made.note((*at, name), override)
        found = [((*at, k), child) for at, holder in found for k, child in _children(holder, key)]


def _keys_to_make(holder: Any, key: str | int) -> Iterable[Any]:
    """What a part of a path names in a table or list, also where that is not there yet."""
    if key == "*":
        return list(_keys(holder))
    if isinstance(holder, dict):
        return (str(key),)
    return (key,) if isinstance(holder, list) and isinstance(key, int) and key <= len(holder) else ()


def _keys(holder: Any) -> Iterable[Any]:
    return range(len(holder)) if isinstance(holder, list) else holder if isinstance(holder, dict) else ()


def _set(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, list) and key == len(holder):
        holder.append(value)
    else:
        holder[key] = value


def _places(data: Any, path: Path) -> list[tuple[Path, Any]]:
    """The tables and lists at a path, with paths of their own in the place of stars."""
    found: list[tuple[Path, Any]] = [((), data)]
    for key in path:
        found = [((*at, k), child) for at, holder in found for k, child in _children(holder, key)]
    return [(at, holder) for at, holder in found if isinstance(holder, (dict, list))]


def _children(holder: Any, key: str | int) -> list[tuple[str | int, Any]]:
    if isinstance(holder, dict):
        if key == "*":
            return [(k, child) for k, child in holder.items() if isinstance(child, (dict, list))]
        return [(str(key), holder[str(key)])] if str(key) in holder else []
    if isinstance(holder, list):
        if key == "*":
            return list(enumerate(holder))
        return [(key, holder[key])] if isinstance(key, int) and key < len(holder) else []
    return []


def _put(made: _Overridden, holder: Any, path: Path, override: Override, value: Any) -> None:
    """Sets, or takes away, what an override names in one table or list."""
    last = override.path[-1]
    keys: list[Any] = [last]  # of a table names, of a list positions
    if last == "*":
        keys = list(_keys(holder))
    elif isinstance(holder, dict):
        keys = [str(last)]
    elif not isinstance(last, int) or last > len(holder) or (override.is_removal and last == len(holder)):
        made.problems.append(_problem(override, f"there is no item {last} at {path_text(path)}", path=path))
        return
    for key in reversed(keys) if override.is_removal else keys:
        if override.is_removal:
            if isinstance(holder, dict) and key not in holder:
                made.problems.append(_no_member(holder, key, path, override))
                return
            del holder[key]
            if isinstance(holder, list):
                made.note_without(path, key)
                _move_refs(made.data, tuple(map(str, path)), key)
            else:
                made.note((*path, key), override)
            continue
        if key == _KIND and isinstance(holder, dict) and (holder.get(_KIND, value) != value or _REF in holder):
            holder.clear()  # what the old kind takes is nothing to the new one
            made.note(path, override)
        _set(holder, key, value)
        made.note((*path, key), override)


def _move_refs(data: Any, path: tuple[str, ...], index: int) -> None:
    """Lets references to the items after the one that was taken away lead to them; those to it lead to nothing."""
    size = len(path)
    waiting = [data]
    while waiting:
        here = waiting.pop()
        waiting += here.values() if isinstance(here, dict) else here if isinstance(here, list) else ()
        if not isinstance(here, dict):
            continue
        written = here.get(_REF)
        if not isinstance(written, str) or not written.startswith("/"):
            continue
        keys = written[1:].split("/")
        names = [key.replace("~1", "/").replace("~0", "~") for key in keys]
        if len(keys) <= size or tuple(names[:size]) != path or not keys[size].isdecimal() or int(keys[size]) < index:
            continue
        keys[size] = str(int(keys[size]) - 1) if int(keys[size]) > index else f"{index} (taken away)"
        here[_REF] = "/" + "/".join(keys)


def text_with_hints(error: ConfigError) -> str:
    """The text of an error, with hints for values of a command line, where a shell takes quotes away."""
    text = str(error)
    for problem in error.problems:
        text = text.replace(str(problem), str(_hinted(problem)), 1)
    return text


def _hinted(problem: Problem) -> Problem:
    word = (problem.place.file or "").removeprefix(f"{COMMAND_LINE}: ")
    if problem.code != "wrong-type" or word == problem.place.file or not is_override(word):
        return problem
    path, _, text = word.partition("=")
    given = next((raw.strip() for raw in _split(text) if described(_value(raw)) == problem.got), None)
    if given is None or len(problem.path) != len(_path(path)):
        return problem
    name = path_text(problem.path)
    expected = set(re.findall(r"[a-z]+", problem.expected or ""))
    value = _value(given)
    hint = problem.hint
    if not isinstance(value, str):
        if "string" in expected and not isinstance(value, (list, dict)):
            hint = f"{name}='\"{given}\"'"
    elif value.lower() in ("true", "false") and expected & {"bool", "boolean"}:
        hint = f"{name}={value.lower()}"
    elif value.startswith("["):
        hint = f'texts in brackets are quoted, {name}=\'["a", "b"]\''
    elif value.startswith("{"):
        hint = f"tables are those of TOML, {name}='{{key = 1}}'"
    elif (problem.expected or "").startswith(("a list", "a table")):
        pass  # an int or two may be in its text, as the type of the items
    elif expected & _NUMBERS:
        number = _number(value)
        hint = f"{name}={number}" if number is not None else "write a number"
    return problem if hint == problem.hint else dataclasses.replace(problem, hint=hint)


def _number(text: str) -> str | None:
    """A number as TOML has it, of a text that people take for one, such as ``.5``."""
    for read in (int, float):
        try:
            return repr(read(text))
        except ValueError:
            continue
    return None


def _no_place(data: Any, override: Override) -> Problem:
    """The problem of a path to nothing; names the last part of it that there is."""
    known: Any = data
    path: Path = ()
    for key in override.path:
        children = _children(known, key)
        if not children:
            return _no_member(known, key, path, override)
        path, known = (*path, children[0][0]), children[0][1]
    return _problem(override, "there is no table at this path", path=path)


def _no_member(holder: Any, key: str | int, path: Path, override: Override) -> Problem:
    hint = did_you_mean(key, list(holder)) if isinstance(holder, dict) else None
    if isinstance(holder, list) and key == len(holder) and not override.is_removal:
        hint = f"{path_text((*path, key, _KIND))}=... appends one"
    return _problem(override, f"there is no {key!r} at {path_text(path)}", path=path, hint=hint)


def _problem(override: Override, message: str, path: Path | None = None, hint: str | None = None) -> Problem:
    place = Place(f"{COMMAND_LINE}: {override.text}")
    return Problem("override", override.path if path is None else path, message, hint=hint, place=place)

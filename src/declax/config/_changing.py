"""Words applied to a spec, and changes of all parts of a class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from declax.config._data import FrozenDict, FrozenList, SpecData
from declax.config._declared import Part, parts_of
from declax.config._reading.catalog import catalog_for
from declax.config._reading.parameters import target_name
from declax.config._reading.readers import INVALID, Context, Reader
from declax.config._refs import Cursor, changed, where
from declax.config._sources.words import ANYWHERE, INSERT, REMOVE, Word, parse_word
from declax.config.problems import KIND, Path, did_you_mean, path_text
from declax.errors import ConfigError, type_name

S = TypeVar("S", bound=SpecData)


def is_meant(part: Part, name: str) -> bool:
    """Whether a part is of a class, or of a subclass, by name."""
    target = part.spec.target
    classes = target.__mro__ if isinstance(target, type) else (target,)
    return any(target_name(cls).rpartition(".")[2] == name for cls in classes)


def paths_meant(spec: SpecData, path: Path) -> list[Path]:
    """The paths that stand for one with `**`, a class or argument, and further steps.

    Raises:
      ConfigError: no part is of this class, or has this argument.
    """
    if len(path) < 2:
        raise ConfigError(ANYWHERE, "no class or argument follows", fix=f"{ANYWHERE}.Linear.use_bias=false")
    name, *rest = path[1:]
    parts = list(parts_of(spec))
    if rest:
        found: list[Path] = [(*part.path, *rest) for part in parts if is_meant(part, str(name))]
    else:
        found = [(*part.path, name) for part in parts if name in part.spec.parameters.by_name]
    if not found:
        known = {target_name(part.spec.target).rpartition(".")[2] for part in parts}
        problem = "there is no part of this class" if rest else "there is no part with this argument"
        expected = ", ".join(sorted(known))
        raise ConfigError(str(name), problem, expected=expected, fix=did_you_mean(str(name), known))
    return found


def with_word(spec: S, text: str) -> S:
    """A copy of a spec, changed by a word."""
    word = parse_word(text)
    if len(word.values) > 1:
        raise ConfigError(text, "a word has several values", fix="one value, or dx.cli(..., sweep=True)")
    paths = paths_meant(spec, word.path) if word.path[:1] == (ANYWHERE,) else [word.path]
    for path in paths:
        spec = _with_change(spec, path, word)
    return spec


def _with_change(spec: S, path: Path, word: Word) -> S:
    keys = tuple(map(str, path))
    if word.action == REMOVE:
        return changed(spec, keys[:-1], lambda cursor: _without(cursor, keys[-1]))
    if word.action == INSERT:
        above = keys[:-1] if keys[-1].isdecimal() else keys
        return changed(spec, above, lambda cursor: _with_item(cursor, keys[len(above) :], word))
    if keys[-1] == KIND:
        return changed(spec, keys[:-1], lambda cursor: _read(cursor, word, lambda value: {KIND: value}))
    return changed(spec, keys, lambda cursor: _read(cursor, word))


def _read(cursor: Cursor, word: Word, table: Any = lambda value: value, reader: Reader | None = None) -> Any:
    """The value of a word, as the field at a cursor reads it."""
    reader = reader or cursor.reader or catalog_for(()).anything
    failed: Context | None = None
    for value in (word.values[0], word.others[0]):
        context = Context(catalog=catalog_for(()))
        found = reader.read(table(value), cursor.path, context)
        if found is not INVALID:
            return found
        failed = failed or context
    assert failed is not None
    raise failed.error(word.text)


def _with_item(cursor: Cursor, index: Sequence[str], word: Word) -> list[Any]:
    """The list at a cursor with a new item, before an index or at the end."""
    held = cursor.value
    at = int(index[0]) if index else len(held) if isinstance(held, (tuple, FrozenList)) else 0
    if not isinstance(held, (tuple, FrozenList)) or at > len(held):
        raise ConfigError(word.text, f"no item can be inserted at {path_text((*cursor.path, *index))}")
    reader = None if cursor.reader is None else cursor.reader.below(held, at)
    items = list(held)
    items.insert(at, _read(cursor, word, reader=reader))
    return items


def _without(cursor: Cursor, key: str) -> Any:
    """The value at a cursor without an item, an entry, or an argument, which then has its default."""
    held = cursor.value
    if isinstance(held, SpecData) and key in held.arguments:
        return type(held)(held.target, {name: value for name, value in held.arguments.items() if name != key})
    if isinstance(held, (tuple, FrozenList)) and key.isdecimal() and int(key) < len(held):
        return [item for index, item in enumerate(held) if index != int(key)]
    if isinstance(held, FrozenDict) and key in held:
        return {name: value for name, value in held.items() if name != key}
    raise ConfigError(path_text((*cursor.path, key)), "there is nothing to remove")


class Selection(Generic[S]):
    """The parts of a spec that are of one class, also those that class bodies declare.

    >>> import declax as dx
    >>> model = dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.relu, dx.spec(dx.Linear, 4, 5))
    >>> found = model.select(dx.Linear)
    >>> found.paths
    ['layers.0', 'layers.2']
    >>> found.replace(use_bias=False)["layers.2"]
    spec(Linear, in_features=4, out_features=5, use_bias=False)
    """

    def __init__(self, spec: S, cls: type) -> None:
        self._spec = spec
        self._cls = cls
        parts = parts_of(spec)
        self._parts = [p for p in parts if isinstance(p.spec.target, type) and issubclass(p.spec.target, cls)]

    @property
    def paths(self) -> list[str]:
        """The paths of the parts."""
        return [path_text(part.path) for part in self._parts]

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[SpecData]:
        """The specs of the parts, with what class bodies compute."""
        return (part.spec for part in self._parts)

    def replace(self, **arguments: object) -> S:
        """A copy of the whole spec with other arguments of all these parts.

        Raises:
          ConfigError: there are no such parts, one has no such argument, or its class body makes one without a field.
        """
        if not self._parts:
            known = sorted({target_name(part.spec.target) for part in parts_of(self._spec)})
            raise ConfigError(
                where(self._spec, ()), f"no part is a {type_name(self._cls)}", expected=", ".join(known) or "no parts"
            )
        found = self._spec
        for part in self._parts:
            for name, value in arguments.items():
                keys = (*map(str, part.path), name)
                found = changed(found, keys, lambda cursor, value=value: value)  # type: ignore[misc]  # mypy has no type for its default
        return found

    def __repr__(self) -> str:
        return f"<{len(self)} parts of {type_name(self._cls)}: {', '.join(self.paths)}>"

"""What a shell offers for the last word of a command line: paths, kinds, alternatives and other values."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

from declax.config._cli.arguments import load_target, read_words
from declax.config._cli.sources import documents_of
from declax.config._files.documents import Document
from declax.config._reading.catalog import catalog_for
from declax.config._reading.limits import CheckedReader
from declax.config._reading.part_readers import ChoiceReader, InitializerReader, UnionReader, choices_at
from declax.config._reading.readers import (
    BoolReader,
    EnumReader,
    LiteralReader,
    NamesReader,
    NullReader,
    Reader,
    WrappingReader,
)
from declax.config._sources.composing import Configuration, takes_alternatives
from declax.config._sources.keys import USE
from declax.config._sources.words import is_word
from declax.config.problems import KIND, Path, steps_of
from declax.errors import DeclaxError


def completions(target: Any, words: Sequence[str], typed: str) -> list[str]:
    """The words that begin with what was typed.

    >>> import declax as dx
    >>> completions(dx.Linear, [], "in_"), completions(dx.Linear, [], "use_bias=")
    (['in_features='], ['use_bias=true', 'use_bias=false'])
    """
    configuration = _configuration(target, words)
    path, equals, value = typed.partition("=")
    keys = _keys(path if equals else path.rpartition(".")[0])
    if keys is None:
        return []
    if equals:
        offered = [f"{path}={text}" for text in _values(configuration, keys)]
        return [word for word in offered if word.startswith(f"{path}={value}")]
    prefix = path.rpartition(".")[0]
    names = [f"{prefix}.{name}" if prefix else name for name in _names(configuration, keys)]
    return [f"{name}=" for name in names if name.startswith(path)]


def complete(words: Sequence[str]) -> list[str]:
    """As `completions`, for the words behind the command; the last one is completed."""
    *given, typed = words or [""]
    try:
        target = read_words(given).target
        return [] if target is None else completions(load_target(target), given, typed)
    except DeclaxError:
        return []


def _configuration(target: Any, words: Sequence[str]) -> Configuration:
    """What the words before the last one say, as far as it can be read."""
    configuration = Configuration(catalog_for(()).root_reader(target))
    try:
        documents = documents_of(read_words([word for word in words if not is_word(word)], takes_part=False))
    except DeclaxError:
        documents = []
    for document in documents or [Document(None, {})]:
        configuration.add(document)
    for word in read_words([word for word in words if is_word(word)]).changes:
        configuration.add_word(word, word.values[0])
    return configuration


def _keys(path: str) -> Path | None:
    steps = steps_of(path) if path else ()
    return None if steps is None else tuple(int(step) if step.isdecimal() else step for step in steps)


def _names(configuration: Configuration, path: Path) -> list[str]:
    """The names of the fields of the table at a path."""
    holder, reader = configuration.value_at(path), configuration.reader_at(path)
    if isinstance(holder, str) and takes_alternatives(reader):
        holder = {USE: holder}
    call = configuration.call_at(reader, path, holder if isinstance(holder, dict) else {})
    kinds = [choice for choice in choices_at(reader) if len(choice.choices) > 1]
    return [*([KIND] if kinds else []), *(() if call is None else call.parameters.by_name)]


def _values(configuration: Configuration, path: Path) -> Iterable[str]:
    """The values of a field of which there are few."""
    if path[-1:] == (KIND,):
        return [tag for choice in choices_at(configuration.reader_at(path[:-1])) for tag in choice.choices]
    reader = configuration.reader_at(path)
    files = configuration.files.names(path, Document(None, {})) if takes_alternatives(reader) else []
    return [*files, *_of_reader(reader)]


def _of_reader(reader: Reader | None) -> list[str]:
    match reader:
        case CheckedReader(choices=choices) if choices is not None:
            return list(map(str, choices))
        case WrappingReader():
            return _of_reader(reader.reader)
        case UnionReader():
            return [text for member in reader.members for text in _of_reader(member)]
        case BoolReader():
            return ["true", "false"]
        case NullReader():
            return ["null"]
        case InitializerReader() | ChoiceReader(only=None):
            return list(reader.choices) if isinstance(reader, InitializerReader) else []
        case NamesReader():
            return list(reader.table)
        case EnumReader() | LiteralReader():
            return [value.name if isinstance(value, enum.Enum) else str(value) for value in reader.choices.values()]
        case _:
            return []

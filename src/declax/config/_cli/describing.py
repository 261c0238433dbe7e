"""The parameters of a class as a table, for help."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from declax._fields.annotations import annotation_text
from declax._typing import MISSING
from declax.config._editing import parse_path
from declax.config._reading.catalog import catalog_for
from declax.config._reading.parameters import Parameter, parameters_of, target_name
from declax.config._reading.part_readers import CallReader, ChoiceReader, InitializerReader, UnionReader
from declax.config._reading.readers import CheckedReader, ListReader, Reader
from declax.config.problems import EACH, KIND, did_you_mean
from declax.config.schema import first_paragraph
from declax.errors import ConfigError

_WIDTH: Final = 100
_INDENT: Final = "  "
_DEPTH: Final = 3  # the depth of parts whose parameters are listed
_FEW: Final = 4  # the number of kinds up to which each is listed


def parameter_table(target: Any, *, has_parts: bool = False, extra: tuple[Any, ...] = ()) -> str:
    """The parameters of a class: name, type, default, range and help.

    >>> import declax as dx
    >>> print(parameter_table(dx.Dropout).splitlines()[2])
      rate: float, at least 0.0, at most 1.0
    """
    lines = [target_name(target), *textwrap.wrap(first_paragraph(target), _WIDTH, initial_indent=_INDENT)[:1]]
    calls = catalog_for(extra).call if has_parts else None
    return "\n".join([*lines, *_parameter_lines(target, "", _INDENT, calls, ())])


def part_target(target: Any, part: str | None) -> Any:
    """The class at a path, by the annotations alone."""
    for key in parse_path(part) if part is not None else ():
        readers = catalog_for(()).call(target).readers
        if key.isdecimal() or key == EACH:
            continue  # the class of an item, which `_parts` has found
        if key not in readers:
            where, problem = target_name(target), f"there is no parameter {key!r}"
            raise ConfigError(where, problem, expected=", ".join(readers), fix=did_you_mean(key, readers))
        choices = _parts(readers[key])[1]
        if len(choices) != 1:
            where, problem = f"{target_name(target)}.{key}", "the annotation does not determine one class"
            fix = "add a configuration file, or an override of its kind"
            raise ConfigError(where, problem, expected=", ".join(choices) or None, fix=fix)
        (target,) = choices.values()
    return target


def _parameter_lines(
    target: Any, prefix: str, indent: str, calls: Callable[[Any], CallReader] | None, above: tuple[Any, ...]
) -> Iterator[str]:
    """The lines for the parameters of a target at a path, and of its parts."""
    for parameter in parameters_of(target):
        path = f"{prefix}{parameter.name}"
        yield f"{indent}{path}: {', '.join(_facts(parameter))}"
        further = indent + 2 * _INDENT
        yield from textwrap.wrap(parameter.notes.help or "", _WIDTH, initial_indent=further, subsequent_indent=further)
        if calls is None or len(above) >= _DEPTH:
            continue
        item, choices = _parts(calls(target).readers[parameter.name])
        inside = indent + _INDENT
        for tag, choice in choices.items():
            if len(choices) > 1:
                kind = f"{path}{item}.{KIND}={tag}: {first_paragraph(choice)}".rstrip(": ")
                yield from textwrap.wrap(kind, _WIDTH, initial_indent=indent + _INDENT)[:1]
                inside = indent + 2 * _INDENT
            if choice not in (*above, target) and choice.__module__.partition(".")[0] != "declax":
                yield from _parameter_lines(choice, f"{path}{item}.", inside, calls, (*above, target))


def _parts(reader: Reader) -> tuple[str, Mapping[str, Any]]:
    """The path to an item of a parameter, and the classes that it allows, if these are few."""
    if isinstance(reader, CheckedReader):
        return _parts(reader.reader)
    if isinstance(reader, ListReader) and reader.item is not None:
        item, choices = _parts(reader.item)
        return f"[*]{item}", choices
    if isinstance(reader, UnionReader):
        tables = [member for member in reader.members if "table" in member.words or isinstance(member, ListReader)]
        return _parts(tables[0]) if len(tables) == 1 else ("", {})
    if not isinstance(reader, ChoiceReader) or isinstance(reader, InitializerReader) or len(reader.choices) > _FEW:
        return "", {}
    return "", reader.choices


def _facts(parameter: Parameter) -> list[str]:
    notes = parameter.notes
    facts = [parameter.written or annotation_text(parameter.annotation) or "any"]
    if notes.choices is not None:
        facts.append("one of " + ", ".join(map(repr, notes.choices)))
    facts += [f"{word} {bound}" for word, bound in (("at least", notes.ge), ("at most", notes.le)) if bound is not None]
    name = getattr(notes.check, "__name__", "<lambda>")
    facts += [f"checked by {name}"] if name != "<lambda>" else []
    if parameter.default is not MISSING or parameter.default_factory is not None:
        default = parameter.make_default()
        name = getattr(default, "__name__", None)
        text = name if isinstance(name, str) else repr(default)
        facts.append(f"default {text if len(text) <= 60 else f'{text[:57]}...'}")
    return facts

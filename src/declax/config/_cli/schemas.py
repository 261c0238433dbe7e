"""Files held against a saved schema, without JAX.

A file names its schema, so that a schema is as little trusted as the file: it is a regular file of limited size, refers
to its own definitions only, and has the keywords and patterns only that declax writes.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from declax.config._files.documents import Document
from declax.config.problems import Path as KeyPath
from declax.config.problems import Problem, Report, described, did_you_mean
from declax.errors import ConfigError, MissingExtraError

Schema = dict[str, Any]

MAX_SCHEMA_BYTES: Final = 8 * 1024 * 1024
"""How large a schema may be."""

_NAMED: Final = re.compile(r"^#:schema\s+(\S+)|^#\s*yaml-language-server:\s*\$schema=(\S+)", re.MULTILINE)
_KIND: Final = "kind"
_HEAD: Final = 4096
_PATTERN: Final = "^/"
_DEFINITION: Final = "#/definitions/"
_NESTED: Final = ("not", "additionalProperties", "additionalItems", "items", "allOf", "anyOf", "oneOf")
_KEYWORDS: Final = frozenset(
    "$schema $ref title description pattern properties definitions not allOf anyOf oneOf required enum minimum maximum "
    "minItems maxItems type items additionalItems additionalProperties const default".split()
)
"""The keywords that declax writes."""


def schema_of_file(file: str, document: Document) -> Path | None:
    """The schema that a file names: by a first comment that editors know, or by the key ``$schema``."""
    named: object = document.data.get("$schema") if isinstance(document.data, Mapping) else None
    if named is None and not file.endswith(".json"):
        with open(file, "rb") as opened:
            head = opened.read(_HEAD)
        found = _NAMED.search(head.decode("utf-8", errors="replace"))
        named = (found[1] or found[2]) if found else None
    if not isinstance(named, str) or "://" in named:
        return None
    return Path(file).parent / named


def load_schema(path: str | Path) -> Schema:
    """A saved schema."""
    fix = f"declax schema module:Class -o {path}"
    if Path(path).exists() and not Path(path).is_file():  # a device or a pipe has no end
        raise ConfigError(str(path), "the schema is not a regular file", fix="declax schema module:Class -o FILE")
    try:
        with open(path, "rb") as file:
            found: object = json.loads(file.read(MAX_SCHEMA_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(str(path), "the schema cannot be read", why=str(error), fix=fix) from None
    if not isinstance(found, dict):
        raise ConfigError(str(path), "the file has no schema", got=described(found), fix="declax schema module:Class")
    wrong = next(_foreign(found), None)
    if wrong is not None:
        raise ConfigError(str(path), "declax did not write this schema", got=wrong, fix=fix)
    return found


def _foreign(schema: Schema) -> Iterator[str]:
    """What a schema has that declax does not write; it may cost much time, or lead out of the file."""
    waiting: list[object] = [schema]
    while waiting:
        here = waiting.pop()
        for key, value in here.items() if isinstance(here, dict) else ():
            is_elsewhere = key == "$ref" and not (isinstance(value, str) and value.startswith(_DEFINITION))
            if key not in _KEYWORDS or is_elsewhere or (key == "pattern" and value != _PATTERN):
                yield f"the key {key!r} with {described(value)}"
            if key in ("properties", "definitions") and isinstance(value, dict):
                waiting += value.values()
            elif key in _NESTED:
                waiting += value if isinstance(value, list) else [value]


def check_by_schema(document: Document, schema: Schema) -> None:
    """Checks a document by a schema."""
    report = Report()
    report.extend(document.problems)
    report.extend(problems_by_schema(document.data, schema))
    if report:
        raise report.error(document.name or "the configuration", document.place_of)


def problems_by_schema(data: object, schema: Schema) -> list[Problem]:
    """The problems of plain data; see `check_by_schema`."""
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError:
        raise MissingExtraError(
            "declax check",
            "checking by a schema needs jsonschema, which is not installed",
            fix='pip install "declax[cli]"        # or name the class: declax check module:Class FILE',
        ) from None
    try:
        known = jsonschema.Draft7Validator
        # no float is an int, as in `from_config`
        types = known.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
        found = jsonschema.validators.extend(known, type_checker=types)(schema).iter_errors(data)
        return list(dict.fromkeys(problem for error in found for problem in _problems(error, ())))
    except Exception as error:  # noqa: BLE001  # of a schema that is none, or leads in circles
        why = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        fix = "declax check module:Class FILE"
        raise ConfigError("declax check", "the schema cannot be used", why=why, fix=fix) from None


def _problems(error: Any, above: KeyPath) -> Iterator[Problem]:
    """The problems of an error of jsonschema, whose paths are relative to the one around it."""
    path = (*above, *error.relative_path)
    if error.validator in ("oneOf", "anyOf", "allOf") and error.context:
        yield from _of_choice(error, path)
    elif error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = error.schema.get("properties", {})
        for key in (key for key in error.instance if key not in known):
            message = f"{error.schema.get('title', 'this')} has no parameter {key!r}"
            yield Problem("unknown-key", (*path, key), message, hint=did_you_mean(key, known))
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                message = f"{error.schema.get('title', 'this')} needs {key!r}, which has no default"
                yield Problem("missing-key", (*path, key), message)
    elif error.validator == "type":
        words = error.validator_value
        expected = words if isinstance(words, str) else " or ".join(words)
        got = described(error.instance)
        yield Problem("wrong-type", path, "the value has the wrong type", expected=expected, got=got)
    elif error.validator in ("enum", "const"):
        names = error.validator_value if error.validator == "enum" else [error.validator_value]
        hint = did_you_mean(error.instance, [name for name in names if isinstance(name, str)])
        expected = "one of " + ", ".join(map(str, names[:40]))
        got = described(error.instance)
        yield Problem("no-choice", path, "the value is none of the choices", expected=expected, got=got, hint=hint)
    else:
        yield Problem("out-of-range", path, error.message.partition("\n")[0][:200])


def _of_choice(error: Any, path: KeyPath) -> Iterator[Problem]:
    """The problems of the option that was meant: the one whose tag fits, else the one that is nearest."""
    options: dict[int, list[Any]] = {}
    for inner in error.context:
        options.setdefault(inner.schema_path[0], []).append(inner)
    nearest = min(options.values(), key=_distance)
    if isinstance(error.instance, Mapping) and _KIND in error.instance and any(_distance(nearest)[:3]):
        tags = [str(inner.validator_value) for inner in error.context if _is_of_tag(inner)]
        tag = error.instance[_KIND]
        expected, got, hint = "one of " + ", ".join(tags), described(tag), did_you_mean(tag, tags)
        yield Problem("unknown-kind", (*path, _KIND), "unknown kind", expected, got, hint=hint)
        return
    for inner in nearest:
        yield from _problems(inner, path)


def _distance(errors: list[Any]) -> tuple[bool, bool, bool, int]:
    """How far an option is from what is written: another kind, another type, a reference, or so many mistakes."""
    is_of_type = any(
        not error.relative_path
        and (error.validator == "type" or (error.validator == "enum" and isinstance(error.instance, Mapping)))
        for error in errors
    )
    is_reference = any(error.validator == "required" and error.validator_value == ["$ref"] for error in errors)
    return any(map(_is_of_tag, errors)), is_of_type, is_reference, len(errors)


def _is_of_tag(error: Any) -> bool:
    return error.validator == "const" and list(error.relative_path)[-1:] == [_KIND]

"""Files held against a saved schema, without JAX.

What needs the classes themselves (where references lead to, what a ``__post_init__`` asks) is left to a check with the
class. A file names its schema, so that a schema is as little trusted as the file: it is a regular file of limited size,
refers to its own definitions only, has no patterns but those that declax writes, and is checked in a limited number of
steps.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from declax.config.files.documents import Document
from declax.config.problems import Path as KeyPath
from declax.config.problems import Problem, described, did_you_mean, path_text
from declax.errors import ConfigError, MissingExtraError

Schema = dict[str, Any]

MAX_SCHEMA_BYTES: Final = 8 * 1024 * 1024
"""How large a schema may be."""

MAX_STEPS: Final = 2_000_000
"""How much work a check may be: keywords of the schema, each for one value."""

_NAMED: Final = re.compile(r"^#:schema\s+(\S+)|^#\s*yaml-language-server:\s*\$schema=(\S+)", re.MULTILINE)
_KIND: Final = "kind"
_HEAD: Final = 4096
_PATTERNS: Final = ("^/",)
_DEFINITION: Final = "#/definitions/"
_REFUSED: Final = ("$id", "patternProperties", "uniqueItems", "format", "dependencies")
_OF_ONE: Final = ("additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then")
_OF_MANY: Final = ("allOf", "anyOf", "oneOf")
_OF_NAMES: Final = ("properties", "definitions")


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
    """A saved schema.

    Raises:
      ConfigError: the file is none, is too large, or has what declax does not write: patterns, references elsewhere.
    """
    fix = f"declax schema module:Class -o {path}"
    try:
        content = _content(Path(path))
        found: object = json.loads(content) if len(content) <= MAX_SCHEMA_BYTES else None
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(str(path), "the schema cannot be read", why=str(error), fix=fix) from None
    if len(content) > MAX_SCHEMA_BYTES:
        expected = f"at most {MAX_SCHEMA_BYTES // 1024} KiB"
        raise ConfigError(str(path), "the file is too large for a schema", expected=expected, fix=fix)
    if not isinstance(found, dict):
        raise ConfigError(str(path), "the file is no schema", got=described(found), fix="declax schema module:Class")
    wrong = next(_not_allowed(found), None)
    if wrong is not None:
        raise ConfigError(str(path), "this is no schema that declax has written", got=wrong, fix=fix)
    return found


def _content(path: Path) -> bytes:
    """The content of a file, or a little more of it than is allowed."""
    if path.exists() and not path.is_file():  # a device or a pipe has no end
        raise ConfigError(str(path), "the schema is no regular file", fix="declax schema module:Class -o FILE")
    with open(path, "rb") as file:
        return file.read(MAX_SCHEMA_BYTES + 1)


def _not_allowed(schema: Schema) -> Iterator[str]:
    """What a schema has that may cost much time, or lead out of its file."""
    definitions = schema.get("definitions", {})
    waiting: list[object] = [schema]
    while waiting:
        here = waiting.pop()
        if not isinstance(here, dict):
            if not isinstance(here, bool):
                yield f"{described(here)}, where a schema was expected"
            continue
        yield from (f"the key {key!r}" for key in _REFUSED if key in here)
        if "pattern" in here and here["pattern"] not in _PATTERNS:
            yield f"the pattern {described(here['pattern'])}"
        if "$ref" in here and not _is_definition(here["$ref"], definitions):
            yield f"the reference {described(here['$ref'])}"
        waiting += _inner(here)


_KEYWORDS: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("$schema", "$ref", "title", "description", "pattern"), (str,)),
    **dict.fromkeys(("properties", "definitions", "not"), (dict,)),
    **dict.fromkeys((*_OF_MANY, "required", "enum"), (list,)),
    **dict.fromkeys(("minimum", "maximum"), (int, float)),
    **dict.fromkeys(("minItems", "maxItems"), (int,)),
    "type": (str, list),
    "items": (dict, list),
    "additionalProperties": (dict, bool),
    "const": (),
    "default": (),
}
"""The keywords that declax writes, and the types of their values; any for an empty tuple."""
_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def _is_as_written(schema: Schema) -> bool:
    """Whether a schema has nothing but what declax writes, so that it need not be held against that of schemas.

    That takes longer than the check of a file.
    """
    waiting: list[object] = [schema]
    while waiting:
        here = waiting.pop()
        if isinstance(here, bool):
            continue
        if not isinstance(here, dict) or not here.keys() <= _KEYWORDS.keys():
            return False
        if any(_KEYWORDS[key] and not isinstance(value, _KEYWORDS[key]) for key, value in here.items()):
            return False
        if any(isinstance(here.get(key), bool) for key in ("minimum", "maximum", "minItems", "maxItems")):
            return False
        types = here.get("type", [])
        if not _are_texts(here.get("required", [])) or not _are_texts([types] if isinstance(types, str) else types):
            return False
        if not _TYPES.issuperset([types] if isinstance(types, str) else types):
            return False
        if any(not here.get(key, True) for key in (*_OF_MANY, "type")):
            return False
        waiting += _inner(here)
    return True


def _are_texts(values: list[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_definition(reference: object, definitions: object) -> bool:
    is_here = isinstance(reference, str) and reference.startswith(_DEFINITION) and isinstance(definitions, dict)
    return is_here and str(reference)[len(_DEFINITION) :] in cast("Schema", definitions)


def _inner(schema: Schema) -> Iterator[object]:
    """The schemas that stand in a schema."""
    yield from (schema[key] for key in _OF_ONE if key in schema)
    for key in (*_OF_MANY, "items", *_OF_NAMES):
        value = schema.get(key, ())
        if isinstance(value, list):
            yield from value
        elif key in _OF_NAMES and isinstance(value, dict):
            yield from value.values()
        elif value != ():
            yield value


def problems_by_schema(document: Document, schema: Schema) -> list[Problem]:
    """What a schema finds wrong with a document.

    Raises:
      ConfigError: the schema is none, or a check by it would take too long.
      MissingExtraError: jsonschema is not installed.
    """
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError:
        raise MissingExtraError(
            "declax check",
            "checking by a schema needs jsonschema, which is not installed",
            fix='pip install "declax[cli]"        # or name the class: declax check module:Class FILE',
        ) from None
    fix = "declax check module:Class FILE"
    try:
        validator = _counting(jsonschema)
        meta_schema = jsonschema.Draft7Validator.META_SCHEMA
        wrong = None if _is_as_written(schema) else next(validator(meta_schema).iter_errors(schema), None)
        if wrong is None:
            errors = validator(schema).iter_errors(document.data)
            return list(dict.fromkeys(problem for error in errors for problem in _problems(error, ())))
    except _TooManySteps:
        why = f"it takes more than {MAX_STEPS} steps"
        raise ConfigError("declax check", "a check by this schema would take too long", why=why, fix=fix) from None
    except (ArithmeticError, RecursionError, ValueError) as error:
        is_deep = isinstance(error, RecursionError)
        reason = "it leads in circles, or one of both is nested too deeply" if is_deep else str(error)
        raise ConfigError("declax check", "the schema cannot be used", why=reason, fix=fix) from None
    raise ConfigError(
        "declax check",
        "the file is no schema of draft-07",
        got=f"{path_text(tuple(wrong.path))}: {described(wrong.instance)}",
        fix="declax schema module:Class -o FILE",
    )


class _TooManySteps(Exception):  # noqa: N818  # it ends a check, and nobody sees it
    pass


def _counting(jsonschema: Any) -> Any:
    """A class of validators that counts its steps, and takes no float for an int."""
    left = MAX_STEPS

    def counted(check: Callable[..., Any]) -> Callable[..., Any]:
        def check_once(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            nonlocal left
            left -= 1 + (len(value) // 8 if isinstance(value, (dict, list)) else 0)
            if left < 0:
                raise _TooManySteps
            return check(validator, value, instance, schema)

        return check_once

    known = jsonschema.Draft7Validator
    checks = {name: counted(check) for name, check in known.VALIDATORS.items()}
    types = known.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)  # 1.0 is none to `from_config`
    return jsonschema.validators.extend(known, checks, type_checker=types)


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
    tagged = isinstance(error.instance, Mapping) and _KIND in error.instance
    others = [e for e in options.values() if not any(map(_is_of_tag, e))]
    fits = [e for e in others if not (tagged and (_is_reference(e) or any(map(_is_of_type, e))))]
    if tagged and not fits:
        tags = [str(inner.validator_value) for errors in options.values() for inner in errors if _is_of_tag(inner)]
        tag, message = error.instance[_KIND], "there is no class of this name here"
        expected, got, hint = "one of " + ", ".join(tags), described(tag), did_you_mean(tag, tags)
        yield Problem("unknown-kind", (*path, _KIND), message, expected, got, hint=hint)
        return
    of_its_type = [e for e in fits if not any(map(_is_of_type, e))]
    nearest = min(
        of_its_type or fits or list(options.values()), key=lambda errors: (_is_reference(errors), len(errors))
    )
    for inner in nearest:
        yield from _problems(inner, path)


def _is_of_tag(error: Any) -> bool:
    return error.validator == "const" and list(error.relative_path)[-1:] == [_KIND]


def _is_of_type(error: Any) -> bool:
    """Whether the value itself has the wrong type, and not one inside of it; a table is none of several names."""
    is_no_name = error.validator == "enum" and isinstance(error.instance, Mapping)
    return (error.validator == "type" or is_no_name) and not error.relative_path


def _is_reference(errors: list[Any]) -> bool:
    """Whether errors say that something is no reference, which nobody meant who did not write one."""
    return any(e.validator == "required" and e.validator_value == ["$ref"] for e in errors)

"""Files held against a saved schema, without JAX.

What needs the classes themselves (where references lead to, what a ``__post_init__`` asks) is left to a check with the
class.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from declax.config.files.documents import Document
from declax.config.problems import Path as KeyPath
from declax.config.problems import Problem, described, did_you_mean
from declax.errors import ConfigError, MissingExtraError

Schema = dict[str, Any]

_NAMED: Final = re.compile(r"^#:schema\s+(\S+)|^#\s*yaml-language-server:\s*\$schema=(\S+)", re.MULTILINE)
_KIND: Final = "kind"


def schema_of_file(file: str, document: Document) -> Path | None:
    """The schema that a file names: by a first comment that editors know, or by the key ``$schema``."""
    named: object = document.data.get("$schema") if isinstance(document.data, Mapping) else None
    if named is None and not file.endswith(".json"):
        head = Path(file).read_text(encoding="utf-8", errors="replace")[:4096]
        found = _NAMED.search(head)
        named = (found[1] or found[2]) if found else None
    if not isinstance(named, str) or "://" in named:
        return None
    return Path(file).parent / named


def load_schema(path: str | Path) -> Schema:
    """A saved schema.

    Raises:
      ConfigError: the file is none.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        fix = f"declax schema module:Class -o {path}"
        raise ConfigError(str(path), "the schema cannot be read", why=str(error), fix=fix) from None
    if not isinstance(found, dict):
        raise ConfigError(str(path), "the file is no schema", got=described(found), fix="declax schema module:Class")
    return found


def problems_by_schema(document: Document, schema: Schema) -> list[Problem]:
    """What a schema finds wrong with a document.

    Raises:
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
    errors = jsonschema.Draft7Validator(schema).iter_errors(document.data)
    return [problem for error in errors for problem in _problems(error, ())]


def _problems(error: Any, above: KeyPath) -> Iterator[Problem]:
    """The problems of an error of jsonschema, whose paths are relative to the one around it."""
    path = (*above, *error.relative_path)
    if error.validator in ("oneOf", "anyOf", "allOf") and error.context:
        yield from _of_choice(error, path)
    elif error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = error.schema.get("properties", {})
        for key in error.instance.keys() - known.keys():
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
    fits = [e for e in options.values() if not any(map(_is_of_tag, e)) and not (tagged and _is_reference(e))]
    if tagged and not fits:
        tags = [inner.validator_value for errors in options.values() for inner in errors if _is_of_tag(inner)]
        tag = error.instance[_KIND]
        expected, got, hint = "one of " + ", ".join(tags), described(tag), did_you_mean(tag, tags)
        yield Problem("unknown-kind", (*path, _KIND), "there is no class of this name here", expected, got, hint=hint)
        return
    rest = [e for e in fits if isinstance(error.instance, Mapping) != any(map(_is_of_type, e))]
    nearest = min(rest or fits or list(options.values()), key=lambda errors: (_is_reference(errors), len(errors)))
    for inner in nearest:
        yield from _problems(inner, path)


def _is_of_tag(error: Any) -> bool:
    return error.validator == "const" and list(error.relative_path)[-1:] == [_KIND]


def _is_of_type(error: Any) -> bool:
    """Whether the value itself has the wrong type, and not one inside of it."""
    return error.validator == "type" and not error.relative_path


def _is_reference(errors: list[Any]) -> bool:
    """Whether errors say that something is no reference, which nobody meant who did not write one."""
    return any(e.validator == "required" and e.validator_value == ["$ref"] for e in errors)

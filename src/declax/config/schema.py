"""The JSON schema of a class's configurations, for editors and other tools.

It is made of the readers that check configurations, so that an editor marks what `from_config` refuses. What a schema
cannot say (where a ``$ref`` leads to, what a ``__post_init__`` asks) is left to `from_config`.

Vocabulary
----------
definition: the schema of one target's table; each stands once, under ``definitions``.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from declax._typing import MISSING
from declax.config import _plain
from declax.config._anything import AnythingReader, LayerReader, layers
from declax.config._parameters import Parameter
from declax.config._plain import Reader
from declax.config._structuring import (
    KIND,
    REF,
    SCHEMA,
    CallReader,
    CheckedReader,
    ChoiceReader,
    InitializerReader,
    UnionReader,
    catalog_for,
)
from declax.config._versions import VERSION, version_of
from declax.config._writing import value_as_data
from declax.errors import ConfigError, describe
from declax.initializers import NamedInitializer

Schema = dict[str, Any]

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_REFERENCE: Final = "reference"
_MAX_NAMED: Final = 4
"""How many classes the name of a choice between them may list."""


def json_schema(cls: Any, /, *, extra: Iterable[Any] = ()) -> Schema:
    """The JSON schema, draft-07, of the configurations of a class.

    Save it next to the files, and name it in them, so that editors complete and check them: in TOML by the first line
    ``#:schema model.schema.json``, in YAML by ``# yaml-language-server: $schema=model.schema.json``, in JSON by the key
    ``"$schema"``.

    Args:
      cls: the class that the configurations describe; a union or a function may stand for it.
      extra: as in `from_config`.

    Returns:
      The schema, as plain data. Parts are ``oneOf`` the classes that may stand there, each told by its tag; fields have
      their types, ranges, choices and defaults, and their help or the text of the docstring.

    Raises:
      ConfigError: for what no configuration can describe.

    >>> import declax as dx
    >>> schema = json_schema(dx.Linear)
    >>> schema["properties"]["in_features"]["minimum"], schema["required"]
    (1, ['in_features', 'out_features'])
    """
    catalog = catalog_for(tuple(extra))
    reader = catalog.root_reader(cls)
    if not isinstance(reader, ChoiceReader):
        raise ConfigError(
            "json_schema", "no configuration describes this", expected="a class, or a union of them", got=describe(cls)
        )
    return _Writer(catalog.call).whole(reader)


class _Writer:
    """Writes definitions as they are asked for."""

    def __init__(self, call: Callable[[Any], CallReader]) -> None:
        self._call = call
        self._names: dict[tuple[str, int], str] = {}
        self._waiting: deque[tuple[str, str, Any, bool]] = deque()
        self._shared: dict[int, tuple[Reader, str]] = {}
        self._definitions: dict[str, Schema] = {}

    def whole(self, reader: ChoiceReader) -> Schema:
        """The schema of a file."""
        head: Schema = {"$schema": DRAFT}
        body: Schema
        if reader.only is not None:
            body = self._call_schema(reader.only, reader.choices[reader.only], is_tag_needed=False)
            body["properties"] = {SCHEMA: {"type": "string"}, **body["properties"]}
        else:
            body = {"oneOf": [self._definition(tag, target, True) for tag, target in reader.choices.items()]}
        self._finish()
        if self._definitions:
            body["definitions"] = dict(sorted(self._definitions.items()))
        return head | body

    def _finish(self) -> None:
        while self._waiting:
            name, tag, target, is_tag_needed = self._waiting.popleft()
            self._definitions[name] = self._call_schema(tag, target, is_tag_needed=is_tag_needed)

    # --- targets ----------------------------------------------------------------

    def _definition(self, tag: str, target: Any, is_tag_needed: bool) -> Schema:
        """A reference to the definition of a target under a tag, which is written later."""
        key = (f"{tag}{'' if is_tag_needed else '?'}", id(target))
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self._free_name(tag)
            self._waiting.append((name, tag, target, is_tag_needed))
        return {"$ref": f"#/definitions/{name}"}

    def _free_name(self, tag: str) -> str:
        taken = {*self._names.values(), *self._definitions, _REFERENCE}
        return next(name for name in (tag, *(f"{tag}-{i}" for i in range(2, len(taken) + 3))) if name not in taken)

    def _call_schema(self, tag: str, target: Any, *, is_tag_needed: bool) -> Schema:
        call = self._call(target)
        summary = _summary(target)
        properties: dict[str, Schema] = {KIND: {"const": tag, "description": summary or f"chooses {call.name}"}}
        properties[VERSION] = {"type": "integer", "minimum": 1, "maximum": version_of(target)}
        for parameter in call.parameters:
            properties[parameter.name] = self._parameter(parameter, call.readers[parameter.name])
        made: Schema = {"title": tag, "type": "object"}
        if summary:
            made["description"] = summary
        made["properties"] = properties
        required = [KIND, *call.required] if is_tag_needed else call.required
        if required:
            made["required"] = required
        made["additionalProperties"] = False if call.extra is None else self.schema(call.extra)
        return made

    def _parameter(self, parameter: Parameter, reader: Reader) -> Schema:
        found = self.schema(reader)
        notes: Schema = {"description": parameter.help} if parameter.help else {}
        has_default = parameter.default is not MISSING or parameter.default_factory is not None
        if has_default:
            with contextlib.suppress(ConfigError):  # of a default that has no name in data
                notes["default"] = value_as_data(parameter.make_default(), reader)
        if not notes:
            return found
        # what stands next to a `$ref` is not read in this draft
        return {"allOf": [found], **notes} if "$ref" in found else found | notes

    # --- readers ----------------------------------------------------------------

    def schema(self, reader: Reader) -> Schema:
        """The schema of what a reader takes."""
        if isinstance(reader, CheckedReader):
            return self._checked(reader)
        if isinstance(reader, UnionReader):
            return _any_of([self.schema(member) for member in reader.members])
        if isinstance(reader, ChoiceReader):
            return self._choices(reader)
        if isinstance(reader, AnythingReader):
            return self._shared_definition(reader, "layer" if isinstance(reader, LayerReader) else "anything")
        if isinstance(reader, _plain.ListReader):
            return {"type": "array", "items": self.schema(reader.item)}
        if isinstance(reader, _plain.TupleReader):
            items = [self.schema(item) for item in reader.items]
            return {"type": "array", "items": items, "minItems": len(items), "maxItems": len(items)}
        if isinstance(reader, _plain.MappingReader):
            return {"type": "object", "additionalProperties": self.schema(reader.item)}
        return _plain_schema(reader)

    def _checked(self, reader: CheckedReader) -> Schema:
        found = self.schema(reader.reader)
        if reader.choices is not None:
            return {"enum": [value_as_data(choice, reader.reader) for choice in reader.choices]}
        limits = {"minimum": reader.ge, "maximum": reader.le}
        return _limited(found, {name: limit for name, limit in limits.items() if limit is not None})

    def _choices(self, reader: ChoiceReader) -> Schema:
        """One of several tables; a table of the key `$ref` may stand for each. Written once for a reader."""
        return self._shared_definition(reader, f"{reader.only}-or-reference" if reader.only else _noun(reader))

    def _shared_definition(self, reader: Reader, name: str) -> Schema:
        """A reference to the definition of what a reader takes, which is written once."""
        known = self._shared.get(id(reader))
        if known is None:
            name = self._free_name(name)
            known = self._shared[id(reader)] = (reader, name)
            self._definitions[name] = {}  # so that the name is taken while those inside are named
            self._definitions[name] = self._definition_of(reader, {"$ref": f"#/definitions/{name}"})
        return {"$ref": f"#/definitions/{known[1]}"}

    def _definition_of(self, reader: Reader, itself: Schema) -> Schema:
        if isinstance(reader, LayerReader):
            return self._layer(reader, itself)
        if isinstance(reader, AnythingReader):
            return self._anything(reader, itself)
        assert isinstance(reader, ChoiceReader)  # nothing else is shared
        return self._one_of(reader)

    def _layer(self, reader: LayerReader, itself: Schema) -> Schema:
        """What `Sequential` takes: a part, the name of a function, or a list of these."""
        names = {"title": "by name", "type": "string", **self.schema(reader.functions)}
        parts = [self._definition(tag, target, True) for tag, target in reader.parts.choices.items()]
        options = [names, {"type": "array", "items": itself}, *parts, self._reference()]
        return {"title": "layer", "anyOf": options}

    def _anything(self, reader: AnythingReader, itself: Schema) -> Schema:
        """Plain data, where a table with the tag is a part; those of declax itself are only named, as they are many."""
        kinds = {tag: target for tag, target in reader.parts.choices.items() if layers().get(tag) is not target}
        table: Schema = {
            "type": "object",
            "properties": {KIND: {"enum": list(layers())}},
            "additionalProperties": itself,
        }
        options: list[Schema] = [
            {"type": ["null", "boolean", "number", "string"]}, {"type": "array", "items": itself}, table,
        ]  # fmt: skip
        options += [self._definition(tag, target, True) for tag, target in kinds.items()]
        return {"title": "anything", "anyOf": options}

    def _reference(self) -> Schema:
        self._definitions[_REFERENCE] = _reference_schema()
        return {"$ref": f"#/definitions/{_REFERENCE}"}

    def _one_of(self, reader: ChoiceReader) -> Schema:
        options: list[Schema] = []
        if isinstance(reader, InitializerReader):
            makers = {tag: choice for tag, choice in reader.choices.items() if not isinstance(choice, NamedInitializer)}
            options = [{"title": "by name", "enum": list(reader.choices)}]
            options += [self._definition(tag, target, True) for tag, target in makers.items()]
            return {"title": "initializer", "anyOf": options}
        is_tag_needed = reader.only is None
        options += [self._definition(tag, target, is_tag_needed) for tag, target in reader.choices.items()]
        return {"oneOf": [*options, self._reference()]}


def _noun(reader: ChoiceReader) -> str:
    """What several choices are called together."""
    if len(reader.choices) <= _MAX_NAMED:
        return "-or-".join(reader.choices)
    return re.sub(r"[^A-Za-z0-9_]+", "-", reader.noun.partition(" ")[2]).strip("-")


def _reference_schema() -> Schema:
    return {
        "title": REF,
        "description": "the part that is described at another place: one object in both",
        "type": "object",
        "properties": {REF: {"type": "string", "pattern": "^/", "description": "its path, as /blocks/0"}},
        "required": [REF],
        "additionalProperties": False,
    }


def _plain_schema(reader: Reader) -> Schema:
    """The schema of a reader of plain values."""
    if isinstance(reader, _plain.NamesReader):
        return {"enum": list(reader.table)}
    if isinstance(reader, _plain.LiteralReader):
        return {"enum": list(reader.choices.values())}
    if isinstance(reader, _plain.EnumReader):
        return {"enum": list(dict.fromkeys((*reader.names, *(m.value for m in reader.values.values()))))}
    if isinstance(reader, _plain.NoReader):
        return {"not": {}, "description": f"a configuration cannot give {reader.expected}"}
    if isinstance(reader, _plain.AnyReader):
        return {}
    for kind, name in _TYPES:
        if isinstance(reader, kind):
            return {"type": name}
    return {}


_TYPES: Final[tuple[tuple[type[Reader], str], ...]] = (
    (_plain.NullReader, "null"),
    (_plain.BoolReader, "boolean"),
    (_plain.IntReader, "integer"),
    (_plain.FloatReader, "number"),
    (_plain.StrReader, "string"),
)


def _any_of(options: list[Schema]) -> Schema:
    """Any of several schemas, in as few words as possible."""
    if all(option.keys() == {"type"} for option in options):
        return {"type": list(dict.fromkeys(option["type"] for option in options))}
    if all(option.keys() == {"enum"} or option == {"type": "null"} for option in options):
        return {"enum": list(dict.fromkeys(v for option in options for v in option.get("enum", (None,))))}
    return {"anyOf": options}


def _limited(schema: Schema, limits: dict[str, float]) -> Schema:
    """A schema with limits for its numbers, wherever they are."""
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return schema | {"items": _limited(schema["items"], limits)}
    if isinstance(schema.get("additionalProperties"), dict):
        return schema | {"additionalProperties": _limited(schema["additionalProperties"], limits)}
    if "anyOf" in schema:
        return schema | {"anyOf": [_limited(option, limits) for option in schema["anyOf"]]}
    return schema | limits  # these say nothing of what is no number


def _summary(target: Any) -> str:
    """The first paragraph of the docstring of a target, unless Python wrote it."""
    text = inspect.getdoc(target) or ""
    if isinstance(target, type) and text.startswith(f"{target.__name__}("):
        return ""
    return " ".join(text.partition("\n\n")[0].split())

"""The JSON schema of configurations, from the readers that check them."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from declax._fields.specifiers import multiple_of
from declax._typing import MISSING
from declax.config._data import freeze
from declax.config._reading.catalog import Catalog, catalog_for
from declax.config._reading.docstrings import first_paragraph
from declax.config._reading.parameters import Parameter
from declax.config._reading.part_readers import SCHEMA, VERSION, CallReader, ChoiceReader, UnionReader, version_of
from declax.config._reading.readers import ObjectReader, Reader, Schema
from declax.config._sources.sweep_tables import SCHEMA as SWEEP_SCHEMA
from declax.config._sources.sweep_tables import SWEEP
from declax.config._writing import DataWriter
from declax.config.problems import KIND, REF
from declax.errors import ConfigError, describe

_REF_PATTERN: Final = r"^(/.|\.?(?!.*(\.\.|\*))[^./\s][^/]*$)"
_REF_HELP: Final = "its path: /blocks/0 or blocks.0 from the root, or .embed for a part of the same table"
DRAFT: Final = "http://json-schema.org/draft-07/schema#"


def json_schema(cls: Any, /, *, extra: Iterable[Any] = ()) -> Schema:
    """The JSON schema, draft-07, of the configurations of a class.

    Editors complete and check files that name their schema. Save it next to them, and add the first line
    ``#:schema model.schema.json`` to TOML, ``# yaml-language-server: $schema=model.schema.json`` to YAML, or the key
    ``"$schema"`` to JSON.

    Args:
      cls: the class that the configurations describe, or a union or a function.
      extra: as in `from_config`.

    Returns:
      The schema, as plain data. Parts are ``oneOf`` the allowed classes, each identified by its tag; fields have
      their types, ranges, choices and defaults, and as description their help: the entry in the docstring of the
      class, or the docstring below the field. That a field is a multiple of another one stands there too.

    Raises:
      ConfigError: no configuration can describe `cls`.

    >>> import declax as dx
    >>> schema = dx.json_schema(dx.Linear)
    >>> schema["properties"]["in_features"]["minimum"], schema["required"]
    (1, ['in_features', 'out_features'])
    """
    catalog = catalog_for(tuple(extra))
    reader = catalog.root_reader(cls)
    if not isinstance(reader, ChoiceReader):
        problem = "no configuration can describe this"
        raise ConfigError("json_schema", problem, expected="a class or a union", got=describe(cls))
    return Schemas(catalog).whole(reader)


class Schemas:
    """Collects the definitions of readers and of the tables of targets, each once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._names: dict[Any, str] = {}
        self._makers: list[tuple[str, Callable[[], Schema]]] = []

    def whole(self, reader: ChoiceReader) -> Schema:
        """The schema of a file."""
        body: Schema
        if reader.only is not None:
            body = self._call_schema(reader.only, reader.call_of(reader.choices[reader.only]), is_tag_needed=False)
            body["properties"] = {SCHEMA: {"type": "string"}, SWEEP: dict(SWEEP_SCHEMA), **body["properties"]}
        else:
            body = {"oneOf": self.definitions(reader.choices, is_tag_needed=True, call_of=reader.call_of)}
        definitions = {name: make() for name, make in self._makers}  # which grows: no recursion into nested classes
        if definitions:
            body["definitions"] = dict(sorted(definitions.items()))
        return {"$schema": DRAFT, **body}

    def definitions(
        self, choices: Mapping[str, Any], *, is_tag_needed: bool, call_of: Callable[[Any], CallReader] | None = None
    ) -> list[Schema]:
        """References to the definitions of several targets."""

        def reference(tag: str, target: Any) -> Schema:
            call = (call_of or self._catalog.call)(target)  # each target has one, and so has ``Box[int]``
            made = functools.partial(self._call_schema, tag, call, is_tag_needed=is_tag_needed)
            return self._once((tag, call, is_tag_needed), tag, made)

        return [reference(tag, target) for tag, target in choices.items()]

    def bound(self, tag: str, call: Any) -> list[Schema]:
        """A reference to the definition of a function with arguments."""
        make = functools.partial(self._call_schema, tag, call, is_tag_needed=True, is_bound=True)
        return [self._once((tag, call, True), tag, make)]

    def shared(self, reader: Reader, name: str) -> Schema:
        """A reference to the definition of a reader."""
        return self._once(reader, name, lambda: reader.definition(self))

    def _once(self, key: object, name: str, make: Callable[[], Schema]) -> Schema:
        """A reference to a definition, which is written once, and may refer to itself."""
        if key not in self._names:
            self._names[key] = self._free_name(name)
            self._makers.append((self._names[key], make))
        return {"$ref": f"#/definitions/{self._names[key]}"}

    def _free_name(self, tag: str) -> str:
        tag = re.sub(r"[^\w.]+", "-", tag).strip("-") or "part"
        taken = self._names.values()
        return next(name for name in (tag, *(f"{tag}-{i}" for i in range(2, len(taken) + 3))) if name not in taken)

    def _call_schema(self, tag: str, call: CallReader, *, is_tag_needed: bool, is_bound: bool = False) -> Schema:
        target = call.target
        call.check_readable()
        summary = "" if is_bound else first_paragraph(call.called)
        properties: dict[str, Schema] = {KIND: {"const": tag, "description": summary or f"chooses {call.name}"}}
        if call.called is not target:
            summary = f"Overrides of the declared {target!r}."
            properties[KIND] = {"not": {}}
        if not is_bound:
            properties[VERSION] = {"type": "integer", "minimum": 1, "maximum": version_of(call.called)}
        for parameter in call.parameters:
            reader = call.readers[parameter.name]
            properties[parameter.name] = self._parameter(parameter, _without_parts(reader) if is_bound else reader)
        made: Schema = {"title": tag, "type": "object"}
        if summary:
            made["description"] = summary
        made["properties"] = properties
        required = [*([KIND] if is_tag_needed else []), *call.parameters.required]
        if required:
            made["required"] = required
        made["additionalProperties"] = False if call.extra is None else call.extra.schema(self)
        return made

    def _parameter(self, parameter: Parameter, reader: Reader) -> Schema:
        found = reader.schema(self)
        factor = multiple_of(parameter.notes)  # a schema cannot compare two fields: the text says it
        relation = f"a multiple of {factor}" if isinstance(factor, str) else ""
        not_finite = "NaN and infinity are allowed" if parameter.notes.get("allow_nan") else ""
        text = "; ".join(filter(None, (parameter.help, relation, not_finite)))
        notes: Schema = {"description": text} if text else {}
        if parameter.default is not MISSING or parameter.default_factory is not None:
            with contextlib.suppress(ConfigError):  # data has no name for some defaults
                notes["default"] = self.data(parameter.make_default(), reader)
        # this draft ignores keys next to `$ref`
        return {"allOf": [found], **notes} if notes and "$ref" in found else found | notes

    def data(self, value: object, reader: Reader) -> Any:
        """A value as the data from which a reader reads it."""
        return DataWriter(self._catalog, "").value(freeze(value), reader, ())

    def reference(self) -> Schema:
        """A reference to the definition of a table with the key ``$ref``."""
        made = {
            "title": REF,
            "description": "a part that is described at another place: one object in both places",
            "type": "object",
            "properties": {REF: {"type": "string", "pattern": _REF_PATTERN, "description": _REF_HELP}},
            "required": [REF],
            "additionalProperties": False,
        }
        return self._once(REF, "reference", lambda: made)


def _without_parts(reader: Reader) -> Reader:
    """A reader of what can be bound to a function, for the schema: without tables of parts."""
    if isinstance(reader, UnionReader):
        plain_ones = [m for m in reader.members if type(m) is not ChoiceReader]
        return UnionReader(plain_ones) if plain_ones else ObjectReader(None, "a part")
    return ObjectReader(None, "a part") if type(reader) is ChoiceReader else reader

"""Readers of parts: a table describes a call; its tag ``kind`` selects the class or function."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from declax._classes.pytree import Pytree
from declax._fields.meanings import bindings_of
from declax._fields.overrides import DeclaredPart
from declax._fields.specifiers import multiple_of
from declax._typing import MISSING, Initializer
from declax.config import registry
from declax.config._data import FrozenDict, Ref, SpecData
from declax.config._reading.functions import FunctionReader
from declax.config._reading.limits import checked, is_multiple
from declax.config._reading.parameters import (
    NO_BINDINGS,
    Parameter,
    Parameters,
    called,
    forget_targets,
    parameters_of,
    target_name,
)
from declax.config._reading.readers import (
    INVALID,
    NO_LIMITS,
    TUPLE,
    WORDS,
    Context,
    IntReader,
    ListReader,
    MappingReader,
    Reader,
    Schema,
    StrReader,
    WrappingReader,
    describes,
    is_list,
    listed,
    plain,
    unquoted_table,
)
from declax.config._reading.references import read_ref
from declax.config._supplied import Supplied, value_of
from declax.config.problems import KIND, REF, Path, described, did_you_mean, shown
from declax.config.registry import kinds_of, layers
from declax.errors import ConfigError, DeclaxError, FieldError, describe, type_name, with_article
from declax.initializers import NamedInitializer

if TYPE_CHECKING:
    from declax.config._reading.catalog import Catalog
    from declax.config.schema import Schemas

SCHEMA: Final = "$schema"
"""A key at the root that names the schema for editors; readers ignore it."""

_FORBIDDEN: Final = frozenset({"rngs"})


class ChoiceReader(Reader):
    """A table that describes a part: one of several targets by its tag, or overrides of a declared part."""

    words: frozenset[str] = frozenset({"table"})

    def __init__(
        self,
        catalog: Catalog,
        choices: Mapping[str, Any],
        noun: str,
        annotations: Mapping[Any, Any] = MappingProxyType({}),
        bases: Sequence[type] = (),
        objects: Sequence[type] = (),
        declared: DeclaredPart | None = None,
        *,
        keeps_specs: bool = False,
    ) -> None:
        self.catalog = catalog
        self.keeps_specs = keeps_specs
        self.annotations = annotations
        self.choices = choices
        self.noun = noun
        self.bases: tuple[type, ...] = tuple(bases)  # the classes that a spec here may build
        self.objects: tuple[type, ...] = tuple(objects)  # the classes whose instances are valid values
        self.only: str | None = next(iter(choices)) if len(choices) == 1 else None
        self.declared = declared
        self._names = list(choices) if choices or declared is None else [target_name(declared)]
        self.expected: str = f"a table of {one_of(self._names) if 0 < len(self._names) <= 8 else noun}"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if not isinstance(value, Mapping):
            value = self._described(value)
            if isinstance(value, SpecData) and self._allows(value):
                context.check(value, path, self.call_of(value.target))
                return value
            if isinstance(value, Ref) or self._allows(value):
                return self.accept(value, path, context)
            is_tag = isinstance(value, str) and value in self.choices
            line = f'{path[-1] if path else KIND} = {{ {KIND} = "{value}" }}'
            return self.wrong(value, path, context, line if is_tag else None)
        if REF in value:
            return read_ref(value, path, context, self)
        if context.is_too_deep(path):
            return INVALID
        if context.known is None:
            return self._read_table(value, path, context)
        key = (id(self), id(value), path)
        known = context.known.get(key)
        if known is None:
            attempt = context.trial()
            known = context.known[key] = (self._read_table(value, path, attempt), value, attempt)
        context.take(known[2])
        return known[0]

    def fits(self, value: Any) -> bool:
        if not self.annotations:
            return super().fits(value)
        context = Context(catalog=self.catalog)  # `Box[int]` checks what is in the box
        return self.read(value, (), context) is not INVALID and not context

    def _allows(self, value: Any) -> bool:
        """Whether a value is used as it is."""
        if isinstance(value, SpecData):
            if isinstance(value.target, DeclaredPart):
                return value.target == self.declared
            return registry.name_in(self.choices, value.target) is not None or describes(value, self.bases)
        return WORDS.get(type(value)) is None and isinstance(value, self.objects)

    def _described(self, value: Any) -> Any:
        """The spec of a frozen dataclass of the choices, such as a `Policy`, which data can represent; or the value."""
        cls: Any = type(value)
        if registry.name_in(self.choices, cls) is None or not _is_value_class(cls):
            return value
        return SpecData.public(cls, {name: getattr(value, name) for name in parameters_of(cls).by_name})

    def schema(self, schemas: Schemas) -> Schema:
        noun = " or ".join(self._names) if 0 < len(self._names) <= 4 else self.noun.partition(" ")[2]
        return schemas.shared(self, f"{noun} or reference")

    def definition(self, schemas: Schemas) -> Schema:
        declared = {} if self.declared is None else {self.declared.name: self.declared}
        tables = schemas.definitions(declared, is_tag_needed=False)
        is_tag_needed = self.only is None or self.declared is not None
        tables += schemas.definitions(self.choices, is_tag_needed=is_tag_needed, call_of=self.call_of)
        return {"oneOf": [*tables, schemas.reference()]}

    def call_of(self, target: Any) -> CallReader:
        return self.catalog.call(target, self.annotations.get(target))

    def _read_table(self, value: Mapping[str, Any], path: Path, context: Context) -> Any:
        target: Any = self.declared
        if target is None or KIND in value:
            tag = self.tag(value, path, context)
            if tag is None:
                return INVALID
            target = self.choices[tag]
        outer = context.base
        context.base = path if self.keeps_specs else outer
        found = self.call_of(target).read(value, path, context, self.choices)
        context.base = outer
        return found

    def tag(self, table: Mapping[str, Any], path: Path, context: Context) -> str | None:
        tag = table.get(KIND, MISSING)
        if tag is MISSING:
            if self.only is not None:
                return self.only
            fits = [name for name, choice in self.choices.items() if table.keys() <= set(_names(choice)) | {VERSION}]
            line = f'{KIND} = "{fits[0]}"' if len(fits) == 1 else f"{KIND} = ..."
            message = f"the key {KIND!r}, which selects the class, is missing"
            context.add("missing-kind", path, message, expected=one_of(self.choices), hint=line)
            return None
        if type(tag) is str and tag in self.choices:
            return tag
        if type(tag) is not str:
            context.wrong((*path, KIND), f"string, {one_of(self.choices)}", tag)
            return None
        _add_unknown_kind(tag, (*path, KIND), one_of(self.choices), self.choices, context)
        return None


def _is_value_class(cls: Any) -> bool:
    """Whether the fields of a frozen dataclass are the arguments of its constructor."""
    options = getattr(cls, "__dataclass_params__", None)
    if issubclass(cls, Pytree) or options is None or not options.frozen:
        return False
    return [field.name for field in dataclasses.fields(cls)] == list(parameters_of(cls).by_name)


class InitializerReader(ChoiceReader):
    """An initializer: its name, or a table with the tag and arguments."""

    words = frozenset({"table", "string"})
    rank = 2

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog, {**registry.INITIALIZERS, **kinds_of(Initializer)}, "an initializer")
        self.expected = f'the name of an initializer, or a table {{ {KIND} = "normal", stddev = 0.02 }}'

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if isinstance(value, str) and value not in self.choices:
            _add_unknown_kind(value, path, listed(self.choices), self.choices, context)
            return INVALID
        value = {KIND: value} if isinstance(value, str) else value
        if not isinstance(value, Mapping) or REF in value:
            return self.accept(value, path, context) if self._allows(value) else self.wrong(value, path, context)
        tag = self.tag(value, path, context)
        if tag is None:
            return INVALID
        choice = self.choices[tag]
        if isinstance(choice, NamedInitializer):
            rest = [key for key in value if key != KIND]
            for key in rest:
                context.add("unknown-key", (*path, key), f"{tag} takes no arguments", hint=f'write "{tag}"')
            return INVALID if rest else choice
        arguments = self.catalog.call(choice).arguments(value, path, context, self.choices)
        try:
            return INVALID if arguments is None else choice(**arguments)
        except (DeclaxError, TypeError, ValueError) as error:
            return _add_error(error, target_name(choice), path, context)

    def _allows(self, value: Any) -> bool:
        return callable(value) or isinstance(value, SpecData)

    def schema(self, schemas: Schemas) -> Schema:
        return schemas.shared(self, "initializer")

    def definition(self, schemas: Schemas) -> Schema:
        makers = {tag: choice for tag, choice in self.choices.items() if not isinstance(choice, NamedInitializer)}
        named = {"title": "by name", "enum": list(self.choices)}
        return {"title": "initializer", "anyOf": [named, *schemas.definitions(makers, is_tag_needed=True)]}


class UnionReader(Reader):
    """A union: the type of the data selects the member; several candidates are tried in order."""

    def __init__(self, members: Sequence[Reader]) -> None:
        self.members = tuple(members)
        self.words = frozenset().union(*(m.words for m in members))
        self.expected = " or ".join(dict.fromkeys(m.expected for m in members))
        self.keeps_specs = any(m.keeps_specs for m in members)
        ranked = sorted(members, key=lambda member: member.rank)
        self._by_word = {word: [m for m in ranked if word in m.words] for word in self.words}
        self._functions = [m for m in members if isinstance(m, FunctionReader)]

    def read(self, value: Any, path: Path, context: Context) -> Any:
        value = plain(value)
        candidates = self._candidates(value)
        if len(candidates) == 1:
            return candidates[0].read(value, path, context)
        if not candidates:
            named = [m for m in self.members if isinstance(m, ChoiceReader)]
            is_choice = len(named) == 1 == len([m for m in self.members if "null" not in m.words])
            return (named[0] if is_choice else self).wrong(value, path, context)
        return self._first_that_fits(candidates, value, path, context)

    def interpret(self, value: Any) -> Any:
        is_exact = any(member.reads_as(value, value) for member in self.members)
        return value if is_exact else super().interpret(value)

    def below(self, value: Any, key: Any) -> Reader | None:
        members = self._by_word.get("table" if isinstance(value, Mapping) else "list", ())
        return next((found for m in members if (found := m.below(value, key)) is not None), None)

    def member_for(self, value: Any) -> Reader:
        candidates = self._candidates(value) or self.members
        return next((m for m in candidates if m.fits(value)), candidates[0]).member_for(value)

    def schema(self, schemas: Schemas) -> Schema:
        """The schema that accepts any of the members, in its shortest form."""
        options = [member.schema(schemas) for member in self.members]
        if all(option.keys() == {"type"} for option in options):
            return {"type": list(dict.fromkeys(option["type"] for option in options))}
        if all(option.keys() == {"enum"} or option == {"type": "null"} for option in options):
            return {"enum": list(dict.fromkeys(v for option in options for v in option.get("enum", (None,))))}
        return {"anyOf": options}

    def _candidates(self, value: Any) -> Sequence[Reader]:
        """The members that may read a value: by the type of data, or the first one that accepts another value."""
        word = "table" if isinstance(value, Mapping) else WORDS.get(type(value))
        if word is None and (fitting := next((m for m in self.members if m.fits(value)), None)) is not None:
            return [fitting]
        if word is None:
            word = "table" if isinstance(value, (SpecData, Ref)) else ""
        found = self._by_word.get(word, ())
        return self._by_tag(found, value) if self._functions and isinstance(value, Mapping) else found

    def _by_tag(self, found: Sequence[Reader], table: Mapping[str, Any]) -> Sequence[Reader]:
        """The readers of a table, by the tag: of a function, or of a class."""
        tag = table.get(KIND)
        if type(tag) is str and any(tag in reader.table for reader in self._functions):
            return [m for m in found if not isinstance(m, ChoiceReader) or tag in m.choices]
        return [m for m in found if not isinstance(m, FunctionReader)] or found

    @staticmethod
    def _first_that_fits(candidates: Sequence[Reader], value: Any, path: Path, context: Context) -> Any:
        tried = []
        shared = context.trial()  # so that parts that several members accept are read once
        for member in candidates:
            attempt = shared.trial()
            found = member.read(value, path, attempt)
            if found is not INVALID and not attempt:
                context.take(attempt)
                return found
            tried.append(attempt)
        context.take(min(tried, key=lambda attempt: attempt.count))
        return INVALID


class _Readers(dict[str, Reader]):
    """The readers of parameters, each made when it is asked for."""

    def __init__(self, make: Callable[[str], Reader]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Reader:
        made = self[name] = self._make(name)
        return made


class CallReader:
    """The reader of the arguments of a target; that of each parameter is made when a table or a spec has it."""

    def __init__(
        self, catalog: Catalog, target: Any, annotation: Any = None, parameters: Parameters | None = None
    ) -> None:
        self.catalog = catalog
        self.target = target
        self.name: str = target_name(target)
        self.parameters: Parameters = parameters or parameters_of(target)
        self.known: dict[str, Parameter] = dict(self.parameters.by_name)
        self.names: tuple[str, ...] = tuple(self.known)
        self.refusals: dict[str, ConfigError] = {}
        if KIND in self.parameters.by_name:
            self.refusals[KIND] = ConfigError(
                f"{self.name}.{KIND}",
                f"a parameter cannot be called {KIND!r}; this key selects the class in configurations",
                fix="rename the parameter",
            )
        self.called: Any = called(target)
        version_of(self.called)  # refuses a wrong one
        cls = getattr(annotation, "cls", self.called)
        self._bindings = bindings_of(cls, getattr(annotation, "args", ())) if isinstance(cls, type) else NO_BINDINGS
        self.readers: dict[str, Reader] = _Readers(self._make)
        extra = self.parameters.extra
        self.extra: Reader | None = None if extra is None else self._reader(extra)
        self.renamed: dict[str, str] = {
            old: p.name for p in self.parameters if (old := p.notes.get("renamed_from")) is not None
        }

    def _make(self, name: str) -> Reader:
        parameter = self.parameters.by_name[name]
        return checked(parameter, self._reader(parameter))

    def _reader(self, parameter: Parameter) -> Reader:
        try:
            return self.catalog.parameter_reader(parameter, self._bindings)
        except ConfigError as error:
            name = KIND if parameter is self.parameters.extra else parameter.name
            self.refusals[name] = error
            return self.catalog.anything

    def reader_of(self, name: str) -> Reader | None:
        return self.readers[name] if name in self.known else self.extra

    def check_readable(self, names: Collection[Any] | None = None) -> None:
        """Raises the error of an unreadable parameter, of some names or of all.

        Then the annotations are resolved again at the next use.
        """
        for name in self.names if names is None else names:
            if name not in self.readers and name in self.known:
                self.readers[name]
        for name, error in self.refusals.items():
            if names is None or name == KIND or name in names:
                self.catalog.forget(self.target)
                forget_targets()
                raise error

    def read(self, table: Mapping[str, Any], path: Path, context: Context, choices: Mapping[str, Any]) -> Any:
        place = tuple(map(str, path))
        context.names[place] = self.names
        if self.called is self.target:  # a Ref cannot point at a declared part
            context.parts[place] = self.target
        outer, context.limits = context.limits, NO_LIMITS
        arguments = self.arguments(table, path, context, choices)
        context.limits = outer
        if arguments is None or not self._are_multiples(arguments, path, context):
            return INVALID
        try:
            return SpecData.of_values(self.target, arguments)
        except DeclaxError as error:
            return _add_error(error, self.name, path, context)

    def check(self, spec: SpecData, path: Path, context: Context) -> None:
        if self.called is self.target:
            context.parts[tuple(map(str, path))] = self.target
        outer, context.limits = context.limits, NO_LIMITS
        for name, value in spec.arguments.items():
            reader = self.reader_of(name)
            if reader is not None and not (isinstance(value, Supplied) and value.is_secret):
                value = value_of(value)
                (reader.accept if type(value) is Ref else reader.read)(value, (*path, name), context)
        context.limits = outer
        self._are_multiples(spec.arguments, path, context)

    def _are_multiples(self, arguments: Mapping[str, Any], path: Path, context: Context) -> bool:
        """Whether arguments are multiples of others, where their fields say so."""
        found = [self._is_multiple(name, of, arguments, path, context) for name, of in self._multiples.items()]
        return all(found)

    def _is_multiple(self, name: str, of: str, arguments: Mapping[str, Any], path: Path, context: Context) -> bool:
        value, factor = (arguments.get(key, self.parameters.by_name[key].default) for key in (name, of))
        expected = self.readers[name].expected
        return is_multiple(value, factor, f"{of}={shown(factor)}", (*path, name), context, expected)

    @functools.cached_property
    def _secrets(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters if parameter.notes.get("secret"))

    @functools.cached_property
    def _multiples(self) -> dict[str, str]:
        """The names of parameters that are multiples of others."""
        pairs = ((parameter.name, multiple_of(parameter.notes)) for parameter in self.parameters)
        return {name: of for name, of in pairs if isinstance(of, str) and of in self.parameters.by_name}

    def arguments(
        self, table: Mapping[str, Any], path: Path, context: Context, choices: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The arguments of a table, or None with problems in the report."""
        if self.refusals:
            self.check_readable(())
        current = upgraded(self.called, table, path, context)
        if current is None:
            return None
        known = self.known
        found: dict[Any, Any] = {}
        unknown: list[Any] = []
        for key, item in current.items():
            name: Any = key
            if key not in known:
                name = self.renamed.get(key) if context.migrate and isinstance(key, str) else None
            if name in known and (name == key or name not in current):
                found[name] = self.readers[name].read(item, (*path, key), context)
            elif key != KIND and (key != SCHEMA or path):
                unknown.append(key)
        if self.refusals:
            self.check_readable(current)
        for key in unknown:
            is_name = isinstance(key, str) and key.isidentifier() and not key.startswith("_")
            if self.extra is not None and is_name and key not in (*_FORBIDDEN, "self", "cls"):
                found[key] = self.extra.read(current[key], (*path, key), context)
            else:
                found[key] = INVALID
                self._report_key(key, current, path, context, choices)
        places = context.supplied
        for name in self._secrets if places is not None else ():
            if found.get(name) is not None and places is not None and (*path, name) not in places:
                found[name] = INVALID
                hint = f'{name} = {{ "$env" = "NAME" }}, or {{ "$file" = "token.txt" }}'
                context.add("secret", (*path, name), "a configuration does not say a secret itself", hint=hint)
        few = [key for key in itertools.islice(unknown, 20) if isinstance(key, str)]
        for name in self.parameters.required:
            if name in found:
                continue
            found[name] = INVALID
            # one mistake is reported once: an unknown key may be a misspelling of the missing one
            if not any(self.renamed.get(key) == name or did_you_mean(key, [name]) is not None for key in few):
                text = self.parameters.by_name[name].help
                context.add(
                    "missing-key",
                    (*path, name),
                    f"{self.name} requires {name!r}, which has no default",
                    expected=self.readers[name].expected,
                    hint=f"{name} = ..." + (f"   # {text}" if text else ""),
                )
        return None if any(value is INVALID for value in found.values()) else found

    def _report_key(
        self, key: Any, table: Mapping[str, Any], path: Path, context: Context, choices: Mapping[str, Any]
    ) -> None:
        if not isinstance(key, str):
            context.wrong((*path, shown(key)), "a string as the key", key)
            return
        if context.is_full:
            context.count += 1
            return
        message, hint = f"{self.name} has no parameter {shown(key, 40)}", None
        others = [n for n, c in choices.items() if c is not self.called and key in _names(c)] if choices else []
        if key in self.renamed:
            message = f"{message}: it was renamed to {self.renamed[key]!r}"
            hint = f"remove {key!r}" if self.renamed[key] in table else MIGRATE
        elif others:
            message = f"{message}; it belongs to {one_of(others)}"
            hint = f'{KIND} = "{others[0]}", or remove the key'
        elif key in _FORBIDDEN:
            hint = "random streams are not configuration: pass rngs= when the model is built"
        elif key in getattr(self.called, "__dataclass_fields__", ()):
            message, hint = f"{message}: the object makes it", "annotate a part in the class to make it a parameter"
        elif key == "<<":
            hint = "YAML 1.2 has no merge keys: write the keys of the other table here"
        else:
            hint = did_you_mean(key, self.names)
            if hint is None and self.parameters.variadic is not None and is_list(table[key]):
                hint = f"{self.parameters.variadic} = [...]   # the list for *{self.parameters.variadic}"
        expected = listed(self.names) or "no keys"
        context.add("unknown-key", (*path, key), message, expected=expected, hint=hint)


@functools.lru_cache(maxsize=4096)
def _names(target: Any) -> frozenset[str]:
    """The names of a target's parameters, and the tag."""
    if isinstance(target, NamedInitializer):
        return frozenset({KIND})
    return frozenset(parameters_of(target).by_name) | {KIND}


def choices_at(reader: Reader | None) -> list[ChoiceReader]:
    """The readers of parts inside a reader: in unions, wrappers and under Any."""
    while isinstance(reader, WrappingReader):
        reader = reader.reader
    if isinstance(reader, UnionReader):
        return [inner for member in reader.members for inner in choices_at(member)]
    found = reader.parts if isinstance(reader, AnyReader) else reader
    return [found] if isinstance(found, ChoiceReader) else []


def one_of(choices: Iterable[str]) -> str:
    names = list(choices)
    if not names:
        return "a registered class, or one of extra=[...]"
    if len(names) > 40:
        names = [*names[:40], "..."]
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _add_unknown_kind(tag: str, path: Path, expected: str, choices: Mapping[str, Any], context: Context) -> None:
    hint = did_you_mean(tag, choices) or did_you_mean(tag.rpartition(".")[2], choices) or unquoted_table(tag)
    if hint is None:
        hint = "dx.register_kind, or extra=[...], adds a class or function"
    context.add("unknown-kind", path, "unknown kind", expected=expected, got=shown(tag), hint=hint)


def _add_error(error: Exception, name: str, path: Path, context: Context) -> Any:
    """Reports the error of a constructor, and returns INVALID."""
    if isinstance(error, DeclaxError):
        message = f"{error.where}: {error.problem}"
        context.add("invalid", path, message, expected=error.expected, got=error.got, hint=error.fix)
    else:
        context.add("invalid", path, f"{name} raised {type(error).__name__}: {error}")
    return INVALID


# --- open annotations ------------------------------------------------------------


def anywhere(extra: Iterable[Any]) -> dict[str, Any]:
    """The targets that an open annotation allows, by tag; extra and registered ones take precedence over layers."""
    let_in = {target_name(target).rpartition(".")[2]: target for target in extra}
    return {**layers(), **kinds_of(Any), **kinds_of(object), **let_in}


class AnyReader(Reader):
    """`Any`: all plain data, where a table with the tag is a part, and all objects that a spec can hold.

    If the default is a declared part, tables without the tag override its arguments.
    """

    def __init__(self, catalog: Catalog, *, keeps_specs: bool = False, declared: DeclaredPart | None = None) -> None:
        self.catalog = catalog
        self.keeps_specs = keeps_specs
        self.declared = declared
        self._inner: AnyReader = self if declared is None else catalog.anything
        self.items: ListReader = ListReader(self._inner, list)
        self.table = MappingReader(UnionReader([StrReader(), IntReader()]), self._inner)

    @functools.cached_property
    def parts(self) -> ChoiceReader:
        """The reader of tables with the tag; loads the layers of declax."""
        choices = anywhere(self.catalog.extra)
        return ChoiceReader(self.catalog, choices, "a part", declared=self.declared, keeps_specs=self.keeps_specs)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        if is_list(value):
            found = self.items.read(value, path, context)
            return tuple(found) if type(value) is tuple and found is not INVALID else found
        if not isinstance(value, Mapping):
            return self.accept(value, path, context)
        if type(value) is FrozenDict and self.declared is None:  # of a spec, where `kind` is a key as any other
            return self.table.read(value, path, context)
        if KIND in value:
            return self.parts.read(value, path, context)
        if len(value) == 1 and REF in value:
            return read_ref(value, path, context, self)
        if type(value) is not FrozenDict and self._has_misspelt_tag(value, path, context):
            return INVALID
        if TUPLE not in value:
            table = self.table if self.declared is None else self.parts
            return table.read(value, path, context)
        if len(value) > 1 or not is_list(value[TUPLE]):
            return context.wrong(path, '{ "$tuple" = [1, 2] } and no other key', value)
        found = self.items.read(value[TUPLE], path, context)  # paths index tuples as they index lists
        return found if found is INVALID else tuple(found)

    def _has_misspelt_tag(self, table: Mapping[Any, Any], path: Path, context: Context) -> bool:
        """Whether a key is a near miss of the tag, and its value the name of a class; adds a problem if so."""
        for key, value in table.items():
            is_near = type(key) is str and type(value) is str and 2 < len(key) < 8 and did_you_mean(key, [KIND])
            if is_near and value in self.parts.choices:
                message = f"the value is the name of {with_article(value)}, but the key is not {KIND!r}"
                hint = f"did you mean {KIND!r}?"
                context.add("misspelt-kind", (*path, key), message, expected=KIND, got=shown(key), hint=hint)
                return True
        return False

    def below(self, value: Any, key: Any) -> Reader:
        return self._inner

    def schema(self, schemas: Schemas) -> Schema:
        return schemas.shared(self, "anything")

    def definition(self, schemas: Schemas) -> Schema:
        itself = self.schema(schemas)
        kinds = {tag: target for tag, target in self.parts.choices.items() if layers().get(tag) is not target}
        table: Schema = {
            "type": "object",
            "properties": {KIND: {"enum": list(layers())}},
            "additionalProperties": itself,
        }
        plain = [{"type": ["null", "boolean", "number", "string"]}, {"type": "array", "items": itself}]
        options = [*plain, table, *schemas.definitions(kinds, is_tag_needed=True)]
        return {"title": "anything", "anyOf": options}


# --- old versions of tables: `config_version` and `config_upgrades` ---------------


VERSION: Final = "$version"
MIGRATE: Final = "pass migrate=True to update old files, and write the result with dx.to_config"


def version_of(target: Any) -> int:
    """The version of a class's parameters; 1 by default."""
    version = getattr(target, "config_version", 1)
    if type(version) is not int or version < 1:
        raise FieldError(
            f"{type_name(target)}.config_version",
            "the version of a class must be an int of at least 1",
            got=describe(version),
        )
    return version


def upgraded(target: Any, table: Mapping[str, Any], path: Path, context: Context) -> Mapping[str, Any] | None:
    """The table in the current version; without ``$version`` it is current, or 1 when migrating. None if invalid."""
    given = table.get(VERSION)
    if given is None and not context.migrate:
        return table
    current = version_of(target)
    if given is None and current == 1:
        return table
    version = 1 if given is None else given
    if type(version) is not int or version < 1:
        context.wrong((*path, VERSION), "int", given)
        return None
    if version > current or (version < current and not context.migrate):
        is_old = version < current
        context.add(
            "version",
            (*path, VERSION),
            f"the table has {'an older' if is_old else 'a newer'} version of {type_name(target)}",
            expected=str(current),
            got=described(version),
            hint=MIGRATE if is_old else "install the version of the program that wrote it",
        )
        return None
    try:
        return in_current_version(target, {key: value for key, value in table.items() if key != VERSION}, version)
    except ConfigError as error:
        context.add("version", path, f"{error.where}: {error.problem}")
        return None


def in_current_version(target: Any, table: Mapping[str, Any], version: int) -> Mapping[str, Any]:
    """A table of an older version of a class, by its ``config_upgrades``.

    Raises:
      ConfigError: an upgrade raised an error, or returned something else than a table.
    """
    upgrades: Mapping[int, Any] = getattr(target, "config_upgrades", {})
    for step in range(version, version_of(target)):
        if step not in upgrades:
            continue
        name = f"config_upgrades[{step}] of {type_name(target)}"
        try:
            table = upgrades[step](copy.deepcopy(table))  # an upgrade may change the user's data
        except Exception as error:  # a user's function, called with untrusted data
            raise ConfigError(name, f"it raised {type(error).__name__}: {error}") from error
        if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
            raise ConfigError(name, f"it must return the new table, a dict by name, and returned {describe(table)}")
    return table

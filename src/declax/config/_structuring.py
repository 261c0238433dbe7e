"""From plain data to specs: one reader for each annotation, made once.

Vocabulary
----------
choice:  a class or function that data may name where an annotation stands, by its tag.
tag:     the value of the key ``kind``, which chooses.
call:    what is read of one table: a target and its arguments.
catalog: the readers that were made so far, for one set of extra classes.
"""

from __future__ import annotations

import collections.abc
import difflib
import enum
import functools
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from declax._annotations import Unresolved, annotation_text, is_data_class
from declax._typing import MISSING, Initializer
from declax._variables import Variable
from declax.config import _plain, _tables
from declax.config._data import Ref, SpecData, is_dtype
from declax.config._parameters import Parameter, allowed_classes, parameters_of, target_name
from declax.config._plain import INVALID, Context, Reader, described, listed
from declax.config._versions import MIGRATE, VERSION, removed_in, upgraded
from declax.config.problems import Path, did_you_mean, shown
from declax.config.registry import choices_of, kinds_of, on_change
from declax.config.spec import Spec
from declax.errors import ConfigError, DeclaxError
from declax.initializers import NamedInitializer

KIND: Final = "kind"
"""The key of the tag."""

REF: Final = "$ref"
SCHEMA: Final = "$schema"
"""A key of the whole that names its schema for editors, and means nothing here."""

_FORBIDDEN: Final = frozenset({"rngs"})


class ChoiceReader(Reader):
    """A table that describes a part: one of several classes or functions, by its tag."""

    words = exact = frozenset({"table"})

    def __init__(self, catalog: Catalog, choices: Mapping[str, Any], noun: str) -> None:
        self.catalog = catalog
        self.choices = choices
        self.noun = noun
        self.only = next(iter(choices)) if len(choices) == 1 else None
        self.expected = f"a table of {_one_of(choices)}" if len(choices) <= 8 else f"a table of {noun}"

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """A spec, or a ref to a part."""
        if not isinstance(value, Mapping):
            return self._no_table(value, path, context)
        if REF in value:
            return _plain.read_ref(value, path, context, self.choices)
        if context.is_too_deep(path):
            return INVALID
        tag = self._tag(value, path, context)
        if tag is None:
            return INVALID
        return self.catalog.call(self.choices[tag]).read(value, path, context, self.choices)

    def _no_table(self, value: Any, path: Path, context: Context) -> Any:
        if isinstance(value, Ref):
            context.refs.append((path, value.keys, self.choices))
            return value
        if isinstance(value, SpecData) and any(value.target is choice for choice in self.choices.values()):
            context.parts[tuple(map(str, path))] = value.target
            return value
        hint = None
        if isinstance(value, str) and value in self.choices:
            hint = f'{path[-1] if path else KIND} = {{ {KIND} = "{value}" }}'
        return context.wrong(path, self.expected, value, hint)

    def _tag(self, table: Mapping[str, Any], path: Path, context: Context) -> str | None:
        tag = table.get(KIND, MISSING)
        if tag is MISSING:
            if self.only is not None:
                return self.only
            fits = [name for name, choice in self.choices.items() if table.keys() <= set(_names(choice)) | {VERSION}]
            hint = f'{KIND} = "{fits[0]}"' if len(fits) == 1 else f"{KIND} = ..."
            context.report.add(
                "missing-kind", path, f"the tag {KIND!r} is missing, which chooses the class", expected=_one_of(self.choices),
                hint=hint,
            )  # fmt: skip
            return None
        if type(tag) is str and tag in self.choices:
            return tag
        if type(tag) is not str:
            context.wrong((*path, KIND), f"the name of {self.noun}", tag)
            return None
        hint = did_you_mean(tag, self.choices)
        if hint is None and "." in tag:
            hint = "a tag is no path of an import: register_kind, or extra=[...], lets a class in"
        context.report.add(
            "unknown-kind",
            (*path, KIND),
            "nothing of this name can stand here",
            expected=_one_of(self.choices),
            got=shown(tag),
            hint=hint,
        )
        return None


class InitializerReader(ChoiceReader):
    """An initializer: the name of one, or a table with the tag and arguments."""

    words = exact = frozenset({"table", "string"})

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog, {**_tables.INITIALIZERS, **kinds_of(Initializer)}, "an initializer")
        self.expected = f'the name of an initializer, or a table {{ {KIND} = "normal", stddev = 0.02 }}'

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The initializer itself, which is a value."""
        if isinstance(value, str):
            tag = self._tag({KIND: value}, path[:-1] if path else path, context) if value in self.choices else None
            if tag is None:
                context.report.add(
                    "unknown-kind", path, "there is no initializer of this name", expected=listed(self.choices),
                    got=shown(value), hint=did_you_mean(value, self.choices),
                )  # fmt: skip
                return INVALID
            return self._make(self.choices[tag], {}, path, context)
        if isinstance(value, NamedInitializer):
            return value
        if not isinstance(value, Mapping) or REF in value:
            return context.wrong(path, self.expected, value)
        tag = self._tag(value, path, context)
        if tag is None:
            return INVALID
        choice = self.choices[tag]
        if isinstance(choice, NamedInitializer):
            rest = [key for key in value if key != KIND]
            for key in rest:
                context.report.add("unknown-key", (*path, key), f"{tag} takes no arguments", hint=f'write "{tag}"')
            return INVALID if rest else choice
        arguments = self.catalog.call(choice).arguments(value, path, context, self.choices)
        return INVALID if arguments is None else self._make(choice, arguments, path, context)

    def _make(self, choice: Any, arguments: Mapping[str, Any], path: Path, context: Context) -> Any:
        if isinstance(choice, NamedInitializer):
            return choice
        try:
            return choice(**arguments)
        except (DeclaxError, TypeError, ValueError) as error:
            _add_error(error, target_name(choice), path, context)
            return INVALID


class UnionReader(Reader):
    """One of several readers: by the type of the data, and by trial where several take that."""

    def __init__(self, members: Sequence[Reader]) -> None:
        self.members = tuple(members)
        self.words = frozenset().union(*(m.words for m in members))
        self.exact = frozenset().union(*(m.exact for m in members))
        self.expected = " or ".join(dict.fromkeys(m.expected for m in members))
        self._by_word = {
            word: sorted((m for m in members if word in m.words), key=lambda m: word not in m.exact)  # used at once
            for word in self.words
        }

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """What the first reader gives that takes the data."""
        if value is None and "null" in self.words:
            return None
        candidates = self._by_word.get(_plain.WORDS.get(type(value), "table" if isinstance(value, Mapping) else ""), ())
        if not candidates and isinstance(value, (SpecData, Ref)):
            candidates = self._by_word.get("table", ())
        if len(candidates) == 1:
            return candidates[0].read(value, path, context)
        if not candidates:
            named = [m for m in self.members if isinstance(m, ChoiceReader)]
            return named[0].read(value, path, context) if len(named) == 1 == len(self._plain_members()) else (
                context.wrong(path, self.expected, value)
            )  # fmt: skip
        return self._first_that_fits(candidates, value, path, context)

    def _plain_members(self) -> list[Reader]:
        return [m for m in self.members if "null" not in m.words]

    def _first_that_fits(self, candidates: Sequence[Reader], value: Any, path: Path, context: Context) -> Any:
        tried = []
        for member in candidates:
            attempt = Context(type(context.report)(), migrate=context.migrate)
            found = member.read(value, path, attempt)
            if found is not INVALID:
                context.refs += attempt.refs
                context.parts.update(attempt.parts)
                return found
            tried.append(attempt.report)
        best = min(tried, key=lambda report: report.count)
        context.report.extend(best.problems)
        context.report.count += best.count - len(best.problems)
        return INVALID


class CallReader:
    """The arguments of one target, from a table."""

    def __init__(self, catalog: Catalog, target: Any) -> None:
        self.target = target
        self.name = target_name(target)
        self.parameters = parameters_of(target)
        if KIND in self.parameters.by_name:
            raise ConfigError(
                f"{self.name}.{KIND}",
                f"a parameter is called {KIND!r}, which is the key that chooses a class in configurations",
                fix="give the parameter another name",
            )
        self.readers = {p.name: _checked(p, catalog.parameter_reader(p)) for p in self.parameters}
        extra = self.parameters.extra
        self.extra = None if extra is None else catalog.parameter_reader(extra)
        self.required = [p.name for p in self.parameters if p.is_required]
        self.renamed = {p.notes.renamed_from: p.name for p in self.parameters if p.notes.renamed_from is not None}

    def read(self, table: Mapping[str, Any], path: Path, context: Context, choices: Mapping[str, Any]) -> Any:
        """The spec of a table."""
        context.parts[tuple(map(str, path))] = self.target
        arguments = self.arguments(table, path, context, choices)
        if arguments is None:
            return INVALID
        try:
            return Spec(self.target, arguments)
        except DeclaxError as error:
            _add_error(error, self.name, path, context)
            return INVALID

    def arguments(
        self, table: Mapping[str, Any], path: Path, context: Context, choices: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The arguments of a table, or None with problems in the report."""
        current = upgraded(self.target, table, path, context)
        if current is None:
            return None
        found: dict[str, Any] = {}
        unknown: list[Any] = []
        is_valid = True
        for key, item in current.items():
            if key == KIND:
                continue
            name = key
            reader = self.readers.get(name)
            if reader is None and (name := self._renamed(key, current, path, context)) is not None:
                reader = self.readers[name]
            if reader is None:
                unknown.append(key)
                continue
            value = reader.read(item, (*path, key), context)
            is_valid = is_valid and value is not INVALID
            found[name] = value
        is_valid = self._take_unknown(unknown, current, found, path, context, choices) and is_valid
        for name in self.required:
            if name not in found:
                is_valid = False
                if (*path, name) not in context.broken and not self._is_guessed(name, unknown):
                    self._report_missing(name, path, context)
        return found if is_valid else None

    def _renamed(self, key: Any, table: Mapping[str, Any], path: Path, context: Context) -> str | None:
        """The name of today for an old key, when migrating."""
        name = self.renamed.get(key) if isinstance(key, str) else None
        return name if context.migrate and name is not None and name not in table else None

    def _is_guessed(self, name: str, unknown: Iterable[Any]) -> bool:
        """Whether a missing parameter is what a misspelt key means; one mistake is reported once."""
        return any(self._guess(key) == name or self.renamed.get(key) == name for key in unknown if isinstance(key, str))

    def _guess(self, key: str) -> str | None:
        near = difflib.get_close_matches(key, self.readers, n=1, cutoff=0.6) if len(key) <= 60 else []
        return near[0] if near else None

    def _take_unknown(
        self,
        unknown: list[Any],
        table: Mapping[str, Any],
        found: dict[str, Any],
        path: Path,
        context: Context,
        choices: Mapping[str, Any],
    ) -> bool:
        """Hands what is no parameter to ``**kwargs``, or reports it; whether all of it was fine."""
        is_valid = True
        for key in unknown:
            if key == SCHEMA and not path:
                continue
            if self.extra is not None and _is_name(key):
                found[key] = self.extra.read(table[key], (*path, key), context)
                is_valid = is_valid and found[key] is not INVALID
                continue
            if context.migrate and isinstance(key, str) and removed_in(self.target, key) is not None:
                continue
            is_valid = False
            if not context.report.is_full:
                self._report_key(key, path, context, choices)
            else:
                context.report.count += 1
        return is_valid

    def _report_key(self, key: Any, path: Path, context: Context, choices: Mapping[str, Any]) -> None:
        if not isinstance(key, str):
            context.wrong((*path, shown(key)), "a string as the key", key)
            return
        message, owner, hint = f"{self.name} has no parameter {shown(key, 40)}", None, None
        others = [n for n, c in choices.items() if c is not self.target and key in _names(c)] if choices else []
        if key in self.renamed:
            message, hint = f"{message}: it is called {self.renamed[key]!r} now", MIGRATE
        elif (version := removed_in(self.target, key)) is not None:
            message, hint = f"{message}: it was removed in version {version}", f"leave the key out, or {MIGRATE}"
        elif others:
            owner = others[0]
            message = f"{message}; it belongs to {_one_of(others)}"
            hint = f'{KIND} = "{owner}", or leave the key out'
        elif key in _FORBIDDEN:
            hint = "random streams are no configuration: give rngs= where the model is built"
        elif key == "<<":
            hint = "YAML 1.2 has no merge keys: write the keys, or an alias for the whole table"
        else:
            hint = did_you_mean(key, self.readers)
        expected = listed(self.readers) or "no keys"
        context.report.add("unknown-key", (*path, key), message, expected=expected, owner=owner, hint=hint)

    def _report_missing(self, name: str, path: Path, context: Context) -> None:
        parameter = self.parameters.by_name[name]
        context.report.add(
            "missing-key",
            (*path, name),
            f"{self.name} needs {name!r}, which has no default",
            expected=self.readers[name].expected,
            hint=f"{name} = ..." + (f"   # {parameter.help}" if parameter.help else ""),
        )


class CheckedReader(Reader):
    """A reader, and what the notes of a field ask of the value besides."""

    def __init__(self, reader: Reader, parameter: Parameter) -> None:
        notes = parameter.notes
        self.reader = reader
        self.words, self.exact = reader.words, reader.exact
        self.ge, self.le = notes.ge, notes.le
        self.choices = None if notes.choices is None else notes.choices
        self.expected = reader.expected + self._bounds()

    def _bounds(self) -> str:
        parts = [f"at least {self.ge}"] if self.ge is not None else []
        parts += [f"at most {self.le}"] if self.le is not None else []
        parts += [f"one of {', '.join(map(shown, self.choices))}"] if self.choices is not None else []
        return "".join(f", {part}" for part in parts)

    def read(self, value: Any, path: Path, context: Context) -> Any:
        """The value, where it is one of the choices and in the range."""
        found = self.reader.read(value, path, context)
        if found is INVALID:
            return INVALID
        if self.choices is not None and found is not None and found not in self.choices:
            hint = did_you_mean(value, [c for c in self.choices if isinstance(c, str)])
            context.report.add(
                "no-choice", path, "the value is none of the choices", expected=self.expected, got=described(value), hint=hint
            )
            return INVALID
        is_fine = self._in_range(found, path, context)
        return found if is_fine else INVALID

    def _in_range(self, value: Any, path: Path, context: Context) -> bool:
        if type(value) in (list, tuple):
            return all([self._in_range(item, (*path, i), context) for i, item in enumerate(value)])
        if type(value) not in (int, float):
            return True
        hint = None
        if self.ge is not None and not value >= self.ge:
            hint = f"the least is {self.ge}"
        elif self.le is not None and not value <= self.le:
            hint = f"the most is {self.le}"
        if hint is not None:
            context.report.add(
                "out-of-range", path, "the value is out of range", expected=self.expected, got=shown(value), hint=hint
            )
        return hint is None


def _checked(parameter: Parameter, reader: Reader) -> Reader:
    notes = parameter.notes
    has_checks = notes.ge is not None or notes.le is not None or notes.choices is not None
    return CheckedReader(reader, parameter) if has_checks else reader


# --- from annotations to readers ----------------------------------------------


class Catalog:
    """The readers of annotations, where some extra classes are let in."""

    def __init__(self, extra: tuple[Any, ...] = ()) -> None:
        self.extra = extra
        self._calls: dict[Any, CallReader] = {}
        self._readers: dict[Any, Reader] = {}
        self._initializer: InitializerReader | None = None

    def call(self, target: Any) -> CallReader:
        """The reader of a target's arguments."""
        found = self._calls.get(target)
        if found is None:
            found = self._calls[target] = CallReader(self, target)
        return found

    def initializer(self) -> InitializerReader:
        """The reader of initializers."""
        if self._initializer is None:
            self._initializer = InitializerReader(self)
        return self._initializer

    def root_reader(self, annotation: Any) -> Reader:
        """The reader of a whole configuration: of an annotation, or of the arguments of a function."""
        is_function = callable(annotation) and not isinstance(annotation, type) and typing.get_origin(annotation) is None
        if is_function and not isinstance(annotation, (typing.TypeVar, typing.NewType)) and hasattr(annotation, "__name__"):
            name = target_name(annotation).rpartition(".")[2]
            return ChoiceReader(self, {name: annotation}, f"a {name}")
        return self.reader(annotation)

    def parameter_reader(self, parameter: Parameter) -> Reader:
        """The reader of a parameter; its default tells what an annotation leaves open."""
        default = parameter.default
        reader = self.reader(parameter.annotation, default)
        if isinstance(reader, _plain.AnyReader):
            if is_dtype(default):
                return UnionReader([_plain.DtypeReader(), _plain.NullReader()])
            if isinstance(default, NamedInitializer):
                return self.initializer()
            if isinstance(default, types.FunctionType) or _tables.name_in(_tables.ACTIVATIONS, default) is not None:
                return self._function(default)
        if parameter.name == self._variadic(parameter):
            return _plain.ListReader(reader, tuple)
        return reader

    def _variadic(self, parameter: Parameter) -> str | None:
        return parameter.name if parameter.kind is parameter.kind.VAR_POSITIONAL else None

    def reader(self, annotation: Any, default: object = MISSING) -> Reader:
        """The reader of an annotation."""
        try:
            key = (annotation, default if callable(default) else None)
            found = self._readers.get(key)
        except TypeError:  # an annotation or a default without a hash
            return self._make(annotation, default)
        if found is None:
            found = self._readers[key] = self._make(annotation, default)
        return found

    def _make(self, annotation: Any, default: object) -> Reader:
        if typing.get_origin(annotation) is typing.Annotated and "dtype" in annotation.__metadata__:
            return _plain.DtypeReader()
        members = [m for m in _members(annotation) if m is not type(None)]
        has_null = len(members) < len(_members(annotation))
        if not members:
            return _plain.NullReader()
        readers = self._member_readers(members, default)
        readers += [_plain.NullReader()] if has_null else []
        return readers[0] if len(readers) == 1 else UnionReader(readers)

    def _member_readers(self, members: list[Any], default: object) -> list[Reader]:
        if np.dtype in members:
            members = [m for m in members if not _is_dtype_like(m)]
            return [_plain.DtypeReader(), *(self._member_readers(members, default) if members else [])]
        if len(members) > 1 and any(_is_array(m) for m in members):
            not_numbers = (bool, complex, int) if float in members else (complex,)
            members = [m for m in members if not _is_array(m) and m not in not_numbers]
        choices: dict[str, Any] = {}
        readers: list[Reader] = []
        for member in members:
            made = self._choices(member)
            if made is None:
                readers.append(self._one(member, default))
                continue
            for tag, choice in made.items():
                if choices.setdefault(tag, choice) is not choice:
                    raise ConfigError(
                        " | ".join(map(annotation_text, members)),
                        f"two classes have the tag {tag!r}",
                        fix="dx.register_kind(base, cls, name=...), and a base in the annotation",
                    )
        if choices:
            names = ["schedule" if _is_schedule(m) else annotation_text(m) for m in members if self._choices(m) is not None]
            readers.append(ChoiceReader(self, choices, "a " + " or ".join(names)))
        return readers

    def _choices(self, member: Any) -> dict[str, Any] | None:
        """What data may choose where a member of an annotation stands; None where that is no part."""
        if _tables.is_transformation_class(member):
            return {**_tables.transformations(), **kinds_of(member)}
        if _is_schedule(member):
            return {**_tables.schedules(), **kinds_of(member)}
        origin = typing.get_origin(member)
        if origin is Spec or member is Spec:
            inner = typing.get_args(member)
            return self._spec_choices(inner[0]) if inner else None
        base = origin if isinstance(origin, type) else member
        if not _is_part(base):
            return None
        return choices_of(base, self.extra) or None

    def _spec_choices(self, annotation: Any) -> dict[str, Any] | None:
        """What may be chosen for ``Spec[Block]``, where a Block is described and not built."""
        found: dict[str, Any] = {}
        for member in _members(annotation):
            found.update(self._choices(member) or {})
        return found or None

    def _one(self, member: Any, default: object) -> Reader:
        """The reader of a member of an annotation that is no part."""
        simple = _SIMPLE.get(member) if isinstance(member, type) else None
        if simple is not None:
            return simple
        if member in (Any, object) or isinstance(member, (Unresolved, typing.TypeVar)) or member is Spec:
            bound = getattr(member, "__bound__", None)
            return self.reader(bound) if bound is not None else _plain.ANY
        if typing.get_origin(member) is typing.Literal:
            return _plain.LiteralReader(typing.get_args(member))
        origin = typing.get_origin(member) or member
        if origin is Initializer or isinstance(default, NamedInitializer):
            return self.initializer()
        if origin is collections.abc.Callable or getattr(origin, "_is_protocol", False):
            return self._function(default, origin)
        if _is_array_type(origin):
            return _scalar_of(origin)
        if isinstance(origin, type):
            return self._of_class(origin, typing.get_args(member), member)
        return _plain.NoReader(f"what is annotated {annotation_text(member)}")

    def _of_class(self, origin: type, args: tuple[Any, ...], member: Any) -> Reader:
        if issubclass(origin, enum.Enum):
            return _plain.EnumReader(origin)
        if issubclass(origin, pathlib.PurePath):
            return _plain.MadeReader(origin, "string, a path")
        if origin is tuple and args and args[-1] is not Ellipsis:
            return _plain.TupleReader([] if args == ((),) else [self.reader(arg) for arg in args])
        make = _LISTS.get(origin)
        if make is not None:
            return _plain.ListReader(self.reader(args[0]) if args else _plain.ANY, make)
        if origin in _MAPPINGS:
            key, item = (self.reader(arg) for arg in args) if len(args) == 2 else (_SIMPLE[str], _plain.ANY)
            return _plain.MappingReader(key, item)
        if is_data_class(origin) or issubclass(origin, (Variable, np.generic)):
            return _plain.NoReader(f"an array ({annotation_text(member)})", "make it when the model is built")
        if origin is type:
            return _plain.NoReader("a class", "annotate Spec[...] for a part that is built later")
        hint = "let its implementations in with dx.register_kind, or extra=[...]"
        return _plain.NoReader(f"a {annotation_text(member)}", hint)

    def _function(self, default: object, origin: Any = collections.abc.Callable) -> Reader:
        """The reader of names of functions: activations, what is registered, and the default by its own name."""
        table = {**_tables.ACTIVATIONS, **kinds_of(collections.abc.Callable), **kinds_of(origin)}
        name = getattr(default, "__name__", None)
        if callable(default) and isinstance(name, str) and name != "<lambda>":
            table.setdefault(name, default)
        return _plain.NamesReader("a function" if origin is not collections.abc.Callable else "an activation", table, "unknown-activation")


_SIMPLE: Final[Mapping[type, Reader]] = {
    bool: _plain.BoolReader(),
    int: _plain.ANY_INT,
    float: _plain.FloatReader(),
    str: _plain.StrReader(),
    type(None): _plain.NullReader(),
}
_LISTS: Final[Mapping[type, Callable[[list[Any]], Any]]] = {
    list: list,
    tuple: tuple,
    set: frozenset,
    frozenset: frozenset,
    collections.abc.Set: frozenset,
    collections.abc.Sequence: tuple,
    collections.abc.Iterable: tuple,
    collections.abc.Collection: tuple,
    collections.abc.MutableSequence: list,
}
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, marks of dtypes kept."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return tuple(m for arg in typing.get_args(annotation) for m in _members(arg))
    if origin is typing.Annotated:
        return (np.dtype,) if "dtype" in annotation.__metadata__ else _members(annotation.__origin__)
    if origin in (typing.Final, typing.ClassVar, typing.Required, typing.NotRequired):
        return _members(typing.get_args(annotation)[0])
    if annotation is None:
        return (type(None),)
    opened = allowed_classes(annotation)
    return opened if opened == (annotation,) else tuple(m for arg in opened for m in _members(arg))


def _is_dtype_like(member: Any) -> bool:
    name = getattr(member, "__name__", "")
    return member in (np.dtype, str) or typing.get_origin(member) in (type, np.dtype) or name == "SupportsDType"


def _is_array(member: Any) -> bool:
    origin = typing.get_origin(member) or member
    if not isinstance(origin, type):
        return False
    is_foreign = origin.__module__.partition(".")[0] in ("jax", "jaxlib", "numpy")
    return (is_foreign and is_data_class(origin)) or issubclass(origin, (np.generic, Variable))


def _is_array_type(member: Any) -> bool:
    return hasattr(member, "array_type") and hasattr(member, "dtypes")


def _scalar_of(member: Any) -> Reader:
    """The reader of a jaxtyping annotation: a number where it has no axes."""
    if getattr(member, "dim_str", "").strip():
        return _plain.NoReader(f"an array ({annotation_text(member)})", "make it when the model is built")
    kinds = {str(dtype).rstrip("0123456789") for dtype in member.dtypes}
    if kinds <= {"int", "uint"}:
        return _SIMPLE[int]
    return _SIMPLE[bool] if kinds == {"bool"} else _SIMPLE[float]


def _is_schedule(member: Any) -> bool:
    optax = sys.modules.get("optax")
    return optax is not None and typing.get_origin(member) is collections.abc.Callable and member == optax.Schedule


def _is_part(base: Any) -> bool:
    """Whether an annotation names what is described by a table of arguments."""
    if not isinstance(base, type) or base in _SIMPLE or base in _LISTS or base in _MAPPINGS:
        return False
    if base in (Any, object, Initializer, type, SpecData, complex, bytes) or issubclass(base, (enum.Enum, np.dtype, np.generic)):
        return False
    if issubclass(base, (pathlib.PurePath, Variable, jax.Array, Spec)) or _is_array_type(base):
        return False
    if is_data_class(base) and base.__module__.partition(".")[0] in ("jax", "jaxlib", "numpy"):
        return False
    is_function = getattr(base, "_is_protocol", False) and "__call__" in vars(base)
    return not is_function and base is not collections.abc.Callable


@functools.lru_cache(maxsize=4096)
def _names(target: Any) -> frozenset[str]:
    """The names of a target's parameters, and the tag."""
    if isinstance(target, NamedInitializer):
        return frozenset({KIND})
    return frozenset(parameters_of(target).by_name) | {KIND}


def _is_name(key: Any) -> bool:
    """Whether a key may be the name of a further argument: no name that Python gives a meaning to."""
    is_plain = isinstance(key, str) and key.isidentifier() and not key.startswith("_")
    return is_plain and key not in _FORBIDDEN and key not in ("self", "cls")


def _one_of(choices: Iterable[str]) -> str:
    names = list(choices)
    if len(names) > 40:
        names = [*names[:40], "..."]
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _add_error(error: Exception, name: str, path: Path, context: Context) -> None:
    """Notes the error of a constructor as a problem."""
    if isinstance(error, DeclaxError):
        message = f"{error.where}: {error.problem}"
        context.report.add("invalid", path, message, expected=error.expected, got=error.got, hint=error.fix)
    else:
        context.report.add("invalid", path, f"{name} refuses this: {error}")


# --- the whole ----------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def catalog_for(extra: tuple[Any, ...]) -> Catalog:
    """The catalog of some extra classes; forgotten when a kind is registered."""
    return Catalog(extra)


on_change(catalog_for.cache_clear)


def structure(annotation: Any, data: object, context: Context, extra: Iterable[Any] = ()) -> Any:
    """What plain data stands for where an annotation is expected.

    Args:
      annotation: a class, a function, or any annotation that a field may have.
      data: plain data.
      context: receives the problems.
      extra: classes that may be chosen besides.

    Returns:
      A spec, or another value; INVALID with problems in the report.
    """
    found = catalog_for(tuple(extra)).root_reader(annotation).read(data, (), context)
    check_refs(context)
    return INVALID if context.report else found


def check_refs(context: Context) -> None:
    """Checks where refs lead to: to a part, of a class that fits, and not in a circle."""
    circular = _check_circles(context)
    for path, target, choices in context.refs:
        if path in circular:
            continue
        part = context.parts.get(target)
        written = "/" + "/".join(target)
        if part is None:
            names = ["/" + "/".join(keys) for keys in list(context.parts)[:1000] if keys]
            context.report.add(
                "ref-to-nothing", path, "the reference leads to no part", expected="the path of a table that describes one",
                got=shown(written), hint=did_you_mean(written, names),
            )  # fmt: skip
        elif choices is not None and not any(part is choice for choice in choices.values()):
            context.report.add(
                "ref-kind", path, f"the reference leads to a {target_name(part)}", expected=_one_of(choices),
                got=shown(written), hint="refer to a part of a class that fits, or write one out",
            )  # fmt: skip


def _check_circles(context: Context) -> set[Path]:
    """Reports refs whose part contains, or leads back to, themselves; gives their paths.

    A target needs the targets of all refs that stand inside of it. A ref stands inside of no more targets than its path
    is long, so there are few of these.
    """
    targets = {target for _, target, _ in context.refs}
    needs: dict[tuple[str, ...], list[tuple[Path, tuple[str, ...]]]] = {target: [] for target in targets}
    for path, target, _ in context.refs:
        keys = tuple(map(str, path))
        for end in range(1, len(keys) + 1):
            if keys[:end] in targets:
                needs[keys[:end]].append((path, target))
    done: set[tuple[str, ...]] = set()
    found: set[Path] = set()
    for start in sorted(targets):
        trail: dict[tuple[str, ...], int] = {}
        stack = [(start, iter(needs[start]))] if start not in done else []
        trail.update({start: 0} if stack else {})
        while stack:
            here, inside = stack[-1]
            step = next(inside, None)
            if step is None:
                stack.pop()
                trail.pop(here)
                done.add(here)
            elif step[1] in trail:
                circle = [*list(trail)[trail[step[1]] :], step[1]]
                found.add(step[0])
                context.report.add(
                    "ref-cycle", step[0], "the references go in a circle: a part would contain itself",
                    got=" -> ".join("/" + "/".join(keys) for keys in circle[:8]), hint="write one of the parts out",
                )  # fmt: skip
            elif step[1] not in done:
                trail[step[1]] = len(trail)
                stack.append((step[1], iter(needs[step[1]])))
    return found

"""Selects the reader of an annotation; each is created once."""

from __future__ import annotations

import collections.abc
import enum
import functools
import itertools
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np

from declax._fields.annotations import Unresolved, annotation_text, is_data_class
from declax._fields.overrides import DeclaredPart, holds_parts
from declax._module.containers import List, Sequential
from declax._typing import MISSING, Initializer
from declax._variables.variable import Variable
from declax.config import registry
from declax.config._data import SpecData, is_spec_class
from declax.config._reading.parameters import (
    Bindings,
    Parameter,
    allowed_classes,
    allows_dtypes,
    is_dtype,
    spells_dtypes,
    substituted,
    target_name,
)
from declax.config._reading.part_readers import (
    AnyReader,
    CallReader,
    ChoiceReader,
    InitializerReader,
    UnionReader,
    anywhere,
)
from declax.config._reading.readers import (
    AliasReader,
    BoolReader,
    DtypeReader,
    EnumReader,
    FloatReader,
    IntReader,
    ListReader,
    LiteralReader,
    MappingReader,
    NamesReader,
    NullReader,
    ObjectReader,
    PathReader,
    Reader,
    StrReader,
    entries,
    is_only_typed,
)
from declax.config.registry import choices_of, extra_functions, implementations, kinds_of, on_change
from declax.errors import ConfigError, with_article
from declax.initializers import NamedInitializer

_NO_BINDINGS: Final[Bindings] = types.MappingProxyType({})


class Catalog:
    """The readers of annotations, for one set of extra classes."""

    def __init__(self, extra: tuple[Any, ...] = ()) -> None:
        self.extra = extra
        self._calls: dict[Any, CallReader] = {}
        self._readers: dict[Any, Reader] = {}
        self._open: set[Any] = set()  # the annotations whose readers are being created

    def call(self, target: Any, annotation: Any = None) -> CallReader:
        key = target if annotation is None else annotation
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = CallReader(self, target, annotation)
        return found

    def forget(self, target: Any) -> None:
        """Drops the readers of a target; its unresolved annotations may resolve later."""
        self._calls = {key: call for key, call in self._calls.items() if call.target is not target}

    @functools.cached_property
    def anything(self) -> AnyReader:
        return AnyReader(self)

    @functools.cached_property
    def initializer(self) -> InitializerReader:
        return InitializerReader(self)

    def root_reader(self, annotation: Any) -> Reader:
        """The reader of a whole configuration: of an annotation, or of the arguments of a function."""
        is_named = callable(annotation) and not isinstance(annotation, (type, typing.TypeVar, typing.NewType))
        if is_named and typing.get_origin(annotation) is None and hasattr(annotation, "__name__"):
            name = target_name(annotation).rpartition(".")[2]
            return ChoiceReader(self, {name: annotation}, with_article(name))
        return self.reader(annotation)

    def parameter_reader(self, parameter: Parameter, bindings: Bindings = _NO_BINDINGS) -> Reader:
        """The reader of a parameter: by its annotation, or by its default if that is open."""
        default = parameter.default
        annotation = substituted(parameter.annotation, bindings.get(parameter.owner, {}))
        if parameter.owner is List:  # its parameter `elements` is one list
            annotation = list[typing.get_args(annotation)[0]]  # type: ignore[misc]  # made at run time
        try:
            reader = self.reader(annotation, default)
        except _UnresolvedError as error:
            reader = UnionReader(self._narrowed(parameter.owner, default))
            if not reader.members:
                raise ConfigError(
                    f"{target_name(parameter.owner)}.{parameter.name}",
                    f"the annotation names {error.args[0]!r}, which does not exist at run time",
                    got=parameter.written,
                    why="annotations decide which data is valid",
                    fix="import it outside of `if TYPE_CHECKING:`, or annotate Any to accept all plain data",
                ) from None
        if isinstance(reader, AnyReader) and (narrowed := self._narrowed(parameter.owner, default)):
            reader = UnionReader(narrowed)
        return ListReader(reader, tuple) if parameter.kind is parameter.kind.VAR_POSITIONAL else reader

    def _narrowed(self, owner: Any, default: object) -> list[Reader]:
        """The readers of an open annotation that the default narrows; empty if it does not."""
        if owner is Sequential:
            layer = [ChoiceReader(self, anywhere(self.extra), "a layer"), self._function(MISSING)]
            return [ListReader(UnionReader(layer), list), *layer]
        if is_dtype(default):
            return [DtypeReader(), _SIMPLE[type(None)]]
        if isinstance(default, NamedInitializer):
            return [self.initializer, _SIMPLE[type(None)]]
        is_activation = registry.name_in(registry.ACTIVATIONS, default) is not None
        is_function = is_activation or isinstance(default, types.FunctionType)
        return [self._function(default), _SIMPLE[type(None)]] if is_function else []

    def reader(self, annotation: Any, default: object = MISSING) -> Reader:
        if holds_parts(default):
            return self._make(annotation, default)
        try:
            key = (annotation, default if callable(default) else None)
            found = self._readers.get(key)
        except TypeError:  # an annotation or a default without a hash
            return self._make(annotation, default)
        if found is not None:
            return found
        if key in self._open:  # an alias that refers to itself
            return self._readers.setdefault(key, AliasReader(repr(annotation), lambda: self._make(annotation, default)))
        self._open.add(key)
        try:
            made = self._make(annotation, default)
        finally:
            self._open.discard(key)
        return self._readers.setdefault(key, made)

    def _make(self, annotation: Any, default: object) -> Reader:
        allowed = allowed_classes(annotation)
        members = [m for m in allowed if m is not type(None)]
        readers = self._member_readers(members, default)
        is_used = any(isinstance(r, ChoiceReader | AnyReader) for r in readers)
        if isinstance(default, DeclaredPart) and not is_used:  # as for a list that `repeat` makes
            readers.append(ChoiceReader(self, {}, "a part", declared=default))
        readers += [_SIMPLE[type(None)]] if len(members) < len(allowed) else []
        return readers[0] if len(readers) == 1 else UnionReader(readers)

    def _member_readers(self, members: list[Any], default: object) -> list[Reader]:
        if allows_dtypes(tuple(members)):
            members = [m for m in members if not spells_dtypes(m)]
            return [DtypeReader(), *self._member_readers(members, default)]
        if len(members) > 1 and any(_is_array(m) for m in members):
            others = [m for m in members if not _is_array(m) and m is not complex]
            if float in others and int in others:  # numbers
                others = [m for m in others if m is not bool]
            members = others
        parts = [m for m in members if self._choices(m, default) is not None]
        readers = [self._one(member, default) for member in members if member not in parts]
        named = [self._one(m, default) for m in parts if _is_named(m)]
        return [*readers, self._choice(parts, members, default), *named] if parts else readers

    def _choice(self, parts: list[Any], members: list[Any], default: object) -> ChoiceReader:
        """The reader of those members of a union that are classes of parts."""
        declared = default if isinstance(default, DeclaredPart) else None
        choices: dict[str, Any] = {}
        for tag, choice in ((tag, c) for member in parts for tag, c in (self._choices(member, default) or {}).items()):
            if choices.setdefault(tag, choice) is not choice:
                raise ConfigError(
                    " | ".join(map(annotation_text, members)),
                    f"two classes have the tag {tag!r}",
                    fix="dx.register_kind(base, cls, name=...), and a base in the annotation",
                )
        names = ["schedule" if _is_schedule(member) else annotation_text(member) for member in parts]
        annotations = {typing.get_origin(m): m for m in parts if isinstance(typing.get_origin(m), type)}
        inner = [i for m in parts for i in (typing.get_args(m) if is_spec_class(_class_of(m)) else (m,))]
        bases = [cls for m in inner for cls in map(_class_of, allowed_classes(m)) if isinstance(cls, type)]
        classes = [cls for cls in map(_class_of, [m for m in parts if not _is_named(m)]) if isinstance(cls, type)]
        objects = [object if is_only_typed(cls) else cls for cls in classes if not is_spec_class(cls)]
        keeps_specs = any(is_spec_class(_class_of(member)) for member in parts)
        noun = with_article(" or ".join(names))
        return ChoiceReader(self, choices, noun, annotations, bases, objects, declared, keeps_specs=keeps_specs)

    def _choices(self, member: Any, default: object = MISSING) -> dict[str, Any] | None:
        """The choices of data for a member of an annotation; None if it is not a part."""
        if registry.is_transformation_class(member):
            return {**registry.transformations(), **kinds_of(member)}
        if _is_schedule(member):
            return {**registry.schedules(), **kinds_of(member)}
        base = _class_of(member)
        if is_spec_class(base):  # ``Spec[Block]``: the spec of a Block, not built
            inner = [self._choices(m) or {} for arg in typing.get_args(member) for m in allowed_classes(arg)]
            return {tag: choice for choices in inner for tag, choice in choices.items()} or None
        declared = implementations(base, [default.function] if isinstance(default, DeclaredPart) else [])
        if _is_function(base):  # a part only by its default; registered functions are named, not called
            kinds = choices_of(base, self.extra).items() if declared else ()
            return {**declared, **{tag: kind for tag, kind in kinds if implementations(base, [kind])}} or None
        return {**declared, **choices_of(base, self.extra)} or None if _is_part(base) else None

    def _one(self, member: Any, default: object) -> Reader:
        """The reader of a member of an annotation that is not a part."""
        simple = _SIMPLE.get(member) if isinstance(member, type) else None
        if simple is not None:
            return simple
        if is_spec_class(_class_of(member)):
            return AnyReader(self, keeps_specs=True)  # a `Spec` without a class in brackets
        if isinstance(member, Unresolved):
            raise _UnresolvedError(member.name)
        if member in _OPEN or isinstance(member, typing.TypeVar):
            bound = getattr(member, "__bound__", None)
            if bound is not None:
                return self.reader(bound, default)
            return AnyReader(self, declared=default) if isinstance(default, DeclaredPart) else self.anything
        if typing.get_origin(member) is typing.Literal:
            return LiteralReader(typing.get_args(member))
        origin = typing.get_origin(member) or member
        if origin is Initializer or isinstance(default, NamedInitializer):
            return self.initializer
        if _is_function(origin):
            return self._function(default, origin)
        if _is_array_type(origin):
            return _array_reader(origin, member)
        if isinstance(origin, type):
            return self._of_class(origin, typing.get_args(member), member, default)
        return ObjectReader(None, f"a value that is annotated {annotation_text(member)}")

    def _of_class(self, origin: type, args: tuple[Any, ...], member: Any, default: Any) -> Reader:
        declared = default if holds_parts(default) else ()
        if issubclass(origin, enum.Enum):
            return EnumReader(origin)
        if issubclass(origin, pathlib.PurePath):
            return PathReader(origin)
        if origin is tuple and args and args[-1] is not Ellipsis:
            pairs = itertools.zip_longest([] if args == ((),) else args, declared[: len(args)], fillvalue=MISSING)
            return ListReader(None, tuple, [self.reader(arg, item) for arg, item in pairs])
        make = _LISTS.get(origin)
        if make is not None:
            item = self._with_classes_of(default).reader(args[0]) if args else self.anything
            first = [self.reader(args[0], item) for item in declared] if args else []
            return ListReader(item, make, first)
        if origin in _MAPPINGS and len(args) == 2:
            named = {key: (self.reader(args[1], item), item) for key, item in dict(declared).items()}
            return MappingReader(self.reader(args[0]), self._with_classes_of(default).reader(args[1]), named)
        if origin in _MAPPINGS:
            return self.anything.table
        if origin is complex:
            return UnionReader([_SIMPLE[int], _SIMPLE[float], ObjectReader(complex, "a complex number")])
        if is_data_class(origin) or issubclass(origin, (Variable, np.generic)):
            return _array_reader(origin, member)
        hint = "add its implementations with dx.register_kind, or extra=[...]"
        return ObjectReader(origin, with_article(annotation_text(member)), hint)

    def _with_classes_of(self, default: Any) -> Catalog:
        """The catalog in which the classes of the parts in a default are choices for its other items too."""
        held = [item for _, item in entries(default)] or [default]
        made = dict.fromkeys(part.function for part in held if isinstance(part, DeclaredPart))
        return catalog_for(tuple(dict.fromkeys((*self.extra, *made)))) if made else self

    def _function(self, default: object, origin: Any = collections.abc.Callable) -> Reader:
        """The reader of names of functions: activations, registered functions, and the default."""
        table = {
            **registry.ACTIVATIONS,
            **extra_functions(self.extra),
            **kinds_of(collections.abc.Callable),
            **kinds_of(origin),
        }
        if isinstance(default, DeclaredPart):  # where a table with the tag describes an instance
            table = {name: function for name, function in table.items() if not isinstance(function, type)}
        name = getattr(default, "__name__", None)
        if callable(default) and isinstance(name, str) and name != "<lambda>":
            table.setdefault(name, default)
        noun = "a function" if origin is not collections.abc.Callable else "an activation"
        return NamesReader(noun, table, "unknown-activation")


class _UnresolvedError(Exception):
    """An annotation names something that does not exist at run time."""


def _class_of(member: Any) -> Any:
    """The class of a member of an annotation, without its type arguments."""
    origin = typing.get_origin(member)
    return origin if isinstance(origin, type) else member


_SIMPLE: Final[Mapping[type, Reader]] = {
    bool: BoolReader(),
    int: IntReader(),
    float: FloatReader(),
    str: StrReader(),
    type(None): NullReader(),
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
_OPEN: Final = (Any, object, collections.abc.Hashable)
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _is_array(member: Any) -> bool:
    origin = typing.get_origin(member) or member
    if not isinstance(origin, type):
        return False
    is_foreign = origin.__module__.partition(".")[0] in ("jax", "jaxlib", "numpy")
    return (is_foreign and is_data_class(origin)) or issubclass(origin, (np.generic, Variable))


def _is_array_type(member: Any) -> bool:
    return hasattr(member, "array_type") and hasattr(member, "dtypes")


def _array_reader(cls: Any, member: Any) -> Reader:
    return ObjectReader(cls, f"an array ({annotation_text(member)})", "make it when the model is built")


def _is_schedule(member: Any) -> bool:
    optax = sys.modules.get("optax")
    return optax is not None and typing.get_origin(member) is collections.abc.Callable and member == optax.Schedule


def _is_part(base: Any) -> bool:
    """Whether data describes instances of a class by a table of arguments."""
    if not isinstance(base, type) or base in _SIMPLE or base in _LISTS or base in _MAPPINGS:
        return False
    if base in (Any, object, Initializer, type, SpecData, complex, bytes) or _is_array(base) or _is_array_type(base):
        return False
    return not (issubclass(base, (enum.Enum, np.dtype, pathlib.PurePath, jax.Array)) or _is_function(base))


def _is_named(member: Any) -> bool:
    """Whether data may also name the function that a member of an annotation allows."""
    return _is_function(_class_of(member)) and not _is_schedule(member)


def _is_function(base: Any) -> bool:
    """Whether the values of an annotation are functions: `Callable`, or a protocol with `__call__`."""
    is_protocol = bool(getattr(base, "_is_protocol", False)) and base is not Initializer
    return base is collections.abc.Callable or (is_protocol and "__call__" in vars(base))


# --- catalogs -----------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def catalog_for(extra: tuple[Any, ...]) -> Catalog:
    """The catalog for some extra classes; registering a kind clears this cache."""
    return Catalog(extra)


on_change(catalog_for.cache_clear)

"""Selects the reader of an annotation; each is created once."""

from __future__ import annotations

import collections.abc
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np

from declax._classes.pytree import Pytree
from declax._fields.annotations import AnnotationScope, annotation_text, is_data_class
from declax._fields.meanings import (
    AliasType,
    AnyType,
    CallableType,
    ClassType,
    CollectionType,
    LiteralType,
    MappingType,
    Meaning,
    TupleType,
    TypedDictType,
    TypeType,
    TypeVarType,
    UnionType,
    UnknownType,
    meaning_of,
    members_of,
)
from declax._fields.overrides import DeclaredPart, holds_parts
from declax._module.containers import List, Sequential
from declax._typing import MISSING, Initializer
from declax._variables.variable import Variable
from declax.config import registry
from declax.config._data import SpecData, is_spec_class
from declax.config._reading.parameters import (
    NO_BINDINGS,
    Bindings,
    Parameter,
    allows_dtypes,
    is_dtype,
    parameters_of,
    spells_dtypes,
    target_name,
)
from declax.config._reading.part_readers import (
    AnyReader,
    CallReader,
    ChoiceReader,
    FunctionReader,
    InitializerReader,
    UnionReader,
    anywhere,
    without_first,
)
from declax.config._reading.readers import (
    TEXTS,
    AliasReader,
    BoolReader,
    DtypeReader,
    EnumReader,
    FloatReader,
    IntReader,
    ListReader,
    LiteralReader,
    MappingReader,
    NullReader,
    ObjectReader,
    Reader,
    StrReader,
    TextReader,
    TypedDictReader,
    entries,
    is_only_typed,
)
from declax.config.registry import choices_of, extra_functions, implementations, kinds_of, on_change
from declax.errors import ConfigError, with_article
from declax.initializers import NamedInitializer


class Catalog:
    """The readers of annotations, for one set of extra classes."""

    def __init__(self, extra: tuple[Any, ...] = ()) -> None:
        self.extra = extra
        self._calls: dict[Any, CallReader] = {}
        self._bindable: dict[Any, tuple[CallReader, str | None]] = {}
        self._readers: dict[Any, Reader] = {}
        self._open: set[Any] = set()  # the annotations whose readers are being created

    def call(self, target: Any, annotation: Any = None) -> CallReader:
        key = target if annotation is None else annotation
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = CallReader(self, target, annotation)
        return found

    def bindable(self, function: Any) -> tuple[CallReader, str | None]:
        """The reader of the arguments that data may bind to a function, and the name of the first parameter."""
        found = self._bindable.get(function)
        if found is None:
            parameters, first = without_first(parameters_of(function))
            found = self._bindable[function] = CallReader(self, function, parameters=parameters), first
        return found

    def forget(self, target: Any) -> None:
        """Drops the readers of a target; its unresolved annotations may resolve later."""
        self._calls = {key: call for key, call in self._calls.items() if call.target is not target}
        self._bindable.pop(target, None)

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
        return self.reader(meaning_of(annotation, AnnotationScope(Catalog)))

    def parameter_reader(self, parameter: Parameter, bindings: Bindings = NO_BINDINGS) -> Reader:
        """The reader of a parameter: by its annotation, or by its default if that is open."""
        default = parameter.default
        meaning = parameter.meaning(bindings)
        if parameter.owner is List and isinstance(meaning, CollectionType):  # its parameter `elements` is one list
            meaning = CollectionType(meaning.annotation, list, meaning.item)
        try:
            reader = self.reader(meaning, default)
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
        if getattr(owner, "_pytree__makes_layers", False) and default is MISSING:  # `Stacked` builds a Spec once for each layer
            spec = ChoiceReader(self, anywhere(self.extra), "a layer", keeps_specs=True)
            return [spec, self._function(MISSING)]
        if is_dtype(default):
            return [DtypeReader(), _SIMPLE[type(None)]]
        if isinstance(default, NamedInitializer):
            return [self.initializer, _SIMPLE[type(None)]]
        is_activation = registry.name_in(registry.ACTIVATIONS, default) is not None
        is_function = is_activation or isinstance(default, types.FunctionType)
        return [self._function(default), _SIMPLE[type(None)]] if is_function else []

    def reader(self, meaning: Meaning, default: object = MISSING) -> Reader:
        if holds_parts(default):
            return self._make(meaning, default)
        try:
            key = (meaning, default if callable(default) else None)
            found = self._readers.get(key)
        except TypeError:  # a mark or a default without a hash
            return self._make(meaning, default)
        if found is not None:
            return found
        if key in self._open:  # an alias that refers to itself
            name = meaning.name if isinstance(meaning, AliasType) else annotation_text(meaning.annotation)
            return self._readers.setdefault(key, AliasReader(name, lambda: self._make(meaning, default)))
        if len(self._open) > _MAX_OPEN:  # one that grows with each step
            return self.anything
        self._open.add(key)
        try:
            made = self._make(meaning, default)
        finally:
            self._open.discard(key)
        return self._readers.setdefault(key, made)

    def _make(self, meaning: Meaning, default: object) -> Reader:
        allowed = list(members_of(meaning))
        members = [member for member in allowed if not _is_none(member)]
        readers = self._member_readers(members, default)
        is_used = any(isinstance(r, ChoiceReader | AnyReader) for r in readers)
        if isinstance(default, DeclaredPart) and not is_used:  # as for a list that `repeat` makes
            readers.append(ChoiceReader(self, {}, "a part", declared=default))
        readers += [_SIMPLE[type(None)]] if len(members) < len(allowed) else []
        return readers[0] if len(readers) == 1 else UnionReader(readers)

    def _member_readers(self, members: list[Meaning], default: object) -> list[Reader]:
        if allows_dtypes(members):
            members = [m for m in members if not spells_dtypes(m)]
            return [DtypeReader(), *self._member_readers(members, default)]
        if len(members) > 1 and any(_is_array(_class_of(m)) for m in members):
            others = [m for m in members if not _is_array(_class_of(m)) and _class_of(m) is not complex]
            classes = {_class_of(m) for m in others}
            if {float, int} <= classes:  # numbers
                others = [m for m in others if _class_of(m) is not bool]
            members = others
        parts = [m for m in members if self._choices(m, default) is not None]
        readers = [self._one(member, default) for member in members if member not in parts]
        named = [self._one(m, default) for m in parts if _is_named(m)]
        return [*readers, *(self._choice(group, members, default) for group in _by_class(parts)), *named]

    def _choice(self, parts: list[Meaning], members: list[Meaning], default: object) -> ChoiceReader:
        """The reader of those members of a union that are classes of parts."""
        declared = default if isinstance(default, DeclaredPart) else None
        inner = [i for m in parts for i in (_args_of(m) if is_spec_class(_class_of(m)) else (m,))]
        bases = [cls for m in inner for cls in map(_class_of, members_of(m)) if isinstance(cls, type)]
        implied = [layer for base in bases for layer in registry.layers_of(base).values()]
        choices: dict[str, Any] = {}
        for tag, choice in ((tag, c) for member in parts for tag, c in (self._choices(member, default) or {}).items()):
            known = choices.setdefault(tag, choice)
            if known in implied:  # a class that the annotation names takes the tag of a layer of declax
                choices[tag] = choice
            elif known is not choice and choice not in implied:
                raise ConfigError(
                    " | ".join(annotation_text(member.annotation) for member in members),
                    f"two classes have the tag {tag!r}",
                    fix="dx.register_kind(base, cls, name=...), and a base in the annotation",
                )
        names = ["schedule" if _is_schedule(member) else annotation_text(member.annotation) for member in parts]
        classes = [cls for cls in map(_class_of, [m for m in parts if not _is_named(m)]) if isinstance(cls, type)]
        objects = [object if is_only_typed(cls) else cls for cls in classes if not is_spec_class(cls)]
        keeps_specs = any(is_spec_class(_class_of(member)) for member in parts)
        generic = {m.cls: m for m in map(_unwrapped_spec, parts) if isinstance(m, ClassType) and m.args}
        noun = with_article(" or ".join(names))
        return ChoiceReader(self, choices, noun, generic, bases, objects, declared, keeps_specs=keeps_specs)

    def _choices(self, member: Meaning, default: object = MISSING) -> dict[str, Any] | None:
        """The choices of data for a member of an annotation; None if it is not a part."""
        base = _class_of(member)
        if registry.is_transformation_class(base):
            return {**registry.transformations(), **kinds_of(base)}
        if _is_schedule(member):
            return {**registry.schedules(), **kinds_of(member.annotation)}
        if is_spec_class(base):  # ``Spec[Block]``: the spec of a Block, not built
            inner = [self._choices(m) or {} for arg in _args_of(member) for m in members_of(arg)]
            return {tag: choice for choices in inner for tag, choice in choices.items()} or None
        declared = implementations(base, [default.function] if isinstance(default, DeclaredPart) else [])
        if _is_function(member):  # registered functions are named, not called
            is_part = bool(declared or registry.layers_of(base))
            kinds = choices_of(base, self.extra).items() if is_part else ()
            return {**declared, **{tag: kind for tag, kind in kinds if implementations(base, [kind])}} or None
        if not _is_part(member):
            return None
        found = {**declared, **choices_of(base, self.extra)}
        return found if found or issubclass(base, Pytree) else None  # an abstract layer has no kinds yet

    def _one(self, member: Meaning, default: object) -> Reader:
        """The reader of a member of an annotation that is not a part."""
        if isinstance(default, NamedInitializer) and not isinstance(member, UnknownType):
            return self.initializer
        match member:
            case UnknownType(is_name=True):
                raise _UnresolvedError(member.name)
            case AnyType():
                return AnyReader(self, declared=default) if isinstance(default, DeclaredPart) else self.anything
            case TypeVarType():
                return self._of_variable(member, default)
            case LiteralType():
                return LiteralReader(member.values)
            case CallableType():
                return self._function(default)
            case TypeType():
                return _object_reader(type, member)
            case CollectionType() | TupleType() | MappingType():
                return self._of_container(member, default)
            case TypedDictType():
                return TypedDictReader(
                    annotation_text(member.annotation), member.required, lambda: self._entries(member)
                )
            case ClassType():
                return self._of_class(member, default)
            case _:
                return ObjectReader(None, f"a value that is annotated {annotation_text(member.annotation)}")

    def _of_variable(self, variable: TypeVarType, default: object) -> Reader:
        """The reader of a type variable that nothing binds: by its default (PEP 696), its types, or its bound."""
        if variable.default is not None:
            return self.reader(variable.default, default)
        if variable.constraints:
            return self.reader(UnionType(variable.annotation, variable.constraints), default)
        if variable.bound is not None:
            return self.reader(variable.bound, default)
        return AnyReader(self, declared=default) if isinstance(default, DeclaredPart) else self.anything

    def _entries(self, member: TypedDictType) -> dict[str, Reader]:
        return {name: self.reader(item) for name, item in member.items.items()}

    def _of_container(self, member: CollectionType | TupleType | MappingType, default: Any) -> Reader:
        declared = default if holds_parts(default) else ()
        if isinstance(member, TupleType):
            parts = [*declared, *[MISSING] * len(member.items)]
            return ListReader(None, tuple, [self.reader(*pair) for pair in zip(member.items, parts, strict=False)])
        item = member.item
        if isinstance(member, CollectionType) and member.cls in _LISTS:
            inner = self.anything if item is None else self._with_classes_of(default).reader(item)
            first = [self.reader(item, part) for part in declared] if item is not None else []
            return ListReader(inner, _LISTS[member.cls], first)
        if isinstance(member, MappingType) and member.cls in _MAPPINGS:
            if item is None or member.names is None:
                return self.anything.table
            named = {key: (self.reader(item, part), part) for key, part in dict(declared).items()}
            return MappingReader(self.reader(member.names), self._with_classes_of(default).reader(item), named)
        return _object_reader(member.cls, member)

    def _of_class(self, member: ClassType, default: Any) -> Reader:
        cls: Any = member.cls
        if cls in _SIMPLE:
            return _SIMPLE[cls]
        if is_spec_class(cls):
            return AnyReader(self, keeps_specs=True)  # a `Spec` without a class in brackets
        if cls is Initializer:
            return self.initializer
        if _is_function(member):
            return self._function(default, cls)
        if cls is collections.abc.Hashable:
            return AnyReader(self, declared=default) if isinstance(default, DeclaredPart) else self.anything
        if _is_array_type(cls):
            return _array_reader(cls, member)
        if issubclass(cls, enum.Enum):
            return EnumReader(cls)
        text = next((text for base, text in TEXTS.items() if issubclass(cls, base)), None)
        if text is not None:
            return TextReader(cls, text)
        if cls is complex:
            return UnionReader([_SIMPLE[int], _SIMPLE[float], ObjectReader(complex, "a complex number")])
        if is_data_class(cls) or issubclass(cls, (Variable, np.generic)):
            return _array_reader(cls, member)
        return _object_reader(cls, member)

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
        name, own = getattr(default, "__name__", None), None
        if callable(default) and isinstance(name, str) and name != "<lambda>":
            own = name if name not in table else None
            table.setdefault(name, default)
        noun = "a function" if origin is not collections.abc.Callable else "an activation"
        return FunctionReader(self, noun, table, own)


class _UnresolvedError(Exception):
    """An annotation names something that does not exist at run time."""


def _class_of(member: Meaning) -> Any:
    """The class of a member of an annotation, without its type arguments; None if it is of none."""
    if isinstance(member, CallableType):
        return collections.abc.Callable
    return member.cls if isinstance(member, (ClassType, CollectionType, MappingType, TypedDictType)) else None


def _args_of(member: Meaning) -> tuple[Meaning, ...]:
    return member.args if isinstance(member, ClassType) else ()


def _unwrapped_spec(member: Meaning) -> Meaning:
    """The class inside of ``Spec[...]``."""
    inner = _args_of(member) if is_spec_class(_class_of(member)) else ()
    return inner[0] if len(inner) == 1 else member


def _by_class(parts: list[Meaning]) -> list[list[Meaning]]:
    """Parts in groups, so that ``Box[int]`` and ``Box[str]`` are in two: the keys of a table cannot tell them apart."""
    groups: list[list[Meaning]] = []
    for part in parts:
        cls = _class_of(_unwrapped_spec(part))
        free = (group for group in groups if all(_class_of(_unwrapped_spec(other)) is not cls for other in group))
        group = next(free, None)
        if group is None:
            groups.append([part])
        else:
            group.append(part)
    return groups


def _is_none(member: Meaning) -> bool:
    return isinstance(member, ClassType) and member.cls is type(None)


_MAX_OPEN: Final = 50
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
    set: set,
    frozenset: frozenset,
    collections.abc.Set: frozenset,
    collections.abc.MutableSet: set,
    collections.abc.Sequence: tuple,
    collections.abc.Iterable: tuple,
    collections.abc.Collection: tuple,
    collections.abc.MutableSequence: list,
}
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _is_array(cls: Any) -> bool:
    if not isinstance(cls, type):
        return False
    is_foreign = cls.__module__.partition(".")[0] in ("jax", "jaxlib", "numpy")
    return (is_foreign and is_data_class(cls)) or issubclass(cls, (np.generic, Variable))


def _is_array_type(cls: Any) -> bool:
    return hasattr(cls, "array_type") and hasattr(cls, "dtypes")


def _array_reader(cls: Any, member: Meaning) -> Reader:
    return ObjectReader(cls, f"an array ({annotation_text(member.annotation)})", "make it when the model is built")


def _object_reader(cls: type, member: Meaning) -> Reader:
    hint = "add its implementations with dx.register_kind, or extra=[...]"
    return ObjectReader(cls, with_article(annotation_text(member.annotation)), hint)


def _is_schedule(member: Meaning) -> bool:
    optax = sys.modules.get("optax")
    return optax is not None and isinstance(member, CallableType) and bool(member.annotation == optax.Schedule)


def _is_part(member: Meaning) -> bool:
    """Whether data describes instances of a class by a table of arguments."""
    base: Any = _class_of(member)
    if not isinstance(member, ClassType) or base in _SIMPLE or base in (collections.abc.Hashable, Initializer, complex):
        return False
    if base is SpecData or base is bytes or _is_array(base) or _is_array_type(base) or _is_function(member):
        return False
    return not issubclass(base, (enum.Enum, np.dtype, jax.Array, *TEXTS))


def _is_named(member: Meaning) -> bool:
    """Whether data may also name the function that a member of an annotation allows."""
    return _is_function(member) and not _is_schedule(member)


def _is_function(member: Meaning) -> bool:
    """Whether the values of an annotation are functions: `Callable`, or a protocol with `__call__`."""
    base: Any = _class_of(member)
    is_protocol = bool(getattr(base, "_is_protocol", False)) and base is not Initializer
    return isinstance(member, CallableType) or (is_protocol and "__call__" in vars(base))


# --- catalogs -----------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def catalog_for(extra: tuple[Any, ...]) -> Catalog:
    """The catalog for some extra classes; registering a kind clears this cache."""
    return Catalog(extra)


on_change(catalog_for.cache_clear)

"""The meaning of an annotation: a small tree of types, whatever way the annotation is written.

Texts and forward references are evaluated, unions are flat, generic aliases are opened with their arguments, type
variables are replaced where a class binds them, and `Final`, `InitVar`, `NewType` and similar wrappers are gone. The
classes are named as those of mypy, which the plugin uses. What may refer to itself (an alias, a name in a text, a
`TypedDict`) is evaluated when it is asked for, and two meanings are equal if they say the same.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

import typing_extensions

from declax._fields.annotations import AnnotationScope, Unresolved, is_data_class, own_annotations
from declax._typing import DTYPE_MARK

_ALIASES: Final[tuple[Any, ...]] = (
    typing_extensions.TypeAliasType,
    getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType),
)
_WRAPPERS: Final[frozenset[Any]] = frozenset(
    {typing.Final, typing.ClassVar, typing.Required, typing.NotRequired, typing_extensions.ReadOnly}
)
_NO_DEFAULTS: Final = (None, typing_extensions.NoDefault)
_OPEN: Final[frozenset[Any]] = frozenset({Any, object})
_CONTAINER_MODULES: Final = frozenset({"builtins", "typing", "collections", "collections.abc"})
"""The modules whose iterables are containers; the plugin has the same."""


class Meaning:
    """What an annotation says; `annotation` is the annotation as it was written, for messages."""

    __slots__ = ("annotation",)

    def __init__(self, annotation: Any) -> None:
        self.annotation: Any = annotation

    @property
    def key(self) -> Hashable:
        """What distinguishes this meaning from others of its class."""
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Meaning) and type(other) is type(self) and other.key == self.key

    def __hash__(self) -> int:
        return hash((type(self), self.key))


class AnyType(Meaning):
    """Any value: `Any`, `object`, and what has no other meaning here, such as `Self`."""

    __slots__ = ()


class UnknownType(Meaning):
    """A name that does not exist at run time, or something that is no type."""

    __slots__ = ("is_name", "name")

    def __init__(self, annotation: Any, name: str, *, is_name: bool = False) -> None:
        super().__init__(annotation)
        self.name = name
        self.is_name = is_name

    @property
    def key(self) -> Hashable:
        return self.name


class ClassType(Meaning):
    """An instance of a class, with the type arguments in brackets; also of `None`, a protocol, an array."""

    __slots__ = ("_args", "_resolver", "cls")

    def __init__(self, annotation: Any, cls: type, args: tuple[Any, ...] = (), resolver: Any = None) -> None:
        self.annotation = annotation
        self.cls = cls
        self._args = args
        self._resolver: _Resolver | None = resolver

    @property
    def args(self) -> tuple[Meaning, ...]:
        """The meanings of the type arguments."""
        resolver = self._resolver
        return () if resolver is None else tuple([resolver(arg) for arg in self._args])

    @property
    def key(self) -> Hashable:
        return self.cls, self.args


class UnionType(Meaning):
    """One of several types; none of the members is a union, except in an alias."""

    __slots__ = ("members",)

    def __init__(self, annotation: Any, members: tuple[Meaning, ...]) -> None:
        super().__init__(annotation)
        self.members = members

    @property
    def key(self) -> Hashable:
        return self.members


class LiteralType(Meaning):
    """One of several values."""

    __slots__ = ("values",)

    def __init__(self, annotation: Any, values: tuple[Any, ...]) -> None:
        super().__init__(annotation)
        self.values = values

    @property
    def key(self) -> Hashable:
        return tuple((type(value), value) for value in self.values)


class CollectionType(Meaning):
    """A list, set or other container of the standard library, of any length; `item` is None without brackets."""

    __slots__ = ("cls", "item")

    def __init__(self, annotation: Any, cls: type, item: Meaning | None) -> None:
        super().__init__(annotation)
        self.cls = cls
        self.item = item

    @property
    def key(self) -> Hashable:
        return self.cls, self.item


class TupleType(Meaning):
    """A tuple with one type for each item."""

    __slots__ = ("items",)

    def __init__(self, annotation: Any, items: tuple[Meaning, ...]) -> None:
        super().__init__(annotation)
        self.items = items

    @property
    def key(self) -> Hashable:
        return self.items


class MappingType(Meaning):
    """A dict or other mapping of the standard library; `names` and `item` are None without brackets."""

    __slots__ = ("cls", "item", "names")

    def __init__(self, annotation: Any, cls: type, names: Meaning | None, item: Meaning | None) -> None:
        super().__init__(annotation)
        self.cls = cls
        self.names = names
        self.item = item

    @property
    def key(self) -> Hashable:
        return self.cls, self.names, self.item


class TypedDictType(Meaning):
    """A dict with a type for each key; `required` are the keys that it must have."""

    __slots__ = ("_found", "_resolver", "cls")

    def __init__(self, annotation: Any, cls: Any, resolver: _Resolver) -> None:
        super().__init__(annotation)
        self.cls = cls
        self._resolver = resolver
        self._found: tuple[dict[str, Meaning], frozenset[str]] | None = None

    @property
    def items(self) -> Mapping[str, Meaning]:
        """The meanings of the values by key."""
        return self._read()[0]

    @property
    def required(self) -> frozenset[str]:
        """The keys that are always there."""
        return self._read()[1]

    def _read(self) -> tuple[dict[str, Meaning], frozenset[str]]:
        if self._found is None:
            outer = self._resolver.scope
            scope = AnnotationScope(self.cls, outer)
            inside = _Resolver(scope, self._resolver.bound)
            annotations = {name: scope.resolve(a) for name, a in own_annotations(self.cls).items()}
            is_required = {n: _says_required(a, scope, n in self.cls.__required_keys__) for n, a in annotations.items()}
            items = {name: inside(annotation) for name, annotation in annotations.items()}
            self._found = items, frozenset(name for name, needed in is_required.items() if needed)
        return self._found

    @property
    def key(self) -> Hashable:
        return self.cls, self._resolver.bound_key


def _says_required(annotation: Any, scope: AnnotationScope, otherwise: bool) -> bool:  # one of the facts
    """Whether a key is required: text hides ``NotRequired`` from the standard."""
    origin = typing.get_origin(annotation)
    while origin in (typing.Annotated, typing_extensions.ReadOnly):
        annotation = scope.resolve(typing.get_args(annotation)[0])
        origin = typing.get_origin(annotation)
    return origin is typing.Required or (otherwise and origin is not typing.NotRequired)


class CallableType(Meaning):
    """A function, or anything else that can be called."""

    __slots__ = ()

    @property
    def key(self) -> Hashable:
        found: Hashable = self.annotation  # a schedule of optax is a Callable of its own
        return found


class TypeType(Meaning):
    """A class: ``type[X]``."""

    __slots__ = ()

    @property
    def key(self) -> Hashable:
        found: Hashable = self.annotation  # messages name it, of readers that are made once for each meaning
        return found


class DtypeType(Meaning):
    """A dtype, in any of the ways to write one."""

    __slots__ = ()


class MarkedType(Meaning):
    """A type with the marks of an `Annotated`."""

    __slots__ = ("inner", "marks")

    def __init__(self, annotation: Any, inner: Meaning, marks: tuple[Any, ...]) -> None:
        super().__init__(annotation)
        self.inner = inner
        self.marks = marks

    @property
    def key(self) -> Hashable:
        try:
            hash(self.marks)
        except TypeError:  # marks may be any objects
            return self.inner, tuple(map(id, self.marks))
        return self.inner, self.marks


class TypeVarType(Meaning):
    """A type variable that nothing binds."""

    __slots__ = ("_resolver", "variable")

    def __init__(self, variable: Any, resolver: _Resolver) -> None:
        super().__init__(variable)
        self.variable = variable
        self._resolver = resolver

    def _read(self, name: str, without: tuple[Any, ...]) -> Meaning | None:
        try:
            found = getattr(self.variable, name, None)
        except Exception:  # noqa: BLE001  # evaluated now, in Python 3.12 and later; names may be missing
            return self._resolver.unknown(self.variable)
        return None if any(found is none for none in without) else self._resolver(found)

    @property
    def bound(self) -> Meaning | None:
        """What all its types derive from."""
        return self._read("__bound__", (None,))

    @property
    def default(self) -> Meaning | None:
        """Its type where a class is used without brackets (PEP 696)."""
        return self._read("__default__", _NO_DEFAULTS)

    @property
    def constraints(self) -> tuple[Meaning, ...]:
        """Its only types, if it has some."""
        return tuple([self._resolver(one) for one in self.variable.__constraints__])

    @property
    def key(self) -> Hashable:
        found: Hashable = self.variable
        return found


class AliasType(Meaning):
    """A ``type`` alias, or a text inside of an annotation: evaluated when asked, since it may be recursive."""

    __slots__ = ("_args", "_resolver")

    def __init__(self, annotation: Any, resolver: _Resolver, args: tuple[Meaning, ...] = ()) -> None:
        super().__init__(annotation)
        self._resolver = resolver
        self._args = args

    @property
    def name(self) -> str:
        """The name of the alias, or the text."""
        alias = self.annotation
        return alias if isinstance(alias, str) else str(getattr(alias, "__name__", alias))

    @property
    def value(self) -> Meaning:
        """What it stands for; not an alias."""
        found, resolver, opened = self.annotation, self._resolver, 0
        args = self._args
        while True:
            if isinstance(found, str):
                return resolver(found)
            opened += 1
            parameters: Any = getattr(found, "__type_params__", ())
            variables = [resolver(parameter) for parameter in parameters[len(args) :]]
            defaults = [variable.default if isinstance(variable, TypeVarType) else None for variable in variables]
            given = [*args, *defaults]
            bound = {p: arg for p, arg in zip(parameters, given, strict=False) if arg is not None}
            resolver = _Resolver(resolver.scope, bound)
            try:
                value = resolver.scope.resolve(found.__value__)
            except Exception:  # noqa: BLE001  # evaluated now, and a name may exist for type checkers only
                return resolver.unknown(found)
            made = resolver(value)
            if not isinstance(made, AliasType):
                return made
            if opened > _MAX_OPENED:
                return resolver.unknown(found)
            found, resolver, args = made.annotation, made._resolver, made._args

    @property
    def key(self) -> Hashable:
        return self.annotation, self._args, self._resolver.key if isinstance(self.annotation, str) else None


_MAX_OPENED: Final = 50
"""Aliases within aliases: ``type A = A`` has no end."""

Bound = Mapping[Any, Meaning]
"""The types that a class binds to its type variables."""

_UNBOUND: Final[Bound] = types.MappingProxyType({})


def meaning_of(annotation: Any, scope: AnnotationScope, bound: Bound = _UNBOUND) -> Meaning:
    """The meaning of an annotation of a class or function, with its bound type variables replaced."""
    return _Resolver(scope, bound)(annotation)


class _Resolver:
    """Reads annotations in a scope, with some type variables bound."""

    __slots__ = ("bound", "scope")

    def __init__(self, scope: AnnotationScope, bound: Bound) -> None:
        self.scope = scope
        self.bound = bound

    @property
    def bound_key(self) -> Hashable:
        return frozenset(self.bound.items())

    @property
    def key(self) -> Hashable:
        return self.scope.owner, self.bound_key

    def unknown(self, annotation: Any) -> UnknownType:
        self.scope.lack_names()
        name = getattr(annotation, "name", None) or getattr(annotation, "__name__", None)
        return UnknownType(annotation, name if isinstance(name, str) else repr(annotation), is_name=True)

    def __call__(self, annotation: Any) -> Meaning:
        """The meaning of a whole annotation."""
        annotation = self.scope.resolve(annotation)
        try:
            return self._read(annotation)
        except Exception:  # noqa: BLE001  # an annotation may be any object
            return UnknownType(annotation, repr(annotation))

    def _inside(self, annotation: Any) -> Meaning:
        """The meaning of a part of an annotation, in which a text may name what is around it."""
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
        return AliasType(annotation, self) if isinstance(annotation, str) else self._read(annotation)

    def _read(self, annotation: Any) -> Meaning:
        origin = typing.get_origin(annotation)
        if origin is not None:
            return self._of_generic(origin, typing.get_args(annotation), annotation)
        if isinstance(annotation, type):
            return self._of_class(annotation)
        if annotation is None:
            return ClassType(annotation, types.NoneType)
        if isinstance(annotation, Unresolved):
            return UnknownType(annotation, annotation.name, is_name=True)
        if isinstance(annotation, typing.TypeVar):
            bound = self.bound.get(annotation)
            return TypeVarType(annotation, self) if bound is None else bound
        if isinstance(annotation, _ALIASES):
            return AliasType(annotation, self)
        if isinstance(annotation, typing.NewType):
            return self(annotation.__supertype__)
        if isinstance(annotation, dataclasses.InitVar):
            return self(annotation.type)
        if annotation is typing.Self or annotation is typing_extensions.Self:
            return AnyType(annotation)
        if annotation is typing.LiteralString or annotation is typing_extensions.LiteralString:
            return ClassType(annotation, str)
        return UnknownType(annotation, repr(annotation))

    def _of_class(self, cls: Any) -> Meaning:
        if cls in _OPEN:  # `Any` is a class
            return AnyType(cls)
        if cls is collections.abc.Callable:
            return CallableType(cls)
        if cls is type:
            return TypeType(cls)
        if issubclass(cls, dict) and typing_extensions.is_typeddict(cls):
            return TypedDictType(cls, cls, self)
        if is_container(cls):
            is_mapping = issubclass(cls, collections.abc.Mapping)
            return MappingType(cls, cls, None, None) if is_mapping else CollectionType(cls, cls, None)
        return ClassType(cls, cls)

    def _of_generic(self, origin: Any, args: tuple[Any, ...], annotation: Any) -> Meaning:
        if origin in (typing.Union, types.UnionType):
            return UnionType(annotation, tuple(self._members(args)))
        if origin is typing.Annotated:
            marks = annotation.__metadata__
            is_dtype = any(mark is DTYPE_MARK for mark in marks)
            return DtypeType(annotation) if is_dtype else MarkedType(annotation, self._inside(args[0]), marks)
        if origin is typing.Literal or origin is typing_extensions.Literal:
            return LiteralType(annotation, args)
        if origin in _WRAPPERS:
            return self(args[0])
        if origin is collections.abc.Callable:
            return CallableType(annotation)
        if origin is type:
            return TypeType(annotation)
        if isinstance(origin, _ALIASES):
            return AliasType(origin, self, tuple(map(self._inside, args)))
        if not isinstance(origin, type):
            return UnknownType(annotation, repr(annotation))
        if issubclass(origin, dict) and typing_extensions.is_typeddict(origin):
            bound = dict(zip(origin.__parameters__, map(self._inside, args), strict=False))  # type: ignore[attr-defined]  # a generic class
            return TypedDictType(annotation, origin, _Resolver(self.scope, bound))
        if origin is tuple:
            return self._of_tuple(args, annotation)
        if is_container(origin) and not is_data_class(origin):
            if issubclass(origin, collections.abc.Mapping):
                names, item = map(self._inside, args) if len(args) == 2 else (None, None)
                return MappingType(annotation, origin, names, item)
            if len(args) < 2:
                return CollectionType(annotation, origin, self._inside(args[0]) if args else None)
        return ClassType(annotation, origin, args, self)

    def _of_tuple(self, args: tuple[Any, ...], annotation: Any) -> Meaning:
        if len(args) == 2 and args[1] is Ellipsis:
            return CollectionType(annotation, tuple, self._inside(args[0]))
        is_open = annotation is typing.Tuple or any(map(_is_unpacked, args))  # noqa: UP006  # as users may write it
        return (
            CollectionType(annotation, tuple, None)
            if is_open
            else TupleType(annotation, tuple(map(self._inside, args)))
        )

    def _members(self, args: tuple[Any, ...]) -> Iterator[Meaning]:
        for arg in args:
            member = self._inside(arg)
            if isinstance(member, UnionType):
                yield from member.members
            else:
                yield member


def _is_unpacked(arg: Any) -> bool:
    """Whether an argument stands for several: ``*Ts``."""
    return bool(getattr(arg, "__unpacked__", False)) or typing.get_origin(arg) is typing.Unpack


@functools.cache
def is_container(cls: type) -> bool:
    """Whether a class is an iterable of the standard library, except strings, ranges and the like."""
    is_iterable = cls.__module__ in _CONTAINER_MODULES and issubclass(cls, collections.abc.Iterable)
    return is_iterable and not issubclass(cls, (str, bytes, bytearray, range, memoryview))


def members_of(meaning: Meaning, opened: int = 0) -> Iterator[Meaning]:
    """The members of a union, or the meaning alone, with aliases and the marks of `Annotated` opened."""
    while isinstance(meaning, (AliasType, MarkedType)):
        meaning = meaning.value if isinstance(meaning, AliasType) else meaning.inner
    if isinstance(meaning, UnionType) and opened < _MAX_OPENED:
        for member in meaning.members:
            yield from members_of(member, opened + 1)
    else:
        yield meaning


# --- type variables -------------------------------------------------------------


def bindings_of(cls: Any, args: tuple[Meaning, ...] = ()) -> dict[type, Bound]:
    """The types that a class binds to the type variables of itself and its bases, by class.

    Two classes may bind one type variable differently.
    """
    found: dict[type, Bound] = {}
    if args:
        found[cls] = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    for base in cls.__mro__:
        generics = base.__dict__.get("__orig_bases__", ())
        if not generics:
            continue
        resolver = _Resolver(AnnotationScope(base), found.get(base, _UNBOUND))
        for generic in generics:
            origin = typing.get_origin(generic)
            if not isinstance(origin, type) or origin in (typing.Generic, typing.Protocol):
                continue
            inner = [resolver._inside(arg) for arg in typing.get_args(generic)]
            names = getattr(origin, "__parameters__", ())
            bound = {n: m for n, m in zip(names, inner, strict=False) if not isinstance(m, TypeVarType)}
            if bound:
                found.setdefault(origin, bound)
    return found

"""From an annotation to a status, also if names cannot be resolved.

An *unresolved* name exists for type checkers only, or not yet. Upper layers add the classes whose instances are data.
"""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import enum
import functools
import importlib
import numbers
import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

import jax
import numpy as np
import typing_extensions
from jax.core import Tracer

from declax._fields.sources import class_text
from declax._fields.specifiers import Status

_DATA_TYPES: set[type] = {jax.Array, Tracer, np.ndarray, jax.ShapeDtypeStruct, jax.Ref}

_NUMBERS: tuple[type, ...] = (numbers.Number, np.generic)

_STATIC_TYPES: tuple[type, ...] = (
    str,
    bytes,
    type,
    type(None),
    enum.Enum,
    np.dtype,
    slice,
    range,
    types.FunctionType,
    types.BuiltinFunctionType,
    functools.partial,
)

_CONTAINERS: frozenset[object] = frozenset({list, dict, set, tuple, frozenset})
_MUTABLE: tuple[type, ...] = (list, dict, set, bytearray)
_ALIASES: tuple[Any, ...] = (
    typing_extensions.TypeAliasType,
    getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType),
)
_CALLABLE: object = collections.abc.Callable


caches_by_type: list[dict[type, Any]] = []
"""Caches of upper layers that depend on the types that are data; cleared when one is registered."""


def add_data_type(cls: type) -> None:
    """Makes instances of a class (and of its subclasses) data."""
    _DATA_TYPES.add(cls)
    _is_data_class.cache_clear()
    for cache in caches_by_type:
        cache.clear()


@functools.cache
def _is_data_class(cls: type) -> bool:
    return not _DATA_TYPES.isdisjoint(cls.__mro__) or issubclass(cls, jax.Array)


is_data_class: collections.abc.Callable[[type], bool] = _is_data_class
"""Whether instances of a class are data by themselves."""


LOCALS_KEY = "_pytree__locals"
_WORD = re.compile(r"[^\W\d]\w*")


def own_annotations(cls: type) -> dict[str, Any]:
    """The annotations that a class itself writes, without those of its bases."""
    if sys.version_info >= (3, 14):
        annotationlib = importlib.import_module("annotationlib")
        return dict(annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF))
    found: dict[str, Any] = cls.__dict__.get("__annotations__", {})  # noqa: RUF063  # at creation, which a copy would slow down
    return found


def local_names(cls: type) -> dict[str, object]:
    """The names that the annotations of a class use as text and the functions around it define.

    Must run while the functions do: at the creation of the class.
    """
    texts = (a if isinstance(a, str) else repr(a) for a in own_annotations(cls).values() if not isinstance(a, type))
    wanted = {word for text in texts for word in _WORD.findall(text)}
    found: dict[str, object] = {}
    frame = sys._getframe(1) if wanted else None
    while frame is not None:
        around = f"{frame.f_code.co_qualname}.<locals>."
        if cls.__qualname__.startswith(around) and frame.f_globals.get("__name__") == cls.__module__:
            names = frame.f_locals
            found = {**{word: names[word] for word in wanted if word in names}, **found}
        frame = frame.f_back
    return found


class Unresolved:
    """A name of an annotation that does not exist at run time."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *args: object, **kwargs: object) -> Unresolved:
        return self

    def __getitem__(self, item: object) -> Unresolved:
        return self

    def __getattr__(self, name: str) -> Unresolved:
        if name.startswith("__"):
            raise AttributeError(name)  # a probe of `typing`, not of a user
        return Unresolved(f"{self.name}.{name}")

    def __or__(self, other: object) -> object:
        return typing.Union[self, other]  # noqa: UP007  # an instance has no type to build `|` from

    def __ror__(self, other: object) -> object:
        return typing.Union[other, self]  # noqa: UP007  # as above


@functools.lru_cache(maxsize=4096)
def _compiled(text: str) -> types.CodeType:
    """An annotation as code: each is evaluated several times, and many fields have the same."""
    return compile(text.strip(), "<annotation>", "eval")


class AnnotationScope(dict[str, object]):
    """The names that the annotations of one class may use.

    Looks in the class, in the functions around it, its module, the builtins,
    in this order; a name that is in none of them becomes `Unresolved`.

    Attributes:
      is_complete: whether all names were found.
      assumed: the assumptions about annotations that are being decided, by identity.
      recursive: those among them that refer to themselves.
      evaluated: the meaning of texts. A text that contains itself is one object, however often it is met.
    """

    def __init__(self, cls: type) -> None:
        super().__init__({cls.__name__: cls})
        for parameter in getattr(cls, "__type_params__", ()):
            self[parameter.__name__] = parameter
        self._cls = cls
        self._module = vars(sys.modules.get(cls.__module__, builtins))
        self.is_complete = True
        self.assumed: dict[int, Decision] = {}
        self.recursive: set[int] = set()
        self.evaluated: dict[str, object] = {}

    def __reduce__(self) -> tuple[type[AnnotationScope], tuple[type]]:
        return AnnotationScope, (self._cls,)  # not the names of the module

    def __missing__(self, name: str) -> object:
        for names in (vars(self._cls), vars(self._cls).get(LOCALS_KEY, {}), self._module, vars(builtins)):
            if name in names:
                found: object = names[name]
                return found
        self.is_complete = False
        return Unresolved(name)

    def resolve(self, annotation: object) -> object:
        """An annotation with its strings evaluated, as far as names exist."""
        while isinstance(annotation, (str, typing.ForwardRef)):
            text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
            if text not in self.evaluated:
                try:
                    self.evaluated[text] = eval(_compiled(text), {}, self)
                except Exception:  # noqa: BLE001  # an annotation may be any text; it then decides nothing
                    self.is_complete = False
                    self.evaluated[text] = Unresolved(text)
            annotation = self.evaluated[text]
        return annotation


def refuses_data(annotation: object, scope: AnnotationScope) -> bool:
    """Whether an annotation is marked static, or is of values that are not leaves for JAX."""
    resolved = scope.resolve(annotation)
    marks = getattr(resolved, "__metadata__", ())
    if any(isinstance(mark, Status) and mark.is_static for mark in marks):
        return True
    return isinstance(resolved, type) and issubclass(resolved, (str, bytes, type))


class Decision(NamedTuple):
    """The status that an annotation gives a field.

    Attributes:
      status: the status, or None if only the value decides.
      is_container: whether an undecided annotation is of a container, so that a value is looked into.
      is_number: whether its static values are numbers, which JAX takes as leaves.
    """

    status: Status | None
    is_container: bool = False
    is_number: bool = False


_UNDECIDED = Decision(None)
_DATA = Decision(Status.DATA)
_STATIC = Decision(Status.STATIC)
_NUMBER = Decision(Status.STATIC, is_number=True)
_SNAPSHOT = Decision(Status.SNAPSHOT)
_OPEN = Decision(None)
"""Stands for an annotation inside of itself, as long as nothing else decides on it."""


def decide(annotation: Any, scope: AnnotationScope) -> Decision:
    """The status that an annotation gives its field."""
    annotation = scope.resolve(annotation)
    if isinstance(annotation, Unresolved) or annotation in (Any, object):
        return _UNDECIDED
    if annotation is None:
        return _STATIC
    if isinstance(annotation, TypeVar):
        return decide(annotation.__bound__, scope) if annotation.__bound__ else _UNDECIDED
    if isinstance(annotation, typing.NewType):
        return decide(annotation.__supertype__, scope)
    if isinstance(annotation, _ALIASES) or typing.get_origin(annotation) is not None:
        return _decide_recursive(annotation, scope)
    if isinstance(annotation, dataclasses.InitVar):
        return decide(annotation.type, scope)
    return _decide_class(annotation, scope) if isinstance(annotation, type) else _UNDECIDED


def _decide_recursive(annotation: Any, scope: AnnotationScope) -> Decision:
    """The status by an annotation that may refer to itself: the least decision that agrees with itself."""
    key, origin = id(annotation), typing.get_origin(annotation)
    if key in scope.assumed:
        scope.recursive.add(key)
        return scope.assumed[key]
    tried = [_OPEN]
    while True:
        scope.assumed[key] = tried[-1]
        if origin is None:
            found = decide(annotation.__value__, scope)
        else:
            found = _decide_generic(origin, typing.get_args(annotation), annotation, scope)
        if key not in scope.recursive or found in tried:
            break
        tried.append(found)
    del scope.assumed[key]
    scope.recursive.discard(key)
    return _UNDECIDED if found is _OPEN and not scope.assumed else found


def _decide_class(cls: Any, scope: AnnotationScope) -> Decision:
    if is_data_class(cls):
        return _DATA
    array_type = getattr(cls, "array_type", None)  # jaxtyping's annotations
    if array_type is not None and hasattr(cls, "dtypes"):
        return decide(array_type, scope)
    is_tree = cls.__module__.startswith("jaxtyping") and cls.__name__.startswith("PyTree")
    if cls in _CONTAINERS or issubclass(cls, _MUTABLE) or is_tree:
        return Decision(None, is_container=True)
    if issubclass(cls, _NUMBERS) and not issubclass(cls, enum.Enum):
        return _NUMBER
    if issubclass(cls, _STATIC_TYPES) or cls is _CALLABLE:
        return _STATIC
    return _UNDECIDED


def _decide_generic(origin: Any, args: tuple[Any, ...], annotation: object, scope: AnnotationScope) -> Decision:
    if origin is typing.Annotated:
        for mark in typing.get_args(annotation)[1:]:
            if isinstance(mark, Status):
                return Decision(mark)
        return decide(args[0], scope)
    if origin in (typing.Union, types.UnionType):
        return _decide_union(args, scope)
    if origin is typing.Literal or origin is type:
        return _STATIC
    if origin in (typing.Final, typing.ClassVar, typing.Required, typing.NotRequired):
        return decide(args[0], scope)
    if origin is _CALLABLE:
        return _STATIC
    if not isinstance(origin, type):
        return _UNDECIDED
    if is_data_class(origin):
        return _DATA
    if issubclass(origin, (collections.abc.Collection, collections.abc.Iterable)):
        return _decide_container(origin, args, scope)
    return _UNDECIDED


def _decide_union(args: tuple[Any, ...], scope: AnnotationScope) -> Decision:
    rest = [decide(arg, scope) for arg in args if arg is not type(None)]
    joined = _join(rest)
    if joined.status is Status.DATA and not all(d.status is Status.DATA or d.is_number or d is _OPEN for d in rest):
        # `Linear | Callable`: a function cannot be a leaf of JAX, so the value decides
        return Decision(None, is_container=True)
    return joined


def _join(decisions: list[Decision]) -> Decision:
    """The decision for a value with parts of several types, such as a tuple."""
    statuses = {d.status for d in decisions if d is not _OPEN}
    if decisions and not statuses:
        return _OPEN
    if Status.DATA in statuses:
        return _DATA
    if None in statuses:
        return Decision(None, is_container=any(d.is_container for d in decisions))
    if Status.SNAPSHOT in statuses:
        return _SNAPSHOT
    return _NUMBER if all(d.is_number or d is _OPEN for d in decisions) else _STATIC


def _decide_container(origin: type, args: tuple[Any, ...], scope: AnnotationScope) -> Decision:
    if issubclass(origin, collections.abc.Mapping) and len(args) == 2:
        args = args[1:]
    inner = _join([decide(arg, scope) for arg in args if arg is not Ellipsis])
    if inner.status is Status.DATA or inner is _OPEN:
        return inner
    if inner.status is None:
        return Decision(None, is_container=True)
    if issubclass(origin, (tuple, frozenset)) and inner.status is Status.STATIC:
        return _STATIC
    return _SNAPSHOT


_DTYPES: Final = str(jax.typing.DTypeLike).removeprefix("typing.Union[").removesuffix("]")


def annotation_text(annotation: object) -> str:
    """An annotation as a user writes it."""
    if isinstance(annotation, dataclasses.InitVar):
        return f"dx.InitVar[{annotation_text(annotation.type)}]"
    tags = [tag for tag in getattr(annotation, "__metadata__", ()) if isinstance(tag, Status)]
    if tags:
        return f"dx.{tags[0].name.title()}[{annotation_text(annotation.__origin__)}]"  # type: ignore[attr-defined]  # Annotated
    text = class_text(annotation) if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"\b__main__\.|[\w.]+\.<locals>\.", "", text)
    if annotation is jax.Array:
        return "jax.Array"
    text = text.replace(_DTYPES, "dtype").replace("typing.Union[dtype]", "dtype")
    text = text.replace("typing.Union[dtype, NoneType]", "dtype | None")
    text = text.replace(f"{jax.Array.__module__}.{jax.Array.__qualname__}", "jax.Array")
    return re.sub(r"\bdeclax(?:\.\w+)*\.(\w+)", r"dx.\1", text)


def annotations_of(cls: type) -> Mapping[str, object]:
    """The annotations of a class and its bases, the nearest first."""
    found: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        found.update(own_annotations(base))
    return found


def variable_class(annotation: Any, scope: AnnotationScope, base: type) -> type | None:
    """The class in an annotation that derives from a base, also in an Optional."""
    annotation = scope.resolve(annotation)
    if isinstance(annotation, _ALIASES):
        return variable_class(annotation.__value__, scope, base)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        found = [variable_class(arg, scope, base) for arg in typing.get_args(annotation)]
        return next((cls for cls in found if cls is not None), None)
    candidate = origin if origin is not None else annotation
    return candidate if isinstance(candidate, type) and issubclass(candidate, base) else None

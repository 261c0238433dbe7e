"""From plain data to specs: one reader for each annotation, made once.

Vocabulary
----------
catalog: the readers that were made so far, for one set of extra classes.
member:  one of the annotations that a union joins.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import jax
import numpy as np

from declax._annotations import Unresolved, annotation_text, is_data_class
from declax._containers import List, Sequential
from declax._typing import MISSING, Initializer
from declax._variables import Variable
from declax.config import _plain, _tables
from declax.config._anything import AnythingReader, LayerReader, anywhere
from declax.config._circles import check_borders, check_refs
from declax.config._data import MAX_DEPTH, SpecData
from declax.config._generics import Bindings, substituted
from declax.config._members import DTYPE_MARK, allowed_classes, allows_dtypes, is_dtype, spells_dtypes
from declax.config._moving import taken_out
from declax.config._parameters import Parameter, forget_targets, target_name
from declax.config._parts import KIND as KIND
from declax.config._parts import REF as REF
from declax.config._parts import SCHEMA as SCHEMA
from declax.config._parts import CallReader as CallReader
from declax.config._parts import CheckedReader as CheckedReader
from declax.config._parts import ChoiceReader as ChoiceReader
from declax.config._parts import InitializerReader as InitializerReader
from declax.config._parts import UnionReader as UnionReader
from declax.config._plain import INVALID, Context, Reader
from declax.config.problems import Path
from declax.config.registry import check_extra, choices_of, extra_functions, kinds_of, on_change
from declax.config.spec import Spec
from declax.errors import ConfigError
from declax.initializers import NamedInitializer

_NO_BINDINGS: Final[Bindings] = types.MappingProxyType({})


class Catalog:
    """The readers of annotations, where some extra classes are let in."""

    def __init__(self, extra: tuple[Any, ...] = ()) -> None:
        check_extra(extra)
        self.extra = extra
        self._calls: dict[Any, CallReader] = {}
        self._readers: dict[Any, Reader] = {}
        self._initializer: InitializerReader | None = None
        self._anything: AnythingReader | None = None

    def call(self, target: Any, annotation: Any = None) -> CallReader:
        """The reader of a target's arguments; the annotation says what its type variables stand for."""
        key = target if annotation is None else annotation
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = CallReader(self, target, annotation)
        return found

    def anything(self) -> AnythingReader:
        """The reader of what no annotation narrows."""
        if self._anything is None:
            self._anything = AnythingReader(self, anywhere(self.extra))
        return self._anything

    def initializer(self) -> InitializerReader:
        """The reader of initializers."""
        if self._initializer is None:
            self._initializer = InitializerReader(self)
        return self._initializer

    def root_reader(self, annotation: Any) -> Reader:
        """The reader of a whole configuration: of an annotation, or of the arguments of a function."""
        is_function = (
            callable(annotation) and not isinstance(annotation, type) and typing.get_origin(annotation) is None
        )
        if (
            is_function
            and not isinstance(annotation, (typing.TypeVar, typing.NewType))
            and hasattr(annotation, "__name__")
        ):
            name = target_name(annotation).rpartition(".")[2]
            return ChoiceReader(self, {name: annotation}, f"a {name}")
        return self.reader(annotation)

    def parameter_reader(self, parameter: Parameter, bindings: Bindings = _NO_BINDINGS) -> Reader:
        """The reader of a parameter; its default tells what an annotation leaves open."""
        default = parameter.default
        annotation = substituted(parameter.annotation, bindings.get(parameter.owner, {}))
        if parameter.owner is List:  # what it holds is a list again
            annotation = list[typing.get_args(annotation)[0]]  # type: ignore[misc]  # made at run time
        reader = self.reader(annotation, default)
        if isinstance(reader, _plain.AnyReader):
            if is_dtype(default):
                return UnionReader([_plain.DtypeReader(), _plain.NullReader()])
            if isinstance(default, NamedInitializer):
                return self.initializer()
            if isinstance(default, types.FunctionType) or _tables.name_in(_tables.ACTIVATIONS, default) is not None:
                return self._function(default)
            if parameter.owner is Sequential:
                reader = LayerReader(self, anywhere(self.extra), self._function(MISSING))
        _check_resolved(parameter)
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
        members = [m for m in _members(annotation) if m is not type(None)]
        has_null = len(members) < len(_members(annotation))
        if not members:
            return _plain.NullReader()
        readers = self._member_readers(members, default)
        readers += [_plain.NullReader()] if has_null else []
        return readers[0] if len(readers) == 1 else UnionReader(readers)

    def _member_readers(self, members: list[Any], default: object) -> list[Reader]:
        if allows_dtypes(tuple(members)):
            members = [m for m in members if not spells_dtypes(m)]
            return [_plain.DtypeReader(), *(self._member_readers(members, default) if members else [])]
        if len(members) > 1 and any(_is_array(m) for m in members):
            not_numbers = (bool, complex, int) if float in members else (complex,)
            members = [m for m in members if not _is_array(m) and m not in not_numbers]
        choices: dict[str, Any] = {}
        annotations = {typing.get_origin(m): m for m in members if isinstance(typing.get_origin(m), type)}
        readers: list[Reader] = []
        is_precision = jax.lax.Precision in members
        for member in members:
            made = self._choices(member)
            if made is None:
                is_word = is_precision and member is str
                readers.append(_plain.PrecisionReader() if is_word else self._one(member, default))
                continue
            for tag, choice in made.items():
                if choices.setdefault(tag, choice) is not choice:
                    raise ConfigError(
                        " | ".join(map(annotation_text, members)),
                        f"two classes have the tag {tag!r}",
                        fix="dx.register_kind(base, cls, name=...), and a base in the annotation",
                    )
        if choices:
            names = [
                "schedule" if _is_schedule(m) else annotation_text(m) for m in members if self._choices(m) is not None
            ]
            readers.append(ChoiceReader(self, choices, "a " + " or ".join(names), annotations))
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
            return self.reader(bound) if bound is not None else self.anything()
        if typing.get_origin(member) is typing.Literal:
            return _plain.LiteralReader(typing.get_args(member))
        origin = typing.get_origin(member) or member
        if origin is Initializer or isinstance(default, NamedInitializer):
            return self.initializer()
        if origin is collections.abc.Callable or _is_function_protocol(origin):
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
            return _plain.ListReader(self.reader(args[0]) if args else self.anything(), make)
        if origin in _MAPPINGS:
            key, item = (self.reader(arg) for arg in args) if len(args) == 2 else (_SIMPLE[str], self.anything())
            return _plain.MappingReader(key, item)
        if is_data_class(origin) or issubclass(origin, (Variable, np.generic)):
            return _plain.NoReader(f"an array ({annotation_text(member)})", "make it when the model is built")
        if origin is type:
            return _plain.NoReader("a class", "annotate Spec[...] for a part that is built later")
        hint = "let its implementations in with dx.register_kind, or extra=[...]"
        return _plain.NoReader(f"a {annotation_text(member)}", hint)

    def _function(self, default: object, origin: Any = collections.abc.Callable) -> Reader:
        """The reader of names of functions: activations, what is registered, and the default by its own name."""
        table = {
            **_tables.ACTIVATIONS,
            **extra_functions(self.extra),
            **kinds_of(collections.abc.Callable),
            **kinds_of(origin),
        }
        name = getattr(default, "__name__", None)
        if callable(default) and isinstance(name, str) and name != "<lambda>":
            table.setdefault(name, default)
        return _plain.NamesReader(
            "a function" if origin is not collections.abc.Callable else "an activation", table, "unknown-activation"
        )


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
        return (np.dtype,) if DTYPE_MARK in annotation.__metadata__ else _members(annotation.__origin__)
    if origin in (typing.Final, typing.ClassVar, typing.Required, typing.NotRequired):
        return _members(typing.get_args(annotation)[0])
    if annotation is None:
        return (type(None),)
    opened = allowed_classes(annotation)
    return opened if opened == (annotation,) else tuple(m for arg in opened for m in _members(arg))


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
    kinds = {str(dtype).rstrip("0123456789_") for dtype in member.dtypes}
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
    if base in (Any, object, Initializer, type, SpecData, complex, bytes) or issubclass(
        base, (enum.Enum, np.dtype, np.generic)
    ):
        return False
    if issubclass(base, (pathlib.PurePath, Variable, jax.Array, Spec)) or _is_array_type(base):
        return False
    if is_data_class(base) and base.__module__.partition(".")[0] in ("jax", "jaxlib", "numpy"):
        return False
    return not _is_function_protocol(base) and base is not collections.abc.Callable


def _check_resolved(parameter: Parameter) -> None:
    """Asks that the names exist by which an annotation says what data may be."""
    unresolved = _unresolved_in(parameter.annotation, 0)
    if unresolved is not None:
        forget_targets()  # so that the name may be defined, and the class be used then
        raise ConfigError(
            f"{target_name(parameter.owner)}.{parameter.name}",
            f"the annotation names {unresolved.name!r}, which does not exist at run time",
            got=parameter.written,
            why="data is checked by annotations, and by this one nothing could be",
            fix="an import outside of `if TYPE_CHECKING:`, or Any where all plain data is fine",
        )


def _unresolved_in(annotation: Any, depth: int) -> Unresolved | None:
    for member in _members(annotation):
        if isinstance(member, Unresolved):
            return member
        origin = typing.get_origin(member)
        is_read = origin in _LISTS or origin in _MAPPINGS or origin is Spec
        for inner in typing.get_args(member) if is_read and depth < MAX_DEPTH else ():
            found = None if inner is Ellipsis else _unresolved_in(inner, depth + 1)
            if found is not None:
                return found
    return None


def _is_function_protocol(base: Any) -> bool:
    return bool(getattr(base, "_is_protocol", False)) and "__call__" in vars(base)


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
    if isinstance(found, SpecData) and found.has_refs and not context.report:
        kept: dict[Path, bool] = {}
        found = taken_out(found, (), kept)
        check_borders(context, kept)
    return INVALID if context.report else found

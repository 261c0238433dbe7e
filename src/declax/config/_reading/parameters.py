"""The parameters of a target (a class or function), and the members of their annotations."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import jax
import numpy as np

from declax._fields.annotations import AnnotationScope, own_annotations
from declax._fields.class_info import info_of
from declax._fields.expressions import ComputedDefault
from declax._fields.keys import RNGS as RNGS
from declax._fields.meanings import Bound, ClassType, DtypeType, Meaning, TypeType, meaning_of
from declax._fields.overrides import DeclaredPart, with_parts
from declax._fields.specifiers import FieldSpec, Notes, specifier_of
from declax._typing import MISSING
from declax._variables.policy import DtypeDefault
from declax.config._reading.docstrings import first_paragraph, help_of
from declax.errors import ConfigError, describe, type_name

Target: TypeAlias = Callable[..., Any]

Bindings: TypeAlias = Mapping[Any, Bound]
"""The types that a class and its bases bind to their type variables, by class."""

NO_BINDINGS: Final[Bindings] = MappingProxyType({})
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """One argument of a target."""

    name: str
    annotation: Any
    kind: inspect._ParameterKind
    default: object = MISSING
    default_factory: Callable[[], object] | None = None
    notes: Notes = dataclasses.field(default_factory=Notes)
    owner: Any = None
    written: str | None = None
    target: Any = None
    scope: AnnotationScope | None = None

    @property
    def help(self) -> str | None:
        """What the class or function says of it; of a declared part, else what the class of the part says."""
        found = help_of(self.target, self.name, self.notes.get("help"), self.owner)
        if found is None and isinstance(self.default, DeclaredPart):
            return first_paragraph(self.default.function) or None
        return found

    @property
    def is_required(self) -> bool:
        is_variadic = self.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return self.default is MISSING and self.default_factory is None and not is_variadic

    def meaning(self, bindings: Bindings = NO_BINDINGS) -> Meaning:
        """The meaning of the annotation, with the type variables that a class binds."""
        bound = bindings.get(self.owner, {})
        return meaning_of(self.annotation, self.scope or AnnotationScope(type(self)), bound)

    def make_default(self) -> object:
        return self.default if self.default_factory is None else self.default_factory()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """The parameters of a target, except rngs."""

    target: Target
    by_name: Mapping[str, Parameter]
    variadic: str | None
    extra: Parameter | None
    takes_rngs: bool
    needs_rngs: bool
    required: tuple[str, ...]
    positional: tuple[str, ...]
    positional_only: tuple[str, ...]

    @property
    def name(self) -> str:
        return target_name(self.target)

    def get(self, name: str) -> Parameter | None:
        """The parameter with a name, or else ``**kwargs``."""
        return self.by_name.get(name, self.extra)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.by_name.values())


def target_name(target: Any) -> str:
    """The name of a class or function as a user writes it."""
    if isinstance(target, type):
        return type_name(target)
    name: str = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
    return name.rpartition("<locals>.")[2]


def parameters_of(target: Target) -> Parameters:
    """The parameters of a class or function except `rngs`; by the fields if the class is declared."""
    if type(target).__hash__ is None:
        raise _nothing_to_construct(target)
    known: Callable[[Target], Parameters] = _read
    return known(target)


def called(target: Target) -> Target:
    """The function that a target calls; for a declared part, the class of the part."""
    return target.function if isinstance(target, DeclaredPart) else target


def plain_target(target: Any) -> Any:
    """A class without its type arguments: ``Model`` for ``Model[int]``."""
    origin = typing.get_origin(target)
    return target if origin is None else origin


@functools.lru_cache(maxsize=4096)
def _read(target: Target) -> Parameters:
    if isinstance(target, DeclaredPart):
        return _of_declared(target)
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        raise _nothing_to_construct(target) from None
    read = _reader(target, signature)
    found = {p.name: read(p) for p in signature.parameters.values() if p.name != RNGS}
    rngs = signature.parameters.get(RNGS)
    extra = next((p for p in found.values() if p.kind is inspect.Parameter.VAR_KEYWORD), None)
    variadic = next((p.name for p in found.values() if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
    return Parameters(
        target,
        MappingProxyType({name: p for name, p in found.items() if p is not extra}),
        variadic,
        extra,
        rngs is not None,
        rngs is not None and rngs.default is inspect.Parameter.empty,
        tuple(name for name, p in found.items() if p.is_required),
        tuple(name for name, p in found.items() if p.kind in _POSITIONAL),
        tuple(name for name, p in found.items() if p.kind is inspect.Parameter.POSITIONAL_ONLY),
    )


def _of_declared(part: DeclaredPart) -> Parameters:
    known, given = parameters_of(part.function), part.given
    changed = (dataclasses.replace(p, default=given[p.name], default_factory=None) for p in known if p.name in given)
    found = {**known.by_name, **{p.name: p for p in changed}}
    required = tuple(name for name in known.required if name not in given)
    return dataclasses.replace(known, target=part, by_name=MappingProxyType(found), required=required)


def forget_targets() -> None:
    """Drops all parameters; unresolved names in annotations may exist later."""
    _read.cache_clear()


def _nothing_to_construct(target: object) -> ConfigError:
    return ConfigError(
        "spec",
        "its parameters are unknown" if callable(target) else "not a class or function",
        expected="a class, or a function with a signature",
        got=describe(target),
        fix="dx.spec(Model, ...)",
    )


def _reader(target: Any, signature: inspect.Signature) -> Callable[[inspect.Parameter], Parameter]:
    """A function that converts a parameter of the signature to a `Parameter`."""
    is_declared = isinstance(target, type) and dataclasses.is_dataclass(target)
    fields = target.__dataclass_fields__ if is_declared and _has_generated_init(target) else {}
    specs: Mapping[str, FieldSpec] = info_of(target).specs if fields else {}

    def read(given: inspect.Parameter) -> Parameter:
        field, spec = fields.get(given.name), specs.get(given.name)
        owner, annotation = target, given.annotation
        if field is not None:
            owner = next((base for base in target.__mro__ if given.name in own_annotations(base)), target)
            annotation = own_annotations(owner).get(given.name, field.type)
        scope = AnnotationScope(_function(target) if field is None else owner)
        specifier = None if field is None else specifier_of(field)
        notes = spec.notes if spec is not None else specifier.notes if specifier is not None else Notes()
        factory = None if field is None or field.default_factory is dataclasses.MISSING else field.default_factory
        if isinstance(factory, DtypeDefault):
            factory = None  # the signature has the dtype without a policy
        elif isinstance(factory, ComputedDefault):
            given, factory = given.replace(default=factory.expression), None
        has_default = factory is None and given.default is not inspect.Parameter.empty
        return Parameter(
            given.name,
            _evaluated(annotation, scope),
            given.kind,
            with_parts(target, (given.name,), given.default) if has_default else MISSING,
            factory,
            notes,
            owner,
            annotation if isinstance(annotation, str) else None,
            target,
            scope,
        )

    return read


def _evaluated(annotation: Any, scope: AnnotationScope) -> Any:
    """An annotation without text around it, and without `InitVar`."""
    annotation = Any if annotation is inspect.Parameter.empty else scope.resolve(annotation)
    return scope.resolve(annotation.type) if isinstance(annotation, dataclasses.InitVar) else annotation


def _has_generated_init(cls: Any) -> bool:
    """Whether ``__init__`` was generated from the fields."""
    taken = {f.name for f in cls.__dataclass_fields__.values() if f.init and f._field_type is not _CLASS_VAR}
    code = getattr(cls.__init__, "__code__", None)
    names = () if code is None else code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return set(names) == taken


_CLASS_VAR: Final = dataclasses._FIELD_CLASSVAR  # type: ignore[attr-defined]  # the standard offers no public way


def _function(target: Any) -> Any:
    """The function in whose module the names of annotations are looked up."""
    if isinstance(target, type):
        made = target.__init__ if target.__init__ is not object.__init__ else target.__new__  # type: ignore[misc]  # only read
        return made if isinstance(made, types.FunctionType) else target
    while isinstance(target, functools.partial):
        target = target.func
    target = inspect.unwrap(target)
    return target if hasattr(target, "__name__") and hasattr(target, "__dict__") else type(target)


# --- dtypes ----------------------------------------------------------------------

_PYTHON_DTYPES: Final = (bool, int, float, complex)
_ABSTRACT: Final = frozenset(
    {np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact, np.floating}
    | {np.complexfloating, np.flexible, np.character}
)


def allows_dtypes(members: Iterable[Meaning]) -> bool:
    """Whether the members of an annotation include dtypes."""
    return any(isinstance(member, DtypeType) or _is_dtype_class(member) for member in members)


def spells_dtypes(member: Meaning) -> bool:
    """Whether a member of an annotation with dtypes is one of its dtype members."""
    if isinstance(member, (DtypeType, TypeType)) or _is_dtype_class(member):
        return True
    if not isinstance(member, ClassType):
        return False
    return member.cls is str or (bool(getattr(member.cls, "_is_protocol", False)) and hasattr(member.cls, "dtype"))


def _is_dtype_class(member: Meaning) -> bool:
    return isinstance(member, ClassType) and member.cls is np.dtype


def is_dtype(value: object) -> bool:
    """Whether a value is a `numpy.dtype`, or a scalar class of NumPy or `jax.numpy`."""
    if isinstance(value, np.dtype):
        return True
    if isinstance(value, type) and issubclass(value, np.generic):
        return value not in _ABSTRACT and not issubclass(value, jax.dtypes.extended)
    return type(value).__name__ == "_ScalarMeta" and isinstance(getattr(value, "dtype", None), np.dtype)


def is_dtype_like(value: object) -> bool:
    """Whether `jax.numpy.dtype` accepts a value other than a string: a dtype, a Python number type, a key dtype."""
    if is_dtype(value) or any(value is number for number in _PYTHON_DTYPES):
        return True
    scalar = None if isinstance(value, type) else getattr(value, "type", None)
    return isinstance(scalar, type) and issubclass(scalar, jax.dtypes.extended)

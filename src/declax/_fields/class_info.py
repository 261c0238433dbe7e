"""What is known of a Pytree class, and how its body and its fields are read.

An open class declares nothing but statuses: programs annotate ``count: int`` and assign arrays.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from types import FunctionType
from typing import Any, Final

from declax._fields.annotations import AnnotationScope, own_annotations
from declax._fields.call import Environment, evaluate, has_expression
from declax._fields.class_body import BodyNames
from declax._fields.deciding import decide
from declax._fields.expressions import Declaration, Expression, is_constant
from declax._fields.specifiers import FIELD, FieldSpec, PartRecipe, Specifier, Status, specifier_of
from declax._typing import INFO_KEY, MISSING
from declax.errors import FieldError, MissingRngsError, describe, type_name


class Undeclared:
    """Stands for the `Maker` of a class that no decorator of declax has seen, and whose bases none has."""

    own: Mapping[str, Expression] = {}
    expressions: Mapping[str, tuple[Expression, ...]] = {}
    recorded: Sequence[str] = ()
    internal: Sequence[Any] = ()
    draws = is_needed = False
    source = ""
    names: frozenset[str] = frozenset()
    guarded: Collection[str] = ()


UNDECLARED: Final = Undeclared()


class ClassInfo:
    """What is known of one class: what its body says, what its decorator makes of it, and how far JAX knows it.

    A Pytree class has it as the attribute `INFO_KEY` from its creation on.

    Attributes:
      cls: the class.
      annotations: those that it writes itself.
      names_around: the names in them that the functions around the class define.
      class_variables: the names that its annotations mark as shared by all instances, once the decorator reads them.
      body: what its body binds to expressions, until the decorator takes them; None if that is nothing.
      marks: the fields of the bare specifiers of an open class, by name.
      reserved: the names of methods of declax, which no field may hide.
      is_declared: whether the decorator has seen it.
      maker: its `Maker`, or that of the nearest declared base.
      post_init: the ``__post_init__`` that makes the parts first, its own or an inherited one.
      taken: the InitVars that the ``__post_init__`` of users takes: all, or some; None if there is no such method, and
        MISSING until an instance is made.
      is_dataclass: whether it, or a base, is a dataclass.
      specs: its fields.
      declared: the names of its fields, or the annotated names of an open class, for which the class has no value.
      init_vars: the names of its InitVars, in the order of the constructor.
      variables: the fields of a dataclass that are Variables.
      is_frozen: whether it is a frozen dataclass.
      lacks_names: whether names in its annotations were not found, so that it is read again.
      is_registered: whether JAX and the layouts know the class in this process.
      is_complete: whether all names in its annotations were found, or never will be.
      entries: the number of attributes of the class when `check_added` last saw them.
      where: conditions on the sizes of arrays that its methods are called with.
      late_defaults: functions that make the defaults which the class has no attributes with; None until one is needed.
    """

    cls: type = object
    names_around: Mapping[str, object] = {}
    class_variables: frozenset[str] = frozenset()
    marks: Mapping[str, dataclasses.Field[Any]] = {}
    reserved: frozenset[str] = frozenset()
    is_declared: bool = False
    maker: Any = UNDECLARED
    post_init: Callable[..., None] | None = None
    taken: Any = MISSING
    is_dataclass: bool = False
    specs: Mapping[str, FieldSpec] = {}
    declared: frozenset[str] = frozenset()
    init_vars: Sequence[str] = ()
    variables: frozenset[str] = frozenset()
    is_frozen: bool = False
    lacks_names: bool = False
    is_registered: bool = False
    is_complete: bool = False
    entries: int = 0
    where: Sequence[str] = ()
    late_defaults: Mapping[str, Callable[[], Any]] | None = None

    def __init__(self, body: BodyNames | None = None, like: ClassInfo | None = None) -> None:
        self.body = body
        self.annotations: dict[str, Any] = {}
        if like is not None:  # of a class whose entries the new one takes
            self.__dict__.update(like._kept)

    def __set_name__(self, cls: type, name: str) -> None:
        self.cls = cls
        self.annotations = own_annotations(cls)
        self.inherit()

    def inherit(self) -> None:
        """Takes what the class has from its bases."""
        is_own = self.post_init is not None and self.post_init is self.cls.__dict__.get("__post_init__")
        for base in self.cls.__mro__[-2:0:-1]:  # the nearest last, which counts
            info: ClassInfo | None = base.__dict__.get(INFO_KEY)
            if info is None:
                continue
            if info.is_declared and not self.is_declared:
                self.maker = info.maker
            if info.post_init is not None and not is_own and info.post_init is base.__dict__.get("__post_init__"):
                self.post_init = info.post_init
            if info.reserved is not self.reserved:
                self.reserved |= info.reserved

    def annotate(self, annotations: dict[str, Any]) -> None:
        """Gives the class other annotations."""
        self.cls.__annotations__ = self.annotations = annotations

    def __reduce__(self) -> tuple[Any, ...]:
        """A class that is pickled by value (cloudpickle) is prepared anew."""
        return ClassInfo, (), self._kept

    @property
    def _kept(self) -> dict[str, Any]:
        return {**self.__dict__, "is_registered": False, "is_complete": False, "entries": 0, "late_defaults": None}


NOT_PREPARED: Final = ClassInfo()


def info_of(value: Any) -> ClassInfo:
    """What is known of the class of a value, or of a class; `NOT_PREPARED` for others."""
    found: ClassInfo = getattr(value, INFO_KEY, NOT_PREPARED)
    return found


def own_info(cls: type) -> ClassInfo:
    """As `info_of`, of a class that may be none of declax, as a base."""
    found: ClassInfo = cls.__dict__.get(INFO_KEY, NOT_PREPARED)
    return found


def maker_of(cls: Any) -> Any:
    """The `Maker` of a class, or of its nearest decorated base; `UNDECLARED` for others."""
    return getattr(cls, INFO_KEY, NOT_PREPARED).maker


# --- the body of a new class --------------------------------------------------------


def collect(info: ClassInfo) -> None:
    """Puts standard fields into the place of the declarations of a new class.

    A class that was made without a class body, as by ``type(...)``, gets its `BodyNames` here.
    """
    cls = info.cls
    found = []
    for name, value in list(vars(cls).items()):
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if function.__class__ is not FunctionType:
            if info.body is None and has_expression(value):
                found.append((name, value))
        elif function.__defaults__ or function.__kwdefaults__:
            _make_defaults(function)
    _check_hidden(info)
    if found:
        info.body = BodyNames()
        for name, value in found:
            info.body.bind(name, value)
    for name, value in () if info.body is None else info.body.bound.items():
        if isinstance(value, Declaration) and value._pytree__name == name:
            setattr(cls, name, value._pytree__field)


def _make_defaults(function: FunctionType) -> None:
    """Makes the calls among the defaults of a method that were deferred for their `rngs` alone, as Python does."""
    positional, named = function.__defaults__, function.__kwdefaults__
    if positional:
        function.__defaults__ = tuple(map(_made_at_once, positional))
    if named:
        named.update({name: _made_at_once(default) for name, default in named.items()})


def _made_at_once(value: Any) -> Any:
    """The value of a call that reads no field and needs no keys; any other value as it is."""
    if has_expression(value) and is_constant(value):
        with contextlib.suppress(MissingRngsError):
            return evaluate(value, Environment())
    return value


def _check_hidden(info: ClassInfo) -> None:
    """Refuses a plain value under the name of an inherited field or part, which instances would not see."""
    cls, namespace = info.cls, info.cls.__dict__
    declared = {*info.annotations, *(() if info.body is None else info.body.bound)}
    for name in (info.maker.expressions.keys() & namespace.keys()) - declared:
        value = namespace[name]
        is_declared = has_expression(value) or isinstance(value, dataclasses.Field)
        is_read_only = isinstance(value, property) and value.fset is None
        if is_declared or (hasattr(type(value), "__set__") and not is_read_only):
            continue
        raise FieldError(
            f"{type_name(cls)}.{name}",
            "this value hides a field or part of a base class, which the constructor would set all the same",
            got=describe(value),
            fix=f"{name}: ... = dx.field(default=...)        # a field\n"
            f"{name} = dx.Linear(Base.dim, 1)        # a part, or a method under @dx.submodule",
        )


# --- open classes -------------------------------------------------------------------


def take_marks(info: ClassInfo) -> str | None:
    """Turns ``x: T = data()`` of an open class into a mark; the first name that a decorator would have to make."""
    cls, body = info.cls, info.body
    if body is None:
        return None
    if "__dataclass_fields__" in cls.__dict__:
        return next((name for name, value in body.bound.items() if not isinstance(value, Declaration)), None)
    make_shared_calls(cls, body, [name for name in body.bound if name not in info.maker.expressions])
    if not body.bound:
        info.body = None
        return None
    marks = {name: v._pytree__field for name, v in body.bound.items() if isinstance(v, Declaration) and _is_bare(v)}
    if len(marks) < len(body.bound) or not _has_init_of_its_own(cls):
        return next((name for name in body.bound if name not in marks), next(iter(body.bound)))
    for name in marks:
        delattr(cls, name)
    info.marks, info.body = marks, None
    return None


def make_shared_calls(cls: type, body: BodyNames, names: Iterable[str]) -> None:
    """Makes the calls under some names that were deferred for their `rngs` alone, once for all instances."""
    for name in names:
        value = body.bound[name]
        if not is_constant(value):
            continue
        try:
            made = evaluate(value, Environment())
        except MissingRngsError:
            continue
        del body.bound[name]
        setattr(cls, name, made)


def _is_bare(declaration: Declaration) -> bool:
    """Whether a declaration says nothing but data or static."""
    field, missing = declaration._pytree__field, dataclasses.MISSING
    bare = field.default is missing and field.default_factory is missing
    return bare and specifier_of(field) in (Specifier(Status.DATA), Specifier(Status.STATIC))


def _has_init_of_its_own(cls: type) -> bool:
    owner = next(base for base in cls.__mro__ if "__init__" in base.__dict__)
    is_generated = "__dataclass_fields__" in owner.__dict__ or owner.__module__.startswith("declax.")
    return owner is not object and not is_generated


# --- fields -------------------------------------------------------------------------


def read_fields(info: ClassInfo) -> tuple[dict[str, FieldSpec], bool]:
    """The fields that a class declares or inherits, and whether a name in their annotations was not found."""
    cls: Any = info.cls
    declared: Mapping[str, Any] = cls.__dataclass_fields__ if info.is_dataclass else {}
    fields = {name: field for name, field in declared.items() if field._field_type is FIELD}
    annotations, marks = _annotations_of(cls, fields)
    scopes: dict[type, AnnotationScope] = {}
    specs = {}
    for name, (base, annotation) in annotations.items():
        field = fields.get(name, marks.get(name))
        spec = None if base is cls or field is None else _inherited_spec(base, name, field)
        if spec is None:
            scope = scopes[base] = scopes.get(base) or AnnotationScope(base)
            spec = _read_spec(name, annotation, field, scope)
        is_declared = field is not None or spec.status is Status.DATA or spec.is_nested_undecided
        if is_declared or _is_marked(spec.annotation):
            specs[name] = spec
    return specs, not all(map(attrgetter("is_complete"), scopes.values()))


def _annotations_of(
    cls: type, fields: Collection[str]
) -> tuple[dict[str, tuple[type, object]], dict[str, dataclasses.Field[Any]]]:
    """The annotation of each name, with the nearest class that writes it, and the marks of open classes."""
    found: dict[str, tuple[type, object]] = {}
    marks: dict[str, dataclasses.Field[Any]] = {}
    for base in reversed(cls.__mro__[:-1]):
        info: ClassInfo | None = base.__dict__.get(INFO_KEY)
        is_open = not fields or "__dataclass_fields__" not in base.__dict__
        for name, annotation in (own_annotations(base) if info is None else info.annotations).items():
            if (is_open or name in fields) and not name.startswith("_pytree__"):
                found[name] = base, annotation
        marks.update({} if info is None else info.marks)
    return found, marks


def _inherited_spec(base: type, name: str, field: dataclasses.Field[Any]) -> FieldSpec | None:
    """The spec of a field that a base has read, whose names were all found."""
    info = own_info(base)
    is_read = info.is_complete and base.__dict__.get("__dataclass_fields__", {}).get(name) is field
    return info.specs.get(name) if is_read else None


def _is_marked(annotation: object) -> bool:
    return any(isinstance(mark, Status) for mark in getattr(annotation, "__metadata__", ()))


def _read_spec(
    name: str, annotation: object, field: dataclasses.Field[Any] | None, scope: AnnotationScope
) -> FieldSpec:
    resolved = scope.resolve(annotation)
    decision = decide(resolved, scope)
    specifier = (None if field is None else specifier_of(field)) or Specifier(None)
    status = specifier.status or decision.status
    if specifier.status is Status.STATIC and (decision.status is Status.SNAPSHOT or decision.is_container):
        status = Status.SNAPSHOT
    is_nested = decision.is_container or isinstance(specifier.recipe, PartRecipe)
    return FieldSpec(name, resolved, status, is_nested and status is None, specifier.recipe, specifier.notes)

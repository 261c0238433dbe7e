"""Reads the declarations of a class.

An open class declares nothing but statuses: programs annotate ``count: int`` and assign arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

from declax._fields.annotations import AnnotationScope, own_annotations
from declax._fields.call import Environment, evaluate
from declax._fields.class_body import BodyNames
from declax._fields.class_info import ClassInfo, own_info
from declax._fields.deciding import decide
from declax._fields.expressions import Declaration, is_constant
from declax._fields.specifiers import FIELD, FieldSpec, PartRecipe, Specifier, Status, specifier_of
from declax._typing import INFO_KEY
from declax.errors import MissingRngsError


def take_marks(info: ClassInfo) -> str | None:
    """Turns ``x: T = data()`` of an open class into a mark; the first name that a decorator would have to make."""
    cls, body = info.cls, info.body
    if body is None:
        return None
    if "__dataclass_fields__" in cls.__dict__:
        return next((name for name, value in body.bound.items() if not isinstance(value, Declaration)), None)
    if not any(own_info(base).is_declared and not base.__module__.startswith("declax.") for base in cls.__mro__):
        make_shared_calls(cls, body, list(body.bound))
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


def read_fields(info: ClassInfo) -> tuple[dict[str, FieldSpec], bool]:
    """The fields that a class declares or inherits, and whether a name in their annotations was not found."""
    cls = info.cls
    fields = fields_of(cls, FIELD)
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
    return specs, any(not scope.is_complete for scope in scopes.values())


def fields_of(cls: Any, kind: object) -> dict[str, dataclasses.Field[Any]]:
    """The entries of ``__dataclass_fields__`` of a kind: `FIELD`, or `INIT_VAR`."""
    fields: dict[str, Any] = getattr(cls, "__dataclass_fields__", {})
    return {name: field for name, field in fields.items() if field._field_type is kind}


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

"""Reads the declarations of a class.

An open class declares nothing but statuses: programs annotate ``count: int`` and assign arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

from declax._fields.annotations import AnnotationScope, own_annotations
from declax._fields.call import Environment, evaluate
from declax._fields.class_body import BODY_KEY, BodyNames
from declax._fields.class_info import MAKER_KEY, own_info
from declax._fields.deciding import decide
from declax._fields.expressions import Declaration, is_constant
from declax._fields.specifiers import FieldSpec, Notes, PartRecipe, Specifier, Status, specifier_of
from declax.errors import MissingRngsError

_MARKS_KEY: Final = "_pytree__marks"
"""The entry of an open class for the fields of its bare specifiers, by name."""


def take_marks(cls: type) -> str | None:
    """Turns ``x: T = data()`` of an open class into a mark; the first name that a decorator would have to make."""
    body: BodyNames = cls.__dict__[BODY_KEY]
    if "__dataclass_fields__" in cls.__dict__:
        return next((name for name, value in body.bound.items() if not isinstance(value, Declaration)), None)
    if not any(MAKER_KEY in base.__dict__ and not base.__module__.startswith("declax.") for base in cls.__mro__):
        make_shared_calls(cls, body, list(body.bound))
    if not body.bound:
        delattr(cls, BODY_KEY)
        return None
    marks = {name: v._pytree__field for name, v in body.bound.items() if isinstance(v, Declaration) and _is_bare(v)}
    if len(marks) < len(body.bound) or not _has_init_of_its_own(cls):
        return next((name for name in body.bound if name not in marks), next(iter(body.bound)))
    for name in marks:
        delattr(cls, name)
    setattr(cls, _MARKS_KEY, marks)
    delattr(cls, BODY_KEY)
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


def read_specs(cls: type) -> tuple[dict[str, FieldSpec], bool]:
    """The specs of all fields that a class declares, and whether all names resolved."""
    fields = {f.name: f for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    marks = {n: f for base in reversed(cls.__mro__) for n, f in base.__dict__.get(_MARKS_KEY, {}).items()}
    owners: dict[str, tuple[type, object, AnnotationScope]] = {}
    for base in reversed(cls.__mro__):
        annotations = own_annotations(base) if base is not object else {}
        if annotations:
            scope = AnnotationScope(base)
            is_open = not fields or "__dataclass_fields__" not in base.__dict__
            owners.update((n, (base, a, scope)) for n, a in annotations.items() if is_open or n in fields)
    specs = {}
    for name, (base, annotation, scope) in owners.items():
        if name.startswith("_pytree__"):
            continue
        field = fields.get(name, marks.get(name))
        spec = _inherited_spec(base, name, field) or _read_spec(name, annotation, field, scope)
        is_declared = name in fields or name in marks or _is_marked(annotation, scope)
        if is_declared or spec.status is Status.DATA or spec.is_nested_undecided:
            specs[name] = spec
    return specs, all(scope.is_complete for _, _, scope in owners.values())


def _inherited_spec(base: type, name: str, field: dataclasses.Field[Any] | None) -> FieldSpec | None:
    """The spec of a field that a base has read, whose names were all found."""
    info = own_info(base)
    is_read = info.is_complete and base.__dict__.get("__dataclass_fields__", {}).get(name) is field
    return info.specs.get(name) if is_read and field is not None else None


def _is_marked(annotation: object, scope: AnnotationScope) -> bool:
    resolved = scope.resolve(annotation)
    return any(isinstance(mark, Status) for mark in getattr(resolved, "__metadata__", ()))


def _read_spec(
    name: str, annotation: object, field: dataclasses.Field[Any] | None, scope: AnnotationScope
) -> FieldSpec:
    resolved = scope.resolve(annotation)
    decision = decide(resolved, scope)
    specifier = specifier_of(field) if field is not None else None
    status = decision.status
    if specifier is not None and specifier.status is not None:
        status = specifier.status
        if status is Status.STATIC and (decision.status is Status.SNAPSHOT or decision.is_container):
            status = Status.SNAPSHOT
    recipe = specifier.recipe if specifier else None
    return FieldSpec(
        name,
        resolved,
        status,
        (decision.is_container or isinstance(recipe, PartRecipe)) and status is None,
        recipe,
        specifier.notes if specifier else Notes(),
    )

"""Reads what a class declares of its fields.

An open class declares nothing but data: programs annotate ``count: int`` and assign arrays.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from declax._fields.annotations import Scope, decide, own_annotations
from declax._fields.specifiers import FieldSpec, Notes, PartRecipe, Status, specifier_of


def read_specs(cls: type) -> tuple[dict[str, FieldSpec], bool]:
    """The specs of all fields that a class declares, and whether all names resolved."""
    fields = {f.name: f for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    owners: dict[str, tuple[object, Scope]] = {}
    for base in reversed(cls.__mro__):
        annotations = own_annotations(base) if base is not object else {}
        if annotations:
            scope = Scope(base)
            is_open = not fields or "__dataclass_fields__" not in base.__dict__
            owners.update((n, (a, scope)) for n, a in annotations.items() if is_open or n in fields)
    specs = {}
    for name, (annotation, scope) in owners.items():
        if name.startswith("_pytree__"):
            continue
        spec = _read_spec(name, annotation, fields.get(name), scope)
        if name in fields or spec.status is Status.DATA or spec.is_nested_undecided or _is_marked(annotation, scope):
            specs[name] = spec
    return specs, all(scope.is_complete for _, scope in owners.values())


def _is_marked(annotation: object, scope: Scope) -> bool:
    resolved = scope.resolve(annotation)
    return any(isinstance(mark, Status) for mark in getattr(resolved, "__metadata__", ()))


def _read_spec(name: str, annotation: object, field: dataclasses.Field[Any] | None, scope: Scope) -> FieldSpec:
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

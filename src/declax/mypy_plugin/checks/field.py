"""declax-field: a specifier against the annotation and the default that stand with it."""

from __future__ import annotations

from mypy.nodes import MDEF, Expression, NameExpr, TempNode
from mypy.types import Instance

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import DeclaredClass, DeclaredField
from declax.mypy_plugin.expressions import literal, walk
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code
from declax.mypy_plugin.statuses import holds_no_leaf, is_shared_mutable, status_of
from declax.mypy_plugin.wording import text_of

FIELD = error_code("declax-field", "A field's specifier contradicts its annotation, or its default cannot be one")


def register(hooks: Registry) -> None:
    """Puts the check at its hook."""
    hooks.declared_class(FIELD, check)


def check(cls: DeclaredClass, report: Report) -> None:
    """Checks all fields that a class declares itself."""
    for field in cls.own:
        if field.is_made or field.statement is None:
            continue
        status = _specified(field)
        if status == "static":
            _check_static(cls, field, report)
        elif status == "data":
            _check_data(cls, field, report)
        _check_default(cls, field, report)


def _specified(field: DeclaredField) -> str | None:
    """The status that the specifier gives."""
    if field.specifier != "field":
        return field.specifier
    metadata = literal(field.arguments.get("metadata"))
    is_static = metadata.get("static") if isinstance(metadata, dict) else None
    return ("static" if is_static else "data") if isinstance(is_static, bool) else None


def _check_static(cls: DeclaredClass, field: DeclaredField, report: Report) -> None:
    where = f"{cls.name}.{field.name}"
    assert field.statement is not None
    if field.mark == "data":
        said = text_of(field.type)
        report.error(
            f"{where}: static(...) contradicts the annotation dx.Data[{said}]",
            field.statement,
            fix=f"{field.name}: dx.Data[{said}] = dx.data(...)",
        )
    elif field.mark == "static":
        return  # said twice, and the values are the user's own business
    elif status_of(field.type) == "data":
        said = text_of(field.type)
        report.error(
            f"{where}: static(...) contradicts the annotation {said}: arrays, Variables and Pytrees are data",
            field.statement,
            fix=f"{field.name}: {said} = dx.data(...)",
        )


def _check_data(cls: DeclaredClass, field: DeclaredField, report: Report) -> None:
    where = f"{cls.name}.{field.name}"
    assert field.statement is not None
    if field.mark == "static":
        said = text_of(field.type)
        report.error(
            f"{where}: data(...) contradicts the annotation dx.Static[{said}]",
            field.statement,
            fix=f"{field.name}: dx.Static[{said}] = dx.static(...)",
        )
    elif field.mark is None and holds_no_leaf(field.type):
        said = text_of(field.type)
        report.error(
            f"{where}: data(...) contradicts the annotation {said}: nothing in it is a leaf that JAX can take",
            field.statement,
            fix=f"{field.name}: {said} = dx.static(...)",
        )


def _check_default(cls: DeclaredClass, field: DeclaredField, report: Report) -> None:
    assert field.statement is not None
    where = f"{cls.name}.{field.name}"
    if field.specifier in ("data", "static") and "*0" in field.arguments:
        report.error(
            f"{where}: a tagged value is no default; {field.specifier}(value) is for assignments",
            field.statement,
            fix=f"{field.name}: {text_of(field.type)} = dx.{field.specifier}(default=...)",
        )
        return
    default = _default_of(field)
    found = None if default is None else cls.type_of(default)
    if default is None or found is None or not is_shared_mutable(found) or _is_part(default):
        return
    status = "data" if status_of(field.type) == "data" else "static"
    is_array = isinstance(found, Instance) and any(found.type.has_base(name) for name in names.ARRAYS)
    problem = "an array cannot be a default" if is_array else "a mutable default would be shared by all instances"
    report.error(
        f"{where}: {problem}",
        default,
        fix=f"{field.name}: {text_of(field.type)} = dx.{status}(default_factory=lambda: ...)",
    )


def _is_part(default: Expression) -> bool:
    """Whether a default reads names of its class body, and is a part that each instance makes."""
    return any(isinstance(node, NameExpr) and node.kind == MDEF for node in walk(default))


def _default_of(field: DeclaredField) -> Expression | None:
    assert field.statement is not None
    if field.specifier is not None:
        return field.arguments.get("default")
    value = field.statement.rvalue
    return None if isinstance(value, TempNode) else value

"""declax-axes: axes against the parameters and the result of the function that is mapped."""

from __future__ import annotations

from collections.abc import Iterator

from mypy.nodes import CallExpr, DictExpr, Expression, RefExpr, StarExpr
from mypy.types import Instance, ProperType, TupleType, UnpackType

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import items_of, literal
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code
from declax.mypy_plugin.transformed import Application, Function, Parameter, register_transforms
from declax.mypy_plugin.wording import text_of

AXES = error_code("declax-axes", "Axes do not fit the function that is mapped")

_OPTIONS = ("in_axes", "out_axes")
_NUMBERS = ("builtins.int", "builtins.float", "builtins.complex")


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    register_transforms(hooks, (names.VMAP, names.PMAP), AXES, check, frozenset(_OPTIONS))
    register_transforms(hooks, (names.SCAN,), AXES, check)  # whose axes have a default that can be wrong


def check(found: Application, report: Report) -> None:
    """Checks the axes of one application."""
    for option in _OPTIONS:
        if option in found.options:
            _check_labels(found, option, found.options[option], report)
    if found.function is not None:
        _check_result(found, found.function, report)
        if _has_entries(found, found.function, report):
            _check_state_axes(found, found.function, report)
            _check_any_axis(found, found.function, report)


def _where(found: Application, option: str) -> str:
    name = "..." if found.function is None else found.function.name
    return f"{found.transform}({name}, {option}=...)"


def _check_labels(found: Application, option: str, axes: Expression, report: Report) -> None:
    """Checks for what the annotations let through: a bool is an int to them, and Carry is an axis in `scan`."""
    for entry in _leaves(axes):
        value = literal(entry)
        if isinstance(value, bool) or (found.transform != "scan" and _fullname(entry) == names.CARRY):
            report.error(
                f"{_where(found, option)}: {value if isinstance(value, bool) else 'dx.Carry'} is no axis",
                entry,
                notes=["an axis is an int, None, dx.StateAxes(...), or dx.Carry in dx.scan"],
            )


def _leaves(axes: Expression) -> Iterator[Expression]:
    """The axes in displays of tuples, lists and dicts."""
    waiting = [axes]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, DictExpr):
            waiting += [value for _, value in entry.items]
        elif items_of(entry) is not None:
            waiting += items_of(entry) or ()
        else:
            yield entry


def _fullname(expr: Expression) -> str | None:
    return expr.fullname if isinstance(expr, RefExpr) else None


def _count(found: Application, axes: Expression | None) -> int | None:
    """How many entries a tuple of axes has; None for one axis for all, and where it is not known."""
    items = items_of(axes)
    if items is not None:
        return None if any(isinstance(item, StarExpr) for item in items) else len(items)
    typ = None if axes is None else found.type_of(axes)
    return _length(typ)


def _length(typ: ProperType | None) -> int | None:
    """How many entries a type of plain tuples has."""
    if not isinstance(typ, TupleType) or typ.partial_fallback.type.fullname != "builtins.tuple":
        return None
    return None if any(isinstance(item, UnpackType) for item in typ.items) else len(typ.items)


def _has_entries(found: Application, function: Function, report: Report) -> bool:
    """Checks that there is one entry for each parameter with a position."""
    axes = found.options.get("in_axes")
    is_default = axes is None and found.transform == "scan" and found.is_whole
    count = 2 if is_default else _count(found, axes)
    most = len(function.positional)
    if count is None or (function.least <= count and (count <= most or function.takes_more)):
        return True
    taken = f"{function.least} to {most}" if function.least < most else f"{most}"
    said = "the default (dx.Carry, 0)" if is_default else f"{count} entr{'y' if count == 1 else 'ies'}"
    report.error(
        f"{_where(found, 'in_axes')}: {said} for {taken} parameter{'' if taken == '1' else 's'} with a position"
        f" ({function.signature})",
        found.place if axes is None else axes,
        fix=f"in_axes=({_entries(function)})        # one entry for each",
    )
    return False


def _entries(function: Function) -> str:
    shown = [
        "None" if isinstance(p.type, Instance) and p.type.type.has_base(names.PYTREE) else "0"
        for p in function.positional
    ]
    return ", ".join(shown) + ("," if len(shown) == 1 else "")


def _check_result(found: Application, function: Function, report: Report) -> None:
    axes = found.options.get("out_axes")
    count = None if axes is None else _count(found, axes)
    if axes is None or count is None or function.result is None:
        return
    length = _length(function.result)
    if length is None and _is_leaf(function.result):
        text = f"a tuple of {count} for a result that is none: {text_of(function.result)}"
    elif length is not None and length != count:
        text = f"{count} entr{'y' if count == 1 else 'ies'} for a result of {length}: {text_of(function.result)}"
    else:
        return
    report.error(f"{_where(found, 'out_axes')}: {text}", axes)


def _is_leaf(typ: ProperType) -> bool:
    """Whether a value of this type is an array or a number, and no model."""
    if not isinstance(typ, Instance) or typ.type.has_base(names.VARIABLE):
        return False
    return typ.type.fullname in _NUMBERS or any(typ.type.has_base(base) for base in names.ARRAYS)


def _check_state_axes(found: Application, function: Function, report: Report) -> None:
    axes = found.options.get("in_axes")
    if axes is None:
        return
    if _is_state_axes(found, axes):
        pairs = [(axes, parameter) for parameter in function.positional if not parameter.kind.is_optional()]
    else:
        items = items_of(axes) or ()
        is_aligned = not any(isinstance(item, StarExpr) for item in items)
        pairs = (
            list(zip(items, function.positional, strict=False)) if is_aligned else []
        )  # `_check_count` compares them
    for entry, parameter in pairs:
        if parameter.type is not None and _is_leaf(parameter.type) and _is_state_axes(found, entry):
            report.error(
                f"{_where(found, 'in_axes')}: dx.StateAxes is for models, and {_said(parameter)} is none",
                entry,
                fix="0, or another int, or None in its place",
            )


def _said(parameter: Parameter) -> str:
    return parameter.name or "it" if parameter.type is None else f"{parameter.name or '_'}: {text_of(parameter.type)}"


def _is_state_axes(found: Application, entry: Expression) -> bool:
    typ = found.type_of(entry)
    if isinstance(typ, Instance):
        return typ.type.fullname == names.STATE_AXES
    return isinstance(entry, CallExpr) and _fullname(entry.callee) == names.STATE_AXES


def _check_any_axis(found: Application, function: Function, report: Report) -> None:
    """Checks that something is mapped at all."""
    axes = found.options.get("in_axes")
    size = found.options.get("axis_size")
    if (
        axes is None
        or not found.is_whole
        or found.transform == "scan"
        or (size is not None and literal(size) is not None)
    ):
        return
    if any(not p.kind.is_positional() for p in function.parameters) or not all(map(_is_none, _leaves(axes))):
        return
    report.error(
        f"{_where(found, 'in_axes')}: None everywhere maps over nothing",
        axes,
        fix="0 for the arguments that have the axis; or axis_size=n",
    )


def _is_none(entry: Expression) -> bool:
    """Whether an entry is None, or `StateAxes` with no other axis."""
    if isinstance(entry, CallExpr) and _fullname(entry.callee) == names.STATE_AXES and len(entry.args) == 1:
        labels = entry.args[0]
        return isinstance(labels, DictExpr) and all(literal(label) is None for _, label in labels.items)
    return literal(entry) is None

"""declax-axes: axes that do not fit the parameters or the result of the mapped function."""

from __future__ import annotations

from mypy.nodes import ArgKind, Expression, StarExpr
from mypy.types import Instance, ProperType, TupleType, UnpackType

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import items_of
from declax.mypy_plugin.reporting import error_code, text_of
from declax.mypy_plugin.statuses import is_array
from declax.mypy_plugin.transformed import Application

AXES = error_code("declax-axes", "Axes do not fit the function that is mapped")

OPTIONS = ("in_axes", "out_axes")


def check(found: Application) -> None:
    """Checks that axes have one entry for each parameter, and for each element of the result."""
    function = found.function
    axes = found.options.get("in_axes")
    is_default = axes is None and found.transform == "scan" and found.is_whole
    count = 2 if is_default else _count(found, axes)
    least, most = (sum(p.kind is ArgKind.ARG_POS for p in function.parameters), len(function.positional))
    is_more = count is not None and count > most and not function.takes(ArgKind.ARG_STAR)
    if count is not None and (count < least or is_more):
        said = "the default (dx.Carry, 0)" if is_default else f"{count} entries"
        taken = f"{least} to {most}" if least < most else f"{most}"
        found.report.error(
            f"{found.transform}({function.name}, in_axes=...): {said} for {taken} parameters with a position"
            f" ({function.signature})",
            found.place if axes is None else axes,
            fix=f"in_axes=({_entries(found)})        # one entry for each",
        )
    _check_result(found)


def _count(found: Application, axes: Expression | None) -> int | None:
    """The number of entries in a tuple of axes; None for a single axis, or if unknown."""
    items = items_of(axes)
    if items is not None:
        return None if any(isinstance(item, StarExpr) for item in items) else len(items)
    return None if axes is None else _length(found.type_of(axes))


def _length(typ: ProperType | None) -> int | None:
    """The number of elements of a tuple type."""
    if not isinstance(typ, TupleType) or typ.partial_fallback.type.fullname != "builtins.tuple":
        return None
    return None if any(isinstance(item, UnpackType) for item in typ.items) else len(typ.items)


def _entries(found: Application) -> str:
    shown = [
        "None" if isinstance(p.type, Instance) and p.type.type.has_base(names.PYTREE) else "0"
        for p in found.function.positional
    ]
    return ", ".join(shown) + ("," if len(shown) == 1 else "")


def _check_result(found: Application) -> None:
    axes, result = found.options.get("out_axes"), found.function.result
    count = _count(found, axes)
    length = _length(result)
    is_single = isinstance(result, Instance) and is_array(result) and not result.type.has_base(names.VARIABLE)
    if axes is None or result is None or count is None or (length == count if length is not None else not is_single):
        return
    found.report.error(
        f"{found.transform}({found.function.name}, out_axes=...): {count} entries for a result of {text_of(result)}",
        axes,
    )

"""declax-argnames: arguments that a transform's options select by name or by number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mypy.nodes import CallExpr, Context, Expression, RefExpr
from mypy.types import Instance, ProperType, UnionType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import declared_fields
from declax.mypy_plugin.expressions import arguments_of, items_of, literal
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code, suggest
from declax.mypy_plugin.statuses import holds_no_leaf, is_unhashable
from declax.mypy_plugin.transformed import Application, Function, Parameter, register_transforms
from declax.mypy_plugin.wording import text_of

ARGNAMES = error_code("declax-argnames", "An option of a transform selects an argument that there is not")

_NAMES = ("static_argnames", "donate_argnames")
_NUMBERS = ("static_argnums", "donate_argnums", "static_broadcasted_argnums", "argnums", "nondiff_argnums")
_STATIC = ("static_argnames", "static_argnums", "static_broadcasted_argnums")
_TRANSFORMS = (
    *(names.JIT, names.JIT_PARTIAL, names.REMAT, names.PMAP),
    *(names.GRAD, names.VALUE_AND_GRAD, names.CUSTOM_VJP),
)


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    register_transforms(hooks, _TRANSFORMS, ARGNAMES, check, frozenset((*_NAMES, *_NUMBERS)))


def check(found: Application, report: Report) -> None:
    """Checks the options of one application."""
    function = found.function
    if function is None:
        return
    for option in _NAMES:
        for name, place in _selected(found.options.get(option), str):
            _check_name(found, function, option, name, place, report)
    for option in _NUMBERS:
        for number, place in _selected(found.options.get(option), int):
            _check_number(found, function, option, number, place, report)


def _selected(option: Expression | None, kind: type) -> Iterator[tuple[Any, Context]]:
    """The literals of an option, one or several, and where they stand."""
    items = items_of(option)
    for entry in [option] if items is None else items:
        place = _argnum(entry)
        value = literal(place)
        if isinstance(value, kind) and not isinstance(value, bool) and place is not None:
            yield value, place


def _argnum(entry: Expression | None) -> Expression | None:
    """The number in a `DiffState`; any other entry as it is."""
    if isinstance(entry, CallExpr) and isinstance(entry.callee, RefExpr) and entry.callee.fullname == names.DIFF_STATE:
        return arguments_of(entry, ("argnum",)).get("argnum")
    return entry


def _where(found: Application, function: Function, option: str) -> str:
    return f"{found.transform}({function.name}, {option}=...)"


def _check_name(found: Application, function: Function, option: str, name: str, place: Context, report: Report) -> None:
    known = {parameter.name: parameter for parameter in function.parameters if not parameter.kind.is_star()}
    if name in known:
        _check_static(found, function, option, known[name], place, report)
    elif None not in known and not function.takes_any:
        options = [parameter for parameter in known if parameter is not None]
        report.error(
            f"{_where(found, function, option)}: {function.name} has no parameter {name!r}{suggest(name, options)}",
            place,
            notes=[f"its parameters are {function.signature or 'none'}"],
        )


def _check_number(
    found: Application, function: Function, option: str, number: int, place: Context, report: Report
) -> None:
    positional = function.positional if option != "nondiff_argnums" else list(function.parameters)
    if function.takes_more:
        return
    if -len(positional) <= number < len(positional):
        _check_static(found, function, option, positional[number], place, report)
        _check_gradient(found, function, option, positional[number], place, report)
        return
    report.error(
        f"{_where(found, function, option)}: {function.name} has no positional parameter {number}",
        place,
        notes=[f"its parameters are {function.signature or 'none'}, counted from 0"],
    )


def _check_static(
    found: Application, function: Function, option: str, parameter: Parameter, place: Context, report: Report
) -> None:
    typ = parameter.type
    if option not in _STATIC or typ is None:
        return
    where, what = _where(found, function, option), f"{parameter.name or 'it'}: {text_of(typ)}"
    if _is_array(typ) or is_unhashable(typ):
        report.error(f"{where}: a static argument needs a hash, and {what} has none", place)
    elif isinstance(typ, Instance) and typ.type.has_base(names.PYTREE) and _holds_leaves(typ, found.api):
        report.error(
            f"{where}: a model is no static argument ({what})",
            place,
            notes=["what is static in a model is compiled in anyway; leave it out of the static arguments"],
        )


def _is_array(typ: ProperType) -> bool:
    return isinstance(typ, Instance) and any(typ.type.has_base(base) for base in (*names.ARRAYS, names.VARIABLE))


def _holds_leaves(typ: Instance, api: Any) -> bool:
    """Whether each instance of a declared class has leaves."""
    fields = declared_fields(typ.type, api).values()
    return any(_is_array(field.type) and not isinstance(field.type, UnionType) for field in fields)


def _check_gradient(
    found: Application, function: Function, option: str, parameter: Parameter, place: Context, report: Report
) -> None:
    typ = parameter.type
    if option == "argnums" and typ is not None and holds_no_leaf(get_proper_type(typ)):
        report.error(
            f"{_where(found, function, option)}: {parameter.name or 'it'}: {text_of(typ)} has no gradient",
            place,
            notes=["arrays, numbers, and what holds them have one"],
        )

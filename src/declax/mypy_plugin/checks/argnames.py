"""declax-argnames: arguments that the options of a transform select by name or number."""

from __future__ import annotations

from mypy.nodes import ArgKind, Expression
from mypy.types import Instance

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.model import names_with_leaves
from declax.mypy_plugin.expressions import arguments_of, fullname_of, items_of, literal
from declax.mypy_plugin.reporting import error_code, suggest, text_of
from declax.mypy_plugin.statuses import holds_no_leaf, is_unhashable
from declax.mypy_plugin.transformed import Application, Parameter

ARGNAMES = error_code("declax-argnames", "An option of a transform selects a parameter that does not exist")

_STATIC = ("static_argnames", "static_argnums", "static_broadcasted_argnums")
OPTIONS = (*_STATIC, "donate_argnames", "donate_argnums", "argnums", "nondiff_argnums")
TRANSFORMS = (
    *(names.JIT, names.JIT_PARTIAL, names.REMAT, names.PMAP),
    *(names.GRAD, names.VALUE_AND_GRAD, names.CUSTOM_VJP),
)


def check(found: Application) -> None:
    """Checks the options of one application of a transform."""
    for option in found.options.keys() & set(OPTIONS):
        given = found.options[option]
        for entry in items_of(given) or [given]:
            is_diff_state = fullname_of(getattr(entry, "callee", None)) == names.DIFF_STATE
            place = arguments_of(entry, ("argnum",)).get("argnum", entry) if is_diff_state else entry
            selected = literal(place)
            if type(selected) in (int, str):
                _check_selected(found, option, selected, place)


def _check_selected(found: Application, option: str, selected: int | str, place: Expression) -> None:
    function = found.function
    where = f"{found.transform}({function.name}, {option}=...)"
    if isinstance(selected, int):
        parameters = list(function.parameters) if option == "nondiff_argnums" else function.positional
        is_there = -len(parameters) <= selected < len(parameters)
        parameter = parameters[selected] if is_there else None
        is_open, hint, kind = function.takes(ArgKind.ARG_STAR), "", "positional parameter"
    else:
        known = {one.name: one for one in function.parameters if not one.kind.is_star()}
        parameter = known.get(selected)
        is_open, kind = None in known or function.takes(ArgKind.ARG_STAR2), "parameter"
        hint = suggest(selected, [name for name in known if name is not None])
    if parameter is not None:
        _check_type(found, option, parameter, where, place)
    elif not is_open:
        found.report.error(
            f"{where}: {function.name} has no {kind} {selected!r}{hint}",
            place,
            notes=[f"its parameters are {function.signature or 'none'}"],
        )


def _check_type(found: Application, option: str, parameter: Parameter, where: str, place: Expression) -> None:
    """Checks that static arguments are hashable and not models, and that `argnums` are differentiable."""
    typ = parameter.type
    if typ is None:
        return
    is_node = isinstance(typ, Instance) and typ.type.has_base(names.PYTREE)
    problem = None
    if option in _STATIC and is_unhashable(typ):
        problem = "is not hashable, as a static argument must be"
    elif option in _STATIC and isinstance(typ, Instance) and is_node:
        problem = "is a model, which cannot be static" if any(names_with_leaves(typ.type, found.report.api)) else None
    elif option == "argnums" and holds_no_leaf(typ):
        problem = "has no gradient"
    if problem is not None:
        found.report.error(f"{where}: {parameter.name or 'it'}: {text_of(typ)} {problem}", place)

"""The options of transforms."""

from __future__ import annotations

from mypy.nodes import ArgKind, Expression, StarExpr
from mypy.types import Instance, ProperType, TupleType, UnpackType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.models import names_with_leaves
from declax.mypy_plugin.expressions import arguments_of, fullname_of, items_of, literal
from declax.mypy_plugin.reporting import error_code, suggest, text_of
from declax.mypy_plugin.statuses import holds_no_leaf, is_array, is_unhashable
from declax.mypy_plugin.transformed import Application, Parameter

# --- declax-argnames: arguments that the options of a transform select by name or number -----------------

ARGNAMES = error_code("declax-argnames", "An option of a transform selects a parameter that does not exist")

_STATIC = ("static_argnames", "static_argnums", "static_broadcasted_argnums")
SELECTING = (*_STATIC, "donate_argnames", "donate_argnums", "argnums", "nondiff_argnums")
TRANSFORMS = (
    *(names.JIT, names.JIT_PARTIAL, names.REMAT, names.PMAP),
    *(names.GRAD, names.VALUE_AND_GRAD, names.CUSTOM_VJP),
)


def check_argnames(found: Application) -> None:
    """Checks the options of one application of a transform."""
    for option in found.options.keys() & set(SELECTING):
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
        is_open, known, kind = function.takes(ArgKind.ARG_STAR), {}, "positional parameter"
    else:
        known = {one.name: one for one in function.parameters if not one.kind.is_star()}
        parameter = known.get(selected)
        is_open, kind = None in known or function.takes(ArgKind.ARG_STAR2), "parameter"
    if parameter is not None:
        _check_type(found, option, parameter, where, place)
    elif not is_open:
        hint = suggest(selected, filter(None, known)) if isinstance(selected, str) else ""
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


# --- declax-axes: axes that do not fit the parameters or the result of the mapped function ---------------

AXES = error_code("declax-axes", "Axes or specs do not fit the function that is mapped")

MAPPING = ("in_axes", "out_axes")
SPECS = ("in_specs", "out_specs")
MAPPED: dict[str, tuple[str, ...]] = {names.VMAP: MAPPING, names.PMAP: MAPPING, names.SHARD_MAP: SPECS, names.SCAN: ()}
"""The options of which one is given where axes are checked; of `scan`, the defaults are checked, too."""


def check_axes(found: Application) -> None:
    """Checks that axes or specs have one entry for each parameter, and for each element of the result."""
    function = found.function
    of_arguments, of_result = SPECS if found.transform == "shard_map" else MAPPING
    axes = found.options.get(of_arguments)
    is_default = axes is None and found.transform == "scan" and found.is_whole
    count = 2 if is_default else _count(found, axes)
    least, most = (sum(p.kind is ArgKind.ARG_POS for p in function.parameters), len(function.positional))
    is_more = count is not None and count > most and not function.takes(ArgKind.ARG_STAR)
    if count is not None and (count < least or is_more):
        said = "the default (dx.Carry, 0)" if is_default else f"{count} entries"
        taken = f"{least} to {most}" if least < most else f"{most}"
        found.report.error(
            f"{found.transform}({function.name}, {of_arguments}=...): {said} for {taken} parameters with a position"
            f" ({function.signature})",
            found.place if axes is None else axes,
            fix=f"{of_arguments}=({_entries(found)})        # one entry for each",
        )
    _check_result(found, of_result)


def _count(found: Application, axes: Expression | None) -> int | None:
    """The number of entries in a tuple of axes; None for a single axis, or if unknown."""
    items = items_of(axes)
    if items is not None:
        return None if any(isinstance(item, StarExpr) for item in items) else len(items)
    return None if axes is None else _length(get_proper_type(found.report.api.lookup_type_or_none(axes)))


def _length(typ: ProperType | None) -> int | None:
    """The number of elements of a tuple type."""
    if not isinstance(typ, TupleType) or typ.partial_fallback.type.fullname != "builtins.tuple":
        return None
    return None if any(isinstance(item, UnpackType) for item in typ.items) else len(typ.items)


def _entries(found: Application) -> str:
    split = "P(...)" if found.transform == "shard_map" else "0"
    shown = [
        "None" if isinstance(p.type, Instance) and p.type.type.has_base(names.PYTREE) else split
        for p in found.function.positional
    ]
    return ", ".join(shown) + ("," if len(shown) == 1 else "")


def _check_result(found: Application, option: str) -> None:
    axes, result = found.options.get(option), found.function.result
    count = _count(found, axes)
    length = _length(result)
    is_single = isinstance(result, Instance) and is_array(result) and not result.type.has_base(names.VARIABLE)
    if axes is None or result is None or count is None or (length == count if length is not None else not is_single):
        return
    found.report.error(
        f"{found.transform}({found.function.name}, {option}=...): {count} entries for a result of {text_of(result)}",
        axes,
    )

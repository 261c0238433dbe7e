"""The signatures of `dx.replace` and `dataclasses.replace`: the parameters of the constructor."""

from __future__ import annotations

from mypy.plugin import FunctionSigContext
from mypy.plugins.dataclasses import replace_function_sig_callback
from mypy.types import FunctionLike, Instance, TypeVarType, UnionType, get_proper_type

from declax.mypy_plugin.declared import declared_fields, is_declared
from declax.mypy_plugin.reporting import Reporter


def signature(ctx: FunctionSigContext, report: Reporter) -> FunctionLike | None:
    """The signature of one call, without fields that the constructor does not take."""
    if len(ctx.args) != 2 or len(ctx.args[0]) != 1:
        return None
    typ = get_proper_type(report.api.get_expression_type(ctx.args[0][0]))
    typ = get_proper_type(typ.upper_bound) if isinstance(typ, TypeVarType) else typ
    parts = [get_proper_type(item) for item in (typ.items if isinstance(typ, UnionType) else [typ])]
    if not parts or not all(isinstance(part, Instance) and any(map(is_declared, part.type.mro)) for part in parts):
        return None
    found = replace_function_sig_callback(ctx)
    fields = [declared_fields(part.type, report.api) for part in parts if isinstance(part, Instance)]
    made = {field.name for known in fields for field in known.values() if not field.in_init}
    kept = [index for index, name in enumerate(found.arg_names) if name not in made]
    return found.copy_modified(
        arg_names=[found.arg_names[index] for index in kept],
        arg_kinds=[found.arg_kinds[index] for index in kept],
        arg_types=[found.arg_types[index] for index in kept],
    )

"""declax-attribute: misspelt attributes of Variables. To mypy, a Variable has every attribute (metadata)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Final

from mypy.maptype import map_instance_to_supertype
from mypy.nodes import CallExpr, MemberExpr, StrExpr, TypeInfo
from mypy.plugin import AttributeContext
from mypy.types import AnyType, Instance, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.fields import members_assigned
from declax.mypy_plugin.expressions import nodes_in_module
from declax.mypy_plugin.reporting import Reporter, error_code

ATTRIBUTE = error_code("declax-attribute", "A Variable has no such attribute, but a similar one")

_NEAR: Final = 0.8
"""The similarity of two names (0 to 1) from which one counts as a misspelling."""

METADATA: Final = frozenset(
    (
        "on_get_value on_set_value on_create_value on_add_axis on_remove_axis sharding sharding_names out_sharding "
        "sharding_rules eager_sharding optimizer_sharding mesh tag trainable weight_decay"
    ).split()
)
"""The metadata that declax uses."""


def check(ctx: AttributeContext, report: Reporter) -> None:
    """Checks an attribute that only ``__getattr__`` provides."""
    variable, place = get_proper_type(ctx.type), ctx.context
    is_any = isinstance(get_proper_type(ctx.default_attr_type), AnyType)
    if not is_any or not isinstance(place, MemberExpr) or not isinstance(variable, Instance):
        return
    name = place.name
    of_value = _names_of_value(variable)
    known = {*_public_names(variable.type), *METADATA, *(of_value or ())}
    if name.startswith("_") or name in known or variable.type.fallback_to_any:
        return
    is_set = any(node is place for node in members_assigned(ctx.api))
    near = difflib.get_close_matches(name, ("value", "raw_value") if is_set else known, n=1, cutoff=_NEAR)
    # a longer name, such as `shapes`, may be intended; so may a name that the module uses elsewhere
    if not near or ("value" in name if is_set else of_value is None or name.startswith(near[0])):
        return
    if name not in _names_given(ctx.api, with_assigned=not is_set):
        problem = "this sets new metadata" if is_set else "neither the Variable nor its value has this attribute"
        report.error(f"{variable.type.name}.{name}: {problem}; did you mean {near[0]!r}?", place)


def _names_of_value(variable: Instance) -> set[str] | None:
    """The attributes of the value of a Variable; None if it may have any."""
    info = next((base for base in variable.type.mro if base.fullname == names.VARIABLE), None)
    args = () if info is None else map_instance_to_supertype(variable, info).args
    typ = get_proper_type(args[0]) if args else None
    if not isinstance(typ, Instance) or typ.type.fallback_to_any or typ.type.fullname == "builtins.object":
        return None
    return None if typ.type.get("__getattr__") is not None else set(_public_names(typ.type))


def _public_names(info: TypeInfo) -> Iterator[str]:
    return (name for base in info.mro for name in base.names if not name.startswith("_"))


def _names_given(api: Any, *, with_assigned: bool) -> set[str]:
    """The names in keywords, strings and assignments of the module, which may be metadata."""
    found = {node.value for node in nodes_in_module(api, StrExpr)}
    found |= {name for call in nodes_in_module(api, CallExpr) for name in call.arg_names if name is not None}
    return found | {node.name for node in members_assigned(api)} if with_assigned else found

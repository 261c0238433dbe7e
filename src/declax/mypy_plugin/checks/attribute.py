"""declax-attribute: misspelt attributes of Variables, which answer for any name because metadata may have it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Final

from mypy.maptype import map_instance_to_supertype
from mypy.nodes import CallExpr, MemberExpr, Node, StrExpr, TypeInfo
from mypy.plugin import AttributeContext
from mypy.types import AnyType, Instance, ProperType, Type, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.unset import members_assigned, names_set_by_calls
from declax.mypy_plugin.expressions import walk
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code

ATTRIBUTE = error_code("declax-attribute", "A Variable has no such attribute, and one whose name is nearly the same")

_NEAR: Final = 0.8
"""How alike two names are (0 to 1) before one counts as a misspelling of the other."""

METADATA: Final = frozenset(
    {
        *("on_get_value", "on_set_value", "on_create_value", "on_add_axis", "on_remove_axis"),
        *("sharding", "sharding_names", "out_sharding", "sharding_rules", "eager_sharding", "mesh", "tag"),
        *("trainable", "weight_decay"),
    }
)
"""The metadata that means something to declax."""


def register(hooks: Registry) -> None:
    """Puts the check at its hook."""
    hooks.attribute(names.VARIABLE, ATTRIBUTE, check)


def check(ctx: AttributeContext, report: Report) -> Type | None:
    """Checks an attribute that only ``__getattr__`` answers for."""
    place = ctx.context
    if not isinstance(get_proper_type(ctx.default_attr_type), AnyType) or not isinstance(place, MemberExpr):
        return None
    variable, name = get_proper_type(ctx.type), place.name
    if not isinstance(variable, Instance) or name.startswith("_"):
        return None
    if "value" not in name and _tell_written(variable, place, ctx.api, report):
        return None
    if variable.type.fallback_to_any or variable.type.get(name) is not None or name in METADATA:
        return None
    known = _names_of_value(_value_of(variable))
    if known is None or name in known:
        return None
    near = _nearest(name, {*_public_names(variable.type), *known, *METADATA})
    if near is not None and name not in set(_names_given(ctx.api)):
        report.error(
            f"{variable.type.name}.{name}: neither the Variable nor its value has this attribute;"
            f" did you mean {near!r}?",
            place,
        )
    return None


def _tell_written(variable: Instance, place: MemberExpr, api: Any, report: Report) -> bool:
    """Tells of an assignment that is meant for the value and would set metadata, of which nothing says a word."""
    name = place.name
    near = difflib.get_close_matches(name, ("value", "raw_value"), n=1, cutoff=_NEAR)
    if not near or variable.type.get(name) is not None or name in set(_names_in_calls(api.tree)):
        return False
    if not any(node is place for node in members_assigned(api.tree)):
        return False
    report.error(
        f"{variable.type.name}.{name}: this sets new metadata; did you mean {near[0]!r}?",
        place,
        fix=f".{near[0]} = ...",
    )
    return True


def _value_of(variable: Instance) -> ProperType | None:
    info = next((base for base in variable.type.mro if base.fullname == names.VARIABLE), None)
    found = None if info is None else map_instance_to_supertype(variable, info)
    return get_proper_type(found.args[0]) if found is not None and found.args else None


def _names_of_value(typ: ProperType | None) -> set[str] | None:
    """The attributes of a value; None where it may have others."""
    if not isinstance(typ, Instance) or typ.type.fallback_to_any:
        return None
    if typ.type.fullname == "builtins.object" or typ.type.get("__getattr__") is not None:
        return None
    return set(_public_names(typ.type))


def _public_names(info: TypeInfo) -> Iterator[str]:
    for base in info.mro:
        yield from (name for name in base.names if not name.startswith("_"))


def _nearest(name: str, known: set[str]) -> str | None:
    """The name of which another is a misspelling; a longer one, as `shapes`, may be meant as it stands."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
    return near[0] if near and not name.startswith(near[0]) else None


def _names_given(api: Any) -> Iterator[str]:
    """The names that the module gives, as keywords, in strings, or by assignment: what may be metadata."""
    tree: Node = api.tree
    yield from (node.name for node in members_assigned(tree))
    yield from _names_in_calls(tree)


def _names_in_calls(tree: Node) -> Iterator[str]:
    yield from names_set_by_calls(tree)
    for node in walk(tree):
        if isinstance(node, StrExpr):
            yield node.value
        elif isinstance(node, CallExpr):
            yield from (name for name in node.arg_names if name is not None)

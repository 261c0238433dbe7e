"""declax-path: paths of a State, by the fields of the class that it is of.

Vocabulary
----------
holder: the type whose values a State has: a declared class, or a container.
entry:  what is at one key of a holder's State: a nested State, a Variable, or another leaf.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mypy.maptype import map_instance_to_supertype
from mypy.nodes import CallExpr, ComparisonExpr, Context, IndexExpr, MemberExpr, NameExpr, Node, StrExpr, TypeInfo, Var
from mypy.plugin import AttributeContext, MethodContext
from mypy.subtypes import find_member
from mypy.types import (
    AnyType,
    Instance,
    NoneType,
    ProperType,
    TupleType,
    Type,
    TypeOfAny,
    UnionType,
    get_proper_type,
)

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.unset import members_assigned, names_set_by_calls
from declax.mypy_plugin.declared import ANY_NAME, DeclaredField, declared_fields, is_declared, sown_by, sown_in
from declax.mypy_plugin.expressions import literal, walk
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code, suggest
from declax.mypy_plugin.statuses import is_container, status_of
from declax.mypy_plugin.wording import text_of

PATH = error_code("declax-path", "A path of a State leads to nothing")

_ANY: Final = AnyType(TypeOfAny.special_form)
_LEAVES: Final = (*names.ARRAYS, "builtins.int", "builtins.float", "builtins.complex", "numpy.generic")


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    hooks.attribute(names.STATE, PATH, check_attribute)
    hooks.method(names.STATE, "__getitem__", PATH, check_item)
    hooks.method(names.STATE, "__setitem__", PATH, check_written)
    hooks.method(names.STATE, "__delitem__", PATH, check_written)


def check_attribute(ctx: AttributeContext, report: Report) -> Type | None:
    """The type of ``state.name``."""
    state, place = get_proper_type(ctx.type), ctx.context
    if not isinstance(state, Instance) or not isinstance(place, MemberExpr) or getattr(ctx, "is_lvalue", False):
        return None
    extra = state.extra_attrs
    if state.type.get(place.name) is not None or (extra is not None and place.name in extra.attrs):
        return None
    return _Lookup(state, ctx.api, report).entry(place.name, place)


def check_item(ctx: MethodContext, report: Report) -> Type | None:
    """The type of ``state[key]``."""
    state, place = get_proper_type(ctx.type), ctx.context
    if not isinstance(state, Instance) or not isinstance(place, IndexExpr):
        return None
    return _Lookup(state, ctx.api, report).entry(literal(place.index), place)


def check_written(ctx: MethodContext, report: Report) -> Type | None:
    """Checks the key of ``state[key] = value`` and of ``del state[key]``."""
    state = get_proper_type(ctx.type)
    if isinstance(state, Instance) and isinstance(ctx.context, (IndexExpr, CallExpr)):  # `del` is a call to mypy
        _Lookup(state, ctx.api, report).entry(literal(ctx.args[0][0]), ctx.context)
    return None


class _Lookup:
    """Finds what is at one key of a State."""

    def __init__(self, state: Instance, api: Any, report: Report) -> None:
        info = next(base for base in state.type.mro if base.fullname == names.STATE)
        self._state = map_instance_to_supertype(state, info)
        self._api = api
        self._report = report

    def entry(self, key: object, place: Context) -> Type | None:
        """The type of what is at a key; None where it is not known."""
        holder = get_proper_type(self._state.args[0]) if self._state.args else _ANY
        if isinstance(holder, UnionType):
            return None
        if isinstance(holder, TupleType):
            return self._item_of_tuple(holder, key, place)
        if not isinstance(holder, Instance):
            return None
        if holder.type.has_base(names.PYTREE) and not _has_elements(holder):
            return self._field(holder, key, place) if isinstance(key, (str, int)) else None
        return self._element(holder, key, place)

    def _field(self, holder: Instance, key: str | int, place: Context) -> Type | None:
        info = holder.type
        fields = declared_fields(info, self._api)
        field = fields.get(str(key))
        found = info.get(str(key))
        if field is not None and not field.is_init_var:
            if is_static(field):
                self._tell_static(holder, field, place)
                return None
        elif found is None or not isinstance(found.node, Var):
            if found is None and is_closed(info) and not self._may_be_kept(info, str(key)):
                self._tell_missing(holder, key, fields, place)
            return None
        member = find_member(str(key), holder, holder)
        return None if member is None else self._view(get_proper_type(member))

    def _tell_static(self, holder: Instance, field: DeclaredField, place: Context) -> None:
        name = holder.type.name
        self._report.error(
            f"State[{text_of(holder)}]: {name}.{field.name}: {text_of(field.type)} is static, and no State has it",
            place,
            fix=f"model.{field.name}        # static fields are part of the GraphDef",
        )

    def _tell_missing(self, holder: Instance, key: str | int, fields: dict[str, DeclaredField], place: Context) -> None:
        known = [name for name, field in fields.items() if not field.is_init_var and not is_static(field)]
        self._report.error(
            f"State[{text_of(holder)}]: {holder.type.name} has no field {key!r}{suggest(str(key), known)}",
            place,
            notes=[f"its data fields are {', '.join(known) or 'none'}"],
        )

    def _may_be_kept(self, info: TypeInfo, name: str) -> bool:
        """Whether something sows a value under a name, or sets an attribute from outside."""
        of_classes = {found for base in info.mro for found in sown_by(base)}
        if ANY_NAME in of_classes or name in of_classes:
            return True
        tree: Node = self._api.tree
        of_module = {*sown_in(tree), *names_set_by_calls(tree), *_names_asked(tree)}
        if ANY_NAME in of_module or name in of_module:
            return True
        return any(node.name == name and not self._is_of_state(node) for node in members_assigned(tree))

    def _is_of_state(self, node: MemberExpr) -> bool:
        """Whether an attribute is one of a State; what is assigned to a State is there only when it is in a model."""
        owner = self._api.lookup_type_or_none(node.expr)
        typ = None if owner is None else get_proper_type(owner)
        return isinstance(typ, Instance) and typ.type.has_base(names.STATE)

    def _element(self, holder: Instance, key: object, place: Context) -> Type | None:
        """What is at a key of a container."""
        is_sequence = holder.type.has_base("typing.Sequence")
        if not is_container(holder.type) and not _has_elements(holder):
            return None
        if is_sequence and isinstance(key, str):
            self._tell_index(holder, key, place)
            return None
        base = "typing.Sequence" if is_sequence else "typing.Mapping"
        found = next((info for info in holder.type.mro if info.fullname == base), None)
        if found is None:
            return None
        return self._view(get_proper_type(map_instance_to_supertype(holder, found).args[-1]))

    def _item_of_tuple(self, holder: TupleType, key: object, place: Context) -> Type | None:
        if holder.partial_fallback.type.fullname != "builtins.tuple" or any(map(_is_unpacked, holder.items)):
            return None
        if isinstance(key, int) and 0 <= key < len(holder.items):
            return self._view(get_proper_type(holder.items[key]))
        if isinstance(key, (str, int)):
            self._tell_index(holder, key, place)
        return None

    def _tell_index(self, holder: ProperType, key: object, place: Context) -> None:
        count = f"0 to {len(holder.items) - 1}" if isinstance(holder, TupleType) else "indices"
        self._report.error(f"State[{text_of(holder)}]: there is no {key!r}: its keys are {count}", place)

    def _view(self, typ: ProperType) -> Type | None:
        """The type of the entry that a value of a type becomes in a State."""
        if isinstance(typ, UnionType):
            parts = [get_proper_type(item) for item in typ.items]
            views = [self._view(part) for part in parts if not isinstance(part, NoneType)]
            known = [view for view in views if view is not None]
            return UnionType.make_union(known) if known and len(known) == len(views) else None
        if isinstance(typ, TupleType):
            return self._state.copy_modified(args=[typ])
        if not isinstance(typ, Instance) or typ.type.fallback_to_any:
            return None
        if typ.type.has_base(names.VARIABLE) or any(typ.type.has_base(leaf) for leaf in _LEAVES):
            return typ
        is_nested = typ.type.has_base(names.PYTREE) or is_container(typ.type)
        return self._state.copy_modified(args=[typ]) if is_nested else None


def _names_asked(tree: Node) -> Iterator[str]:
    """The names in ``hasattr(state, "name")`` and ``"name" in state``: what the program takes for possible."""
    for node in walk(tree):
        if isinstance(node, CallExpr) and isinstance(node.callee, NameExpr) and node.callee.name == "hasattr":
            yield from (arg.value for arg in node.args if isinstance(arg, StrExpr))
        elif isinstance(node, ComparisonExpr) and isinstance(node.operands[0], StrExpr) and "in" in node.operators:
            yield node.operands[0].value


def _has_elements(holder: Instance) -> bool:
    """Whether a type is `dx.List` or `dx.Dict`."""
    return holder.type.has_base(names.LIST) or holder.type.has_base(names.DICT)


def _is_unpacked(typ: Type) -> bool:
    return type(get_proper_type(typ)).__name__ == "UnpackType"


def is_static(field: DeclaredField) -> bool:
    """Whether a field is static for sure."""
    if field.specifier in ("static", "data"):
        return field.specifier == "static"
    if field.mark is not None:
        return field.mark == "static"
    return field.specifier is None and status_of(field.type) in ("static", "snapshot")


def is_closed(info: TypeInfo) -> bool:
    """Whether a class declares all that its instances have."""
    if not is_declared(info) or info.fallback_to_any or info.get("__getattr__") is not None:
        return False
    known = ("declax.", "builtins", "typing", "abc", "collections")
    return all(is_declared(base) or base.module_name.startswith(known) for base in info.mro)

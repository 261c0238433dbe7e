"""Attributes of Variables, and paths of States."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Final

from mypy.maptype import map_instance_to_supertype
from mypy.nodes import CallExpr, ComparisonExpr, Context, IndexExpr, MemberExpr, NameExpr, StrExpr, TypeInfo, Var
from mypy.plugin import AttributeContext, MethodContext
from mypy.subtypes import find_member
from mypy.types import AnyType, Instance, NoneType, ProperType, TupleType, Type, UnionType, UnpackType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks.declarations import members_assigned, names_set_by_calls
from declax.mypy_plugin.declared import ANY_NAME, declared_fields, is_closed, sown_by, sown_in
from declax.mypy_plugin.expressions import literal, nodes_in_module
from declax.mypy_plugin.reporting import Reporter, error_code, suggest, text_of
from declax.mypy_plugin.statuses import is_container, status_of

# --- declax-attribute: misspelt attributes of Variables, which to mypy have every attribute (metadata) ---

ATTRIBUTE = error_code("declax-attribute", "A Variable has no such attribute, but a similar one")

_NEAR: Final = 0.8
"""The similarity of two names (0 to 1) from which one counts as a misspelling."""

METADATA: Final = frozenset(
    (
        "on_get_value on_set_value on_create_value on_add_axis on_remove_axis sharding sharding_names out_sharding "
        "sharding_rules eager_sharding optimizer_sharding act_names mesh tag trainable weight_decay"
    ).split()
)
"""The metadata that declax uses."""


def check_variable(ctx: AttributeContext, report: Reporter) -> None:
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


# --- declax-path: paths of a State that the fields of its class do not have ------------------------------

PATH = error_code("declax-path", "A State has no such path")

_LEAVES: Final = (names.VARIABLE, *names.ARRAYS, "builtins.int", "builtins.float", "builtins.complex", "numpy.generic")


def check_attribute(ctx: AttributeContext, report: Reporter) -> Type | None:
    """The type of ``state.name``."""
    state, place = get_proper_type(ctx.type), ctx.context
    if not isinstance(state, Instance) or not isinstance(place, MemberExpr) or ctx.is_lvalue:
        return None
    extra = state.extra_attrs
    if state.type.get(place.name) is not None or (extra is not None and place.name in extra.attrs):
        return None
    return _Lookup(state, report).entry(place.name, place)


def check_item(ctx: MethodContext, report: Reporter) -> Type | None:
    """The type of ``state[key]``."""
    state, place = get_proper_type(ctx.type), ctx.context
    if not isinstance(state, Instance) or not isinstance(place, IndexExpr):
        return None
    return _Lookup(state, report).entry(literal(place.index), place)


def check_written(ctx: MethodContext, report: Reporter) -> None:
    """Checks the key of ``state[key] = value`` and of ``del state[key]``."""
    state = get_proper_type(ctx.type)
    if isinstance(state, Instance) and isinstance(ctx.context, (IndexExpr, CallExpr)):  # mypy makes `del` a call
        _Lookup(state, report).entry(literal(ctx.args[0][0]), ctx.context)


class _Lookup:
    """Finds the type of the entry at one key of a State; `holder` is the type of the model or container."""

    def __init__(self, state: Instance, report: Reporter) -> None:
        self._state = _by_path(state)
        self._report = report

    def entry(self, key: object, place: Context) -> Type | None:
        """The type of the entry at a key; None if it is unknown."""
        holder = get_proper_type(self._state.args[0]) if self._state.args else None
        while isinstance(holder, Instance) and _is_by_path(holder):  # the State of a State
            holder = get_proper_type(_by_path(holder).args[0])
        if isinstance(holder, TupleType):
            return self._item_of_tuple(holder, key, place)
        if not isinstance(holder, Instance):
            return None
        is_container_of_modules = holder.type.has_base(names.LIST) or holder.type.has_base(names.DICT)
        if is_container_of_modules or is_container(holder.type):
            return self._element(holder, key, place)
        is_node = holder.type.has_base(names.PYTREE) and isinstance(key, (str, int))
        return self._field(holder, str(key), place) if is_node else None

    def _field(self, holder: Instance, key: str, place: Context) -> Type | None:
        info = holder.type
        fields = declared_fields(info, self._report.api)
        field, found = fields.get(key), info.get(key)
        if found is None or (field is not None and field.is_init_var):
            if is_closed(info) and not self._may_be_kept(info, key):
                known = [name for name, one in fields.items() if not one.is_init_var and not one.is_static]
                self._tell(holder, f"{info.name} has no field {key!r}{suggest(key, known)}", place)
            return None
        if not isinstance(found.node, Var):
            return None
        typ = get_proper_type(find_member(key, holder, holder))
        is_static = field.is_static if field is not None else typ is not None and status_of(typ) == "static"
        if typ is not None and is_static:
            self._tell(holder, f"{info.name}.{key}: {text_of(typ)} is static, so States do not contain it", place)
            return None
        return None if typ is None else self._view(typ)

    def _tell(self, holder: ProperType, problem: str, place: Context) -> None:
        self._report.error(f"{self._state.type.name}[{text_of(holder)}]: {problem}", place)

    def _may_be_kept(self, info: TypeInfo, name: str) -> bool:
        """Whether code sows a value under a name, or sets an attribute from outside the class."""
        api = self._report.api
        kept = {*sown_by(info), *sown_in(nodes_in_module(api, CallExpr)), *names_set_by_calls(api), *_names_asked(api)}
        if {ANY_NAME, name} & kept:
            return True
        return any(node.name == name and not self._is_of_state(node) for node in members_assigned(api))

    def _is_of_state(self, node: MemberExpr) -> bool:
        """Whether an attribute belongs to a State, so that an assignment adds nothing to a model."""
        typ = get_proper_type(self._report.api.lookup_type_or_none(node.expr))
        return isinstance(typ, Instance) and _is_by_path(typ)

    def _element(self, holder: Instance, key: object, place: Context) -> Type | None:
        """The type of the entry at a key of a container."""
        is_sequence = holder.type.has_base("typing.Sequence")
        if is_sequence and isinstance(key, str):
            self._tell(holder, f"no entry {key!r}; the keys are indices", place)
            return None
        base = "typing.Sequence" if is_sequence else "typing.Mapping"
        found = next((info for info in holder.type.mro if info.fullname == base), None)
        return None if found is None else self._view(get_proper_type(map_instance_to_supertype(holder, found).args[-1]))

    def _item_of_tuple(self, holder: TupleType, key: object, place: Context) -> Type | None:
        if holder.partial_fallback.type.fullname != "builtins.tuple" or not isinstance(key, (str, int)):
            return None
        if any(isinstance(item, UnpackType) for item in holder.items):
            return None
        if isinstance(key, int) and 0 <= key < len(holder.items):
            return self._view(get_proper_type(holder.items[key]))
        self._tell(holder, f"no entry {key!r}; the keys are 0 to {len(holder.items) - 1}", place)
        return None

    def _view(self, typ: ProperType) -> Type | None:
        """The type that a State has at the key of a value of this type."""
        if isinstance(typ, UnionType):
            parts = [get_proper_type(item) for item in typ.items]
            views = [self._view(part) for part in parts if not isinstance(part, NoneType)]
            known = [view for view in views if view is not None]
            return UnionType.make_union(known) if known and len(known) == len(views) else None
        if isinstance(typ, TupleType):
            return self._state.copy_modified(args=[typ])
        if not isinstance(typ, Instance) or typ.type.fallback_to_any:
            return None
        if any(typ.type.has_base(leaf) for leaf in _LEAVES):
            return typ
        is_nested = typ.type.has_base(names.PYTREE) or is_container(typ.type)
        return self._state.copy_modified(args=[typ]) if is_nested else None


def _is_by_path(typ: Instance) -> bool:
    return any(typ.type.has_base(name) for name in names.BY_PATH)


def _by_path(typ: Instance) -> Instance:
    """The State or Branch that an instance of a subclass is."""
    return map_instance_to_supertype(typ, next(base for base in typ.type.mro if base.fullname in names.BY_PATH))


def _names_asked(api: Any) -> Iterator[str]:
    """The names in ``hasattr(state, "name")`` and ``"name" in state``, which the program expects to exist."""
    for call in nodes_in_module(api, CallExpr):
        if isinstance(call.callee, NameExpr) and call.callee.name == "hasattr":
            yield from (arg.value for arg in call.args if isinstance(arg, StrExpr))
    for node in nodes_in_module(api, ComparisonExpr):
        if isinstance(node.operands[0], StrExpr) and "in" in node.operators:
            yield node.operands[0].value

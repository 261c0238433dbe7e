"""Declared classes: their fields, values and parts, and the decorator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mypy.nodes import (
    GDEF,
    MDEF,
    AssignmentStmt,
    CallExpr,
    Decorator,
    ForStmt,
    MemberExpr,
    NameExpr,
    Node,
    OperatorAssignmentStmt,
    RefExpr,
    StrExpr,
    TypeInfo,
    WithStmt,
)
from mypy.plugin import FunctionContext
from mypy.subtypes import is_subtype
from mypy.types import AnyType, Instance, ProperType, Type, UnionType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import (
    ANY_NAME,
    RNGS,
    DeclaredClass,
    DeclaredField,
    declared_fields,
    has_made_constructor,
    is_declared,
    specifier_of,
)
from declax.mypy_plugin.drawing import LAYER_LINE, is_deferred
from declax.mypy_plugin.expressions import arguments_of, assigned_names, fullname_of, literal, nodes_in_module, walk
from declax.mypy_plugin.reporting import Reporter, error_code, text_of
from declax.mypy_plugin.statuses import holds_no_leaf, is_unhashable, status_of

# --- declax-field: a specifier, `Data` or `Static` that contradicts the annotation, or the argument of a call

FIELD = error_code("declax-field", "A field's status contradicts its annotation or an argument")

_DATA = "arrays, Variables and Pytrees are data"
_NO_DATA = "it contains no leaf that JAX accepts"


def check_statuses(cls: DeclaredClass, report: Reporter) -> None:
    """Checks the fields that the class itself declares."""
    for field in cls.own:
        found = None if field.statement is None else _contradiction(field)
        if found is not None and field.statement is not None:
            said, problem, right = found
            annotation = (
                text_of(field.type) if field.mark is None else f"dx.{field.mark.title()}[{text_of(field.type)}]"
            )
            report.error(
                f"{cls.name}.{field.name}: {said} contradicts the annotation {annotation}{problem}",
                field.statement,
                fix=f"{field.name}: {annotation if field.specifier else text_of(field.type)} = dx.{right}(...)",
            )


def _contradiction(field: DeclaredField) -> tuple[str, str, str] | None:
    """The contradicting specifier or mark, the reason, and the right specifier."""
    said, mark = field.specifier, field.mark
    if said == "static" and (mark == "data" or (mark is None and status_of(field.type) == "data")):
        return "static(...)", "" if mark else f": {_DATA}", "data"
    if said == "data" and (mark == "static" or (mark is None and holds_no_leaf(field.type))):
        return "data(...)", "" if mark else f": {_NO_DATA}", "static"
    if said in (None, "field") and mark == "static" and status_of(field.type) == "data":
        return "its type", f": {_DATA}", "data"
    return None


def check_call(info: TypeInfo, ctx: FunctionContext, report: Reporter) -> None:
    """Checks that a call passes no data to static fields."""
    # the fast path: most arguments are plain values
    if not any(_may_be_data(typ) for types in filter(None, ctx.arg_types) for typ in types):
        return
    fields = declared_fields(info, ctx.api) if has_made_constructor(info) else {}
    for name, given, types in zip(ctx.callee_arg_names, ctx.args, ctx.arg_types, strict=True):
        field = fields.get(name or "")
        for arg, typ in zip(given, types, strict=True):
            # the class reports a contradictory declaration
            if field is not None and _is_data_for_static(typ, field):
                report.error(
                    f"{info.name}(...): {name} is static, but {text_of(typ)} is data",
                    arg,
                    notes=["arrays, Variables and Pytrees must be data; jit compiles static values into the program"],
                    fix=None if info.module_name.startswith("declax.") else f"{name}: dx.Data[...]  # in {info.name}",
                )


def _may_be_data(typ: Type) -> bool:
    return isinstance(typ, Instance) and typ.type.module_name != "builtins" and typ.type.fullname != names.RNGS


def _is_data_for_static(typ: Type, field: DeclaredField) -> bool:
    if not isinstance(typ, Instance) or not any(base.fullname in names.DATA_BASES for base in typ.type.mro):
        return False
    is_static = field.is_static and not field.is_init_var and status_of(field.type) != "data"
    return is_static and is_subtype(typ, field.type)


# --- declax-unset: fields with `init=False` and no default that nothing sets -----------------------------

UNSET = error_code("declax-unset", "A field with init=False gets no value")


def check_unset(cls: DeclaredClass, report: Reporter) -> None:
    """Checks the fields that the class itself declares."""
    waiting = [
        field
        for field in cls.own
        if field.specifier not in (None, "variable", "submodule") and not field.in_init and not field.has_default
    ]
    if not waiting or not has_made_constructor(cls.info) or cls.info.is_abstract or _has_unread_base(cls.info):
        return
    assigned = {*(node.name for node in members_assigned(cls.api)), *names_set_by_calls(cls.api)}
    for field in waiting:
        if not {field.name, ANY_NAME} & assigned and field.statement is not None:
            report.error(
                f"{cls.name}.{field.name}: the constructor does not take it (init=False), and nothing sets it",
                field.statement,
                fix=f"self.{field.name} = ...    # in {cls.name}.__post_init__; or give the field a default",
            )


def _has_unread_base(info: TypeInfo) -> bool:
    """Whether a base from another module may set the field; the plugin cannot read its methods."""
    known = (info.module_name, "declax.", "builtins", "typing", "abc")
    return info.fallback_to_any or not all(base.module_name.startswith(known) for base in info.mro[1:])


def members_assigned(api: Any) -> Iterator[MemberExpr]:
    """The attributes that the statements of the module assign."""
    targets: list[Node | None] = [
        *(target for found in nodes_in_module(api, AssignmentStmt) for target in found.lvalues),
        *(found.lvalue for found in nodes_in_module(api, OperatorAssignmentStmt)),
        *(found.index for found in nodes_in_module(api, ForStmt)),
        *(target for found in nodes_in_module(api, WithStmt) for target in found.target),
    ]
    return (node for target in targets for node in walk(target) if isinstance(node, MemberExpr))


def names_set_by_calls(api: Any) -> Iterator[str]:
    """The names of attributes that calls set, such as `setattr`; `ANY_NAME` for a computed name."""
    if any(node.name == "__dict__" for node in nodes_in_module(api, MemberExpr)):
        yield ANY_NAME
    for call in nodes_in_module(api, CallExpr):
        name = call.callee.name if isinstance(call.callee, (MemberExpr, NameExpr)) else ""
        if name in ("setattr", "__setattr__", "vars"):
            yield next((arg.value for arg in call.args if isinstance(arg, StrExpr)), ANY_NAME)
        elif name == "set_attributes":
            yield from (named or ANY_NAME for named in call.arg_names)


# --- declax-undecorated: fields of a Pytree without `@dx.dataclass`, or with the standard decorator ------

UNDECORATED = error_code("declax-undecorated", "A Pytree declares fields without @dx.dataclass")


def check_specifier(ctx: FunctionContext, report: Reporter) -> None:
    """Checks the class whose body calls a specifier."""
    info = report.api.scope.active_class()
    if not isinstance(info, TypeInfo) or not info.has_base(names.PYTREE) or info.defn.decorators:
        return
    if "dataclass" in info.metadata or _is_made_otherwise(info, report):
        return
    values = {name: found.rvalue for name, found in assigned_names(info.defn.defs.body)}
    declared = [name for name, value in values.items() if specifier_of(value) is not None]
    if any(value is ctx.context for value in values.values()):
        report.error(
            f"{info.name} declares {', '.join(declared)} but is not decorated, so these are not fields",
            info.defn,
            fix=f"@dx.dataclass above class {info.name}",
        )


def _is_made_otherwise(info: TypeInfo, report: Reporter) -> bool:
    """Whether a base, a metaclass or a later call makes the class a dataclass."""
    own = [base for base in info.mro[1:] if not base.module_name.startswith(("declax.", "builtins", "typing", "abc"))]
    if (
        info.declared_metaclass is not None
        or info.defn.keywords
        or any("__init_subclass__" in base.names for base in own)
    ):
        return True
    calls = [call for call in nodes_in_module(report.api, CallExpr) if isinstance(call.callee, (RefExpr, CallExpr))]
    called = [call for call in calls if fullname_of(call.callee) not in ("builtins.isinstance", "builtins.issubclass")]
    return any(isinstance(arg, NameExpr) and arg.node is info for call in called for arg in call.args)


def check_decorated(cls: DeclaredClass, report: Reporter) -> None:
    """Checks a class with the standard decorator."""
    decorators = {fullname_of(d.callee if isinstance(d, CallExpr) else d): d for d in cls.info.defn.decorators}
    decorator = decorators.get(names.STANDARD_DATACLASS)
    if decorator is None:
        return
    specified = [field.name for field in cls.own if field.specifier not in (None, "standard")]
    if specified:
        problem = f"{', '.join(specified)}: the standard decorator does not know the specifiers of declax"
    elif cls.own and cls.info.has_base(names.MODULE) and literal(arguments_of(decorator).get("eq")) is not False:
        problem = "the standard decorator compares models by value, and removes their hash"
    else:
        return
    report.error(f"{cls.name}: {problem}", cls.info.defn, fix=f"@dx.dataclass above class {cls.name}")


# --- declax-part: expressions of a class body that read constants, and objects that all instances would share

PART = error_code("declax-part", "A part or Variable reads a constant, or all instances would share it")

_EXPLICIT_RNGS = "_: dx.KW_ONLY; rngs: dx.InitVar[dx.Rngs] = dx.field()"


def check_parts(cls: DeclaredClass, report: Reporter) -> None:
    """Checks the statements of a class body in order."""
    expressions: set[str] = set()
    for name, statement in assigned_names(cls.info.defn.defs.body):
        specifier, value = specifier_of(statement.rvalue), statement.rvalue
        read = [node for node in walk(value) if isinstance(node, (NameExpr, MemberExpr))]
        is_made = specifier == "variable" or any(_is_expression(cls, node, expressions) for node in read)
        calls = (node for node in walk(value) if isinstance(node, CallExpr))
        is_made = is_made or any(is_deferred(call, cls.info, cls.api) for call in calls)
        if specifier is not None or is_made:
            expressions.add(name)
        streams = [node for node in read if node.kind == GDEF and node.name == RNGS]
        if specifier not in (None, "variable"):
            continue
        if streams:
            is_layer = cls.info.has_base(names.LAYER)
            why = "a Layer passes its own" if is_layer else "the class declares none"
            fix = f"leave {RNGS}={RNGS} out" if is_layer else f"{LAYER_LINE.format(cls.name)}, without {RNGS}={RNGS}"
            report.error(f"{cls.name}.{name} reads {RNGS} from the module, since {why}", statement, fix=fix)
        elif is_made:
            _check_constants(cls, name, statement, [_constant_read(cls, node, expressions) for node in read], report)
        else:
            _check_shared(cls, name, statement, report)
    for field in cls.own:
        if field.statement is not None and specifier_of(field.statement.rvalue) == "variable":
            _check_variable(cls, field, report)
        elif field.name == RNGS and field.is_init_var and not field.kw_only:
            _check_keyword(cls, field, report)


def _is_expression(cls: DeclaredClass, node: NameExpr | MemberExpr, expressions: set[str]) -> bool:
    """Whether a name in a class body is a field, a part, or a function that declares one."""
    if node.fullname.startswith("declax._fields.deferring."):
        return True
    if isinstance(node, MemberExpr):  # `Base.dim`
        owner = _owner(node)
        return owner is not None and _constant_read(cls, node, expressions) is None
    return node.kind == MDEF and (node.name in expressions or isinstance(node.node, Decorator))


def _owner(node: MemberExpr) -> TypeInfo | None:
    """The Pytree class in an expression such as `Base.dim`."""
    owner = node.expr.node if isinstance(node.expr, RefExpr) else None
    return owner if isinstance(owner, TypeInfo) and owner.has_base(names.PYTREE) else None


def _constant_read(cls: DeclaredClass, node: NameExpr | MemberExpr, expressions: set[str]) -> DeclaredField | None:
    """The field without a specifier that a name in the class body, or `Base.rate`, reads as a constant."""
    if isinstance(node, MemberExpr):
        owner = _owner(node)
        field = None if owner is None else declared_fields(owner, cls.api).get(node.name)
        is_plain = field is not None and field.specifier is None and not field.is_init_var
        return field if field is not None and is_plain and field.is_constant else None
    field = cls.fields.get(node.name) if node.kind == MDEF and node.name not in expressions else None
    return field if not any(node.name in base.names for base in cls.info.mro[1:]) else None


def _check_constants(
    cls: DeclaredClass, name: str, statement: AssignmentStmt, read: list[DeclaredField | None], report: Reporter
) -> None:
    """Checks that an expression reads fields, not constants of the class body or of a base."""
    for field in filter(None, read):
        problem, right = "is a constant here, not the argument", "dx.field(default=...)"
        if not field.has_default:
            problem, right = "has no value in the class body", "dx.field()"
        fix = f"{field.name}: {text_of(field.type)} = {right}"
        if field.owner is cls.info and field.statement is not None:
            report.error(f"{cls.name}.{name} reads {field.name}, which {problem}", field.statement, fix=fix)
        elif field.owner in cls.info.mro:
            owner = field.owner.name
            text = f"{cls.name}.{name} reads {owner}.{field.name}, which {problem}"
            report.error(text, statement, fix=f"{fix}  # in {owner}")


def _check_shared(cls: DeclaredClass, name: str, statement: AssignmentStmt, report: Reporter) -> None:
    """Checks that a default is not a mutable object, which all instances would share."""
    typ = get_proper_type(cls.api.lookup_type_or_none(statement.rvalue))
    if not isinstance(typ, Instance) or typ.type.metadata.get("dataclass", {}).get("frozen"):
        return
    is_default = name in cls.fields and (is_unhashable(typ) or status_of(typ) == "data")
    if is_default or typ.type.has_base(names.PYTREE) or typ.type.has_base(names.VARIABLE):
        fix = f"{name}: {text_of(typ)} = dx.data(default_factory=lambda: ...)"
        report.error(f"{cls.name}.{name}: all instances would share this {text_of(typ)}", statement, fix=fix)


def _check_variable(cls: DeclaredClass, field: DeclaredField, report: Reporter) -> None:
    """Checks that a declared Variable has a matching annotation, and a random stream."""
    parts = map(get_proper_type, field.type.items if isinstance(field.type, UnionType) else [field.type])
    assert field.statement is not None
    if not any(isinstance(part, AnyType) or _is_variable(part) for part in parts):
        report.error(
            f"{cls.name}.{field.name}: variable(...) declares a Variable, but the annotation is {text_of(field.type)}",
            field.statement,
            fix=f"{field.name}: dx.Param[jax.Array] = dx.variable(...)",
        )
    stream = field.arguments.get("stream")
    is_drawn = stream is None or isinstance(literal(stream), str)
    if is_drawn and RNGS not in cls.fields and not cls.info.fallback_to_any:
        text = f"{cls.name}.{field.name}: a declared Variable draws a key, but the class has no {RNGS}"
        report.error(text, field.statement, fix=f"variable(..., stream=None), or {LAYER_LINE.format(cls.name)}")


def _is_variable(typ: ProperType) -> bool:
    return isinstance(typ, Instance) and (typ.type.has_base(names.VARIABLE) or typ.type.fallback_to_any)


def _check_keyword(cls: DeclaredClass, field: DeclaredField, report: Reporter) -> None:
    """Checks that `rngs` is keyword-only in a subclass if it is in a base."""
    for base in cls.info.mro[1:]:
        inherited = declared_fields(base, cls.api).get(RNGS) if is_declared(base) else None
        if inherited is not None and inherited.kw_only and field.statement is not None:
            text = f"{cls.name}.{RNGS} is positional, but {base.name}.{RNGS} is keyword-only"
            report.error(text, field.statement, fix=_EXPLICIT_RNGS)
            return

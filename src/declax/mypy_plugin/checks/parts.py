"""declax-part: what parts and Variables read, what makes them, and objects that all instances would share."""

from __future__ import annotations

from collections.abc import Iterable

from mypy.nodes import (
    GDEF,
    MDEF,
    AssignmentStmt,
    CallExpr,
    Decorator,
    FuncDef,
    MemberExpr,
    NameExpr,
    RefExpr,
    SuperExpr,
    TypeInfo,
)
from mypy.types import AnyType, Instance, ProperType, UnionType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.declared import RNGS, DeclaredClass, DeclaredField, declared_fields, is_declared
from declax.mypy_plugin.drawing import LAYER_LINE, is_deferred
from declax.mypy_plugin.expressions import RUN_NOW, assigned_names, literal, walk
from declax.mypy_plugin.reporting import Reporter, error_code, text_of
from declax.mypy_plugin.statuses import is_unhashable, status_of
from declax.mypy_plugin.terms import specifier_of

PART = error_code("declax-part", "A part or Variable reads a constant, or all instances would share it")

_EXPLICIT_RNGS = "_: dx.KW_ONLY; rngs: dx.InitVar[dx.Rngs] = dx.field()"


def check(cls: DeclaredClass, report: Reporter) -> None:
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
            own = [node for node in read if node.kind == MDEF or _owner(node) in cls.info.mro]
            _check_order(cls, name, own, report)
            _check_constants(cls, name, statement, [_constant_read(cls, node, expressions) for node in read], report)
        else:
            _check_shared(cls, name, statement, report)
    for field in cls.own:
        if field.statement is not None and specifier_of(field.statement.rvalue) == "variable":
            _check_variable(cls, field, report)
        elif field.name == RNGS and field.is_init_var and not field.kw_only:
            _check_keyword(cls, field, report)
    _check_init(cls, report)
    for node in cls.info.defn.defs.body:
        if isinstance(node, Decorator) and node.name in cls.parts:
            _check_method(cls, node.func, report)


def _is_expression(cls: DeclaredClass, node: NameExpr | MemberExpr, expressions: set[str]) -> bool:
    """Whether a name in a class body is a field, a part, or a function that declares one."""
    if node.fullname in names.DEFERRING:
        return True
    if isinstance(node, MemberExpr):  # `Base.dim`
        owner = _owner(node)
        return owner is not None and _constant_read(cls, node, expressions) is None
    return node.kind == MDEF and (node.name in expressions or isinstance(node.node, Decorator))


def _owner(node: NameExpr | MemberExpr) -> TypeInfo | None:
    """The Pytree class in an expression such as `Base.dim`."""
    owner = node.expr.node if isinstance(node, MemberExpr) and isinstance(node.expr, RefExpr) else None
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


def _check_init(cls: DeclaredClass, report: Reporter) -> None:
    """Checks that no ``__init__`` replaces the constructor, which makes the parts."""
    found = cls.info.names.get("__init__")
    own = [name for name in cls.parts if name in cls.info.names]
    if found is None or not isinstance(found.node, FuncDef) or found.plugin_generated or not own:
        return
    called = {node.name for node in walk(found.node.body) if isinstance(node, (MemberExpr, SuperExpr))}
    if called.isdisjoint(("__init__", "__post_init__")):
        report.error(
            f"{cls.name}.__init__ replaces the constructor that makes the parts, such as {own[0]}",
            found.node,
            fix="def __post_init__(self) -> None: ...        # fields and parts exist when it runs",
        )


def _check_method(cls: DeclaredClass, method: FuncDef, report: Reporter) -> None:
    """Checks what a method under `dx.submodule` takes, and that it reads what is made before."""
    where = f"{cls.name}.{method.name}"
    if RNGS in method.arg_names and RNGS not in cls.fields and not cls.info.fallback_to_any:
        fix = f"{LAYER_LINE.format(cls.name)}; or def {method.name}(self)"
        report.error(f"{where} takes {RNGS}, and the class has none", method, fix=fix)
    own = [node for node in walk(method.body, RUN_NOW) if isinstance(node, MemberExpr)]
    reads = [node for node in own if isinstance(node.expr, NameExpr) and node.expr.name == method.arg_names[0]]
    _check_order(cls, method.name, reads, report)


def _check_order(cls: DeclaredClass, name: str, reads: Iterable[NameExpr | MemberExpr], report: Reporter) -> None:
    """Checks that a part reads no part that is made later, unless the caller may give that one."""
    later = cls.parts[cls.parts.index(name) + 1 :] if name in cls.parts else ()
    for node in reads:
        field = cls.fields.get(node.name)
        if node.name in later and (field is None or not field.in_init):
            is_override = any(name in base.names for base in cls.info.mro[1:])
            fix = f"{name}_2 = ...        # made after the parts of the bases"
            problem = f"{cls.name}.{name} reads {node.name}, which is made later"
            report.error(problem, node, fix=fix if is_override else f"declare {node.name} before {name}")

"""declax-part: expressions of a class body that read constants, and objects that all instances would share."""

from __future__ import annotations

from mypy.nodes import GDEF, MDEF, AssignmentStmt, MemberExpr, NameExpr, RefExpr, TempNode, TypeInfo
from mypy.types import AnyType, Instance, ProperType, UnionType, get_proper_type

from declax.mypy_plugin import names
from declax.mypy_plugin.constructors import RNGS
from declax.mypy_plugin.declared import DeclaredClass, DeclaredField, declared_fields, is_declared, specifier_of
from declax.mypy_plugin.expressions import assigned_names, literal, walk
from declax.mypy_plugin.registry import Entry, Registry
from declax.mypy_plugin.reporting import Report, error_code, text_of
from declax.mypy_plugin.statuses import is_unhashable, status_of

PART = error_code("declax-part", "A part or Variable reads a constant, or all instances would share it")

_RNGS_LINES = "_: dx.KW_ONLY; rngs: dx.InitVar[dx.Rngs] = dx.field()"


def register(hooks: Registry) -> None:
    """Adds the check to its hook."""
    hooks.classes.append(Entry(check, PART))


def check(cls: DeclaredClass, report: Report) -> None:
    """Checks the statements of a class body in order."""
    expressions: set[str] = set()
    for name, statement in assigned_names(cls.info.defn.defs.body):
        specifier, value = specifier_of(statement.rvalue), statement.rvalue
        read = [node for node in walk(value) if isinstance(node, (NameExpr, MemberExpr))]
        is_made = specifier == "variable" or any(_is_expression(node, expressions) for node in read)
        if specifier is not None or is_made:
            expressions.add(name)
        streams = [node for node in read if node.kind == GDEF and node.name == RNGS]
        if specifier not in (None, "variable"):
            continue
        if streams:
            text = f"{cls.name}.{name} reads {RNGS} from the module, since the class declares none"
            report.error(text, statement, fix=_RNGS_LINES)
        elif is_made:
            _check_constants(cls, name, read, expressions, report)
        else:
            _check_shared(cls, name, statement, report)
    for field in cls.own:
        if field.specifier == "variable":
            _check_variable(cls, field, report)
        elif field.name == RNGS and field.is_init_var and not field.kw_only:
            _check_keyword(cls, field, report)


def _is_expression(node: NameExpr | MemberExpr, expressions: set[str]) -> bool:
    """Whether a name in a class body is a field, a part, or a function that declares one."""
    if isinstance(node, MemberExpr):  # `Base.dim`
        owner = node.expr.node if isinstance(node.expr, RefExpr) else None
        return isinstance(owner, TypeInfo) and owner.has_base(names.PYTREE)
    is_read = node.kind == MDEF and node.name in expressions
    return is_read or node.fullname.startswith("declax._fields.expressions.")


def _check_constants(
    cls: DeclaredClass, name: str, read: list[NameExpr | MemberExpr], expressions: set[str], report: Report
) -> None:
    """Checks that an expression reads fields, not constants of the class body."""
    body = dict(assigned_names(cls.info.defn.defs.body))
    for node in read:
        constant = body.get(node.name) if isinstance(node, NameExpr) and node.kind == MDEF else None
        is_inherited = any(node.name in base.names for base in cls.info.mro[1:])
        if constant is None or node.name in expressions or node.name not in cls.fields or is_inherited:
            continue
        problem, right = "is a constant here, not the argument", "dx.field(default=...)"
        if isinstance(constant.rvalue, TempNode):
            problem, right = "has no value in the class body", "dx.field()"
        fix = f"{node.name}: {text_of(cls.fields[node.name].type)} = {right}"
        report.error(f"{cls.name}.{name} reads {node.name}, which {problem}", constant, fix=fix)


def _check_shared(cls: DeclaredClass, name: str, statement: AssignmentStmt, report: Report) -> None:
    """Checks that a default is not a mutable object, which all instances would share."""
    typ = cls.type_of(statement.rvalue)
    if not isinstance(typ, Instance) or typ.type.metadata.get("dataclass", {}).get("frozen"):
        return
    is_default = name in cls.fields and (is_unhashable(typ) or status_of(typ) == "data")
    if is_default or typ.type.has_base(names.PYTREE) or typ.type.has_base(names.VARIABLE):
        fix = f"{name}: {text_of(typ)} = dx.data(default_factory=lambda: ...)"
        report.error(f"{cls.name}.{name}: all instances would share this {text_of(typ)}", statement, fix=fix)


def _check_variable(cls: DeclaredClass, field: DeclaredField, report: Report) -> None:
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
        report.error(text, field.statement, fix=f"{_RNGS_LINES}; or variable(..., stream=None)")


def _is_variable(typ: ProperType) -> bool:
    return isinstance(typ, Instance) and (typ.type.has_base(names.VARIABLE) or typ.type.fallback_to_any)


def _check_keyword(cls: DeclaredClass, field: DeclaredField, report: Report) -> None:
    """Checks that `rngs` is keyword-only in a subclass if it is in a base."""
    for base in cls.info.mro[1:]:
        inherited = declared_fields(base, cls.api).get(RNGS) if is_declared(base) else None
        if inherited is not None and inherited.kw_only and field.statement is not None:
            text = f"{cls.name}.{RNGS} is positional, but {base.name}.{RNGS} is keyword-only"
            report.error(text, field.statement, fix=_RNGS_LINES)
            return

"""The declared classes of a program. Declarations are in mypy's metadata of a class, which mypy caches."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any, Final

from mypy.expandtype import expand_type_by_instance
from mypy.fixup import TypeFixer
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import (
    GDEF,
    MDEF,
    AssignmentStmt,
    CallExpr,
    ClassDef,
    Decorator,
    Expression,
    FloatExpr,
    IntExpr,
    MemberExpr,
    NameExpr,
    Node,
    RefExpr,
    StrExpr,
    SymbolTableNode,
    TempNode,
    TypeInfo,
    UnaryExpr,
    Var,
)
from mypy.plugin import ClassDefContext
from mypy.server.trigger import make_wildcard_trigger
from mypy.types import Instance, LiteralType, ProperType, Type, UnboundType, deserialize_type, get_proper_type
from mypy.typevars import fill_typevars

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import arguments_of, assigned_names, literal, own_fields, walk
from declax.mypy_plugin.statuses import describes_behaviour, status_of
from declax.mypy_plugin.terms import specifier_of, terms_in

RNGS: Final = "rngs"
"""The parameter for random streams."""

ANY_NAME: Final = "*"
"""A name that is computed at run time."""


def note_declaration(ctx: ClassDefContext) -> None:
    """Stores the declaration of a class in its metadata, after mypy has made it a dataclass."""
    declared = [  # a list, since mypy's cache sorts the keys of dicts
        {
            "name": name,
            "specifier": specifier_of(found.rvalue),
            "mark": _mark_of(found, ctx.api),
            "is_constant": _is_constant(found.rvalue),
            "has_value": not isinstance(found.rvalue, TempNode),
            "flag": flag_of(_default_of(found.rvalue)),
        }
        for name, found in own_fields(ctx.cls)
    ]
    terms, made, sown = terms_in(ctx.cls), list(_made_in(ctx.cls)), sorted(set(sown_in(walk(ctx.cls.defs))))
    _note_parts(ctx.cls.info, terms)
    ctx.cls.info.metadata[names.METADATA] = {"fields": declared, "sown": sown, "made": made, "terms": terms}
    if _has_triggers(ctx.api):
        _note_digest(ctx)


# --- what the daemon checks again after a change ---------------------------------------------------------

_DIGEST: Final = "__declax_digest__"
"""The attribute of a class whose type changes with its declaration, so that mypy sees the change."""


def _has_triggers(api: Any) -> bool:
    return bool(api.options.fine_grained_incremental or api.options.cache_fine_grained)


def _note_digest(ctx: ClassDefContext) -> None:
    """Gives a class its digest, with those of its bases and of the classes of its parts."""
    info = ctx.cls.info
    made = [entry["class"] for entry in info.metadata[names.METADATA]["made"] if "class" in entry]
    parts = map(ctx.api.lookup_fully_qualified_or_none, made)
    others = [*info.mro[1:], *(part.node for part in parts if part is not None and isinstance(part.node, TypeInfo))]
    for other in others:
        ctx.api.add_plugin_dependency(make_wildcard_trigger(other.fullname))
    fields = [{**field, "line": 0, "column": 0} for field in info.metadata["dataclass"]["attributes"]]
    said = [fields, info.metadata["dataclass"]["frozen"], info.metadata[names.METADATA], *map(_digest_of, others)]
    digest = LiteralType(zlib.crc32(json.dumps(said).encode()), ctx.api.named_type("builtins.int", []))
    var = Var(_DIGEST, digest)
    var.info = info
    var._fullname = f"{info.fullname}.{_DIGEST}"
    info.names[_DIGEST] = SymbolTableNode(MDEF, var, plugin_generated=True)


def _digest_of(info: TypeInfo) -> int | None:
    found = info.names.get(_DIGEST)
    digest = found.node.type if found is not None and isinstance(found.node, Var) else None
    return digest.value if isinstance(digest, LiteralType) and isinstance(digest.value, int) else None


def depend_on(info: TypeInfo, api: Any) -> None:
    """Makes the daemon check what is checked now again, when the declaration of a class changes."""
    if _has_triggers(api):
        target = api.tscope.current_target()
        for base in info.mro:
            api.tree.plugin_deps.setdefault(make_wildcard_trigger(base.fullname), set()).add(target)


def _note_parts(info: TypeInfo, terms: Iterable[str]) -> None:
    """Makes the parts without annotations attributes of instances: functions among them are no methods."""
    for symbol in filter(None, map(info.names.get, terms)):
        if isinstance(symbol.node, Decorator):
            symbol.node.var.is_initialized_in_class = False
        elif isinstance(symbol.node, Var) and symbol.node.is_inferred:
            symbol.node.is_initialized_in_class = False


def _default_of(value: Expression) -> Expression | None:
    return value if specifier_of(value) is None else arguments_of(value).get("default")


def flag_of(value: Expression | None) -> bool | None:
    """The value of a bool literal; None for other expressions."""
    found = literal(value)
    return found if isinstance(found, bool) else None


def _made_in(defn: ClassDef) -> Iterator[dict[str, Any]]:
    """The Variables and the calls of classes that a class body gives a name; see `drawing`."""
    for name, statement in assigned_names(defn.defs.body):
        call = statement.rvalue
        if not isinstance(call, CallExpr) or any(kind.is_star() for kind in call.arg_kinds):
            continue
        given = arguments_of(call)
        target = call.callee.node if isinstance(call.callee, RefExpr) else None
        if specifier_of(call) == "variable":
            when, stream = given.get("when"), given.get("stream")
            flag = None if when is None else _name_of_flag(when)
            is_certain = when is None or flag_of(when) is True
            if (stream is None or isinstance(literal(stream), str)) and (is_certain or flag is not None):
                yield {"name": name, "when": flag}
        elif isinstance(target, TypeInfo):
            flags = [flag_of(value) for key, value in given.items() if key.startswith("*")]
            named = {key: flag_of(value) for key, value in given.items() if not key.startswith("*")}
            yield {
                "name": name,
                "class": target.fullname,
                "positional": flags,
                "named": named,
                "passes_rngs": isinstance(given.get(RNGS), NameExpr),
            }


def _name_of_flag(when: Expression) -> str | None:
    """The name of a field in a condition that is nothing else: ``use_bias`` or ``Base.use_bias``."""
    if isinstance(when, NameExpr) and when.kind != GDEF:
        return when.name if flag_of(when) is None else None
    owner = when.expr.node if isinstance(when, MemberExpr) and isinstance(when.expr, RefExpr) else None
    return when.name if isinstance(when, MemberExpr) and isinstance(owner, TypeInfo) else None


def sown_in(nodes: Iterator[Node] | list[CallExpr]) -> Iterator[str]:
    """The names in calls of ``sow`` and ``perturb``; `ANY_NAME` for a computed name."""
    for node in nodes:
        callee = node.callee if isinstance(node, CallExpr) else None
        if isinstance(node, CallExpr) and isinstance(callee, MemberExpr) and callee.name in ("sow", "perturb"):
            named = [arg.value for arg in node.args[:2] if isinstance(arg, StrExpr)]
            yield named[-1] if named else ANY_NAME


def sown_by(info: TypeInfo) -> set[str]:
    """The names that the methods of a class pass to ``sow`` and ``perturb``; see `sown_in`."""
    return {name for base in info.mro for name in base.metadata.get(names.METADATA, {}).get("sown", ())}


def _is_constant(value: Expression) -> bool:
    """Whether a field has no default, or one that is certainly not an expression."""
    if specifier_of(value) is not None:
        return all(_is_constant(default) for name, default in arguments_of(value).items() if name == "default")
    value = value.expr if isinstance(value, UnaryExpr) else value
    is_literal = isinstance(value, (TempNode, IntExpr, FloatExpr, StrExpr))
    return is_literal or (isinstance(value, RefExpr) and value.kind == GDEF)


def _mark_of(statement: AssignmentStmt, api: Any) -> str | None:
    annotation = statement.unanalyzed_type
    last = annotation.name.rpartition(".")[2] if isinstance(annotation, UnboundType) else ""
    if not isinstance(annotation, UnboundType) or last not in ("Data", "Static"):
        return None
    found = api.lookup_qualified(annotation.name, annotation, suppress_errors=True)
    # mypy analyses a class in a function without the names around it
    return last.lower() if found is None else names.MARKS.get(found.fullname or "")


class DeclaredField:
    """One field of a declared class.

    Attributes:
      owner: the class that declares it.
      specifier: "field", "data", "static", "variable", "submodule", "standard" (`dataclasses.field`), or None.
      mark: "data" or "static" if the annotation is ``dx.Data`` or ``dx.Static``.
      is_constant: whether it has no default, or one that is certainly not an expression.
      in_init: whether the constructor takes it.
      kw_only: whether the constructor takes it by name only.
      statement: its declaration, if the class is in the checked module.
    """

    def __init__(self, cls: DeclaredClass, attribute: dict[str, Any], statement: AssignmentStmt | None) -> None:
        self._cls = cls
        self._attribute = attribute
        self.name: str = attribute["name"]
        owner, entry = cls.declared_by(self.name)
        self.owner: TypeInfo = owner
        self.specifier: str | None = entry.get("specifier")
        self.mark: str | None = entry.get("mark")
        self.is_constant: bool = entry.get("is_constant", False)
        self.is_init_var: bool = attribute["is_init_var"] or (self.name == RNGS and owner.fullname == names.LAYER)
        self.has_default: bool = attribute["has_default"]
        self.in_init: bool = attribute["is_in_init"]
        self.kw_only: bool = attribute["kw_only"]
        self.statement: AssignmentStmt | None = statement if self.owner is cls.info else None

    @cached_property
    def type(self) -> ProperType:
        """Its type, with the type variables of bases filled in."""
        node = self.owner.names.get(self.name)
        found: Type | None = node.node.type if node is not None and isinstance(node.node, Var) else None
        if found is None:  # an InitVar, which is not an attribute of the class
            found = deserialize_type(self._attribute["type"])
            found.accept(TypeFixer(self._cls.api.modules, allow_missing=True))
            return get_proper_type(found)
        receiver = fill_typevars(self._cls.info)
        if self.owner is not self._cls.info and isinstance(receiver, Instance):
            found = expand_type_by_instance(found, map_instance_to_supertype(receiver, self.owner))
        return get_proper_type(found)

    @property
    def is_static(self) -> bool:
        """Whether it is certainly static."""
        said = self.specifier if self.specifier in ("static", "data") else self.mark
        if said is not None:
            return said == "static"
        if not self.is_constant and describes_behaviour(self.type):  # a part is data
            return False
        return self.specifier in (None, "field") and status_of(self.type) in ("static", "snapshot")

    @cached_property
    def arguments(self) -> dict[str, Expression]:
        """The arguments of its specifier by name."""
        return {} if self.statement is None or self.specifier is None else arguments_of(self.statement.rvalue)


class DeclaredClass:
    """A class decorated with ``@dx.dataclass``.

    Attributes:
      info: mypy's description of it.
      api: mypy's checker.
    """

    def __init__(self, info: TypeInfo, api: Any) -> None:
        self.info = info
        self.api = api
        self.metadata: dict[str, Any] | None = info.metadata.get("dataclass")

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.info.name

    @cached_property
    def _declarations(self) -> list[tuple[TypeInfo, dict[str, dict[str, Any]]]]:
        """The declarations of the class and its bases, in method resolution order."""
        bases = [base for base in self.info.mro if names.METADATA in base.metadata]
        return [(base, {entry["name"]: entry for entry in base.metadata[names.METADATA]["fields"]}) for base in bases]

    def declared_by(self, name: str) -> tuple[TypeInfo, dict[str, Any]]:
        """The class that declares a field, and the declaration; an annotation alone keeps the value of a base."""
        found = [(base, declaration[name]) for base, declaration in self._declarations if name in declaration]
        if found:
            owner, entry = found[0]
            valued = next((other for _, other in found if other["has_value"]), entry)
            return owner, {**valued, "mark": entry["mark"]}
        standard = [base for base in self.info.mro if name in base.names and "dataclass" in base.metadata]
        return (standard[-1] if standard else self.info), {}

    @cached_property
    def fields(self) -> dict[str, DeclaredField]:
        """All fields and InitVars by name, those of bases first, in the order of declaration."""
        attributes = {
            found["name"]: found for found in (self.metadata or {}).get("attributes", ()) if found["name"] != "_"
        }
        order: dict[str, None] = {}
        for _, declaration in reversed(self._declarations):
            order.update(dict.fromkeys(declaration))
        own = dict(own_fields(self.info.defn))
        in_order = [name for name in dict.fromkeys([*order, *attributes]) if name in attributes]
        return {name: DeclaredField(self, attributes[name], own.get(name)) for name in in_order}

    @property
    def made(self) -> Iterator[tuple[TypeInfo, dict[str, Any]]]:
        """The Variables and calls of classes that the constructor makes, in order, each with its class."""
        for base, _ in reversed(self._declarations):
            entries: list[dict[str, Any]] = base.metadata[names.METADATA]["made"]
            yield from ((base, entry) for entry in entries if self._binds(base, entry["name"]))

    def flag(self, name: str) -> bool | None:
        """The default of a field, if it is a bool literal."""
        owner, entry = self.declared_by(name)
        return entry.get("flag") if self._binds(owner, name) else None

    def _binds(self, base: TypeInfo, name: str) -> bool:
        """Whether a name is that of this base, and no class before it in the MRO has the name."""
        return base is next((other for other in self.info.mro if name in other.names), None)

    @property
    def terms(self) -> list[str]:
        """The names of terms in the class body."""
        found: list[str] = self.info.metadata[names.METADATA]["terms"]
        return found

    @cached_property
    def parts(self) -> list[str]:
        """The names of the parts and Variables, in the order in which the constructor makes them."""
        order: dict[str, None] = {}
        for base, declaration in reversed(self._declarations):
            for name in base.metadata[names.METADATA]["terms"]:
                if declaration.get(name, {}).get("specifier") not in ("field", "data", "static"):
                    order.setdefault(name)
        return list(order)

    @cached_property
    def own(self) -> list[DeclaredField]:
        """The fields that the class itself declares."""
        return [field for field in self.fields.values() if field.owner is self.info]


def is_declared(info: TypeInfo) -> bool:
    """Whether the class itself (not only a base) is decorated with ``@dx.dataclass``."""
    return names.METADATA in info.metadata and "dataclass" in info.metadata


def is_closed(info: TypeInfo) -> bool:
    """Whether a class declares all attributes of its instances."""
    if not is_declared(info) or info.fallback_to_any or info.get("__getattr__") is not None:
        return False
    known = ("declax.", "builtins", "typing", "abc", "collections")
    return all(is_declared(base) or base.module_name.startswith(known) for base in info.mro)


def has_made_constructor(info: TypeInfo) -> bool:
    """Whether the constructor was generated from the fields."""
    found = info.get("__init__")
    return found is not None and found.plugin_generated


_kept: dict[int, DeclaredClass] = {}
"""The classes of the checked module; in the daemon, only the last class."""


def declared_class(info: TypeInfo, api: Any) -> DeclaredClass:
    """The declared class of this description."""
    depend_on(info, api)
    found = _kept.get(id(info))
    # the daemon keeps the TypeInfo of a changed class, and replaces its metadata
    if found is not None and found.api is api and found.metadata is info.metadata.get("dataclass"):
        return found
    if api.options.fine_grained_incremental or any(kept.api is not api for kept in islice(_kept.values(), 1)):
        _kept.clear()
    _kept[id(info)] = DeclaredClass(info, api)
    return _kept[id(info)]


def nearest_declared(info: TypeInfo, api: Any) -> DeclaredClass | None:
    """The first declared class in the MRO."""
    depend_on(info, api)
    nearest = next((base for base in info.mro if is_declared(base)), None)
    return None if nearest is None else declared_class(nearest, api)


def declared_fields(info: TypeInfo, api: Any) -> dict[str, DeclaredField]:
    """The fields of the first declared class in the MRO; empty if there is none."""
    cls = nearest_declared(info, api)
    return {} if cls is None else cls.fields

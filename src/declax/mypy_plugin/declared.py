"""What a class declares, as mypy sees it.

Vocabulary
----------
declaration: what the plugin keeps of a class in its metadata, which mypy's cache carries to other modules.
own:         of a field, that the class itself declares it and no base does.
mark:        ``dx.Data[...]`` or ``dx.Static[...]`` around an annotation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any, Final

from mypy.expandtype import expand_type_by_instance
from mypy.fixup import TypeFixer
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import AssignmentStmt, CallExpr, Expression, MemberExpr, Node, RefExpr, StrExpr, TypeInfo, Var
from mypy.plugin import ClassDefContext
from mypy.types import Instance, ProperType, Type, UnboundType, deserialize_type, get_proper_type
from mypy.typevars import fill_typevars

from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import arguments_of, literal, members_in, own_fields, walk

KEY: Final = "declax"
"""The plugin's entry in the metadata of a class."""

_POSITIONAL: Final = {"variable": ("shape",), "submodule": ("build",)}


def note_declaration(ctx: ClassDefContext) -> None:
    """Puts what a class declares into its metadata; runs when mypy has made the class a dataclass."""
    declared: list[dict[str, Any]] = []  # and no dict, whose keys the cache would sort
    for name, statement in own_fields(ctx.cls):
        call = specifier_call(statement)
        declared.append(
            {
                "name": name,
                "specifier": None if call is None else specifier_kind(call),
                "mark": _mark_of(statement, ctx.api),
            }
        )
    keeps = any(member.name in _KEEPING for member in members_in(ctx.cls.defs))
    ctx.cls.info.metadata[KEY] = {"fields": declared, "sown": sorted(set(sown_in(ctx.cls.defs))) if keeps else []}


def declaration_of(info: TypeInfo) -> dict[str, dict[str, Any]]:
    """What a class itself declares, by the names of its fields and in their order."""
    return {entry["name"]: entry for entry in info.metadata.get(KEY, {}).get("fields", ())}


_KEEPING: Final = ("sow", "perturb")

ANY_NAME: Final = "*"
"""Stands for a name that is not known before the program runs."""


def sown_in(tree: Node) -> Iterator[str]:
    """The names under which code keeps values by ``sow`` and ``perturb``; `ANY_NAME` for one that is computed."""
    for node in walk(tree):
        if isinstance(node, CallExpr) and isinstance(node.callee, MemberExpr) and node.callee.name in _KEEPING:
            named = [arg.value for arg in node.args[:2] if isinstance(arg, StrExpr)]
            yield named[-1] if named else ANY_NAME


def sown_by(info: TypeInfo) -> list[str]:
    """The names under which the methods of a declared class itself keep values; see `sown_in`."""
    found: list[str] = info.metadata.get(KEY, {}).get("sown", [])
    return found


def note_hash(ctx: ClassDefContext) -> None:
    """Puts into the metadata of a standard dataclass that its instances have no hash, which is so unless it is said."""
    given = ctx.reason.args if isinstance(ctx.reason, CallExpr) else []
    named = ctx.reason.arg_names if isinstance(ctx.reason, CallExpr) else []
    said = {name: literal(arg) for name, arg in zip(named, given, strict=True)}
    is_kept = said.get("frozen", False) or said.get("unsafe_hash", False) or not said.get("eq", True)
    if not is_kept and "__hash__" not in ctx.cls.info.names:
        ctx.cls.info.metadata[KEY] = {"hash": False}


def specifier_call(statement: AssignmentStmt) -> CallExpr | None:
    """The call of a specifier that stands behind an annotation."""
    value = statement.rvalue
    return value if isinstance(value, CallExpr) and specifier_kind(value) is not None else None


def specifier_kind(call: CallExpr) -> str | None:
    """Which specifier a call is of: data, static, variable, submodule, field; None for any other call."""
    return names.SPECIFIERS.get(call.callee.fullname) if isinstance(call.callee, RefExpr) else None


def _mark_of(statement: AssignmentStmt, api: Any) -> str | None:
    annotation = statement.unanalyzed_type
    if not isinstance(annotation, UnboundType):
        return None
    last = annotation.name.rpartition(".")[2]
    if last not in ("Data", "Static"):
        return None
    found = api.lookup_qualified(annotation.name, annotation, suppress_errors=True)
    # a class in a function is analysed where the names around it are gone
    return last.lower() if found is None else names.MARKS.get(found.fullname or "")


class DeclaredField:
    """One field of a declared class.

    Attributes:
      name: its name.
      owner: the class that declares it.
      specifier: "data", "static", "variable", "submodule", "field" (of the standard), or None.
      mark: "data" or "static" where the annotation is ``dx.Data`` or ``dx.Static``.
      in_init: whether the constructor takes it.
      is_init_var: whether it is an ``InitVar``.
      has_default: whether it has a default.
      kw_only: whether the constructor takes it by name only.
      statement: its declaration, where the class is in the module that is being checked.
    """

    def __init__(self, cls: DeclaredClass, attribute: dict[str, Any], statement: AssignmentStmt | None) -> None:
        self._cls = cls
        self._attribute = attribute
        self.name: str = attribute["name"]
        owner, entry = _declared_by(self.name, cls)
        self.owner: TypeInfo = owner
        self.specifier: str | None = entry.get("specifier")
        self.mark: str | None = entry.get("mark")
        self.in_init: bool = attribute["is_in_init"]
        self.is_init_var: bool = attribute["is_init_var"]
        self.has_default: bool = attribute["has_default"]
        self.kw_only: bool = attribute["kw_only"]
        self.statement: AssignmentStmt | None = statement if self.owner is cls.info else None

    @cached_property
    def type(self) -> ProperType:
        """Its type, with the type variables of bases filled in."""
        return _type_of(self.name, self._attribute, self._cls.info, self.owner, self._cls.api)

    @property
    def is_made(self) -> bool:
        """Whether the object makes it: a declared Variable or submodule."""
        return self.specifier in ("variable", "submodule")

    @cached_property
    def call(self) -> CallExpr | None:
        """The call of its specifier."""
        return None if self.statement is None else specifier_call(self.statement)

    @cached_property
    def arguments(self) -> dict[str, Expression]:
        """The arguments of its specifier by name."""
        return {} if self.call is None else arguments_of(self.call, _POSITIONAL.get(self.specifier or "", ()))


class DeclaredClass:
    """A class under ``@dx.dataclass``.

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
        """Its name, as messages say it."""
        return self.info.name

    @cached_property
    def declarations(self) -> list[tuple[TypeInfo, dict[str, dict[str, Any]]]]:
        """What the class and its bases declare, in the order in which attributes are looked up."""
        return [(base, declaration_of(base)) for base in self.info.mro if KEY in base.metadata]

    @cached_property
    def fields(self) -> dict[str, DeclaredField]:
        """All its fields and InitVars by name, in declaration order, those of bases first."""
        return {field.name: field for field in _fields_of(self)}

    @cached_property
    def own(self) -> list[DeclaredField]:
        """The fields that the class itself declares."""
        return [field for field in self.fields.values() if field.owner is self.info]

    @property
    def is_complete(self) -> bool:
        """Whether all bases are known, so that a name that is not among the fields is none."""
        return not self.info.fallback_to_any

    @property
    def makes_constructor(self) -> bool:
        """Whether the constructor is the one that is made from the fields."""
        found = self.info.get("__init__")
        return found is not None and found.plugin_generated

    def type_of(self, expr: Expression) -> ProperType | None:
        """The type that mypy found for an expression in the class's body."""
        found = self.api.lookup_type_or_none(expr)
        return None if found is None else get_proper_type(found)


def is_declared(info: TypeInfo) -> bool:
    """Whether a class is under ``@dx.dataclass`` itself (not only a base of it)."""
    return "fields" in info.metadata.get(KEY, ()) and "dataclass" in info.metadata


_kept: dict[int, DeclaredClass] = {}
"""The classes that were asked for while one module is checked; in the daemon only the last one."""


def declared_class(info: TypeInfo, api: Any) -> DeclaredClass:
    """The declared class of this description."""
    found = _kept.get(id(info))
    # the daemon keeps the description of a class that changes, and gives it new metadata
    if found is not None and found.api is api and found.metadata is info.metadata.get("dataclass"):
        return found
    if api.options.fine_grained_incremental or any(kept.api is not api for kept in islice(_kept.values(), 1)):
        _kept.clear()
    _kept[id(info)] = DeclaredClass(info, api)
    return _kept[id(info)]


def declared_fields(info: TypeInfo, api: Any) -> dict[str, DeclaredField]:
    """The fields of the nearest declared class among a class and its bases; empty where there is none."""
    nearest = next((base for base in info.mro if is_declared(base)), None)
    return {} if nearest is None else declared_class(nearest, api).fields


def _fields_of(cls: DeclaredClass) -> Iterator[DeclaredField]:
    attributes = {found["name"]: found for found in cls.info.metadata.get("dataclass", {}).get("attributes", ())}
    attributes.pop("_", None)  # KW_ONLY
    own = dict(own_fields(cls.info.defn))
    for name in _in_order(cls, attributes):
        yield DeclaredField(cls, attributes[name], own.get(name))


def _in_order(cls: DeclaredClass, attributes: dict[str, Any]) -> list[str]:
    """The names as they are declared; mypy keeps keyword-only fields behind the others."""
    order: dict[str, None] = {}
    for _, declaration in reversed(cls.declarations):
        order.update(dict.fromkeys(declaration))
    return [*(name for name in order if name in attributes), *(name for name in attributes if name not in order)]


def _declared_by(name: str, cls: DeclaredClass) -> tuple[TypeInfo, dict[str, Any]]:
    """The class that declares a field, and what it declares."""
    for base, declaration in cls.declarations:
        if name in declaration:
            return base, declaration[name]
    mro = cls.info.mro
    return next((base for base in reversed(mro) if name in base.names and "dataclass" in base.metadata), cls.info), {}


def _type_of(name: str, attribute: dict[str, Any], info: TypeInfo, owner: TypeInfo, api: Any) -> ProperType:
    node = owner.names.get(name)
    found: Type | None = node.node.type if node is not None and isinstance(node.node, Var) else None
    if found is None:  # an InitVar, which is no attribute of the class
        found = deserialize_type(attribute["type"])
        found.accept(TypeFixer(api.modules, allow_missing=True))
        return get_proper_type(found)
    receiver = fill_typevars(info)
    if owner is not info and isinstance(receiver, Instance):
        found = expand_type_by_instance(found, map_instance_to_supertype(receiver, owner))
    return get_proper_type(found)

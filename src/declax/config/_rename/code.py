"""The uses of a field in Python: attributes, names in class bodies, keywords of calls, patterns, names in strings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from mypy.nodes import (
    ArgKind,
    CallExpr,
    Decorator,
    DictExpr,
    Expression,
    FuncDef,
    IndexExpr,
    ListExpr,
    MemberExpr,
    MypyFile,
    NameExpr,
    Node,
    RefExpr,
    StrExpr,
    SuperExpr,
    TypeInfo,
    Var,
)
from mypy.patterns import ClassPattern
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    Overloaded,
    TupleType,
    Type,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)

from declax.config._rename.declaration import Family, declared_in
from declax.config._rename.project import Project
from declax.config._rename.tables import SPEC, Keys, span_in_quotes, table_of_code
from declax.mypy_plugin import names
from declax.mypy_plugin.expressions import RUN_NOW, walk

_READING: Final = frozenset(
    {"declax.config._cli.scripts.cli"}
    | {f"declax.config.loading.{name}" for name in ("from_config", "spec_from_config")}
)
_SPACES: Final = re.compile(r"\s")
_ATTRIBUTE_FUNCTIONS: Final = frozenset(f"builtins.{name}attr" for name in ("get", "set", "has", "del"))
_COPYING: Final = frozenset({"dataclasses.replace", "copy.replace", "functools.partial"})


class Uses:
    """Collects the uses of a field in one module as edits of its text, and lists those that cannot be decided."""

    def __init__(self, project: Project, module: str, family: Family) -> None:
        self.text = project.texts[module]
        self._family = family
        self._types = project.types
        self._tree = project.tree(module)
        self._parameters: set[Var] = set()
        self._init_vars = set(_init_vars(module, family))
        self._keys = Keys(family, project.classes, self.text)
        self._seen: set[StrExpr] = set()
        self.undecided = self._keys.undecided
        self.roots: list[TypeInfo] = []
        """The classes that the module reads from configurations."""
        self.files: dict[str, TypeInfo] = {}
        """The class of each file that it names."""

    def collect(self) -> None:
        for node in walk(self._tree):
            match node:
                case MemberExpr() | SuperExpr():
                    self._attribute(node)
                case NameExpr():
                    if self._family.declares(node.node) or node.node in self._parameters or node in self._init_vars:
                        self._replace_last(node)
                case Decorator():
                    if self._family.declares(node):
                        self._function(node.func)
                case FuncDef():
                    self._parameter(node)
                case CallExpr():
                    self._call(node)
                    self._configuration(node)
                    self._attribute_by_name(node)
                    self._paths(node)
                case IndexExpr():
                    self._paths(node)
                case ClassPattern():
                    self._pattern(node)
                case StrExpr():
                    self._string(node)
                case _:
                    pass

    # --- places in the text

    def _span(self, node: Node) -> tuple[int, int]:
        start = self.text.offset(node.line, node.column)
        return start, start if node.end_line is None else self.text.offset(node.end_line, node.end_column or 0)

    def _look_at(self, node: Node, why: str) -> None:
        start, _ = self._span(node)
        self.undecided.append(f"{self.text.place(start)}: {why}: {self.text.line_at(start)}")

    def _replace_last(self, node: Node) -> None:
        """Replaces the name with which an expression ends."""
        _, end = self._span(node)
        self._replace_before(end, node)

    def _replace_before(self, end: int, node: Node) -> None:
        start = end - len(self._family.old)
        if self.text.text[start:end] == self._family.old:
            self.text.replace(start, end, self._family.new)
        else:
            self._look_at(node, "the name was not found in the text")

    def _replace_named(self, pattern: str, start: int, end: int, node: Node) -> None:
        """Replaces a name that a pattern finds at the start of a part of the text, or at its end."""
        found = re.compile(pattern).search(self.text.text, start, end)
        if found is None:
            self._look_at(node, "the name was not found in the text")
        else:
            self.text.replace(*found.span("name"), self._family.new)

    # --- kinds of uses

    def _attribute(self, node: MemberExpr | SuperExpr) -> None:
        if node.name != self._family.old:
            return
        if isinstance(node, SuperExpr):
            is_use: bool | None = node.info is not None and self._family.has(node.info)
        elif isinstance(node.expr, RefExpr) and isinstance(node.expr.node, MypyFile):
            is_use = False
        else:
            is_use = self._holds(self._types.get(node.expr))
        if is_use:
            self._replace_last(node)
        elif is_use is None:
            self._look_at(node, "an attribute of something that mypy does not know")

    def _function(self, node: FuncDef) -> None:
        start, end = self._span(node)
        self._replace_named(rf"\bdef\s+(?P<name>{self._family.old})\b", start, end, node)

    def _parameter(self, node: FuncDef) -> None:
        """The parameter of ``__post_init__`` that gets an InitVar."""
        if node.name == "__post_init__" and self._family.is_init_var and self._family.has(node.info):
            for argument in node.arguments:
                if argument.variable.name == self._family.old:
                    self._parameters.add(argument.variable)
                    start, _ = self._span(argument.variable)
                    self._replace_before(start + len(self._family.old), argument.variable)

    def _pattern(self, node: ClassPattern) -> None:
        info = node.class_ref.node
        if isinstance(info, TypeInfo) and self._family.has(info):
            for key, value in zip(node.keyword_keys, node.keyword_values, strict=True):
                if key == self._family.old:
                    start, _ = self._span(node)
                    end, _ = self._span(value)
                    self._replace_named(rf"\b(?P<name>{key})\s*=[\s(]*$", start, end, node)

    def _call(self, node: CallExpr) -> None:
        if self._family.old in node.arg_names:
            is_use = self._is_argument(node)
            if is_use:
                keyword = next((found for found in self._keywords(node) if found.arg == self._family.old), None)
                if keyword is None:
                    self._look_at(node, "the name was not found in the text")
                else:
                    start = self.text.offset(keyword.lineno, keyword.col_offset)
                    self.text.replace(start, start + len(self._family.old), self._family.new)
            elif is_use is None:
                self._look_at(node, f"a call with {self._family.old}= of something that mypy does not know")

    def _keywords(self, node: CallExpr) -> list[ast.keyword]:
        return self._calls.get((node.line, node.column, node.end_line, node.end_column), [])

    @cached_property
    def _calls(self) -> dict[tuple[int, int, int | None, int | None], list[ast.keyword]]:
        """The keywords of each call, whose places mypy does not keep."""
        return {
            (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset): node.keywords
            for node in ast.walk(ast.parse(self.text.text))
            if isinstance(node, ast.Call)
        }

    # --- what a type says

    def _is_argument(self, node: CallExpr) -> bool | None:
        """Whether the keyword of a call is the field; None if that is unknown."""
        callee = node.callee
        first = class_of(self._types.get(node.args[0])) if node.args and _is_positional(node, 0) else None
        if first is not None and self._family.has(first) and _is_copying(callee):
            return True
        if isinstance(callee, MemberExpr) and callee.name == "replace" and self._is_spec(callee.expr):
            return True
        if isinstance(callee, CallExpr) and callee.args and _is_copying(callee.callee):  # dx.defer(Block)(hidden=...)
            made = class_of(self._types.get(callee.args[0]))
            return made is not None and self._family.has(made)
        found = get_proper_type(self._types.get(callee))
        if found is None or isinstance(found, AnyType):
            return None
        if isinstance(found, Instance) and found.type.fullname == "functools.partial":
            made = class_of(found.args[0])
            return made is not None and self._family.has(made)
        if isinstance(found, TypeType) or (isinstance(found, (CallableType, Overloaded)) and found.is_type_obj()):
            made = class_of(found)
            return made is not None and self._family.has(made) and self._family.is_parameter(made)
        if isinstance(found, CallableType) and found.argument_by_name(self._family.old) is None and found.kw_arg():
            return None
        return False

    def _is_spec(self, node: Expression) -> bool:
        found = get_proper_type(self._types.get(node))
        if not isinstance(found, Instance) or found.type.fullname != SPEC or not found.args:
            return False
        made = class_of(found.args[0])
        return made is not None and self._family.has(made)

    def _holds(self, found: Type | None) -> bool | None:
        """Whether values of a type have the field; None if that is unknown."""
        found = get_proper_type(found)
        if found is None or isinstance(found, AnyType):
            return None
        if isinstance(found, UnionType):
            return _all_or_none(
                self._holds(item) for item in found.items if not isinstance(get_proper_type(item), NoneType)
            )
        if isinstance(found, Instance) and found.type.fullname in names.BY_PATH and found.args:
            return self._holds(found.args[0])
        info = class_of(found)
        if info is None:
            return False
        if self._family.has(info):
            return True
        has_name = info.get(self._family.old) is not None
        if (info.is_protocol and has_name) or (not has_name and info.fallback_to_any):
            return None
        return None if not has_name and any(info in cls.mro for cls in self._family.classes) else False

    # --- configurations and strings in code

    def _configuration(self, node: CallExpr) -> None:
        """The table, or the name of the file, from which a call builds an object of a class."""
        if not (isinstance(node.callee, RefExpr) and node.callee.fullname in _READING and node.args):
            return
        described = self._types.get(node.args[0])
        info = class_of(described)
        if info is None:
            return
        self.roots.append(info)
        named = dict(zip(node.arg_names, node.args, strict=True))
        source = named.get("default") or (node.args[1] if len(node.args) > 1 and _is_positional(node, 1) else None)
        if isinstance(source, StrExpr):
            self.files[source.value] = info
        elif isinstance(source, (DictExpr, ListExpr)):
            self._keys.replace(table_of_code(source, self.text), described)
            self._seen.update(key for key in walk(source) if isinstance(key, StrExpr))

    def _attribute_by_name(self, node: CallExpr) -> None:
        """``getattr(block, "hidden")``, if the type of the object has the field."""
        if isinstance(node.callee, RefExpr) and node.callee.fullname in _ATTRIBUTE_FUNCTIONS and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, StrExpr) and name.value == self._family.old:
                is_use = self._holds(self._types.get(node.args[0]))
                spans = span_in_quotes(name, self.text)
                if is_use and spans:
                    self.text.replace(*spans[0], self._family.new)
                if is_use is False or (is_use and spans):
                    self._seen.add(name)

    def _paths(self, node: CallExpr | IndexExpr) -> None:
        """Paths into a Spec: ``spec["up.hidden"]``, ``spec.replace({"up.hidden": 3})``."""
        if isinstance(node, IndexExpr):
            holder, found = node.base, [node.index]
        elif isinstance(node.callee, MemberExpr) and node.callee.name == "replace":
            tables = [value for value in node.args if isinstance(value, DictExpr)]
            holder, found = node.callee.expr, [key for table in tables for key, _ in table.items if key is not None]
        else:
            return
        described = get_proper_type(self._types.get(holder))
        if isinstance(described, Instance) and described.type.fullname == SPEC and described.args:
            for path in found:
                if isinstance(path, StrExpr):
                    spans = span_in_quotes(path, self.text)
                    if self._keys.replace_path(path.value, spans, described.args[0]):
                        self._seen.add(path)

    def _string(self, node: StrExpr) -> None:
        if node not in self._seen and self._path.search(node.value) and not _SPACES.search(node.value):
            self._look_at(node, "a string with the name")

    @cached_property
    def _path(self) -> re.Pattern[str]:
        return re.compile(rf"(?:^|[./\[]){self._family.old}(?:$|[./\[\]=])")


def _init_vars(module: str, family: Family) -> Iterator[NameExpr]:
    """The names of an InitVar in class bodies, which mypy binds to nothing."""
    for info in family.classes if family.is_init_var else ():
        if info.module_name == module and family.old in declared_in(info):
            for node in walk(info.defn.defs, RUN_NOW):
                if isinstance(node, NameExpr) and node.name == family.old:
                    yield node


def class_of(found: Type | None) -> TypeInfo | None:
    """The class of which a type has instances, or which it is."""
    found = get_proper_type(found)
    match found:
        case Instance():
            return found.type
        case TypeType():
            return class_of(found.item)
        case TypeVarType():
            return class_of(found.upper_bound)
        case CallableType():
            return found.type_object() if found.is_type_obj() else None
        case Overloaded():
            return class_of(found.items[0])
        case TupleType():
            return found.partial_fallback.type
        case LiteralType():
            return found.fallback.type
        case _:
            return None


def _all_or_none(found: Iterator[bool | None]) -> bool | None:
    """What all say; None if they differ."""
    said = set(found)
    return said.pop() if len(said) == 1 else None


def _is_positional(node: CallExpr, index: int) -> bool:
    return node.arg_kinds[index] == ArgKind.ARG_POS


def _is_copying(callee: Expression) -> bool:
    """Whether a call passes keywords on to the class of its first argument, as ``dx.replace(block, hidden=3)`` does."""
    name = callee.fullname if isinstance(callee, RefExpr) else ""
    return name in _COPYING or name.startswith("declax.")

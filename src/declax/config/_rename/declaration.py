"""The field that gets another name: where it is declared, whether the name is free, and its former name."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from mypy.nodes import Decorator, SymbolNode, TypeInfo, Var

from declax.config._reading.docstrings import documented_in
from declax.config._rename.project import Project
from declax.config._rename.texts import Text
from declax.errors import ConfigError, suggest
from declax.mypy_plugin import names

_RENAMED_FROM: Final = "renamed_from"
_SPECIFIERS: Final = frozenset({"field", "data", "static", "variable"})
"""The functions of declax that have the option `renamed_from`."""


class Family(NamedTuple):
    """A class that declares a field, with its subclasses in the project."""

    info: TypeInfo
    classes: tuple[TypeInfo, ...]
    old: str
    new: str

    def has(self, info: TypeInfo) -> bool:
        return self.info in info.mro

    def declares(self, node: SymbolNode | None) -> bool:
        """Whether a name is that of the field in the body of one of the classes."""
        found = node.var if isinstance(node, Decorator) else node
        return isinstance(found, Var) and found.name == self.old and found.info in self.classes

    @property
    def is_init_var(self) -> bool:
        return any(entry["name"] == self.old and entry["is_init_var"] for entry in _attributes(self.info))

    def is_parameter(self, info: TypeInfo) -> bool:
        """Whether the constructor of a class, which the decorator makes, has the field."""
        made = info.get("__init__")
        has = any(entry["name"] == self.old and entry["is_in_init"] for base in info.mro for entry in _attributes(base))
        return has and made is not None and made.plugin_generated


def _attributes(info: TypeInfo) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = info.metadata.get("dataclass", {}).get("attributes", [])
    return found


def find_family(project: Project, module: str, path: str, new: str) -> Family:
    """The class and its subclasses; refuses what is no field, and a name that is taken.

    Args:
      project: the project.
      module: the module of the class.
      path: the class and the field, such as ``Block.hidden``.
      new: the new name.
    """
    name, _, old = path.rpartition(".")
    info = project.class_named(module, name)
    if info is None:
        own = [found.fullname for found in project.classes if found.module_name == module]
        known = [fullname.removeprefix(f"{module}.") for fullname in own if "@" not in fullname]  # mypy's local names
        expected, fix = ", ".join(known) or None, suggest(name, known)
        raise ConfigError(path, f"the module {module} has no class {name!r}", expected=expected, fix=fix)
    _check_field(info, old)
    family = Family(info, tuple(found for found in project.classes if info in found.mro), old, new)
    _check_name(family)
    return family


def _check_field(info: TypeInfo, old: str) -> None:
    place = f"{info.name}.{old}"
    if old == "rngs":
        raise ConfigError(place, "rngs is the name by which layers get their random streams, and stays")
    holders = [base for base in info.mro if old in base.names or old in declared_in(base)]
    if not holders:
        fields = [name for base in info.mro for name in declared_in(base) if name != "rngs"]
        raise ConfigError(place, "the class has no such field", expected=", ".join(fields), fix=suggest(old, fields))
    if len(holders) > 1 or holders[0] is not info:
        first = holders[-1]
        fix = f"declax rename {first.module_name}:{first.name}.{old} NAME"
        raise ConfigError(place, f"{first.fullname} declares this name first", fix=fix)
    if old not in declared_in(info):
        expected = ", ".join(declared_in(info)) or None
        raise ConfigError(place, "this is no field and no part", expected=expected, fix="rename in the editor")


def declared_in(info: TypeInfo) -> list[str]:
    """The fields and parts that a class body declares; mypy removes the names of InitVars from the class."""
    noted = info.metadata.get(names.METADATA)
    if noted is not None:
        return list(dict.fromkeys([*(entry["name"] for entry in noted["fields"]), *noted["terms"]]))
    above = {entry["name"] for base in info.mro[1:] for entry in _attributes(base)}
    own = (entry for entry in _attributes(info) if entry["name"] in info.names or entry["is_init_var"])
    return [entry["name"] for entry in own if entry["name"] in info.names or entry["name"] not in above]


def _check_name(family: Family) -> None:
    place, new = f"{family.info.name}.{family.old}", family.new
    if not new.isidentifier() or keyword.iskeyword(new) or new == family.old or new.startswith("__") or new == "_":
        raise ConfigError(place, "this cannot be the new name", expected="another name of a field", got=repr(new))
    for info in family.classes:
        holder = next((base for base in info.mro if new in base.names), None)
        if holder is not None:
            raise ConfigError(place, f"{holder.fullname} has {new!r} already", fix="choose another name")


def note_former_name(text: Text, family: Family, info: TypeInfo) -> Iterator[str]:
    """Adds ``renamed_from`` to the field in a class body; what it cannot say is left for the user."""
    module = ast.parse(text.text)
    for statement in _body_of(info, text, module):
        if isinstance(statement, ast.AnnAssign) and _named(statement.target, family.old):
            yield from _note_in(text, statement, statement.annotation, statement.value, family, module)
        elif isinstance(statement, ast.Assign) and any(_named(target, family.old) for target in statement.targets):
            yield from _note_in(text, statement, None, statement.value, family, module)
        elif isinstance(statement, ast.FunctionDef) and statement.name == family.old:
            yield _no_option(text, statement)


def rename_in_docstring(text: Text, family: Family, info: TypeInfo) -> None:
    """Renames the entry of the field in the docstring of a class, which is its help."""
    match _body_of(info, text, ast.parse(text.text))[:1]:
        case [ast.Expr(value=ast.Constant(value=str()) as docstring)]:
            start = text.offset(docstring.lineno, docstring.col_offset)
            written = text.text[start : text.offset(docstring.end_lineno or 0, docstring.end_col_offset or 0)]
        case _:
            return
    for found in re.finditer(rf"\b{family.old}\b", written):
        changed = written[: found.start()] + family.new + written[found.end() :]
        if family.new in documented_in(ast.literal_eval(changed)):
            text.replace(start + found.start(), start + found.end(), family.new)


def _body_of(info: TypeInfo, text: Text, module: ast.Module) -> list[ast.stmt]:
    classes = (node for node in ast.walk(module) if isinstance(node, ast.ClassDef))
    return next((node.body for node in classes if _is_at(text, node, info)), [])


def _is_at(text: Text, node: ast.ClassDef, info: TypeInfo) -> bool:
    return node.name == info.name and node.end_lineno == info.defn.end_line


def _named(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _note_in(
    text: Text,
    statement: ast.stmt,
    annotation: ast.expr | None,
    value: ast.expr | None,
    family: Family,
    module: ast.Module,
) -> Iterator[str]:
    option = f"{_RENAMED_FROM}={family.old!r}".replace("'", '"')
    if family.is_init_var or names.METADATA not in family.info.metadata:
        what = "an InitVar" if family.is_init_var else "a field of a standard dataclass"
        yield f"{_where(text, statement)}: {what} has no renamed_from: files with the old name need the new one"
    elif value is None and annotation is not None:
        end = text.offset(annotation.end_lineno or 0, annotation.end_col_offset or 0)
        text.replace(end, end, f" = {_field_function(text, module)}({option})")
    elif isinstance(value, ast.Call) and _function(value) in _SPECIFIERS:
        yield from _add_option(text, value, option)
    elif annotation is not None and _is_plain(value):
        assert value is not None
        start = text.offset(value.lineno, value.col_offset)
        end = text.offset(value.end_lineno or 0, value.end_col_offset or 0)
        text.replace(start, start, f"{_field_function(text, module)}(default=")
        text.replace(end, end, f", {option})")
    else:
        yield _no_option(text, statement)


def _add_option(text: Text, call: ast.Call, option: str) -> Iterator[str]:
    for given in call.keywords:
        if given.arg == _RENAMED_FROM:
            start = text.offset(given.lineno, given.col_offset)
            end = text.offset(given.end_lineno or 0, given.end_col_offset or 0)
            yield f"{text.place(start)}: {text.text[start:end]} is replaced: migrate files with that name first"
            text.replace(start, end, option)
            return
    if call.keywords:
        last = call.keywords[-1]
        end = text.offset(last.end_lineno or 0, last.end_col_offset or 0)
        text.replace(end, end, f", {option}")
    else:
        end = text.offset(call.end_lineno or 0, call.end_col_offset or 0) - 1
        text.replace(end, end, f", {option}" if call.args else option)


def _no_option(text: Text, statement: ast.stmt) -> str:
    return (
        f"{_where(text, statement)}: this declaration has no renamed_from: old configurations need the new name, and"
        " old checkpoints dx.load(..., rename=...)"
    )


def _where(text: Text, node: ast.stmt) -> str:
    return text.place(text.offset(node.lineno, node.col_offset))


def _function(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_plain(value: ast.expr | None) -> bool:
    """Whether a value is a literal that cannot change, so that it can be the `default` of a field."""
    if isinstance(value, ast.Tuple):
        return all(map(_is_plain, value.elts))
    return isinstance(value, ast.Constant) or (isinstance(value, ast.UnaryOp) and _is_plain(value.operand))


def _field_function(text: Text, module: ast.Module) -> str:
    """How the module names ``dx.field``; imports declax if it has no name for it."""
    for node in module.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "declax":
                    return f"{alias.asname or alias.name}.field"
        elif isinstance(node, ast.ImportFrom) and node.module == "declax":
            found = next((alias for alias in node.names if alias.name == "field"), None)
            if found is not None:
                return found.asname or found.name
    first = next(
        (node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_future(node)), None
    )
    start = text.offset(first.lineno, 0) if first is not None else 0
    text.replace(start, start, "import declax as dx\n")
    return "dx.field"


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"

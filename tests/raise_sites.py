"""Finds the error texts that the sources can produce, and those that a test mentions.

A site is a call in ``src/declax`` that creates an error of `declax.errors`. A template is a text that a site can
produce, with `HOLE` in place of values; its parts are the stretches between holes. A window is `WINDOW` characters
of a part, the shortest text that distinguishes templates. The text of a site is followed through conditional
expressions, constants, tables, local names, functions that return text, and the callers of functions that receive
text.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeAlias

HOLE = "\0"
WINDOW = 12
MAX_FOLLOWED = 8
"""How many names a text is followed through; what is wordier than that cannot be read by a person either."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Site:
    """One call that makes an error, and the templates of its problem; none where they were not found."""

    place: str
    error: str
    templates: tuple[str, ...]


@dataclass(frozen=True)
class _Scope:
    """Where an expression stands: its module, and the functions around it, innermost last."""

    module: str
    functions: tuple[Function, ...] = ()


# --------------------------------------------------------------------------- reading the sources


def error_classes(errors: ast.Module) -> set[str]:
    """Names of the classes in ``errors.py`` that derive from `DeclaxError`."""
    found = {"DeclaxError"}
    for node in errors.body:
        if isinstance(node, ast.ClassDef) and any(
            isinstance(base, ast.Name) and base.id in found for base in node.bases
        ):
            found.add(node.name)
    return found


def _last_name(expression: ast.expr) -> str | None:
    if isinstance(expression, ast.Name):
        return expression.id
    return expression.attr if isinstance(expression, ast.Attribute) else None


def _walk(node: ast.AST, scope: _Scope) -> Iterator[tuple[ast.AST, _Scope]]:
    for child in ast.iter_child_nodes(node):
        yield child, scope
        inner = scope
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = _Scope(scope.module, (*scope.functions, child))
        yield from _walk(child, inner)


class Sources:
    """All modules of the package, indexed by what following a text needs."""

    def __init__(self, modules: Mapping[str, ast.Module], errors: set[str]) -> None:
        self.errors = errors
        self.calls: dict[str, list[tuple[ast.Call, _Scope]]] = defaultdict(list)
        self.functions: dict[str, list[tuple[Function, _Scope]]] = defaultdict(list)
        self.constants: dict[str, list[tuple[ast.expr, _Scope]]] = defaultdict(list)
        self.record_fields: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for name, tree in modules.items():
            self._index(tree, _Scope(name))

    def _index(self, tree: ast.Module, top: _Scope) -> None:
        for node, scope in _walk(tree, top):
            if isinstance(node, ast.Call) and (called := _last_name(node.func)):
                self.calls[called].append((node, scope))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions[node.name].append((node, scope))
            elif isinstance(node, ast.ClassDef):
                fields = [s.target for s in node.body if isinstance(s, ast.AnnAssign)]
                for index, field in enumerate(fields):
                    if isinstance(field, ast.Name):
                        self.record_fields[field.id].append((node.name, index))
        for statement in tree.body:
            for name, value in _assigned(statement):
                self.constants[name].append((value, top))

    def sites(self) -> list[Site]:
        """Every call of an error class, in the order of the sources."""
        found = []
        for error in self.errors:
            for call, scope in self.calls[error]:
                templates = self._argument(call, 1, "problem", scope, MAX_FOLLOWED)
                worded = tuple(sorted({t for t in templates if t.replace(HOLE, "").strip()}))
                found.append(Site(f"{scope.module}:{call.lineno}", error, worded))
        return sorted(found, key=lambda site: (site.place.rpartition(":")[0], int(site.place.rpartition(":")[2])))

    # ----------------------------------------------------------------------- following a text

    def _argument(self, call: ast.Call, index: int, name: str, scope: _Scope, fuel: int) -> list[str]:
        for keyword in call.keywords:
            if keyword.arg == name:
                return self._texts(keyword.value, scope, fuel)
        if index < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args[: index + 1]):
            return self._texts(call.args[index], scope, fuel)
        return [HOLE]

    def _texts(self, node: ast.expr, scope: _Scope, fuel: int) -> list[str]:
        if fuel == 0:
            return [HOLE]
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=values):
                pieces = [self._texts(v, scope, fuel) if isinstance(v, ast.Constant) else [HOLE] for v in values]
                return ["".join(p) for p in product(*pieces)]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                pairs = product(self._texts(left, scope, fuel), self._texts(right, scope, fuel))
                return [a + b for a, b in pairs]
            case ast.BinOp(left=left, op=ast.Mod()):
                return [re.sub(r"%[#0 +-]?[\d.]*[a-z]", HOLE, t) for t in self._texts(left, scope, fuel)]
            case ast.IfExp(body=body, orelse=orelse):
                return self._texts(body, scope, fuel) + self._texts(orelse, scope, fuel)
            case ast.BoolOp(values=values):
                return [t for value in values for t in self._texts(value, scope, fuel)]
            case ast.Subscript(value=value):
                return self._texts(value, scope, fuel)
            case ast.Dict(values=values):
                return [t for value in values for t in self._texts(value, scope, fuel)]
            case ast.Call():
                return self._texts_of_call(node, scope, fuel)
            case ast.Name(id=name):
                return self._texts_of_name(name, scope, fuel - 1)
            case ast.Attribute(attr=name):
                return self._texts_of_attribute(name, fuel - 1)
        return [HOLE]

    def _texts_of_call(self, call: ast.Call, scope: _Scope, fuel: int) -> list[str]:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "format":
            return [re.sub(r"\{[^{}]*\}", HOLE, t) for t in self._texts(call.func.value, scope, fuel)]
        if isinstance(call.func, ast.Attribute) and call.func.attr == "get":
            fallback = self._texts(call.args[1], scope, fuel) if len(call.args) > 1 else []
            return self._texts(call.func.value, scope, fuel) + fallback
        found = []
        for function, around in self.functions.get(_last_name(call.func) or "", ()):
            inner = _Scope(around.module, (*around.functions, function))
            for node, where in _walk(function, inner):
                if isinstance(node, ast.Return) and node.value is not None and where == inner:
                    found += self._texts(node.value, inner, fuel - 1)
        return found or [HOLE]

    def _texts_of_name(self, name: str, scope: _Scope, fuel: int) -> list[str]:
        for depth in range(len(scope.functions), 0, -1):
            function, inner = scope.functions[depth - 1], _Scope(scope.module, scope.functions[:depth])
            local = [value for node in ast.walk(function) for target, value in _assigned(node) if target == name]
            if local:
                return [t for value in local for t in self._texts(value, inner, fuel)]
            names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
            if name in names:
                return self._texts_of_parameter(function, names, name, fuel)
        here = [pair for pair in self.constants[name] if pair[1].module == scope.module] or self.constants[name]
        return [t for value, where in here for t in self._texts(value, where, fuel)] or [HOLE]

    def _texts_of_parameter(self, function: Function, names: list[str], name: str, fuel: int) -> list[str]:
        index = names.index(name) - (names[0] in ("self", "cls"))
        if index < 0:  # the object that a method is called on
            return [HOLE]
        found = []
        for call, scope in self.calls[function.name]:
            found += self._argument(call, index, name, scope, fuel)
        return found or [HOLE]

    def _texts_of_attribute(self, name: str, fuel: int) -> list[str]:
        if name in self.constants:
            return [t for value, where in self.constants[name] for t in self._texts(value, where, fuel)]
        found = []
        for record, index in self.record_fields[name]:
            for call, scope in self.calls[record]:
                found += self._argument(call, index, name, scope, fuel)
        return found or [HOLE]


def _assigned(node: ast.AST) -> list[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            return [pair for target in targets for pair in _unpacked(target, value)]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return [(name, value)]
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            return [(name, value)]
    return []


def _unpacked(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    match target, value:
        case ast.Name(id=name), _:
            return [(name, value)]
        case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
            return [pair for n, v in zip(names, values, strict=True) for pair in _unpacked(n, v)]
    return []


# --------------------------------------------------------------------------- reading the tests


def literals_of(trees: Iterable[ast.Module], golden: Iterable[Path] = ()) -> list[str]:
    """The strings in tests, docstrings apart, as they are and with the escapes of regular expressions undone."""
    found = []
    for tree in trees:
        docstrings = {
            id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                found += [node.value, re.sub(r"\\(.)", r"\1", node.value)]
    found += [path.read_text(encoding="utf-8") for path in golden]
    return [_squeezed(text) for text in dict.fromkeys(found)]


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


# --------------------------------------------------------------------------- comparing the two


def _parts(template: str) -> list[str]:
    return [part.strip() for part in _squeezed(template).split(HOLE) if part.strip()]


def _windows(text: str) -> set[str]:
    return {text[i : i + WINDOW] for i in range(len(text) - WINDOW + 1)}


def _windows_of_parts(template: str) -> set[str]:
    return {window for part in _parts(template) for window in _windows(part)}


def unmatched(sites: Iterable[Site], literals: list[str]) -> list[tuple[Site, str]]:
    """The templates that no literal mentions, each with its site.

    A literal mentions a template when it has a window of it that no other template has, or contains the
    whole template with something in its holes.
    """
    wanted = [(site, template) for site in sites for template in site.templates]
    owners: dict[str, set[str]] = defaultdict(set)
    for _, template in wanted:
        for window in _windows_of_parts(template):
            owners[window].add(_squeezed(template))
    written = {window for literal in literals for window in _windows(literal)}

    def is_own(window: str, template: str) -> bool:
        # A text and the same text with a suggestion after it are told apart by the end of the longer one only.
        return all(other.startswith(_squeezed(template)) for other in owners[window])

    def is_mentioned(template: str) -> bool:
        if any(w in written and is_own(w, template) for w in _windows_of_parts(template)):
            return True
        whole = ".+?".join(re.escape(piece) for piece in _squeezed(template).split(HOLE))
        return len("".join(_parts(template))) >= WINDOW // 2 and any(re.search(whole, text) for text in literals)

    return [(site, template) for site, template in wanted if not is_mentioned(template)]

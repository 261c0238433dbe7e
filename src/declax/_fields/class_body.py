"""The namespace of a class body. It records what the statements read and bind.

An expression that reads a plain default would take it as a constant, and a
name that the body lacks is taken from the globals. The records show both; they
are refused when the class is created.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator
from types import CodeType
from typing import Any, Final

from declax._fields.expressions import Declaration, Expression
from declax._fields.sources import has_expression
from declax.errors import FieldError, describe, type_name

BODY_KEY: Final = "_pytree__body"
"""The entry of a class for its `Body`, until the class is decorated."""


RNGS_LINES: Final = "_: dx.KW_ONLY\nrngs: dx.InitVar[dx.Rngs] = dx.field()"


class Body:
    """The names that a class body binds to expressions.

    Attributes:
      bound: the expressions, and the containers that hold some, by name, in order.
      reads: the names that the statement of each name read.
      twice: the first name that is bound again after an expression, if any.
      deleted: the last name of an expression that is deleted, if any.
      code: of the class body, if it binds an expression.
    """

    __slots__ = ("bound", "code", "deleted", "reads", "twice")

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}
        self.reads: dict[str, tuple[str, ...]] = {}
        self.twice: str | None = None
        self.deleted: str | None = None
        self.code: CodeType | None = None

    def attributes_read(self) -> dict[str, list[str]]:
        """The dotted names, such as ``Base.rate``, that the statement of each name read."""
        found: dict[str, list[str]] = {}
        dotted, reads = "", list[str]()
        for instruction in () if self.code is None else dis.get_instructions(self.code):
            if instruction.opname in (*_OF_CLASSES, *_OUTSIDE):
                dotted = instruction.argval
            elif dotted and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                dotted = f"{dotted}.{instruction.argval}"
                reads.append(dotted)
            else:
                dotted = ""
            if instruction.opname == "STORE_NAME":
                found[instruction.argval], reads = reads, []
        return found


class ClassBody(dict[str, Any]):
    """A namespace in which each binding of a name ends a statement."""

    __slots__ = ("_bases", "_body", "_inner", "_read")

    _pytree__is_class_body = True

    def __init__(self, bases: tuple[type, ...] = ()) -> None:
        super().__init__()
        self._bases = bases
        self._body = Body()
        self._inner: dict[str, str] | None = None
        self._read: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self._read.append(name)
        try:
            return super().__getitem__(name)
        except KeyError:
            if not name.startswith("__"):
                self._explain_missing(name)
            raise

    def __setitem__(self, name: str, value: Any) -> None:
        read, self._read = self._read, []
        body = self._body
        if isinstance(value, dataclasses.Field):
            value = Declaration(value)
        if name in body.bound and body.twice is None:
            body.twice = name
        if has_expression(value):
            if isinstance(value, Expression) and value._pytree__name is None:
                value._pytree__name = name
            if self._inner is None:
                body.code = sys._getframe(1).f_code
                self._inner = dict(_names_of_inner_scopes(body.code))
            if name in self._inner:
                raise self._read_inside(name)
            if not body.bound:
                super().__setitem__(BODY_KEY, body)
            body.bound[name] = value
        if read and not name.startswith("__"):
            body.reads[name] = tuple(read)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        if name in self._body.bound:
            self._body.deleted = name  # an error that is raised here would become a NameError
        super().__delitem__(name)

    @property
    def _class_name(self) -> str:
        qualified: str = dict.get(self, "__qualname__", "class")
        return qualified.rpartition("<locals>.")[2]

    def _read_inside(self, name: str) -> FieldError:
        """The error for an inner scope that reads a field, which it cannot see."""
        scope = (self._inner or {})[name]
        cls = self._class_name
        fix = (
            "dx.repeat(3, dx.Linear(dim, dim, rngs=rngs))        # in place of a comprehension\n"
            "dx.defer(function)(dim)        # in place of a lambda\n"
            "@dx.submodule\ndef layers(self, rngs: dx.Rngs) -> list[dx.Linear]: ...        # what needs Python"
        )
        if scope.startswith("nested class "):
            inner = scope.split()[2]
            fix = (
                f"class {inner}(dx.Module): ...        # before {cls}, with a field for {name}\npart = {inner}({name})"
            )
        return FieldError(
            f"{cls}.{name}",
            f"the {scope} reads {name!r}",
            why="in Python, comprehensions, lambdas and nested classes do not see the names of the class around them",
            fix=fix,
        )

    def _explain_missing(self, name: str) -> None:
        """Raises for a name that has a fix, in place of Python's NameError."""
        frame = sys._getframe(2)
        if name in frame.f_globals or name in frame.f_code.co_freevars or hasattr(builtins, name):
            return
        annotations = dict.get(self, "__annotations__", {})
        where = f"{self._class_name}.{name}"
        if name in annotations:
            raise FieldError(
                where,
                "a field without a specifier cannot be read in the class body",
                fix=f"{name}: {text_of_annotation(annotations[name])} = dx.field()",
            )
        if name == "rngs":
            raise FieldError(
                where,
                "the class body reads rngs, which this class does not declare",
                why="an InitVar is not inherited by name",
                fix=RNGS_LINES,
            )
        if any(made.opname == "STORE_NAME" and made.argval == name for made in dis.get_instructions(frame.f_code)):
            raise FieldError(
                where, "the class body reads this name above its declaration", fix=f"declare {name!r} first"
            )
        base = base_with(name, self._bases)
        if base is not None:
            raise FieldError(
                where,
                f"the class body reads {name!r}, a field of the base {type_name(base)}",
                why="in Python, a class body does not see inherited names",
                fix=f"{type_name(base)}.{name}",
            )


_SCOPES: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")
_OUTSIDE: Final = ("LOAD_GLOBAL", "LOAD_DEREF")
"""How functions read a name that is not theirs."""
_OF_CLASSES: Final = ("LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF")
"""How the body of a class reads a name."""


def _names_of_inner_scopes(code: CodeType, scope: str = "") -> Iterator[tuple[str, str]]:
    """The names that the scopes in a class body read from outside of themselves, each with what reads it, and where."""
    for inner in code.co_consts:
        if not isinstance(inner, CodeType):
            continue
        if inner.co_name in _SCOPES:
            yield from _names_of_inner_scopes(inner, "comprehension or lambda")
        elif not inner.co_flags & inspect.CO_OPTIMIZED and not scope:
            yield from _names_read(inner, f"nested class {inner.co_name}", _OF_CLASSES)
    if scope or code.co_nlocals:  # since Python 3.12, comprehensions are a part of the code, and their variables locals
        yield from _names_read(code, scope or "comprehension or lambda", _OUTSIDE)


def _names_read(code: CodeType, scope: str, operations: Collection[str]) -> Iterator[tuple[str, str]]:
    instructions = list(dis.get_instructions(code))
    is_class = operations is _OF_CLASSES
    bound = {found.argval for found in instructions if found.opname == "STORE_NAME"} if is_class else set[str]()
    for instruction in instructions:
        if instruction.opname in operations and instruction.argval not in bound:
            line = instruction.positions.lineno if instruction.positions else None
            yield instruction.argval, f"{scope} in line {line or code.co_firstlineno}"


def base_with(name: str, bases: Iterable[type]) -> type | None:
    """The base that has a field of a name."""
    for base in bases:
        field = getattr(base, "__dataclass_fields__", {}).get(name)
        if field is not None and field._field_type is not dataclasses._FIELD_CLASSVAR:  # type: ignore[attr-defined]  # the standard offers no public way
            return base
    return None


def collect(cls: Any, annotations: Collection[str]) -> None:
    """Puts standard fields into the place of the declarations of a new class.

    A class that was made without a class body, as by ``type(...)``, gets its `Body` here.

    Args:
      cls: the class.
      annotations: what it annotates itself.

    Raises:
      FieldError: for a value that hides a declaration of a base.
    """
    body: Body | None = cls.__dict__.get(BODY_KEY)
    _check_hidden(cls, annotations if body is None else [*annotations, *body.bound])
    if body is None:
        bound = {name: value for name, value in vars(cls).items() if has_expression(value)}
        if not bound:
            return
        body = Body()
        body.bound = bound
        setattr(cls, BODY_KEY, body)
    for name, value in body.bound.items():
        if isinstance(value, Expression) and value._pytree__name is None:
            value._pytree__name = name
        if isinstance(value, Declaration) and value._pytree__name == name:
            setattr(cls, name, value._pytree__field)


def _check_hidden(cls: Any, declared: Collection[str]) -> None:
    """Refuses a plain value under the name of an inherited field or part, which instances would not see."""
    namespace = cls.__dict__
    for name in cls._pytree__expressions.keys() & namespace.keys() - set(declared):
        value = namespace[name]
        is_declared = has_expression(value) or isinstance(value, dataclasses.Field)
        if is_declared or hasattr(type(value), "__set__"):
            continue
        raise FieldError(
            f"{type_name(cls)}.{name}",
            "this value hides a field or part of a base class, which the constructor would set all the same",
            got=describe(value),
            fix=f"{name}: {_annotation_of(cls, name)} = dx.field(default={value!r:.40})        # a field\n"
            f"{name} = dx.Linear(Base.dim, 1, rngs=rngs)        # a part, or a method under @dx.submodule",
        )


def _annotation_of(cls: Any, name: str) -> str:
    annotation = cls.__dataclass_fields__[name].type
    return "..." if annotation is Any else text_of_annotation(annotation)


def text_of_annotation(annotation: object) -> str:
    """An annotation as the class body writes it, as far as that is known."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)

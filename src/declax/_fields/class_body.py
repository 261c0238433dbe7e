"""The namespace of a class body. It records the names that statements read and bind.

An expression that reads a plain default would take it as a constant, and a name that the body lacks is taken from the
globals. The records show both; they are refused when the class is created.
"""

from __future__ import annotations

import builtins
import dataclasses
import sys
from collections.abc import Iterable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

from declax._fields.annotations import annotation_text
from declax._fields.body_code import NO_FAULTS, BodyFaults, attribute_read, binds, body_faults, unpacked_with
from declax._fields.call import CONTAINERS, entries, has_expression, rebuilt
from declax._fields.expressions import Declaration, Expression, Literal, Reference
from declax._fields.keys import OPEN_BODIES
from declax._fields.refusals import is_class_body
from declax._fields.sources import text_of
from declax._fields.specifiers import CLASS_VAR
from declax._typing import CAPTURES_KEY, INFO_KEY, OWN_PREFIX
from declax.errors import FieldError, type_name

RNGS_LINES: Final = "_: dx.KW_ONLY\nrngs: dx.InitVar[dx.Rngs] = dx.field()"


def layer_line(cls: type) -> str:
    """The line that gives a class `rngs`."""
    return f"class {type_name(cls)}(dx.Layer): ...        # in place of dx.Module: its parts get its rngs"


class BodyNames:
    """The names that a class body binds to expressions.

    Attributes:
      bound: the expressions by name, in order.
      reads: the names that the statement of each name read.
      twice: the first name that is bound again after an expression, if any.
      unpacked: each name to which an unpacking binds an expression again, with the expression.
      faults: what its code does with the names, if it binds an expression.
    """

    __slots__ = ("_known", "bound", "faults", "reads", "twice", "unpacked")

    def __init__(self) -> None:
        self.bound: dict[str, Expression] = {}
        self.reads: dict[str, tuple[str | PlainDefault, ...]] = {}
        self.twice: str | None = None
        self.unpacked: dict[str, Expression] = {}
        self.faults: BodyFaults = NO_FAULTS
        self._known: dict[int, Any] = {}  # containers with a name, and their contents, by identity

    def bind(self, name: str, value: Any) -> Any:
        """Names an expression, or a container of expressions; returns the value that the class body reads.

        An expression that has another name already, or is in a container that has one, gets a reference.
        """
        bound: Expression
        held = value._pytree__value if isinstance(value, Literal) else value  # of field(default=[...])
        is_named = isinstance(value, Expression) and value._pytree__name not in (None, name)
        if is_named or id(held) in self._known:
            bound = Reference(self._known.get(id(held), value))
            if isinstance(value, Expression) and not is_named:  # the default of a specifier
                bound._pytree__specified, value._pytree__specified = value._pytree__specified, None
            value = bound
        elif isinstance(value, Expression):
            bound = value
        else:
            value = self._with_references(value)
            bound = self._known[id(value)] = Literal(value)
        bound._pytree__name = name
        self.bound[name] = bound
        return value

    def _with_references(self, container: Any) -> Any:
        """A container in which no item has another name."""
        made = rebuilt(container, {key: self._item(item) for key, item in entries(container)})
        self._known[id(made)] = made
        return made

    def _item(self, item: Any) -> Any:
        is_container = item.__class__ in CONTAINERS and has_expression(item)
        is_named = isinstance(item, Expression) and item._pytree__name is not None
        if is_named or id(item) in self._known or not (is_container or isinstance(item, Expression)):
            return Reference(self._known.get(id(item), item))
        if is_container:
            return self._with_references(item)
        self._known[id(item)] = item
        return item


class ClassBody(dict[str, Any]):
    """A namespace in which each binding of a name ends a statement."""

    __slots__ = ("_bases", "_body", "_code", "_implies_rngs", "_outside", "_read")

    _pytree__is_class_body = True

    def __init__(self, bases: tuple[type, ...] = ()) -> None:
        super().__init__()
        self._bases = bases
        self._implies_rngs = True in [getattr(base, "_pytree__implies_rngs", False) for base in bases]
        self._body = BodyNames()
        self._code: CodeType | None = None
        self._read: list[str | PlainDefault] = []
        self._outside: list[str] = []  # the names that the statement reads from outside of the class

    def __getitem__(self, name: str) -> Any:
        if name == "__annotations__":
            self._read.clear()  # what an annotation reads, after the statement
            self._outside.clear()
        self._read.append(name)
        literal = self._body.bound.get(name)
        if literal.__class__ is Literal and name in dict.get(self, "__annotations__", ()):
            return literal  # an argument, of which the caller may give any length
        if name not in self and not name.startswith("__"):
            self._explain_missing(name)
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "__module__" and self._code is None:  # the first statement of each body
            self._code = OPEN_BODIES.open(sys._getframe(1), implies_rngs=self._implies_rngs)
        read, self._read = self._read, []
        body = self._body
        if self._outside:
            self._look_outside(name, value)
        if isinstance(value, dataclasses.Field):
            value = Declaration(value)
        if name in body.bound and body.twice is None:
            body.twice = name
        if has_expression(value):
            if not body.bound and self._code is not None:
                body.faults = body_faults(self._code)
            if not read and (frame := sys._getframe(1)).f_code is self._code:  # a further target of the statement
                self._look_at_unpacked(name, value, frame)
            value = body.bind(name, value)
            if name in body.faults.read_inside:
                raise self._read_inside(name, body.faults.read_inside[name])
        if read and not name.startswith("__"):
            body.reads[name] = tuple(read)
        super().__setitem__(name, value)

    def close(self, cls: str) -> BodyNames | None:
        """Ends the body of a class, which is made; what it recorded, if it bound expressions."""
        if self._code is not None:
            OPEN_BODIES.close(self._code)
        self._check_names(cls)
        return self._body if self._body.bound else None

    def _check_names(self, cls: str) -> None:
        """Refuses the names under which declax keeps what it knows; all others are free."""
        names = (*self, *dict.get(self, "__annotations__", ()))
        own = [name for name in names if name.startswith(OWN_PREFIX) or name == CAPTURES_KEY]
        is_copy = hasattr(dict.get(self, INFO_KEY), "is_declared")  # of the entries of a class
        if own and not is_copy and not str(dict.get(self, "__module__")).startswith("declax."):
            raise FieldError(
                f"{cls}.{own[0]}",
                "declax keeps what it knows of a class and of its instances under this name",
                why=f"so it does under all names that begin with {OWN_PREFIX!r}, and under {CAPTURES_KEY!r}",
                fix=f"{own[0].strip('_').removeprefix('pytree__')} = ...        # another name",
            )

    def note(self, default: PlainDefault) -> None:
        """Notes that the running statement reads the default of a field of another class."""
        self._read.append(default)

    @property
    def _class_name(self) -> str:
        qualified: str = dict.get(self, "__qualname__", "class")
        return qualified.rpartition("<locals>.")[2]

    def _look_outside(self, reader: str, value: object) -> None:
        """Keeps the names of globals that a value was computed from; raises at names of fields without a specifier."""
        outside, self._outside = self._outside, []
        if reader.startswith("__") or isinstance(value, (FunctionType, type, property)):
            return
        annotations = dict.get(self, "__annotations__", {})
        names = [name for name in outside if name in annotations and name not in (reader, *self)]
        if names:
            where, why = f"{self._class_name}.{names[0]}", "Python finds a global of this name"
            raise reads_constant(
                where, dataclasses.MISSING, annotations[names[0]], f"expression of {reader!r}", why=why
            )

    def _look_at_unpacked(self, name: str, value: Any, frame: FrameType) -> None:
        """Keeps an expression to which the running unpacking gave a name before, as in ``q, k = [call] * 2``."""
        items = [value] if isinstance(value, Expression) else [item for _, item in entries(value)]
        named = {item._pytree__name: item for item in items if isinstance(item, Expression)}
        again = [named[first] for first in unpacked_with(frame) if first in named]
        if again:
            self._body.unpacked[name] = again[0]

    def _read_inside(self, name: str, scope: str) -> FieldError:
        """The error for an inner scope that reads a field, which it cannot see."""
        cls = self._class_name
        fix = (
            "dx.repeat(3, dx.Linear(dim, dim))        # in place of a comprehension\n"
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
        annotations = dict.get(self, "__annotations__", {})
        if name in frame.f_globals or name in frame.f_code.co_freevars or hasattr(builtins, name):
            found = frame.f_globals.get(name, getattr(builtins, name, None))
            if name in annotations or not (callable(found) or isinstance(found, ModuleType)):
                self._outside.append(name)
            return
        where = f"{self._class_name}.{name}"
        if name in annotations:
            raise FieldError(
                where,
                "a field without a specifier cannot be read in the class body",
                fix=f"{name}: {annotation_text(annotations[name])} = dx.field()",
            )
        if name == "rngs":
            if self._implies_rngs:
                raise FieldError(
                    where, "in a Layer, calls get rngs without being told", fix="dx.Linear(dim, dim)        # no rngs"
                )
            raise FieldError(
                where,
                "the class body reads rngs, which this class does not declare",
                why="an InitVar is not inherited by name",
                fix=f"class {self._class_name}(dx.Layer): ...        # calls get rngs without being told\n{RNGS_LINES}",
            )
        if name in ("self", "cls"):
            attribute = attribute_read(frame)
            raise FieldError(
                f"{self._class_name}.{attribute or name}",
                f"the class body reads {name!r}, and there is no instance when it runs",
                why="the name of a field stands for the value that each instance has",
                fix=f"{attribute or 'dim'}        # in place of {name}.{attribute or 'dim'}",
            )
        if binds(frame.f_code, name):
            raise FieldError(
                where, "the class body reads this name above its declaration", fix=f"declare {name!r} first"
            )
        base = base_with(name, (cls for base in self._bases for cls in base.__mro__))
        if base is not None:
            raise FieldError(
                where,
                f"the class body reads {name!r}, a field of the base {type_name(base)}",
                why="in Python, a class body does not see inherited names",
                fix=f"{type_name(base)}.{name}",
            )


class PlainDefault:
    """A default without a specifier, as the attribute of its class: the body of a subclass notes that it reads it."""

    def __init__(self, cls: type, field: dataclasses.Field[Any]) -> None:
        self.where: str = f"{type_name(cls)}.{field.name}"
        self.value: Any = field.default
        self.annotation: Any = field.type

    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        if instance is None:
            frame = sys._getframe(1)
            if is_class_body(frame) and isinstance(frame.f_locals, ClassBody):  # not in a comprehension
                frame.f_locals.note(self)
        return self.value


def base_with(name: str, bases: Iterable[type]) -> type | None:
    """The first of the bases, which are those of an MRO, that has a field of a name."""
    for base in bases:
        field = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if field is not None and field._field_type is not CLASS_VAR:
            return base
    return None


def reads_constant(
    where: str,
    value: object,
    annotation: object,
    reader: str,
    why: str = "only a field with a specifier has the value of the instance in the class body",
) -> FieldError:
    """The error of an expression that reads a field without a specifier; its value is MISSING if there is none."""
    is_missing = value is dataclasses.MISSING
    what = "has no specifier" if is_missing else f"gives it the constant {text_of(value)}"
    default = "" if is_missing else f"default={text_of(value)}"
    return FieldError(
        where,
        f"the {reader} reads this field, which {what}",
        why=why,
        fix=f"{where.rpartition('.')[2]}: {annotation_text(annotation)} = dx.field({default})",
    )

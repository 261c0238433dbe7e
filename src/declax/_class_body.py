"""The namespace of a class body. It records what the statements read and bind.

An expression that reads a plain default would take it as a constant, and a
name that the body lacks is taken from the globals. The records show both; they
are refused when the class is created.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any, Final

from declax._expressions import Declaration, Expression, has_expression
from declax.errors import FieldError

BODY_KEY: Final = "_pytree__body"
"""The entry of a class for its `Body`, until the class is decorated."""


class Body:
    """What a class body binds to expressions.

    Attributes:
      bound: the expressions, and the containers that hold some, by name, in order.
      reads: the names that the statement of each of these read.
      twice: the first name that is bound again after an expression, if any.
    """

    __slots__ = ("bound", "reads", "twice")

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}
        self.reads: dict[str, tuple[str, ...]] = {}
        self.twice: str | None = None


class ClassBody(dict[str, Any]):
    """A namespace in which each binding of a name ends a statement."""

    __slots__ = ("_body", "_read")

    _pytree__is_class_body = True

    def __init__(self) -> None:
        super().__init__()
        self._body = Body()
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
        if name in body.bound and body.twice is None:
            body.twice = name
        if has_expression(value):
            if isinstance(value, Expression) and value._pytree__name is None:
                value._pytree__name = name
            if not body.bound:
                super().__setitem__(BODY_KEY, body)
            body.bound[name] = value
            body.reads[name] = tuple(read)
        super().__setitem__(name, value)

    def _explain_missing(self, name: str) -> None:
        """Raises for a field without a specifier, where Python would raise a NameError."""
        frame = sys._getframe(2)
        if name in frame.f_globals or name in frame.f_code.co_freevars or hasattr(builtins, name):
            return
        annotations = dict.get(self, "__annotations__", {})
        where = f"{dict.get(self, '__qualname__', 'class')}.{name}"
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
                fix="_: dx.KW_ONLY\nrngs: dx.InitVar[dx.Rngs] = dx.field()",
            )


def collect(cls: Any) -> None:
    """Puts standard fields into the place of the declarations of a new class.

    A class that was made without a class body, as by ``type(...)``, gets its `Body` here.
    """
    body: Body | None = cls.__dict__.get(BODY_KEY)
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


def text_of_annotation(annotation: object) -> str:
    """An annotation as the class body writes it, as far as that is known."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)

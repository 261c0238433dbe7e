"""What modules are asked to keep, checked: a kind of Variable, and a name that is free or of that kind.

Vocabulary
----------
sow:     keep a value that arises in a call, in a Variable of the module.
perturb: add a Variable of zeros, whose gradient is that of what it is added to.
"""

from __future__ import annotations

from typing import Any, get_origin

from declax._variable_names import variable_type_from_name
from declax._variables import Variable
from declax.errors import GraphError, describe, type_name


def sown_kind(module: object, method: str, name: object, variable_type: Any) -> type[Variable[Any]]:
    """The kind of Variable that a call of `sow` or `perturb` asks for.

    Args:
      module: the module.
      method: the name of the method.
      name: the name that the call gives; it has to be a text.
      variable_type: a kind, also with a type of values in brackets, or a
        registered name, which is registered where it is new.

    Raises:
      GraphError: for what is no name, and for what is no kind.

    >>> from declax._variables import Intermediate
    >>> sown_kind(None, "sow", "seen", Intermediate) is Intermediate
    True
    """
    if not isinstance(name, str):
        fix = f"self.{method}({'dx.Intermediate, ' if method == 'sow' else ''}'name', value)"
        where = f"{type_name(type(module))}.{method}"
        raise GraphError(where, "the name of what is kept has to be a text", got=describe(name), fix=fix)
    if isinstance(variable_type, str):
        return variable_type_from_name(variable_type, allow_register=True)
    kind: Any = get_origin(variable_type) or variable_type
    if not (isinstance(kind, type) and issubclass(kind, Variable)):
        raise GraphError(
            f"{type_name(type(module))}.{name}",
            f"{method} keeps values in Variables, and this is no kind of them",
            expected="a subclass of dx.Variable, or its registered name",
            got=describe(variable_type),
            fix=f"self.sow(dx.Intermediate, {name!r}, value)" if method == "sow" else f"self.perturb({name!r}, value)",
        )
    return kind


def is_taken(module: object, method: str, name: str, kind: type[Variable[Any]], found: Any, problem: str) -> GraphError:
    """The error of a name under which there is something of another kind.

    Args:
      module: the module.
      method: the name of the method.
      name: the name.
      kind: the kind that the call asks for.
      found: what is there.
      problem: of what sort this is, and from where.

    >>> is_taken(None, "sow", "seen", Variable, 3, "sow found something else").expected
    'nothing, or a Variable of the kind Variable'
    """
    return GraphError(
        f"{type_name(type(module))}.{name}",
        problem,
        expected=f"nothing, or a Variable of the kind {type_name(kind)}",
        got=describe(found),
        fix=f"self.{method}(..., {name + '_'!r}, ...)",
    )


__all__ = ["is_taken", "sown_kind"]

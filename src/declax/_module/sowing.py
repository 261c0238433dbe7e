"""Where modules keep the values that they sow, and the checks of their names and kinds."""

from __future__ import annotations

from typing import Any, get_origin

from declax._classes.pytree import Pytree
from declax._typing import CAPTURES_KEY
from declax._variables.registry import variable_type_from_name
from declax._variables.variable import Variable
from declax.errors import GraphError, describe, type_name


class Captures(Pytree):
    """What one module sows during a captured call: Variables, under the names of the calls of `sow`.

    It is an attribute of the module, so that split, merge and transforms carry
    it along, and compiled functions trace a captured call separately.

    Args:
      method_outputs: the kind as which to sow the outputs of methods, if any.
    """

    def __init__(self, method_outputs: type[Variable[Any]] | None = None) -> None:
        if method_outputs is not None:
            self.__method_outputs__ = method_outputs

    def variables(self) -> dict[str, Variable[Any]]:
        """What was sown, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Variable)}


def holder_of(module: Any) -> Any:
    """What has the Variables that a module sows: its `Captures` during a captured call, else the module."""
    return module.__dict__.get(CAPTURES_KEY, module)


def sown_kind(module: object, method: str, name: object, variable_type: Any) -> type[Variable[Any]]:
    """The kind of Variable that a call of `sow` or `perturb` asks for, by itself or by a name, which is registered."""
    if not isinstance(name, str):
        fix = f"self.{method}({'dx.Intermediate, ' if method == 'sow' else ''}'name', value)"
        where = f"{type_name(type(module))}.{method}"
        raise GraphError(where, "the name has to be a string", got=describe(name), fix=fix)
    if isinstance(variable_type, str):
        return variable_type_from_name(variable_type, allow_register=True)
    kind: Any = get_origin(variable_type) or variable_type
    if not (isinstance(kind, type) and issubclass(kind, Variable)):
        raise GraphError(
            f"{type_name(type(module))}.{name}",
            "this is not a kind of Variable",
            expected="a subclass of dx.Variable, or its registered name",
            got=describe(variable_type),
            fix=f"self.sow(dx.Intermediate, {name!r}, value)" if method == "sow" else f"self.perturb({name!r}, value)",
        )
    return kind


def own_variable(module: object, name: str, kind: type[Variable[Any]], method: str) -> Variable[Any]:
    """The Variable that a module has under a name; raises GraphError for anything else."""
    found = getattr(holder_of(module), name)
    if isinstance(found, kind):
        return found
    raise GraphError(
        f"{type_name(type(module))}.{name}",
        f"{method} found something else under this name",
        expected=f"nothing, or a Variable of the kind {type_name(kind)}",
        got=describe(found),
        fix=f"self.{method}(..., {name + '_'!r}, ...)",
    )

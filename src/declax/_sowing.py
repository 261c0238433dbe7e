"""Where modules keep what they sow, and the checks of the names and kinds that they sow under.

Vocabulary
----------
sow:     keep a value that arises in a call, in a Variable of the module.
perturb: add a Variable of zeros, whose gradient is that of the value it is added to.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, get_origin

import jax
import numpy as np

from declax._pytree import Pytree
from declax._typing import CAPTURES_KEY
from declax._variable_names import variable_type_from_name
from declax._variables import Variable
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


perturbed: Final[ContextVar[set[str] | None]] = ContextVar("declax_perturbed", default=None)
"""The names under which modules perturbed during a captured call; not those in programs compiled before."""


def note_perturbed(name: str) -> None:
    """Notes the name of a perturbation where a captured call runs."""
    names = perturbed.get()
    if names is not None:
        names.add(name)


def check_perturbation(module: object, name: str, added: Any, value: Any) -> None:
    """Checks that a perturbation has the shape of the value that it is added to.

    Raises:
      GraphError: where it has another shape.
    """
    if _shapes(added) == _shapes(value):
        return
    raise GraphError(
        f"{type_name(type(module))}.{name}",
        "the perturbation has another shape than what it is added to",
        expected=str(_shapes(value)[0]),
        got=str(_shapes(added)[0]),
        fix="_, init = dx.capture(fn, dx.Perturbation)(model, ...)        # with inputs of this shape",
    )


def _shapes(tree: Any) -> tuple[list[tuple[int, ...]], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return [np.shape(leaf) for leaf in leaves], structure


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


def own_variable(module: object, name: str, kind: type[Variable[Any]], method: str) -> Variable[Any]:
    """The Variable that a module has under a name that it sows or perturbs under.

    Raises:
      GraphError: where there is something else.
    """
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

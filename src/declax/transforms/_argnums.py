"""Which arguments, and which leaves of them, a transform differentiates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from declax._filters import Filter
from declax._modes import is_graph
from declax._variables.selection import is_trainable
from declax.errors import TransformError, describe
from declax.transforms._engine.prefixes import check_selects_nothing


class DiffState(NamedTuple):
    """An argument, and the leaves of it to differentiate.

    Attributes:
      argnum: the position of the argument.
      filter: the leaves; by default, the Params.

    >>> import declax as dx
    >>> model = dx.Linear(2, 1, rngs=dx.Rngs(0))
    >>> biases = dx.DiffState(0, dx.PathContains("bias"))
    >>> dx.grad(lambda model: model(jax.numpy.ones(2)).sum(), argnums=biases)(model).paths
    (('bias',),)
    """

    argnum: int
    filter: Filter = is_trainable


Argnums = int | DiffState | Sequence[int | DiffState]


def parse_argnums(option: str, argnums: Argnums, graph: bool | None) -> list[int | DiffState]:
    """The entries of an option that selects arguments."""
    is_one = isinstance(argnums, (DiffState, str)) or not isinstance(argnums, Sequence)
    found: list[Any] = [argnums] if is_one else list(argnums)  # type: ignore[arg-type]  # a sequence
    for entry in found:
        number = entry.argnum if isinstance(entry, DiffState) else entry
        if not isinstance(number, int) or isinstance(number, bool):
            problem = "these are not positions of arguments"
            raise TransformError(option, problem, expected="ints or DiffState", got=describe(entry))
    if not is_graph(graph):
        check_selects_nothing(option, found, DiffState)
    if not found and option == "argnums":
        raise TransformError(option, "no argument is selected", expected="an int, or several", got=describe(argnums))
    return found

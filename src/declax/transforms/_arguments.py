"""What the parameters of a function say of the arguments of a call.

Vocabulary
----------
positioned: of an argument: given by position, or by name to a parameter that
            has one. A prefix for the positional arguments holds for all of these.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax

_NOTHING: Any = jax.tree_util.tree_structure(None)


class Positioned(NamedTuple):
    """The positioned arguments of a call.

    Attributes:
      tree: of them, a tuple by position; nothing where an argument that is not given keeps its default.
      leaves: its leaves, by their numbers among those of all arguments.
      named: the numbers of the leaves of other arguments.
    """

    tree: Any
    leaves: Sequence[int]
    named: Sequence[int]


def positioned(function: Callable[..., Any], tree: Any, skipped: Collection[int] = ()) -> Positioned:
    """The arguments of a call that have a position, also where they are given by name.

    Args:
      function: the function.
      tree: of the arguments by position, and of those by name.
      skipped: the positions that the call does not have, as those of static arguments.
    """
    args, kwargs, *_ = tree.children()
    count = args.num_leaves
    if not kwargs.children():
        return Positioned(args, range(count), ())
    taken = {place: rank for rank, place in enumerate(_places(function, skipped))}
    listed = [(part, range(start, start + part.num_leaves)) for part, start in _with_starts(args.children(), 0)]
    named: list[int] = []
    for name, (part, start) in zip(kwargs.node_data()[1], _with_starts(kwargs.children(), count), strict=True):
        numbers = range(start, start + part.num_leaves)
        place = taken.get(name, -1)
        if place < len(args.children()):  # none, or one that is taken, which is an error of the call
            named += numbers
            continue
        listed += [(_NOTHING, range(0))] * (place + 1 - len(listed))
        listed[place] = part, numbers
    return Positioned(
        jax.tree_util.treedef_tuple([part for part, _ in listed]), [i for _, numbers in listed for i in numbers], named
    )


def _places(function: Callable[..., Any], skipped: Collection[int]) -> list[str | None]:
    """The names of the parameters that have a position, in order; None for those that only have a position."""
    known = (parameters(function) or {}).values()
    found = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    # a name of a positional-only parameter may be one of the others, that `**kwargs` takes
    names = [p.name if p.kind is p.POSITIONAL_OR_KEYWORD else None for p in found]
    return [name for place, name in enumerate(names) if place not in skipped]


def _with_starts(parts: Sequence[Any], start: int) -> Iterator[tuple[Any, int]]:
    """Trees with the numbers of their first leaves."""
    for part in parts:
        yield part, start
        start += part.num_leaves


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The parameters of a function by name; None where Python does not know them."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None

"""Recognises the arguments of the last call in the next one, without taking them apart by JAX.

Training calls one function with the same models and new arrays in the same
containers, such as a batch that is a tuple or a dict. For arguments of one shape
there is a generated function, which compares what comes and gives the arrays.
What the function captures is compared there too, in the same frame.

Vocabulary
----------
shape:   of arguments, where models, containers and arrays are in them.
matcher: says whether arguments have a shape, and have the same models there.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final

from declax._codegen import compile_functions
from declax._pytree import Pytree
from declax.transforms._roots import is_leaf

MOST: Final = 64
"""Arguments of so many models, containers and arrays have a shape; more are taken apart by JAX at each call."""

FEW: Final = 6
"""So many arrays of a container are looked at by a line of code each; more of them by one for all."""

Matcher = Callable[[tuple[Any, ...], dict[str, Any]], "tuple[Any, ...] | None"]
"""Gives the arrays and numbers among arguments, in JAX's order; None for other arguments."""


def matcher_of(
    args: tuple[Any, ...], kwargs: dict[str, Any], watched: Sequence[tuple[Any, str | None, Any]] = ()
) -> Matcher | None:
    """What recognises arguments like these; None for what has no shape.

    Args:
      args, kwargs: the arguments.
      watched: what the function captures and has to capture still: see `Survey.watched`.

    >>> match = matcher_of(({"x": 1, "y": 2},), {})
    >>> match(({"y": 4, "x": 3},), {}), match(([3, 4],), {})
    ((3, 4), None)
    """
    writer = _Writer()
    try:
        writer.look("args", args, is_tuple=True)
        if kwargs:
            writer.look("kwargs", kwargs)
        else:
            writer.demand("not kwargs")
        for place in watched:
            writer.watch(*place)
    except _NoShapeError:
        return None
    match = _compiled(writer.source())
    return types.FunctionType(match.__code__, match.__globals__, match.__name__, tuple(writer.given))


class _NoShapeError(Exception):
    """Arguments are not recognised."""


class _Writer:
    """Writes a matcher.

    Attributes:
      given: what the source refers to as ``g0``, ``g1``, ...: references to models, keys of
        dicts, and classes of arrays, of which most calls have the same.
    """

    def __init__(self) -> None:
        self.given: list[Any] = []
        self._names = map("v{}".format, count())
        self._lines: list[str] = []
        self._leaves: list[str] = []

    def demand(self, condition: str) -> None:
        """Has arguments to meet a condition."""
        self._lines.append(f"if not ({condition}): return None")

    def look(self, name: str, value: Any, *, is_tuple: bool = False) -> None:
        """Has what a name stands for to be like a value.

        Args:
          name: of what is looked at.
          value: what it shall be like.
          is_tuple: whether it is known to be a tuple.

        Raises:
          _NoShapeError: for a value of another kind, and for too many of them.
        """
        if len(self._lines) > 2 * MOST:
            raise _NoShapeError
        cls = value.__class__
        if is_leaf(value):
            self.demand(f"type({name}) is {self._give(type(value))} or is_leaf({name})")
            self._leaves.append(name)
        elif isinstance(value, Pytree):
            self.demand(f"{name} is {self._give(weakref.ref(value))}()")
        elif value is None:
            self.demand(f"{name} is None")
        elif cls in (tuple, list, dict):
            if not is_tuple:
                self.demand(f"{name}.__class__ is {cls.__name__}")
            self.demand(f"len({name}) == {len(value)}")
            if value:
                self._look_into(name, value)
        else:
            raise _NoShapeError

    def watch(self, holder: Any, key: str | None, content: object) -> None:
        """Has a cell, or a name of a module, to hold what it did."""
        place = ".cell_contents" if key is None else f"[{self._give(key)}]"
        self.demand(f"{self._give(holder)}{place} is {self._give(content)}")

    def _look_into(self, name: str, value: Any) -> None:
        items = value
        if isinstance(value, dict):
            try:
                keys = tuple(sorted(value))
            except TypeError as error:
                raise _NoShapeError from error
            items = [value[key] for key in keys]
            taken = next(self._names)
            if len(keys) > FEW:
                self._lines.append(f"{taken} = [{name}[key] for key in {self._give(keys)}]")
            else:
                self._lines.append(f"{taken} = {''.join(f'{name}[{self._give(key)}], ' for key in keys)}")
            name = taken
        if len(items) > FEW and all_leaves(items):
            self.demand(f"all_leaves({name})")
            self._leaves.append(f"*{name}")
            return
        parts = [next(self._names) for _ in items]
        self._lines.append(f"{', '.join(parts)}, = {name}")
        for part, item in zip(parts, items, strict=True):
            self.look(part, item)

    def _give(self, value: Any) -> str:
        self.given.append(value)
        return f"g{len(self.given) - 1}"

    def source(self) -> str:
        """The source of the matcher, to which what is given comes as defaults: next to each other in memory."""
        given = "".join(f", g{number}" for number in range(len(self.given)))
        lines = [
            f"def match(args, kwargs{given}):",
            "    try:",
            *(f"        {line}" for line in self._lines),
            f"        return ({''.join(f'{leaf}, ' for leaf in self._leaves)})",
            "    except (KeyError, ValueError):  # another key, no content, or a list that another thread changes",
            "        return None",
        ]
        return "\n".join(lines)


def all_leaves(values: Iterable[Any]) -> bool:
    """Whether all values are arrays or numbers."""
    return all(map(is_leaf, values))


@functools.lru_cache(maxsize=256)
def _compiled(source: str) -> Any:
    parameters = {"is_leaf": is_leaf, "all_leaves": all_leaves}
    return compile_functions("arguments", [source], parameters)[0]

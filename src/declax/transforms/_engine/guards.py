"""Recognising a call that is like the last one, by a generated guard of its arguments."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count, cycle, repeat
from typing import Any, Final

import jax
from jax.sharding import Sharding

from declax._classes.pytree import Pytree
from declax._graph.binding import Binding
from declax._tree.codegen import compile_functions
from declax.transforms._engine.call import Call
from declax.transforms._engine.holding import mesh_of, shardings_of_arrays
from declax.transforms._engine.outcome import UNCHANGED, Plan
from declax.transforms._engine.programs import Program
from declax.transforms._engine.structure import Structure, is_leaf

MOST: Final = 64
"""The largest number of models, containers and arrays in arguments with a shape; JAX flattens more at each call."""


FEW: Final = 6
"""Up to this many arrays of a container, each has its own line in the guard; more of them share one."""


_TURNS: Final = (*repeat(False, 60), True)
"""A prime number of calls, so that calls that take several models in turns come to compare each of them."""


def turns(*first: bool) -> Callable[[], bool]:
    """In which calls, after the first, the attributes of all nodes are compared: in each, it would cost too much."""
    return chain(first, cycle(_TURNS)).__next__


ALWAYS: Final[Callable[[], bool]] = repeat(True).__next__
"""The turns of a function that changes the structure: it would put back attributes as they were read."""


Guard = Callable[[tuple[Any, ...], dict[str, Any]], "tuple[Any, ...] | None"]
"""Gives the arrays and numbers among arguments, in JAX's order; None for other arguments."""


def _values_there(where: tuple[Sharding | None, ...], binding: Binding) -> tuple[Any, ...] | None:
    """Reads the values of a binding; None if some are on other devices than those of a call were."""
    values = binding.values()
    return values if values is not None and shardings_of_arrays(values) == where else None


def _plain_off_meshes(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """As the guard of a call without a mesh; None if an argument lies on one, since its axes have names then."""
    plain = guard(args, kwargs)
    return plain if plain is None or mesh_of(plain) is None else None


class CacheEntry:
    """A call, to recognise the next one like it.

    A binding that lives implies that its roots live, so identities tell them apart. Values are kept under the `key`.
    `writes` are the last plan that only sets Variables, and the key if it sets all of the graph. `is_turn` is one of
    the `turns`.
    """

    __slots__ = (
        "binding",
        "captures_the_same",
        "guard",
        "is_fixed",
        "is_turn",
        "key",
        "program",
        "read",
        "run",
        "structure",
        "writes",
    )

    def __init__(
        self, guard: Guard, binding: Binding, call: Call, program: Program, captures_the_same: Callable[[], bool] | None
    ) -> None:
        self.guard: Guard = guard
        self.captures_the_same: Callable[[], bool] | None = captures_the_same
        self.structure: Structure = call.structure
        self.binding: Callable[[], Binding | None] = weakref.ref(binding)
        self.is_fixed: bool = binding.is_fixed and captures_the_same is None
        self.is_turn: Callable[[], bool] = turns(True)
        self.key: int = id(binding)
        self.program: Program = program
        self.read: Callable[[Binding], tuple[Any, ...] | None] = Binding.values
        if jax.device_count() > 1:
            self.read = functools.partial(_values_there, shardings_of_arrays(call.values))
            if mesh_of(call.leaves) is None:
                self.guard = functools.partial(_plain_off_meshes, guard)
        self.run: Callable[..., Any] = program.run_fast
        self.writes: tuple[Plan, int | None] = UNCHANGED, None

    @staticmethod
    def of(args: tuple[Any, ...], kwargs: dict[str, Any], call: Call, program: Program) -> CacheEntry | None:
        """The entry of a call; None if no guard can recognise its arguments."""
        if not call.roots or call.captures is None:
            return None
        watched, captures_the_same = call.captures.watched(), None
        if watched is None or len(watched) > MOST:
            watched, captures_the_same = [], call.captures.is_current
        guard = make_guard(args, kwargs, watched)
        return None if guard is None else CacheEntry(guard, call.binding, call, program, captures_the_same)

    def note(self, plan: Plan, binding: Binding) -> None:
        """Notes a plan; one that sets Variables and does nothing else is committed at once in the next call."""
        if plan.change is not None:
            self.is_turn = ALWAYS
        sets_all = len(plan.changed) == len(binding.cells)
        is_plain = plan.change is None and plan.calls_back is False and binding.is_kept
        if is_plain and (sets_all or not self.program.moves_arrays):
            self.writes = plan, self.key if sets_all else None

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A call like this one; None for another one."""
        plain, binding = self.guard(args, kwargs), self.binding()
        values = None if plain is None or binding is None or not self.is_current(binding) else self.read(binding)
        if plain is None or binding is None or values is None:
            return None
        return Call.from_binding(self.structure, binding, values, plain)

    def is_current(self, binding: Binding) -> bool:
        """Whether the graph and the captures are still those of the call."""
        return binding.is_valid() and (self.captures_the_same is None or self.captures_the_same())


def make_guard(
    args: tuple[Any, ...], kwargs: dict[str, Any], watched: Sequence[tuple[Any, str | None, Any]] = ()
) -> Guard | None:
    """The guard of arguments like these; None for arguments without a shape.

    >>> guard = make_guard(({"x": 1, "y": 2},), {})
    >>> guard(({"y": 4, "x": 3},), {}), guard(([3, 4],), {})
    ((3, 4), None)
    """
    writer = _GuardWriter()
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
    guard = _compiled(writer.source())
    return types.FunctionType(guard.__code__, guard.__globals__, guard.__name__, tuple(writer.given))


class _NoShapeError(Exception):
    """Arguments are not recognised."""


class _GuardWriter:
    """Writes a guard; `given` are the objects ``g0``, ``g1``, ... of the source."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self._names = map("v{}".format, count())
        self._lines: list[str] = []
        self._leaves: list[str] = []

    def demand(self, condition: str) -> None:
        """Requires arguments to meet a condition."""
        self._lines.append(f"if not ({condition}): return None")

    def look(self, name: str, value: Any, *, is_tuple: bool = False) -> None:
        """Requires the value of a name to be like a value; raises _NoShapeError for values that no guard knows."""
        if len(self._lines) > 2 * MOST:
            raise _NoShapeError
        cls = value.__class__
        if isinstance(value, Pytree):
            self.demand(f"{name} is {self._give(weakref.ref(value))}()")
        elif value is None:
            self.demand(f"{name} is None")
        elif cls in (tuple, list, dict):
            if not is_tuple:
                self.demand(f"{name}.__class__ is {cls.__name__}")
            self.demand(f"len({name}) == {len(value)}")
            if value:
                self._look_into(name, value)
        elif is_leaf(value):
            self.demand(f"type({name}) is {self._give(type(value))} or is_leaf({name})")
            self._leaves.append(name)
        else:
            raise _NoShapeError

    def watch(self, holder: Any, key: str | None, content: object) -> None:
        """Requires the contents of a cell, or of a name of a module, to be the same."""
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
                self._lines.append(f"{taken} = {''.join([f'{name}[{self._give(key)}], ' for key in keys])}")
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
        """The source of the guard, whose defaults are the given objects, next to each other in memory."""
        given = "".join([f", g{number}" for number in range(len(self.given))])
        lines = [
            f"def guard(args, kwargs{given}):",
            "    try:",
            *[f"        {line}" for line in self._lines],
            f"        return ({''.join([f'{leaf}, ' for leaf in self._leaves])})",
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

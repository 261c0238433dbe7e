"""Recognises a call that is like the last one, and runs it without taking its arguments apart.

Training calls one function with the same models and new arrays in the same
containers, such as a batch that is a tuple or a dict. For arguments of one shape
there is a generated function, the guard, which compares the arguments and gives
the arrays. What the function captures is compared there too, in the same frame.

Vocabulary
----------
shape: of arguments, where models, containers and arrays are in them.
guard: says whether arguments have a shape, and have the same models there.
entry: the guard of the last call, with the binding of its models and its program.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final

from declax import _epoch, _jax
from declax._codegen import compile_functions
from declax._pytree import Pytree
from declax._threads import committing
from declax._typing import MISSING
from declax._variables import fill_raw, run_all
from declax.graph.binding import Binding
from declax.transforms._explaining import explain
from declax.transforms._lift import Call, Outcome, Plan, apply, write
from declax.transforms._program import Program
from declax.transforms._roots import is_leaf
from declax.transforms._running import is_current

MOST: Final = 64
"""Arguments of so many models, containers and arrays have a shape; more are taken apart by JAX at each call."""

FEW: Final = 6
"""So many arrays of a container are looked at by a line of code each; more of them by one for all."""

Guard = Callable[[tuple[Any, ...], dict[str, Any]], "tuple[Any, ...] | None"]
"""Gives the arrays and numbers among arguments, in JAX's order; None for other arguments."""

_trace_state = _jax.trace_state


class CacheEntry:
    """A call, to recognise the next one like it.

    A binding that lives implies that its roots live, so identities tell them apart.

    Attributes:
      guard: recognises the arguments, and what the function captures where `captures_the_same` is None.
      captures_the_same: says whether the function captures what it did.
      binding: a reference to the binding of the models.
      key: the identity of the binding, under which values are kept.
      program: what the call ran.
    """

    __slots__ = ("_structure", "binding", "captures_the_same", "guard", "key", "program")

    def __init__(
        self, guard: Guard, call: Call, program: Program, captures_the_same: Callable[[], bool] | None
    ) -> None:
        assert call.binding is not None  # `of` looks
        self.guard = guard
        self.captures_the_same = captures_the_same
        self._structure = call.structure
        self.binding: Callable[[], Binding | None] = weakref.ref(call.binding)
        self.key = id(call.binding)
        self.program = program

    @staticmethod
    def of(args: tuple[Any, ...], kwargs: dict[str, Any], call: Call, program: Program) -> CacheEntry | None:
        """The entry of a call; None where its arguments have no shape."""
        if call.binding is None or call.captures is None:
            return None
        watched, look = call.captures.watched(), None
        if watched is None or len(watched) > MOST:
            watched, look = [], call.captures.is_current
        guard = make_guard(args, kwargs, watched)
        return None if guard is None else CacheEntry(guard, call, program, look)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A call like this one; None where it is another one."""
        plain, binding = self.guard(args, kwargs), self.binding()
        if plain is None or binding is None or not binding.is_valid():
            return None
        if self.captures_the_same is not None and not self.captures_the_same():
            return None
        return Call.from_binding(self._structure, binding, plain)

    def commit(
        self, binding: Binding, kept: object, leaves: tuple[Any, ...], result: tuple[Plan, tuple[Any, ...], Any]
    ) -> Any:
        """Commits a call like this one.

        Args:
          binding: of the models.
          kept: the token of the write epoch before the values were read.
          leaves: the values, then the other leaves.
          result: the parts of the Outcome.

        Returns:
          What the user's function returned; `MISSING` after a conflict.
        """
        plan, new, output = result
        if plan.calls_back is not False:
            self.program.wait_for_callbacks(plan, leaves, result)
        with committing:
            if plan.change is None and binding.is_kept and binding.mark is _trace_state.value:
                variables: Any = binding.variables
                after = {self.key: new}
                if len(new) < len(variables):
                    variables, after = binding.variables_at(plan.changed), {}
                steps = map(fill_raw, variables, new)
                if _epoch.kept is kept is not None:  # no call from here on, so that no other write comes between
                    _epoch.kept = after
                    run_all(steps)
                    return output
            if not is_current(binding, plan, leaves):
                return MISSING
            if plan.change is not None:
                return apply(Outcome(*result), binding.objects(), leaves)
            write(binding, plan.changed, new)
        return output

    def explain(self, binding: Binding, plain: tuple[Any, ...], error: BaseException) -> None:
        """Explains an error of JAX's function, run for a call like this one, in the user's words."""
        call = Call.from_binding(self._structure, binding, plain)
        self.program.note_lost(call, error)
        if isinstance(error, (RecursionError, SystemError)):
            binding.check_depth()  # something has grown in a Variable that JAX cannot take apart
        elif isinstance(error, Exception):
            explain(call, error)


# ----------------------------------------------------------------- the generated guard


def make_guard(
    args: tuple[Any, ...], kwargs: dict[str, Any], watched: Sequence[tuple[Any, str | None, Any]] = ()
) -> Guard | None:
    """The guard of arguments like these; None for arguments without a shape.

    Args:
      args, kwargs: the arguments.
      watched: what the function captures and has to capture still: see `Captures.watched`.

    >>> guard = make_guard(({"x": 1, "y": 2},), {})
    >>> guard(({"y": 4, "x": 3},), {}), guard(([3, 4],), {})
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
    guard = _compiled(writer.source())
    return types.FunctionType(guard.__code__, guard.__globals__, guard.__name__, tuple(writer.given))


class _NoShapeError(Exception):
    """Arguments are not recognised."""


class _Writer:
    """Writes a guard.

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
        """The source of the guard, to which what is given comes as defaults: next to each other in memory."""
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

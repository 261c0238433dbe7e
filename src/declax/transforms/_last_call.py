"""The last call of a compiled function, to run the next one like it at once.

Training calls one function with the same models and new arrays. Then nothing is
taken apart, and no object is made for the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from declax import _jax
from declax._kept_values import Record
from declax._threads import committing, is_alone
from declax._typing import MISSING
from declax.graph.binding import Binding
from declax.transforms._closure import Closure
from declax.transforms._explaining import explain
from declax.transforms._lift import UNCHANGED, Call, Outcome, Plan, apply, write
from declax.transforms._patterns import Matcher, matcher_of
from declax.transforms._program import Program
from declax.transforms._running import has_its_values

_trace_state = _jax.trace_state


class LastCall:
    """The models of the last call, to recognise them in the next one.

    The binding is valid, or it is not. A binding that lives says that its
    roots do too, so that identities tell them.

    Args:
      match: recognises the arguments.
      call: the call.
      program: what it ran.
      closure: of the function.

    Attributes:
      match: as given.
      is_fixed: whether the function captures nothing and never will.
      binding: a reference to the binding of the roots.
      program: what the call ran.
    """

    __slots__ = ("_closure", "_structure", "_survey", "binding", "is_fixed", "match", "program")

    def __init__(self, match: Matcher, call: Call, program: Program, closure: Closure) -> None:
        assert call.binding is not None  # `of` looks
        self.match = match
        self._closure = closure
        self._survey = closure.find()
        self.is_fixed = self._survey.is_fixed
        self._structure = call.structure
        self.binding: Callable[[], Binding | None] = weakref.ref(call.binding)
        self.program = program

    @staticmethod
    def of(
        args: tuple[Any, ...], kwargs: dict[str, Any], call: Call, program: Program, closure: Closure
    ) -> LastCall | None:
        """What to remember of a call; None where its arguments have no pattern."""
        match = None if call.binding is None else matcher_of(args, kwargs)
        return None if match is None else LastCall(match, call, program, closure)

    def captures_the_same(self) -> bool:
        """Whether the function captures what it did."""
        return self.is_fixed or self._closure.find() is self._survey

    @staticmethod
    def commit(
        binding: Binding, record: Record, values: tuple[Any, ...], result: tuple[Plan, tuple[Any, ...], Any]
    ) -> Any:
        """Commits a call like this one.

        Args:
          binding: that of the models.
          record: what was read from it.
          values: its values then.
          result: the parts of the Outcome.

        Returns:
          What the user's function returned; `MISSING` where another thread was
          faster, so that the call has to run again.
        """
        plan, new, output = result
        if plan is UNCHANGED:
            return output
        with committing:
            is_kept = plan.change is None and record.values is values and _trace_state.value is _jax.TOP
            if is_kept and binding.put(record, values, plan.changed, new):
                return output
            if not is_alone() and not (binding.is_valid() and has_its_values(binding, plan, values)):
                return MISSING
            if plan.change is not None:
                return apply(Outcome(*result), binding.objects(), values)
            write(binding, plan.changed, new)
        return output

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A call like this one; None where it is another one."""
        plain, binding = self.match(args, kwargs), self.binding()
        if plain is None or binding is None or not self.captures_the_same() or not binding.is_valid():
            return None
        return Call.again(self._structure, binding, plain)

    def explain(self, binding: Binding, plain: tuple[Any, ...], error: BaseException) -> None:
        """Says of an error of JAX's function, run for a call like this one, what it is in the user's words."""
        call = Call.again(self._structure, binding, plain)
        self.program.note_lost(call, error)
        if isinstance(error, (RecursionError, SystemError)):
            binding.check_depth()  # something has grown in a Variable that JAX cannot take apart
        elif isinstance(error, Exception):
            explain(call, error)

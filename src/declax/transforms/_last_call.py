"""The last call of a compiled function, to run the next one like it at once.

Training calls one function with the same models and new arrays. Then nothing is
taken apart, and no object is made for the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from declax import _epoch, _jax
from declax._threads import committing
from declax._typing import MISSING
from declax._variables import fill_raw, run_all
from declax.graph.binding import Binding
from declax.transforms._explaining import explain
from declax.transforms._lift import Call, Outcome, Plan, apply, write
from declax.transforms._patterns import MOST, Matcher, matcher_of
from declax.transforms._program import Program
from declax.transforms._running import has_its_values

_trace_state = _jax.trace_state


class LastCall:
    """The models of the last call, to recognise them in the next one.

    The binding is valid, or it is not. A binding that lives says that its
    roots do too, so that identities tell them.

    Args:
      match: recognises the arguments, and what the function captures where `captures_the_same` is None.
      call: the call.
      program: what it ran.
      captures_the_same: says whether the function captures what it did.

    Attributes:
      match, program, captures_the_same: as given.
      binding: a reference to the binding of the roots.
    """

    __slots__ = ("_structure", "binding", "captures_the_same", "match", "program")

    def __init__(
        self, match: Matcher, call: Call, program: Program, captures_the_same: Callable[[], bool] | None
    ) -> None:
        assert call.binding is not None  # `of` looks
        self.match = match
        self.captures_the_same = captures_the_same
        self._structure = call.structure
        self.binding: Callable[[], Binding | None] = weakref.ref(call.binding)
        self.program = program

    @staticmethod
    def of(args: tuple[Any, ...], kwargs: dict[str, Any], call: Call, program: Program) -> LastCall | None:
        """What to remember of a call; None where its arguments have no pattern."""
        if call.binding is None or call.survey is None:
            return None
        watched, look = call.survey.watched(), None
        if watched is None or len(watched) > MOST:
            watched, look = [], call.survey.is_current
        match = matcher_of(args, kwargs, watched)
        return None if match is None else LastCall(match, call, program, look)

    @staticmethod
    def commit(
        binding: Binding, kept: object, values: tuple[Any, ...], result: tuple[Plan, tuple[Any, ...], Any]
    ) -> Any:
        """Commits a call like this one.

        Args:
          binding: that of the models.
          kept: the token of the write epoch before its values were read.
          values: its values then.
          result: the parts of the Outcome.

        Returns:
          What the user's function returned; `MISSING` where another thread was
          faster, so that the call has to run again.
        """
        plan, new, output = result
        with committing:
            if plan.change is None and binding.is_kept and binding.mark is _trace_state.value:
                variables: Any = binding.variables
                after = {id(binding): new}
                if len(new) < len(values):
                    variables, after = binding.variables_at(plan.changed), {}
                steps = map(fill_raw, variables, new)
                if _epoch.kept is kept is not None:  # no call from here on, so that no other write comes between
                    _epoch.kept = after
                    run_all(steps)
                    return output
            if not has_its_values(binding, plan, values):
                return MISSING
            if plan.change is not None:
                if not binding.is_valid():
                    return MISSING
                return apply(Outcome(*result), binding.objects(), values)
            write(binding, plan.changed, new)
        return output

    def explain(self, binding: Binding, plain: tuple[Any, ...], error: BaseException) -> None:
        """Says of an error of JAX's function, run for a call like this one, what it is in the user's words."""
        call = Call.again(self._structure, binding, plain)
        self.program.note_lost(call, error)
        if isinstance(error, (RecursionError, SystemError)):
            binding.check_depth()  # something has grown in a Variable that JAX cannot take apart
        elif isinstance(error, Exception):
            explain(call, error)

"""Random keys that a class body does not mention: which calls get `rngs`, and which calls a body defers for it."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

from declax._fields.call import Call, Term
from declax.errors import MissingRngsError, set_fix, type_name

R = TypeVar("R")
RNGS: Final = "rngs"
NO_RNGS: Final = "random keys are needed here, and the constructor got no rngs"


class OpenBodies(threading.local):
    """The codes of the class bodies of Pytrees that run in a thread, the innermost last.

    The body of a Layer implies `rngs`, so that a call which could have it is deferred. In other bodies, a call that
    draws no keys without it is real, as it is for a class that nobody decorates.

    A body that raises stays open until the next one opens, but no frame runs its code, so it contains no call.

    Attributes:
      codes: by identity, whether the body of each code implies `rngs`.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[CodeType, bool]] = []
        self.codes: dict[int, bool] = {}

    def open(self, frame: FrameType, *, implies_rngs: bool) -> CodeType:
        """Enters the body that a frame runs."""
        running = set[int]()
        outer = frame.f_back if self._stack else None
        while outer is not None:
            running.add(id(outer.f_code))
            outer = outer.f_back
        open_ones = [(code, implies) for code, implies in self._stack if id(code) in running]
        self._keep([*open_ones, (frame.f_code, implies_rngs)])
        return frame.f_code

    def close(self, code: CodeType) -> None:
        """Leaves a body, and those within it that raised."""
        if id(code) in self.codes:
            while self._stack.pop()[0] is not code:
                pass
            self._keep(self._stack)

    def _keep(self, stack: list[tuple[CodeType, bool]]) -> None:
        self._stack = stack
        self.codes = {id(code): implies for code, implies in stack}

    def runs(self, frame: FrameType) -> bool:
        """Whether a frame runs one of the bodies."""
        return id(frame.f_code) in self.codes

    def around(self, frame: FrameType | None) -> CodeType | None:
        """The code of the class body that a frame runs, or by which it was called directly.

        Helpers and comprehensions of a body belong to it. What runs within a construction, the import of a module, a
        function of declax or the body of another class does not.
        """
        while frame is not None:
            if self.runs(frame):
                return frame.f_code
            is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
            if not is_function or str(frame.f_globals.get("__name__")).startswith("declax."):
                return None
            frame = frame.f_back
        return None

    def defer(self, cls: Any, args: tuple[Any, ...], frame: FrameType) -> bool:
        """Whether a body defers a call of a Pytree class that a frame makes without `rngs`, and without expressions."""
        code = self.around(frame)
        parameter = None if code is None else rngs_parameter(cls)
        if parameter is None or parameter.is_given(args, ()):
            return False
        return parameter.is_required or cls._pytree__info.maker.draws or self.codes[id(code)]


OPEN_BODIES: Final = OpenBodies()


class RngsParameter:
    """How a class or function takes `rngs`.

    Attributes:
      is_required: whether there is no default.
      position: its number among the positional parameters; None for a keyword-only parameter.
    """

    __slots__ = ("is_required", "position")

    def __init__(self, is_required: bool, position: int | None) -> None:
        self.is_required = is_required
        self.position = position

    def is_given(self, args: tuple[Any, ...], names: Any) -> bool:
        """Whether a call with these arguments and keywords gives it."""
        return RNGS in names or (self.position is not None and len(args) > self.position)


_known = weakref.WeakKeyDictionary[Any, tuple[Any, RngsParameter | None]]()
"""By class or function: its constructor, which a decorator replaces, and the parameter."""


def rngs_parameter(target: Any) -> RngsParameter | None:
    """The parameter `rngs` of a class or function, if it is required or None by default."""
    constructor = getattr(target, "__init__", None) if isinstance(target, type) else None
    try:
        known = _known.get(target)
        if known is None or known[0] is not constructor:
            known = _known[target] = constructor, _read(target)
        return known[1]
    except TypeError:  # without a hash, or without weak references
        return _read(target)


def _read(target: Any) -> RngsParameter | None:
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return None
    found = parameters.get(RNGS)
    if found is None or found.default not in (None, inspect.Parameter.empty):
        return None
    if found.kind in (found.VAR_KEYWORD, found.VAR_POSITIONAL, found.POSITIONAL_ONLY):
        return None
    positional = found.kind is found.POSITIONAL_OR_KEYWORD
    position = list(parameters).index(RNGS) if positional else None
    return RngsParameter(found.default is inspect.Parameter.empty, position)


def given_rngs(call: Call) -> Any:
    """The argument `rngs` of a call, by name or by position; or None."""
    if RNGS in call.kwargs or isinstance(call.target, Term):
        return call.kwargs.get(RNGS)
    parameter = rngs_parameter(call.target)
    position = None if parameter is None else parameter.position
    return call.args[position] if position is not None and position < len(call.args) else None


def omits_rngs(call: Call) -> bool:
    """Whether a call leaves out a parameter `rngs` that its target has."""
    found = rngs_parameter(call.target)
    is_given = found is None or found.is_given(call.args, call.kwargs) or id(OWN_RNGS) in map(id, call.args)
    return not is_given


def lacks_rngs(call: Call) -> bool:
    """Whether a call leaves out `rngs` that its target requires."""
    return omits_rngs(call) and requires_rngs(call.target)


def requires_rngs(target: Any) -> bool:
    """Whether a class or function has a parameter `rngs` without a default."""
    found = rngs_parameter(target)
    return found is not None and found.is_required


def explain_unseen_rngs(target: Any, error: MissingRngsError) -> None:
    """Gives the error of a class that takes `rngs` in ``**kwargs``, which no class body sees, the line for it."""
    if isinstance(target, type) and rngs_parameter(target) is None:
        line = "def __init__(self, ..., *, rngs: dx.Rngs | None = None): ..."
        set_fix(error, f"{line}        # of {type_name(target)}: a class body passes rngs to a parameter of this name")


def needed_rngs(given: R | None) -> R:
    """The streams that a constructor got, for a part that requires some.

    Raises:
      MissingRngsError: it got none.
    """
    if given is None:
        raise MissingRngsError(RNGS, NO_RNGS, fix="rngs=dx.Rngs(0)")
    return given


def with_rngs(target: Any, rngs: Any) -> Any:
    """A class or function that a field holds, which gets `rngs` if it has such a parameter."""
    return target if rngs_parameter(target) is None else functools.partial(target, rngs=rngs)


class _OwnRngs(Term):
    """The random streams of the constructor in which an expression is evaluated."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self._pytree__name = RNGS

    def __reduce__(self) -> str:
        return "OWN_RNGS"


OWN_RNGS: Final = _OwnRngs()
"""Stands for `rngs` in calls whose class body does not mention it."""


def own_rngs_for(function: Any) -> Term:
    """The `rngs` for a call that leaves them out; checked if the function requires some."""
    return Term(Call(needed_rngs, (OWN_RNGS,))) if requires_rngs(function) else OWN_RNGS

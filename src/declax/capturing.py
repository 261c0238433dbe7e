"""Calls that return, beside their result, the values that modules sowed in them.

During the call each module has an attribute ``__captures__``, in which `sow`
and `perturb` put their Variables (see `_sowing`).

Vocabulary
----------
kind: of Variables, as `Intermediate`: what a call is asked for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ParamSpec, TypeAlias, TypeVar, get_origin, overload

from declax import _epoch, _jax
from declax._attributes import wrong_trace
from declax._fields import Status
from declax._links import Link, path_of
from declax._method_outputs import sown_outputs
from declax._module import Module
from declax._nodes import linked_nodes
from declax._pytree import delete_attribute, layout_of, set_layout
from declax._sowing import Captures, perturbed
from declax._typing import BOUND_KEY, CAPTURES_KEY, TRACE_KEY, Path
from declax._variables import Intermediate, Perturbation, Variable
from declax.errors import FilterError, GraphError, describe, format_path, suggest
from declax.states import State

P = ParamSpec("P")
R = TypeVar("R")

VariableKind: TypeAlias = type[Variable[Any]]
Init: TypeAlias = Mapping[Any, Any] | None

# --- what users call -----------------------------------------------------------


@overload
def capture(  # type: ignore[overload-overlap]  # a kind can be called as well
    fn: VariableKind, /, *, init: Init = None, method_outputs: VariableKind | None = None
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, State[Any]]]]: ...
@overload
def capture(  # type: ignore[overload-overlap]  # a kind can be called as well
    fn: VariableKind, b: VariableKind, /, *, init: Init = None, method_outputs: VariableKind | None = None
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, State[Any], State[Any]]]]: ...
@overload
def capture(  # type: ignore[overload-overlap]  # a kind can be called as well
    fn: VariableKind,
    b: VariableKind,
    c: VariableKind,
    /,
    *,
    init: Init = None,
    method_outputs: VariableKind | None = None,
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, State[Any], State[Any], State[Any]]]]: ...
@overload
def capture(  # type: ignore[overload-overlap]  # a kind can be called as well
    fn: VariableKind,
    b: VariableKind,
    /,
    *var_types: VariableKind,
    init: Init = None,
    method_outputs: VariableKind | None = None,
) -> Callable[[Callable[P, Any]], Callable[P, tuple[Any, ...]]]: ...
@overload
def capture(
    fn: Callable[P, R], /, *, init: Init = None, method_outputs: VariableKind | None = None
) -> Callable[P, R]: ...
@overload
def capture(
    fn: Callable[P, R], a: VariableKind, /, *, init: Init = None, method_outputs: VariableKind | None = None
) -> Callable[P, tuple[R, State[Any]]]: ...
@overload
def capture(
    fn: Callable[P, R],
    a: VariableKind,
    b: VariableKind,
    /,
    *,
    init: Init = None,
    method_outputs: VariableKind | None = None,
) -> Callable[P, tuple[R, State[Any], State[Any]]]: ...
@overload
def capture(
    fn: Callable[P, R],
    a: VariableKind,
    b: VariableKind,
    c: VariableKind,
    /,
    *,
    init: Init = None,
    method_outputs: VariableKind | None = None,
) -> Callable[P, tuple[R, State[Any], State[Any], State[Any]]]: ...
@overload
def capture(
    fn: Callable[P, R],
    a: VariableKind,
    /,
    *var_types: VariableKind,
    init: Init = None,
    method_outputs: VariableKind | None = None,
) -> Callable[P, tuple[Any, ...]]: ...
def capture(fn: Any, /, *var_types: VariableKind, init: Init = None, method_outputs: VariableKind | None = None) -> Any:
    """A function that returns, beside its result, what modules sow while it runs.

    What `Module.sow` and `Module.perturb` store during the call, of whatever
    kind, is no attribute of the modules and is gone after it. What they stored
    before is neither seen nor changed.

    Args:
      fn: a module, a method of one, or a function whose first argument is a
        module or a container of modules. Or the first of the kinds: then this
        is a decorator for such a function.
      *var_types: the kinds of Variables to return. A Variable is in the State
        of its own kind, or else of the first that its kind derives from. For
        perturbations, name `Perturbation`: they do not count as intermediates.
      init: a State, or a nested dict, of Variables that the modules have
        recorded to begin with: perturbations, by the gradients of which one
        gets those of what they are added to. Raw values are perturbations.
      method_outputs: the kind as which to sow the results of all calls of
        methods of the modules, under the names of the methods; of public ones
        and ``__call__``. What is no array or tree of arrays is left out.

    Returns:
      The function. It returns the result and one State for each kind; only the
      result where no kind is given.

    Raises:
      FilterError: for what is no kind of Variable.
      GraphError: for what cannot be called; when called, for an argument that
        has no modules, for values in `init` at the path of no module or of
        another shape, for a name that is sown as two kinds, and for a name of a
        perturbation in `init` that is nearly one that the call asks for.

    One call at a time may run on a module, as with all that changes it.

    >>> import declax as dx
    >>> class Net(dx.Module):
    ...     def __call__(self, x):
    ...         self.sow(dx.Intermediate, "input", x)
    ...         return 2 * x
    >>> net = Net()
    >>> y, seen = capture(net, dx.Intermediate)(3)
    >>> y, seen["input"].value, hasattr(net, "input")
    (6, (3,), False)
    """
    if _is_kind(fn):
        return lambda function: _capturing(function, (fn, *var_types), init, method_outputs)
    return _capturing(fn, var_types, init, method_outputs)


def _is_kind(value: Any) -> bool:
    origin = get_origin(value) or value
    return isinstance(origin, type) and issubclass(origin, Variable)


def _checked_kind(value: Any) -> VariableKind:
    if not _is_kind(value):
        raise FilterError(
            "capture", "this is no kind of Variable", got=describe(value), fix="dx.capture(model, dx.Intermediate)"
        )
    kind: VariableKind = get_origin(value) or value
    return kind


def _capturing(fn: Any, var_types: Sequence[Any], init: Init, method_outputs: Any) -> Callable[..., Any]:
    kinds = [_checked_kind(kind) for kind in var_types]
    method_kind = None if method_outputs is None else _checked_kind(method_outputs)
    root_of, call = _target(fn)

    @functools.wraps(type(fn).__call__ if isinstance(fn, Module) else fn)
    def captured(*args: Any, **kwargs: Any) -> Any:
        capturing = _Capturing(root_of(args, kwargs), kinds, method_kind)
        result: Any = None
        names: set[str] = set()
        token = perturbed.set(names)
        try:
            capturing.begin()
            begun = () if init is None else _begin_with(init, capturing.root)
            with capturing.sown_outputs():
                result = call(*args, **kwargs)
        finally:
            perturbed.reset(token)
            pairs = capturing.end(result)
        _check_names(begun, names)
        around = perturbed.get()
        if around is not None:
            around |= names
        return (result, *map(State.from_flat_path, pairs)) if kinds else result

    return captured


def _target(fn: Any) -> tuple[Callable[[Any, Any], Any], Callable[..., Any]]:
    """What gives the root of a call's modules, and what to call."""
    if not callable(fn):
        raise GraphError("capture", "this cannot be called", got=describe(fn), fix="dx.capture(model, dx.Intermediate)")
    if isinstance(fn, Module):
        module: Any = fn
        return lambda args, kwargs: module, module
    owner, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
    if isinstance(owner, Module):
        is_plain = getattr(type(owner), name, None) is getattr(fn, "__func__", fn)
        return lambda args, kwargs: owner, functools.partial(_call_method, owner, name) if is_plain else fn
    return functools.partial(_first_argument, fn), fn


def _call_method(owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Calls the method that the class of the owner has now, which may be one that sows its output."""
    return getattr(owner, name)(*args, **kwargs)


def _first_argument(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args:
        return args[0]
    name = next(iter(inspect.signature(fn).parameters), None)
    if name in kwargs:
        return kwargs[name]
    raise GraphError(
        "capture",
        "the function was called without a first argument",
        expected="a module, or a container of modules",
        fix="dx.capture(fn, dx.Intermediate)(model, ...)",
    )


# --- one call ------------------------------------------------------------------


class _Capturing:
    """One call: gives the modules their `Captures`, and afterwards takes them away."""

    def __init__(self, root: Any, kinds: Sequence[VariableKind], method_outputs: VariableKind | None) -> None:
        self.root = root
        self._kinds = kinds
        self._method_outputs = method_outputs
        self._outer: dict[int, tuple[Module, Captures | None]] = {}  # those of a captured call around this one
        self._around: Captures | None = None  # one of them

    def begin(self) -> None:
        """Gives the modules their `Captures`."""
        for _, module in _modules(self.root):
            outer: Captures | None = module.__dict__.get(CAPTURES_KEY)
            self._outer[id(module)] = module, outer
            self._around = outer or self._around
            captures = Captures(self._method_outputs or _method_outputs(outer))
            for name, variable in outer.variables().items() if outer else ():
                if place_of(variable, self._kinds) is None:
                    setattr(captures, name, variable)
            _put_captures(module, captures)
        if not self._outer:
            raise GraphError(
                "capture",
                "the first argument has no modules",
                expected="a module, or a container of modules",
                got=describe(self.root),
                fix="dx.capture(fn, dx.Intermediate)(model, ...)",
            )

    def sown_outputs(self) -> Any:
        """Has the methods of the modules sow their outputs, where this was asked for."""
        if self._method_outputs is None:
            return nullcontext()
        return sown_outputs(type(module) for module, _ in self._outer.values())

    def end(self, result: Any) -> list[list[tuple[Path, Variable[Any]]]]:
        """Takes the `Captures` away; the Variables of each kind, with their paths."""
        found: list[list[tuple[Path, Variable[Any]]]] = [[] for _ in self._kinds]
        for link, module in _modules(self.root):
            captures = module.__dict__.get(CAPTURES_KEY)
            for name, variable in captures.variables().items() if captures else ():
                place = place_of(variable, self._kinds)
                if place is not None:
                    found[place].append(((*path_of(link), name), variable))
            self._restore(module)
        for module, _ in tuple(self._outer.values()):  # those that left the graph
            self._restore(module)
        for _, module in _modules(result):
            self._restore(module)
        return found

    def _restore(self, module: Module) -> None:
        """Takes the `Captures` of a module away, or back to those of the call around this one."""
        captures = module.__dict__.get(CAPTURES_KEY)
        _, outer = self._outer.get(id(module), (module, None))
        if captures is None or captures is outer:
            return
        if outer is None and self._around is None:
            delete_attribute(module, CAPTURES_KEY)
            return
        outer = outer or Captures(_method_outputs(self._around))  # a copy that the call made has none yet
        for name, variable in captures.variables().items():
            if place_of(variable, self._kinds) is None:
                setattr(outer, name, variable)
        _put_captures(module, outer)


def _method_outputs(captures: Captures | None) -> VariableKind | None:
    return getattr(captures, "__method_outputs__", None)


def _put_captures(module: Any, captures: Captures) -> None:
    """Sets the attribute without the `__setattr__` of the module, which may be frozen or a Dict."""
    attributes = module.__dict__
    if attributes.get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
        raise wrong_trace(module, CAPTURES_KEY)
    set_layout(module, layout_of(module).with_status(CAPTURES_KEY, Status.DATA))
    attributes[CAPTURES_KEY] = captures
    if BOUND_KEY in attributes:
        _epoch.advance()


def place_of(variable: Variable[Any], kinds: Sequence[VariableKind]) -> int | None:
    """The index of the kind that a Variable belongs to: its own, or else the first that its own derives from.

    A `Perturbation` holds no value of the module, so it does not count as an
    `Intermediate`, from which it derives.
    """
    own = type(variable)
    if own in kinds:
        return kinds.index(own)
    hidden = Intermediate if issubclass(own, Perturbation) else None
    return next((place for place, kind in enumerate(kinds) if issubclass(own, kind) and kind is not hidden), None)


def _modules(root: Any) -> Iterator[tuple[Link, Module]]:
    """All modules of a graph, each once, under its first path."""
    return ((link, node) for link, node in linked_nodes(root) if isinstance(node, Module))


def _begin_with(init: Mapping[Any, Any], root: Any) -> list[Path]:
    """Puts values into the `Captures` before the call; the paths of perturbations among them."""
    modules = {path_of(link): module for link, module in _modules(root)}
    perturbations: list[Path] = []
    for path, value in (init if isinstance(init, State) else State(init)).flat_state():
        module = modules.get(path[:-1])
        if module is None or not isinstance(path[-1], str):
            known = [format_path(p) for p in modules]
            hint = suggest(format_path(path[:-1]), known)
            raise GraphError(
                format_path(path),
                "`init` has a value at the path of no module" + (f"; {hint}" if hint else ""),
                expected="the path of a module, and the name that is given to perturb",
                got=describe(value.raw_value if isinstance(value, Variable) else value),
                fix="_, init = dx.capture(fn, dx.Perturbation)(model, ...)",
            )
        variable = value.copy(value.raw_value) if isinstance(value, Variable) else Perturbation(value)
        setattr(module.__dict__[CAPTURES_KEY], path[-1], variable)
        if isinstance(variable, Perturbation):
            perturbations.append(path)
    return perturbations


def _check_names(begun: Sequence[Path], asked_for: set[str]) -> None:
    """Checks the names of perturbations that a call began with against those under which it perturbed.

    Only a name that is nearly one of those, and none of them itself, is an
    error: a module may be left out of a call, and `init` may have a part of
    the names. What runs in a program that JAX has compiled before is not seen.

    Raises:
      GraphError: for a name that is a misspelling.
    """
    known = {path[-1] for path in begun}
    for path in begun:
        name = str(path[-1])
        hint = None if name in asked_for else suggest(name, sorted(asked_for - known))
        if hint is not None:
            raise GraphError(
                format_path(path),
                f"`init` has a perturbation under a name that the call never asked for; {hint}",
                expected=f"a name that the modules perturb under: {', '.join(sorted(asked_for))}",
                why="a perturbation that is added to nothing has a gradient of zero",
                fix="_, init = dx.capture(fn, dx.Perturbation)(model, ...)",
            )


__all__ = ["capture"]

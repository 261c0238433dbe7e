"""Calls that hand out, beside their result, what modules sowed in them.

Vocabulary
----------
kind:      of Variables, as `Intermediate`: what a call is asked for.
recording: one call, from when its modules become recorders (see `_recording`)
           until they are again what they were.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar, get_origin, overload

from declax._links import Link, path_of
from declax._module import Module
from declax._nodes import Kind, children_of, kind_of
from declax._recording import (
    Recorder,
    VariableKind,
    asked,
    become,
    place_of,
    put_record,
    record_of,
    recorder_of,
    set_aside,
    take_record,
)
from declax._typing import Path
from declax._variables import Perturbation, Variable
from declax.errors import FilterError, GraphError, describe, format_path, suggest
from declax.states import State

P = ParamSpec("P")
R = TypeVar("R")

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
    c: VariableKind,
    d: VariableKind,
    /,
    *,
    init: Init = None,
    method_outputs: VariableKind | None = None,
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, State[Any], State[Any], State[Any], State[Any]]]]: ...
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
    b: VariableKind,
    c: VariableKind,
    d: VariableKind,
    /,
    *,
    init: Init = None,
    method_outputs: VariableKind | None = None,
) -> Callable[P, tuple[R, State[Any], State[Any], State[Any], State[Any]]]: ...
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

    The modules' classes are subclasses of their own during the call, so
    ``isinstance`` answers as ever, but ``type(module) is Linear`` does not. One
    call at a time may run on a module, as with all that changes it.

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
        recording = _Recording(root_of(args, kwargs), kinds)
        result: Any = None
        names: set[str] = set()
        token = asked.set(names)
        try:
            begun = recording.start(init, method_kind)
            result = call(*args, **kwargs)
        finally:
            asked.reset(token)
            pairs = recording.stop(result)
        _check_names(begun, names)
        around = asked.get()
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
    """Calls what the class of the owner has under a name now: during a call, that of a recorder."""
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


class _Recording:
    """One call: makes the modules recorders, and afterwards what they were before."""

    def __init__(self, root: Any, kinds: Sequence[VariableKind]) -> None:
        self._root = root
        self._kinds = kinds
        self._before: dict[int, tuple[Module, type, dict[str, Any]]] = {}
        self._outer: type[Recorder] | None = None  # a recorder of the call around this one

    def start(self, init: Init, method_kind: VariableKind | None) -> Sequence[Path]:
        """Makes the modules recorders; the paths of the perturbations that they begin with."""
        modules = list(_modules(self._root))
        if not modules:
            raise GraphError(
                "capture",
                "the first argument has no modules",
                expected="a module, or a container of modules",
                got=describe(self._root),
                fix="dx.capture(fn, dx.Intermediate)(model, ...)",
            )
        for _, module in modules:
            before = type(module)
            if issubclass(before, Recorder):
                self._outer = before
            self._before[id(module)] = (module, before, set_aside(module, self._kinds))
            become(module, recorder_of(before, method_kind))
        if init is None:
            return ()
        return _begin_with(init, {path_of(link): module for link, module in modules})

    def stop(self, result: Any) -> list[list[tuple[Path, Variable[Any]]]]:
        """Makes the modules what they were; the Variables of each kind, with their paths."""
        found: list[list[tuple[Path, Variable[Any]]]] = [[] for _ in self._kinds]
        left: dict[int, dict[str, Any]] = {}
        for link, module in _modules(self._root):
            record = take_record(module)
            for name in tuple(record):
                place = place_of(record[name], self._kinds)
                if place is not None:
                    found[place].append(((*path_of(link), name), record.pop(name)))
            left[id(module)] = record
            self._restore(module, record)
        for module, _, _ in self._before.values():
            if id(module) not in left:  # no more in the graph
                self._restore(module, take_record(module))
        for _, module in _modules(result):
            if isinstance(module, Recorder):
                self._restore(module, take_record(module))
        return found

    def _restore(self, module: Module, record: dict[str, Any]) -> None:
        """Gives a module its class back, and what a call around this one has recorded."""
        if id(module) in self._before:
            _, before, aside = self._before[id(module)]
        elif isinstance(module, Recorder):  # a copy that the function made
            before, aside = module._recorder__original, {}
            if self._outer is not None:
                before = recorder_of(before, self._outer._recorder__kind)
        else:
            return
        become(module, before)
        kept = {**record, **aside}
        if kept and issubclass(before, Recorder):
            put_record(module, kept)


def _modules(root: Any) -> Iterator[tuple[Link, Module]]:
    """All modules of a graph, each once, under its first path; parents first."""
    seen: dict[int, Any] = {}
    stack: list[tuple[Link, Any]] = [(None, root)]
    while stack:
        link, value = stack.pop()
        if kind_of(value) not in _INNER or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Module):
            yield link, value
        stack.extend(((link, key), child) for key, child in reversed(list(children_of(value))))


_INNER = frozenset({Kind.NODE, Kind.OBJECT, Kind.CONTAINER})


def _begin_with(init: Mapping[Any, Any], modules: Mapping[Path, Module]) -> list[Path]:
    """Puts values into the records before the call; the paths of perturbations among them."""
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
        put_record(module, {**record_of(module), path[-1]: variable})
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

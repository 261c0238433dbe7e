"""Calls that return, with their result, the values that modules sowed.

During the call each module has an attribute ``__captures__``, in which `sow` and `perturb` put their Variables.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, get_origin, overload

import jax

from declax import _jax
from declax._classes.pytree import Pytree, delete_attribute
from declax._graph.nodes import Kind, Link, is_number, kind_of, path_of, walk_values
from declax._graph.sown import captured_calls, put_captures, put_sown
from declax._module.containers import Dict, List
from declax._module.module import Captures, Module, position_of
from declax._module.running import refuse_call
from declax._state.states import State
from declax._tree import epoch
from declax._tree.attributes import class_attribute, wrong_trace
from declax._typing import BOUND_KEY, CAPTURES_KEY, MISSING, TRACE_KEY, P, Path, R
from declax._variables.kinds import Intermediate, Perturbation
from declax._variables.variable import Variable
from declax.errors import FilterError, GraphError, describe, format_path, suggest

if TYPE_CHECKING:
    from typing import Unpack


VariableKind: TypeAlias = type[Variable[Any]]
Init: TypeAlias = Mapping[Any, Any] | None


class CaptureOptions(TypedDict, total=False):
    """The options of `capture`."""

    init: Init
    method_outputs: VariableKind | None


@overload
def capture(  # type: ignore[overload-overlap]  # a kind can be called as well
    fn: VariableKind, /, **options: Unpack[CaptureOptions]
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, State[Any]]]]: ...
@overload
def capture(  # type: ignore[overload-overlap]  # a kind can be called as well
    fn: VariableKind, b: VariableKind, /, **options: Unpack[CaptureOptions]
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, State[Any], State[Any]]]]: ...
@overload
def capture(  # type: ignore[overload-overlap]  # a kind can be called as well
    fn: VariableKind, b: VariableKind, /, *var_types: VariableKind, **options: Unpack[CaptureOptions]
) -> Callable[[Callable[P, Any]], Callable[P, tuple[Any, ...]]]: ...
@overload
def capture(fn: Callable[P, R], /, **options: Unpack[CaptureOptions]) -> Callable[P, R]: ...
@overload
def capture(
    fn: Callable[P, R], a: VariableKind, /, **options: Unpack[CaptureOptions]
) -> Callable[P, tuple[R, State[Any]]]: ...
@overload
def capture(
    fn: Callable[P, R], a: VariableKind, b: VariableKind, /, **options: Unpack[CaptureOptions]
) -> Callable[P, tuple[R, State[Any], State[Any]]]: ...
@overload
def capture(
    fn: Callable[P, R], a: VariableKind, /, *var_types: VariableKind, **options: Unpack[CaptureOptions]
) -> Callable[P, tuple[Any, ...]]: ...
def capture(fn: Any, *var_types: VariableKind, init: Init = None, method_outputs: VariableKind | None = None) -> Any:
    """A function that returns, with its result, a State for each kind of the Variables that modules sow while it runs.

    Without kinds, it returns the result only. Values that `Module.sow` and `Module.perturb` store during the call are
    removed after it; values that they stored before are neither read nor changed.

    Args:
      fn: a module, a method of one, or a function whose first argument is a module or a container of modules. If it
        is the first of the kinds, `capture` returns a decorator for such functions.
      *var_types: the kinds of Variables to return. A Variable is in the State of its kind, or else of the first
        base class. Perturbations do not count as intermediates; name `Perturbation` for them.
      init: a State, or a nested dict, of Variables that the modules have at the start, such as perturbations to
        differentiate. Raw values are perturbations.
      method_outputs: the kind as which to sow the results of all public methods and ``__call__`` of the modules,
        under the names of the methods. Results other than trees of arrays are left out.

    Raises:
      FilterError: a kind is not a kind of Variable.
      GraphError: `fn` is not callable. When called: the argument has no modules, a path in `init` has no module, a
        shape in `init` differs, or one name is sown as two kinds.

    Run one call at a time on a module.

    >>> import declax as dx
    >>> class Net(dx.Module):
    ...     def __call__(self, x):
    ...         self.sow(dx.Intermediate, "input", x)
    ...         return 2 * x
    >>> net = Net()
    >>> y, seen = dx.capture(net, dx.Intermediate)(3)
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
            "capture", "this is not a kind of Variable", got=describe(value), fix="dx.capture(model, dx.Intermediate)"
        )
    kind: VariableKind = get_origin(value) or value
    return kind


def _capturing(fn: Any, var_types: Sequence[Any], init: Init, method_outputs: Any) -> Callable[..., Any]:
    kinds = [_checked_kind(kind) for kind in var_types]
    method_kind = None if method_outputs is None else _checked_kind(method_outputs)
    if not callable(fn):
        raise GraphError("capture", "this is not callable", got=describe(fn), fix="dx.capture(model, dx.Intermediate)")
    owner: Any = fn if isinstance(fn, Module) else getattr(fn, "__self__", None)
    name = getattr(fn, "__name__", "")
    is_method = owner is not fn and getattr(type(owner), name, None) is getattr(fn, "__func__", fn)

    @functools.wraps(type(fn).__call__ if isinstance(fn, Module) else fn)
    def captured(*args: Any, **kwargs: Any) -> Any:
        root = owner if isinstance(owner, Module) else next(iter((*args, *kwargs.values())), None)
        recording = _Recording(root, kinds, method_kind)
        result: Any = None
        captured_calls.append(recording)
        try:
            recording.begin({} if init is None else init)
            with recording.sown_outputs():
                call: Any = getattr(owner, name) if is_method else fn  # the method that the class has now may sow
                result = call(*args, **kwargs)
        finally:
            captured_calls.remove(recording)
            pairs = recording.end(result)
        return (result, *map(State.from_flat_path, pairs)) if kinds else result

    return captured


class _Recording:
    """One call: gives the modules their `Captures`, and removes them afterwards."""

    def __init__(self, root: Any, kinds: Sequence[VariableKind], method_outputs: VariableKind | None) -> None:
        self._root = root
        self._kinds = kinds
        self._method_outputs = method_outputs
        self._outer: dict[int, tuple[Module, Captures | None]] = {}  # those of a captured call around this one

    def begin(self, init: Mapping[Any, Any]) -> None:
        """Gives the modules their `Captures`, with the Variables of `init`."""
        modules: dict[Path, Module] = {}
        for link, module in _modules(self._root):
            modules[path_of(link)] = module
            outer: Captures | None = module.__dict__.get(CAPTURES_KEY)
            self._outer[id(module)] = module, outer
            kinds = self._kinds or getattr(outer, "__kinds__", (Intermediate,))
            captures = Captures(kinds, self._method_outputs or getattr(outer, "__method_outputs__", None))
            self._hand_over(outer, captures)
            _put_captures(module, captures)
        if not modules:
            raise GraphError(
                "capture",
                "the first argument has no modules",
                expected="a module, or a container of modules",
                got=describe(self._root),
                fix="dx.capture(fn, dx.Intermediate)(model, ...)",
            )
        for path, value in (init if isinstance(init, State) else State(init))._read_pairs():
            variable = value.copy(value.raw_value) if isinstance(value, Variable) else Perturbation(value)
            if path[:-1] not in modules or not isinstance(path[-1], str):
                raise GraphError(
                    format_path(path),
                    "there is no module at this path of `init`",
                    expected="the path of a module, and then a name given to perturb",
                    got=describe(variable.raw_value),
                    fix=suggest(format_path(path[:-1]), map(format_path, modules)),
                )
            setattr(modules[path[:-1]].__dict__[CAPTURES_KEY], path[-1], variable)

    @contextmanager
    def sown_outputs(self) -> Generator[None, None, None]:
        """Wraps the methods of the modules so that they sow their outputs."""
        classes = {type(module) for module, _ in self._outer.values()} if self._method_outputs else set()
        with _lock:
            for cls in classes:
                count, originals = _wrapped.get(cls) or (0, wrap_methods(cls, _sowing_method))
                _wrapped[cls] = count + 1, originals
        try:
            yield
        finally:
            with _lock:
                for cls in classes:
                    count, originals = _wrapped.pop(cls)
                    if count > 1:
                        _wrapped[cls] = count - 1, originals
                    else:
                        unwrap_methods(cls, originals)

    def end(self, result: Any) -> list[list[tuple[Path, Variable[Any]]]]:
        """Removes the `Captures`; returns the Variables of each kind, with their paths."""
        found: list[list[tuple[Path, Variable[Any]]]] = [[] for _ in self._kinds]
        for link, module in _modules(self._root):
            captures = module.__dict__.get(CAPTURES_KEY)
            for name, variable in captures.variables().items() if captures else ():
                position = position_of(variable, self._kinds)
                if position is not None:
                    found[position].append(((*path_of(link), name), variable))
            self._restore(module)
        for module, _ in tuple(self._outer.values()):  # those that left the graph
            self._restore(module)
        for _, module in _modules(result):  # copies
            self._restore(module)
        return found

    def _restore(self, module: Module) -> None:
        """Removes the `Captures` of a module, or restores those of the call around this one."""
        captures: Captures | None = module.__dict__.get(CAPTURES_KEY)
        _, outer = self._outer.get(id(module), (module, None))
        if captures is None or captures is outer:
            return
        if outer is None:
            delete_attribute(module, CAPTURES_KEY)
        else:
            self._hand_over(captures, outer)
            _put_captures(module, outer)

    def _hand_over(self, captures: Captures | None, to: Captures) -> None:
        """Gives the Variables that this call does not return to other `Captures`."""
        for name, variable in captures.variables().items() if captures else ():
            if position_of(variable, self._kinds) is None:
                put_sown(to, name, variable)


def _put_captures(module: Any, captures: Captures) -> None:
    attributes = module.__dict__
    if attributes.get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
        raise wrong_trace(module, CAPTURES_KEY)
    put_captures(module, captures)
    if BOUND_KEY in attributes:
        epoch.advance()


def _modules(root: Any) -> Iterator[tuple[Link, Module]]:
    return ((link, node) for link, node in walk_values(root) if isinstance(node, Module))


# --- outputs of methods ----------------------------------------------------------

_wrapped: Final[dict[type, tuple[int, dict[str, Any]]]] = {}
"""The number of calls that have the methods of a class wrapped, and the methods of the class itself.

Only a module whose `Captures` asks for outputs sows them, so calls in other threads see no difference.
"""
_lock = threading.Lock()


def wrap_methods(cls: type, wrapper: Callable[[type, str, Any], Any]) -> dict[str, Any]:
    """Replaces the methods that compute by ``wrapper(cls, name, method)``; returns what `unwrap_methods` needs."""
    methods = list(_methods(cls))
    originals = {name: cls.__dict__.get(name, MISSING) for name, _ in methods}
    for name, method in methods:
        setattr(cls, name, wrapper(cls, name, method))
    return originals


def unwrap_methods(cls: type, originals: dict[str, Any]) -> None:
    """Restores the methods of a class."""
    for name, original in originals.items():
        if original is MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, original)


_OWN = frozenset({*List.__mro__, *Dict.__mro__})
"""Classes whose methods do what Python or declax needs, and compute nothing."""


def _methods(cls: Any) -> Iterator[tuple[str, Any]]:
    """The public methods, and ``__call__``, that users' classes and layers define."""
    fields = getattr(cls, "__dataclass_fields__", {})
    names = {name for owner in cls.__mro__ if owner not in _OWN for name in vars(owner)}
    for name in sorted(names):
        found = class_attribute(cls, name)
        is_method = isinstance(found, FunctionType) or (
            hasattr(type(found), "__get__")
            and callable(found)
            and not isinstance(found, staticmethod | classmethod | type)
        )
        if (
            is_method
            and found is not refuse_call
            and name not in fields
            and (name == "__call__" or not name.startswith("_"))
        ):
            yield name, found


def _sowing_method(cls: type, name: str, method: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def sowing(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = method.__get__(self)(*args, **kwargs)
        kind = getattr(self.__dict__.get(CAPTURES_KEY), "__method_outputs__", None)
        is_called_by_super = type(self) is not cls
        if kind is not None and not is_called_by_super and _is_sowable(output):
            leaves, structure = jax.tree.flatten(output, is_leaf=lambda value: isinstance(value, Variable))
            values = [leaf.get_value() if isinstance(leaf, Variable) else leaf for leaf in leaves]
            Module.sow(self, kind, name, jax.tree.unflatten(structure, values))
        return output

    return sowing


def _is_sowable(output: Any) -> bool:
    leaves = jax.tree.leaves(output, is_leaf=lambda value: isinstance(value, (Variable, Pytree)))
    return all(isinstance(leaf, Variable) or kind_of(leaf) is Kind.LEAF or is_number(leaf) for leaf in leaves)

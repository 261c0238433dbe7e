"""What modules record during a call of a captured function.

Vocabulary
----------
record:   the Variables that a module sowed during a call, by name. It is an
          attribute, so that transforms carry it along as they do any other.
recorder: a class made from a module's own, whose `sow` and `perturb` write
          into the record. A module is of that class during the call, also
          inside of transforms, which therefore trace anew for it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Final, TypeAlias

import jax
import numpy as np

from declax import _epoch, _jax
from declax._attributes import class_attribute, wrong_trace
from declax._containers import Dict, List
from declax._fields import Status
from declax._layout import BOUND_KEY, TRACE_KEY, Layout
from declax._module import Module, _append
from declax._nodes import Kind, is_number, kind_of
from declax._pytree import Pytree, layout_of, prepare, set_layout
from declax._sowing import is_taken, sown_kind
from declax._variables import Intermediate, Perturbation, Variable
from declax.errors import GraphError, type_name

VariableKind: TypeAlias = type[Variable[Any]]

RECORD: Final = "__record__"

# --- records -------------------------------------------------------------------


def record_of(module: Module) -> dict[str, Any]:
    found: dict[str, Any] = module.__dict__.get(RECORD, {})
    return found


def put_record(module: Any, record: dict[str, Any]) -> None:
    """Sets a module's record; past a `__setattr__`, so that frozen ones and Dicts can have one."""
    attributes = module.__dict__
    if attributes.get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
        raise wrong_trace(module, next(reversed(record)))
    set_layout(module, layout_of(module).with_status(RECORD, Status.DATA))
    attributes[RECORD] = record
    if BOUND_KEY in attributes:
        _epoch.advance()


def take_record(module: Any) -> dict[str, Any]:
    """What a module has recorded, which it then has no more."""
    attributes = module.__dict__
    if RECORD not in attributes:
        return {}
    record: dict[str, Any] = attributes.pop(RECORD)
    set_layout(module, layout_of(module).without(RECORD))
    if BOUND_KEY in attributes:
        _epoch.advance()
    return dict(record)


def place_of(variable: Variable[Any], kinds: Sequence[VariableKind]) -> int | None:
    """Which of the kinds a Variable belongs to: its own, or else the first that its own derives from.

    What `perturb` adds is no value that a module shows, so a `Perturbation`
    does not count as an `Intermediate`, from which it derives.
    """
    own = type(variable)
    if own in kinds:
        return kinds.index(own)
    hidden = Intermediate if issubclass(own, Perturbation) else None
    return next((place for place, kind in enumerate(kinds) if issubclass(own, kind) and kind is not hidden), None)


def set_aside(module: Module, kinds: Sequence[VariableKind]) -> dict[str, Any]:
    """Takes out what a call around this one has recorded of these kinds."""
    record = take_record(module)
    rest = {name: variable for name, variable in record.items() if place_of(variable, kinds) is None}
    if rest:
        put_record(module, rest)
    return {name: variable for name, variable in record.items() if name not in rest}


asked: Final[ContextVar[set[str] | None]] = ContextVar("declax_perturbed", default=None)
"""The names under which modules perturbed during the call; not those in programs that JAX has compiled before."""


def _recorded(module: Any, name: str, kind: VariableKind, method: str) -> Variable[Any] | None:
    """What a module has recorded under a name."""
    found: Variable[Any] | None = record_of(module).get(name)
    if found is not None and not isinstance(found, kind):
        problem = f"{method} found another kind of Variable under this name, from the same call"
        raise is_taken(module, method, name, kind, found, problem)
    return found


# --- recorders -----------------------------------------------------------------


class Recorder:
    """What a recorder has before the class of its module."""

    _recorder__original: type
    _recorder__kind: VariableKind | None

    def __init_subclass__(cls) -> None:
        """Hides the hooks of users' classes: they are not subclassed by anybody who should be told."""

    def sow(
        self,
        variable_type: VariableKind | str,
        name: str,
        value: Any,
        reduce_fn: Callable[[Any, Any], Any] = _append,
        init_fn: Callable[[], Any] = tuple,
    ) -> bool:
        """As `Module.sow`, into the record."""
        kind = sown_kind(self, "sow", name, variable_type)
        found = _recorded(self, name, kind, "sow")
        if found is None:
            put_record(self, {**record_of(self), name: kind(reduce_fn(init_fn(), value))})  # type: ignore[arg-type]  # a Module
        else:
            found.set_value(reduce_fn(found.get_value(), value))
        return True

    def perturb(self, name: str, value: Any, variable_type: VariableKind | str = Perturbation) -> Any:
        """As `Module.perturb`, with the record."""
        kind = sown_kind(self, "perturb", name, variable_type)
        names = asked.get()
        if names is not None:
            names.add(name)
        found = _recorded(self, name, kind, "perturb")
        if found is None:
            found = kind(jax.tree.map(jax.numpy.zeros_like, value))
            put_record(self, {**record_of(self), name: found})  # type: ignore[arg-type]  # a Module
        added = found.get_value()
        if _shapes(added) != _shapes(value):
            raise GraphError(
                f"{type_name(type(self))}.{name}",
                "the perturbation has another shape than what it is added to",
                expected=str(_shapes(value)[0]),
                got=str(_shapes(added)[0]),
                fix="_, init = dx.capture(fn, dx.Perturbation)(model, ...)        # with inputs of this shape",
            )
        return jax.tree.map(jax.numpy.add, added, value)


def _shapes(tree: Any) -> tuple[list[tuple[int, ...]], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return [np.shape(leaf) for leaf in leaves], structure


_recorders: dict[tuple[type, VariableKind | None], type] = {}
_making = threading.Lock()


def recorder_of(cls: type, kind: VariableKind | None) -> type:
    """The recorder of a class, or of that of another recorder, which sows the outputs of methods as a kind."""
    if issubclass(cls, Recorder):
        kind = kind or cls._recorder__kind
        cls = cls._recorder__original
    with _making:
        found = _recorders.get((cls, kind))
        if found is None:
            found = _recorders[cls, kind] = _make_recorder(cls, kind)
    return found


def _make_recorder(cls: type, kind: VariableKind | None) -> type:
    names = ("__module__", "__qualname__", "__doc__")
    namespace: dict[str, Any] = {name: getattr(cls, name) for name in names}
    namespace.update(_recorder__original=cls, _recorder__kind=kind)
    if kind is not None:
        namespace.update((name, _sown_method(name, method, kind)) for name, method in _methods(cls))
    made: type = type(cls)(cls.__name__, (Recorder, cls), namespace)
    prepare(made)
    return made


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
        if is_method and name not in fields and (name == "__call__" or not name.startswith("_")):
            yield name, found


def _sown_method(name: str, method: Any, kind: VariableKind) -> Callable[..., Any]:
    @functools.wraps(method)
    def sown(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = method.__get__(self)(*args, **kwargs)
        if _is_sowable(output):
            value = jax.tree.map(_value_of, output, is_leaf=_is_variable)
            Recorder.sow(self, kind, name, value)
        return output

    return sown


def _is_variable(value: object) -> bool:
    return isinstance(value, Variable)


def _value_of(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, Variable) else leaf


def _is_sowable(output: Any) -> bool:
    """Whether an output is made of arrays and numbers only; a module is no value."""
    leaves = jax.tree.leaves(output, is_leaf=lambda value: isinstance(value, (Variable, Pytree)))
    return all(isinstance(leaf, Variable) or kind_of(leaf) in _VALUES or is_number(leaf) for leaf in leaves)


_VALUES = frozenset({Kind.LEAF})


def become(module: Any, cls: type) -> None:
    """Makes a module an instance of another class, with the same attributes."""
    if type(module) is cls:
        return
    statuses = layout_of(module).statuses
    object.__setattr__(module, "__class__", cls)
    set_layout(module, Layout.of(cls, statuses))
    if BOUND_KEY in module.__dict__:
        _epoch.advance()

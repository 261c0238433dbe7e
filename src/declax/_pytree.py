"""Objects with attributes that JAX sees as trees.

Vocabulary
----------
status:    of an attribute: data, static, or static by snapshot (`_fields`).
deviating: an instance whose attributes differ from its class's declaration;
           it carries a layout of its own.
bound:     known to a cached description of a graph, so that a change of its
           structure advances the epoch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import jax
import numpy as np

from declax import _display, _epoch, _jax
from declax._annotations import LOCALS_KEY, add_data_type, local_names, own_annotations
from declax._fields import FieldSpec, Status, Tagged
from declax._layout import BOUND_KEY, INTERNAL_KEYS, LAYOUT_KEY, TRACE_KEY, Layout, Name
from declax._specs import read_specs
from declax._values import CONTAINERS, PLAIN, data_within, static_status, status_of_value, tags_within
from declax._values import has_data as has_data
from declax._values import is_data as is_data
from declax._values import register_data_type as register_data_type
from declax._variables import Variable
from declax.errors import (
    ConstructionError,
    FieldError,
    StatusError,
    TraceContextError,
    describe,
    suggest,
    type_name,
)

_ARRAYS = (jax.Array, np.ndarray)
_LOOKED_INTO = frozenset({Tagged, *CONTAINERS})
_MISSING: Any = object()


# --- classes ------------------------------------------------------------------


class PytreeMeta(ABCMeta):
    """Prepares a class at its first use and checks each new instance."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Constructs an instance."""
        if "_pytree__specs" not in cls.__dict__ or not cls._pytree__is_complete:  # type: ignore[attr-defined]  # set on Pytree
            prepare(cls)  # type: ignore[arg-type]  # classes of this metaclass are Pytrees
        mark = _jax.trace_state.value
        try:
            if mark is _jax.TOP:
                self = super().__call__(*args, **kwargs)
            else:
                self = _construct_marked(cls, mark, args, kwargs)
        except TypeError:
            _explain_unknown_names(cls, kwargs)
            raise
        if isinstance(self, cls):
            self._pytree__finish()
        return self


def _construct_marked(cls: Any, mark: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `type.__call__`, with the trace's mark set before ``__init__`` runs."""
    self = cls.__new__(cls, *args, **kwargs)
    if isinstance(self, cls):
        self.__dict__[TRACE_KEY] = mark
        self.__init__(*args, **kwargs)
    return self


class Pytree(metaclass=PytreeMeta):
    """Base of all objects whose attributes JAX sees as a tree.

    Each attribute is data or static. What a class declares decides; for the
    rest, the value of the first assignment does (see `is_data`), or an
    explicit ``data(...)``/``static(...)`` around the assigned value.

    Class arguments:
      pytree: False makes a class whose instances are no JAX pytrees and whose
        attributes are not checked; the graph API and the lifted transforms
        still take them.

    Raises:
      StatusError: for data in a static attribute.
      TraceContextError: for a change from another trace level.

    >>> class Scale(Pytree):
    ...     def __init__(self, dim):
    ...         self.dim = dim
    ...         self.weight = jax.numpy.ones(dim)
    >>> [leaf.shape for leaf in jax.tree.leaves(Scale(3))]
    [(3,)]
    """

    _pytree__is_pytree: ClassVar[bool] = True
    _pytree__is_complete: ClassVar[bool] = False
    _pytree__is_frozen: ClassVar[bool] = False
    _pytree__holds_elements: ClassVar[bool] = False
    _pytree__specs: ClassVar[dict[str, FieldSpec]]
    _pytree__layout: ClassVar[Layout]
    _pytree__reserved: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, *, pytree: bool | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if pytree is not None:
            cls._pytree__is_pytree = pytree
        cls._pytree__is_complete = False
        if cls.__module__.startswith("declax."):
            reserved = {n for n, v in vars(cls).items() if not n.startswith("_") and _is_behaviour(v)}
            cls._pytree__reserved = cls._pytree__reserved | reserved

    # --- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        attributes = self.__dict__
        if attributes.get(TRACE_KEY, _jax.TOP) is not _jax.trace_state.value:
            raise wrong_trace(self, name)
        layout: Layout = attributes.get(LAYOUT_KEY) or type(self)._pytree__layout
        if layout.statuses.get(name) is not Status.DATA or value.__class__ is Tagged:
            is_behaviour, value, own = admit(self, name, value, layout)
            if is_behaviour:
                object.__setattr__(self, name, value)
                return
            if own is not layout:
                attributes[LAYOUT_KEY] = own
        if BOUND_KEY not in attributes:
            attributes[name] = value
            return
        old = attributes.get(name)
        attributes[name] = value
        if old is not value and not (isinstance(old, _ARRAYS) and isinstance(value, _ARRAYS)):
            _epoch.advance()

    def __delattr__(self, name: str) -> None:
        attributes = self.__dict__
        if attributes.get(TRACE_KEY, _jax.TOP) is not _jax.trace_state.value:
            raise wrong_trace(self, name)
        if name not in attributes:
            object.__delattr__(self, name)
            return
        layout: Layout = attributes.get(LAYOUT_KEY) or type(self)._pytree__layout
        attributes[LAYOUT_KEY] = layout.without(name)
        del attributes[name]
        if BOUND_KEY in attributes:
            _epoch.advance()

    def _pytree__finish(self) -> None:
        """Checks a new instance, and gives it its own layout where it deviates."""
        settle(self)
        if self._pytree__is_pytree:
            check_pytree(self)

    # --- copies

    def __getstate__(self) -> dict[str, Any]:
        return {n: v for n, v in self.__dict__.items() if n not in (TRACE_KEY, BOUND_KEY)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        cls = type(self)
        if not cls.__dict__.get("_pytree__is_complete"):
            prepare(cls)
        attributes = self.__dict__
        attributes.update(state)
        _fill_new_fields(self)
        mark = _jax.current_trace()
        if mark is not _jax.TOP:
            attributes[TRACE_KEY] = mark
        settle(self)

    # --- looks

    def _pytree__fields_for_repr(self) -> Iterable[tuple[str, object]]:
        specs = {f.name: f for f in dataclasses.fields(self)} if dataclasses.is_dataclass(self) else {}
        own = self.__dict__
        for name in specs:
            if name in own and specs[name].repr:
                yield name, own[name]
        for name, value in own.items():
            if name not in specs and not name.startswith("_pytree__"):
                yield name, value

    def __repr__(self) -> str:
        return _display.object_repr(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return _display.treescope_repr(self, path, subtree_renderer)


class Object(Pytree, pytree=False):
    """Base of objects that are no JAX pytrees; nothing about them is checked.

    The graph API and the lifted transforms take them: containers, arrays and
    Variables in their attributes are state, all else is static.

    >>> class Counter(Object):
    ...     def __init__(self):
    ...         self.values = [jax.numpy.zeros(())]
    >>> jax.tree_util.all_leaves([Counter()])
    True
    """


add_data_type(Pytree)
add_data_type(Variable)


def layout_of(node: Pytree) -> Layout:
    """The layout that an instance has now."""
    found: Layout = node.__dict__.get(LAYOUT_KEY) or type(node)._pytree__layout
    return found


# --- preparing a class --------------------------------------------------------


def prepare(cls: type[Pytree]) -> None:
    """Reads what a class declares and registers it with JAX, once.

    A class whose annotations name what does not exist yet is read again at
    its next construction.
    """
    specs, is_complete = read_specs(cls)
    is_first = "_pytree__specs" not in cls.__dict__
    cls._pytree__specs = specs
    declared = dataclasses.is_dataclass(cls)
    cls._pytree__is_frozen = declared and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]  # of dataclasses
    decided = {n: s.status for n, s in specs.items() if s.status is not None}
    is_closed = declared and cls._pytree__is_pytree and len(decided) == len(specs)
    if is_first:
        cls._pytree__layout = Layout.of(cls, decided if is_closed else {}, is_closed=is_closed)
        if cls._pytree__is_pytree:
            _register(cls)
    cls._pytree__is_complete = True if is_complete else not is_first


def _register(cls: type[Pytree]) -> None:
    layout = cls._pytree__layout
    if layout.is_closed:
        flatten, flatten_with_keys, unflatten = layout.flatten, layout.flatten_with_keys, layout.unflatten
    else:
        flatten, flatten_with_keys, unflatten = _flatten_open, _flatten_open_with_keys, _unflatten_open
    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)  # type: ignore[arg-type]  # jax asks for iterables of pairs


def _flatten_open(self: Any) -> Any:
    return (self.__dict__.get(LAYOUT_KEY) or self._pytree__layout).flatten(self)


def _flatten_open_with_keys(self: Any) -> Any:
    return (self.__dict__.get(LAYOUT_KEY) or self._pytree__layout).flatten_with_keys(self)


def _unflatten_open(statics: Any, children: Any) -> Any:
    return statics[0].unflatten(statics, children)


# --- attribute rules ----------------------------------------------------------


def _is_behaviour(value: object) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def admit(self: Pytree, name: Any, value: Any, layout: Layout) -> tuple[bool, Any, Layout]:
    """Decides how a value enters an attribute, or raises with nothing changed.

    Args:
      self: the object.
      name: the attribute; an index, in a List.
      value: the value, tagged or not.
      layout: the object's layout now.

    Returns:
      Whether a descriptor of the class takes the value instead; the value
      without its tag; the layout that the object has from then on.
    """
    status = layout.statuses.get(name)
    is_checked = self._pytree__is_pytree
    if value.__class__ is Tagged:
        explicit, value = value.status, value.value
        if explicit is Status.STATIC:
            if is_checked:
                _check_static(self, name, value, "is annotated with static(...)")
            explicit = static_status(value)
        return False, value, layout.with_status(name, explicit)
    if status is None:
        if isinstance(name, str):
            if hasattr(getattr(type(self), name, None), "__set__"):
                return True, value, layout
            if name in self._pytree__reserved:
                raise _hides_method(self, name)
        status = _first_status(self, name, value)
        if status is not Status.DATA and is_checked:
            _check_static(self, name, value, "is static")
        return False, value, layout.with_status(name, status)
    if not is_checked:
        return False, value, layout
    _check_static(self, name, value, "is static")
    if status is Status.STATIC and static_status(value) is Status.SNAPSHOT:
        return False, value, layout.with_status(name, Status.SNAPSHOT)
    return False, value, layout


def _first_status(self: Pytree, name: str, value: object) -> Status:
    spec = type(self)._pytree__specs.get(name)
    if spec is not None:
        if spec.status is Status.SNAPSHOT:
            return static_status(value)
        if spec.status is not None:
            return spec.status
        if spec.is_nested_undecided and has_data(value):
            return Status.DATA
    elif self._pytree__holds_elements and has_data(value):
        return Status.DATA
    return status_of_value(value)


def _check_static(self: Pytree, name: str, value: object, what: str) -> None:
    if value.__class__ in PLAIN:
        return
    found = next(data_within(value), None)
    if found is None:
        return
    holds = "" if found is value else f" that holds {describe(found)}"
    raise StatusError(
        f"{type_name(type(self))}.{name}",
        f"data was assigned to an attribute that {what}",
        expected="a static value: a number, a string, a function, or a container of such",
        got=describe(value) + holds,
        why="arrays, Variables and Pytrees must be children of the tree, or jit bakes them into the program",
        fix=f"self.{name} = dx.data(...)        # or declare it:  {name}: dx.Data[...]\n"
        f"self.{name} = dx.List(...)        # or dx.Dict, for containers",
    )


def wrong_trace(self: Pytree, name: Any) -> TraceContextError:
    """The error of changing an object from another trace level than its own."""
    cls = type_name(type(self))
    return TraceContextError(
        f"{cls}.{name}",
        f"cannot mutate {cls!r} from a different trace level",
        why="the object was made outside of the function that JAX is tracing now; the change would leak a tracer",
        fix="pass the object as an argument of the traced function, and return it or use the transforms of declax",
    )


def _hides_method(self: Pytree, name: str) -> FieldError:
    cls = type_name(type(self))
    return FieldError(
        f"{cls}.{name}",
        f"an attribute named {name!r} hides a method of its base class",
        fix=f"self.{name}_ = ...",
    )


# --- new instances ------------------------------------------------------------


def settle(self: Pytree) -> None:
    """Makes an instance's layout agree with the attributes that it has.

    Only frozen dataclasses, unpickled objects and fields that nothing
    assigned need it; for all others it is one comparison.
    """
    attributes = self.__dict__
    layout = layout_of(self)
    count = len(attributes) - (LAYOUT_KEY in attributes) - (TRACE_KEY in attributes) - (BOUND_KEY in attributes)
    if count == len(layout.statuses) and not self._pytree__is_frozen:
        return
    own = layout
    for name in [n for n in own.statuses if n not in attributes]:
        own = own.without(name)
    for name, value in tuple(attributes.items()):
        if name in INTERNAL_KEYS or (name in own.statuses and not self._pytree__is_frozen):
            continue
        if own.statuses.get(name) is Status.DATA and value.__class__ is not Tagged:
            continue
        _, attributes[name], own = admit(self, name, value, own)
    if own is not layout:
        attributes[LAYOUT_KEY] = own


def check_pytree(node: object, /) -> None:
    """Checks the attributes of a Pytree for data that JAX would not see.

    Runs after each construction; call it after changing a container in place.

    Raises:
      StatusError: for arrays in a static attribute, or for ``data(...)`` and
        ``static(...)`` inside of containers.
    """
    if not isinstance(node, Pytree):
        raise StatusError("check_pytree", "the argument is no Pytree", expected="a Pytree", got=describe(node))
    attributes = node.__dict__
    for name, status in layout_of(node).statuses.items():
        value = attributes.get(name)
        if value.__class__ in PLAIN:
            continue
        if isinstance(value, CONTAINERS):
            _check_tags(node, name, value)
        if status is not Status.DATA:
            _check_static(node, name, value, "is static")


def _check_tags(node: Pytree, name: str, value: object) -> None:
    tags = {tag.status.value for tag in tags_within(value)}
    if tags:
        raise StatusError(
            f"{type_name(type(node))}.{name}",
            f"found the tags {sorted(tags)} inside of a container",
            got=describe(value),
            why="data(...) and static(...) say the status of an attribute, so they stand directly in an assignment",
            fix=f"self.{name} = dx.data([...])",
        )


def _explain_unknown_names(cls: type, kwargs: dict[str, Any]) -> None:
    if not dataclasses.is_dataclass(cls) or "__init__" not in cls.__dict__:
        return
    known = [f.name for f in cls.__dataclass_fields__.values() if f.init]
    made = {f.name for f in dataclasses.fields(cls) if not f.init}
    for name in kwargs:
        if name not in known:
            hint = suggest(name, known)
            raise ConstructionError(
                f"{type_name(cls)}(...)",
                f"there is no parameter {name!r}" + (f"; {hint}" if hint else ""),
                expected=", ".join(known),
                got=f"{name}=...",
                why=f"{name} is made by the object itself" if name in made else None,
            ) from None


def _fill_new_fields(self: Pytree) -> None:
    if not dataclasses.is_dataclass(self):
        return
    for field in dataclasses.fields(self):
        if field.name in self.__dict__:
            continue
        if field.default is not dataclasses.MISSING:
            self.__dict__[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            self.__dict__[field.name] = field.default_factory()
        elif field.init:
            raise ConstructionError(
                f"{type_name(type(self))}.{field.name}",
                "the stored object has no value for this field, which has no default",
                why="the class gained the field after the object was stored",
                fix=f"{field.name}: ... = dx.static(default=...)",
            )

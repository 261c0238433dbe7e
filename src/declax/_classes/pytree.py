"""Objects with attributes that JAX sees as trees.

An instance whose attributes deviate from the declaration of its class has another layout. An object is bound while
a cached description of a graph knows it: a change of its structure then advances the structure epoch.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import sys
import threading
import weakref
from abc import ABCMeta
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar, get_origin

import jax
import numpy as np

from declax import _jax
from declax._classes.assignment import check_assignment
from declax._classes.defaults import add_defaults
from declax._classes.missing import declared_names, note_missing
from declax._classes.wrong_arguments import explain_arguments, not_decorated
from declax._fields import snapshots
from declax._fields.annotations import add_data_type, names_around, own_annotations
from declax._fields.call import CONTAINERS as LITERALS
from declax._fields.call import has_expression
from declax._fields.class_body import ClassBody
from declax._fields.class_info import (
    UNDECLARED,
    ClassInfo,
    collect,
    maker_of,
    own_info,
    read_fields,
    take_marks,
)
from declax._fields.expressions import Expression, defer_call
from declax._fields.keys import OPEN_BODIES, RNGS, explain_unseen_rngs
from declax._fields.specifiers import (
    FIELD,
    INIT_VAR,
    Status,
    Tagged,
    VariableRecipe,
    make_fields_portable,
    specifier_of,
)
from declax._text import objects
from declax._tree import epoch
from declax._tree.attributes import (
    admit,
    check_static,
    check_tags,
    class_attribute,
    is_behaviour,
    not_a_variable,
    wrong_trace,
)
from declax._tree.hidden import is_of_library
from declax._tree.layout import ARRAY_CLASSES, BOUND_KEY, INTERNAL_KEYS, LAYOUT_KEY, TRACE_KEY, Layout, Name
from declax._tree.moment import moment_of, reduced_at
from declax._tree.statuses import CONTAINERS, PLAIN, data_within
from declax._tree.statuses import has_data as has_data
from declax._tree.statuses import is_data as is_data
from declax._tree.statuses import register_data_type as register_data_type
from declax._typing import INFO_KEY, MISSING, RECORD_KEY
from declax._variables.donation import Pickled, check_alive
from declax._variables.policy import DtypeDefault
from declax._variables.variable import Variable
from declax.errors import (
    FieldError,
    MissingRngsError,
    StatusError,
    describe,
    type_name,
)

P = TypeVar("P", bound="Pytree")
_ARRAYS = (jax.Array, np.ndarray)
_SLOTS = frozenset({"__dict__", "__weakref__"})
"""Slots that hold no attributes."""
MAKES_MEMBERS = "_declax_makes_members"
"""Marks a `__post_init__` that makes the declared members first."""


# --- classes ------------------------------------------------------------------


if TYPE_CHECKING:
    _ProtocolMeta = ABCMeta
else:
    _ProtocolMeta = type(Protocol)  # so that a class may derive from a Pytree and a Protocol


class PytreeMeta(_ProtocolMeta):
    """Prepares a class at its first use and checks each new instance.

    Calling a class is bound to `_construct` out of sight of type checkers,
    which would otherwise take its result for that of every constructor.
    """

    def _construct(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # of a metaclass
        """Constructs an instance, or defers the call if an argument is a field of the class body around it."""
        if _has_expression(args, kwargs) or (
            kwargs.get(RNGS) is None and OPEN_BODIES.codes and OPEN_BODIES.defer(cls, args, sys._getframe(1))
        ):
            return defer_call(cls, args, kwargs)
        info: ClassInfo = cls._pytree__info  # type: ignore[attr-defined]  # `__new__` sets it
        if not info.is_complete:
            prepare(info)
        trace_token = _jax.trace_state.value
        try:
            if trace_token is _jax.TOP:
                self = super().__call__(*args, **kwargs)
            else:
                self = _construct_in_trace(cls, trace_token, args, kwargs)
        except Exception as error:
            if isinstance(error, (TypeError, StatusError)):
                explain_arguments(cls, args, kwargs, error)
            if isinstance(error, MissingRngsError) and OPEN_BODIES.codes.get(id(OPEN_BODIES.around(sys._getframe(1)))):
                explain_unseen_rngs(cls, error)
            _jax.hide_frames(error)
            raise
        if isinstance(self, cls):
            self._pytree__finish()
        return self

    if not TYPE_CHECKING:
        __call__ = _construct

        @classmethod
        def __prepare__(mcs, name: str, bases: tuple[type, ...], /, **kwargs: Any) -> ClassBody:  # noqa: N804
            return ClassBody(bases)

        def __getattr__(cls, name: str) -> Any:  # noqa: N805  # of a metaclass
            """The expression of a field, for the bodies of subclasses."""
            known = {} if name.startswith("__") else cls._pytree__info.maker.expressions
            if name in known:
                used_up = class_attribute(cls, name)  # an InitVar: its descriptor raises once more
                return known[name][0] if used_up is None else used_up.__get__(None, cls)
            text = f"type object {cls.__name__!r} has no attribute {name!r}"
            if not name.startswith("__") and name in getattr(cls, "__dataclass_fields__", {}):
                text += f": only fields with a specifier have an expression. Declare it as `{name}: ... = dx.field()`"
            raise AttributeError(text, name=name, obj=cls)

        def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **kwargs: Any) -> Any:
            body = namespace.close(name) if isinstance(namespace, ClassBody) else None
            info = ClassInfo(body, namespace.get(INFO_KEY))
            return ABCMeta.__new__(mcs, name, bases, {**namespace, INFO_KEY: info}, **kwargs)

        # What a Protocol does at these is not for classes that only implement one.
        __init__ = type.__init__
        __instancecheck__ = ABCMeta.__instancecheck__
        __subclasscheck__ = ABCMeta.__subclasscheck__

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the constructor, which that of `__call__` would hide."""
        cls: Any = self
        maker = cls.__init__ if cls.__new__ is object.__new__ else cls.__new__
        if maker is object.__init__:
            return inspect.Signature()
        signature = inspect.signature(maker)
        fields = getattr(cls, "__dataclass_fields__", {})
        parameters = dict(signature.parameters)
        del parameters[next(iter(parameters))]
        for name, field in fields.items():
            if isinstance(field.default_factory, DtypeDefault) and name in parameters:  # a dtype without a policy
                parameters[name] = parameters[name].replace(default=field.default_factory.usual)
        ordered = list(parameters.values())
        if cls._pytree__implies_rngs and RNGS in parameters and ordered[-1].name != RNGS:
            ordered.sort(key=lambda p: (p.kind, p.name == RNGS))  # a field of the base, and shown last
        return signature.replace(parameters=ordered)


def _has_expression(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call has an expression among its arguments."""
    for value in args:
        if isinstance(value, Expression) or (value.__class__ in LITERALS and has_expression(value)):
            return True
    for value in kwargs.values():
        if isinstance(value, Expression) or (value.__class__ in LITERALS and has_expression(value)):
            return True
    return False


def _takes_no_slots(cls: type, base: type) -> FieldError:
    is_written = "__dataclass_fields__" not in base.__dict__
    return FieldError(
        type_name(cls),
        "a Pytree takes no __slots__" + ("" if base is cls else f", and its base {type_name(base)} has them"),
        why="attributes in slots are not part of the tree, and copies would lose them",
        fix="leave __slots__ out" if is_written else f"@dataclass        # of {type_name(base)}, without slots=True",
    )


def _construct_in_trace(cls: Any, trace_token: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `type.__call__`, with the trace token set before ``__init__`` runs."""
    self = cls.__new__(cls, *args, **kwargs)
    if isinstance(self, cls):
        self.__dict__[TRACE_KEY] = trace_token
        self.__init__(*args, **kwargs)
    return self


class Pytree(metaclass=PytreeMeta):
    """Base of all objects whose attributes JAX sees as a tree.

    Each attribute is data or static. The declaration of the class decides; for other attributes, an explicit
    ``data(...)`` or ``static(...)`` around the assigned value, or the value of the first assignment (see `is_data`).

    Class arguments:
      pytree: False makes a class that is not a JAX pytree, and whose attributes are not checked; the graph functions
        and the transforms of declax accept its instances.

    Raises:
      StatusError: for data in a static attribute.
      TraceContextError: for a change from another trace level.

    >>> import declax as dx
    >>> class Scale(dx.Pytree):
    ...     def __init__(self, dim):
    ...         self.dim = dim
    ...         self.weight = jax.numpy.ones(dim)
    >>> [leaf.shape for leaf in jax.tree.leaves(Scale(3))]
    [(3,)]
    """

    _pytree__info: ClassVar[ClassInfo]
    # Not in the ClassInfo: the default of an entry in the `__dict__` of instances, which one lookup reads.
    _pytree__layout: ClassVar[Layout]
    # Nor these, which a class states in its body, and its subclasses inherit.
    _pytree__is_pytree: ClassVar[bool] = True
    _pytree__holds_elements: ClassVar[bool] = False
    _pytree__is_module: ClassVar[bool] = False
    _pytree__implies_rngs: ClassVar[bool] = False  # the class body does not mention `rngs`, and parts get it
    _pytree__draws: ClassVar[bool] = False  # random streams: each use is a write, which a trace refuses
    if TYPE_CHECKING:
        _pytree__keys: ClassVar[Literal["explicit"]]  # how constructors get `rngs`; overloads tell Layers by it
    __annotations__.clear()  # `typing.get_type_hints` of a model shows its fields

    def __init_subclass__(cls, *, pytree: bool | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if pytree is not None:
            cls._pytree__is_pytree = pytree
        info = cls._pytree__info
        collect(info)
        epoch.advance()  # reloading a module may give its new classes to existing objects, past `__setattr__`
        for base in cls.__mro__:
            slots = base.__dict__.get("__slots__", ())
            if {slots} - _SLOTS if isinstance(slots, str) else {*slots} - _SLOTS:
                raise _takes_no_slots(cls, base)
        if "<locals>" in cls.__qualname__:
            info.names_around = names_around(cls, info.annotations)
        if cls.__module__.startswith("declax."):
            names = [name for name in vars(cls) if not name.startswith("_") and name not in info.annotations]
            info.reserved |= {name for name in names if is_behaviour(cls.__dict__[name])}

    # --- attributes (checkers take `__dict__` for that of the class, so self is Any)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        attributes = self.__dict__
        if attributes.get(TRACE_KEY, _jax.TOP) is not _jax.trace_state.value:
            raise wrong_trace(self, name)
        layout: Layout = attributes.get(LAYOUT_KEY) or type(self)._pytree__layout
        status, kind = layout.unguarded.get(name), value.__class__
        if (  # a function may hide a model
            (status is not Status.DATA and (status is None or kind not in PLAIN))
            or kind in layout.looked_into
            or (
                kind is FunctionType
                and (value.__closure__ or value.__defaults__ or value.__kwdefaults__)
                and not is_of_library(value)
            )
        ):
            if status is None and self._pytree__info.maker.names:
                check_assignment(self, name, value, layout)
            if kind in ARRAY_CLASSES and name in layout.variables:
                raise not_a_variable(self, name, value)
            is_behaviour, value, own = admit(self, name, value, layout)
            if is_behaviour:
                object.__setattr__(self, name, value)
                if name == "__class__":
                    epoch.advance()
                return
            if own is not layout:
                set_layout(self, own)
                attributes[name] = value
                if BOUND_KEY in attributes:
                    epoch.advance()
                return
        if BOUND_KEY not in attributes:
            attributes[name] = value
            return
        old = attributes.get(name, MISSING)
        attributes[name] = value
        if old is not value and not (isinstance(old, _ARRAYS) and isinstance(value, _ARRAYS)):
            epoch.advance()

    def __delattr__(self: Any, name: str) -> None:
        attributes = self.__dict__
        if attributes.get(TRACE_KEY, _jax.TOP) is not _jax.trace_state.value:
            raise wrong_trace(self, name)
        if name not in attributes:
            object.__delattr__(self, name)
            return
        delete_attribute(self, name)

    def _pytree__finish(self: Any) -> None:
        """Checks a new instance, and gives it its own layout if it deviates."""
        info: ClassInfo = self._pytree__info
        layout: Layout = self.__dict__.get(LAYOUT_KEY) or self._pytree__layout
        may_lack = not layout.is_closed and not info.declared <= self.__dict__.keys()
        if info.is_frozen or not layout.fits(self) or (may_lack and info.is_dataclass):
            add_defaults(self)  # that an own `__init__` has not set
            fit_layout(self)
            layout = layout_of(self)
        elif may_lack:
            note_missing(self)
        if self._pytree__is_pytree:
            check_attributes(self, layout)

    # --- copies

    def __getstate__(self) -> dict[str, Any]:
        state = {n: v for n, v in self.__dict__.items() if n not in (TRACE_KEY, BOUND_KEY)}
        if RECORD_KEY in state:
            state[RECORD_KEY] = state[RECORD_KEY].unseal(state)
        return state

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        cls = type(self)
        if not cls._pytree__info.is_complete:
            prepare(cls._pytree__info)
        attributes = self.__dict__
        attributes.update(state)
        add_defaults(self)  # of fields that the class has gained since
        if RECORD_KEY in attributes:
            attributes[RECORD_KEY] = attributes[RECORD_KEY].seal(attributes)
        if LAYOUT_KEY in attributes:  # made before the class was prepared, perhaps
            set_layout(self, Layout.of(cls, attributes[LAYOUT_KEY].statuses))
        trace_token = _jax.current_trace()
        if trace_token is not _jax.TOP:
            attributes[TRACE_KEY] = trace_token
        fit_layout(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if BOUND_KEY not in self.__dict__:
            _check_alive(self, self.__dict__)
        return reduced_at(self, snapshots.portable(super().__reduce_ex__(protocol)), Pickled)

    def __copy__(self) -> Self:
        is_own = type(self).__reduce_ex__ is Pytree.__reduce_ex__  # which has names in place of functions
        return _reconstructed(self, None, object.__reduce_ex__(self, 4) if is_own else self.__reduce_ex__(4))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if _is_copied_plainly(self):
            return deep_copy(self, memo)
        return _reconstructed(self, memo, self.__reduce_ex__(4))

    # --- looks

    def __dir__(self) -> Iterable[str]:
        """The names that completion offers: without InitVars, which only the constructor receives."""
        hidden = frozenset(own_info(type(self)).init_vars).difference(self.__dict__)
        return [name for name in super().__dir__() if name not in hidden]

    def _pytree__fields_for_repr(self) -> Iterable[tuple[Any, object]]:
        fields: Any = getattr(self, "__dataclass_fields__", {})
        own, statuses = self.__dict__, layout_of(self).statuses
        ordered = sorted((name for name in fields if name in own), key=RNGS.__eq__)  # of a base, and shown last
        for name in [*ordered, *(n for n in own if n not in fields)]:
            if name in statuses and _is_shown(fields.get(name), name, own[name], statuses[name]):
                yield name, own[name]

    def __repr__(self) -> str:
        return objects.object_repr(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return objects.treescope_repr(self, path, subtree_renderer)


class Object(Pytree, pytree=False):
    """Base of objects that are not JAX pytrees; nothing about them is checked.

    The graph API and the lifted transforms take them: containers, arrays and
    Variables in their attributes are state, all else is static.

    >>> import declax as dx
    >>> class Counter(dx.Object):
    ...     def __init__(self):
    ...         self.values = [jax.numpy.zeros(())]
    >>> jax.tree_util.all_leaves([Counter()])
    True
    """


add_data_type(Pytree)
add_data_type(Variable)


def _is_shown(field: dataclasses.Field[Any] | None, name: str, value: object, status: Status) -> bool:
    """Whether texts show an attribute: neither private and static, nor a default, nor a part that was not made."""
    if name.startswith("_") and status.is_static and not (field and field.init):
        return False
    if field is None or not field.repr or value is field.default:
        return field is None
    if isinstance(field.default_factory, DtypeDefault):
        return value is not field.default_factory.usual
    if value is None:
        specifier = specifier_of(field)
        return not isinstance(field.type, dataclasses.InitVar) and (specifier is None or specifier.recipe is None)
    if value.__class__ in PLAIN:
        return value.__class__ is not field.default.__class__ or value != field.default
    cls: Any = value.__class__
    return cls is not field.default_factory or bool(value)


def layout_of(node: Pytree) -> Layout:
    """The layout that an instance has now."""
    found: Layout = node.__dict__.get(LAYOUT_KEY) or type(node)._pytree__layout
    return found


def writes_by_itself(node: Pytree) -> bool:
    """Whether the ``__setattr__`` of an instance, which is not that of Pytree, may not report changes."""
    cls = type(node)
    if cls._pytree__info.is_frozen:
        return False
    owner = next(base for base in cls.__mro__ if "__setattr__" in base.__dict__)
    return not owner.__module__.startswith("declax.")


def set_layout(node: Pytree, layout: Layout) -> None:
    """Gives an instance a layout; that of its class needs no entry."""
    attributes = vars(node)
    if layout is type(node)._pytree__layout:
        attributes.pop(LAYOUT_KEY, None)
    else:
        attributes[LAYOUT_KEY] = layout


def delete_attribute(node: Any, name: str) -> None:
    """Takes an attribute out of an instance that may be changed now."""
    attributes = node.__dict__
    layout: Layout = attributes.get(LAYOUT_KEY) or node._pytree__layout
    if name in layout.statuses:  # values of cached properties are in no layout
        set_layout(node, layout.without(name))
    del attributes[name]
    if BOUND_KEY in attributes:
        epoch.advance()


# --- preparing a class --------------------------------------------------------


_preparing = threading.RLock()


def prepare(info: ClassInfo) -> None:
    """Reads the declarations of a class, and registers it with JAX, once.

    A class whose annotations have undefined names is read again at its next construction.
    """
    with _preparing:
        if not (info.is_declared or info.is_registered):
            info.inherit()  # a base may have been decorated since the class was made
        read(info)
        if not info.is_declared:
            _ensure_members_are_made(info)
        register(info)


def read(info: ClassInfo) -> None:
    """Reads the fields of a class; that of a decorated class before its `Maker` is made."""
    cls: Any = info.cls
    for base in cls.__mro__:
        known: ClassInfo | None = base.__dict__.get(INFO_KEY)
        info.is_dataclass |= "__dataclass_fields__" in base.__dict__
        if known is not None and known.body is not None and (name := take_marks(known)) is not None:
            raise not_decorated(base, name)
    _check_undecorated(cls)
    info.specs, info.lacks_names = read_fields(info)
    if not info.is_dataclass:
        return
    info.init_vars = tuple([n for n, field in cls.__dataclass_fields__.items() if field._field_type is INIT_VAR])
    make_fields_portable(cls)
    variables = []
    for name, spec in info.specs.items():
        kind = get_origin(spec.annotation) or spec.annotation
        if isinstance(spec.recipe, VariableRecipe) or (isinstance(kind, type) and issubclass(kind, Variable)):
            variables.append(name)
    info.variables, info.is_frozen = frozenset(variables), cls.__dataclass_params__.frozen


def register(info: ClassInfo) -> None:
    """Gives a class that was read the layout of its instances, and registers it with JAX."""
    cls: Any = info.cls
    with _preparing:
        if not info.is_registered:
            values = {name: class_attribute(cls, name) for name in declared_names(info)}
            info.declared = frozenset([name for name, value in values.items() if value is None])
            cls._pytree__layout = _first_layout(info, values)
            if cls._pytree__is_pytree and cls not in _registered:
                _register(cls)
                _registered.add(cls)
        info.is_complete = info.is_registered or not info.lacks_names
        info.is_registered = True


_registered = weakref.WeakSet[type]()
"""The classes that JAX knows. cloudpickle sets the attributes of a live class to those that were pickled, so they
cannot tell."""


def _first_layout(info: ClassInfo, values: Mapping[str, Any]) -> Layout:
    """The closed layout of a dataclass whose annotations decide all, or an empty one.

    `values` are those of the class for the names of its fields.
    """
    cls: Any = info.cls
    if not (cls._pytree__is_pytree and info.is_dataclass):
        return Layout.of(cls, {})
    statuses: dict[Name, Status] = {}
    for name, field in cls.__dataclass_fields__.items():
        if field._field_type is not FIELD or hasattr(type(values[name]), "__set__"):
            continue
        status = info.specs[name].status
        if status is None:
            return Layout.of(cls, {})
        statuses[name] = status
    return Layout.of(cls, statuses, is_closed=True)


def _ensure_members_are_made(info: ClassInfo) -> None:
    """Makes `__post_init__` create the parts and check fields, in a subclass that the decorator has not seen."""
    cls: Any = info.cls
    if not info.is_dataclass:
        return
    declared = [name for name, spec in info.specs.items() if spec.recipe is not None or "check" in spec.notes]
    constructed = next(base for base in cls.__mro__ if "__dataclass_fields__" in base.__dict__)
    others = (own_info(base) for base in cls.__mro__ if base not in constructed.__mro__)
    unmade = next((name for other in others if other.is_declared for name in other.maker.own), None)
    if unmade is not None:
        raise not_decorated(cls, unmade)
    if not (declared or cls._pytree__implies_rngs):
        return
    if info.maker is UNDECLARED or "__dataclass_fields__" in cls.__dict__:
        raise not_decorated(cls, next(iter(declared), RNGS))
    if not hasattr(cls.__post_init__, MAKES_MEMBERS):  # that of the decorated base, at least
        info.maker.wrap_post_init(info)


def _check_undecorated(cls: type[Pytree]) -> None:
    """Refuses layers and Variables as class attributes of a subclass that uses the constructor of a declared base."""
    for base in cls.__mro__:
        entries = base.__dict__
        if not entries.keys().isdisjoint(_CONSTRUCTED) or not maker_of(base).expressions:
            continue
        _refuse_trained(base, f"@dx.dataclass        # above class {type_name(base)}", _UNDECORATED)


def check_added(info: ClassInfo) -> None:
    """Refuses layers and Variables that a statement made attributes of a declared class, after its decorator ran."""
    for base in info.cls.__mro__:
        if own_info(base).is_declared and maker_of(base).expressions:
            _refuse_trained(
                base, "{name} = ...        # in the class body, or model.{name} = ... of an instance", _ADDED
            )
    info.entries = len(info.cls.__dict__)


def _refuse_trained(base: Any, fix: str, why: str) -> None:
    constants = {name for name, annotation in own_annotations(base).items() if "ClassVar" in str(annotation)}
    for name, value in base.__dict__.items():
        if not name.startswith("__") and name not in constants and is_trained(value):
            raise shared_by_instances(base, name, value, fix.format(name=name), why)


_UNDECORATED = """\
without the decorator, it is an attribute of the class, which gradients, optimizers and
checkpoints do not see"""
_ADDED = "it is an attribute of the class, which gradients, optimizers and checkpoints do not see"


def shared_by_instances(base: type, name: str, value: object, fix: str, why: str = _UNDECORATED) -> FieldError:
    """The error for a layer or Variable that is an attribute of a class, and that no decorator has seen."""
    return FieldError(
        f"{type_name(base)}.{name}",
        "all instances would share this object, which is in the state of none",
        got=describe(value),
        why=why,
        fix=fix,
    )


_CONSTRUCTED = ("__dataclass_fields__", "__init__")
"""The entries of a class that is decorated, or open."""


def is_trained(value: object) -> bool:
    """Whether a value that is made once for all instances of a class is, or holds, Variables or arrays of Pytrees."""
    if value.__class__ in PLAIN or not isinstance(value, (Pytree, Variable, *CONTAINERS)):
        return False
    found = [item for item in data_within(value) if isinstance(item, (Pytree, Variable))]
    return any(jax.tree.leaves(item) for item in found)


def _register(cls: type[Pytree]) -> None:
    layout = cls._pytree__layout
    flatten, unflatten = _flatten_open, _unflatten_open
    if layout.is_closed:
        flatten, unflatten = layout.late[0].function, layout.late[1].function
    jax.tree_util.register_pytree_with_keys(cls, layout.flatten_with_keys, unflatten, flatten)


def _flatten_open(self: Any) -> Any:
    return (self.__dict__.get(LAYOUT_KEY) or self._pytree__layout).flatten(self)


def _unflatten_open(statics: Any, children: Any) -> Any:
    return statics[0].unflatten(statics, children)


# --- new instances ------------------------------------------------------------


def refresh_layout(node: Any) -> Layout:
    """As `fit_layout`, for an instance that was changed past ``__setattr__``; returns its layout."""
    cls = type(node)
    if not cls._pytree__info.is_registered:
        prepare(cls._pytree__info)
    before = layout_of(node)
    if before.cls is not cls:  # the instance was given another class
        set_layout(node, Layout.of(cls, before.statuses))
    fit_layout(node)
    layout = layout_of(node)
    if layout is not before and BOUND_KEY in node.__dict__:
        epoch.advance()
    return layout


def fit_layout(self: Pytree) -> None:
    """Makes an instance's layout agree with the attributes that it has.

    Only frozen dataclasses, unpickled objects, fields that nothing assigned
    and attributes that came past ``__setattr__`` need it.
    """
    attributes: dict[Any, Any] = vars(self)
    layout = own = layout_of(self)
    for name in [n for n in own.statuses if n not in attributes]:
        own = own.without(name)
    for name, value in tuple(attributes.items()):
        if name in INTERNAL_KEYS or (name in own.statuses and not self._pytree__info.is_frozen):
            continue
        if own.statuses.get(name) is Status.DATA and value.__class__ is not Tagged:
            continue
        if isinstance(class_attribute(type(self), name), functools.cached_property):
            if not any(isinstance(item, (Pytree, Variable)) for item in data_within(value)):
                continue  # it is computed again when it is needed
            value = Tagged(Status.DATA, value)  # also a list, which nobody could tag
        _, attributes[name], own = admit(self, name, value, own)
    if own is not layout:
        set_layout(self, own)
    note_missing(self)


def _reconstructed(node: P, memo: dict[int, Any] | None, reduced: Any) -> P:
    """What `copy` makes of an object that was reduced for it."""
    reconstruct: Any = copy._reconstruct  # type: ignore[attr-defined]  # what `copy.copy` and `copy.deepcopy` call
    return node if isinstance(reduced, str) else reconstruct(node, memo, *reduced)


def deep_copy(root: P, memo: dict[int, Any]) -> P:
    """As `copy.deepcopy` does it, but without recursion from a node into the next, however deep.

    All nodes that can be reached by attributes and containers are made first,
    and stand in the memo while their attributes are copied.
    """
    nodes: list[tuple[Any, Any]] = []
    waiting, opened = [root], set[int]()
    known: snapshots.Known = {}
    while waiting:
        value: Any = waiting.pop()
        if isinstance(value, CONTAINERS):
            if id(value) not in opened:
                opened.add(id(value))
                waiting.extend(value.values() if isinstance(value, dict) else value)
        elif id(value) not in memo and _is_copied_plainly(value):
            state = snapshots.portable(value.__getstate__(), known)
            nodes.append((value, state))
            cls: Any = type(value)
            memo[id(value)] = cls.__new__(cls)
            waiting.extend(state.values() if isinstance(state, dict) else ())
    memo.setdefault(id(memo), []).extend(nodes)  # so that no identity is given again
    is_trained = any(BOUND_KEY in node.__dict__ for node, _ in nodes) and _jax.current_trace() is _jax.TOP
    with moment_of(root) if is_trained else contextlib.nullcontext() as moment:
        for node, state in reversed(nodes):
            if moment is None:
                _check_alive(node, state)
            read = {} if moment is None else moment.attributes.get(id(node), {})
            try:
                copied_state = copy.deepcopy({**state, **read}, memo)
            except RuntimeError:
                _check_alive(node, {**state, **read})
                raise
            memo[id(node)].__setstate__(copied_state)
    copied: P = memo[id(root)]
    return copied


def _check_alive(node: Any, attributes: Mapping[Any, Any]) -> None:
    """Raises if an array of a node, in a Variable, an attribute or a container there, has lost its buffer."""
    is_pytree = type(node)._pytree__is_pytree
    for name in layout_of(node).data_names if is_pytree else attributes:
        value = attributes.get(name)
        value = value.raw_value if isinstance(value, Variable) else value
        if isinstance(value, jax.Array) or (is_pytree and isinstance(value, CONTAINERS)):
            check_alive(f"{type_name(type(node))}.{name}", value, lambda inner: isinstance(inner, (Pytree, Variable)))


def _is_copied_plainly(value: object) -> bool:
    """Whether a value is a Pytree that leaves copies to `Pytree`."""
    cls: Any = type(value)
    if not isinstance(value, Pytree) or cls.__deepcopy__ is not Pytree.__deepcopy__:
        return False
    return cls.__reduce__ is object.__reduce__ and cls.__reduce_ex__ is Pytree.__reduce_ex__


def check_attributes(node: Any, layout: Layout) -> None:
    """Checks the attributes of a Pytree for data that JAX would not see, and for tags within containers."""
    attributes: dict[Any, Any] = node.__dict__
    for name, status in layout.statuses.items():
        value = attributes.get(name)
        if value.__class__ in PLAIN:
            continue
        if isinstance(value, CONTAINERS):
            check_tags(node, name, value)
        if status is not Status.DATA:
            check_static(node, name, value, "is static")


def check_pytree(pytree: object) -> None:
    """Checks the attributes of a Pytree for data that JAX would not see.

    Construction calls it. Call it after changing a container in place.

    Raises:
      StatusError: for arrays in a static attribute, or for ``data(...)`` and ``static(...)`` inside of containers.

    >>> import declax as dx
    >>> model = dx.Module()
    >>> model.names = ["a"]
    >>> model.names.append(jax.numpy.ones(2))
    >>> dx.check_pytree(model)
    Traceback (most recent call last):
    declax.errors.StatusError: Module.names: data was assigned to an attribute that is static. [status]
    ...
    """
    if not isinstance(pytree, Pytree):
        raise StatusError("check_pytree", "the argument is not a Pytree", expected="a Pytree", got=describe(pytree))
    check_attributes(pytree, layout_of(pytree))

"""Variables: mutable boxes that hold the arrays of a model, and all that reading and writing one does.

`raw_value` is the stored value; `value` is the result of the hooks. Only its own trace may write a Variable.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar, overload

import jax
import numpy as np
from jax.core import ShapedArray, Tracer

from declax import _jax, errors
from declax._fields import snapshots
from declax._text import arrays, objects
from declax._tree import epoch
from declax._tree.moment import pickled, place_of, value_of
from declax._tree.read_only import EndedTrace, ReadOnly, WritesThrough
from declax._tree.statuses import check_depth, own_containers
from declax._typing import MISSING, ArrayLike, T
from declax._variables import defaults, placement, uncaptured_reads
from declax._variables.donation import Pickled, check_alive
from declax._variables.lost_writes import RawCopy, token_of_copy
from declax._variables.metadata import (
    AXES,
    EAGER_SHARDING,
    KNOWN,
    OPTIMIZER_AXES,
    Metadata,
    VariableMetadata,
    chain,
    check_names,
    declared_metadata,
    insert_axis,
    remove_axis,
)
from declax._variables.operators import ArrayOperators, operand

V = TypeVar("V", bound="Variable[Any]")
_Type: TypeAlias = type[V]  # Variable.type hides the builtin inside the class

_trace_state: Final = _jax.trace_state
_ArrayImpl: Final = _jax.ArrayImpl
_NEVER_REFS: Final = uncaptured_reads.never_refs
_new: Final = object.__new__


class Variable(ArrayOperators, Generic[T]):
    """A mutable box for a value, with metadata; behaves as the array that it holds.

    Args:
      value: an array, or any pytree of arrays.
      ref: True puts the value into a ref, which a function under ``jax.jit`` can write to. See `var_defaults`.
      **metadata: hashable facts about the value. ``out_sharding`` (or ``sharding``) names its axes and, on a mesh,
        places it: see `sharding_rules`. ``trainable``, ``weight_decay``, ``tag``, ``mesh``, the
        hooks ``on_get_value``, ``on_set_value``, ``on_create_value``, ``on_add_axis`` and ``on_remove_axis`` have a
        meaning in declax; use other names freely.

    Raises:
      MetadataError: a name is a misspelling, or hides an attribute.
      ShardingError: the names of the axes do not fit the mesh.
      StatusError: the value of a name has no hash.

    A kind of your own is a subclass. Annotations declare metadata and their
    defaults; methods with the names of hooks are hooks.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> class Count(dx.Variable[jax.Array]):
    ...     unit: str = "steps"
    >>> count = Count(jnp.array(1))
    >>> count += 1
    >>> int(count), count.unit
    (2, 'steps')
    """

    __slots__ = ("__weakref__", "_metadata", "_raw", "_trace")

    _raw: T
    _metadata: Metadata
    _trace: Any

    _known: ClassVar[frozenset[str]] = KNOWN
    _accepted: ClassVar[set[str]] = set(KNOWN)
    _defaults: ClassVar[Metadata] = Metadata.EMPTY
    _get_hook: ClassVar[Callable[..., Any] | None] = None
    _set_hook: ClassVar[Callable[..., Any] | None] = None
    _create_hook: ClassVar[Callable[..., Any] | None] = None
    _reads_plainly: ClassVar[bool] = True
    _sets_by_value: ClassVar[bool] = True
    _sets_plainly: ClassVar[bool] = True
    _index_get: ClassVar[bool] = True
    _index_set: ClassVar[bool] = True

    def __init__(self, value: T | VariableMetadata[T] | Variable[T], **metadata: Any) -> None:
        cls = type(self)
        content: Any = value
        if content.__class__ not in _FLAT:
            if isinstance(content, VariableMetadata):
                metadata.update(content.metadata)
                content = content.value
            if isinstance(content, Variable):
                content = content.get_value()
            _check_depth(cls, content)
        is_by_ref = False
        if defaults.is_used or (metadata and ("ref" in metadata or "hijax" in metadata)):
            is_by_ref = defaults.take_ref(metadata, errors.type_name(cls))
        _set_trace(self, _trace_state.value)
        _set_raw(self, content)
        all_metadata = cls._make_metadata(metadata) if metadata else cls._defaults
        _set_metadata(self, all_metadata)
        made: Any = self.create_value(content)
        if all_metadata.axes is not None:
            made = placement.placed(errors.type_name(cls), made, all_metadata)
        if is_by_ref and not _is_ref(made):
            made = jax.new_ref(made)
        if made is not content:
            if made.__class__ not in _FLAT:
                _check_depth(cls, made)
            _set_raw(self, made)
        epoch.kept = {}  # a Variable that exists may be initialised again

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declared = declared_metadata(cls)
        cls._known = cls._known | declared.keys()
        cls._accepted = set(cls._known)
        defaults = {name: value for name, value in declared.items() if value is not MISSING}
        if defaults:
            cls._defaults = Metadata.of({**cls._defaults, **defaults}, errors.type_name(cls))
        for direction in ("get", "set", "create"):
            name = f"on_{direction}_value"
            hook = None if name in declared else getattr(cls, name, None)
            setattr(cls, f"_{direction}_hook", hook and staticmethod(hook))  # called as hooks are: (variable, value)
        cls._index_get = cls.get_value is Variable.get_value or _takes_index(cls.get_value)
        cls._index_set = cls.set_value is Variable.set_value or _takes_index(cls.set_value)
        cls._sets_by_value = "value" not in cls.__dict__ and cls._sets_by_value
        cls._sets_plainly = cls.set_value is Variable.set_value and cls._set_hook is None
        if cls._sets_by_value and (cls.get_value is not Variable.get_value or cls._get_hook is not None):
            cls.value = property(lambda self: self.get_value(), lambda self, value: self.set_value(value))  # type: ignore[assignment,method-assign]  # reads through get_value
        cls._reads_plainly = cls.__dict__.get("value") is None and cls._reads_plainly
        _register(cls)

    # ---- the value

    if TYPE_CHECKING:  # at run time, `__setattr__` sets it

        @property
        def value(self) -> T: ...
        @value.setter
        def value(self, value: T | ArrayLike) -> None: ...
    else:

        @property
        def value(self):
            """The value, after the ``on_get_value`` hooks; assign to it to set a value.

            >>> import declax as dx
            >>> import jax.numpy as jnp
            >>> scale = dx.Param(jnp.ones(2))
            >>> scale.value = scale.value * 3
            >>> scale.value
            Array([3., 3.], dtype=float32)
            """
            raw = self._raw
            if self._metadata.get_hook is None and raw.__class__ in _NEVER_REFS:
                return raw
            return self.get_value()

    if TYPE_CHECKING:
        raw_value: T
    else:

        @property
        def raw_value(self):
            """The stored value, without hooks; assign to it to set a value."""
            if uncaptured_reads.is_watching:
                uncaptured_reads.warn_if_uncaptured(self)
            return self._raw

    def get_value(self, *, index: Any = MISSING) -> T:
        """The value, or the part of it at ``index``, as the ``on_get_value`` hooks show it.

        Of a ref in the box, the value is the array that it holds now.
        """
        hook = self._metadata.get_hook or self._get_hook
        value: Any = self.raw_value
        if _is_ref(value):
            value = value[index if hook is None and index is not MISSING else ...]
            if hook is None:
                return value  # type: ignore[no-any-return]  # as below
        if hook is not None:
            value = hook(self, value)
        return value if index is MISSING else _item(value, index)  # type: ignore[no-any-return]  # hooks keep the type

    def set_value(self, value: T | ArrayLike | Variable[T], *, index: Any = MISSING) -> None:
        """Puts in a value, or a part of it at ``index``, through the ``on_set_value`` hooks.

        A ref in the box is written to; only another ref takes its place. An array goes where the old one is, unless
        JAX has committed it to other devices, or has split it: with ``index=...``, it goes to the old place then too.
        An array of another shape goes where that of a new Variable does; while JAX traces, XLA places it, and a
        `ReplicationWarning` names the dimensions that the mesh does not divide.

        Raises:
          TraceContextError: the Variable belongs to another trace.
        """
        if _trace_state.value is not self._trace:
            change_elsewhere(self, "value", "set_value", value, index=index)
            return
        content: Any = value.get_value() if isinstance(value, Variable) else value
        hook = self._metadata.set_hook or self._set_hook
        if hook is not None:
            content = hook(self, content)
        raw: Any = self._raw
        if index is not MISSING or (raw.__class__ not in _NEVER_REFS and _is_ref(raw) and not _is_ref(content)):
            content = item_set(raw, ... if index is MISSING else index, content)
        if content.__class__ not in _FLAT:
            _check_depth(type(self), content)
        if index is MISSING and (raw.__class__ is not _ArrayImpl or raw.committed):  # else JAX may put it anywhere
            content = placement.beside(raw, content, self._metadata)
        set_raw(self, content)

    def create_value(self, value: T) -> T:
        """The stored value of a new Variable: the result of the ``on_create_value`` hooks."""
        hook = self._metadata.create_hook or self._create_hook
        return value if hook is None else hook(self, value)

    def get_raw_value(self) -> T:
        """The stored value, without hooks."""
        return self.raw_value

    def set_raw_value(self, value: T) -> None:
        """Puts a value in the box, past all hooks, and leaves it where it is.

        Raises:
          TraceContextError: the Variable belongs to another trace.
        """
        if _trace_state.value is not self._trace:
            change_elsewhere(self, "value", "set_raw_value", value)
            return
        if value.__class__ not in _FLAT:
            _check_depth(type(self), value)
        set_raw(self, value)

    @property
    def ref(self) -> bool:
        """Whether the stored value is a ref."""
        return _is_ref(self.raw_value)

    @property
    def hijax(self) -> bool:
        """Always False, since declax has no hijax Variables."""
        return False

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: EllipsisType, /) -> T: ...
        @overload
        def __getitem__(self: Variable[jax.Array], key: Any, /) -> jax.Array: ...
        @overload
        def __getitem__(self, key: Any, /) -> Any: ...

    def __getitem__(self, key: Any, /) -> Any:
        if self._index_get:
            return self.get_value(index=key)
        return _item(self.get_value(), key)

    if TYPE_CHECKING:

        @overload
        def __setitem__(self, key: EllipsisType, value: T | ArrayLike, /) -> None: ...
        @overload
        def __setitem__(self: Variable[dict[Any, Any]] | Variable[list[Any]], key: Any, value: Any, /) -> None: ...
        @overload
        def __setitem__(self, key: Any, value: ArrayLike, /) -> None: ...

    def __setitem__(self, key: Any, value: Any, /) -> None:
        if self._index_set:
            self.set_value(value, index=key)
        else:
            self.set_value(item_set(self.get_value(), key, operand(value)))

    # ---- attributes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _SLOTS:  # protocols ask, and copies in the making
            raise errors.MissingAttributeError(f"{errors.type_name(type(self))}.{name}", "there is no such attribute")
        metadata = self._metadata
        if name in metadata.frozen:
            return snapshots.thaw(metadata.frozen[name])
        if name == "sharding_names":
            return snapshots.thaw(metadata.frozen.get(AXES))
        if name == EAGER_SHARDING:
            return placement.using_eager_sharding()
        value: Any = self.get_value()
        kind: Any = type(self)
        value_kind: Any = type(value)
        if not name.startswith("_"):
            try:
                return getattr(value, name)
            except AttributeError:
                pass
        raise errors.MissingAttributeError(
            f"{errors.type_name(kind)}.{name}",
            "neither the metadata nor the value has this attribute",
            got=errors.describe(value),
            fix=_suggestion(kind, value_kind, metadata, name),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "value" and self._sets_by_value:
            if (
                self._sets_plainly
                and self._metadata.set_hook is None
                and _trace_state.value is self._trace
                and value.__class__ in _FLAT
                and self._raw.__class__ in _NEVER_REFS
                and not getattr(self._raw, "committed", False)
            ):
                set_raw(self, value)  # set_value with nothing to do but this
            else:
                self.set_value(value)
        elif name == "raw_value":
            self.set_raw_value(value)
        elif name.startswith("__"):  # typing marks instances of Param[...]; treedefs must not know
            raise errors.MissingAttributeError(f"{errors.type_name(type(self))}.{name}", "this attribute cannot be set")
        elif hasattr(getattr(type(self), name, None), "__set__") and name not in _SLOTS:
            object.__setattr__(self, name, value)
        else:
            self.set_metadata(name, value)

    def __delattr__(self, name: str) -> None:
        self.del_metadata(name)

    # ---- metadata

    @classmethod
    def _make_metadata(cls, content: Mapping[str, Any]) -> Metadata:
        cls._check_metadata(content)
        return Metadata.of({**cls._defaults, **content}, errors.type_name(cls))

    @classmethod
    def _check_metadata(cls, names: Mapping[str, Any]) -> None:
        unknown = names.keys() - cls._accepted
        if unknown:
            check_names(sorted(unknown), errors.type_name(cls), cls._known, lambda name: hasattr(cls, name))
            if len(cls._accepted) < 1000:  # a program that makes up names must not grow the set forever
                cls._accepted |= unknown

    def _change_metadata(self, metadata: Metadata) -> None:
        if _trace_state.value is not self._trace:
            change_elsewhere(self, "metadata", "_change_metadata", metadata)
            return
        if metadata is not self._metadata:
            _set_metadata(self, metadata)
            epoch.advance()

    @overload
    def set_metadata(self, metadata: Mapping[str, Any], /) -> None: ...
    @overload
    def set_metadata(self, name: str, value: Any, /) -> None: ...
    @overload
    def set_metadata(self, **metadata: Any) -> None: ...
    def set_metadata(self, *content: Any, **metadata: Any) -> None:
        """Changes metadata: ``(name=value, ...)`` or ``("name", value)`` some of it, ``({...})`` all of it.

        Raises:
          MetadataError: a name is a misspelling or hides an attribute.
          TraceContextError: the Variable belongs to another trace.
        """
        cls = type(self)
        kept: Mapping[str, Any] = self._metadata
        if len(content) == 1:
            kept, metadata = {}, dict(content[0])
        elif content:
            name, value = content
            metadata = {name: value}
        if "ref" in metadata or "hijax" in metadata:
            metadata = defaults.without_fixed(metadata, errors.type_name(cls), self.ref)
        cls._check_metadata(metadata)
        self._change_metadata(Metadata.of({**kept, **metadata}, errors.type_name(cls)))

    def get_metadata(
        self, name: str | None = None, default: Any = MISSING, *, exclude_required: bool | None = None
    ) -> Any:
        """The metadata of a name, or a dict of all of it.

        Args:
          name: of the metadata. ``eager_sharding`` is `using_eager_sharding` unless it was set.
          default: the result if there is none of that name.
          exclude_required: leave out what was not set.

        Raises:
          MissingMetadataError: there is none of that name, and no default was given.
        """
        if name is None:
            implied = {} if exclude_required else {EAGER_SHARDING: placement.using_eager_sharding()}
            return {**implied, **self._metadata}
        if name in self._metadata:
            return self._metadata[name]
        if name == EAGER_SHARDING:
            return placement.using_eager_sharding()
        if default is MISSING:
            raise self._no_metadata(name)
        return default

    def has_metadata(self, name: str) -> bool:
        """True where `get_metadata` gives metadata of that name."""
        return name in self._metadata or name == EAGER_SHARDING

    def del_metadata(self, name: str) -> None:
        """Takes metadata away.

        Raises:
          MissingMetadataError: there is none of that name.
          TraceContextError: the Variable belongs to another trace.
        """
        if name not in self._metadata:
            raise self._no_metadata(name)
        rest = {key: value for key, value in self._metadata.items() if key != name}
        self._change_metadata(Metadata.of(rest, errors.type_name(type(self))))

    def _no_metadata(self, name: str) -> errors.MissingMetadataError:
        where = f"{errors.type_name(type(self))}.{name}"
        return errors.MissingMetadataError(where, "there is no such metadata", fix=errors.suggest(name, self._metadata))

    def add_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Inserts the name of a new axis of the value into the sharding, and runs the hooks."""
        self._move_axis(axis_index, axis_name, insert_axis, "on_add_axis")

    def remove_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Removes the name of an axis from the sharding, and runs the hooks; the inverse of `add_axis`.

        Raises:
          MetadataError: the sharding has another name for the axis.
        """
        self._move_axis(axis_index, axis_name, functools.partial(remove_axis, type(self)), "on_remove_axis")

    def _move_axis(self, index: int, axis_name: str | None, move: Callable[..., Any], hook_name: str) -> None:
        names = {key: self._metadata[key] for key in (AXES, OPTIMIZER_AXES) if self._metadata.get(key) is not None}
        if names:
            moved = {**self._metadata, **{key: move(axes, index, axis_name) for key, axes in names.items()}}
            self._change_metadata(Metadata.of(moved, errors.type_name(type(self))))
        hook = chain(self._metadata.frozen.get(hook_name)) or getattr(type(self), hook_name, None)
        if hook is not None:
            hook(self, index, axis_name)

    # ---- copies

    @classmethod
    def from_metadata(cls, value: T, metadata: Mapping[str, Any]) -> Self:
        """A Variable of a value as it is: no hook runs, no default is added."""
        if not isinstance(metadata, Metadata):
            if "ref" in metadata or "hijax" in metadata:
                metadata = defaults.without_fixed(metadata, errors.type_name(cls), _is_ref(value))
            cls._check_metadata(metadata)
            metadata = Metadata.of(metadata, errors.type_name(cls))
        if value.__class__ not in _FLAT:
            _check_depth(cls, value)
        return new_variable(cls, value, metadata, _trace_state.value)

    def copy(self, value: Any = MISSING, **updates: Any) -> Self:
        """A box of the same kind, with the same or another raw value and changed metadata.

        A copy of a ref is another ref; `ref=` puts the value into one, or takes it out.

        >>> import declax as dx
        >>> kernel = dx.Param(1.0, tag="a")
        >>> kernel.copy(2.0, tag="b").tag
        'b'
        """
        raw: Any = own_containers(self.raw_value) if value is MISSING else operand(value)
        if value is MISSING and raw.__class__ not in _NEVER_REFS and _is_ref(raw):
            raw = jax.new_ref(raw[...])  # or writing to the copy would write to the original
        if raw.__class__ not in _FLAT:
            _check_depth(type(self), raw)
        if not updates:
            return new_variable(self.__class__, raw, self._metadata, _trace_state.value)
        if "ref" in updates and updates.pop("ref") != _is_ref(raw):
            raw = raw[...] if _is_ref(raw) else jax.new_ref(raw)
        return self.__class__.from_metadata(raw, {**self._metadata, **updates})

    def replace(self, value: Any = MISSING, **updates: Any) -> Self:
        """As `copy`; a Variable given as the value must be of the same kind and lends its raw value.

        Raises:
          MetadataError: the value is a Variable of another kind.
        """
        if isinstance(value, Variable):
            self._check_kind(value, "replace")
            value = value.raw_value
        return self.copy(value, **updates)

    def copy_from(self, other: Variable[T]) -> None:
        """Takes over the raw value and the metadata of a Variable of the same kind.

        Raises:
          MetadataError: the other is of another kind.
          TraceContextError: this Variable belongs to another trace.
        """
        self._check_kind(other, "copy_from")
        self.update_from_state(other)

    def update_from_state(self, state: Variable[T]) -> None:
        """Takes over the raw value and the metadata of a Variable from a State."""
        self.set_raw_value(own_containers(state.raw_value))
        self._change_metadata(state._metadata)

    def to_state(self) -> Self:
        """A copy, as a State holds it."""
        return self.copy()

    def _check_kind(self, other: object, action: str) -> None:
        if other.__class__ is not self.__class__:
            name = errors.type_name(self.__class__)
            problem, expected = "the Variables are of different kinds", errors.with_article(name)
            raise errors.MetadataError(f"{name}.{action}", problem, expected=expected, got=errors.describe(other))

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        value = value_of(self)
        made = new_variable(self.__class__, value, self._metadata, _trace_state.value)
        memo[id(self)] = made
        try:
            _set_raw(made, copy.deepcopy(value, memo))
        except RuntimeError:
            check_alive(place_of(self), value)
            raise
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        value = pickled(self, Pickled)
        if value.__class__ is not Pickled:
            check_alive(place_of(self), value)
        return _unpickle, (self.__class__, value, self._metadata)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return objects.treescope_repr(self, path, subtree_renderer)

    def __repr__(self) -> str:
        if type(self._raw) is EndedTrace:
            return repr(self._raw)
        fields = [("value", self._raw), *self._metadata.items()]
        indent = {name: "\n" + " " * (len(name) + 3) for name, _ in fields}
        lines = [f"  {name}={objects.value_text(value)}".replace("\n", indent[name]) for name, value in fields]
        return f"{errors.type_name(type(self))}({arrays.size_comment(self._raw)}\n" + ",\n".join(lines) + "\n)"

    @property
    def type(self) -> _Type[Self]:
        """The kind of the Variable."""
        return self.__class__

    var_type = type  # noqa: A003  # as its other name


_SLOTS: Final = frozenset(Variable.__slots__)
_set_raw: Final = Variable.__dict__["_raw"].__set__
_set_metadata: Final = Variable.__dict__["_metadata"].__set__
_set_trace: Final = Variable.__dict__["_trace"].__set__

run_all: Final[Callable[[Iterator[Any]], None]] = deque[Any](maxlen=0).extend
"""Runs an iterator to its end without a frame of Python for each step."""

_read_raw: Final[Callable[[Any], Any]] = attrgetter("_raw")


def raw_values(variables: Sequence[Any]) -> list[Any]:
    """The raw value of each Variable; none of them is None."""
    if uncaptured_reads.is_watching:
        here = _trace_state.value
        for variable in variables:
            if variable._trace is not here:
                uncaptured_reads.warn_if_uncaptured(variable)
    return list(map(_read_raw, variables))


def set_raw(variable: Variable[Any], value: Any) -> None:
    """Writes a raw value past hooks and checks."""
    epoch.kept = None
    _set_raw(variable, value)
    epoch.kept = {}


def set_all_raw(variables: Collection[Variable[Any]], values: Sequence[Any]) -> None:
    """Writes raw values past hooks and checks, without a frame of Python for each."""
    old = list(map(_read_raw, variables))  # which die when all are written: what dies may run code of users
    write_all_raw(variables, values)
    del old


def write_all_raw(
    variables: Collection[Variable[Any]], values: Sequence[Any], kept: dict[int, tuple[Any, ...]] | None = None
) -> None:
    """As `set_all_raw`, for a caller that holds the old values; `kept` are the values known in the new write epoch."""
    epoch.kept = None
    run_all(map(_set_raw, variables, values))
    epoch.kept = {} if kept is None else kept


_FLAT: Final[set[type]] = set()
"""Classes of values that were found to hold no others, so that each is asked once."""


def _check_depth(cls: type[Variable[Any]], value: Any) -> None:
    """Refuses containers that are nested too deeply for JAX."""
    if isinstance(value, (list, tuple, dict)):
        check_depth(value, f"{errors.type_name(cls)}.value")
    elif not isinstance(value, (Variable, VariableMetadata)):
        _FLAT.add(value.__class__)


def new_variable(cls: type[V], raw_value: Any, metadata: Metadata, trace_token: Any) -> V:
    """A Variable from its parts: no `__init__`, no hook, no check."""
    variable = _new(cls)
    _set_raw(variable, raw_value)
    _set_metadata(variable, metadata)
    _set_trace(variable, trace_token)
    return variable


def new_variables(
    kinds: Sequence[type], raw_values: Sequence[Any], metadata: Sequence[Any], trace_token: Any
) -> list[Any]:
    """As `new_variable` for each, without a frame of Python for each."""
    made: list[Any] = list(map(_new, kinds))
    run_all(map(_set_raw, made, raw_values))
    run_all(map(_set_metadata, made, metadata))
    run_all(map(_set_trace, made, repeat(trace_token)))
    return made


def end_trace(variable: Variable[Any]) -> None:
    """Makes each use of a Variable raise an error, since the trace that it belongs to is over."""
    ended = EndedTrace(errors.type_name(type(variable)))
    _set_raw(variable, ended)
    _set_trace(variable, ended)


def _refuse(ended: EndedTrace) -> Any:
    raise ended.refusal()


# so that JAX raises the error where it takes a value apart
jax.tree_util.register_pytree_node(EndedTrace, _refuse, lambda _, __: EndedTrace(""))


def change_elsewhere(variable: Any, part: str, method: str, *args: Any, **options: Any) -> None:
    """Lets a view change the object that it shows; raises for other Variables."""
    token = variable._trace
    if not isinstance(token, WritesThrough) or (isinstance(token, RawCopy) and token.trace is not _trace_state.value):
        raise foreign_trace(variable, part)
    variable._trace.write(variable, method, *args, **options)


def foreign_trace(variable: Any, part: str, where: str | None = None) -> errors.DeclaxError:
    """The error of a change that comes from another trace, or is of a Variable that is read only."""
    name = errors.type_name(type(variable))
    if isinstance(variable._trace, ReadOnly) and not isinstance(variable._trace, RawCopy):
        return variable._trace.refusal(where or name)
    return errors.TraceContextError(
        where or name,
        f"the {part} of {errors.with_article(name)} was changed from another trace level than its own",
        got=f"{errors.with_article(name)} that holds {errors.describe(variable.raw_value)}",
        why="the change would happen once, while JAX traces, and a tracer would leak into the Variable.\n"
        + errors.WHERE_CAPTURES_ARE_FOUND,
        fix=f"pass the {name}, or the model that has it, as an argument, and use a transform of declax, such as dx.jit",
    )


def item_set(whole: Any, index: Any, part: Any) -> Any:
    """A value with one item changed, a Ref in place; not copied at ``...`` where shape and dtype agree."""
    if isinstance(whole, jax.Array):
        is_whole = index is ... and whole.shape == getattr(part, "shape", None)
        is_alike = is_whole and whole.dtype == getattr(part, "dtype", MISSING)  # float64 equals None
        return placement.within(whole, part) if is_alike else whole.at[index].set(part)
    if isinstance(whole, jax.Ref):
        whole[index] = part
        return whole
    if index is ... and not isinstance(whole, np.ndarray):
        return part
    changed = copy.copy(whole)
    changed[index] = part
    return changed


def _is_ref(value: Any) -> bool:
    cls = value.__class__
    if cls in _NEVER_REFS:
        return False
    if cls is EndedTrace:
        raise value.refusal()
    if isinstance(value, Tracer):  # whose class does not show its kind
        return type(value.aval) is not ShapedArray and isinstance(value, jax.Ref)
    if isinstance(value, jax.Ref):
        return True
    if not uncaptured_reads.is_watching:
        _NEVER_REFS.add(cls)
    return False


def _item(value: Any, index: Any) -> Any:
    """A part of a value; at ``...`` the value itself, whether or not it can be indexed."""
    return value if index is ... else value[index]


def _takes_index(method: Callable[..., Any]) -> bool:
    parameters = inspect.signature(method).parameters
    return "index" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _unpickle(cls: type[V], raw_value: Any, metadata: Metadata) -> V:
    """A separate function, since cloudpickle stores a bound class method by the code of the function."""
    return new_variable(cls, raw_value, metadata, _trace_state.value)


@functools.lru_cache(maxsize=256)
def _suggestion(kind: Any, value_type: Any, metadata: Metadata, name: str) -> str | None:
    options = {*metadata, *dir(kind), *dir(value_type)} - {name}  # a kind has `shape`, and its value may have none
    return errors.suggest(name, sorted(option for option in options if not option.startswith("_")))


def _register(cls: type[Variable[Any]]) -> None:
    """Makes a kind a pytree: one child, the raw value; the metadata goes into the treedef."""
    value_key = jax.tree_util.GetAttrKey("value")

    def flatten(variable: Variable[Any]) -> tuple[tuple[Any], Metadata]:
        if uncaptured_reads.is_watching:
            uncaptured_reads.warn_if_uncaptured(variable)
        return (variable._raw,), variable._metadata

    def flatten_with_keys(variable: Variable[Any]) -> tuple[tuple[tuple[Any, Any]], Metadata]:
        return ((value_key, variable.raw_value),), variable._metadata

    def unflatten(metadata: Metadata, children: Any) -> Variable[Any]:
        variable = _new(cls)
        _set_raw(variable, children[0])
        _set_metadata(variable, metadata)
        _set_trace(variable, here if (here := _trace_state.value) is _jax.TOP else token_of_copy(here))
        return variable

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


_register(Variable)

"""Lists and dicts that are Pytrees, and chains of layers.

An element is in the instance's ``__dict__`` under its index or key, so a Layout describes it like any attribute.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic, SupportsIndex, TypeAlias, overload

import jax
from typing_extensions import ParamSpec, TypeVar

from declax import _jax
from declax._classes.pytree import layout_of, set_layout
from declax._fields.specifiers import Status
from declax._module.module import Module
from declax._tree import epoch
from declax._tree.attributes import admit, class_attribute, wrong_trace
from declax._tree.layout import Layout, Name
from declax._typing import BOUND_KEY, CAPTURES_KEY, INTERNAL_KEYS, TRACE_KEY
from declax.errors import FieldError, LayerError, MissingAttributeError, MissingKeyError, describe, suggest, type_name

T = TypeVar("T", default=Any)
P = ParamSpec("P", default=...)
Q = ParamSpec("Q")
R = TypeVar("R", default=Any)
S = TypeVar("S")

_Layer: TypeAlias = Callable[..., Any]


class _Draft:
    """A mutable layout, for admitting many values with one Layout instead of one for each."""

    def __init__(self, statuses: Mapping[Name, Status] | None = None) -> None:
        self.statuses: dict[Name, Status] = dict(statuses or {})

    def with_status(self, name: Name, status: Status) -> _Draft:
        self.statuses[name] = status
        return self


def _admit_all(self: Any, entries: Iterable[tuple[Any, Any]], draft: Any) -> dict[Any, Any]:
    """Admits values; the draft receives their statuses."""
    return {name: admit(self, name, value, draft)[1] for name, value in entries}


class _Elements(Module):
    """Base of List and Dict: elements under the names of a Layout."""

    _pytree__holds_elements: ClassVar[bool] = True

    def _pytree__check_trace(self, name: Name) -> None:
        if self.__dict__.get(TRACE_KEY, _jax.TOP) is not _jax.trace_state.value:
            raise wrong_trace(self, name)

    def _pytree__set_element(self, name: Name, value: Any) -> None:
        attributes: dict[Any, Any] = vars(self)
        self._pytree__check_trace(name)
        layout = layout_of(self)
        _, value, own = admit(self, name, value, layout)
        set_layout(self, own)
        attributes[name] = value
        self._pytree__changed()

    def _pytree__changed(self) -> None:
        if BOUND_KEY in self.__dict__:
            epoch.advance()


class List(_Elements, MutableSequence[T], Generic[T]):
    """A list whose elements are attributes, each with a status: data or static.

    Args:
      elements: the first elements.

    Raises:
      StatusError: an array replaces a static element.

    >>> import declax as dx
    >>> layers = dx.List([dx.Param(1), dx.Param(2)])
    >>> layers.append(dx.Param(3))
    >>> len(layers), layers[-1].value
    (3, 3)
    """

    @overload
    def __init__(self: List[Any], /) -> None: ...
    @overload
    def __init__(self, elements: Iterable[T], /) -> None: ...
    def __init__(self, elements: Iterable[T] = (), /) -> None:
        self.extend(elements)

    @staticmethod
    def _pytree__make_key(name: Name) -> Any:
        return jax.tree_util.SequenceKey(name) if isinstance(name, int) else jax.tree_util.GetAttrKey(name)

    def _pytree__values(self) -> list[T]:
        attributes: dict[Any, Any] = vars(self)
        return [attributes[i] for i in range(len(self))]

    def _pytree__statuses(self) -> list[Any]:
        layout = layout_of(self)
        return list(islice(layout.statuses.values(), layout.length))

    def _pytree__replace(self, values: list[Any], statuses: list[Any]) -> None:
        """Sets all elements, with one Layout; those with the status None are new."""
        self._pytree__check_trace("...")
        draft = _Draft()
        new = _admit_all(self, [(i, values[i]) for i, status in enumerate(statuses) if status is None], draft)
        for index, value in new.items():
            values[index], statuses[index] = value, draft.statuses[index]
        attributes: dict[Any, Any] = vars(self)
        old = layout_of(self)
        for index in range(len(statuses), old.length):
            del attributes[index]
        attributes.update(enumerate(values))
        set_layout(self, old.with_elements(statuses))
        self._pytree__changed()

    def _pytree__delete(self, indices: Collection[int]) -> None:
        """Removes the elements at some indices; the others keep their statuses."""
        gone = {range(len(self))[index] for index in indices}
        kept = [index for index in range(len(self)) if index not in gone]
        values, statuses = self._pytree__values(), self._pytree__statuses()
        self._pytree__replace([values[index] for index in kept], [statuses[index] for index in kept])

    def __len__(self) -> int:
        return layout_of(self).length

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | list[T]:
        """The element at an index, or a list of the elements of a slice."""
        if isinstance(index, slice):
            return self._pytree__values()[index]
        attributes: dict[Any, Any] = vars(self)
        element: T = attributes[range(len(self))[index]]
        return element

    def __setitem__(self, index: SupportsIndex | slice, value: Any) -> None:
        """Sets an element, which keeps its status, or the elements of a slice."""
        if not isinstance(index, slice):
            self._pytree__set_element(range(len(self))[index], value)
            return
        values, statuses, new = self._pytree__values(), self._pytree__statuses(), list(value)
        values[index], statuses[index] = new, [None] * len(new)
        self._pytree__replace(values, statuses)

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        """Removes an element or the elements of a slice."""
        values, statuses = self._pytree__values(), self._pytree__statuses()
        del values[index], statuses[index]
        self._pytree__replace(values, statuses)

    def insert(self, index: SupportsIndex, value: T) -> None:
        """Inserts an element before an index."""
        self[index:index] = [value]

    def append(self, value: T) -> None:
        """Appends an element."""
        self._pytree__set_element(len(self), value)

    def extend(self, values: Iterable[T]) -> None:
        """Appends elements."""
        added = list(values)
        self._pytree__replace([*self._pytree__values(), *added], [*self._pytree__statuses(), *[None] * len(added)])

    def reverse(self) -> None:
        """Reverses the order; each element keeps its status."""
        self._pytree__replace(self._pytree__values()[::-1], self._pytree__statuses()[::-1])

    def __iter__(self) -> Iterator[T]:
        return iter(self._pytree__values())

    def _pytree__fields_for_repr(self) -> Iterable[tuple[Any, object]]:
        return enumerate(self._pytree__values())


_HIDDEN = INTERNAL_KEYS | {CAPTURES_KEY}
"""The attributes of a Dict that are not its entries."""


class Dict(_Elements, MutableMapping[str, T], Generic[T]):
    """A dict whose values are attributes, read by key or by attribute.

    Args:
      entries: a mapping or pairs.
      **named: further entries.

    Raises:
      FieldError: a key is not a string, or is the name of a method.

    >>> import declax as dx
    >>> parts = dx.Dict(left=dx.Param(1))
    >>> parts["right"] = dx.Param(2)
    >>> parts.right.value, list(parts)
    (2, ['left', 'right'])
    """

    @staticmethod
    def _pytree__make_key(name: str) -> Any:
        return jax.tree_util.DictKey(name)

    @overload
    def __init__(self: Dict[Any], /) -> None: ...
    @overload
    def __init__(self, entries: Mapping[str, T] | Iterable[tuple[str, T]] = (), /, **named: T) -> None: ...
    def __init__(self, entries: Mapping[str, T] | Iterable[tuple[str, T]] = (), /, **named: T) -> None:
        self._pytree__add({**dict(entries), **named})

    def _pytree__add(self, entries: Mapping[str, Any]) -> None:
        """Sets entries with one Layout; on an error, none."""
        if not entries:
            return
        for key in entries:
            self._check_key(key)
        self._pytree__check_trace(next(iter(entries)))
        draft = _Draft(layout_of(self).statuses)
        values = _admit_all(self, ((str.__str__(key), value) for key, value in entries.items()), draft)
        set_layout(self, Layout.of(type(self), draft.statuses))
        vars(self).update(values)
        self._pytree__changed()

    def __getitem__(self, key: str) -> T:
        if key in _HIDDEN or key not in self.__dict__:
            hint = suggest(str(key), self)
            where, text = f"{type_name(type(self))}[{key!r}]", "the Dict does not have this key"
            raise MissingKeyError(where, text + (f"; {hint}" if hint else ""))
        value: T = self.__dict__[key]
        return value

    def __setitem__(self, key: str, value: T) -> None:
        self._check_key(key)
        self._pytree__set_element(str.__str__(key), value)

    def _check_key(self, key: str) -> None:
        if not isinstance(key, str):
            raise FieldError("Dict", "a key is not a string", got=describe(key), fix="dx.data({...}) holds any dict")
        found = class_attribute(type(self), key)
        if key.startswith(("_pytree__", "__")) or callable(found) or hasattr(found, "__get__"):
            raise FieldError(
                f"Dict[{key!r}]",
                f"the key {key!r} would hide a method of Dict",
                fix=f"dx.data({{{key!r}: ...}}) holds any dict",
            )

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getattr__(self, name: str) -> T:
        # only reached where no attribute is found; says so to type checkers
        hint = suggest(name, self)
        raise MissingAttributeError(
            f"{type_name(type(self))}.{name}", f"the Dict has no entry {name!r}" + (f"; {hint}" if hint else "")
        )

    def update(self, entries: Any = (), /, **named: T) -> None:
        """Sets several entries; on an error, none."""
        self._pytree__add({**dict(entries), **named})

    def __delitem__(self, key: str) -> None:
        self[key]  # raises if it is missing
        delattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.__dict__ if name not in _HIDDEN])

    def __len__(self) -> int:
        return len(layout_of(self).statuses) - (CAPTURES_KEY in self.__dict__)

    def _pytree__fields_for_repr(self) -> Iterable[tuple[Any, object]]:
        return self.items()

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...
    else:
        __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Sequential(Module, Generic[P, R]):
    """Calls layers one after the other.

    A tuple that a layer returns becomes the arguments of the next, a dict its keyword arguments.

    Args:
      *layers: modules and functions, or one list of them.

    >>> import declax as dx
    >>> double = dx.Sequential(lambda x: x + 1, lambda x: 2 * x)
    >>> double(3), len(double)
    (8, 2)
    """

    @overload
    def __init__(self: Sequential[Q, S], layer: Callable[Q, S], /) -> None: ...
    @overload
    def __init__(
        self: Sequential[Q, S], *layers: *tuple[Callable[Q, Any], *tuple[_Layer, ...], Callable[..., S]]
    ) -> None: ...
    @overload
    def __init__(self: Sequential[Q, Any], layer: Callable[Q, Any], /, *layers: _Layer) -> None: ...
    @overload
    def __init__(self: Sequential[..., Any], layers: Iterable[_Layer] = (), /) -> None: ...
    def __init__(self, *layers: Any) -> None:  # type: ignore[misc]  # mypy rejects any `*layers` for `*tuple[...]`
        if len(layers) == 1 and isinstance(layers[0], (list, tuple, List)):
            layers = tuple(layers[0])
        self.layers: List[Any] = List(layers)

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: Any, rngs: Any, **kwargs: Any) -> R: ...
    def __call__(self, *args: Any, rngs: Any = None, **kwargs: Any) -> Any:
        """Applies the layers in order.

        Args:
          *args, **kwargs: the arguments of the first layer.
          rngs: passed to each layer that has a parameter of this name.

        Returns:
          The result of the last layer; without layers, the arguments, of which a single one stands alone.
        """
        if not len(self.layers):
            return (args[0] if len(args) == 1 else args) if args else kwargs or None
        output: Any = None
        for index, layer in enumerate(self.layers):
            if index:
                args, kwargs = _as_arguments(output)
            if layer is None:
                raise _none_among_layers(index)
            extra = {"rngs": rngs} if rngs is not None and _takes_rngs(layer) else {}
            output = layer(*args, **kwargs, **extra)
        return output

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Any:
        return self.layers[index]

    def __setitem__(self, index: int, layer: Any) -> None:
        self.layers[index] = layer

    def __bool__(self) -> bool:
        return True


Sequence = Sequential


def _none_among_layers(index: int) -> LayerError:
    """The error for None in place of a layer, as `dx.when` without another part gives it."""
    return LayerError(
        f"Sequential.layers[{index}]",
        "this layer is None, and is called",
        fix="dx.when(flag, layer, dx.identity)        # in place of dx.when(flag, layer)",
    )


def _as_arguments(output: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(output, tuple):
        return output, {}
    if isinstance(output, dict):
        return (), output
    return (output,), {}


def _takes_rngs(layer: Any) -> bool:
    try:
        return "rngs" in inspect.signature(layer).parameters
    except (TypeError, ValueError):
        return False

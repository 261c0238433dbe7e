"""Lists and dicts that are Pytrees, and a chain of layers.

Vocabulary
----------
element: an entry of a List or Dict; it sits in the instance's ``__dict__``
         under its index or key, so that a Layout describes it like any
         attribute, each element with a status of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, ClassVar, Generic, SupportsIndex, TypeVar, overload

import jax

from declax import _epoch, _jax
from declax._layout import BOUND_KEY, INTERNAL_KEYS, LAYOUT_KEY, TRACE_KEY, Layout, Name
from declax._module import Module
from declax._pytree import admit, check_pytree, layout_of, wrong_trace
from declax.errors import FieldError, StatusError, describe

T = TypeVar("T")


class _Elements(Module):
    """What List and Dict share: elements under the names of a Layout."""

    _pytree__holds_elements: ClassVar[bool] = True

    def _pytree__check_trace(self, name: Name) -> None:
        if self.__dict__.get(TRACE_KEY, _jax.TOP) is not _jax.trace_state.value:
            raise wrong_trace(self, name)

    def _pytree__set_element(self, name: Name, value: Any) -> None:
        self._pytree__check_trace(name)
        layout = layout_of(self)
        _, value, own = admit(self, name, value, layout)
        self.__dict__[LAYOUT_KEY] = own
        self.__dict__[name] = value
        self._pytree__changed()

    def _pytree__replace_elements(self, elements: Mapping[Name, Any]) -> None:
        """Sets all elements at once; statuses of kept values stay."""
        self._pytree__check_trace("[...]")
        kept = {id(self.__dict__[n]): s for n, s in layout_of(self).statuses.items()}
        layout = type(self)._pytree__layout
        values, statuses = {}, {}
        for name, value in elements.items():
            if id(value) in kept:
                values[name], statuses[name] = value, kept[id(value)]
            else:
                _, values[name], own = admit(self, name, value, layout)
                statuses[name] = own.statuses[name]
        attributes = self.__dict__
        for name in [n for n in attributes if n not in INTERNAL_KEYS]:
            del attributes[name]
        attributes.update(values)  # type: ignore[arg-type]  # a List's elements have ints as names
        attributes[LAYOUT_KEY] = Layout.of(type(self), statuses)
        self._pytree__changed()

    def _pytree__changed(self) -> None:
        if BOUND_KEY in self.__dict__:
            _epoch.advance()

    def _pytree__finish(self) -> None:
        check_pytree(self)


class List(_Elements, MutableSequence[T], Generic[T]):
    """A list whose elements are attributes: data, or static, each by itself.

    Args:
      elements: the first elements.

    Raises:
      StatusError: for an element that holds data but is none by itself.

    >>> from declax._variables import Param
    >>> layers = List([Param(1), Param(2)])
    >>> layers.append(Param(3))
    >>> len(layers), layers[-1].value
    (3, 3)
    """

    _pytree__make_key: ClassVar[Callable[[int], Any]] = jax.tree_util.SequenceKey

    def __init__(self, elements: Iterable[T] = (), /) -> None:
        self._pytree__replace_elements(dict(enumerate(elements)))

    def _pytree__values(self) -> list[T]:
        attributes: dict[Any, Any] = self.__dict__
        return [attributes[i] for i in range(len(self))]

    def __len__(self) -> int:
        return len(layout_of(self).statuses)

    def _pytree__index(self, index: SupportsIndex) -> int:
        position, length = index.__index__(), len(self)
        if not -length <= position < length:
            raise IndexError(f"List index {position} is out of range for {length} elements")
        return position % length

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> List[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | List[T]:
        """The element at an index, or a new List of the elements of a slice."""
        if isinstance(index, slice):
            return List(self._pytree__values()[index])
        attributes: dict[Any, Any] = self.__dict__
        element: T = attributes[self._pytree__index(index)]
        return element

    def __setitem__(self, index: SupportsIndex | slice, value: Any) -> None:
        """Sets an element, whose status stays, or the elements of a slice."""
        if not isinstance(index, slice):
            self._pytree__set_element(self._pytree__index(index), value)
            return
        values = self._pytree__values()
        values[index] = value
        self._pytree__replace_elements(dict(enumerate(values)))

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        """Removes an element or the elements of a slice."""
        values = self._pytree__values()
        del values[index if isinstance(index, slice) else self._pytree__index(index)]
        self._pytree__replace_elements(dict(enumerate(values)))

    def insert(self, index: SupportsIndex, value: T) -> None:
        """Puts an element before an index."""
        values = self._pytree__values()
        values.insert(index, value)
        self._pytree__replace_elements(dict(enumerate(values)))

    def append(self, value: T) -> None:
        """Puts an element at the end."""
        self._pytree__set_element(len(self), value)

    def __iter__(self) -> Iterator[T]:
        return iter(self._pytree__values())

    def __add__(self, other: Iterable[T]) -> List[T]:
        return List([*self, *other])

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def _pytree__fields_for_repr(self) -> Iterable[tuple[Any, object]]:
        return enumerate(self._pytree__values())


class Dict(_Elements, MutableMapping[str, T], Generic[T]):
    """A dict whose values are attributes, read by key or by attribute.

    Args:
      entries: a mapping or pairs.
      **named: further entries.

    Raises:
      FieldError: for a key that is no string, or the name of a method.

    >>> from declax._variables import Param
    >>> parts = Dict(left=Param(1))
    >>> parts["right"] = Param(2)
    >>> parts.right.value, list(parts)
    (2, ['left', 'right'])
    """

    _pytree__make_key: ClassVar[Callable[[str], Any]] = jax.tree_util.DictKey

    def __init__(self, entries: Mapping[str, T] | Iterable[tuple[str, T]] = (), /, **named: T) -> None:
        for key, value in {**dict(entries), **named}.items():
            self[key] = value

    def __getitem__(self, key: str) -> T:
        if key in INTERNAL_KEYS:
            raise KeyError(key)
        value: T = self.__dict__[key]
        return value

    def __setitem__(self, key: str, value: T) -> None:
        if not isinstance(key, str):
            raise FieldError("Dict", "a key is no string", got=describe(key), fix="dx.data({...}) holds any dict")
        if callable(getattr(type(self), key, None)):
            raise FieldError(
                f"Dict[{key!r}]",
                f"the key {key!r} would hide a method of Dict",
                fix=f"dx.data({{{key!r}: ...}}) holds any dict",
            )
        self._pytree__set_element(key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getattr__(self, name: str) -> T:
        # only reached where no attribute is found; says so to type checkers
        raise AttributeError(f"{type(self).__name__!r} has no entry {name!r}")

    def __delitem__(self, key: str) -> None:
        if key in INTERNAL_KEYS or key not in self.__dict__:
            raise KeyError(key)
        delattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (name for name in tuple(self.__dict__) if name not in INTERNAL_KEYS)

    def __len__(self) -> int:
        return len(layout_of(self).statuses)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class Sequential(Module):
    """Calls layers one after the other.

    A tuple that a layer returns becomes the arguments of the next, a dict its
    keyword arguments. A layer that takes ``rngs`` gets them where the call
    does.

    Args:
      *layers: modules and functions, or one list of them.

    Raises:
      StatusError: for a layer that cannot be called.

    >>> double = Sequential(lambda x: x + 1, lambda x: 2 * x)
    >>> double(3), len(double)
    (8, 2)
    """

    def __init__(self, *layers: Any) -> None:
        if len(layers) == 1 and isinstance(layers[0], (list, tuple, List)):
            layers = tuple(layers[0])
        for index, layer in enumerate(layers):
            if not callable(layer):
                raise StatusError(f"Sequential.layers[{index}]", "a layer cannot be called", got=describe(layer))
        self.layers: List[Any] = List(layers)

    def __call__(self, *args: Any, rngs: Any = None, **kwargs: Any) -> Any:
        """Applies the layers in order.

        Args:
          *args, **kwargs: the arguments of the first layer.
          rngs: given to each layer that has a parameter of this name.

        Returns:
          What the last layer returns.
        """
        if not len(self.layers):
            return args[0] if len(args) == 1 else args
        output: Any = None
        for index, layer in enumerate(self.layers):
            if index:
                args, kwargs = _as_arguments(output)
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

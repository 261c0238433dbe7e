"""One object for each content: `Interned` finds the object that was made of equal content before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Self, TypeVar
from weakref import WeakKeyDictionary, ref

V = TypeVar("V")


class Shared:
    """An immutable object: its copies are the object itself."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self


class _Content:
    """What an object was made of. The object holds it, so that the table can drop both."""

    __slots__ = ("__weakref__", "_hash", "_value")

    def __init__(self, value: object, hashed: int) -> None:
        self._value = value
        self._hash = hashed

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self._value == other._value


class Interned(Generic[V]):
    """Objects by content. The table holds neither, since content may lead to its object, as a model's method does.

    The class of the objects has the attributes ``__weakref__`` and ``_content``.
    """

    def __init__(self) -> None:
        self._objects: WeakKeyDictionary[_Content, ref[V]] = WeakKeyDictionary()
        self._lock = threading.RLock()  # again by a finaliser that runs while it is held

    def find(self, value: object, hashed: int | None = None) -> V | None:
        """The object of equal content, if there is one; `hashed` is the hash of a content without a hash."""
        known = self._objects.get(_Content(value, hash(value) if hashed is None else hashed))
        return None if known is None else known()

    def find_or_make(self, value: object, make: Callable[[], V], hashed: int | None = None) -> V:
        """The object of equal content, or a new one."""
        content = _Content(value, hash(value) if hashed is None else hashed)
        with self._lock:
            known = self._objects.get(content)
            found = None if known is None else known()
            if found is None:
                found = make()
                if known is not None:  # of an object that is about to be freed
                    self._objects.pop(content, None)
                found._content = content  # type: ignore[attr-defined]  # see above
                self._objects[content] = ref(found)
        return found

    def __len__(self) -> int:
        return len(self._objects)

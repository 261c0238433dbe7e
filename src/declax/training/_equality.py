"""Equality by structure for static values made of closures.

`optax.adam(1e-3)` gives a tuple of fresh functions on every call, and Python
compares functions by identity. Two optimizers made alike would then be two
different static values, and every jitted step would be traced once for each.

Vocabulary
----------
parts:       what a value is made of, one level deep: a hashable *header*, and
             *children*. A function has its code and globals as header; its
             defaults and closure cells are children.
atom:        a value without children; its header alone says what it is.
snapshot:    the parts of all that a value reaches, children by number. Taken
             once: some of optax's schedules assign to their own cells when they
             are called, which must not make a used one differ from a fresh one.
structural:  a wrapper that compares and hashes a value by its snapshot.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax._pytree import Pytree
from declax._variables import Variable
from declax.training import _pickling

T_co = TypeVar("T_co", covariant=True)

_HASHED_NODES: Final = 512
_EMPTY_CELL: Final = object()


Snapshot = tuple[tuple[Hashable, tuple[int, ...]], ...]
"""Header and numbers of the children of each value; the first is the root."""


class Parts(NamedTuple):
    """One level of a value: what it is, and what it holds."""

    header: Hashable
    children: tuple[Any, ...] = ()


class Same:
    """Stands for an object that equals only itself, and keeps it alive."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Structural(Generic[T_co]):
    """Holds a value; compares by what the value was made of, not by identity.

    Functions are equal where their code, globals, defaults and closure cells
    are; containers and partials where their elements are; numbers where type
    and value are; arrays where type, dtype, shape and bytes are. Objects that
    define `==` and `hash` decide for themselves, all others are equal only to
    themselves. So unequal is always a safe answer, and equal means that both
    values were made to do the same when called.

    Args:
      value: what to hold. It is taken as immutable: what happens inside of it
        later changes neither hash nor equality.

    >>> import optax
    >>> Structural(optax.adam(1e-3)) == Structural(optax.adam(1e-3))
    True
    >>> Structural(optax.adam(1e-3)) == Structural(optax.adam(3e-4))
    False
    """

    __slots__ = ("__weakref__", "_hash", "_snapshot", "value")

    value: T_co

    def __init__(self, value: T_co) -> None:
        self.value = value
        self._snapshot = snapshot_of(value)
        self._hash = hash_snapshot(self._snapshot)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Structural):
            return NotImplemented
        return self._hash == other._hash and equal_snapshots(self._snapshot, other._snapshot)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Structural({self.value!r})"

    def __copy__(self) -> Structural[T_co]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Structural[T_co]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (_pickling.dumps(self.value),)


def _restored(pickled: bytes) -> Structural[Any]:
    # Hashes of strings differ between processes, so the hash is made anew.
    return Structural(_pickling.loads(pickled))


def snapshot_of(value: object) -> Snapshot:
    """The parts of a value and of all that it reaches; the value itself comes first.

    >>> [len(children) for _, children in snapshot_of((1, (2, 3)))]
    [2, 0, 2, 0, 0]
    """
    reached: list[object] = [value]  # also keeps alive what the numbers below stand for
    numbers = {id(value): 0}
    nodes: list[tuple[Hashable, tuple[int, ...]]] = []
    while len(nodes) < len(reached):
        header, children = parts_of(reached[len(nodes)])
        for child in children:
            if numbers.setdefault(id(child), len(reached)) == len(reached):
                reached.append(child)
        nodes.append((header, tuple(numbers[id(child)] for child in children)))
    return tuple(nodes)


def equal_snapshots(left: Snapshot, right: Snapshot) -> bool:
    """Whether two snapshots unfold alike; it does not matter what is shared inside of each.

    A pair that is met again counts as equal, so this ends on cycles.

    >>> equal_snapshots(snapshot_of([1]), snapshot_of((1,)))
    False
    """
    pending = [(0, 0)]
    assumed = {(0, 0)}
    while pending:
        one, two = pending.pop()
        (header, children), (other_header, others) = left[one], right[two]
        if not _equal_headers(header, other_header) or len(children) != len(others):
            return False
        new = set(zip(children, others, strict=True)) - assumed
        assumed |= new
        pending.extend(new)
    return True


def hash_snapshot(snapshot: Snapshot) -> int:
    """A hash that is equal for equal snapshots.

    It reads the first few hundred nodes, level by level. Two equal snapshots
    unfold alike, so the bound keeps the promise, and it ends on cycles.

    >>> hash_snapshot(snapshot_of((1, [2]))) == hash_snapshot(snapshot_of((1, [2])))
    True
    """
    seen: list[int] = []
    pending: deque[int] = deque((0,))
    while pending and len(seen) < _HASHED_NODES:
        header, children = snapshot[pending.popleft()]
        seen.append(hash(header))
        pending.extend(children)
    return hash(tuple(seen))


def parts_of(value: object) -> Parts:
    """The parts of one value.

    >>> parts_of((1, 2)).children
    (1, 2)
    """
    kind = type(value)
    if isinstance(value, types.FunctionType):
        return _parts_of_function(value)
    if isinstance(value, types.MethodType):
        return Parts(types.MethodType, (value.__func__, value.__self__))
    if isinstance(value, functools.partial):
        return Parts(("partial", kind), (value.func, value.args, value.keywords, vars(value)))
    if kind in (list, dict) or isinstance(value, tuple):
        return _parts_of_container(value)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return _parts_of_array(value)
    if isinstance(value, (Variable, Pytree)):
        return _identity(value)  # mutable, so that equal now is not equal later
    if isinstance(value, (float, complex)):
        return Parts((kind, repr(value)))  # tells -0.0 from 0.0, and nan equals itself
    if kind in (set, frozenset):
        return Parts((kind, frozenset((type(x), x) for x in _as_iterable(value))))
    if _is_optax_object(kind):
        return Parts(("object", kind), (vars(value),))
    if _compares_by_value(kind):
        return _parts_of_comparable(value)
    return _identity(value)


def _parts_of_function(function: types.FunctionType) -> Parts:
    header = ("function", function.__code__, Same(function.__globals__))
    cells = tuple(_contents(cell) for cell in function.__closure__ or ())
    return Parts(header, (function.__defaults__, function.__kwdefaults__, cells, vars(function)))


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that its function has not assigned yet
        return _EMPTY_CELL


def _parts_of_container(value: Any) -> Parts:
    if isinstance(value, dict):
        return Parts((type(value), len(value)), (*value.keys(), *value.values()))
    return Parts((type(value), len(value)), tuple(value))


def _parts_of_array(value: Any) -> Parts:
    if isinstance(value, Tracer):
        return _identity(value)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return Parts(("key", str(value.dtype)), (np.asarray(jax.random.key_data(value)),))
    if value.dtype.hasobject:
        return _identity(value)
    weak = getattr(value, "weak_type", False)
    header = (type(value), value.shape, str(value.dtype), weak, getattr(value, "sharding", None))
    return Parts((header, np.asarray(value).tobytes()))


def _parts_of_comparable(value: object) -> Parts:
    try:
        hash(value)
    except TypeError:  # a frozen outside with a list inside
        return _identity(value)
    return Parts((type(value), value))


def _identity(value: object) -> Parts:
    return Parts(Same(value))


def _compares_by_value(kind: Any) -> bool:
    return kind.__eq__ is not object.__eq__ and kind.__hash__ is not None


def _is_optax_object(kind: Any) -> bool:
    # Such as `optax.MultiSteps`: objects that nobody changes once they are made, without an `==`.
    return kind.__module__.partition(".")[0] == "optax" and kind.__eq__ is object.__eq__ and hasattr(kind, "init")


def _as_iterable(value: Any) -> Iterable[Any]:
    return value  # type: ignore[no-any-return]  # the caller has looked at the type


def _equal_headers(one: Hashable, two: Hashable) -> bool:
    try:
        return bool(one == two)
    except Exception:  # noqa: BLE001  # a user's `==` may raise anything; unequal is the safe answer
        return False

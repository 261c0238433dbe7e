"""Annotated methods, while a model is evaluated: names are bound, shapes compared, conditions decided.

The methods are wrapped for the time of one evaluation, so that calls inside of `jit`, `scan`, `vmap` and `grad` are
seen as the user's annotations see them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from declax._jax import is_symbolic
from declax._text.dimensions import FIELD, Axis, Condition, Size, Symbol, evaluate, shape_text, symbols_of
from declax.shapes.annotations import (
    KEY,
    Annotated,
    ArrayOf,
    EntriesOf,
    ItemsOf,
    OneOf,
    OptionalOf,
    Pattern,
    annotated_methods,
    plain_name,
    title_of,
)
from declax.shapes.places import Place, place_here, place_of_annotation, place_of_trace
from declax.shapes.problems import Kind, Problem, candidates_of
from declax.shapes.symbols import Dimension, decided, differ


class Mismatch(NamedTuple):
    """An array whose shape is not that of its annotation."""

    path: str
    expected: tuple[Dimension | str, ...]
    got: tuple[Dimension, ...]
    value: Any


class Bindings:
    """The sizes of the names of one call."""

    def __init__(
        self, field: Callable[[str], Dimension | None], known: Mapping[str, Dimension] = {}
    ) -> None:  # not changed
        self._field = field
        self.sizes: dict[str, Dimension] = dict(known)
        self._rests: dict[str, tuple[Dimension, ...]] = {}

    def compare(self, pairs: Sequence[tuple[str, Pattern, Any]]) -> list[Mismatch]:
        """Binds the names in patterns to the shapes of values, and compares all other sizes."""
        arrays = [found for path, pattern, value in pairs for found in _arrays(path, pattern, value)]
        for _, pattern, value in arrays:
            self._bind(pattern.axes, tuple(value.shape))
        found = (self._mismatch(path, pattern, value) for path, pattern, value in arrays)
        return [mismatch for mismatch in found if mismatch is not None]

    def value(self, size: Size) -> Dimension | None:
        """The size, if all names in it are bound."""
        known = dict(self.sizes)
        for key in symbols_of(size):
            if key.startswith(FIELD):
                field = self._field(key.removeprefix(FIELD))
                if field is not None:
                    known[key] = field
        try:
            return evaluate(size, known)
        except (KeyError, ZeroDivisionError):
            return None

    def decided(self, condition: Condition) -> bool | None:
        """Whether a condition holds; True if a name in it is not bound, None if that is not decided."""
        left, right = self.value(condition.left), self.value(condition.right)
        if left is None or right is None:
            return True
        return decided(Condition(_LEFT, condition.sign, _RIGHT, condition.text), {"left": left, "right": right})

    def _bind(self, axes: Sequence[Axis], shape: tuple[Dimension, ...]) -> None:
        for axis, size in _aligned(axes, shape) or ():
            name = plain_name(axis.size)
            if axis.rest is not None:
                if axis.rest and not axis.is_broadcast:
                    self._rests.setdefault(axis.rest, size)
            elif name is not None and not (axis.is_broadcast and _is_one(size)):
                self.sizes.setdefault(name, size)

    def _mismatch(self, path: str, pattern: ArrayOf, value: Any) -> Mismatch | None:
        shape = tuple(value.shape)
        pairs = _aligned(pattern.axes, shape)
        is_wrong = pairs is None
        for axis, size in pairs or ():
            if axis.rest is not None:
                rest = self._rests.get(axis.rest)
                is_wrong |= rest is not None and not _fits(rest, size)
            elif axis.size is not None and not (axis.is_broadcast and _is_one(size)):
                wanted = self.value(axis.size)
                is_wrong |= wanted is not None and differ(wanted, size) is not False
        if not is_wrong:
            return None
        expected = [size for axis in pattern.axes for size in self._expected(axis)]
        return Mismatch(path, tuple(expected), shape, value)

    def _expected(self, axis: Axis) -> Iterator[Dimension | str]:
        if axis.rest is not None:
            yield from self._rests.get(axis.rest, (f"*{axis.rest}" if axis.rest else "...",))
        elif axis.size is None:
            yield "_"
        else:
            value = self.value(axis.size)
            yield ("?" if plain_name(axis.size) is None else str(plain_name(axis.size))) if value is None else value


_LEFT, _RIGHT = Symbol("left"), Symbol("right")


def _is_one(size: Dimension) -> bool:
    return not is_symbolic(size) and bool(size == 1)


def _fits(wanted: tuple[Dimension, ...], given: Any) -> bool:
    pairs = zip(wanted, given, strict=False)
    return len(wanted) == len(given) and all(differ(one, other) is False for one, other in pairs)


def _aligned(axes: Sequence[Axis], shape: tuple[Dimension, ...]) -> list[tuple[Axis, Any]] | None:
    """Each axis with its size, and that of any number of axes with a tuple; None if the numbers of axes differ."""
    at = next((index for index, axis in enumerate(axes) if axis.rest is not None), None)
    if at is None:
        return list(zip(axes, shape, strict=True)) if len(axes) == len(shape) else None
    count = len(shape) - len(axes) + 1
    if count < 0:
        return None
    before, rest, after = shape[:at], shape[at : at + count], shape[at + count :]
    return [*zip(axes, before, strict=False), (axes[at], rest), *zip(axes[at + 1 :], after, strict=True)]


def _arrays(path: str, pattern: Pattern, value: Any) -> Iterator[tuple[str, ArrayOf, Any]]:
    """The arrays of a value, each with what its annotation says."""
    if isinstance(pattern, OptionalOf):
        if value is not None:
            yield from _arrays(path, pattern.inner, value)
    elif isinstance(pattern, OneOf):
        fitting = (found for found in pattern.alternatives if _could_be(found, value))
        yield from _arrays(path, next(fitting, None), value)
    elif isinstance(pattern, ArrayOf):
        if pattern.dtype == KEY and not _is_key(value):
            return  # an array of integers, which is a key too
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            yield path, pattern, value
        elif isinstance(value, (bool, int, float)):
            yield path, pattern, _SCALAR
    elif isinstance(pattern, ItemsOf) and isinstance(value, (tuple, list)):
        items = pattern.items * len(value) if pattern.is_repeated else pattern.items
        for index, (inner, item) in enumerate(zip(items, value, strict=False)):
            yield from _arrays(f"{path}[{index}]", inner, item)
    elif isinstance(pattern, EntriesOf) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays(f"{path}[{key!r}]", pattern.entries.get(key, pattern.entries.get("")), item)
    elif isinstance(pattern, EntriesOf) and not isinstance(value, Mapping):
        for name, inner in pattern.entries.items():
            if hasattr(value, name):
                yield from _arrays(f"{path}.{name}", inner, getattr(value, name))


def _could_be(pattern: Pattern, value: Any) -> bool:
    """Whether a value could be that of one alternative: by its number of axes, if it is an array."""
    if isinstance(pattern, ArrayOf):
        return hasattr(value, "shape") and _aligned(pattern.axes, tuple(value.shape)) is not None
    return not hasattr(value, "shape")


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


class _Scalar(NamedTuple):
    shape: tuple[int, ...] = ()


_SCALAR: Final = _Scalar()


# --- methods --------------------------------------------------------------------------

_lock: Final = threading.RLock()
"""Held while methods are wrapped, which other threads pass through."""


class Watch:
    """Wraps annotated methods, and collects what is wrong with their calls.

    Attributes:
      problems: in the order in which they are found.
    """

    def __init__(self, written: Callable[[Dimension], Size], conditions: Callable[[type], Sequence[Condition]]) -> None:
        """Watches calls.

        Args:
          written: a size, in the names of the user.
          conditions: those of the methods of a class.
        """
        self.problems: list[Problem] = []
        self._written = written
        self._conditions = conditions

    @contextmanager
    def over(self, classes: Iterable[type]) -> Generator[None, None, None]:
        """While the methods of some classes are wrapped."""
        with _lock:
            kept: list[tuple[type, str, Any]] = []
            try:
                for cls in dict.fromkeys(classes):
                    for name, found in annotated_methods(cls):
                        kept.append((cls, name, cls.__dict__.get(name, _lock)))
                        setattr(cls, name, self._wrapped(cls, name, found))
                yield
            finally:
                for cls, name, original in reversed(kept):
                    if original is _lock:
                        delattr(cls, name)
                    else:
                        setattr(cls, name, original)

    def _wrapped(self, cls: type, name: str, found: Annotated) -> Callable[..., Any]:
        method: Any = getattr(cls, name)
        thread = threading.get_ident()
        signature = inspect.signature(found.function)

        @functools.wraps(method)
        def call(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if type(self_) is not cls or threading.get_ident() != thread:
                return method(self_, *args, **kwargs)
            try:
                arguments = signature.bind(self_, *args, **kwargs).arguments
            except TypeError:
                return method(self_, *args, **kwargs)
            bindings = Bindings(functools.partial(size_of_field, self_))
            title = title_of(cls, name)
            pairs = [(p.name, p.pattern, arguments.get(p.name)) for p in found.parameters.values()]
            caller = place_here(sys._getframe(1))
            wrong = self._note(Kind.ARGUMENT, title, found, bindings.compare(pairs), caller)
            if not wrong:
                self._decide(title, bindings, self._conditions(cls), caller)
            result = method(self_, *args, **kwargs)
            if not wrong:
                self._note(Kind.RESULT, title, found, bindings.compare([("", found.result, result)]), None)
            return result

        return call

    def check_result(self, title: str, found: Annotated, bindings: Bindings, result: Any) -> None:
        """Compares the result of a function that is no method."""
        self._note(Kind.RESULT, title, found, bindings.compare([("", found.result, result)]), None)

    def check_arguments(self, title: str, found: Annotated, bindings: Bindings, arguments: Mapping[str, Any]) -> None:
        """Compares the arguments of a function that is no method."""
        pairs = [(p.name, p.pattern, arguments.get(p.name)) for p in found.parameters.values()]
        self._note(Kind.ARGUMENT, title, found, bindings.compare(pairs), None)

    def _note(
        self, kind: Kind, title: str, found: Annotated, mismatches: Sequence[Mismatch], caller: Place | None
    ) -> bool:
        for path, expected, got, value in mismatches:
            name = "return" if kind is Kind.RESULT else path.partition("[")[0].partition(".")[0]
            annotation = place_of_annotation(found.function, name)
            place = caller if kind is Kind.ARGUMENT else place_of_trace(value)
            what = f"the result{path}" if kind is Kind.RESULT else f"the argument {path!r}"
            text = f"{what} of {title} does not have the annotated shape"
            sizes = [size if isinstance(size, str) else self._written(size) for size in (*expected, *got)]
            shapes = shape_text(sizes[: len(expected)]), shape_text(sizes[len(expected) :])
            known = tuple(size for size in sizes if not isinstance(size, str))
            needed = candidates_of(known)
            self.problems.append(
                Problem(kind, place or annotation, text, *shapes, annotation, candidates=needed, sizes=known)
            )
        return bool(mismatches)

    def _decide(self, title: str, bindings: Bindings, conditions: Sequence[Condition], caller: Place | None) -> None:
        for condition in conditions:
            if not bindings.decided(condition):
                left, right = (self._written(bindings.value(side)) for side in (condition.left, condition.right))
                needed = Condition.of(left, condition.sign, right)
                text = f"{title} requires {condition.text}, which does not follow"
                self.problems.append(Problem(Kind.CONDITION, caller, text, needed.text, candidates=(needed,)))


def size_of_field(owner: Any, path: str) -> Dimension | None:
    """The integer, or symbolic size, at a path of attributes."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner if is_symbolic(owner) or (isinstance(owner, int) and not isinstance(owner, bool)) else None

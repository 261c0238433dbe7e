"""Filters: short forms that select leaves of a graph, and the predicates that they represent."""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import EllipsisType, FunctionType, MappingProxyType, UnionType
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias, Union, cast, get_args, get_origin
from typing import Any as AnyType

from declax._typing import Path
from declax.errors import FilterError, describe, note_path, type_name


class Predicate(Protocol):
    """Takes the path and the value of a leaf; returns whether it is selected."""

    def __call__(self, path: Path, value: AnyType, /) -> bool: ...


_Single: TypeAlias = type | UnionType | str | bool | EllipsisType | None | Callable[[Path, AnyType], bool]
if TYPE_CHECKING:
    Filter: TypeAlias = "_Single | tuple[Filter, ...] | list[Filter]"  # one text: checkers read no other
else:
    Filter = AnyType  # so that a field of this type takes the plain data of a configuration
"""Anything that `to_predicate` takes."""

GRAMMAR = """...  or True           all leaves
None or False         no leaves
dx.Param              Variables of this kind, or values of this type
'dropout'             Variables with this tag
(filter, filter)      what any of them takes; also dx.Any(filter, ...), dx.Param | dx.BatchStat
dx.All(filter, ...)   what all of them take
dx.Not(filter)        what it does not take
dx.PathContains(key), dx.PathIn(path, ...), dx.PathMatches('blocks.*.kernel')
lambda path, value: ...   what it says"""


class _OfPaths(abc.ABC):
    """A predicate that depends on the path only."""

    @abc.abstractmethod
    def _takes(self, path: Path) -> bool: ...

    def __call__(self, path: Path, value: AnyType) -> bool:
        return self._takes(path)

    def matches_kind(self, path: Path, kind: type | None, metadata: Mapping[str, AnyType]) -> bool | None:
        """As the function `matches_kind`."""
        return self._takes(path)


@dataclasses.dataclass(frozen=True)
class Everything(_OfPaths):
    """Matches all leaves; the same as ``...``."""

    def _takes(self, path: Path) -> bool:
        return True


@dataclasses.dataclass(frozen=True)
class Nothing(_OfPaths):
    """Matches no leaves; the same as None."""

    def _takes(self, path: Path) -> bool:
        return False


@dataclasses.dataclass(frozen=True, repr=False)
class PathContains(_OfPaths):
    """Matches leaves whose path has a key.

    Args:
      key: the key.
      exact: whether a key must be equal; otherwise its text must contain that
        of `key`.

    >>> import declax as dx
    >>> dx.PathContains("att")(("blocks", 0, "attn"), 1), dx.PathContains("att", exact=False)(("attn",), 1)
    (False, True)
    """

    key: Hashable
    exact: bool = True

    def _takes(self, path: Path) -> bool:
        if self.exact:
            return self.key in path
        text = str(self.key)
        return any(text in str(key) for key in path)

    def __repr__(self) -> str:
        return f"PathContains({self.key!r}{'' if self.exact else ', exact=False'})"


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class PathIn(_OfPaths):
    """Matches leaves at given paths.

    Args:
      *paths: tuples of keys.

    Raises:
      FilterError: a path is not a tuple of hashable keys.

    >>> import declax as dx
    >>> dx.PathIn(("a", "b"), ("c",))(("a", "b"), 1)
    True
    """

    paths: frozenset[Path]

    def __init__(self, *paths: Path) -> None:
        object.__setattr__(self, "paths", frozenset(map(_checked_path, paths)))

    def _takes(self, path: Path) -> bool:
        return path in self.paths

    def __repr__(self) -> str:
        return f"PathIn({', '.join(sorted(map(repr, self.paths)))})"


def _checked_path(path: AnyType) -> Path:
    try:
        if isinstance(path, (tuple, list)):
            hash(tuple(path))
            return tuple(path)
    except TypeError:  # a key has no hash
        pass
    fix = f"PathIn(({path!r},))" if isinstance(path, (str, int)) else "PathIn(('blocks', 0, 'kernel'))"
    raise FilterError("PathIn", "a path is a tuple of hashable keys", got=describe(path), fix=fix)


@dataclasses.dataclass(frozen=True, repr=False)
class PathMatches(_OfPaths):
    """Matches leaves whose path matches a pattern.

    Args:
      pattern: steps joined by dots, or a path as error messages show it. An
        index matches by its text, as in ``blocks.0`` or ``blocks[0]``; ``*``
        is any text within one step and ``?`` any one character; a step ``**``
        is any number of steps, none included.

    Raises:
      FilterError: the pattern is not a string, or a step of it is empty.

    >>> import declax as dx
    >>> dx.PathMatches("blocks.*.attn.**")(("blocks", 0, "attn", "query", "kernel"), 1)
    True
    """

    pattern: str
    _regex: re.Pattern[str] = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_regex", re.compile(_regex_of(self.pattern), re.DOTALL))

    def _takes(self, path: Path) -> bool:
        return self._regex.fullmatch("".join(f"{key}{_END}" for key in path)) is not None

    def __repr__(self) -> str:
        return f"PathMatches({self.pattern!r})"


_END = "\0"
"""Ends each step of a path in the text that a pattern is matched against."""


def _regex_of(pattern: str) -> str:
    """The regular expression of a pattern; a dot in it may also be part of a key."""
    is_text = isinstance(pattern, str)
    steps = re.sub(r"\[(['\"]?)([^\[\]]*)\1\]", r".\2", pattern).removeprefix(".").split(".") if is_text else []
    if not steps or not all(steps):
        raise FilterError(
            "PathMatches",
            "a pattern must be a string of non-empty steps joined by dots",
            got=describe(pattern),
            fix="PathMatches('blocks.*.attn.**')",
        )
    text = ""
    for position, step in enumerate(steps):
        if step == "**":
            text += "" if position and steps[position - 1] == "**" else f"(?:[^{_END}]*{_END})*"
            continue
        for character in step:
            text += {"*": f"[^{_END}]*", "?": f"[^{_END}]"}.get(character) or re.escape(character)
        text += _END if position == len(steps) - 1 or steps[position + 1] == "**" else f"[.{_END}]"
    return text


@dataclasses.dataclass(frozen=True, repr=False)
class OfType:
    """Takes values of a type, and values whose attribute ``type`` is a subclass of it.

    Args:
      type: a kind of Variable, or any class.

    Raises:
      FilterError: `type` is not a class.

    >>> import declax as dx
    >>> dx.OfType(int)((), 1)
    True
    """

    type: type

    def __post_init__(self) -> None:
        if not isinstance(self.type, type):
            raise FilterError("OfType", "this is not a class", got=describe(self.type), fix="OfType(dx.Param)")

    def __call__(self, path: Path, value: AnyType) -> bool:
        if isinstance(value, self.type):
            return True
        kind = getattr(value, "type", None)
        return isinstance(kind, type) and issubclass(kind, self.type)

    def matches_kind(self, path: Path, kind: _Class | None, metadata: Mapping[str, AnyType]) -> bool | None:
        """As the function `matches_kind`."""
        return kind is not None and issubclass(kind, self.type) if _is_kind(self.type) else None

    def __repr__(self) -> str:
        return f"OfType({self.type!r})"


_Class: TypeAlias = type  # OfType.type hides the builtin inside the class


def _is_kind(cls: type) -> bool:
    """Whether a class is a kind of Variable."""
    return hasattr(cls, "raw_value")


@dataclasses.dataclass(frozen=True, repr=False)
class WithTag:
    """Takes Variables with this ``tag`` in their metadata, and values with an attribute ``tag`` of this text.

    The keys and counts of random streams have the name of the stream as tag.

    Raises:
      FilterError: the tag is not a string.

    >>> import declax as dx
    >>> dx.WithTag("dropout")((), dx.Param(1, tag="dropout"))
    True
    """

    tag: str

    def __post_init__(self) -> None:
        if not isinstance(self.tag, str):
            raise FilterError("WithTag", "a tag must be a string", got=describe(self.tag), fix="WithTag('dropout')")

    def __call__(self, path: Path, value: AnyType) -> bool:
        kind = type(value)
        if _is_kind(kind):  # asking a Variable for an attribute may run its hooks
            return self._is_tag(value._metadata.get("tag"), kind)
        tag = getattr(value, "tag", None)
        return isinstance(tag, str) and tag == self.tag

    def matches_kind(self, path: Path, kind: type | None, metadata: Mapping[str, AnyType]) -> bool | None:
        """As the function `matches_kind`."""
        return None if kind is None else self._is_tag(metadata.get("tag"), kind)

    def _is_tag(self, tag: object, kind: type) -> bool:
        if tag is None:
            tag = getattr(kind, "tag", None)
        return isinstance(tag, str) and tag == self.tag

    def __repr__(self) -> str:
        return f"WithTag({self.tag!r})"


@dataclasses.dataclass(frozen=True, repr=False)
class Unless:
    """Takes Variables of a kind, except those that have False under a name in their metadata.

    >>> import declax as dx
    >>> dx.is_trainable((), dx.Param(1.0, trainable=False))
    False
    """

    kind: type
    name: str
    written: str

    def __call__(self, path: Path, value: AnyType) -> bool:
        metadata: Mapping[str, AnyType] = getattr(value, "_metadata", _NONE)
        return isinstance(value, self.kind) and bool(metadata.get(self.name, True))

    def matches_kind(self, path: Path, kind: type | None, metadata: Mapping[str, AnyType]) -> bool | None:
        """As the function `matches_kind`."""
        return kind is not None and issubclass(kind, self.kind) and bool(metadata.get(self.name, True))

    def __repr__(self) -> str:
        return self.written


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class _Combination:
    """Predicates of which one that returns `_settles` decides."""

    predicates: tuple[Predicate, ...]
    _settles: ClassVar[bool]

    def __init__(self, *filters: Filter) -> None:
        object.__setattr__(self, "predicates", tuple(map(to_predicate, filters)))

    def __call__(self, path: Path, value: AnyType) -> bool:
        is_settled = any(bool(p(path, value)) is self._settles for p in self.predicates)
        return self._settles if is_settled else not self._settles

    def matches_kind(self, path: Path, kind: type | None, metadata: Mapping[str, AnyType]) -> bool | None:
        """As the function `matches_kind`."""
        decisions = {matches_kind(p, path, kind, metadata) for p in self.predicates}
        if self._settles in decisions:
            return self._settles
        return None if None in decisions else not self._settles

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.predicates))})"


class Any(_Combination):
    """Takes what any of its filters takes; without filters, nothing.

    >>> import declax as dx
    >>> dx.Any(int, str)((), 1)
    True
    """

    _settles = True


class All(_Combination):
    """Takes what all of its filters take; without filters, everything.

    >>> import declax as dx
    >>> dx.All(int, dx.PathContains("a"))(("b",), 1)
    False
    """

    _settles = False


class Not(_Combination):
    """Matches the leaves that its filter does not match.

    >>> import declax as dx
    >>> dx.Not(int)((), 1)
    False
    """

    _settles = True

    def __init__(self, filter: Filter, /) -> None:
        super().__init__(filter)

    def __call__(self, path: Path, value: AnyType) -> bool:
        return not super().__call__(path, value)

    def matches_kind(self, path: Path, kind: type | None, metadata: Mapping[str, AnyType]) -> bool | None:
        """As the function `matches_kind`."""
        decision = super().matches_kind(path, kind, metadata)
        return None if decision is None else not decision


_NONE: Final[Mapping[str, AnyType]] = MappingProxyType({})

_PREDICATES = (_OfPaths, OfType, WithTag, Unless, _Combination)
_BUILT_IN = frozenset({Everything, Nothing, PathContains, PathIn, PathMatches, OfType, WithTag, Unless, Any, All, Not})
"""Predicates with `matches_kind`; a derived class may return another result."""


def matches_kind(
    predicate: Predicate, path: Path, kind: type | None, metadata: Mapping[str, AnyType] = _NONE
) -> bool | None:
    """The result of a predicate if path, kind and metadata of a leaf settle it, else None."""
    known: AnyType = predicate
    return known.matches_kind(path, kind, metadata) if type(predicate) in _BUILT_IN else None


def is_of_kind(predicate: Predicate) -> bool:
    """Whether all Variables of one kind get the same result from a predicate."""
    if type(predicate) not in _BUILT_IN:
        return False
    if isinstance(predicate, _Combination):
        return all(map(is_of_kind, predicate.predicates))
    return isinstance(predicate, (Everything, Nothing)) or (isinstance(predicate, OfType) and _is_kind(predicate.type))


def to_predicate(filter: Filter, /) -> Predicate:
    """The predicate that a filter represents; raises FilterError, with the grammar, for another value.

    >>> import declax as dx
    >>> dx.filterlib.to_predicate((int, "dropout"))
    Any(OfType(<class 'int'>), WithTag('dropout'))
    """
    return predicate_of(filter, "filter")


def predicate_of(filter: Filter, where: str) -> Predicate:
    """As `to_predicate`, for a function that took the filter."""
    if filter is Ellipsis or filter is True:
        return Everything()
    if filter is None or filter is False:
        return Nothing()
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, (tuple, list)):
        return Any(*[predicate_of(inner, where) for inner in filter])
    kind: AnyType = filter
    origin = get_origin(filter)
    if origin is Union or origin is UnionType:  # Param | BatchStat
        return Any(*[predicate_of(inner, where) for inner in get_args(filter)])
    if isinstance(origin, type) and _is_kind(origin):  # Param[jax.Array] can be called, and means Param
        kind = origin
    elif origin is not None or filter is AnyType:
        raise FilterError(where, "this is an annotation, not a filter", got=repr(filter), fix=GRAMMAR)
    if isinstance(kind, type):
        if issubclass(kind, _PREDICATES):
            problem = "this is the class of a predicate, not a predicate"
            raise FilterError(where, problem, got=describe(kind), fix=f"{kind.__name__}(...)")
        return OfType(kind)
    is_model = hasattr(type(kind), "_pytree__layout") or _is_kind(type(kind))
    if callable(kind) and not is_model:
        return cast(Predicate, kind)
    raise FilterError(where, "this is not a filter", got=describe(filter), fix=GRAMMAR)


def filters_to_predicates(filters: Sequence[Filter], /) -> tuple[Predicate, ...]:
    """The predicates of several filters.

    Raises:
      FilterError: a value is not a filter, or ``...`` or True is not the last.

    >>> import declax as dx
    >>> dx.filterlib.filters_to_predicates((int, ...))
    (OfType(<class 'int'>), Everything())
    """
    return predicates_of(filters, "")


def predicates_of(filters: Sequence[Filter], where: str) -> tuple[Predicate, ...]:
    """As `filters_to_predicates`, for a function that took the filters."""
    prefix = f"{where}, filter " if where else "filter "
    for place, early in enumerate(filters[:-1]):
        if early is Ellipsis or early is True:
            raise FilterError(
                f"{prefix}{place}",
                "`...` and True match all leaves, so the filters after them match none",
                got=", ".join(map(as_written, filters)),
                fix=", ".join(map(as_written, [*(f for f in filters if f is not Ellipsis and f is not True), ...])),
            )
    return tuple([predicate_of(wanted, f"{prefix}{place}") for place, wanted in enumerate(filters)])


def ask(predicate: Predicate, path: Path, value: AnyType) -> bool:
    """The result of a predicate; an error of a user's function gets a note of the path."""
    try:
        return bool(predicate(path, value))
    except Exception as error:
        note_path(error, f"the filter {as_written(predicate)}", path)
        raise


def as_written(filter: Filter) -> str:
    """A filter as a user writes it."""
    if filter is Ellipsis:
        return "..."
    if isinstance(filter, FunctionType):
        return filter.__name__
    return type_name(filter) if isinstance(filter, type) else repr(filter)

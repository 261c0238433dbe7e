"""Filters: short forms that select leaves of a graph, and the predicates that they represent."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import EllipsisType, FunctionType, UnionType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, Union, cast, get_args, get_origin
from typing import Any as AnyType

from declax._typing import Immutable, Path
from declax.errors import FilterError, describe, dotted, note_path, type_name


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
(filter, filter)      leaves that one of them matches; also dx.Any(filter, ...), dx.Param | dx.BatchStat
dx.All(filter, ...)   leaves that all of them match
dx.Not(filter)        leaves that it does not match
dx.PathContains(key), dx.PathIn(path, ...), dx.PathMatches('blocks.*.kernel')
lambda path, value: ...   leaves for which it returns True"""


class BuiltIn(Immutable):
    """A predicate of declax."""


class _Logical(BuiltIn):
    """A predicate that is made of others; attributes such as ``__doc__`` can be added to it, and do not count."""

    predicates: tuple[Predicate, ...] = ()

    def __eq__(self, other: object) -> bool:
        return self.predicates == other.predicates if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), self.predicates))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.predicates))})"

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            if name == "predicates":
                super().__setattr__(name, value)
            vars(self)[name] = value


class Everything(_Logical):
    """Matches all leaves; the same as ``...``."""

    def __call__(self, path: Path, value: AnyType) -> bool:
        return True


class Nothing(_Logical):
    """Matches no leaves; the same as None."""

    def __call__(self, path: Path, value: AnyType) -> bool:
        return False


class PathContains(BuiltIn):
    """Matches leaves whose path has a key.

    Args:
      key: the key.
      exact: whether a key must be equal; otherwise its text must contain that of `key`.

    >>> import declax as dx
    >>> dx.PathContains("att")(("blocks", 0, "attn"), 1), dx.PathContains("att", exact=False)(("attn",), 1)
    (False, True)
    """

    key: Hashable
    exact: bool

    def __init__(self, key: Hashable, exact: bool = True) -> None:
        vars(self).update(key=key, exact=exact)

    def __call__(self, path: Path, value: AnyType) -> bool:
        return self.key in path if self.exact else any(str(self.key) in str(key) for key in path)

    def __repr__(self) -> str:
        return f"PathContains({self.key!r}{'' if self.exact else ', exact=False'})"


class PathIn(BuiltIn):
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
        vars(self).update(paths=frozenset(map(_checked_path, paths)))

    def __call__(self, path: Path, value: AnyType) -> bool:
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


class PathMatches(BuiltIn):
    """Matches leaves whose path matches a pattern.

    Args:
      pattern: steps joined by dots, or a path as error messages show it. An index matches by its text, as in
        ``blocks.0`` or ``blocks[0]``; ``*`` is any text within one step and ``?`` any one character; a step ``**`` is
        any number of steps, none included.

    Raises:
      FilterError: the pattern is not a string, or a step of it is empty.

    >>> import declax as dx
    >>> dx.PathMatches("blocks.*.attn.**")(("blocks", 0, "attn", "query", "kernel"), 1)
    True
    """

    pattern: str

    def __init__(self, pattern: str) -> None:
        _steps_of(pattern)
        vars(self).update(pattern=pattern)

    def __call__(self, path: Path, value: AnyType) -> bool:
        return _regex_of(self.pattern).fullmatch("".join(f"{key}{_END}" for key in path)) is not None


_END = "\0"
"""Ends each step of a path in the text that a pattern is matched against."""


def _steps_of(pattern: str) -> list[str]:
    """The steps of a pattern, of which there is one at least, and none is empty."""
    is_text = isinstance(pattern, str)
    steps = dotted(pattern).split(".") if is_text else []
    if not steps or not all(steps):
        raise FilterError(
            "PathMatches",
            "a pattern must be a string of non-empty steps joined by dots",
            got=describe(pattern),
            fix="PathMatches('blocks.*.attn.**')",
        )
    return steps


@functools.lru_cache(maxsize=256)
def _regex_of(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern; a dot in it may also be part of a key."""
    text, steps = "", _steps_of(pattern)
    for position, step in enumerate(steps):
        if step == "**":
            text += "" if position and steps[position - 1] == "**" else f"(?:[^{_END}]*{_END})*"
            continue
        for character in step:
            text += {"*": f"[^{_END}]*", "?": f"[^{_END}]"}.get(character) or re.escape(character)
        text += _END if position == len(steps) - 1 or steps[position + 1] == "**" else f"[.{_END}]"
    return re.compile(text, re.DOTALL)


class OfType(BuiltIn):
    """Matches values of a type, and values whose attribute ``type`` is a subclass of it.

    Args:
      type: a kind of Variable, or any class.

    Raises:
      FilterError: `type` is not a class.

    >>> import declax as dx
    >>> dx.OfType(int)((), 1)
    True
    """

    type: type

    def __init__(self, type: _Class) -> None:
        if not isinstance(type, _Class):
            raise FilterError("OfType", "this is not a class", got=describe(type), fix="OfType(dx.Param)")
        vars(self).update(type=type)

    def __call__(self, path: Path, value: AnyType) -> bool:
        if isinstance(value, self.type):
            return True
        kind = getattr(value, "type", None)
        return isinstance(kind, _Class) and issubclass(kind, self.type)


_Class: TypeAlias = type  # OfType.type hides the builtin inside the class


def _is_kind(cls: type) -> bool:
    """Whether a class is a kind of Variable."""
    return hasattr(cls, "raw_value")


class WithTag(BuiltIn):
    """Matches Variables with this ``tag`` in their metadata, and values with an attribute ``tag`` of this text.

    The keys and counts of random streams have the name of the stream as tag.

    Raises:
      FilterError: the tag is not a string.

    >>> import declax as dx
    >>> dx.WithTag("dropout")((), dx.Param(1, tag="dropout"))
    True
    """

    tag: str

    def __init__(self, tag: str) -> None:
        if not isinstance(tag, str):
            raise FilterError("WithTag", "a tag must be a string", got=describe(tag), fix="WithTag('dropout')")
        vars(self).update(tag=tag)

    def __call__(self, path: Path, value: AnyType) -> bool:
        tag = None
        if _is_kind(type(value)):  # asking a Variable for an attribute may run its hooks
            tag, value = value._metadata.get("tag"), type(value)
        tag = getattr(value, "tag", None) if tag is None else tag
        return isinstance(tag, str) and tag == self.tag


class Unless(BuiltIn):
    """Takes Variables of a kind, except those that have False under a name in their metadata.

    >>> import declax as dx
    >>> dx.is_trainable((), dx.Param(1.0, trainable=False))
    False
    """

    kind: type
    name: str
    written: str

    def __init__(self, kind: type, name: str, written: str) -> None:
        vars(self).update(kind=kind, name=name, written=written)

    def __call__(self, path: Path, value: AnyType) -> bool:
        return isinstance(value, self.kind) and bool(getattr(value, "_metadata", {}).get(self.name, True))

    def __repr__(self) -> str:
        return self.written


class _Combination(_Logical):
    """Predicates that decide together."""

    def __init__(self, *filters: Filter) -> None:
        vars(self).update(predicates=tuple(map(to_predicate, filters)))


class Any(_Combination):
    """Matches the leaves that any of its filters matches; without filters, no leaves.

    >>> import declax as dx
    >>> dx.Any(int, str)((), 1)
    True
    """

    def __call__(self, path: Path, value: AnyType) -> bool:
        return any(predicate(path, value) for predicate in self.predicates)


class All(_Combination):
    """Matches the leaves that all of its filters match; without filters, all leaves.

    >>> import declax as dx
    >>> dx.All(int, dx.PathContains("a"))(("b",), 1)
    False
    """

    def __call__(self, path: Path, value: AnyType) -> bool:
        return all(predicate(path, value) for predicate in self.predicates)


class Not(_Combination):
    """Matches the leaves that its filter does not match.

    >>> import declax as dx
    >>> dx.Not(int)((), 1)
    False
    """

    def __init__(self, filter: Filter, /) -> None:
        super().__init__(filter)

    def __call__(self, path: Path, value: AnyType) -> bool:
        return not self.predicates[0](path, value)


# What the results of predicates depend on; each includes those above it.
ON_KIND: Final = 0
ON_PLACE: Final = 1
"""The path, and the metadata of a Variable."""
ON_TAG: Final = 2
"""An attribute of a value that is in no Variable."""
ON_VALUE: Final = 3

_COMBINATIONS: Final[frozenset[type]] = frozenset({Any, All, Not})
_DEPENDENCIES: Final[Mapping[type, int]] = {
    **dict.fromkeys((Everything, Nothing), ON_KIND),
    **dict.fromkeys((PathContains, PathIn, PathMatches, Unless), ON_PLACE),
    WithTag: ON_TAG,
}


def dependency_of(*predicates: Predicate) -> int:
    """What the results of all predicates depend on; those of a class that a user derives may look at values."""
    return max(map(_dependency_of, predicates), default=ON_KIND)


def _dependency_of(predicate: Predicate) -> int:
    if isinstance(predicate, _Combination) and type(predicate) in _COMBINATIONS:
        return dependency_of(*predicate.predicates)
    if isinstance(predicate, OfType) and type(predicate) is OfType and _is_kind(predicate.type):
        return ON_KIND
    return _DEPENDENCIES.get(type(predicate), ON_VALUE)


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
        if issubclass(kind, BuiltIn):
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

"""Filters: short ways to say which leaves of a graph are meant."""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Callable, Hashable, Sequence
from types import EllipsisType, FunctionType, UnionType
from typing import Any as AnyType
from typing import Protocol, TypeAlias, Union, cast, get_args, get_origin

from declax._typing import Path
from declax.errors import FilterError, describe, note_path, type_name


class Predicate(Protocol):
    """A function of a leaf's path and value that says whether it is meant."""

    def __call__(self, path: Path, value: AnyType, /) -> bool: ...


_Single: TypeAlias = type | UnionType | str | bool | EllipsisType | None | Callable[[Path, AnyType], bool]
Filter: TypeAlias = "_Single | tuple[Filter, ...] | list[Filter]"  # one text: checkers read no other
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
    """A predicate that never looks at values."""

    is_structural = True

    @abc.abstractmethod
    def _takes(self, path: Path) -> bool: ...

    def __call__(self, path: Path, value: AnyType) -> bool:
        return self._takes(path)

    def matches_kind(self, path: Path, kind: type | None, tag: object) -> bool | None:
        """See the function `matches_kind`."""
        return self._takes(path)


@dataclasses.dataclass(frozen=True, repr=False)
class Everything(_OfPaths):
    """Takes all leaves.

    >>> Everything()((), 1)
    True
    """

    def _takes(self, path: Path) -> bool:
        return True

    def __repr__(self) -> str:
        return "Everything()"


@dataclasses.dataclass(frozen=True, repr=False)
class Nothing(_OfPaths):
    """Takes no leaves.

    >>> Nothing()((), 1)
    False
    """

    def _takes(self, path: Path) -> bool:
        return False

    def __repr__(self) -> str:
        return "Nothing()"


@dataclasses.dataclass(frozen=True, repr=False)
class PathContains(_OfPaths):
    """Takes leaves whose path has a key.

    Args:
      key: the key.
      exact: whether the whole key must be equal; otherwise it is enough that
        the text of a key has the text of this one in it.

    >>> PathContains("attn")(("blocks", 0, "attn"), 1)
    True
    >>> PathContains("att", exact=False)(("blocks", 0, "attn"), 1)
    True
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
    """Takes leaves at given paths.

    Args:
      *paths: tuples of keys.

    Raises:
      FilterError: a path is no tuple of hashable keys.

    >>> PathIn(("a", "b"), ("c",))(("a", "b"), 1)
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
    """Takes leaves whose path fits a pattern.

    Args:
      pattern: steps joined by dots, or a path as error messages show it. An
        index matches by its text, as in ``blocks.0`` or ``blocks[0]``; ``*``
        is any text within one step and ``?`` any one character; a step ``**``
        is any number of steps, none included.

    Raises:
      FilterError: the pattern is no text, or a step of it is empty.

    >>> PathMatches("blocks.*.attn.**")(("blocks", 0, "attn", "query", "kernel"), 1)
    True
    >>> PathMatches("**.kernel")(("blocks", 0, "attn", "bias"), 1)
    False
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
            "the pattern has to be a text of steps joined by dots, none of them empty",
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
      FilterError: for what is no class.

    >>> OfType(int)((), 1)
    True
    """

    type: type

    def __post_init__(self) -> None:
        if not isinstance(self.type, type):
            raise FilterError("OfType", "this is no class", got=describe(self.type), fix="OfType(dx.Param)")

    @property
    def is_structural(self) -> bool:
        """Whether the type is a kind of Variable, so that no value matters."""
        return hasattr(self.type, "raw_value")

    def __call__(self, path: Path, value: AnyType) -> bool:
        if isinstance(value, self.type):
            return True
        kind = getattr(value, "type", None)
        return isinstance(kind, type) and issubclass(kind, self.type)

    def matches_kind(self, path: Path, kind: _Class | None, tag: object) -> bool | None:
        """See the function `matches_kind`."""
        if self.is_structural:
            return kind is not None and issubclass(kind, self.type)
        return None

    def __repr__(self) -> str:
        return f"OfType({self.type!r})"


_Class: TypeAlias = type  # OfType.type hides the builtin inside the class


@dataclasses.dataclass(frozen=True, repr=False)
class WithTag:
    """Takes values whose attribute ``tag`` is this text.

    Of a Variable, this is the ``tag`` in its metadata, as the keys and counts of
    random streams have one.

    Raises:
      FilterError: for a tag that is no text.

    >>> WithTag("dropout")((), 1)
    False
    """

    tag: str
    is_structural = False  # a value in no Variable may have an attribute of this name

    def __post_init__(self) -> None:
        if not isinstance(self.tag, str):
            raise FilterError("WithTag", "a tag is a text", got=describe(self.tag), fix="WithTag('dropout')")

    def __call__(self, path: Path, value: AnyType) -> bool:
        kind = type(value)
        if hasattr(kind, "raw_value"):  # asking a Variable for an attribute may run its hooks
            return self._is_tag(value._metadata.get("tag"), kind)
        tag = getattr(value, "tag", None)
        return isinstance(tag, str) and tag == self.tag

    def matches_kind(self, path: Path, kind: type | None, tag: object) -> bool | None:
        """See the function `matches_kind`."""
        return None if kind is None else self._is_tag(tag, kind)

    def _is_tag(self, tag: object, kind: type) -> bool:
        if tag is None:
            tag = getattr(kind, "tag", None)
        return isinstance(tag, str) and tag == self.tag

    def __repr__(self) -> str:
        return f"WithTag({self.tag!r})"


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class _Combination:
    predicates: tuple[Predicate, ...]

    def __init__(self, *filters: Filter) -> None:
        object.__setattr__(self, "predicates", tuple(map(to_predicate, filters)))

    @property
    def is_structural(self) -> bool:
        """Whether all that it combines is."""
        return all(getattr(p, "is_structural", False) for p in self.predicates)

    def _decisions(self, path: Path, kind: type | None, tag: object) -> set[bool | None]:
        return {matches_kind(p, path, kind, tag) for p in self.predicates}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.predicates))})"


class Any(_Combination):
    """Takes what any of its filters takes; without filters, nothing.

    >>> Any(int, str)((), 1)
    True
    """

    def __call__(self, path: Path, value: AnyType) -> bool:
        return any(p(path, value) for p in self.predicates)

    def matches_kind(self, path: Path, kind: type | None, tag: object) -> bool | None:
        """See the function `matches_kind`."""
        decisions = self._decisions(path, kind, tag)
        return True if True in decisions else None if None in decisions else False


class All(_Combination):
    """Takes what all of its filters take; without filters, everything.

    >>> All(int, PathContains("a"))(("b",), 1)
    False
    """

    def __call__(self, path: Path, value: AnyType) -> bool:
        return all(p(path, value) for p in self.predicates)

    def matches_kind(self, path: Path, kind: type | None, tag: object) -> bool | None:
        """See the function `matches_kind`."""
        decisions = self._decisions(path, kind, tag)
        return False if False in decisions else None if None in decisions else True


class Not(_Combination):
    """Takes what its filter does not.

    >>> Not(int)((), 1)
    False
    """

    def __init__(self, filter: Filter, /) -> None:
        super().__init__(filter)

    def __call__(self, path: Path, value: AnyType) -> bool:
        return not self.predicates[0](path, value)

    def matches_kind(self, path: Path, kind: type | None, tag: object) -> bool | None:
        """See the function `matches_kind`."""
        decision = matches_kind(self.predicates[0], path, kind, tag)
        return None if decision is None else not decision


_PREDICATES = (_OfPaths, OfType, WithTag, _Combination)
_BUILT_IN = frozenset({Everything, Nothing, PathContains, PathIn, PathMatches, OfType, WithTag, Any, All, Not})
"""Predicates that are known; a class that derives from one may answer otherwise."""


def matches_kind(predicate: Predicate, path: Path, kind: type | None, tag: object = None) -> bool | None:
    """The answer of a predicate, as far as a leaf's path, kind and tag settle it.

    >>> matches_kind(PathContains("a"), ("a", "b"), None)
    True
    >>> matches_kind(lambda path, value: True, ("a", "b"), None) is None
    True
    """
    known: AnyType = predicate
    return known.matches_kind(path, kind, tag) if type(predicate) in _BUILT_IN else None


def is_of_kind(predicate: Predicate) -> bool:
    """Whether all Variables of one kind get the same answer from a predicate."""
    if type(predicate) not in _BUILT_IN:
        return False
    if isinstance(predicate, _Combination):
        return all(map(is_of_kind, predicate.predicates))
    return isinstance(predicate, (Everything, Nothing)) or (isinstance(predicate, OfType) and predicate.is_structural)


def to_predicate(filter: Filter, /) -> Predicate:
    """The predicate that a filter stands for.

    Raises:
      FilterError: for what is no filter; shows the grammar.

    >>> to_predicate((int, "dropout"))
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
    if hasattr(origin, "raw_value"):  # Param[jax.Array] can be called, and means Param
        kind = origin
    elif origin is not None or filter is AnyType:
        raise FilterError(where, "this is an annotation, not a filter", got=repr(filter), fix=GRAMMAR)
    if isinstance(kind, type):
        if issubclass(kind, _PREDICATES):
            problem = "this is the class of a predicate, not a predicate"
            raise FilterError(where, problem, got=describe(kind), fix=f"{kind.__name__}(...)")
        return OfType(kind)
    is_model = hasattr(type(kind), "_pytree__layout") or hasattr(type(kind), "raw_value")
    if callable(kind) and not is_model:
        return cast(Predicate, kind)
    raise FilterError(where, "this is no filter", got=describe(filter), fix=GRAMMAR)


def filters_to_predicates(filters: Sequence[Filter], /) -> tuple[Predicate, ...]:
    """The predicates of several filters, of which the first that takes a leaf has it.

    Raises:
      FilterError: for what is no filter, and for ``...`` or True before the
        last place.

    >>> filters_to_predicates((int, ...))
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
                "`...` and True take all leaves, so the filters after them would take none",
                got=", ".join(map(as_written, filters)),
                fix=", ".join(map(as_written, [*(f for f in filters if f is not Ellipsis and f is not True), ...])),
            )
    return tuple([predicate_of(wanted, f"{prefix}{place}") for place, wanted in enumerate(filters)])


def ask(predicate: Predicate, path: Path, value: AnyType) -> bool:
    """The answer of a predicate, which may be a user's function: an error of that one tells the path."""
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

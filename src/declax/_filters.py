"""Filters: short ways to say which leaves of a graph are meant.

Vocabulary
----------
filter:     anything that says which leaves: a kind of Variable, a tag, ``...``,
            a predicate, or a combination of such.
predicate:  what a filter becomes: a function of a leaf's path and value.
structural: of a predicate whose answer depends on paths and kinds only, so
            that it can be kept.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Callable, Hashable, Sequence
from types import EllipsisType
from typing import Any as AnyType
from typing import Protocol, TypeAlias

from declax.errors import FilterError, describe, type_name

Path: TypeAlias = tuple[Hashable, ...]


class Predicate(Protocol):
    """A function of a leaf's path and value that says whether it is meant."""

    def __call__(self, path: Path, value: AnyType, /) -> bool: ...


Filter: TypeAlias = (
    "type | str | bool | EllipsisType | None | Callable[[Path, AnyType], bool] | tuple[Filter, ...] | list[Filter]"
)
"""Anything that `to_predicate` takes."""

GRAMMAR = """...  or True         all leaves
None or False       no leaves
dx.Param            Variables of a kind
'dropout'           Variables with this tag
(filter, ...)       what any of them takes; also dx.Any(...)
dx.All(...), dx.Not(...), dx.PathContains(key), dx.PathIn(path, ...), dx.PathMatches('blocks.*.kernel')
lambda path, value: ..."""


@dataclasses.dataclass(frozen=True, repr=False)
class Everything:
    """Takes all leaves.

    >>> Everything()((), 1)
    True
    """

    is_structural = True

    def __call__(self, path: Path, value: AnyType) -> bool:
        return True

    def __repr__(self) -> str:
        return "Everything()"


@dataclasses.dataclass(frozen=True, repr=False)
class Nothing:
    """Takes no leaves.

    >>> Nothing()((), 1)
    False
    """

    is_structural = True

    def __call__(self, path: Path, value: AnyType) -> bool:
        return False

    def __repr__(self) -> str:
        return "Nothing()"


@dataclasses.dataclass(frozen=True, repr=False)
class OfType:
    """Takes values of a type, and values whose attribute ``type`` is a subclass of it.

    >>> OfType(int)((), 1)
    True
    """

    type: type

    @property
    def is_structural(self) -> bool:
        """Whether the type is a kind of Variable, which the structure knows."""
        return hasattr(self.type, "raw_value")

    def __call__(self, path: Path, value: AnyType) -> bool:
        if isinstance(value, self.type):
            return True
        kind = getattr(value, "type", None)
        return isinstance(kind, type) and issubclass(kind, self.type)

    def __repr__(self) -> str:
        return f"OfType({self.type!r})"


@dataclasses.dataclass(frozen=True, repr=False)
class WithTag:
    """Takes values whose attribute ``tag`` is this text.

    >>> WithTag("dropout")((), 1)
    False
    """

    tag: str
    is_structural = True

    def __call__(self, path: Path, value: AnyType) -> bool:
        return bool(getattr(value, "tag", None) == self.tag) if hasattr(value, "raw_value") else False

    def __repr__(self) -> str:
        return f"WithTag({self.tag!r})"


@dataclasses.dataclass(frozen=True, repr=False)
class PathContains:
    """Takes leaves whose path has a key.

    Args:
      key: the key.
      exact: whether the whole key must be equal; a part of its text otherwise.

    >>> PathContains("attn")(("blocks", 0, "attn"), 1)
    True
    """

    key: Hashable
    exact: bool = True
    is_structural = True

    def __call__(self, path: Path, value: AnyType) -> bool:
        if self.exact:
            return self.key in path
        return any(str(self.key) in str(key) for key in path)

    def __repr__(self) -> str:
        return f"PathContains({self.key!r}{'' if self.exact else ', exact=False'})"


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class PathIn:
    """Takes leaves at given paths.

    >>> PathIn(("a", "b"))(("a", "b"), 1)
    True
    """

    paths: frozenset[Path]
    is_structural = True

    def __init__(self, *paths: Path) -> None:
        object.__setattr__(self, "paths", frozenset(tuple(path) for path in paths))

    def __call__(self, path: Path, value: AnyType) -> bool:
        return path in self.paths

    def __repr__(self) -> str:
        return f"PathIn({', '.join(sorted(map(repr, self.paths)))})"


@dataclasses.dataclass(frozen=True, repr=False)
class PathMatches:
    """Takes leaves whose dotted path fits a pattern.

    Args:
      pattern: steps joined by dots; ``*`` is any text within a step, a step
        ``**`` any number of steps.

    >>> PathMatches("blocks.*.kernel")(("blocks", 0, "kernel"), 1)
    True
    """

    pattern: str
    is_structural = True

    @functools.cached_property
    def _regex(self) -> re.Pattern[str]:
        text = ""
        for step in self.pattern.split("."):
            if step == "**":
                text += r"(?:[^.]+\.)*"
            else:
                text += fnmatch.translate(step).removeprefix("(?s:").removesuffix(r")\Z").replace(".*", "[^.]*") + r"\."
        return re.compile(text)

    def __call__(self, path: Path, value: AnyType) -> bool:
        return self._regex.fullmatch("".join(f"{key}." for key in path)) is not None

    def __repr__(self) -> str:
        return f"PathMatches({self.pattern!r})"


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class _Combination:
    predicates: tuple[Predicate, ...]

    def __init__(self, *filters: Filter) -> None:
        object.__setattr__(self, "predicates", tuple(to_predicate(f) for f in filters))

    @property
    def is_structural(self) -> bool:
        """Whether all that it combines is."""
        return all(is_structural(p) for p in self.predicates)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.predicates))})"


class Any(_Combination):
    """Takes what any of its filters takes.

    >>> Any(int, str)((), 1)
    True
    """

    def __call__(self, path: Path, value: AnyType) -> bool:
        return any(p(path, value) for p in self.predicates)


class All(_Combination):
    """Takes what all of its filters take.

    >>> All(int, PathContains("a"))(("b",), 1)
    False
    """

    def __call__(self, path: Path, value: AnyType) -> bool:
        return all(p(path, value) for p in self.predicates)


class Not(_Combination):
    """Takes what its filter does not.

    >>> Not(int)((), 1)
    False
    """

    def __init__(self, filter: Filter) -> None:
        super().__init__(filter)

    def __call__(self, path: Path, value: AnyType) -> bool:
        return not self.predicates[0](path, value)


def is_structural(predicate: Predicate) -> bool:
    """Whether a predicate's answer depends on paths and kinds only."""
    return bool(getattr(predicate, "is_structural", False))


def to_predicate(filter: Filter, /) -> Predicate:
    """The predicate that a filter stands for.

    Raises:
      FilterError: for what is no filter; shows the grammar.

    >>> to_predicate((int, "dropout"))
    Any(OfType(<class 'int'>), WithTag('dropout'))
    """
    if filter is Ellipsis or filter is True:
        return Everything()
    if filter is None or filter is False:
        return Nothing()
    if isinstance(filter, type):
        return OfType(filter)
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, (tuple, list)):
        return Any(*filter)
    is_model = hasattr(type(filter), "_pytree__layout") or hasattr(type(filter), "raw_value")
    if callable(filter) and not is_model:
        return filter
    raise FilterError("filter", "this is no filter", got=describe(filter), expected=GRAMMAR)


def filters_to_predicates(filters: Sequence[Filter], /) -> tuple[Predicate, ...]:
    """The predicates of several filters, of which the first that takes a leaf has it.

    Raises:
      FilterError: for what is no filter, and for ``...`` or True before the
        last place.

    >>> filters_to_predicates((int, ...))
    (OfType(<class 'int'>), Everything())
    """
    for place, filter in enumerate(filters[:-1]):
        if filter is Ellipsis or filter is True:
            raise FilterError(
                f"filter {place}",
                "`...` and True take all leaves, so filters after them take none",
                got=", ".join(type_name(f) if isinstance(f, type) else repr(f) for f in filters),
                fix="put `...` last",
            )
    return tuple(to_predicate(f) for f in filters)

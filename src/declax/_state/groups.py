"""Which leaves of a State filters take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from declax._fields.snapshots import exact_types
from declax._filters import Filter, Predicate, as_written, ask, is_of_kind, matches_kind, predicates_of
from declax._state.definition import StateDef, values_of
from declax._typing import Tuple2, Tuple3, Tuple4
from declax._variables.variable import new_variable
from declax.errors import FilterError, describe, format_path, type_name

S = TypeVar("S")

Groups = tuple[tuple[StateDef, tuple[int, ...]], ...]
"""For each filter: the definition and the positions of the leaves that it takes."""

KEPT_GROUPS: Final = 256
"""How many answers of filters a definition keeps."""


class Splits(Generic[S]):
    """The methods `split` and `filter` of States and FlatStates; `S` is what they give."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _parts(self, filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool) -> tuple[S, ...]: ...

    @overload
    def split(self, a: Filter, /) -> S: ...
    @overload
    def split(self, a: Filter, b: Filter, /) -> Tuple2[S]: ...
    @overload
    def split(self, a: Filter, b: Filter, c: Filter, /) -> Tuple3[S]: ...
    @overload
    def split(self, a: Filter, b: Filter, c: Filter, d: Filter, /) -> Tuple4[S]: ...
    @overload
    def split(self, a: Filter, /, *filters: Filter) -> Any: ...
    def split(self, a: Filter, /, *filters: Filter) -> Any:
        """What each filter takes, as States, or as FlatStates of a FlatState.

        Raises:
          FilterError: for leaves that no filter takes.

        >>> from declax._state.states import State
        >>> numbers, rest = State({"a": 1, "b": "text"}).split(int, ...)
        >>> numbers.to_pure_dict(), rest.to_pure_dict()
        ({'a': 1}, {'b': 'text'})
        """
        found = self._parts((a, *filters), f"{type_name(type(self))}.split", is_exhaustive=True)
        return found if filters else found[0]

    @overload
    def filter(self, a: Filter, /) -> S: ...
    @overload
    def filter(self, a: Filter, b: Filter, /) -> Tuple2[S]: ...
    @overload
    def filter(self, a: Filter, b: Filter, c: Filter, /) -> Tuple3[S]: ...
    @overload
    def filter(self, a: Filter, b: Filter, c: Filter, d: Filter, /) -> Tuple4[S]: ...
    @overload
    def filter(self, a: Filter, /, *filters: Filter) -> Any: ...
    def filter(self, a: Filter, /, *filters: Filter) -> Any:
        """As `split`, leaving out what no filter takes."""
        found = self._parts((a, *filters), f"{type_name(type(self))}.filter", is_exhaustive=False)
        return found if filters else found[0]


def groups_of(
    definition: StateDef, leaves: Sequence[Any], filters: tuple[Filter, ...], where: str, *, is_exhaustive: bool
) -> Groups:
    """For each filter, the definition and the positions of the leaves that it takes.

    What depends on kinds and paths only is computed once.
    """
    groups, rest = _known_groups(definition, leaves, filters, where)
    if rest and is_exhaustive:
        first, *more = rest
        others = f", nor {len(more)} other{'s' if len(more) > 1 else ''}" if more else ""
        written = list(map(as_written, filters))
        raise FilterError(
            f"{where}, {format_path(definition.paths[first])}",
            f"no filter takes this leaf{others}",
            got=describe(values_of(definition, leaves)[first]),
            expected=", ".join(written),
            fix=", ".join([*written, "..."]) + "   # a last filter `...` takes the rest",
        )
    return groups


def _known_groups(
    definition: StateDef, leaves: Sequence[Any], filters: tuple[Filter, ...], where: str
) -> tuple[Groups, tuple[int, ...]]:
    """The leaves that each filter takes, and those that none takes."""
    key = (filters, exact_types(filters))  # True is a filter, and 1 is none
    try:
        found = definition.groups.get(key)
    except TypeError:  # a filter that cannot be hashed is asked again each time
        return _groups(definition, leaves, predicates_of(filters, where))[:2]
    if found is not None:
        return tuple((sub or definition, positions) for sub, positions in found[0]), found[1]
    predicates = predicates_of(filters, where)
    groups, rest, is_lasting = _groups(definition, leaves, predicates)
    if is_lasting:
        if len(definition.groups) >= KEPT_GROUPS:
            definition.groups.clear()  # a program that makes a new function for each call would fill it
        # without itself, which would be a cycle that waits for the collector
        kept = tuple((None if sub is definition else sub, positions) for sub, positions in groups)
        definition.groups[key] = (kept, rest)
    return groups, rest


def _groups(
    definition: StateDef, leaves: Sequence[Any], predicates: Sequence[Predicate]
) -> tuple[Groups, tuple[int, ...], bool]:
    """The groups, the rest, and whether no value has a part in it."""
    taken: list[list[int]] = [[] for _ in predicates]
    rest: list[int] = []
    is_lasting = True
    is_by_kind = all(map(is_of_kind, predicates))  # one leaf answers for all of its kind
    groups_by_kind: dict[type | None, list[int]] = {}
    for position, leaf_def in enumerate(definition.leaf_defs):
        kind = None if leaf_def is None else leaf_def[0]
        group = groups_by_kind.get(kind) if is_by_kind else None
        if group is None:
            group = rest
            for candidate, predicate in zip(taken, predicates, strict=True):
                answer, needs_value = _matches(predicate, definition, position, leaves)
                is_lasting &= not needs_value
                if answer:
                    group = candidate
                    break
            groups_by_kind[kind] = group
        group.append(position)
    return tuple((definition.select(tuple(some)), tuple(some)) for some in taken), tuple(rest), is_lasting


def _matches(predicate: Predicate, definition: StateDef, position: int, leaves: Sequence[Any]) -> tuple[bool, bool]:
    """Whether a predicate takes a leaf, and whether that depends on the leaf's value."""
    path, leaf_def, leaf = definition.paths[position], definition.leaf_defs[position], leaves[position]
    kind, tag = (None, None) if leaf_def is None else (leaf_def[0], leaf_def[1].get("tag"))
    decided = matches_kind(predicate, path, kind, tag)
    if decided is not None:
        return decided, False
    value = leaf if leaf_def is None else new_variable(leaf_def[0], leaf, leaf_def[1], None)
    return ask(predicate, path, value), True

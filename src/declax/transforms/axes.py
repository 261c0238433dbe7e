"""Labels for parts of a model: which axis, sharding or role the leaves of a filter have.

Vocabulary
----------
label:  what a transform is told of a leaf: an axis, a sharding, None, `Carry`.
prefix: a tree of labels, each of which holds for all leaves below its place.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from declax._filters import Filter, PathIn, Predicate, as_written, to_predicate
from declax.errors import TransformError, describe
from declax.states import State

L = TypeVar("L")


class Carry:
    """Says of an argument or result of `scan` that it goes from step to step.

    The class itself is the label: ``in_axes=(dx.Carry, 0)``.
    """


class StateLabels(Generic[L]):
    """Labels by filter; the first filter that takes a leaf decides.

    Immutable and hashable; the subclasses say what the labels mean. A State of
    labels in the place of the mapping gives one to each of its paths.

    Attributes:
      filters: the filters, in order.
      labels: the label of each.
      predicates: the filters as functions.
    """

    __slots__ = ("filters", "labels", "predicates")

    filters: tuple[Filter, ...]
    labels: tuple[L, ...]
    predicates: tuple[Predicate, ...]

    def __init__(self, labels: Mapping[Any, L] | Iterable[tuple[Filter, L]], /) -> None:
        name = type(self).__name__
        try:
            pairs = tuple(_pairs_of(labels))
            filters, values = tuple(f for f, _ in pairs), tuple(v for _, v in pairs)
        except (TypeError, ValueError):
            raise TransformError(
                name,
                "these are no labels by filter",
                expected="a mapping from filters",
                got=describe(labels),
                fix=f"dx.{name}({{dx.Param: ..., ...: None}})",
            ) from None
        for filter_, value in pairs:
            self._check(filter_, value)
        object.__setattr__(self, "filters", filters)
        object.__setattr__(self, "labels", values)
        object.__setattr__(self, "predicates", tuple(map(to_predicate, filters)))

    def _check(self, filter_: Filter, label: Any) -> None:
        """Checks one label.

        Raises:
          TransformError: it is none.
        """

    def __setattr__(self, name: str, value: Any) -> None:
        name_ = type(self).__name__
        raise TransformError(f"{name_}.{name}", f"a {name_} cannot be changed", fix=f"dx.{name_}({{...}})")

    def items(self) -> Iterator[tuple[Filter, L]]:
        """The filters with their labels."""
        return zip(self.filters, self.labels, strict=True)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (self.filters, self.labels) == (other.filters, other.labels)

    def __hash__(self) -> int:
        return hash((self.filters, self.labels))

    def __repr__(self) -> str:
        entries = ", ".join(f"{as_written(f)}: {_text_of(v)}" for f, v in self.items())
        return f"{type(self).__name__}({{{entries}}})"


def _pairs_of(labels: Mapping[Any, L] | Iterable[tuple[Filter, L]]) -> Iterable[tuple[Filter, L]]:
    """The filters with their labels; of a State of labels, one for each of its paths."""
    if isinstance(labels, State):
        return [(PathIn(path), label) for path, label in zip(labels.paths, labels.leaves, strict=True)]
    if isinstance(labels, Mapping):
        return cast("Mapping[Any, L]", labels).items()
    return labels


def _text_of(label: object) -> str:
    return label.__name__ if isinstance(label, type) else repr(label)


class StateAxes(StateLabels["int | type[Carry] | None"]):
    """The axes of a model's leaves, by filter, for `vmap`, `pmap` and `scan`.

    Args:
      labels: for each filter an axis, None for leaves that all instances
        share, or `Carry` (in `scan`) for those that go from step to step.
        ``...`` as the last filter takes the rest.

    Raises:
      TransformError: for what is no axis.

    >>> from declax._variables import Param
    >>> StateAxes({Param: 0, ...: None})
    StateAxes({Param: 0, ...: None})
    """

    __slots__ = ()

    @property
    def axes(self) -> tuple[int | type[Carry] | None, ...]:
        """The axis of each filter."""
        return self.labels

    def _check(self, filter_: Filter, label: Any) -> None:
        check_axis(label, f"StateAxes({as_written(filter_)})")


class StateSharding(StateLabels[Hashable]):
    """The shardings of a model's leaves, by filter, for `jit` and `shard_map`.

    Args:
      labels: for each filter a sharding or `PartitionSpec`, or None for leaves
        whose place JAX chooses.

    >>> import jax
    >>> from declax._variables import Param
    >>> StateSharding({Param: jax.P("data"), ...: None}).shardings
    (P('data',), None)
    """

    __slots__ = ()

    @property
    def shardings(self) -> tuple[Any, ...]:
        """The sharding of each filter."""
        return self.labels


def is_axis(label: object) -> bool:
    """Whether a label is one that an axis can have."""
    return label is None or label is Carry or (isinstance(label, int) and not isinstance(label, bool))


def check_axis(label: object, where: str) -> None:
    """Checks the label of one axis.

    Raises:
      TransformError: it is none.
    """
    if not is_axis(label):
        raise TransformError(
            where,
            "this is no axis",
            expected="an int, None, dx.Carry (in dx.scan), or a tree of these and dx.StateAxes",
            got=describe(label),
            fix="in_axes=(dx.StateAxes({dx.Param: 0, ...: None}), 0)",
        )

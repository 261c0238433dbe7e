"""Shardings of arguments and results: where the parts of an array lie."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
from jax.experimental.layout import Format

from declax.transforms.prefixes import LabelKind, Prefixes, StateLabels


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


def is_sharding(label: object) -> bool:
    """Whether a value says where an array lies."""
    return label is None or isinstance(label, (jax.sharding.Sharding, jax.sharding.PartitionSpec, Format))


_SHARDINGS = LabelKind(
    ("in_shardings", "out_shardings"),
    is_sharding,
    "a sharding, a PartitionSpec, None, or a tree of these and dx.StateSharding",
    "dx.StateSharding({dx.Param: jax.P('data'), ...: None})",
)


def jit_shardings(in_shardings: Any, out_shardings: Any) -> Prefixes | None:
    """What a user wrote of shardings; None if nothing."""
    if in_shardings is None and out_shardings is None:
        return None
    return Prefixes(in_shardings, out_shardings, _SHARDINGS)

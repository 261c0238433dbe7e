"""Shardings of arguments and results, as `jit` has them.

Vocabulary
----------
sharding: where the parts of an array lie: a `jax.sharding.Sharding`, or a
          `PartitionSpec` of the mesh of the context; None where JAX chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax.experimental.layout import Format

from declax.errors import TransformError, describe
from declax.transforms._arguments import positioned
from declax.transforms._axes import labels_in
from declax.transforms._labels import Labels, spread, spread_over
from declax.transforms._lift import Call
from declax.transforms._packing import Groups


def is_sharding(label: object) -> bool:
    """Whether a value says where an array lies."""
    return label is None or isinstance(label, (jax.sharding.Sharding, jax.sharding.PartitionSpec, Format))


class Placing:
    """What a user wrote of shardings.

    Args:
      of_arguments: a prefix of the tuple of arguments.
      of_results: a prefix of the result.

    Attributes:
      is_empty: whether nothing is said.

    Raises:
      TransformError: for what is no sharding.
    """

    def __init__(self, of_arguments: Any, of_results: Any) -> None:
        self._of_arguments = tuple(of_arguments) if isinstance(of_arguments, list) else of_arguments
        self._of_results = of_results
        self.is_empty: bool = of_arguments is None and of_results is None
        for prefix, name in ((self._of_arguments, "in_shardings"), (of_results, "out_shardings")):
            for label in labels_in(prefix, is_sharding):
                if not is_sharding(label):
                    raise TransformError(
                        name,
                        "this is no sharding",
                        expected="a sharding, a PartitionSpec, None, or a tree of these and dx.StateSharding",
                        got=describe(label),
                        fix=f"{name}=dx.StateSharding({{dx.Param: jax.P('data'), ...: None}})",
                    )

    def labels(self, call: Call, function: Callable[..., Any], skipped: Collection[int]) -> Labels:
        """The sharding of each leaf of a call; arguments by keyword only, and what is captured, have none.

        Args:
          call: the call.
          function: whose parameters say which arguments by name have a position.
          skipped: the positions of static arguments, which the call does not have.
        """
        structure, values = call.structure, call.values
        arguments = positioned(function, structure.tree, skipped)
        specs = spread_over(self._of_arguments, arguments, None, "in_shardings", is_sharding)
        return Labels(structure, values, specs, self._of_result, "in_shardings")

    def _of_result(self, tree: Any) -> Sequence[Any]:
        return spread(self._of_results, tree, "out_shardings", is_sharding)

    def groups(self, labels: Labels) -> Groups:
        """Of all shardings that results can have."""
        written = (self._of_arguments, self._of_results)
        known = [label for prefix in written for label in labels_in(prefix, is_sharding)]
        return Groups((None, *labels.values, *labels.plain, *known))

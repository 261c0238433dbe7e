"""Axes of arguments and results, as `vmap`, `pmap` and `scan` have them.

Vocabulary
----------
axis: of a leaf: which of its dimensions the function is mapped over; None for
      a leaf that all instances share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax

from declax.errors import TransformError, describe
from declax.graph.binding import bind
from declax.states import State
from declax.transforms._arguments import positioned
from declax.transforms._labels import Labels, spread, spread_over
from declax.transforms._lift import Call
from declax.transforms._roots import is_root
from declax.transforms.axes import Carry, StateLabels, is_axis


class Axes:
    """What a user wrote of axes.

    Args:
      of_arguments: a prefix of the tuple of arguments.
      of_results: a prefix of the result.
      names: what errors call the two.
      is_label: whether a value is an axis.
    """

    def __init__(
        self,
        of_arguments: Any,
        of_results: Any,
        names: tuple[str, str] = ("in_axes", "out_axes"),
        is_label: Callable[[object], bool] = lambda label: is_axis(label) and label is not Carry,
    ) -> None:
        self._names = names
        self._is_label = is_label
        self._of_arguments = tuple(of_arguments) if isinstance(of_arguments, list) else of_arguments
        self._of_results = of_results
        for prefix, name in zip((self._of_arguments, of_results), names, strict=True):
            for label in labels_in(prefix, is_label):
                if not is_label(label):
                    fix = f"{name}=0        # or None, dx.StateAxes(...), or a tree of these"
                    raise TransformError(name, "this is no axis", got=describe(label), fix=fix)

    def labels(
        self,
        call: Call,
        function: Callable[..., Any],
        default: Any = None,
        of_keywords: Any = 0,
        skipped: Collection[int] = (),
    ) -> Labels:
        """The axis of each leaf of a call.

        Args:
          call: the call.
          function: whose parameters say which arguments by name have a position.
          default: of what is captured.
          of_keywords: of arguments that have no position.
          skipped: the positions that the call does not have.

        Raises:
          TransformError: for axes that do not fit the arguments.
        """
        arguments = positioned(function, call.structure.tree, skipped)
        specs = spread_over(self._of_arguments, arguments, of_keywords, self._names[0], self._is_label)
        return Labels(call.structure, call.values, specs, self.of_results, self._names, default)

    def of_results(self, tree: Any) -> Sequence[Any]:
        """The spec of each leaf of a result."""
        return spread(self._of_results, tree, self._names[1], self._is_label)

    def known(self, labels: Labels) -> Iterator[Any]:
        """All axes that results can have."""
        yield from labels.values
        yield from labels.plain
        yield from labels_in(self._of_arguments, self._is_label)
        yield from labels_in(self._of_results, self._is_label)


def labels_in(prefix: Any, is_label: Callable[[object], bool]) -> Iterator[Any]:
    """All labels of a prefix, those inside of `StateLabels` and graphs of labels too."""

    def is_spec(value: object) -> bool:
        return is_label(value) or isinstance(value, (StateLabels, State)) or is_root(value)

    for spec in jax.tree_util.tree_leaves(prefix, is_leaf=is_spec):
        if isinstance(spec, StateLabels):
            yield from spec.labels
        elif isinstance(spec, State):
            yield from spec.leaves
        elif is_root(spec):
            yield from bind(spec).read()
        else:
            yield spec

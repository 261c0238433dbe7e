"""Results in groups of one label each.

JAX has to be told the axes and shardings of results before the function runs,
and only the trace tells which results there are. In groups, it is enough to
know which labels there can be.

Vocabulary
----------
group: the results of one label.
note:  what is static of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from declax.transforms._lift import Outcome, Plan


class Groups:
    """Results in groups of one label each, for a transform that has to know the labels first.

    Attributes:
      known: the labels that results can have.
    """

    __slots__ = ("_at", "known")

    def __init__(self, labels: Iterable[Any]) -> None:
        self.known: list[Any] = []
        self._at: dict[Any, int] = {}
        for label in labels:
            if (type(label), label) not in self._at:
                self._at[type(label), label] = len(self.known)
                self.known.append(label)

    def pack(self, leaves: Sequence[Any], labels: Sequence[Any]) -> tuple[tuple[int, ...], list[list[Any]]]:
        """Puts leaves into groups; also says the group of each."""
        order = tuple(self._at[type(label), label] for label in labels)
        groups: list[list[Any]] = [[] for _ in self.known]
        for leaf, at in zip(leaves, order, strict=True):
            groups[at].append(leaf)
        return order, groups

    @staticmethod
    def unpack(order: Sequence[int], groups: Sequence[Sequence[Any]]) -> list[Any]:
        """The leaves in their order again."""
        each = [iter(group) for group in groups]
        return [next(each[at]) for at in order]


class Note(NamedTuple):
    """What is static of packed results.

    Attributes:
      plan: of the Outcome.
      tree: of its output.
      order: the group of each of them.
    """

    plan: Plan
    tree: Any
    order: tuple[int, ...]


class _Static:
    """A note as a pytree without leaves; compares by identity."""

    __slots__ = ("note",)

    def __init__(self, note: Note) -> None:
        self.note = note


jax.tree_util.register_pytree_node(_Static, lambda static: ((), static), lambda static, _: static)

Packed = tuple[_Static, list[list[Any]]]
Check = Callable[[Plan, Sequence[Any]], None]


def packed(function: Callable[..., Outcome], groups: Groups, check: Check | None = None) -> Callable[..., Packed]:
    """A function whose results come in groups.

    Args:
      function: made by `lifted` with labels.
      groups: of those labels, and of what results can have.
      check: looks at the plan and the arrays of each trace.
    """

    def in_groups(values: Sequence[Any], plain: Sequence[Any]) -> Packed:
        outcome = function(values, plain)
        output, tree = jax.tree_util.tree_flatten(outcome.output)
        leaves = [*outcome.new, *output]  # a value of a Variable counts as one leaf, even if it is a tree
        labels = outcome.plan.labels
        assert labels is not None  # the function has labels
        if check is not None:
            check(outcome.plan, leaves)
        order, grouped = groups.pack(leaves, labels)
        return _Static(Note(outcome.plan, tree, order)), grouped

    return in_groups


def unpacked(result: Packed) -> Outcome:
    """The Outcome of a function that was packed."""
    (plan, tree, order), grouped = result[0].note, result[1]
    leaves = Groups.unpack(order, grouped)
    count = len(leaves) - tree.num_leaves
    return Outcome(plan, leaves[:count], jax.tree_util.tree_unflatten(tree, leaves[count:]))

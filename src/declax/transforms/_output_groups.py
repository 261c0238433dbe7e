"""Results in groups of one label each.

JAX has to be told the axes and shardings of results before the function runs,
and only the trace tells which results there are. In groups, it is enough to
know which labels there can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from declax.transforms._lift import Outcome, Plan


class OutputGroups:
    """Results in groups of one label each.

    Attributes:
      known: the labels that results can have.
    """

    __slots__ = ("_at", "known")

    def __init__(self, labels: Iterable[Any]) -> None:
        self.known: list[Any] = []
        self._at: dict[Any, int] = {}
        for label in labels:
            if self._at.setdefault((type(label), label), len(self.known)) == len(self.known):
                self.known.append(label)

    def split(self, leaves: Sequence[Any], labels: Sequence[Any]) -> tuple[tuple[int, ...], list[list[Any]]]:
        """The group of each leaf, and the leaves by group."""
        order = tuple(self._at[type(label), label] for label in labels)
        groups: list[list[Any]] = [[] for _ in self.known]
        for leaf, at in zip(leaves, order, strict=True):
            groups[at].append(leaf)
        return order, groups

    @staticmethod
    def join(order: Sequence[int], groups: Sequence[Sequence[Any]]) -> list[Any]:
        """The leaves in their order again."""
        each = [iter(group) for group in groups]
        return [next(each[at]) for at in order]


class _Static:
    """What is static of grouped results, as a pytree without leaves; compares by identity.

    Attributes:
      plan: of the Outcome.
      tree: of its output.
      order: the group of each leaf.
    """

    __slots__ = ("order", "plan", "tree")

    def __init__(self, plan: Plan, tree: Any, order: tuple[int, ...]) -> None:
        self.plan = plan
        self.tree = tree
        self.order = order


jax.tree_util.register_pytree_node(_Static, lambda static: ((), static), lambda static, _: static)

Grouped = tuple[_Static, list[list[Any]]]
Check = Callable[[Plan, Sequence[Any]], None]


def in_groups(
    function: Callable[..., Outcome], groups: OutputGroups, check: Check | None = None
) -> Callable[..., Grouped]:
    """A function whose results come in groups.

    Args:
      function: made by `lifted` with labels.
      groups: of those labels, and of what results can have.
      check: looks at the plan and the arrays of each trace.
    """

    def grouped(values: Sequence[Any], plain: Sequence[Any]) -> Grouped:
        outcome = function(values, plain)
        output, tree = jax.tree_util.tree_flatten(outcome.output)
        leaves = [*outcome.new, *output]  # a value of a Variable counts as one leaf, even if it is a tree
        labels = outcome.plan.labels
        assert labels is not None  # the function has labels
        if check is not None:
            check(outcome.plan, leaves)
        order, by_group = groups.split(leaves, labels)
        return _Static(outcome.plan, tree, order), by_group

    return grouped


def from_groups(result: Grouped) -> Outcome:
    """The Outcome of a function that `in_groups` made."""
    static, by_group = result
    leaves = OutputGroups.join(static.order, by_group)
    count = len(leaves) - static.tree.num_leaves
    return Outcome(static.plan, leaves[:count], jax.tree_util.tree_unflatten(static.tree, leaves[count:]))

"""What a function set, told in a fixed way.

JAX may trace a function now, and another in its place later. Both have to say
in the same way what they set, and nothing more may come out of them than that.

Vocabulary
----------
unset:  of a leaf: that it still has the value that went in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from declax.errors import TransformError
from declax.transforms._differentiated import Slopes
from declax.transforms._lift import Outcome, Plan, is_same_value
from declax.transforms._structure import Structure
from declax.transforms._tracing import leaf_origins


def keep_unset(outcome: Outcome, structure: Structure, values: Sequence[Any]) -> Outcome:
    """The same, where the structure changed, without the leaves that still have the value that went in.

    These go past the function, and so do their cotangents.
    """
    change = outcome.plan.change
    if change is None or structure.graphdef is None:
        return outcome
    sources = leaf_origins(structure, change)
    new = iter(outcome.new)
    kept, rest = [], []
    for leaf, origin in enumerate(change.kept):
        if origin < 0:
            value = next(new)
            source = sources.get(leaf, -1)
            if source >= 0 and is_same_value(value, values[source]):
                origin = source
            else:
                rest.append(value)
        kept.append(origin)
    plan = outcome.plan
    return Outcome(
        Plan((), change._replace(kept=tuple(kept)), plan.tree, plan.is_root, plan.labels), tuple(rest), outcome.output
    )


def updates_of(cotangent: Outcome, structure: Structure) -> Slopes:
    """The cotangents of what a function set, by the leaf that it was."""
    plan = cotangent.plan
    if plan.change is None:
        return dict(zip(plan.changed, cotangent.new, strict=True))
    if structure.graphdef is None:
        return {}
    fresh = [leaf for leaf, i in enumerate(plan.change.kept) if i < 0]
    new = dict(zip(fresh, cotangent.new, strict=True))
    return {source: new[leaf] for leaf, source in leaf_origins(structure, plan.change).items() if leaf in new}


def as_planned(outcome: Outcome, plan: Plan, values: Sequence[Any]) -> Outcome:
    """What `fwd` did, said as the function did it, which JAX has traced before.

    Raises:
      TransformError: it did something else.
    """
    mine = outcome.plan
    if mine is plan:
        return outcome
    if mine.change is None and plan.change is None and set(mine.changed) <= set(plan.changed):
        new = dict(zip(mine.changed, outcome.new, strict=True))
        return Outcome(plan, tuple(new.get(i, values[i]) for i in plan.changed), outcome.output)
    if mine.change is not None and plan.change is not None:
        ours, theirs = mine.change, plan.change
        is_alike = (ours.graphdef, ours.origins, mine.tree, mine.is_root) == (
            theirs.graphdef,
            theirs.origins,
            plan.tree,
            plan.is_root,
        )
        if is_alike and all(b < 0 or a == b for a, b in zip(ours.kept, theirs.kept, strict=True)):
            fresh = iter(outcome.new)
            every = [next(fresh) if i < 0 else values[i] for i in ours.kept]
            taken = [value for value, i in zip(every, theirs.kept, strict=True) if i < 0]
            return Outcome(plan, tuple(taken), outcome.output)
    raise TransformError(
        "fwd",
        "the rule does something else to the arguments than the function",
        why="the function was traced before, and what it sets is what comes back",
        fix="return f(...), residuals        # calls the function, which sets the same",
    )

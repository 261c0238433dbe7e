"""Whether models have the same structure after a step of a loop as before it.

The graphs before and after the step are built with the position of each leaf
in place of its value, and then walked root by root: equal structures have one
interned GraphDef, and the leaves that are read are positions.

Vocabulary
----------
fresh: a returned root that is not the one that was passed in, but a new one of
       the same structure.
rank:  of a root: its number among the roots of a call, or of an output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from declax.errors import TransformError
from declax.graph.flattening import HAS_INDEX, GraphDef, Walk, walk, walk_tokens
from declax.graph.unflattening import Change, build_slots, program_of
from declax.transforms._structure import Differing, Structure, differing, name_leaves, name_path


class ErrorContext(NamedTuple):
    """The names that errors of a loop use.

    Attributes:
      transform: its name.
      function: the name of the function.
      argument: the name of each argument.
    """

    transform: str
    function: str
    argument: Callable[[int], str]

    def of_leaf(self, structure: Structure, position: int) -> str:
        """The name of a leaf of the call's graph."""
        assert structure.graphdef is not None  # it has leaves
        return self.of_path(structure, structure.graphdef.definition.paths[position])

    def of_argument(self, structure: Structure, position: int) -> str:
        """The name of a leaf of the arguments."""
        return f"{self.transform}, {name_leaves(structure, self.argument)[position]}"

    def of_path(self, structure: Structure, path: Sequence[Any]) -> str:
        """The name of a place in the call's graph."""
        return f"{self.transform}, {name_path(structure, path, self.argument)}"


def _built(graphdef: GraphDef[Any]) -> tuple[Any, list[Any]]:
    """The root and the objects of a graph whose leaves are their own positions."""
    slots = build_slots(graphdef, list(map(np.asarray, range(graphdef.num_leaves))))
    program = program_of(graphdef)
    return slots[program.root], [slots[i] for i in program.indexed]


class Comparison:
    """The graph of a call beside the one in which a step leaves it.

    Args:
      structure: of the call.
      change: what the step does.
      context: for errors.
    """

    def __init__(self, structure: Structure, change: Change, context: ErrorContext) -> None:
        assert structure.graphdef is not None  # it has roots
        self._structure = structure
        self._change = change
        self._context = context
        self._before: GraphDef[Any] = structure.graphdef
        self._roots, before = _built(self._before)
        (self._roots_after, self._returned), after = _built(change.graphdef)
        pairs = zip(after, change.origins, strict=True)
        self._origin = {id(made): before[origin] for made, origin in pairs if origin >= 0}
        self._after = after  # keeps the identities in use

    def _is_from(self, after: Any, before: Any) -> bool:
        """Whether an object after the step is one from before it."""
        return self._origin.get(id(after)) is before

    def check_structure_preserved(self, ranks: Collection[int]) -> None:
        """Checks that roots have the structure, and hold the objects, that they had.

        Raises:
          TransformError: names the first place that differs.
        """
        ranks = list(ranks)
        before = walk(tuple(self._roots[rank] for rank in ranks))
        after = walk(tuple(self._roots_after[rank] for rank in ranks))
        found = _first_difference(before, after, self._is_from)
        if found is not None:
            path = (ranks[found.path[0]], *found.path[1:])
            raise TransformError(
                self._context.of_path(self._structure, path),
                f"{self._context.function} changes the structure here",
                why="each step is the same program, so that what it is given has to have one structure",
                **found.told("make the Variable before the loop and set its value in there: m.h[...] = value"),
            )

    # ------------------------------------------------------------- roots that are returned anew

    def next_of_fresh(self, pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The leaves of passed roots for which fresh ones are returned, with the places of their next values.

        Args:
          pairs: the ranks of passed roots, and of those that are returned for them.

        Raises:
          TransformError: for a returned root that is neither the passed one nor
            fresh, and for a passed one that the function sets as well.
        """
        fresh = {a: b for a, b in pairs if not self._is_from(self._returned[b], self._roots[a])}
        self._check_apart(fresh)
        ranks = list(fresh)
        before = walk(tuple(self._roots[rank] for rank in ranks))
        returned = walk(tuple(self._returned[result] for result in fresh.values()))
        found = _first_difference(before, returned, lambda new, _: id(new) not in self._origin)
        if found is not None:
            path = (ranks[found.path[0]], *found.path[1:])
            raise self._cannot_be_fresh(path, "differs from what is returned for it")
        passed = walk(tuple(self._roots_after[rank] for rank in ranks))
        for source, place, own in zip(before.read(), returned.read(), passed.read(), strict=True):
            if self._change.kept[own] != source:
                raise self._is_set(int(source))
            yield int(source), int(place)

    def _check_apart(self, fresh: Collection[int]) -> None:
        """Checks that the roots for which fresh ones are returned share nothing with the others."""
        owners: list[Any] = []
        for path, token in walk_tokens(self._before.tokens):
            if isinstance(token, int):
                if (path[0] in fresh) != (owners[token] in fresh):
                    raise self._cannot_be_fresh(path, "is shared with what is not returned anew")
            elif token[0] in HAS_INDEX:
                owners.append(path[0])

    def _cannot_be_fresh(self, path: Sequence[Any], problem: str) -> TransformError:
        return TransformError(
            self._context.of_path(self._structure, path),
            f"this {problem}, so that the two cannot take turns",
            expected="the model that was handed in, or a new one of the same structure that shares nothing",
            fix="change the model in place and return it",
        )

    def _is_set(self, position: int) -> TransformError:
        return TransformError(
            self._context.of_leaf(self._structure, position),
            f"{self._context.function} sets this, and returns a new model in place of the one that has it",
            why="the next step is given the new model, so that what was set would be lost",
            fix="return the model itself, or set nothing in it",
        )


def _first_difference(before: Walk, after: Walk, is_match: Callable[[Any, Any], bool]) -> Differing | None:
    """The first place in which two graphs have other structures, or objects that do not match."""
    if before.graphdef is not after.graphdef:
        return differing(before.graphdef, after.graphdef)
    matches = [is_match(new, old) for new, old in zip(after.objects, before.objects, strict=True)]
    if all(matches):
        return None
    tokens = walk_tokens(before.graphdef.tokens)
    paths: list[Any] = [path for path, token in tokens if not isinstance(token, int) and token[0] in HAS_INDEX]
    return Differing(paths[matches.index(False)])

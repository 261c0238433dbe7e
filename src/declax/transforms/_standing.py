"""Whether models have the same structure after a step as before it.

Graphs are compared token by token, and never by paths: those of a deep model
are long. Paths are found when there is an error to word.

Vocabulary
----------
section: the tokens of one root, or of another value below the top of a graph.
fresh:   a returned root that is not the one that was handed in, but a new one
         of the same structure.
rank:    of a root: its number among the roots of a call, or of an output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from declax.errors import TransformError
from declax.graph.change import Change
from declax.graph.defs import HAS_INDEX, GraphDef, Token, child_keys, walk_tokens
from declax.transforms._structure import Differing, Structure, differing, is_same_token
from declax.transforms._tracing import name_graph_leaf, name_leaves, name_path


class Words(NamedTuple):
    """How errors speak of a loop.

    Attributes:
      transform: its name.
      function: what it calls the function.
      argument: the name of each argument.
    """

    transform: str
    function: str
    argument: Callable[[int], str]

    def of_leaf(self, structure: Structure, position: int) -> str:
        """What to call a leaf of the call's graph."""
        return f"{self.transform}, {name_graph_leaf(structure, position, self.argument)}"

    def of_argument(self, structure: Structure, position: int) -> str:
        """What to call a leaf of the arguments."""
        return f"{self.transform}, {name_leaves(structure, self.argument)[position]}"

    def of_path(self, structure: Structure, path: Sequence[Any]) -> str:
        """What to call a place in the call's graph."""
        return f"{self.transform}, {name_path(structure, path, self.argument)}"


class Section(NamedTuple):
    """The tokens of one value in a graph.

    Attributes:
      start, stop: where they are.
      first: the index of the first object in there.
    """

    start: int
    stop: int
    first: int


def sections(tokens: Sequence[Token], start: int = 0, index: int = 0) -> list[Section]:
    """The sections of the items of a tuple, whose token is at `start`."""
    found = []
    place = start + 1
    for _ in child_keys(tokens[start]):  # type: ignore[arg-type]  # a tuple of roots
        begin, first, is_open = place, index, 1
        while is_open:
            token = tokens[place]
            place += 1
            is_open -= 1
            if isinstance(token, tuple):
                is_open += len(child_keys(token))
                index += token[0] in HAS_INDEX
        found.append(Section(begin, place, first))
    return found


# ----------------------------------------------------------------- roots that have to stand


class Comparison:
    """The graph of a call beside the one in which a step leaves it.

    Args:
      structure: of the call.
      change: what the step does.
      words: for errors.
    """

    def __init__(self, structure: Structure, change: Change, words: Words) -> None:
        assert structure.graphdef is not None  # it has roots
        self._structure = structure
        self._change = change
        self._words = words
        self._before: GraphDef[Any] = structure.graphdef
        after = change.graphdef.tokens
        inputs, outputs = sections(after)
        self._roots = sections(self._before.tokens)
        self._roots_after = sections(after, inputs.start, inputs.first)
        self._returned = sections(after, outputs.start, outputs.first)

    def check_stands(self, ranks: Collection[int]) -> None:
        """Checks that roots have the structure, and hold the objects, that they had.

        Raises:
          TransformError: names the first place where it is otherwise.
        """
        origins = self._change.origins
        for rank in ranks:
            places = self._first_difference(self._roots[rank], self._roots_after[rank], lambda i: origins[i], origins)
            if places is not None:
                found = self._differing(places)
                raise TransformError(
                    self._words.of_path(self._structure, found.path),
                    f"{self._words.function} changes the structure here",
                    why="each step is the same program, so that what it is given has to have one structure",
                    **found.told("make the Variable before the loop and set its value in there: m.h[...] = value"),
                )

    def _first_difference(
        self, one: Section, other: Section, wanted: Callable[[int], int], known: Any
    ) -> tuple[int, int] | None:
        """The places of the first two tokens that differ."""
        before, after = self._before.tokens, self._change.graphdef.tokens
        index, other_index = one.first, other.first
        for place, other_place in zip(range(one.start, one.stop), range(other.start, other.stop), strict=False):
            token, their = before[place], after[other_place]
            if isinstance(token, int) or isinstance(their, int):
                is_same = isinstance(token, int) and isinstance(their, int) and known[their] == token
            else:
                is_same = is_same_token(token, their)
                if token[0] in HAS_INDEX:
                    is_same = is_same and wanted(other_index) == index
                    index, other_index = index + 1, other_index + 1
            if not is_same:
                return place, other_place
        return None

    def _differing(self, places: tuple[int, int]) -> Differing:
        """What differs at the places of two tokens; they may describe the same, and be of other objects."""
        found = differing(self._before, self._change.graphdef, *places)
        return found if found.path else Differing(self._path_of(places[0]))

    # ------------------------------------------------------------- roots that are made anew

    def fresh(self, pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
        """The handed roots for which new ones are returned, by rank; with the rank of the new one.

        Args:
          pairs: the ranks of handed roots, and of those that are returned for them.

        Raises:
          TransformError: for one that is neither the same nor new, or that has another structure.
        """
        before, after = self._before.tokens, self._change.graphdef.tokens
        fresh: dict[int, int] = {}
        for rank, result in pairs:
            token, returned = before[self._roots[rank].start], after[self._returned[result].start]
            own = token if isinstance(token, int) else self._roots[rank].first
            if not isinstance(returned, int) or self._change.origins[returned] != own:
                fresh[rank] = result
        self._check_apart(fresh)
        made = _Counterparts(self._change.origins)
        for rank, result in fresh.items():
            made.shift = self._roots[rank].first - self._returned[result].first
            places = self._first_difference(self._roots[rank], self._returned[result], made.meet, made)
            if places is not None:
                raise self._cannot_be_fresh(self._differing(places).path, "differs from what is returned for it")
        return fresh

    def _check_apart(self, fresh: dict[int, int]) -> None:
        """Checks that what is made anew shares nothing with what is not."""
        owner = [rank for rank, section in enumerate(self._roots) for _ in range(self._count(section))]
        for rank, section in enumerate(self._roots):
            for place in range(section.start, section.stop):
                token = self._before.tokens[place]
                if isinstance(token, int) and (rank in fresh) != (owner[token] in fresh):
                    raise self._cannot_be_fresh(self._path_of(place), "is shared with what is not returned anew")

    def _count(self, section: Section) -> int:
        tokens = self._before.tokens[section.start : section.stop]
        return sum(isinstance(token, tuple) and token[0] in HAS_INDEX for token in tokens)

    def _path_of(self, place: int) -> Any:
        return next(path for at, (path, _) in enumerate(walk_tokens(self._before.tokens)) if at == place)

    def _cannot_be_fresh(self, path: Any, problem: str) -> TransformError:
        return TransformError(
            self._words.of_path(self._structure, path),
            f"this {problem}, so that the two cannot take turns",
            expected="the model that was handed in, or a new one of the same structure that shares nothing",
            fix="change the model in place and return it",
        )

    def leaves_of_fresh(self, fresh: dict[int, int]) -> Iterator[tuple[int, int]]:
        """The leaves of handed roots for which new ones are returned, with the places of their next values.

        Raises:
          TransformError: for one that the function sets, though it returns a new root.
        """
        definition = self._change.graphdef.definition
        for position, path in enumerate(self._before.definition.paths):
            rank: Any = path[0]
            if rank not in fresh:
                continue
            own = definition.position((0, *path))
            if own is None or self._change.kept[own] != position:
                raise TransformError(
                    self._words.of_leaf(self._structure, position),
                    f"{self._words.function} sets this, and returns a new model in place of the one that has it",
                    why="the next step is given the new model, so that what was set would be lost",
                    fix="return the model itself, or set nothing in it",
                )
            place = definition.position((1, fresh[rank], *path[1:]))
            assert place is not None  # the structures were compared
            yield position, place


class _Counterparts:
    """For each new object the one that it stands for, and -1 for others.

    Args:
      origins: of all objects.

    Attributes:
      shift: from the index of a new object to that of the other one.
    """

    def __init__(self, origins: Sequence[int]) -> None:
        self._origins = origins
        self._known: dict[int, int] = {}
        self.shift = 0

    def meet(self, index: int) -> int:
        """The object that an object stands for, which is met for the first time."""
        self._known[index] = index + self.shift if self._origins[index] < 0 else -1
        return self._known[index]

    def __getitem__(self, index: int) -> int:
        return self._known.get(index, -1)

"""Where the objects and leaves of a GraphDef are, and the differences of two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from declax._fields.snapshots import exact_types, is_frozen, thaw
from declax._graph.flattening import (
    CONTAINER,
    HAS_INDEX,
    LEAF,
    NODE,
    OBJECT,
    STATIC,
    VARIABLE,
    GraphDef,
    node_statics,
    walk_tokens,
)
from declax._graph.nodes import is_number
from declax._typing import Path
from declax.errors import format_path, type_name


def paths_of_objects(graphdef: GraphDef[Any]) -> list[Any]:
    """The path of each object that has an index."""
    tokens = walk_tokens(graphdef.tokens)
    return [path for path, token in tokens if not isinstance(token, int) and token[0] in HAS_INDEX]


def leaves_of_objects(graphdef: GraphDef[Any]) -> dict[int, int]:
    """The position of the leaf of each Variable and ref, by index of the object."""
    found: dict[int, int] = {}
    index = leaf = 0
    for token in graphdef.tokens:
        if isinstance(token, int):
            continue
        if token[0] in HAS_INDEX:
            if token[0] <= LEAF:
                found[index] = leaf
            index += 1
        leaf += token[0] <= LEAF
    return found


def other_paths(graphdef: GraphDef[Any]) -> Iterator[tuple[int, Path]]:
    """The positions of leaves that are reached again, each with one more path."""
    definition, paths = graphdef.definition, list[Path]()
    for path, token in walk_tokens(graphdef.tokens) if graphdef.shared is not None else ():
        if not isinstance(token, int):
            paths += [path] if token[0] in HAS_INDEX else []
            continue
        first = paths[token]
        leaf = definition.position(first)
        for i in definition.sub(first)[1] if leaf is None else (leaf,):
            yield i, (*path, *definition.paths[i][len(first) :])


STATIC_VALUE: Final = "static value"

_NOT_THERE: Final = ("structure", "not there")


class Differing(NamedTuple):
    """One difference of two graphs: where, which fact, and what it was before and is after; static values, or texts."""

    path: Any = ()
    fact: str = "structure"
    before: Any = ""
    after: Any = ""

    def details(self, fix: str) -> dict[str, Any]:
        """The parts of the error, with a fix for values that are not static."""
        if self.fact != STATIC_VALUE:
            return {"fix": fix}
        before, after = repr(self.before), repr(self.after)
        fix = f"set {self.path[-1]!r}, which is static, outside of the function"
        if is_number(self.before) and is_number(self.after):
            fix = f"m.{self.path[-1]} = dx.Variable(jnp.array({before}))        # an array may change"
        return {"expected": before, "got": after, "fix": fix}


def first_differing(graphdef: GraphDef[Any], other: GraphDef[Any]) -> Differing:
    """The first difference of two graphs; an item that came or went stands for the keys of its container."""
    found = list(differing(graphdef, other))
    return next((one for one in found if one.fact != "keys"), found[0] if found else Differing())


def differing(graphdef: GraphDef[Any] | None, other: GraphDef[Any] | None) -> Iterator[Differing]:
    """All differences of two graphs."""
    ours, theirs = _facts_of(graphdef), _facts_of(other)
    for path in {**ours, **theirs}:
        (fact, before), (their_fact, after) = ours.get(path, _NOT_THERE), theirs.get(path, _NOT_THERE)
        if fact == their_fact == STATIC_VALUE:
            if before != after or exact_types(before) != exact_types(after):
                yield Differing(path, fact, _thawed(before), _thawed(after))
            continue
        texts = [
            repr(_thawed(value)) if one == STATIC_VALUE else value
            for one, value in ((fact, before), (their_fact, after))
        ]
        if texts[0] != texts[1]:
            yield Differing(path, fact if path in ours and path in theirs else "structure", *texts)


def _facts_of(graphdef: GraphDef[Any] | None) -> dict[Path, tuple[str, Any]]:
    """A fact about each place of a graph, and its text; each static value of a node has a path."""
    found: dict[Path, tuple[str, Any]] = {}
    objects: list[Path] = []
    for path, token in () if graphdef is None else walk_tokens(graphdef.tokens):
        if isinstance(token, int):
            other = objects[token]
            found[path] = ("kind", f"the same object as {format_path(other[1:]) if other[1:] else 'the model itself'}")
            continue
        if token[0] in HAS_INDEX:
            objects.append(path)
        if token[0] == VARIABLE:
            found[path] = ("kind", f"{type_name(token[1])} with {token[2]!r}" if token[2] else type_name(token[1]))
        elif token[0] == NODE:
            found[path] = ("class", type_name(token[1].cls))
            found |= {(*path, name): (STATIC_VALUE, value) for name, value in node_statics(token)}
        elif token[0] == OBJECT:
            found[path] = ("class", type_name(token[1]))
        elif token[0] == STATIC:
            found[path] = (STATIC_VALUE, token[1])
        elif token[0] == CONTAINER and path:
            found[path] = ("keys", repr(list(token[2])))
        elif token[0] <= LEAF:
            found[path] = ("kind", "an array")
    return found


def _thawed(value: Any) -> Any:
    return thaw(value) if is_frozen(value) else value

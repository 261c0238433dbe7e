"""Where the objects and leaves of a GraphDef are, and the differences of two."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np

from declax._classes.pytree import Pytree
from declax._fields.snapshots import exact_types, is_frozen, thaw
from declax._graph.fit import STORED, Difference, Misfit, misfit
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
    walk,
    walk_tokens,
)
from declax._graph.nodes import is_number, is_ref
from declax._state.functions import diff as difference_of_states
from declax._state.states import State
from declax._tree.statuses import same_value
from declax._typing import Path, T
from declax._variables.donation import check_alive
from declax.errors import GraphError, describe, format_path, type_name, written_path

Models: TypeAlias = "Pytree | list[Any] | tuple[Any, ...]"
"""A model, or several."""


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
CLASS: Final = "class"
ORDER: Final = "order of attributes"
_SAME: Final = "the same object as "

_NOT_THERE: Final = ("structure", "not there")


class Differing(NamedTuple):
    """One difference of two graphs: where, which fact, and what it was before and is after; static values, or texts."""

    path: Any = ()
    fact: str = "structure"
    before: Any = ""
    after: Any = ""

    @property
    def is_tie(self) -> bool:
        """Whether an object is in a second place by now."""
        return isinstance(self.after, str) and self.after.startswith(_SAME)

    def details(self, fix: str) -> dict[str, Any]:
        """The parts of the error, with a fix for values that are not static."""
        if self.fact == ORDER:
            return {"expected": f"the order {self.before}", "got": self.after, "fix": "change the order outside"}
        if self.fact != STATIC_VALUE:
            return {"fix": fix}
        before, after = repr(self.before), repr(self.after)
        fix = f"set {self.path[-1]!r}, which is static, outside of the function"
        if is_number(self.before) and is_number(self.after):
            fix = f"m.{self.path[-1]} = dx.Variable(jnp.array({before}))        # an array may change"
        return {"expected": before, "got": after, "fix": fix}


def first_differing(graphdef: GraphDef[Any], other: GraphDef[Any], is_same: Sequence[bool] = ()) -> Differing:
    """The first difference of two graphs; an item that came or went stands for the keys of its container.

    Where the graphs are alike, it is the first object that is not the same, as `is_same` says of each.
    """
    found = list(differing(graphdef, other))
    if not found and False in is_same:
        return Differing(paths_of_objects(graphdef)[is_same.index(False)])
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
        if fact == their_fact == CLASS and before is after:
            continue
        texts = [_text_of(one, value) for one, value in ((fact, before), (their_fact, after))]
        if fact == their_fact == CLASS and texts[0] == texts[1]:
            texts = [f"{cls.__module__}.{cls.__qualname__}" for cls in (before, after)]
            yield Differing(path, fact, *texts)
        elif texts[0] != texts[1]:
            yield Differing(path, fact if path in ours and path in theirs else "structure", *texts)
    before, after = _orders_of(graphdef), _orders_of(other)
    for path in before.keys() & after.keys():
        if before[path] != after[path] and set(before[path]) == set(after[path]):
            yield Differing(path, ORDER, *(", ".join(map(str, one[path])) for one in (before, after)))


def _orders_of(graphdef: GraphDef[Any] | None) -> dict[Path, tuple[Any, ...]]:
    """The names in each node whose order users see, as in a Dict."""
    tokens = () if graphdef is None else walk_tokens(graphdef.tokens)
    nodes = [(path, token[1]) for path, token in tokens if not isinstance(token, int) and token[0] == NODE]
    return {path: tuple(layout.statuses) for path, layout in nodes if layout.cls._pytree__holds_elements}


def _text_of(fact: str, value: Any) -> str:
    return repr(_thawed(value)) if fact == STATIC_VALUE else type_name(value) if fact == CLASS else value


def _facts_of(graphdef: GraphDef[Any] | None) -> dict[Path, tuple[str, Any]]:
    """A fact about each place of a graph, with its value or text; each static value of a node has a path."""
    found: dict[Path, tuple[str, Any]] = {}
    objects: list[Path] = []
    for path, token in () if graphdef is None else walk_tokens(graphdef.tokens):
        if isinstance(token, int):
            other = objects[token]
            found[path] = ("kind", _SAME + (format_path(other[1:]) if other[1:] else "the model itself"))
            continue
        if token[0] in HAS_INDEX:
            objects.append(path)
        if token[0] == VARIABLE:
            found[path] = ("kind", f"{type_name(token[1])} with {token[2]!r}" if token[2] else type_name(token[1]))
        elif token[0] == NODE:
            found[path] = (CLASS, token[1].cls)
            found |= {(*path, name): (STATIC_VALUE, value) for name, value in node_statics(token)}
        elif token[0] == OBJECT:
            found[path] = (CLASS, token[1])
        elif token[0] == STATIC:
            found[path] = (STATIC_VALUE, token[1])
        elif token[0] == CONTAINER and path:
            found[path] = ("keys", _container_text(token[1], token[2]))
        elif token[0] <= LEAF:
            found[path] = ("kind", "an array")
    return found


def _thawed(value: Any) -> Any:
    return thaw(value) if is_frozen(value) else value


def _container_text(how: Any, keys: tuple[Any, ...]) -> str:
    """The keys of a container, and its type if it is neither a list nor a dict."""
    cls = how if isinstance(how, type) else how[0] if isinstance(how, tuple) else how.node_data()[0]
    return repr(list(keys)) if cls in (list, dict) else f"{type_name(cls)} of {list(keys)}"


def are_alike(before: Any, after: Any, depth: int = 8) -> bool:
    """Whether two static values are equal, as far as anyone can tell.

    Functions are equal if their code and what they enclose is, and objects that compare by identity if their classes
    are: each construction makes new ones.
    """
    if before is after or not depth:
        return True
    if type(before) is not type(after):
        return False
    parts, others = _parts_of(before), _parts_of(after)
    if parts is not None and others is not None:
        return len(parts) == len(others) and all(
            are_alike(part, other, depth - 1) for part, other in zip(parts, others, strict=True)
        )
    equals: Any = type(before).__eq__
    return equals is object.__eq__ or same_value(before, after)


def _parts_of(value: Any) -> list[Any] | None:
    """What says as much as the value, if that compares by identity, or holds what does."""
    if isinstance(value, types.FunctionType):
        return [value.__code__, *(cell.cell_contents for cell in value.__closure__ or ())]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, (tuple, list)) else None


# --- two models ------------------------------------------------------------------


@overload
def diff(first: State[T] | Mapping[Any, Any], second: State[Any] | Mapping[Any, Any], /) -> State[T]: ...
@overload
def diff(first: Models, second: Models, /) -> tuple[Difference, ...]: ...
def diff(first: Any, second: Any, /) -> State[Any] | tuple[Difference, ...]:
    """The differences of two models, or the leaves at paths that only the first of two States has.

    Of models, the structures are compared first, as `structure` describes them: classes, static values, kinds and
    metadata of Variables, containers, sharing. Then the arrays at equal paths: shapes, dtypes, values (NaN equals NaN).
    Functions are equal if their code is, since each construction makes new lambdas.

    Args:
      first, second: two models, or lists or tuples of models; or two States, whose difference is ``first - second``.

    Returns:
      For models, what differs: where, what the first has, and what the second has. It is empty for equal models. For
      States, a State.

    Raises:
      GraphError: one is a model and the other a State; an array was deleted, as by donation.

    >>> import declax as dx
    >>> one, other = (dx.Linear(2, 3, use_bias=flag, rngs=dx.Rngs(0)) for flag in (True, False))
    >>> print(*dx.diff(one, other), sep="; ")
    use_bias: expected True, got False; bias: expected Param, got None
    >>> dx.diff({"a": 1, "b": 2}, {"b": 3}).to_pure_dict()
    {'a': 1}
    """
    are_states = [isinstance(one, Mapping) and not isinstance(one, Pytree) for one in (first, second)]
    if all(are_states):
        return difference_of_states(first, second)
    if any(are_states):
        got = f"{describe(first)}, {describe(second)}"
        fix = "dx.diff(dx.state(model), state), or dx.diff(model, other)"
        raise GraphError("diff", "this compares two models or two States", got=got, fix=fix)
    ours, theirs = walk((first,)), walk((second,))
    found = [
        (one.path[1:], one.fact, *(repr(v) if one.fact == STATIC_VALUE else v for v in (one.before, one.after)))
        for one in differing(ours.graphdef, theirs.graphdef)
        if one.fact != STATIC_VALUE or not are_alike(one.before, one.after)
    ]
    values = dict(zip(theirs.graphdef.definition.paths, theirs.read(), strict=True))
    for path, value in zip(ours.graphdef.definition.paths, ours.read(), strict=True):
        if path in values:
            check_alive(f"first.{written_path(path[1:])}", value)
            check_alive(f"second.{written_path(path[1:])}", values[path])
        wrong = _unequal(value, values[path]) if path in values else None
        found += [] if wrong is None else [(path[1:], "value", *wrong)]
    whole = {
        path for path, fact, *_ in found if fact not in ("keys", "value", STATIC_VALUE)
    }  # what is below says no more
    below = {path[:end] for path, *_ in found for end in range(len(path))}  # where items say more than their keys
    return tuple(
        Difference(written_path(path) if path else "the model", before, after)
        for path, fact, before, after in found
        if not (fact == "keys" and path in below) and not any(path[:end] in whole for end in range(len(path)))
    )


def _unequal(first: Any, second: Any) -> Misfit | None:
    """How the values of two leaves differ; None if they are equal."""
    sorts = _sort_of(first), _sort_of(second)
    if sorts[0] != sorts[1]:
        return sorts
    wrong = misfit(first, second, STORED)
    if wrong is not None or isinstance(first, jax.ShapeDtypeStruct) or first is None:
        return wrong
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return next((wrong for one, other in pairs if (wrong := _unequal_arrays(one, other)) is not None), None)


def _unequal_arrays(one: Any, other: Any) -> Misfit | None:
    x, y = _numbers(one), _numbers(other)
    differ = np.asarray((x != y) & ~((x != x) & (y != y)))  # NaN equals NaN
    count = int(differ.sum())
    if not count:
        return None
    if x.ndim == 0:
        return str(x), str(y)
    return "equal values", f"other ones in {count} of {x.size} places"


def _numbers(value: Any) -> Any:
    """The content of a leaf."""
    value = value[...] if is_ref(value) else value
    is_key = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def _sort_of(value: Any) -> str:
    """What holds the numbers of a leaf."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return "the description of an array"
    if isinstance(value, (np.ndarray, np.generic)):
        return "an array of NumPy"
    return "an array" if hasattr(value, "dtype") else f"a {type_name(type(value))}"

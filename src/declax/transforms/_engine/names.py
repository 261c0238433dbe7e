"""The names of the leaves of a call, in errors and in JAX."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from itertools import compress
from operator import not_
from typing import Any

import jax

from declax._graph.flattening import class_of, walk_tokens
from declax._graph.nodes import plain_key
from declax.errors import format_path, type_name
from declax.transforms._engine.structure import Structure

MAX_NAMES = 4
"""So many leaves, or functions that have donated last, are named."""


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The parameters of a function by name; None where Python does not know them."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


def paths_in(tree: Any) -> list[tuple[Any, ...]]:
    """The path of each leaf of a tree."""
    numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return [tuple(map(plain_key, keys)) for keys, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]


def joined(name: str, path: Sequence[Any]) -> str:
    """The name of the object at a path."""
    text = format_path(path) if path else ""
    return f"{name}.{text}" if text and text[0] != "[" else name + text


def names_in_result(tree: Any) -> list[str]:
    """The name of each leaf of a result in errors."""
    return [joined("the result", path) for path in paths_in(tree)]


def traced_code(user: Callable[..., Any]) -> Any:
    """The function whose name and place errors show: of a partial, its function; of an object, its method."""
    found = inspect.unwrap(user)
    while isinstance(found, functools.partial):
        found = inspect.unwrap(found.func)
    return found if hasattr(found, "__name__") else type(found).__call__


def name_of(user: Callable[..., Any]) -> str:
    """The name of a function in errors."""
    return str(getattr(traced_code(user), "__name__", type(user).__name__))


def namer_of(function: Any, skipped: Sequence[int] = ()) -> Callable[[int], str]:
    """The names of positional arguments of a function, which may be unknown, by number among those not skipped."""
    known = (parameters(function) or {}).values()

    def name(place: int) -> str:
        for taken in skipped:
            place += taken <= place
        for i, parameter in enumerate(known):
            if parameter.kind is parameter.VAR_POSITIONAL and place >= i:
                return f"{parameter.name}[{place - i}]"
            if i == place and parameter.kind <= parameter.POSITIONAL_OR_KEYWORD:
                return parameter.name
        return f"argument {place}"

    return name


def name_leaves(structure: Structure, name_argument: Callable[[int], str] | None = None) -> list[str]:
    """The name of each leaf of ``(args, kwargs, captured)`` in errors, by the parameters of the function."""
    function = None if structure.key is None else structure.key.function
    name_argument = name_argument or namer_of(function, structure.static_numbers)
    found: list[str] = []
    for part, first, *below in paths_in(structure.tree):
        if part == 2:
            found.append(f"captured {_name_captured(structure, first, sum(structure.is_root[: len(found)]))}")
        else:
            found.append(joined(name_argument(first) if part == 0 else str(first), below))
    return found


def _name_captured(structure: Structure, number: int, rank: int) -> str:
    variable = None if structure.key is None else structure.key.names[number]
    if variable is not None:
        return variable
    token = dict(walk_tokens(structure.graphdef.tokens))[rank,]
    return "model" if isinstance(token, int) else type_name(class_of(token))


def name_path(structure: Structure, path: Sequence[Any], name_argument: Callable[[int], str] | None = None) -> str:
    """The name of a place in the graph of a call in errors, from the rank of the root and the path below it."""
    return joined(name_roots(structure, name_argument)[path[0]], path[1:])


def name_roots(structure: Structure, name_argument: Callable[[int], str] | None = None) -> list[str]:
    """The name of each root of a call in errors."""
    return list(compress(name_leaves(structure, name_argument), structure.is_root))


def name_plain(structure: Structure) -> list[str]:
    """The name of each leaf of a call outside of models, in errors."""
    return list(compress(name_leaves(structure), map(not_, structure.is_root)))


def names_of_call(structure: Structure, name_argument: Callable[[int], str] | None = None) -> list[str]:
    """The name of each leaf of a call in errors: those of the graph, then the array leaves."""
    names = name_leaves(structure, name_argument)
    roots: Any = list(compress(names, structure.is_root))
    of_graph = [joined(roots[path[0]], path[1:]) for path in structure.graphdef.leaf_paths]
    return [*of_graph, *compress(names, map(not_, structure.is_root))]


class LeafNames(inspect.Signature):
    """A signature that binds leaves to their names in the user's code."""

    def __init__(self, structure: Structure) -> None:
        super().__init__([inspect.Parameter("leaves", inspect.Parameter.VAR_POSITIONAL)])
        self._structure = structure

    def bind(self, /, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """The leaves by name; a name that comes again gets a number."""
        bound = super().bind(*args, **kwargs)
        bound.arguments = {}
        seen: dict[str, int] = {}
        for name, leaf in zip(names_of_call(self._structure), args, strict=True):
            seen[name] = seen.get(name, 0) + 1
            bound.arguments[name if seen[name] == 1 else f"{name} ({seen[name]})"] = leaf
        return bound

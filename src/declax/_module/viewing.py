"""Models that share their Variables with another model, and have other attributes."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from declax._classes.pytree import Pytree
from declax._filters import Filter, ask, predicate_of
from declax._graph.api import clone
from declax._graph.editing import asked_modules, attribute_changes
from declax._modes import is_graph, is_on
from declax._module.module import Module, iter_modules
from declax._typing import N
from declax.errors import GraphError, suggest, type_name


def with_attributes(
    node: N, /, *, only: Filter = ..., raise_if_not_found: bool = True, graph: bool | None = None, **attributes: Any
) -> N:
    """A new model with other attributes, which shares its Variables with the original.

    It shares arrays outside of Variables until one of the models replaces them.

    Args:
      node: a model, or a container of models.
      only: which modules get the attributes, if they have them.
      raise_if_not_found: whether a name that no such module has is an error.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.
      **attributes: the new values.

    Raises:
      GraphError: no module has an attribute of this name, or the node is not a tree.
      StatusError: data in a static attribute.

    >>> import declax as dx
    >>> layer = dx.Dropout(0.5, rngs=dx.Rngs(0))
    >>> dx.with_attributes(layer, rate=0.25).rate, layer.rate
    (0.25, 0.5)
    """
    made = clone(node, variables=False, graph=graph)
    chosen = _chosen(made, only, "with_attributes")
    where = type_name(type(node))
    for module, name, value in attribute_changes(chosen, attributes, where, must_exist=raise_if_not_found, only=only):
        if module._pytree__info.is_frozen:  # for its users, not for who makes it
            Pytree.__setattr__(module, name, value)
        else:
            setattr(module, name, value)
    return made


def view(
    node: N, /, *, only: Filter = ..., raise_if_not_found: bool = True, graph: bool | None = None, **kwargs: Any
) -> N:
    """A new model for another use, such as evaluation, which shares its Variables with the original.

    Each module inside with a method ``set_view`` receives the arguments, sets attributes by those that it knows, and
    returns the others. `view_info` lists the arguments that a model knows.

    Args:
      node: a model, or a container of models.
      only: which modules receive the arguments.
      raise_if_not_found: whether an argument that no module uses is an error.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.
      **kwargs: the arguments.

    Raises:
      GraphError: no module uses an argument, or the node is not a tree.

    >>> import declax as dx
    >>> layer = dx.Dropout(0.5, rngs=dx.Rngs(0))
    >>> dx.view(layer, deterministic=True).deterministic, layer.deterministic
    (True, False)
    """
    made = clone(node, variables=False, graph=graph)
    unused = set(kwargs)
    known: set[str] = set()
    for module in _chosen(made, only, "view"):
        method = _set_view_of(type(module))
        if method is not None:
            known.update(_named(method))
            unused -= _give(module, method, kwargs)
    if is_on("raise_if_not_found", raise_if_not_found) and unused:
        hints = [hint for name in sorted(unused) if (hint := suggest(name, known))]
        which = asked_modules(only)
        raise GraphError(
            type_name(type(node)),
            f"no `set_view` of a module {which} uses {sorted(unused)}" + (f"; {' '.join(hints)}" if hints else ""),
            expected=", ".join(sorted(known)) or f"no arguments: no module {which} has a `set_view`",
            fix="raise_if_not_found=False        # ignores unknown arguments",
        )
    return made


def view_info(node: Any, /, *, only: Filter = ..., graph: bool | None = None) -> str:
    """The arguments that `view` accepts for a model, by class of module, with types, defaults and docstrings, as text.

    The part ``Args:`` of the docstring of a `set_view` describes its arguments.

    Args:
      node: a model, or a container of models.
      only: which modules to list.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    >>> import declax as dx
    >>> print(dx.view_info(dx.Dropout(0.5)))
    Dropout:
      deterministic: bool | None = None
        return the input unchanged.
    """
    is_graph(graph)
    predicate = predicate_of(only, "view_info, only")
    classes = {type(m) for path, m in iter_modules(node, graph=graph) if ask(predicate, path, m)}
    methods = [(cls.__qualname__, method) for cls in classes if (method := _set_view_of(cls)) is not None]
    lines: list[str] = []
    for name, method in sorted(methods, key=lambda entry: entry[0]):
        lines.append(f"{name}:")
        descriptions = _descriptions(method)
        for parameter in _named(method).values():
            lines.append(f"  {_as_declared(parameter)}")
            lines.extend(f"    {line}" for line in descriptions.get(parameter.name, ()))
    return "\n".join(lines)


def _descriptions(method: Callable[..., Any]) -> dict[str, list[str]]:
    """The lines of the part ``Args:`` of a docstring, by parameter."""
    docs = textwrap.dedent((inspect.getdoc(method) or "").partition("Args:\n")[2].partition("\n\n")[0])
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in docs.splitlines():
        text = line.strip()
        if line[:1] != " ":
            head, _, text = line.partition(":")
            lines = found.setdefault(head.partition("(")[0].strip(), [])
        if text:
            lines.append(text.strip())
    return found


def _chosen(node: Any, only: Filter, where: str) -> list[Module]:
    predicate = predicate_of(only, f"{where}, only")
    return [m for path, m in iter_modules(node, graph=True) if ask(predicate, path, m)]


def _set_view_of(cls: type) -> Callable[..., Any] | None:
    found = getattr(cls, "set_view", None)
    return found if callable(found) else None


@functools.lru_cache(maxsize=256)
def _parameters(method: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """The parameters after ``self``."""
    return tuple(inspect.signature(method).parameters.values())[1:]


def _named(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {p.name: p for p in _parameters(method) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _give(module: Any, method: Callable[..., Any], kwargs: Mapping[str, Any]) -> set[str]:
    """Calls a module's `set_view`; returns the names of the arguments that it used."""
    takes_all = any(p.kind is p.VAR_KEYWORD for p in _parameters(method))
    named = _named(method)
    given = {name: value for name, value in kwargs.items() if takes_all or name in named}
    if not given:
        return set()
    rest = module.set_view(**given)
    if rest is None:
        return given.keys() & named.keys()
    return set(given) - set(rest)


def _as_declared(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.annotation is not parameter.empty:
        annotation = parameter.annotation
        text += f": {annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)}"
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"

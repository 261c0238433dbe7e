"""Attributes and metadata of many objects at once: of all that are meant, or on an error of none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from declax import _jax
from declax._classes.pytree import Pytree, layout_of
from declax._filters import Filter, as_written, ask, predicate_of
from declax._graph.binding import bind
from declax._modes import is_on
from declax._tree import epoch
from declax._tree.attributes import admit, wrong_trace
from declax._tree.layout import TRACE_KEY
from declax._variables.metadata import Metadata
from declax._variables.variable import Variable, foreign_trace
from declax._variables.variable import _set_metadata as put_metadata
from declax.errors import FilterError, GraphError, format_path, suggest, type_name


def attribute_changes(
    modules: Iterable[Pytree], attributes: Mapping[str, Any], where: str, *, must_exist: bool, only: Filter = ...
) -> list[tuple[Pytree, str, Any]]:
    """The assignments that give modules these attributes where they have them; checked, and not yet made."""
    chosen = list(modules)
    changes = [(m, name, value) for m in chosen for name, value in attributes.items() if hasattr(m, name)]
    missing = sorted(attributes.keys() - {name for _, name, _ in changes})
    if is_on("raise_if_not_found", must_exist) and missing:
        known = sorted({name for m in chosen for name in layout_of(m).statuses if isinstance(name, str)})
        hints = [hint for name in missing if (hint := suggest(name, known))]
        which, got = asked_modules(only, len(chosen))
        raise GraphError(
            where,
            f"no module {which} has the attributes {missing}" + (f"; {' '.join(hints)}" if hints else ""),
            got=got,
            fix="raise_if_not_found=False        # sets those that are there",
        )
    for module, name, value in changes:
        admit(module, name, value, layout_of(module))  # raises for what cannot be set
    return changes


def asked_modules(only: Filter, count: int) -> tuple[str, str | None]:
    """For an error: which modules were asked and, where a filter took them, how many it took."""
    if only is Ellipsis:
        return "inside", None
    return "that `only` takes", f"only={as_written(only)}, which takes {count} module{'' if count == 1 else 's'}"


def check_may_change(module: Pytree, name: str) -> None:
    """Checks that an attribute of a module may be set in place, now."""
    if vars(module).get(TRACE_KEY, _jax.TOP) is not _jax.current_trace():
        raise wrong_trace(module, name)
    if module._pytree__is_frozen:
        raise GraphError(
            f"{type_name(type(module))}.{name}",
            "the class is frozen, so the attribute cannot be set",
            fix="dx.replace(module, ...), or dx.recursive_map(...) for one inside of a model",
        )


def set_metadata(node: Any, /, *, only: Filter = Variable, graph: bool | None = None, **metadata: Any) -> None:
    """Sets metadata of the Variables of a graph, in place: of all that are meant, or on an error of none.

    Args:
      node: a model, or a container of models.
      only: which Variables.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.
      **metadata: names and values; other metadata stays.

    Raises:
      FilterError: where `only` takes no Variable.
      MetadataError: for a name that is a misspelling or hides an attribute.
      StatusError: for a value that has no hash.
      TraceContextError: for a Variable of another trace level.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import BatchStat, Param
    >>> m = Module()
    >>> m.scale, m.mean = Param(2.0), BatchStat(0.0)
    >>> set_metadata(m, only=Param, trainable=False)
    >>> m.scale.trainable, m.mean.has_metadata("trainable")
    (False, False)
    """
    binding = bind(node, graph)
    predicate = predicate_of(only, "set_metadata, only")
    mark = _jax.current_trace()
    changes: list[tuple[Variable[Any], Metadata]] = []
    for path, variable in zip(binding.graphdef.definition.paths, binding.variables, strict=True):
        if variable is None or not ask(predicate, path, variable):
            continue
        cls = type(variable)
        cls._check_metadata(metadata)
        if variable._trace is not mark:
            raise foreign_trace(variable, f"metadata (at {format_path(path)})")
        changes.append((variable, Metadata.of({**variable._metadata, **metadata}, type_name(cls))))
    if not changes:
        raise FilterError(
            "set_metadata",
            "the filter `only` takes no Variable of the graph",
            got=as_written(only),
            fix="dx.explain_filters(model, only)        # what a filter takes",
        )
    for variable, content in changes:
        put_metadata(variable, content)
    epoch.advance()


__all__ = ["asked_modules", "attribute_changes", "check_may_change", "set_metadata"]

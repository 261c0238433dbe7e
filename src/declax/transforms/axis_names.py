"""Names of mapped axes in the metadata of Variables.

In a function that is mapped over an axis, a value has one axis less, and so does the sharding of its Variable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, overload

import jax

from declax._graph.binding import bind_many
from declax._graph.cells import Cell
from declax._typing import MISSING, Missing
from declax._variables.metadata import AXES, OPTIMIZER_AXES, insert_axis, names_of_axes, remove_axis
from declax._variables.placement import placed
from declax._variables.variable import Variable
from declax.errors import TransformError, type_name, with_article
from declax.transforms._engine.call import Call
from declax.transforms._engine.captures import Closure
from declax.transforms._engine.outcome import Outcome, apart_from_carry, leaf_origins, names_of_outputs
from declax.transforms._engine.prefixes import STEP_AXES, Carry, Prefixes, label_at
from declax.transforms._engine.structure import Mode, Structure, checked_function, is_root
from declax.transforms._engine.tracing import new_values
from declax.transforms._engine.wrapped import P, R, look_like

PARTITION_NAME: Final = "partition_name"
"""The key of ``transform_metadata=`` that names the axis which a transform maps over."""


_OF_VALUE: Final = (PARTITION_NAME, OPTIMIZER_AXES)
"""Keys for metadata that Variables move themselves."""


@overload
def transform_metadata(
    f: Callable[P, R], *, in_axes: Any = 0, out_axes: Any = 0, partition: str | None, graph: bool | None = None
) -> Callable[P, R]: ...
@overload
def transform_metadata(
    *, in_axes: Any = 0, out_axes: Any = 0, partition: str | None, graph: bool | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def transform_metadata(
    f: Callable[..., Any] | Missing = MISSING,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    partition: str | None,
    graph: bool | None = None,
) -> Any:
    """Removes the name of a mapped axis from the shardings of Variables while a function runs.

    Use it between a function and the transform that maps it, with the same axes; ``vmap(...,
    transform_metadata={dx.PARTITION_NAME: partition})`` is shorter, and on a mesh splits new Variables along the axis
    too. Variables that the function creates and returns, or adds to its arguments, get the name.

    Args:
      f: the function; omit it to use this as a decorator with options.
      in_axes, out_axes: as in `vmap` or `scan`; Variables without an axis, or with `Carry`, do not change.
      partition: the name of the axis in the shardings.
      graph: False if the arguments must be trees; None for the default of `set_graph_mode`.

    Returns:
      The function, whose arguments have one axis less.

    Raises:
      TransformError: axes do not match, or a sharding has another name for the axis.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> @dx.vmap
    ... @dx.transform_metadata(partition="layers")
    ... def make(scale):
    ...     return dx.Param(scale * jnp.ones(3), sharding=("model",))
    >>> make(jnp.arange(2.0)).out_sharding
    ('layers', 'model')
    """
    axes = Prefixes(in_axes, out_axes, STEP_AXES, graph=graph)
    mode = Mode.of(graph, None)
    metadata = {PARTITION_NAME: partition}
    check_metadata(metadata)

    def name(f: Callable[..., Any]) -> Callable[..., Any]:
        closure = Closure(checked_function("transform_metadata", "f", f))
        return look_like(_named(closure, axes, metadata, mode), f)

    return name if f is MISSING else name(f)


def check_metadata(metadata: Any) -> None:
    """Checks the ``transform_metadata=`` of a transform."""
    is_named = isinstance(metadata, Mapping) and isinstance(metadata.get(PARTITION_NAME, 0), (str, type(None)))
    if not is_named and metadata is not None and metadata != {}:
        raise TransformError(
            "transform_metadata",
            "this does not name an axis",
            expected="{dx.PARTITION_NAME: name}, with a str or None",
            got=repr(metadata),
            fix="transform_metadata={dx.PARTITION_NAME: 'layers'}",
        )
    given = metadata or {}
    name = given.get(PARTITION_NAME)
    if given.get(OPTIMIZER_AXES, name) != name:
        raise TransformError(
            "transform_metadata",
            f"{OPTIMIZER_AXES} has another name for the axis",
            expected=repr(name),
            got=repr(given[OPTIMIZER_AXES]),
            why=f"the state of an optimizer has the axes of its parameter, and {OPTIMIZER_AXES} gets the same name",
            fix=f"transform_metadata={{dx.PARTITION_NAME: {name!r}}}",
        )


def name_axes(function: Callable[..., Any], axes: Prefixes, metadata: Mapping[str, Any] | None) -> Callable[..., Any]:
    """The function, with the names of axes that Variables have inside of a transform; itself without names."""
    return _named(Closure(function), axes, metadata, Mode()) if metadata else function


def place_new(structure: Structure, outcome: Outcome) -> Outcome:
    """The outcome of a mapped function, with new Variables where their names say, now that these have the axis."""
    change = outcome.plan.change
    if change is None:
        return outcome
    known = leaf_origins(structure, change)
    made = {
        position: leaf_def[1]
        for place, position in new_values(outcome.plan).items()
        if place not in known and (leaf_def := change.graphdef.definition.leaf_defs[place]) is not None
    }
    if all(metadata.axes is None for metadata in made.values()):
        return outcome
    names, new = names_of_outputs(structure, outcome.plan), list(outcome.new)
    for position, metadata in made.items():
        new[position] = placed(names[position], new[position], metadata)
    return Outcome(outcome.plan, tuple(new), outcome.output)


_Found = dict[int, tuple[Variable[Any], Any]]
"""The Variables that a call has reached so far, with their axes, by identity."""


def _named(closure: Closure, axes: Prefixes, metadata: Mapping[str, Any], mode: Mode) -> Callable[..., Any]:
    name, others = metadata[PARTITION_NAME], {key: metadata[key] for key in metadata if key not in _OF_VALUE}

    def named(*args: Any, **kwargs: Any) -> Any:
        found: _Found = {}

        def note_arguments(mode: Mode) -> Sequence[Any]:
            call = Call(args, kwargs, mode, closure.find())
            labels = axes.labels(call.structure, call.leaves, closure.function)
            _note(found, call.binding.cells, labels.leaves)
            return call.binding.objects()

        given = note_arguments(mode)
        for variable, axis in _mapped(found):
            _check_name(variable, axis, name)
            _move_others(variable, functools.partial(remove_axis, type(variable)), axis, others)
            variable.remove_axis(axis, name)
        output = closure.function(*args, **kwargs)
        note_arguments(Mode())
        leaves, tree = jax.tree_util.tree_flatten(output, is_leaf=is_root)
        specs = axes.specs_of_result(tree)
        apart = apart_from_carry(leaves, [i for i, spec in enumerate(specs) if spec is Carry], given)
        roots = [pair for pair in zip(apart, specs, strict=True) if is_root(pair[0])]
        if roots:
            binding = bind_many(tuple(root for root, _ in roots))
            definition = binding.graphdef.definition
            places: Any = zip(definition.paths, definition.leaf_defs, binding.read(), strict=True)
            labels = [label_at(roots[p[0]][1], p[1:], leaf_def, value, "out_axes") for p, leaf_def, value in places]
            _note(found, binding.cells, labels)
        for variable, axis in _mapped(found):
            _move_others(variable, insert_axis, axis, others)
            variable.add_axis(axis, name)
        return output if apart is leaves else jax.tree_util.tree_unflatten(tree, apart)

    return named


def _note(found: _Found, cells: Iterable[Cell], labels: Iterable[Any]) -> None:
    for variable, label in zip(cells, labels, strict=False):  # labels of plain leaves may follow
        if isinstance(variable, Variable):
            found.setdefault(id(variable), (variable, label))


def _mapped(found: _Found) -> Iterator[tuple[Variable[Any], int]]:
    """The Variables with an axis, and its number, counted from the front."""
    for variable, label in found.values():
        if isinstance(label, int):
            rank = getattr(variable.raw_value, "ndim", None)
            yield variable, label + rank + 1 if label < 0 and rank is not None else label


def _move_others(
    variable: Variable[Any], move: Callable[[Any, int, Any], Any], axis: int, others: Mapping[str, Any]
) -> None:
    """Inserts or removes the entry of an axis in the other metadata that ``transform_metadata=`` names."""
    for key, entry in others.items():
        entries = variable.get_metadata(key, None)
        if isinstance(entries, tuple) and entries:
            variable.set_metadata(key, move(entries, axis, entry))


def _check_name(variable: Variable[Any], axis: int, name: str | None) -> None:
    """Checks the name of an axis in a sharding before it is removed."""
    names = names_of_axes(variable._metadata.axes)
    if names is not None and (names[axis] if axis < len(names) else MISSING) != name:
        raise TransformError(
            f"the {AXES} of {with_article(type_name(type(variable)))}",
            f"the mapped axis {axis} is not named {name!r}",
            got=repr(variable._metadata.axes),
            why="all Variables with the axis must use the name in transform_metadata",
            fix="in_axes=dx.StateAxes({...: None})        # for unmapped Variables, or omit transform_metadata",
        )

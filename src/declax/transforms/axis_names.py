"""Names of mapped axes in the metadata of Variables.

The sharding of a Variable says for each axis of its value over which axis of
the mesh it lies. Inside of a function that is mapped over one of these axes,
the value has one less, and so has the sharding.

Vocabulary
----------
axis name: what the sharding of a Variable calls the axis that is mapped over.
inside:    in the function, where that axis is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final, ParamSpec, TypeVar, overload

import jax

from declax._metadata import AXIS_NAMES, Metadata
from declax._typing import MISSING, Missing
from declax._variable_fields import names_of_axes
from declax._variables import Variable
from declax.errors import TransformError, describe, suggest, type_name
from declax.graph.binding import bind_many
from declax.transforms._captures import Closure
from declax.transforms._lift import Call
from declax.transforms._structure import Mode, is_root
from declax.transforms._wrapping import look_like
from declax.transforms.prefixes import Prefixes, label_at

P = ParamSpec("P")
R = TypeVar("R")

PARTITION_NAME: Final = "partition_name"
"""The key of ``transform_metadata=`` that names the axis which a transform maps over."""


@overload
def transform_metadata(
    f: Callable[P, R], /, *, in_axes: Any = 0, out_axes: Any = 0, partition: str | None, graph: bool | None = None
) -> Callable[P, R]: ...
@overload
def transform_metadata(
    *, in_axes: Any = 0, out_axes: Any = 0, partition: str | None, graph: bool | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def transform_metadata(
    f: Callable[..., Any] | Missing = MISSING,
    /,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    partition: str | None,
    graph: bool | None = None,
) -> Any:
    """Takes the name of a mapped axis out of the shardings of Variables, inside of a function.

    To be put between a function and the transform that maps it, with the axes
    of that transform. The lifted ones do the same with
    ``transform_metadata={dx.PARTITION_NAME: partition}``. Variables that the
    function makes and returns, or puts into its arguments, get the name.

    Args:
      f: the function; leave it out to use this as a decorator with options.
      in_axes, out_axes: as in `vmap`; Variables without an axis stay as they are.
      partition: what the sharding of the Variables calls the axis.
      graph: False where the arguments have to be trees; None for the default of
        `set_graph_mode`.

    Returns:
      The function, whose arguments have one axis less.

    Raises:
      TransformError: for axes that do not fit, and for a Variable whose
        sharding calls the axis by another name.

    >>> import jax.numpy as jnp
    >>> from declax._variables import Param
    >>> from declax.transforms.vectorization import vmap
    >>> @vmap
    ... @transform_metadata(partition="layers")
    ... def make(scale):
    ...     return Param(scale * jnp.ones(3), sharding=("model",))
    >>> make(jnp.arange(2.0)).sharding
    ('layers', 'model')
    """
    axes = Prefixes(in_axes, out_axes)
    mode = Mode.of(graph, None)
    metadata = {PARTITION_NAME: partition}
    check_metadata(metadata)

    def name(f: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(f):
            fix = "@dx.transform_metadata(partition='layers')"
            raise TransformError("transform_metadata", "the argument is no function", got=describe(f), fix=fix)
        return look_like(_named(Closure(f), axes, partition, mode), f)

    return name if f is MISSING else name(f)


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Checks the ``transform_metadata=`` of a transform.

    Raises:
      TransformError: for what is no mapping, for keys that mean nothing, and
        for a name that is none.
    """
    if metadata is None:
        return
    fix = "transform_metadata={dx.PARTITION_NAME: 'layers'}"
    if not isinstance(metadata, Mapping):
        raise TransformError("transform_metadata", "this is no mapping", got=describe(metadata), fix=fix)
    for key, value in metadata.items():
        if key != PARTITION_NAME:
            why = suggest(str(key), [PARTITION_NAME])
            raise TransformError("transform_metadata", f"the key {key!r} means nothing here", why=why, fix=fix)
        if value is not None and not isinstance(value, str):
            problem = "this is no name of an axis"
            raise TransformError("transform_metadata", problem, expected="a str or None", got=describe(value), fix=fix)


def name_axes(function: Callable[..., Any], axes: Prefixes, metadata: Mapping[str, Any] | None) -> Callable[..., Any]:
    """The function with names of axes as they are inside of a transform.

    Args:
      function: the user's, over rebuilt objects.
      axes: of the transform.
      metadata: what the user gave as ``transform_metadata=``.

    Returns:
      A function of the same arguments; the same one where nothing is named.
    """
    if not metadata:
        return function
    return _named(Closure(function), axes, metadata[PARTITION_NAME], Mode())


def _named(closure: Closure, axes: Prefixes, name: str | None, mode: Mode) -> Callable[..., Any]:
    def named(*args: Any, **kwargs: Any) -> Any:
        found = _Found(axes, name, closure.function)
        found.look_at(Call(args, kwargs, mode, closure.find()))
        with found.restored_on_error():
            found.remove()
            output = closure.function(*args, **kwargs)
            found.look_at(Call(args, kwargs, Mode(), closure.find()))
            found.look_at_results(output)
            found.add()
        return output

    return named


class _Found:
    """The Variables that a call has reached so far, with their axes."""

    def __init__(self, axes: Prefixes, name: str | None, function: Callable[..., Any]) -> None:
        self._axes = axes
        self._function = function
        self._name = name
        self._known: dict[int, tuple[Variable[Any], Any]] = {}
        self._before: list[tuple[Variable[Any], Metadata]] = []

    def look_at(self, call: Call) -> None:
        """Takes note of the Variables of a call that are not known yet."""
        labels = self._axes.labels(call, self._function)
        if call.binding is not None:
            self._note(zip(call.binding.variables, labels.values, strict=True))

    def look_at_results(self, output: Any) -> None:
        """Takes note of new Variables in what the function returned."""
        leaves, tree = jax.tree_util.tree_flatten(output, is_leaf=is_root)
        found = [pair for pair in zip(leaves, self._axes.specs_of_result(tree), strict=True) if is_root(pair[0])]
        if found:
            binding = bind_many(tuple(root for root, _ in found))
            definition = binding.graphdef.definition
            places: Any = zip(definition.paths, definition.leaf_defs, binding.read(), strict=True)
            labels = (label_at(found[p[0]][1], p[1:], leaf_def, value, "out_axes") for p, leaf_def, value in places)
            self._note(zip(binding.variables, labels, strict=True))

    def _note(self, pairs: Iterable[tuple[Variable[Any] | None, Any]]) -> None:
        for variable, label in pairs:
            if variable is not None and id(variable) not in self._known:
                self._known[id(variable)] = variable, label
                self._before.append((variable, variable._metadata))

    @contextlib.contextmanager
    def restored_on_error(self) -> Generator[None]:
        """A block after whose errors all Variables have the metadata with which they were found."""
        try:
            yield
        except BaseException:
            for variable, metadata in self._before:
                if variable._metadata is not metadata:
                    variable._change_metadata(metadata)
            raise

    def remove(self) -> None:
        """Tells the Variables that they have lost the axis."""
        for variable, axis in self._mapped():
            _check_name(variable, axis, self._name)
            variable.remove_axis(axis, self._name)

    def add(self) -> None:
        """Tells the Variables that they have got the axis."""
        for variable, axis in self._mapped():
            variable.add_axis(axis, self._name)

    def _mapped(self) -> Iterator[tuple[Variable[Any], int]]:
        """The Variables with an axis, and its number from the front in values that have it."""
        for variable, label in self._known.values():
            if isinstance(label, int):
                rank = getattr(variable.raw_value, "ndim", None)
                yield variable, label + rank + 1 if label < 0 and rank is not None else label


def _check_name(variable: Variable[Any], axis: int, name: str | None) -> None:
    """Checks that a sharding says of an axis what is going to be removed.

    Raises:
      TransformError: it calls the axis by another name, or ends before it.
    """
    for key in AXIS_NAMES:
        names = names_of_axes(variable._metadata.get(key))
        if names is not None and (names[axis] if axis < len(names) else MISSING) != name:
            raise TransformError(
                f"the {key} of a {type_name(type(variable))}",
                f"it does not call axis {axis}, which is mapped over, {name!r}",
                got=repr(variable._metadata[key]),
                why="transform_metadata names the axis, and Variables that have it must have that name for it",
                fix="in_axes=dx.StateAxes({...: None})        # for what is not mapped, or no transform_metadata",
            )

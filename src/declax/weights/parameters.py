"""The parameters of a model by name; each layer of a stack has separate names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from declax._filters import Any as AnyOf
from declax._filters import Filter, Not
from declax._graph.api import state
from declax._graph.iteration import iter_graph
from declax._typing import Path
from declax._variables.kinds import Cache, Intermediate, Perturbation, RngState
from declax.errors import WeightsError, describe, format_path
from declax.nn.stacking import Stacked

IS_WEIGHT: Final[Filter] = Not(AnyOf(RngState, Cache, Intermediate, Perturbation))
"""What files of weights hold."""


class Parameter(NamedTuple):
    """A leaf of a model, or one layer of the leaf of a stack.

    Attributes:
      path: of the leaf.
      layer: its number, for each stack that the leaf is in; empty for a whole leaf.
      shown: the path as it is written in code.
      shape: of the leaf or its layer.
      dtype: of the leaf.
    """

    path: Path
    layer: tuple[int, ...]
    shown: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Parameters(NamedTuple):
    """The parameters of a model.

    Attributes:
      by_name: all of them, layers before whole leaves; a name is a path with dots.
      leaves: the leaves that the caller selected, by path.
      layers: for each of these in a stack, the names of its layers.
    """

    by_name: dict[str, Parameter]
    leaves: dict[Path, Any]
    layers: dict[Path, list[str]]

    @staticmethod
    def of(model: Any, only: Filter | None) -> Parameters:
        """Reads a model, which may be abstract; raises if two parameters have one name or `only` selects none."""
        stacks = {path: stack.length for path, stack in iter_graph(model) if isinstance(stack, Stacked)}
        selected = state(model, IS_WEIGHT if only is None else only)
        every = state(model)
        layers: dict[str, Parameter] = {}
        whole: dict[str, Parameter] = {}
        names: dict[Path, list[str]] = {}
        for path, leaf in zip(every.paths, every.leaves, strict=True):
            if isinstance(leaf, Tracer):
                why = "files are read and written once, when Python runs, and not by the compiled program"
                raise WeightsError(
                    f"weights, {format_path(path)}",
                    "the parameter is a tracer",
                    got=describe(leaf),
                    why=why,
                    fix="dx.load_weights(model, file)        # outside of jit, grad and vmap",
                )
            if not _is_array(leaf):
                continue
            name = name_of(path)
            if name in whole:
                places = f"{whole[name].shown} and {format_path(path)}"
                raise WeightsError("weights", f"two parameters have the name {name!r}", got=places)
            whole[name] = _parameter(path, (), path, leaf)
            split = {name_of(shown): _parameter(path, index, shown, leaf) for index, shown in _layers(path, stacks)}
            layers |= split
            names[path] = list(split)
        leaves = {path: leaf for path, leaf in zip(selected.paths, selected.leaves, strict=True) if path in names}
        if only is not None and not leaves:
            raise WeightsError("weights, only", "the filter selects no parameter", got=repr(only))
        return Parameters({**layers, **whole}, leaves, {path: names[path] for path in leaves})

    def is_selected(self, name: str) -> bool:
        """Whether the caller selected a parameter."""
        return self.by_name[name].path in self.leaves

    def overlapping(self, name: str) -> list[str]:
        """The names of a parameter, of the leaf that it is a layer of, and of its layers."""
        parameter = self.by_name[name]
        others = [name_of(parameter.path)] if parameter.layer else self.layers.get(parameter.path, [])
        return [name, *others]

    def missing(self, given: Mapping[str, Any]) -> Iterator[str]:
        """The names of selected parameters that are not among the given ones."""
        for path in self.leaves:
            if name_of(path) not in given:
                yield from (name for name in self.layers[path] or [name_of(path)] if name not in given)


def name_of(path: Path) -> str:
    """A path with dots between its keys."""
    return ".".join(map(str, path))


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, (bool, int, float, complex)):
        return True
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)) and not jnp.issubdtype(
        leaf.dtype, jax.dtypes.extended
    )


def _parameter(path: Path, layer: tuple[int, ...], shown: Path, leaf: Any) -> Parameter:
    dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.asarray(leaf).dtype
    return Parameter(path, layer, format_path(shown), np.shape(leaf)[len(layer) :], np.dtype(dtype))


def _layers(path: Path, stacks: Mapping[Path, int]) -> Iterator[tuple[tuple[int, ...], Path]]:
    """For each layer of a leaf in stacks, its index, and the path with the index in place of the name `layers`."""
    depths = [depth for depth, key in enumerate(path) if key == "layers" and path[:depth] in stacks]
    if not depths:
        return
    for index in product(*[range(stacks[path[:depth]]) for depth in depths]):
        numbers = dict(zip(depths, index, strict=True))
        yield index, tuple(numbers.get(depth, key) for depth, key in enumerate(path))

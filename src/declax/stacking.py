"""Stacks of layers: n layers of one kind as one, whose arrays have an axis for the layers.

Vocabulary
----------
stacked: of an array: of all layers, along the first axis.
fixed:   of an argument of a call: neither an array nor a model, so that it is the
         same for all layers while JAX traces.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp
from jax.core import Tracer

from declax._containers import List
from declax._module import Module
from declax._nodes import Kind, kind_of
from declax._stack_making import EXAMPLE, layer_of, make_layers, read_only, stack
from declax._static import exact_types
from declax._typing import MISSING
from declax.errors import LayerError, describe, type_name
from declax.graph.api import state
from declax.graph.updating import update
from declax.rngs import Rngs
from declax.transforms._structure import Mode, is_root
from declax.transforms.axis_names import PARTITION_NAME
from declax.transforms.prefixes import Carry
from declax.transforms.rematerialization import remat as rematerialized
from declax.transforms.scanning import scan

M = TypeVar("M", bound=Module)
X = TypeVar("X")
Y = TypeVar("Y")


class Stacked(Module, Generic[M]):
    """n layers of one kind, one after the other, as one module.

    The layers are made in one vectorised construction, and run by `scan`: the
    program is traced and compiled for one layer, however many there are. They
    start from the weights that n layers made in turn from the same `rngs` would
    start from.

    Args:
      build: makes a layer; called with a Rngs where `rngs` is given. All layers
        have the same structure.
      n: how many.
      rngs: where the layers draw from, one after the other. A layer that keeps
        the Rngs gets one of its own.
      remat: whether the layers' activations are computed again in the backward
        pass; or a policy of `jax.checkpoint_policies`, which says what is kept.
      unroll: how many layers one step of the loop runs; True for all.
      axis_name: the name of the layers' axis in the sharding metadata.

    Attributes:
      layers: one module, whose arrays are stacked.
      length: how many layers there are.

    Raises:
      LayerError: for a number below one, for what makes no Module, for a
        `remat` that is neither a flag nor a policy, and for a part that the
        layers share, as one that `build` takes from outside.

    The arrays of a call, ``(..., d)``, go through each layer; so the result of
    a layer has the shape and dtype of its argument.

    >>> import jax.numpy as jnp
    >>> from declax.nn import Linear
    >>> blocks = Stacked(lambda rngs: Linear(4, 4, rngs=rngs), 3, rngs=Rngs(0))
    >>> blocks.layers.kernel.shape
    (3, 4, 4)
    >>> blocks(jnp.ones((2, 4))).shape
    (2, 4)
    >>> blocks[1].kernel.shape, len(blocks)
    ((4, 4), 3)
    """

    layers: M

    def __init__(
        self,
        build: Callable[..., M],
        n: int,
        /,
        *,
        rngs: Rngs | None = None,
        remat: bool | Callable[..., bool] = False,
        unroll: int | bool = 1,
        axis_name: str | None = None,
    ) -> None:
        _check_options(build, n, remat)
        self.length = n
        self.remat = remat
        self.unroll = unroll
        self.axis_name = axis_name
        self.layers = build.layers if isinstance(build, _Given) else make_layers(build, n, rngs, self._metadata())

    @classmethod
    def of(cls, layers: Sequence[M], /, **options: Any) -> Stacked[M]:
        """Stacks layers that exist; their arrays are copied.

        Args:
          layers: of one structure, with arrays of the same shapes.
          **options: `remat`, `unroll` and `axis_name`.

        Raises:
          LayerError: they differ, or there are none.

        >>> from declax.nn import Linear
        >>> rngs = Rngs(0)
        >>> Stacked.of([Linear(2, 2, rngs=rngs), Linear(2, 2, rngs=rngs)]).length
        2
        """
        listed = list(layers)
        if not listed:
            raise LayerError("Stacked.of", "there are no layers", expected="at least one", fix="dx.Stacked.of([layer])")
        return cls(_Given(stack(listed, options.get("axis_name"))), len(listed), **options)

    def _metadata(self) -> dict[str, Any]:
        return {} if self.axis_name is None else {PARTITION_NAME: self.axis_name}

    def __call__(self, x: X, *args: Any, **kwargs: Any) -> X:
        """Runs the layers one after the other.

        Args:
          x: goes from layer to layer: an array, or a tree of them.
          *args, **kwargs: further arguments, the same for each layer. Flags,
            strings and numbers of Python stay what they are.

        Returns:
          What the last layer returns.

        Raises:
          LayerError: a layer gives another shape or dtype than it takes.
        """
        arrays, fixed = _Fixed.apart(args, kwargs)
        x, _ = self._runner(fixed)(self.layers, x, arrays)
        return x

    def _runner(self, fixed: _Fixed) -> Callable[..., Any]:
        """What runs the layers; that of an earlier call, so that JAX finds its program."""
        key = (self.length, self.remat, self.unroll, self.axis_name, fixed, Mode.of(None, None))
        try:
            known = _runners.setdefault(self, {})
            found = known.get(key)
        except TypeError:  # an argument, or a layer, that has no hash
            return self._scan(functools.partial(_run, fixed), (None,))
        if found is None:
            if len(known) >= MAX_RUNNERS:
                known.clear()
            found = known[key] = self._scan(functools.partial(_run, fixed), (None,))
        return found

    def scan(self, f: Callable[..., tuple[X, Y]], x: X, /, *xs: Any) -> tuple[X, Y]:
        """Runs a function on layer after layer, with an input and an output for each.

        Args:
          f: ``f(layer, x, *xs_of_the_layer)`` returns the next `x`, and the
            output of the layer.
          x: goes from layer to layer.
          *xs: trees of arrays with a first axis for the layers.

        Returns:
          The last `x`, and the outputs, stacked.

        >>> from declax.nn import Linear
        >>> blocks = Stacked(lambda rngs: Linear(4, 4, rngs=rngs), 3, rngs=Rngs(0))
        >>> x, norms = blocks.scan(lambda layer, x: (layer(x), jnp.abs(x).max()), jnp.ones(4))
        >>> norms.shape
        (3,)
        """
        found: tuple[Any, Any] = self._scan(f, (0,) * len(xs))(self.layers, x, *xs)
        return found

    def _scan(self, f: Callable[..., Any], axes: tuple[Any, ...]) -> Callable[..., Any]:
        if self.remat is not False:
            policy = None if self.remat is True else self.remat
            f = rematerialized(f, policy=policy, prevent_cse=False)  # the loop keeps what is computed apart
        return scan(
            f,
            length=self.length,
            in_axes=(0, Carry, *axes),
            out_axes=(Carry, 0),
            unroll=self.unroll,
            transform_metadata=self._metadata(),
        )

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> M: ...
    @overload
    def __getitem__(self, index: slice) -> Stacked[M]: ...
    def __getitem__(self, index: int | slice) -> M | Stacked[M]:
        """A copy of one layer, or of some as a stack: to read and to call.

        What a copy is given would be lost, so it refuses to be changed: also by
        a call that sets statistics or draws random numbers. ``dx.clone(stack[0])``
        can be changed, and put back by ``stack[0] = layer``.

        Raises:
          IndexError: there is no such layer.
          LayerError: the index is known only when the program runs.
        """
        if not isinstance(index, slice):
            number = self._number(index)
            found: M = read_only(self._layer(number), number)
            return found
        chosen = [self._layer(number) for number in range(self.length)[index]]
        part = Stacked.of(chosen, remat=self.remat, unroll=self.unroll, axis_name=self.axis_name)
        made: Stacked[M] = read_only(part, index)
        return made

    def _number(self, index: Any) -> int:
        if isinstance(index, Tracer):
            raise LayerError(
                "Stacked",
                "the number of a layer has to be known while tracing",
                expected="an int",
                got=describe(index),
                fix="graphdef, arrays = dx.split(stack.layers)\n"
                "layer = dx.merge(graphdef, jax.tree.map(lambda x: x[index], arrays))",
            )
        number: int = range(self.length)[index]
        return number

    def __setitem__(self, index: int, layer: M) -> None:
        """Sets the arrays of one layer.

        Raises:
          GraphError: it has another structure, or other shapes.
          IndexError: there is no such layer.
          LayerError: the index is known only when the program runs.
        """
        number = self._number(index)
        part = self._layer(number)
        update(part, state(layer), complete=True)
        update(
            self.layers, jax.tree.map(lambda stack, leaf: stack.at[number].set(leaf), state(self.layers), state(part))
        )

    def __iter__(self) -> Iterator[M]:
        return (self[number] for number in range(self.length))

    def _layer(self, number: int) -> M:
        layer: M = layer_of(self.layers, number, self.axis_name)
        return layer

    def unstack(self) -> List[M]:
        """A `List` of copies of the layers, which can be changed."""
        return List([self._layer(number) for number in range(self.length)])


MAX_RUNNERS = 16
"""Of so many sets of flags and other fixed arguments, a stack keeps the programs."""

_runners: weakref.WeakKeyDictionary[Stacked[Any], dict[Any, Callable[..., Any]]] = weakref.WeakKeyDictionary()


class _Fixed(NamedTuple):
    """Arguments of a layer without their arrays and models.

    Attributes:
      tree: of ``(args, kwargs)``.
      values: those of the leaves that are neither arrays nor models; `MISSING` for the others.
      types: of the values, since 1 and True are equal.
    """

    tree: Any
    values: tuple[Any, ...]
    types: Any

    @classmethod
    def apart(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], _Fixed]:
        """The arrays and models of arguments, and the rest."""
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=is_root)
        is_array = [is_root(leaf) or kind_of(leaf) in _ARRAYS for leaf in leaves]
        values = tuple(MISSING if one else leaf for leaf, one in zip(leaves, is_array, strict=True))
        return [leaf for leaf, one in zip(leaves, is_array, strict=True) if one], cls(tree, values, exact_types(values))

    def put(self, arrays: Iterable[Any]) -> Any:
        """The arguments with other arrays and models."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(rest) if value is MISSING else value for value in self.values])


_ARRAYS = (Kind.LEAF, Kind.REF)


def _run(fixed: _Fixed, layer: Any, x: Any, arrays: Any) -> tuple[Any, None]:
    """One step of a stack: what the next layer is given."""
    args, kwargs = fixed.put(arrays)
    made = layer(x, *args, **kwargs)
    _check_type(x, made)
    return made, None


def _check_type(x: Any, made: Any) -> None:
    """Checks that the next layer can take what a layer gives.

    Raises:
      LayerError: it has another structure, or other shapes or dtypes.
    """
    tree: Any
    leaves, tree = jax.tree_util.tree_flatten(x, is_leaf=is_root)
    results, tree_of_results = jax.tree_util.tree_flatten(made, is_leaf=is_root)
    if any(map(is_root, leaves)):
        return  # a model: `scan` compares it
    is_same = tree == tree_of_results and not any(map(is_root, results))
    if not is_same or list(map(_type_of, leaves)) != list(map(_type_of, results)):
        raise LayerError(
            "Stacked",
            "a layer gives something else than it takes",
            expected=_text_of(x),
            got=_text_of(made),
            why="one program runs all layers, each of which takes what the one before gives",
            fix="dx.List([...])        # for layers that differ; or x.astype(...) first, where it is the dtype",
        )


def _type_of(leaf: Any) -> tuple[Any, Any]:
    return jnp.shape(leaf), jnp.result_type(leaf)


def _text_of(value: Any) -> str:
    shown = jax.tree.map(
        lambda leaf: type_name(type(leaf)) if is_root(leaf) else jax.typeof(leaf), value, is_leaf=is_root
    )
    return str(shown)


def _check_options(build: object, n: object, remat: object) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        problem = "there is no such number of layers"
        raise LayerError(
            "Stacked", problem, expected="an int of at least 1", got=describe(n), fix="dx.Stacked(build, 12)"
        )
    if isinstance(build, Module):
        raise LayerError(
            "Stacked",
            "this is a layer, and no function that makes one",
            got=describe(build),
            fix=f"{EXAMPLE}\ndx.Stacked.of([block_0, block_1])        # of layers that exist",
        )
    if not callable(build):
        raise LayerError("Stacked", "what makes a layer is no function", got=describe(build), fix=EXAMPLE)
    if not isinstance(remat, bool) and not callable(remat):
        raise LayerError(
            "Stacked, remat",
            "this is no policy",
            expected="True, False, or a policy of jax.checkpoint_policies",
            got=describe(remat),
            fix="remat=jax.checkpoint_policies.dots_saveable",
        )


class _Given:
    """Stands for the function that makes layers, where they are there already."""

    def __init__(self, layers: Any) -> None:
        self.layers = layers

    def __call__(self) -> Any:
        return self.layers

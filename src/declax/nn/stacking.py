"""Stacks of layers: n layers of one kind as one module, whose arrays have a first axis for the layers."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypedDict, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from declax import _jax
from declax._classes.pytree import Pytree
from declax._fields.call import has_expression
from declax._fields.snapshots import exact_types
from declax._fields.sources import text_of
from declax._graph.api import clone, merge, split, state
from declax._graph.differences import STATIC_VALUE, first_differing
from declax._graph.iteration import iter_graph
from declax._graph.nodes import Kind, kind_of
from declax._graph.updating import update
from declax._module.containers import List
from declax._module.module import Module
from declax._random.streams import Rngs, RngStream
from declax._tree.layout import BOUND_KEY, TRACE_KEY
from declax._tree.read_only import ReadOnly
from declax._typing import MISSING, Path
from declax._variables.kinds import RngCount
from declax._variables.lost_writes import trace_of
from declax._variables.placement import in_device_memory, in_memory_of
from declax._variables.variable import Variable
from declax._variables.variable import _set_trace as set_trace_token
from declax.errors import LayerError, describe
from declax.transforms._engine.captures import Captures
from declax.transforms._engine.names import joined
from declax.transforms._engine.prefixes import Carry, StateAxes
from declax.transforms._engine.structure import Mode, is_root
from declax.transforms.axis_names import PARTITION_NAME
from declax.transforms.rematerialization import remat as rematerialized
from declax.transforms.scanning import scan
from declax.transforms.vectorization import vmap

if TYPE_CHECKING:
    from typing import Unpack

M = TypeVar("M", bound=Module)
M_co = TypeVar("M_co", bound=Module, covariant=True)
X = TypeVar("X")
Y = TypeVar("Y")


class _Buildable(Protocol[M_co]):
    """A Spec, which is of a module above this one."""

    def build(self, *, rngs: Rngs | None = None) -> M_co:
        """Builds a layer."""
        ...


class StackOptions(TypedDict, total=False):
    """The options of `Stacked`."""

    rngs: Rngs | None
    remat: bool | Callable[..., bool]
    unroll: int | bool
    axis_name: str | None


class Stacked(Module, Generic[M]):
    """n layers of one kind, one after the other, as one module.

    One vectorised construction makes the layers, with the weights that n separate layers would draw from the same
    `rngs`. `scan` runs them, so the program is traced and compiled for one layer.

    Args:
      build: makes a layer; receives a Rngs if `rngs` is given. All layers have the same structure. In the body of a
        declared class, the call that makes a layer; its `rngs` are those of the stack. Or the Spec of a layer: then
        `spec_of` describes the stack, and configurations say ``build = { kind = "Block", dim = 8 }``.
      n: the number of layers.
      rngs: the layers draw from it in turn. A layer that keeps a Rngs gets its own.
      remat: whether the backward pass recomputes activations; or a policy of `jax.checkpoint_policies`.
      unroll: how many layers one step of the loop runs; True for all.
      axis_name: the name of the layers' axis in the sharding metadata; None for an axis that is not split.

    Attributes:
      layers: one module with the stacked arrays.
      length: the number of layers. In `shard_map`, of all shards; ``len(stack)`` is that of the shard.

    Raises:
      LayerError: `n` is below one, `build` does not return a Module, `remat` is neither a flag nor a policy, or the
        layers share a part.

    A call maps arrays ``(..., d)`` through all layers, so a layer keeps shape and dtype.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> blocks = dx.Stacked(lambda rngs: dx.Linear(4, 4, rngs=rngs), 3, rngs=dx.Rngs(0))
    >>> blocks.layers.kernel.shape
    (3, 4, 4)
    >>> blocks(jnp.ones((2, 4))).shape
    (2, 4)
    >>> blocks[1].kernel.shape, len(blocks)
    ((4, 4), 3)
    """

    layers: M
    _pytree__makes_layers: ClassVar = True
    """In a class body, the first argument may be a deferred call, which makes each layer."""

    @overload
    def __init__(self, layer: M, n: int, /, **options: Unpack[StackOptions]) -> None: ...
    @overload
    def __init__(self, build: Callable[..., M], n: int, /, **options: Unpack[StackOptions]) -> None: ...
    @overload
    def __init__(self, spec: _Buildable[M], n: int, /, **options: Unpack[StackOptions]) -> None: ...
    def __init__(
        self,
        build: Any,
        n: int,
        /,
        *,
        rngs: Rngs | None = None,
        remat: bool | Callable[..., bool] = False,
        unroll: int | bool = 1,
        axis_name: str | None = None,
    ) -> None:
        spec: Any = build
        if not callable(build) and callable(getattr(build, "build", None)):
            self._spec = spec
            build = functools.partial(_built, spec)
        _check_options(build, n, remat)
        self.length = n
        self.remat = remat
        self.unroll = unroll
        self.axis_name = axis_name
        self.layers = build.layers if isinstance(build, _Given) else _make_layers(build, n, rngs, self._metadata())

    @classmethod
    def of(cls, layers: Sequence[M], /, **options: Any) -> Stacked[M]:
        """Stacks existing layers, with copies of their arrays.

        Args:
          layers: with one structure and arrays of the same shapes.
          **options: `remat`, `unroll` and `axis_name`.

        Raises:
          LayerError: the layers differ, there are none, or they are expressions of a class body.

        >>> import declax as dx
        >>> rngs = dx.Rngs(0)
        >>> dx.Stacked.of([dx.Linear(2, 2, rngs=rngs), dx.Linear(2, 2, rngs=rngs)]).length
        2
        """
        if has_expression(layers):
            raise LayerError(
                "Stacked.of",
                "these layers are not made until an instance is created",
                got=text_of(layers),
                fix=f"dx.defer(dx.Stacked.of)({text_of(layers)})\ndx.Stacked(dx.Linear(dim, dim), 12)",
            )
        listed = list(layers)
        if not listed:
            raise LayerError("Stacked.of", "there are no layers", expected="at least one", fix="dx.Stacked.of([layer])")
        return cls(_Given(_stack(listed, options.get("axis_name"))), len(listed), **options)

    def _metadata(self) -> dict[str, Any]:
        return {PARTITION_NAME: self.axis_name}

    def _arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, for a Spec; without `build`, if a function made the layers."""
        build = {"build": self._spec} if hasattr(self, "_spec") else {}
        return {**build, **{name: vars(self)[name] for name in ("remat", "unroll", "axis_name")}, "n": self.length}

    def __call__(self, x: X, *args: Any, **kwargs: Any) -> X:
        """Runs the layers one after the other.

        Args:
          x: an array or a tree of arrays, the argument of the first layer.
          *args, **kwargs: further arguments of each layer. Flags, strings and Python numbers are static.

        Returns:
          The result of the last layer.

        Raises:
          TransformError: a layer changes the shape or dtype.
        """
        arrays, fixed = _Fixed.apart(args, kwargs)
        x, _ = self._runner(fixed)(self.layers, x, arrays)
        return x

    def _runner(self, fixed: _Fixed) -> Callable[..., Any]:
        """The function that runs the layers; kept, so that JAX finds its program."""
        key = (len(self), self.remat, self.unroll, self.axis_name, fixed, Mode.of(None, None))
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
        """Calls a function with layer after layer, with an input and an output for each.

        Args:
          f: ``f(layer, x, *xs_of_the_layer)`` returns the next `x` and the output of the layer.
          x: the first `x`.
          *xs: trees of arrays with a first axis for the layers.

        Returns:
          The last `x`, and the stacked outputs.

        >>> import declax as dx
        >>> import jax.numpy as jnp
        >>> blocks = dx.Stacked(lambda rngs: dx.Linear(4, 4, rngs=rngs), 3, rngs=dx.Rngs(0))
        >>> x, norms = blocks.scan(lambda layer, x: (layer(x), jnp.abs(x).max()), jnp.ones(4))
        >>> norms.shape
        (3,)
        """
        found: tuple[Any, Any] = self._scan(f, (0,) * len(xs))(self.layers, x, *xs)
        return found

    def _scan(self, f: Callable[..., Any], axes: tuple[Any, ...]) -> Callable[..., Any]:
        f = _in_device_memory(f)  # in what is recomputed too, so that the gradient moves each layer again
        if self.remat is not False:
            policy = None if self.remat is True else self.remat
            f = rematerialized(f, policy=policy, prevent_cse=False)  # the loop keeps what is computed apart
        return scan(
            f,
            length=len(self),
            in_axes=(0, Carry, *axes),
            out_axes=(Carry, 0),
            unroll=self.unroll,
            transform_metadata=self._metadata(),
        )

    def __len__(self) -> int:
        """The number of layers that the arrays have; in `shard_map`, those of the shard."""
        sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(state(self.layers))}
        (size,) = sizes.pop() if len(sizes) == 1 and () not in sizes else (self.length,)
        return size  # if the arrays differ, the loop names those of another size than `length`

    @overload
    def __getitem__(self, index: int) -> M: ...
    @overload
    def __getitem__(self, index: slice) -> Stacked[M]: ...
    def __getitem__(self, index: int | slice) -> M | Stacked[M]:
        """A read-only copy of one layer, or of some as a stack.

        Changes of a copy would be lost, so it raises an error if statistics or random streams would change too.
        ``dx.clone(stack[0])`` can be changed, and ``stack[0] = layer`` writes it back.

        Raises:
          IndexError: the layer does not exist.
        """
        made: M | Stacked[M]
        if isinstance(index, slice):
            chosen = [self._layer(number) for number in range(len(self))[index]]
            made = Stacked.of(chosen, remat=self.remat, unroll=self.unroll, axis_name=self.axis_name)
        else:
            index = range(len(self))[index]
            made = self._layer(index)
        return _read_only(made, f"stack[{index}]")

    def __setitem__(self, index: int, layer: M) -> None:
        """Sets the arrays of one layer.

        Raises:
          GraphError: the structure or a shape differs.
          IndexError: the layer does not exist.
        """
        number = range(len(self))[index]
        part = self._layer(number)
        update(part, state(layer), complete=True)
        update(
            self.layers, jax.tree.map(lambda stack, leaf: stack.at[number].set(leaf), state(self.layers), state(part))
        )

    def __iter__(self) -> Iterator[M]:
        return (self[number] for number in range(len(self)))

    def _layer(self, number: int) -> M:
        graphdef, arrays = split(self.layers)
        layer: M = merge(graphdef, jax.tree.map(lambda leaf: leaf[number], arrays))
        for variable in _variables(layer):
            variable.remove_axis(0, self.axis_name)
        return layer

    def unstack(self) -> List[M]:
        """A `List` of copies of the layers, which can be changed."""
        return List([self._layer(number) for number in range(len(self))])


MAX_RUNNERS = 16
"""The number of sets of flags and other fixed arguments whose programs a stack keeps."""

_runners: weakref.WeakKeyDictionary[Stacked[Any], dict[Any, Callable[..., Any]]] = weakref.WeakKeyDictionary()


class _Fixed(NamedTuple):
    """Arguments of a layer with `MISSING` in place of arrays and models; the types tell 1 from True."""

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
    args, kwargs = fixed.put(arrays)
    return layer(x, *args, **kwargs), None


def _in_device_memory(f: Callable[..., X]) -> Callable[..., X]:
    """A function of a layer that finds the layer's arrays in device memory; afterwards they are where they were."""

    @functools.wraps(f)
    def run(layer: Any, *args: Any) -> X:
        moved = [
            (variable, kept, here)
            for variable in _variables(layer)
            if (here := in_device_memory(kept := variable.raw_value)) is not kept
        ]
        for variable, _, here in moved:
            variable.set_raw_value(here)
        result = f(layer, *args)
        for variable, kept, here in moved:
            now = variable.raw_value
            variable.set_raw_value(kept if now is here else in_memory_of(kept, now))
        return result

    return run


EXAMPLE: Final = "dx.Stacked(lambda rngs: Block(rngs=rngs), 12, rngs=rngs)"


def _check_options(build: object, n: object, remat: object) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        problem = "n is not a positive int"
        raise LayerError(
            "Stacked", problem, expected="an int of at least 1", got=describe(n), fix="dx.Stacked(build, 12)"
        )
    if isinstance(build, (Module, Variable)) or not callable(build):
        problem = "this is not a function that makes a layer, or a Spec"
        fix = f"{EXAMPLE}\ndx.Stacked.of([block_0, block_1])        # existing layers"
        raise LayerError("Stacked", problem, got=describe(build), fix=fix)
    if not isinstance(remat, bool) and not callable(remat):
        raise LayerError(
            "Stacked, remat",
            "this is not a policy",
            expected="True, False, or a policy of jax.checkpoint_policies",
            got=describe(remat),
            fix="remat=jax.checkpoint_policies.dots_saveable",
        )


def _built(spec: _Buildable[Any], rngs: Rngs | None = None) -> Any:
    return spec.build(rngs=rngs)


class _Given:
    """Takes the place of `build` for existing layers."""

    def __init__(self, layers: Any) -> None:
        self.layers = layers

    def __call__(self) -> Any:
        return self.layers


def _check_signature(build: Callable[..., Any], n: int, rngs: Rngs | None) -> None:
    """Raises if `build` does not take what it is called with."""
    try:
        inspect.signature(build).bind(*(() if rngs is None else (rngs,)))
    except ValueError:  # it has no signature
        return
    except TypeError as error:
        made = build if isinstance(build, functools.partial) else functools.partial(build)
        given = [*map(repr, made.args), *(f"{name}={value!r}" for name, value in made.keywords.items()), "rngs=rngs"]
        call = f"{text_of(made.func)}({', '.join(given)})"
        raise LayerError(
            "Stacked",
            "the function that makes a layer does not take the arguments that it gets",
            expected="a function without parameters, or of one Rngs if `rngs` is given",
            got=f"{describe(build)}: {error}",
            fix=f"dx.Stacked(lambda rngs: {call}, {n}, rngs=rngs)\n"
            f"dx.Stacked({call}, {n})        # in the body of a declared class",
        ) from None


def _make_layers(build: Callable[..., Any], n: int, rngs: Rngs | None, metadata: dict[str, Any]) -> Any:
    _check_signature(build, n, rngs)
    if rngs is None:
        return vmap(lambda: _checked(build(), build), axis_size=n, transform_metadata=metadata)()
    make = functools.partial(_make_layer, build)
    graphdef, before = split(rngs)
    # the draws of one layer from each stream; the compiler drops the rest of the layer
    after = jax.jit(lambda values: _counts(make, merge(graphdef, values)))(before)
    own = clone(rngs)
    for name, stream in own.items():
        drawn = after[name] - stream.count.value
        stream.count.value = stream.count.value + drawn * jnp.arange(n, dtype=drawn.dtype)
        after[name] = rngs[name].count.value + n * drawn
    axes = StateAxes({RngCount: 0, ...: None})
    layers = vmap(make, in_axes=(axes,), axis_size=n, transform_metadata=metadata, graph=True)(own)
    for name, count in after.items():
        rngs[name].count.value = count
    return layers


def _make_layer(build: Callable[..., Any], rngs: Rngs) -> Any:
    """A layer that shares no stream with the given Rngs."""
    layer = _checked(build(rngs), build)
    streams = {id(stream) for _, stream in rngs.items()}
    kept = [path for path, node in iter_graph(layer) if id(node) in streams]
    if not kept:
        return layer
    copied = clone(layer)
    for path, node in iter_graph(copied):
        if path in kept and isinstance(node, RngStream):
            drawn = rngs[node.tag]()
            node.key.value, node.count.value = drawn, jnp.zeros_like(node.count.value)
    return copied


def _counts(make: Callable[[Rngs], Any], rngs: Rngs) -> dict[str, Any]:
    make(rngs)
    return {name: stream.count.value for name, stream in rngs.items()}


def _checked(layer: Any, build: Callable[..., Any]) -> Any:
    """A new layer, which holds no arrays from outside of `build`."""
    if not isinstance(layer, Module):
        raise LayerError("Stacked", "the function does not return a Module", got=describe(layer), fix=EXAMPLE)
    outside = {id(part) for root in Captures(build).values for _, part in iter_graph(root)}
    for path, part in _with_arrays(layer):
        trace_token = trace_of(part) if isinstance(part, Variable) else vars(part).get(TRACE_KEY, _jax.TOP)
        if id(part) in outside or trace_token is not _jax.current_trace():
            raise _shared(f"{joined('layer', path)}, which the function does not create")
    return layer


def _with_arrays(node: Any) -> list[tuple[Path, Any]]:
    """The nodes that hold Variables or arrays, and the Variables, outer ones first."""
    found = list(iter_graph(node))
    arrays = (Variable, jax.Array, np.ndarray)
    holding = {path[:depth] for path, part in found if isinstance(part, arrays) for depth in range(len(path) + 1)}
    found.sort(key=lambda pair: len(pair[0]))
    return [(path, part) for path, part in found if path in holding and isinstance(part, (Pytree, Variable))]


def _shared(got: str) -> LayerError:
    return LayerError(
        "Stacked",
        "the layers share a part",
        got=got,
        why="a stack holds each array of all layers stacked, so each layer would get a copy of the part",
        fix="y = blocks(x, part)        # pass it to the call: each layer receives (x, part)\n"
        "dx.List([...])        # for layers that share parts",
    )


def _stack(layers: list[Any], axis_name: str | None) -> Any:
    graphdef, _ = split(layers[0])
    parts: list[Any] = []
    seen: dict[int, str] = {}
    for number, layer in enumerate(layers):
        other, state = split(layer)
        if other is not graphdef:
            found = first_differing(graphdef, other)
            expected, got = (
                repr(side) if found.fact == STATIC_VALUE else str(side) for side in (found.before, found.after)
            )
            raise LayerError(
                f"Stacked.of, {joined(f'layers[{number}]', found.path)}",
                "its structure differs from that of layer 0",
                expected=expected or None,
                got=got or None,
                why="one program runs all layers",
                fix="dx.List(layers)        # for different layers",
            )
        places = {id(part): joined(f"layers[{number}]", path) for path, part in _with_arrays(layer)}
        for identity, place in places.items():
            if identity in seen:
                raise _shared(f"one object at {place} and at {seen[identity]}")
        seen |= places
        parts.append(state)
    try:
        made = merge(graphdef, jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts))
    except ValueError as error:
        raise LayerError("Stacked.of", "the layers have arrays of different shapes", why=str(error)) from None
    for variable in _variables(made):
        variable.add_axis(0, axis_name)
    return made


def _variables(node: Any) -> list[Variable[Any]]:
    return [part for _, part in iter_graph(node) if isinstance(part, Variable)]


def _read_only(copy: X, place: str) -> X:
    """The same copy of layers, which refuses changes from now on."""
    trace_token = ReadOnly(
        f"a copy, made by {place}",
        "the layers are stacked in one array, so indexing and iteration copy, and changes of a copy are lost",
        f"copy = dx.clone({place})        # can be changed, and written back\n"
        "stack.scan(f, x)        # or call a function with layer after layer",
    )
    for _, part in list(iter_graph(copy)):
        if isinstance(part, Variable):
            set_trace_token(part, trace_token)
        elif isinstance(part, Pytree):
            vars(part)[TRACE_KEY] = trace_token
            vars(part).pop(BOUND_KEY, None)  # what is bound knows the token of the Variables
    return copy

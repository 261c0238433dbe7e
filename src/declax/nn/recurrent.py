"""Layers that run a recurrent cell along a sequence."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from typing_extensions import TypedDict, TypeVar, Unpack

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.specifiers import KW_ONLY, data, field, static
from declax._filters import All, Filter, to_predicate
from declax._lazy import lazy_names
from declax._module.module import Module
from declax._random.changes import broadcast_rngs, split_rngs
from declax._random.streams import Rngs, RngStream
from declax._variables.kinds import RngState
from declax._variables.placement import explicit_spec, make_spec, reshard
from declax.nn._checks import field_of
from declax.nn._defaults import default_bias_init as default_bias_init
from declax.nn._defaults import default_kernel_init as default_kernel_init
from declax.nn.cells import C, RngSource, RNNCellBase, _Cell
from declax.nn.cells import GRUCell as GRUCell
from declax.nn.cells import LSTMCell as LSTMCell
from declax.nn.cells import OptimizedLSTMCell as OptimizedLSTMCell
from declax.nn.cells import SimpleCell as SimpleCell
from declax.nn.cells import modified_orthogonal as modified_orthogonal
from declax.nn.layer import Layer
from declax.transforms._engine.prefixes import Carry, StateAxes
from declax.transforms.abstract import eval_shape
from declax.transforms.scanning import scan

T = TypeVar("T")

StepAxis: TypeAlias = int | type[Carry] | None


@functools.lru_cache(maxsize=128)
def _steps(
    state_axes: StateAxes, broadcast: Any, time_axis: int, unroll: int | bool, with_carries: bool
) -> Callable[[Any, Any, jax.Array], tuple[Any, Any]]:
    """All steps of a cell, as one function for all calls with these options, so that each traces once."""

    def step(cell: RNNCellBase[Any], carry: Any, x: jax.Array) -> tuple[Any, Any]:
        carry, y = cell(carry, x)
        return carry, (carry, y) if with_carries else y

    axes = state_axes if broadcast is None else StateAxes({All(RngState, broadcast): None, **state_axes})
    run: Any = scan(
        step,
        in_axes=(axes, Carry, time_axis),
        out_axes=(Carry, (0, time_axis) if with_carries else time_axis),
        unroll=unroll,
        graph=True,
        graph_updates=True,
    )
    if broadcast is None:
        return cast("Callable[[Any, Any, jax.Array], tuple[Any, Any]]", run)

    @split_rngs(splits=1, only=broadcast, squeeze=True, graph=True, graph_updates=True)
    def run_with_streams(cell: RNNCellBase[Any], carry: Any, inputs: jax.Array) -> tuple[Any, Any]:
        with broadcast_rngs(broadcast):
            return cast("tuple[Any, Any]", run(cell, carry, inputs))

    return run_with_streams


def _last_carry(carries: T, first: T, lengths: jax.Array) -> T:
    """The state after the last step of each sequence, from those after all steps; the first if it has no step."""

    def select(steps: jax.Array, first: jax.Array) -> jax.Array:
        batch = (*lengths.shape, *(1,) * (steps.ndim - 1 - lengths.ndim))
        at = jnp.maximum(lengths - 1, 0).reshape(1, *batch)
        return jnp.where((lengths > 0).reshape(batch), jnp.take_along_axis(steps, at, axis=0)[0], first)

    selected: T = jax.tree.map(select, carries, first)
    return selected


def _check_cell(cell: object) -> str | None:
    is_cell = hasattr(cell, "num_feature_axes") and hasattr(cell, "initialize_carry")
    return None if is_cell else "this is not a recurrent cell, such as a dx.LSTMCell or another RNNCellBase"


class RunOptions(TypedDict, Generic[C], total=False):
    """The options of a call of `RNN`, to type checkers."""

    initial_carry: C | None
    seq_lengths: jax.Array | None
    time_major: bool | None
    reverse: bool | None
    keep_order: bool | None
    rngs: RngSource | None


@dataclass
class RNN(Layer, Generic[C]):
    """Runs a cell along the time axis of a sequence.

    The cell is carried from step to step with its Variables, so that a cell may count or draw: see `dx.scan`.

    Args:
      cell: computes one step.
      time_major: the time axis is the first, instead of the last before the features.
      return_carry: return the last state as well.
      reverse: run from the last step to the first. The outputs are in that order.
      keep_order: with `reverse`, put the outputs in the order of the inputs.
      unroll: how many steps are compiled as one, as in `jax.lax.scan`.
      state_axes: for each filter of the cell's Variables, `Carry`, an axis along which each step has a slice, or None
        for Variables that the steps share. None carries all of them.
      broadcast_rngs: a filter of the cell's streams, such as a tag, that give all steps the same numbers, as for the
        masks of recurrent dropout. Each call draws others.
      rngs: gives keys for the first state. True makes a stream, False none; an `Rngs` or a stream is forked.

    Raises:
      LayerError: for `rngs` of another type, a layer that is not a cell, an input without a time axis, and
        `seq_lengths` that do not fit the batch or, unless they are traced, the time axis.
      TransformError: for a cell that changes the shape or dtype of its state.

    >>> import declax as dx
    >>> rnn = dx.RNN(dx.LSTMCell(3, 4, rngs=dx.Rngs(0)))
    >>> rnn(jnp.ones((2, 5, 3))).shape
    (2, 5, 4)
    """

    cell: RNNCellBase[C] = field(check=_check_cell)
    _: KW_ONLY
    time_major: bool = field(default=False)
    return_carry: bool = field(default=False)
    reverse: bool = field(default=False)
    keep_order: bool = field(default=False)
    unroll: int | bool = field(default=1, ge=1)
    state_axes: Mapping[Any, StepAxis] | None = static(default=None)
    broadcast_rngs: Filter = static(default=None)
    rngs: RngSource | bool | None = data(default=True)  # type: ignore[assignment]  # it is kept

    def __post_init__(self) -> None:
        self.rngs = _carry_stream(self, self.rngs)  # pyright: ignore[reportIncompatibleVariableOverride]  # it is kept

    @overload
    def __call__(
        self, inputs: jax.Array, *, return_carry: Literal[True], **options: Unpack[RunOptions[C]]
    ) -> tuple[C, jax.Array]: ...
    @overload
    def __call__(
        self, inputs: jax.Array, *, return_carry: Literal[False], **options: Unpack[RunOptions[C]]
    ) -> jax.Array: ...
    @overload
    def __call__(
        self, inputs: jax.Array, *, return_carry: bool | None = None, **options: Unpack[RunOptions[C]]
    ) -> Any: ...
    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: C | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: RngSource | None = None,
    ) -> Any:
        """Runs the cell along the time axis.

        Args:
          inputs: array of shape ``(*batch, time, *features)``, or ``(time, *batch, *features)`` with `time_major`.
          initial_carry: the state before the first step; None lets the cell make one.
          seq_lengths: how many steps of each sequence count, of shape ``batch``. The last state is the one after these
            steps, and `reverse` begins with the last of them. The outputs after them have no meaning. Traced lengths
            beyond the time axis count as all steps.
          return_carry, time_major, reverse, keep_order: override the attributes of these names.
          rngs: gives keys for the first state, in place of the attribute.

        Returns:
          The outputs of all steps, along the same time axis; with `return_carry`, the last state and the outputs.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        reverse = self.reverse if reverse is None else reverse
        keep_order = self.keep_order if keep_order is None else keep_order

        inputs = jnp.asarray(inputs)
        time_axis, batch = _axes_of(self, inputs, time_major)
        lengths = None if seq_lengths is None else _lengths_of(seq_lengths, batch, inputs.shape[time_axis])
        flip = functools.partial(flip_sequences, seq_lengths=lengths, num_batch_dims=len(batch), time_major=time_major)
        if reverse:
            inputs = flip(inputs)
        if initial_carry is None:
            stream: Any = self.rngs if rngs is None else rngs
            stream = stream.carry.fork() if isinstance(stream, Rngs) else stream
            shape = (*inputs.shape[:time_axis], *inputs.shape[time_axis + 1 :])
            first = self.cell.initialize_carry(shape, stream)
            first = _in_dtypes_of_step(self.cell, first, shape, inputs.dtype)
            initial_carry = _as_split(first, inputs, time_axis, len(batch))
        with_carries = lengths is not None and return_carry
        carry, outputs = _run(self, time_axis, with_carries)(self.cell, initial_carry, inputs)
        if lengths is not None and return_carry:
            carries, outputs = outputs
            carry = _last_carry(carries, initial_carry, lengths)
        if reverse and keep_order:
            outputs = jax.tree.map(flip, outputs)
        return (carry, outputs) if return_carry else outputs


def _axes_of(layer: RNN[Any], inputs: jax.Array, time_major: bool) -> tuple[int, tuple[int, ...]]:
    """The time axis, and the sizes of the batch axes."""
    batch_axes = inputs.ndim - layer.cell.num_feature_axes - 1
    if batch_axes < 0:
        raise errors.LayerError(
            field_of(layer, "cell"),
            "'inputs' has no time axis",
            expected=f"a time axis before {layer.cell.num_feature_axes} axes of features",
            got=errors.describe(inputs),
        )
    return (0, inputs.shape[1 : 1 + batch_axes]) if time_major else (batch_axes, inputs.shape[:batch_axes])


def _run(layer: RNN[Any], time_axis: int, with_carries: bool) -> Callable[[Any, Any, jax.Array], tuple[Any, Any]]:
    state_axes = StateAxes({...: Carry} if layer.state_axes is None else layer.state_axes)
    broadcast: Any = None if layer.broadcast_rngs is None else to_predicate(layer.broadcast_rngs)
    return _steps(state_axes, broadcast, time_axis, layer.unroll, with_carries)


def _in_dtypes_of_step(cell: RNNCellBase[C], carry: C, shape: tuple[int, ...], dtype: Any) -> C:
    """The first state of a cell of declax in the dtypes after a step, which may be other than `param_dtype`."""
    if not isinstance(cell, _Cell):
        return carry
    dtypes = [dtype, *(leaf.dtype for leaf in jax.tree.leaves(carry)), dtype if cell.dtype is None else cell.dtype]
    if len({jnp.dtype(of_leaf) for of_leaf in dtypes}) == 1:
        return carry
    after, _ = eval_shape(lambda cell, carry: cell(carry, jnp.zeros(shape, dtype)), cell, carry)
    cast_: C = jax.tree.map(lambda leaf, of_step: leaf.astype(of_step.dtype), carry, after)
    return cast_


def _as_split(carry: C, inputs: jax.Array, time_axis: int, batch_axes: int) -> C:
    """A first state with the batch of the inputs, under explicit sharding: those of all steps are split alike."""
    spec = explicit_spec(inputs)
    if spec is None:
        return carry
    batch = (*spec[:time_axis], *spec[time_axis + 1 :])[:batch_axes]
    split: C = jax.tree.map(lambda array: reshard(array, make_spec(*batch)), carry)
    return split


def _carry_stream(layer: Module, given: RngSource | bool | None) -> RngStream | None:
    """The stream that a layer keeps for first states."""
    if given is None or given is False:
        return None
    if given is True:
        return RngStream(0, tag="carry")
    if isinstance(given, Rngs):
        return given.carry.fork()
    if isinstance(given, RngStream):
        return given.fork()
    raise errors.LayerError(
        field_of(layer, "rngs"),
        "this is not a source of random keys",
        expected="an Rngs, an RngStream, True or False",
        got=errors.describe(given),
        fix="rngs=dx.Rngs(0)",
    )


def _lengths_of(given: jax.Array, batch: tuple[int, ...], steps: int) -> jax.Array:
    """The lengths of sequences, of the shape of the batch; traced ones end at the number of steps."""
    lengths = jnp.asarray(given)
    is_fine = jnp.issubdtype(lengths.dtype, jnp.integer) and lengths.ndim <= len(batch)
    pairs = zip(reversed(lengths.shape), reversed(batch), strict=False)
    if not is_fine or any(size not in (1, wanted) for size, wanted in pairs):
        raise errors.LayerError(
            "RNN.seq_lengths",
            "these are not the lengths of the sequences of a batch",
            expected=f"integers of shape {batch}",
            got=errors.describe(lengths),
        )
    if isinstance(lengths, Tracer) or not lengths.is_fully_addressable:
        lengths = jnp.clip(lengths, 0, steps)
    else:
        outside = [length for length in np.unique(lengths) if not 0 <= length <= steps]
        if outside:
            raise errors.LayerError(
                "RNN.seq_lengths",
                "a sequence cannot have this length",
                expected=f"lengths from 0 to {steps}, the size of the time axis",
                got=", ".join(map(str, outside)),
                fix=f"jnp.minimum(seq_lengths, {steps})" if min(outside) >= 0 else None,
            )
    return jnp.broadcast_to(lengths.astype(jnp.int32), batch)


def flip_sequences(
    inputs: jax.Array, seq_lengths: jax.Array | None, num_batch_dims: int, time_major: bool
) -> jax.Array:
    """Reverses sequences along their time axis, each within its length; padding stays behind them.

    Args:
      inputs: array of shape ``(*batch, time, ...)``, or ``(time, *batch, ...)`` with `time_major`.
      seq_lengths: how many steps of each sequence count, of shape ``batch``; None means all.
      num_batch_dims: the number of batch axes.
      time_major: whether the time axis is the first.

    Returns:
      Array of the shape of `inputs`.

    Raises:
      LayerError: for `seq_lengths` that do not fit the batch or, unless they are traced, the time axis.

    >>> import declax as dx
    >>> inputs = jnp.array([[1, 0, 0], [2, 3, 0], [4, 5, 6]])
    >>> dx.nn.flip_sequences(inputs, jnp.array([1, 2, 3]), num_batch_dims=1, time_major=False).tolist()
    [[1, 0, 0], [3, 2, 0], [6, 5, 4]]
    """
    time_axis = 0 if time_major else num_batch_dims
    if seq_lengths is None:
        return jnp.flip(inputs, axis=time_axis)
    first = 1 if time_major else 0
    steps = inputs.shape[time_axis]
    lengths = _lengths_of(seq_lengths, inputs.shape[first : first + num_batch_dims], steps)
    backwards = jnp.arange(steps - 1, -1, -1, dtype=jnp.int32)
    backwards = jnp.expand_dims(backwards, [axis for axis in range(num_batch_dims + 1) if axis != time_axis])
    at = (backwards + jnp.expand_dims(lengths, time_axis)) % steps
    return jnp.take_along_axis(inputs, at.reshape(*at.shape, *(1,) * (inputs.ndim - at.ndim)), axis=time_axis)


class RNNBase(Protocol):
    """A layer over sequences that `Bidirectional` takes: an `RNN`, or one that is called alike."""

    def __call__(
        self, inputs: jax.Array, *, return_carry: bool | None = None, **options: Unpack[RunOptions[Any]]
    ) -> Any:
        """Runs along the time axis, as `RNN` does."""
        ...


def _concatenate(forward: jax.Array, backward: jax.Array) -> jax.Array:
    return jnp.concatenate([forward, backward], axis=-1)


@dataclass
class Bidirectional(Layer):
    """Runs one layer forward and one backward along a sequence, and merges their outputs of each step.

    Schuster and Paliwal, "Bidirectional Recurrent Neural Networks", https://doi.org/10.1109/78.650093.

    Args:
      forward_rnn: runs from the first step to the last.
      backward_rnn: runs from the last step to the first. If it is the same object, both directions share parameters.
      merge_fn: merges the outputs; concatenates their features by default.
      time_major: the time axis is the first, instead of the last before the features.
      return_carry: return the last states as well.
      rngs: gives keys for the first states. True makes a stream, False leaves it to the two layers; an `Rngs` or a
        stream is forked.

    Raises:
      LayerError: for `rngs` of another type.

    >>> import declax as dx
    >>> rngs = dx.Rngs(0)
    >>> layer = dx.Bidirectional(dx.RNN(dx.GRUCell(3, 4, rngs=rngs)), dx.RNN(dx.GRUCell(3, 4, rngs=rngs)))
    >>> layer(jnp.ones((2, 5, 3))).shape
    (2, 5, 8)
    """

    forward_rnn: RNNBase = data()
    backward_rnn: RNNBase = data()
    _: KW_ONLY
    merge_fn: Callable[[jax.Array, jax.Array], jax.Array] = field(default=_concatenate)
    time_major: bool = field(default=False)
    return_carry: bool = field(default=False)
    rngs: RngSource | bool | None = data(default=True)  # type: ignore[assignment]  # it is kept

    def __post_init__(self) -> None:
        self.rngs = _carry_stream(self, self.rngs)  # pyright: ignore[reportIncompatibleVariableOverride]  # it is kept

    @overload
    def __call__(
        self, inputs: jax.Array, *, return_carry: Literal[True], **options: Unpack[RunOptions[tuple[Any, Any]]]
    ) -> tuple[tuple[Any, Any], jax.Array]: ...
    @overload
    def __call__(
        self, inputs: jax.Array, *, return_carry: Literal[False], **options: Unpack[RunOptions[tuple[Any, Any]]]
    ) -> jax.Array: ...
    @overload
    def __call__(
        self,
        inputs: jax.Array,
        *,
        return_carry: bool | None = None,
        **options: Unpack[RunOptions[tuple[Any, Any]]],
    ) -> Any: ...
    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: tuple[Any, Any] | None = None,
        rngs: RngSource | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Runs both layers along the time axis.

        Args:
          inputs: array of shape ``(*batch, time, *features)``, or ``(time, *batch, *features)`` with `time_major`.
          initial_carry: the states before the first steps, forward and backward; None lets the cells make them.
          rngs: gives keys for the first states, in place of the attribute.
          seq_lengths: how many steps of each sequence count, as in `RNN`.
          return_carry, time_major: override the attributes of these names.
          reverse, keep_order: not used; `RNN` has them.

        Returns:
          The merged outputs of all steps; with `return_carry`, the last states, forward and backward, and the outputs.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        stream: Any = self.rngs if rngs is None else rngs
        forward, backward = initial_carry or (None, None)
        options: dict[str, Any] = {
            "rngs": stream.carry if isinstance(stream, Rngs) else stream,
            "seq_lengths": seq_lengths,
            "return_carry": True,
            "time_major": self.time_major if time_major is None else time_major,
        }
        forward, ahead = self.forward_rnn(inputs, initial_carry=forward, reverse=False, **options)
        backward, behind = self.backward_rnn(inputs, initial_carry=backward, reverse=True, keep_order=True, **options)
        outputs = jax.tree.map(self.merge_fn, ahead, behind)
        return ((forward, backward), outputs) if return_carry else outputs


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

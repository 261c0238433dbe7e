"""Recurrent cells: one step of a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar  # pyright knows it by this module only
from typing import Any, Final, Generic, TypeAlias

import jax
import jax.numpy as jnp
from typing_extensions import TypeVar

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.deferring import defer, when
from declax._fields.keys import needed_rngs
from declax._fields.specifiers import KW_ONLY, field, static
from declax._random.streams import Rngs, RngStream
from declax._typing import Activation, Dtype, Initializer
from declax._variables.metadata import EMPTY
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE, DtypeDefault
from declax.initializers import orthogonal, zeros
from declax.nn import dtypes
from declax.nn._defaults import Made, default_bias_init, default_kernel_init
from declax.nn.activations import sigmoid, tanh
from declax.nn.layer import Layer
from declax.nn.linear import Linear

C = TypeVar("C", default=Any)

RngSource: TypeAlias = Rngs | RngStream

_FLOAT32: Final[DtypeDefault[Dtype | None]] = DtypeDefault("compute", jnp.float32)


def modified_orthogonal(key: jax.Array, shape: Sequence[int], dtype: Dtype = jnp.float32) -> jax.Array:
    """An orthogonal matrix, made in the default precision and then cast: for dtypes that have no QR decomposition.

    >>> modified_orthogonal(jax.random.key(0), (2, 2), jnp.bfloat16).dtype
    dtype(bfloat16)
    """
    return orthogonal()(key, shape).astype(dtype)


class RNNCellBase(Layer, Generic[C]):
    """The base of recurrent cells: one step of a sequence.

    A cell of your own overrides all three members. `C` is the type of its state, which is called carry.

    >>> import declax as dx
    >>> class Sum(dx.RNNCellBase):
    ...     num_feature_axes = 1
    ...     def initialize_carry(self, input_shape, rngs=None, carry_init=None):
    ...         return jnp.zeros(input_shape)
    ...     def __call__(self, carry, inputs):
    ...         return carry + inputs, carry + inputs
    >>> dx.RNN(Sum())(jnp.ones((3, 1))).ravel().tolist()
    [1.0, 2.0, 3.0]
    """

    def initialize_carry(
        self, input_shape: tuple[int, ...], rngs: RngSource | None = None, carry_init: Initializer | None = None
    ) -> C:
        """Makes the state before the first step.

        Args:
          input_shape: shape of the input of one step.
          rngs: gives the keys.
          carry_init: makes the arrays of the state.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define initialize_carry()")

    def __call__(self, carry: C, inputs: jax.Array) -> tuple[C, jax.Array]:
        """Computes one step.

        Args:
          carry: the state before the step.
          inputs: array whose last `num_feature_axes` axes are features; the others are batch axes.

        Returns:
          The state after the step, and the output.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __call__()")

    @property
    def num_feature_axes(self) -> int:
        """How many axes at the end of an input are features."""
        raise NotImplementedError(f"{type(self).__name__} does not define num_feature_axes")


@defer
def _stream(rngs: Rngs | None = None) -> RngStream:
    return needed_rngs(rngs).carry.fork()


@dataclass
class _Cell(RNNCellBase[C]):
    """The fields of all cells, whose state consists of arrays of shape ``(*batch, hidden_features)``."""

    in_features: int = field(ge=1)
    hidden_features: int = field(ge=1)
    _: KW_ONLY
    activation_fn: Activation = field(default=tanh)
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    carry_init: Initializer | None = field(default=None)
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    keep_rngs: InitVar[bool] = field(default=False)
    _carry_rngs = when(keep_rngs, _stream())

    @property
    def num_feature_axes(self) -> int:
        """How many axes at the end of an input are features: 1."""
        return 1


def _new_state(
    cell: _Cell[Any], count: int, input_shape: tuple[int, ...], rngs: RngSource | None, carry_init: Initializer | None
) -> list[jax.Array]:
    source: Any = cell._carry_rngs if rngs is None else rngs
    source = source.carry if isinstance(source, Rngs) else source
    if source is None:
        raise errors.LayerError(
            f"{errors.type_name(type(cell))}.initialize_carry",
            "there is no source of random numbers for the first state",
            expected="rngs, from the call",
            got="None",
            fix="cell.initialize_carry(x.shape, rngs), or RNN(cell)(x, initial_carry=...)",
        )
    make = carry_init or cell.carry_init or zeros
    return [make(source(), (*input_shape[:-1], cell.hidden_features), cell.param_dtype) for _ in range(count)]


LSTMState: TypeAlias = tuple[jax.Array, jax.Array]


@dataclass
class _LSTM(_Cell[LSTMState]):
    """The base of both LSTM cells: their state."""

    _: KW_ONLY
    gate_fn: Activation = field(default=sigmoid)

    def initialize_carry(
        self, input_shape: tuple[int, ...], rngs: RngSource | None = None, carry_init: Initializer | None = None
    ) -> LSTMState:
        """Makes the memory and the output before the first step.

        Args:
          input_shape: shape of the input of one step.
          rngs: gives one key to each array, from `carry`; `zeros` does not use them.
          carry_init: makes both arrays; None takes the cell's.

        Returns:
          Two arrays of shape ``(*input_shape[:-1], hidden_features)``, in `param_dtype`.
        """
        c, h = _new_state(self, 2, input_shape, rngs, carry_init)
        return c, h


def _parts_of(cell: _LSTM, carry: Any) -> LSTMState:
    if not isinstance(carry, tuple | list) or len(carry) != 2:
        raise errors.LayerError(
            f"{errors.type_name(type(cell))}.carry",
            "the state of this cell consists of two arrays",
            expected="(memory, output)",
            got=errors.describe(carry),
            fix="cell.initialize_carry(x.shape, rngs)",
        )
    c, h = carry
    return c, h


def _next_state(cell: _LSTM, c: jax.Array, gates: Sequence[jax.Array]) -> tuple[LSTMState, jax.Array]:
    """The state and the output after a step, from the memory and the arguments of the activations of i, f, g and o."""
    i, f, g, o = gates
    i, f, g, o = cell.gate_fn(i), cell.gate_fn(f), cell.activation_fn(g), cell.gate_fn(o)
    with jax.numpy_dtype_promotion("standard"):  # the memory may be wider than the gates
        new_c = f * c + i * g
        new_h = o * cell.activation_fn(new_c)
    return (new_c, new_h), new_h


_INPUT, _HIDDEN = _Cell.in_features, _Cell.hidden_features


def _gates(number: int, in_features: int, kernel: Made, bias: Made | None) -> Linear:
    """Declares the map of the input or the state of a cell for some of its gates."""
    bias_init, bias_metadata = bias or (default_bias_init, EMPTY)
    return Linear(
        in_features,
        _HIDDEN if number == 1 else number * _HIDDEN,
        use_bias=bias is not None,
        dtype=_Cell.dtype,
        param_dtype=_Cell.param_dtype,
        kernel_init=kernel[0],
        bias_init=bias_init,
        promote_dtype=_Cell.promote_dtype,
        kernel_metadata=kernel[1],
        bias_metadata=bias_metadata,
    )


@dataclass
class LSTMCell(_LSTM):
    """A cell with a memory that gates protect (long short-term memory).

    ::

        i = gate_fn(ii(x) + hi(h))
        f = gate_fn(if_(x) + hf(h))
        g = activation_fn(ig(x) + hg(h))
        o = gate_fn(io(x) + ho(h))
        c' = f * c + i * g
        h' = o * activation_fn(c')

    The state is ``(c, h)``, and `h` is the output. `ii`, `if_`, `ig` and `io` have kernels only; `hi`, `hf`, `hg` and
    `ho` also have biases.

    Hochreiter and Schmidhuber, "Long Short-Term Memory", https://doi.org/10.1162/neco.1997.9.8.1735.

    Args:
      in_features: size of the last axis of the input.
      hidden_features: size of the last axis of the state and the output.
      gate_fn: activation of the gates.
      activation_fn: activation of the new memory and the output.
      kernel_init: makes the kernels of the input.
      recurrent_kernel_init: makes the kernels of the state.
      bias_init: makes the biases.
      dtype: dtype of the gates; None infers it from input, state and parameters.
      param_dtype: dtype in which the parameters are stored, and of the first state.
      carry_init: makes the first state; None makes zeros.
      promote_dtype: brings the arguments of each map to one dtype.
      keep_rngs: keep a stream, forked from `carry`, for calls of `initialize_carry` without one.
      rngs: gives one key to each kernel and bias, from `params`.
      kernel_metadata: metadata of the kernels of the input.
      recurrent_kernel_metadata: metadata of the kernels of the state.
      bias_metadata: metadata of the biases.
      ii, if_, ig, io: a map of the input, without bias.
      hi, hf, hg, ho: a map of the state, with bias.

    Raises:
      LayerError: for a size below 1, an input or a state of another size, and a first state without `rngs`.

    >>> import declax as dx
    >>> cell = dx.LSTMCell(3, 4, rngs=dx.Rngs(0))
    >>> carry = cell.initialize_carry((2, 3), dx.Rngs(1))
    >>> carry, y = cell(carry, jnp.ones((2, 3)))
    >>> y.shape
    (2, 4)
    """

    _: KW_ONLY
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    recurrent_kernel_init: InitVar[Initializer] = field(default=modified_orthogonal)
    bias_init: InitVar[Initializer] = field(default=default_bias_init)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    recurrent_kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    ii: Linear = _gates(1, _INPUT, (kernel_init, kernel_metadata), None)
    if_: Linear = _gates(1, _INPUT, (kernel_init, kernel_metadata), None)
    ig: Linear = _gates(1, _INPUT, (kernel_init, kernel_metadata), None)
    io: Linear = _gates(1, _INPUT, (kernel_init, kernel_metadata), None)
    hi: Linear = _gates(1, _HIDDEN, (recurrent_kernel_init, recurrent_kernel_metadata), (bias_init, bias_metadata))
    hf: Linear = _gates(1, _HIDDEN, (recurrent_kernel_init, recurrent_kernel_metadata), (bias_init, bias_metadata))
    hg: Linear = _gates(1, _HIDDEN, (recurrent_kernel_init, recurrent_kernel_metadata), (bias_init, bias_metadata))
    ho: Linear = _gates(1, _HIDDEN, (recurrent_kernel_init, recurrent_kernel_metadata), (bias_init, bias_metadata))

    def __call__(self, carry: LSTMState, inputs: jax.Array) -> tuple[LSTMState, jax.Array]:
        """Computes one step of a long short-term memory.

        Args:
          carry: the memory and the output of the step before, of shape ``(..., hidden_features)``.
          inputs: array of shape ``(..., in_features)``.

        Returns:
          The new state, and the output, of shape ``(..., hidden_features)``.
        """
        c, h = _parts_of(self, carry)
        of_input, of_state = (self.ii, self.if_, self.ig, self.io), (self.hi, self.hf, self.hg, self.ho)
        return _next_state(self, c, [x(inputs) + y(h) for x, y in zip(of_input, of_state, strict=True)])


@dataclass
class OptimizedLSTMCell(_LSTM):
    """An `LSTMCell` with one product for the four gates of the input, and one for those of the state.

    ::

        i, f, g, o = split(dense_i(x) + dense_h(h), 4)
        c' = gate_fn(f) * c + gate_fn(i) * activation_fn(g)
        h' = gate_fn(o) * activation_fn(c')

    `dense_i` has a kernel only; `dense_h` also has a bias. It is faster than `LSTMCell`, and its kernels are those of
    an `LSTMCell` side by side. They start otherwise: `recurrent_kernel_init` makes them as one matrix.

    Hochreiter and Schmidhuber, "Long Short-Term Memory", https://doi.org/10.1162/neco.1997.9.8.1735.

    Args:
      in_features: size of the last axis of the input.
      hidden_features: size of the last axis of the state and the output.
      gate_fn: activation of the gates.
      activation_fn: activation of the new memory and the output.
      kernel_init: makes the kernel of the input.
      recurrent_kernel_init: makes the kernel of the state.
      bias_init: makes the bias.
      dtype: dtype of the gates; None infers it from input, state and parameters.
      param_dtype: dtype in which the parameters are stored, and of the first state.
      carry_init: makes the first state; None makes zeros.
      promote_dtype: brings the arguments of each map to one dtype.
      keep_rngs: keep a stream, forked from `carry`, for calls of `initialize_carry` without one.
      rngs: gives one key to each kernel and bias, from `params`.
      kernel_metadata: metadata of the kernel of the input.
      recurrent_kernel_metadata: metadata of the kernel of the state.
      bias_metadata: metadata of the bias.
      dense_i: the map of the input.
      dense_h: the map of the state.

    Raises:
      LayerError: as `LSTMCell`.

    >>> import declax as dx
    >>> cell = dx.OptimizedLSTMCell(3, 4, rngs=dx.Rngs(0))
    >>> cell.dense_i.kernel.shape, dx.RNN(cell)(jnp.ones((2, 5, 3))).shape
    ((3, 16), (2, 5, 4))
    """

    _: KW_ONLY
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    recurrent_kernel_init: InitVar[Initializer] = field(default=orthogonal())
    bias_init: InitVar[Initializer] = field(default=default_bias_init)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    recurrent_kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    dense_i: Linear = _gates(4, _INPUT, (kernel_init, kernel_metadata), None)
    dense_h: Linear = _gates(4, _HIDDEN, (recurrent_kernel_init, recurrent_kernel_metadata), (bias_init, bias_metadata))

    def __call__(self, carry: LSTMState, inputs: jax.Array) -> tuple[LSTMState, jax.Array]:
        """Computes one step of a long short-term memory.

        Args:
          carry: the memory and the output of the step before, of shape ``(..., hidden_features)``.
          inputs: array of shape ``(..., in_features)``.

        Returns:
          The new state, and the output, of shape ``(..., hidden_features)``.
        """
        c, h = _parts_of(self, carry)
        return _next_state(self, c, jnp.split(self.dense_i(inputs) + self.dense_h(h), 4, axis=-1))


class _OneArray(_Cell[jax.Array]):
    """A cell whose state is its output."""

    def initialize_carry(
        self, input_shape: tuple[int, ...], rngs: RngSource | None = None, carry_init: Initializer | None = None
    ) -> jax.Array:
        """Makes the state before the first step.

        Args:
          input_shape: shape of the input of one step.
          rngs: gives a key, from `carry`; `zeros` does not use it.
          carry_init: makes the array; None takes the cell's.

        Returns:
          Array of shape ``(*input_shape[:-1], hidden_features)``, in `param_dtype`.
        """
        return _new_state(self, 1, input_shape, rngs, carry_init)[0]


@dataclass
class GRUCell(_OneArray):
    """A cell with two gates and no memory besides its output (gated recurrent unit).

    ::

        r, z, n = dense_i(x), each a third
        r = gate_fn(r + r of dense_h(h))
        z = gate_fn(z + z of dense_h(h))
        n = activation_fn(n + r * n of dense_h(h))
        h' = (1 - z) * n + z * h

    `dense_i` has a kernel and a bias, `dense_h` a kernel only.

    Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", https://arxiv.org/abs/1406.1078.

    Args:
      in_features: size of the last axis of the input.
      hidden_features: size of the last axis of the state and the output.
      gate_fn: activation of the gates.
      activation_fn: activation of the proposed output.
      kernel_init: makes the kernel of the input.
      recurrent_kernel_init: makes the kernel of the state.
      bias_init: makes the bias.
      dtype: dtype of the gates; None infers it from input, state and parameters.
      param_dtype: dtype in which the parameters are stored, and of the first state.
      carry_init: makes the first state; None makes zeros.
      promote_dtype: brings the arguments of each map to one dtype.
      keep_rngs: keep a stream, forked from `carry`, for calls of `initialize_carry` without one.
      rngs: gives one key to each kernel and bias, from `params`.
      kernel_metadata: metadata of the kernel of the input.
      recurrent_kernel_metadata: metadata of the kernel of the state.
      bias_metadata: metadata of the bias.
      dense_i: the map of the input.
      dense_h: the map of the state.

    Raises:
      LayerError: as `LSTMCell`.

    >>> import declax as dx
    >>> dx.RNN(dx.GRUCell(3, 4, rngs=dx.Rngs(0)))(jnp.ones((2, 5, 3))).shape
    (2, 5, 4)
    """

    _: KW_ONLY
    gate_fn: Activation = field(default=sigmoid)
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    recurrent_kernel_init: InitVar[Initializer] = field(default=orthogonal())
    bias_init: InitVar[Initializer] = field(default=default_bias_init)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    recurrent_kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    dense_i: Linear = _gates(3, _INPUT, (kernel_init, kernel_metadata), (bias_init, bias_metadata))
    dense_h: Linear = _gates(3, _HIDDEN, (recurrent_kernel_init, recurrent_kernel_metadata), None)

    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes one step of a gated recurrent unit.

        Args:
          carry: the output of the step before, of shape ``(..., hidden_features)``.
          inputs: array of shape ``(..., in_features)``.

        Returns:
          The output, of shape ``(..., hidden_features)``, as state and as output.
        """
        input_r, input_z, input_n = jnp.split(self.dense_i(inputs), 3, axis=-1)
        state_r, state_z, state_n = jnp.split(self.dense_h(carry), 3, axis=-1)
        r = self.gate_fn(input_r + state_r)
        z = self.gate_fn(input_z + state_z)
        n = self.activation_fn(input_n + r * state_n)
        with jax.numpy_dtype_promotion("standard"):  # the state may be wider than the gates
            h = (1.0 - z) * n + z * carry
        return h, h


@dataclass
class SimpleCell(_OneArray):
    """A cell without gates.

    ``h' = activation_fn(dense_i(x) + dense_h(h))``, and with `residual` ``activation_fn(dense_i(x) + dense_h(h) + h)``

    `dense_i` has a kernel and a bias, `dense_h` a kernel only.

    Elman, "Finding Structure in Time", https://doi.org/10.1207/s15516709cog1402_1.

    Args:
      in_features: size of the last axis of the input.
      hidden_features: size of the last axis of the state and the output.
      activation_fn: activation of the output.
      residual: add the state before `activation_fn`.
      kernel_init: makes the kernel of the input.
      recurrent_kernel_init: makes the kernel of the state.
      bias_init: makes the bias.
      dtype: dtype of the computation, float32 by default; None infers it from input, state and parameters.
      param_dtype: dtype in which the parameters are stored, and of the first state.
      carry_init: makes the first state; None makes zeros.
      promote_dtype: brings the arguments of each map to one dtype.
      keep_rngs: keep a stream, forked from `carry`, for calls of `initialize_carry` without one.
      rngs: gives one key to each kernel and bias, from `params`.
      kernel_metadata: metadata of the kernel of the input.
      recurrent_kernel_metadata: metadata of the kernel of the state.
      bias_metadata: metadata of the bias.
      dense_i: the map of the input.
      dense_h: the map of the state.

    Raises:
      LayerError: as `LSTMCell`.

    >>> import declax as dx
    >>> dx.RNN(dx.SimpleCell(3, 4, residual=True, rngs=dx.Rngs(0)))(jnp.ones((2, 5, 3))).shape
    (2, 5, 4)
    """

    _: KW_ONLY
    dtype: Dtype | None = static(default_factory=_FLOAT32)
    residual: bool = field(default=False)
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    recurrent_kernel_init: InitVar[Initializer] = field(default=orthogonal())
    bias_init: InitVar[Initializer] = field(default=default_bias_init)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    recurrent_kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    dense_h: Linear = _gates(1, _HIDDEN, (recurrent_kernel_init, recurrent_kernel_metadata), None)
    dense_i: Linear = _gates(1, _INPUT, (kernel_init, kernel_metadata), (bias_init, bias_metadata))

    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes one step of a cell without gates.

        Args:
          carry: the output of the step before, of shape ``(..., hidden_features)``.
          inputs: array of shape ``(..., in_features)``.

        Returns:
          The output, of shape ``(..., hidden_features)``, as state and as output.
        """
        h = self.dense_i(inputs) + self.dense_h(carry)
        if self.residual:
            with jax.numpy_dtype_promotion("standard"):  # the state may be wider than the parameters
                h = h + carry
        h = self.activation_fn(h)
        return h, h

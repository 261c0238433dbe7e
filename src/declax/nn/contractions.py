"""Linear maps over several axes: tensor contractions with a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar  # pyright knows it by this module only
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax import lax

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.deferring import defer
from declax._fields.specifiers import KW_ONLY, field, static, variable
from declax._typing import Dtype, Initializer, PrecisionLike
from declax._variables.kinds import Param
from declax._variables.metadata import EMPTY
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax.initializers import adapted
from declax.nn import dtypes
from declax.nn._checks import field_of, is_integer
from declax.nn._defaults import OutSharding, default_bias_init, default_kernel_init
from declax.nn._gathering import constrained, gathered, result_sharding
from declax.nn.layer import Layer

Sizes: TypeAlias = int | Sequence[int]


def sizes_of(sizes: Sizes) -> tuple[int, ...]:
    """One size or several, as a tuple."""
    return (sizes,) if is_integer(sizes) else tuple(cast(Sequence[int], sizes))


def _general_shape(batch_axis: Mapping[int, int], *sizes: Sizes) -> tuple[int, ...]:
    return (*batch_axis.values(), *(size for several in sizes for size in sizes_of(several)))


def _of_a_matrix(initializer: Initializer, in_features: Sizes, out_features: Sizes) -> Initializer:
    """Makes a kernel as the matrix that it represents, so that fan-in and fan-out are those of the map."""

    def of(plain: Initializer) -> Initializer:
        def initialize(key: jax.Array, shape: Sequence[int], dtype: Dtype = jnp.float32) -> jax.Array:
            columns = math.prod(sizes_of(out_features))
            return plain(key, (math.prod(shape) // columns, columns), dtype).reshape(shape)

        return initialize

    made: Initializer = adapted(initializer, of)
    return made


def _of_a_vector(initializer: Initializer) -> Initializer:
    def of(plain: Initializer) -> Initializer:
        def initialize(key: jax.Array, shape: Sequence[int], dtype: Dtype = jnp.float32) -> jax.Array:
            return plain(key, (math.prod(shape),), dtype).reshape(shape)

        return initialize

    made: Initializer = adapted(initializer, of)
    return made


@dataclass
class LinearGeneral(Layer):
    """An affine map of any axes of its input.

    The map contracts the axes `axis` of the input with the first axes of the kernel. With `batch_axis`, there is a
    kernel and a bias for each index along the leading axes.

    Args:
      in_features: size of each axis that is contracted; the attribute is a tuple.
      out_features: sizes of the axes that the output has at its end; the attribute is a tuple.
      axis: the axes that are contracted, one for each of `in_features`; the attribute is a tuple.
      batch_axis: the sizes of leading axes with separate kernels, by their numbers from 0.
      use_bias: add a bias; without it, `bias` is None.
      dtype: dtype of the computation; None infers it from input and parameters.
      param_dtype: dtype in which the parameters are stored.
      kernel_init: makes the kernel, as a matrix of all inputs by all outputs.
      bias_init: makes the bias, as a vector.
      precision: numerical precision of the product, as `jax.lax.Precision`.
      promote_dtype: brings ``(inputs, kernel, bias)`` to one dtype.
      dot_general: replaces `jax.lax.dot_general`.
      dot_general_cls: makes the function that replaces it, in each call.
      preferred_element_type: dtype in which the product accumulates.
      rngs: gives one key to the kernel, then one to the bias, from `params`.
      kernel_metadata: metadata of the kernel.
      bias_metadata: metadata of the bias.

    Raises:
      LayerError: for axes that do not fit `in_features`, batch axes that do not lead, and an input of other sizes.

    >>> import declax as dx
    >>> heads = dx.LinearGeneral(6, (2, 3), rngs=dx.Rngs(0))
    >>> heads(jnp.ones((4, 6))).shape
    (4, 2, 3)
    >>> out = dx.LinearGeneral((2, 3), 6, axis=(-2, -1), rngs=dx.Rngs(0))
    >>> out(heads(jnp.ones((4, 6)))).shape
    (4, 6)
    """

    in_features: Sizes = field()
    out_features: Sizes = field()
    _: KW_ONLY
    axis: Sizes = field(default=-1)
    batch_axis: Mapping[int, int] = static(default_factory=dict)
    use_bias: bool = field(default=True)
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    bias_init: InitVar[Initializer] = field(default=default_bias_init)
    precision: PrecisionLike = field(default=None)
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    dot_general: Callable[..., jax.Array] | None = field(default=None)
    dot_general_cls: Callable[[], Callable[..., jax.Array]] | None = field(default=None)
    preferred_element_type: Dtype | None = static(default=None)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    kernel: Param[jax.Array] = variable(
        defer(_general_shape)(batch_axis, in_features, out_features),
        initializer=defer(_of_a_matrix)(kernel_init, in_features, out_features),
        dtype=param_dtype,
        metadata=kernel_metadata,
    )
    bias: Param[jax.Array] | None = variable(
        defer(_general_shape)(batch_axis, out_features),
        initializer=defer(_of_a_vector)(bias_init),
        dtype=param_dtype,
        when=use_bias,
        metadata=bias_metadata,
    )

    def __post_init__(self, *used_up: object) -> None:
        if len(sizes_of(self.in_features)) != len(sizes_of(self.axis)):
            raise errors.LayerError(
                field_of(self, "axis"),
                "each size of the input needs an axis",
                expected=f"{len(sizes_of(self.in_features))} axes, for in_features={self.in_features}",
                got=repr(self.axis),
            )
        if list(self.batch_axis) != list(range(len(self.batch_axis))):
            raise errors.LayerError(
                field_of(self, "batch_axis"),
                "batch axes are the first axes of the input",
                expected="the axes 0, 1, ... in order, with their sizes",
                got=repr(dict(self.batch_axis)),
            )
        self.in_features, self.out_features = sizes_of(self.in_features), sizes_of(self.out_features)
        self.axis = sizes_of(self.axis)

    def __call__(self, inputs: jax.Array, out_sharding: OutSharding = None) -> jax.Array:
        """Applies the affine map to axes of the input.

        Args:
          inputs: array whose axes `axis` have the sizes `in_features`.
          out_sharding: sharding of the output, under explicit sharding.

        Returns:
          Array with the axes of the input that are not contracted, then those of `out_features`.
        """
        bias = None if self.bias is None else self.bias.value
        x, kernel, bias = self.promote_dtype((inputs, self.kernel.value, bias), dtype=self.dtype)
        axes = LinearGeneral._axes_of(self, x)
        batch = tuple(range(len(self.batch_axis)))
        first = len(batch) + len(axes)  # of the dimensions of the kernel that the result has at its end
        rest = [size for axis, size in enumerate(x.shape) if axis not in (*batch, *axes)]
        ndim = len(batch) + len(rest) + kernel.ndim - first
        shape = (*kernel.shape[: len(batch)], *rest, *kernel.shape[first:])
        place = result_sharding(self, self.kernel, shape, out_sharding)
        kept = {axis: axis for axis in batch} | {axis: axis - kernel.ndim + ndim for axis in range(first, kernel.ndim)}
        kernel = gathered(self.kernel, kernel, x, dict(enumerate((*batch, *axes))), place, kept)
        options = dtypes.product_options(place, self.preferred_element_type)
        contract = ((axes, tuple(range(len(batch), first))), (batch, batch))
        product = self.dot_general_cls() if self.dot_general_cls else self.dot_general or lax.dot_general
        y = product(x, kernel, contract, precision=self.precision, **options)
        if bias is not None:
            outputs = sizes_of(self.out_features)
            between = (1,) * (y.ndim - len(batch) - len(outputs))
            bias = gathered(self.bias, bias, y, dict(enumerate((*batch, *range(y.ndim - len(outputs), y.ndim)))))
            y = y + dtypes.cast(bias.reshape(*y.shape[: len(batch)], *between, *outputs), y.dtype)
        return constrained(self, self.kernel, y, out_sharding)

    def _axes_of(self, x: jax.Array) -> tuple[int, ...]:
        wanted = {**self.batch_axis, **dict(zip(sizes_of(self.axis), sizes_of(self.in_features), strict=True))}
        is_fine = all(-x.ndim <= axis < x.ndim and x.shape[axis] == size for axis, size in wanted.items())
        counted = [axis % max(x.ndim, 1) for axis in wanted]
        if not is_fine or len(set(counted)) < len(counted):
            raise errors.LayerError(
                field_of(self, "axis"),
                "the axes of 'inputs' have the wrong sizes",
                expected=", ".join(f"size {size} along axis {axis}" for axis, size in wanted.items()),
                got=errors.describe(x),
            )
        return tuple(counted[len(self.batch_axis) :])


def _is_given(shape: tuple[int, ...] | None) -> bool:
    return shape is not None


def _shape_or_scalar(shape: tuple[int, ...] | None) -> tuple[int, ...]:
    return shape or ()


def _axis_names(operand: str, rank: int) -> list[str | int]:
    """A name for each axis; those of an ellipsis are counted from its end, as they broadcast."""
    before, dots, after = operand.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *range(-hidden, 0), *after]


def _places(names: list[str | int], others: list[str | int]) -> dict[int, int]:
    """The place of each name in another list that has it."""
    return {place: others.index(name) for place, name in enumerate(names) if name in others}


@dataclass
class Einsum(Layer):
    """A product with a kernel, in Einstein's notation.

    ``y = einsum(einsum_str, x, kernel) + bias``

    Args:
      einsum_str: the equation of two operands, such as ``"nta,hab->nthb"``, with its result.
      kernel_shape: shape of the kernel, the second operand.
      bias_shape: shape of the bias: the axes of the kernel that are in the result; None adds no bias.
      dtype: dtype of the computation; None infers it from input and parameters.
      param_dtype: dtype in which the parameters are stored.
      precision: numerical precision of the product, as `jax.lax.Precision`.
      kernel_init: makes the kernel.
      bias_init: makes the bias.
      promote_dtype: brings ``(inputs, kernel, bias)`` to one dtype.
      einsum_op: replaces `jax.numpy.einsum`.
      preferred_element_type: dtype in which the product accumulates.
      rngs: gives one key to the kernel, then one to the bias, from `params`.
      kernel_metadata: metadata of the kernel.
      bias_metadata: metadata of the bias.

    Raises:
      LayerError: for an equation without two operands and a result.

    >>> import declax as dx
    >>> layer = dx.Einsum("nta,hab->nthb", (8, 2, 4), (8, 4), rngs=dx.Rngs(0))
    >>> layer(jnp.ones((16, 11, 2))).shape
    (16, 11, 8, 4)
    """

    einsum_str: str = field()
    kernel_shape: tuple[int, ...] = field()
    bias_shape: tuple[int, ...] | None = field(default=None)
    _: KW_ONLY
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    precision: PrecisionLike = field(default=None)
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    bias_init: InitVar[Initializer] = field(default=default_bias_init)
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    einsum_op: Callable[..., jax.Array] = field(default=jnp.einsum)
    preferred_element_type: Dtype | None = static(default=None)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    kernel: Param[jax.Array] = variable(
        kernel_shape, initializer=kernel_init, dtype=param_dtype, metadata=kernel_metadata
    )
    bias: Param[jax.Array] | None = variable(
        defer(_shape_or_scalar)(bias_shape),
        initializer=bias_init,
        dtype=param_dtype,
        when=defer(_is_given)(bias_shape),
        metadata=bias_metadata,
    )

    def __post_init__(self, *used_up: object) -> None:
        self._parsed(self.einsum_str)

    def __call__(self, inputs: jax.Array, einsum_str: str | None = None, out_sharding: OutSharding = None) -> jax.Array:
        """Multiplies the input by the kernel, as the equation says.

        Args:
          inputs: the first operand.
          einsum_str: overrides the attribute of that name.
          out_sharding: sharding of the output, under explicit sharding.

        Returns:
          Array of the shape that the equation gives.
        """
        equation = self.einsum_str if einsum_str is None else einsum_str
        bias = None if self.bias is None else self.bias.value
        x, kernel, bias = self.promote_dtype((inputs, self.kernel.value, bias), dtype=self.dtype)
        of_inputs, *names = self._parsed(equation)
        self._check_sizes(of_inputs, names[0], x, kernel)
        of_x, operand = _axis_names(of_inputs, x.ndim), _axis_names(names[0], kernel.ndim)
        rest = max(sum(isinstance(name, int) for name in axes) for axes in (of_x, operand)) if "..." in names[1] else 0
        result = _axis_names(names[1], len(names[1].replace("...", "")) + rest)
        pairs = [*zip(of_x, x.shape, strict=True), *zip(operand, kernel.shape, strict=True)]
        sizes = dict(sorted(pairs, key=lambda pair: pair[1] != 1))  # the other one, where an axis of size 1 broadcasts
        place = result_sharding(self, self.kernel, tuple(sizes[name] for name in result), out_sharding)
        kernel = gathered(self.kernel, kernel, x, _places(operand, of_x), place, _places(operand, result))
        options = dtypes.product_options(place, self.preferred_element_type)
        y = self.einsum_op(equation.replace(" ", ""), x, kernel, precision=self.precision, **options)
        if bias is None:
            return constrained(self, self.kernel, y, out_sharding)
        size_of = dict(zip(operand, kernel.shape, strict=True))
        shape = [size_of.get(name, 1) for name in result]
        if bias.size != math.prod(shape):
            raise errors.LayerError(
                field_of(self, "bias_shape"),
                "the bias does not fit the axes of the kernel in the result",
                expected=f"{math.prod(shape)} elements, for the axes {names[1]!r} of sizes {tuple(shape)}",
                got=f"shape {bias.shape}",
            )
        bias = dtypes.cast(gathered(self.bias, bias, y, {}).reshape(shape), y.dtype)
        return constrained(self, self.kernel, y + bias, out_sharding)

    def _check_sizes(self, of_inputs: str, of_kernel: str, x: jax.Array, kernel: jax.Array) -> None:
        sizes = dict(zip(_axis_names(of_kernel, kernel.ndim), kernel.shape, strict=True))
        named = _axis_names(of_inputs, x.ndim)
        shared: dict[str | int, int] = {name: sizes[name] for name in named if isinstance(name, str) and name in sizes}
        pairs = zip(named, x.shape, strict=False)
        if len(named) != x.ndim or any(size != 1 and shared.get(name, 1) not in (1, size) for name, size in pairs):
            found = ", ".join(f"size {size} along axis {named.index(name)} ({name})" for name, size in shared.items())
            raise errors.LayerError(
                field_of(self, "einsum_str"),
                "the axes of 'inputs' do not fit the equation and the kernel",
                expected=f"the axes {of_inputs!r}" + (f", with {found}" if found else ""),
                got=errors.describe(x),
                why=f"the axes of the kernel are {of_kernel!r}, of shape {kernel.shape}",
            )

    def _parsed(self, equation: str) -> tuple[str, str, str]:
        """The names of the axes of the inputs, of the kernel and of the result."""
        operands, arrow, result = equation.replace(" ", "").partition("->")
        if not arrow or operands.count(",") != 1:
            raise errors.LayerError(
                field_of(self, "einsum_str"),
                "this is not an equation of two operands with a result",
                expected='a text such as "nta,hab->nthb"',
                got=repr(equation),
            )
        of_inputs, _, of_kernel = operands.partition(",")
        return of_inputs, of_kernel, result

"""Convolutions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar  # pyright knows it by this module only
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.deferring import defer
from declax._fields.specifiers import KW_ONLY, field, static, variable
from declax._module.running import warn_by
from declax._typing import Dtype, Initializer, PrecisionLike
from declax._variables.kinds import Param
from declax._variables.metadata import EMPTY
from declax._variables.placement import explicit_spec, make_spec
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax.initializers import lecun_normal, zeros
from declax.nn import dtypes
from declax.nn._checks import check_last_axis, field_of, is_integer
from declax.nn._defaults import OutSharding
from declax.nn._gathering import constrained, gathered, is_named, on_mesh_of, result_sharding
from declax.nn._grouped_conv import safe_for_groups
from declax.nn.layer import Layer

Padding: TypeAlias = str | int | Sequence[int | tuple[int, int]]
"""A name of a padding, or how much to add before and after each spatial axis."""

Pairs: TypeAlias = tuple[tuple[int, int], ...]
PerAxis: TypeAlias = int | Sequence[int] | None

_PAD_MODES = {"CIRCULAR": "wrap", "REFLECT": "reflect", "CAUSAL": "constant"}


def shape_of_kernel(layer: str, kernel_size: int | Sequence[int], *features: int) -> tuple[int, ...]:
    """The shape of a kernel: its sizes along spatial axes, then its features."""
    return *_per_axis(f"{layer}.kernel_size", kernel_size), *features


def _grouped_shape(
    kernel_size: int | Sequence[int], in_features: int, out_features: int, groups: int
) -> tuple[int, ...]:
    for name, features in (("in_features", in_features), ("out_features", out_features)):
        if features % groups:
            raise errors.LayerError(
                f"Conv.{name}",
                "the features cannot be split into equal groups",
                expected=f"a multiple of feature_group_count={groups}",
                got=errors.describe(features),
            )
    return shape_of_kernel("Conv", kernel_size, in_features // groups, out_features)


def sizes_of(conv: Convolution, name: str, rank: int | None = None) -> tuple[int, ...]:
    """The value of a field that has one size for each spatial axis."""
    return _per_axis(field_of(conv, name), getattr(conv, name), rank)


def _per_axis(where: str, value: PerAxis, rank: int | None = None) -> tuple[int, ...]:
    """The value of a field that has one size for each spatial axis, or one for all."""
    if value is None and rank is not None:
        value = 1
    if is_integer(value):
        sizes: tuple[int, ...] = (value,) * (rank or 1)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        sizes = tuple(value)
    else:
        sizes = ()
    if not sizes or len(sizes) != (rank or len(sizes)) or not all(is_integer(size) and size > 0 for size in sizes):
        number = "any number of them" if rank is None else f"a sequence of {rank}"
        raise errors.LayerError(
            where,
            "these are not sizes of spatial axes",
            expected=f"an integer of at least 1, or {number}",
            got=repr(value),
        )
    return sizes


@dataclass
class Convolution(Layer):
    """The arguments and parameters that `Conv` and `ConvTranspose` share."""

    paddings: ClassVar[tuple[str, ...]] = ()

    in_features: int = field(ge=1)
    out_features: int = field(ge=1)
    kernel_size: int | Sequence[int] = field()
    strides: PerAxis = field(default=1)
    _: KW_ONLY
    padding: Padding = field(default="SAME")
    kernel_dilation: PerAxis = field(default=1)
    use_bias: bool = field(default=True)
    mask: jax.Array | None = field(default=None)
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    precision: PrecisionLike = field(default=None)
    kernel_init: InitVar[Initializer] = field(default=lecun_normal())
    bias_init: InitVar[Initializer] = field(default=zeros)
    promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    preferred_element_type: Dtype | None = static(default=None)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    _shape = defer(shape_of_kernel)("Convolution", kernel_size, in_features, out_features)
    kernel: Param[jax.Array] = variable(_shape, initializer=kernel_init, dtype=param_dtype, metadata=kernel_metadata)
    bias: Param[jax.Array] | None = variable(
        (out_features,), initializer=bias_init, dtype=param_dtype, when=use_bias, metadata=bias_metadata
    )

    def __post_init__(self, *used_up: object) -> None:
        self.kernel_size = sizes_of(self, "kernel_size")
        for name in ("strides", "kernel_dilation"):
            sizes_of(self, name, rank_of(self))
        padding_of(self, self.paddings)
        Convolution._masked(self, self.kernel.value)

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """The shape of the kernel, which that of a mask must be."""
        return self._shape

    # These are called by class, so that `Conv.__call__(other, x)` needs the public attributes of `other` alone.

    def _apply(
        self,
        inputs: jax.Array,
        convolve: Callable[[jax.Array, jax.Array], jax.Array],
        out_sharding: OutSharding = None,
        *,
        is_turned: bool = False,
    ) -> jax.Array:
        """Convolves in the dtype of the layer with one batch axis, and adds the bias.

        The last two dimensions of a kernel are those of the input and of the result, or turned.
        """
        bias = None if self.bias is None else self.bias.value
        kernel = Convolution._masked(self, self.kernel.value)
        x, kernel, bias = self.promote_dtype((inputs, kernel, bias), dtype=self.dtype)
        Convolution._check_input(self, x)
        rank = rank_of(self)
        last, batched = rank + 1, x
        x = _with_one_batch_axis(x, rank)
        met, kept = {rank + is_turned: last}, {rank + 1 - is_turned: last}
        kernel = gathered(self.kernel, on_mesh_of(x, kernel), x, met, out_sharding, kept)
        y = dtypes.add_bias(convolve(x, kernel), bias, self.bias)
        return constrained(self, self.kernel, _with_batch_axes_of(batched, y), out_sharding)

    def _masked(self, kernel: jax.Array) -> jax.Array:
        if self.mask is None:
            return kernel
        if jnp.shape(self.mask) != kernel.shape:
            raise errors.LayerError(
                field_of(self, "mask"),
                "a mask has the shape of the kernel",
                expected=f"an array of shape {kernel.shape}",
                got=errors.describe(self.mask),
            )
        return kernel * jnp.asarray(self.mask, kernel.dtype)

    def _check_input(self, x: jax.Array) -> None:
        if x.ndim <= rank_of(self):
            raise errors.LayerError(
                field_of(self, "kernel_size"),
                "'inputs' has too few axes",
                expected=f"{rank_of(self)} spatial axes and one of features, after any batch axes",
                got=errors.describe(x),
                why=f"the kernel has size {self.kernel_size}",
            )
        check_last_axis(self, "in_features", x, other_axis=x.ndim - rank_of(self) - 1)
        if rank_of(self) == 1 and x.ndim == 4:
            Convolution._warn_of_images(self, x)

    def _warn_of_images(self, x: jax.Array) -> None:
        size = sizes_of(self, "kernel_size")
        if (size, sizes_of(self, "strides", 1)) == ((1,), (1,)):
            return  # the same along one axis and along two
        warn_by(
            errors.LayerError(
                field_of(self, "kernel_size"),
                "the kernel has one axis, and 'inputs' has the four of images",
                expected="inputs of shape (batch, length, features)",
                got=errors.describe(x),
                why="so the kernel moves along the last but one axis only, and the two before are batch axes",
                fix=f"kernel_size={size * 2}                   # for images\n"
                "inputs.reshape(-1, *inputs.shape[2:])   # if both are batch axes",
            )
        )


@dataclass
class Conv(Convolution):
    """A convolution over the spatial axes of its input.

    In one dimension, without strides and dilation,
    ``y[b, t, j] = sum_k sum_i x[b, t + k, i] * kernel[k, i, j] + bias[j]``, where `x` is the padded input. As usual in
    the field, the kernel is not turned around, so strictly this is a cross-correlation.

    Args:
      in_features: size of the last axis of the input.
      out_features: size of the last axis of the output.
      kernel_size: size of the kernel along each spatial axis. An integer is one axis; it becomes a tuple.
      strides: steps of the kernel, for all axes or each.
      padding: ``"SAME"``, ``"SAME_LOWER"`` or ``"VALID"`` as in `jax.lax`; ``"CIRCULAR"`` and ``"REFLECT"`` keep the
        size and fill with the other end or the mirror image of the input; ``"CAUSAL"``, for one spatial axis, fills at
        the start only, so that no output depends on a later input. Or numbers: one for all sides, or for each axis one
        or a pair.
      input_dilation: spacing of the input's elements, for all axes or each. Beside one, the padding is ``"VALID"`` or
        numbers.
      kernel_dilation: spacing of the kernel's elements, for all axes or each.
      feature_group_count: number of groups; both sizes are multiples of it.
      use_bias: add a bias; without it, `bias` is None.
      mask: of the kernel's shape, cast to its dtype and multiplied with it at each call; data.
      dtype: dtype of the computation; None infers it from input and parameters.
      param_dtype: dtype in which the parameters are stored.
      precision: numerical precision of the products, as `jax.lax.Precision`.
      kernel_init: makes the kernel, of shape ``(*kernel_size, in_features // feature_group_count, out_features)``.
      bias_init: makes the bias, of shape ``(out_features,)``.
      conv_general_dilated: replaces `jax.lax.conv_general_dilated`.
      promote_dtype: brings ``(inputs, kernel, bias)`` to one dtype.
      preferred_element_type: dtype in which the products accumulate.
      rngs: gives one key to the kernel, then one to the bias, from `params`.
      kernel_metadata: metadata of the kernel.
      bias_metadata: metadata of the bias.

    Raises:
      LayerError: for sizes, groups, padding or a mask that do not fit, and for
        an input of too few axes or other features.

    >>> import declax as dx
    >>> layer = dx.Conv(3, 8, kernel_size=(3, 3), strides=2, rngs=dx.Rngs(0))
    >>> layer(jnp.ones((5, 28, 28, 3))).shape
    (5, 14, 14, 8)
    """

    paddings: ClassVar[tuple[str, ...]] = ("SAME", "SAME_LOWER", "VALID", "CIRCULAR", "REFLECT", "CAUSAL")

    _: KW_ONLY
    input_dilation: PerAxis = field(default=1)
    feature_group_count: int = field(default=1, ge=1)
    conv_general_dilated: Callable[..., jax.Array] = field(default=lax.conv_general_dilated)
    _shape = defer(_grouped_shape)(
        Convolution.kernel_size, Convolution.in_features, Convolution.out_features, feature_group_count
    )

    def __post_init__(self, *used_up: object) -> None:
        super().__post_init__()
        sizes_of(self, "input_dilation", rank_of(self))
        _check_dilated(self, padding_of(self, Conv.paddings))

    def __call__(self, inputs: jax.Array, out_sharding: OutSharding = None) -> jax.Array:
        """Convolves the input over its spatial axes.

        Args:
          inputs: array of shape ``(*batch, *spatial, in_features)``, with as many spatial axes as the kernel, and any
            number of batch axes, also none.
          out_sharding: sharding of the output, under explicit sharding.

        Returns:
          Array of shape ``(*batch, *spatial', out_features)``.
        """
        place = out_sharding
        if place is None and is_named(self.kernel) and inputs.ndim == rank_of(self) + 2:
            shapes: list[Any] = [
                jax.ShapeDtypeStruct(array.shape, inputs.dtype)  # type: ignore[no-untyped-call]  # of JAX
                for array in (inputs, self.kernel.value)
            ]
            shape = jax.eval_shape(functools.partial(Conv._convolve, self, None), *shapes).shape
            place = result_sharding(self, self.kernel, shape, None)
        return Convolution._apply(self, inputs, functools.partial(Conv._convolve, self, place), place)

    def _convolve(self, out_sharding: OutSharding, x: jax.Array, kernel: jax.Array) -> jax.Array:
        padding = padding_of(self, Conv.paddings)
        if isinstance(padding, str) and padding in _PAD_MODES:
            x = jnp.pad(x, _fill(self, padding), mode=_PAD_MODES[padding])
            padding = "VALID"
        if padding == "VALID" and max(sizes_of(self, "input_dilation", rank_of(self))) > 1:
            padding = ((0, 0),) * rank_of(self)  # what JAX takes beside a dilation of the input
        options = dtypes.product_options(out_sharding, self.preferred_element_type)
        convolve = self.conv_general_dilated
        if self.feature_group_count > 1:
            convolve = safe_for_groups(convolve)
        return convolve(
            x,
            kernel,
            sizes_of(self, "strides", rank_of(self)),
            padding,
            lhs_dilation=sizes_of(self, "input_dilation", rank_of(self)),
            rhs_dilation=sizes_of(self, "kernel_dilation", rank_of(self)),
            dimension_numbers=features_last(rank_of(self)),
            feature_group_count=self.feature_group_count,
            precision=self.precision,
            **options,
        )


def _with_one_batch_axis(x: jax.Array, rank: int) -> jax.Array:
    """The batch axes as one."""
    count = x.ndim - rank - 1
    if count == 1:
        return x
    order = _order_of_batch(x, count)
    return x.transpose(*order, *range(count, x.ndim)).reshape(math.prod(x.shape[:count]), *x.shape[count:])


def _with_batch_axes_of(x: jax.Array, y: jax.Array) -> jax.Array:
    """An array with one batch axis, with those of another."""
    count = x.ndim - y.ndim + 1
    if count == 1:
        return y
    order, spec, of_y = _order_of_batch(x, count), explicit_spec(x), explicit_spec(y)
    place = None if spec is None or of_y is None else make_spec(*(spec[axis] for axis in order), *of_y[1:])
    parted = lax.reshape(y, (*(x.shape[axis] for axis in order), *y.shape[1:]), out_sharding=place)
    return parted.transpose(*map(order.index, range(count)), *range(count, parted.ndim))


def _order_of_batch(x: jax.Array, count: int) -> list[int]:
    """The batch axes, those that explicit axes split first: JAX joins no others."""
    spec = explicit_spec(x)
    return sorted(range(count), key=lambda axis: spec is not None and spec[axis] is None)


def rank_of(conv: Convolution) -> int:
    """The number of spatial axes."""
    return len(sizes_of(conv, "kernel_size"))


def padding_of(conv: Convolution, names: tuple[str, ...]) -> str | Pairs:
    """The padding as one of some names, or as a pair for each spatial axis."""
    padding, rank = conv.padding, rank_of(conv)
    if isinstance(padding, str):
        name = padding.upper()
        if name in names and (name != "CAUSAL" or rank == 1):
            return name
    elif (pairs := _pairs(padding, rank)) is not None:
        return pairs
    raise _wrong_padding(field_of(conv, "padding"), padding, rank, names)


def canonicalize_padding(padding: Padding, rank: int) -> str | list[tuple[int, int]]:
    """A name of a padding as it is, or a pair of numbers for each spatial axis; a LayerError for anything else."""
    if isinstance(padding, str):
        return padding
    pairs = _pairs(padding, rank)
    if pairs is None:
        raise _wrong_padding("canonicalize_padding", padding, rank, Conv.paddings)
    return list(pairs)


def _wrong_padding(where: str, padding: object, rank: int, names: tuple[str, ...]) -> errors.LayerError:
    is_causal = isinstance(padding, str) and padding.upper() == "CAUSAL"
    return errors.LayerError(
        where,
        f"this is not a padding of {rank} spatial {'axis' if rank == 1 else 'axes'}",
        expected=f"one of {', '.join(names)}; an integer; or a sequence of {rank} integers or pairs",
        got=repr(padding),
        why="'CAUSAL' is for one spatial axis" if is_causal else None,
        fix=errors.suggest(padding.upper(), names) if isinstance(padding, str) and not is_causal else None,
    )


def _pairs(padding: object, rank: int) -> Pairs | None:
    """A pair for each spatial axis, if the padding is a number or a sequence for this many axes."""
    if is_integer(padding):
        return ((padding, padding),) * rank
    if not isinstance(padding, Sequence) or len(padding) != rank:
        return None
    pairs = tuple(pair for side in padding if (pair := _pair(side)) is not None)
    return pairs if len(pairs) == rank else None


def _check_dilated(conv: Conv, padding: str | Pairs) -> None:
    dilation = sizes_of(conv, "input_dilation", rank_of(conv))
    if isinstance(padding, str) and padding != "VALID" and max(dilation) > 1:
        raise errors.LayerError(
            field_of(conv, "padding"),
            f"{padding!r} is not defined for an input that is dilated",
            expected="'VALID' or numbers",
            got=f"input_dilation={dilation}",
            fix=f"padding={tuple((size - 1) // 2 for size in sizes_of(conv, 'kernel_size'))}",
        )


def _pair(sides: object) -> tuple[int, int] | None:
    if is_integer(sides):
        return sides, sides
    if isinstance(sides, Sequence) and len(sides) == 2 and all(map(is_integer, sides)):
        return sides[0], sides[1]
    return None


def reaches_of(conv: Convolution) -> list[int]:
    """How far the last element of the kernel is from the first, along each spatial axis."""
    dilations = sizes_of(conv, "kernel_dilation", rank_of(conv))
    return [dilation * (size - 1) for dilation, size in zip(dilations, sizes_of(conv, "kernel_size"), strict=True)]


def _fill(conv: Conv, padding: str) -> Pairs:
    """The padding of each axis of the input that preserves its size."""
    reaches = reaches_of(conv)
    if padding == "CAUSAL":
        return (0, 0), (reaches[0], 0), (0, 0)
    return (0, 0), *((reach // 2, reach - reach // 2) for reach in reaches), (0, 0)


def features_last(rank: int) -> lax.ConvDimensionNumbers:
    """The order of axes of inputs, kernels and outputs."""
    image = (0, rank + 1, *range(1, rank + 1))
    return lax.ConvDimensionNumbers(image, (rank + 1, rank, *range(rank)), image)

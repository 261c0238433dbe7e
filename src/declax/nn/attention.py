"""A layer of attention with several heads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import InitVar  # pyright knows it by this module only
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.sharding import AxisType

from declax import errors
from declax._classes.decorator import dataclass
from declax._fields.deferring import defer, when
from declax._fields.keys import needed_rngs
from declax._fields.specifiers import KW_ONLY, data, field, static
from declax._lazy import lazy_names
from declax._random.streams import Rngs, RngStream
from declax._typing import Dtype, Initializer, PrecisionLike
from declax._variables.kinds import Cache, Param
from declax._variables.metadata import AXES, EMPTY, Metadata
from declax._variables.placement import (
    context_mesh,
    declared_sharding,
    explicit_spec,
    make_spec,
    reshard,
    sharding_at_creation,
)
from declax._variables.policy import COMPUTE_DTYPE, PARAM_DTYPE
from declax.initializers import zeros
from declax.nn import dtypes
from declax.nn._checks import check_last_axis, decide, field_of, no_random_numbers
from declax.nn._defaults import Made, OutSharding, default_bias_init, default_kernel_init
from declax.nn.contractions import LinearGeneral
from declax.nn.dot_product import dot_product_attention as dot_product_attention
from declax.nn.dot_product import dot_product_attention_weights as dot_product_attention_weights
from declax.nn.dot_product import dot_product_attention_with_rope as dot_product_attention_with_rope
from declax.nn.layer import Layer
from declax.nn.masks import combine_masks as combine_masks
from declax.nn.masks import make_attention_mask as make_attention_mask
from declax.nn.masks import make_causal_mask as make_causal_mask
from declax.nn.normalization import LayerNorm
from declax.nn.rope import RoPE as RoPE

T = TypeVar("T")


@defer
def _or(given: T | None, default: T) -> T:
    return default if given is None else given


@defer
def _features_of_head(num_heads: int, num_kv_heads: int, features: int) -> int:
    if features % num_heads or num_heads % num_kv_heads:
        raise errors.LayerError(
            "MultiHeadAttention.num_heads",
            "the features cannot be divided among the heads",
            expected="qkv_features that num_heads divides, and num_heads that num_kv_heads divides",
            got=f"qkv_features={features}, num_heads={num_heads}, num_kv_heads={num_kv_heads}",
            why=f"{features} % {num_heads} = {features % num_heads}, {num_heads} % {num_kv_heads} = "
            f"{num_heads % num_kv_heads}",
        )
    return features // num_heads


def _takes_offset(attention_fn: Callable[..., Any]) -> bool:
    """Whether a function takes the position of the first query, by its name or among ``**options``."""
    parameters = inspect.signature(attention_fn).parameters.values()
    return any(parameter.name == "query_offset" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


@dataclass
class _Heads(Layer):
    """The fields of attention on which the maps to heads and from them depend."""

    num_heads: int = field(ge=1)
    in_features: int = field(ge=1)
    qkv_features: int | None = field(default=None, ge=1)
    out_features: int | None = field(default=None, ge=1)
    num_kv_heads: int | None = field(default=None, ge=1)
    in_kv_features: int | None = field(default=None, ge=1)
    _: KW_ONLY
    dtype: Dtype | None = static(default_factory=COMPUTE_DTYPE)
    param_dtype: Dtype = static(default_factory=PARAM_DTYPE)
    precision: PrecisionLike = field(default=None)
    use_bias: bool = field(default=True)
    normalize_qk: bool = field(default=False)
    qkv_promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    out_promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    ln_promote_dtype: dtypes.PromoteDtype = static(default=dtypes.promote_dtype)
    qkv_dot_general: Callable[..., jax.Array] | None = field(default=None)
    out_dot_general: Callable[..., jax.Array] | None = field(default=None)
    _kv_heads = _or(num_kv_heads, num_heads)
    _kv_features = _or(in_kv_features, in_features)
    _head_features = _features_of_head(num_heads, _kv_heads, _or(qkv_features, in_features))

    def _resolve_sizes(self) -> None:
        self.qkv_features = self.num_heads * self._head_features
        self.out_features = self.in_features if self.out_features is None else self.out_features
        self.num_kv_heads, self.in_kv_features = self._kv_heads, self._kv_features


def _to_heads(in_features: int, num_heads: int, kernel: Made, bias: Made) -> LinearGeneral:
    """Declares the map of an input to queries, keys or values."""
    return LinearGeneral(
        in_features,
        (num_heads, _Heads._head_features),
        use_bias=_Heads.use_bias,
        dtype=_Heads.dtype,
        param_dtype=_Heads.param_dtype,
        kernel_init=kernel[0],
        bias_init=bias[0],
        precision=_Heads.precision,
        promote_dtype=_Heads.qkv_promote_dtype,
        dot_general=_Heads.qkv_dot_general,
        kernel_metadata=kernel[1],
        bias_metadata=bias[1],
    )


def _norm_of_heads(metadata: Mapping[str, Any]) -> LayerNorm | None:
    """Declares the norm of queries or keys."""
    norm = LayerNorm(
        _Heads._head_features,
        use_bias=False,
        dtype=_Heads.dtype,
        param_dtype=_Heads.param_dtype,
        promote_dtype=_Heads.ln_promote_dtype,
        scale_metadata=metadata,
    )
    return when(_Heads.normalize_qk, norm)


def _sharding_of_keys(where: str, kernel: Param[jax.Array] | None, ndim: int) -> jax.NamedSharding | None:
    """Where keys are that a kernel on a mesh makes, as far as the kernel decides: heads and their features."""
    sharding = None if kernel is None else _sharding_of(where, kernel)
    if not isinstance(sharding, jax.NamedSharding) or kernel is None:
        return None
    entries = [*sharding.spec, *[None] * (kernel.ndim - len(sharding.spec))]
    return jax.NamedSharding(sharding.mesh, make_spec(*[None] * (ndim - 2), *entries[-2:]))


def _sharding_of(where: str, kernel: Param[jax.Array]) -> object:
    """The sharding of an array; of a traced one on automatic axes, whose type does not have it, the declared one."""
    if not isinstance(kernel.value, Tracer):
        return kernel.value.sharding
    if explicit_spec(kernel.value) is not None:
        return jax.typeof(kernel.value).sharding
    mesh = context_mesh()
    is_split_here = mesh is None or AxisType.Manual in mesh.axis_types  # a shard_map has split the kernel
    return None if is_split_here or mesh is None else declared_sharding(where, kernel._metadata, kernel.shape, mesh)[0]


def _placed_as(cache: jax.Array, new: jax.Array) -> jax.Array:
    """New keys or values with the sharding of their cache, which JAX does not reconcile on explicit axes."""
    there = explicit_spec(cache)
    return new if there is None or there == explicit_spec(new) else reshard(new, jax.typeof(cache).sharding)


def _split_as(new: jax.Array, kept: jax.Array) -> jax.Array:
    """Kept keys or values with the split of new ones, which that of queries is; each step reads all positions."""
    there = explicit_spec(new)
    if there is None or there == explicit_spec(kept):
        return kept
    place = make_spec(*(None if axis == new.ndim - 3 else entry for axis, entry in enumerate(there)))
    found: jax.Array = reshard(kept, jax.NamedSharding(jax.typeof(new).sharding.mesh, place))
    return found


@dataclass
class MultiHeadAttention(_Heads):
    """Attention by several heads, each of which compares queries with keys and takes a mean of values.

    ``y = out(dot_product_attention(query(inputs_q), key(inputs_k), value(inputs_v)))``

    Vaswani et al., "Attention Is All You Need", https://arxiv.org/abs/1706.03762. With fewer heads of keys and values:
    Ainslie et al., "GQA", https://arxiv.org/abs/2305.13245.

    With `decode`, keys and values go to a cache, whose length `init_cache` sets, and each query looks at all keys
    there up to its own. A call may bring one position or several. Beyond the end of the cache, a call raises. A trace
    does not know the position: a traced call whose positions do not fit returns NaN and leaves the cached keys and
    values as they were, and so do all later ones. `cache_index` counts on, so that ``layer.cache_index > length``
    says afterwards whether this has happened; ``jax.debug_nans(True)`` raises at the call.

    Args:
      num_heads: number of heads of the queries.
      in_features: size of the last axis of `inputs_q`.
      qkv_features: size of queries and keys of all heads; None is `in_features`.
      out_features: size of the last axis of the output; None is `in_features`.
      num_kv_heads: number of heads of keys and values, which divides `num_heads`; None is `num_heads`.
      in_kv_features: size of the last axis of `inputs_k` and `inputs_v`; None is `in_features`.
      dtype: dtype of the computation; None infers it from input and parameters.
      param_dtype: dtype in which the parameters are stored.
      broadcast_dropout: drop the same pairs for all heads and examples.
      dropout_rate: the probability of dropping a pair of query and key.
      deterministic: drop nothing. None, as in NNX, leaves it to `model.train()`, `model.eval()` and each call; with a
        `dropout_rate`, pass False to begin in training mode, as `Dropout` does.
      precision: numerical precision of the products, as `jax.lax.Precision`.
      kernel_init: makes the kernels.
      out_kernel_init: makes the kernel of `out`; None is `kernel_init`.
      bias_init: makes the biases.
      out_bias_init: makes the bias of `out`; None is `bias_init`.
      use_bias: add biases.
      attention_fn: replaces `dot_product_attention`, and takes its arguments.
      decode: use the cache. None, as in NNX, leaves it to `dx.view` and each call; pass False for a model that trains.
      normalize_qk: normalize queries and keys, as in https://arxiv.org/abs/2302.05442.
      qkv_promote_dtype: brings inputs and parameters of `query`, `key` and `value` to one dtype.
      out_promote_dtype: brings inputs and parameters of `out` to one dtype.
      ln_promote_dtype: brings inputs and parameters of the norms to one dtype.
      qkv_dot_general: replaces `jax.lax.dot_general` in `query`, `key` and `value`.
      out_dot_general: replaces `jax.lax.dot_general` in `out`.
      rope: rotates queries and keys by their positions. A key is rotated once, as it enters the cache.
      rngs: gives the keys of the parameters, from `params`, and a stream for dropout.
      keep_rngs: keep a stream, forked from `dropout`, if there is dropout; otherwise each call has to be given `rngs`.
      kernel_metadata: metadata of the kernels.
      out_kernel_metadata: metadata of the kernel of `out`; none is `kernel_metadata`.
      bias_metadata: metadata of the biases.
      out_bias_metadata: metadata of the bias of `out`; none is `bias_metadata`.
      query_ln_scale_metadata: metadata of the scale of the norm of queries.
      key_ln_scale_metadata: metadata of the scale of the norm of keys.
      query: the map of `inputs_q` to the queries.
      key: the map of `inputs_k` to the keys.
      value: the map of `inputs_v` to the values.
      query_ln, key_ln: the norm of queries or keys; None without `normalize_qk`.
      out: the map of all heads to the output.

    Raises:
      LayerError: for features that the heads do not divide, inputs of other sizes, a call that lacks `rngs`, `decode`
        or `deterministic`, and for a cache that is missing, full, or of another batch.

    >>> import declax as dx
    >>> layer = dx.MultiHeadAttention(4, 16, decode=False, rngs=dx.Rngs(0))
    >>> x = jnp.ones((2, 5, 16))
    >>> layer(x, mask=dx.make_causal_mask(x[..., 0])).shape
    (2, 5, 16)
    """

    _: KW_ONLY
    broadcast_dropout: bool = field(default=True)
    dropout_rate: float = field(default=0.0, ge=0.0, le=1.0)
    deterministic: bool | None = field(default=None)
    kernel_init: InitVar[Initializer] = field(default=default_kernel_init)
    out_kernel_init: InitVar[Initializer | None] = field(default=None)
    bias_init: InitVar[Initializer] = field(default=default_bias_init)
    out_bias_init: InitVar[Initializer | None] = field(default=None)
    attention_fn: Callable[..., jax.Array] = field(default=dot_product_attention)
    decode: bool | None = field(default=None)
    rope: RoPE | None = field(default=None)
    keep_rngs: InitVar[bool] = field(default=True)
    kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    out_kernel_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    out_bias_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    query_ln_scale_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    key_ln_scale_metadata: InitVar[Mapping[str, Any]] = field(default=EMPTY)
    query: LinearGeneral = _to_heads(
        _Heads.in_features, _Heads.num_heads, (kernel_init, kernel_metadata), (bias_init, bias_metadata)
    )
    key: LinearGeneral = _to_heads(
        _Heads._kv_features, _Heads._kv_heads, (kernel_init, kernel_metadata), (bias_init, bias_metadata)
    )
    value: LinearGeneral = _to_heads(
        _Heads._kv_features, _Heads._kv_heads, (kernel_init, kernel_metadata), (bias_init, bias_metadata)
    )
    query_ln: LayerNorm | None = _norm_of_heads(query_ln_scale_metadata)
    key_ln: LayerNorm | None = _norm_of_heads(key_ln_scale_metadata)
    out: LinearGeneral = LinearGeneral(
        (_Heads.num_heads, _Heads._head_features),
        _or(_Heads.out_features, _Heads.in_features),
        axis=(-2, -1),
        use_bias=_Heads.use_bias,
        dtype=_Heads.dtype,
        param_dtype=_Heads.param_dtype,
        kernel_init=_or(out_kernel_init, kernel_init),
        bias_init=_or(out_bias_init, bias_init),
        precision=_Heads.precision,
        promote_dtype=_Heads.out_promote_dtype,
        dot_general=_Heads.out_dot_general,
        kernel_metadata=when(defer(bool)(out_kernel_metadata), out_kernel_metadata, kernel_metadata),
        bias_metadata=when(defer(bool)(out_bias_metadata), out_bias_metadata, bias_metadata),
    )
    cached_key: Cache[jax.Array] | None = data(default=None, init=False)
    cached_value: Cache[jax.Array] | None = data(default=None, init=False)
    cache_index: Cache[jax.Array] | None = data(default=None, init=False)

    def __post_init__(self, *_: object, keep_rngs: bool = True, rngs: Rngs | None = None) -> None:
        self._resolve_sizes()
        stream = needed_rngs(rngs).dropout.fork() if keep_rngs and self.dropout_rate > 0 else None
        self.rngs = stream  # type: ignore[assignment]  # the peer's name for it

    @property
    def head_dim(self) -> int:
        """The size of each head of queries, keys and values."""
        return self._head_features

    def __call__(
        self,
        inputs_q: jax.Array,
        inputs_k: jax.Array | None = None,
        inputs_v: jax.Array | None = None,
        *,
        mask: jax.Array | None = None,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | None = None,
        sow_weights: bool = False,
        decode: bool | None = None,
        is_causal: bool = False,
        out_sharding: OutSharding = None,
        qkv_sharding: OutSharding = None,
    ) -> jax.Array:
        """Compares queries with keys in each head, and returns means of values.

        Args:
          inputs_q: array of shape ``(*batch, queries, in_features)``.
          inputs_k: array of shape ``(*batch, keys, in_kv_features)``; None is `inputs_q`.
          inputs_v: array of such a shape; None is `inputs_k`.
          mask: nonzero where a query may look; broadcasts to ``(*batch, heads, queries, keys)``.
          deterministic, decode: override the attributes of these names.
          rngs: gives the key for dropout, in place of the layer's own stream.
          sow_weights: sow the weights as an `Intermediate` with the name ``attention_weights``.
          is_causal: let each query look at no later key.
          out_sharding: sharding of the output, under explicit sharding.
          qkv_sharding: sharding of queries, keys and values, under explicit sharding.

        Returns:
          Array of shape ``(*batch, queries, out_features)``.
        """
        if inputs_k is None and inputs_v is not None:
            raise errors.LayerError(
                field_of(self, "key"),
                "there are values without keys",
                expected="inputs_k",
                got="None",
                fix="attention(inputs_q, inputs_k)   # the keys are the values, too",
            )
        inputs_k = inputs_q if inputs_k is None else inputs_k
        inputs_v = inputs_k if inputs_v is None else inputs_v
        check_last_axis(self, "in_features", inputs_q, "inputs_q")
        check_last_axis(self, "in_kv_features", inputs_k, "inputs_k")
        check_last_axis(self, "in_kv_features", inputs_v, "inputs_v")
        query = self.query(inputs_q, out_sharding=qkv_sharding)
        key = self.key(inputs_k, out_sharding=qkv_sharding)
        value = self.value(inputs_v, out_sharding=qkv_sharding)
        if self.query_ln is not None and self.key_ln is not None:
            query, key = self.query_ln(query), self.key_ln(key)
        options: dict[str, Any] = {"is_causal": is_causal}
        fix = "dx.MultiHeadAttention(..., decode=False)        # and dx.view(model, decode=True) to use a cache"
        decodes = decide(self, "decode", decode, fix)
        is_beyond: jax.Array | bool = False
        if self.rope is not None:
            query, key = self._rotated(self.rope, query, key, decodes)
        if decodes:
            options["is_causal"] = False  # the mask of the cache is, and counts positions from its start
            if self.cache_index is not None and _takes_offset(self.attention_fn):
                options["query_offset"] = self.cache_index.value
            key, value, visible, is_beyond = self._cached(key, value)
            mask = combine_masks(mask, visible)
        fix = "dx.MultiHeadAttention(..., deterministic=False), or model.train() and model.eval()"
        drops = self.dropout_rate > 0 and not decide(self, "deterministic", deterministic, fix)
        x = self.attention_fn(
            query,
            key,
            value,
            mask=mask,
            dropout_rng=self._dropout_key(rngs) if drops else None,
            dropout_rate=self.dropout_rate,
            broadcast_dropout=self.broadcast_dropout,
            deterministic=not drops,
            dtype=self.dtype,
            precision=self.precision,
            module=self if sow_weights else None,
            **options,
        )
        output = self.out(x, out_sharding=out_sharding)
        return output if is_beyond is False else jnp.where(is_beyond, jnp.nan, output)

    def init_cache(
        self, input_shape: tuple[int, ...], dtype: Dtype = jnp.float32, *, metadata: Mapping[str, Any] = EMPTY
    ) -> None:
        """Makes an empty cache; in a stack of layers, one for each layer.

        Args:
          input_shape: ``(*batch, length, in_features)``; `length` is how many positions the cache has.
          dtype: dtype of the cache.
          metadata: metadata of the keys and values, of axes ``(*batch, length, heads, head_features)``, such as
            ``{"out_sharding": ("batch", None, "heads", None)}``. Without `out_sharding`, the cache is on the mesh of
            the kernel of `key`, with the same split of heads and their features: while JAX traces, as under `jit`,
            the split that the kernel declares.

        Raises:
          LayerError: the last size is not that of inputs.

        >>> import declax as dx
        >>> layer = dx.MultiHeadAttention(4, 16, decode=True, rngs=dx.Rngs(0))
        >>> x = jnp.ones((2, 5, 16))
        >>> layer.init_cache(x.shape)
        >>> prefix = layer(x[:, :4])
        >>> layer(x[:, 4:]).shape, int(layer.cache_index)
        ((2, 1, 16), 5)
        """
        if len(input_shape) < 2 or input_shape[-1] not in (self.in_features, self.in_kv_features):
            raise errors.LayerError(
                field_of(self, "init_cache"),
                "this is not the shape of an input",
                expected=f"(*batch, length, {self.in_features})",
                got=repr(tuple(input_shape)),
                fix="attention.init_cache((*batch, length, in_features))",
            )
        kernel = getattr(self.key, "kernel", None)  # a program may have replaced the layer
        stack = () if kernel is None else kernel.shape[:-3]  # the axes of the layers in a `Stacked`
        shape = (*stack, *input_shape[:-1], self._kv_heads, self.head_dim)
        where = field_of(self, "init_cache")
        place: Any = _sharding_of_keys(where, kernel, len(shape))
        if AXES in metadata:
            metadata = {**metadata, AXES: (*[None] * len(stack), *metadata[AXES])}
            place = sharding_at_creation(where, Metadata.of(metadata), shape)
        self.cached_key = Cache(zeros(None, shape, dtype, out_sharding=place), **metadata)
        self.cached_value = Cache(zeros(None, shape, dtype, out_sharding=place), **metadata)
        self.cache_index = Cache(jnp.zeros(stack, jnp.int32))

    def set_view(
        self,
        deterministic: bool | None = None,
        decode: bool | None = None,
        batch_size: int | tuple[int, ...] | None = None,
        max_length: int | None = None,
        cache_metadata: Mapping[str, Any] = EMPTY,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Sets attributes of a view; called by `dx.view`.

        Args:
          deterministic: drop nothing.
          decode: use the cache.
          batch_size: with `max_length`, makes an empty cache for such a batch.
          max_length: how many positions the cache has.
          cache_metadata: metadata of the cache, as of `init_cache`.
          **kwargs: arguments for other layers.

        Returns:
          The arguments for other layers.
        """
        if deterministic is not None:
            self.deterministic = deterministic
        if decode is not None:
            self.decode = decode
        if batch_size is not None and max_length is not None:
            batch = (batch_size,) if isinstance(batch_size, int) else batch_size
            dtype = jnp.float32 if self.dtype is None else self.dtype
            self.init_cache((*batch, max_length, self.in_features), dtype, metadata=cache_metadata)
        return kwargs

    def _rotated(self, rope: RoPE, query: jax.Array, key: jax.Array, decodes: bool) -> tuple[jax.Array, jax.Array]:
        """Queries and keys by their positions, which in decoding go on from those of the cache."""
        start = self.cache_index.value if decodes and self.cache_index is not None else 0
        of_queries, of_keys = (jnp.arange(x.shape[-3]) + start for x in (query, key))
        return rope(query, of_queries, axis=-3), rope(key, of_keys, axis=-3)

    def _dropout_key(self, given: Rngs | RngStream | None) -> jax.Array:
        stream = given.dropout if isinstance(given, Rngs) else given
        stream = getattr(self, "rngs", None) if stream is None else stream  # the InitVar hides its type
        if stream is None:
            why = "the layer is not deterministic, and was made with keep_rngs=False"
            raise no_random_numbers(self, why, "attention(x, rngs=rngs), or model.eval()")
        return stream()

    def _cached(self, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | bool]:
        """Puts keys and values behind those of the cache.

        Returns:
          All keys and values, which keys each query may look at, and whether the positions are beyond the end.
        """
        if self.cached_key is None or self.cached_value is None or self.cache_index is None:
            raise errors.LayerError(
                field_of(self, "decode"),
                "there is no cache",
                expected="a cache for all positions of the sequence",
                got="None",
                fix="attention.init_cache((*batch, length, in_features))",
            )
        *batch, length, heads, features = self.cached_key.shape
        steps, start = key.shape[-3], self.cache_index.value
        is_full = start + steps > length
        is_known = not isinstance(is_full, Tracer)
        fits = key.shape == (*batch, steps, heads, features)
        if not fits or steps > length or (is_known and is_full):
            fix = "attention.init_cache((*batch, length, in_features))   # with a larger length"
            if not fits:
                fix = f"attention.init_cache({(*key.shape[:-3], length, self.in_features)})   # for this batch"
            raise errors.LayerError(
                field_of(self, "cached_key"),
                "the cache does not hold these positions",
                expected=f"keys of shape {(*batch, 'positions', heads, features)}, with {length} positions at most",
                got=f"shape {key.shape}" + (f", after {int(start)} positions" if is_known else ""),
                fix=fix,
            )
        zero = jnp.zeros((), start.dtype)
        at = (*(zero for _ in batch), start, zero, zero)

        def write(cache: Cache[jax.Array], given: jax.Array) -> jax.Array:
            new = _placed_as(cache.value, given.astype(cache.dtype))
            if not is_known:  # JAX moves a slice beyond the end to the last positions
                new = jnp.where(is_full, lax.dynamic_slice(cache.value, at, new.shape), new)
            cache.value = lax.dynamic_update_slice(cache.value, new, at)
            return _split_as(given, cache.value)

        keys, values = write(self.cached_key, key), write(self.cached_value, value)
        self.cache_index.value = start + steps
        visible = jnp.arange(length) <= start + jnp.arange(steps)[:, None]
        visible = jnp.broadcast_to(visible, (*batch, 1, steps, length))
        return keys, values, visible, False if is_known else is_full


if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)

"""Attention: its formula, the numbers of the peer, masks, caches, and errors."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import declax as dx
from declax.errors import LayerError
from declax.nn import dot_product_attention_weights

pytestmark = pytest.mark.sampled(3)


def make(library: Any = dx, **options: Any) -> Any:
    return library.MultiHeadAttention(4, 16, **{"decode": False, "rngs": library.Rngs(3), **options})


def formula(query: Any, key: Any, value: Any, mask: Any = None) -> jax.Array:
    """Attention in loops over heads, for arrays without batch axes."""
    outputs = []
    for head in range(query.shape[1]):
        at = head * key.shape[1] // query.shape[1]
        logits = query[:, head] @ key[:, at].T / np.sqrt(query.shape[-1])
        if mask is not None:
            logits = jnp.where(mask, logits, -jnp.inf)
        outputs.append(jax.nn.softmax(logits) @ value[:, at])
    return jnp.stack(outputs, axis=1)


# --- formula ------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"precision": "highest"}], ids=["of jax", "own"])
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_it_is_the_formula(heads: int, options: Any, normal: Any) -> None:
    query, key, value = normal(5, 4, 8), normal(5, heads, 8, seed=1), normal(5, heads, 8, seed=2)
    causal = np.tril(np.ones((5, 5), bool))
    attend = dx.dot_product_attention
    for got, mask in (
        (attend(query, key, value, **options), None),
        (attend(query, key, value, is_causal=True, **options), causal),
        (attend(query, key, value, mask=causal[None], **options), causal),
    ):
        np.testing.assert_allclose(got, formula(query, key, value, mask), rtol=1e-5, atol=1e-5)
    check_grads(lambda *x: attend(*x, **options), (query, key, value), order=1, modes=["rev"], rtol=2e-2)


def test_several_batch_axes(normal: Any) -> None:
    query, key, value = (normal(2, 3, 5, 4, 8, seed=seed) for seed in range(3))
    mask = dx.make_causal_mask(jnp.ones(5))
    got = dx.dot_product_attention(query, key, value, mask=mask)
    one = dx.dot_product_attention(query[1, 2], key[1, 2], value[1, 2], mask=mask)
    np.testing.assert_allclose(got[1, 2], one, rtol=1e-5, atol=1e-6)


def test_dropped_pairs_are_scaled(normal: Any) -> None:
    query, key = normal(2, 5, 4, 8), normal(2, 5, 4, 8, seed=1)
    plain = dot_product_attention_weights(query, key)
    for broadcast in (True, False):
        options = {"dropout_rng": jax.random.key(0), "dropout_rate": 0.5, "broadcast_dropout": broadcast}
        dropped = dot_product_attention_weights(query, key, **options)
        kept = dropped != 0
        np.testing.assert_allclose(dropped, np.where(kept, 2 * plain, 0), rtol=1e-6)
        assert bool((kept == kept[:1, :1]).all()) is broadcast
    assert (dot_product_attention_weights(query, key, dropout_rate=0.5, deterministic=True) == plain).all()


# --- the peer -----------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_kv_heads": 2, "use_bias": False},
    {"normalize_qk": True, "qkv_features": 32, "out_features": 3},
    {"dropout_rate": 0.5, "deterministic": False},
    {"dtype": jnp.bfloat16, "out_kernel_init": jax.nn.initializers.ones, "bias_init": jax.nn.initializers.normal(1.0)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_a_layer_is_that_of_the_peer(options: Any, normal: Any, nnx: Any) -> None:
    ours, theirs = make(**options), make(nnx, **options)
    for mine, other in zip(dx.to_flat_state(dx.state(ours)), nnx.to_flat_state(nnx.state(theirs)), strict=True):
        assert mine[0] == other[0]
        if mine[0][-1] != "key":
            np.testing.assert_array_equal(mine[1].value, other[1][...])
    x, y = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    mask = dx.make_causal_mask(x[..., 0])
    for args, given in (((x,), {}), ((x, y), {"mask": mask}), ((x, x, y), {"is_causal": True})):
        with jax.numpy_dtype_promotion("standard"):
            expected = theirs(*args, **given)
        got = ours(*args, **given)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def test_masks_are_those_of_the_peer(nnx: Any) -> None:
    x, y = jnp.array([[1, 1, 0]]), jnp.array([[1, 2, 0, 1]])
    for pairwise in (jnp.multiply, jnp.equal):
        ours = dx.make_attention_mask(x, y, pairwise, extra_batch_dims=1, dtype=jnp.int32)
        np.testing.assert_array_equal(
            ours, nnx.make_attention_mask(x, y, pairwise, extra_batch_dims=1, dtype=jnp.int32)
        )
    np.testing.assert_array_equal(dx.make_causal_mask(y), nnx.make_causal_mask(y))
    masks = dx.make_causal_mask(y), None, dx.make_attention_mask(y, y)
    np.testing.assert_array_equal(dx.combine_masks(*masks), nnx.combine_masks(*masks))
    assert dx.combine_masks(None) is None


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")  # in the peer
def test_weights_are_sown(normal: Any, nnx: Any) -> None:
    x = normal(2, 5, 16)
    ours, theirs = make(), make(nnx)
    ours(x, sow_weights=True)
    theirs(x, sow_weights=True)
    np.testing.assert_array_equal(ours.attention_weights.value[0], theirs.attention_weights.get_raw_value()[0])


# --- decoding -----------------------------------------------------------------


@pytest.mark.slow
def test_a_cache_gives_what_a_mask_gives(normal: Any) -> None:
    x = normal(2, 6, 16)
    layer = make(num_kv_heads=2, normalize_qk=True)
    expected = layer(x, is_causal=True)
    layer.decode = True
    layer.init_cache(x.shape)
    parts = [layer(x[:, :3])]  # several positions at once
    traces = []

    @dx.jit
    def step(layer: Any, x: jax.Array) -> jax.Array:
        traces.append(None)
        return layer(x)

    parts += [step(layer, x[:, t : t + 1]) for t in range(3, 6)]
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), expected, rtol=1e-5, atol=1e-6)
    assert len(traces) == 1

    layer.init_cache(x.shape)
    scanned = dx.scan(lambda layer, x: (layer, layer(x[:, None])[:, 0]), in_axes=(dx.Carry, 1), out_axes=(dx.Carry, 1))
    np.testing.assert_allclose(scanned(layer, x)[1], expected, rtol=1e-5, atol=1e-6)
    assert int(layer.cache_index) == 6

    with pytest.raises(LayerError, match=r"the cache does not hold these positions(?s:.)*after 6 positions"):
        layer(x[:, :1])


def apply(layer: Any, x: jax.Array) -> Any:
    return layer(x)


def scanned(layer: Any, x: jax.Array) -> Any:
    steps = dx.scan(lambda layer, x: (layer, layer(x)), in_axes=(dx.Carry, 0), out_axes=(dx.Carry, 0))
    return steps(layer, x[None])[1]


def mapped(layer: Any, x: jax.Array) -> Any:
    graphdef, state = dx.split(layer)
    stacked = dx.merge(graphdef, jax.tree.map(lambda leaf: leaf[None], state))
    y = dx.vmap(apply)(stacked, x[None])
    dx.update(layer, jax.tree.map(lambda leaf: leaf[0], dx.state(stacked)))
    return y


@pytest.mark.parametrize("call", [dx.jit(apply), dx.jit(scanned), mapped], ids=["jit", "scan", "vmap"])
def test_traced_calls_beyond_the_end_of_a_cache_give_nan_and_keep_it(call: Any, normal: Any) -> None:
    x = normal(2, 6, 16)
    layer = make(decode=True)
    layer.init_cache(x.shape)
    layer(x[:, :5])
    kept = [np.array(layer.cached_key[...]), np.array(layer.cached_value[...])]
    for steps, index in ((3, 8), (1, 9), (2, 11)):  # the first begins before the end
        assert jnp.isnan(call(layer, x[:, :steps])).all()
        assert int(layer.cache_index[...]) == index
        np.testing.assert_array_equal(kept, [layer.cached_key[...], layer.cached_value[...]])
    text = r"MultiHeadAttention.cached_key: the cache does not hold these positions(?s:.)*6 positions(?s:.)*after 11"
    with pytest.raises(LayerError, match=text):
        layer(x[:, :1])


def test_jax_debug_nans_raises_the_error_at_the_end_of_a_cache(normal: Any) -> None:
    x = normal(2, 6, 16)
    layer = make(decode=True)
    layer.init_cache(x.shape)
    step = dx.jit(apply)
    with jax.debug_nans(True):
        step(layer, x)
        with pytest.raises(LayerError, match=r"the cache does not hold these positions(?s:.)*after 6 positions"):
            step(layer, x[:, :1])
    assert int(layer.cache_index[...]) == 6


def test_a_cache_of_another_dtype_and_by_a_view(normal: Any) -> None:
    x = normal(2, 3, 16)
    layer = dx.view(make(decode=None), decode=True, deterministic=True, batch_size=2, max_length=3)
    assert layer.cached_key.shape == (2, 3, 4, 4)
    np.testing.assert_allclose(layer(x), make()(x, is_causal=True), rtol=1e-5, atol=1e-6)
    narrow = make(dtype=jnp.bfloat16, decode=True)
    narrow.init_cache(x.shape, jnp.bfloat16)
    with jax.numpy_dtype_promotion("strict"):
        assert narrow(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_transforms(normal: Any) -> None:
    x = normal(2, 5, 16)
    layer = make()
    expected = layer(x)
    np.testing.assert_allclose(dx.vmap(lambda m, x: m(x), in_axes=(None, 0))(layer, x), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx.remat(lambda m, x: m(x))(layer, x), expected, rtol=1e-5, atol=1e-6)
    assert dx.eval_shape(lambda: make()(x)).shape == (2, 5, 16)


# --- errors -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ((5, 4, 8), (5, 4, 8), "must have the same rank"),
        ((3, 5, 4, 8), (3, 5, 4, 8), "the batch dims must match"),
        ((2, 5, 4, 8), (2, 6, 4, 8), "key and value lengths must match"),
        ((2, 5, 4, 7), (2, 5, 4, 8), "the depths must match between queries and keys"),
        ((2, 5, 3, 8), (2, 5, 3, 8), r"must be a multiple of(?s:.)*query \(2, 5, 4, 8\), key \(2, 5, 3, 8\)"),
    ],
)
def test_shapes_that_do_not_fit(key: Any, value: Any, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        dx.dot_product_attention(jnp.ones((2, 5, 4, 8)), jnp.ones(key), jnp.ones(value))


def test_masks_and_biases_broadcast_to_the_pairs(normal: Any) -> None:
    x = normal(2, 5, 4, 8)
    causal = jnp.tril(jnp.ones((5, 5)))
    expected = dx.dot_product_attention(x, x, x, is_causal=True)
    np.testing.assert_allclose(dx.dot_product_attention(x, x, x, mask=causal), expected, atol=1e-6)
    np.testing.assert_allclose(dx.dot_product_attention(x, x, x, jnp.log(causal)), expected, atol=1e-6)
    for name, shape in (("mask", (3, 5, 5)), ("bias", (2, 4, 5, 6)), ("mask", (1, 2, 4, 5, 5))):
        text = rf"dot_product_attention\.{name}: '{name}' does not broadcast to \(\*batch, heads, queries, keys\)"
        with pytest.raises(LayerError, match=text) as caught:
            dx.dot_product_attention(x, x, x, **{name: jnp.ones(shape)})
        assert str(shape) in str(caught.value.got)
        assert "(2, 4, 5, 5)" in str(caught.value.expected)


def test_an_additive_mask_is_refused(normal: Any) -> None:
    x, layer = normal(2, 5, 16), make()
    causal = jnp.tril(jnp.ones((5, 5)))
    additive = jnp.where(causal == 1, 0.0, -1e9)
    q = x[:, :, None]
    for given in (additive, np.asarray(additive), jnp.log(causal), additive.astype(jnp.bfloat16)):
        for call in (
            lambda mask: layer(x, mask=mask),
            lambda mask: dx.dot_product_attention(q, q, q, mask=mask),
            lambda mask: dot_product_attention_weights(q, q, mask=mask),
            lambda mask: dx.combine_masks(mask, causal),
        ):
            with pytest.raises(LayerError, match="this mask has negative numbers") as caught:
                call(given)
            assert "to 0" in str(caught.value.got)
    for fine in (causal, causal.astype(int), 2 * causal, causal == 1):
        np.testing.assert_allclose(layer(x, mask=fine), layer(x, mask=additive == 0), atol=1e-6)
    jax.jit(lambda mask: dx.dot_product_attention(q, q, q, mask=mask))(additive)  # a tracer has no numbers


def test_what_is_missing_is_named(normal: Any) -> None:
    x = normal(2, 5, 16)
    with pytest.raises(
        LayerError, match=r"num_heads: the features cannot be divided(?s:.)*qkv_features=16, num_heads=3"
    ):
        dx.MultiHeadAttention(3, 16, rngs=dx.Rngs(0))
    with pytest.raises(LayerError, match="num_heads=4, num_kv_heads=3"):
        make(num_kv_heads=3)
    with pytest.raises(LayerError, match="in_features: the last axis of 'inputs_q' has the wrong size"):
        make()(x[..., :3])
    with pytest.raises(LayerError, match=r"MultiHeadAttention.key: there are values without keys"):
        make()(x, inputs_v=x)
    for flag, layer in (("decode", make(decode=None)), ("deterministic", make(dropout_rate=0.5))):
        with pytest.raises(LayerError, match=f"{flag}: this flag is not set") as got:
            layer(x)
        assert f"dx.MultiHeadAttention(..., {flag}=False)" in got.value.fix  # in the call, it would override eval()
    with pytest.raises(LayerError, match=r"MultiHeadAttention.rngs: there is no source of random numbers"):
        make(dropout_rate=0.5, keep_rngs=False, deterministic=False)(x)
    with pytest.raises(LayerError, match="dropout_rng: there is no source of random numbers"):
        dot_product_attention_weights(x[:, :, None], x[:, :, None], dropout_rate=0.5)
    with pytest.raises(LayerError, match=r"MultiHeadAttention.decode: there is no cache"):
        make(decode=True)(x)
    with pytest.raises(LayerError, match="combine_masks: the masks have different numbers of axes"):
        dx.combine_masks(jnp.ones((2, 2)), jnp.ones(2))
    layer = make(decode=True)
    for shape in ((3, 5, 4), (3, 5), (16,), ()):
        with pytest.raises(
            LayerError, match=r"MultiHeadAttention\.init_cache: this is not the shape of an input"
        ) as got:
            layer.init_cache(shape)
        assert got.value.expected == "(*batch, length, 16)"
    assert layer.cached_key is None
    layer.init_cache((3, 5, 16))
    with pytest.raises(
        LayerError, match=r"the cache does not hold these positions(?s:.)*\(3, 'positions', 4, 4\)"
    ) as got:
        layer(x)
    assert got.value.fix == f"attention.init_cache({(x.shape[0], 5, 16)})   # for this batch"


def masked(query, key, value, allowed, cap=None):
    """Attention in plain numpy, in float64, with the pairs that are allowed."""
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    logits = np.einsum("...qhd,...khd->...hqk", q, k) / np.sqrt(q.shape[-1])
    logits = logits if cap is None else cap * np.tanh(logits / cap)
    weights = np.where(allowed, np.exp(logits - logits.max(-1, keepdims=True)), 0)
    return np.einsum("...hqk,...khd->...qhd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("window", [1, (2, 0), (0, 3), (100, 100)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("cap", [None, 0.5])
def test_windows_and_caps(normal, window, is_causal, cap):
    query, key, value = (normal(2, 6, 2, 4, seed=seed) for seed in range(3))
    before, after = (window, window) if isinstance(window, int) else window
    distance = np.arange(6)[:, None] - np.arange(6)
    allowed = (distance <= before) & (distance >= (0 if is_causal else -after))
    options = {"is_causal": is_causal, "local_window_size": window, "logits_soft_cap": cap}
    np.testing.assert_allclose(
        dx.dot_product_attention(query, key, value, **options), masked(query, key, value, allowed, cap), atol=1e-5
    )
    part = dx.dot_product_attention(query[:, 4:], key, value, query_offset=4, **options)
    np.testing.assert_allclose(part, masked(query, key, value, allowed, cap)[:, 4:], atol=1e-5)
    step = jax.jit(lambda start: dx.dot_product_attention(query[:, 4:], key, value, query_offset=start, **options))
    np.testing.assert_allclose(step(4), part, atol=1e-6)


def test_a_window_is_that_of_jax(normal):
    query, key, value = (normal(2, 6, 2, 4, seed=seed) for seed in range(3))
    ours = dx.dot_product_attention(query, key, value, local_window_size=(2, 1))
    np.testing.assert_allclose(
        ours, jax.nn.dot_product_attention(query, key, value, local_window_size=(2, 1)), rtol=1e-6
    )


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_segments_keep_to_themselves(normal, batch):
    query, key, value = (normal(*batch, 5, 2, 4, seed=seed) for seed in range(3))
    segments = jnp.broadcast_to(jnp.array([0, 0, 1, 1, 1]), (*batch, 5))
    packed = dx.dot_product_attention(query, key, value, segment_ids=segments, is_causal=True)
    first, second = (
        dx.dot_product_attention(*(x[..., part, :, :] for x in (query, key, value)), is_causal=True)
        for part in (slice(2), slice(2, 5))
    )
    np.testing.assert_allclose(packed, jnp.concatenate([first, second], axis=-3), atol=1e-6)
    ones = jnp.ones((*batch, 5), int)
    of_keys = dx.dot_product_attention(query, key, value, segment_ids=(ones, segments))
    np.testing.assert_allclose(
        of_keys, dx.dot_product_attention(query, *(x[..., 2:, :, :] for x in (key, value))), atol=1e-6
    )


def test_windows_and_segments_that_do_not_fit(normal):
    x = normal(2, 5, 2, 4)
    with pytest.raises(LayerError, match="local_window_size: a window has negative size"):
        dx.dot_product_attention(x, x, x, local_window_size=(-1, 0))
    with pytest.raises(LayerError, match="segment_ids: the segments do not fit queries and keys") as caught:
        dx.dot_product_attention(x, x, x, segment_ids=jnp.ones((2, 4), int))
    assert "(2, 5)" in str(caught.value)


def rotating_layers(**options):
    """A layer that rotates by itself, and one whose attention function does, with the same parameters."""
    rope = dx.RoPE(theta=100.0)
    rotates_late = functools.partial(dx.dot_product_attention_with_rope, rope=rope)
    own = dx.MultiHeadAttention(2, 8, rope=rope, rngs=dx.Rngs(0), **options)
    return own, dx.MultiHeadAttention(2, 8, attention_fn=rotates_late, rngs=dx.Rngs(0), **options)


@pytest.mark.parametrize("options", [{}, {"normalize_qk": True}, {"num_kv_heads": 1}])
def test_a_layer_with_rope_computes_what_the_attention_function_does(normal, options):
    own, late = rotating_layers(decode=False, **options)
    x = normal(2, 5, 8)
    np.testing.assert_array_equal(own(x, is_causal=True), late(x, is_causal=True))


def test_a_cached_key_is_rotated_once(normal):
    own, late = rotating_layers(decode=True)
    x = normal(2, 6, 8)
    own.init_cache(x.shape)
    late.init_cache(x.shape)
    whole = own(x, is_causal=True, decode=False)
    parts = [slice(0, 3), slice(3, 4), slice(4, 6)]
    step = dx.jit(lambda layer, x: layer(x))
    for part in parts:
        got = step(own, x[:, part])
        # Near, not equal: XLA rounds a rotation otherwise in another program.
        np.testing.assert_allclose(got, step(late, x[:, part]), atol=1e-6)
        np.testing.assert_allclose(got, whole[:, part], atol=1e-6)
    rotated = dx.RoPE(theta=100.0)(late.cached_key.value, axis=-3)
    np.testing.assert_allclose(own.cached_key.value, rotated, atol=1e-6)
    text = str(dx.make_jaxpr(lambda layer, x: layer(x))(own, x[:, :1]))
    assert text.count(" cos ") == 2
    assert "f32[6,1,2] = cos" not in text  # the angles of all keys


def test_a_function_with_options_gets_the_position_of_a_query(normal):
    def rotary(query, key, value, **options):
        return dx.dot_product_attention_with_rope(query, key, value, rope=dx.RoPE(theta=100.0), **options)

    layer = dx.MultiHeadAttention(2, 8, attention_fn=rotary, decode=False, rngs=dx.Rngs(0))
    x = normal(2, 4, 8)
    whole = layer(x, is_causal=True)
    layer.init_cache(x.shape)
    parts = [layer(x[:, :2], decode=True), layer(x[:, 2:], decode=True)]
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-6)


@pytest.mark.slow
def test_decoding_with_a_window(normal):
    near = functools.partial(dx.dot_product_attention, local_window_size=(2, 0))
    layer = dx.MultiHeadAttention(2, 8, attention_fn=near, decode=True, rngs=dx.Rngs(0))
    x = normal(2, 6, 8)
    whole = layer(x, is_causal=True, decode=False)
    layer.init_cache(x.shape)
    got = jnp.concatenate([layer(x[:, part]) for part in (slice(0, 4), slice(4, 5), slice(5, 6))], axis=1)
    np.testing.assert_allclose(got, whole, atol=1e-6)


@pytest.mark.parametrize("field", ["qkv_features", "out_features", "num_kv_heads", "in_kv_features"])
def test_sizes_of_attention_are_positive(field: str) -> None:
    with pytest.raises(LayerError, match=rf"MultiHeadAttention\.{field}: this value is out of bounds"):
        make(**{field: 0})

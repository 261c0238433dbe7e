"""`Linear` and `Embed`: the formula, the peer's numbers, dtypes, and what bad sizes get."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declax._random.streams import Rngs
from declax._variables.kinds import Param
from declax.errors import LayerError
from declax.initializers import constant, lecun_normal, ones
from declax.initializers import normal as normal_init
from declax.nn import Embed, Linear, canonicalize_dtype, dot_product_attention, promote_dtype

SIZES = st.integers(1, 5)
BATCHES = st.lists(st.integers(0, 3), max_size=3)

# ================================================================= Linear


@given(SIZES, SIZES, BATCHES, st.booleans())
def test_linear_is_a_product_and_a_sum(n, m, batch, use_bias):
    layer = Linear(n, m, use_bias=use_bias, bias_init=normal_init(1.0), rngs=Rngs(1))
    x = jax.random.normal(jax.random.key(0), (*batch, n))
    expected = np.asarray(x) @ np.asarray(layer.kernel.value)
    if use_bias:
        expected = expected + np.asarray(layer.bias.value)
    y = layer(x)
    assert y.shape == (*batch, m)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_linear_without_bias_has_none():
    layer = Linear(2, 3, use_bias=False, rngs=Rngs(0))
    assert layer.bias is None
    assert isinstance(layer.kernel, Param)
    assert len(jax.tree.leaves(layer)) == 1


@pytest.mark.parametrize(
    ("dtype", "use_bias"), [(None, True), (None, False), (jnp.bfloat16, True), (jnp.float32, True)]
)
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_linear_has_the_numbers_of_the_peer(same, normal, dtype, use_bias, param_dtype, x_dtype):
    x = (4 * normal(2, 5, 3)).astype(x_dtype)
    options = {"bias_init": normal_init(1.0), "use_bias": use_bias, "dtype": dtype, "param_dtype": param_dtype}
    same(Linear, 3, 4, call=(x,), **options)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 0, 3), (2, 4, 5, 3)])
def test_linear_takes_any_batch_axes_like_the_peer(same, normal, shape):
    same(Linear, 3, 4, call=(normal(*shape),), precision="highest", bias_init=ones)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_linear_accumulates_in_the_preferred_type(same, normal, dtype):
    ours, _ = same(
        Linear, 3, 4, call=(normal(2, 3, dtype=dtype),), dtype=dtype, preferred_element_type=jnp.float32, bias_init=ones
    )
    assert ours(normal(2, 3, dtype=dtype)).dtype == jnp.float32


def test_linear_draws_one_key_for_each_parameter():
    rngs = Rngs(5)
    first = Linear(3, 4, rngs=rngs)
    second = Linear(3, 4, rngs=rngs)
    keys = Rngs(5)
    drawn = [keys.params() for _ in range(4)]
    np.testing.assert_array_equal(first.kernel.value, lecun_normal()(drawn[0], (3, 4), jnp.float32))
    np.testing.assert_array_equal(second.kernel.value, lecun_normal()(drawn[2], (3, 4), jnp.float32))


def test_linear_gives_metadata_to_its_parameters():
    layer = Linear(2, 3, kernel_metadata={"tag": "k"}, bias_metadata={"tag": "b"}, rngs=Rngs(0))
    assert layer.kernel.get_metadata()["tag"] == "k"
    assert layer.bias.get_metadata()["tag"] == "b"


def test_linear_calls_the_functions_it_is_given(normal):
    asked = []

    def promote(args, /, *, dtype=None, inexact=True):
        asked.append(("promote", len(args), dtype))
        return promote_dtype(args, dtype=dtype, inexact=inexact)

    def dot(x, y, dimensions, **options):
        asked.append(("dot", dimensions, options))
        return jax.lax.dot_general(x, y, dimensions, **options)

    Linear(3, 2, promote_dtype=promote, dot_general=dot, dtype=jnp.float32, rngs=Rngs(0))(normal(2, 4, 3))
    assert asked == [("promote", 3, jnp.float32), ("dot", (((2,), (0,)), ((), ())), {"precision": None})]


def test_linear_lays_its_output_out_as_asked(normal):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    layer, x = Linear(3, 4, rngs=Rngs(0)), normal(2, 3)
    with jax.set_mesh(mesh):
        y = layer(x, out_sharding=jax.P("data", None))
    assert y.sharding.spec == jax.P("data", None)


def test_two_equal_linears_are_traced_once(normal):
    traced = []

    @jax.jit
    def run(layer, x):
        traced.append(layer)
        return layer(x)

    for seed in (0, 1):
        run(Linear(3, 4, kernel_init=normal_init(0.1), rngs=Rngs(seed)), normal(2, 3))
    assert len(traced) == 1


def test_linear_differentiates(normal):
    layer, x = Linear(3, 2, rngs=Rngs(0)), normal(4, 3)
    grads = jax.grad(lambda m: m(x).sum())(layer)
    np.testing.assert_allclose(grads.kernel.value, np.asarray(x).sum(0)[:, None].repeat(2, 1), rtol=1e-5)
    np.testing.assert_allclose(grads.bias.value, [4.0, 4.0])


@pytest.mark.parametrize("field", ["in_features", "out_features"])
@pytest.mark.parametrize(("size", "got"), [(0, "int 0"), (-3, "int -3"), (2.0, "float 2.0"), (True, "bool True")])
def test_a_bad_size_of_linear(field, size, got):
    sizes = {"in_features": 2, "out_features": 2, field: size}
    with pytest.raises(LayerError, match=f"Linear.{field}: this value (is out of bounds|has the wrong type)") as caught:
        Linear(**sizes, rngs=Rngs(0))
    assert caught.value.expected == "an integer of at least 1"
    assert caught.value.got == got


@pytest.mark.parametrize("shape", [(), (2,), (3, 2), (2, 1)])
def test_an_input_of_another_size_for_linear(shape):
    with pytest.raises(LayerError, match=r"Linear.in_features: the last axis of 'inputs' has the wrong size") as caught:
        Linear(3, 2, rngs=Rngs(0))(jnp.zeros(shape))
    assert caught.value.expected == "an array of shape (..., 3)"
    assert str(shape) in caught.value.got


def test_errors_name_the_class_of_the_user():
    class Mine(Linear):
        pass

    with pytest.raises(LayerError, match=r"Mine.in_features"):
        Mine(3, 2, rngs=Rngs(0))(jnp.zeros(2))


# ================================================================= Embed


@given(SIZES, SIZES, BATCHES)
def test_embed_looks_rows_up(rows, features, batch):
    layer = Embed(rows, features, rngs=Rngs(0))
    indices = np.random.default_rng(0).integers(0, rows, batch)
    np.testing.assert_array_equal(layer(indices), np.asarray(layer.embedding.value)[indices])


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16, jnp.int32])
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("x_dtype", [jnp.int32, jnp.uint8])
def test_embed_has_the_numbers_of_the_peer(same, dtype, param_dtype, x_dtype):
    options = {"dtype": dtype, "param_dtype": param_dtype, "embedding_init": normal_init(10.0)}
    same(Embed, 5, 3, call=(jnp.array([[0, 4], [2, 2]], x_dtype),), **options)


def test_embed_starts_like_the_peer(same):
    same(Embed, 50, 8, call=(jnp.arange(50),))


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("q_dtype", [jnp.float32, jnp.bfloat16])
def test_attend_has_the_numbers_of_the_peer(nnx, close, normal, dtype, param_dtype, q_dtype):
    query = normal(2, 4, 3, dtype=q_dtype)
    ours = Embed(5, 3, dtype=dtype, param_dtype=param_dtype, rngs=Rngs(0))
    theirs = nnx.Embed(5, 3, dtype=dtype, param_dtype=param_dtype, rngs=nnx.Rngs(0))
    close(ours.attend(query), theirs.attend(query))


def test_attend_multiplies_with_all_rows(normal):
    layer, query = Embed(5, 3, rngs=Rngs(0)), normal(2, 3)
    np.testing.assert_allclose(layer.attend(query), np.asarray(query) @ np.asarray(layer.embedding.value).T, rtol=1e-5)


@pytest.mark.parametrize("rows", [2, 3])
def test_a_row_that_does_not_exist_is_nan(rows):
    y = Embed(rows, 2, rngs=Rngs(0))(jnp.array([-1, 0, rows, -rows - 1]))
    np.testing.assert_array_equal(jnp.isnan(y).any(-1), [False, False, True, True])


def test_embed_lays_its_output_out_as_asked():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    layer, x = Embed(5, 3, rngs=Rngs(0)), jnp.array([0, 4, 5])
    with jax.set_mesh(mesh):
        y = layer(x, out_sharding=jax.P("data", None))
        logits = layer.attend(y, out_sharding=jax.P("data", None))
    assert y.sharding.spec == logits.sharding.spec == jax.P("data", None)
    np.testing.assert_array_equal(y, layer(x))


def test_embed_gives_metadata_to_its_table():
    assert Embed(2, 3, embedding_metadata={"tag": "e"}, rngs=Rngs(0)).embedding.get_metadata()["tag"] == "e"


@pytest.mark.parametrize("field", ["num_embeddings", "features"])
def test_a_bad_size_of_embed(field):
    with pytest.raises(LayerError, match=f"Embed.{field}: this value (is out of bounds|has the wrong type)"):
        Embed(**{"num_embeddings": 2, "features": 2, field: 0}, rngs=Rngs(0))


def test_embed_takes_integers_only():
    with pytest.raises(LayerError, match=r"Embed.embedding: rows are looked up by integers") as caught:
        Embed(3, 2, rngs=Rngs(0))(jnp.ones(2))
    assert "float32" in caught.value.got


def test_attend_takes_queries_of_its_size():
    with pytest.raises(LayerError, match=r"Embed.features: the last axis of 'query' has the wrong size"):
        Embed(3, 2, rngs=Rngs(0)).attend(jnp.ones((2, 3)))


# ================================================================= dtypes


def test_a_given_dtype_is_checked():
    assert canonicalize_dtype(dtype="bfloat16") == jnp.bfloat16
    assert canonicalize_dtype(dtype=jnp.int32, inexact=False) == jnp.int32
    with pytest.raises(LayerError, match="a layer cannot compute in this dtype") as caught:
        Linear(2, 2, dtype=jnp.int32, rngs=Rngs(0))(jnp.ones(2))
    assert caught.value.got == "int32"


def test_integers_alone_become_float32():
    assert canonicalize_dtype(jnp.arange(3), None) == jnp.float32
    assert canonicalize_dtype(jnp.arange(3), inexact=False) == jnp.int32


def test_an_inferred_promotion_is_implicit():
    mixed = (jnp.ones(2, jnp.bfloat16), jnp.ones(2))
    with pytest.raises(Exception, match="strict"):
        promote_dtype(mixed)
    with jax.numpy_dtype_promotion("standard"):
        assert {x.dtype for x in promote_dtype(mixed)} == {jnp.dtype(jnp.float32)}


def test_constants_are_initializers_too():
    np.testing.assert_array_equal(Linear(2, 1, kernel_init=constant(2.0), rngs=Rngs(0))(jnp.ones(2)), [4.0])


def test_a_table_of_one_row_gives_it_for_each_integer(same):
    ours, _ = same(Embed, 1, 3, call=(jnp.array([[0, 10], [-3, 1]]),))
    np.testing.assert_array_equal(ours(jnp.array(7)), ours.embedding.value[0])


def test_mixed_dtypes_with_float64_are_promoted() -> None:
    """In NumPy, ``np.dtype("float64") == None``."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        wide, narrow = jnp.ones((1, 2, 1, 2), jnp.float64), jnp.ones((1, 2, 1, 2), jnp.float32)
        for args in [(wide, narrow), (narrow, wide), (None, wide, narrow)]:
            promoted: tuple[jax.Array | None, ...] = promote_dtype(args)
            assert {x.dtype for x in promoted if x is not None} == {jnp.dtype("float64")}
        assert dot_product_attention(narrow, wide, narrow).dtype == jnp.float64

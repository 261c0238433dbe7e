"""Every layer, one by one: the peer's layer, gradients by differences, all transforms, dtypes, and bad input."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import declax as dx
from declax.errors import LayerError

pytestmark = pytest.mark.sampled(8)

ROWS, SEQUENCES, IMAGES = (4, 8), (3, 6, 8), (2, 6, 6, 4)


class Case(NamedTuple):
    """A layer: how it is made, with options of dtypes, and the shape of its input, or "tokens"."""

    make: Callable[..., Any]
    shape: Any
    is_of_the_peer: bool = True


def cell(name: str) -> Case:
    return Case(lambda nnx, rngs, **o: nnx.RNN(getattr(nnx, name)(8, 4, rngs=rngs, **o), rngs=rngs), SEQUENCES)


def wrapped(name: str) -> Case:
    return Case(lambda nnx, rngs, **o: getattr(nnx, name)(nnx.Linear(8, 4, rngs=rngs, **o), rngs=rngs, **o), ROWS)


def both_ways(nnx: Any, rngs: Any, **options: Any) -> Any:
    ahead, behind = (nnx.RNN(nnx.GRUCell(8, 4, rngs=rngs, **options), rngs=rngs) for _ in range(2))
    return nnx.Bidirectional(ahead, behind, rngs=rngs)


def attention(nnx: Any, rngs: Any, **options: Any) -> Any:
    return nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs, **options)


def grouped(nnx: Any, rngs: Any, **options: Any) -> Any:
    # Four features a head: of two that are nearly equal, the norm of queries would show the rounding only.
    sizes = {"num_heads": 4, "in_features": 8, "qkv_features": 16, "num_kv_heads": 2}
    return nnx.MultiHeadAttention(**sizes, normalize_qk=True, decode=False, rngs=rngs, **options)


def of_matrix(nnx: Any, rngs: Any, **options: Any) -> Any:
    adapter = nnx.LoRA(8, 2, 6, b_initializer=dx.initializers.ones, rngs=rngs, **options)
    return nnx.LoRALinearGeneral(8, (2, 3), lora=adapter, rngs=rngs, **options)


def low_rank(nnx: Any, rngs: Any, **options: Any) -> Any:
    of_lora = {f"lora_{name}": value for name, value in options.items()}
    return nnx.LoRALinear(8, 4, lora_rank=2, b_initializer=dx.initializers.ones, rngs=rngs, **options, **of_lora)


CASES = {
    "Linear": Case(lambda nnx, rngs, **o: nnx.Linear(8, 4, rngs=rngs, **o), ROWS),
    "LinearGeneral": Case(lambda nnx, rngs, **o: nnx.LinearGeneral(8, (2, 4), rngs=rngs, **o), SEQUENCES),
    "Einsum": Case(lambda nnx, rngs, **o: nnx.Einsum("blk,kh->blh", (8, 4), (4,), rngs=rngs, **o), SEQUENCES),
    "Conv": Case(lambda nnx, rngs, **o: nnx.Conv(4, 6, (3, 3), rngs=rngs, **o), IMAGES),
    "Conv, grouped": Case(
        lambda nnx, rngs, **o: nnx.Conv(4, 6, (3, 3), strides=2, feature_group_count=2, rngs=rngs, **o), IMAGES
    ),
    "Conv, circular": Case(lambda nnx, rngs, **o: nnx.Conv(4, 6, (3, 3), padding="CIRCULAR", rngs=rngs, **o), IMAGES),
    "Conv, causal": Case(lambda nnx, rngs, **o: nnx.Conv(8, 6, 3, padding="CAUSAL", rngs=rngs, **o), SEQUENCES),
    "ConvTranspose": Case(lambda nnx, rngs, **o: nnx.ConvTranspose(4, 6, (3, 3), strides=2, rngs=rngs, **o), IMAGES),
    "Embed": Case(lambda nnx, rngs, **o: nnx.Embed(16, 8, rngs=rngs, **o), "tokens"),
    "LoRA": Case(lambda nnx, rngs, **o: nnx.LoRA(8, 2, 4, b_initializer=dx.initializers.ones, rngs=rngs, **o), ROWS),
    "LoRALinear": Case(low_rank, ROWS),
    "LoRALinearGeneral": Case(of_matrix, ROWS, is_of_the_peer=False),
    "BatchNorm": Case(lambda nnx, rngs, **o: nnx.BatchNorm(8, rngs=rngs, **o), ROWS),
    "BatchNorm, evaluated": Case(
        lambda nnx, rngs, **o: nnx.BatchNorm(8, use_running_average=True, rngs=rngs, **o), ROWS
    ),
    "LayerNorm": Case(lambda nnx, rngs, **o: nnx.LayerNorm(8, rngs=rngs, **o), SEQUENCES),
    "RMSNorm": Case(lambda nnx, rngs, **o: nnx.RMSNorm(8, rngs=rngs, **o), SEQUENCES),
    "GroupNorm": Case(lambda nnx, rngs, **o: nnx.GroupNorm(4, num_groups=2, rngs=rngs, **o), IMAGES),
    "InstanceNorm": Case(lambda nnx, rngs, **o: nnx.InstanceNorm(4, rngs=rngs, **o), IMAGES),
    "WeightNorm": wrapped("WeightNorm"),
    "SpectralNorm": wrapped("SpectralNorm"),
    "MultiHeadAttention": Case(attention, SEQUENCES),
    "MultiHeadAttention, grouped": Case(grouped, SEQUENCES),
    "MLP": Case(lambda nnx, rngs, **o: nnx.MLP(8, 16, rngs=rngs, **o), SEQUENCES, is_of_the_peer=False),
    "GatedMLP": Case(lambda nnx, rngs, **o: nnx.GatedMLP(8, 16, rngs=rngs, **o), SEQUENCES, is_of_the_peer=False),
    "MoE": Case(lambda nnx, rngs, **o: nnx.MoE(8, 16, 4, rngs=rngs, **o), SEQUENCES, is_of_the_peer=False),
    "MoE, with a capacity": Case(
        lambda nnx, rngs, **o: nnx.MoE(8, 16, 4, capacity_factor=0.75, rngs=rngs, **o), SEQUENCES, is_of_the_peer=False
    ),
    "LSTMCell": cell("LSTMCell"),
    "OptimizedLSTMCell": cell("OptimizedLSTMCell"),
    "GRUCell": cell("GRUCell"),
    "SimpleCell": cell("SimpleCell"),
    "Bidirectional": Case(both_ways, SEQUENCES),
    "PReLU": Case(lambda nnx, rngs, **o: nnx.PReLU(**o), ROWS),
    "Dropout": Case(lambda nnx, rngs, **_: nnx.Dropout(0.5, rngs=rngs), ROWS),
    "DropPath": Case(lambda nnx, rngs, **_: nnx.DropPath(0.5, rngs=rngs), ROWS, is_of_the_peer=False),
    "Stacked": Case(
        lambda nnx, rngs, **o: nnx.Stacked(lambda rngs: nnx.Linear(8, 8, rngs=rngs, **o), 2, rngs=rngs),
        ROWS,
        is_of_the_peer=False,
    ),
}
NOT_ALONE = {"Layer", "RNN", "RNNCellBase", "RoPE"}
"""Bases; RNN, which is among the cases of its cells; RoPE, which has no inputs and no Variables: see `test_rope.py`."""

RECURRENT = ("LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell", "Bidirectional")

NAMES = pytest.mark.parametrize("name", CASES)


def made(name: str, nnx: Any = dx, **options: Any) -> Any:
    return CASES[name].make(nnx, nnx.Rngs(3), **options)


def input_of(name: str, dtype: Any = jnp.float32) -> jax.Array:
    if CASES[name].shape == "tokens":
        return jnp.arange(24).reshape(4, 6) % 16
    return jax.random.normal(jax.random.key(1), CASES[name].shape, dtype)


def output(layer: Any, x: jax.Array) -> Any:
    return layer(x)


def loss(layer: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(layer(x)).sum()


def assert_same(ours: Any, theirs: Any, rtol: float = 0.0) -> None:
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        if jnp.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, other = jax.random.key_data(mine), jax.random.key_data(other)
        np.testing.assert_allclose(np.asarray(mine, np.float64), np.asarray(other, np.float64), rtol=rtol, atol=rtol)


def test_no_layer_is_missing() -> None:
    public = {name: getattr(dx.nn, name) for name in dir(dx.nn)}
    layers = {name for name, value in public.items() if isinstance(value, type) and issubclass(value, dx.Module)}
    assert layers - NOT_ALONE == {name.split(",")[0] for name in CASES}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.is_of_the_peer])
@pytest.mark.parametrize("options", [{}, {"dtype": jnp.bfloat16}, {"param_dtype": jnp.bfloat16}], ids=repr)
def test_a_layer_is_that_of_the_peer_and_takes_its_state(name: str, options: Any, nnx: Any) -> None:
    if (name in RECURRENT and "param_dtype" in options) or (name == "SimpleCell" and options):
        pytest.skip("the peer has no orthogonal matrices of half precision, and its SimpleCell no wide state")
    ours, theirs, x = made(name, **options), made(name, nnx, **options), input_of(name)
    assert_same(dx.to_pure_dict(dx.state(ours)), nnx.to_pure_dict(nnx.state(theirs)))
    with jax.numpy_dtype_promotion("standard"):  # as the peer needs it
        for _ in range(2):  # the second time with new statistics and random numbers
            assert_same(ours(x), theirs(x))
        fresh, peer = made(name, **options), made(name, nnx, **options)
        state, of_peer = dx.state(fresh), nnx.state(peer)
        dx.replace_by_pure_dict(state, nnx.to_pure_dict(nnx.state(theirs)))
        nnx.replace_by_pure_dict(of_peer, dx.to_pure_dict(dx.state(ours)))
        dx.update(fresh, state)
        nnx.update(peer, of_peer)
        assert_same(fresh(x), peer(x))


READ_PRIVATE_NAMES = {"Einsum", "LoRALinear", "WeightNorm", "SpectralNorm"}
"""Layers whose calls take no other object, in both libraries."""


def called_unbound(method: Any, layer: Any, *args: Any) -> Any:
    """The result of a method of a class for an object that has only the public attributes of a layer."""
    public = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
    properties = {n: getattr(layer, n) for cls in type(layer).__mro__ for n, v in vars(cls).items() if is_public(n, v)}
    return method(types.SimpleNamespace(**properties, **public), *args)


def is_public(name: str, value: Any) -> bool:
    return isinstance(value, property) and not name.startswith("_") and name != "at"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.is_of_the_peer])
def test_a_call_with_another_object_reads_public_attributes_only(name: str, nnx: Any) -> None:
    x = input_of(name)
    if name in READ_PRIVATE_NAMES:
        with pytest.raises((AttributeError, TypeError)):
            called_unbound(type(made(name, nnx)).__call__, made(name, nnx), x)
    else:
        assert_same(called_unbound(type(made(name)).__call__, made(name), x), made(name)(x))


@pytest.mark.parametrize("name", ["LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell"])
def test_calls_of_cells_with_another_object_read_public_attributes_only(name: str) -> None:
    cls = getattr(dx, name)
    one = cls(8, 4, rngs=dx.Rngs(0))
    carry = one.initialize_carry((3, 8), dx.Rngs(1))
    assert_same(called_unbound(cls.initialize_carry, one, (3, 8), dx.Rngs(1)), carry)
    assert_same(called_unbound(cls.__call__, one, carry, jnp.ones((3, 8))), one(carry, jnp.ones((3, 8))))


SPELLINGS: tuple[Callable[[str], Any], ...] = (
    lambda name: getattr(jnp, name),
    jnp.dtype,  # of NumPy, whose float64 equals None
    str,
)
"""A dtype as a class, as ``x.dtype``, and as text."""


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64", "ignore:scatter inputs have incompatible")
@pytest.mark.parametrize("options", [("dtype",), ("param_dtype",), ("dtype", "param_dtype"), ()], ids="-".join)
@pytest.mark.parametrize("is_wide", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.is_of_the_peer])
def test_every_spelling_of_a_dtype_is_that_dtype_of_the_peer(
    name: str, is_wide: bool, options: tuple[str, ...], nnx: Any
) -> None:
    with jax.enable_x64(is_wide), jax.numpy_dtype_promotion("standard"):
        for dtype in ("float64", "float32", "bfloat16") if options else ("float32",):
            found = []
            with contextlib.suppress(TypeError, NotImplementedError):  # the peer's loops over states of other dtypes
                found.append(results_of(name, nnx, dict.fromkeys(options, jnp.dtype(dtype))))
            for spelling in SPELLINGS if options else SPELLINGS[:1]:
                found.append(results_of(name, dx, dict.fromkeys(options, spelling(dtype))))
                assert_same(found[-1], found[0], 1e-6)


def results_of(name: str, nnx: Any, options: Any) -> Any:
    """The Variables of a layer, and its outputs for inputs of two dtypes."""
    layer = made(name, nnx, **options)
    variables = nnx.to_pure_dict(nnx.state(layer))
    return variables, layer(input_of(name)), layer(input_of(name, "float64"))


@NAMES
def test_gradients_are_those_of_differences(name: str) -> None:
    """Of the parameters, and of an input that has derivatives; in double precision."""
    if name == "SpectralNorm":
        pytest.skip("its vectors count as constants: test_reparametrization.py compares where they have converged")
    with jax.enable_x64(True):
        graphdef, params, rest = dx.split(made(name, dtype=jnp.float64, param_dtype=jnp.float64), dx.Param, ...)
        x = input_of(name, jnp.float64)

        def value(params: Any, x: jax.Array) -> jax.Array:
            return loss(dx.merge(graphdef, params, rest), x)

        if jnp.issubdtype(x.dtype, jnp.inexact):
            check_grads(value, (params, x), order=1, modes=["rev"], rtol=1e-4, atol=1e-4)
        else:
            check_grads(lambda params: value(params, x), (params,), order=1, modes=["rev"], rtol=1e-4, atol=1e-4)


@NAMES
def test_a_layer_in_all_transforms(name: str) -> None:
    x = input_of(name)
    layer = made(name)
    expected = output(layer, x)
    after = dx.state(layer)
    compiled, traced = made(name), dx.jit(output)
    assert_same(traced(compiled, x), expected, 1e-5)
    assert_same(dx.state(compiled), after, 1e-5)
    traced(compiled, x)
    traced(made(name), x)
    assert traced.num_traces == 1
    assert_same(dx.remat(output)(made(name), x), expected, 1e-5)
    _, scanned = dx.scan(lambda layer, x: (layer, layer(x)), out_axes=(dx.Carry, 0))(made(name), x[None])
    assert_same(scanned[0], expected, 1e-5)
    shared = dx.vmap(output, in_axes=(None, 0)) if not rngs_or_statistics(layer) else None
    if shared is not None:
        assert_same(shared(made(name), jnp.stack([x, x]))[1], expected, 1e-5)
    stack = dx.vmap(lambda key: CASES[name].make(dx, dx.Rngs(key)))(jax.random.split(jax.random.key(0), 2))
    assert dx.vmap(output)(stack, jnp.stack([x, x])).shape == (2, *expected.shape)


def rngs_or_statistics(layer: Any) -> bool:
    return bool(dx.state(layer, dx.Not(dx.Param)).leaves)


@NAMES
def test_a_layer_is_made_abstractly(name: str) -> None:
    layer = made(name)
    abstract = dx.eval_shape(lambda: made(name))
    assert dx.graphdef(abstract) == dx.graphdef(layer)
    shapes = [(leaf.shape, leaf.dtype) for leaf in dx.state(abstract).leaves]
    assert shapes == [(leaf.shape, leaf.dtype) for leaf in dx.state(layer).leaves]
    x = jax.ShapeDtypeStruct(input_of(name).shape, input_of(name).dtype)
    assert dx.eval_shape(output, abstract, x).shape == output(layer, input_of(name)).shape


@NAMES
def test_half_precision_under_strict_promotion(name: str) -> None:
    """All in bfloat16; and float32 parameters with bfloat16 products, where the state of a cell is a parameter."""
    for options in ({"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}, {"dtype": jnp.bfloat16}):
        layer = made(name, **options)
        with jax.numpy_dtype_promotion("strict"):
            got = layer(input_of(name, jnp.bfloat16))
        wide = name in RECURRENT and name != "SimpleCell" and "param_dtype" not in options
        assert got.dtype == (jnp.float32 if wide else jnp.bfloat16)


@NAMES
def test_an_input_of_another_size_is_refused_with_the_path(name: str) -> None:
    if name.split(",")[0] in ("Embed", "PReLU", "Dropout", "DropPath"):
        return  # which take all sizes
    model = dx.Sequential(lambda x: x, made(name))
    x = jnp.ones((*CASES[name].shape[:-1], 5))
    for call in (model, dx.jit(output)):
        with pytest.raises(LayerError, match=r"layers\[1\].* of Sequential") as caught:
            call(x) if call is model else call(model, x)
        text = str(caught.value)
        assert "5" in str(caught.value.got)
        assert str(CASES[name].shape[-1]) in str(caught.value.expected)
        is_traced = call is not model or name in (*RECURRENT, "Stacked")  # which are loops of JAX
        assert ("while tracing" in text) is is_traced

"""Initializers: JAX's numbers, as values that compare, hash, print and pickle."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import initializers as jax_initializers

from declax import errors, initializers
from declax.initializers import NamedInitializer

FANS = ("glorot_uniform", "glorot_normal", "lecun_uniform", "lecun_normal", "he_uniform", "he_normal")
ALIASES = ("xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal")

CALLS: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
    ("constant", (3,), {}),
    ("constant", (2.5,), {"dtype": jnp.bfloat16}),
    ("constant", (np.arange(4.0),), {}),
    ("uniform", (), {}),
    ("uniform", (0.5,), {"dtype": "float16"}),
    ("normal", (), {}),
    ("normal", (), {"stddev": 0.02}),
    ("normal", (np.float32(0.02),), {}),
    ("truncated_normal", (0.1,), {"lower": -1.0, "upper": 3.0}),
    ("variance_scaling", (2.0, "fan_in", "normal"), {}),
    ("variance_scaling", (1.0, "fan_out", "uniform"), {"in_axis": 0, "out_axis": (1, 2)}),
    ("variance_scaling", (1.0, "fan_avg", "truncated_normal"), {"batch_axis": [0]}),
    ("variance_scaling", (0.5, "fan_geo_avg", "normal"), {"dtype": jnp.complex64}),
    ("orthogonal", (), {}),
    ("orthogonal", (2.0, 0), {}),
    ("delta_orthogonal", (), {}),
    *((name, (), {}) for name in (*FANS, *ALIASES)),
    *((name, (), {"in_axis": (0, 1), "out_axis": 2}) for name in FANS),
]


def factory(name: str) -> Callable[..., NamedInitializer]:
    found: Callable[..., NamedInitializer] = getattr(initializers, name)
    return found


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_numbers_are_jax_own(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    key, shape = jax.random.key(3), (2, 3, 4)
    expected = getattr(jax_initializers, name)(*args, **kwargs)(key, shape)
    got = factory(name)(*args, **kwargs)(key, shape)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


@pytest.mark.parametrize("name", ["zeros", "ones"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, jnp.bfloat16])
def test_plain_initializers_are_jax_own(name: str, dtype: object) -> None:
    expected = getattr(jax_initializers, name)(jax.random.key(0), (2, 3), dtype)
    got = getattr(initializers, name)(None, (2, 3), dtype)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_made_alike_are_equal_and_hash_alike(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    one, two = factory(name)(*args, **kwargs), factory(name)(*args, **kwargs)
    assert one == two
    assert hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.deepcopy(one) == one


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_repr_is_the_code_that_makes_it(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    made = factory(name)(*args, **kwargs)
    scope = {n: getattr(initializers, n) for n in dir(initializers)} | {"array": np.array}
    assert eval(repr(made), scope) == made  # the text under test is our own


def test_repr_leaves_out_what_is_usual() -> None:
    assert repr(initializers.normal(stddev=0.02)) == "normal(stddev=0.02)"
    assert repr(initializers.normal()) == "normal()"
    assert repr(initializers.lecun_normal(dtype=jnp.bfloat16)) == "lecun_normal(dtype='bfloat16')"
    assert repr(initializers.normal(dtype=float)) == "normal(dtype=float)"
    assert repr(initializers.constant(np.arange(3))) == "constant(value=array([0, 1, 2]))"
    assert repr(initializers.he_normal(in_axis=[0, 1])) == "he_normal(in_axis=(0, 1))"
    assert repr(initializers.zeros) == "zeros"


def test_different_settings_are_different() -> None:
    made = [
        initializers.normal(0.1),
        initializers.normal(0.2),
        initializers.uniform(0.1),
        initializers.normal(0.1, dtype=jnp.float16),
        initializers.constant(np.zeros(2)),
        initializers.constant(np.zeros(3)),
        initializers.constant(np.zeros(2, np.float32)),
        initializers.zeros,
        initializers.ones,
    ]
    assert len(set(made)) == len(made)


def test_names_of_one_initializer_are_equal() -> None:
    assert initializers.kaiming_normal() == initializers.he_normal()
    assert initializers.xavier_uniform() == initializers.glorot_uniform()
    assert initializers.normal(jnp.float32(0.5)) == initializers.normal(0.5)
    assert initializers.normal(dtype="float16") == initializers.normal(dtype=jnp.float16)
    assert initializers.lecun_normal(in_axis=[0]) == initializers.lecun_normal(in_axis=(0,))
    assert initializers.zeros_init() is initializers.zeros
    assert initializers.ones_init() is initializers.ones


def test_every_name_of_jax_is_here_with_its_signature() -> None:
    for name in dir(jax_initializers):
        if name.startswith("_") or name in ("Initializer", "zeros", "ones"):
            continue
        ours = inspect.signature(getattr(initializers, name)).parameters
        theirs = inspect.signature(getattr(jax_initializers, name)).parameters
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()], name


def test_every_name_of_the_peer_is_here() -> None:
    nnx = pytest.importorskip("flax.nnx")
    peer = {n for n in dir(nnx.initializers) if not n.startswith("_")} - {"tp", "DtypeLikeInexact"}
    assert peer <= set(dir(initializers))


def test_arguments_are_readable() -> None:
    made = initializers.truncated_normal(0.1)
    assert made.name == "truncated_normal"
    assert dict(made.arguments) == {"stddev": 0.1, "dtype": None, "lower": -2.0, "upper": 2.0}
    assert dict(initializers.zeros.arguments) == {}
    with pytest.raises(AttributeError):
        made.name = "normal"  # type: ignore[misc]  # frozen, which is what is tested


def test_an_array_setting_is_a_snapshot() -> None:
    values = np.arange(3.0)
    made = initializers.constant(values)
    values[:] = 7
    np.testing.assert_array_equal(np.asarray(made(None, (2, 3))), [[0, 1, 2]] * 2)
    made.arguments["value"][0] = 1
    np.testing.assert_array_equal(made.arguments["value"], [0, 1, 2])


def test_the_dtype_of_a_call_wins_over_that_of_the_factory() -> None:
    made, key = initializers.normal(dtype=jnp.float16), jax.random.key(0)
    assert made(key, (2,)).dtype == jnp.float16
    assert made(key, (2,), None).dtype == jnp.float16
    assert made(key, (2,), jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(("name", "shape"), [("orthogonal", (3, 4)), ("delta_orthogonal", (3, 2, 4))])
def test_orthogonal_matrices_in_half_precision_are_those_of_float32_rounded(name: str, shape: Any, dtype: Any) -> None:
    make, key = getattr(initializers, name), jax.random.key(0)
    rounded = make()(key, shape).astype(dtype)
    np.testing.assert_array_equal(make()(key, shape, dtype), rounded)
    np.testing.assert_array_equal(make(dtype=dtype)(key, shape), rounded)
    assert jax.jit(lambda key: make()(key, shape, dtype))(key).dtype == dtype


def test_works_under_transforms() -> None:
    key, made = jax.random.key(0), initializers.lecun_normal()
    with jax.checking_leaks():
        jitted = jax.jit(lambda k: made(k, (3, 4)))(key)
    np.testing.assert_array_equal(jitted, jax.jit(lambda k: jax_initializers.lecun_normal()(k, (3, 4)))(key))
    assert jax.eval_shape(lambda k: made(k, (3, 4)), key).shape == (3, 4)


def test_is_an_initializer_to_the_protocol() -> None:
    assert isinstance(initializers.zeros, initializers.Initializer)


def test_a_shape_that_does_not_suit() -> None:
    with pytest.raises(errors.InitializerError, match=r"lecun_normal\(\): cannot make an array of shape \(3,\)"):
        initializers.lecun_normal()(jax.random.key(0), (3,))
    with pytest.raises(errors.InitializerError, match=r"delta_orthogonal\(\): cannot make an array of shape \(3, 3\)"):
        initializers.delta_orthogonal()(jax.random.key(0), (3, 3))
    with pytest.raises(errors.InitializerError, match=r"cannot make an array of shape \(3, 3\)"):
        initializers.lecun_normal(in_axis=5)(jax.random.key(0), (3, 3))


def test_a_missing_key() -> None:
    with pytest.raises(errors.InitializerError, match=r"normal\(\): draws random numbers and needs a key"):
        initializers.normal()(None, (3,))


def test_a_mode_or_distribution_that_is_not_there() -> None:
    with pytest.raises(errors.InitializerError, match=r"(?s)mode: this is not a valid setting.*'fan_in'.*'fan_inn'"):
        initializers.variance_scaling(1.0, "fan_inn", "normal")  # type: ignore[arg-type]  # under test
    with pytest.raises(errors.InitializerError, match=r"variance_scaling.distribution: this is not a valid setting"):
        initializers.variance_scaling(1.0, "fan_in", "gauss")  # type: ignore[arg-type]  # under test
    with pytest.raises(errors.InitializerError, match=r"variance_scaling.mode: this is not a valid setting"):
        initializers.variance_scaling(1.0, 3, "normal")  # type: ignore[arg-type]  # under test


def test_settings_of_the_wrong_type() -> None:
    with pytest.raises(errors.InitializerError, match=r"(?s)normal.stddev: this is not a valid setting.*got: +str 'a'"):
        initializers.normal("a")  # type: ignore[arg-type]  # under test
    with pytest.raises(errors.InitializerError, match=r"constant.value: this is not a valid setting"):
        initializers.constant(jax.random.key(0))
    with pytest.raises(errors.InitializerError, match=r"lecun_normal.in_axis: this is not a valid setting"):
        initializers.lecun_normal(in_axis=1.5)  # type: ignore[arg-type]  # under test
    with pytest.raises(errors.InitializerError, match=r"normal.dtype: this is not a valid setting"):
        initializers.normal(dtype="floot")


def test_a_traced_setting() -> None:
    with pytest.raises(errors.InitializerError, match=r"normal.stddev: this is not a valid setting"):
        jax.jit(lambda s: initializers.normal(s)(jax.random.key(0), (2,)))(0.1)

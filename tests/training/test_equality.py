"""Structural equality of static values: equal means "does the same when called"."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declax.training._equality import Structural, equal_snapshots, hash_snapshot, snapshot_of

MAKERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adamw": lambda: optax.adamw(1e-3, weight_decay=1e-4),
    "schedule": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)),
    "joined": lambda: optax.sgd(
        optax.join_schedules([optax.constant_schedule(1.0), optax.linear_schedule(1.0, 0.0, 5)], [5])
    ),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    "masked": lambda: optax.masked(optax.sgd(0.1), is_matrix),
    "multi_transform": lambda: optax.multi_transform({"a": optax.adam(1e-3), "b": optax.set_to_zero()}, label),
    "inject": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
    "inject_schedule": lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=optax.linear_schedule(1.0, 0.0, 5)),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(1e-3), every_k_schedule=4),
    "multi_steps_transform": lambda: optax.MultiSteps(optax.adam(1e-3), every_k_schedule=4).gradient_transformation(),
    "lbfgs": optax.lbfgs,
    "adafactor": lambda: optax.adafactor(1e-3),
    "lookahead": lambda: optax.lookahead(optax.sgd(0.1), sync_period=5, slow_step_size=0.5),
    "noise": lambda: optax.noisy_sgd(0.1, key=0),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.sgd(0.1), 3),
}


def is_matrix(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


def label(params: Any) -> Any:
    return jax.tree.map(lambda x: "a" if x.ndim > 1 else "b", params)


@pytest.mark.parametrize("name", MAKERS)
def test_optax_transformations_made_alike_are_equal(name: str) -> None:
    one, two = Structural(MAKERS[name]()), Structural(MAKERS[name]())
    assert one == two
    assert hash(one) == hash(two)


def test_different_transformations_are_different() -> None:
    wrapped = [Structural(make()) for make in MAKERS.values()]
    assert len(set(wrapped)) == len(wrapped)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda: optax.sgd(0.1), lambda: optax.sgd(0.2)),
        (lambda: optax.sgd(1), lambda: optax.sgd(1.0)),
        (lambda: optax.adam(1e-3, b1=0.9), lambda: optax.adam(1e-3, b1=0.8)),
        (lambda: optax.adam(1e-3, mu_dtype="float32"), lambda: optax.adam(1e-3, mu_dtype="bfloat16")),
        (lambda: optax.MultiSteps(optax.sgd(0.1), 2), lambda: optax.MultiSteps(optax.sgd(0.1), 3)),
        (lambda: optax.noisy_sgd(0.1, key=0), lambda: optax.noisy_sgd(0.1, key=1)),
        (lambda: optax.masked(optax.sgd(0.1), is_matrix), lambda: optax.masked(optax.sgd(0.1), label)),
    ],
)
def test_a_different_argument_makes_a_difference(one: Callable[[], Any], two: Callable[[], Any]) -> None:
    assert Structural(one()) != Structural(two())


def is_same(one: Any, two: Any) -> bool:
    return equal_snapshots(snapshot_of(one), snapshot_of(two))


def fingerprint(value: Any) -> int:
    return hash_snapshot(snapshot_of(value))


def closure(value: Any) -> Callable[[], Any]:
    return lambda: value


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (closure(1), closure(1), True),
        (closure(1), closure(1.0), False),
        (closure(1), closure(True), False),
        (closure(0.0), closure(-0.0), False),
        (closure(float("nan")), closure(float("nan")), True),
        (closure("a"), closure("a"), True),
        (closure([1, {"k": (2,)}]), closure([1, {"k": (2,)}]), True),
        (closure([1, {"k": (2,)}]), closure([1, {"k": (3,)}]), False),
        (closure({1, 2}), closure({2, 1}), True),
        (closure({1, 2}), closure({1.0, 2.0}), False),
        (closure({"a": 1}), closure({"b": 1}), False),
        (closure([1]), closure((1,)), False),
        (closure(object()), closure(object()), False),
        (closure(np.arange(3)), closure(np.arange(3)), True),
        (closure(np.arange(3)), closure(np.arange(3.0)), False),
        (closure(jnp.arange(3)), closure(np.arange(3)), False),
        (closure(jnp.arange(3)), closure(jnp.arange(3)), True),
        (closure(jnp.arange(3)), closure(jnp.arange(1, 4)), False),
        (closure(jax.random.key(0)), closure(jax.random.key(0)), True),
        (closure(jax.random.key(0)), closure(jax.random.key(1)), False),
        (closure(np.array([object()])), closure(np.array([object()])), False),
        (closure(np.float32(1)), closure(np.float32(1)), True),
        (closure(jnp.float32), closure(jnp.float32), True),
        (closure(int), closure(float), False),
        (functools.partial(closure, 1), functools.partial(closure, 1), True),
        (functools.partial(closure, 1), functools.partial(closure, 2), False),
        ([1].append, [1].append, False),
        (closure(closure(closure(2))), closure(closure(closure(2))), True),
    ],
)
def test_equality_of_parts(one: Any, two: Any, same: bool) -> None:
    assert is_same(one, two) is same
    assert not same or fingerprint(one) == fingerprint(two)


def test_defaults_keyword_defaults_and_attributes_count() -> None:
    def make(default: int = 1, keyword: int = 1, attribute: int = 1) -> Callable[..., Any]:
        def function(x: int = default, *, y: int = keyword) -> int:
            return x + y

        function.mark = attribute  # type: ignore[attr-defined]  # what the test is about
        return function

    assert is_same(make(), make())
    assert not is_same(make(), make(default=2))
    assert not is_same(make(), make(keyword=2))
    assert not is_same(make(), make(attribute=2))


def test_bound_methods_compare_their_object() -> None:
    class Plain:
        def method(self) -> None: ...

    one, two = Plain(), Plain()
    assert is_same(one.method, one.method)
    assert not is_same(one.method, two.method)


def test_a_used_schedule_equals_a_fresh_one() -> None:
    used, fresh = (Structural(optax.cosine_decay_schedule(1e-2, 10)) for _ in range(2))
    used.value(3)  # assigns to its own cells
    assert not is_same(used.value, fresh.value)
    assert used == fresh
    assert hash(used) == hash(fresh)


def test_recursive_closures_end() -> None:
    def make(step: int) -> Callable[[int], int]:
        def count(n: int) -> int:
            return n if n <= 0 else count(n - step)

        return count

    assert is_same(make(1), make(1))
    assert fingerprint(make(1)) == fingerprint(make(1))
    assert not is_same(make(1), make(2))


def test_a_cell_without_contents_is_equal_only_to_another() -> None:
    def make(assign: bool) -> Callable[[], int]:
        def read() -> int:
            return late

        if assign:
            late = 1
        return read

    assert is_same(make(False), make(False))
    assert not is_same(make(False), make(True))


def test_wide_and_deep_values_are_bounded() -> None:
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested, nested]  # 2**40 nodes when unfolded
    fingerprint(nested)
    deep: tuple[Any, ...] = ()
    for _ in range(50_000):
        deep = (deep,)
    assert is_same(deep, (deep[0],))


def test_objects_with_equality_decide_for_themselves() -> None:
    class Version:
        def __init__(self, number: int) -> None:
            self.number = number

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Version) and self.number == other.number

        def __hash__(self) -> int:
            return self.number

    assert is_same(Version(1), Version(1))
    assert not is_same(Version(1), Version(2))


def test_an_equality_that_raises_counts_as_unequal() -> None:
    class Bad:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        def __hash__(self) -> int:
            return 1

    assert not is_same(Bad(), Bad())


def test_unhashable_objects_are_equal_only_to_themselves() -> None:
    class Loose:
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            raise TypeError

    value = Loose()
    assert is_same(value, value)
    assert not is_same(Loose(), Loose())


def test_tracers_compare_by_identity() -> None:
    @jax.jit
    def function(x: jax.Array) -> jax.Array:
        y = x + 1
        assert is_same(closure(y), closure(y))
        assert not is_same(closure(x), closure(y))
        fingerprint(y)
        return y

    with jax.checking_leaks():
        function(jnp.ones(2))


def test_the_wrapper_copies_pickles_and_prints() -> None:
    wrapped = Structural((1, "a"))
    assert copy.copy(wrapped) is wrapped
    assert copy.deepcopy(wrapped) is wrapped
    assert pickle.loads(pickle.dumps(wrapped)) == wrapped
    assert repr(wrapped) == "Structural((1, 'a'))"
    assert wrapped != (1, "a")


scalars = st.one_of(st.integers(-2, 2), st.floats(-1, 1), st.booleans(), st.text(max_size=2), st.none())
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        inner.map(closure),
    ),
    max_leaves=10,
)


def rebuilt(value: Any) -> Any:
    """An equal value that shares no container or function with the first."""
    if isinstance(value, (list, tuple)):
        return type(value)([rebuilt(x) for x in value])
    if isinstance(value, dict):
        return {k: rebuilt(v) for k, v in value.items()}
    if callable(value):
        return closure(rebuilt(value()))
    return value


@given(values)
def test_rebuilt_values_are_equal_and_hash_alike(value: Any) -> None:
    other = rebuilt(value)
    assert is_same(value, other)
    assert fingerprint(value) == fingerprint(other)
    assert is_same(other, value)


@given(values, values)
def test_equal_values_hash_alike_and_symmetric(one: Any, two: Any) -> None:
    same = is_same(one, two)
    assert is_same(two, one) == same
    assert not same or fingerprint(one) == fingerprint(two)

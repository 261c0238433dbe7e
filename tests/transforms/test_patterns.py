"""Calls that are recognised by the pattern of their arguments give what calls that are taken apart give."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax._typing import MISSING
from declax.transforms._patterns import DEEPEST, match_all, pattern_of

Point = collections.namedtuple("Point", "x y")  # as users make them


class Counter(dx.Module):
    def __init__(self) -> None:
        self.count = dx.Variable(jnp.zeros((), jnp.int32))


def describe(value: Any) -> Any:
    """What a function sees of an argument: containers by class, keys and number, and the sum of each array."""
    if isinstance(value, dict):
        return {"dict": {repr(key): describe(item) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [describe(item) for item in value]}
    return None if value is None else ("counter" if isinstance(value, Counter) else jnp.sum(value))


def flat_of(described: Any) -> tuple[str, str]:
    return repr(jax.tree.map(float, described)), repr(jax.tree.structure(described))


leaves = st.integers(0, 9).map(lambda n: jnp.full((2,), n, jnp.float32)) | st.integers(0, 9)
keys = st.sampled_from(["a", "b", "c"])
arguments = st.recursive(
    leaves | st.none(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(keys, children, max_size=3)
        | st.tuples(children, children).map(lambda pair: Point(*pair))
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.lists(arguments, max_size=2), st.dictionaries(keys, arguments, max_size=2)), max_size=5))
def test_any_sequence_of_calls(calls):
    counter = Counter()

    @dx.jit
    def step(model, *args, **kwargs):
        model.count += 1
        return describe(args), describe(kwargs)

    for number, (args, kwargs) in enumerate(calls):
        for repeat in range(2):
            found = step(counter, *args, **kwargs)
            assert flat_of(found) == flat_of((describe(tuple(args)), describe(kwargs)))
            assert counter.count.value == 2 * number + repeat + 1


@pytest.mark.parametrize(
    "batch",
    [
        lambda n: (jnp.full(2, n), jnp.full(3, n)),
        lambda n: [jnp.full(2, n)],
        lambda n: {"image": jnp.full(2, n), "label": (n, None)},
        lambda n: {"b": {}, "a": [[[(jnp.full(2, n),)]]]},
        lambda n: np.full(2, n),
    ],
)
def test_containers_of_arrays_are_recognised(batch, monkeypatch):
    """Also by keyword: nothing is taken apart by JAX any more."""
    counter = Counter()

    @dx.jit
    def step(model, batch):
        model.count += 1
        return sum(map(jnp.sum, jax.tree.leaves(batch)))

    for call in (lambda n: step(counter, batch(n)), lambda n: step(counter, batch=batch(n))):
        call(1)
        with monkeypatch.context() as patch:
            patch.setattr(type(step), "_take", lambda *_: pytest.fail("the call is taken apart"))
            for n in (2, 3):
                assert call(n) == sum(np.sum(leaf) for leaf in jax.tree.leaves(batch(n)))
    assert counter.count.value == 6


def test_models_in_containers_are_recognised_by_identity():
    first, second = Counter(), Counter()

    @dx.jit
    def step(pair, batch):
        pair[0].count += batch["x"]
        return pair[0].count.value

    for n in range(3):
        assert step((first, second), {"x": 1}) == n + 1
    for n in range(3):
        assert step((second, first), {"x": 2}) == 2 * (n + 1)
    assert (first.count.value, second.count.value) == (3, 6)


def test_what_changes_between_calls_is_seen():
    counter = Counter()

    @dx.jit
    def step(model, batch, scale=None):
        model.count += 1
        return describe(batch), describe(scale)

    x = jnp.ones(2)
    for batch in (
        (x, x),
        [x, x],
        (x,),
        {"a": x},
        {"b": x},
        {"a": x, "b": x},
        Point(x, x),
        (x, None),
        (None, x),
        x,
        None,
    ):
        for options in ({}, {"scale": x}, {"scale": (x,)}, {"scale": None}):
            found = step(counter, batch, **options)
            assert flat_of(found) == flat_of((describe(batch), describe(options.get("scale"))))


def test_keys_that_are_in_no_order_and_deep_containers_have_no_pattern():
    deep: Any = jnp.ones(2)
    for _ in range(DEEPEST):
        deep = [deep]
    assert pattern_of(deep) is not MISSING
    assert pattern_of([deep]) is MISSING
    assert pattern_of({1: 1, "a": 1}) is MISSING
    assert pattern_of(Point(1, 2)) is MISSING
    assert pattern_of("text") is MISSING


def test_a_missing_key_is_no_match():
    pattern = pattern_of({"a": 1, "b": 2})
    found: list[Any] = []
    assert match_all((pattern,), [{"b": 4, "a": 3}], found)
    assert found == [3, 4]
    assert not match_all((pattern,), [{"a": 3, "c": 4}], [])


@pytest.mark.parametrize("calls", [1, 3])
def test_a_donated_call_that_fails_names_what_is_lost_each_time(calls):
    counter = Counter()
    counter.kept = dx.Variable(jnp.ones(2))

    @dx.jit(donate_argnums=0)
    def step(model, batch):
        model.count += jnp.sum(batch[0])
        model.kept.value = model.kept.value * 2

    for _ in range(calls):
        step(counter, (jnp.ones(2, jnp.int32),))
    assert counter.count.value == 2 * calls
    counter.kept.value.delete()
    with pytest.raises(dx.errors.TransformError, match="this array was deleted"):
        step(counter, (jnp.ones(2, jnp.int32),))

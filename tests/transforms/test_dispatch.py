"""Calls that are recognised by the pattern of their arguments give what calls that are taken apart give."""

from __future__ import annotations

import collections
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.transforms._engine.guards import FEW, MOST, make_guard

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
        st.lists(children, max_size=9)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(keys, children, max_size=3)
        | st.tuples(children, children).map(lambda pair: Point(*pair))
    ),
    max_leaves=12,
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
            patch.setattr(type(step), "_bind_arguments", lambda *_: pytest.fail("the call is taken apart"))
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


class Keyed(dict[str, Any]):
    """A dict of one's own, which JAX takes for a leaf."""


@pytest.mark.parametrize("value", [{1: 1, "a": 1}, Point(1, 2), "text", Keyed(a=1), [[1], object()]])
def test_what_has_no_shape(value):
    assert make_guard((value,), {}) is None
    assert make_guard((), {"x": value}) is None


def test_many_containers_have_no_shape_and_many_arrays_do():
    deep: Any = 1
    for _ in range(MOST):
        deep = [deep]
    holding_itself: list[Any] = []
    holding_itself.append(holding_itself)
    for value in (deep, holding_itself, [[n] for n in range(MOST)]):
        assert make_guard((value,), {}) is None
    many = list(range(10 * MOST))
    for value in (many, tuple(many), {f"{n:04}": n for n in many}):
        guard = make_guard((value, 7), {})
        assert guard is not None
        assert guard((value, 7), {}) == (*many, 7)


a, b = Counter(), Counter()


@pytest.mark.parametrize(
    ("like", "same", "others"),
    [
        ((), (), [(1,)]),
        ((1,), (np.ones(2),), [(), (1, 1), (None,), ("a",), (a,), ([1],)]),
        ((a,), (a,), [(b,), (1,), (None,), ([a],)]),
        ((None,), (None,), [(1,), (a,), ((),)]),
        (((1, 2),), ((3, 4),), [((3, 4, 5),), ([3, 4],), (Point(3, 4),), ((3, None),), ((3, a),), ((),)]),
        (([a, 2],), ([a, 4],), [([b, 4],), ((a, 4),), ([4, a],), ([a],)]),
        (((),), ((),), [([],), ((1,),), ({},)]),
        (({"b": 2, "a": 1},), ({"a": 1, "b": 2},), [({"a": 1, "c": 2},), ({"a": 1},), ({"a": 1, "b": 2, "c": 3},)]),
        (({"a": {"b": 2}},), ({"a": {"b": 3}},), [({"a": {"c": 3}},), ({"a": 3},), (Keyed(a={"b": 3}),)]),
        (({},), ({},), [({"a": 1},), ((),), (None,)]),
        ((list(range(9)),), (list(range(9)),), [(list(range(8)),), ([*range(8), None],), (tuple(range(9)),)]),
        (([*range(8), a],), ([*range(8), a],), [([*range(8), b],), ([*range(8), 8],), ([a, *range(8)],)]),
        (
            (dict.fromkeys("hgfedcba", 1),),
            (dict.fromkeys("abcdefgh", 1),),
            [(dict.fromkeys("abcdefgx", 1),), (dict.fromkeys("abcdefgh"),), (dict.fromkeys("abcdefg", 1),)],
        ),
        (
            ({**dict.fromkeys("hgfedcb", 1), "a": (a, None)},),
            ({"a": (a, None), **dict.fromkeys("bcdefgh", 1)},),
            [({"a": (b, None), **dict.fromkeys("bcdefgh", 1)},), (dict.fromkeys("abcdefgh", 1),)],
        ),
    ],
)
def test_what_is_recognised(like, same, others):
    assert FEW < 8
    guard = make_guard(like, {})
    assert guard is not None
    assert guard(same, {}) == tuple(x for x in jax.tree.leaves(same, is_leaf=is_counter) if not is_counter(x))
    assert not [other for other in others if guard(other, {}) is not None]
    assert guard(same, {"x": 1}) is None
    by_name = make_guard((), {"x": like, "w": 0})
    assert by_name is not None
    assert by_name((), {"x": same, "w": 5}) == (5, *(guard(same, {}) or ()))
    assert not [other for other in others if by_name((), {"x": other, "w": 5}) is not None]
    assert by_name((same,), {"w": 5}) is None
    assert by_name((), {}) is None


def is_counter(value: Any) -> bool:
    return isinstance(value, Counter)


def test_arguments_of_one_shape_share_their_code():
    first, second = make_guard((a, (1, 2)), {"x": 3}), make_guard((b, (1, 2)), {"x": 3})
    assert first is not None
    assert second is not None
    assert first.__code__ is second.__code__  # type: ignore[attr-defined]  # a function
    assert second((a, (1, 2)), {"x": 3}) is None


def test_what_is_watched_is_compared_with_the_arguments():
    names, cell = {"helper": len, "other": 1}, types.CellType(a)
    guard = make_guard((1,), {}, [(cell, None, a), (names, "helper", len)])
    assert guard is not None

    def is_the_same():
        return guard((2,), {}) == (2,)

    assert is_the_same()
    names["other"] = 2
    assert is_the_same()
    names["helper"] = max
    assert not is_the_same()
    del names["helper"]
    assert not is_the_same()
    names["helper"] = len
    assert is_the_same()
    cell.cell_contents = b
    assert not is_the_same()
    del cell.cell_contents
    assert not is_the_same()
    cell.cell_contents = a
    assert is_the_same()


def helped(x):
    return x * 2


@pytest.mark.parametrize("captures", [1, MOST + 1])
def test_a_function_with_helpers_and_captures_takes_the_short_way(captures, monkeypatch):
    """As nearly all do: their names are compared before each call, those of a few in the matcher."""
    counters = [Counter() for _ in range(captures)]
    first, others = counters[0], tuple(counters[1:])

    @dx.jit
    def step(model, x):
        model.count += 1
        first.count += 1
        return helped(x) + len(others)

    model = Counter()
    step(model, 1)
    with monkeypatch.context() as patch:
        patch.setattr(type(step), "_slow_path", lambda *_: pytest.fail("the call takes the slow path"))
        for n in range(2, 20):
            assert step(model, n) == 2 * n + len(others)
    monkeypatch.setitem(globals(), "helped", lambda x: x * 3)
    assert step(model, 1) == 3 + len(others)
    first = Counter()
    assert step(model, 1) == 3 + len(others)
    assert (model.count.value, counters[0].count.value, first.count.value) == (21, 20, 1)


def test_names_of_many_helpers(monkeypatch):
    module = types.ModuleType("many_helpers")
    names = [f"helper{n}" for n in range(MOST + 1)]
    exec("\n".join(f"def {name}(x): return x + 1" for name in names), vars(module))
    body = f"    model.count += 1\n    kept.count += 1\n    return {' + '.join(f'{name}(x)' for name in names)}"
    exec(f"def total(model, x):\n{body}", vars(module))
    module.kept = first = Counter()
    step, model = dx.jit(module.total), Counter()
    assert step(model, 1) == 2 * len(names)
    assert step._entry is not None
    assert step._entry.captures_the_same is not None
    with monkeypatch.context() as patch:
        patch.setattr(type(step), "_slow_path", lambda *_: pytest.fail("the call takes the slow path"))
        assert step(model, 2) == 3 * len(names)
    module.kept = second = Counter()
    assert step(model, 2) == 3 * len(names)
    assert (model.count.value, first.count.value, second.count.value) == (3, 2, 1)


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

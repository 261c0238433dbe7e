"""Leaves that are no Variable's are read and written in runs, with the values that one by one would give."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax._graph.binding import bind


class Part(dx.Module):
    """Attributes of all sorts, in any order."""

    def __init__(self, kinds: list[str], start: int) -> None:
        for number, kind in enumerate(kinds):
            value = jnp.full((2,), float(start + number))
            name = f"{'zyxwvutsrq'[number]}_{kind}"
            if kind == "plain":
                setattr(self, name, value)
            elif kind == "variable":
                setattr(self, name, dx.Param(value))
            elif kind == "list":
                setattr(self, name, dx.data([value, value + 0.5]))
            else:
                setattr(self, name, dx.List([value, dx.Param(value + 0.25)]))


def one_by_one(model: Any) -> list[float]:
    """The leaves by a walk of our own."""
    found: list[float] = []
    waiting: list[Any] = [model]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dx.Variable):
            found.append(float(item.value[0]))
        elif isinstance(item, jax.Array):
            found.append(float(item[0]))
        elif isinstance(item, (list, tuple, dx.List)):
            waiting += item
        else:
            waiting += [v for k, v in vars(item).items() if not k.startswith("_")]
    return sorted(found)


kinds = st.lists(st.sampled_from(["plain", "variable", "list", "declared list"]), min_size=1, max_size=5)


@given(st.lists(kinds, min_size=1, max_size=4), st.integers(1, 4))
def test_what_is_read_and_written_in_a_loop(parts, steps):
    model = dx.List([Part(kinds, 10 * number) for number, kinds in enumerate(parts)])

    @dx.jit
    def step(model: Any) -> Any:
        for part in model:
            for name, value in list(vars(part).items()):
                if name.endswith("plain"):
                    setattr(part, name, value + 100)
                elif name.endswith("variable"):
                    value[...] = value[...] + 100
        return [jax.tree.leaves(dx.pure(dx.state(part))) for part in model]

    expected = one_by_one(model)
    moving = {
        round(float(np.asarray(getattr(value, "value", value))[0]), 2)
        for part in model
        for name, value in vars(part).items()
        if name.endswith(("plain", "variable"))
    }
    for _ in range(steps):
        step(model)
    assert one_by_one(model) == sorted(x + 100 * steps if round(x, 2) in moving else x for x in expected)
    assert sorted(float(np.asarray(leaf)[0]) for leaf in bind(model).read()) == one_by_one(model)
    assert sorted(float(np.asarray(leaf)[0]) for leaf in bind(model).read()) == one_by_one(model)


class Pair(dx.Module):
    def __init__(self) -> None:
        self.a = jnp.zeros(2)
        self.b = jnp.ones(2)
        self.c = dx.Param(jnp.full((2,), 2.0))


def test_a_write_between_calls_is_seen():
    pair = Pair()
    total = dx.jit(lambda pair: pair.a + pair.b + pair.c)
    for n in range(5):
        pair.a = jnp.full((2,), float(n))
        assert total(pair).tolist() == [n + 3.0] * 2
        vars(pair)["b"] = jnp.full((2,), 1.0 + n)  # by the way of `dataclasses.replace` and copies
        assert total(pair).tolist() == [2.0 * n + 3] * 2
        pair.b = jnp.ones(2)


def test_what_belongs_to_another_trace_is_not_written():
    pair = Pair()

    @dx.jit
    def add(pair: Pair, x: Any) -> None:
        pair.a = pair.a + x
        pair.b = pair.b + x

    for _ in range(3):
        add(pair, 1.0)
    with pytest.raises(dx.errors.TraceContextError, match="different trace level"):
        jax.jit(lambda x: add(pair, x))(1.0)
    assert (pair.a.tolist(), pair.b.tolist()) == ([3.0] * 2, [4.0] * 2)


def test_an_attribute_that_is_gone_is_read_as_missing():
    """Another thread may remove it between the look at the structure and the reading."""
    pair = Pair()
    binding = bind(pair)
    assert [float(leaf[0]) for leaf in binding.read()] == [0.0, 1.0, 2.0]
    assert [float(leaf[0]) for leaf in binding.read()] == [0.0, 1.0, 2.0]
    del vars(pair)["a"]
    found = binding.read()
    assert not isinstance(found[0], jax.Array)
    assert [float(leaf[0]) for leaf in found[1:]] == [1.0, 2.0]


def test_a_node_that_is_gone_is_not_written():
    outer = dx.List([Pair(), Pair()])
    binding = bind(outer)
    positions = tuple(i for i, cell in enumerate(binding.cells) if not isinstance(cell, dx.Variable))
    new = [jnp.full((2,), 10.0 + n) for n in range(len(positions))]
    kept = outer[0]
    del vars(outer)[next(key for key, value in vars(outer).items() if value is outer[1])]
    binding.cells.at(positions).write(new)
    assert (kept.a.tolist(), kept.b.tolist()) == ([10.0] * 2, [11.0] * 2)

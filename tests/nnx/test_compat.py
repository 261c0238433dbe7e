"""The functions that are always in graph mode, `split_inputs` and `merge_inputs`, and modes as decorators."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import compat, ids
from declax.transforms import general


@pytest.fixture(params=["declax", "flax.nnx"])
def nnx(request):
    return pytest.importorskip(request.param)


def test_every_function_of_the_peer_is_in_compat():
    peer = pytest.importorskip("flax.nnx").compat
    names = {name for name, value in vars(peer).items() if callable(value) and not name.startswith("_")}
    assert names - set(compat.__all__) == set()
    assert all(getattr(compat, name).keywords["graph"] is True for name in compat.__all__)


def test_sharing_is_kept_whatever_the_default(nnx):
    scale = nnx.Param(jnp.array(1.0))
    with nnx.set_graph_mode(False):
        graphdef, state = nnx.compat.split([scale, scale])
        assert len(nnx.to_flat_state(state)) == 1
        first, second = nnx.merge(graphdef, state)
        assert first is second
        with pytest.raises(ValueError, match=r"shared|tree"):
            nnx.compat.split([scale, scale], graph=False)


@pytest.mark.parametrize("name", ["set_graph_mode", "set_graph_updates"])
def test_a_mode_as_a_decorator(nnx, name):
    mode = getattr(nnx, name)
    before = mode.current_value()

    @mode(not before)
    def current(extra=0):
        """Docs."""
        return mode.current_value(), extra

    assert mode.current_value() is before
    assert current(extra=2) == (not before, 2)
    assert mode.current_value() is before
    assert current.__doc__ == "Docs."


class Counter(dx.Module):
    def __init__(self):
        self.count = dx.Variable(jnp.array(0))
        self.calls = 0


def test_a_transform_of_jax_between_split_inputs_and_merge_inputs():
    @general.split_inputs
    @jax.jit
    @general.merge_inputs
    def increment(counter, by):
        counter.count += by
        counter.calls += 1
        return counter, by * 2

    counter = Counter()
    output, doubled = increment(counter, jnp.array(3))
    assert output is counter
    assert (int(counter.count), counter.calls, int(doubled)) == (3, 1, 6)


def test_branches_between_split_inputs_and_merge_inputs():
    @general.merge_inputs
    def increment(counter):
        counter.count += 1

    @general.merge_inputs
    def keep(counter):
        pass

    counter = Counter()
    for flag in (True, False, True):
        general.split_inputs(jax.lax.cond)(flag, increment, keep, counter)
    np.testing.assert_array_equal(counter.count[...], 2)


def test_a_tag_of_your_own():
    @general.split_inputs(ctxtag="mine")
    @jax.jit
    @general.merge_inputs(ctxtag="mine")
    def tag(counter):
        counter.calls = dx.current_update_context("mine").tag

    counter = Counter()
    tag(counter)
    assert counter.calls == "mine"


def test_unique_numbers():
    first, second = ids.uuid(), ids.uuid()
    assert first != second
    assert first == first
    assert first != first.id
    assert len({first, second}) == 2
    assert repr(first) == f"UUID({first.id})"

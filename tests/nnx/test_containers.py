"""Slices of a List, and a Sequential without layers."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["declax", "flax.nnx"])
def nnx(request):
    return pytest.importorskip(request.param)


def test_a_slice_of_a_list_is_a_list(nnx):
    items = nnx.List([1, 2, 3, 4])
    part = items[1:3]
    assert type(part) is list
    assert part == [2, 3]
    part.append(5)
    assert list(items) == [1, 2, 3, 4]
    items[::2] = [7, 8]
    assert items[:] == [7, 2, 8, 4]


def test_a_sequential_without_layers_returns_its_arguments(nnx):
    empty = nnx.Sequential()
    assert empty(1) == 1
    assert empty(1, 2) == (1, 2)
    assert empty() is None
    assert empty(a=1) == {"a": 1}

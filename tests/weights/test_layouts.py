"""Operations of maps: each is inverted by its other direction, and says what shape a tensor must have."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declax import weights as w
from declax.errors import WeightsError
from declax.weights.layouts import join, paths_of, take, tensor_shape
from declax.weights.parts import Joined, Permuted, fill

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@st.composite
def destinations(draw: st.DrawFn) -> tuple[w.Destination, dict[str, tuple[int, ...]]]:
    """A destination of random operations, with the shapes of its parameters."""
    shapes: dict[str, tuple[int, ...]] = {}

    def leaf(shape: tuple[int, ...]) -> w.Destination:
        path = f"p{len(shapes)}"
        shapes[path] = shape
        return path

    def make(shape: tuple[int, ...], depth: int) -> w.Destination:
        """A destination whose tensor has a shape."""
        kind = draw(st.sampled_from(["leaf", "transpose", "reshape", "split"])) if depth else "leaf"
        if kind == "leaf":
            return leaf(shape)
        if kind == "transpose":
            axes = draw(st.permutations(range(len(shape))))
            return w.transpose(make(tuple(shape[axis] for axis in axes), depth - 1), *axes)
        if kind == "split":
            axis = draw(st.integers(0, len(shape) - 1))
            if shape[axis] < 2:
                return leaf(shape)
            first = draw(st.integers(1, shape[axis] - 1))
            sizes = (first, shape[axis] - first)
            parts = [make((*shape[:axis], size, *shape[axis + 1 :]), depth - 1) for size in sizes]
            return w.split(*parts, axis=axis)
        names = [f"n{axis}" for axis in range(len(shape))]
        order = draw(st.permutations(names))
        cut = draw(st.integers(0, len(order)))
        right = f"({' '.join(order[:cut])}) {' '.join(order[cut:])} 1"
        sizes_of = dict(zip(names, shape, strict=True))
        joined = int(np.prod([sizes_of[name] for name in order[:cut]]))
        inner = make((joined, *(sizes_of[name] for name in order[cut:]), 1), depth - 1)
        return w.reshape(inner, f"{' '.join(names)} -> {right}", **sizes_of)

    return make(draw(SHAPES), draw(st.integers(0, 3))), shapes


@given(destinations(), st.data())
def test_join_inverts_take(made, data):
    destination, shapes = made
    shape = tensor_shape(destination, shapes.__getitem__)
    tensor = np.arange(np.prod(shape)).reshape(shape)
    parts = {path: take(destination, tensor, path, shapes.__getitem__) for path in paths_of(destination)}
    assert {path: part.shape for path, part in parts.items()} == shapes
    values = {path: np.asarray(part) for path, part in parts.items()}
    np.testing.assert_array_equal(join(destination, values.__getitem__), tensor)
    for path, part in parts.items():  # what a device holds of it, in blocks or not
        bounds = [sorted([data.draw(st.integers(0, size)) for _ in range(2)]) for size in part.shape]
        index = tuple([slice(*each) for each in bounds])
        found = np.full([stop - start for start, stop in bounds], -1.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("declax.weights.parts.BLOCK", data.draw(st.sampled_from([1, 1 << 26])))
            fill(found, part, index)
        np.testing.assert_array_equal(found, values[path][index])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(0, 1), st.data())
def test_parts_of_joined_tensors(sizes, axis, data):
    shapes = [(size, 2) if axis == 0 else (2, size) for size in sizes]
    tensors = [np.full(shape, number) for number, shape in enumerate(shapes)]
    expected, found = np.concatenate(tensors, axis), Joined(tensors, axis)
    assert found.shape == expected.shape
    bounds = [sorted([data.draw(st.integers(0, size)) for _ in range(2)]) for size in expected.shape]
    index = tuple([slice(*each) for each in bounds])
    np.testing.assert_array_equal(found[index], expected[index])
    np.testing.assert_array_equal(Permuted(found, (1, 0))[index[::-1]], expected[index].T)


def taken(destination: w.Destination, tensor: np.ndarray, *shape: int) -> np.ndarray:
    (path,) = paths_of(destination)
    assert tensor_shape(destination, lambda path: shape) == tensor.shape
    return np.asarray(take(destination, tensor, path, lambda path: shape))


def test_transpose():
    tensor = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(taken(w.transpose("a"), tensor, 4, 3, 2), tensor.T)
    np.testing.assert_array_equal(taken(w.transpose("a", 1, 2, 0), tensor, 3, 4, 2), tensor.transpose(1, 2, 0))


def test_reshape_reads_the_notation_of_einops():
    tensor = np.arange(24).reshape(6, 4)
    expected = tensor.reshape(2, 3, 4).transpose(2, 0, 1)
    np.testing.assert_array_equal(taken(w.reshape("a", "(h d) i -> i h d"), tensor, 4, 2, 3), expected)
    fused = tensor.reshape(2, 3, 4).transpose(1, 0, 2).reshape(12, 2, order="A")
    pattern = w.reshape("a", "(h d) (i j) -> (d h i) j", h=2, d=3)
    joined = tensor.reshape(2, 3, 2, 2).transpose(1, 0, 2, 3).reshape(12, 2)
    np.testing.assert_array_equal(taken(pattern, tensor, 12, 2), joined)
    assert fused.shape == joined.shape
    np.testing.assert_array_equal(taken(w.reshape("a", "o i 1 -> i o"), tensor[..., None], 4, 6), tensor.T)


def test_a_convolution_of_torch():
    weight = np.random.default_rng(0).normal(size=(5, 3, 2, 2)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(1, 4, 4, 3)).astype(np.float32)
    kernel = jnp.asarray(taken(w.reshape("k", "o i h w -> h w i o"), weight, 2, 2, 3, 5))
    ours = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    theirs = jax.lax.conv_general_dilated(x.transpose(0, 3, 1, 2), weight, (1, 1), "VALID")
    np.testing.assert_allclose(ours, theirs.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "pattern", ["i j", "i -> i -> i", "i j -> i", "i i -> i i", "(i -> i", "(i (j)) -> i j", "2 i -> i 2", "i-j -> j i"]
)
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(WeightsError, match="reshape: this is not a pattern") as caught:
        w.reshape("a", pattern)
    assert caught.value.got == repr(pattern)


def test_a_size_of_an_unknown_axis_is_refused():
    with pytest.raises(WeightsError, match="reshape: the pattern has no axis 'k'"):
        w.reshape("a", "i j -> j i", k=3)


@pytest.mark.parametrize(
    ("destination", "shape", "text"),
    [
        (w.transpose("a", 0, 2), (2, 3), "transpose: axes (0, 2) are not those of the parameter"),
        (w.reshape("a", "i j -> j i"), (2,), "reshape: the right side of 'i j -> j i' has 2 axes"),
        (w.reshape("a", "i j -> (i j)"), (6,), "reshape: the sizes of i, j in 'i j -> (i j)' are unknown"),
        (w.reshape("a", "i j -> (i j)", i=4), (6,), "reshape: the sizes of 'i j -> (i j)' do not fit the parameter"),
        (w.reshape("a", "i j -> i j", i=4), (6, 2), "reshape: the sizes of 'i j -> i j' do not fit the parameter"),
        (w.split("a", axis=2), (6,), "split: a parameter has no axis 2"),
    ],
)
def test_shapes_that_do_not_fit_an_operation(destination, shape, text):
    with pytest.raises(WeightsError, match=re.escape(text)):
        tensor_shape(destination, lambda path: shape)


def test_parts_of_a_split_differ_along_the_axis_only():
    shapes = {"a": (2, 3), "b": (4, 3)}
    assert tensor_shape(w.split("a", "b", axis=0), shapes.__getitem__) == (6, 3)
    assert tensor_shape(w.split("a", "b", axis=-2), shapes.__getitem__) == (6, 3)
    with pytest.raises(WeightsError, match="split: the shapes of the parts differ outside of axis 1"):
        tensor_shape(w.split("a", "b", axis=1), shapes.__getitem__)

"""Inputs that a layer accepts, and that are rarely meant: one warning, with the path and the line to write."""

import warnings

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import LayerWarning


@dx.dataclass
class Stem(dx.Layer):
    conv = dx.Conv(3, 8, 3)
    norm = dx.BatchNorm(8)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x).mean((1, 2)))


@dx.dataclass
class Net(dx.Layer):
    stems = [Stem()]

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.stems[0](x)


IMAGES = jnp.ones((1, 8, 8, 3))


def test_the_warnings_name_the_layer_its_path_and_the_line():
    net = Net(rngs=dx.Rngs(0))
    with pytest.warns(LayerWarning) as caught:
        net(IMAGES)
    conv, norm = caught
    assert {conv.filename, norm.filename} == {__file__}  # the line of the user
    conv_text, norm_text = str(conv.message), str(norm.message)
    assert conv_text.startswith("Conv.kernel_size, in stems[0].conv of Net: the kernel has one axis, and 'inputs' has")
    assert "Array of shape (1, 8, 8, 3)" in conv_text
    assert "kernel_size=(3, 3)" in conv_text
    assert norm_text.startswith("BatchNorm.use_running_average, in stems[0].norm of Net: 'x' is a single example")
    assert "model.eval()" in norm_text


def test_a_line_warns_once():
    net = Net(rngs=dx.Rngs(0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            net(IMAGES)
    assert len(caught) == 2


def test_transposed_convolutions_warn_too():
    with pytest.warns(LayerWarning, match=r"ConvTranspose\.kernel_size: the kernel has one axis"):
        dx.ConvTranspose(3, 8, 3, rngs=dx.Rngs(0))(IMAGES)


def test_what_does_not_warn():
    rngs = dx.Rngs(0)
    net = Net(rngs=rngs)
    dx.jit(net)(IMAGES)
    dx.eval_shape(net, IMAGES)
    conv, norm = dx.Conv(3, 8, 3, rngs=rngs), dx.BatchNorm(3, rngs=rngs)
    for shape in ((8, 3), (2, 8, 3), (2, 3, 4, 8, 3)):
        conv(jnp.ones(shape))
    dx.vmap(conv)(IMAGES)
    dx.Conv(3, 8, (3, 3), rngs=rngs)(IMAGES)
    dx.Conv(3, 8, 1, rngs=rngs)(IMAGES)  # the same along one axis and along two
    for shape in ((2, 3), (1, 8, 3), (1, 8, 8, 3)):
        norm(jnp.ones(shape))
    norm(jnp.ones((1, 3)), use_running_average=True)
    dx.view(norm, use_running_average=True)(jnp.ones((1, 3)))

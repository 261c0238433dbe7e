"""What all layers have in common: the peer's signature, no constructor written by hand, copies and pickles."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from declax._random.streams import Rngs
from declax.nn import BatchNorm, Conv, ConvTranspose, Dropout, Embed, LayerNorm, Linear

SIZES = {
    Linear: (3, 4),
    Conv: (3, 4, (2,)),
    ConvTranspose: (3, 4, (2,)),
    Embed: (5, 3),
    BatchNorm: (3,),
    LayerNorm: (3,),
    Dropout: (0.5,),
}
LAYERS = pytest.mark.parametrize("cls", SIZES, ids=lambda cls: cls.__name__)


def made(cls, **options):
    return cls(*SIZES[cls], rngs=Rngs(0), **options)


def input_of(cls):
    return jnp.array([[0, 3], [4, 1]]) if cls is Embed else jax.random.normal(jax.random.key(1), (2, 6, 3))


def settled(default):
    """A default in the form in which ours and the peer's can be compared; functions count by what they are for."""
    if isinstance(default, Mapping) and not default:
        return "an empty mapping"
    return "a function" if callable(default) and not isinstance(default, type) else default


@LAYERS
def test_the_signature_is_the_peers(nnx, cls):
    def table(function):
        parameters = inspect.signature(function).parameters.values()
        rows = [(p.name, p.kind, settled(p.default)) for p in parameters if p.name != "self"]
        return sorted(rows, key=lambda row: row[0] if row[1] is inspect.Parameter.KEYWORD_ONLY else "")

    theirs = getattr(nnx, cls.__name__)
    required = ("rngs", inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty)  # None in a Layer, which says it later
    optional = ("rngs", inspect.Parameter.KEYWORD_ONLY, None)
    assert table(cls) == [optional if row == required else row for row in table(theirs.__init__)]
    assert table(cls.__call__) == table(theirs.__call__)


@LAYERS
def test_no_constructor_is_written_by_hand(cls):
    assert dataclasses.is_dataclass(cls)
    assert cls.__init__.__code__.co_filename == "<string>"


@LAYERS
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_compute_the_same(cls, way):
    layer, x = made(cls), input_of(cls)
    twin = way(layer)
    assert jax.tree.structure(twin) == jax.tree.structure(layer)
    np.testing.assert_array_equal(twin(x), made(cls)(x))


@LAYERS
def test_equal_layers_have_equal_definitions(cls):
    assert jax.tree.structure(made(cls)) == jax.tree.structure(made(cls))


@LAYERS
def test_layers_compile_without_leaks(cls):
    x = input_of(cls)
    expected = made(cls)(x)

    @jax.jit
    def run(layer, x):
        y = layer(x)
        return y, layer

    with jax.checking_leaks():
        y, after = run(made(cls), x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert jax.tree.structure(after) == jax.tree.structure(made(cls))


def test_metadata_may_be_a_dict():
    metadata = {"tag": ("a", "b")}
    layer = made(Linear, kernel_metadata=metadata)
    assert layer.kernel.get_metadata()["tag"] == ("a", "b")
    assert hash(jax.tree.structure(layer)) == hash(jax.tree.structure(made(Linear, kernel_metadata=dict(metadata))))

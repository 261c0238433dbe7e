"""Class bodies refuse what a construction would fix: methods of parts, and arrays computed from their Variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import errors


class Open(dx.Module):
    """A layer with a constructor of its own; its class says of one attribute that it is a Variable."""

    table: dx.Param[jax.Array]

    def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
        self.table = dx.Param(jnp.ones((dim, 3)))
        self.constant = jnp.ones(3)

    @dx.jit
    def attend(self, x: jax.Array) -> jax.Array:
        return x @ self.table

    @staticmethod
    def act(x: jax.Array) -> jax.Array:
        return -x


class Stateless(dx.Module):
    def init(self, key: jax.Array, shape: tuple[int, ...], dtype: Any = None) -> jax.Array:
        return jnp.ones(shape, dtype)


def tied(kernel: dx.Param[jax.Array]) -> list[dx.Param[jax.Array]]:
    return [kernel]


NAMES = {
    "dx": dx,
    "jax": jax,
    "jnp": jnp,
    "np": np,
    "Any": Any,
    "Callable": Callable,
    "Open": Open,
    "Stateless": Stateless,
    "tied": tied,
    "__name__": __name__,
}


def declared(line: str) -> Any:
    names = dict(NAMES)
    exec(
        f"""
@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    inner = dx.Linear(dim, dim, use_bias=False)
    norm: dx.LayerNorm = dx.LayerNorm(dim)

@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(default=4)
    plain: jax.Array = dx.field(default_factory=lambda: jnp.ones(3))
    given: Open | None = dx.field(default=None)
    embed = dx.Embed(dim, 3)
    drop = dx.Dropout(dim / 10)
    stateless = dx.defer(Stateless)()
    block = Block(dim)
    other = dx.defer(Open)(dim)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)
    parts = [dx.Linear(dim, 2), dx.Linear(dim, 3)]
    layers = dx.repeat(2, dx.Linear(dim, dim))
    {line}
""",
        names,
    )
    return names["Model"]


# ---- methods


@pytest.mark.parametrize(
    ("line", "got", "fix"),
    [
        ("part = embed.attend", "embed.attend", "def part(self, x): return self.embed.attend(x)        # in place of"),
        (
            "part: Callable[..., Any] = embed.attend",
            "embed.attend",
            "def part(self, x): return self.embed.attend(x)        # in place of",
        ),
        ("part = other.attend", "other.attend", "def part(self, x): return self.other.attend(x)        # in place of"),
        ("part = given.attend", "given.attend", "def part(self, x): return self.given.attend(x)        # in place of"),
        ("part = layers[0].train", "layers[0].train", "def part(self, x): return self.layers[0].train(x)        # in"),
        ("part = block.norm.eval", "block.norm.eval", "def part(self, x): return self.block.norm.eval(x)        # in"),
        ("part = {'a': [embed.attend]}", "embed.attend", "self.embed.attend(x)        # in a method, such as __call__"),
        ("part = [dx.Linear(dim, 2), embed.attend]", "embed.attend", "self.embed.attend(x)        # in a method"),
        ("part = dx.when(dim > 3, embed.attend)", "embed.attend", "self.embed.attend(x)        # in a method"),
    ],
)
def test_a_method_of_a_part(line, got, fix):
    text = r"^Model\.part: a bound method of a part is fixed at construction"
    with pytest.raises(errors.FieldError, match=text) as caught:
        declared(line)
    assert caught.value.got == got
    assert caught.value.fix.startswith(fix)


def test_methods_and_functions_that_stay():
    model = declared(
        "part = dx.Linear(dim, dim, kernel_init=stateless.init)\n"
        "    size = dx.defer(len)(dx.defer(jax.eval_shape)(embed.attend, jnp.ones((2, 3))).shape)\n"
        "    act = other.act\n"
        "    promote = embed.promote_dtype"
    )(rngs=dx.Rngs(0))
    assert model.part.kernel[...].tolist() == [[1.0] * 4] * 4
    assert model.size == 2
    assert model.act is Open.act
    assert model.promote is model.embed.promote_dtype


def test_why_methods_are_refused():
    """In a constructor that is written by hand they are the user's choice, as in the peer."""

    class Tied(dx.Module):
        def __init__(self, rngs: dx.Rngs) -> None:
            self.embed = dx.Embed(4, 3, rngs=rngs)
            self.logits = self.embed.attend
            self.head = self.embed.embedding.T

    model = Tied(dx.Rngs(0))
    copy = dx.clone(model)
    assert copy.logits.__self__ is model.embed
    assert copy.embed is not model.embed


# ---- arrays


ARRAYS = {
    "embed.embedding.T": "embed.embedding",
    "embed.embedding[...]": "embed.embedding",
    "embed.embedding[0]": "embed.embedding",
    "embed.embedding.value": "embed.embedding",
    "embed.embedding.get_value()": "embed.embedding",
    "embed.embedding.sum()": "embed.embedding",
    "embed.embedding.T.reshape(-1)[0]": "embed.embedding",
    "2 * embed.embedding": "embed.embedding",
    "dx.defer(jnp.sum)(embed.embedding)": "embed.embedding",
    "dx.defer(np.linalg.norm)(embed.embedding)": "embed.embedding",
    "dx.defer(jax.nn.relu)(scale + 1)": "scale",
    "dx.defer(jnp.stack)([plain, scale])": "scale",
    "[scale + 1, 3]": "scale",
    "{'a': (scale.value,)}": "scale",
    "dx.when(dim > 3, scale + 1, None)": "scale",
    "dx.repeat(dim, scale + 1)": "scale",
    "parts[0].kernel.T": "parts[0].kernel",
    "layers[1].bias + 1": "layers[1].bias",
    "block.inner.kernel.T": "block.inner.kernel",
    "block.norm.scale.T": "block.norm.scale",
    "given.table.T": "given.table",
    "dx.defer(jnp.dot)(plain, other.table.T)": "other.table",
}


@pytest.mark.parametrize(("source", "changed"), ARRAYS.items())
@pytest.mark.parametrize("annotation", ["", ": Any"])
def test_an_array_that_is_computed_from_a_variable(source, changed, annotation):
    text = r"^Model\.part: an array that is computed from a Variable is fixed at construction"
    with pytest.raises(errors.FieldError, match=text) as caught:
        declared(f"part{annotation} = {source}")
    assert caught.value.why == f"training changes {changed}, and the attribute would keep the first values"
    first, second, third = caught.value.fix.splitlines()
    assert first == "@property"
    assert second.startswith("def part(self): return ")
    assert third.startswith("self.part = ")


@pytest.mark.parametrize("source", ["embed.embedding.T", "scale[...] + 1", "{'a': [2 * parts[0].kernel]}"])
def test_the_lines_that_are_written_instead(source):
    with pytest.raises(errors.FieldError) as caught:
        declared(f"part = {source}")
    first, second, third = caught.value.fix.splitlines()
    model = declared(
        f"{first}\n    {second}\n    def __post_init__(self): {third.replace('self.part =', 'self.fixed =')}"
    )(rngs=dx.Rngs(0))
    for variable in (model.embed.embedding, model.scale, model.parts[0].kernel):
        variable.value = jnp.zeros_like(variable.value)
    assert float(jax.tree.leaves(model.part)[0].sum()) in (0.0, 4.0)
    assert float(jax.tree.leaves(model.fixed)[0].sum()) not in (0.0, 4.0)


def test_values_of_parts_that_stay():
    model = declared(
        """shared = embed.embedding
    again = shared
    item = parts[0].kernel
    kept = [embed.embedding, scale]
    tied = dx.defer(tied)(embed.embedding)
    size = embed.embedding.shape[0]
    shape = embed.embedding.shape
    kind = embed.embedding.dtype
    bytes = embed.embedding.nbytes
    ndim = dx.defer(jnp.ndim)(embed.embedding)
    features = embed.features
    number = parts[0].out_features + 1
    is_plain = block.inner.bias == None
    streams = drop.rngs
    table = dx.defer(jnp.arange)(embed.features)
    flipped = plain * 2
    row = plain[0]
    constant = other.constant
    mask = dx.defer(jnp.zeros_like)(scale)
    first = dx.defer(dx.BatchStat)(embed.embedding.value)
    copied = embed.embedding.copy()
    layer = dx.Linear(embed.features, embed.embedding.shape[1])
    maybe = dx.when(scale == None, 3, embed.embedding)
    act = dx.defer(dx.relu)"""
    )(rngs=dx.Rngs(0))
    assert model.shared is model.again is model.embed.embedding is model.kept[0] is model.tied[0] is model.maybe
    assert model.item is model.parts[0].kernel
    assert (model.size, model.shape, model.features, model.number) == (4, (4, 3), 3, 3)
    assert (model.ndim, model.bytes, model.is_plain) == (2, 48, True)
    assert model.table.tolist() == [0, 1, 2]
    assert model.flipped.tolist() == [2.0, 2.0, 2.0]
    assert model.constant is model.other.constant
    assert isinstance(model.first, dx.BatchStat)
    assert model.copied is not model.embed.embedding
    assert model.layer.out_features == 3


def test_keys_that_a_class_draws():
    @dx.dataclass
    class Noise(dx.Layer):
        streams: dx.Rngs = dx.field()
        first = streams.params()

    assert Noise(dx.Rngs(0)).first.shape == ()


def test_first_values_that_are_meant():
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        embed = dx.Embed(dim, 3)

        def __post_init__(self) -> None:
            self.first = self.embed.embedding[...]

        @dx.submodule
        def start(self) -> jax.Array:
            return self.embed.embedding[...]

    model = Model(4, rngs=dx.Rngs(0))
    assert jnp.array_equal(model.first, model.start)


def test_frozen_values_without_arrays():
    @dataclasses.dataclass(frozen=True)
    class Config:
        dim: int = 3

        def double(self) -> int:
            return 2 * self.dim

    @dx.dataclass(frozen=True)
    class Shape(dx.Pytree):
        dim: int = 4

        def double(self) -> int:
            return 2 * self.dim

    @dx.dataclass
    class Model(dx.Layer):
        shape: Shape = dx.field()
        config: Config = dx.field(default=Config())
        double = config.double
        more = shape.double

    model = dx.clone(Model(shape=Shape()))
    assert (model.double(), model.more()) == (6, 8)


def test_variables_of_bases():
    Base = declared("size = embed.features")
    text = r"^Sub\.head: an array that is computed from a Variable is fixed at construction"
    for read in (lambda: Base.embed.embedding, lambda: Base.scale, lambda: Base.parts[1].kernel):
        with pytest.raises(errors.FieldError, match=text):

            @dx.dataclass
            class Sub(Base):
                head = 2 * read()

    assert Base(rngs=dx.Rngs(0)).size == 3


def test_classes_whose_annotations_other_modules_write():
    """The annotations of `dx.Embed` are texts, of which some names exist only in its module."""

    class Table(dx.Embed):
        pass

    with pytest.raises(errors.FieldError, match=r"^Model\.head: an array that is computed from a Variable"):

        @dx.dataclass
        class Model(dx.Layer):
            dim: int = dx.field()
            embed = dx.defer(Table)(dim, 3)
            head = embed.embedding.T

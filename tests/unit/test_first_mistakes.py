"""The table of first mistakes in docs/howto/debugging.md: for each row a program whose error begins with its text."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "debugging.md"
HEAD = """
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()
"""


def rows() -> list[str]:
    """The first cells of the table, without the heading."""
    section = PAGE.read_text("utf-8").partition("## Mistakes of the first hour")[2].partition("\n## ")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][2:]


def body(*lines: str) -> Callable[[], Any]:
    """A program that declares a class with further lines, and makes an instance."""
    source = HEAD + "".join(f"    {line}\n" for line in lines)
    names = {"dx": dx, "jax": jax, "jnp": jnp, "np": np, "Wrapper": Wrapper, "__name__": __name__}
    return lambda: exec(source + "Model(4, rngs=dx.Rngs(0))", names)


@dx.dataclass
class Net(dx.Layer):
    dim: int = dx.field()
    up = dx.Linear(dim, dim)
    norm = dx.when(dim > 9, dx.LayerNorm(dim))
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)
    bias: dx.Param[jax.Array] | None = dx.variable((dim,), initializer=dx.initializers.zeros, when=dim > 9)
    blocks = dx.when(dim > 9, dx.repeat(2, dx.Linear(dim, dim)))

    def __call__(self, x: jax.Array, use: str = "call") -> jax.Array:
        if use == "loop":
            for block in self.blocks:
                x = block(x)
            return x
        return x + self.bias if use == "add" else self.norm(x)


def net() -> Net:
    return Net(4, rngs=dx.Rngs(0))


class Plain(dx.Module):
    def __init__(self) -> None:
        self.w = jnp.ones(3)


class Listed(dx.Module):
    def __init__(self) -> None:
        self.layers = [dx.Linear(2, 2, rngs=dx.Rngs(0))]


def forward() -> None:
    class Net(dx.Module):
        def forward(self, x: jax.Array) -> jax.Array:
            return x

    Net()(jnp.ones(3))


def undecorated() -> None:
    class Model(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, dim)

    Model(3)


def undecorated_subclass() -> None:
    class Sub(Net):
        extra = dx.Linear(3, 3, rngs=dx.Rngs(0))

    Sub(3, rngs=dx.Rngs(0))


def mixin() -> None:
    class Mixin:
        head = dx.Linear(3, 3, rngs=dx.Rngs(0))

    @dx.dataclass
    class Model(Mixin, dx.Layer):
        dim: int = dx.field()


def added_to_the_class() -> None:
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, dim)

    Model.extra = dx.Linear(3, 3, rngs=dx.Rngs(0))  # type: ignore[attr-defined]  # what is being refused
    Model(3, rngs=dx.Rngs(0))


class Wrapper:
    def __init__(self, layer: Any) -> None:
        self.layer = layer


def cached_twice() -> None:
    @functools.cache
    def cached() -> Any:
        return dx.Linear(3, 3)  # type: ignore[call-arg]  # the class body passes the keys

    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        a = cached()
        b = [cached()]


def without_keys() -> None:
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, dim)

    Model(3)


def made_in_a_method() -> None:
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()

        def __post_init__(self) -> None:
            self.up = dx.Linear(self.dim, self.dim)

    Model(3, rngs=dx.Rngs(0))


def without_streams() -> None:
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        up = dx.Linear(dim, dim)  # type: ignore[call-arg]  # what is being refused


def disordered() -> None:
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field(default=3)
        size: int


def computed() -> None:
    @dataclasses.dataclass
    class Training:
        steps: int = dx.static(default=100)
        warmup: int = steps // 10

    Training(50)


def leaked() -> None:
    kept: list[jax.Array] = []
    dx.jit(kept.append)(jnp.ones(2))
    kept[0] + 1  # the sum is what is tested


def set_attribute(name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(net(), name, value)


def without_model() -> None:
    model = dx.Linear(3, 2, rngs=dx.Rngs(0))
    optimizer = dx.Optimizer(model, optax.sgd(0.1), wrt=dx.Param)
    optimizer.update(dx.grad(lambda model: jnp.sum(model(jnp.ones((1, 3)))))(model))  # type: ignore[call-arg]  # refused


def without_a_base() -> None:
    @dx.dataclass
    class Net:
        dim: int = dx.field()
        up = dx.Linear(dim, 4)  # type: ignore[call-arg]  # of a class that is no Layer


FIELD = "a field has no value until an instance is created, and a function of JAX or numpy needs one"
PROGRAMS: dict[str, list[Callable[[], Any]]] = {
    "random keys are needed here, and the constructor got no rngs": [without_keys, made_in_a_method],
    "the part `dx.Linear(...)` needs random keys": [without_streams],
    "the declarations of a class require the decorator": [undecorated],
    "a field without a default follows one with a default": [disordered],
    "the expression of 'drop' reads this field": [body("rate: float = 0.1", "drop = dx.Dropout(rate)")],
    "all instances would share this object": [
        body("up = dx.Linear(2, 2, rngs=dx.Rngs(0))"),
        body("w = dx.Param(jnp.zeros(3))"),
    ],
    "all instances would share this object, which is in": [undecorated_subclass, mixin, added_to_the_class],
    "the call `dx.Linear(...)` has no name": [body("ls = [dx.Linear(dim, dim)] * 3")],
    "the unpacking binds one call": [body("q, k = [dx.Linear(dim, dim)] * 2")],
    "the call `dx.Linear(...)` is 'a' too": [cached_twice],
    "the Wrapper holds the field expression": [body("part = Wrapper(dx.Linear(dim, dim))")],
    "the Wrapper holds the field expression dim": [
        body("part = Wrapper(dim)"),
        body("part = dx.defer(print)(Wrapper(dim))"),
    ],
    "a Wrapper hides a model in a static attribute": [body("part = dx.defer(Wrapper)(dx.Linear(dim, dim))")],
    "the class declares parts, such as 'up'": [
        body("up = dx.Linear(dim, dim)", "def __init__(self, dim, rngs): self.dim = dim")
    ],
    "a bound method of a part is fixed at construction": [
        body("embed = dx.Embed(dim, 3)", "logits = embed.attend"),
        body("embed = dx.defer(dx.Embed)(dim, 3)", "logits = embed.attend"),
    ],
    "an array that is computed from a Variable is fixed at construction": [
        body("embed = dx.Embed(dim, 3)", "head = embed.embedding.T"),
        body("embed = dx.Embed(dim, 3)", "head = dx.defer(jnp.sum)(embed.embedding)"),
    ],
    "the class body reads 'self'": [body("up = dx.Linear(self.dim, 4)")],
    FIELD: [
        body("scale = 1 / np.sqrt(dim)"),
        body("index = jnp.arange(dim)"),
        body("w = dx.Param(jnp.zeros(dim))"),
    ],
    "the argument 'out_features' is a size": [body("up = dx.Linear(dim, dim / 2)")],
    "this default is computed from other fields": [computed],
    "this value has the wrong type": [body("ratio: float = dx.field(default=1.5)", "up = dx.Linear(dim, dim * ratio)")],
    "the random streams are given by position": [lambda: Net(4, dx.Rngs(0))],  # type: ignore[misc]  # refused
    "there is no parameter 'key'": [lambda: Net(4, key=jax.random.key(0))],  # type: ignore[call-arg]  # refused
    "a field has no value until an instance is created, and this is not in the body": [without_a_base],
    "the initializer is called with a key, a shape and a dtype": [
        body("w: dx.Param = dx.variable((dim,), initializer=jnp.zeros)"),
        lambda: dx.Linear(2, 3, kernel_init=0.1, rngs=dx.Rngs(0)),
    ],
    "`dx.initializers.lecun_normal` makes an initializer": [
        lambda: dx.Linear(2, 3, kernel_init=dx.initializers.lecun_normal, rngs=dx.Rngs(0)),
        body("w: dx.Param = dx.variable((dim, 3), initializer=dx.initializers.lecun_normal)"),
    ],
    "cannot make an array of shape (4,)": [
        body("w: dx.Param = dx.variable((dim,), initializer=dx.initializers.lecun_normal())")
    ],
    "this part is None, and is called": [lambda: net()(jnp.ones(4))],
    "this part is None, and is used": [lambda: net()(jnp.ones(4), "loop"), lambda: net()(jnp.ones(4), "add")],
    "Net has a method 'forward'": [forward],
    "the class declares no 'scael'": [set_attribute("scael", 3), set_attribute("scael", dx.Param(jnp.ones(3)))],
    "the part 'up' was made from this field": [set_attribute("dim", 5)],
    "data was assigned to an attribute that is static": [Listed],
    "an iterator cannot be a part": [
        set_attribute("ups", (dx.Linear(3, 3, rngs=dx.Rngs(0)) for _ in range(2))),
        body("ups = map(lambda size: dx.Linear(size, size), (3, 4))"),
        body("@dx.submodule", "def ups(self, rngs): return (dx.Linear(self.dim, 3, rngs=rngs) for _ in range(2))"),
    ],
    "an array was assigned to a declared Param": [set_attribute("scale", jnp.ones(3))],
    "there is nothing to differentiate with respect to": [lambda: dx.grad(lambda model: jnp.sum(model.w))(Plain())],
    "one of the model and the gradients is missing": [without_model],
    "a mask of optax is no name": [lambda: dx.Optimizer(net(), optax.adamw(1e-3, mask="kernel"))],
    "the kernel has one axis": [lambda: dx.Conv(3, 8, 3, rngs=dx.Rngs(0))(jnp.ones((2, 28, 28, 3)))],
    "this mask has negative numbers": [
        lambda: dx.combine_masks(jnp.array([[0.0, -1e9]])),
        lambda: dx.dot_product_attention(*[jnp.ones((2, 1, 4))] * 3, mask=jnp.full((2, 2), -jnp.inf)),
    ],
    "the last axis of 'inputs' has the wrong size": [
        lambda: dx.Conv(3, 8, (3, 3), rngs=dx.Rngs(0))(jnp.ones((2, 3, 28, 28)))
    ],
    "`UnexpectedTracerError` (of JAX)": [leaked],
}


def test_the_table_has_a_program_for_each_row():
    found = {row: [text for text in PROGRAMS if row.startswith(text)] for row in rows()}
    assert all(found.values())
    assert {max(texts, key=len) for texts in found.values()} == set(PROGRAMS)


@pytest.mark.parametrize("row", rows())
def test_the_error_of_a_row_says_its_text(row):
    text = max((text for text in PROGRAMS if row.startswith(text)), key=len)
    pattern = re.escape(row.replace("`", "")).replace(re.escape("..."), ".*")
    for program in PROGRAMS[text]:
        with pytest.raises(Exception) as caught:  # noqa: PT011  # its text is compared
            program()
        if row.endswith("(a warning)"):  # which the tests take for an error
            assert isinstance(caught.value, dx.errors.LayerWarning)
            assert row.removesuffix(" (a warning)") in str(caught.value)
        elif "(of JAX)" in row:
            assert type(caught.value).__name__ in row
        else:
            assert isinstance(caught.value, dx.errors.DeclaxError)
            assert re.match(pattern, caught.value.problem), caught.value
            assert caught.value.fix or text == "the last axis of 'inputs' has the wrong size"

"""jedi, which completes in IPython and Jupyter, offers what an object has, and the keywords of what can be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jedi
import pytest

import declax as dx


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    mixer: Callable[[jax.Array], jax.Array] = dx.Linear(dim, dim)
    up = dx.Linear(dim, 4)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)
    size: dx.InitVar[int] = dx.field(default=3)

    def __post_init__(self, size: int) -> None:
        del size

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return inputs


@dx.jit
def step(model: Block, inputs: jax.Array, *, is_last: bool = False) -> jax.Array:
    return model(inputs)


@dx.jit(static_argnames="is_last")
def step_with_options(model: Block, inputs: jax.Array, *, is_last: bool = False) -> jax.Array:
    return model(inputs)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    return {**globals(), "block": Block(2, rngs=dx.Rngs(0))}


def offered(line: str, names: dict[str, Any]) -> set[str]:
    return {found.name for found in jedi.Interpreter(line, [names]).complete()}


@pytest.mark.parametrize(
    ("line", "keywords"),
    [
        ("Block(", {"dim=", "rate=", "mixer=", "size=", "rngs="}),
        ("dx.Dropout(", {"rate=", "broadcast_dims=", "deterministic=", "rng_collection=", "rngs="}),
        ("step(", {"model=", "inputs=", "is_last="}),
        ("step_with_options(", {"model=", "inputs=", "is_last="}),
        ("block(", {"inputs="}),
    ],
)
def test_keywords_are_the_arguments(line: str, keywords: set[str], names: dict[str, Any]) -> None:
    assert {name for name in offered(line, names) if name.endswith("=")} == keywords


def test_instances_offer_their_fields_and_parts_but_no_initvars(names: dict[str, Any]) -> None:
    found = offered("block.", names)
    assert {"dim", "rate", "mixer", "up", "scale", "train"} <= found
    assert found.isdisjoint({"size", "rngs"})
    inner = offered("block.up.", names)
    assert {"kernel", "bias", "in_features"} <= inner
    assert inner.isdisjoint({"kernel_init", "rngs"})


def test_dir_has_an_initvar_that_is_stored() -> None:
    @dx.dataclass
    class Kept(dx.Module):
        size: dx.InitVar[int] = dx.field()

        def __post_init__(self, size: int) -> None:
            self.__dict__["size"] = size

    assert "size" in dir(Kept(3))
    assert "size" not in dir(Block(2, rngs=dx.Rngs(0)))

"""Models that the tests of specs share; in a module, so that another process finds them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax

import declax as dx
from declax.config._refs import keys_of
from declax.config.problems import Path


class Order(enum.Enum):
    FIRST = "first"
    LAST = "last"


class Mixer(dx.Module):
    """What blocks mix with."""


@dx.dataclass
class Mlp(Mixer):
    """Two layers."""

    dim: int = dx.field()
    hidden: int = dx.static(default=8, ge=1, le=1024)
    activation: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up = dx.Linear(dim, hidden, rngs=rngs)
    down = dx.Linear(hidden, dim, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(self.activation(self.up(x)))


@dx.dataclass
class Gate(Mixer):
    dim: int = dx.field()
    order: Order = Order.FIRST
    init: dx.initializers.Initializer = dx.static(default=dx.initializers.lecun_normal())
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((dim, dim), initializer=init)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.scale.value


@dx.dataclass
class Block(dx.Module):
    mixer: Mlp | Gate
    rate: float = dx.static(default=0.0, ge=0.0, le=1.0, help="how much to drop")
    kind: str = dx.static(default="pre", choices=("pre", "post"))
    sizes: list[int] = dx.static(default_factory=lambda: [1, 2])

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.mixer(x)


@dx.dataclass
class Model(dx.Module):
    embed: dx.Embed
    blocks: list[Block] = dx.data(default_factory=list)
    head: dx.Embed | None = None
    named: dict[str, Mlp | Gate] = dx.data(default_factory=dict)
    proto: dx.Spec[Block] | None = None
    protos: list[dx.Spec[Mlp]] = dx.static(default_factory=list)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head.attend(x)


class Open(dx.Module):
    """A class with a constructor of its own."""

    def __init__(self, dim: int, *, width: int = 4, rngs: dx.Rngs) -> None:
        self.dim = dim
        self.width = width
        self.layer = dx.Linear(dim, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layer(x)

    @classmethod
    def square(cls, dim: int, *, rngs: dx.Rngs) -> Open:
        return cls(dim, width=dim, rngs=rngs)


@dataclasses.dataclass
class Train:
    """What is trained, and how: no model itself."""

    model: Model
    other: Mlp | None = None
    steps: int = 10


def half(x: jax.Array) -> jax.Array:
    return x / 2


def schedule(peak: float, *more: float, warmup: int = 0, **rest: float) -> tuple[float, ...]:
    return (peak, *more, float(warmup), *rest.values())


def small(blocks: int = 2, **changes: object) -> dx.Spec[Model]:
    """A model with a tied head."""
    return dx.spec(
        Model,
        dx.spec(dx.Embed, 11, 4),
        [dx.spec(Block, dx.spec(Mlp, 4, 6) if i % 2 == 0 else dx.spec(Gate, 4)) for i in range(blocks)],
        head=dx.Ref("/embed"),
        **changes,
    )


class Point(NamedTuple):
    x: int
    f: object


def pick(a: int = 1, b: str = "x", *more: int) -> tuple[object, ...]:
    return a, b, *more


def parts(spec: dx.Spec[Any]) -> Iterable[tuple[Path, dx.Spec[Any]]]:
    """The spec and all specs inside of it with their paths, outermost first."""
    stack: list[tuple[Path, Any]] = [((), spec)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dx.Spec):
            yield path, value
        keys = list(keys_of(value))
        held: Any = value.arguments if isinstance(value, dx.Spec) else value
        stack.extend(((*path, key), held[key]) for key in reversed(keys))

"""Assignments to fields that methods read where they make parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax import errors


def stack(block: Any, rngs: dx.Rngs) -> list[dx.Linear]:
    return [dx.Linear(block.helped, block.helped, rngs=rngs)]


def linear(size: int, rngs: dx.Rngs) -> dx.Linear:
    return dx.Linear(size, size, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class Config:
    dim: int = 3
    rate: float = 0.1


KINDS = {"linear": dx.Linear}


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field(default=4)
    depth: int = dx.field(default=2)
    width: int = dx.field(default=3)
    through_property: int = dx.field(default=3)
    helped: int = dx.field(default=3)
    use_norm: bool = dx.field(default=True)
    kind: str = dx.field(default="linear")
    sizes: tuple[int, ...] = dx.field(default=(3, 4))
    config: Config = dx.field(default=Config())
    base: int = dx.field(default=2)
    rate: float = dx.field(default=0.1)
    heads: int = dx.field(default=2)
    checked: int = dx.field(default=1)
    steps: int = dx.field(default=3)
    label: str = dx.field(default="a")
    other: Config = dx.field(default=Config())
    deterministic: bool = dx.field(default=False)
    act: Any = dx.static(default=dx.relu)
    computed = base * 3

    @dx.submodule
    def layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
        if self.checked < 1 or self.checked > 9:
            raise ValueError(self.checked)
        return [dx.Linear(self.dim, self.dim, rngs=rngs) for _ in range(self.depth)]

    @dx.submodule
    def norm(self, rngs: dx.Rngs) -> dx.LayerNorm | None:
        return dx.LayerNorm(self.dim, rngs=rngs) if self.use_norm else None

    @dx.submodule
    def drop(self) -> dx.Dropout:
        return dx.Dropout(self.rate, deterministic=self.deterministic)

    @dx.submodule
    def other_layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
        found = [self.make(rngs), dx.Linear(self.doubled, 2, rngs=rngs), *stack(self, rngs)]
        found += [dx.Linear(size, self.config.dim, rngs=rngs) for size in self.sizes]
        if self.kind == "linear":
            found.append(dx.Linear(self.computed, 2, rngs=rngs))
        drop = dx.Dropout(self.other.rate)
        assert drop.rate < 1, self.label
        return found

    def make(self, rngs: dx.Rngs) -> dx.Linear:
        return dx.Linear(self.width, self.width, rngs=rngs)

    @property
    def doubled(self) -> int:
        return 2 * self.through_property

    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.steps):
            x = self.act(x) * self.heads
        return x if self.label == "a" else -x


DECIDING = {
    "dim": (5, "layers"),
    "depth": (3, "layers"),
    "width": (4, "other_layers"),
    "through_property": (4, "other_layers"),
    "helped": (4, "other_layers"),
    "use_norm": (False, "norm"),
    "kind": ("conv", "other_layers"),
    "sizes": ((5,), "other_layers"),
    "config": (Config(4), "other_layers"),
    "base": (4, "other_layers"),
}


@pytest.mark.parametrize("name", DECIDING)
def test_a_field_that_a_method_under_submodule_reads(name):
    value, part = DECIDING[name]
    block = Block(rngs=dx.Rngs(0))
    before = getattr(block, name)
    with pytest.raises(
        errors.MissingAttributeError, match=rf"^Block\.{name}: the part '{part}' was made from this field"
    ) as caught:
        setattr(block, name, value)
    assert caught.value.fix.startswith(f"model = dx.replace(model, {name}=..., rngs=dx.Rngs(0))")
    assert getattr(block, name) == before
    setattr(block, name, before)
    assert getattr(dx.replace(block, **{name: value}, rngs=dx.Rngs(0)), name) == value


def test_fields_that_methods_read_for_no_size():
    block = Block(rngs=dx.Rngs(0))
    block.rate, block.heads, block.checked, block.steps, block.label = 0.3, 3, 2, 1, "b"
    block.other, block.deterministic, block.act = Config(rate=0.3), True, dx.gelu
    block.train()
    block.eval()
    assert block(jnp.ones(2)).shape == (2,)


@dx.dataclass
class Made(dx.Layer):
    dim: int = dx.field(default=4)
    depth: int = dx.field(default=2)
    width: int = dx.field(default=2)
    inner: int = dx.field(default=2)
    helped: int = dx.field(default=2)
    flag: bool = dx.field(default=True)
    steps: int = dx.field(default=3)
    checked: int = dx.field(default=3)
    rate: float = dx.field(default=0.1)
    logged: int = dx.field(default=3)

    def __post_init__(self, *, rngs: dx.Rngs | None = None) -> None:
        if self.checked < 1:
            raise ValueError(self.checked)
        assert rngs is not None
        self.per_step = 1 / self.steps
        hidden = 2 * self.inner
        self.up = dx.Linear(self.dim, hidden, rngs=rngs)
        self.layers = dx.List([linear(3, rngs) for _ in range(self.depth)])
        if self.flag:
            self.scale = dx.Param(jnp.ones(3))
        self.made = linear(self.width, rngs)
        self.down = self.make(rngs)
        self.drop = dx.Dropout(self.rate)
        self.log = f"{self.logged}"

    def make(self, rngs: dx.Rngs) -> dx.Linear:
        return dx.Linear(self.helped, 2, rngs=rngs)


@pytest.mark.parametrize(
    ("name", "part"),
    [("dim", "up"), ("inner", "up"), ("depth", "layers"), ("flag", "scale"), ("width", "made"), ("helped", "down")],
)
def test_a_field_that_post_init_reads_for_a_part(name, part):
    made = Made(rngs=dx.Rngs(0))
    with pytest.raises(errors.MissingAttributeError, match=rf"^Made\.{name}: the part '{part}' was made from this"):
        setattr(made, name, False if name == "flag" else 7)


def test_fields_that_post_init_reads_for_other_attributes():
    made = Made(rngs=dx.Rngs(0))
    made.steps, made.checked, made.rate, made.logged = 5, 5, 0.5, 5
    assert (made.steps, made.rate) == (5, 0.5)


def test_a_plain_dataclass_takes_any_value():
    @dx.dataclass
    class Plain(dx.Module):
        dim: int

        def __post_init__(self) -> None:
            self.up = dx.Linear(self.dim, 3, rngs=dx.Rngs(0))

    plain = Plain(3)
    plain.dim = 4
    assert plain.dim == 4


def test_inherited_methods_and_subclasses():
    @dx.dataclass
    class Wide(Block):
        extra: int = dx.field(default=3)

        def make(self, rngs: dx.Rngs) -> dx.Linear:
            return dx.Linear(self.extra, 2, rngs=rngs)

    wide = Wide(rngs=dx.Rngs(0))
    with pytest.raises(AttributeError, match=r"^Wide\.extra: the part 'other_layers'"):
        wide.extra = 4
    wide.width = 7
    with pytest.raises(AttributeError, match=r"^Wide\.dim: the part 'layers'"):
        wide.dim = 7


def test_a_method_that_a_comprehension_calls():
    @dx.dataclass
    class Listed(dx.Layer):
        dim: int = dx.field()
        depth: int = dx.field(default=2)

        @dx.submodule
        def layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
            return [self.make(i, rngs) for i in range(self.depth)]

        def make(self, index: int, rngs: dx.Rngs) -> dx.Linear:
            return dx.Linear(self.dim, index + 1, rngs=rngs)

    listed = Listed(3, rngs=dx.Rngs(0))
    for name in ("dim", "depth"):
        with pytest.raises(errors.MissingAttributeError, match=rf"^Listed\.{name}: the part 'layers' was made from"):
            setattr(listed, name, 5)


def test_a_method_with_more_names_than_one_byte_counts():
    names = "\n".join(f"        math.a{i} if rngs is None else 0" for i in range(300))
    source = f"""
@dx.dataclass
class Long(dx.Layer):
    dim: int = dx.field()

    @dx.submodule
    def up(self, rngs: dx.Rngs) -> dx.Linear:
        import math
{names}
        return dx.Linear(self.dim, 2, rngs=rngs)
"""
    made = {"dx": dx, "__name__": __name__}
    exec(source.replace(" if rngs is None else 0", " if rngs is None else 0"), made)
    long = made["Long"](3, rngs=dx.Rngs(0))
    with pytest.raises(errors.MissingAttributeError, match=r"^Long\.dim: the part 'up' was made from this field"):
        long.dim = 5

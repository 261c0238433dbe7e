"""Declared classes: generic, frozen, inherited and with parts of several kinds."""

from collections.abc import Callable
from dataclasses import InitVar
from typing import Generic, Protocol, TypeVar

import jax

import declax as dx

T = TypeVar("T", bound=dx.Module)


class Mixer(Protocol):
    def mix(self, x: jax.Array) -> jax.Array: ...


@dx.dataclass
class Attention(dx.Layer):
    dim: int = dx.field()
    heads: int = dx.field(default=2)
    _: dx.KW_ONLY
    out: dx.Linear = dx.Linear(dim, dim)

    def mix(self, x: jax.Array) -> jax.Array:
        return self.out(x)


@dx.dataclass
class Wrap(dx.Module, Generic[T]):
    inner: T = dx.data()
    scale: float = dx.field(default=1.0)


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    rate: float = 0.1
    _: dx.KW_ONLY
    mixer: Mixer = Attention(dim)
    norm: dx.LayerNorm | None = dx.LayerNorm(dim)
    pair: tuple[dx.Linear, dx.Dropout] = (dx.Linear(dim, dim), dx.Dropout(0.1))

    @dx.submodule
    def layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
        return [dx.Linear(self.dim, self.dim, rngs=rngs)]


@dx.dataclass
class Mixing(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    mixer: Mixer = Attention(dim, rngs=rngs)


@dx.dataclass
class WrapOfLinear(Wrap[dx.Linear]):
    gain: float = dx.field(default=1.0)


rngs = dx.Rngs(0)
block = Block(4, rngs=rngs)
mixing = Mixing(4, rngs=rngs)

# == the part of a generic class has another class (annotations: yes)

wrapped = Wrap(Attention(4, rngs=rngs))
heads: int = wrapped.inner.heads
# wrong: heads: int = wrapped.inner.kernel
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a value of another type for a bound type variable (annotations: yes)

whole: Wrap[Attention] = Wrap(Attention(4, rngs=rngs), scale=2.0)
# wrong: whole: Wrap[Attention] = Wrap(3, scale=2.0)
# error: arg-type | arg-type | reportArgumentType

# == a subclass of a generic class, with a part of another class (annotations: yes)

sized: int = WrapOfLinear(dx.Linear(2, 3, rngs=rngs)).inner.out_features
# wrong: sized: int = WrapOfLinear(Attention(2, rngs=rngs)).inner.out_features
# error: arg-type | arg-type | reportArgumentType

# == a path of a State that a generic class does not have (annotations: no)

gained = dx.state(WrapOfLinear(dx.Linear(2, 3, rngs=rngs))).inner.kernel
# wrong: gained = dx.state(WrapOfLinear(dx.Linear(2, 3, rngs=rngs))).innr.kernel
# error: declax-path | - | -

# == a field of a frozen class is set (annotations: yes)


@dx.dataclass(frozen=True)
class Frozen(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up: dx.Linear = dx.Linear(dim, 2 * dim, rngs=rngs)


frozen = Frozen(2, rngs=rngs)
frozen.up.kernel.value = frozen.up.kernel.value + 1
# wrong: frozen.up = dx.Linear(2, 4, rngs=rngs)
# error: misc | misc | reportAttributeAccessIssue

# == a static field of a frozen class takes an array (annotations: no)


@dx.dataclass(frozen=True)
class FrozenRate(dx.Module):
    rate: object = dx.data()
    # wrong: rate: jax.Array = dx.static()
    # error: declax-field | - | -


# == an InitVar is read as an attribute (annotations: yes)


@dx.dataclass
class Scaled(dx.Module):
    dim: int = dx.field()
    scale: InitVar[float] = dx.field(default=1.0)
    width: int = dx.field(init=False)

    def __post_init__(self, scale: float) -> None:
        self.width = int(scale * self.dim)


width: int = Scaled(3).width
# wrong: width: float = Scaled(3).scale
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a part takes an InitVar of another type (annotations: yes)


@dx.dataclass
class Named(dx.Module):
    name: InitVar[str] = dx.field()
    size: InitVar[int] = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up: dx.Linear = dx.Linear(size, 4, rngs=rngs)
    # wrong: up: dx.Linear = dx.Linear(name, 4, rngs=rngs)
    # error: arg-type | arg-type | reportArgumentType


# == a part that does not implement its Protocol (annotations: yes)


@dx.dataclass
class Unmixed(dx.Layer):
    dim: int = dx.field()
    _: dx.KW_ONLY
    mixer: Mixer = Attention(dim)
    # wrong: mixer: Mixer = dx.Linear(dim, dim)
    # error: assignment | assignment | reportAssignmentType


# == an argument that does not implement the Protocol of a part (annotations: yes)

given = Mixing(4, mixer=Attention(4, rngs=rngs), rngs=rngs)
# wrong: given = Mixing(4, mixer=dx.Linear(4, 4, rngs=rngs), rngs=rngs)
# error: arg-type | arg-type | reportArgumentType

# == a method that the Protocol of a part lacks (annotations: yes)

mixed: jax.Array = mixing.mixer.mix(jax.numpy.ones((1, 4)))
# wrong: mixed: jax.Array = mixing.mixer.attend(jax.numpy.ones((1, 4)))
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a State at the path of a Protocol part in a subclass, misspelt (annotations: no)


@dx.dataclass
class Remixing(Mixing):
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    mixer: Mixer = Attention(Mixing.dim, 1, rngs=rngs)


remixed = dx.state(Remixing(4, rngs=rngs)).mixer
# wrong: remixed = dx.state(Remixing(4, rngs=rngs)).mixr
# error: declax-path | - | -

# == an optional part is called (annotations: yes)


def normed(block: Block, x: jax.Array) -> jax.Array:
    return x if block.norm is None else block.norm(x)
    # wrong: return block.norm(x)
    # error: misc | misc | reportOptionalCall


# == an optional part of another class (annotations: yes)

bare = Block(4, norm=None, rngs=rngs)
# wrong: bare = Block(4, norm=dx.BatchNorm(4, rngs=rngs), rngs=rngs)
# error: arg-type | arg-type | reportArgumentType

# == an index beyond a tuple of parts (annotations: yes)

rate: float = block.pair[1].rate
# wrong: rate: float = block.pair[2].rate
# error: misc | misc | reportAttributeAccessIssue, reportGeneralTypeIssues

# == the wrong entry of a tuple of parts (annotations: yes)

features: int = block.pair[0].out_features
# wrong: features: int = block.pair[1].out_features
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a tuple of parts in another order than its annotation (annotations: yes)


@dx.dataclass
class Paired(dx.Layer):
    dim: int = dx.field()
    _: dx.KW_ONLY
    pair: tuple[dx.Linear, dx.Embed] = (dx.Linear(dim, dim), dx.Embed(9, dim))
    # wrong: pair: tuple[dx.Linear, dx.Embed] = (dx.Embed(9, dim), dx.Linear(dim, dim))
    # error: assignment | assignment | reportAssignmentType


# == a method that overrides another one misspells a field of the base (annotations: yes)


@dx.dataclass
class Deeper(Block):
    @dx.submodule
    def layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
        return [dx.Linear(self.dim, 2, rngs=rngs)]
        # wrong: return [dx.Linear(self.dims, 2, rngs=rngs)]
        # error: attr-defined | attr-defined | reportAttributeAccessIssue


# == a field of a base that it does not have (annotations: yes)


@dx.dataclass
class Headed(Block):
    head: dx.Linear = dx.Linear(Block.dim, 10)
    # wrong: head: dx.Linear = dx.Linear(Block.width, 10)
    # error: attr-defined | attr-defined | reportAttributeAccessIssue


# == a plain default of a base is read (annotations: no)


@dx.dataclass
class Dropped(Block):
    drop: dx.Dropout = dx.Dropout(Block.pair[1].rate)
    # wrong: drop: dx.Dropout = dx.Dropout(Block.rate)
    # error: declax-part | - | -


# == a part of a base is overridden by one of another class (annotations: yes)


@dx.dataclass
class Wider(Mixing):
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    mixer: Mixer = Attention(2 * Mixing.dim, rngs=rngs)
    # wrong: mixer: Mixer = dx.LayerNorm(2 * Mixing.dim, rngs=rngs)
    # error: assignment | assignment | reportAssignmentType


# == a function in the place of a part under a Protocol with parameters (annotations: yes)


@dx.dataclass
class Activated(dx.Layer):
    dim: int = dx.field()
    activation: Callable[[jax.Array], jax.Array] = dx.field(default=dx.gelu)
    up = dx.Linear(dim, dim)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(self.up(x))
        # wrong: return self.activation(self.up)
        # error: arg-type | arg-type | reportArgumentType

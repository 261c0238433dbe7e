"""Arguments of specifiers, methods that make parts, kinds, and specs of shards."""

from typing import Final, Protocol

import jax
import jax.numpy as jnp

import declax as dx


class Mixer(Protocol):
    def __call__(self, inputs: jax.Array) -> jax.Array: ...


@dx.dataclass
class Base(dx.Layer):
    dim: int = dx.field()
    first = dx.Linear(dim, dim)
    second = dx.Linear(dim, dim)


@dx.dataclass
class Other(dx.Layer):
    width: int = dx.field(default=3)


def is_short(name: str) -> bool:
    return len(name) < 9


def is_even(size: int) -> bool:
    return size % 2 == 0


MOST: Final = 8
mesh = jax.make_mesh((1,), ("data",))
x = jnp.ones(2)

# == a default that is no choice (annotations: no)


@dx.dataclass
class Reduced(dx.Layer):
    how: str = dx.field(default="mean", choices=("mean", "sum"))
    # wrong: how: str = dx.field(default="men", choices=("mean", "sum"))
    # error: declax-field | - | -


# == a default below the bound (annotations: no)


@dx.dataclass
class Bounded(dx.Layer):
    heads: int = dx.field(default=2, ge=1, le=MOST)
    # wrong: heads: int = dx.field(default=0, ge=1, le=MOST)
    # error: declax-field | - | -


# == a default above the bound of a constant (annotations: no)


@dx.dataclass
class Limited(dx.Layer):
    heads: int = dx.field(default=2, le=MOST)
    # wrong: heads: int = dx.field(default=16, le=MOST)
    # error: declax-field | - | -


# == a check of another type (annotations: no)


@dx.dataclass
class Checked(dx.Layer):
    dim: int = dx.field(check=is_even)
    # wrong: dim: int = dx.field(check=is_short)
    # error: declax-field | - | -


# == an axis name too many (annotations: no)


@dx.dataclass
class Sharded(dx.Layer):
    dim: int = dx.field()
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones, sharding=("model",))
    # wrong: scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones, sharding=(None, "data"))
    # error: declax-field | - | -


# == a part in a static field (annotations: no)


@dx.dataclass
class Held(dx.Layer):
    dim: int = dx.field()
    head: dx.Data[object] = dx.Linear(dim, dim)
    # wrong: head: dx.Static[object] = dx.Linear(dim, dim)
    # error: declax-field | - | -


# == an own constructor beside parts (annotations: no)


@dx.dataclass
class Constructed(dx.Layer):
    dim: int = dx.field()
    up = dx.Linear(dim, dim)

    def __post_init__(self) -> None:
        # wrong: def __init__(self) -> None:
        # error: declax-part | - | -
        self.width = self.dim


# == a method that reads a later part (annotations: no)


@dx.dataclass
class Ordered(dx.Layer):
    dim: int = dx.field()
    up = dx.Linear(dim, 3)

    @dx.submodule
    def middle(self, rngs: dx.Rngs) -> dx.Linear:
        return dx.Linear(self.up.out_features, 3, rngs=rngs)
        # wrong: return dx.Linear(self.down.out_features, 3, rngs=rngs)
        # error: declax-part | - | -

    down = dx.Linear(dim, 3)


# == an override that reads a later part (annotations: no)


@dx.dataclass
class Overriding(Base):
    second = dx.Linear(Base.first.in_features, Base.dim)
    first = dx.Linear(Base.dim, Base.dim)
    # wrong: first = dx.Linear(Base.second.in_features, Base.dim)
    # error: declax-part | - | -


# == a method that takes keys in a class without them (annotations: no)


@dx.dataclass
class Keyed(dx.Layer):
    # wrong(+3): class Keyed(dx.Module):
    # error: declax-part | - | -
    dim: int = dx.field()

    @dx.submodule
    def up(self, rngs: dx.Rngs) -> dx.Linear:
        return dx.Linear(self.dim, 3, rngs=rngs)


# == a method whose layer lacks keys (annotations: no)


@dx.dataclass
class Keyless(dx.Layer):
    dim: int = dx.field()

    @dx.submodule
    def up(self, rngs: dx.Rngs) -> dx.Linear:
        return dx.Linear(self.dim, 3, rngs=rngs)
        # wrong: return dx.Linear(self.dim, 3)
        # error: declax-rngs | - | -


# == a field of a class that is no base (annotations: no)


@dx.dataclass
class Derived(Other):
    up = dx.Linear(Other.width, 3)
    # wrong: up = dx.Linear(Base.dim, 3)
    # error: declax-value | - | -


# == sizes of a Sequential that are different fields (annotations: no)


@dx.dataclass
class Net(dx.Layer):
    dim: int = dx.field()
    hidden: int = dx.field()
    net = dx.Sequential(dx.Linear(dim, hidden), dx.relu, dx.Linear(hidden, dim))
    # wrong: net = dx.Sequential(dx.Linear(dim, hidden), dx.relu, dx.Linear(dim, hidden))
    # error: declax-sizes | - | -


# == sizes of a Sequential in different multiples (annotations: no)


@dx.dataclass
class Wide(dx.Layer):
    dim: int = dx.field()
    net = dx.Sequential(dx.Linear(dim, 4 * dim), dx.relu, dx.Dropout(0.1), dx.Linear(dim * 4, dim))
    # wrong: net = dx.Sequential(dx.Linear(dim, 4 * dim), dx.relu, dx.Dropout(0.1), dx.Linear(2 * dim, dim))
    # error: declax-sizes | - | -


# == a kind that lacks the method of its protocol (annotations: no)


@dx.register_kind(Mixer)
class Shift(dx.Layer):
    def __call__(self, inputs: jax.Array) -> jax.Array:
        # wrong(-1): def call(self, inputs: jax.Array) -> jax.Array:
        # error: declax-kind | - | -
        return inputs + 1


# == a kind that is no subclass (annotations: no)

dx.register_kind(Base, Overriding)
# wrong: dx.register_kind(Base, Other)
# error: declax-kind | - | -

# == a spec too many (annotations: no)


def total(one: jax.Array, other: jax.Array) -> jax.Array:
    return one + other


mapped = dx.shard_map(total, mesh=mesh, in_specs=(None, None), out_specs=None)
# wrong: mapped = dx.shard_map(total, mesh=mesh, in_specs=(None, None, None), out_specs=None)
# error: declax-axes | - | -

# == a spec too many of a decorated function (annotations: no)


@dx.shard_map(mesh=mesh, in_specs=(None, None), out_specs=None)
# wrong: @dx.shard_map(mesh=mesh, in_specs=(None,), out_specs=None)
# error: declax-axes | - | -
def weighted(model: dx.Linear, one: jax.Array) -> jax.Array:
    return model(one)


# == a spec for each of two results (annotations: no)


def both(one: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
    return one, other


of_both = dx.shard_map(both, mesh=mesh, in_specs=(None, None), out_specs=(None, None))
# wrong: of_both = dx.shard_map(both, mesh=mesh, in_specs=(None, None), out_specs=(None, None, None))
# error: declax-axes | - | -

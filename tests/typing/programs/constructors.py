"""Constructors of declared classes."""

import jax
import jax.numpy as jnp

import declax as dx


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    hidden: int = dx.field()
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    up = dx.Linear(dim, hidden)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.up(x * self.scale)


@dx.dataclass
class Model(dx.Layer):
    depth: int = dx.field()
    block: Block = Block(4, 8)
    width: int = dx.static(default=4)


@dx.dataclass
class Explicit(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up = dx.Linear(dim, 4, rngs=rngs)


block = Block(4, 8, rngs=dx.Rngs(0))

# == an argument is missing (annotations: yes)

complete = Block(4, 8, rngs=dx.Rngs(0))
# wrong: complete = Block(4, rngs=dx.Rngs(0))
# error: call-arg | call-arg | reportCallIssue

# == rngs is missing (annotations: no)

with_rngs = Block(4, 8, rngs=dx.Rngs(0))
# wrong: with_rngs = Block(4, 8)
# error: declax-rngs | - | -

# == rngs of an annotated part is missing (annotations: no)

given_part = Model(2, block=block)
# wrong: given_part = Model(2)
# error: declax-rngs | - | -

# == rngs is missing in the call of a class that declares it (annotations: yes)

explicit = Explicit(4, rngs=dx.Rngs(0))
# wrong: explicit = Explicit(4)
# error: call-arg | call-arg | reportCallIssue

# == the rngs of a model are read (annotations: yes)

key = dx.Rngs(0).params()
# wrong: key = block.rngs.params()
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == one argument too many (annotations: yes)

positional = Block(4, 8, rate=0.5, rngs=dx.Rngs(0))
# wrong: positional = Block(4, 8, 16, rate=0.5, rngs=dx.Rngs(0))
# error: arg-type, misc | arg-type, misc | reportCallIssue

# == an argument of the wrong type (annotations: yes)

typed = Block(4, 8, rngs=dx.Rngs(0))
# wrong: typed = Block(4, "8", rngs=dx.Rngs(0))
# error: arg-type | arg-type | reportArgumentType

# == a float for an int (annotations: yes)

halved = Block(4, 8 // 2, rngs=dx.Rngs(0))
# wrong: halved = Block(4, 8 / 2, rngs=dx.Rngs(0))
# error: arg-type | arg-type | reportArgumentType

# == a keyword-only argument by position (annotations: yes)

keyworded = Block(4, 8, rate=0.5, rngs=dx.Rngs(0))
# wrong: keyworded = Block(4, 8, 0.5, rngs=dx.Rngs(0))
# error: arg-type, misc | arg-type, misc | reportCallIssue

# == a misspelt argument (annotations: yes)

spelt = Block(4, hidden=8, rngs=dx.Rngs(0))
# wrong: spelt = Block(4, hiden=8, rngs=dx.Rngs(0))
# error: call-arg | call-arg | reportCallIssue

# == an internal part as an argument (annotations: yes)

made = Block(4, 8, rngs=dx.Rngs(0))
# wrong: made = Block(4, 8, rngs=dx.Rngs(0), up=dx.Linear(4, 8, rngs=dx.Rngs(0)))
# error: call-arg | call-arg | reportCallIssue

# == a declared Variable as an argument (annotations: yes)

initialized = Block(4, 8, rngs=dx.Rngs(0))
# wrong: initialized = Block(4, 8, rngs=dx.Rngs(0), scale=dx.Param(jnp.ones(4)))
# error: call-arg | call-arg | reportCallIssue

# == a seed in the place of the streams (annotations: yes)

seeded = Block(4, 8, rngs=dx.Rngs(0))
# wrong: seeded = Block(4, 8, rngs=0)
# error: arg-type | arg-type | reportArgumentType

# == a class in the place of an instance (annotations: yes)


def run(model: Block, x: jax.Array) -> jax.Array:
    return model(x)


applied = run(Block(4, 8, rngs=dx.Rngs(0)), jnp.ones((2, 4)))
# wrong: applied = run(Block, jnp.ones((2, 4)))
# error: arg-type | arg-type | reportArgumentType

# == a field that the class does not have (annotations: yes)

hidden = block.hidden
# wrong: hidden = block.hiden
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a field of a submodule that it does not have (annotations: yes)

kernel = Model(2, rngs=dx.Rngs(0)).block.up.kernel
# wrong: kernel = Model(2, rngs=dx.Rngs(0)).block.up.weight
# error: attr-defined | attr-defined | reportAttributeAccessIssue

# == a field is set to another type (annotations: yes)

block.rate = 0.2
# wrong: block.rate = "low"
# error: assignment | assignment | reportAttributeAccessIssue

# == a submodule is set to a module of another class (annotations: yes)

block.up = dx.Linear(4, 8, rngs=dx.Rngs(0))
# wrong: block.up = dx.LayerNorm(4, rngs=dx.Rngs(0))
# error: assignment | assignment | reportAttributeAccessIssue

# == a model is called with too many arguments (annotations: yes)

called = block(jnp.ones((2, 4)))
# wrong: called = block(jnp.ones((2, 4)), True)
# error: call-arg | call-arg | reportCallIssue

# == arguments from a dict literal with an unknown key (annotations: no)

from_dict = Block(dim=4, hidden=8, rngs=dx.Rngs(0))
# wrong: from_dict = Block(**{"dim": 4, "hiden": 8}, rngs=dx.Rngs(0))
# error: call-arg | - | -

# == arguments from a plain dict with an unknown key (annotations: no)

config = {"dim": 4, "hidden": 8}
# wrong(+1): config = {"dimm": 4, "hidden": 8}
# error: call-arg | - | -
configured = Block(**config, rngs=dx.Rngs(0))

# == a result is taken for another class (annotations: yes)

taken: Block = Model(2, rngs=dx.Rngs(0)).block
# wrong: taken: Block = Model(2, rngs=dx.Rngs(0))
# error: assignment | assignment | reportAssignmentType

# == a constructor in an inherited class misses the inherited field (annotations: yes)


@dx.dataclass
class Wide(Block):
    factor: int = 2


wide = Wide(4, 8, rngs=dx.Rngs(0))
# wrong: wide = Wide(4, factor=2, rngs=dx.Rngs(0))
# error: call-arg | call-arg | reportCallIssue

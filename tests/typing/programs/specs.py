"""Specs and configurations."""

import jax

import declax as dx


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    hidden: int = dx.field()
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    up: dx.Linear = dx.Linear(dim, hidden)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.up(x)


# == spec with an argument too few (annotations: no)

spec = dx.spec(Block, 4, 8)
# wrong: spec = dx.spec(Block, 4)
# error: call-arg | - | -

# == spec with a misspelt argument (annotations: no)

spelt = dx.spec(Block, 4, hidden=8)
# wrong: spelt = dx.spec(Block, 4, hiden=8)
# error: call-arg | - | -

# == spec with an argument of another type (annotations: no)

typed = dx.spec(Block, 4, 8)
# wrong: typed = dx.spec(Block, 4, "8")
# error: arg-type | - | -

# == spec with rngs (annotations: no)

later = dx.spec(Block, 4, 8)
# wrong: later = dx.spec(Block, 4, 8, rngs=dx.Rngs(0))
# error: call-arg | - | -

# == what build gives (annotations: yes)

built: Block = dx.spec(Block, 4, 8).build(rngs=dx.Rngs(0))
# wrong: built: dx.Linear = dx.spec(Block, 4, 8).build(rngs=dx.Rngs(0))
# error: assignment | assignment | reportAssignmentType

# == build with a name in the place of rngs (annotations: yes)

with_rngs = dx.spec(Block, 4, 8).build(rngs=dx.Rngs(0))
# wrong: with_rngs = dx.spec(Block, 4, 8).build(rngs="params")
# error: arg-type | arg-type | reportArgumentType

# == a spec for another class (annotations: yes)


def depth_of(spec: dx.Spec[Block]) -> int:
    return 1


depth = depth_of(dx.spec(Block, 4, 8))
# wrong: depth = depth_of(dx.spec(dx.Linear, 4, 8))
# error: arg-type | arg-type | reportArgumentType

# == a config with an unknown key (annotations: no)

config = dx.from_config(Block, {"dim": 4, "hidden": 8}, rngs=dx.Rngs(0))
# wrong: config = dx.from_config(Block, {"dim": 4, "hiden": 8}, rngs=dx.Rngs(0))
# error: call-arg | - | -

# == build without rngs (annotations: no)

seeded = dx.spec(Block, 4, 8).build(rngs=dx.Rngs(0))
# wrong: seeded = dx.spec(Block, 4, 8).build()
# error: declax-spec | - | -

# == build of a layer without rngs, after a replacement (annotations: no)

biased = dx.spec(dx.Linear, 4, 8).replace(use_bias=False).build(rngs=dx.Rngs(0))
# wrong: biased = dx.spec(dx.Linear, 4, 8).replace(use_bias=False).build()
# error: declax-spec | - | -

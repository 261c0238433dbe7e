"""Specs and configurations."""

import dataclasses
from typing import Union

import jax
import jax.numpy as jnp
import optax

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


class Open(dx.Module):
    def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
        self.linear = dx.Linear(dim, dim, rngs=rngs)


def make(dim: int, *, rngs: dx.Rngs) -> Block:
    return Block(dim, dim, rngs=rngs)


Json = Union[str, int, None, list["Json"], dict[str, "Json"]]


@dx.dataclass
class Logged(dx.Layer):
    dim: int = dx.field()
    extra: Json = dx.static(default=None)


@dataclasses.dataclass
class Run:
    model: dx.Spec[Block]
    optimizer: optax.GradientTransformation
    steps: int = 10


whole = dx.spec(Block, 4, 8)

# == spec with an argument too few (annotations: no)

spec = dx.spec(Block, 4, 8)
# wrong: spec = dx.spec(Block, 4)
# error: call-arg | - | reportCallIssue

# == spec with a misspelt argument (annotations: no)

spelt = dx.spec(Block, 4, hidden=8)
# wrong: spelt = dx.spec(Block, 4, hiden=8)
# error: call-arg | - | reportCallIssue

# == spec with an argument of another type (annotations: no)

typed = dx.spec(Block, 4, 8)
# wrong: typed = dx.spec(Block, 4, "8")
# error: arg-type | - | reportArgumentType, reportCallIssue

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

# == a spec in place of a part, and a misspelt argument (annotations: no)

nested = dx.spec(Block, 4, hidden=8, up=dx.spec(dx.Linear, 4, 8))
# wrong: nested = dx.spec(Block, 4, hiden=8, up=dx.spec(dx.Linear, 4, 8))
# error: call-arg | - | reportCallIssue

# == an argument of an inner spec (annotations: no)

inner = dx.spec(Block, 4, 8, up=dx.spec(dx.Linear, 4, 8, use_bias=False))
# wrong: inner = dx.spec(Block, 4, 8, up=dx.spec(dx.Linear, 4, 8, use_bais=False))
# error: call-arg | - | reportCallIssue

# == a spec of what requires rngs (annotations: no)

opened, made = dx.spec(Open, 4), dx.spec(make, 4)
# wrong: opened, made = dx.spec(Open, "4"), dx.spec(make, 4)
# error: arg-type | - | -

# == a Ref in place of a part (annotations: no)

referred = dx.spec(Block, 4, 8, up=dx.Ref("/up"))
# wrong: referred = dx.spec(Block, 4, "8", up=dx.Ref("/up"))
# error: arg-type | - | reportArgumentType, reportCallIssue

# == a spec with a value of a recursive alias, and a number that is text (annotations: no)

logged = dx.spec(Logged, 2, extra={"a": [1, {"b": None}]})
# wrong: logged = dx.spec(Logged, "2", extra={"a": [1, {"b": None}]})
# error: arg-type | - | reportArgumentType, reportCallIssue

# == a configuration with a value of a recursive alias, and a misspelt key (annotations: no)

read = dx.from_config(Logged, {"dim": 2, "extra": {"a": [1, ["b"]]}})
# wrong: read = dx.from_config(Logged, {"dmi": 2, "extra": {"a": [1, ["b"]]}})
# error: call-arg | - | -

# == replace with a value of a recursive alias, and a misspelt field (annotations: no)

replaced = dx.replace(Logged(2), extra=["a", 1])
# wrong: replaced = dx.replace(Logged(2), extr=["a", 1])
# error: call-arg | - | -

# == a spec as the default of a field (annotations: yes)


@dx.dataclass
class Configured(dx.Layer):
    block: dx.Spec[Block] = dx.static(default=dx.spec(Block, 4, 8))
    # wrong: block: dx.Spec[Block] = dx.static(default=dx.spec(dx.Linear, 4, 8))
    # error: arg-type | arg-type | reportAssignmentType


# == a spec as the default of a field of no status, of another class (annotations: yes)


@dx.dataclass
class Given(dx.Layer):
    block: dx.Spec[Block] = dx.field(default=dx.spec(Block, 4, 8))
    # wrong: block: dx.Spec[Block] = dx.field(default=dx.spec(dx.Linear, 4, 8))
    # error: arg-type | arg-type | reportAssignmentType


# == a spec as the default of data, of another class (annotations: yes)


@dx.dataclass
class Carried(dx.Layer):
    block: dx.Data[dx.Spec[Block]] = dx.data(default=dx.spec(Block, 4, 8))
    # wrong: block: dx.Data[dx.Spec[Block]] = dx.data(default=dx.spec(dx.Linear, 4, 8))
    # error: arg-type | arg-type | reportAssignmentType


# == a table for an optimizer of a configuration, beside a number that is text (annotations: no)

sgd = {"kind": "sgd", "learning_rate": 0.1}
run = dx.from_config(Run, {"model": {"dim": 4, "hidden": 8}, "optimizer": sgd, "steps": 3})
# wrong: run = dx.from_config(Run, {"model": {"dim": 4, "hidden": 8}, "optimizer": sgd, "steps": "3"})
# error: arg-type | - | -

# == a spec for an optimizer of a specified run (annotations: no)

specified = dx.spec(Run, dx.spec(Block, 4, 8), dx.spec(optax.sgd, 0.1), steps=3)
# wrong: specified = dx.spec(Run, dx.spec(Block, 4, 8), dx.spec(optax.sgd, 0.1), stpes=3)
# error: call-arg | - | reportCallIssue

# == a spec of another class as a part (annotations: no)

parted = dx.spec(Block, 4, 8, up=dx.spec(dx.Linear, 4, 8))
# wrong: parted = dx.spec(Block, 4, 8, up=dx.spec(dx.Embed, 4, 8))
# error: arg-type | - | -

# == a spec is called as its model (annotations: no)

outputs = whole.build(rngs=dx.Rngs(0))(jnp.ones((1, 4)))
# wrong: outputs = whole(jnp.ones((1, 4)))
# error: operator | operator | -

# == a misspelt method of a spec (annotations: no)

methodical = whole.build(rngs=dx.Rngs(0))
# wrong: methodical = whole.biuld(rngs=dx.Rngs(0))
# error: attr-defined | attr-defined | -

# == a spec that is given in place of a model (annotations: no)


def width_of(block: Block) -> int:
    return block.dim


width = width_of(whole.build(rngs=dx.Rngs(0)))
# wrong: width = width_of(whole)
# error: arg-type | arg-type | -

# == replace of a spec with a misspelt path (annotations: no)

narrower = whole.replace(hidden=4)
# wrong: narrower = whole.replace(hiden=4)
# error: declax-spec | - | -

# == replace of a spec with a value of another type (annotations: no)

biasless = whole.replace({"up.use_bias": False})
# wrong: biasless = whole.replace({"up.use_bias": "no"})
# error: declax-spec | - | -

"""Calls of modules, and methods with the names of those of Module."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp

import declax as dx

M = TypeVar("M", bound=dx.CallableModule)


class Mixer(Protocol):
    def __call__(self, x: jax.Array, /) -> jax.Array: ...


@dx.dataclass
class Scale(dx.Module):
    factor: float = dx.field()

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.factor * x


@dx.dataclass
class Table(dx.Module):
    """A module that is not called."""

    size: int = dx.field()


@dx.dataclass
class Outer(dx.Layer):
    mixer: Mixer = dx.field()
    inner: dx.CallableModule = dx.defer(Scale)(1.0)
    others: list[dx.CallableModule] = dx.field(default_factory=list[dx.CallableModule])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.others:
            x = layer(x)
        y: jax.Array = self.inner(self.mixer(x))
        return y


@dx.dataclass
class Residual(dx.Layer, Generic[M]):
    inner: M = dx.field()

    def __call__(self, x: jax.Array) -> jax.Array:
        y: jax.Array = self.inner(x)
        return x + y


@dx.dataclass
class Compiled(dx.Module):
    factor: float = dx.field()

    @dx.jit
    def __call__(self, x: jax.Array, times: int = 1) -> jax.Array:
        return self.factor * times * x


class Agent(dx.Module):
    @dx.jit
    def update(self, batch: jax.Array) -> jax.Array:
        return jnp.mean(batch)

    @dx.jit
    def train(self, batch: jax.Array, steps: int = 1) -> jax.Array:
        return self.update(batch) / steps

    @dx.jit(static_argnames=("greedy",))
    def eval(self, batch: jax.Array, *, greedy: bool) -> jax.Array:
        return -batch if greedy else batch


class Sampler(dx.Module):
    def perturb(self, x: jax.Array, scale: float = 0.1) -> jax.Array:
        return x + scale

    def sow(self, field: jax.Array) -> None:
        del field

    def iter_modules(self, depth: int) -> list[int]:
        return [depth]

    def iter_children(self) -> list[str]:
        return []

    def set_attributes(self, attributes: dict[str, int]) -> int:
        return len(attributes)


def mean_of(model: dx.CallableModule, x: jax.Array) -> jax.Array:
    model.eval()
    return jnp.mean(model(x))


def applied(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    return function(x)


inputs = jnp.ones((2, 3))
layer = dx.Linear(3, 3, rngs=dx.Rngs(0))

# == a module without a call is called (annotations: yes)

scaled = Scale(2.0)(inputs)
# wrong: scaled = Table(2)(inputs)
# error: operator | operator | reportCallIssue

# == a module without a call for a callable Protocol (annotations: yes)

outer = Outer(Scale(2.0))
# wrong: outer = Outer(Table(2))
# error: arg-type | arg-type | reportArgumentType

# == a module without a call as a function (annotations: yes)

result = applied(Scale(2.0), inputs)
# wrong: result = applied(Table(2), inputs)
# error: arg-type | arg-type | reportArgumentType

# == a Module is called that is no subclass (annotations: yes)

linear = layer(inputs)
# wrong: linear = dx.Module()(inputs)
# error: operator | operator | reportCallIssue

# == a misspelt call (annotations: yes)


class Shift(dx.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        # wrong(+2): def __cal__(self, x: jax.Array) -> jax.Array:
        # error: arg-type | arg-type | reportArgumentType
        return x + 1.0


shifted = Outer(Shift())

# == the argument of a jitted call (annotations: yes)


compiled = Compiled(2.0)(inputs, times=3)
# wrong: compiled = Compiled(2.0)("inputs", times=3)
# error: arg-type | arg-type | reportArgumentType

# == a module with a jitted call is callable (annotations: yes)

compiled_mean = mean_of(Compiled(2.0), inputs)
# wrong: compiled_mean = mean_of(Compiled, inputs)
# error: arg-type | arg-type | reportArgumentType

# == a module without a call where a callable one is needed (annotations: yes)

mean = mean_of(Scale(2.0), inputs)
# wrong: mean = mean_of(Table(2), inputs)
# error: arg-type | arg-type | reportArgumentType

# == a function where a callable module is needed (annotations: yes)

mean_of_layer = mean_of(layer, inputs)
# wrong: mean_of_layer = mean_of(jnp.sin, inputs)
# error: arg-type | arg-type | reportArgumentType

# == a field of callable modules (annotations: yes)

several = Outer(Scale(2.0), others=[Scale(1.0), layer])
# wrong: several = Outer(Scale(2.0), others=[Scale(1.0), Table(2)])
# error: list-item | list-item | reportArgumentType

# == the gradient of a loss for any callable module (annotations: yes)

grads: dx.State[dx.CallableModule] = dx.grad(mean_of)(layer, inputs)
# wrong: grads: dx.State[dx.Linear] = dx.grad(mean_of)(layer, inputs)
# error: assignment | assignment | reportAssignmentType

# == a generic class of callable modules (annotations: yes)

factor: float = Residual(Scale(2.0)).inner.factor
# wrong: factor: float = Residual(Table(2)).inner.size
# error: type-var | type-var | reportArgumentType

# == split as a method of attention (annotations: yes)


@dx.dataclass
class Heads(dx.Module):
    count: int = dx.field()

    def split(self, x: jax.Array, heads: int) -> jax.Array:
        return x.reshape(*x.shape[:-1], heads, -1)


heads = Heads(3).split(inputs, 3)
# wrong: heads = Heads(3).split(inputs, "3")
# error: arg-type | arg-type | reportArgumentType

# == get_state as a method of a cell (annotations: yes)


class Cell(dx.Module):
    def get_state(self, batch: int) -> tuple[int, jax.Array]:
        return batch, jnp.zeros((batch, 2))


_, zeros = Cell().get_state(4)
# wrong: _, zeros = Cell().get_state(dx.Param)
# error: arg-type | arg-type | reportArgumentType

# == update as a jitted method of an agent (annotations: yes)


loss = Agent().update(inputs)
# wrong: loss = Agent().update()
# error: call-arg | call-arg | reportCallIssue

# == train as a jitted method of an agent (annotations: yes)

trained: jax.Array = Agent().train(inputs, 2)
# wrong: trained: str = Agent().train(inputs, 2)
# error: assignment | assignment | reportAssignmentType

# == eval as a jitted method of an agent (annotations: yes)

evaluated = Agent().eval(inputs, greedy=True)
# wrong: evaluated = Agent().eval(inputs, gredy=True)
# error: call-arg | call-arg | reportCallIssue

# == perturb as a method of a sampler (annotations: yes)


perturbed = Sampler().perturb(inputs, 0.2)
# wrong: perturbed = Sampler().perturb("x", inputs)
# error: arg-type | arg-type | reportArgumentType

# == sow as a method of a simulation (annotations: yes)

Sampler().sow(inputs)
# wrong: Sampler().sow(dx.Intermediate, "inputs", inputs)
# error: arg-type, call-arg | arg-type, call-arg | reportCallIssue

# == iter_modules, iter_children and set_attributes as methods (annotations: yes)

depths: list[int] = Sampler().iter_modules(3)
# wrong: depths: list[str] = Sampler().iter_modules(3)
# error: assignment | assignment | reportAssignmentType

# == a method that adds to one of Module (annotations: yes)


class Announcing(dx.Module):
    def train(self, **attributes: Any) -> None:
        super().train(**attributes)
        # wrong: super().train(attributes)
        # error: call-arg | call-arg | reportCallIssue


# == parts, fields and flags with the names of methods (annotations: yes)


@dx.dataclass
class Automaton(dx.Layer):
    width: int = dx.field()
    train: bool = dx.field(default=False)
    perceive: dx.Linear = dx.Linear(width, width)
    update: dx.Linear = dx.Linear(width, width)
    split: int = width // 2

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.update(self.perceive(x)) if self.train else x


state: dx.Linear = Automaton(4, rngs=dx.Rngs(0)).update
# wrong: state: dx.LayerNorm = Automaton(4, rngs=dx.Rngs(0)).update
# error: assignment | assignment | reportAssignmentType

# == an attribute with the name of a method (annotations: yes)


class Updating(dx.Module):
    update: dx.Linear

    def __init__(self, rngs: dx.Rngs) -> None:
        self.update = dx.Linear(3, 3, rngs=rngs)
        # wrong: self.update = dx.LayerNorm(3, rngs=rngs)
        # error: assignment | assignment | reportAttributeAccessIssue

    @classmethod
    def split(cls, rngs: dx.Rngs) -> tuple[Self, Self]:
        return cls(rngs), cls(rngs)


first, second = Updating.split(dx.Rngs(0))

# == the States of split are of its module (annotations: yes)

graphdef, params, rest = Scale(2.0).split(dx.Param, ...)
model: Scale = graphdef.merge(params, rest)
# wrong: model: Table = graphdef.merge(params, rest)
# error: assignment | assignment | reportAssignmentType

# == a filter of split that is none (annotations: yes)

definition, everything = Scale(2.0).split(...)
# wrong: definition, everything = Scale(2.0).split(3)
# error: call-overload | call-overload | reportArgumentType, reportCallIssue

# == an argument of sow is missing (annotations: yes)


class Recording(dx.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        self.sow(dx.Intermediate, "inputs", x)
        # wrong: self.sow(dx.Intermediate, x)
        # error: arg-type, call-arg | arg-type, call-arg | reportCallIssue
        return self.perturb("change", x)

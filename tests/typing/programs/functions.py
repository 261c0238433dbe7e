"""Parts that are functions."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

import declax as dx


def halved(x: jax.Array) -> jax.Array:
    return x / 2


def doubled(x: jax.Array, times: int = 1) -> jax.Array:
    return x * (1 + times)


def function_of(name: str) -> Callable[[jax.Array], jax.Array]:
    return halved if name == "halved" else doubled


def period_of(function: Callable[[jax.Array], jax.Array]) -> float:
    return float(function(jnp.float32(0.0)))


@dx.dataclass
class Wave(dx.Layer):
    name: str = dx.field()
    is_halved: bool = dx.field(default=True)
    function = dx.defer(function_of)(name)
    outer = dx.when(is_halved, halved, doubled)
    inner = dx.when(is_halved, function)
    period = dx.defer(period_of)(function)

    @dx.submodule
    def made(self) -> Callable[[jax.Array], jax.Array]:
        return function_of(self.name)


def waved(wave: Wave, x: jax.Array) -> jax.Array:
    return wave.made(wave.outer(wave.function(x)))


wave, inputs = Wave("halved"), jnp.ones(3)

# == a deferred function that makes a function, with an argument of the wrong type (annotations: yes)

result = wave.function(inputs)
# wrong: result = wave.function("inputs")
# error: arg-type | call-arg, misc | reportArgumentType

# == the result of a part that is a function (annotations: yes)

number: jax.Array = wave.function(inputs)
# wrong: number: str = wave.function(inputs)
# error: assignment | assignment, call-arg, misc | reportAssignmentType

# == one of two functions, without an argument (annotations: yes)

outer = wave.outer(inputs)
# wrong: outer = wave.outer()
# error: call-arg | call-arg | reportCallIssue

# == a function or None (annotations: yes)

inner = waved(wave, inputs) if wave.inner is None else wave.inner(inputs)
# wrong: inner = waved(wave, inputs) if wave.inner is None else wave.inner(3)
# error: arg-type | arg-type | reportArgumentType

# == a function that a method makes, with an argument too many (annotations: yes)

made = wave.made(inputs)
# wrong: made = wave.made(wave, inputs)
# error: arg-type, call-arg | arg-type, call-arg | reportCallIssue

# == a function in a class body as the argument of another (annotations: yes)


@dx.dataclass
class Periodic(dx.Layer):
    name: str = dx.field()
    function = dx.defer(function_of)(name)
    period = dx.defer(period_of)(function)
    # wrong: period = dx.defer(period_of)(name)
    # error: arg-type | arg-type | reportArgumentType


# == a function of type variables (annotations: yes)


@dx.dataclass
class Largest(dx.Layer):
    width: int = dx.field()
    layer: dx.Linear = dx.Linear(width, dx.defer(max)(width, 4))
    # wrong: layer: dx.Linear = dx.Linear(width, dx.defer(max)(width, 4), use_bais=False)
    # error: call-arg | call-arg | reportCallIssue

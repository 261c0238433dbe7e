from pathlib import Path

from plugin_cases import assert_as_marked, check

MODELS = """
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from typing_extensions import Self

import declax as dx

M = TypeVar("M", bound=dx.Module)
T = TypeVar("T")


@dx.dataclass
class Base(dx.Layer):
    width: int = dx.field()
    linear: dx.Linear = dx.Linear(width, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear(x)

    @dx.grad
    def slope(self, x: jax.Array) -> jax.Array:
        return jnp.sum(self(x))

    @dx.value_and_grad(has_aux=True)
    def both(self, x: jax.Array) -> tuple[jax.Array, int]:
        return jnp.sum(self(x)), 3

    @dx.jit
    @dx.grad
    def jitted(self, x: jax.Array) -> jax.Array:
        return jnp.sum(self(x))

    @dx.grad
    def of_self(self: Self, x: jax.Array) -> jax.Array:
        return jnp.sum(self(x))

    @dx.grad
    def over(self, x: jax.Array) -> jax.Array:
        return jnp.sum(self(x))

    @staticmethod
    @dx.grad
    def static(x: jax.Array) -> jax.Array:
        return jnp.sum(x)



@dx.dataclass
class Sub(Base):
    more: int = 2

    @dx.grad
    def over(self, x: jax.Array) -> jax.Array:
        return jnp.sum(self(x))



@dx.dataclass
class Box(dx.Module, Generic[T]):
    inner: T

    @dx.grad
    def slope(self, x: jax.Array) -> jax.Array:
        return jnp.sum(x)


def loss(model: M, x: jax.Array, options: dict[str, Any]) -> jax.Array:
    return x


def aux(model: M, x: jax.Array) -> tuple[jax.Array, list[int]]:
    return x, [1]
"""

RIGHT = """
from collections.abc import Callable
from typing import Any, Generic

import jax
import jax.numpy as jnp
from typing_extensions import assert_type

import declax as dx
from models import Base, Box, M, Sub, aux, loss

base, sub = Base(2, rngs=dx.Rngs(0)), Sub(2, rngs=dx.Rngs(0))
x = jnp.ones(2)


@dx.grad
def decorated(model: M, x: jax.Array) -> jax.Array:
    return x


@dx.value_and_grad(argnums=0)
def by_options(model: M, *, x: jax.Array) -> jax.Array:
    return x


assert_type(dx.grad(loss)(sub, x, {}), dx.State[Sub])
assert_type(dx.value_and_grad(loss)(sub, x, {}), tuple[jax.Array, dx.State[Sub]])
assert_type(dx.grad(aux, has_aux=True)(sub, x), tuple[dx.State[Sub], list[int]])
assert_type(dx.value_and_grad(aux, has_aux=True)(sub, x), tuple[tuple[jax.Array, list[int]], dx.State[Sub]])
assert_type(dx.jit(dx.grad(loss))(sub, x, {}), dx.State[Sub])
assert_type(dx.vmap(dx.grad(loss), in_axes=(None, 0, None))(sub, x, {}), dx.State[Sub])
assert_type(decorated(sub, x), dx.State[Sub])
assert_type(by_options(base, x=x), tuple[jax.Array, dx.State[Base]])

assert_type(base.slope(x), dx.State[Base])
assert_type(sub.jitted(x), dx.State[Base])
assert_type(sub.of_self(x), dx.State[Sub])
assert_type(sub.over(x), dx.State[Sub])
assert_type(sub.static(x), jax.Array)
assert_type(Box(3).slope(x), dx.State[Box[int]])
of_base: Callable[[Base, jax.Array], dx.State[Base]] = dx.grad(Sub.__call__)

assert_type(dx.grad(lambda model, x: jnp.sum(model(x)))(sub, x), dx.State[Sub])
assert_type(dx.grad(lambda model: jnp.sum(model(x)), argnums=0)(model := sub), dx.State[Sub])
assert_type(dx.grad(lambda x: 3 * x)(jnp.ones(2)), jax.Array)
assert_type(dx.grad(lambda x: 3 * x)(2.0), jax.Array)
assert_type(dx.grad(lambda model: 3 * model)(dx.state(sub)), dx.State[Sub])
assert_type(dx.value_and_grad(lambda model: model(x))(sub), tuple[jax.Array, dx.State[Sub]])
assert_type(dx.value_and_grad(lambda model: model.unknown())(sub), tuple[jax.Array, dx.State[Sub]])
assert_type(dx.grad(lambda model: (model(x), 3), has_aux=True)(sub), tuple[dx.State[Sub], Any])
assert_type(
    dx.value_and_grad(lambda model: (model(x), 3), has_aux=True)(sub),
    tuple[tuple[jax.Array, Any], dx.State[Sub]],
)
assert_type(dx.grad(lambda a, model: a * model(x), argnums=1)(x, base), dx.State[Base])
assert_type(dx.grad(lambda a, model: a * model(x), argnums=(0, 1))(x, base), tuple[jax.Array, dx.State[Base]])
assert_type(dx.grad(lambda models: models[0](x))([base]), list[dx.State[Base]])
assert_type(dx.jit(dx.grad(lambda model: model(x)))(base), Any)
assert_type(dx.grad(lambda *given: (given[0](x), given), has_aux=True)(sub, 3), tuple[dx.State[Sub], Any])
kept: Callable[[Base, jax.Array], dx.State[Base]] = dx.grad(lambda model, x: model(x))
kept = decorated


def value_alone(model: Base) -> jax.Array:
    value, grads = dx.value_and_grad(lambda model: jnp.sum(model(x)))(model)
    return value


def of_flags(has_aux: bool, number: int, options: dict[str, Any]) -> None:
    assert_type(dx.grad(lambda model: model(x), has_aux=has_aux)(base), Any)
    assert_type(dx.grad(lambda model: model(x), argnums=number)(base), Any)


def generic(model: M) -> dx.State[M]:
    return dx.grad(loss)(model, x, {})


def of_lambda(model: M) -> dx.State[M]:
    return dx.grad(lambda m: m(x))(model)


class Trainer(Generic[M]):
    def __init__(self, model: M) -> None:
        self.model = model
        self.slope = dx.grad(lambda model: model(x))

    def step(self) -> dx.State[M]:
        self.slope(self.model)
        return dx.grad(lambda model: model(x))(self.model)
"""

WRONG = """
import functools

import jax
import jax.numpy as jnp
import optax

import declax as dx
from models import Base, aux, loss

base, other = Base(2, rngs=dx.Rngs(0)), dx.Linear(2, 2, rngs=dx.Rngs(0))
x = jnp.ones(2)
optimizer = dx.Optimizer(base, optax.sgd(0.1))
optimizer.update(base, dx.grad(lambda model: model(x))(other))  # E: arg-type | State[Linear]
optimizer.update(base, dx.grad(loss)(other, x, {}))  # E: arg-type | expected "Base"
dx.grad(lambda model: model(x))(base).lineaar  # E: declax-path | did you mean 'linear'?
dx.grad(loss)(base, x, {}).lineaar  # E: declax-path | did you mean 'linear'?
dx.grad(loss)(base, x)  # E: call-arg
base.slope(x).lineaar  # E: declax-path | did you mean 'linear'?


def pair(model: Base, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return model(x), x


def many(model: Base, x: jax.Array) -> tuple[jax.Array, jax.Array, int]:
    return model(x), x, 3


grads = dx.grad(pair)(base, x)  # E: type-var | Value of type variable "F" of "grad" cannot be "Callable[[Base, Ar
value, _ = dx.value_and_grad(pair)(base, x)  # E: type-var | Value of type variable "F" of "value_and_grad" cannot
said = dx.grad(pair, has_aux=False)(base, x)  # E: type-var | Value of type variable "F" of "grad" cannot be "Call
three = dx.grad(many)(base, x)  # E: type-var | Value of type variable "F" of "grad" cannot be "Callable[[Base, Ar


@dx.grad  # E: type-var | Value of type variable "F" of "grad" cannot be "Callable[[Base, Array], tuple[Array, Arr
def decorated(model: Base, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return model(x), x


@dx.value_and_grad(argnums=0)  # E: type-var | Value of type variable "F" of "__call__" of "OfValueAndGrad" cannot
def by_options(model: Base, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return model(x), x
"""


ARGNUMS = """
import functools
from typing import Any

import jax
import jax.numpy as jnp
from typing_extensions import assert_type

import declax as dx
from models import Base, M

base, linear = Base(2, rngs=dx.Rngs(0)), dx.Linear(2, 2, rngs=dx.Rngs(0))
x = jnp.ones(2)


def three(a: Base, b: dx.Linear, x: jax.Array) -> jax.Array:
    return a(x) + b(x)


def with_aux(a: Base, b: dx.Linear) -> tuple[jax.Array, int]:
    return a(x), 3


def nested(parts: dict[str, jax.Array], models: list[Base], pair: tuple[Base, float], last: Base | None) -> jax.Array:
    return x


def unknown(given: Any, other: set[Base]) -> jax.Array:
    return x


def same(a: M, b: M, options: dict[str, Any]) -> jax.Array:
    return x


class Trainer(dx.Module):
    @dx.jit
    @dx.value_and_grad(argnums=1)
    def second(self, model: Base) -> jax.Array:
        return model(x)

    @dx.grad(argnums=(0, 1), has_aux=True)
    def both(self, model: Base) -> tuple[jax.Array, str]:
        return model(x), "both"


@dx.value_and_grad(argnums=dx.DiffState(1, dx.Param))
def decorated(a: Base, b: dx.Linear) -> jax.Array:
    return a(x)


SBase = dx.State[Base]
SLinear = dx.State[dx.Linear]
assert_type(dx.grad(three, argnums=(0, 1, 2))(base, linear, x), tuple[SBase, SLinear, jax.Array])
assert_type(dx.grad(three, argnums=[1])(base, linear, x), tuple[SLinear])
assert_type(dx.grad(three, argnums=(1, 0))(base, linear, x), tuple[SLinear, SBase])
assert_type(dx.value_and_grad(three, argnums=2)(base, linear, x), tuple[jax.Array, jax.Array])
assert_type(dx.grad(three, argnums=dx.DiffState(1, dx.Param))(base, linear, x), SLinear)
assert_type(dx.grad(three, argnums=(dx.DiffState(filter=..., argnum=1), 0))(base, linear, x), tuple[SLinear, SBase])
assert_type(dx.grad(three, graph_updates=False)(base, linear, x), Base)
assert_type(dx.grad(three, argnums=(0, dx.DiffState(1)), graph=False)(base, linear, x), tuple[Base, SLinear])
assert_type(dx.grad(with_aux, argnums=1, has_aux=True)(base, linear), tuple[SLinear, int])
assert_type(
    dx.value_and_grad(with_aux, argnums=(0, 1), has_aux=True)(base, linear),
    tuple[tuple[jax.Array, int], tuple[SBase, SLinear]],
)
assert_type(
    dx.grad(nested, argnums=(0, 1, 2, 3))({}, [base], (base, 2.0), None),
    tuple[dict[str, jax.Array], list[SBase], tuple[SBase, jax.Array], SBase | None],
)
assert_type(dx.grad(unknown)(base, set()), Any)
assert_type(dx.grad(unknown, argnums=1)(base, set()), Any)
assert_type(dx.grad(three, argnums=3)(base, linear, x), Any)  # E: declax-argnames | no positional parameter 3
assert_type(dx.grad(three, argnums=-1)(base, linear, x), Any)
assert_type(dx.grad(same, argnums=1)(base, base, {}), SBase)
assert_type(dx.grad(functools.partial(three, base))(linear, x), SLinear)
assert_type(dx.grad(base.linear)(x), jax.Array)
assert_type(Trainer().second(base), tuple[jax.Array, SBase])
assert_type(Trainer().both(base), tuple[tuple[dx.State[Trainer], SBase], str])
assert_type(decorated(base, linear), tuple[jax.Array, SLinear])
assert_type(dx.value_and_grad(argnums=1)(three)(base, linear, x), tuple[jax.Array, SLinear])
slope = dx.grad(lambda model: model(x))
assert_type(slope(base), SBase)
dx.grad(three, argnums=1)(base, linear, x).kernle  # E: declax-path | did you mean 'kernel'?
dx.grad(three, argnums=1)(linear, base, x)  # E: arg-type
"""


def test_gradients_of_several_arguments(tmp_path: Path) -> None:
    files = {"models.py": MODELS, "argnums.py": ARGNUMS}
    assert_as_marked(files, check(tmp_path, files))


def test_gradients(tmp_path: Path) -> None:
    files = {"models.py": MODELS, "right.py": RIGHT, "wrong.py": WRONG}
    assert_as_marked(files, check(tmp_path, files))

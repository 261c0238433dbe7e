from pathlib import Path

from plugin_cases import assert_as_marked, check

MODELS = """
import jax

import declax as dx


@dx.dataclass
class Model(dx.Layer):
    width: int = dx.field()
    linear: dx.Linear = dx.Linear(width, width)
    scale: dx.Param[jax.Array] = dx.variable((width,), initializer=dx.initializers.ones)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear(x)


def forward(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


def choose(x: jax.Array, mode: str) -> jax.Array:
    return x


def shift(model: Model, x: jax.Array, by: float = 0.0) -> tuple[jax.Array, jax.Array]:
    return model(x), x + by


def total(*parts: jax.Array, start: int = 0, **more: jax.Array) -> jax.Array:
    return parts[0]
"""

OPENING = """
import functools

import jax
import jax.numpy as jnp

import declax as dx
from models import Model, choose, forward, shift, total

model = Model(2, rngs=dx.Rngs(0))
"""

WRONG_AXES = (
    OPENING
    + """
few = dx.vmap(forward, in_axes=(None,))  # E: declax-axes | vmap(forward, in_axes=...): 1 entries for 2 parameters
many = dx.vmap(forward, in_axes=(None, 0, 0))  # E: declax-axes | fix: in_axes=(None, 0)
listed = dx.vmap(forward, in_axes=[0])  # E: declax-axes | vmap(forward, in_axes=...): 1 entries for 2 parameters
optional = dx.vmap(shift, in_axes=(None,))  # E: declax-axes | vmap(shift, in_axes=...): 1 entries for 2 to 3 para
least = dx.vmap(total, in_axes=(0, 0))(jnp.ones(2), jnp.ones(2))
out_many = dx.vmap(shift, in_axes=(None, 0), out_axes=(0, 0, 0))  # E: declax-axes | vmap(shift, out_axes=...): 3
out_tuple = dx.vmap(forward, in_axes=(None, 0), out_axes=(0, 1))  # E: declax-axes | vmap(forward, out_axes=...):
module = dx.vmap(model, in_axes=(0, 0))  # E: declax-axes | vmap(model, in_axes=...): 2 entries for 1 parameters w
anonymous = dx.vmap(lambda x, y: x + y, in_axes=(0,))  # E: declax-axes | vmap(the function, in_axes=...): 1 entri
axes = (0, 0, 0)
named = dx.vmap(forward, in_axes=axes)  # E: declax-axes | 3 entries
mapped = dx.pmap(forward, in_axes=(0,))  # E: declax-axes | pmap(forward, in_axes=...)
behind = dx.vmap(dx.jit(forward), in_axes=(0,))  # E: declax-axes | vmap(the function, in_axes=...): 1 entries for
scanned = dx.scan(shift, in_axes=(None, dx.Carry, 0, 0))  # E: declax-axes | 4 entries for 2 to 3


@dx.vmap(in_axes=(None, 0, 0))  # E: declax-axes | vmap(below, in_axes=...): 3 entries
def below(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


@functools.partial(dx.vmap, in_axes=(None, 0, 0))
def by_partial(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


@dx.jit
@dx.vmap(in_axes=(0,))  # E: declax-axes | vmap(two
def two(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


@dx.vmap(in_axes=(0,))  # E: declax-axes | vmap(two_above
@dx.remat()
def two_above(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


class Mapped(Model):
    @dx.vmap(in_axes=(0,))  # E: declax-axes | parameters with a position (self, x)
    def method(self, x: jax.Array) -> jax.Array:
        return x


@dx.scan()
def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return carry, x


def outer() -> None:
    if model.width:

        @dx.vmap(in_axes=(0, 0))  # E: declax-axes | vmap(inner
        def inner(x: jax.Array) -> jax.Array:
            return x

        inner(jnp.ones(2))
"""
)

RIGHT_AXES = (
    OPENING
    + """
import numpy as np
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
ones = jnp.ones((3, 2))
AXES = (0,)


def unknown() -> Any:
    return (None, 0)


def pair(parts: tuple[jax.Array, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    return {"x": x}


def keywords(model: Model, *, x: jax.Array) -> jax.Array:
    return model(x)


def untyped(model, x):  # type: ignore[no-untyped-def]  # that is its point
    return model(x)


a = dx.vmap(forward, in_axes=(None, 0))(model, ones)
b = dx.vmap(forward, in_axes=[None, -1], out_axes=1)(model, x=ones)
c = dx.vmap(forward, in_axes=(dx.StateAxes({dx.Param: 0, ...: None}), None))(model, ones)
d = dx.vmap(shift, in_axes=(None, 0), out_axes=(0, 0))(model, ones)
e = dx.vmap(shift, in_axes=(None, 0, None), out_axes=[0, 0])(model, ones, 2.0)
f = dx.vmap(total, in_axes=(0, 0, 0))(ones, ones, ones)
g = dx.vmap(pair, in_axes=((0, None), 0), out_axes={"x": 0})((ones, ones), ones)
h = dx.vmap(forward, in_axes=(*AXES, 0))(model, ones)
i = dx.vmap(forward, in_axes=unknown())(model, ones)
j = dx.vmap(forward, in_axes=None, axis_size=3)(model, ones)
k = dx.vmap(keywords, in_axes=None)(model, x=ones)
l = dx.vmap(keywords, in_axes=(None,))(model, x=ones)
m = dx.vmap(untyped, in_axes=(None, 0))(model, ones)
n = dx.vmap(lambda x: x, in_axes=(0,))(ones)
o = dx.vmap(jnp.add, in_axes=(0, None))(ones, ones)
p = dx.vmap(model, in_axes=(0,))(ones)
q = dx.vmap(functools.partial(forward, model), in_axes=(0,))(ones)
r = dx.vmap(np.sum, in_axes=(0,))
s = dx.scan(shift, in_axes=(None, dx.Carry), out_axes=(dx.Carry, 0))
u = dx.vmap(Model.__call__, in_axes=(None, 0))(model, ones)


def logged(function: Callable[P, R]) -> Callable[P, R]:
    return function


def without_first(function: Callable[..., jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return functools.partial(function, model)


@dx.vmap(in_axes=(0,))
@without_first
def reduced(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


@logged
@dx.vmap(in_axes=(None, 0), out_axes=0)
def kept(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


@functools.partial(dx.vmap, in_axes=(None, 0))
def partially(model: Model, x: jax.Array) -> jax.Array:
    return model(x)


def applied(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return dx.vmap(function, in_axes=(0, 0, 0))(*args, **kwargs)


result: jax.Array = partially(model, ones)
partial: functools.partial[int] = functools.partial(int, "3")
"""
)

WRONG_NAMES = (
    OPENING
    + """
name = dx.jit(choose, static_argnames="mod")  # E: declax-argnames | no parameter 'mod'; did you mean 'mode'?
names = dx.jit(choose, static_argnames=("mode", "modes"))  # E: declax-argnames | its parameters are x, mode
number = dx.jit(choose, static_argnums=2)  # E: declax-argnames | no positional parameter 2
negative = dx.jit(choose, donate_argnums=-3)  # E: declax-argnames | no positional parameter -3
donated = dx.jit(forward, donate_argnames="y")  # E: declax-argnames | jit(forward, donate_argnames=...)
unhashable = dx.jit(choose, static_argnums=(0, 1))  # E: declax-argnames | jit(choose, static_argnums=...): x: jax
static_model = dx.jit(forward, static_argnums=0)  # E: declax-argnames | jit(forward, static_argnums=...): model:
again = dx.remat(choose, static_argnames=["moed"])  # E: declax-argnames | did you mean 'mode'?
on_devices = dx.pmap(forward, static_broadcasted_argnums=2)  # E: declax-argnames | pmap(forward
gradient = dx.grad(choose, argnums=2)  # E: declax-argnames | grad(choose, argnums=...)
of_text = dx.grad(choose, argnums=1)  # E: declax-argnames | mode: str has no gradient
part = dx.value_and_grad(forward, argnums=(0, dx.DiffState(3, dx.Param)))  # E: declax-argnames | parameter 3
rules = dx.custom_vjp(choose, nondiff_argnums=(2,))  # E: declax-argnames | custom_vjp(choose
partial = dx.jit_partial(forward, model, static_argnames="z")  # E: declax-argnames | jit_partial(forward
above = dx.jit(dx.vmap(forward, in_axes=(None, 0)), static_argnames="mode")  # E: declax-argnames | 'mode'


@dx.jit(static_argnames=("trainig",))  # E: declax-argnames | did you mean 'training'?
def classify(model: Model, x: jax.Array, training: bool) -> jax.Array:
    return model(x)


@functools.partial(dx.jit, static_argnames=("mod",))
def by_partial(x: jax.Array, mode: str) -> jax.Array:
    return x


by_partial(jnp.ones(2), 3)


class Stepping(Model):
    @dx.jit(static_argnames=("trainig",))  # E: declax-argnames | jit(step, static_argnames=...)
    def step(self, x: jax.Array, training: bool) -> jax.Array:
        return x
"""
)

RIGHT_NAMES = (
    OPENING
    + """
from collections.abc import Callable
from typing import Any

ones = jnp.ones((3, 2))


def static(x: jax.Array, size: tuple[int, ...], *, mode: str = "a", **options: int) -> jax.Array:
    return x


def optional(x: jax.Array | None, layer: dx.Module) -> jax.Array:
    return jnp.ones(3)


a = dx.jit(choose, static_argnames="mode", static_argnums=1)(ones, "a")
b = dx.jit(static, static_argnames=("mode", "size", "other"), donate_argnums=0)(ones, (1,), other=2)
c = dx.jit(total, static_argnames="start", donate_argnums=(0, 1, 5))(ones, start=1)
d = dx.jit(forward, donate_argnames=("model", "x"), donate_argnums=-1)(model, ones)
e = dx.jit(optional, static_argnums=(0, 1))
f = dx.grad(lambda model, x: model(x).sum(), argnums=(0, -1))
g = dx.value_and_grad(forward, argnums=dx.DiffState(1, dx.Param))
h = dx.jit_partial(choose, ones, static_argnames="mode")
j = dx.custom_vjp(choose, nondiff_argnums=1)
k = dx.pmap(choose, static_broadcasted_argnums=1)
l = dx.jit(jnp.sum, static_argnames=("axis",))


def of_any(function: Callable[..., jax.Array], anything: Any, names: tuple[str, ...]) -> None:
    dx.jit(function, static_argnames="whatever", static_argnums=7)
    dx.jit(anything, static_argnames="whatever")
    dx.jit(choose, static_argnames=names)


@dx.jit(static_argnames="mode")
@dx.vmap(in_axes=(0, None))
def both(x: jax.Array, mode: str) -> jax.Array:
    return x


@functools.partial(dx.jit, static_argnames="mode")
def by_partial(x: jax.Array, mode: str) -> jax.Array:
    return x


result: jax.Array = by_partial(ones, mode="a")
"""
)


def test_transforms(tmp_path: Path) -> None:
    files = {"models.py": MODELS, "wrong_axes.py": WRONG_AXES, "wrong_names.py": WRONG_NAMES}
    files |= {"right_axes.py": RIGHT_AXES, "right_names.py": RIGHT_NAMES}
    assert_as_marked(files, check(tmp_path, files))

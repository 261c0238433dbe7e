"""Models in closures and partials that are attributes are refused."""

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import pytest

import declax as dx
from declax.errors import StatusError


class Open(dx.Module):
    def __init__(self, f):
        self.f = f


@dx.dataclass
class Declared(dx.Module):
    f: Callable[[Any], Any]


def of_a_variable():
    scale = dx.Param(2.0)
    return lambda x: x * scale


def with_default():
    return lambda x, layer=dx.Linear(2, 2, rngs=dx.Rngs(0)): layer(x)  # noqa: B008


def with_named_default():
    return lambda x, *, layers=(dx.Param(2.0),): layers[0] * x  # noqa: B008


HIDDEN = {
    "closure over a Variable": of_a_variable,
    "closure over a closure": lambda: functools.partial(map, of_a_variable()),
    "partial of a layer": lambda: functools.partial(map, dx.Linear(2, 2, rngs=dx.Rngs(0))),
    "partial": lambda: functools.partial(pow, dx.Param(2.0)),
    "keyword of a partial": lambda: functools.partial(max, key=dx.Linear(2, 2, rngs=dx.Rngs(0))),
    "function of JAX": lambda: jax.checkpoint(of_a_variable()),
    "list in a partial": lambda: functools.partial(map, [dx.Linear(2, 2, rngs=dx.Rngs(0))]),
    "partial in a list": lambda: [functools.partial(map, dx.Linear(2, 2, rngs=dx.Rngs(0)))],
    "closure in a dict": lambda: {"a": (of_a_variable(),)},
    "default": with_default,
    "default by name": with_named_default,
    "compiled closure": lambda: dx.jit(of_a_variable()),
    "compiled closure of JAX": lambda: jax.jit(of_a_variable()),
    "differentiated closure in a list": lambda: [dx.grad(dx.remat(of_a_variable()))],
}


@pytest.mark.parametrize("cls", [Open, Declared])
@pytest.mark.parametrize("make", HIDDEN.values(), ids=list(HIDDEN))
def test_hidden_models_are_refused(cls, make):
    with pytest.raises(StatusError, match=rf"{cls.__name__}.f: .* hides a model in a static attribute"):
        cls(make())


def test_also_where_the_attribute_has_a_status():
    model = Open(None)
    with pytest.raises(StatusError, match="hides a model"):
        model.f = of_a_variable()
    assert model.f is None


def test_a_circle_of_functions():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert Open(even).f is even


class Own(dx.Module):
    """Functions may know the object whose attribute they are, and its children."""

    def __init__(self):
        self.scale = dx.Param(2.0)
        self.layers = dx.List([dx.Linear(2, 2, rngs=dx.Rngs(0))])
        self.apply = dx.cached_partial(dx.jit(lambda layer, scale, x: layer(x) * scale), self.layers[0], self.scale)
        self.twice = lambda x: self.double(x) + x
        self.double_of = functools.partial(self.double)

        self.inner = dx.Sequential(lambda x: self.double(x) * x)

    def double(self, x):
        return x * self.scale


def with_own_default(size):
    def draw(shape=(size,), rngs=dx.Rngs(0)):  # noqa: B008
        return rngs.normal(shape)

    return draw


@pytest.mark.parametrize(
    "make",
    [Own, lambda: Open(jax.nn.relu), lambda: Open(functools.partial(jax.nn.gelu, approximate=False))]
    + [lambda: Open(functools.partial(dx.dot_product_attention_with_rope, rope=dx.RoPE()))]
    + [lambda: Open(dx.remat(dx.Linear(2, 2, rngs=dx.Rngs(0))))]
    + [lambda: Open([dx.jit(jax.nn.relu), {"a": lambda x, y=2.0: x * y}]), lambda: Open(functools.lru_cache(len))]
    + [lambda: Open(dx.Sequential(jax.nn.relu).__call__), lambda: Open(with_own_default(2))],
)
def test_other_functions_are_not_refused(make):
    assert isinstance(make(), dx.Module)


# ---- parts that a class body makes by calls


class Plain:
    def __init__(self, held: object) -> None:
        self.held = held


def closure_over(layer):
    return lambda x: layer(x) + 1


@pytest.mark.parametrize(
    ("function", "holder"),
    [
        (lambda layer: types.SimpleNamespace(layer=layer), "a SimpleNamespace"),
        (Plain, "a Plain"),
        (lambda layer: Plain([Plain(layer)]), "a Plain"),
        (lambda layer: [{"a": Plain(layer)}], "a Plain"),
        (closure_over, "the closure of closure_over"),
        (lambda layer: Plain(closure_over(layer)), "the closure of closure_over"),
        (lambda layer: layer.__call__, "a method"),
    ],
)
def test_a_deferred_call_that_hides_a_layer(function, holder):
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        part = dx.defer(function)(dx.Linear(dim, dim))

    with pytest.raises(StatusError, match=rf"^Model\.part: {holder}.* hides a model in a static attribute") as caught:
        Model(3, rngs=dx.Rngs(0))
    assert caught.value.got == "a value of type Linear"


def test_deferred_calls_that_hide_none():
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        layer = dx.Linear(dim, dim)
        plain = dx.defer(Plain)(dim)
        array = dx.defer(lambda dim: Plain([jax.numpy.ones(dim), lambda x: x + dim]))(dim)
        of_a_part = dx.defer(closure_over)(layer)
        stream = dx.defer(lambda held, rngs: Plain([held, rngs]))(dim)
        layers = dx.defer(lambda layer: {"a": [layer]})(dx.Linear(dim, dim))

        def __post_init__(self):
            self.twice = lambda x: self.layer(self.layer(x))

    model = Model(3, rngs=dx.Rngs(0))
    assert model.of_a_part(jax.numpy.ones((1, 3))).shape == (1, 3)
    assert len(jax.tree.leaves(dx.state(model, dx.Param))) == 4


def test_plain_objects_of_open_classes_hold_what_they_like():
    layer = dx.Linear(2, 2, rngs=dx.Rngs(0))
    assert Open(Plain(layer)).f.held is layer
    assert Open(closure_over(layer)).f is not None

"""Modules: clones with and without their arrays, calls of split graphs, and texts of `view_info`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.errors import FieldError, GraphError


@pytest.fixture(params=["declax", "flax.nnx"])
def nnx(request):
    return pytest.importorskip(request.param)


@pytest.mark.parametrize(("sizes", "axis"), [((4, 3), -1), (((4, 5), (3,)), (-2, -1)), ((4, (2, 3)), (-1,))])
def test_sizes_and_axes_of_a_general_layer_are_tuples(nnx, sizes, axis):
    layer = nnx.LinearGeneral(*sizes, axis=axis, rngs=nnx.Rngs(0))
    wanted = [tuple(np.atleast_1d(value).tolist()) for value in (*sizes, axis)]
    assert [layer.in_features, layer.out_features, layer.axis] == wanted


def test_a_class_makes_the_product_of_a_general_layer(nnx):
    def doubled(*args, **options):
        return 2.0 * jax.lax.dot_general(*args, **options)

    layer = nnx.LinearGeneral(2, 3, dot_general_cls=lambda: doubled, rngs=nnx.Rngs(0))
    x = jnp.ones((1, 2))
    np.testing.assert_array_equal(layer(x), 2.0 * (x @ layer.kernel[...]))


def test_a_clone_with_its_own_arrays_can_be_donated(nnx):
    class Pair(nnx.Module):
        def __init__(self, rngs):
            self.online = nnx.Linear(2, 3, rngs=rngs)
            self.target = nnx.clone(self.online, arrays=True)

    state = nnx.state(Pair(nnx.Rngs(0)))
    moved = jax.jit(lambda state: jax.tree.map(lambda x: x + 1.0, state), donate_argnums=0)(state)
    np.testing.assert_array_equal(moved["online"]["kernel"][...], moved["target"]["kernel"][...])


def test_a_clone_shares_arrays_on_request(nnx):
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    shared = nnx.clone(model, arrays=False)
    assert shared.kernel is not model.kernel
    assert shared.kernel[...] is model.kernel[...]
    with pytest.raises(ValueError, match="arrays"):
        nnx.clone(model, variables=False, arrays=True)


def test_a_clone_that_shares_arrays_owns_what_can_be_written_to():
    model = dx.Dict(a=dx.Param(np.ones(2)), b=dx.Param(jnp.ones(2), ref=True))
    shared = dx.clone(model, arrays=False)
    shared.a.get_raw_value()[0] = 5.0
    shared.b[...] = jnp.zeros(2)
    np.testing.assert_array_equal(model.a[...], [1.0, 1.0])
    np.testing.assert_array_equal(model.b[...], [1.0, 1.0])
    with pytest.raises(GraphError, match="copies of arrays require copies of their Variables"):
        dx.clone(model, variables=False, arrays=True)


def test_a_graphdef_applies_a_state(nnx):
    class Scale(nnx.Module):
        def __init__(self):
            self.factor = nnx.Param(jnp.array(2.0))
            self.calls = nnx.Variable(jnp.array(0))

        def __call__(self, x, *, shift=0.0):
            self.calls[...] += 1
            return self.factor * x + shift

    model = Scale()
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    y, (graphdef, state) = graphdef.apply(params, rest)(3.0, shift=1.0)
    assert (float(y), int(state["calls"][...])) == (7.0, 1)
    y, (_, state) = graphdef.apply(state)(1.0)
    assert (float(y), int(state["calls"][...])) == (2.0, 2)


def test_view_info_describes_each_argument(nnx):
    class Block(nnx.Module):
        def set_view(self, mode: str | None = None, size: int | None = None, **kwargs):
            """Sets both.

            Args:
              mode: of the block.
              size: of the cache,
                in tokens.
            """
            return kwargs

    expected = (
        "  mode: str | None = None\n    of the block.\n  size: int | None = None\n    of the cache,\n    in tokens."
    )
    assert nnx.view_info(Block()).partition(":\n")[2].rstrip() == expected


# ----------------------------------------------------------------------------- specifiers in open classes


def test_bare_specifiers_give_statuses_in_a_class_with_an_init(nnx):
    class Counter(nnx.Pytree):
        total: jax.Array = nnx.data()
        steps: int = nnx.data()
        size: int = nnx.static()

        def __init__(self):
            self.total, self.steps, self.size, self.name = jnp.array(1), 3, 4, "a"

    class Named(Counter):
        def __init__(self):
            super().__init__()
            self.scale = nnx.Param(5)

    assert jax.tree.map(int, jax.tree.leaves(Named())) == [5, 3, 1]
    assert jax.tree.map(int, jax.tree.leaves(Counter())) == [3, 1]
    assert jax.tree.map(lambda x: x * 2, Counter()).size == 4


def test_keywords_of_a_class_reach_init_subclass(nnx):
    class Layer(nnx.Module):
        known = {}

        def __init_subclass__(cls, name=None, bases=(), **options):
            super().__init_subclass__(**options)
            Layer.known[name] = cls, bases

    class Wide(Layer, name="wide", bases=1):
        def __init__(self):
            self.kernel = nnx.Param(jnp.ones(2))

    assert Layer.known == {"wide": (Wide, 1)}
    assert list(nnx.state(Wide())) == ["kernel"]


def test_an_attribute_with_a_bare_specifier_is_missing_until_it_is_set():
    class Late(dx.Module):
        size: int = dx.static()

        def __init__(self):
            pass

    with pytest.raises(AttributeError, match="size"):
        _ = Late().size


def test_other_specifiers_need_the_decorator():
    class Default(dx.Module):
        size: int = dx.data(default=3)

        def __init__(self):
            pass

    class Mixed(dx.Module):
        width: int = dx.data()
        size: int = dx.field()

        def __init__(self):
            pass

    class WithoutInit(dx.Module):
        size: int = dx.data()

    class Heir(Default):
        def __init__(self):
            super().__init__()

    for cls in (Default, Mixed, WithoutInit, Heir):
        with pytest.raises(FieldError, match=r"\.size: the declarations of a class require the decorator of declax"):
            cls()


def test_a_decorated_class_may_derive_from_one_with_marks():
    class Base(dx.Module):
        steps: int = dx.data()

        def __init__(self):
            self.steps = 3

    @dx.dataclass
    class Heir(Base):
        size: int = 2

        def __post_init__(self):
            self.steps = 4

    assert jax.tree.leaves(Heir()) == [4]


@dataclasses.dataclass
class Normalization:
    mean: Any
    sizes: tuple[int, ...] = (1, 2)


def test_a_configuration_with_numpy_arrays(nnx: Any) -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.config = Normalization(np.arange(3.0))
            self.linear = nnx.Linear(3, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.linear(x - self.config.mean.astype(np.float32)).sum()

    net, x = Net(nnx.Rngs(0)), jnp.ones((1, 3))
    call = nnx.jit(lambda net, x: net(x))
    first = call(net, x)
    np.testing.assert_allclose([call(net, x), call(nnx.merge(*nnx.split(net)), x)], [first, first])
    optimizer = nnx.Optimizer(net, optax.sgd(0.5), wrt=nnx.Param)
    optimizer.update(net, nnx.grad(lambda net: net(x))(net))
    np.testing.assert_allclose(call(net, x), first - 0.5 * 3, rtol=1e-5)


def test_arrays_of_a_configuration_count() -> None:
    class Net(dx.Module):
        def __init__(self, mean: Any) -> None:
            self.config = Normalization(mean)

    net = Net(np.arange(3.0))
    assert dx.graphdef(net) is dx.graphdef(Net(np.arange(3.0)))
    total = dx.jit(lambda net: net.config.mean.sum())
    assert total(net) == 3.0
    net.config.mean[0] = 5.0
    assert total(net) == 8.0
    with pytest.raises(dx.DeclaxError, match=r"(?s)Net.config: data was assigned.*np.asarray\(\.\.\.\)"):
        net.config = Normalization(jnp.ones(3))
    with pytest.raises(dx.DeclaxError, match=r"Net.config: data was assigned"):
        net.config = Normalization(np.array([object()]))
    assert net.config.mean[0] == 5.0

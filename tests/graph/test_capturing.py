"""Calls that hand out what modules sowed in them."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax._module.capturing import capture
from declax._typing import BOUND_KEY, INTERNAL_KEYS
from declax.errors import FilterError, GraphError, TraceContextError, TransformError
from strategies import Open

X = jnp.array([1.0, 2.0])


def models(lib: Any) -> tuple[Any, Any]:
    """Classes that are the same in both libraries."""

    class Inner(lib.Module):
        def __call__(self, x):
            self.sow(lib.Intermediate, "h", x)
            return 2 * x

        def other(self, x):
            return self(x) + 1

        def _hidden(self, x):
            return x

    class Net(lib.Module):
        def __init__(self):
            self.a, self.b = Inner(), Inner()
            self.weight = lib.Param(jnp.ones(()))

        def __call__(self, x):
            y = self.b(self.a(x))
            y = self.perturb("p", y)
            self.sow(lib.BatchStat, "stat", y)
            return y * self.weight

        def features(self, x):
            return self.a._hidden(x), {"two": self.a.other(x)}

        def nothing(self, x):
            self.features(x)

    return Inner, Net


Inner, Net = models(dx)


def plain(state: Any) -> Any:
    """Paths, kinds and values of a State of either library."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # the peer's State is one
        pairs = list(state.flat_state())
    return [(path, type(v).__name__, jax.tree.map(to_list, v.get_value())) for path, v in pairs]


def to_list(leaf: Any) -> Any:
    return jnp.asarray(leaf).tolist()


def as_it_was(model: Any) -> Any:
    """What must be the same after a call."""
    parts = [(path, type(m), id(m), {*vars(m)} - {BOUND_KEY}) for path, m in dx.iter_modules(model)]
    return dx.graphdef(model), dx.state(model), parts


# ================================================================= results


def test_one_kind_several_and_none():
    net = Net()
    dx.graphdef(net)
    before = as_it_was(net)
    y, seen = capture(net, dx.Intermediate)(X)
    assert (y == 4 * X).all()
    assert seen.paths == (("a", "h"), ("b", "h"))
    assert (seen.a.h.value[0] == X).all()
    y, seen, stats, none = capture(net, dx.Intermediate, dx.BatchStat, dx.Cache)(X)
    assert stats.paths == (("stat",),)
    assert none == dx.State({})
    assert (capture(net)(X) == y).all()
    assert as_it_was(net) == before


def test_a_variable_goes_to_its_own_kind_or_the_first_that_it_derives_from():
    class Special(dx.Intermediate[Any]):
        pass

    class Sows(Net):
        def __call__(self, x):
            self.sow(Special, "special", x)
            return super().__call__(x)

    def paths(*kinds):
        return [state.paths for state in capture(Sows(), *kinds)(X)[1:]]

    sown, special, added, stat = (("a", "h"), ("b", "h")), ("special",), ("p",), ("stat",)
    assert paths(dx.Intermediate) == [(*sown, special)]
    assert paths(dx.Intermediate, Special) == paths(Special, dx.Intermediate)[::-1] == [sown, (special,)]
    assert paths(dx.Intermediate, dx.Perturbation) == [(*sown, special), (added,)]
    assert paths(dx.Variable) == [(*sown[:2], added, special, stat)]
    assert paths(dx.Variable, dx.Intermediate) == [(added, special, stat), sown]


def test_functions_methods_and_decorators():
    net = Net()
    for call in (
        lambda: capture(lambda m, x: m(x), dx.Intermediate)(net, X),
        lambda: capture(lambda m, x: m(x), dx.Intermediate)(m=net, x=X),
        lambda: capture(dx.Intermediate)(lambda m, x: m(x))(net, X),
        lambda: capture(dx.Intermediate[Any])(lambda m, x: m(x))(net, X),
        lambda: capture(net.__call__, dx.Intermediate)(X),
    ):
        y, seen = call()
        assert (y == 4 * X).all()
        assert seen.paths == (("a", "h"), ("b", "h"))
    assert capture(net.features, dx.Intermediate)(X)[1].paths == (("a", "h"),)

    @capture(dx.Intermediate, dx.BatchStat)
    def run(model: Any, x: Any) -> Any:
        """Runs."""
        return model(x)

    assert (run.__name__, run.__doc__) == ("run", "Runs.")
    assert len(run(net, X)) == 3
    assert capture(net, dx.Intermediate).__name__ == "__call__"


def test_containers_of_modules():
    net = Net()
    (y, z), seen = capture(lambda ms, x: (ms[0](x), ms[1]["inner"](x)), dx.Intermediate)([net, {"inner": Inner()}], X)
    assert seen.paths == ((0, "a", "h"), (0, "b", "h"), (1, "inner", "h"))
    assert (y == 2 * z).all()


def test_a_shared_submodule_is_recorded_once():
    net = Net()
    net.b = net.a
    _, seen = capture(net, dx.Intermediate)(X)
    assert seen.paths == (("a", "h"),)
    assert [v.tolist() for v in seen.a.h.value] == [[1.0, 2.0], [2.0, 4.0]]


def test_how_sowing_reduces():
    class Sum(dx.Module):
        def __call__(self, x):
            for _ in range(3):
                kept = self.sow(dx.Intermediate, "sum", x, reduce_fn=lambda a, b: a + b, init_fn=lambda: 0.0)
            self.sow("noted", "text", x)
            return kept

    kept, seen = capture(Sum(), dx.Intermediate)(X)
    assert kept is True
    assert (seen["sum"].value == 3 * X).all()
    _, noted = capture(Sum(), dx.Variable)(X)
    assert [type(v).__name__ for _, v in noted.flat_state()] == ["Intermediate", "noted"]


# ================================================================= the module afterwards


def test_what_was_sown_before_stays():
    net = Net()
    net(5 * X)
    net.p.value = net.p.value + 7
    before = as_it_was(net)
    y, seen = capture(net, dx.Intermediate)(X)
    assert (y == 4 * X).all()  # without the perturbation of before
    assert len(seen.a.h.value) == 1
    assert as_it_was(net) == before
    assert (net.a.h.value[0] == 5 * X).all()
    net(X)
    assert len(net.a.h.value) == 2


def test_a_failing_call_leaves_the_module_as_it_was():
    net = Net()
    before = as_it_was(net)

    def fail(model, x):
        model(x)
        raise KeyError("afterwards")

    with pytest.raises(KeyError, match="afterwards"):
        capture(fail, dx.Intermediate, method_outputs=dx.Intermediate)(net, X)
    assert as_it_was(net) == before
    assert type(net.a) is Inner


def test_other_changes_of_the_call_stay():
    net = Net()

    def change(model, x):
        model.extra = Inner()
        model.count = 1
        del model.b
        model.weight.value = model.weight.value + 1
        return model.a(x)

    _, seen = capture(change, dx.Intermediate)(net, X)
    assert seen.paths == (("a", "h"),)
    assert net.count == 1
    assert not hasattr(net, "b")
    assert net.weight.value == 2


def test_what_leaves_the_graph_during_the_call_is_as_it_was():
    net = Net()
    part = net.b

    def take(model, x):
        y = model(x)
        del model.b
        return y

    _, seen = capture(take, dx.Intermediate)(net, X)
    assert seen.paths == (("a", "h"),)
    assert type(part) is Inner
    assert tuple(vars(part)) == tuple(vars(Inner()))


def test_copies_that_the_call_makes_are_of_the_modules_own_class():
    net = Net()

    def copy(model, x):
        model(x)
        model.third = dx.clone(model.a)
        return dx.clone(model)

    made, seen = capture(copy, dx.Intermediate)(net, X)
    assert type(made) is Net
    assert type(net.third) is type(made.a) is Inner
    assert dx.graphdef(made.a) is dx.graphdef(Inner())
    assert seen.paths == (("a", "h"), ("b", "h"), ("third", "h"))


def test_the_module_during_the_call():
    net = Net()
    methods = dict(vars(Net))

    def look(model, x):
        assert type(model) is Net
        assert not model.a.__captures__.variables()
        model.a(x)
        assert not hasattr(model.a, "h")
        assert (model.a.__captures__.h.value[0] == X).all()
        assert dx.state(model)["a"]["__captures__"].value is model.a.__captures__

    capture(look, method_outputs=dx.Intermediate)(net, X)
    assert not hasattr(net.a, "__captures__")
    assert dict(vars(Net)) == methods


def test_other_modules_of_the_classes_sow_as_ever():
    other = Net()
    _, seen = capture(lambda m, x: other(m(x)), dx.Variable, method_outputs=dx.Cache)(Net(), X)
    assert ("a", "h") in seen.paths
    assert set(other.a.__dict__) == {"h"} | (set(other.a.__dict__) & INTERNAL_KEYS)


def test_frozen_declared_and_listed_modules():
    @dx.dataclass(frozen=True)
    class Frozen(dx.Module):
        scale: dx.Param[jax.Array]
        rate: float = 0.5

        def __call__(self, x):
            self.sow(dx.Intermediate, "x", x)
            return x * self.scale

    class Items(dx.Module):
        def __init__(self):
            self.layers = dx.List([Frozen(dx.Param(jnp.ones(()))), 1])
            self.named = dx.Dict(one=self.layers[0], two=Frozen(dx.Param(jnp.ones(()))))

        def __call__(self, x):
            assert len(self.layers) == 2
            self.named.sow(dx.Intermediate, "of_dict", x)
            return self.layers[0](x) + self.named["two"](x)

    model = Items()
    before = as_it_was(model)
    y, seen = capture(model, dx.Intermediate)(X)
    assert (y == 2 * X).all()
    assert seen.paths == (("layers", 0, "x"), ("named", "of_dict"), ("named", "two", "x"))
    assert as_it_was(model) == before
    assert dict(model.named).keys() == {"one", "two"}


# ================================================================= nested calls


def test_a_call_inside_of_another_takes_what_it_asks_for():
    class Outer(dx.Module):
        def __init__(self):
            self.a = Inner()

        def __call__(self, x):
            y = self.a(x)
            z, seen = capture(self.a, dx.Intermediate)(y)
            assert plain(seen) == [(("h",), "Intermediate", ([2.0, 4.0],))]
            self.a(z)
            return z

    model = Outer()
    before = as_it_was(model)
    _, seen = capture(model, dx.Intermediate)(X)
    assert plain(seen) == [(("a", "h"), "Intermediate", ([1.0, 2.0], [4.0, 8.0]))]
    assert as_it_was(model) == before


def test_a_call_inside_of_another_leaves_it_what_it_does_not_ask_for():
    def inside(model, x):
        y, stats = capture(model, dx.BatchStat, method_outputs=dx.Cache)(x)
        assert stats.paths == (("stat",),)
        return y

    net = Net()
    before = as_it_was(net)
    _, seen, stats = capture(inside, dx.Intermediate, dx.BatchStat)(net, X)
    assert seen.paths == (("a", "h"), ("b", "h"))
    assert stats.paths == ()
    assert as_it_was(net) == before


# ================================================================= outputs of methods


def test_outputs_of_methods():
    net = Net()
    before = as_it_was(net)
    y, seen = capture(net, dx.Intermediate, method_outputs=dx.Intermediate)(X)
    assert seen.paths == (("__call__",), ("a", "__call__"), ("a", "h"), ("b", "__call__"), ("b", "h"))
    assert (seen["__call__"].value[0] == y).all()
    _, seen = capture(net.nothing, dx.Cache, method_outputs=dx.Cache)(X)
    assert plain(seen) == [
        (("a", "__call__"), "Cache", ([2.0, 4.0],)),
        (("a", "other"), "Cache", ([3.0, 5.0],)),
        (("features",), "Cache", (([1.0, 2.0], {"two": [3.0, 5.0]}),)),
        (("nothing",), "Cache", (None,)),
    ]
    assert as_it_was(net) == before
    assert (capture(net, method_outputs=dx.Intermediate)(X) == y).all()


def test_which_methods():
    class Base(dx.Module):
        def inherited(self, x):
            return x

        def __call__(self, x):
            return x + 1

    @dx.dataclass
    class Sub(Base):
        activation: Any = dx.static(default=jnp.tanh)

        def __call__(self, x):
            self.static(x), self.of_class(x), self.shown, self[0], self.text(), self.me()
            self.iter_modules()
            return self.inherited(super().__call__(self.compiled(self.activation(x))))

        @staticmethod
        def static(x):
            return x

        @classmethod
        def of_class(cls, x):
            return x

        @property
        def shown(self):
            return jnp.ones(1)

        def __getitem__(self, index):
            return index

        def text(self):
            return "text"

        def me(self):
            return self

        def of_variable(self):
            return self.scale

        @dx.jit
        def compiled(self, x):
            return 2 * x

    y, seen = capture(Sub(), dx.Intermediate, method_outputs=dx.Intermediate)(jnp.zeros(1))
    assert seen.paths == (("__call__",), ("compiled",), ("inherited",))
    assert len(seen["__call__"].value) == 1
    assert y == 1


def test_a_method_that_gives_a_variable():
    class Scale(dx.Module):
        def __init__(self):
            self.scale = dx.Param(X)

        def get(self):
            return self.scale

    scale, seen = capture(Scale().get, dx.Intermediate, method_outputs=dx.Intermediate)()
    assert isinstance(scale, dx.Param)
    assert plain(seen) == [(("get",), "Intermediate", ([1.0, 2.0],))]


def test_methods_from_before_and_bound_otherwise():
    net = Net()
    features = net.features
    _, seen = capture(features, dx.Intermediate, method_outputs=dx.Intermediate)(X)
    assert ("features",) in seen.paths
    lent = functools.partial(Inner.other).func.__get__(net)  # no method of its class
    assert capture(lambda m, x: lent(x), dx.BatchStat)(net, X)[1].paths == (("stat",),)
    assert capture(lent, dx.BatchStat)(X)[1].paths == (("stat",),)


# ================================================================= perturbations


def test_init_gives_perturbations():
    net = Net()
    before = as_it_was(net)
    _, init = capture(net, dx.Perturbation)(X)
    assert plain(init) == [(("p",), "Perturbation", [0.0, 0.0])]
    shifted = jax.tree.map(lambda value: value + 10, init)
    for given in (shifted, {"p": dx.Perturbation(jnp.full(2, 10.0))}, {"p": jnp.full(2, 10.0)}):
        y, found = capture(net, dx.Perturbation, init=given)(X)
        assert (y == 4 * X + 10).all()
        assert plain(found) == [(("p",), "Perturbation", [10.0, 10.0])]
        assert (capture(net, init=given)(X) == y).all()
    assert as_it_was(net) == before
    assert plain(shifted) == [(("p",), "Perturbation", [10.0, 10.0])]


def test_init_at_no_module():
    net = Net()
    before = as_it_was(net)
    with pytest.raises(GraphError, match=r"first\.p: there is no module at this path of `init`"):
        capture(net, dx.Perturbation, init={"first": {"p": X}})(X)
    with pytest.raises(GraphError, match=r"weight\.p: .*there is no module at this path"):
        capture(net, dx.Perturbation, init={"weight": {"p": X}})(X)
    with pytest.raises(GraphError, match=r"there is no module at this path[\s\S]*did you mean 'a'\?"):
        capture(net, dx.Perturbation, init={"aa": {"p": X}})(X)
    assert as_it_was(net) == before


def test_init_of_another_shape():
    with pytest.raises(GraphError, match=r"Net\.p: the shapes of the perturbation[\s\S]*\(2,\)[\s\S]*\(1,\)"):
        capture(Net(), dx.Perturbation, init={"p": jnp.ones(1)})(X)


def loss(model, perturbations, x):
    return capture(lambda m, x: jnp.sum(m(x) ** 2), dx.Intermediate, init=perturbations)(model, x)


def test_gradients_of_intermediates():
    net = Net()
    before = as_it_was(net)
    _, init = capture(net, dx.Perturbation)(X)
    for grad in (dx.grad(loss, argnums=(0, 1), has_aux=True), dx.jit(dx.grad(loss, argnums=(0, 1), has_aux=True))):
        (grads, of_intermediates), seen = grad(net, init, X)
        assert (of_intermediates["p"].value == 2 * 4 * X).all()
        assert grads["weight"].value == jnp.sum(2 * (4 * X) ** 2)
        assert (seen.a.h.value[0] == X).all()
        assert as_it_was(net) == before


# ================================================================= transforms


def test_inside_of_a_compiled_function():
    net = Net()
    before = as_it_was(net)
    run = dx.jit(capture(lambda m, x: m(x), dx.Intermediate, method_outputs=dx.Intermediate))
    for x in (X, 2 * X):
        y, seen = run(net, x)
        assert (seen["__call__"].value[0] == y).all()
        assert (seen.a.h.value[0] == x).all()
        assert as_it_was(net) == before


def test_around_a_compiled_function():
    run = dx.jit(lambda m, x: m(x))
    net = Net()
    run(net, X)  # compiled without a capture, and sows
    before = as_it_was(net)
    for x in (X, 2 * X):
        y, seen = capture(run, dx.Intermediate, method_outputs=dx.Intermediate)(net, x)
        assert seen.paths == (("__call__",), ("a", "__call__"), ("a", "h"), ("b", "__call__"), ("b", "h"))
        assert (seen.a.h.value[0] == x).all()
        assert (seen["__call__"].value[0] == y).all()
        assert as_it_was(net) == before
    run(net, X)
    assert len(net.a.h.value) == 2


def test_a_compiled_function_is_traced_once_for_captures():
    traced = []

    @dx.jit
    def run(model, x):
        traced.append(type(model).__name__)
        return model(x)

    net = Net()
    captured = capture(run, dx.Intermediate, method_outputs=dx.Intermediate)
    for _ in range(3):
        captured(net, X)
    assert traced == ["Net"]
    capture(run, dx.Intermediate)(net, X)
    assert traced == ["Net", "Net"]


def test_around_a_gradient():
    net = Net()
    before = as_it_was(net)
    grads, seen = capture(lambda m, x: dx.grad(lambda m: jnp.sum(m(x)))(m), dx.Intermediate)(net, X)
    assert grads["weight"].value == 12
    assert (seen.a.h.value[0] == X).all()
    assert as_it_was(net) == before


def test_a_module_of_another_trace():
    net = Net()
    before = as_it_was(net)

    @jax.jit
    def run(x):
        return capture(net, dx.Intermediate)(x)

    with pytest.raises(TraceContextError, match="cannot mutate 'Inner' from a different trace level"):
        run(X)
    assert as_it_was(net) == before


@pytest.mark.slow
def test_deep_models():
    root: Any = Open()
    node = root
    for _ in range(10_000):
        node.inner = Open()
        node = node.inner
    before = dx.graphdef(root)
    _, seen = capture(lambda m, x: node.sow(dx.Intermediate, "x", x), dx.Intermediate)(root, X)
    assert len(seen.paths[0]) == 10_001
    assert dx.graphdef(root) is before


class Foo(dx.Module):
    def __init__(self):
        self.w = dx.Param(jnp.ones(4))

    def __call__(self, x):
        return jnp.dot(self.perturb("g", x), self.w)


def test_instances_of_a_vmap_capture_each():
    model, x = Foo(), jnp.ones((3, 4))

    @dx.vmap(in_axes=(None, 0))
    def start(model, x):
        return capture(model, dx.Perturbation)(x)[1]

    @dx.vmap(in_axes=(None, 0, 0))
    def step(model, perturbations, x):
        run = lambda m, p: capture(m, dx.Intermediate, init=p)(x)[0]  # noqa: E731  # as users write it
        return dx.grad(run, argnums=1)(model, perturbations)

    perturbations = start(model, x)
    assert perturbations["g"].value.shape == step(model, perturbations, x)["g"].value.shape == (3, 4)


def test_a_model_that_is_split_and_merged_during_the_call():
    @capture(dx.Intermediate)
    def run(model, x):
        graphdef, state = dx.split(model)
        merged = dx.merge(graphdef, state)
        merged(x)
        assert ("a", "__captures__") in dx.state(merged).paths
        assert merged.a.__captures__ is model.a.__captures__
        return merged

    net = Net()
    before = as_it_was(net)
    merged, seen = run(net, X)
    assert seen.paths == (("a", "h"), ("b", "h"))
    assert as_it_was(net) == before
    assert dx.graphdef(merged) is dx.graphdef(Net())


@pytest.mark.parametrize("mode", [{}, {"graph_updates": False}, {"graph": False}], ids=str)
def test_states_with_captures_pass_through_transforms(mode):
    @capture(dx.Intermediate)
    def run(model, x):
        graphdef, sown, rest = dx.split(model, dx.Intermediate, ...)
        assert sown.paths == (("a", "__captures__"), ("b", "__captures__"), ("__captures__",))
        assert all(path[-1] != "__captures__" for path in rest.paths)
        forward = lambda sown, rest, x: dx.merge(graphdef, sown, rest)(x)  # noqa: E731  # as users write it
        return dx.vmap(forward, in_axes=(0, None, 0), **mode)(sown, rest, jnp.stack([x, 2 * x, 3 * x]))

    net = Net()
    before = as_it_was(net)
    y, seen = run(net, X)
    assert (y == 4 * jnp.stack([X, 2 * X, 3 * X])).all()
    assert seen.a.h.value[0].shape == seen.b.h.value[0].shape == (3, 2)
    assert as_it_was(net) == before


def test_functions_of_states_during_the_call():
    @capture(dx.Intermediate)
    def run(model, x):
        state = dx.state(model)
        dx.update(model, jax.tree.map(jnp.zeros_like, state))
        assert dx.update(model, state, strict=False)
        assert dx.graphdef(model) is dx.split(model)[0] is dx.unpack(model).graphdef
        assert dx.state(model, dx.Param).paths == (("weight",),)
        with pytest.raises(FilterError, match="no filter matches"):
            dx.split(model, dx.Param, dx.BatchStat)
        with pytest.raises(GraphError, match="reached twice"):
            dx.split([model, model], graph=False)
        return dx.merge(dx.unpack(model))(x)

    net = Net()
    y, seen = run(net, X)
    assert (y == 4 * X).all()
    assert seen.paths == (("a", "h"), ("b", "h"))


@pytest.mark.parametrize("mode", [{"graph_updates": False}, {"graph": False}], ids=str)
@pytest.mark.parametrize("transform", [dx.jit, dx.remat])
def test_sowing_in_every_mode(transform, mode):
    net = Net()
    run = transform(lambda m, x: m(x), **mode)
    y, seen = capture(dx.jit(run, **mode), dx.Intermediate)(net, X)
    assert (y == 4 * X).all()
    assert seen.a.h.value[0].tolist() == [1, 2]
    for _ in range(2):
        dx.jit(lambda m, x: m(x), **mode)(net, X)
    assert [value.tolist() for value in net.a.h.value] == [[1, 2], [1, 2]]
    assert net.p.value.tolist() == [0, 0]


def test_a_change_beside_what_was_sown():
    @dx.jit(graph_updates=False)
    def run(model, x):
        model(x)
        model.a.rate = 2

    with pytest.raises(TransformError, match=r"model\.a\.rate: the function changes the structure"):
        run(Net(), X)


# ================================================================= errors


def test_what_is_no_kind():
    for wrong in ("intermediate", (dx.Intermediate,), int):
        with pytest.raises(FilterError, match="this is not a kind of Variable"):
            capture(Net(), wrong)
    with pytest.raises(FilterError, match="this is not a kind of Variable"):
        capture(Net(), method_outputs=dx.Linear)


def test_what_cannot_be_called():
    for wrong in (Open(), 3):
        with pytest.raises(GraphError, match="capture: this is not callable"):
            capture(wrong, dx.Intermediate)


def test_arguments_without_modules():
    with pytest.raises(GraphError, match=r"the first argument has no modules[\s\S]*Array of shape"):
        capture(lambda x: x, dx.Intermediate)(X)
    with pytest.raises(GraphError, match="the first argument has no modules"):
        capture(lambda: 1, dx.Intermediate)()


def test_two_kinds_under_a_name():
    class Clash(dx.Module):
        def __call__(self, x):
            self.sow(dx.Intermediate, "h", x)
            self.sow(dx.BatchStat, "h", x)

    with pytest.raises(GraphError, match=r"Clash\.h: the attribute holds something else than sow"):
        capture(Clash(), dx.Intermediate)(X)


# ================================================================= the peer


@pytest.mark.parametrize(
    "kinds", [(), ("Intermediate",), ("Intermediate", "BatchStat"), ("Perturbation", "Intermediate")]
)
@pytest.mark.parametrize("method_outputs", [None, "Intermediate"])
@pytest.mark.parametrize("what", ["module", "method", "function", "decorator"])
def test_capture_as_the_peer(kinds, method_outputs, what):
    nnx = pytest.importorskip("flax.nnx")
    if what == "decorator" and not kinds:
        return
    found = []
    for lib, captured in ((dx, capture), (nnx, nnx.capture)):
        net = models(lib)[1]()
        given = [getattr(lib, kind) for kind in kinds]
        options = {"method_outputs": method_outputs and getattr(lib, method_outputs)}
        if what == "module":
            result = captured(net, *given, **options)(X)
        elif what == "method":
            result = captured(net.features, *given, **options)(X)
        elif what == "function":
            result = captured(lambda m, x: m(x), *given, **options)(net, X)
        else:
            result = captured(*given, **options)(lambda m, x: m(x))(net, X)
        value, *states = result if kinds else (result,)
        # the peer leaves out the method that is called itself, though not the `__call__` of a module
        states = [[entry for entry in plain(state) if entry[0] != ("features",)] for state in states]
        found.append((jax.tree.map(to_list, value), states))
    assert found[0] == found[1]


def test_init_as_the_peer():
    nnx = pytest.importorskip("flax.nnx")
    found = []
    for lib, captured in ((dx, capture), (nnx, nnx.capture)):
        net = models(lib)[1]()
        _, init = captured(net, lib.Perturbation)(X)

        def run(model, init, captured=captured, lib=lib):
            return captured(lambda m: jnp.sum(m(X) ** 2), lib.Intermediate, init=init)(model)

        grads, seen = lib.grad(run, argnums=1, has_aux=True)(net, init)
        found.append((plain(init), plain(grads), plain(seen)))
    assert found[0] == found[1]


# ================================================================= names and kinds


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda m: m.sow(3, "h", X), r"Net\.h: this is not a kind of Variable"),
        (lambda m: m.sow(int, "h", X), r"Net\.h: this is not a kind of Variable"),
        (lambda m: m.perturb("h", X, 3), r"Net\.h: this is not a kind of Variable"),
    ],
)
def test_what_is_no_name_and_what_is_no_kind(use, text):
    net = Net()
    with pytest.raises(GraphError, match=text):
        capture(use, dx.Intermediate)(net)
    assert type(net) is Net


def test_a_kind_with_a_type_of_values():
    _, seen = capture(lambda m: m.sow(dx.Intermediate[jax.Array], "h", X), dx.Intermediate)(Net())
    assert type(seen["h"]) is dx.Intermediate

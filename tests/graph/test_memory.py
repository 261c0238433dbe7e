"""What is kept of a model dies with it, without the garbage collector."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax._graph.flattening import GraphDef
from declax._state.definition import StateDef
from strategies import Box, Declared, Open, objects_of

pytestmark = [pytest.mark.usefixtures("quick_to_collect"), pytest.mark.sampled(6)]
names = itertools.count()


def tree_of(name: str = "") -> Open:
    """A model of all sorts of parts, without a cycle, whose structure no other model has unless it has a name.

    Nor has any the structure of its layers: descriptions are interned, and another test may have
    compiled a function of a plain `Linear`, whose description JAX then keeps.
    """
    model = Open()
    name = name or f"unique{next(names)}"
    setattr(model, name, dx.Param(jnp.ones(5)))
    model.part = Open()
    model.part.kernel = dx.Param(jnp.ones((2, 3)))
    model.tied = model.part
    model.mean = dx.BatchStat(jnp.zeros(3), tag="mean")
    model.raw, model.number = jnp.zeros(2), dx.data(3.5)
    model.plain = dx.data([jnp.zeros(1), {"deep": [dx.Cache(jnp.zeros(4))]}])
    model.elements, model.entries = dx.List([Open(), dx.Cache(jnp.zeros(1)), 3]), dx.Dict(left=Open(), right=3)
    model.sizes, model.table = [1, 2], {"a": [1]}
    model.box = Box()
    model.box.held = [dx.Param(jnp.ones(()))]
    model.declared = Declared(kernel=dx.Param(jnp.ones(1)), parts=[Open()])
    model.layers = dx.List([dx.Linear(2, 2, rngs=dx.Rngs(0)), dx.BatchNorm(2, rngs=dx.Rngs(0))])
    for layer in model.layers:
        setattr(layer, name, dx.Param(jnp.ones(5)))
    return model


def cycle_of() -> Open:
    model = tree_of()
    model.part.up = model
    model.box.owner = model
    return model


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# ================================================================= uses


def loss(model: Any) -> Any:
    return (model.part.kernel[...] ** 2).sum()


def set_value(model: Any) -> None:
    model.part.kernel.value = model.part.kernel.value * 2


def grow(model: Any) -> None:
    model.new, model.part.other = dx.Param(jnp.ones(2)), 3


def shrink(model: Any) -> None:
    del model.part.kernel


def add_one(leaf: Any) -> Any:
    return leaf + 1


def refused(model: Any) -> None:
    with pytest.raises(dx.DeclaxError, match="the State does not fit the graph"):
        dx.update(model, {"raw": jnp.ones(99), "nowhere": 1})


def views(model: Any) -> Any:
    state = dx.state(model)
    part, box = state["layers"][0], state.layers[1]
    part["kernel"].value = jnp.zeros((2, 2))
    return state, part, box, part["bias"], state.flat_state(), state.to_pure_dict(), repr(part)


def parts_of_states(model: Any) -> Any:
    state = dx.state(model)
    params, rest = state.split(dx.Param, ...)
    state["new"] = dx.Param(jnp.ones(1))
    del state["mean"]
    return params | rest, state.filter(dx.BatchStat), state.map(lambda path, value: value), state == params


def half_a_walk(model: Any) -> Any:
    walk = dx.iter_graph(model)
    return walk, next(walk)


def compiled(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compiles a function for one call, which is all that keeps what was compiled."""

    def use(model: Any) -> Any:
        return dx.jit(function)(model)

    return use


def optimized(model: Any) -> Any:
    optax = pytest.importorskip("optax")
    optimizer = dx.Optimizer(model, optax.sgd(1e-1, momentum=0.9), wrt=dx.Param)

    @dx.jit
    def step(model: Any, optimizer: Any) -> None:
        optimizer.update(model, dx.grad(loss)(model))

    step(model, optimizer)
    step(model, optimizer)
    return optimizer


USES: dict[str, Callable[[Any], Any]] = {
    "graphdef": dx.graphdef,
    "split": lambda m: dx.split(m, dx.Param, "mean", dx.PathContains("raw"), ...),
    "split by a function": lambda m: dx.split(m, lambda path, value: len(path) > 1, ...),
    "state": lambda m: (dx.state(m), dx.state(m, dx.Param, dx.BatchStat)),
    "merge": lambda m: dx.merge(*dx.split(m)),
    "merge of parts": lambda m: dx.merge(*dx.split(m, dx.Param, ...), copy=True),
    "update": lambda m: dx.update(m, jax.tree.map(add_one, dx.state(m, dx.Variable))),
    "update with a dict": lambda m: dx.update(m, {"part": {"kernel": jnp.zeros((2, 3))}}),
    "update that fails": refused,
    "pop": lambda m: dx.pop(m, dx.Cache, dx.BatchStat),
    "clone": dx.clone,
    "iter_graph": lambda m: list(dx.iter_graph(m)),
    "half of iter_graph": half_a_walk,
    "find_duplicates": dx.find_duplicates,
    "views": views,
    "parts of states": parts_of_states,
    "repr": lambda m: (repr(m), repr(dx.state(m)), repr(dx.graphdef(m))),
    "two roots": lambda m: dx.split([m, m.part], dx.Param, ...),
    "an edit and again": lambda m: (dx.split(m), grow(m), dx.split(m), shrink(m), dx.split(m)),
    "jit": compiled(loss),
    "jit that sets": compiled(set_value),
    "jit that grows": compiled(grow),
    "jit that shrinks": compiled(shrink),
    "jit that returns": compiled(lambda model: (model, model.part)),
    "jit of two roots": lambda m: dx.jit(lambda a, b: loss(a))(m, m.part),
    "grad": dx.grad(loss),
    "value and grad": compiled(dx.value_and_grad(loss)),
    "optimizer": optimized,
}


COMPILED = {name for name in USES if "jit" in name} | {"value and grad", "optimizer"}
"""Uses that compile: JAX keeps what the outputs of a function are, and so descriptions, in caches of its own."""

Refs = list["weakref.ref[Any]"]


def watched(model: Any, result: Any) -> Refs:
    """References to all objects of a model and of what came of it, down to the descriptions."""
    found: list[Any] = [*objects_of(model), dx.graphdef(model), dx.graphdef(model).definition]
    stack = [result]
    while stack:
        value = stack.pop()
        if isinstance(value, (dx.State, GraphDef)):
            found += [value, value.definition]
        elif isinstance(value, (dx.Pytree, dx.Variable)):
            found += objects_of(value)
        elif isinstance(value, (list, tuple)):
            stack.extend(value)
    return [weakref.ref(value) for value in found]


def use_and_forget(make: Callable[[], Any], use: Callable[[Any], Any]) -> Refs:
    model = make()
    result = use(model)
    return watched(model, result)


def counts() -> tuple[int, int, int]:
    return len(jax.live_arrays()), len(GraphDef._interned), len(StateDef._interned)


def alive(refs: Refs, but: tuple[type, ...] = ()) -> list[Any]:
    found = [ref() for ref in refs]
    return [value for value in found if value is not None and not isinstance(value, but)]


DESCRIPTIONS = (GraphDef, StateDef)


@pytest.mark.parametrize("name", USES)
def test_all_is_freed_without_the_collector(name):
    use_and_forget(tree_of, USES[name])  # what JAX makes once is there from now on
    with no_collector():
        before = counts()
        refs = use_and_forget(tree_of, USES[name])
        assert len(refs) > 20
        assert len(jax.live_arrays()) == before[0]
        if name in COMPILED:
            assert alive(refs, but=DESCRIPTIONS) == []
        else:
            assert alive(refs) == []
            assert counts() == before


@pytest.mark.parametrize("name", USES)
def test_a_cyclic_model_is_freed_by_the_collector(name):
    use_and_forget(cycle_of, USES[name])
    gc.collect()
    before = counts()
    refs = use_and_forget(cycle_of, USES[name])
    assert alive(refs, but=DESCRIPTIONS) != []
    gc.collect()
    assert len(jax.live_arrays()) == before[0]
    if name in COMPILED:
        assert alive(refs, but=DESCRIPTIONS) == []
    else:
        assert alive(refs) == []
        assert counts() == before


def test_descriptions_die_with_the_caches_of_jax():
    jax.clear_caches()
    gc.collect()
    before = counts()
    refs = [ref for name in sorted(COMPILED) for ref in use_and_forget(tree_of, USES[name])]
    jax.clear_caches()
    gc.collect()
    assert alive(refs) == []
    assert counts() == before


@pytest.mark.parametrize("name", USES)
def test_nothing_of_a_state_holds_the_model(name):
    with no_collector():
        model = tree_of()
        states = dx.split(model, dx.Param, ...)
        USES[name](model)
        refs = [weakref.ref(o) for o in objects_of(model)]
        arrays = [id(leaf) for leaf in states[1].leaves]
        del model
        assert alive(refs) == []
        assert [id(leaf) for leaf in states[1].leaves] == arrays  # the snapshot is still there
        dx.merge(*states)


def test_a_compiled_function_holds_no_model():
    step = dx.jit(set_value)
    with no_collector():
        arrays = len(jax.live_arrays())
        model = tree_of()
        step(model)
        refs = [weakref.ref(o) for o in objects_of(model)]
        del model
        assert alive(refs) == []
        assert len(jax.live_arrays()) == arrays
    assert float(loss(step_again(step))) == 24.0


def step_again(step: Callable[[Any], Any]) -> Any:
    model = tree_of()
    step(model)
    return model


def test_a_hundred_models_leave_nothing_behind():
    def once() -> None:
        model = tree_of("kernel")  # what is known of the names of a class stays with the class
        graphdef, params, rest = dx.split(model, dx.Param, ...)
        dx.update(dx.merge(graphdef, params, rest), params)
        dx.pop(dx.clone(model), dx.Cache)

    once()
    with no_collector():
        before, objects = counts(), len(gc.get_objects())
        for _ in range(100):
            once()
        assert counts() == before
        assert len(gc.get_objects()) < objects + 100


class Bound(dx.Module):
    """Bound methods in static attributes, in metadata, and in a container."""

    def __init__(self) -> None:
        self.scale = dx.Param(jnp.ones(()), on_set_value=self.clip)
        self.activation = self.forward
        self.functions = [self.forward, jnp.tanh]

    def clip(self, variable: Any, value: Any) -> Any:
        return jnp.clip(value, 0.0, 1.0)

    def forward(self, x: Any) -> Any:
        return x * self.scale


@pytest.mark.parametrize("use", [dx.split, dx.state, dx.clone, jax.tree.structure])
def test_a_model_that_holds_its_own_methods_is_freed(use):
    gc.collect()
    before = counts()
    refs = use_and_forget(Bound, use)
    gc.collect()
    assert alive(refs) == []
    assert counts() == before

"""Graphs of shapes, and functions that are run on them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import declax as dx
from declax._graph.abstract import as_abstract
from declax._graph.array_refs import array_ref, is_array_ref
from declax.errors import AbstractModelError
from declax.transforms.abstract import eval_shape
from strategies import build, recipes

Shape = jax.ShapeDtypeStruct


def shape(*sizes: int, dtype: Any = jnp.float32, **options: Any) -> Shape:
    return Shape(sizes, dtype, **options)


class Net(dx.Module):
    def __init__(self, width: int, rngs: dx.Rngs) -> None:
        self.first = dx.Linear(2, width, rngs=rngs)
        self.norm = dx.BatchNorm(width, rngs=rngs)
        self.dropout = dx.Dropout(0.5, rngs=rngs)
        self.last = dx.Linear(width, 3, rngs=rngs)
        self.options = ["a", {"b": 1}]
        self.shared = self.first

    def __call__(self, x):
        return self.last(self.dropout(self.norm(self.first(x))))


def net(width: int = 4, seed: int = 0) -> Net:
    return Net(width, dx.Rngs(seed))


def all_abstract(node: Any) -> bool:
    return all(isinstance(leaf, Shape) for leaf in jax.tree.leaves(dx.state(node)))


def concrete(node: Any) -> bool:
    return all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(dx.state(node)))


class TestEvalShape:
    def test_a_model_that_is_made(self):
        made = eval_shape(net)
        assert type(made) is Net
        assert all_abstract(made)
        assert made.first.kernel.value == shape(2, 4)
        assert made.shared is made.first
        assert dx.graphdef(made) is dx.graphdef(net())

    def test_nothing_is_allocated(self):
        made = eval_shape(lambda: net(10**12))
        assert made.first.kernel.shape == (2, 10**12)
        assert dx.summary(made).count("Param") == 8 * 10**12 + 3
        assert eval_shape(made, shape(7, 2)) == shape(7, 3)

    def test_a_model_that_is_called(self):
        abstract = eval_shape(net)
        for model in (abstract, net()):
            for x in (shape(5, 2), jnp.ones((5, 2)), np.ones((5, 2), np.float32)):
                assert eval_shape(lambda m, x: m(x), model, x) == shape(5, 3)
                assert eval_shape(model, x) == shape(5, 3)
                assert eval_shape(model.__call__, x) == shape(5, 3)

    def test_arguments_stay_as_they_are(self):
        model, rngs, scale = net(), dx.Rngs(0), dx.Param(jnp.ones(2))
        before = dx.state([model, rngs, scale], copy=True)
        graphdef = dx.graphdef([model, rngs, scale])

        def f(model, rngs, scale):
            model(jnp.ones((1, 2)))
            model.extra = dx.Param(rngs.params.normal((3,)))
            del model.shared
            scale.value = scale.value * 2
            scale.tag = "changed"
            return model, scale

        made, scaled = eval_shape(f, model, rngs, scale)
        assert made.extra.value == shape(3)
        assert not hasattr(made, "shared")
        assert scaled.tag == "changed"
        assert dx.state([model, rngs, scale]) == before
        assert dx.graphdef([model, rngs, scale]) is graphdef
        assert concrete([model, scale])

    def test_a_function_that_raises_changes_nothing(self):
        model = net()

        def f(model):
            model.extra = 1
            model.first.kernel.value = jnp.zeros(1)
            raise KeyError("on purpose")

        with pytest.raises(KeyError, match="on purpose"):
            eval_shape(f, model)
        assert not hasattr(model, "extra")
        assert model.first.kernel.shape == (2, 4)

    def test_abstract_arguments_stay_too(self):
        model = eval_shape(net)
        eval_shape(lambda model: model.first.kernel.set_value(model.first.kernel[:1]), model)
        assert model.first.kernel.shape == (2, 4)

    def test_sharing_of_arguments_and_results(self):
        model = dx.List([dx.Param(jnp.ones(2)), dx.Module()])
        model[1].up = model
        first, second, scale = eval_shape(lambda a, b: (a, b, a[0]), model, model)
        assert first is second
        assert first is not model
        assert first[0] is scale
        assert first[1].up is first

    def test_numbers_arrays_and_others(self):
        def f(x, k, name, function, *, flag):
            assert name == "name"
            assert function is jnp.sin
            return {"x": function(x) * k, "k": k, "name": name, "none": None, "flag": flag, "one": 1}

        made = eval_shape(f, jnp.ones(2), 3, "name", jnp.sin, flag=None)
        weak = shape(dtype=jnp.int32, weak_type=True)
        assert made == {"x": shape(2), "k": weak, "name": "name", "none": None, "flag": None, "one": weak}

    def test_weak_types_and_dtypes(self):
        made = eval_shape(lambda *xs: xs, 1.0, jnp.array(1.0), jnp.ones(1, jnp.bfloat16), np.zeros(2, np.int8), True)
        assert [x.weak_type for x in made] == [True, jnp.array(1.0).weak_type, False, False, False]
        assert [x.dtype for x in made] == [jnp.float32, jnp.float32, jnp.bfloat16, jnp.int8, jnp.bool_]
        assert eval_shape(jax.random.key, 0).dtype == jax.random.key(0).dtype

    def test_variables_of_other_values(self):
        variable = dx.Variable({"a": 1.0, "b": "text"})
        made = eval_shape(lambda v: v, variable)
        assert made.value == {"a": shape(weak_type=True), "b": "text"}

    def test_taking_apart_and_updating(self):
        graphdef, params, rest = eval_shape(lambda m: dx.split(m, dx.Param, ...), net())
        assert graphdef is dx.graphdef(net())
        assert isinstance(params, dx.State)
        assert all_abstract(dx.merge(graphdef, params, rest))

    def test_optimizers(self):
        made = eval_shape(lambda m: dx.Optimizer(m, optax.adam(1e-3), wrt=dx.Param), net())
        assert all_abstract(made)
        assert dx.state(made).paths == dx.state(dx.Optimizer(net(), optax.adam(1e-3), wrt=dx.Param)).paths

    def test_transforms_inside(self):
        def loss(model, x):
            return model(x).sum()

        grads = eval_shape(dx.grad(loss), eval_shape(net), shape(5, 2))
        assert grads["first"]["kernel"].value == shape(2, 4)
        assert eval_shape(dx.jit(loss), eval_shape(net), shape(5, 2)) == shape()

    def test_inside_of_a_jitted_function(self):
        @dx.jit
        def f(model, x):
            found = eval_shape(lambda m, x: m(x), model, x)
            assert found == shape(5, 3)
            return jnp.zeros(found.shape)

        assert f(net(), jnp.ones((5, 2))).shape == (5, 3)

    def test_shapes_that_do_not_fit(self):
        with pytest.raises(dx.DeclaxError, match="the last axis of 'inputs' has the wrong size"):
            eval_shape(eval_shape(net), shape(5, 7))

    def test_what_is_no_function(self):
        with pytest.raises(dx.DeclaxError, match="eval_shape, f: this is not a function"):
            eval_shape(3)  # type: ignore[arg-type]  # on purpose

    def test_trees_are_asked_for(self):
        with pytest.raises(dx.DeclaxError, match="this is reached twice"):
            eval_shape(lambda m: m, net(), graph=False)
        with dx.set_graph_mode(False), pytest.raises(dx.DeclaxError, match="this is reached twice"):
            as_abstract(net())
        assert eval_shape(lambda m: m(jnp.ones((1, 2))), net().first, graph=False, graph_updates=False) == shape(1, 4)

    def test_as_the_peer(self):
        nnx = pytest.importorskip("flax.nnx")
        ours = eval_shape(lambda: dx.Linear(2, 3, rngs=dx.Rngs(0)))
        theirs = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        assert ours.kernel.value == theirs.kernel.get_value()
        assert ours.bias.value == theirs.bias.get_value()
        x = shape(7, 2)
        assert eval_shape(lambda m, x: m(x), ours, x) == nnx.eval_shape(lambda m, x: m(x), theirs, x)


class Counter(dx.Module):
    """Shares a ref among attributes and a Variable."""

    def __init__(self) -> None:
        self.total = array_ref(jnp.zeros(3))
        self.again = self.total
        self.scale = dx.Param(array_ref(jnp.ones(2)))


class TestRefs:
    def test_a_model_with_refs_that_is_made(self):
        made = eval_shape(Counter)
        assert made.total == shape(3, is_ref=True)
        assert made.total is made.again
        assert made.scale.raw_value.is_ref
        assert dx.graphdef(made) is dx.graphdef(Counter())

    def test_one_new_ref_in_several_variables(self):
        def f():
            ref = array_ref(jnp.zeros(1))
            return dx.Param(ref), dx.Param(ref)

        first, second = eval_shape(f)
        assert first.raw_value is second.raw_value

    @pytest.mark.parametrize("make", [Counter, lambda: as_abstract(Counter())], ids=["concrete", "abstract"])
    def test_refs_in_arguments(self, make: Callable[[], Any]):
        model = make()
        total = model.total

        def f(model):
            assert is_array_ref(model.total)
            assert model.total is model.again
            model.total[...] += 1
            return model, model.total, model.again[:2]

        made, ref, part = eval_shape(f, model)
        assert made.total is made.again
        assert made.total == ref == shape(3, is_ref=True)
        assert part == shape(2)
        assert model.total is total
        if is_array_ref(total):
            assert total[...].tolist() == [0, 0, 0]

    def test_abstract_models_with_refs(self):
        made = as_abstract(Counter())
        assert dx.graphdef(made) is dx.graphdef(Counter())
        assert dx.find_duplicates(made) == [[("again",), ("total",)]]
        copied = dx.clone(made)
        assert copied.total is copied.again
        assert copied.total is not made.total
        assert copied.total.is_ref


class TestAbstract:
    def test_models(self):
        model = net()
        made = as_abstract(model)
        assert all_abstract(made)
        assert made.first is made.shared
        assert dx.graphdef(made) is dx.graphdef(model)
        assert concrete(model)
        assert made.options == model.options

    def test_other_nodes(self):
        assert as_abstract(jnp.ones(2)) == shape(2)
        assert as_abstract([np.ones(2, np.float32), 3, "a"]) == [shape(2), 3, "a"]
        state = as_abstract(dx.state(net()))
        assert type(state) is dx.State
        assert state == dx.state(as_abstract(net()))

    def test_it_is_its_own_abstraction(self):
        made = as_abstract(net())
        assert dx.state(as_abstract(made)) == dx.state(made)

    def test_shardings(self):
        array = jnp.ones((4, 2))
        sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec("x"))
        made = as_abstract([dx.Param(jax.device_put(array, sharding)), dx.Param(array)])
        assert made[0].value.sharding == sharding
        assert made[1].value.sharding is None

    @given(recipes())
    def test_any_graph(self, recipe):
        model = build(recipe)
        made = as_abstract(model)
        assert dx.graphdef(made) is dx.graphdef(model)
        assert all_abstract(made)
        assert dx.state(eval_shape(lambda m: m, model)) == dx.state(made)


class TestWhatCanBeDone:
    def test_values_of_a_checkpoint(self):
        stored = dx.state(net(seed=1))
        model = dx.merge(dx.graphdef(eval_shape(net)), stored)
        assert dx.state(model) == stored
        assert model(jnp.ones((5, 2))).shape == (5, 3)

    def test_update_makes_it_concrete(self):
        model = eval_shape(net)
        dx.update(model, dx.state(net()))
        assert concrete(model)
        assert model(jnp.ones((5, 2))).shape == (5, 3)
        part = eval_shape(net)
        dx.update(part, dx.state(net(), dx.Param))
        assert isinstance(part.first.kernel.value, jax.Array)
        assert isinstance(part.norm.mean.value, Shape)

    def test_update_compares_shapes(self):
        model = eval_shape(net)
        with pytest.raises(dx.DeclaxError, match=r"first.kernel: expected shape \(2, 4\)"):
            dx.update(model, dx.state(net(width=5)))
        assert all_abstract(model)

    def test_taking_apart_copying_and_looking(self):
        model = eval_shape(net)
        graphdef, state = dx.split(model)
        for made in (dx.merge(graphdef, state), dx.clone(model), dx.merge(graphdef, state, copy=True)):
            assert dx.state(made) == state == dx.state(model, copy=True)
            assert made.shared is made.first
        found = dict(dx.iter_graph(model))
        assert found["first", "kernel"].shape == (2, 4)
        popped = dx.pop(model, dx.BatchStat)
        assert sorted(path[-1] for path in popped.paths) == ["mean", "var"]

    def test_text(self):
        model = eval_shape(lambda: dx.Linear(2, 3, rngs=dx.Rngs(0)))
        assert "kernel=f32[2,3]" in repr(model)
        assert "kernel f32[2,3]" in str(dx.summary(model))

    def test_lowering(self):
        lowered = dx.jit(lambda m, x: m(x)).lower(eval_shape(net), shape(5, 2))
        assert "5x3xf32" in lowered.as_text()

    def test_it_cannot_compute(self):
        for model in (eval_shape(net), as_abstract(net())):
            with pytest.raises(AbstractModelError, match="the model holds shapes in place of arrays") as caught:
                model(jnp.ones((5, 2)))
            assert isinstance(caught.value, TypeError)
            assert "dx.eval_shape(model, x)" in caught.value.fix

    @pytest.mark.parametrize(
        "use",
        [
            lambda v: v + 1,
            lambda v: jnp.ones(2) @ v,
            lambda v: v[0],
            lambda v: -v,
            lambda v: v < 1,
            lambda v: divmod(2, v),
            float,
            list,
            jnp.asarray,
            np.asarray,
        ],
    )
    def test_no_leaf_of_it_can_be_computed_with(self, use):
        model = eval_shape(lambda: dx.Param(jnp.ones((2, 3))))
        with pytest.raises(AbstractModelError, match=r"got: +a leaf of shape \(2, 3\) and dtype float32"):
            use(model)

    def test_its_leaves_are_those_of_jax(self):
        leaf = as_abstract(jnp.ones(2))
        assert leaf == shape(2)
        assert hash(leaf) == hash(shape(2))
        assert repr(leaf) == repr(shape(2))
        assert pickle.loads(pickle.dumps(leaf)) == copy.copy(leaf) == leaf  # our own
        assert jnp.zeros_like(leaf).shape == (2,)
        assert jax.eval_shape(lambda x: x + 1, leaf) == shape(2)
        assert jax.jit(lambda x: x + 1).lower(leaf).out_info.shape == (2,)

    def test_deep_models(self):
        model = dx.Module()
        model.scale = dx.Param(jnp.ones(2))
        for _ in range(10_000):
            outer = dx.Module()
            outer.inner, model = model, outer
        made = as_abstract(model)
        assert dx.state(made).leaves == [shape(2)]
        assert eval_shape(lambda m: dx.state(m).leaves[0] * 2, made) == shape(2)

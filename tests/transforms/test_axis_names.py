"""Names of mapped axes in the sharding metadata of Variables."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.errors import TransformError
from declax.transforms._engine.prefixes import StateAxes
from declax.transforms.axis_names import PARTITION_NAME, transform_metadata
from declax.transforms.vectorization import vmap

LAYERS = {PARTITION_NAME: "layers"}
MODES = [{"graph": False}, {"graph": True, "graph_updates": False}, {"graph": True, "graph_updates": True}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)


def by_option(f, **options):
    return vmap(f, transform_metadata=LAYERS, **options)


def by_decorator(f, **options):
    axes = {name: options[name] for name in ("in_axes", "out_axes") if name in options}
    graph = {"graph": options["graph"]} if "graph" in options else {}
    return vmap(transform_metadata(f, partition="layers", **axes, **graph), **options)


each_way = pytest.mark.parametrize("mapped", [by_option, by_decorator])


def stack(sharding=("layers", "model"), kind=dx.Param, **metadata):
    return kind(jnp.arange(6.0).reshape(3, 2), sharding=sharding, **metadata)


# ================================================================= inside and outside


@each_way
@each_mode
def test_an_axis_has_no_name_inside(mapped, mode):
    param, seen = stack(), []

    def step(p, x):
        seen.append(p.out_sharding)
        p.value = p.value + x
        return p.value.sum()

    assert mapped(step, in_axes=(0, None), **mode)(param, 1.0).tolist() == [3, 7, 11]
    assert (seen, param.out_sharding) == ([("model",)], ("layers", "model"))
    assert param.value.tolist() == [[1, 2], [3, 4], [5, 6]]


@each_way
@given(
    rank=st.integers(1, 3),
    where=st.integers(0, 2),
    is_negative=st.booleans(),
    form=st.sampled_from([tuple, list, "spec"]),
)
def test_any_axis_and_any_form(mapped, rank, where, is_negative, form):
    where %= rank
    names = [f"n{i}" for i in range(rank)]
    inside = [name for i, name in enumerate(names) if i != where]
    names[where] = "layers"
    make = (lambda entries: jax.P(*entries)) if form == "spec" else form
    param, seen = dx.Param(jnp.ones((2,) * rank), sharding=make(names)), []
    axis = where - rank if is_negative else where
    mapped(lambda p: seen.append(p.out_sharding), in_axes=axis, out_axes=None)(param)
    assert seen == [make(inside)]
    assert param.out_sharding == make(names)


@each_way
def test_what_is_made_gets_the_name(mapped):
    def make(x):
        model = dx.Module()
        model.w, model.s = (
            dx.Param(x * jnp.ones(2), sharding=("model",)),
            dx.BatchStat(jnp.ones(2), sharding=("model",)),
        )
        model.again = model.w
        return {"model": model}

    axes = {"model": StateAxes({dx.Param: 1, ...: None})}
    made = mapped(make, out_axes=axes)(jnp.arange(3.0))["model"]
    assert (made.w.out_sharding, made.s.out_sharding) == (("model", "layers"), ("model",))
    assert made.w.shape == (2, 3)
    assert made.again is made.w


@each_way
def test_what_is_put_into_an_argument_gets_the_name(mapped):
    model = dx.Module()
    model.w = stack()

    def grow(model):
        model.twice = dx.Param(model.w.value * 2, sharding=("z",))
        old, model.w = model.w, dx.Param(jnp.ones(1), sharding=("new",))
        return old

    old, before = None, model.w
    old = mapped(grow)(model)
    assert old is before
    assert (old.out_sharding, model.w.out_sharding) == (("layers", "model"), ("layers", "new"))
    assert model.twice.out_sharding == ("layers", "z")


@each_way
def test_what_has_no_axis_or_no_sharding_stays(mapped):
    model = dx.Module()
    model.w, model.b = stack(), dx.Param(jnp.ones(3))
    model.s = stack(("a", "b"), dx.BatchStat)
    captured = stack(("c", "d"))
    seen = []

    def look(model, *, x):
        variables = model.w, model.s, captured
        seen.append((*(v.out_sharding for v in variables), model.b.has_metadata("out_sharding")))
        return x

    axes = StateAxes({dx.Param: 0, ...: None})
    mapped(look, in_axes=(axes,))(model=model, x=jnp.ones(3))
    assert seen == [(("model",), ("a", "b"), ("c", "d"), False)]
    assert (model.s.out_sharding, captured.out_sharding) == (("a", "b"), ("c", "d"))


def test_hooks_are_told():
    told = []
    param = stack(
        on_remove_axis=lambda p, axis, name: told.append(("removed", axis, name)),
        on_add_axis=lambda p, axis, name: told.append(("added", axis, name)),
    )
    by_option(lambda p: None)(param)
    assert told == [("removed", 0, "layers"), ("added", 0, "layers")]


def test_shared_and_changed_in_jit():
    model = dx.Module()
    model.w = stack()
    model.part = dx.Module()
    model.part.w = model.w
    seen = []

    @dx.jit
    def step(model):
        def look(model):
            seen.append(model.part.w.out_sharding)
            model.w.value = model.w.value * 2

        by_option(look)(model)
        seen.append(model.w.out_sharding)

    with jax.checking_leaks():
        step(model)
    assert seen == [("model",), ("layers", "model")]
    assert model.w.value[2].tolist() == [8, 10]


def test_under_raw_vmap():
    @jax.vmap
    @transform_metadata(partition="layers")
    def make(x):
        return dx.Param(x * jnp.ones(2), sharding=("model",))

    made = make(jnp.arange(3.0))
    assert made.out_sharding == ("layers", "model")
    assert jax.vmap(transform_metadata(lambda p: p, partition="layers"))(made).out_sharding == ("layers", "model")


def test_no_name_is_none():
    param = stack((None, "model"))
    seen = []
    vmap(lambda p: seen.append(p.out_sharding), transform_metadata={PARTITION_NAME: None}, out_axes=None)(param)
    vmap(lambda p: seen.append(p.out_sharding), transform_metadata={}, out_axes=None)(param)
    assert seen == [("model",), (None, "model")]


def test_metadata_is_that_of_the_peer():
    nnx = pytest.importorskip("flax.nnx")
    nnx.use_eager_sharding(False)

    def of(lib, map_, axes, name):
        seen = []

        @map_(transform_metadata={name: "layers"})
        def make(x):
            m = lib.Module()
            m.w, m.s = lib.Param(x * jnp.ones((2, 3)), out_sharding=("a", None)), lib.BatchStat(x)
            return m

        @map_(in_axes=(axes({lib.Param: 0, ...: None}), 0), transform_metadata={name: "layers"})
        def look(m, x):
            seen.append(m.w.out_sharding)
            return x

        model = make(jnp.arange(4.0))
        look(model, jnp.ones(4))
        return model.w.shape, model.w.out_sharding, seen

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peers = of(nnx, nnx.vmap, nnx.StateAxes, nnx.PARTITION_NAME)
    assert of(dx, vmap, StateAxes, PARTITION_NAME) == peers


# ================================================================= errors


@each_way
@pytest.mark.parametrize(
    ("sharding", "axis"), [(("model", "layers"), 0), (("layers",), 1), ((), 0), (jax.P(None, "x"), -1)]
)
def test_an_axis_of_another_name_is_an_error(mapped, sharding, axis):
    model = dx.Module()
    model.first, model.second = stack(("layers", "layers")), stack(sharding)
    state = dx.split(model)
    with pytest.raises(TransformError, match="is not named 'layers'") as caught:
        mapped(lambda m: None, in_axes=axis)(model)
    assert "the out_sharding of a Param: the mapped axis" in str(caught.value)
    assert dx.split(model) == state


def test_wrong_arguments_of_transform_metadata():
    with pytest.raises(TransformError, match="transform_metadata, f: this is not a function"):
        transform_metadata(3, partition="layers")
    with pytest.raises(TransformError, match="transform_metadata: this does not name an axis"):
        transform_metadata(lambda x: x, partition=3)
    for metadata in ("layers", {"partition_nam": "layers"}):
        with pytest.raises(TransformError, match="transform_metadata: this does not name an axis"):
            vmap(lambda x: x, transform_metadata=metadata)
    with pytest.raises(TransformError, match="in_axes: this is not a label of leaves"):
        transform_metadata(lambda x: x, in_axes="a", partition="layers")


def test_the_names_for_the_state_of_an_optimizer_move_too():
    """So that the moments of a stack are split along the axes of its layers' parameters."""
    names = {"out_sharding": ("embed", None), "optimizer_sharding": ("moments", None)}
    stack = dx.Stacked(lambda rngs: dx.Linear(2, 3, kernel_metadata=names, rngs=rngs), 4, rngs=dx.Rngs(0))
    kernel = stack.layers.kernel
    assert (kernel.out_sharding, kernel.optimizer_sharding) == ((None, "embed", None), (None, "moments", None))
    assert stack[0].kernel.optimizer_sharding == ("moments", None)
    assert dx.Stacked.of(stack.unstack(), axis_name="layers").layers.kernel.optimizer_sharding[0] == "layers"
    seen = []
    stack.scan(lambda layer, x: (x, seen.append(layer.kernel.optimizer_sharding)), jnp.ones(2))
    assert set(seen) == {("moments", None)}
    same = {PARTITION_NAME: "layers", "optimizer_sharding": "layers"}
    made = vmap(lambda x: dx.Param(x, **names), transform_metadata=same)(jnp.ones((4, 2, 3)))
    assert made.optimizer_sharding == ("layers", "moments", None)
    for other in ("other", None):
        with pytest.raises(TransformError, match="optimizer_sharding has another name for the axis"):
            vmap(lambda x: x, transform_metadata={**same, "optimizer_sharding": other})

"""Putting values into existing graphs: strict, and all or nothing."""

from __future__ import annotations

import pickle
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import declax as dx
from declax.errors import GraphError
from naming import name_of
from strategies import Box, Open, build, objects_of, recipes, same_graph

Pair = namedtuple("Pair", ["first", "second"])


def model_of() -> Open:
    model = Open()
    model.part = Open()
    model.part.kernel = dx.Param(jnp.zeros((2, 3)))
    model.mean = dx.BatchStat(jnp.zeros(3))
    model.raw = jnp.zeros(2)
    model.plain = dx.data([jnp.zeros(1), {"deep": jnp.zeros(4)}])
    model.box = Box()
    model.box.values = [jnp.zeros(5)]
    return model


def plus_one(state):
    return jax.tree.map(lambda x: x + 1, state)


def values_of(model):
    return [np.asarray(x).copy() for x in dx.state(model).leaves]


def assert_untouched(model, before):
    for a, b in zip(before, dx.state(model).leaves, strict=True):
        np.testing.assert_array_equal(a, b)


# ================================================================= what it does


def test_update_sets_all_values_in_place():
    model = model_of()
    objects = objects_of(model)
    containers = model.plain, model.plain[1], model.box.values
    dx.update(model, plus_one(dx.state(model)))
    assert all(bool((x == 1).all()) for x in dx.state(model).leaves)
    assert all(a is b for a, b in zip(objects, objects_of(model), strict=True))
    assert all(a is b for a, b in zip(containers, (model.plain, model.plain[1], model.box.values), strict=True))


@given(recipes(max_nodes=4))
def test_updating_with_its_own_state_changes_nothing(recipe):
    model = build(recipe)
    dx.update(model, dx.state(model))
    assert same_graph(model, build(recipe))


@given(recipes(max_nodes=4))
def test_a_clone_is_updated_to_the_same_values(recipe):
    model = build(recipe)
    graphdef, state = dx.split(model)
    variables = state.filter(dx.Variable)
    other = dx.merge(graphdef, jax.tree.map(jnp.zeros_like, state))
    dx.update(other, variables, copy=False)
    for mine, its in zip(variables.leaves, dx.state(other, dx.Variable).leaves, strict=True):
        assert mine is its


def test_a_state_may_have_some_of_the_paths():
    model = model_of()
    dx.update(model, plus_one(dx.state(model, dx.BatchStat)))
    assert model.mean.value.tolist() == [1.0] * 3
    assert not bool(model.part.kernel.value.any())


def test_several_states_and_the_last_one_wins():
    model = model_of()
    params, stats = dx.state(model, dx.Param, dx.BatchStat)
    dx.update(model, plus_one(params), plus_one(stats), plus_one(plus_one(stats)))
    assert model.mean.value.tolist() == [2.0] * 3
    assert bool((model.part.kernel.value == 1).all())


def test_nested_dicts_will_do():
    model = model_of()
    dx.update(model, {"part": {"kernel": jnp.ones((2, 3))}, "mean": dx.BatchStat(jnp.ones(3))})
    assert model.part.kernel.value.sum() == 6
    assert model.mean.value.sum() == 3


def test_a_part_of_a_state_is_a_state():
    model = model_of()
    dx.update(model.part, plus_one(dx.state(model))["part"])
    assert model.part.kernel.value.sum() == 6


def test_dtypes_may_differ():
    model = model_of()
    dx.update(model, jax.tree.map(lambda x: x.astype(jnp.bfloat16), dx.state(model)))
    assert model.mean.value.dtype == jnp.bfloat16
    assert model.raw.dtype == jnp.bfloat16


@pytest.mark.parametrize(("given", "found"), [("float64", "float32"), ("int64", "int32"), ("float16", "float16")])
def test_arrays_of_numpy_in_dtypes_that_jax_lacks_are_converted(given, found):
    model = model_of()
    new = {"mean": np.ones(3, given), "raw": np.ones(2, given), "box": {"values": {0: np.ones(5, given)}}}
    dx.update(model, new)
    for value in (model.mean.value, model.raw, model.box.values[0]):
        assert value.dtype == found
        assert (value == 1).all()
    model.count = dx.Variable(np.zeros(2))
    dx.update(model, {"count": np.ones(2)})
    assert model.count.value.dtype == np.float64  # it was one of NumPy
    with jax.enable_x64(True):
        dx.update(model, {"mean": np.ones(3)})
    assert model.mean.value.dtype == np.float64


def test_an_empty_state_changes_nothing():
    model = model_of()
    before = values_of(model)
    dx.update(model, {})
    dx.update(model, dx.State())
    assert_untouched(model, before)


def test_the_root_may_be_a_container_or_a_variable():
    first, second = model_of(), model_of()
    dx.update([first, second], plus_one(dx.state([first, second])))
    assert first.mean.value.sum() == second.mean.value.sum() == 3
    variable = dx.Param(jnp.zeros(2))
    dx.update(variable, plus_one(dx.state(variable)))
    assert variable.value.sum() == 2


def test_metadata_comes_with_a_variable():
    model = model_of()
    state = dx.state(model)
    assert dx.graphdef(model) is dx.graphdef(model_of())
    state["mean"].set_metadata(note=3)
    state["mean"] = dx.BatchStat(jnp.ones(3), note=3)
    dx.update(model, state)
    assert model.mean.get_metadata(exclude_required=True) == {"note": 3}
    assert dx.state(model)["mean"].get_metadata(exclude_required=True) == {"note": 3}
    assert dx.graphdef(model) is not dx.graphdef(model_of())


def test_shared_variables_are_set_once():
    model = model_of()
    model.tied = model.part.kernel
    dx.update(model, plus_one(dx.state(model)))
    assert model.tied is model.part.kernel
    assert model.tied.value.sum() == 6


def test_values_in_tuples_are_left_alone_where_they_do_not_change():
    model = model_of()
    model.pair = dx.data((jnp.zeros(2), dx.Param(jnp.zeros(1))))
    state = dx.state(model)
    dx.update(model, state)
    dx.update(model, plus_one(state.filter(dx.Variable)))
    assert model.pair[1].value.tolist() == [1.0]


def test_hooks_do_not_run():
    model = Open()
    model.scale = dx.Param(jnp.ones(1), on_set_value=lambda v, x: x * 100)
    dx.update(model, plus_one(dx.state(model)))
    assert model.scale.value.tolist() == [2.0]


def test_inside_of_a_trace():
    model = model_of()

    @jax.jit
    def step(graphdef, state):
        inner = dx.merge(graphdef, state)
        dx.update(inner, plus_one(dx.state(inner)))
        return dx.state(inner)

    assert all(bool((x == 1).all()) for x in step(*dx.split(model)).leaves)


# ================================================================= what it refuses


def test_all_faults_are_listed_and_nothing_changes():
    model = model_of()
    before = values_of(model)
    state = plus_one(dx.state(model))
    state["mean"] = dx.Cache(jnp.ones(3))
    state["part"]["kernle"] = dx.Param(jnp.ones((2, 3)))
    state["plain"][0] = dx.Param(jnp.ones(1))
    with pytest.raises(GraphError, match="the State does not fit the graph at 3 paths") as caught:
        dx.update(model, state)
    text = str(caught.value)
    assert "mean: expected a BatchStat, got a Cache" in text
    assert "part.kernle: there is no such path; did you mean 'kernel'?" in text
    assert "plain[0]: expected an array, got a Param" in text
    assert_untouched(model, before)


@pytest.mark.parametrize(
    "path", [("mean",), ("part", "kernel"), ("raw",), ("plain", 0), ("plain", 1, "deep"), ("box", "values", 0)]
)
def test_other_shapes_are_refused(path):
    model = model_of()
    before = values_of(model)
    state = plus_one(dx.state(model))
    flat = dict(state.flat_state())
    flat[path] = flat[path].copy(jnp.ones((7, 7))) if isinstance(flat[path], dx.Variable) else jnp.ones((7, 7))
    with pytest.raises(GraphError, match="expected shape"):
        dx.update(model, dx.State.from_flat_path(flat))
    assert_untouched(model, before)


def test_the_faults_of_a_later_state_leave_the_first_unused():
    model = model_of()
    before = values_of(model)
    with pytest.raises(GraphError, match="does not fit"):
        dx.update(model, plus_one(dx.state(model)), {"nowhere": jnp.ones(1)})
    assert_untouched(model, before)


def test_a_leaf_in_a_tuple_is_refused_before_anything_changes():
    model = model_of()
    model.zz = dx.data((jnp.zeros(2),))
    before = values_of(model)
    with pytest.raises(GraphError, match="this leaf sits in a tuple, which cannot be changed in place"):
        dx.update(model, plus_one(dx.state(model)))
    assert_untouched(model, before)


def test_a_leaf_in_a_named_tuple_is_refused_before_anything_changes():
    model = model_of()
    model.zz = dx.data(Pair(jnp.zeros(2), jnp.zeros(2)))
    before = values_of(model)
    with pytest.raises(GraphError, match="cannot be changed in place"):
        dx.update(model, plus_one(dx.state(model)))
    assert_untouched(model, before)


def test_another_trace_level_is_refused_before_anything_changes():
    model = model_of()
    before = values_of(model)
    state = dx.state(model)

    @jax.jit
    def leak(x):
        dx.update(model, jax.tree.map(lambda y: y + x, state))

    with pytest.raises(dx.TraceContextError, match="update to a BatchStat: the value of a BatchStat was changed from"):
        leak(jnp.ones(()))
    assert_untouched(model, before)


def test_another_trace_level_of_raw_leaves_is_refused():
    model = Open()
    model.raw = jnp.zeros(2)
    model.zs = dx.data([jnp.zeros(1)])

    @jax.jit
    def leak(x):
        dx.update(model, jax.tree.map(lambda y: y + x, dx.state(model)))

    with pytest.raises(dx.TraceContextError, match="different trace level"):
        leak(jnp.ones(()))
    assert not isinstance(model.zs[0], jax.core.Tracer)
    assert not isinstance(model.raw, jax.core.Tracer)


def test_another_trace_level_of_leaves_in_containers_is_refused():
    model = Open()
    model.zs = dx.data([jnp.zeros(1)])

    @jax.jit
    def leak(x):
        dx.update(model, jax.tree.map(lambda y: y + x, dx.state(model)))

    with pytest.raises(dx.TraceContextError, match="different trace level"):
        leak(jnp.ones(()))
    assert not isinstance(model.zs[0], jax.core.Tracer)


def test_a_scalar_is_not_replaced_by_an_array_of_another_shape():
    model = Open()
    model.scale = dx.Param(1.0)
    with pytest.raises(GraphError, match="expected shape"):
        dx.update(model, {"scale": jnp.ones((2, 2))})
    dx.update(model, {"scale": jnp.ones(())})
    assert model.scale.value == 1


# ================================================================= complete, and not strict


def test_complete_demands_every_path():
    model = model_of()
    before = values_of(model)
    dx.update(model, plus_one(dx.state(model)), complete=True)
    with pytest.raises(GraphError, match="does not fit the graph at 5 paths") as caught:
        dx.update(model, {"part": {"kernel": jnp.zeros((2, 3))}}, complete=True)
    assert "mean: expected a BatchStat, got nothing" in str(caught.value)
    for path, size in {"raw": 2, "plain[0]": 1, "plain[1].deep": 4, "box.values[0]": 5}.items():
        assert f"{path}: expected Array of shape ({size},) and dtype float32, got nothing" in str(caught.value)
    assert "part.kernel" not in str(caught.value)
    assert_untouched(model, [x + 1 for x in before])


def test_several_states_are_complete_together():
    model = model_of()
    params, rest = dx.state(model, dx.Param, dx.Not(dx.Param))
    dx.update(model, plus_one(params), plus_one(rest), complete=True)
    assert all(bool((x == 1).all()) for x in dx.state(model).leaves)


def test_the_last_state_counts():
    model = model_of()
    dx.update(model, {"mean": jnp.ones(3)}, {"mean": jnp.full(3, 2.0)})
    assert model.mean.value.tolist() == [2.0, 2.0, 2.0]


WRONG = {
    "part": {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(3)},
    "mean": dx.Param(jnp.ones(3)),
    "raw": jnp.ones(2),
    "plain": {0: jnp.ones(1)},
}


def test_not_strict_takes_what_fits_and_reports_the_rest():
    model = model_of()
    report = dx.update(model, WRONG, strict=False)
    assert isinstance(report, dx.UpdateReport)
    assert report.taken == ("plain[0]", "raw")
    assert [m.path for m in report.mismatches] == ["mean", "part.kernel"]
    assert [m.path for m in report.unexpected] == ["part.bias"]
    assert {m.path for m in report.missing} == {"plain[1].deep", "box.values[0]"}
    assert not report
    assert model.raw.tolist() == [1.0, 1.0]
    assert model.plain[0].tolist() == [1.0]
    assert not model.mean.value.any()
    assert not model.part.kernel.value.any()


def test_a_report_reads_well():
    model = model_of()
    assert str(dx.update(model, {**WRONG, "pat": {"kernel": 1}}, strict=False)) == (
        "taken: 2 of 6 leaves\n"
        "does not fit:\n"
        "  mean: expected a BatchStat, got a Param\n"
        "  part.kernel: expected shape (2, 3), got shape (3, 2)\n"
        "missing:\n"
        "  box.values[0]: expected Array of shape (5,) and dtype float32, got nothing\n"
        "  plain[1].deep: expected Array of shape (4,) and dtype float32, got nothing\n"
        "unexpected:\n"
        "  part.bias: there is no such path\n"
        "  pat.kernel: there is no such path; did you mean 'part'?"
    )
    report = dx.update(model, dx.state(model), strict=False)
    assert (str(report), bool(report)) == ("taken: 6 of 6 leaves", True)
    assert dx.update(model, {"raw": jnp.ones(2)}, strict=False), "what gets no value is no problem"
    assert pickle.loads(pickle.dumps(report)) == report


def test_strict_lists_all_that_does_not_fit():
    model = model_of()
    before = values_of(model)
    with pytest.raises(GraphError, match="the State does not fit the graph at 3 paths") as caught:
        dx.update(model, WRONG)
    assert "mean: expected a BatchStat, got a Param" in str(caught.value)
    assert "part.kernel: expected shape (2, 3), got shape (3, 2)" in str(caught.value)
    assert "part.bias: there is no such path" in str(caught.value)
    assert_untouched(model, before)


def test_many_unknown_paths_are_all_listed():
    model = dx.List([dx.Param(jnp.zeros(2)) for _ in range(300)])
    wrong = dx.State({i + 1000: dx.Param(jnp.zeros(2)) for i in range(300)})
    wrong[0] = dx.Param(jnp.ones(2))
    report = dx.update(model, wrong, strict=False)
    assert len(report.unexpected) == 300
    assert len(report.missing) == 299


@pytest.mark.parametrize("strict", [None, True, False])
def test_a_state_of_which_no_path_is_known_is_an_error(strict):
    model = model_of()
    before = values_of(model)
    other = {"encoder": {"kernel": jnp.ones((2, 3))}, "decoder": jnp.ones(2)}
    for states in ([other], [{"raw": jnp.ones(2)}, other]):
        with pytest.raises(GraphError, match=r"(?s)the State does not fit the graph.*encoder\.kernel: there is no"):
            dx.update(model, *states, strict=strict)
        assert_untouched(model, before)
    wrong_shape = {"raw": jnp.ones(7)}  # of this model, so there is a report
    assert not dx.update(model, wrong_shape, strict=False)
    assert dx.update(model, {}, strict=False)


def test_strict_demands_dtypes_and_every_path():
    model = model_of()
    before = values_of(model)
    dx.update(model, dx.state(model), strict=True)
    state = plus_one(dx.state(model))
    state["mean"] = dx.BatchStat(jnp.ones(3, jnp.bfloat16))
    state["raw"] = np.ones(2, np.int32)
    del state["part"]
    with pytest.raises(GraphError, match="the State does not fit the graph at 3 paths") as caught:
        dx.update(model, state, strict=True)
    assert "mean: expected dtype float32, got dtype bfloat16" in str(caught.value)
    assert "raw: expected dtype float32, got dtype int32" in str(caught.value)
    assert "part.kernel: expected a Param, got nothing" in str(caught.value)
    assert_untouched(model, before)


def test_strict_sees_the_dtypes_that_jax_gives_to_values():
    model = Open()
    model.scale, model.nothing, model.number = dx.Param(jnp.ones(())), dx.Cache(None), dx.Param(1.0)
    fits = {"scale": np.float64(2.0), "nothing": jnp.ones(3), "number": jnp.ones(())}
    dx.update(model, fits, strict=True)
    assert model.scale.value == 2
    for wrong in (3, 3j, True, np.float16(1)):
        with pytest.raises(GraphError, match="scale: expected dtype float32, got dtype"):
            dx.update(model, {**fits, "scale": wrong}, strict=True)
    abstract = dx.eval_shape(lambda: dx.Linear(2, 3, rngs=dx.Rngs(0)))
    linear = dx.Linear(2, 3, rngs=dx.Rngs(0))
    dx.update(abstract, dx.state(linear), strict=True, copy=False)
    assert abstract.kernel.value is linear.kernel.value


def test_not_strict_still_refuses_what_cannot_be_written():
    model = Open()
    model.pair = dx.data((jnp.zeros(1), jnp.zeros(1)))
    with pytest.raises(GraphError, match="which cannot be changed in place"):
        dx.update(model, {"pair": {0: jnp.ones(1)}}, strict=False)


# ================================================================= the quick way is the same as the careful one


@given(recipes(max_nodes=4))
def test_updates_of_all_leaves_agree_with_updates_of_each(recipe):
    at_once, one_by_one = build(recipe), build(recipe)
    new = dx.state(at_once).map(lambda path, value: value)
    new = jax.tree.map(lambda x: x + 1 if isinstance(x, (jax.Array, np.ndarray)) else x, new)
    flat = list(new.flat_state())
    try:
        dx.update(at_once, new)
    except GraphError as error:
        assert "which cannot be changed in place" in str(error)  # noqa: PT017  # of leaves in tuples only
        return
    for pair in flat:
        dx.update(one_by_one, dx.State.from_flat_path([pair]))
    same_graph(at_once, one_by_one)


def test_metadata_arrives_too():
    model, other = model_of(), model_of()
    other.part.kernel.set_metadata("note", 1)
    dx.jit(lambda m: None)(model)  # known to a cached description
    dx.update(model, dx.state(other))
    assert model.part.kernel.note == 1
    assert dx.graphdef(model) is dx.graphdef(other)


def test_one_structure_of_states_is_compared_once(monkeypatch):
    from declax._state.definition import StateDef

    counted = []
    position = StateDef.position
    monkeypatch.setattr(StateDef, "position", lambda *args: counted.append(1) or position(*args))
    model = model_of()
    model.only_in_this_test = dx.Param(1.0)  # or another test's structure would be known already
    part = dx.state(model, dx.Param)
    for _ in range(3):
        dx.update(model, part)
    assert len(counted) == len(part.paths)


# ================================================================= what may take the place of what


NO_ARRAYS = {
    "text": "abc",
    "None": None,
    "list": [1.0, 2.0],
    "object": object(),
    "shape": jax.ShapeDtypeStruct((2,), jnp.float32),
    "text array": np.array(["a", "b"]),
    "function": len,
}


@pytest.mark.parametrize("value", NO_ARRAYS.values(), ids=NO_ARRAYS)
@pytest.mark.parametrize("name", ["param", "plain"])
def test_only_arrays_take_the_place_of_arrays(name, value):
    model = Open()
    model.param, model.plain = dx.Param(jnp.ones(2)), jnp.ones(2)
    graphdef, state = dx.split(model)
    with pytest.raises(GraphError, match="the State does not fit the graph at 1 path"):
        dx.update(model, dx.State.from_flat_path([((name,), value)]))
    assert dx.split(model) == (graphdef, state)


def test_keys_and_numbers_do_not_take_the_place_of_each_other():
    model = Open()
    model.key, model.bits = dx.RngKey(jax.random.key(0), tag="a"), dx.Param(jnp.uint32(0))
    with pytest.raises(GraphError, match="keys of random numbers"):
        dx.update(model, {"key": jnp.uint32(0)})
    with pytest.raises(GraphError, match="an array of uint32"):
        dx.update(model, {"bits": jax.random.key(0)})


def test_trees_take_the_place_of_like_trees():
    model = Open()
    model.tree = dx.Param([jnp.ones(2), {"a": jnp.zeros(3)}])
    state = dx.state(model)
    dx.update(model, jax.tree.map(lambda x: x + 1, state))
    assert model.tree.value[1]["a"].tolist() == [1, 1, 1]
    for wrong in (jnp.ones(2), [jnp.ones(2)], [jnp.ones(2), {"a": jnp.zeros(2)}], [jnp.ones(2), {"b": jnp.zeros(3)}]):
        with pytest.raises(GraphError, match="the State does not fit the graph"):
            dx.update(model, dx.State({"tree": dx.Param(wrong)}))


def test_numbers_in_containers_become_arrays():
    model = Open()
    model.plain, model.number = dx.data([jnp.zeros(())]), dx.data(1.0)
    dx.update(model, jax.tree.map(float, dx.state(model)))
    assert isinstance(model.plain[0], jax.Array)
    assert isinstance(model.number, float)
    merged = dx.merge(dx.graphdef(model), dx.State({"plain": {0: 5.0}, "number": 2.0}))
    assert merged.plain[0] == 5
    assert dx.graphdef(merged) is dx.graphdef(model)


def test_merge_takes_arrays_only_where_there_is_no_variable():
    model = Open()
    model.plain = dx.data([jnp.zeros(())])
    with pytest.raises(GraphError, match=r"plain\[0\]: expected an array, got str 'a'"):
        dx.merge(dx.graphdef(model), dx.State({"plain": {0: "a"}}))


def test_no_state_at_all():
    model = model_of()
    for wrong in (None, model):
        for call in (lambda s: dx.update(model, s), lambda s: dx.merge(dx.graphdef(model), s)):
            with pytest.raises(GraphError, match=r"(?s)a State requires a nested mapping, .*dx\.state\(model\)"):
                call(wrong)


@pytest.mark.parametrize("node", [Open, "text", dx.graphdef, dx.graphdef(Open())], ids=name_of)
def test_no_model_at_all(node):
    functions = [dx.split, dx.state, dx.clone, dx.graphdef, lambda node: dx.update(node, {"a": 1})]
    for function in functions:
        with pytest.raises(GraphError, match="this is not a model"):
            function(node)


def test_paths_of_nodes_and_of_text_keys_are_explained():
    model = Open()
    model.layers = dx.List([dx.Linear(2, 3, rngs=dx.Rngs(0))])
    with pytest.raises(GraphError, match=r"this is not a leaf but a node with 0"):
        dx.update(model, {"layers": 3})
    with pytest.raises(GraphError, match=r"the key is the integer 0: dx\.restore_int_paths"):
        dx.update(model, {"layers": {"0": {"bias": jnp.ones(3)}}})
    with pytest.raises(
        GraphError, match=r"the key joins several: dx\.traversals\.unflatten_mapping\(values, sep='\.'\)"
    ):
        dx.update(model, {"layers.0.bias": jnp.ones(3)})
    nested = dx.restore_int_paths(dx.traversals.unflatten_mapping({"layers.0.bias": jnp.ones(3)}, sep="."))
    dx.update(model, nested)
    assert model.layers[0].bias.value.sum() == 3


def test_flat_states_are_taken():
    model = model_of()
    flat = plus_one(dx.state(model)).flat_state()
    dx.update(model, flat)
    assert all(bool((x == 1).all()) for x in dx.state(model).leaves)
    assert dx.state(dx.merge(dx.graphdef(model), flat)) == dx.state(model)


def test_a_class_that_refuses_an_attribute_leaves_all_as_it_was():
    class Refusing(dx.Module):
        def __setattr__(self, name, value):
            if getattr(self, "is_closed", False):
                raise ValueError("closed")
            super().__setattr__(name, value)

    model = Open()
    model.a, model.b = jnp.zeros(1), Refusing()
    model.b.x, model.c = jnp.zeros(1), jnp.zeros(1)
    model.b.is_closed = True
    with pytest.raises(ValueError, match="closed"):
        dx.update(model, plus_one(dx.state(model)))
    assert_untouched(model, [np.zeros(1)] * 3)


class Bag:
    """A tree that makes its children anew each time it is taken apart."""

    def __init__(self, items):
        self.items = items


jax.tree_util.register_pytree_node(Bag, lambda bag: ((list(bag.items),), None), lambda _, c: Bag(list(c[0])))


def test_what_would_be_lost_is_refused():
    model = Open()
    model.bag = dx.data(Bag([jnp.ones(2)]))
    with pytest.raises(GraphError, match="which cannot be changed in place"):
        dx.update(model, plus_one(dx.state(model)))
    model.bag = dx.data(Bag([dx.Param(1.0)]))
    with pytest.raises(GraphError, match="which cannot be changed in place"):
        dx.pop(model, dx.Param)
    dx.update(model, {"bag": {0: {0: 2.0}}})
    assert model.bag.items[0].value == 2.0


def test_many_arrays_in_a_list_of_modules_are_set_one_by_one(monkeypatch):
    from declax._graph import updating

    counted = []
    monkeypatch.setattr(updating, "children_of", lambda node: counted.append(node) or ())
    model = dx.List([Open() for _ in range(50)])
    for part in model:
        part.x = jnp.zeros(1)
    dx.update(model, plus_one(dx.state(model)))
    assert not counted, "no module looks through its siblings"


def test_a_state_held_as_data_is_written_through():
    model = Open()
    model.held = dx.data(dx.State({"a": {"k": dx.Param(jnp.ones(2))}, "b": jnp.ones(2)}))
    state = dx.state(model)
    dx.update(model, jax.tree.map(lambda x: x * 3, state))
    assert model.held["a"]["k"].value.tolist() == [3, 3]
    assert model.held["b"].tolist() == [3, 3]
    assert dx.state(model).paths == state.paths
    assert sorted(model.held) == ["a", "b"]

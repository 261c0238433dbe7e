"""Several graphs that share objects: flattened one after the other, and made again."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.errors import DepthError, GraphError, MissingKeyError, StatusError, TraceContextError
from declax.transforms.trees import RefMap, flatten, unflatten
from strategies import (
    Box,
    Declared,
    Open,
    apply_edits,
    build,
    edits,
    graphs,
    objects_of,
    own_attributes,
    recipes,
    same_graph,
)


def param(value=(1.0, 2.0)):  # whose == gives no bool
    return dx.Param(jnp.asarray(value))


def model_with_scale():
    model = Open()
    model.scale = param(2.0)
    return model


# ================================================================= RefMap


def test_a_ref_map_goes_by_identity():
    a, b = np.ones(2), np.ones(2)  # their == gives an array
    indexes = RefMap([(a, 0)])
    indexes[b] = 1
    assert (indexes[a], indexes[b], len(indexes)) == (0, 1, 2)
    assert a in indexes
    assert np.ones(2) not in indexes
    assert [id(value) for value in indexes] == [id(a), id(b)]
    assert RefMap(indexes)[b] == 1
    indexes[a] = 5
    assert indexes[a] == 5
    del indexes[a]
    assert a not in indexes


def test_a_ref_map_says_what_is_missing():
    with pytest.raises(MissingKeyError, match="this object has no index"):
        RefMap()[param()]
    with pytest.raises(KeyError, match="this object has no index"):
        del RefMap()[param()]
    assert RefMap().get(param(), -1) == -1


def test_a_ref_map_keeps_its_objects_alive():
    indexes = RefMap()
    indexes[param()] = 0
    others = [param() for _ in range(100)]  # none takes the place of the first
    assert not any(other in indexes for other in others)


# ================================================================= one graph


def test_the_leaves_come_with_paths_in_the_variables_of_the_graph():
    model = model_with_scale()
    model.count = jnp.array(3)
    graphdef, flat = flatten(model)
    assert graphdef is dx.graphdef(model)
    assert isinstance(flat, dx.FlatState)
    assert [path for path, _ in flat] == [("count",), ("scale",)]
    assert flat[1][1] is model.scale
    assert flat[0][1] is model.count


def test_or_as_raw_values():
    model = model_with_scale()
    graphdef, leaves = flatten(model, with_paths=False)
    assert leaves == [model.scale.value]
    assert unflatten(graphdef, leaves).scale is not model.scale
    assert unflatten(graphdef, leaves).scale.value is model.scale.value


def test_variables_are_shared_or_copied():
    model = model_with_scale()
    graphdef, flat = flatten(model)
    assert unflatten(graphdef, flat).scale is model.scale
    copied = unflatten(graphdef, flat, copy_variables=True)
    assert copied.scale is not model.scale
    assert copied.scale.value is model.scale.value
    assert type(copied.scale) is dx.Param


def test_a_state_does_as_well():
    model = model_with_scale()
    graphdef, state = dx.split(model)
    state["scale"] = jnp.array(5.0)
    assert unflatten(graphdef, state).scale.value == 5.0
    assert model.scale.value == 2.0


def test_a_mix_of_variables_and_values():
    model = model_with_scale()
    model.shift = param(1.0)
    graphdef, _ = flatten(model)
    pairs = dx.FlatState([(("scale",), model.scale), (("shift",), jnp.array(7.0))])
    made = unflatten(graphdef, pairs)
    assert (float(made.scale.value), float(made.shift.value)) == (2.0, 7.0)
    assert type(made.shift) is dx.Param


def test_metadata_of_the_values_goes_into_the_graph():
    model = model_with_scale()
    graphdef, flat = flatten(model)
    tagged = dx.FlatState([(("scale",), dx.Param(flat[0][1].value, tag="new"))])
    assert unflatten(graphdef, tagged, copy_variables=True).scale.tag == "new"
    assert unflatten(graphdef, tagged).scale is tagged[0][1]


@given(graphs(roots=True))
def test_unflatten_is_the_inverse(graph):
    assert same_graph(graph, unflatten(*flatten(graph)))
    assert same_graph(graph, unflatten(*flatten(graph), copy_variables=True))
    assert same_graph(graph, unflatten(*flatten(graph, with_paths=False)))
    graphdef, flat = flatten(graph)
    assert same_graph(graph, unflatten(graphdef, dx.State.from_flat_path(flat)))


def test_roots_of_all_kinds():
    shared = param()
    for root in (shared, jnp.ones(2), [shared, shared], {"a": (shared, Open())}, 3, Box(), dx.List([shared])):
        assert same_graph(root, unflatten(*flatten(root)))


# ================================================================= several graphs


def both(first, second, **options):
    """Two graphs flattened together, and made again together."""
    indexes, objects = RefMap(), {}
    parts = [flatten(graph, ref_index=indexes, **options) for graph in (first, second)]
    made = [unflatten(*part, index_ref=objects, copy_variables=True) for part in parts]
    assert sorted(objects) == list(range(len(indexes)))
    assert [type(objects[indexes[value]]) for value in indexes] == [type(value) for value in indexes]
    return parts, made


def test_two_graphs_share_a_variable():
    first, second = model_with_scale(), Open()
    second.tied, second.own = first.scale, param()
    parts, made = both(first, second)
    assert made[0].scale is made[1].tied
    assert [path for path, _ in parts[1][1]] == [("own",)]
    assert (parts[0][0].base, parts[1][0].base) == (0, 2)


def test_two_graphs_share_a_node():
    first, second = Open(), Open()
    first.part = second.part = model_with_scale()
    parts, made = both(first, second)
    assert made[0].part is made[1].part
    assert parts[1][0].num_leaves == 0


def test_a_root_that_is_known():
    model = model_with_scale()
    parts, made = both(model, model)
    assert made[0] is made[1]
    assert parts[1][0].tokens == (0,)
    assert len(parts[1][1]) == 0
    parts, made = both(model, model.scale)
    assert made[0].scale is made[1]
    parts, made = both(model.scale, model)
    assert made[1].scale is made[0]
    parts, made = both(model, [model, model.scale, 3])
    assert made[1] == [made[0], made[0].scale, 3]


def test_a_cycle_over_two_graphs():
    first, second = model_with_scale(), model_with_scale()
    first.other, second.other = second, first
    parts, made = both(first, second)  # the first has all
    assert made[0].other is made[1]
    assert made[1].other is made[0]
    assert len(parts[1][0].tokens) == 1


def test_a_cycle_that_closes_in_the_second_graph():
    first, second = Open(), Open()
    first.scale = param()
    second.first, second.self, second.part = first, second, Open()
    second.part.back = second
    _, made = both(first, second)
    assert made[1].first is made[0]
    assert made[1].self is made[1]
    assert made[1].part.back is made[1]


def test_three_graphs():
    a, b, c = model_with_scale(), Open(), Open()
    b.a, b.scale, b.own = a, a.scale, param(3.0)
    c.b, c.own, c.list = b, b.own, dx.List([a.scale, b, c])
    indexes, objects = RefMap(), {}
    parts = [flatten(graph, ref_index=indexes) for graph in (a, b, c)]
    made = [unflatten(*part, index_ref=objects, copy_variables=True) for part in parts]
    assert same_graph([a, b, c], made)
    assert [part[0].base for part in parts] == [0, 2, 4]


def test_a_ref_that_two_graphs_share():
    first, second = Open(), Open()
    first.ref = second.ref = jax.new_ref(jnp.ones(2))
    second.again = first.ref
    parts, made = both(first, second)
    assert made[0].ref is made[1].ref
    assert made[1].again is made[0].ref
    assert [part[0].num_leaves for part in parts] == [1, 0]


def test_shared_plain_arrays_are_no_objects():
    first, second = Open(), Open()
    first.array = second.array = jnp.ones(2)
    parts, made = both(first, second)
    assert parts[1][0].num_leaves == 1
    assert made[0].array is made[1].array  # the array itself is a value


def test_graphs_from_before_that_are_not_needed_may_be_missing():
    first, second = model_with_scale(), model_with_scale()
    indexes, objects = RefMap(), {}
    flatten(first, ref_index=indexes)
    part = flatten(second, ref_index=indexes)
    made = unflatten(*part, index_ref=objects, copy_variables=True)
    assert same_graph(second, made)
    assert sorted(objects) == [2, 3]
    assert same_graph(second, unflatten(*part))  # and with no dict at all


@given(recipes(roots=True), recipes(roots=True), edits(), st.data())
def test_any_two_graphs_with_common_parts(recipe, other, todo, data):
    first, second = build(recipe), build(other)
    common = objects_of(first)
    if common:
        holder = Open()
        holder.own, holder.shared = dx.data(second), dx.data(data.draw(st.sampled_from(common)))
        second = holder
        if isinstance(common[0], Open):
            common[0].across = data.draw(st.sampled_from(objects_of(second)))
    apply_edits([first, second], todo)
    parts, made = both(first, second)
    assert same_graph([first, second], made)
    assert sum(part[0].num_leaves for part in parts) == dx.graphdef([first, second]).num_leaves


def test_flattening_twice_gives_the_same_graphdefs():
    def parts():
        first, second = model_with_scale(), Open()
        second.tied = first.scale
        indexes = RefMap()
        return [flatten(graph, ref_index=indexes)[0] for graph in (first, second)]

    assert all(a is b for a, b in zip(parts(), parts(), strict=True))


def test_a_graphdef_with_a_base_is_another_one():
    indexes = RefMap()
    flatten(model_with_scale(), ref_index=indexes)
    graphdef, _ = flatten(model_with_scale(), ref_index=indexes)
    assert graphdef is not dx.graphdef(model_with_scale())
    assert graphdef != dx.graphdef(model_with_scale())
    for copied in (pickle.loads(pickle.dumps(graphdef)), copy.deepcopy(graphdef)):
        assert copied is graphdef


def test_an_error_numbers_nothing():
    broken = Open()
    broken.names = ["a"]
    broken.names.append(jnp.ones(1))
    indexes = RefMap()
    with pytest.raises(StatusError, match="an array cannot be static"):
        flatten([model_with_scale(), broken], ref_index=indexes)
    assert len(indexes) == 0


def test_the_tree_mode():
    model = model_with_scale()
    indexes = RefMap()
    assert flatten(model, graph=False)[0] is dx.graphdef(model)
    flatten(model, ref_index=indexes, graph=False)
    other = Open()
    other.parts = dx.data([param(), model.scale])
    with pytest.raises(GraphError, match=r"parts\[1\]: this is an object of a graph that was flattened before"):
        flatten(other, ref_index=indexes, graph=False)
    assert len(indexes) == 2
    with dx.set_graph_mode(False), pytest.raises(GraphError, match="a graph that was flattened before"):
        flatten(model, ref_index=indexes)
    flatten(other, ref_index=indexes)
    twice = Open()
    twice.a = twice.b = Open()
    with pytest.raises(GraphError, match=r"this is reached twice"):
        flatten(twice, ref_index=indexes, graph=False)
    assert same_graph(twice, unflatten(*flatten(twice, graph=True)))


# ================================================================= outer objects


def outer_of(*graphs):
    """Numbers for all objects of graphs, both ways."""
    listed = [value for graph in graphs for value in objects_of(graph)]
    return RefMap((value, 10 + i) for i, value in enumerate(listed)), dict(enumerate(listed, 10))


def changed_by(outer, change):
    """Changes a copy of a graph, and then the graph itself by way of the copy."""
    indexes, objects = RefMap(), {}
    part = flatten(outer, ref_index=indexes)
    inner = unflatten(*part, index_ref=objects, copy_variables=True)
    change(inner)
    graphdef, leaves = flatten(
        inner, with_paths=False, ref_outer_index=RefMap((value, index) for index, value in objects.items())
    )
    made = unflatten(graphdef, leaves, outer_index_outer_ref={index: value for value, index in indexes.items()})
    return inner, made


def test_outer_objects_are_changed_in_place():
    outer = model_with_scale()
    outer.part, outer.gone, outer.dim = Open(), Open(), 3
    part, gone, scale = outer.part, outer.gone, outer.scale

    def change(inner):
        inner.scale.value = inner.scale.value * 3
        inner.part.new = param(7.0)
        inner.dim, inner.name = 4, "inner"
        inner.array = jnp.ones(2)
        inner.again = inner.part
        inner.self = inner
        del inner.gone

    inner, made = changed_by(outer, change)
    assert made is outer
    assert same_graph(inner, outer)
    assert outer.part is part
    assert outer.scale is scale
    assert float(scale.value) == 6.0
    assert not hasattr(outer, "gone")
    assert dx.graphdef(gone) is dx.graphdef(Open())  # untouched


@given(recipes(), edits())
def test_any_change_of_outer_objects(recipe, todo):
    outer, expected = build(recipe), build(recipe)
    before = objects_of(outer)
    apply_edits(expected, todo)
    inner, made = changed_by(outer, lambda graph: apply_edits(graph, todo))
    assert made is outer
    assert same_graph(inner, outer)
    assert same_graph(expected, outer)
    ids = {id(value) for value in before}
    kept = [value for value in objects_of(inner) if id(value) not in ids]
    assert len(kept) == len(objects_of(inner))  # nothing of the one is in the other


def test_only_what_differs_is_set():
    outer = model_with_scale()
    outer.part, outer.sizes = Open(), [1, 2]
    binding = dx.graphdef(outer)
    attributes = dict(vars(outer))
    changed_by(outer, lambda inner: None)
    assert {name: value for name, value in vars(outer).items() if attributes.get(name) is not value} == {}
    assert dx.graphdef(outer) is binding


def test_one_attribute_for_another():
    outer = Open()
    outer.a, outer.part = 3, Open()

    def change(inner):
        del inner.a
        inner.b = None

    changed_by(outer, change)
    assert own_attributes(outer) == {"b": None, "part": outer.part}


@pytest.mark.parametrize(("before", "after"), [(1, True), (0.0, -0.0), ({1}, {True}), ((1,), (1.0,)), ([0.0], [-0.0])])
def test_equal_statics_of_another_kind_are_set(before, after):
    outer = Open()
    outer.fixed = dx.static(before)

    def change(inner):
        inner.fixed = dx.static(after)

    changed_by(outer, change)
    assert repr(outer.fixed) == repr(after)


def test_metadata_of_outer_variables_changes():
    outer = model_with_scale()
    changed_by(outer, lambda inner: inner.scale.set_metadata(tag="new"))
    assert outer.scale.tag == "new"


def test_the_status_of_an_outer_attribute_changes():
    outer = Open()
    outer.count = 3

    def change(inner):
        inner.count = dx.data(jnp.array(3))

    changed_by(outer, change)
    assert dx.state(outer).paths == (("count",),)


def test_a_declared_class_may_deviate_and_come_back():
    outer = Declared()

    def deviate(inner):
        inner.extra = param()

    def come_back(inner):
        del inner.extra

    changed_by(outer, deviate)
    assert dx.state(outer).paths == (("extra",),)
    changed_by(outer, come_back)
    assert dx.graphdef(outer) is dx.graphdef(Declared())


def test_an_object_that_is_no_pytree():
    outer = Box()
    outer.held, outer.name = param(1.0), "box"

    def change(inner):
        inner.name = "changed"
        inner.held.value = jnp.array(4.0)

    _, made = changed_by(outer, change)
    assert made is outer
    assert (outer.name, float(outer.held.value)) == ("changed", 4.0)


def test_refs_stay_the_outer_ones():
    outer = Open()
    outer.ref = jax.new_ref(jnp.ones(2))
    ref = outer.ref
    indexes, numbered = outer_of(outer)
    indexes[ref], numbered[99] = 99, ref
    graphdef, flat = flatten(outer, ref_outer_index=indexes)
    assert jax.tree.leaves(flat) == []
    assert flat[0] == (("ref",), None)
    outer.twice = ref
    made = unflatten(graphdef, flat, outer_index_outer_ref=numbered)
    assert made is outer
    assert outer.ref is ref
    assert not hasattr(outer, "twice")


def test_without_outer_objects_new_ones_are_made():
    model = model_with_scale()
    indexes, _ = outer_of(model)
    graphdef, leaves = flatten(model, ref_outer_index=indexes, with_paths=False)
    assert graphdef.outer == (10, 11)
    made = unflatten(graphdef, leaves)
    assert made is not model
    assert same_graph(made, model)


def test_some_objects_are_outer_and_others_new():
    model = model_with_scale()
    model.part = Open()
    model.extra = 5
    indexes, numbered = RefMap([(model, 7), (model.scale, 3)]), {7: model, 3: model.scale}
    graphdef, flat = flatten(model, ref_outer_index=indexes)
    part = model.part
    made = unflatten(graphdef, flat, outer_index_outer_ref=numbered)
    assert made is model
    assert model.part is not part


def test_several_graphs_with_outer_objects():
    first, second = model_with_scale(), Open()
    second.tied = first.scale
    numbers, numbered = outer_of(first, second)
    indexes = RefMap()
    parts = [flatten(graph, ref_index=indexes, ref_outer_index=numbers, with_paths=False) for graph in (first, second)]
    leaves = [[value * 2 for value in part[1]] for part in parts]
    objects = {}
    made = [
        unflatten(part[0], values, index_ref=objects, outer_index_outer_ref=numbered)
        for part, values in zip(parts, leaves, strict=True)
    ]
    assert made[0] is first
    assert made[1] is second
    assert second.tied is first.scale
    assert float(first.scale.value) == 4.0
    assert objects == {0: first, 1: first.scale, 2: second}


def test_outer_objects_of_another_trace_level():
    outer = model_with_scale()

    @jax.jit
    def f(x):
        with pytest.raises(TraceContextError, match="from another trace level"):
            changed_by(outer, lambda inner: setattr(inner.scale, "value", x))
        return x

    f(1.0)
    assert float(outer.scale.value) == 2.0


# ================================================================= errors


def test_the_first_graph_is_needed():
    first, second = model_with_scale(), Open()
    second.tied = first.scale
    indexes = RefMap()
    flatten(first, ref_index=indexes)
    part = flatten(second, ref_index=indexes)
    for objects in (None, {}, {0: first}):
        given_objects = None if objects is None else dict(objects)
        with pytest.raises(GraphError, match="the graph refers to object 1 of earlier graphs, which is not there"):
            unflatten(*part, index_ref=given_objects)
        assert given_objects == objects


def test_the_wrong_number_of_leaves():
    graphdef, leaves = flatten(model_with_scale(), with_paths=False)
    with pytest.raises(GraphError, match=r"these are not the leaves of the graph[^$]*2 leaves"):
        unflatten(graphdef, [*leaves, 1.0])
    with pytest.raises(GraphError, match=r"a State requires a nested mapping[^$]*got: *float 1.0"):
        unflatten(graphdef, 1.0)


def test_a_nested_dict_does_as_well():
    graphdef, _ = flatten(model_with_scale())
    assert unflatten(graphdef, {"scale": jnp.array(4.0)}).scale.value == 4.0


def test_leaves_of_another_graph():
    graphdef, _ = flatten(model_with_scale())
    other = Open()
    other.scal = param()
    with pytest.raises(GraphError, match=r"scal: there is no such path; did you mean 'scale'\?"):
        unflatten(graphdef, flatten(other)[1])


def test_what_is_no_graphdef():
    with pytest.raises(GraphError, match="the first argument is not a GraphDef"):
        unflatten("graphdef", {})


def test_outer_objects_that_are_missing_or_others():
    model = model_with_scale()
    model.ref = jax.new_ref(jnp.ones(2))
    indexes, numbered = outer_of(model)
    indexes[model.ref], numbered[12] = 12, model.ref
    graphdef, flat = flatten(model, ref_outer_index=indexes)
    attributes = dict(vars(model))
    with pytest.raises(GraphError, match="the outer object of index 11 is another one than the graph says"):
        unflatten(graphdef, flat, outer_index_outer_ref={10: model, 12: model.ref})
    for index, other in ((10, Declared()), (10, dx.Param(1.0)), (11, dx.Cache(1.0)), (12, jnp.ones(2))):
        with pytest.raises(GraphError, match=f"the outer object of index {index} is another one than the graph says"):
            unflatten(graphdef, flat, outer_index_outer_ref={**numbered, index: other})
    assert vars(model) == attributes


# ================================================================= sizes


def test_very_deep_graphs():
    root = node = Open()
    for _ in range(10_000):
        node.part = Open()
        node = node.part
    node.scale = param()
    second = Open()
    second.tied = node.scale
    indexes, objects = RefMap(), {}
    parts = [flatten(graph, ref_index=indexes) for graph in (root, second)]
    made = [unflatten(*part, index_ref=objects, copy_variables=True) for part in parts]
    assert made[1].tied is objects[indexes[node.scale]]
    _, outer = changed_by(root, lambda inner: setattr(inner, "name", "deep"))
    assert outer is root
    assert root.name == "deep"


def test_deep_containers():
    for depth, is_taken in ((300, True), (3_000, False)):
        outer = Box()
        nested = [jnp.ones(2)]
        for _ in range(depth):
            nested = [nested]
        outer.nested = nested
        if is_taken:
            _, made = changed_by(outer, lambda inner: setattr(inner, "name", "deep"))
            assert made is outer
            assert outer.name == "deep"
            assert type(outer.nested[0][0]) is list
        else:
            with pytest.raises(DepthError, match="a container is nested more than 400 levels deep"):
                flatten(outer)


@pytest.mark.parametrize(("name", "place"), [("log", r"Module\.log"), (0, r"Module\[0\]")])
def test_an_array_that_enters_a_static_dict_between_calls_is_named(name, place):
    log: dict[str, object] = {"step": 0}
    model, step = dx.Module(), dx.jit(lambda model: None)
    vars(model)[name] = log
    step(model)
    log["loss"] = jnp.ones(())
    with pytest.raises(StatusError, match=rf"^{place}\['loss'\]: an array cannot be static"):
        step(model)


@pytest.mark.parametrize("make", [lambda: dx.Param(1.0), dx.Module, lambda: (dx.Module(),)])
@pytest.mark.parametrize("use", [dx.state, dx.split, dx.clone, dx.jit(lambda model: None)])
def test_a_node_that_enters_a_static_list_is_named(make, use):
    model = dx.Module()
    model.layers = []  # static, since it holds no data
    model.layers.append(make())
    with pytest.raises(StatusError, match=r"^Module\.layers\[0\](\[0\])?: a (Param|Module) cannot be static"):
        use(model)

"""Array refs in graphs: making them, converting, and what each function of the graph API does with them."""

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
from declax._graph.array_refs import (
    ArrayRef,
    array_ref,
    as_pure,
    is_array_ref,
    pure,
    to_arrays,
    to_refs,
    with_vars,
)


class Counter(dx.Module):
    """Two attributes that share a ref, and a Variable that holds another one."""

    def __init__(self) -> None:
        self.total = array_ref(jnp.zeros(3))
        self.again = self.total
        self.scale = dx.Param(array_ref(jnp.ones(2)))


def listed(error: pytest.ExceptionInfo[dx.DeclaxError]) -> list[str]:
    """The lines between the rules of an error about duplicates."""
    lines = str(error.value).splitlines()
    assert lines[0].endswith("Found duplicate at paths:")
    rules = [i for i, line in enumerate(lines) if line == "  ---"]
    return lines[rules[0] + 1 : rules[-1]]


class TestRefs:
    def test_a_ref_is_written_in_place_and_leaves_its_array_alone(self):
        array = jnp.zeros(2)
        ref = array_ref(array)
        ref[1] = 4.0
        assert ref[...].tolist() == [0, 4]
        assert array.tolist() == [0, 0]

    def test_refs_of_numbers_numpy_arrays_and_variables(self):
        assert array_ref(2.0)[...] == 2
        assert array_ref(np.arange(3))[...].tolist() == [0, 1, 2]
        assert array_ref(dx.Param(jnp.ones(2)))[...].tolist() == [1, 1]

    def test_a_ref_holds_no_ref(self):
        with pytest.raises(dx.DeclaxError, match="a ref cannot hold another one"):
            array_ref(array_ref(1.0))

    def test_what_is_a_ref(self):
        ref = array_ref(1.0)
        assert is_array_ref(ref)
        assert isinstance(ref, ArrayRef)
        for value in (jnp.ones(1), np.ones(1), 1.0, None, dx.Param(ref), jax.ShapeDtypeStruct((), float)):
            assert not is_array_ref(value)

    def test_what_stands_for_a_ref_while_jax_traces(self):
        @jax.jit
        def f(ref, array):
            assert is_array_ref(ref)
            assert isinstance(ref, ArrayRef)
            assert not is_array_ref(array)
            assert not isinstance(array, ArrayRef)

        f(array_ref(1.0), jnp.ones(2))

    def test_a_ref_is_data(self):
        model = Counter()
        assert dx.is_data(model.total)
        leaves = jax.tree.leaves(model)
        assert [leaf is model.total for leaf in leaves] == [True, False, True]

    def test_refs_in_fields_of_dataclasses(self):
        @dx.dataclass
        class Total(dx.Module):
            size: int
            by_annotation: jax.Ref
            optional: ArrayRef | None
            several: list[jax.Ref]

        model = Total(3, array_ref(jnp.ones(3)), None, [array_ref(1.0)])
        assert len(jax.tree.leaves(model)) == 2

        @dx.jit
        def double(model):
            model.by_annotation[...] *= 2
            model.several[0][...] += 1

        double(model)
        assert model.by_annotation[...].tolist() == [2, 2, 2]
        assert model.several[0][...] == 2


class TestToRefs:
    def test_arrays_become_refs_and_refs_stay(self):
        old = array_ref(jnp.array(2.0))
        first, second = to_refs([jnp.array(1.0), old])
        assert is_array_ref(first)
        assert first[...] == 1
        assert second is old

    def test_one_array_in_several_places(self):
        shared = jnp.array(1.0)
        with pytest.raises(ValueError, match="Found duplicate at paths") as error:
            to_refs([shared, shared])
        assert isinstance(error.value, dx.DeclaxError)
        assert listed(error) == ["  0", "  1"]

    def test_all_duplicates_are_listed(self):
        a, b = jnp.zeros(1), jnp.ones(1)
        with pytest.raises(dx.DeclaxError, match="each place would get a separate ref") as error:
            to_refs({"a": [a, a], "b": dx.List([dx.Param(b), {"x": b}])})
        assert listed(error) == ["  a/0", "  a/1", "  ---", "  b/0", "  b/1/x"]

    def test_only(self):
        shared = jnp.array(1.0)
        first, second = to_refs([shared, shared], only=lambda path, x: path[0] == 0)
        assert is_array_ref(first)
        assert isinstance(second, jax.Array)

    def test_only_of_a_kind(self):
        model = dx.List([dx.Param(jnp.ones(1)), dx.BatchStat(jnp.ones(1)), jnp.ones(1)])
        made = to_refs(model, dx.Param)
        assert is_array_ref(made[0].raw_value)
        assert isinstance(made[1].raw_value, jax.Array)
        assert isinstance(made[2], jax.Array)

    def test_models(self):
        model = dx.Linear(2, 3, rngs=dx.Rngs(0))
        kernel = model.kernel.raw_value
        made = to_refs(model)
        assert type(made) is dx.Linear
        assert is_array_ref(made.kernel.raw_value)
        made.kernel[...] = made.kernel[...] * 0
        assert model.kernel.raw_value is kernel
        assert model.kernel.sum() != 0
        assert dx.graphdef(made) is dx.graphdef(model)

    def test_what_is_shared_stays_shared(self):
        model = dx.List([dx.Param(jnp.ones(1)), dx.Module()])
        model.append(model[0])
        model.append(model[1])
        model[1].part = jnp.zeros(1)
        made = to_refs(model)
        assert made[0] is made[2]
        assert made[1] is made[3]
        assert is_array_ref(made[3].part)

    def test_cycles(self):
        model = dx.Module()
        model.me, model.scale = model, jnp.ones(1)
        made = to_refs(model)
        assert made.me is made
        assert is_array_ref(made.scale)

    def test_trees_in_variables(self):
        shared = jnp.ones(1)
        model = dx.Module()
        model.both = dx.Param({"a": jnp.ones(2), "b": (3, jnp.zeros(2))})
        made = to_refs(model)
        assert is_array_ref(made.both.raw_value["a"])
        assert made.both.raw_value["b"][0] == 3
        assert is_array_ref(made.both.raw_value["b"][1])
        assert isinstance(model.both.raw_value["a"], jax.Array)
        model.both.value = {"a": shared, "b": (shared,)}
        with pytest.raises(dx.DeclaxError, match="Found duplicate at paths") as error:
            to_refs(model)
        assert listed(error) == ["  both/a", "  both/b/0"]

    def test_numbers_static_values_and_shapes_stay(self):
        shape = jax.ShapeDtypeStruct((2,), jnp.float32)
        made = to_refs([dx.Param(2.0), 3, "a", None, shape])
        assert made[0].raw_value == 2.0
        assert made[1:] == [3, "a", None, shape]
        assert is_array_ref(to_refs([np.ones(2)])[0])

    def test_states(self):
        state = dx.state(dx.Linear(2, 3, rngs=dx.Rngs(0)))
        made = to_refs(state)
        assert type(made) is dx.State
        assert all(map(is_array_ref, made.leaves))
        assert made.definition is state.definition

    def test_trees_are_asked_for(self):
        model = dx.List([dx.Param(jnp.ones(1))])
        model.append(model[0])
        for convert in (to_refs, to_arrays, as_pure, lambda m, graph: with_vars(m, ref=True, graph=graph)):
            with pytest.raises(dx.DeclaxError, match="this is reached twice"):
                convert(model, graph=False)

    def test_in_a_jitted_function(self):
        @dx.jit
        def f(array):
            made = to_refs(dx.List([array]))
            made[0][0] = 7.0
            return to_arrays(made)[0]

        assert f(jnp.zeros(2)).tolist() == [7, 0]


class TestToArrays:
    def test_refs_become_arrays_and_arrays_stay(self):
        array = jnp.array(2.0)
        first, second = to_arrays([array_ref(jnp.array(1.0)), array])
        assert isinstance(first, jax.Array)
        assert first == 1
        assert second is array

    def test_one_ref_in_several_places(self):
        shared = array_ref(jnp.array(1.0))
        with pytest.raises(ValueError, match="each place would get a separate array") as error:
            to_arrays([shared, shared])
        assert listed(error) == ["  0", "  1"]

    def test_one_ref_in_several_variables_and_attributes(self):
        model = Counter()
        model.other = dx.Param(model.total)
        with pytest.raises(dx.DeclaxError, match="Found duplicate at paths") as error:
            to_arrays(model)
        assert listed(error) == ["  again", "  other", "  total"]

    def test_duplicates_may_be_allowed(self):
        model = Counter()
        made = to_arrays(model, allow_duplicates=True)
        assert isinstance(made.total, jax.Array)
        assert made.total is not made.again  # so that refs can be made of them again
        assert is_array_ref(to_refs(made).again)
        assert is_array_ref(model.total)
        assert model.total is model.again

    def test_shared_refs_after_other_shared_objects(self):
        model = dx.List([dx.Module(), array_ref(1.0), dx.Param(jnp.ones(1))])
        for i in range(3):
            model.append(model[i])
        made = to_arrays(model, allow_duplicates=True)
        assert made[0] is made[3]
        assert made[1] == made[4] == 1
        assert made[2] is made[5]
        assert len(dx.find_duplicates(made)) == 2

    def test_only(self):
        refs = [array_ref(1.0), array_ref(2.0)]
        first, second = to_arrays(refs, only=lambda path, x: path[0] == 0)
        assert isinstance(first, jax.Array)
        assert second is refs[1]

    def test_only_some_places_of_a_ref(self):
        model = Counter()
        made = to_arrays(model, only=dx.PathContains("again"))
        assert isinstance(made.again, jax.Array)
        assert made.total is model.total


def arrays_of(draw_shape: tuple[int, ...], seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), draw_shape)


@st.composite
def models(draw):
    """A model of Variables, arrays and numbers, some of which are shared."""
    made = []
    for seed in range(draw(st.integers(1, 6))):
        array = arrays_of(tuple(draw(st.lists(st.integers(0, 3), max_size=2))), seed)
        options = [dx.Param(array), dx.BatchStat({"a": array}), array, seed, dx.List([array]), {"k": [array]}]
        made.append(draw(st.sampled_from([*options, *(m for m in made if isinstance(m, (dx.Variable, dx.Pytree)))])))
    return dx.List(made)


@given(models())
def test_to_arrays_is_the_inverse_of_to_refs(model):
    before = dx.state(model)
    refs = to_refs(model)
    after = to_arrays(refs)
    assert dx.state(after) == before == dx.state(model)
    assert dx.graphdef(after) is dx.graphdef(model)
    assert not any(map(is_array_ref, jax.tree.leaves(dx.state(after))))
    assert all(is_array_ref(leaf) or isinstance(leaf, int) for leaf in jax.tree.leaves(dx.state(refs)))


class TestWithVars:
    def test_variables_hold_refs_and_arrays_stay(self):
        array = jnp.ones(1)
        made = with_vars([array, dx.Param(array)], ref=True)
        assert made[0] is array
        assert is_array_ref(made[1].raw_value)
        back = with_vars(made, ref=False)
        assert isinstance(back[1].raw_value, jax.Array)

    def test_refs_in_no_variable_stay(self):
        model = Counter()
        made = with_vars(model, ref=False)
        assert made.total is made.again is model.total
        assert isinstance(made.scale.raw_value, jax.Array)

    def test_without_ref_it_is_a_copy(self):
        model = dx.Linear(2, 3, rngs=dx.Rngs(0))
        made = with_vars(model, hijax=False, mutable=None)
        assert made.kernel is not model.kernel
        assert made.kernel.raw_value is model.kernel.raw_value

    def test_only(self):
        made = with_vars(dx.Linear(2, 3, rngs=dx.Rngs(0)), ref=True, only=dx.PathContains("bias"))
        assert is_array_ref(made.bias.raw_value)
        assert isinstance(made.kernel.raw_value, jax.Array)

    def test_duplicates(self):
        array = jnp.ones(1)
        model = [dx.Param(array), dx.Param(array)]
        with pytest.raises(dx.DeclaxError, match="with_vars: Found duplicate at paths"):
            with_vars(model, ref=True)
        first, second = with_vars(model, ref=True, allow_duplicates=True)
        assert is_array_ref(first.raw_value)
        assert first.raw_value is not second.raw_value

    def test_one_variable_in_several_places(self):
        model = dx.List([dx.Param(jnp.ones(1)), dx.BatchStat(jnp.ones(1))])
        model.append(model[0])
        with pytest.raises(ValueError, match=r"(?s)with_vars: Found duplicate at paths.*hold one Variable"):
            with_vars(model, ref=True)
        assert not is_array_ref(model[0].raw_value)
        assert is_array_ref(with_vars(model, ref=True, only=dx.BatchStat)[1].raw_value)
        assert with_vars(model, ref=False)[2].raw_value is model[0].raw_value
        made = with_vars(model, ref=True, allow_duplicates=True)
        assert made[0] is made[2]
        assert is_array_ref(made[0].raw_value)

    @pytest.mark.parametrize("kind", ["hijax", "mutable"])
    def test_kinds_that_there_are_not(self, kind):
        with pytest.raises(dx.DeclaxError, match=f"declax has no Variables of this kind: {kind}"):
            with_vars(dx.Param(1.0), **{kind: True})

    def test_as_the_peer(self):
        nnx = pytest.importorskip("flax.nnx")
        ours, theirs = dx.Linear(2, 3, rngs=dx.Rngs(0)), nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        for ref in (None, True, False):
            made, peers = with_vars(ours, ref=ref), nnx.with_vars(theirs, ref=ref)
            assert is_array_ref(made.kernel.raw_value) == isinstance(peers.kernel.get_raw_value(), jax.Ref)
            np.testing.assert_array_equal(made.kernel[...], peers.kernel[...])


class TestPure:
    def test_states(self):
        model = dx.Linear(2, 3, rngs=dx.Rngs(0))
        made = as_pure(dx.state(model))
        assert type(made) is dx.State
        assert made.definition.leaf_defs == (None, None)
        assert made["kernel"] is model.kernel.raw_value
        assert jax.tree.map(jnp.shape, made).to_pure_dict() == {"bias": (3,), "kernel": (2, 3)}

    def test_a_pure_state_updates_a_model(self):
        model, other = (dx.Linear(2, 3, rngs=dx.Rngs(seed)) for seed in (0, 1))
        dx.update(other, as_pure(dx.state(model)))
        assert dx.state(other) == dx.state(model)

    def test_flat_states_and_states_in_containers(self):
        model = dx.Linear(2, 3, rngs=dx.Rngs(0))
        flat = as_pure(dx.state(model).flat_state())
        assert [path for path, _ in flat] == [("bias",), ("kernel",)]
        assert all(isinstance(value, jax.Array) for _, value in flat)
        graphdef, state = as_pure(dx.split(model))
        assert graphdef is dx.graphdef(model)
        assert state == as_pure(dx.state(model))

    def test_a_state_with_its_graphdef_becomes_a_plain_one(self):
        made = as_pure(dx.unpack(dx.Linear(2, 3, rngs=dx.Rngs(0))))
        assert type(made) is dx.State
        assert made.definition.leaf_defs == (None, None)

    def test_views_of_states(self):
        state = dx.State({"a": {"b": dx.Param(1.0)}, "c": dx.Param(2.0)})
        assert as_pure(state["a"]).to_pure_dict() == {"b": 1.0}

    def test_models(self):
        model = dx.List([dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.Param({"a": 1.0, "b": [2.0]}), 5])
        made = as_pure(model)
        assert made[0].kernel is model[0].kernel.raw_value
        assert made[1] == {"a": 1.0, "b": [2.0]}
        assert made[2] == 5
        assert isinstance(model[0].kernel, dx.Param)
        assert not any(isinstance(value, dx.Variable) for _, value in dx.iter_graph(made))

    def test_what_is_shared(self):
        model = dx.List([dx.Param(jnp.ones(1)), dx.Module()])
        model[1].scale, model[1].up = model[0], model
        made = as_pure(model)
        assert made[0] is made[1].scale
        assert made[1].up is made

    def test_values_are_those_in_the_box(self):
        hooked = dx.Param(3.0, on_get_value=lambda variable, value: value * 2)
        assert as_pure(hooked) == 3.0

    def test_refs_in_variables_are_read_and_others_stay(self):
        model = Counter()
        made = as_pure(model)
        assert made.scale.tolist() == [1, 1]
        assert made.total is made.again is model.total

    def test_the_other_name(self):
        assert pure is as_pure

    def test_as_the_peer(self):
        nnx = pytest.importorskip("flax.nnx")
        theirs = nnx.as_pure(nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0))))
        ours = as_pure(dx.state(dx.Linear(2, 3, rngs=dx.Rngs(0))))
        for name in ("kernel", "bias"):
            np.testing.assert_array_equal(ours[name], theirs[name])


class TestTransforms:
    @pytest.mark.parametrize("jit", [dx.jit, jax.jit], ids=["dx", "jax"])
    def test_what_is_written_in_a_jitted_function_is_seen_outside(self, jit):
        model = dx.Module()
        model.total, model.scale = array_ref(jnp.zeros(2)), dx.Param(array_ref(jnp.ones(2)))
        total, scale = model.total, model.scale.raw_value

        @jit
        def step(model, x):
            model.total[...] += x
            model.scale[0] = model.total[1]
            return model.total[...].sum()

        assert step(model, jnp.ones(2)) == 2
        assert step(model, jnp.ones(2)) == 4
        assert total[...].tolist() == [2, 2]
        assert scale[...].tolist() == [2, 1]
        assert model.total is total
        assert model.scale.raw_value is scale

    def test_a_shared_ref_goes_in_once(self):
        model = Counter()

        @dx.jit
        def step(model):
            assert model.total is model.again
            model.again[0] = 5.0
            return model.total[...]

        for _ in range(2):
            assert step(model).tolist() == [5, 0, 0]
        assert model.total is model.again
        assert model.total[...].tolist() == [5, 0, 0]

    def test_changes_of_structure_keep_refs(self):
        model = Counter()
        total = model.total

        @dx.jit
        def grow(model):
            model.total[...] += 1
            model.third = model.total
            model.extra = dx.Param(model.total[...] * 2)
            del model.again
            return model

        assert grow(model) is model
        assert model.total is model.third is total
        assert not hasattr(model, "again")
        assert model.extra.value.tolist() == [2, 2, 2]

    def test_a_ref_may_become_an_array(self):
        model = Counter()
        total = model.total

        @dx.jit
        def freeze(model):
            model.total = model.total[...] + 1

        freeze(model)
        assert isinstance(model.total, jax.Array)
        assert model.again is total

    def test_aliases_are_an_error_of_jax(self):
        model = Counter()
        with pytest.raises(ValueError, match="only one reference to a mutable array"):
            dx.jit(lambda model, ref: None)(model, model.total)
        assert dx.jit(lambda model: model.total[...].sum())(model) == 0


class TestGraph:
    def test_split_and_merge_share_refs(self):
        model = Counter()
        graphdef, state = dx.split(model)
        assert state.paths == (("again",), ("scale",))
        made = dx.merge(graphdef, state)
        assert made.total is made.again is model.total
        assert made.scale.raw_value is model.scale.raw_value

    def test_filters(self):
        refs, rest = dx.state(Counter(), ArrayRef, ...)
        assert refs.paths == (("again",),)
        assert rest.paths == (("scale",),)

    def test_copies_have_refs_of_their_own(self):
        model = Counter()
        model.other = dx.Param(model.scale.raw_value)
        for made in (dx.clone(model), dx.merge(*dx.split(model), copy=True), copy.deepcopy(model)):
            assert made.total is made.again
            assert made.scale.raw_value is made.other.raw_value
            made.total[0] = 9.0
            made.scale[0] = 9.0
            assert model.total[...].tolist() == [0, 0, 0]
            assert model.scale[...].tolist() == [1, 1]
        state = dx.state(model, copy=True)
        model.total[...] = jnp.ones(3)
        assert state["again"][...].tolist() == [0, 0, 0]

    def test_clones_in_a_jitted_function(self):
        @dx.jit
        def f(model):
            made = dx.clone(model)
            assert made.total is made.again
            made.total[...] += 1
            return made.again[...].sum() + model.total[...].sum()

        assert f(Counter()) == 3

    def test_shallow_clones_share_refs_in_variables(self):
        model = Counter()
        made = dx.clone(model, variables=False)
        assert made.scale is model.scale

    def test_a_snapshot_shares_refs(self):
        model = Counter()
        state = dx.state(model)
        model.total[0] = 1.0
        assert state["again"][0] == 1

    def test_looking_for_refs(self):
        model = Counter()
        assert dx.find_duplicates(model) == [[("again",), ("total",)]]
        assert dx.find_duplicates(model, only=ArrayRef) == [[("again",), ("total",)]]
        assert dx.find_duplicates(model, only=dx.Param) == []
        found = [(path, type(value)) for path, value in dx.iter_graph(model)]
        assert found == [(("again",), ArrayRef), (("scale",), dx.Param), ((), Counter)]

    def test_pop_takes_variables_and_refs(self):
        model = Counter()
        ref = model.scale.raw_value
        popped = dx.pop(model, dx.Param)
        assert popped.leaves[0] is ref
        assert model.total is model.again
        total = model.total
        popped = dx.pop(model, ArrayRef)
        assert popped.paths == (("again",),)
        assert popped.leaves[0] is total
        assert not hasattr(model, "again")
        assert not hasattr(model, "total")

    def test_tree_mode(self):
        with pytest.raises(dx.DeclaxError, match="this is reached twice"):
            dx.split(Counter(), graph=False)

    def test_replacing_a_shared_ref_is_a_change_of_structure(self):
        model = Counter()
        before = dx.graphdef(model)
        model.again = array_ref(jnp.zeros(3))
        assert dx.graphdef(model) is not before
        assert dx.find_duplicates(model) == []

    def test_replacing_a_ref_by_an_array(self):
        model = dx.Module()
        model.total = array_ref(jnp.zeros(1))
        before = dx.graphdef(model)
        model.total = jnp.zeros(1)
        assert dx.graphdef(model) is not before

    def test_models_are_stored_with_arrays(self):
        made = to_refs(pickle.loads(pickle.dumps(to_arrays(Counter(), allow_duplicates=True))))
        made.total[0] = 3.0
        assert made.total[...].tolist() == [3, 0, 0]

    def test_copies_of_states_have_refs_of_their_own(self):
        model = Counter()
        model.other = dx.Param(model.scale.raw_value)
        state = copy.deepcopy(dx.state(model))
        assert state.leaves[0] is not model.total
        assert state["scale"].raw_value is state["other"].raw_value is not model.scale.raw_value

    def test_looking_for_shared_refs_while_jax_traces(self):
        @dx.jit
        def f(model):
            assert [path for path, _ in dx.iter_graph(model)] == [("again",), ("scale",), ()]

        f(Counter())


class TestVariables:
    """Variables that hold refs are to their users what Variables with arrays are."""

    def test_they_read_as_arrays(self):
        scale = dx.Param(array_ref(jnp.ones(2)))
        assert isinstance(scale.value, jax.Array)
        assert isinstance(scale.get_value(index=0), jax.Array)
        assert (scale + 1).tolist() == [2, 2]
        assert jnp.sum(scale) == 2
        assert scale.shape == (2,)
        assert np.asarray(scale).tolist() == [1, 1]
        assert scale.at[0].set(5).tolist() == [5, 1]
        assert is_array_ref(scale.raw_value)
        assert is_array_ref(scale.get_raw_value())

    def test_they_are_written_in_place(self):
        ref = array_ref(jnp.ones(2))
        scale = dx.Param(ref)
        scale.value = jnp.zeros(2)
        assert ref[...].tolist() == [0, 0]
        scale += 2
        scale[0] = 5.0
        scale.set_value(7.0, index=1)
        assert ref[...].tolist() == [5, 7]
        scale[...] = jnp.ones(2)
        assert scale.raw_value is ref
        assert ref[...].tolist() == [1, 1]

    def test_another_ref_takes_its_place(self):
        scale, other = dx.Param(array_ref(jnp.ones(2))), array_ref(jnp.zeros(2))
        scale.value = other
        assert scale.raw_value is other

    def test_hooks(self):
        scale = dx.Param(array_ref(jnp.ones(2)), on_get_value=lambda v, x: x * 2, on_set_value=lambda v, x: x / 2)
        assert scale.value.tolist() == [2, 2]
        assert scale[0] == 2
        scale.value = jnp.full(2, 6.0)
        assert scale.raw_value[...].tolist() == [3, 3]
        scale[0] = 8.0
        assert scale.raw_value[...].tolist() == [4, 3]

    def test_models_compute_with_refs(self):
        model = dx.Linear(2, 3, rngs=dx.Rngs(0))
        x = jnp.ones((1, 2))
        refs = to_refs(model)
        np.testing.assert_array_equal(refs(x), model(x))
        np.testing.assert_allclose(dx.jit(lambda m, x: m(x))(refs, x), model(x), rtol=1e-6)

    @pytest.mark.parametrize("jit", [dx.jit, jax.jit], ids=["dx", "jax"])
    def test_in_jitted_functions(self, jit):
        model = to_refs(dx.Linear(2, 3, rngs=dx.Rngs(0)))
        kernel = model.kernel.raw_value
        before = kernel[...]

        @jit
        def step(model):
            model.kernel.value = model.kernel * 2
            model.kernel += 1

        step(model)
        np.testing.assert_allclose(kernel[...], before * 2 + 1, rtol=1e-6)
        assert model.kernel.raw_value is kernel

    def test_text_of_large_refs(self):
        assert "value=Ref(shape=(100,), dtype=dtype('float32'))" in repr(dx.Param(array_ref(jnp.zeros(100))))

    def test_as_the_peer(self):
        nnx = pytest.importorskip("flax.nnx")
        model = nnx.with_vars(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), ref=True)
        ours = to_refs(dx.Linear(2, 3, rngs=dx.Rngs(0)))
        np.testing.assert_allclose(ours(jnp.ones((1, 2))), model(jnp.ones((1, 2))), rtol=1e-6)
        for one in (ours, model):
            one.kernel[...] += 1
        np.testing.assert_array_equal(ours.kernel[...], model.kernel[...])


class TestUpdate:
    """`update` writes into refs, as it sets the values of Variables."""

    def test_refs_are_written_to_and_stay(self):
        model = Counter()
        total, scale = model.total, model.scale.raw_value
        dx.update(model, {"again": jnp.full(3, 4.0), "scale": dx.Param(jnp.zeros(2))})
        assert model.total is model.again is total
        assert total[...].tolist() == [4, 4, 4]
        assert model.scale.raw_value is scale
        assert scale[...].tolist() == [0, 0]

    def test_only_variables(self):
        model, other = (dx.Linear(2, 3, rngs=dx.Rngs(seed)) for seed in (0, 1))
        refs = to_refs(model)
        kernel = refs.kernel.raw_value
        dx.update(refs, dx.state(other))
        assert refs.kernel.raw_value is kernel
        np.testing.assert_array_equal(kernel[...], other.kernel[...])

    def test_values_of_other_refs(self):
        model, other = Counter(), Counter()
        other.total[0] = 8.0
        dx.update(model, dx.state(other))
        assert model.total[...].tolist() == [8, 0, 0]
        other.total[0] = 9.0
        assert model.total[0] == 8

    def test_its_own_state(self):
        model = Counter()
        model.total[0] = 8.0
        dx.update(model, dx.state(model))
        assert model.again[...].tolist() == [8, 0, 0]

    def test_dtypes_are_those_of_the_ref(self):
        model = dx.List([array_ref(jnp.zeros(2, jnp.bfloat16)), dx.Param(array_ref(jnp.zeros(2)))])
        dx.update(model, {0: np.ones(2, np.float32), 1: jnp.ones(2, jnp.int32)})
        assert model[0].dtype == jnp.bfloat16
        assert model[0][...].tolist() == [1, 1]
        assert model[1].raw_value[...].tolist() == [1, 1]

    def test_other_shapes(self):
        model = Counter()
        with pytest.raises(dx.DeclaxError, match=r"again: expected shape \(3,\)"):
            dx.update(model, {"scale": jnp.zeros(2), "again": jnp.zeros(2)})
        assert model.scale.raw_value[...].tolist() == [1, 1]

    def test_trees_in_variables(self):
        model = dx.List([dx.Param({"a": array_ref(jnp.zeros(1)), "b": jnp.zeros(1)})])
        ref = model[0].raw_value["a"]
        dx.update(model, dx.state([dx.Param({"a": jnp.ones(1), "b": jnp.ones(1)})]))
        assert model[0].raw_value["a"] is ref
        assert ref[0] == 1
        assert model[0].raw_value["b"][0] == 1

    def test_in_tuples(self):
        holder = dx.Module()
        holder.pair = dx.data((array_ref(jnp.zeros(1)), 1))
        dx.update(holder, {"pair": {0: jnp.ones(1)}})
        assert holder.pair[0][0] == 1

    def test_in_a_jitted_function(self):
        model, state = Counter(), {"again": jnp.ones(3), "scale": jnp.zeros(2)}

        @dx.jit
        def f(model, state):
            dx.update(model, state)
            return model.total[...].sum()

        assert f(model, state) == 3
        assert model.total is model.again
        assert model.again[...].tolist() == [1, 1, 1]
        assert model.scale.raw_value[...].tolist() == [0, 0]

    def test_refs_of_another_trace_level(self):
        model = Counter()

        @jax.jit
        def f(x):
            dx.update(model, {"again": x})

        with pytest.raises(dx.TraceContextError):
            f(jnp.ones(3))
        assert model.total[...].tolist() == [0, 0, 0]

from __future__ import annotations

import copy
import gc
import pickle
import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import declax as dx
from declax import errors
from declax._variables.kinds import Param
from declax._variables.metadata import EMPTY, Metadata, VariableMetadata, _table, insert_axis, remove_axis
from declax._variables.variable import Variable
from declax.initializers import with_metadata


def double(variable, value):
    return value * 2


def increment(variable, value):
    return value + 1


def test_equal_contents_are_one_object():
    assert Metadata.of({"a": 1, "b": [2]}) is Metadata.of({"b": [2], "a": 1})
    assert Metadata.of({}) is EMPTY


def test_equal_values_of_different_types_are_told_apart():
    metadata = [Metadata.of({"a": value}) for value in (1, True, 1.0, (1,), (True,), [1], [True])]
    assert len(set(metadata)) == len(metadata)
    assert Metadata.of({"a": True})["a"] is True


def test_metadata_is_a_mapping_that_compares_with_dicts():
    metadata = Metadata.of({"b": [2], "a": 1})
    assert metadata == {"a": 1, "b": [2]}
    assert metadata != {"a": 1}
    assert metadata != 3
    assert list(metadata) == ["a", "b"]
    assert len(metadata) == 2
    assert repr(metadata) == "{'a': 1, 'b': [2]}"


def test_containers_are_read_as_fresh_copies():
    metadata = Metadata.of({"names": ["a"]})
    metadata["names"].append("b")
    assert metadata["names"] == ["a"]


def test_copies_and_pickles_are_the_same_object():
    metadata = Metadata.of({"a": [1], "tag": "x"})
    for made in (copy.copy(metadata), copy.deepcopy(metadata), pickle.loads(pickle.dumps(metadata))):
        assert made is metadata


def test_metadata_that_nobody_holds_is_dropped():
    gc.collect()  # what other tests have left
    before = len(_table)
    metadata = Metadata.of({"only_here": 17})
    assert len(_table) == before + 1
    del metadata
    gc.collect()
    assert len(_table) == before


def test_threads_get_the_same_object():
    found: list[Metadata] = []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait()
        found.extend(Metadata.of({"n": n}) for n in range(50))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(metadata) for metadata in found}) == 50


def test_hooks_run_in_turn():
    param = Param(1.0, on_get_value=[double, increment])
    assert param.value == 3.0
    assert param.get_metadata("on_get_value") == (double, increment)
    assert Param(1.0, on_get_value=()).value == 1.0


class TestAxes:
    def test_names_of_axes_are_inserted_and_removed(self):
        param = Param(jnp.ones((2, 3)), out_sharding=("a", "b"))
        param.add_axis(1, "layers")
        assert param.out_sharding == ("a", "layers", "b")
        param.remove_axis(1, "layers")
        assert param.out_sharding == ("a", "b")

    @pytest.mark.parametrize("name", ["sharding", "sharding_names", "out_sharding"])
    def test_names_of_axes_have_one_name(self, name):
        param = Param(jnp.ones(2), **{name: ("a",)})
        assert param.get_metadata(exclude_required=True) == {"out_sharding": ("a",)}
        param.set_metadata(name, ("b",))
        assert param.get_metadata(exclude_required=True) == {"out_sharding": ("b",)}
        assert param.copy(**{name: ("c",)}).out_sharding == ("c",)

    def test_axes_past_the_last_name_are_filled_up(self):
        assert insert_axis(("a",), 3, "b") == ("a", None, None, "b")
        assert insert_axis(["a"], -1, "b") == ["a", "b"]
        assert remove_axis(Param, ("a",), 3, None) == ("a",)

    def test_partition_specs_and_named_shardings_have_axes(self):
        spec = PartitionSpec("x", None)
        assert insert_axis(spec, 0, "l") == PartitionSpec("l", "x", None)
        sharding = NamedSharding(Mesh(jax.devices()[:1], ("x",)), spec)
        inserted = insert_axis(sharding, 0, None)
        assert inserted.spec == PartitionSpec(None, "x", None)
        assert remove_axis(Param, inserted, 0, None) == sharding

    def test_other_shardings_stay(self):
        assert insert_axis("auto", 0, "l") == "auto"

    def test_removing_an_axis_of_another_name_is_an_error(self):
        param = Param(jnp.ones(2), sharding=("a",))
        with pytest.raises(errors.MetadataError, match=r"Param\.remove_axis: axis 0 has another name"):
            param.remove_axis(0, "b")

    def test_hooks_see_the_axis(self):
        seen = []
        hooks = [lambda v, i, n: seen.append((v, i, n)), lambda v, i, n: seen.append(n)]
        param = Param(1.0, on_add_axis=hooks, on_remove_axis=hooks[1])
        param.add_axis(0, "l")
        param.remove_axis(0, "m")
        assert seen[0][0] is param
        assert seen[0][1:] == (0, "l")
        assert seen[1:] == ["l", "m"]

    def test_methods_of_a_kind_are_hooks(self):
        class Sharded(Variable):
            def on_add_axis(self, axis_index, axis_name):
                self.tag = f"{axis_index}{axis_name}"

        sharded = Sharded(1.0)
        sharded.add_axis(2, "l")
        assert sharded.tag == "2l"


class TestWithMetadata:
    zeros = staticmethod(jax.nn.initializers.zeros)

    def test_the_variable_carries_the_metadata(self):
        made = with_metadata(self.zeros, sharding=("a", "b"), tag="x")(jax.random.key(0), (2, 3), jnp.float32)
        assert isinstance(made, VariableMetadata)
        assert repr(made).startswith("VariableMetadata(Array([[0., 0., 0.]")
        param = Param(made, tag="layer", weight_decay=0.1)
        assert param.get_metadata(exclude_required=True) == {
            "out_sharding": ("a", "b"),
            "tag": "x",
            "weight_decay": 0.1,
        }
        assert param.shape == (2, 3)

    def test_hooks_may_come_by_either_name(self):
        def ones(*args):
            return jnp.ones(())

        initializer = with_metadata(ones, on_get_value=double, get_value_hooks=[increment], set_value_hooks=increment)
        param = Param(initializer(None))
        assert param.value == 3
        param.value = 1
        assert param.raw_value == 2
        assert Param(with_metadata(ones, on_create_value=double)(None)).raw_value == 2

    def test_initializers_of_the_same_parts_are_equal(self):
        first, second = (with_metadata(self.zeros, tag="x", on_add_axis=[print]) for _ in range(2))
        assert first == second
        assert hash(first) == hash(second)
        assert first != with_metadata(self.zeros, tag="y")

    def test_the_outer_of_two_has_the_last_word(self):
        made = with_metadata(with_metadata(self.zeros, tag="x", mesh=None), tag="y")(None, (1,))
        assert dict(made.metadata) == {"tag": "y", "mesh": None}


def test_eager_sharding_is_that_of_now_unless_it_was_set() -> None:
    param, unplaced = dx.Param(1.0), dx.Param(1.0, eager_sharding=False)
    assert param.get_metadata() == {"eager_sharding": True}
    assert param.get_metadata("eager_sharding") is param.eager_sharding is param.has_metadata("eager_sharding") is True
    assert param.get_metadata(exclude_required=True) == {}
    with dx.use_eager_sharding(False):
        assert param.get_metadata() == {"eager_sharding": False}
    assert unplaced.get_metadata() == unplaced.get_metadata(exclude_required=True) == {"eager_sharding": False}
    assert unplaced.eager_sharding is False

from __future__ import annotations

import copy
import math
import operator
import pickle
from typing import ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declax import _jax, errors
from declax._tree import epoch
from declax._variables.kinds import BatchStat, Cache, Intermediate, Param, Perturbation, VariableState
from declax._variables.metadata import EMPTY, Metadata, VariableMetadata
from declax._variables.variable import Variable, new_variable, set_raw

T = TypeVar("T")


def doubled(variable, value):
    return value * 2


def halved(variable, value):
    return value / 2


class Count(Variable[T], Generic[T]):
    unit: str = "steps"
    limit: int
    instances: ClassVar[int] = 0

    def twice(self):
        return self.value * 2

    @property
    def is_zero(self):
        return self.raw_value == 0


class Positive(Variable):
    """Holds a logarithm, shows what it is the logarithm of."""

    def on_get_value(self, value):
        return jnp.exp(value)

    def on_set_value(self, value):
        return jnp.log(value)

    def on_create_value(self, value):
        return jnp.log(value)


class TestValue:
    def test_reading_and_writing(self):
        param = Param(jnp.ones(2))
        for write in (
            lambda x: setattr(param, "value", x),
            param.set_value,
            lambda x: setattr(param, "raw_value", x),
            param.set_raw_value,
            lambda x: operator.setitem(param, ..., x),
        ):
            new = jnp.arange(2.0)
            write(new)
            assert param.value is new
            assert param.get_value() is param[...] is param.raw_value is param.get_raw_value() is new

    def test_a_variable_as_a_value_counts_as_its_value(self):
        source = Param(jnp.ones(2), tag="a")
        assert Param(source).raw_value is source.raw_value
        assert not Param(source).has_metadata("tag")
        target = Param(jnp.zeros(2))
        target.value = source
        assert target.raw_value is source.raw_value

    def test_items(self):
        before = jnp.zeros((2, 3))
        param = Param(before)
        param[0, 1] = 5.0
        param[1] += 1.0
        np.testing.assert_array_equal(param.value, [[0, 5, 0], [1, 1, 1]])
        np.testing.assert_array_equal(param[0], [0, 5, 0])
        assert not before.any()

    def test_setting_all_items_keeps_shape_and_dtype(self):
        param = Param(jnp.zeros(3, jnp.float32))
        param[...] = 2.0
        np.testing.assert_array_equal(param.value, [2, 2, 2])
        assert param.dtype == jnp.float32

    def test_items_of_other_values(self):
        array = np.zeros(2)
        boxed = Variable(array)
        boxed[0] = 1
        assert list(boxed.value) == [1, 0]
        assert not array.any()
        boxed[...] = 3
        assert list(boxed.value) == [3, 3]

        content = {"a": 1}
        boxed = Variable(content)
        boxed["a"] = 2
        assert boxed["a"] == 2
        assert content == {"a": 1}
        boxed[...] = 7
        assert boxed[...] == 7

    def test_array_refs_are_read_and_written_by_items(self):
        boxed = Variable(jax.new_ref(jnp.zeros(2)))
        boxed[0] = 1.0
        np.testing.assert_array_equal(boxed[...], [1, 0])
        boxed[...] = jnp.ones(2)
        np.testing.assert_array_equal(boxed[...], [1, 1])

    def test_shape_and_other_attributes_are_those_of_the_value(self):
        param = Param(jnp.ones((2, 3)))
        assert (param.shape, param.dtype, param.ndim, param.size) == ((2, 3), jnp.float32, 2, 6)
        assert param.T.shape == (3, 2)
        assert param.at[0].set(0).sum() == 3
        assert param.astype(jnp.int32).dtype == jnp.int32
        assert param.sum() == 6
        assert param.sharding == param.value.sharding
        assert param.nbytes == 24


class TestHooks:
    def test_hooks_of_the_metadata(self):
        param = Param(3.0, on_get_value=doubled, on_set_value=halved, on_create_value=doubled)
        assert param.raw_value == 6.0
        assert param.value == param[...] == param.get_value() == 12.0
        param.value = 8.0
        assert param.raw_value == 4.0
        param += 2.0
        assert param.raw_value == 5.0
        param.set_raw_value(1.0)
        assert param.raw_value == 1.0

    def test_hooks_of_a_kind(self):
        positive = Positive(jnp.float32(4.0))
        np.testing.assert_allclose(positive.raw_value, math.log(4))
        np.testing.assert_allclose(positive.value, 4.0, rtol=1e-6)
        positive.value = 2.0
        np.testing.assert_allclose(positive.raw_value, math.log(2))
        np.testing.assert_allclose(positive * 3, 6.0, rtol=1e-6)
        positive[...] = jnp.float32(5.0)
        np.testing.assert_allclose(positive[...], 5.0, rtol=1e-6)

    def test_hooks_of_an_instance_go_before_those_of_its_kind(self):
        positive = Positive(1.0, on_get_value=doubled, on_create_value=doubled)
        assert positive.raw_value == 2.0
        assert positive.value == 4.0

    def test_items_go_through_hooks(self):
        param = Param(jnp.ones(2), on_get_value=doubled, on_set_value=halved)
        param[0] = 8.0
        np.testing.assert_array_equal(param.raw_value, [4, 1])
        assert param[1] == 2

    def test_flattening_runs_no_hook(self):
        positive = Positive(4.0)
        leaves, treedef = jax.tree.flatten(positive)
        assert leaves[0] is positive.raw_value
        assert treedef.unflatten(leaves).raw_value is positive.raw_value

    def test_kinds_may_override_how_values_are_read_and_written(self):
        class Scaled(Variable):
            def get_value(self):
                return super().get_value() * 10

            def set_value(self, value):
                super().set_value(value / 10)

            def create_value(self, value):
                return value + 1

        scaled = Scaled(jnp.zeros(2))
        np.testing.assert_array_equal(scaled.raw_value, [1, 1])
        np.testing.assert_array_equal(scaled.value, [10, 10])
        np.testing.assert_array_equal(scaled[...], [10, 10])
        np.testing.assert_array_equal(scaled + 1, [11, 11])
        assert scaled[0] == 10
        scaled.value = jnp.full(2, 20.0)
        np.testing.assert_array_equal(scaled.raw_value, [2, 2])
        scaled[0] = 50.0
        np.testing.assert_array_equal(scaled.raw_value, [5, 2])
        scaled[...] = jnp.full(2, 30.0)
        scaled += 10.0
        np.testing.assert_array_equal(scaled.raw_value, [4, 4])

    def test_overrides_may_take_an_index(self):
        class Logged(Variable):
            def get_value(self, **options):
                seen.append(("get", options))
                return super().get_value(**options)

            def set_value(self, value, **options):
                seen.append(("set", options))
                super().set_value(value, **options)

        seen: list[object] = []
        logged = Logged(jnp.zeros(2))
        logged[0] = 1.0
        assert logged[0] == 1
        assert seen == [("set", {"index": 0}), ("get", {"index": 0})]

    def test_a_kind_may_have_its_own_value_property(self):
        class Wrapped(Variable):
            @property
            def value(self):
                return self.raw_value["x"]

            @value.setter
            def value(self, new):
                self.raw_value = {"x": new}

        wrapped = Wrapped({"x": 1})
        wrapped.value = 2
        assert wrapped.value == 2
        assert wrapped.raw_value == {"x": 2}


class TestMetadata:
    def test_reading(self):
        param = Param(1.0, tag="a", names=["x"])
        assert param.tag == "a"
        assert param.get_metadata(exclude_required=True) == {"tag": "a", "names": ["x"]}
        assert param.get_metadata("names") == ["x"]
        assert param.get_metadata("absent", None) is None
        assert param.has_metadata("tag")
        assert not param.has_metadata("absent")

    def test_metadata_goes_before_attributes_of_the_value(self):
        assert Param(jnp.ones(2), nbytes="a").nbytes == "a"

    def test_the_sharding_is_that_of_the_value(self):
        param = Param(jnp.ones(2), sharding=("a",))
        assert param.sharding == param.value.sharding

    def test_writing(self):
        param = Param(1.0)
        param.tag = "a"
        param.set_metadata("count", 2)
        param.set_metadata(weight_decay=0.1)
        assert param.get_metadata(exclude_required=True) == {"tag": "a", "count": 2, "weight_decay": 0.1}
        del param.tag
        param.del_metadata("count")
        assert param.get_metadata(exclude_required=True) == {"weight_decay": 0.1}
        param.set_metadata({"tag": "b"})
        assert param.get_metadata(exclude_required=True) == {"tag": "b"}

    def test_a_change_of_metadata_moves_the_epoch(self):
        param = Param(1.0, tag="a")
        kept = epoch.token
        param.tag = "a"
        param.value = 2.0
        assert epoch.token is kept
        param.tag = "b"
        assert epoch.token is not kept

    def test_metadata_is_in_the_treedef(self):
        first, second = jax.tree.structure(Param(1.0, tag="a")), jax.tree.structure(Param(2.0, tag="a"))
        assert first == second
        assert hash(first) == hash(second)
        assert first != jax.tree.structure(Param(1.0, tag="b"))
        assert first != jax.tree.structure(BatchStat(1.0, tag="a"))

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("shardings", "sharding"),
            ("sharding_name", "sharding_names"),
            ("trainble", "trainable"),
            ("weight_decays", "weight_decay"),
            ("on_getvalue", "on_get_value"),
            ("vaule", "value"),
            ("valeu", "value"),
            ("vlaue", "value"),
            ("raw_vaule", "raw_value"),
        ],
    )
    def test_a_misspelt_name_is_refused(self, name, meant):
        with pytest.raises(errors.MetadataError, match=rf"unknown metadata(.|\n)*did you mean '{meant}'"):
            Param(1.0, **{name: None})
        with pytest.raises(errors.MetadataError, match="unknown metadata"):
            setattr(Param(1.0), name, None)

    @pytest.mark.parametrize(
        "name",
        [
            "stage",
            "layer",
            "tags",
            "tagg",
            "values",
            "p_value",
            "valve",
            "out_sharding",
            "eager_sharding",
            "_private",
            "metadata",
        ],
    )
    def test_other_names_are_taken(self, name):
        assert getattr(Param(1.0, **{name: "x"}), name) == "x"

    @pytest.mark.parametrize("name", ["copy", "var_type", "set_value", "type"])
    def test_names_that_hide_an_attribute_are_refused(self, name):
        with pytest.raises(errors.MetadataError, match=rf"Param\.{name}: metadata would hide an attribute"):
            Param(1.0).set_metadata(name, 1)

    def test_metadata_needs_a_hash(self):
        with pytest.raises(errors.StatusError, match=r"Param\.mask: an array cannot be static"):
            Param(1.0, mask=jnp.ones(2))

    def test_missing_metadata(self):
        with pytest.raises(errors.MetadataError, match=r"Param\.tga: there is no such metadata(.|\n)*'tag'"):
            Param(1.0, tag="a").get_metadata("tga")
        with pytest.raises(errors.MetadataError, match="there is no such metadata"):
            Param(1.0).del_metadata("tag")

    def test_a_missing_attribute_gets_a_suggestion(self):
        with pytest.raises(AttributeError, match=r"Param\.shardin: neither(.|\n)*did you mean 'sharding'"):
            _ = Param(jnp.ones(2)).shardin
        with pytest.raises(errors.MissingAttributeError, match=r"Param\.shape: neither"):
            _ = Param((1, 2)).shape
        with pytest.raises(errors.MissingAttributeError) as raised:
            _ = Variable(0).shape
        assert "'shape'" not in str(raised.value)
        with pytest.raises(errors.MissingAttributeError, match="did you mean 'shape'"):
            _ = Param(jnp.ones(2)).shpae
        assert not hasattr(Param(1.0), "_private")
        with pytest.raises(errors.MissingAttributeError, match="there is no such attribute"):
            _ = Param(1.0).__cuda_array_interface__

    def test_special_attributes_cannot_be_set(self):
        with pytest.raises(errors.MissingAttributeError, match="this attribute cannot be set"):
            Param(1.0).__wrapped__ = 1
        assert Param[jax.Array](1.0).get_metadata(exclude_required=True) == {}


class TestKinds:
    def test_annotations_declare_metadata(self):
        count = Count(1)
        assert count.unit == "steps"
        assert count.get_metadata(exclude_required=True) == {"unit": "steps"}
        assert Count.unit == "steps"
        count.unit = "epochs"
        assert count.unit == "epochs"
        assert Count(1, unit="s", limit=3).get_metadata(exclude_required=True) == {"unit": "s", "limit": 3}
        assert not hasattr(count, "limit")
        assert Count.instances == 0

    def test_declared_names_are_known(self):
        with pytest.raises(errors.MetadataError, match="did you mean 'limit'"):
            Count(1, limits=3)

    def test_declarations_are_inherited(self):
        class Epochs(Count):
            unit: str = "epochs"
            start: int = 0

        assert Epochs(1).get_metadata(exclude_required=True) == {"unit": "epochs", "start": 0}
        assert Epochs(1).twice() == 2

    def test_methods_and_properties(self):
        assert Count(2).twice() == 4
        assert Count(0).is_zero
        with pytest.raises(errors.MetadataError, match="would hide an attribute"):
            Count(0, twice=3)

    def test_own_slots_and_property_setters_are_no_metadata(self):
        class Named(Variable):
            __slots__ = ("note",)

            @property
            def title(self):
                return self.get_metadata("tag")

            @title.setter
            def title(self, new):
                self.tag = new

        named = Named(1)
        named.note = "x"
        named.title = "t"
        assert named.note == "x"
        assert named.get_metadata(exclude_required=True) == {"tag": "t"}

    def test_every_kind_is_a_pytree_with_one_child(self):
        for kind in (Variable, Param, BatchStat, Cache, Intermediate, Perturbation, Count, Positive):
            variable = new_variable(kind, 1.0, EMPTY, _jax.TOP)
            made = jax.tree.map(lambda x: x + 1, variable)
            assert type(made) is kind
            assert made.raw_value == 2.0
            (path, _), *_ = jax.tree_util.tree_flatten_with_path(variable)[0]
            assert path == (jax.tree_util.GetAttrKey("value"),)
        assert issubclass(Perturbation, Intermediate)
        assert VariableState is Variable

    def test_a_kind_can_hold_a_pytree(self):
        sown = Intermediate((jnp.ones(2), jnp.zeros(2)))
        assert len(jax.tree.leaves(sown)) == 2
        sown += (jnp.ones(1),)
        assert len(sown) == 3


class TestArrayBehaviour:
    binary = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "eq", "ne", "gt", "ge")
    integer = ("and_", "or_", "xor", "lshift", "rshift")

    @given(
        st.lists(st.integers(1, 5), min_size=2, max_size=2),
        st.lists(st.integers(1, 5), min_size=2, max_size=2),
        st.sampled_from(binary + integer),
    )
    def test_binary_operators_are_those_of_arrays(self, left, right, name):
        operation = getattr(operator, name)
        a, b = jnp.array(left), jnp.array(right)
        expected = operation(a, b)
        for x, y in ((Param(a), b), (a, Param(b)), (Param(a), BatchStat(b)), (np.asarray(a), Param(b))):
            result = operation(x, y)
            assert isinstance(result, jax.Array)
            np.testing.assert_array_equal(result, expected)
            assert result.dtype == expected.dtype
        np.testing.assert_array_equal(operation(2, Param(b)), operation(2, b))

    @given(st.sampled_from((*binary[:7], *integer, "matmul")))
    def test_operators_in_place_keep_the_box(self, name):
        a, b = jnp.array([[6, 4], [2, 8]]), jnp.array([[1, 2], [2, 1]])
        in_place = getattr(operator, f"i{name.rstrip('_')}")
        box = param = Param(a)
        box = in_place(box, Param(b))
        assert box is param
        np.testing.assert_array_equal(param.value, getattr(operator, name)(a, b))
        np.testing.assert_array_equal(a, [[6, 4], [2, 8]])

    def test_in_place_operators_do_not_write_to_numpy_arrays(self):
        array = np.ones(2)
        boxed = Variable(array)
        boxed += 1
        assert list(array) == [1, 1]
        assert list(boxed.value) == [2, 2]

    @pytest.mark.parametrize("operation", [operator.neg, operator.pos, abs, operator.invert])
    def test_unary_operators(self, operation):
        array = jnp.array([1, -2])
        np.testing.assert_array_equal(operation(Param(array)), operation(array))

    @pytest.mark.parametrize("operation", [bool, int, float, complex, operator.index, round])
    def test_conversions(self, operation):
        assert operation(Param(jnp.array(3))) == operation(jnp.array(3))

    @pytest.mark.parametrize("operation", [math.trunc, math.floor, math.ceil, round, lambda x: round(x, 1)])
    def test_rounding(self, operation):
        assert operation(Variable(2.56)) == operation(2.56)

    def test_matmul_and_divmod(self):
        a, b = jnp.array([[5.0, 2.0], [1.0, 3.0]]), jnp.array([2.0, 3.0])
        np.testing.assert_array_equal(Param(a) @ Param(b), a @ b)
        np.testing.assert_array_equal(a @ Param(b), a @ b)
        np.testing.assert_array_equal(np.asarray(a) @ Param(b), a @ b)
        for result in (divmod(Param(a), b), divmod(a, Param(b))):
            np.testing.assert_array_equal(result, divmod(a, b))

    def test_sequences(self):
        param = Param(jnp.array([1, 2, 3]))
        assert len(param) == 3
        assert [int(x) for x in param] == [1, 2, 3]
        assert [int(x) for x in reversed(param)] == [3, 2, 1]
        assert 2 in param
        assert [10, 20][Param(jnp.array(1))] == 20

    def test_format(self):
        assert f"{Param(jnp.float32(0.25)):.1f}" == "0.2"
        assert f"{Param(1)}" == repr(Param(1))

    def test_comparing_is_elementwise_so_there_is_no_hash(self):
        assert (Param(jnp.ones(2)) == jnp.ones(2)).all()
        with pytest.raises(TypeError, match="unhashable"):
            hash(Param(1))

    def test_jax_takes_variables_for_arrays(self):
        param = Param(jnp.array([1.0, -2.0]))
        assert jnp.sum(param) == -1
        np.testing.assert_array_equal(jax.nn.relu(param), [1, 0])
        np.testing.assert_array_equal(jnp.where(param > 0, param, 0.0), [1, 0])
        assert jnp.stack([param, param]).shape == (2, 2)
        assert jnp.asarray(Variable(1)).dtype == jnp.int32
        np.testing.assert_array_equal(jax.vmap(lambda p: p * 2)(param), [2, -4])

    def test_numpy_takes_variables_for_arrays(self):
        param = Param(jnp.array([1.0, 2.0]))
        np.testing.assert_array_equal(np.asarray(param), [1, 2])
        assert np.asarray(param, dtype=np.int64).dtype == np.int64
        copied = np.array(param, copy=True)
        copied[0] = 5
        assert param[0] == 1
        np.testing.assert_allclose(np.exp(param), np.exp([1, 2]), rtol=1e-6)

    def test_jax_transforms_take_variables(self):
        def loss(param):
            return jnp.sum(param**2)

        with jax.checking_leaks():
            grads = jax.jit(jax.grad(loss))(Param(jnp.array([1.0, 2.0]), tag="a"))
        assert type(grads) is Param
        assert grads.tag == "a"
        np.testing.assert_array_equal(grads.value, [2, 4])


class TestTraces:
    @pytest.mark.parametrize(
        "change",
        [
            lambda v, x: setattr(v, "value", x),
            lambda v, x: setattr(v, "raw_value", x),
            lambda v, x: v.set_value(x),
            lambda v, x: operator.setitem(v, ..., x),
            lambda v, x: operator.setitem(v, 0, x),
            operator.iadd,
        ],
    )
    @pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad], ids=["jit", "vmap", "grad"])
    def test_a_captured_variable_cannot_get_a_value(self, change, transform):
        param = Param(jnp.zeros(()) if transform is jax.grad else jnp.zeros(2))
        before = param.raw_value

        def function(x):
            change(param, x)
            return x

        argument = jnp.float32(1.0) if transform is jax.grad else jnp.ones(2)
        with pytest.raises(errors.TraceContextError, match=r"Param: the value of a Param was changed(.|\n)*argument"):
            transform(function)(argument)
        assert param.raw_value is before

    def test_a_captured_variable_cannot_get_metadata(self):
        param = Param(1.0)

        @jax.jit
        def function(x):
            param.tag = "a"
            return x

        with pytest.raises(errors.TraceContextError, match="the metadata of a Param was changed"):
            function(1.0)

    def test_a_variable_that_is_passed_can_be_changed(self):
        @jax.jit
        def function(param):
            param += 1.0
            param.tag = "b"
            made = Param(param * 2)
            made.value = made.value + 1
            return param, made

        param = Param(1.0, tag="a")
        with jax.checking_leaks():
            changed, made = function(param)
        assert param.value == 1.0
        assert (changed.value, changed.tag, made.value) == (2.0, "b", 5.0)
        changed.value = 3.0

    def test_reading_a_captured_variable_is_fine(self):
        param = Param(jnp.float32(2.0))
        assert jax.jit(lambda x: x * param)(jnp.float32(3.0)) == 6


class TestCopies:
    def test_copy_makes_another_box(self):
        param = Param(jnp.ones(2), tag="a")
        made = param.copy()
        assert type(made) is Param
        assert made is not param
        assert made.raw_value is param.raw_value
        made.value = jnp.zeros(2)
        made.tag = "b"
        assert param.tag == "a"
        assert param.value.all()
        assert param.copy(3.0, tag="c").get_metadata(exclude_required=True) == {"tag": "c"}
        assert param.copy(3.0).value == 3.0
        assert copy.copy(param).raw_value is param.raw_value
        assert param.to_state().tag == "a"

    def test_copies_share_no_containers(self):
        boxed = Variable([1, 2])
        made = boxed.copy()
        made.value.append(3)
        assert boxed.value == [1, 2]

    def test_copy_runs_no_hook(self):
        param = Param(1.0, on_create_value=doubled, on_set_value=doubled)
        assert param.copy().raw_value == 2.0
        assert param.copy(5.0).raw_value == 5.0

    def test_replace(self):
        param = Param(1.0, tag="a")
        assert param.replace(2.0).raw_value == 2.0
        assert param.replace(Param(3.0), tag="b").get_metadata(exclude_required=True) == {"tag": "b"}
        assert param.replace(Param(3.0)).raw_value == 3.0
        with pytest.raises(errors.MetadataError, match=r"Param\.replace: the Variables are of different kinds"):
            param.replace(BatchStat(1.0))

    def test_copy_from(self):
        target, source = Param(1.0, tag="a"), Param(2.0, tag="b")
        target.copy_from(source)
        assert (target.raw_value, target.tag) == (2.0, "b")
        with pytest.raises(errors.MetadataError, match=r"Param\.copy_from: the Variables are of different kinds"):
            target.copy_from(BatchStat(1.0))

    def test_update_from_state(self):
        target = Param(1.0)
        target.update_from_state(Param(2.0, tag="b"))
        assert (target.raw_value, target.tag) == (2.0, "b")

    def test_from_metadata(self):
        made = Count.from_metadata(1.0, {"tag": "a"})
        assert type(made) is Count
        assert made.get_metadata(exclude_required=True) == {"tag": "a"}
        assert Positive.from_metadata(4.0, Metadata.of({})).raw_value == 4.0
        with pytest.raises(errors.MetadataError, match="unknown metadata"):
            Count.from_metadata(1.0, {"shardings": "a"})

    def test_deepcopy_keeps_sharing(self):
        param = Param(np.ones(2), tag="a")
        first, second = copy.deepcopy([param, param])
        assert first is second
        assert first is not param
        assert first.raw_value is not param.raw_value
        assert first.tag == "a"

    def test_copies_of_tracers(self):
        made = jax.jit(copy.deepcopy)(Param(jnp.ones(2), tag="a"))
        assert made.tag == "a"

    def test_pickle(self):
        count = Param(jnp.arange(3), tag="a", names=["x"])
        made = pickle.loads(pickle.dumps([count, count]))
        assert made[0] is made[1]
        assert type(made[0]) is Param
        assert made[0]._metadata is count._metadata
        np.testing.assert_array_equal(made[0].value, [0, 1, 2])
        made[0].value = 3

    def test_a_hook_that_cannot_be_pickled_says_so(self):
        with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
            pickle.dumps(Param(1.0, on_get_value=lambda variable, value: value))

    def test_the_engine_makes_and_fills_boxes_without_checks(self):
        positive = new_variable(Positive, 4.0, EMPTY, None)
        assert positive.raw_value == 4.0
        set_raw(positive, 5.0)
        assert positive.raw_value == 5.0
        assert positive._trace is None
        assert positive.type is Positive


class TestRepr:
    def test_small_arrays_in_full(self):
        assert repr(Param(jnp.zeros((1, 3)), tag="default")) == (
            "Param( # 3 (12 B)\n  value=Array([[0., 0., 0.]], dtype=float32),\n  tag='default'\n)"
        )

    def test_lines_of_a_matrix_stand_below_each_other(self):
        assert repr(Param(jnp.eye(2, dtype=jnp.int32))) == (
            "Param( # 4 (16 B)\n  value=Array([[1, 0],\n               [0, 1]], dtype=int32)\n)"
        )

    def test_large_arrays_by_shape(self):
        assert repr(Param(jnp.ones((4, 4)))) == (
            "Param( # 16 (64 B)\n  value=Array(shape=(4, 4), dtype=dtype('float32'))\n)"
        )
        assert "# 10,000 (80.0 KB)\n  value=ndarray(shape=(100, 100)" in repr(Variable(np.ones((100, 100))))

    def test_other_values(self):
        assert repr(Param(1)) == "Param(\n  value=1\n)"
        assert repr(Param((2, 3))) == "Param(\n  value=(2, 3)\n)"
        assert repr(Intermediate((jnp.ones(1),))) == (
            "Intermediate( # 1 (4 B)\n  value=(Array([1.], dtype=float32),)\n)"
        )
        assert "value={'a': [1, 2]}" in repr(Variable({"a": [1, 2]}))
        assert "on_get_value=doubled" in repr(Param(1, on_get_value=doubled))

    def test_values_without_numbers(self):
        assert repr(Param(jax.ShapeDtypeStruct((2, 3), jnp.float32))) == (
            "Param( # 6 (24 B)\n  value=ShapeDtypeStruct(shape=(2, 3), dtype=float32)\n)"
        )
        seen = []
        jax.jit(lambda param: seen.append(repr(param)))(Param(jnp.ones((2, 3))))
        assert "Tracer(float32[2,3])" in seen[0]

    def test_deleted_arrays(self):
        array = jnp.ones(2)
        array.delete()
        assert "value=Array(shape=(2,), dtype=dtype('float32'), deleted)" in repr(Param(array))

    def test_random_keys(self):
        assert repr(Param(jax.random.key(0))).startswith("Param( # 1 (8 B)")


# ================================================================= deep values


def nested_list(levels):
    value = jnp.ones(())
    for _ in range(levels):
        value = [value]
    return value


DEEP_USES = {
    "made": Param,
    "made with metadata": lambda deep: Param(deep, tag="a"),
    "made by a hook": lambda deep: Param(1.0, on_create_value=lambda variable, value: deep),
    "assigned": lambda deep: setattr(Param(1.0), "value", deep),
    "assigned over a list": lambda deep: setattr(Param([1.0]), "value", deep),
    "set": lambda deep: Param(1.0).set_value(deep),
    "set by a hook": lambda deep: Param(1.0, on_set_value=lambda variable, value: deep).set_value(2.0),
    "set raw": lambda deep: Param(1.0).set_raw_value(deep),
    "assigned raw": lambda deep: setattr(Param(1.0), "raw_value", deep),
    "copied": lambda deep: Param(1.0).copy(deep),
    "replaced": lambda deep: Param(1.0).replace(deep, tag="a"),
    "from metadata": lambda deep: Param.from_metadata(deep, {}),
}


@pytest.mark.parametrize("use", DEEP_USES.values(), ids=DEEP_USES)
def test_a_deep_value_is_one_error(use):
    with pytest.raises(errors.DepthError, match=r"Param\.value\[0\]\[0\].*more than 400 levels deep"):
        use(nested_list(10_000))


def test_a_refused_value_changes_nothing():
    param = Param(1.0)
    with pytest.raises(errors.DepthError, match=r"Param\.value\[0\]"):
        param.value = nested_list(10_000)
    assert param.value == 1.0


def test_a_value_that_grew_deep_in_place_is_not_copied():
    value = []
    param = Param(value)
    value.append(nested_list(10_000))
    with pytest.raises(errors.DepthError, match=r"Variable\.value\[0\]\[0\]"):
        param.copy()
    assert jax.jit(lambda x: x + 1)(1) == 2


def test_a_value_at_the_limit():
    param = Param(nested_list(errors.MAX_DEPTH))
    assert jax.tree.leaves(param.copy()) == [1.0]


def test_variables_in_variables_give_their_values_however_often():
    for _ in range(2):
        outer = Param(VariableMetadata(1.0, {"tag": "a"}))
        assert (outer.value, outer.tag) == (1.0, "a")
        outer.value = Param(2.0)
        assert outer.raw_value == 2.0
        assert Param(outer).raw_value == 2.0

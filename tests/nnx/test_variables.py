"""Variables: truth, metadata named like attributes, calls and deletions; each beside the peer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import MetadataError


@pytest.fixture(params=["declax", "flax.nnx"])
def nnx(request):
    return pytest.importorskip(request.param)


# ----------------------------------------------------------------------------- truth


@pytest.mark.parametrize("shape", [(3,), (1,), (0,), (0, 3), (3, 0), (1, 1)])
def test_an_array_with_axes_is_true_if_it_has_a_length(nnx, shape):
    expected = shape[0] > 0
    param = nnx.Param(jnp.zeros(shape))
    assert bool(param) is expected
    assert ("given" if param else "none") == ("given" if expected else "none")
    assert bool(nnx.Param(np.zeros(shape))) is expected
    assert bool(nnx.state({"a": param})["a"]) is expected


@pytest.mark.parametrize("value", [{}, {"a": 1}, (), (0,), [], "", "a"])
def test_a_container_has_its_own_truth(nnx, value):
    assert bool(nnx.Variable(value)) is bool(value)


def test_shape_decides_in_traces_and_in_abstract_models(nnx):
    class Layer(nnx.Module):
        def __init__(self):
            self.bias = nnx.Param(jnp.zeros(3))
            self.scale = None

        def __call__(self, x):
            x = x + self.bias if self.bias else x
            return x * self.scale if self.scale else x

    for apply in (lambda layer, x: layer(x), nnx.jit(lambda layer, x: layer(x)), jax.jit(lambda layer, x: layer(x))):
        np.testing.assert_array_equal(apply(Layer(), jnp.ones(3)), np.ones(3))
    assert bool(nnx.eval_shape(Layer).bias)


def test_a_scalar_has_the_truth_of_its_value():
    assert not dx.Param(jnp.array(0.0))
    assert dx.Param(jnp.array(2.0))
    assert not dx.Variable(np.zeros(()))
    assert not dx.Variable(0)
    assert not dx.Variable(None)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(lambda param: 1 if param else 0)(dx.Param(jnp.array(1.0)))


def test_truth_is_that_of_what_the_hooks_show():
    assert not dx.Variable(jnp.ones(3), on_get_value=lambda variable, value: value[:0])


# ----------------------------------------------------------------------------- metadata


@pytest.mark.parametrize("name", ["dtype", "ndim", "size", "T", "at", "mean"])
def test_metadata_hides_an_attribute_of_the_value(nnx, name):
    for param in (nnx.Param(jnp.ones((2, 3)), **{name: "x"}), nnx.Param(jnp.ones((2, 3)))):
        param.set_metadata(name, "x")
        assert getattr(param, name) == param.get_metadata(name) == "x"
        assert param[...].dtype == jnp.float32


def test_the_shape_is_always_that_of_the_value(nnx):
    param = nnx.Param(jnp.ones((2, 3)), shape=(7,))
    assert param.shape == (2, 3)
    assert param.get_metadata("shape") == (7,)


def test_computing_ignores_a_dtype_in_the_metadata(nnx):
    param = nnx.Param(jnp.ones((2, 3)), dtype=jnp.bfloat16)
    assert param.dtype == jnp.bfloat16
    assert param.get_metadata("dtype") is jnp.bfloat16
    computed = [
        param + 1,
        jnp.sum(param),
        jnp.asarray(param),
        jnp.ones(2) @ param,
        jnp.stack([param, param]),
        np.asarray(param),
        nnx.jit(lambda param: param * 2)(param),
        nnx.grad(lambda param: jnp.sum(param[...] ** 2))(param)[...],
    ]
    assert {array.dtype for array in computed} == {np.dtype(np.float32)}


def test_numpy_ignores_a_dtype_in_the_metadata():
    param = dx.Param(jnp.ones((2, 3)), dtype=jnp.bfloat16)
    assert jnp.result_type(param, jnp.float32) == np.result_type(param) == jnp.zeros_like(param).dtype == jnp.float32


def test_metadata_is_kept_by_copies_splits_and_trees(nnx):
    model = nnx.Dict(a=nnx.Param(jnp.ones(2), dtype="half", size=9))
    graphdef, state = nnx.split(model)
    for param in (
        model.a.copy(),
        model.a.replace(jnp.zeros(2)),
        state["a"],
        nnx.merge(graphdef, state).a,
        nnx.clone(model).a,
        jax.tree.map(lambda x: x * 2, model).a,
    ):
        assert (param.dtype, param.size, param.shape) == ("half", 9, (2,))


def test_a_kind_keeps_attributes_that_its_init_sets():
    class Tagged(dx.Variable[jax.Array]):
        def __init__(self, value, tag, dtype, **metadata):
            super().__init__(value, **metadata)
            self.tag = tag
            self.dtype = dtype
            self.ndim = 7
            self.size = 8

    made = Tagged(jnp.ones(2), "real", "half", note=1)
    expected = {"tag": "real", "dtype": "half", "ndim": 7, "size": 8, "note": 1}
    assert made.get_metadata(exclude_required=True) == expected
    assert (made.tag, made.dtype, made.ndim, made.size, made.shape) == ("real", "half", 7, 8, (2,))
    assert jax.tree.map(jnp.negative, made).get_metadata(exclude_required=True) == expected
    del made.dtype
    assert made.dtype == jnp.float32


def test_a_kind_reads_attributes_through_its_own_get_value():
    class Half(dx.Variable[jax.Array]):
        def get_value(self, **options):
            return super().get_value(**options).astype(jnp.bfloat16)

    half = Half(jnp.ones((2, 3)))
    assert (half.dtype, half.shape, half.ndim, half.size) == (jnp.bfloat16, (2, 3), 2, 6)


@pytest.mark.parametrize("name", ["copy", "get_value", "type", "set_metadata"])
def test_metadata_that_hides_an_attribute_of_variable_is_refused(name):
    with pytest.raises(MetadataError, match=rf"Param\.{name}: metadata would hide an attribute of the Variable"):
        dx.Param(1.0, **{name: 1})
    with pytest.raises(AttributeError, match="shape"):
        dx.Param(jnp.ones(2)).shape = (3,)


@pytest.mark.filterwarnings("ignore:'sharding_names' is deprecated")
def test_the_names_of_axes_by_their_older_name(nnx):
    param = nnx.Param(jnp.ones((2, 3)), sharding_names=("rows", None), eager_sharding=False)
    assert param.sharding_names == param.out_sharding == ("rows", None)
    assert nnx.Param(jnp.ones(2)).sharding_names is None


def test_missing_metadata_is_a_key_error(nnx):
    param = nnx.Param(1.0, a=1)
    for use in (param.get_metadata, param.del_metadata):
        with pytest.raises(KeyError, match="b"):
            use("b")
    assert param.get_metadata("b", None) is None
    assert param.get_metadata(exclude_required=True) == {"a": 1}


def test_required_metadata_may_be_given_again(nnx):
    required = {"hijax": False, "ref": False, "eager_sharding": True}
    param = nnx.Param(jnp.ones(2))
    param.set_metadata({"a": 1, **required})
    assert param.a == 1
    param.set_metadata(hijax=False)
    assert nnx.Param.from_metadata(jnp.ones(2), {"b": 2, **required}).b == 2
    with pytest.raises(ValueError, match="ref"):
        param.set_metadata("ref", True)
    assert param.a == 1
    assert not param.ref


def test_ref_and_hijax_are_decided_when_a_variable_is_made():
    for name in ("ref", "hijax"):
        with pytest.raises(MetadataError, match=rf"Param\.{name}: `{name}` cannot change after construction"):
            dx.Param(1.0).set_metadata({name: True})
    with pytest.raises(MetadataError, match="cannot change after construction"):
        dx.Param.from_metadata(jnp.ones(2), {"ref": True})


# ----------------------------------------------------------------------------- what a value does


def test_a_variable_is_called_as_its_value(nnx):
    assert nnx.Variable(lambda x, y=0: x + y)(1, y=2) == 3


def test_a_rounded_array_keeps_its_dtype(nnx):
    rounded = round(nnx.Param(jnp.array([1.6, 2.2])))
    assert rounded.dtype == jnp.float32
    assert rounded.tolist() == [2.0, 2.0]


def test_items_are_deleted(nnx):
    table = nnx.Variable({"a": 1, "b": 2})
    del table["a"]
    assert table.get_value() == {"b": 2}


def test_a_variable_copies_a_dict_before_it_deletes_an_item():
    given = {"a": 1, "b": 2}
    del dx.Variable(given)["a"]
    assert given == {"a": 1, "b": 2}


def test_the_kind_of_a_variable(nnx):
    assert nnx.Param(1).var_type is nnx.Param
    assert nnx.Param(1).type is nnx.Param


# ----------------------------------------------------------------------------- initializers

_SIMPLE = ("zeros_init", "ones_init", "normal", "uniform", "truncated_normal")


@pytest.mark.parametrize("name", _SIMPLE)
def test_an_int_is_a_shape_with_one_axis(nnx, name):
    init, key = getattr(nnx.initializers, name)(), jax.random.key(0)
    np.testing.assert_array_equal(init(key, 3), init(key, (3,)))
    np.testing.assert_array_equal(init(key, 3, jnp.bfloat16), init(key, (3,), jnp.bfloat16))
    assert nnx.Param(nnx.with_metadata(init, tag="a")(key, 3)).shape == (3,)


def test_each_initializer_takes_an_int():
    key, given = jax.random.key(0), dx.initializers
    for init in (given.zeros, given.ones, given.constant(2.0)):
        assert init(key, np.int32(3)).shape == init(None, 3).shape == (3,)
    fans = {"in_axis": (), "out_axis": 0}
    for name in ("lecun_normal", "lecun_uniform", "he_normal", "he_uniform", "glorot_normal", "glorot_uniform"):
        init = getattr(given, name)(**fans)
        np.testing.assert_array_equal(init(key, 3), init(key, (3,)))
    for init in (given.orthogonal(), given.delta_orthogonal(), given.lecun_normal()):
        with pytest.raises(ValueError, match=r"cannot make an array of shape \(3,\)"):
            init(key, 3)

"""`ref` and `hijax` of Variables, and their defaults."""

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


def test_a_variable_knows_whether_it_holds_a_ref(nnx):
    array, ref = nnx.Variable(jnp.ones(2)), nnx.Variable(jnp.ones(2), ref=True)
    assert (array.ref, ref.ref, array.hijax) == (False, True, False)
    assert nnx.with_vars(nnx.Variable(jnp.array(0)), ref=True).ref
    assert isinstance(ref.get_raw_value(), jax.Ref)


def test_a_variable_that_holds_a_ref_is_written_under_raw_jit(nnx):
    total = nnx.Variable(jnp.zeros(2), ref=True)

    @jax.jit
    def add(total):
        total[...] += 1.0

    add(total)
    np.testing.assert_array_equal(total[...], [1.0, 1.0])


def test_defaults_hold_for_a_block_and_for_the_calls_of_a_function(nnx):
    @nnx.var_defaults(ref=True)
    def make():
        return nnx.Param(jnp.ones(2)), nnx.var_defaults().ref

    assert not nnx.var_defaults().ref
    made, during = make()
    assert made.ref
    assert during
    assert not nnx.Param(jnp.ones(2)).ref
    with nnx.var_defaults(ref=True):
        assert nnx.Param(jnp.ones(2)).ref
        assert not nnx.Param(jnp.ones(2), ref=False).ref
    assert dict(nnx.var_defaults()) == {"hijax": False, "ref": False}
    assert len(nnx.var_defaults()) == 2
    assert nnx.var_defaults()["ref"] is False


def test_defaults_are_restored_after_an_error(nnx):
    @nnx.var_defaults(ref=True)
    def fail():
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not nnx.var_defaults().ref


def test_defaults_hold_from_now_on(nnx):
    try:
        nnx.var_defaults(ref=True)
        assert nnx.Variable(jnp.ones(2)).ref
    finally:
        nnx.var_defaults(ref=False)
    assert not nnx.Variable(jnp.ones(2)).ref


def test_hijax_variables_are_refused():
    with pytest.raises(MetadataError, match="Param: declax has no hijax Variables") as caught:
        dx.Param(1.0, hijax=True)
    assert "jax.jit" in str(caught.value)

    @dx.var_defaults(hijax=True)
    def make():
        return dx.Param(1.0)

    with pytest.raises(MetadataError, match="declax has no hijax Variables"):
        make()
    assert not dx.Param(1.0, hijax=False).hijax
    assert not dx.Param(1.0).has_metadata("hijax")


def test_a_copy_may_hold_a_ref_or_not(nnx):
    made = nnx.Variable(jnp.ones(2), a=1).copy(ref=True, hijax=False)
    assert made.ref
    assert made.a == 1
    assert isinstance(made.get_raw_value(), jax.Ref)
    back = made.copy(ref=False, a=2)
    assert not back.ref
    assert back.a == 2
    np.testing.assert_array_equal(back[...], [1.0, 1.0])


def test_variables_of_numbers_are_put_into_refs(nnx):
    made = nnx.with_vars([nnx.Variable(1.0), nnx.Variable(1.0), nnx.Variable(2.0, ref=True)], ref=True)
    assert [isinstance(variable.get_raw_value(), jax.Ref) for variable in made] == [True, True, True]
    assert [float(variable[...]) for variable in made] == [1.0, 1.0, 2.0]
    chosen = nnx.with_vars([nnx.Variable(1.0), nnx.Variable(2.0)], ref=True, only=lambda path, variable: path[0] == 0)
    assert [variable.ref for variable in chosen] == [True, False]


@pytest.mark.parametrize(
    "make", [lambda v: v.copy(), lambda v: v.replace(), lambda v: v.copy(a=1), lambda v: v.to_state()]
)
def test_a_copy_has_a_ref_of_its_own(nnx, make):
    variable = nnx.Variable(jnp.ones(2), ref=True)
    copied = make(variable)
    copied[...] = jnp.zeros(2)
    assert copied.ref
    np.testing.assert_array_equal(variable[...], [1.0, 1.0])

"""Laws of specs, for specs that Hypothesis makes."""

import copy
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from config.spec_models import Block, Gate, Mlp, Model, Order, half, parts, schedule

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.sampled_from([jnp.float32, np.dtype("int8"), Order.FIRST, Order.LAST, half, dx.gelu, dx.initializers.ones]),
)
keys = st.text(min_size=1, max_size=4).filter(lambda key: "'" not in key or '"' not in key)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(lambda a, b: dx.spec(schedule, a, warmup=b), inner, inner),
    ),
    max_leaves=8,
)
free_specs = st.builds(lambda a, b: dx.spec(schedule, *a, **b), st.lists(values, min_size=1, max_size=3), st.just({}))

mixers = st.one_of(
    st.builds(
        lambda dim, hidden, f: dx.spec(Mlp, dim, hidden, f),
        st.integers(1, 3),
        st.integers(1, 3),
        st.sampled_from([dx.gelu, dx.relu, half]),
    ),
    st.builds(
        lambda dim, order, init: dx.spec(Gate, dim, order, init),
        st.integers(1, 3),
        st.sampled_from(Order),
        st.sampled_from([dx.initializers.lecun_normal(), dx.initializers.ones, dx.initializers.normal(0.5)]),
    ),
)
blocks = st.builds(
    lambda mixer, rate, kind, sizes: dx.spec(Block, mixer, rate, kind, sizes),
    mixers,
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(["pre", "post"]),
    st.lists(st.integers(0, 3), max_size=3),
)


@st.composite
def models(draw):
    spec = dx.spec(
        Model,
        dx.spec(dx.Embed, 3, 2),
        draw(st.lists(blocks, max_size=3)),
        proto=draw(st.none() | blocks),
        named=draw(st.dictionaries(st.sampled_from("abc"), mixers, max_size=2)),
    )
    return spec.replace(head=draw(st.sampled_from([None, dx.Ref("/embed"), dx.spec(dx.Embed, 3, 2)])))


def leaves(model):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(dx.state(model))]


@pytest.mark.slow
@given(models())
def test_the_spec_of_what_is_built_is_the_spec(spec):
    model = spec.build(rngs=dx.Rngs(0))
    assert dx.spec_of(model) == spec
    again = dx.spec_of(model).build(rngs=dx.Rngs(0))
    assert dx.graphdef(again) == dx.graphdef(model)
    assert all(np.array_equal(a, b) for a, b in zip(leaves(model), leaves(again), strict=True))


@given(models())
def test_a_summary_counts_what_is_built(spec):
    assert str(dx.summary(spec.build(rngs=dx.Rngs(0)))) in str(spec.summary())


@given(free_specs)
def test_the_repr_evaluates_to_an_equal_spec(spec):
    names = {"spec": dx.spec, "schedule": schedule, "half": half, "Order": Order, "jnp": jnp, "np": np}
    assert eval(repr(spec), {**names, "gelu": dx.gelu, "ones": dx.initializers.ones}) == spec


@given(free_specs, free_specs)
def test_equality_hash_and_fingerprint_agree(a, b):
    again = pickle.loads(pickle.dumps(a))
    assert again == a
    assert hash(again) == hash(a)
    assert again.fingerprint() == a.fingerprint()
    assert copy.deepcopy(a) == a
    assert (a == b) == (a.fingerprint() == b.fingerprint())


@given(models(), st.integers(1, 9))
def test_what_was_replaced_is_read_back(spec, hidden):
    for path, part in parts(spec):
        if part.target is Mlp and path[0] != "proto":
            text = ".".join(map(str, (*path, "hidden")))
            changed = spec.replace({text: hidden})
            assert changed[text] == hidden
            assert changed.replace({text: spec[text]}) == spec
            assert (changed == spec) == (spec[text] == hidden)


@given(models())
def test_each_part_can_be_taken_out_and_put_back(spec):
    for path, part in parts(spec):
        text = ".".join(map(str, path))
        if path:
            assert spec.replace({text: spec[text]}) == spec
            assert spec[text].fingerprint() == part.fingerprint() or part.has_refs
    assert dx.spec(dx.List, [spec])["elements.0"] == spec


@given(st.floats())
def test_floats_are_kept_to_the_bit(value):
    made = dx.spec(schedule, value)
    (again,) = dx.spec(schedule, value).build()[:1]
    assert made == dx.spec(schedule, again)
    assert math.copysign(1, again) == math.copysign(1, value)

"""Specs as values: what they take, how they compare, and what is refused."""

import copy
import dataclasses
import functools
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from config.spec_models import Block, Gate, Mlp, Model, Open, Order, half, schedule, small
from declax.config._data import MAX_DEPTH, FrozenDict, FrozenList, thaw
from declax.errors import ConfigError, ConstructionError, DepthError

# ================================================================= arguments


def test_positions_are_bound_to_names_without_rngs():
    assert dict(dx.spec(Mlp, 4, 6).arguments) == {"dim": 4, "hidden": 6}
    assert dx.spec(Mlp, 4, 6, dx.relu) == dx.spec(Mlp, hidden=6, activation=dx.relu, dim=4)


def test_defaults_are_not_kept():
    assert dict(dx.spec(Mlp, 4, hidden=8, activation=dx.gelu).arguments) == {"dim": 4}
    assert dict(dx.spec(Block, dx.spec(Gate, 4), sizes=[1, 2]).arguments) == {"mixer": dx.spec(Gate, 4)}
    assert dict(dx.spec(Mlp, 4).full_arguments) == {"dim": 4, "hidden": 8, "activation": dx.gelu}
    assert dx.spec(dx.Linear, 3, 4, kernel_metadata={}).arguments.keys() == {"in_features", "out_features"}


def test_arguments_are_in_the_order_of_the_parameters():
    assert list(dx.spec(Mlp, hidden=6, dim=4).arguments) == ["dim", "hidden"]


def test_functions_are_targets_too():
    made = dx.spec(schedule, 1.0, 2.0, 3.0, warmup=4, late=5.0)
    assert dict(made.arguments) == {"peak": 1.0, "more": (2.0, 3.0), "warmup": 4, "late": 5.0}
    assert made.build() == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert dx.spec(schedule, 1.0, warmup=2).build() == (1.0, 2.0)


def test_a_generic_class_is_made_as_itself():
    assert dx.spec(dx.List[int], [1]).target is dx.List


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: dx.spec(Mlp, 4, hiden=6), "there is no parameter 'hiden'; did you mean 'hidden'?"),
        (lambda: dx.spec(Mlp), "missing arguments: 'dim'"),
        (lambda: dx.spec(dx.Linear), "missing arguments: 'in_features', 'out_features'"),
        (lambda: dx.spec(Mlp, 4, 6, dx.relu, 7), "at most 3 positional arguments are allowed"),
        (lambda: dx.spec(Mlp, 4, dim=4), "the argument 'dim' is given twice, by position and by name"),
    ],
)
def test_names_and_arity_are_checked_at_once(make, text):
    with pytest.raises(ConstructionError, match=r"(?s)\.\.\.\): .*" + text.replace("?", r"\?")):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: dx.spec(Mlp, 4, rngs=dx.Rngs(0)),
        lambda: dx.spec(Mlp, dx.Rngs(0)),
        lambda: dx.spec(Block, [dx.Rngs(0)["default"]]),
        lambda: dx.spec(Mlp, 4).replace(hidden=dx.Rngs(0)),
    ],
)
def test_rngs_are_given_to_build(make):
    with pytest.raises(ConstructionError, match="a spec cannot hold random streams") as caught:
        make()
    assert caught.value.fix == "dx.spec(...).build(rngs=dx.Rngs(0))"


@pytest.mark.parametrize(
    ("value", "text", "fix"),
    [
        (np.zeros(3), "a spec cannot hold an array", "array.tolist()"),
        (jnp.zeros(()), "a spec cannot hold an array", "array.tolist()"),
        (jax.ShapeDtypeStruct((), "float32"), "a spec cannot hold an array", "array.tolist()"),
        (dx.List([1]), "a spec cannot hold a model", "dx.spec(List, ...), or dx.spec_of(model)"),
        (dx.Param(1), "a spec cannot hold a model", "dx.spec_of"),
        (bytearray(b"a"), "a spec cannot hold a mutable object", "a tuple or list"),
        ({1.5: 2}, "the keys of a dict in a spec must be strings", "of a function that makes the dict"),
        ({"a": 1, ...: 2}, "the keys of a dict in a spec must be strings", '{"**": ...}'),
    ],
)
def test_what_is_no_value_is_refused_with_a_fix(value, text, fix):
    with pytest.raises(ConfigError, match=text) as caught:
        dx.spec(Block, dx.spec(Gate, 4), sizes=[0, {"a": value}])
    assert caught.value.where.startswith("Block.sizes.1.a")
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (3, "not a class or function"),
        ([], "not a class or function"),
        (dict, "its parameters are unknown"),
    ],
)
def test_what_is_no_target(target, text):
    with pytest.raises(ConfigError, match=text):
        dx.spec(target)


def test_specs_are_limited_in_depth():
    nested = dx.spec(dx.List, [1])
    for _ in range((MAX_DEPTH - 2) // 2):
        nested = dx.spec(dx.List, [nested])
    assert dx.spec_of(nested.build()) == nested
    assert hash(nested) == hash(pickle.loads(pickle.dumps(nested)))
    assert nested.fingerprint() != nested["elements.0"].fingerprint()
    with pytest.raises(DepthError, match="a spec is nested more than 100 levels deep"):
        dx.spec(dx.List, [nested])


def test_a_value_of_ten_thousand_lists_is_refused():
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(DepthError, match="a spec is nested more than 100 levels deep"):
        dx.spec(Block, dx.spec(Gate, 4), sizes=deep)


# ================================================================= values


def test_what_is_given_cannot_be_changed_from_outside():
    sizes = [1, [2, 3]]
    made = dx.spec(Block, dx.spec(Gate, 4), sizes=sizes)
    sizes[1].append(4)
    assert thaw(made["sizes"]) == [1, [2, 3]]
    with pytest.raises(ConfigError, match="a spec is immutable; 'rate' was set"):
        made.rate = 0.5
    with pytest.raises(ConfigError, match="a spec is immutable"):
        del made._target
    with pytest.raises(TypeError):
        made.arguments["rate"] = 0.5


def test_lists_and_dicts_are_frozen_inside_and_plain_in_what_is_built():
    made = dx.spec(Block, dx.spec(Gate, 4), sizes=[3])
    assert isinstance(made["sizes"], FrozenList)
    assert made["sizes"] != (3,)
    assert made["sizes"] != [3]
    assert repr(made["sizes"]) == "[3]"
    built = made.build(rngs=dx.Rngs(0))
    assert type(built.sizes) is list
    entries = FrozenDict({"a": 1})
    assert (entries, hash(entries), repr(entries)) == (FrozenDict(a := [("a", 1)]), hash(FrozenDict(a)), "{'a': 1}")
    assert pickle.loads(pickle.dumps(entries)) == entries


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, True), (0.0, -0.0), ([1], (1,)), ("float32", jnp.float32), ({"a": 1, "b": 2}, {"b": 2, "a": 1})],
)
def test_values_of_different_types_differ(a, b):
    first, second = dx.spec(schedule, a), dx.spec(schedule, b)
    assert first != second
    assert first.fingerprint() != second.fingerprint()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (math.nan, float("nan")),
        (jnp.float32, np.dtype("float32")),
        (jnp.bfloat16, jnp.dtype("bfloat16")),
        (np.float32, jnp.float32),
        (np.int64(3), 3),
        (dx.initializers.normal(0.5), dx.initializers.normal(stddev=0.5)),
        (functools.partial(half, 1, x=jnp.float32), functools.partial(half, 1, x=np.float32)),
        (jax.P("a", None), jax.P("a", None)),
    ],
)
def test_values_that_mean_the_same_are_equal(a, b):
    first, second = dx.spec(schedule, a), dx.spec(schedule, b)
    assert first == second
    assert hash(first) == hash(second)
    assert first.fingerprint() == second.fingerprint()


def test_specs_compare_by_value():
    assert small() == small()
    assert hash(small()) == hash(small())
    assert len({small(), small(), small(3)}) == 2
    assert small() != small(3)
    assert dx.spec(Gate, 4) != dx.spec(Mlp, 4)
    assert dx.spec(Gate, 4) != "Gate"


def test_specs_are_copied_and_pickled():
    made = small(proto=dx.spec(Block, dx.spec(Mlp, 4, activation=dx.relu)), named={"a": dx.spec(Gate, 3)})
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.copy(made) is made
    assert copy.deepcopy([made])[0] is made


def test_a_ref_is_a_path_from_the_root():
    ref = dx.Ref("/named/a~1b/0")
    assert ref.keys == ("named", "a/b", "0")
    assert dx.Ref.to(("named", "a/b", 0)) == ref
    assert hash(ref) == hash(pickle.loads(pickle.dumps(ref)))
    assert ref != "/named/a~1b/0"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'path'"):
        ref.path = "/x"


@pytest.mark.parametrize(("path", "fix"), [("embed", "/embed"), ("a.b", "/a/b"), ("/", "/embed"), (3, "/embed")])
def test_what_is_no_ref(path, fix):
    with pytest.raises(ConfigError, match="not a path to a part") as caught:
        dx.Ref(path)
    assert caught.value.fix == f"dx.Ref({fix!r})"


# ================================================================= repr


def test_repr_is_the_call_that_makes_it():
    made = small(1, protos=[dx.spec(Mlp, 2)])
    assert repr(made) == (
        "spec(Model, embed=spec(Embed, num_embeddings=11, features=4), "
        "blocks=[spec(Block, mixer=spec(Mlp, dim=4, hidden=6))], head=Ref('/embed'), protos=[spec(Mlp, dim=2)])"
    )
    names = {"spec": dx.spec, "Ref": dx.Ref, "Embed": dx.Embed, "Mlp": Mlp, "Block": Block, "Model": Model}
    assert eval(repr(made), names) == made


def test_repr_shows_what_has_no_code():
    assert repr(dx.spec(schedule, object)) == "spec(schedule, peak=object)"
    thing = object()
    assert repr(thing) in repr(dx.spec(schedule, thing))
    assert "<lambda>" in repr(dx.spec(schedule, lambda: 0))
    assert repr(dx.spec(Gate, 4, Order.LAST)) == "spec(Gate, dim=4, order=Order.LAST)"
    assert repr(dx.spec(Open, 3)) == "spec(Open, dim=3)"

"""Filters: what each literal and predicate takes, how they print and compare, and when no value matters."""

import itertools
import pickle
from types import SimpleNamespace
from typing import Any as AnyType
from typing import Optional

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax import errors, filterlib
from declax._filters import ON_KIND, ON_PLACE, ON_TAG, ON_VALUE, dependency_of, to_predicate
from declax.errors import FilterError


class SpecialParam(dx.Param):
    pass


PATH = ("blocks", 0, "attn", "query", "kernel")


# ------------------------------------------------------------------ literals


@pytest.mark.parametrize(
    ("literal", "predicate"),
    [
        (..., dx.Everything()),
        (True, dx.Everything()),
        (None, dx.Nothing()),
        (False, dx.Nothing()),
        (dx.Param, dx.OfType(dx.Param)),
        (dx.Param[jax.Array], dx.OfType(dx.Param)),
        ("dropout", dx.WithTag("dropout")),
        ((dx.Param, "dropout"), dx.Any(dx.Param, "dropout")),
        ([dx.Param, (None, ...)], dx.Any(dx.Param, dx.Any(None, ...))),
        ((), dx.Any()),
        (dx.PathContains("a"), dx.PathContains("a")),
    ],
)
def test_literals_become_predicates(literal, predicate):
    assert filterlib.to_predicate(literal) == predicate


def test_callables_are_predicates_already():
    def is_bias(path, value):
        return path[-1] == "bias"

    assert filterlib.to_predicate(is_bias) is is_bias
    assert filterlib.to_predicate(len) is len


class Model(dx.Module):
    def __call__(self, x):
        return x


@pytest.mark.parametrize("literal", [0, 1, 2.0, {"a": 1}, {1}, jnp.ones(2), b"tag", dx.Param(1), Model()])
def test_what_is_no_filter_shows_the_grammar(literal):
    with pytest.raises(errors.FilterError, match="this is not a filter") as caught:
        filterlib.to_predicate(literal)
    for part in ("...  or True", "None or False", "dx.Param", "'dropout'", "dx.All", "dx.Not", "dx.PathContains"):
        assert part in caught.value.fix
    with pytest.raises(errors.FilterError, match="this is not a filter"):
        dx.Not([literal])


def test_what_is_no_filter_is_no_filter_after_an_equal_one_was_seen():
    assert filterlib.to_predicate(True) == dx.Everything()
    with pytest.raises(errors.FilterError, match=r"got: +int 1"):
        filterlib.to_predicate(1)


@pytest.mark.parametrize("cls", [dx.Everything, dx.OfType, dx.WithTag, dx.Any, dx.Not, dx.PathMatches])
def test_a_class_of_predicates_is_no_filter(cls):
    with pytest.raises(errors.FilterError, match="the class of a predicate, not a predicate") as caught:
        filterlib.to_predicate(cls)
    assert caught.value.fix == f"{cls.__name__}(...)"


# ------------------------------------------------------------------ several filters


def test_several_filters():
    assert filterlib.filters_to_predicates(()) == ()
    expected = (dx.OfType(dx.Param), dx.WithTag("a"), dx.Everything())
    assert filterlib.filters_to_predicates((dx.Param, "a", ...)) == expected
    assert filterlib.filters_to_predicates([dx.Param, "a", True]) == expected


@pytest.mark.parametrize("everything", [..., True])
def test_everything_comes_last(everything):
    with pytest.raises(errors.FilterError, match="the filters after them match none") as caught:
        filterlib.filters_to_predicates((dx.BatchStat, everything, dx.Param))
    assert caught.value.where == "filter 1"
    assert caught.value.fix == "BatchStat, Param, ..."
    with pytest.raises(errors.FilterError, match="the filters after them"):
        filterlib.filters_to_predicates((everything, ...))


def test_everything_may_be_early_inside_a_combination():
    assert filterlib.filters_to_predicates(((..., dx.Param), None)) == (dx.Any(..., dx.Param), dx.Nothing())


# ------------------------------------------------------------------ predicates


def test_of_type_takes_instances_and_what_has_such_a_type():
    is_param = dx.OfType(dx.Param)
    assert is_param((), dx.Param(0))
    assert is_param((), SpecialParam(0))
    assert is_param((), SimpleNamespace(type=SpecialParam))
    assert not is_param((), dx.BatchStat(0))
    assert not is_param((), SimpleNamespace(type=dx.BatchStat))
    assert not is_param((), SimpleNamespace(type="Param"))
    assert not is_param((), jnp.ones(2))
    assert dx.OfType(jax.Array)((), jnp.ones(2))


def test_with_tag_takes_what_has_this_tag():
    is_dropout = dx.WithTag("dropout")
    assert is_dropout((), dx.Param(0, tag="dropout"))
    assert is_dropout((), SimpleNamespace(tag="dropout"))
    assert not is_dropout((), SimpleNamespace(tag="drop"))
    assert not is_dropout((), SimpleNamespace(tag=jnp.ones(2)))
    assert not is_dropout((), dx.Param(0))
    assert not is_dropout((), dx.Param(0, tag=("dropout",)))
    assert not is_dropout((), 3)


def test_with_tag_runs_no_hooks():
    def fail(variable, value):
        raise AssertionError

    assert not dx.WithTag("a")((), dx.Param(0, on_get_value=fail))


def test_with_tag_knows_tags_of_a_kind():
    class Tagged(dx.Param):
        tag: str = "mine"

    assert dx.WithTag("mine")((), Tagged(0))
    assert not dx.WithTag("mine")((), Tagged(0, tag="yours"))
    stream = dx.Rngs(dropout=0).dropout
    assert dx.WithTag("dropout")((), stream.key)
    assert dx.WithTag("dropout")((), stream)


@pytest.mark.parametrize(
    ("predicate", "takes"),
    [
        (dx.PathContains("attn"), True),
        (dx.PathContains("att"), False),
        (dx.PathContains(0), True),
        (dx.PathContains("0"), False),
        (dx.PathContains("att", exact=False), True),
        (dx.PathContains("0", exact=False), True),
        (dx.PathContains("mlp", exact=False), False),
        (dx.PathIn(PATH), True),
        (dx.PathIn(("a",), list(PATH)), True),
        (dx.PathIn(PATH[:-1]), False),
        (dx.PathIn(), False),
    ],
)
def test_paths(predicate, takes):
    assert predicate(PATH, None) is takes


@pytest.mark.parametrize(
    ("pattern", "takes"),
    [
        ("blocks.0.attn.query.kernel", True),
        ("blocks[0].attn.query.kernel", True),
        ("blocks[0]['attn'].query[\"kernel\"]", True),
        ("blocks[*].attn.**", True),
        ("blocks.*.attn.*.kernel", True),
        ("blocks.*.attn.*", False),
        ("*.attn.**", False),
        ("*", False),
        ("**", True),
        ("**.kernel", True),
        ("**.attn.**", True),
        ("**.**.attn.**.**", True),
        ("blocks.**.kernel", True),
        ("blocks.**.query.kernel.**", True),
        ("blocks.0.attn.query.kernel.**", True),
        ("blocks.**.value.**", False),
        ("bl*.?.at?n.*.k*l", True),
        ("block.?.attn.query.kernel", False),
        ("blocks.1.**", False),
        ("Blocks.**", False),
        ("blocks.0", False),
        ("attn", False),
        ("blocks.0.attn.query.ker(nel)", False),
        ("blocks.0.a+tn.query.kernel", False),
    ],
)
def test_patterns(pattern, takes):
    assert dx.PathMatches(pattern)(PATH, None) is takes


def test_a_dot_in_a_pattern_may_be_part_of_a_key():
    pattern = dx.PathMatches("layers.0.*")
    assert pattern(("layers", 0, "kernel"), None)
    assert pattern(("layers.0", "kernel"), None)
    assert dx.PathMatches("*.kernel")(("layers.0", "kernel"), None)
    assert not dx.PathMatches("layers.*")(("layers", "0", "kernel"), None)
    assert dx.PathMatches("a.**")(("a",), None)
    assert not dx.PathMatches("**.a.b")(("x", "aa", "b"), None)
    assert not dx.PathMatches("a")((), None)


keys = st.one_of(st.sampled_from(["a", "b", "ab", "kernel"]), st.integers(0, 11))


@given(
    st.lists(keys, max_size=5), st.lists(st.one_of(keys.map(str), st.sampled_from(["*", "**"])), min_size=1, max_size=5)
)
def test_patterns_agree_with_a_definition(path, steps):
    def fits(texts, steps):
        if not steps:
            return not texts
        if steps[0] == "**":
            return any(fits(texts[n:], steps[1:]) for n in range(len(texts) + 1))
        return bool(texts) and steps[0] in ("*", texts[0]) and fits(texts[1:], steps[1:])

    assert dx.PathMatches(".".join(steps))(tuple(path), None) == fits(list(map(str, path)), steps)


def test_combinations():
    param, other = dx.Param(0, tag="a"), dx.BatchStat(0)
    assert dx.Any(dx.Param, "b")((), param)
    assert not dx.Any(dx.BatchStat, "b")((), param)
    assert not dx.Any()((), param)
    assert dx.All(dx.Param, "a")((), param)
    assert not dx.All(dx.Param, "b")((), param)
    assert dx.All()((), param)
    assert dx.Not(dx.Param)((), other)
    assert not dx.Not(...)((), other)
    is_kernel = dx.All(dx.Param, lambda path, value: path[-1] == "kernel")
    assert is_kernel(PATH, param)
    assert not is_kernel(PATH, other)


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(("path", "fix"), [("kernel", "PathIn(('kernel',))"), (0, "PathIn((0,))"), ((["a"],), None)])
def test_a_path_is_a_tuple_of_keys(path, fix):
    with pytest.raises(errors.FilterError, match="a path is a tuple of hashable keys") as caught:
        dx.PathIn(path)
    assert fix is None or caught.value.fix == fix


@pytest.mark.parametrize("pattern", ["", ".", "a..b", "a.", 3, ("a", "b"), None])
def test_a_pattern_is_made_of_steps(pattern):
    with pytest.raises(errors.FilterError, match="a pattern must be a string of non-empty steps joined by dots"):
        dx.PathMatches(pattern)


@pytest.mark.parametrize("value", ["Param", 3, None, dx.Param(1)])
def test_of_type_takes_a_class(value):
    with pytest.raises(errors.FilterError, match="this is not a class"):
        dx.OfType(value)


def test_with_tag_takes_a_text():
    with pytest.raises(errors.FilterError, match="a tag must be a string"):
        dx.WithTag(3)


# ------------------------------------------------------------------ values

SAMPLES = [
    (dx.Everything(), "Everything()"),
    (dx.Nothing(), "Nothing()"),
    (dx.OfType(int), "OfType(<class 'int'>)"),
    (dx.OfType(dx.Param), "OfType(<class 'declax._variables.kinds.Param'>)"),
    (dx.WithTag("dropout"), "WithTag('dropout')"),
    (dx.PathContains("a"), "PathContains('a')"),
    (dx.PathContains("a", exact=False), "PathContains('a', exact=False)"),
    (dx.PathIn(("b", 1), ("a",)), "PathIn(('a',), ('b', 1))"),
    (dx.PathMatches("a.*"), "PathMatches('a.*')"),
    (dx.Any(), "Any()"),
    (dx.Any(int, "dropout"), "Any(OfType(<class 'int'>), WithTag('dropout'))"),
    (dx.All(int, ...), "All(OfType(<class 'int'>), Everything())"),
    (dx.Not(None), "Not(Nothing())"),
]


@pytest.mark.parametrize(("predicate", "text"), SAMPLES)
def test_reprs(predicate, text):
    assert repr(predicate) == text


@pytest.mark.parametrize("predicate", [predicate for predicate, _ in SAMPLES])
def test_equal_predicates_are_one_key(predicate):
    again = pickle.loads(pickle.dumps(predicate))
    assert again is not predicate
    assert again == predicate
    assert hash(again) == hash(predicate)
    assert repr(again) == repr(predicate)
    assert again(PATH, dx.Param(0)) == predicate(PATH, dx.Param(0))


def test_different_predicates_differ():
    for (a, _), (b, _) in itertools.combinations(SAMPLES, 2):
        assert a != b
    assert dx.Any(int, "a") != dx.All(int, "a")
    assert dx.Any(int, "a") != dx.Any("a", int)
    assert dx.PathIn(("a",), ("b",)) == dx.PathIn(("b",), ("a",))


@pytest.mark.parametrize(
    ("predicate", "name"), [(dx.OfType(int), "type"), (dx.WithTag("a"), "tag"), (dx.Any(int), "predicates")]
)
def test_predicates_are_frozen(predicate, name):
    with pytest.raises(errors.MissingAttributeError, match=rf"\.{name}: this value cannot be changed"):
        setattr(predicate, name, 1)


# ------------------------------------------------------------------ answers without a value

values = st.sampled_from(
    [
        dx.Param(0),
        dx.Param(0, tag="a"),
        SpecialParam(0, tag="b"),
        dx.BatchStat(jnp.ones(2), tag="a"),
        SimpleNamespace(tag="a"),
        SimpleNamespace(type=dx.Param),
        jnp.ones(2),
        3,
    ]
)
filters = st.recursive(
    st.sampled_from(
        [..., None, dx.Param, SpecialParam, dx.BatchStat, "a", "b", int, jax.Array, dx.PathContains("x")]
        + [dx.PathMatches("x.*"), dx.PathIn(("y",)), lambda path, value: len(path) == 1]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(lambda fs: dx.All(*fs)),
        inner.map(dx.Not),
    ),
    max_leaves=5,
)


@given(filters, st.sampled_from([("x",), ("y",), ("x", "y")]), values, values)
def test_what_does_not_depend_on_values_holds_for_every_value(filter, path, value, other):
    predicate = filterlib.to_predicate(filter)
    dependency = dependency_of(predicate)
    is_like = type(value) is type(other) and isinstance(value, dx.Variable)
    if dependency == ON_KIND and is_like:
        assert predicate(path, value) == predicate(("other",), other)
    if dependency < ON_VALUE and is_like and value._metadata == other._metadata:
        assert predicate(path, value) == predicate(path, other)
    if dependency < ON_TAG and not isinstance(value, dx.Variable | SimpleNamespace):
        assert predicate(path, value) == predicate(path, jnp.zeros(3))


@pytest.mark.parametrize(
    ("filter", "dependency"),
    [
        (..., ON_KIND),
        (None, ON_KIND),
        ((), ON_KIND),
        (dx.Param, ON_KIND),
        (dx.Not(dx.Any(dx.Param, dx.All())), ON_KIND),
        (dx.PathContains("x"), ON_PLACE),
        (dx.PathIn(("x",)), ON_PLACE),
        (dx.PathMatches("x"), ON_PLACE),
        (dx.is_trainable, ON_PLACE),
        (dx.All(dx.Param, dx.PathContains("x")), ON_PLACE),
        ("a", ON_TAG),
        ((dx.Param, "a"), ON_TAG),
        (int, ON_VALUE),
        (dx.Not(int), ON_VALUE),
        (lambda path, value: True, ON_VALUE),
    ],
)
def test_what_results_depend_on(filter, dependency):
    assert dependency_of(filterlib.to_predicate(filter)) == dependency


def test_a_class_that_derives_from_a_predicate_may_look_at_values():
    class IsLarge(dx.OfType):
        def __call__(self, path, value):
            return super().__call__(path, value) and value.value > 1

    assert dependency_of(IsLarge(dx.Param)) == ON_VALUE
    assert not dx.All(IsLarge(dx.Param))((), dx.Param(1))


# ------------------------------------------------------------------ use


class Bar(dx.Module):
    def __init__(self):
        self.a = dx.Param(0)
        self.b = SpecialParam(0)


def test_the_first_filter_that_takes_a_leaf_has_it():
    _, params, special = dx.split(Bar(), dx.Param, SpecialParam)
    assert list(params) == ["a", "b"]
    assert list(special) == []
    _, special, params = dx.split(Bar(), SpecialParam, dx.Param)
    assert list(params) == ["a"]
    assert list(special) == ["b"]


def test_tags_group_a_state():
    model = Bar()
    model.a = dx.Param(1, tag="slow")
    state = dx.state(model)
    slow, rest = state.split("slow", ...)
    assert list(slow) == ["a"]
    assert list(rest) == ["b"]
    assert list(state.filter(dx.PathMatches("b"))) == ["b"]


def test_a_tag_on_a_bare_value_is_read_anew_each_time():
    def grouped(tag):
        return list(dx.State({"a": SimpleNamespace(tag=tag)}).filter("x"))

    assert grouped("x") == ["a"]
    assert grouped("y") == []


def test_unions_of_kinds_are_filters():
    for union in (dx.Param | dx.BatchStat, Optional[dx.Param], dx.Any(dx.Param, dx.BatchStat)):
        assert to_predicate(union)((), dx.Param(1))
    assert not to_predicate(dx.Param | dx.BatchStat)((), dx.Cache(1))


@pytest.mark.parametrize("annotation", [list[dx.Param], dict[str, int], AnyType], ids=str)
def test_annotations_are_no_filters(annotation):
    with pytest.raises(FilterError, match="this is an annotation, not a filter"):
        to_predicate(annotation)


def test_a_class_derived_from_a_predicate_is_asked():
    class Nowhere(dx.PathIn):
        def __call__(self, path, value):
            return not super().__call__(path, value)

    model = [dx.Param(1), dx.Param(2)]
    assert dx.state(model, Nowhere((0,))).paths == ((1,),)


@pytest.mark.parametrize(
    "make", [lambda: dx.Any(int), lambda: dx.All(int), lambda: dx.Not(int), dx.Everything, dx.Nothing]
)
def test_attributes_of_a_logical_filter_do_not_count(make):
    """Some programs describe their filters."""
    noted = make()
    noted.__doc__ = "what is frozen"
    noted.owner = "me"
    assert (noted.__doc__, noted.owner) == ("what is frozen", "me")
    assert (noted, hash(noted), repr(noted)) == (make(), hash(make()), repr(make()))
    with pytest.raises(errors.MissingAttributeError, match=r"predicates: this value cannot be changed"):
        noted.predicates = ()

"""Filters as the reference page has them, on models and States."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax import filterlib
from declax.errors import FilterError
from naming import name_of
from strategies import Open


class Foo(dx.Module):
    def __init__(self):
        self.a = dx.Param(0)
        self.b = dx.BatchStat(True)


class SpecialParam(dx.Param):
    pass


class Bar(dx.Module):
    def __init__(self):
        self.a = dx.Param(0)
        self.b = SpecialParam(0)


# ================================================================= the page


def test_types_group_leaves():
    _, params, stats = dx.split(Foo(), dx.Param, dx.BatchStat)
    assert (params.paths, stats.paths) == ((("a",),), (("b",),))
    assert params["a"].value == 0
    assert stats["b"].value is True


def test_a_type_takes_instances_and_what_says_its_type():
    class Described:
        type = dx.Param

    is_param = dx.OfType(dx.Param)
    assert is_param((), dx.Param(0))
    assert is_param((), dx.VariableState(0)) is isinstance(dx.VariableState(0), dx.Param)
    assert is_param((), Described())
    assert not is_param((), dx.BatchStat(0))
    assert not is_param((), 0)


def test_predicates_of_literals():
    texts = {
        "OfType(<class 'declax._variables.kinds.Param'>)": dx.Param,
        "Everything()": ...,
        "Nothing()": False,
        "Any(OfType(<class 'declax._variables.kinds.Param'>), WithTag('dropout'))": (dx.Param, "dropout"),
        "WithTag('dropout')": "dropout",
        "All(OfType(<class 'declax._variables.kinds.Param'>), Not(WithTag('x')))": dx.All(dx.Param, dx.Not("x")),
        "PathContains('a')": dx.PathContains("a"),
        "PathContains(0, exact=False)": dx.PathContains(0, exact=False),
        "PathIn(('a', 0), ('b',))": dx.PathIn(("b",), ("a", 0)),
        "PathMatches('a.*')": dx.PathMatches("a.*"),
    }
    for text, literal in texts.items():
        assert repr(filterlib.to_predicate(literal)) == text
    assert repr(filterlib.to_predicate(True)) == "Everything()"
    assert repr(filterlib.to_predicate(None)) == "Nothing()"
    assert repr(filterlib.to_predicate([dx.Param])) == "Any(OfType(<class 'declax._variables.kinds.Param'>))"


def test_the_order_of_filters_counts():
    _, params, special = dx.split(Bar(), dx.Param, SpecialParam)
    assert params.paths == (("a",), ("b",))
    assert len(special) == 0
    _, special, params = dx.split(Bar(), SpecialParam, dx.Param)
    assert (special.paths, params.paths) == ((("b",),), (("a",),))


def test_a_function_is_a_filter():
    _, first, rest = dx.split(Foo(), lambda path, value: path[0] == "a", ...)
    assert (first.paths, rest.paths) == ((("a",),), (("b",),))
    seen = []
    dx.state(Foo(), lambda path, value: seen.append((path, type(value))))
    assert seen == [(("a",), dx.Param), (("b",), dx.BatchStat)]


def test_tags_find_random_streams():
    model = Open()
    model.rngs = dx.Rngs(params=0, dropout=1)
    model.other = dx.Param(1.0, tag="dropout")
    paths = dx.state(model, "dropout").paths
    assert set(paths) == {("other",), ("rngs", "dropout", "count"), ("rngs", "dropout", "key")}
    assert dx.state(model, "nothing").paths == ()
    assert set(dx.state(model, (dx.RngKey, "dropout")).paths) == {*paths, ("rngs", "params", "key")}
    assert dx.state(model, dx.All(dx.RngCount, dx.Not("dropout"))).paths == (("rngs", "params", "count"),)


# ================================================================= combinations


def test_nothing_and_everything():
    state = dx.state(Foo())
    assert state.filter(None).paths == state.filter(False).paths == state.filter(()).paths == ()
    assert state.filter(...).paths == state.filter(True).paths == state.paths
    assert state.filter(dx.All()).paths == state.paths
    assert state.filter(dx.Any()).paths == ()


@given(st.lists(st.booleans(), max_size=4))
def test_combinations_are_those_of_logic(values):
    filters = [... if value else None for value in values]
    assert dx.Any(*filters)((), 1) == any(values)
    assert dx.All(*filters)((), 1) == all(values)
    for f, value in zip(filters, values, strict=True):
        assert dx.Not(f)((), 1) != value


def test_predicates_are_values():
    assert dx.OfType(dx.Param) == dx.OfType(dx.Param)
    assert hash(dx.PathIn(("a",), ("b",))) == hash(dx.PathIn(("b",), ("a",)))
    assert dx.Any(dx.Param, "x") == dx.Any(dx.Param, "x")
    assert dx.Any(dx.Param, "x") != dx.All(dx.Param, "x")
    assert dx.Not(...) != dx.Any(...)
    assert dx.PathMatches("a.b") == dx.PathMatches("a.b")
    assert len({dx.PathMatches("a"), dx.PathMatches("a"), dx.PathMatches("b")}) == 2


# ================================================================= paths


@pytest.mark.parametrize(
    ("pattern", "path", "is_taken"),
    [
        ("a", ("a",), True),
        ("a", ("a", "b"), False),
        ("a.b", ("a", "b"), True),
        ("a.*", ("a", "b"), True),
        ("a.*", ("a", "b", "c"), False),
        ("*.kernel", ("kernel",), False),
        ("**.kernel", ("kernel",), True),
        ("**.kernel", ("a", 0, "kernel"), True),
        ("a.**", ("a", "b", "c"), True),
        ("a.**", ("a",), True),
        ("a.**", ("ab", "c"), False),
        ("**", (), True),
        ("**", ("a", 1), True),
        ("a.**.z", ("a", "z"), True),
        ("a.**.z", ("a", 1, "b", "z"), True),
        ("blocks.*.kernel", ("blocks", 10, "kernel"), True),
        ("blocks.1.kernel", ("blocks", 1, "kernel"), True),
        ("blocks.1.kernel", ("blocks", 11, "kernel"), False),
        ("blocks.1*.kernel", ("blocks", 11, "kernel"), True),
        ("b?", ("b1",), True),
        ("b?", ("b",), False),
        ("a?b", ("a", "b"), False),
        ("a*b", ("a", "b"), False),
        ("a*b*c", ("axbxc",), True),
        ("a*b*c", ("a", "b", "c"), False),
        ("a+b", ("aab",), False),
        ("a+b", ("a+b",), True),
        ("kernel", ("Kernel",), False),
        ("kern", ("kernel",), False),
        ("kernel", ("kern",), False),
        ("*", ("a\nb",), True),
    ],
)
def test_globs(pattern, path, is_taken):
    assert dx.PathMatches(pattern)(path, 1) is is_taken


def test_paths_with_steps_of_error_messages():
    assert dx.PathMatches("blocks[0].kernel")(("blocks", 0, "kernel"), 1)


@given(
    st.lists(st.one_of(st.text("ab.*?[]", min_size=1, max_size=3), st.integers(0, 20)), min_size=1, max_size=4).map(
        tuple
    )
)
def test_two_stars_take_every_path(path):
    assert dx.PathMatches("**")(path, 1)
    assert dx.PathMatches(".".join("*" for _ in path))(path, 1)


def test_keys_of_paths():
    assert dx.PathContains("b")(("a", "b", 0), 1)
    assert not dx.PathContains("b")(("a", "bc"), 1)
    assert dx.PathContains("b", exact=False)(("a", "bc"), 1)
    assert dx.PathContains(0)(("a", 0), 1)
    assert not dx.PathContains("0")(("a", 0), 1)
    assert dx.PathContains("0", exact=False)(("a", 10), 1)
    assert dx.PathIn(("a", 0))(("a", 0), 1)
    assert not dx.PathIn(("a", 0))(("a",), 1)
    assert not dx.PathIn()((), 1)


# ================================================================= what is refused


@pytest.mark.parametrize("wrong", [3, 1, 0, 2.5, {"a": 1}, {1}, b"x", object()], ids=name_of)
def test_what_is_no_filter_shows_the_grammar(wrong):
    state = dx.state(Foo())
    state.filter(True), state.filter(False)  # an answer that was kept for these must not serve 1 and 0
    for use in (filterlib.to_predicate, lambda f: dx.state(Foo(), f), lambda f: dx.Any(dx.Param, f), state.filter):
        with pytest.raises(FilterError, match="this is not a filter") as caught:
            use(wrong)
        for part in ("dx.Param", "'dropout'", "dx.Not", "lambda path, value"):
            assert part in str(caught.value)


def test_a_model_is_no_filter_though_it_can_be_called():
    with pytest.raises(FilterError, match="this is not a filter"):
        dx.state(Foo(), dx.Linear(1, 1, rngs=dx.Rngs(0)))
    with pytest.raises(FilterError, match="this is not a filter"):
        dx.state(Foo(), dx.Param(1))


@pytest.mark.parametrize("everything", [..., True])
def test_everything_comes_last(everything):
    with pytest.raises(FilterError, match="match all leaves"):
        dx.split(Foo(), everything, dx.Param)
    with pytest.raises(FilterError, match="match all leaves"):
        dx.state(Foo()).filter(everything, everything)


def test_predicates_refuse_what_they_cannot_use():
    with pytest.raises(FilterError, match="this is not a class"):
        dx.OfType("Param")
    with pytest.raises(FilterError, match="a tag must be a string"):
        dx.WithTag(3)
    with pytest.raises(FilterError, match="a path is a tuple of hashable keys"):
        dx.PathIn("a")
    with pytest.raises(FilterError, match="a pattern must be a string of non-empty steps joined by dots"):
        dx.PathMatches("a..b")


# ================================================================= kept answers


def test_predicates_of_values_are_asked_each_time():
    model = Open()
    model.a, model.b = dx.Param(jnp.zeros(2)), dx.Param(jnp.ones(2))

    def is_large(path, value):
        return bool((value.value > 0.5).all())

    for take in (is_large, dx.Any(is_large), dx.Not(dx.Not(is_large)), (None, is_large)):
        model.a.value, model.b.value = jnp.zeros(2), jnp.ones(2)
        assert dx.state(model, take).paths == (("b",),)
        model.a.value = jnp.ones(2)
        assert dx.state(model, take).paths == (("a",), ("b",))
        model.b.value = jnp.zeros(2)
        assert dx.split(model, take, ...)[1].paths == (("a",),)


def test_types_of_values_are_asked_each_time():
    model = Open()
    model.raw = dx.data(jnp.zeros(2))
    assert dx.state(model, jax.Array).paths == (("raw",),)
    model.raw = np.zeros(2)
    assert dx.state(model, jax.Array).paths == ()
    assert dx.state(model, np.ndarray).paths == (("raw",),)


def test_a_predicate_with_changing_state_is_asked_each_time():
    class Switch:
        is_on = True

        def __call__(self, path, value):
            return self.is_on

    switch = Switch()
    assert len(dx.state(Foo(), switch)) == 2
    switch.is_on = False
    assert len(dx.state(Foo(), switch)) == 0


def test_tags_that_change_are_seen():
    model = Open()
    model.a = dx.Param(jnp.ones(1))
    assert len(dx.state(model, "x")) == 0
    model.a.set_metadata(tag="x")
    assert len(dx.state(model, "x")) == 1
    model.a.set_metadata(tag="y")
    assert len(dx.state(model, "x")) == 0


def test_filters_without_a_hash():
    state = dx.state(Bar())
    for _ in range(2):
        assert state.filter([SpecialParam]).paths == (("b",),)
        assert state.filter([dx.Param]).paths == (("a",), ("b",))
    names = ["a"]
    by_name = [lambda path, value: path[0] in names]
    assert state.filter(by_name).paths == (("a",),)
    names.append("b")
    assert state.filter(by_name).paths == (("a",), ("b",))


# ================================================================= errors name the function

USES = {
    "split": lambda *filters: dx.split(Foo(), *filters),
    "state": lambda *filters: dx.state(Foo(), *filters),
    "pop": lambda *filters: dx.pop(Foo(), *filters),
    "unpack": lambda *filters: dx.unpack(Foo(), *filters),
    "State.split": lambda *filters: dx.state(Foo()).split(*filters),
    "State.filter": lambda *filters: dx.state(Foo()).filter(*filters),
    "FlatState.split": lambda *filters: dx.state(Foo()).flat_state().split(*filters),
    "FlatState.filter": lambda *filters: dx.state(Foo()).flat_state().filter(*filters),
}


@pytest.mark.parametrize("name", USES)
def test_an_error_names_the_function_and_the_filter(name):
    for wrong in (3, [dx.Param, 3], list[int], dx.OfType):
        with pytest.raises(FilterError, match=r"this is (no|an|the)") as caught:
            USES[name](dx.Param, wrong)
        assert caught.value.where == f"{name}, filter 1"
    with pytest.raises(FilterError, match="the filters after them match none") as caught:
        USES[name](..., dx.Param)
    assert caught.value.where == f"{name}, filter 0"


@pytest.mark.parametrize("name", ["split", "unpack", "State.split", "FlatState.split"])
def test_what_is_left_over_names_the_function_and_the_path(name):
    with pytest.raises(FilterError, match=r"no filter matches this leaf\. ") as caught:
        USES[name](dx.Param)
    assert caught.value.where == f"{name}, b"
    with pytest.raises(FilterError, match="no filter matches this leaf, nor 1 other"):
        USES[name](dx.Cache)


ONLY = {
    "set_metadata": lambda only: dx.set_metadata(Foo(), only=only, note=1),
    "find_duplicates": lambda only: dx.find_duplicates([jnp.ones(1)] * 2, only=only),
    "to_refs": lambda only: dx.to_refs(Bar(), only=only),
    "to_arrays": lambda only: dx.to_arrays(dx.to_refs(jnp.ones(1)), only=only),
    "with_vars": lambda only: dx.with_vars(dx.Param(jnp.ones(1)), ref=True, only=only),
    "view": lambda only: dx.view(Foo(), only=only),
    "view_info": lambda only: dx.view_info(Foo(), only=only),
    "with_attributes": lambda only: dx.with_attributes(Foo(), only=only),
}


@pytest.mark.parametrize("name", ONLY)
def test_an_error_of_only_names_the_function(name):
    with pytest.raises(FilterError, match="this is not a filter") as caught:
        ONLY[name](3)
    assert caught.value.where == f"{name}, only"


def refuses(path, value):
    raise LookupError("of the user")


@pytest.mark.parametrize(
    "use", [lambda f: USES["split"](f, ...), USES["pop"], USES["State.filter"]], ids=["split", "pop", "filter"]
)
@pytest.mark.parametrize(("wanted", "said"), [(refuses, "refuses"), (dx.Not(refuses), "Not(")], ids=["f", "Not"])
def test_an_error_of_a_users_filter_is_kept_and_tells_the_path(use, wanted, said):
    with pytest.raises(LookupError, match="of the user") as caught:
        use(wanted)
    (note,) = caught.value.__notes__
    assert note.startswith(f"raised by the filter {said}")
    assert note.endswith(", at a")


@pytest.mark.parametrize(
    "name", ["set_metadata", "find_duplicates", "to_arrays", "view", "view_info", "with_attributes"]
)
def test_an_error_of_a_users_only_tells_the_path(name):
    with pytest.raises(LookupError, match="of the user") as caught:
        ONLY[name](refuses)
    assert "raised by the filter refuses, at " in caught.value.__notes__[0]


def test_an_answer_that_is_no_bool_tells_the_path():
    with pytest.raises(ValueError, match="truth value") as caught:
        dx.state([dx.Param(jnp.ones(2))], lambda path, value: value > 0)
    assert caught.value.__notes__ == ["raised by the filter <lambda>, at [0]"]

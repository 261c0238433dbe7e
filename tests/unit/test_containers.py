"""List, Dict and Sequential: the protocols of Python, and a status for each element."""

import copy
import pickle
from collections.abc import Mapping, MutableMapping, MutableSequence

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax import errors
from declax._classes.pytree import layout_of
from declax._fields.specifiers import Status
from declax._tree.layout import Layout


def outcome(action, target):
    try:
        result = action(target)
    except Exception as error:  # noqa: BLE001  # which error it is, is compared
        return next(cls for cls in (IndexError, KeyError, ValueError, TypeError) if isinstance(error, cls))
    return list(result) if isinstance(result, (dx.List, list)) else result


indices = st.integers(-7, 7)
slices = st.builds(slice, st.none() | indices, st.none() | indices, st.none() | st.integers(-3, 3).filter(bool))
values = st.integers(0, 3) | st.text("ab", max_size=2)
many = st.lists(values, max_size=4)

LIST_ACTIONS = st.one_of(
    st.builds(lambda v: lambda s: s.append(v), values),
    st.builds(lambda v: lambda s: s.extend(v), many),
    st.builds(lambda i, v: lambda s: s.insert(i, v), indices, values),
    st.builds(lambda i: lambda s: s.pop(i), indices),
    st.builds(lambda i: lambda s: s.__delitem__(i), indices | slices),
    st.builds(lambda i, v: lambda s: s.__setitem__(i, v), indices, values),
    st.builds(lambda i, v: lambda s: s.__setitem__(i, v), slices, many),
    st.builds(lambda i: lambda s: s[i], indices | slices),
    st.builds(lambda v: lambda s: s.remove(v), values),
    st.builds(lambda v: lambda s: s.index(v), values),
    st.builds(lambda v: lambda s: s.count(v), values),
    st.builds(lambda v: lambda s: v in s, values),
    st.builds(lambda v: lambda s: s.__iadd__(v), many),
    st.sampled_from(
        [
            lambda s: s.reverse(),
            lambda s: s.clear(),
            lambda s: list(reversed(s)),
            len,
            bool,
        ]
    ),
)


@given(many, st.lists(LIST_ACTIONS, max_size=8))
def test_a_list_does_what_a_list_does(start, actions):
    ours, standard = dx.List(start), list(start)
    for action in actions:
        assert outcome(action, ours) == outcome(action, standard)
        assert list(ours) == standard
        assert len(ours) == len(standard) == layout_of(ours).length
        dx.check_pytree(ours)
        assert list(jax.tree.map(lambda x: x, ours)) == standard


keys = st.text("abc", min_size=1, max_size=2)
DICT_ACTIONS = st.one_of(
    st.builds(lambda k, v: lambda d: d.__setitem__(k, v), keys, values),
    st.builds(lambda k: lambda d: d.__delitem__(k), keys),
    st.builds(lambda k: lambda d: d[k], keys),
    st.builds(lambda k: lambda d: d.get(k, 9), keys),
    st.builds(lambda k: lambda d: d.pop(k), keys),
    st.builds(lambda k: lambda d: d.pop(k, 9), keys),
    st.builds(lambda k, v: lambda d: d.setdefault(k, v), keys, values),
    st.builds(lambda v: lambda d: d.update(v), st.dictionaries(keys, values, max_size=3)),
    st.builds(lambda k: lambda d: k in d, keys),
    st.sampled_from(
        [
            lambda d: d.clear(),
            lambda d: list(d.items()),
            lambda d: list(d.keys()),
            lambda d: list(d.values()),
            len,
            bool,
        ]
    ),
)


@given(st.dictionaries(keys, values, max_size=3), st.lists(DICT_ACTIONS, max_size=8))
def test_a_dict_does_what_a_dict_does(start, actions):
    ours, standard = dx.Dict(start), dict(start)
    for action in actions:
        assert outcome(action, ours) == outcome(action, standard)
        assert list(ours.items()) == list(standard.items())
        dx.check_pytree(ours)
        assert dict(jax.tree.map(lambda x: x, ours)) == standard


@given(many, st.data())
def test_deleting_many_elements_at_once(start, data):
    chosen = data.draw(st.sets(st.integers(-len(start), len(start) - 1))) if start else set()
    ours, one_by_one = dx.List([dx.data(v) if i % 2 else v for i, v in enumerate(start)]), dx.List()
    one_by_one.extend(dx.data(v) if i % 2 else v for i, v in enumerate(start))
    for index in sorted({range(len(start))[i] for i in chosen}, reverse=True):
        del one_by_one[index]
    ours._pytree__delete(chosen)
    assert list(ours) == list(one_by_one)
    assert layout_of(ours) is layout_of(one_by_one)
    assert list(jax.tree.map(lambda x: x, ours)) == list(ours)


def test_deleting_an_element_that_is_not_there():
    ours = dx.List([1, 2])
    with pytest.raises(IndexError, match="out of range"):
        ours._pytree__delete([0, 2])
    assert list(ours) == [1, 2]


BULK = {
    "constructor": lambda: dx.List([1, dx.data(2.0)] * 100),
    "extend": lambda: dx.List().extend([1, dx.data(2.0)] * 100),
    "slice": lambda: dx.List().__setitem__(slice(0, 0), [1, dx.data(2.0)] * 100),
    "dict": lambda: dx.Dict({f"n{i}": dx.data(i) for i in range(100)}),
    "update": lambda: dx.Dict().update({f"m{i}": dx.data(i) for i in range(100)}),
}


@pytest.mark.parametrize("name", BULK)
def test_many_at_once_make_one_layout(name, monkeypatch):
    made = []
    make = Layout._make
    monkeypatch.setattr(Layout, "_make", staticmethod(lambda *args: made.append(args) or make(*args)))
    BULK[name]()
    assert len(made) <= 1


@pytest.mark.parametrize(
    "change",
    [
        lambda items, parts: items.pop(),
        lambda items, parts: items.extend([3]),
        lambda items, parts: items._pytree__delete([0]),
        lambda items, parts: items.clear(),
        lambda items, parts: parts.update(b=2),
        lambda items, parts: parts.clear(),
    ],
)
def test_a_change_from_another_trace_changes_nothing(change):
    items, parts = dx.List([1, 2]), dx.Dict(a=1)

    @jax.jit
    def f(x):
        change(items, parts)
        return x

    with pytest.raises(errors.TraceContextError, match="from a different trace level"):
        f(1.0)
    assert [list(items), dict(parts)] == [[1, 2], {"a": 1}]
    assert [layout_of(items).length, len(parts)] == [2, 1]


def statuses(items):
    return list(layout_of(items).statuses.values())


# --- List -------------------------------------------------------------------------


def test_each_element_has_a_status_of_its_own():
    items = dx.List([jnp.ones(1), "a", [1], dx.data(3), dx.static(4), [jnp.ones(1)]])
    assert statuses(items) == [
        Status.DATA,
        Status.STATIC,
        Status.SNAPSHOT,
        Status.DATA,
        Status.STATIC,
        Status.DATA,
    ]
    assert len(jax.tree.leaves(items)) == 3
    assert items[3] == 3


def test_a_status_goes_with_its_element():
    items = dx.List([1, dx.data(1), 1])
    items.insert(0, "new")
    assert statuses(items) == [Status.STATIC, Status.STATIC, Status.DATA, Status.STATIC]
    items.reverse()
    assert statuses(items) == [Status.STATIC, Status.DATA, Status.STATIC, Status.STATIC]
    assert items[1:3] == [1, 1]
    assert statuses(copy.copy(items)) == statuses(items)
    del items[0]
    assert statuses(items) == [Status.DATA, Status.STATIC, Status.STATIC]
    items[0] = "text"
    assert jax.tree.leaves(items) == ["text"]
    items[0] = dx.static("text")
    assert jax.tree.leaves(items) == []


def test_an_array_in_the_place_of_a_static_element():
    items = dx.List(["a", jnp.ones(1)])
    with pytest.raises(
        errors.StatusError, match=r"List\[0\]: data was assigned to an attribute that is static"
    ) as info:
        items[0] = jnp.ones(1)
    assert "self[0] = dx.data(...)" in info.value.fix
    assert items[0] == "a"
    with pytest.raises(errors.StatusError, match="found the tags"):
        items.append([dx.data(1)])
    with pytest.raises(errors.StatusError, match="found the tags"):
        items.extend([1, [dx.data(1)]])
    assert len(items) == 2


def test_errors_of_indices_are_those_of_python():
    items = dx.List([1])
    for action in (
        lambda: items[1],
        lambda: items.__setitem__(-2, 3),
        lambda: items.__delitem__(5),
        lambda: dx.List().pop(),
    ):
        with pytest.raises(IndexError, match="out of range"):
            action()
    with pytest.raises(TypeError, match="str"):
        items["a"]


def test_lists_are_references():
    one, other = dx.List([1]), dx.List([1])
    assert one != other
    assert one == one
    assert len({one, other}) == 2
    assert isinstance(one, MutableSequence)


def test_paths_of_elements():
    items = dx.List([jnp.ones(1), dx.List([jnp.ones(1)]), dx.Dict(a=jnp.ones(1))])
    assert [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(items)] == ["[0]", "[1][0]", "[2]['a']"]
    assert jax.tree.leaves(dx.List(map(float, range(12)))) == []
    assert jax.tree.leaves(dx.List([dx.data(i) for i in range(12)])) == list(range(12))


def test_a_subclass_with_attributes():
    class Blocks(dx.List):
        def __init__(self, count):
            super().__init__([jnp.ones(1) for _ in range(count)])
            self.count_at_start = count
            self.scale = jnp.ones(2)

    blocks = Blocks(2)
    assert len(blocks) == 2
    blocks.append(jnp.ones(1))
    assert [len(blocks), blocks.count_at_start, len(jax.tree.leaves(blocks))] == [3, 2, 4]
    blocks.clear()
    assert [len(blocks), len(jax.tree.leaves(blocks))] == [0, 1]
    again = jax.tree.map(lambda x: x, blocks)
    assert type(again) is Blocks
    assert again.count_at_start == 2
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(blocks)]
    assert paths == [".scale"]


def test_a_change_of_a_list_is_seen_by_jit():
    class Model(dx.Module):
        def __init__(self):
            self.parts = dx.List([dx.Param(jnp.ones(1))])

    @dx.jit
    def total(model):
        return sum(part.value.sum() for part in model.parts)

    @dx.jit
    def grow(model):
        model.parts.append(dx.Param(jnp.ones(1)))

    model = Model()
    assert float(total(model)) == 1
    model.parts.append(dx.Param(jnp.ones(1)))
    assert float(total(model)) == 2
    grow(model)
    assert float(total(model)) == 3
    model.parts.pop()
    assert float(total(model)) == 2
    model.parts.reverse()
    assert float(total(model)) == 2


@pytest.mark.parametrize("make", [lambda: dx.List([1, jnp.ones(1), [2]]), lambda: dx.Dict(a=1, b=jnp.ones(1))])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_containers(make, duplicate):
    items = make()
    made = duplicate(items)
    assert statuses(made) == statuses(items)
    assert jax.tree.structure(made) == jax.tree.structure(items)
    size = len(items)
    made.append(1) if isinstance(made, dx.List) else made.update(z=1)
    assert len(items) == size


# --- Dict -------------------------------------------------------------------------


def test_a_dict_has_attributes_too():
    parts = dx.Dict({"left": jnp.ones(1)}, right=2)
    parts.top = dx.Param(jnp.ones(1))
    assert list(parts) == ["left", "right", "top"]
    assert parts.left is parts["left"]
    assert len(jax.tree.leaves(parts)) == 2
    del parts.left
    assert "left" not in parts
    assert isinstance(parts, MutableMapping)
    assert dict(dx.Dict([("a", 1)])) == {"a": 1}


def test_keys_that_are_refused():
    parts = dx.Dict(a=1)
    with pytest.raises(errors.FieldError, match="Dict: a key is not a string"):
        parts[3] = 1
    for key in ("items", "get", "sow", "__class__", "__dict__", "_pytree__layout", "_pytree__is_pytree", "__init__"):
        with pytest.raises(errors.FieldError, match=f"the key '{key}' would hide a method of Dict"):
            parts[key] = 1
    for key in ("mro", "register"):  # which are methods of classes, not of instances
        parts[key] = 1
    assert set(parts) == {"a", "mro", "register"}


def test_keys_that_are_missing():
    parts = dx.Dict(left=1)
    with pytest.raises(
        errors.MissingKeyError, match=r"Dict\['lefft'\]: the Dict does not have this key; did you mean 'left'\?"
    ):
        parts["lefft"]
    with pytest.raises(KeyError, match=r"the Dict does not have this key\."):
        del parts["zzz"]
    for key in ("_pytree__layout", 3):
        with pytest.raises(KeyError, match="the Dict does not have this key"):
            parts[key]
    with pytest.raises(errors.MissingAttributeError, match=r"the Dict has no entry 'lefft'; did you mean 'left'\?"):
        parts.lefft
    with pytest.raises(AttributeError, match=r"the Dict has no entry 'zzz'\."):
        parts.zzz
    assert not hasattr(parts, "zzz")


def test_an_entry_may_be_sown():
    parts = dx.Dict()
    parts.sow(dx.Intermediate, "seen", 1)
    assert parts["seen"].value == (1,)


def test_mappings_give_entries():
    class Own(Mapping):
        def __getitem__(self, key):
            return {"a": 1}[key]

        def __iter__(self):
            return iter("a")

        def __len__(self):
            return 1

    assert dict(dx.Dict(Own())) == {"a": 1}


# --- Sequential -------------------------------------------------------------------


def test_sequential_calls_its_layers_in_order():
    model = dx.Sequential(dx.Linear(2, 3, rngs=dx.Rngs(0)), jax.nn.relu, dx.Linear(3, 1, rngs=dx.Rngs(1)))
    x = jnp.ones((4, 2))
    first, _, last = model
    assert jnp.array_equal(model(x), last(jax.nn.relu(first(x))))
    assert len(model) == 3
    assert dx.Sequence is dx.Sequential
    assert [jax.tree_util.keystr(p[:2]) for p, _ in jax.tree.leaves_with_path(model)] == [".layers[0]"] * 2 + [
        ".layers[2]"
    ] * 2
    model[1] = jnp.tanh
    assert model[1] is jnp.tanh


def test_what_layers_pass_on():
    assert dx.Sequential()(3) == 3
    assert dx.Sequential()(3, 4) == (3, 4)
    assert dx.Sequential(lambda a, b: (a + b, a), lambda a, b: {"x": a, "y": b}, lambda *, x, y: x * y)(2, b=3) == 10
    assert dx.Sequential([lambda x: x + 1, lambda x: x * 2])(1) == 4
    assert bool(dx.Sequential())


def test_rngs_go_to_the_layers_that_take_them():
    seen = []

    def with_rngs(x, *, rngs):
        seen.append(rngs)
        return x

    rngs = dx.Rngs(0)
    assert dx.Sequential(with_rngs, lambda x: x + 1, abs)(-3, rngs=rngs) == 2
    assert seen == [rngs]
    assert dx.Sequential(min)([3, 1], rngs=rngs) == 1


def test_updating_a_dict_is_all_or_nothing():
    held = dx.Dict(a=1)
    with pytest.raises(errors.StatusError, match="inside of a container"):
        held.update(b=2, c=[dx.data(1)])
    with pytest.raises(errors.FieldError, match="would hide a method of Dict"):
        held.update({"b": 2, "keys": 3})
    assert dict(held) == {"a": 1}
    held.update({"b": 2}, c=3)
    assert dict(held) == {"a": 1, "b": 2, "c": 3}

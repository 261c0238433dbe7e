from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import pickle
import types
from collections import OrderedDict, defaultdict, deque, namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declax import errors
from declax._fields import snapshots
from declax._fields.snapshots import exact_types, freeze, is_frozen, thaw
from declax._tree import epoch

Point = namedtuple("Point", "x y")

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.sets(st.integers(), max_size=3),
    ),
    max_leaves=8,
)


@given(values)
def test_thaw_is_the_inverse_of_freeze(value):
    frozen = freeze(value)
    hash(frozen)
    assert thaw(frozen) == value
    assert type(thaw(frozen)) is type(value)
    assert freeze(thaw(frozen)) == frozen
    assert pickle.loads(pickle.dumps(frozen)) == frozen


@pytest.mark.parametrize(
    "value", ["relu", 3, None, int, len, jnp.float32, np.dtype("int8"), (1, "a"), frozenset({1}), jax.nn.relu]
)
def test_what_has_a_hash_passes_through(value):
    assert freeze(value) is value
    assert not is_frozen(freeze(value))
    assert thaw(value) is value


@pytest.mark.parametrize(
    "value",
    [
        [1, [2]],
        {"a": [1]},
        {1, 2},
        bytearray(b"ab"),
        deque([1, 2], maxlen=3),
        OrderedDict(a=[1]),
        defaultdict(list, {"a": [1]}),
        (1, [2]),
        Point(1, [2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_come_back_as_they_were(value):
    frozen = freeze(value)
    assert is_frozen(frozen)
    made = thaw(frozen)
    assert made == value
    assert type(made) is type(value)
    assert made is not value
    assert getattr(made, "maxlen", None) == getattr(value, "maxlen", None)
    assert getattr(made, "default_factory", None) == getattr(value, "default_factory", None)
    assert freeze(copy.deepcopy(value)) == frozen
    assert hash(freeze(copy.deepcopy(value))) == hash(frozen)


class Ports(dict):
    """A dict with a constructor of its own."""

    def __init__(self, *, names):
        super().__init__(names=names)


class Sets(dict):
    """A dict whose constructor takes one of its values."""

    def __init__(self, sets):
        super().__init__(sets=sets)


class Attributes(dict):
    """A dict whose entries are attributes."""

    def __init__(self, *args):
        super().__init__(*args)
        self.__dict__ = self


class Pair(list):
    """A list that is made from two arguments."""

    def __init__(self, first, second):
        super().__init__([first, second])


@pytest.mark.parametrize(
    "value",
    [Ports(names=["a"]), Sets({"bus": Ports(names=None)}), Pair(1, [2])],
    ids=lambda value: type(value).__name__,
)
def test_containers_with_constructors_of_their_own(value):
    made = thaw(freeze(value))
    assert made == value
    assert type(made) is type(value)
    assert made is not value


def test_a_constructor_that_takes_the_content_runs():
    made = thaw(freeze(Attributes({"size": [1]})))
    assert made.size == [1]
    made.size = [2]
    assert made["size"] == [2]


def test_a_slice_is_hashable_in_a_container():
    assert thaw(freeze([slice(1, 2)])) == [slice(1, 2)]


def test_a_thawed_container_is_fresh_each_time():
    frozen = freeze({"a": [1]})
    thaw(frozen)["a"].append(2)
    assert thaw(frozen) == {"a": [1]}


def test_a_change_in_place_gives_another_snapshot():
    sizes = [8, 16]
    before = freeze(sizes)
    sizes.append(32)
    assert freeze(sizes) != before


def test_containers_of_different_types_differ():
    assert freeze([1]) != freeze(deque([1]))
    assert freeze([1]) != [1]
    assert freeze({"a": 1}) == freeze({"a": 1})


@pytest.mark.parametrize("kind", [dict, OrderedDict, types.MappingProxyType])
def test_the_order_of_a_mapping_counts(kind):
    one, other = kind({"a": 1, "b": 2}), kind({"b": 2, "a": 1})
    assert freeze(one) != freeze(other)
    assert list(thaw(freeze(other))) == ["b", "a"]


def test_equal_snapshots_are_one_object():
    assert freeze({"a": [1, {2}]}) is freeze({"a": [1, {2}]})
    assert copy.deepcopy(freeze([1])) is copy.copy(freeze([1])) is pickle.loads(pickle.dumps(freeze([1])))


def test_snapshots_are_freed():
    before = len(snapshots._table)
    frozen = freeze([object()])
    assert len(snapshots._table) == before + 1
    del frozen
    assert len(snapshots._table) == before


def test_repr_shows_the_container():
    assert repr(freeze([1, [2]])) == "[1, [2]]"
    assert repr(freeze({"a": {"b": 1}})) == "{'a': {'b': 1}}"


def test_snapshots_of_lists_and_dicts_read_as_such():
    frozen = freeze([1, {"b": 2, "a": 3}])
    assert len(frozen) == 2
    assert frozen[0] == 1
    assert frozen[:1] == (1,)
    assert dict(frozen[1]) == {"b": 2, "a": 3}
    assert len(frozen[1]) == 2


@pytest.mark.parametrize("array", [jnp.ones(2), np.ones(2)])
def test_arrays_are_refused_wherever_they_hide(array):
    with pytest.raises(errors.StatusError, match=r"Foo\.x\['a'\]\[1\]: an array cannot be static"):
        freeze({"a": [1, array]}, "Foo.x")


# ================================================================= dataclasses and other objects


@dataclasses.dataclass
class Options:
    rate: object
    sizes: list[int] = dataclasses.field(default_factory=list)
    note: object = dataclasses.field(default=None, compare=False)

    @functools.cached_property
    def total(self):
        return sum(self.sizes)


@dataclasses.dataclass(eq=False)
class ById(Options):
    pass


@dataclasses.dataclass(unsafe_hash=True)
class Hashed:
    rate: object


@dataclasses.dataclass(slots=True)
class Slotted:
    rate: object
    sizes: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Around:
    rate: object
    inner: Hashed = dataclasses.field(default_factory=lambda: Hashed(1))


RECORDS = [Options, ById, Hashed, Slotted, Around]


@pytest.mark.parametrize("cls", RECORDS)
def test_an_instance_of_a_dataclass_is_a_snapshot_by_its_attributes(cls):
    options = cls(0.1)
    frozen = freeze(options)
    assert is_frozen(frozen)
    assert frozen is freeze(cls(0.1))
    assert frozen != freeze(cls(0.2))
    made = thaw(frozen)
    assert type(made) is cls
    assert made is not options
    assert freeze(made) is frozen


@pytest.mark.parametrize("cls", [Options, ById, Hashed, Slotted])
def test_a_change_of_a_dataclass_in_place_gives_another_snapshot(cls):
    options = cls(1)
    held = [(options,)]
    before = freeze(held)
    options.rate = True
    assert freeze(held) != before


def test_a_change_below_a_frozen_dataclass_gives_another_snapshot():
    around = Around(1)
    before = freeze(around)
    around.inner.rate = 2
    assert freeze(around) != before


def test_all_attributes_of_a_dataclass_count_but_not_its_cached_properties():
    one, other = Options(1, [2]), Options(1, [2])
    assert one.total == 2
    assert freeze(one) is freeze(other)
    other.further = 3
    assert freeze(one) is not freeze(other)
    assert thaw(freeze(other)).further == 3
    assert freeze(Options(1, note="a")) is not freeze(Options(1, note="b"))


def test_a_dataclass_that_nothing_can_change_is_its_own_snapshot():
    config = Config((1, Config("a")))
    assert freeze(config) is config


class Flag(Hashed, enum.Enum):
    ON = 1


@dataclasses.dataclass(eq=False)
class Failure(Exception):
    code: int


@pytest.mark.parametrize("value", [Flag.ON, Failure(3), Options])
def test_what_has_an_identity_is_taken_as_it_is(value):
    assert freeze(value) is value


def scaled(x, factor=1, axis=0):
    return x


def test_partials_are_compared_by_function_arguments_and_keywords():
    one, other = functools.partial(scaled, factor=2), functools.partial(scaled, factor=2)
    assert freeze(one) == freeze(other)
    assert hash(freeze(one)) == hash(freeze(other))
    assert freeze([one]) is freeze([other])
    assert freeze(functools.partial(map, one)) == freeze(functools.partial(map, other))
    assert thaw(freeze(one)) is one
    assert thaw(freeze([one]))[0] is one
    assert pickle.loads(pickle.dumps(freeze(one))) == freeze(one)


@pytest.mark.parametrize(
    "other",
    [
        functools.partial(len, factor=2),
        functools.partial(scaled, factor=3),
        functools.partial(scaled, factor=2.0),
        functools.partial(scaled, 2),
        functools.partial(scaled, factor=2, axis=0),
        scaled,
    ],
)
def test_partials_of_something_else_differ(other):
    assert freeze(functools.partial(scaled, factor=2)) != freeze(other)


def test_a_partial_whose_parts_may_change_stands_for_itself():
    with_attributes = functools.update_wrapper(functools.partial(scaled), scaled)
    for value in (functools.partial(scaled, [1]), functools.partial(scaled, np.ones(2)), with_attributes):
        assert freeze(value) is value


class ByValue:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None


class Vague(ByValue):
    def __eq__(self, other):
        return np.array([True, False])

    __hash__ = None


def test_an_object_without_a_hash_is_compared_by_its_equality():
    one, other = ByValue(1), ByValue(1)
    frozen = freeze([one])
    assert thaw(frozen)[0] is one
    assert freeze(one) == freeze(other)
    assert hash(freeze(one)) == hash(freeze(other))
    assert freeze([one]) is freeze([other])
    assert freeze(one) != freeze(ByValue(2))
    assert freeze(one) != one


def test_an_object_whose_equality_says_neither_yes_nor_no_is_compared_by_identity():
    one, other = Vague(1), Vague(1)
    assert freeze(one) == freeze(one)
    assert freeze(one) != freeze(other)


def test_an_array_in_a_dataclass_is_refused_by_its_path():
    for array in (jnp.ones(2), np.array([object()])):
        with pytest.raises(errors.StatusError, match=r"Foo\.x\[0\]\.rate: an array cannot be static"):
            freeze([Options(array)], "Foo.x")


@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3), np.zeros((0, 2), np.int8), np.array(3, ">i2"), np.ones(2)[::-1]]
)
def test_a_numpy_array_in_a_dataclass_is_a_constant(array):
    value = [Options({"table": (array, 1)})]
    frozen = freeze(value)
    assert frozen is freeze(copy.deepcopy(value))
    (made,) = thaw(frozen)
    table, one = made.rate["table"]
    assert table is not array
    assert table.flags.writeable
    assert (table.dtype, table.shape, table.tolist(), one) == (array.dtype, array.shape, array.tolist(), 1)
    assert frozen is not freeze([Options({"table": (array.astype(np.float16), 1)})])
    assert frozen is not freeze([Options({"table": (array.reshape(*array.shape, 1), 1)})])
    if array.size:
        array[...] = 7
        assert frozen is not freeze(value)


def test_a_dataclass_that_holds_itself_is_refused():
    options = Options(None)
    options.rate = [options]
    with pytest.raises(errors.StatusError, match=r"static value\.rate\[0\]: a static container holds itself"):
        freeze(options)


def test_a_container_that_holds_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(errors.StatusError, match=r"static value\[0\]: a static container holds itself"):
        freeze(loop)


def test_the_epoch_moves_only_when_it_is_advanced():
    kept = epoch.token
    assert kept is epoch.token
    epoch.advance()
    assert kept is not epoch.token


# ================================================================= deep values


def nested(inner, levels, make):
    for _ in range(levels):
        inner = make(inner)
    return inner


MAKERS = {
    "list": lambda inner: [inner],
    "dict": lambda inner: {"k": inner},
    "tuple of lists": lambda inner: ([inner],),
    "mixed": lambda inner: {1: [inner, 2]},
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_containers_may_be_nested_up_to_the_limit(make):
    levels = errors.MAX_DEPTH // 2
    frozen = freeze(nested(1, levels, make))
    assert frozen == freeze(nested(1, levels, make))
    assert hash(frozen) == hash(freeze(nested(1, levels, make)))
    assert frozen != freeze(nested(2, levels, make))
    assert frozen != freeze(nested(True, levels, make))
    thawed = thaw(frozen)
    assert freeze(thawed) == frozen
    assert repr(thawed) == repr(nested(1, levels, make))


@pytest.mark.parametrize("levels", [errors.MAX_DEPTH + 1, 10_000])
def test_containers_beyond_the_limit_are_one_error(levels):
    keys = r"\[0\]\[0\].* \.\.\. \d+ more keys \.\.\. .*\[0\]"
    message = rf"Model\.sizes{keys}: a container is nested more than {errors.MAX_DEPTH} levels deep"
    with pytest.raises(errors.DepthError, match=message):
        freeze(nested(1, levels, MAKERS["list"]), "Model.sizes")


def test_the_limit_itself_is_allowed():
    assert is_frozen(freeze(nested(1, errors.MAX_DEPTH, MAKERS["list"])))


def test_a_deep_error_names_its_path():
    with pytest.raises(errors.StatusError, match=r"m\['a'\]\[1\]\['b'\]: an array cannot be static"):
        freeze({"a": [0, {"b": np.zeros(2)}]}, "m")


# ================================================================= exact types


@dataclasses.dataclass(frozen=True)
class Config:
    x: object
    note: object = dataclasses.field(default=None, compare=False)


class Looped(Config):
    def __hash__(self):
        return 1


HOLDERS = {
    "itself": lambda x: x,
    "tuple": lambda x: (x, "a"),
    "named tuple": lambda x: Point(x, 0),
    "frozenset": lambda x: frozenset([x]),
    "dataclass": Config,
    "dataclass in a tuple": lambda x: (1, Config(x)),
    "named tuple in a frozenset": lambda x: frozenset([(Point(x, 2), 3)]),
    "list of dataclasses": lambda x: [Config(Config(x))],
    "key": lambda x: {x: "a"},
    "key in a tuple": lambda x: {Point(x, 2): "a"},
    "element of a set": lambda x: {Config(x)},
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), (0, False), (1.0, True)])
def test_equal_values_of_different_types_are_told_apart(hold, one, other):
    frozen, again, different = freeze(hold(one)), freeze(hold(one)), freeze(hold(other))
    assert (frozen, exact_types(frozen)) == (again, exact_types(again))
    assert (frozen, exact_types(frozen)) != (different, exact_types(different))


def test_the_order_of_a_frozenset_does_not_count():
    one, other = frozenset([1, 9, "a"]), frozenset(["a", 9, 1])
    assert exact_types(one) == exact_types(other)


def test_what_does_not_take_part_in_a_comparison_is_not_told_apart():
    assert exact_types(Config(1, note=1)) == exact_types(Config(1, note=True))


def test_exact_types_are_the_same_at_the_first_and_at_later_looks():
    class New:
        pass

    value = (New(), 1)
    assert exact_types(value) == exact_types(value)


def test_exact_types_of_deep_and_endless_values():
    deep = nested(1, 5_000, lambda inner: (inner, 2))
    assert len(exact_types(deep)) == 10_001
    sets = [nested(x, 200, lambda inner: frozenset([inner])) for x in (1, 1)]
    assert exact_types(sets[0]) == exact_types(sets[1])
    looped = Looped(None)
    object.__setattr__(looped, "x", looped)
    assert exact_types(looped)[0] is Looped


class Named(dict):
    """A dict with attributes, and with a constructor that takes others than a dict."""

    def __init__(self, *, name="unnamed", **content):
        super().__init__(content)
        self.name = name


class Tagged(list):
    pass


class OwnAttributes(dict):
    """Its attributes are its content."""

    def __init__(self, *args, **content):
        super().__init__(*args, **content)
        self.__dict__ = self


def test_a_container_of_a_users_class_keeps_its_attributes():
    named, tagged = Named(name="small", width=3), Tagged([1, [2]])
    named.sizes, tagged.owner = [1, 2], named
    made = thaw(freeze([named, tagged, OwnAttributes(a=1)]))
    assert made == [named, tagged, OwnAttributes(a=1)]
    assert [type(part) for part in made] == [Named, Tagged, OwnAttributes]
    assert (made[0].name, made[0].sizes, made[1].owner.name, made[2].a) == ("small", [1, 2], "small", 1)
    assert made[0].sizes is not named.sizes
    before = freeze(named)
    assert freeze(copy.deepcopy(named)) is before
    named.sizes.append(3)
    assert freeze(named) != before
    assert pickle.loads(pickle.dumps(before)) is before


def test_a_container_that_is_its_own_attribute():
    named = Named()
    named.parts = {"all": [named]}
    with pytest.raises(errors.StatusError, match=r"config\['parts'\]\['all'\]\[0\]: a static container holds itself"):
        freeze(named, "config")

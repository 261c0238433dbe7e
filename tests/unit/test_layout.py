"""Layouts, and the source that is generated for them."""

import collections.abc
import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import inspect
import linecache
import os
import pickle
import random
import threading
import traceback
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import errors
from declax._classes.pytree import layout_of
from declax._fields.specifiers import Status
from declax._tree.codegen import compile_functions
from declax._tree.layout import Layout

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
UPDATE = bool(os.environ.get("DECLAX_UPDATE_GOLDEN"))


@dx.dataclass
class Block(dx.Module):
    dim: int
    weight: jax.Array
    sizes: list[int]
    bias: jax.Array


@dx.dataclass
class OnlyStatic(dx.Module):
    dim: int


@dx.dataclass
class OnlyOne(dx.Module):
    weight: jax.Array


@dx.dataclass
class Empty(dx.Module):
    pass


class Slotted:
    __slots__ = ("hidden",)


@dx.dataclass
class Exotic(dx.Module, dict):
    """Its instances cannot be instances of an ordinary class first."""

    weight: jax.Array
    sizes: list[int]


class Open(dx.Module):
    def __init__(self, dim=2):
        self.weight = jnp.ones(dim)
        self.dim = dim
        self.sizes = [dim]


def block(**changes):
    return Block(**{"dim": 2, "weight": jnp.ones(2), "sizes": [1], "bias": jnp.zeros(2), **changes})


def unusual_dict():
    made = dx.Dict()
    made["a key"] = jnp.ones(1)
    made["class"] = jnp.ones(2)
    made["é"] = 3
    made['it\'s "quoted"\n'] = [4]
    return made


SOURCES = {
    "dataclass": lambda: Block,
    "only_static": lambda: OnlyStatic,
    "only_one": lambda: OnlyOne,
    "empty": lambda: Empty,
    "exotic_base": lambda: Exotic,
    "open": Open,
    "list": lambda: dx.List([jnp.ones(1), 2, [3]]),
    "dict": unusual_dict,
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_generated_source_is_the_golden_one(name):
    source = dx.source_of(SOURCES[name]())
    path = GOLDEN / f"source_{name}.txt"
    if UPDATE:
        path.write_text(source, encoding="utf-8")
    assert source == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SOURCES)
def test_the_generated_source_can_be_read_from_the_functions(name):
    target = SOURCES[name]()
    layout = target._pytree__layout if isinstance(target, type) else layout_of(target)
    for function in (layout.flatten, layout.unflatten):
        text = inspect.getsource(function)
        assert text.strip().startswith(f"def {function.__name__}(")
        assert inspect.cleandoc("\n" + text) in dx.source_of(target)


@pytest.mark.parametrize("name", [n for n in SOURCES if n not in ("only_static", "empty")])
def test_round_trips(name):
    made = {"dataclass": block, "only_one": lambda: OnlyOne(jnp.ones(1)), "exotic_base": exotic}.get(
        name, SOURCES[name]
    )()
    leaves, treedef = jax.tree.flatten(made)
    again = jax.tree.unflatten(treedef, leaves)
    assert type(again) is type(made)
    assert list(vars(again)) or name == "empty"
    assert jax.tree.structure(again) == treedef
    assert all(a is b for a, b in zip(jax.tree.leaves(again), leaves, strict=True))
    with_paths, treedef_of_paths = jax.tree.flatten_with_path(made)
    assert treedef_of_paths == treedef
    assert [leaf for _, leaf in with_paths] == leaves
    own = {n: v for n, v in vars(made).items() if not str(n).startswith("_pytree__")}
    for key, value in own.items():
        assert vars(again)[key] is value or vars(again)[key] == value


def exotic():
    return Exotic(jnp.ones(2), [1, 2])


def test_static_only_objects_come_back_too():
    again = jax.tree.map(lambda x: x, OnlyStatic(5))
    assert again.dim == 5
    assert isinstance(jax.tree.map(lambda x: x, Empty()), Empty)


def test_leaves_come_in_the_order_of_the_names():
    class Backwards(dx.Module):
        def __init__(self, flip):
            for name in ("c", "a", "b") if flip else ("a", "b", "c"):
                setattr(self, name, jnp.array(ord(name)))

    one, other = Backwards(True), Backwards(False)
    assert [int(x) for x in jax.tree.leaves(one)] == [97, 98, 99]
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert layout_of(one) is layout_of(other)


def test_paths_name_the_attributes():
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(block())]
    assert paths == [".bias", ".weight"]
    nested = dx.List([unusual_dict()])
    assert [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(nested)] == ["[0]['a key']", "[0]['class']"]


# --- interning --------------------------------------------------------------------


def test_layouts_are_interned():
    assert layout_of(Open(2)) is layout_of(Open(3))
    assert layout_of(block()) is Block._pytree__layout
    layout = Layout.of(Open, {"b": Status.DATA, "a": Status.STATIC})
    assert Layout.of(Open, {"a": Status.STATIC, "b": Status.DATA}) is layout
    assert list(layout.statuses) == ["a", "b"]
    assert layout.with_status("c", Status.DATA).without("c") is layout
    assert layout.with_status("a", Status.DATA) is not layout
    assert repr(layout) == "Layout(Open: a: static, b: data)"


def test_layouts_are_pickled_and_copied_as_what_they_are():
    import copy

    for layout in (layout_of(Open()), Block._pytree__layout):
        assert pickle.loads(pickle.dumps(layout)) is layout
        assert copy.deepcopy(layout) is copy.copy(layout) is layout


@contextlib.contextmanager
def no_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_layout_dies_with_its_last_use():
    class LastUse(dx.Module):
        pass

    names = [f"name{i:03}" for i in range(200)]  # more than a layout has that its class holds
    with no_collector():
        made = len(Layout._interned)
        model = LastUse()
        for name in names:
            setattr(model, name, dx.data(1.0))
        layout = weakref.ref(layout_of(model))
        leaves, treedef = jax.tree.flatten(model)
        sources = [name for name in linecache.cache if name.startswith("<declax LastUse #")]
        assert len(sources) == 1
        del model
        assert layout() is not None  # the treedef has it
        again = jax.tree.unflatten(treedef, leaves)
        assert layout_of(again) is layout()
        del again, treedef
        assert layout() is None
        assert not any(name.startswith("<declax LastUse #") for name in linecache.cache)
        assert len(Layout._interned) - made <= 128 + 1


def test_names_that_come_and_go_leave_nothing_behind():
    model = dx.Module()
    with no_collector():
        for i in range(1000):
            if i == 500:
                before, transitions = len(Layout._interned), len(layout_of(model)._transitions)
            setattr(model, f"unique{i}", 1)
            delattr(model, f"unique{i}")
        assert len(Layout._interned) <= before
        assert transitions <= 256
        assert len(layout_of(model)._transitions) <= 256


def test_the_class_holds_the_layouts_that_its_next_instance_wants():
    model = Open()
    layout = weakref.ref(layout_of(model))
    del model
    assert layout() is layout_of(Open())


@pytest.mark.parametrize("cls", [Open, dx.List, dx.Dict])
def test_a_transition_gives_the_layout_that_all_statuses_give(cls):
    layout = Layout.of(cls, {})
    statuses: dict[Any, Status] = {}
    chosen = random.Random(0)
    for _ in range(500):
        name = chosen.choice([chosen.randrange(20), f"n{chosen.randrange(20)}"])
        if chosen.random() < 0.4:
            statuses.pop(name, None)
            layout = layout.without(name)
        else:
            statuses[name] = chosen.choice(list(Status))
            layout = layout.with_status(name, statuses[name])
        keeps_order = cls is not Open  # of names; elements of a List come first, by index
        ordered = sorted(statuses, key=lambda n: (isinstance(n, str), "" if keeps_order and isinstance(n, str) else n))
        assert Layout.of(cls, statuses) is layout
        assert list(layout.statuses.items()) == [(n, statuses[n]) for n in ordered]
        assert layout.length == sum(isinstance(n, int) for n in statuses)
        assert list(layout.data_names) == [n for n in ordered if statuses[n] is Status.DATA]
        assert list(layout.static_names) == [n for n in ordered if statuses[n] is not Status.DATA]
        for name, place in layout.snapshots:
            assert layout.static_names[place - 1] == name
            assert statuses[name] is Status.SNAPSHOT


def test_layouts_of_equal_hash_are_told_apart():
    first = {f"a{number:02}": Status.DATA for number in range(64)}
    one, other = (Layout.of(Open, {**first, name: Status.DATA}) for name in ("b", "c"))
    assert one is not other
    assert Layout.of(Open, {**first, "b": Status.DATA}) is one


def test_elements_are_replaced_at_once():
    base = Layout.of(dx.List, {0: Status.DATA, 1: Status.STATIC, "own": Status.STATIC})
    for statuses in ([], [Status.DATA], [Status.STATIC] * 3, [Status.DATA, Status.STATIC, Status.DATA]):
        expected = Layout.of(dx.List, {**dict(enumerate(statuses)), "own": Status.STATIC})
        assert base.with_elements(statuses) is expected
        assert expected.length == len(statuses)


def test_code_is_generated_once():
    layout = layout_of(Open(7))
    flatten = layout.flatten
    assert layout.flatten is flatten
    with pytest.raises(AttributeError, match="nothing_of_it"):
        layout.nothing_of_it


def test_a_name_that_only_looks_like_text_is_kept_as_text():
    import enum

    class Key(enum.StrEnum):
        LEFT = "left"

    made = dx.Dict()
    made[Key.LEFT] = jnp.ones(1)
    model = dx.Module()
    setattr(model, Key.LEFT, [1])
    for each in (made, model):
        assert "LEFT" not in dx.source_of(each)
        jax.tree.map(lambda x: x, each)


# --- instances that deviate -------------------------------------------------------


def test_an_instance_that_deviates_and_comes_back():
    model = block()
    before = jax.tree.structure(model)
    model.sow(dx.Intermediate, "seen", 1)
    assert len(jax.tree.leaves(model)) == 3
    deviating = jax.tree.structure(model)
    assert deviating != before
    again = jax.tree.map(lambda x: x, model)
    assert again.seen.value == (1,)
    assert jax.tree.structure(again) == deviating
    assert "seen" not in dx.source_of(Block)
    assert "seen" in dx.source_of(model)
    taken = dx.pop(model, dx.Intermediate)
    assert taken["seen"].value == (1,)
    assert jax.tree.structure(model) == before
    assert layout_of(model) is Block._pytree__layout
    assert len(jax.tree.leaves(block())) == 2


def test_a_status_that_changes_and_comes_back():
    model = block()
    before = jax.tree.structure(model)
    model.dim = dx.data(3)
    assert 3 in [x for x in jax.tree.leaves(model) if isinstance(x, int)]
    model.dim = dx.static(2)
    assert jax.tree.structure(model) == before


def test_deleting_a_field():
    model = block()
    del model.bias
    assert len(jax.tree.leaves(model)) == 1
    assert not hasattr(jax.tree.map(lambda x: x, model), "bias")
    model.bias = jnp.zeros(2)
    assert jax.tree.structure(model) == jax.tree.structure(block())


def test_a_field_that_nothing_assigned():
    import dataclasses

    @dx.dataclass
    class Model(dx.Module):
        a: int
        late: jax.Array = dataclasses.field(init=False)

    model = Model(1)
    assert jax.tree.leaves(model) == []
    model.late = jnp.ones(2)
    assert len(jax.tree.leaves(model)) == 1
    assert layout_of(model) is Model._pytree__layout


def test_deviating_instances_under_jit():
    @jax.jit
    def double(model):
        model.extra = model.weight * 2
        return model

    for _ in range(2):
        assert float(double(block()).extra[0]) == 2.0


# --- shapes of classes ------------------------------------------------------------


@pytest.mark.parametrize("count", [31, 300])
def test_many_fields(count):
    names = [f"f{i:03}" for i in range(count)]
    Model = dx.dataclass(type("Model", (dx.Module,), {"__annotations__": dict.fromkeys(names, jax.Array)}))
    model = Model(*map(float, range(count)))
    assert jax.tree.leaves(model) == list(map(float, range(count)))
    assert jax.tree.map(lambda x: x + 1, model).f030 == 31.0
    opened = dx.Module()
    for name in names:
        setattr(opened, name, dx.data(1.0))
    assert len(jax.tree.leaves(jax.tree.map(lambda x: x, opened))) == count


def test_an_exotic_base_keeps_its_own_state_out():
    made = exotic()
    made["key"] = 3
    again = jax.tree.map(lambda x: x, made)
    assert again.sizes == [1, 2]
    assert dict(again) == {}


def test_a_base_with_slots_is_refused():
    with pytest.raises(errors.FieldError, match="Model: a Pytree takes no __slots__, and its base Slotted has them"):

        class Model(dx.Module, Slotted):
            pass


def test_a_dataclass_with_slots_as_a_base_is_refused_with_its_option():
    @dataclasses.dataclass(slots=True)
    class Sizes:
        width: int

    with pytest.raises(errors.FieldError, match=r"its base .*Sizes has them") as caught:

        class Model(dx.Module, Sizes):
            pass

    assert caught.value.fix.startswith("@dataclass        # of ")
    assert caught.value.fix.endswith("Sizes, without slots=True")


def test_bases_without_attributes_in_slots():
    class Marked:
        __slots__ = ("__dict__", "__weakref__")

    class Model(dx.Module, Marked, collections.abc.Sized):
        def __len__(self):
            return 1

    assert len(dx.clone(Model())) == 1


def test_own_slots_are_refused():
    with pytest.raises(errors.FieldError, match="a Pytree takes no __slots__"):

        class Model(dx.Module):
            __slots__ = ("a",)


def test_no_finaliser_sees_a_blank_instance():
    class Model(dx.Pytree):
        def __init__(self):
            self.a = jnp.ones(1)

        def __del__(self):
            assert self.a is not None

    model = Model()
    jax.tree.leaves(model)
    del model


def test_names_beyond_ascii():
    model = dx.Module()
    names = {"\ufb01", "\ud800", "__dict__x"}  # the first of which is read as "fi" in source
    for name in names:
        setattr(model, name, jnp.ones(1))
    assert set(vars(jax.tree.map(lambda x: x, model))) >= names


def test_a_cached_property_is_no_attribute_of_the_tree():
    @dx.dataclass
    class Model(dx.Module):
        a: int

        @functools.cached_property
        def double(self):
            return jnp.ones(self.a)

    model = Model(2)
    before = jax.tree.structure(model)
    assert model.double.shape == (2,)
    assert jax.tree.structure(model) == before
    loaded = Model.__new__(Model)
    loaded.__setstate__(model.__getstate__())
    assert jax.tree.structure(loaded) == before
    assert "double" not in repr(model)
    del model.double
    assert jax.tree.structure(model) == before


# --- tracebacks and source --------------------------------------------------------


def test_tracebacks_show_the_generated_lines():
    model = block()
    vars(model).pop("dim")
    try:
        jax.tree.leaves(model)
    except KeyError as error:
        text = "".join(traceback.format_exception(error))
        assert "fields['dim']" in text
        assert "<declax Block #" in text
    else:
        pytest.fail("a missing attribute was not noticed")


def test_source_of_a_class_whose_layout_is_open():
    @dx.dataclass
    class Widened(dx.Module):
        dim: int = dx.field()
        width = dx.defer(max)(dim, 16)  # a value decides whether it is data

    parts = "def make_parts(self):\n    self.width = max(self.dim, 16)"
    assert dx.source_of(Widened) == parts + "\n"
    assert dx.source_of(Widened(8)).startswith(parts + "\n\ndef flatten(self):")


def test_source_of_what_has_none():
    with pytest.raises(errors.FieldError, match="each layout of instances has its own code; the class has none"):
        dx.source_of(Open)
    for target in (3, int, dx.Object()):
        with pytest.raises(errors.FieldError, match="only Pytrees have generated code"):
            dx.source_of(target)
    with pytest.raises(errors.FieldError, match="only Pytrees have generated code"):
        dx.source_of(dx.Object)


def test_compile_functions_shares_parameters():
    value = object()
    first, second = compile_functions(
        "two", ["def first():\n    return value", "def second():\n    return first()"], {"value": value}
    )
    assert first() is second() is value
    assert "return value" in inspect.getsource(first)


@pytest.mark.parametrize("first", ["flatten", "unflatten", "source_of", "threads"])
def test_the_functions_of_a_class_are_written_at_their_first_calls(first):
    @dx.dataclass
    class Late(dx.Module):
        dim: int
        weight: jax.Array

    def sources():
        return [name for name in linecache.cache if name.startswith("<declax Late #")]

    known = len(sources())
    made = Late(2, jnp.ones(2))
    flatten, unflatten = (late.function for late in Late._pytree__layout.late)
    assert len(sources()) == known
    if first == "flatten":
        assert flatten(made) == ((made.weight,), (2,))
    elif first == "unflatten":
        assert unflatten((3,), (made.weight,)).dim == 3
    elif first == "source_of":
        assert "read_data" not in dx.source_of(Late)
    else:
        start = threading.Barrier(8)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: (start.wait(), jax.tree.leaves(made))[1], range(8)))
        assert all(leaves[0] is made.weight for leaves in found)
    assert len(sources()) == known + (2 if first == "source_of" else 1)
    leaves, treedef = jax.tree.flatten(made)
    assert jax.tree.unflatten(treedef, leaves).dim == 2
    assert len(sources()) == known + 2
    assert Late._pytree__layout.flatten is flatten  # that JAX calls, with nothing in between
    assert "self.__dict__" in inspect.getsource(flatten)
    assert "Bare()" in inspect.getsource(unflatten)
    assert flatten.__defaults__ is unflatten.__defaults__ is None


@pytest.mark.slow
def test_layouts_of_many_threads_are_one():
    class Model(dx.Module):
        def __init__(self, names):
            for name in names:
                setattr(self, name, jnp.ones(()))

    found: list[Any] = []
    start = threading.Barrier(8)

    def make():
        start.wait()
        for _ in range(50):
            Model(map(str, range(150)))  # too many names for the class to hold the layout
        found.append(layout_of(Model(["a", "b", "c"])))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_numbers_of_numpy_are_static_and_arrays_are_data():
    model = dx.Module()
    model.a = np.float32(3)
    model.b = np.ones(2)
    assert len(jax.tree.leaves(model)) == 1

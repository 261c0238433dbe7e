"""Objects as pytrees: status, checks, trace levels, sharing, copies."""

import abc
import copy
import functools
import gc
import pickle
import sys
import threading
import types
import weakref
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import errors

T = TypeVar("T")


def paths_of(tree):
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


class Affine(dx.Module):
    def __init__(self, din, dout, rngs=None):
        self.din, self.dout = din, dout
        self.w = jnp.ones((din, dout))
        self.b = jnp.zeros((dout,))

    def __call__(self, x):
        return x @ self.w + self.b


class Counter(dx.Pytree):
    def __init__(self):
        self.count = dx.data(0)
        self.name = "n"


@dx.dataclass
class Record(dx.Module):
    size: int
    weight: jax.Array
    tags: list[str]


def record():
    return Record(2, jnp.ones(2), ["a"])


# --- trees ------------------------------------------------------------------------


def test_a_model_goes_straight_into_jit():
    class Map(dx.Module):
        def __init__(self, din, dout, rngs):
            self.din, self.dout = din, dout
            self.kernel = dx.Param(rngs.normal((din, dout)))

    rngs = dx.Rngs(0)
    weights = Map(2, 3, rngs=rngs)

    @jax.jit
    def forward(weights, x):
        return x @ weights.kernel

    x = rngs.uniform((5, 2))
    np.testing.assert_allclose(forward(weights, x), x @ weights.kernel.value, rtol=1e-6)


def test_explicit_tags_in_an_open_class():
    class Part(dx.Pytree):
        def __init__(self, din):
            self.din = dx.static(din)
            self.w = dx.data(jnp.ones((din, 2)))

    class Stack(dx.Pytree):
        def __init__(self, count):
            self.count = dx.static(count)
            self.parts = dx.data([Part(1) for _ in range(count)])

    assert list(paths_of(Stack(2))) == [".parts[0].w", ".parts[1].w"]
    assert Stack(2).parts[0].din == 1


def test_statuses_that_the_values_give():
    class Stack(dx.Pytree):
        def __init__(self, count):
            self.count = count
            self.parts = dx.List([Affine(1, 1) for _ in range(count)])

    expected = [f".parts[{i}].{n}" for i in range(2) for n in "bw"]
    assert list(paths_of(Stack(2))) == expected


def test_what_is_data_by_itself():
    class Table:
        pass

    dx.register_data_type(Table)
    for value in (jnp.array(0), np.zeros(2), dx.Param(1), dx.Rngs(2), Affine(1, 1), dx.Object(), Table(), dx.List()):
        assert dx.is_data(value)
    for value in (
        "hello",
        42,
        1.5,
        2j,
        True,
        None,
        [1, jnp.array(1)],
        {"a": jnp.array(1)},
        (jnp.array(1),),
        print,
        int,
    ):
        assert not dx.is_data(value)


def test_references_are_data():
    class Accumulator(dx.Pytree):
        def __init__(self):
            self.total = jax.new_ref(jnp.zeros(2))

    model = Accumulator()
    assert dx.is_data(model.total)
    assert len(jax.tree.leaves(model)) == 1


def test_what_has_data():
    for value in ([jnp.array(1)], {"a": (1, [dx.Param(1)])}, jnp.array(1), jax.tree_util.Partial(print, jnp.ones(1))):
        assert dx.has_data(value)
    loop: list[Any] = []
    loop.append(loop)
    for value in ([1, "a"], {}, (), 3, print, loop, {1, 2}):
        assert not dx.has_data(value)


def test_ambiguous_attributes_with_tags():
    class Model(dx.Pytree):
        def __init__(self, x, use_bias):
            self.x = dx.data(x)
            self.y = dx.data(42)
            self.parts = dx.List([jnp.array(i) for i in range(3)])
            self.bias = dx.data(None)
            if use_bias:
                self.bias = dx.Param(jnp.array(0.0))

    leaves = paths_of(Model(1.0, True))
    assert len(leaves) == 6
    assert (leaves[".x"], leaves[".y"]) == (1.0, 42)
    assert any(path.startswith(".bias") for path in leaves)
    assert len(paths_of(Model(1.0, False))) == 5


def test_dataclasses_with_specifiers():
    @dx.dataclass
    class Inner(dx.Pytree):
        i: int = dx.data()
        x: jax.Array
        a: int
        s: str = dx.static(default="hi", kw_only=True)

    @dx.dataclass
    class Outer(dx.Pytree):
        parts: list[Inner] = dx.data()
        shapes: list[int]

    model = Outer(parts=[Inner(i, jnp.array(42 * i), i) for i in range(2)], shapes=[8, 16])
    assert {k: int(v) for k, v in paths_of(model).items()} == {
        ".parts[0].i": 0,
        ".parts[0].x": 0,
        ".parts[1].i": 1,
        ".parts[1].x": 42,
    }


def test_updates_of_attributes():
    class Model(dx.Pytree):
        def __init__(self):
            self.a = jnp.array(1.0)
            self.b = "Hello"
            self.c = dx.data(3.14)

    model = Model()
    assert list(paths_of(model)) == [".a", ".c"]
    model.a = "!"
    model.b = dx.data(42)
    model.c = dx.static(0.5)
    assert paths_of(model) == {".a": "!", ".b": 42}


# --- checks -----------------------------------------------------------------------


class Named(dx.Pytree):
    def __init__(self, name):
        self.name = dx.static(name)


@pytest.mark.parametrize(
    "value",
    [
        jnp.array(1),
        np.ones(2),
        dx.Param(1),
        [jnp.array(1)],
        {"a": (dx.Param(1),)},
        jax.tree_util.Partial(print, jnp.ones(1)),
    ],
)
def test_data_in_a_static_attribute(value):
    with pytest.raises(errors.StatusError, match=r"Named.name: data was assigned to an attribute that is annotated"):
        Named(value)
    model = Named("a")
    before = jax.tree.structure(model)
    with pytest.raises(
        errors.StatusError, match=r"Named.name: data was assigned to an attribute that is static"
    ) as info:
        model.name = value
    assert "self.name = dx.data(...)" in info.value.fix
    assert model.name == "a"
    assert jax.tree.structure(model) == before
    with pytest.raises(ValueError, match="data was assigned"):  # the peer raises a ValueError too
        model.name = dx.static(value)
    assert model.name == "a"


def test_data_in_a_static_field():
    with pytest.raises(errors.StatusError, match=r"Record.size: data was assigned to an attribute that is static"):
        Record(jnp.ones(1), jnp.ones(2), [])
    model = record()
    with pytest.raises(errors.StatusError, match=r"Record.tags: data was assigned"):
        model.tags = [jnp.ones(1)]
    assert model.tags == ["a"]


def test_data_in_a_static_field_of_a_frozen_dataclass():
    @dx.dataclass(frozen=True)
    class Point(dx.Pytree):
        x: int
        at: Any = None

    with pytest.raises(errors.StatusError, match=r"Point.x: data was assigned"):
        Point(jnp.ones(1))
    assert jax.tree.leaves(Point(dx.data(3), dx.static(4))) == [3]
    assert len(jax.tree.leaves(Point(3, jnp.ones(1)))) == 1
    with pytest.raises(errors.StatusError, match="found the tags"):
        Point(3, [dx.data(4)])


def test_arrays_that_come_in_by_mutation():
    class Growing(dx.Pytree):
        def __init__(self):
            self.parts = []
            for i in range(5):
                self.parts.append(jnp.array(i))

    with pytest.raises(errors.StatusError, match=r"Growing.parts: data was assigned to an attribute that is static"):
        Growing()
    model = record()
    dx.check_pytree(model)
    model.tags.append(jnp.ones(1))
    with pytest.raises(errors.StatusError, match=r"Record.tags: data was assigned to an attribute that is static"):
        dx.check_pytree(model)
    with pytest.raises(errors.StatusError, match="the argument is not a Pytree"):
        dx.check_pytree([])


@pytest.mark.parametrize(
    "value",
    [[dx.data(1), dx.static(2)], (dx.data(1),), {"a": [dx.data(1)]}, dx.data([dx.data(1)]), dx.data(dx.data(1))],
)
def test_tags_inside_of_containers(value):
    class Tagging(dx.Pytree):
        def __init__(self, value):
            self.a = value

    with pytest.raises(
        errors.StatusError, match=r"Tagging.a: found the tags \['data'(, 'static')?\] inside of a container"
    ):
        Tagging(value)
    for model in (record(), Counter()):
        before = dict(vars(model))
        for name in ("weight", "size", "count", "new"):
            with pytest.raises(errors.StatusError, match="found the tags"):
                setattr(model, name, value)
        assert vars(model) == before


@pytest.mark.parametrize("make", [record, Counter, lambda: dx.List([1, jnp.ones(1)]), lambda: dx.Dict(a=1)])
@pytest.mark.parametrize(
    ("name", "value"), [("new", [dx.data(1)]), ("iter_modules", 3), ("other", dx.static(jnp.ones(1)))]
)
def test_an_object_is_unchanged_after_an_error(make, name, value):
    model = make()
    before, structure = dict(vars(model)), jax.tree.structure(model)
    if name == "iter_modules" and not isinstance(model, dx.Module):
        pytest.skip("a Pytree has no such method")
    with pytest.raises((errors.StatusError, errors.FieldError), match=r"found the tags|hide|data was assigned"):
        setattr(model, name, value)
    assert vars(model) == before
    assert jax.tree.structure(model) == structure


# --- trace levels -----------------------------------------------------------------

TRANSFORMS = {
    "jit": lambda f: jax.jit(f)(jnp.arange(5.0)),
    "vmap": lambda f: jax.vmap(f)(jnp.arange(5.0)),
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(jnp.arange(5.0)),
    "scan": lambda f: jax.lax.scan(lambda c, x: (c, f(x)), None, jnp.arange(5.0)),
    "eval_shape": lambda f: jax.eval_shape(f, jnp.arange(5.0)),
    "jit in vmap": lambda f: jax.vmap(jax.jit(f))(jnp.arange(5.0)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "change",
    [
        lambda m, x: setattr(m, "count", x),
        lambda m, x: setattr(m, "new", 3),
        lambda m, x: delattr(m, "count"),
    ],
)
def test_captured_objects_cannot_be_changed(transform, change):
    model = Counter()
    before = dict(vars(model))

    def function(x):
        change(model, x)
        return x

    with pytest.raises(
        errors.TraceContextError, match=r"Counter.(count|new): cannot mutate 'Counter' from a different trace"
    ):
        TRANSFORMS[transform](function)
    assert vars(model) == before


@pytest.mark.parametrize("transform", ["jit", "vmap", "scan"])
@pytest.mark.parametrize(
    "make",
    [record, Counter, lambda: dx.List([jnp.ones(1)]), lambda: dx.Dict(a=jnp.ones(1))],
)
def test_objects_of_the_trace_can_be_changed(transform, make):
    stored = pickle.dumps(make())

    def function(x):
        for model in (make(), jax.tree.map(lambda leaf: leaf, make()), copy.deepcopy(make()), pickle.loads(stored)):
            if isinstance(model, dx.List):
                model.append(x)
                model[0] = x
            elif isinstance(model, dx.Dict):
                model["b"] = x
            else:
                model.new = x
        return x

    TRANSFORMS[transform](function)


def test_an_object_of_an_inner_trace_cannot_be_changed_outside():
    kept = []

    @jax.jit
    def function(x):
        kept.append(Counter())
        return x

    function(1.0)
    with pytest.raises(errors.TraceContextError, match="cannot mutate 'Counter'"):
        kept[0].count = 1


def test_elements_of_captured_containers_cannot_be_changed():
    items, entries = dx.List([jnp.ones(1)]), dx.Dict(a=jnp.ones(1))
    for change in (
        items.append,
        lambda x: items.__setitem__(0, x),
        lambda x: items.pop(),
        lambda x: items.insert(0, x),
        lambda x: items.reverse(),
        lambda x: items.clear(),
        lambda x: entries.__setitem__("a", x),
        lambda x: entries.update(b=x),
        lambda x: entries.pop("a"),
        lambda x: setattr(entries, "a", x),
    ):
        with pytest.raises(errors.TraceContextError, match=r"cannot mutate '(List|Dict)'"):
            jax.jit(change)(1.0)
    assert len(items) == len(entries) == 1
    assert "List[0]" in str(_raised(lambda x: items.__setitem__(0, x)))
    assert "Dict['a']" in str(_raised(lambda x: entries.__setitem__("a", x)))


def _raised(change):
    try:
        jax.jit(change)(1.0)
    except errors.TraceContextError as error:
        return error


def test_a_returned_object_belongs_to_the_outside_again():
    @jax.jit
    def function(model):
        model.count = model.count + 1
        return model

    model = function(Counter())
    model.count = model.count + 1
    assert int(model.count) == 2


def test_nothing_leaks():
    with jax.checking_leaks():
        jax.jit(lambda m: jax.tree.map(lambda x: x * 2, m))(record())


# --- sharing ----------------------------------------------------------------------


class Shared(dx.Pytree):
    def __init__(self):
        self.x = jnp.array(1.0)


class Twice(dx.Pytree):
    def __init__(self):
        self.left = Shared()
        self.right = self.left


def test_sharing_is_seen():
    assert dx.find_duplicates(Twice()) == [[("left",), ("right",)]]
    assert dx.find_duplicates(Shared()) == []


def test_sharing_is_lost_in_trees_and_kept_in_graphs():
    model = Twice()
    inside = []

    def function(m):
        inside.append(m.left is m.right)
        return m

    lost = jax.jit(function)(model)
    kept = dx.jit(function)(model)
    assert inside == [False, True]
    assert lost.left is not lost.right
    assert kept.left is kept.right


def test_split_and_merge_keep_sharing():
    model = Twice()
    graphdef, state = dx.split(model)

    @jax.jit
    def function(graphdef, state):
        inner = dx.merge(graphdef, state)
        assert inner.left is inner.right
        inner.left.x = inner.left.x + 1
        return dx.state(inner)

    dx.update(model, function(graphdef, state))
    assert model.left is model.right
    assert float(model.right.x) == 2.0
    assert str(dx.state(model)).count("'x'") == 1


# --- objects that are no pytrees --------------------------------------------------


class Loose(dx.Pytree, pytree=False):
    def __init__(self):
        self.a = [jnp.array(1), jnp.array(2)]
        self.b = "hello"
        self.b = jnp.array(3)


class LooseObject(dx.Object):
    __init__ = Loose.__init__


@pytest.mark.parametrize("cls", [Loose, LooseObject, type("Sub", (Loose,), {})])
def test_pytree_can_be_turned_off(cls):
    model = cls()

    @dx.jit
    def double(model):
        model.a = [x * 2 for x in model.a]
        model.b *= 2

    double(model)
    assert [int(x) for x in model.a] == [2, 4]
    assert int(model.b) == 6
    assert jax.tree_util.all_leaves([model])
    state = dx.state(model)
    assert int(state["a"][0]) == 2
    assert int(state["b"]) == 6
    model.c = dx.data([dx.data(3)])  # nothing is checked
    with pytest.raises(errors.TraceContextError, match="cannot mutate"):
        jax.jit(lambda x: setattr(model, "b", x))(1.0)


def test_pytree_can_be_turned_on_again():
    class Again(Loose, pytree=True):
        def __init__(self):
            self.a = jnp.ones(1)

    assert len(jax.tree.leaves(Again())) == 1


def test_a_dataclass_that_is_no_pytree():
    @dx.dataclass
    class Model(dx.Object):
        a: list[jax.Array]
        b: int = 2

    model = Model([jnp.ones(1)])
    assert jax.tree_util.all_leaves([model])
    assert len(jax.tree.leaves(dx.state(model))) == 1
    model.b = jnp.ones(2)


# --- copies -----------------------------------------------------------------------


def makers():
    class_free = [Twice, record, Counter, lambda: dx.List([Shared(), 1, [2]]), lambda: dx.Dict(a=Shared(), b="x")]
    return [*class_free, lambda: dx.Linear(2, 3, rngs=dx.Rngs(0)), LooseObject]


@pytest.mark.parametrize("make", makers())
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), dx.clone], ids=["deepcopy", "pickle", "clone"]
)
def test_copies_are_equal_and_independent(make, duplicate):
    model = make()
    made = duplicate(model)
    assert type(made) is type(model)
    assert made is not model
    assert jax.tree.structure(dx.state(made)) == jax.tree.structure(dx.state(model))
    for a, b in zip(jax.tree.leaves(dx.state(made)), jax.tree.leaves(dx.state(model)), strict=True):
        np.testing.assert_array_equal(a, b)
    if type(model)._pytree__is_pytree:
        assert jax.tree.structure(made) == jax.tree.structure(model)


class Link(dx.Module):
    def __init__(self, below, names):
        self.below, self.names, self.weight = dx.data([below]), names, dx.Param(jnp.ones(1))


@pytest.mark.slow
def test_a_deep_copy_of_a_deep_model():
    names = ["a"]
    model = top = Link(None, names)
    for _ in range(5_000):
        model = Link(model, names)
    top.below.append(model)
    other = copy.deepcopy([model, names])
    copied = other[0]
    assert copied.names is other[1]
    assert copied.names is not names
    count, node = 0, copied
    while node.below[0] is not None:
        node, count = node.below[0], count + 1
        assert node.names is other[1]
    assert count == 5_000
    assert node.below[1] is copied
    assert node.weight is not top.weight
    assert len(jax.tree.leaves(dx.state(copied))) == 5_001


def test_a_deep_copy_asks_nodes_that_copy_themselves():
    class Own(dx.Module):
        def __deepcopy__(self, memo):
            return "own"

    class Reduced(dx.Module):
        def __reduce__(self):
            return str, ("reduced",)

    model = dx.Module()
    model.own, model.reduced, model.again = Own(), Reduced(), [1]
    copied = copy.deepcopy(model)
    assert (vars(copied)["own"], vars(copied)["reduced"], copied.again) == ("own", "reduced", [1])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_keep_sharing(duplicate):
    model = Twice()
    model.myself = dx.data(model)
    model.p = dx.Param(jnp.ones(1))
    model.q = dx.data([model.p])
    made = duplicate(model)
    assert made.left is made.right
    assert made.myself is made
    assert made.q[0] is made.p
    assert made.p is not model.p


def test_a_shallow_copy_shares_its_parts():
    model = record()
    made = copy.copy(model)
    assert made.weight is model.weight
    made.size = 5
    assert model.size == 2
    with_layout = copy.copy(Twice())
    with_layout.new = jnp.ones(1)
    assert len(jax.tree.leaves(with_layout)) == 3


def test_copies_of_a_bound_object_are_not_bound():
    model = Counter()
    dx.jit(lambda m: m.count)(model)
    assert not [n for n in vars(copy.deepcopy(model)) if "bound" in n]


def test_a_copy_of_an_object_of_a_trace():
    @jax.jit
    def function(x):
        kept.append(pickle.dumps(Named("a")))
        return x

    kept: list[bytes] = []
    function(1.0)
    model = pickle.loads(kept[0])
    model.name = "b"


# --- unpickling after the class has changed ---------------------------------------


def dumped(old_source, new_source):
    """An object pickled under one definition of its class, and loaded under another."""
    module = types.ModuleType("changing_class")
    sys.modules[module.__name__] = module
    header = "import declax as dx, jax, jax.numpy as jnp, dataclasses\n"
    try:
        exec(header + old_source, vars(module))
        stored = pickle.dumps(module.make())
        exec(header + new_source, vars(module))
        return pickle.loads(stored)
    finally:
        del sys.modules[module.__name__]


OLD = """
@dx.dataclass
class Model(dx.Module):
    a: int
    w: jax.Array
def make():
    return Model(1, jnp.ones(2))
"""


def test_a_class_that_gained_fields():
    fields = """
    b: str = dx.field(default='x')
    c: int = 3
    d: list[int] = dx.field(default_factory=list)
    e: dx.Param[jax.Array] | None = dx.field(default=None)
    _: dx.KW_ONLY
    f: int
"""
    loaded = dumped(OLD, OLD.replace("Array\n", "Array" + fields).replace("ones(2))", "ones(2), f=4)"))
    assert len(jax.tree.leaves(loaded)) == 1
    assert (loaded.b, loaded.c, loaded.d, loaded.e) == ("x", 3, [], None)
    with pytest.raises(AttributeError, match=r"Model\.f: this object lacks the attribute, which its class declares"):
        loaded.f
    loaded.b, loaded.f = "y", 5
    mapped = jax.tree.map(lambda x: x, loaded)
    assert (mapped.b, mapped.d, mapped.f) == ("y", [], 5)
    assert dumped(OLD, OLD.replace("Array\n", "Array" + fields)).d is not loaded.d


def test_fields_that_an_own_init_does_not_set():
    @dx.dataclass
    class Model(dx.Module):
        a: int
        b: str = dx.field(default="x")
        c: int = 3
        d: list[int] = dx.field(default_factory=list)
        w: dx.Param[jax.Array] | None = dx.field(default=None)

        def __init__(self, d=None):
            if d is not None:
                self.d = d

    model = Model()
    assert (model.b, model.c, model.d, model.w) == ("x", 3, [], None)
    assert Model([1]).d == [1]
    with pytest.raises(AttributeError, match=r"Model\.a: this object lacks the attribute, which its class declares"):
        model.a
    model.w = dx.Param(jnp.ones(2))
    assert len(jax.tree.leaves(jax.tree.map(lambda x: x, model))) == 1
    assert dx.clone(model).b == "x"


def test_a_field_of_undecided_status_that_an_own_init_does_not_set():
    @dx.dataclass
    class Model(dx.Module):
        c: Any = dx.field()
        a: int = dx.field(default=3)
        b: list = dx.field(default_factory=list)

        def __init__(self, c=None):
            if c is not None:
                self.c = c

    model = Model()
    assert (model.a, model.b, Model(4).b, Model(4).c) == (3, [], [], 4)
    assert model.b is not Model().b
    with pytest.raises(AttributeError, match=r"Model\.c: this object lacks the attribute, which its class declares"):
        model.c


OPEN = """
class Model(dx.Module):
    def __init__(self):
        self.w = dx.Param(jnp.ones(2))
    @property
    def broken(self):
        return self.w.no_such_attribute
def make():
    return Model()
"""

PART = """
@dx.dataclass
class Model(dx.Layer):
    a: int = dx.field(default=2)
    up = dx.Linear(a, a)
def make():
    return Model(rngs=dx.Rngs(0))
"""

VARIABLE = "dx.variable((a,), initializer=dx.initializers.ones)"
GAINED = {
    "annotation": (OPEN, OPEN.replace("Module):\n", "Module):\n    new: float\n")),
    "part": (PART, PART.replace("dx.Linear(a, a)", "dx.Linear(a, a)\n    new = dx.Linear(a, a)")),
    "Variable": (PART, PART.replace("up =", f"new: dx.Param[jax.Array] = {VARIABLE}\n    up =")),
}


@pytest.mark.parametrize("sources", GAINED.values(), ids=GAINED)
def test_what_a_class_has_gained_is_named_where_an_old_object_is_read(sources):
    loaded = dumped(*sources)
    with pytest.raises(errors.MissingAttributeError) as caught:
        loaded.new
    assert str(caught.value) == (
        "Model.new: this object lacks the attribute, which its class declares. [attribute]\n"
        "  why:      it was pickled, or made, before the class had the attribute; "
        "or its `__init__` has not assigned it\n"
        "  fix:      model.new = ...        # or for all old pickles, in class Model:\n"
        "            def __setstate__(self, state): super().__setstate__({'new': ..., **state})"
    )
    assert not hasattr(loaded, "new")
    assert getattr(loaded, "new", 3) == 3
    with pytest.raises(AttributeError, match="'Model' object has no attribute 'other'"):
        loaded.other
    loaded.new = 1.0
    assert loaded.new == jax.tree.map(lambda x: x, loaded).new == 1.0


def test_the_fix_for_old_pickles():
    fixed = OPEN.replace(
        "Module):\n",
        "Module):\n    new: float\n    def __setstate__(self, state): super().__setstate__({'new': 2.0, **state})\n",
    )
    assert dumped(OPEN, fixed).new == 2.0


def test_an_attribute_of_an_open_class_that_nothing_assigns():
    class Open(dx.Module):
        scale: float
        rate: float = 0.5

    class Derived(Open):
        pass

    for cls in (Open, Derived):
        model = cls()
        assert model.rate == 0.5
        with pytest.raises(errors.MissingAttributeError, match=rf"{cls.__name__}\.scale: this object lacks"):
            model.scale
        with pytest.raises(errors.MissingAttributeError):
            dx.jit(lambda model: model.scale)(model)


def test_other_errors_of_reads_stay_as_they_are():
    loaded = dumped(*GAINED["annotation"])
    assert not hasattr(loaded, "new")
    with pytest.raises(AttributeError, match="no_such_attribute"):
        loaded.broken

    class Own(dx.Module):
        scale: float

        def __getattr__(self, name):
            return name

    assert (Own().scale, Own().other) == ("scale", "other")


def test_reads_of_objects_that_have_all_attributes_stay_fast():
    """A ``__getattr__`` of a class makes all reads of its objects slower, up to Python 3.11 nine times."""

    class Open(dx.Module):
        scale: float

        def __init__(self):
            self.scale = 1.0

    models = [Open(), dx.Linear(2, 2, rngs=dx.Rngs(0)), dx.BatchNorm(2, rngs=dx.Rngs(0)), dx.Rngs(0)]
    for model in [*models, *map(pickle.loads, map(pickle.dumps, models[1:]))]:
        assert not any("__getattr__" in vars(cls) for cls in type(model).__mro__ if cls is not dx.Rngs)


def test_a_class_that_lost_a_field():
    loaded = dumped(OLD, OLD.replace("    a: int\n", ""))
    assert loaded.a == 1
    assert jax.tree.map(lambda x: x, loaded).a == 1


def test_a_class_whose_field_changed_its_status():
    old = OLD.replace("return Model(1, jnp.ones(2))", "m = Model(1, jnp.ones(2)); m.x = 3; return m")
    loaded = dumped(old, OLD.replace("a: int", "a: int = dx.data()"))
    assert loaded.x == 3
    assert len(jax.tree.leaves(loaded)) in (1, 2)


# --- inheritance ------------------------------------------------------------------


def test_a_subclass_of_a_subclass():
    @dx.dataclass
    class A(dx.Module):
        x: jax.Array

    @dx.dataclass
    class B(A):
        y: int = 1

    class C(B):
        def total(self):
            return self.x.sum() + self.y

    @dx.dataclass
    class D(C):
        z: jax.Array | None = None

    assert len(jax.tree.leaves(D(jnp.ones(2), 3, jnp.ones(1)))) == 2
    assert float(jax.jit(lambda m: m.total())(C(jnp.ones(2)))) == 3.0
    made = jax.tree.map(lambda v: v, C(jnp.ones(2), 5))
    assert type(made) is C
    assert made.y == 5


def test_several_bases():
    @dx.dataclass
    class Left(dx.Module):
        a: int = 1

    @dx.dataclass
    class Right(dx.Module):
        b: jax.Array | None = None

    @dx.dataclass
    class Both(Left, Right):
        c: int = 3

    model = Both(b=None, a=2, c=jnp.int32(4).item())
    model.b = jnp.ones(1)
    assert len(jax.tree.leaves(model)) == 1
    assert (model.a, model.c) == (2, 4)


def test_abstract_classes():
    class Layer(dx.Module, abc.ABC):
        @abc.abstractmethod
        def width(self): ...

    with pytest.raises(TypeError, match="abstract"):
        Layer()
    with pytest.raises(TypeError, match="abstract"):
        jax.jit(lambda x: Layer())(1.0)

    class Real(Layer):
        def width(self):
            return 3

    assert Real().width() == 3


def test_protocols_and_generics():
    @runtime_checkable
    class HasWidth(Protocol):
        def width(self) -> int: ...

    @dx.dataclass
    class Layer(dx.Module, HasWidth, Generic[T]):
        item: T

        def width(self) -> int:
            return 3

    assert isinstance(Layer(1), HasWidth)
    model = Layer[int](1)
    assert type(jax.tree.map(lambda x: x, model)) is Layer


def test_properties_with_setters():
    class Model(dx.Module):
        def __init__(self):
            self._scale = jnp.ones(1)

        @property
        def scale(self):
            return self._scale

        @scale.setter
        def scale(self, value):
            self._scale = value

        @property
        def fixed(self):
            return 3

    model = Model()
    model.scale = dx.data(5)
    assert model.scale == 5
    assert jax.tree.leaves(model) == [5]
    with pytest.raises(AttributeError, match="fixed"):
        model.fixed = 4
    with pytest.raises(errors.TraceContextError, match=r"Model.scale"):
        jax.jit(lambda x: setattr(model, "scale", x))(1.0)


def test_own_setattr_and_getattr():
    class Model(dx.Module):
        def __setattr__(self, name, value):
            super().__setattr__(name.lower(), value)

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return "missing"

    model = Model()
    model.A = jnp.ones(1)
    assert len(jax.tree.leaves(jax.tree.map(lambda x: x, model))) == 1
    assert model.zzz == "missing"
    assert copy.deepcopy(model).a.shape == (1,)


def test_init_subclass_and_class_arguments():
    class Registry(dx.Module):
        names: list[str] = []  # a class variable in all but name

        def __init_subclass__(cls, *, tag=None, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.tag = tag

    class Sub(Registry, tag="t", pytree=False):
        pass

    assert Sub.tag == "t"
    assert jax.tree_util.all_leaves([Sub()])


def test_a_reserved_name_of_an_own_class_is_free():
    class Model(dx.Module):
        def helper(self):
            return 1

    model = Model()
    model.helper = jnp.ones(1)
    assert len(jax.tree.leaves(model)) == 1


# --- lifetimes and threads --------------------------------------------------------


def test_instances_are_freed():
    model = record()
    seen = weakref.ref(model)
    jax.tree.leaves(model)
    del model
    gc.collect()
    assert seen() is None


def test_classes_may_be_used_first_by_many_threads():
    @functools.lru_cache
    def classes():
        return [type(f"C{i}", (dx.Module,), {}) for i in range(20)]

    failures: list[BaseException] = []

    def use():
        try:
            for cls in classes():
                model = cls()
                model.x = jnp.ones(())
                jax.tree.leaves(model)
        except BaseException as error:  # noqa: BLE001  # reported by the test below
            failures.append(error)

    classes()
    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_leaves_may_be_anything():
    treedef = jax.tree.structure(record())
    marker = object()
    assert jax.tree.unflatten(treedef, [marker]).weight is marker
    assert jax.tree.map(lambda _: None, record()).weight is None
    assert jax.vmap(lambda m: m, in_axes=(jax.tree.unflatten(treedef, [0]),))(record()).weight.shape == (2,)

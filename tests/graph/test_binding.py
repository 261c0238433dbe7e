"""What is kept of a graph: every change of its structure is seen, and nothing is kept alive by it."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import signal
import sys
import threading
import weakref
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import declax as dx
from declax._graph.binding import bind
from strategies import Box, Declared, Open, OpenPytree, apply_edits, build, edits, recipes, same_graph

pytestmark = [pytest.mark.usefixtures("quick_to_collect"), pytest.mark.sampled(6)]


def model_of() -> Open:
    model = Open()
    model.part = Open()
    model.part.kernel = dx.Param(jnp.ones((2, 3)))
    model.mean = dx.BatchStat(jnp.zeros(3))
    model.raw = jnp.zeros(2)
    model.number = dx.data(3.5)
    model.plain = dx.data([jnp.zeros(1), {"deep": [jnp.zeros(4)]}])
    model.ordered = dx.data(OrderedDict(b=jnp.zeros(1), a=jnp.zeros(2)))
    model.elements = dx.List([Open(), jnp.zeros(1), 3])
    model.entries = dx.Dict(left=Open(), right=3)
    model.sizes, model.table, model.pair = [1, 2], {"a": [1]}, (1, [2])
    model.names = {"x"}
    model.dim, model.flag = 3, True
    model.box = Box()
    model.box.held, model.box.note = [dx.Param(1.0)], "note"
    model.declared = Declared(kernel=dx.Param(jnp.ones(1)), parts=[Open()])
    model.other = OpenPytree()
    model.other.up = model
    return model


# ================================================================= every change is seen

CHANGES = {
    "new static": lambda m: setattr(m, "new", 3),
    "new none": lambda m: setattr(m, "new", None),
    "new data none": lambda m: setattr(m, "new", dx.data(None)),
    "new data": lambda m: setattr(m, "new", jnp.ones(1)),
    "new variable": lambda m: setattr(m.part, "new", dx.Param(1.0)),
    "new node": lambda m: setattr(m.part, "new", Open()),
    "new below a list": lambda m: setattr(m.elements[0], "new", 3),
    "new below a dict": lambda m: setattr(m.entries.left, "new", dx.data(None)),
    "new below a plain list": lambda m: setattr(m.declared.parts[0], "new", None),
    "delete": lambda m: delattr(m.part, "kernel"),
    "delete static": lambda m: delattr(m, "dim"),
    "delete raw": lambda m: delattr(m, "raw"),
    "static value": lambda m: setattr(m, "dim", 4),
    "static of another type": lambda m: setattr(m, "dim", 3.0),
    "bool to int": lambda m: setattr(m, "flag", 1),
    "static to none": lambda m: setattr(m, "dim", None),
    "static to data": lambda m: setattr(m, "dim", dx.data(3)),
    "data to static": lambda m: setattr(m, "number", dx.static(m.number)),
    "data to text": lambda m: setattr(m, "number", "text"),
    "data to none": lambda m: setattr(m, "number", None),
    "data to array": lambda m: setattr(m, "number", jnp.ones(2)),
    "raw to variable": lambda m: setattr(m, "raw", dx.Param(m.raw)),
    "raw to number": lambda m: setattr(m, "raw", 1.0),
    "raw to numpy": lambda m: setattr(m, "raw", np.ones(7)),
    "raw to tree": lambda m: setattr(m, "raw", [m.raw]),
    "variable to raw": lambda m: setattr(m, "mean", jnp.zeros(3)),
    "another variable": lambda m: setattr(m, "mean", dx.BatchStat(jnp.ones(3))),
    "another kind": lambda m: setattr(m, "mean", dx.Cache(jnp.zeros(3))),
    "variable to none": lambda m: setattr(m, "mean", None),
    "share": lambda m: setattr(m.part, "kernel", m.mean),
    "another node": lambda m: setattr(m, "part", Open()),
    "cycle": lambda m: setattr(m.part, "up", m),
    "cut": lambda m: setattr(m.other, "up", Open()),
    "metadata": lambda m: m.mean.set_metadata(note=1),
    "metadata by attribute": lambda m: setattr(m.part.kernel, "note", 1),
    "metadata in a list": lambda m: m.box.held[0].set_metadata(note=1),
    "add axis": lambda m: m.mean.set_metadata(sharding=("x",)),
    "list append": lambda m: m.elements.append(jnp.ones(1)),
    "list set": lambda m: m.elements.__setitem__(0, Open()),
    "list set static": lambda m: m.elements.__setitem__(2, 4),
    "list set raw": lambda m: m.elements.__setitem__(1, jnp.ones(5)),
    "list insert": lambda m: m.elements.insert(0, 1),
    "list delete": lambda m: m.elements.pop(),
    "list reverse": lambda m: m.elements.reverse(),
    "list clear": lambda m: m.elements.clear(),
    "list slice": lambda m: m.elements.__setitem__(slice(0, 2), [1, 2, 3]),
    "dict set": lambda m: m.entries.__setitem__("new", Open()),
    "dict attribute": lambda m: setattr(m.entries, "left", 3),
    "dict delete": lambda m: m.entries.__delitem__("left"),
    "plain append": lambda m: m.plain.append(jnp.ones(1)),
    "plain set": lambda m: m.plain.__setitem__(0, jnp.ones(3)),
    "plain to number": lambda m: m.plain.__setitem__(0, 1.0),
    "plain deep": lambda m: m.plain[1].update(new=jnp.ones(1)),
    "plain deeper": lambda m: m.plain[1]["deep"].append(dx.Param(1.0)),
    "plain deeper set": lambda m: m.plain[1]["deep"].__setitem__(0, jnp.ones(4)),
    "plain delete": lambda m: m.plain.__delitem__(0),
    "plain key": lambda m: m.plain[1].update(other=m.plain[1].pop("deep")),
    "plain reverse": lambda m: m.plain.reverse(),
    "plain replaced": lambda m: setattr(m, "plain", [jnp.zeros(1)]),
    "ordered": lambda m: m.ordered.move_to_end("b"),
    "ordered set": lambda m: m.ordered.update(a=jnp.ones(9)),
    "declared container": lambda m: m.declared.parts.append(Open()),
    "declared field": lambda m: setattr(m.declared, "kernel", None),
    "declared none": lambda m: setattr(m.declared, "scale", jnp.ones(1)),
    "declared static": lambda m: setattr(m.declared, "width", 9),
    "declared static list": lambda m: m.declared.sizes.append(9),
    "declared extra": lambda m: setattr(m.declared, "extra", 9),
    "static list": lambda m: m.sizes.append(3),
    "static list of equal values": lambda m: m.sizes.__setitem__(0, True),
    "static dict": lambda m: m.table["a"].append(2),
    "static dict key": lambda m: m.table.update(b=[]),
    "static tuple": lambda m: m.pair[1].append(3),
    "static set": lambda m: m.names.add("y"),
    "static list to tuple": lambda m: setattr(m, "sizes", (1, 2)),
    "static to list": lambda m: setattr(m, "dim", [3]),
    "object static": lambda m: setattr(m.box, "note", "other"),
    "object new": lambda m: setattr(m.box, "new", 3),
    "object new none": lambda m: setattr(m.box, "new", None),
    "object new array": lambda m: setattr(m.box, "new", jnp.ones(1)),
    "object static to array": lambda m: setattr(m.box, "note", jnp.ones(1)),
    "object delete": lambda m: delattr(m.box, "held"),
    "object container": lambda m: m.box.held.append(jnp.ones(1)),
    "list item of static": lambda m: setattr(m.elements[0], "sizes", [1]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name):
    model = model_of()
    before = dx.graphdef(model)
    dx.jit(lambda m, n: None)(model, model.part)
    CHANGES[name](model)
    assert same_graph(dx.merge(*dx.split(model)), model)
    changed = model_of()
    CHANGES[name](changed)
    assert dx.graphdef(changed) is dx.graphdef(model)
    if name not in (
        "another variable",
        "list set",
        "list set raw",
        "plain set",
        "plain deeper set",
        "ordered set",
        "raw to numpy",
        "raw to number",
        "another node",
    ):
        # those may give an equal structure, of other objects
        assert dx.graphdef(model) is not before or name == "data to array"


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_part_is_seen_by_its_user(name):
    model = model_of()
    user = Open()
    user.model = model
    user.more = dx.data([model.part])
    dx.split(user)
    dx.split(model)
    CHANGES[name](model)
    assert same_graph(dx.merge(*dx.split(user)), user)


@given(recipes(), edits())
def test_what_jit_sees_after_any_edit_is_what_is_there(recipe, todo):
    model, other = build(recipe), Open()
    seen = []
    look = dx.jit(lambda m, o: seen.append(None))
    look(model, other)
    for edit in todo:
        apply_edits(model, [edit])
        before = dx.graphdef(model)
        look(model, other)
        assert dx.graphdef(model) is before
        assert same_graph(dx.merge(*dx.split([model, other]))[0], model)


def test_values_are_read_anew():
    model = model_of()
    dx.state(model)
    model.mean.value = jnp.ones(3)
    model.raw = jnp.ones(2)
    model.number = 4.5
    model.plain[0] = jnp.ones(1)
    state = dx.state(model)
    assert state["mean"].value.sum() == 3
    assert state["raw"].sum() == 2
    assert state["number"] == 4.5
    assert state["plain"][0].sum() == 1


def test_replacing_arrays_ends_no_epoch():
    model = Open()
    model.kernel, model.raw = dx.Param(jnp.zeros(2)), jnp.zeros(2)
    kept = bind(model)
    model.kernel.value, model.raw = jnp.ones(2), jnp.ones(2)
    model.kernel[0] = 3.0
    model.kernel += 1
    Open().unknown = 3
    assert bind(model) is kept
    assert kept.read()[1].tolist() == [1.0, 1.0]


def test_setting_the_same_mode_again_ends_no_epoch():
    model = Open()
    model.drop = dx.Dropout(0.5, rngs=dx.Rngs(0))
    model.eval()
    kept = bind(model)
    model.eval()
    assert bind(model) is kept
    model.train()
    assert bind(model) is not kept


def test_a_node_that_moves_to_another_model_is_seen_there():
    first, second, part = Open(), Open(), Open()
    first.part = part
    dx.split(first)
    dx.split(second)
    second.part = part
    del first.part
    dx.split(first)
    part.new = dx.Param(1.0)
    assert dx.state(second).paths == (("part", "new"),)
    assert dx.state(first).paths == ()


# ================================================================= nothing is kept alive


@contextlib.contextmanager
def no_gc():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def tree_of() -> Open:
    model = model_of()
    del model.other  # a cycle of the user's own needs the collector
    return model


USES = {
    "split": dx.split,
    "state": lambda m: dx.state(m, dx.Param),
    "merge": lambda m: dx.merge(*dx.split(m)),
    "update": lambda m: dx.update(m, dx.state(m)),
    "clone": dx.clone,
    "pop": lambda m: dx.pop(m, dx.Cache),
    "duplicates": dx.find_duplicates,
    "jit": dx.jit(lambda m: m.part.kernel * 2),
    "jit that sets": dx.jit(lambda m: setattr(m.part.kernel, "value", m.part.kernel * 2)),
    "jit that grows": dx.jit(lambda m: setattr(m, "new", jnp.ones(1))),
    "jit that returns": dx.jit(lambda m: m.part),
    "jit of parts": lambda m: dx.jit(lambda p, m: m.part.kernel * 2)(m.part, m),
    "jit of plain parts": lambda m: dx.jit(lambda p, m: None)(m.declared.parts[0], m),
    "jit of two orders": lambda m: (dx.jit(lambda a, b: None)(m, m.part), dx.jit(lambda a, b: None)(m.part, m)),
    "jit of one model twice": lambda m: dx.jit(lambda a, b: None)(m, m),
    "jit of variables": lambda m: dx.jit(lambda a, b: None)(m.mean, m),
    "grad": dx.grad(lambda m: (m.part.kernel[...] ** 2).sum()),
}


@pytest.mark.parametrize("name", USES)
def test_a_model_is_freed_without_the_collector(name):
    with no_gc():
        model = tree_of()
        USES[name](model)
        refs = [
            weakref.ref(o) for o in (model, model.part, model.declared.parts[0], model.mean, model.elements, model.box)
        ]
        del model
        assert [ref() for ref in refs if ref() is not None] == []


def test_two_roots_are_freed_each_by_itself():
    step = dx.jit(lambda m, n, o: setattr(m.part.kernel, "value", m.part.kernel * 2))
    with no_gc():
        first, second, third = tree_of(), tree_of(), tree_of()
        step(first, second, third)
        step(second, third, first)
        refs = [weakref.ref(o) for o in (first, second, third)]
        del second
        assert refs[1]() is None
        step(first, third, first)
        del first
        assert refs[0]() is None
        del third
        assert refs[2]() is None


def test_a_model_and_its_optimizer_are_freed():
    optax = pytest.importorskip("optax")

    @dx.jit
    def step(model, optimizer, x):
        grads = dx.grad(lambda m: (m(x) ** 2).sum())(model)
        optimizer.update(model, grads)

    with no_gc():
        model = dx.Linear(2, 3, rngs=dx.Rngs(0))
        optimizer = dx.Optimizer(model, optax.sgd(1e-1, momentum=0.9), wrt=dx.Param)
        for _ in range(2):
            step(model, optimizer, jnp.ones((1, 2)))
        refs = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.kernel)]
        del model
        assert refs[0]() is None
        del optimizer
        assert [ref() for ref in refs] == [None] * 3


def test_a_part_that_was_cut_off_is_freed():
    # what was kept of the model as it was holds on to Variables until it is asked again
    with no_gc():
        model = tree_of()
        dx.split(model)
        dx.jit(lambda m, n: None)(model, model.part)
        refs = [weakref.ref(model.mean), weakref.ref(model.declared), weakref.ref(model.plain[0])]
        model.mean = None
        del model.declared
        model.plain = None
        dx.split(model)
        assert [ref() for ref in refs if ref() is not None] == []


def test_nothing_grows_in_a_loop_of_models():
    step = dx.jit(lambda m, n: m.kernel.value + n.kernel.value)
    other = Open()
    other.kernel = dx.Param(jnp.ones(1))

    def once():
        model = Open()
        model.kernel = dx.Param(jnp.ones(1))
        step(model, other)
        step(other, model)
        dx.split([model, other])
        dx.state(model)

    for _ in range(50):
        once()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(400):
        once()
    assert len(vars(other)["_pytree__bound"] or ()) <= 1
    gc.collect()
    assert len(gc.get_objects()) < before + 100


# ================================================================= threads


def in_threads(work, count=8):
    faults = []
    barrier = threading.Barrier(count)

    def run(index):
        try:
            barrier.wait()
            work(index)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the test shows it
            faults.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    finally:
        sys.setswitchinterval(interval)
    assert faults == []


def test_eight_threads_take_one_model_apart():
    for _ in range(10):
        model = model_of()
        expected = model_of()

        def work(index, model=model, expected=expected):
            for _ in range(5):
                assert same_graph(dx.merge(*dx.split(model)), expected)
                dx.state([model, model.part], dx.Param, ...)
                dx.find_duplicates(model)

        in_threads(work)


def test_threads_that_change_other_models_do_not_disturb():
    reading = model_of()
    expected = dx.graphdef(reading)

    def work(index):
        own = model_of()
        for i in range(20):
            assert dx.graphdef(reading) is expected
            dx.split(own)
            own.dim = i
            own.plain.append(jnp.zeros(1))
            assert len(dx.state(own)["plain"]) == 3 + i
            assert dx.merge(*dx.split(own)).dim == i

    in_threads(work)


@pytest.mark.slow
def test_eight_threads_look_at_eight_parts_of_one_model():
    model = Open()
    model.parts = dx.List([Open() for _ in range(8)])
    for part in model.parts:
        part.kernel = dx.Param(jnp.ones(1))

    def work(index):
        for _ in range(30):
            assert len(dx.state(model).leaves) == 8
            assert len(dx.state(model.parts[index]).leaves) == 1
            dx.jit(lambda a, b: None)(model, model.parts[index])

    in_threads(work)


# ================================================================= depth


@pytest.mark.parametrize("depth", [500, 3000])
def test_deep_graphs(depth):
    root = node = Open()
    for _ in range(depth):
        node.next = Open()
        node = node.next
    node.kernel = dx.Param(jnp.ones(1))
    graphdef, state = dx.split(root)
    assert len(state.paths[0]) == depth + 1
    merged = dx.merge(graphdef, state)
    for _ in range(depth):
        merged = merged.next
    assert merged.kernel.value.sum() == 1
    dx.update(root, jax.tree.map(lambda x: x + 1, state))
    assert node.kernel.value.sum() == 2
    assert dx.find_duplicates(root) == []
    assert len(list(dx.iter_graph(root))) == depth + 2
    assert jax.jit(lambda x: x + 1)(1) == 2  # nothing is left of a recursion


@contextlib.contextmanager
def at_most(seconds):
    """Ends a loop of Python code that would not end by itself, before it has used up the memory."""

    def stop(signum, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)  # again, where a callback swallowed the first
    try:
        yield
    finally:
        with contextlib.suppress(TimeoutError):
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("use", [dx.split, dx.find_duplicates, lambda m: list(dx.iter_graph(m))])
@pytest.mark.parametrize("make", [list, dict])
def test_a_container_that_holds_itself_is_refused(make, use):
    model = Box()
    model.plain = make()
    if make is list:
        model.plain += [jnp.zeros(1), model.plain]
    else:
        model.plain.update(a=jnp.zeros(1), b=[model.plain])
    with at_most(1), pytest.raises(dx.DeclaxError, match="a plain container holds itself"):
        use(model)


def test_one_root_and_the_same_root_twice_are_different_things():
    model = Open()
    model.scale = dx.Param(jnp.ones(1))
    assert [
        float(f(*args))
        for f, args in [
            (dx.jit(lambda m: m.scale.sum()), (model,)),
            (dx.jit(lambda a, b: (a.scale + b.scale).sum()), (model, model)),
            (dx.jit(lambda a, b, c: (a.scale + b.scale + c.scale).sum()), (model, model, model)),
            (dx.jit(lambda a, b: (a.scale + b.scale).sum()), (model, model)),
        ]
    ] == [1.0, 2.0, 3.0, 2.0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    weight: jax.Array
    scale: int = dataclasses.field(metadata={"static": True})


def test_static_fields_of_registered_dataclasses_are_seen():
    model = Open()
    model.part = dx.data(Registered(jnp.ones(2), 1))
    scaled = dx.jit(lambda m: m.part.scale * m.part.weight)
    for scale in (1, 5, 7):
        model.part.scale = scale
        assert scaled(model).tolist() == [scale, scale]
        assert dx.clone(model).part.scale == scale


def test_the_order_of_dicts_is_seen():
    model = Open()
    model.parts = dx.data({"a": dx.Param(1), "b": dx.Param(2)})
    dx.split(model)
    model.parts["a"] = model.parts.pop("a")
    assert list(dx.clone(model).parts) == ["b", "a"]


def test_what_filters_answer_is_not_kept_for_ever():
    model = Open()
    model.scale = dx.Param(1)
    for _ in range(600):
        dx.split(model, dx.Param, lambda path, value: True)
    assert len(dx.graphdef(model).definition.groups) <= 256


def test_a_key_that_is_replaced_by_an_equal_one_is_seen():
    model = Open()
    model.table = dx.data({1: jnp.ones(1)})
    before = dx.graphdef(model)
    assert dx.graphdef(model) is before
    model.table[True] = model.table.pop(1)
    after = dx.graphdef(model)
    assert after is not before
    assert [path[-1] for path in dx.state(model).paths] == [True]
    assert type(dx.state(model).paths[0][-1]) is bool

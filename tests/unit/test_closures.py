"""How a function is looked through, and made anew over other things."""

from __future__ import annotations

import collections
import functools
import gc
import types
import weakref

import jax
import jax.numpy as jnp
import optax
import pytest

import declax as dx
from declax.errors import TransformError
from declax.transforms._engine.captures import (
    MAX_KEYS,
    CaptureKind,
    Captures,
    Closure,
    Names,
    RebuiltClosure,
    base_of,
    capture_kind,
    names_in,
)

A, B, C = dx.Param(1.0), dx.Param(2.0), dx.Param(3.0)


def rebound(f, new):
    return RebuiltClosure(Closure(f).find(), new)


def with_names(text, **names):
    """Functions in a module of their own."""
    exec(text, names)
    return types.SimpleNamespace(**{k: v for k, v in names.items() if k != "__builtins__"}, names=names)


# ruff: noqa: F821  # names that are nowhere, and loops as users write them

# ================================================================= kinds


class Called:
    def __call__(self):
        return self.held


class NotCalled:
    held = None


Named = collections.namedtuple("Named", "a b")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (A, CaptureKind.NODE),
        (dx.Module(), CaptureKind.NODE),
        (lambda: 0, CaptureKind.FUNCTION),
        (functools.partial(max), CaptureKind.PARTIAL),
        (jax.tree_util.Partial(max), CaptureKind.PARTIAL),
        (dx.Module().train, CaptureKind.METHOD),
        (Closure(max), CaptureKind.CLOSURE),
        (dx.jit(max), CaptureKind.LIFTED),
        (functools.lru_cache(max), None),
        (Called(), None),
        (types.SimpleNamespace(), None),
        (collections.UserDict(), None),
        (collections.deque(), None),
        ([], CaptureKind.LIST),
        ((), CaptureKind.TUPLE),
        (Named(1, 2), CaptureKind.TUPLE),
        ({}, CaptureKind.DICT),
        (collections.defaultdict(), CaptureKind.DICT),
        (collections.OrderedDict(), CaptureKind.DICT),
        (NotCalled(), None),
        (Called, None),
        (max, None),
        (jax, None),
        (jnp.zeros(3), None),
        (jax.jit(max), None),
        (3, None),
        (None, None),
        (set(), CaptureKind.SET),
        (frozenset(), CaptureKind.FROZENSET),
        (weakref.WeakSet(), CaptureKind.SET),
        (weakref.WeakKeyDictionary(), CaptureKind.DICT),
    ],
)
def test_kinds(value, kind):
    assert capture_kind(value) is kind
    assert capture_kind(value) is kind  # the second time from the table


# ================================================================= captures


def test_a_function_that_reaches_nothing_is_fixed():
    captures = Captures(lambda x: jnp.sin(x) + len([x]))
    assert captures.watched() == []
    assert captures.is_current()
    assert captures.values == ()
    assert Closure(lambda x: x).find().key.names == ()


def test_library_functions_are_not_watched():
    tx, act, add = optax.adam(1e-3), jax.nn.gelu, jnp.add
    captures = Captures(lambda x: tx.update(act(add(x, x))))
    assert captures.values == ()
    assert not captures.captured
    assert len(captures.watched()) == 3  # the three variables of this function


def test_what_is_found_once_is_one_value():
    pair = (A, B)

    def f(x, y=A, *, z=B):
        return A, pair

    captures = Closure(f).find()
    assert set(map(id, captures.values)) == {id(A), id(B)}
    assert len(captures.values) == 2
    kinds = sorted(place.kind for place in captures.captured)
    assert kinds == ["item", "item", "item", "item", "name"]


def test_sites_say_where_they_are():
    log, model = [], dx.Param(1.0)
    captures = Captures(lambda: (log, model))
    assert [site[1:3] for site in captures.captured] == [("variable", "model")]


def test_a_root_is_what_it_captures():
    model = dx.Module()
    captures = Closure(model).find()
    assert captures.values == (model,)
    assert captures.is_current()
    assert RebuiltClosure(captures, (A,)).function is A


def test_captures_are_kept_while_all_stays():
    model = A
    closure = Closure(lambda: model)
    first = closure.find()
    assert closure.find() is first
    model = B
    second = closure.find()
    assert second is not first
    assert second.values == (B,)
    assert second.key is first.key  # the same sites of the same functions


def test_keys_tell_sites_apart():
    one, two = A, None
    closure = Closure(lambda: (one, two))
    first = closure.find().key
    one, two = None, A
    assert closure.find().key is not first
    one, two = A, None
    assert closure.find().key is first


def test_keys_tell_paths_apart():
    inner, held = [A], {}
    closure = Closure(lambda: held)
    held["a"] = inner
    first = closure.find().key
    held["b"] = held.pop("a")
    assert closure.find().key is not first
    held["a"] = held.pop("b")
    assert closure.find().key is first


def test_containers_of_data_that_change_need_no_other_program():
    log, model = [], A
    closure = Closure(lambda: (log, model))
    first = closure.find().key
    log.append((1, 2))
    assert closure.find().key is first


def test_keys_do_not_pile_up():
    held = {}
    closure = Closure(lambda: held)
    for i in range(MAX_KEYS + 10):
        held.clear()
        held[i] = A
        assert closure.find().values == (A,)
    assert len(closure._keys) <= MAX_KEYS


def test_an_empty_cell():
    def f():
        return later

    closure = Closure(f)
    assert closure.find().values == ()
    later = A
    assert closure.find().values == (A,)
    del later
    assert closure.find().values == ()
    assert closure.find().watched() is None


def test_names_of_builtins_are_no_sites():
    captures = Captures(with_names("def f(x): return len(x) + undefined").f)
    assert [site.key for sites in captures.sites.values() for site in sites] == ["undefined"]


def test_names_in_code():
    def f():
        global made

        class Inner:
            limit = seen_by_class

        made = [read for _ in range(3)]
        return lambda: deep

    names = names_in(f.__code__)
    assert {"read", "deep", "seen_by_class", "made", "range"} <= names.keys()
    assert [name for name in ("read", "made", "seen_by_class", "__name__") if names[name]] == [
        "seen_by_class",
        "__name__",
    ]


def test_empty_containers_that_get_a_model():
    log = {"a": [], "b": ({},)}
    closure = Closure(lambda: log)
    first = closure.find()
    log["c"] = 1.0
    log["a"].append(1.0)
    assert closure.find() is first
    log["b"][0]["model"] = A
    assert closure.find().values == (A,)


def test_containers_of_data_are_watched():
    log = [0.0] * 640
    closure = Closure(lambda: log)
    first = closure.find()
    log.extend([1.0] * 10)
    assert closure.find() is first
    log.append([{"model": A}])
    assert closure.find().values == (A,)
    del log[-1]
    assert closure.find().values == ()


def test_dicts_are_watched_with_their_keys():
    held = {"a": A, "b": B}
    closure = Closure(lambda: held)
    first = closure.find()
    held["b"] = held.pop("b")
    assert closure.find() is first
    held["a"] = held.pop("a")  # last now
    second = closure.find()
    assert second.key is not first.key
    held["c"] = held.pop("b")
    assert closure.find().key is not second.key


# ================================================================= names


def test_names_stand_before_those_of_the_module():
    base = {"a": 1, "b": 2, "__name__": "somewhere"}
    names = Names(base)
    names.replace("a", 10)
    assert (names["a"], names["b"]) == (10, 2)
    assert names["__name__"] == "somewhere"
    base["b"] = 4
    assert names["b"] == 4
    with pytest.raises(KeyError):
        names["c"]
    assert base_of(Names(names)) is base
    assert names.assigned() == {}


def test_names_that_are_assigned():
    base = {"a": 1, "b": 2}
    names = Names(base)
    names.replace("a", 10)
    names.lend(["b", "nowhere"])
    names["new"] = 5
    assert names.assigned() == {"new": 5}
    names["a"] = 11
    assert names.assigned() == {"new": 5, "a": 11}
    assert base == {"a": 1, "b": 2}


def test_released_names_are_those_of_the_module():
    base = {"a": 1, "b": 2}
    names = Names(base)
    names.lend(["b"])
    names.replace("a", 10)
    names["new"] = 5
    names.release()
    base["a"] = 3
    assert (names["a"], names["b"]) == (3, 2)
    with pytest.raises(KeyError):
        names["new"]
    assert names.assigned() == {}


# ================================================================= made anew


def test_nothing_is_made_where_nothing_is_captured():
    def f():
        return helper

    helper = max
    assert rebound(f, ()).function is f


def test_only_what_is_needed_is_made():
    model = A

    def plain():
        return None

    def needs():
        return model

    def f():
        return plain, needs, needs()

    new = rebound(f, (B,)).function
    assert new is not f
    seen_plain, seen_needs, value = new()
    assert seen_plain is plain
    assert seen_needs is not needs
    assert value is B
    assert f()[2] is A


def test_cells_that_functions_share():
    model, count = A, 0

    def g():
        nonlocal count
        count += 1
        return model

    def f():
        return g() is model, model

    assert rebound(f, (B,)).function() == (True, B)
    assert count == 1


def test_cycles_through_all_holders():
    held = {}

    def f():
        return held["partial"], held["method"], held["tuple"][0], held

    held.update(partial=functools.partial(lambda m, g: (m, g), A, f), method=types.MethodType(lambda m: (m, held), A))
    held["tuple"] = (f, held)
    new = rebound(f, (B,)).function
    partial, method, i, new_held = new()
    assert partial() == (B, new)
    assert i is new
    assert method() == (B, new_held)
    assert new_held is not held
    assert new_held["tuple"][1] is new_held
    assert held["tuple"] == (f, held)


def test_tuples_that_hold_each_other():
    inner = [A]
    one = (inner,)
    inner.append((one,))
    (new_inner,) = rebound(lambda: one, (B,)).function()
    assert new_inner[0] is B
    assert new_inner[1][0][0] is new_inner


def test_what_is_returned_by_each_kind_of_place():
    def f(a=A, *, k=A):
        return a, k

    assert rebound(f, (B,)).function() == (B, B)
    assert f() == (A, A)
    assert rebound(functools.partial(f, A, k=A), (B,)).function() == (B, B)
    named = Named(A, [A])
    made = rebound(lambda: named, (B,)).function()
    assert made == Named(B, [B])
    assert type(made) is Named
    default = collections.defaultdict(list, a=A)
    made = rebound(lambda: default, (B,)).function()
    assert made == {"a": B}
    assert made.default_factory is list


def test_lifted_functions_are_made_anew():
    model = dx.Param(jnp.array(2.0))
    f = dx.jit(lambda x: model * x)
    f.tag = "mine"
    new = rebound(f, (dx.Param(jnp.array(3.0)),)).function
    assert type(new) is type(f)
    assert new.tag == "mine"
    assert float(new(2.0)) == 6
    assert float(f(2.0)) == 4


def test_nothing_is_carried_over_where_something_is_refused():
    made = with_names(
        "def f():\n    global count, model\n    count += 1\n    model = None\ndef g():\n    f()\n    return model",
        count=0,
        model=A,
    )
    new = rebound(made.g, (B,))
    new.function()
    with pytest.raises(TransformError, match="it assigns to 'model', where it captures"):
        new.conclude()
    assert (made.names["count"], made.names["model"]) == (0, A)


def test_long_chains_of_holders():
    model, f = A, lambda: model
    for _ in range(3000):
        f = functools.partial(f) if f.__class__ is types.MethodType else types.MethodType(f, A)
    captures = Captures(f)
    assert captures.values == (A,)
    assert RebuiltClosure(captures, (B,)).function is not f
    while isinstance(f, (functools.partial, types.MethodType)):
        f = f.func if isinstance(f, functools.partial) else f.__func__


# ================================================================= memory


def test_a_closure_and_its_function_are_freed_by_reference_counts():
    gc.collect()
    gc.disable()
    try:
        model = dx.Param(1.0)
        closure = Closure(functools.partial(lambda m, x: m, model))
        copies = (dx.Param(2.0),)
        made = RebuiltClosure(closure.find(), copies)
        assert made.function(0) is copies[0]
        made.conclude()
        alive = [weakref.ref(model), weakref.ref(copies[0]), weakref.ref(closure)]
        del model, copies, made, closure
        assert [ref() for ref in alive] == [None, None, None]
    finally:
        gc.enable()

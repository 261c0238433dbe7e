"""Mistakes of declared classes: each is refused with the line to write, and what resembles it stays legal."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import operator
import pickle
import pydoc
import re
import types
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax import errors


@dx.dataclass
class Net(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up = dx.Linear(dim, dim, rngs=rngs)


class Pair:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


@dataclasses.dataclass(slots=True)
class Slotted:
    n: int


def scaled(n):
    return lambda x: n * x


class Named(NamedTuple):
    first: Any
    second: Any


# ---- names of methods in class bodies


@pytest.mark.parametrize("name", ["self", "cls"])
def test_self_in_a_class_body(name):
    source = f"class Model(dx.Module):\n    dim: int = dx.field()\n    up = dx.Linear({name}.dim, 2)\n"
    with pytest.raises(
        errors.FieldError, match=f"^Model.dim: the class body reads '{name}', and there is no"
    ) as caught:
        exec(source, {"dx": dx})
    assert caught.value.fix == f"dim        # in place of {name}.dim"
    with pytest.raises(errors.FieldError, match=f"^Model.{name}: the class body reads") as caught:
        exec(source.replace(".dim,", ","), {"dx": dx})
    assert caught.value.fix == f"dim        # in place of {name}.dim"


def test_self_of_a_function_around_the_class():
    class Factory:
        dim = 4

        def make(self):
            @dx.dataclass
            class Model(dx.Module):
                dim: int = dx.field()
                size = self.dim * dim

            return Model

    assert Factory().make()(2).size == 8


# ---- one call at several places


def test_a_call_that_a_layer_repeats():
    def make(dim: int, rngs: dx.Rngs) -> dx.Linear:
        return dx.Linear(dim, dim, rngs=rngs)

    for part in ("[dx.Linear(dim, dim)] * 3", "[dx.Dropout(0.5)] * 3", "[dx.defer(make)(dim)] * 3"):
        source = f"""
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()
    parts = {part}
"""
        with pytest.raises(errors.FieldError, match=r"has no name, and stands at 3 places of this part") as caught:
            exec(source, {"dx": dx, "make": make})
        assert caught.value.fix.startswith(f"dx.repeat(3, {part[1:-5]})")

    @dx.dataclass
    class Shared(dx.Layer):
        dim: int = dx.field()
        part = dx.Linear(dim, dim)
        parts = [part] * 3
        sizes = (dx.defer(max)(dim, 3),) * 2

    made = Shared(2, rngs=dx.Rngs(0))
    assert made.parts[0] is made.parts[2] is made.part
    assert made.sizes == (3, 3)


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ("dx.Linear(dim, dim), 3", "3, dx.Linear(dim, dim)"),
        ("dim, dx.Linear", "dim, dx.Linear(...)"),
        ("3, make", "3, dx.defer(make)(...)"),
        ("3, lambda: 3", "3, dx.defer(function)(...)"),
        ("3, 5", "3, dx.defer(int)(...)"),
    ],
)
def test_a_repeat_of_what_is_no_call(arguments, fix):
    def make(): ...

    source = f"""
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()
    parts = dx.repeat({arguments})
"""
    with pytest.raises(errors.FieldError, match="the repeated value is not a deferred call") as caught:
        exec(source, {"dx": dx, "make": make})
    assert caught.value.fix == f"dx.repeat({fix})"


@pytest.mark.parametrize(
    ("statement", "first", "name"),
    [
        ("q, k, v = [dx.Linear(dim, dim)] * 3", "q", "k"),
        ("q, k = (dx.Linear(dim, dim),) * 2", "q", "k"),
        ("q, *others = [dx.Linear(dim, dim)] * 3", "q", "others"),
        ("(q, k), v = [dx.Linear(dim, dim)] * 2, 4", "q", "k"),
    ],
)
def test_a_call_that_an_unpacking_binds_twice(statement, first, name):
    source = f"""
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()
    {statement}
"""
    with pytest.raises(errors.FieldError, match=f"binds one call to '{first}' and to '{name}'") as caught:
        exec(source, {"dx": dx})
    assert caught.value.where == f"Model.{name}"
    assert caught.value.fix.startswith(f"{first} = dx.Linear(dim, dim)\n{name} = dx.Linear(dim, dim)")


def test_other_calls_with_two_names():
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        shared = dx.Linear(dim, dim)
        a, b = [shared] * 2
        c = d = dx.Linear(dim, dim)
        parts = [dx.Linear(dim, dim), dx.Linear(dim, 5)]
        e, f = parts
        g, h = parts[0], parts[0]
        i, j = pair = dx.Linear(dim, 2), dx.Linear(dim, 3)
        width, height = (4 * dim,) * 2
        k, m = [dx.Linear(4, 4) for _ in range(2)]

    made = Model(4, rngs=dx.Rngs(0))
    assert made.a is made.b is made.shared
    assert made.c is made.d
    assert made.e is made.g is made.h is made.parts[0]
    assert made.f is made.parts[1]
    assert made.pair == (made.i, made.j)
    assert made.width == made.height == 16
    assert made.k is not made.m


@pytest.mark.parametrize(
    "second", ["cached()", "[cached()]", "dx.Sequential([cached()])", "dx.when(dim > 2, cached())"]
)
@pytest.mark.parametrize("first", ["cached()", "[cached()]", '{"a": [cached()]}'])
def test_a_call_that_a_cached_function_gives_twice(first, second):
    source = f"""
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()

    @functools.cache
    def cached():
        return dx.Linear(3, 3)

    first = {first}
    second = {second}
"""
    with pytest.raises(errors.FieldError, match="is 'first' too, which this statement does not read") as caught:
        exec(source, {"dx": dx, "functools": functools})
    assert caught.value.where == "Model.second"
    assert caught.value.fix.endswith("second = first        # one object on purpose")


def test_calls_that_are_shared_by_name():
    @functools.cache
    def cached():
        return dx.Linear(3, 3)

    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        a = cached()
        b = dx.Sequential(a)
        c = [a]
        d = a
        e = {"q": d, "r": [d]}
        f = e["q"]
        g, h = e["r"][0], c
        i = dx.Sequential(dx.Linear(dim, dim), c[0])
        j = dx.when(dim > 3, a)
        k = [part for part in c]  # noqa: C416  # reads the name `c`

    @dx.dataclass
    class Sub(Model):
        m = Model.a
        n = [Model.a, Model.a]

    made = Sub(4, rngs=dx.Rngs(0))
    shared = [made.b.layers[0], *made.c, made.d, made.f, made.g, *made.h, made.i.layers[1], made.j, *made.k, made.m]
    assert all(part is made.a for part in shared + made.n)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("part = Pair(dx.Linear(dim, 3), 1)", "Pair"),
        ("part = Named(dx.Linear(3, 3), 1)", "Named"),
        ("part = collections.OrderedDict(a=dx.Linear(dim, 3))", "OrderedDict"),
        ("part = collections.deque([dx.Linear(dim, 3)])", "deque"),
        ("part = types.SimpleNamespace(a=[dx.Linear(dim, 3)])", "SimpleNamespace"),
        ("part: Any = Pair(dim, 3)", "Pair"),
        ("part = [Pair(dim, 3)]", "Pair"),
        ("part = Net(Pair(dim, 3))", "Pair"),
        ("part = Slotted(dim)", "Slotted"),
        ("part = slice(dim)", "slice"),
        ("part = scaled(dim)", "function"),
        ("part = dx.Sequential(dx.Linear(dim, 3), scaled(dim))", "function"),
        ("part = dx.spec(dx.Linear, dim, 3)", "Spec"),
        ("part = jax.ShapeDtypeStruct((dim,), float)", "ShapeDtypeStruct"),
    ],
)
def test_an_object_that_holds_a_call(line, kind):
    names = {"dx": dx, "collections": collections, "types": types, "Any": Any, "Pair": Pair, "Named": Named}
    names |= {"jax": jax, "Net": Net, "Slotted": Slotted, "scaled": scaled}
    source = f"""
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()
    {line}
"""
    with pytest.raises(errors.FieldError, match=f"the {kind} holds the field expression") as caught:
        exec(source, names)
    assert caught.value.where == "Model.part"
    if kind in ("Named", "OrderedDict", "function", "Spec") or "Linear" not in line:
        maker = {"function": "scaled", "Spec": "dx.spec"}.get(kind, kind)
        assert f"{maker})(...)        # each instance makes it" in caught.value.fix
    else:  # the layer would be hidden in what a deferred call makes
        assert "defer" not in caught.value.fix
        assert f"class {kind}(dx.Module): ..." in caught.value.fix or kind == "deque"
        assert caught.value.fix.endswith("]        # or a literal tuple or dict")


@pytest.mark.parametrize(
    ("lines", "fix"),
    [
        ("def f(self, n=dim): return n", "def f(self, n=None): ..."),
        ("def __call__(self, x, n=2 * dim): return n", "def __call__(self, n=None): ..."),
        ("def f(self, *, n=dim): return n", "def f(self, n=None): ..."),
        ("@staticmethod\n    def f(n=dim): return n", "def f(self, n=None): ..."),
        ("@classmethod\n    def f(cls, n=[dim]): return n", "def f(self, n=None): ..."),
        ("@property\n    def f(self, n=dim): return n", "def f(self, n=None): ..."),
        ("@adding(dim)\n    def __call__(self, x): return x", "dx.defer(adding)(...)"),
    ],
)
def test_a_method_that_holds_a_field(lines, fix):
    def adding(n):
        return lambda function: lambda self, x: function(self, x) + n

    with pytest.raises(errors.FieldError, match="the function holds the field expression") as caught:
        exec(
            f"@dx.dataclass\nclass Model(dx.Layer):\n    dim: int = dx.field()\n    {lines}", {**globals(), **locals()}
        )
    assert caught.value.fix.startswith(fix)


def test_methods_that_hold_no_field():
    size = 3

    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, 3)

        def __call__(self, x, n=2, *, m=(1, "a")):
            return self.up(x)[..., :n], size, m, __class__

        def __post_init__(self):
            super().__post_init__() if hasattr(super(), "__post_init__") else None

    assert Model(4, rngs=dx.Rngs(0))(jnp.ones((2, 4)))[0].shape == (2, 2)


def test_objects_that_hold_no_call():
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        pair = Pair(1, 2)
        table = collections.OrderedDict(a=1)
        kind = Net
        made = dx.defer(Named)(dx.Linear(dim, 3), 1)

    model = Model(4, rngs=dx.Rngs(0))
    assert model.pair is Model.pair
    assert model.made.first.kernel.shape == (4, 3)


# ---- an own __init__


@pytest.mark.parametrize(
    "part",
    ["up = dx.Dropout(dim / 10)", "up = 2 * dim", "up: int = 2 * dim", "up = dx.submodule(method)"],
)
def test_an_init_of_a_class_that_declares_parts(part):
    source = f"""
@dx.dataclass
class Model(dx.Module):
    dim: int = dx.field()
    {part}

    def __init__(self, dim):
        self.dim = dim
"""
    names = {"dx": dx}
    exec("def method(self): ...", names)
    with pytest.raises(
        errors.FieldError,
        match=r"^Model\.__init__: the class declares parts, such as 'up', and has its own __init__, which",
    ) as caught:
        exec(source, names)
    first, second = caught.value.fix.splitlines()
    assert first.startswith("def __post_init__(self): ...")
    assert second.startswith("self.up = ...        # or, without @dx.dataclass")


def test_an_init_that_calls_that_of_a_base_without_parts():
    class Open(dx.Module): ...

    for base in ("dx.Module", "Open"):
        source = f"""
@dx.dataclass
class Model({base}):
    dim: int = dx.field()
    up: int = 2 * dim

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
"""
        with pytest.raises(
            errors.FieldError,
            match=r"^Model\.__init__: the class declares parts, such as 'up', and has its own __init__, which",
        ):
            exec(source, {"dx": dx, "Open": Open})


def test_an_init_that_makes_the_parts():
    @dx.dataclass
    class ByPostInit(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        up = dx.Linear(dim, 2, rngs=rngs)

        def __init__(self, dim):
            self.dim = dim
            self.__post_init__(dx.Rngs(0))

    @dx.dataclass
    class BySuper(Net):
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        down = dx.Linear(Net.dim, 2, rngs=rngs)

        def __init__(self, dim):
            super().__init__(dim, rngs=dx.Rngs(0))

    assert ByPostInit(3).up.kernel.shape == BySuper(3).down.kernel.shape == (3, 2)
    assert BySuper(3).up.kernel.shape == (3, 3)


def test_an_init_of_a_class_without_parts():
    @dx.dataclass
    class Fields(dx.Module):
        dim: int = dx.field()
        size: int = 3

        def __init__(self, dim):
            self.dim = self.size = dim

    @dx.dataclass
    class Inherits(Net):
        def __init__(self):
            super().__init__(2, rngs=dx.Rngs(0))

    assert (Fields(4).dim, Fields(4).size) == (4, 4)
    assert Inherits().up.kernel.shape == (2, 2)


@pytest.mark.parametrize(
    ("base", "body", "problem"),
    [
        (
            "dx.Layer",
            "dim: int = dx.field()\n    up = dx.Linear(dim, dim)",
            "the inherited constructor does not know 'dim'",
        ),
        ("dx.Module", "dim: int = dx.field()\n    up: int = 2 * dim", "the inherited constructor does not know 'dim'"),
        ("Net", "up: int = 2 * Net.dim", "the inherited constructor does not know 'up'"),
        ("dx.Module", "up = dx.defer(list)()", "no constructor makes them"),
    ],
)
def test_parts_of_a_class_without_a_constructor(base, body, problem):
    source = f"@dx.dataclass(init=False)\nclass Model({base}):\n    {body}\n"
    text = rf"^Model: the class declares parts, such as 'up', and with init=False {problem}"
    with pytest.raises(errors.FieldError, match=text) as caught:
        exec(source, {"dx": dx, "Net": Net})
    assert caught.value.fix.startswith("@dx.dataclass        # without init=False")


def test_classes_without_a_constructor_of_their_own():
    @dx.dataclass(init=False)
    class Plain(dx.Module):
        dim: int = 3

    @dx.dataclass(init=False)
    class Streams(dx.Layer):
        up = dx.Linear(3, 4)

    @dx.dataclass(init=False)
    class Sub(Net):
        double = 2 * Net.dim

    @dx.dataclass(init=False)
    class Own(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, dim)

        def __init__(self, dim: int) -> None:
            self.dim = dim
            self.__post_init__(dx.Rngs(0))

    assert Plain().dim == 3
    assert Streams(rngs=dx.Rngs(0)).up.kernel.shape == (3, 4)
    assert Sub(2, rngs=dx.Rngs(0)).double == 4
    assert Own(2).up.kernel.shape == (2, 2)


# ---- subclasses without the decorator


@pytest.mark.parametrize(
    "make",
    [
        lambda: dx.Linear(3, 3, rngs=dx.Rngs(0)),
        lambda: dx.Param(jnp.ones(3)),
        lambda: [dx.Sequential(dx.Linear(3, 3, rngs=dx.Rngs(0)))],
        lambda: {"a": dx.Rngs(0)},
    ],
)
def test_a_layer_of_an_undecorated_subclass(make):
    class Sub(Net):
        extra = make()

    class Deeper(Sub): ...

    for cls in (Sub, Deeper):
        with pytest.raises(
            errors.FieldError, match=r"^Sub\.extra: all instances would share this object, which"
        ) as caught:
            cls(3, rngs=dx.Rngs(0))
        assert caught.value.fix == "@dx.dataclass        # above class Sub"


@pytest.mark.parametrize("before", [True, False])
def test_a_layer_that_is_added_to_a_declared_class(before):
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, dim)
        shared: ClassVar[Any] = None

    @dx.dataclass
    class Sub(Model):
        down = dx.Linear(Model.dim, 2)

    if not before:
        Model(3, rngs=dx.Rngs(0))
    Model.extra = dx.Linear(3, 3, rngs=dx.Rngs(0))
    for cls in (Model, Sub):
        with pytest.raises(errors.FieldError, match=r"^Model\.extra: all instances would share this object") as caught:
            cls(3, rngs=dx.Rngs(0))
    assert caught.value.fix.startswith("extra = ...        # in the class body")
    del Model.extra
    assert Sub(3, rngs=dx.Rngs(0)).up.kernel.shape == (3, 3)

    Model.shared = dx.Linear(3, 3, rngs=dx.Rngs(0))
    Model.rate = 0.5
    Model.half = lambda self: self.up
    model = Model(3, rngs=dx.Rngs(0))
    assert model.half() is model.up
    model.extra = dx.Linear(3, 3, rngs=dx.Rngs(0))
    assert len(jax.tree.leaves(dx.state(model, dx.Param))) == 4


@pytest.mark.parametrize("base", [dx.Layer, dx.Module])
def test_a_layer_of_a_mixin(base):
    class Mixin:
        head = dx.Linear(3, 3, rngs=dx.Rngs(0))
        drop = dx.Dropout(0.5, deterministic=True)

    with pytest.raises(errors.FieldError, match=r"^Mixin\.head: all instances would share this object") as caught:

        @dx.dataclass
        class _Model(Mixin, base):
            dim: int = dx.field()

    assert caught.value.fix.startswith("@dx.dataclass\nclass Mixin(dx.Layer): ...")

    @dx.dataclass
    class Net(Mixin, dx.Layer):
        dim: int = dx.field()
        head = dx.Linear(dim, 2)

    assert Net(4, rngs=dx.Rngs(0)).head.kernel.shape == (4, 2)

    class Constant:
        shared: ClassVar[Any] = dx.Linear(3, 3, rngs=dx.Rngs(0))

    @dx.dataclass
    class Reader(Constant, dx.Layer):
        dim: int = dx.field()

    assert Reader(3).shared is Constant.shared

    @dx.dataclass
    class AsInThePeer(Mixin, dx.Module):
        dim: int

    assert AsInThePeer(3).head is Mixin.head


def test_an_annotated_layer_of_an_undecorated_subclass():
    class Sub(Net):
        extra: dx.Linear = dx.Linear(3, 3, rngs=dx.Rngs(0))

    with pytest.raises(errors.FieldError, match=r"^Sub\.extra: all instances would share this object"):
        Sub(3, rngs=dx.Rngs(0))


def test_an_expression_of_an_undecorated_subclass():
    class Sub(Net):
        double = 2 * Net.dim

    class Open(Net):
        double = 2 * Net.dim

        def __init__(self):
            super().__init__(3, rngs=dx.Rngs(0))

    for make in (lambda: Sub(3, rngs=dx.Rngs(0)), Open):
        with pytest.raises(errors.FieldError, match=r"\.double: the declarations of a class require the decorator"):
            make()


def test_what_an_undecorated_subclass_may_hold():
    without_arrays = dx.Dropout(0.5, deterministic=True)

    class Sub(Net):
        rate = 0.5
        drop = without_arrays
        shared: ClassVar[Any] = dx.Linear(3, 3, rngs=dx.Rngs(0))
        table = (1, 2)

    class Open(Net):
        extra = dx.Linear(3, 3, rngs=dx.Rngs(0))

        def __init__(self):
            super().__init__(3, rngs=dx.Rngs(0))

    assert Sub(3, rngs=dx.Rngs(0)).drop is Sub.drop
    assert Open().extra is Open.extra


def test_the_peer_shares_layers_of_open_classes():
    class Open(dx.Module):
        extra = dx.Linear(3, 3, rngs=dx.Rngs(0))

    assert Open().extra is Open.extra
    assert not jax.tree.leaves(Open())


# ---- keys in the forms of other libraries


class Open(dx.Module):
    def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
        self.up = dx.Linear(dim, dim, rngs=rngs)


@pytest.mark.parametrize("cls", [Net, Open])
def test_streams_by_position(cls):
    with pytest.raises(
        errors.ConstructionError, match="the random streams are given by position, and 'rngs'"
    ) as caught:
        cls(4, dx.Rngs(0))
    assert caught.value.where == f"{cls.__name__}(...)"
    assert caught.value.fix == f"{cls.__name__}(..., rngs=dx.Rngs(0))"


@pytest.mark.parametrize("cls", [Net, Open])
def test_a_key_in_place_of_streams(cls):
    with pytest.raises(errors.ConstructionError, match="there is no parameter 'key': random keys come from") as caught:
        cls(4, key=jax.random.key(0))
    assert caught.value.fix == f"{cls.__name__}(..., rngs=dx.Rngs(0))        # or dx.Rngs(key)"
    assert cls(4, rngs=dx.Rngs(jax.random.key(0))).up.kernel.shape == (4, 4)


def test_streams_and_keys_that_a_constructor_takes():
    class Takes(dx.Module):
        def __init__(self, rngs: dx.Rngs, key: Any = None, **options: Any) -> None:
            self.up = dx.Linear(2, 2, rngs=rngs)

    class Needs(dx.Module):
        def __init__(self, dim: int, rngs: dx.Rngs) -> None: ...

    assert Takes(dx.Rngs(0), key=3).up.kernel.shape == (2, 2)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'rngs'"):
        Needs(dx.Rngs(0))

    class Positional(dx.Module):
        def __init__(self, rngs: dx.Rngs) -> None:
            raise TypeError("of the class itself")

    with pytest.raises(TypeError, match="of the class itself"):
        Positional(dx.Rngs(0))


# ---- parts that differ in an annotation


@dx.dataclass
class Two(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    mixer: dx.Linear = dx.Linear(dim, dim, rngs=rngs)
    up = dx.Linear(dim, dim, rngs=rngs)
    act = dx.Dropout(dim / 100)


def test_an_argument_for_a_part_without_an_annotation():
    with pytest.raises(errors.ConstructionError, match="there is no parameter 'up'") as caught:
        Two(3, up=None, rngs=dx.Rngs(0))
    why = "up is made by the object itself: it has no annotation, unlike mixer, which is an argument for that reason"
    assert caught.value.why == why
    with pytest.raises(errors.ConstructionError, match="there is no parameter 'act'") as caught:
        Two(3, act=None, rngs=dx.Rngs(0))
    assert caught.value.why == "act is made by the object itself"


def test_the_documentation_of_parts():
    text = pydoc.render_doc(Two, renderer=pydoc.plaintext)
    assert "mixer: 'dx.Linear' = dx.Linear(dim, dim, rngs=rngs)" in text
    assert "Parts with an annotation, which are arguments: mixer = dx.Linear(dim, dim, rngs=rngs)." in text
    assert "Parts without an annotation, which are no arguments: up, act." in text

    @dx.dataclass
    class Documented(dx.Module):
        """A text."""

        dim: int = dx.field()
        half = dim // 2

    @dx.dataclass
    class Plain(dx.Module):
        dim: int = dx.field()

    assert Documented.__doc__ == "A text."
    assert Plain.__doc__ == "Plain(dim: 'int')"


# ---- initializers


@pytest.mark.parametrize(
    ("name", "initializer"),
    [
        ("dx.initializers.lecun_normal", dx.initializers.lecun_normal),
        ("dx.initializers.normal", dx.initializers.normal),
        ("dx.initializers.zeros_init", dx.initializers.zeros_init),
        ("dx.initializers.constant", dx.initializers.constant),
        ("jax.nn.initializers.lecun_normal", jax.nn.initializers.lecun_normal),
        ("jax.nn.initializers.normal", jax.nn.initializers.normal),
    ],
)
def test_an_initializer_that_is_not_called(name, initializer):
    def declared():
        @dx.dataclass
        class Model(dx.Module):
            _: dx.KW_ONLY
            rngs: dx.InitVar[dx.Rngs] = dx.field()
            kernel: dx.Param[jax.Array] = dx.variable((2, 3), initializer=initializer)

    wrapped = dx.with_metadata(initializer, unit="m")
    calls = [
        ("Model", declared),
        ("Linear", lambda: dx.Linear(2, 3, kernel_init=initializer, rngs=dx.Rngs(0))),
        ("Linear", lambda: dx.Linear(2, 3, kernel_init=wrapped, rngs=dx.Rngs(0))),
        ("Linear", lambda: dx.Linear(2, 3, kernel_init=initializer, rngs=dx.Rngs(jax.random.PRNGKey(0)))),
    ]
    for owner, call in calls:
        text = rf"^{owner}\.kernel: {name} makes an initializer, and is given in place of one"
        with pytest.raises(errors.InitializerError, match=text) as caught:
            call()
        assert caught.value.fix == f"{name}()        # call it"


def of_a_shape(shape, dtype):
    return jnp.ones(shape, dtype)


@pytest.mark.parametrize(
    ("initializer", "fix"),
    [
        (jnp.zeros, "dx.initializers.zeros"),
        (jnp.ones, "dx.initializers.ones"),
        (of_a_shape, "lambda key, shape, dtype: of_a_shape(shape, dtype)"),
        (0.5, "dx.initializers.constant(0.5)"),
    ],
)
def test_a_function_of_other_arguments_in_place_of_an_initializer(initializer, fix):
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=initializer)

    for where, make in (
        ("Model.scale", lambda: Model(3, rngs=dx.Rngs(0))),
        ("Linear.kernel", lambda: dx.Linear(2, 3, kernel_init=initializer, rngs=dx.Rngs(0))),
    ):
        with pytest.raises(
            errors.InitializerError, match="the initializer is called with a key, a shape and"
        ) as caught:
            make()
        assert caught.value.where == where
        assert caught.value.fix == fix


@pytest.mark.parametrize("key", [jax.random.key(0), jax.random.PRNGKey(0)])
@pytest.mark.parametrize("name", ["lecun_normal", "normal", "uniform"])
def test_an_initializer_that_is_called_too_early(name, key):
    with pytest.raises(errors.InitializerError, match="this is not a valid setting") as caught:
        getattr(dx.initializers, name)(key, (3, 4))
    assert caught.value.fix == f"dx.initializers.{name}()(key, shape)        # {name}() makes the initializer"


def test_initializers_of_any_kind():
    def of_a_user(key, shape, dtype=None):
        return jnp.ones(shape, dtype)

    for init in (of_a_user, jax.nn.initializers.zeros, jax.nn.initializers.ones, jax.nn.initializers.normal()):
        assert dx.Linear(2, 3, kernel_init=init, rngs=dx.Rngs(0)).kernel.shape == (2, 3)

    def refuses(key, shape, dtype=None):
        raise TypeError("of a user")

    with pytest.raises(TypeError, match=r"^of a user"):
        dx.Linear(2, 3, kernel_init=refuses, rngs=dx.Rngs(0))


@pytest.mark.parametrize("name", ["lecun_normal", "he_normal", "xavier_uniform"])
def test_an_initializer_that_counts_inputs_of_a_vector(name):
    with pytest.raises(errors.InitializerError, match=r"cannot make an array of shape \(3,\)") as caught:
        getattr(dx.initializers, name)()(jax.random.key(0), (3,))
    assert caught.value.fix.startswith("dx.initializers.zeros        # or dx.initializers.normal(0.02)")
    with pytest.raises(errors.InitializerError, match="cannot make an array of shape") as caught:
        dx.initializers.orthogonal()(jax.random.key(0), (3,))
    assert caught.value.fix is None


# ---- sizes that are quotients


@pytest.mark.parametrize(
    ("part", "what", "quotient"),
    [
        ("dx.Linear(dim, dim / 2, rngs=rngs)", "the argument 'out_features'", "dim / 2"),
        ("dx.Linear(dim, out_features=2 * (dim / 2), rngs=rngs)", "the argument 'out_features'", "dim / 2"),
        ("dx.Sequential(dx.Linear(4 * dim / 2, 3, rngs=rngs))", "the argument 'in_features'", "(4 * dim) / 2"),
        ("Open(dim / 2, rngs=rngs)", "the argument 'dim'", "dim / 2"),
        ("dx.defer(sized)(dim / 2)", "the argument 'size'", "dim / 2"),
        ("dx.repeat(dim / 2, dx.Linear(dim, dim, rngs=rngs))", "the length of the list", "dim / 2"),
        ("dx.Linear(half, 2, rngs=rngs)", "the argument 'in_features'", "dim / 2"),
    ],
)
def test_a_quotient_as_a_size(part, what, quotient):
    source = f"""
@dx.dataclass
class Model(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    half = dim / 2
    part = {part}
"""

    def sized(size: int) -> int:
        return size

    text = rf"^Model\.part: {what} is a size, and {re.escape(quotient)} is a float"
    with pytest.raises(errors.FieldError, match=text) as caught:
        exec(source, {"dx": dx, "Open": Open, "sized": sized})
    assert caught.value.fix == f"{quotient.replace('/', '//')}        # in place of {quotient}"


def test_a_quotient_in_a_shape():
    with pytest.raises(
        errors.FieldError, match=r"^Model\.w: this entry of the shape is a size, and dim / 2 is"
    ) as caught:

        @dx.dataclass
        class Model(dx.Module):
            dim: int = dx.field()
            w: dx.Param[jax.Array] = dx.variable((dim / 2, 3), initializer=dx.initializers.ones, stream=None)

    assert caught.value.fix == "dim // 2        # in place of dim / 2"


def test_quotients_that_are_no_sizes():
    def scaled(factor: float, size: int) -> float:
        return factor * size

    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        scale = 1 / dim
        drop = dx.Dropout(dim / 10)
        up = dx.Linear(dim, dx.defer(int)(dim / 2), rngs=rngs)
        down = dx.Linear(dim // 2, 3, rngs=rngs)
        product = dx.defer(scaled)(dim / 2, dim)
        wide = dx.when(dim / 2 > 1, dx.Linear(dim, dim, rngs=rngs))

    model = Model(4, rngs=dx.Rngs(0))
    assert (model.scale, model.drop.rate, model.up.out_features, model.product) == (0.25, 0.4, 2, 8.0)


# ---- assignments: near misses


@dx.dataclass
class Block(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    depth: int = dx.field(default=2)
    kernel: tuple[int, ...] = dx.field(default=(3, 3))
    use_norm: bool = dx.field(default=True)
    label: str = "block"
    steps: int = 0
    act: Any = dx.field(default=dx.relu)
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    hidden: int = 4 * dim
    up = dx.Linear(dim, hidden, rngs=rngs)
    conv = dx.Conv(3, dim // 2, kernel, rngs=rngs)
    layers = dx.repeat(depth, dx.Linear(dim, dim, rngs=rngs))
    norm = dx.when(use_norm, dx.LayerNorm(dim, rngs=rngs))
    drop = dx.Dropout(rate)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)

    def set(self, name: str, value: object) -> None:
        setattr(self, name, value)

    def rename(self) -> None:
        for name in ("scael", "dimm"):
            (lambda: setattr(self, name, 1))()


def block() -> Block:
    return Block(4, rngs=dx.Rngs(0))


NEAR = [
    ("dimm", "dim"),
    ("dmi", "dim"),
    ("dm", "dim"),
    ("din", "dim"),
    ("Dim", "dim"),
    ("scael", "scale"),
    ("scal", "scale"),
    ("scalle", "scale"),
    ("hiden", "hidden"),
    ("hiddn", "hidden"),
    ("kernle", "kernel"),
    ("laybel", None),
    ("use_nrom", "use_norm"),
    ("use_nomr", "use_norm"),
    ("usse_norm", "use_norm"),
    ("dorp", "drop"),
    ("convv", "conv"),
]
FAR = [
    "dim2",
    "dims",
    "dim_",
    "_dim",
    "dim_q",
    "dimx",
    "xdim",
    "kernels",
    "kernel_q",
    "bias_ema",
    "conv2",
    "layer",
    "u",
    "upp",
    "ups",
    "rate_0",
    "norms",
    "norm_1",
    "head",
    "scale_ema",
    "label2",
    "hidden_size",
    "droppath",
    "acts",
]


@pytest.mark.parametrize(("name", "near"), [(name, near) for name, near in NEAR if near])
@pytest.mark.parametrize("value", [4, jnp.ones(2), None, "text"])
def test_a_near_miss_of_a_declared_name(name, near, value):
    model = block()
    text = rf"^Block\.{name}: the class declares no '{name}'; did you mean '{near}'\?"
    with pytest.raises(errors.MissingAttributeError, match=text) as caught:
        setattr(model, name, value)
    assert caught.value.fix.splitlines()[0] == f"model.{near} = ..."
    assert caught.value.fix.splitlines()[1].startswith(f"{name}: ... = dx.field(init=False)        # in class Block")
    assert not hasattr(model, name)


def test_a_near_miss_that_would_be_trained():
    model = block()
    with pytest.raises(AttributeError, match="did you mean 'scale'"):
        model.scael = dx.Param(jnp.ones(4))  # type: ignore[attr-defined]  # what is being refused
    assert "scael" not in str(dx.state(model).paths)


@pytest.mark.parametrize("name", [*FAR, "laybel"])
def test_names_that_are_no_near_miss(name):
    model = block()
    setattr(model, name, dx.Param(jnp.ones(2)))
    assert isinstance(getattr(model, name), dx.Param)


def test_words_of_one_letter_and_numbers_are_names_of_their_own():
    @dx.dataclass
    class Attention(dx.Module):
        dim: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        to_q = dx.Linear(dim, dim, rngs=rngs)
        q_proj = dx.Linear(dim, dim, rngs=rngs)
        wq = dx.Linear(dim, dim, rngs=rngs)
        fc1 = dx.Linear(dim, dim, rngs=rngs)
        mu = dx.Linear(dim, dim, rngs=rngs)

    model = Attention(2, rngs=dx.Rngs(0))
    for name in ("to_k", "k_proj", "wk", "fc2", "fc", "nu", "fc11", "to_qk", "qq_proj"):
        setattr(model, name, dx.Linear(2, 2, rngs=dx.Rngs(0)))


@pytest.mark.parametrize(
    "names",
    [
        "rate gate date",
        "mode model",
        "node mode code",
        "fwd bwd",
        "lhs_shape rhs_shape",
        "rtol atol",
        "weight height",
        "pre pred",
        "step stop stem",
        "min mid max",
        "conv cond",
        "phi psi chi dphi",
        "mask task",
        "norm form",
        "beta zeta eta",
        "mha mla gqa",
    ],
)
def test_pairs_that_are_usual_in_one_model(names):
    for name in names.split():
        declared = {"__annotations__": {name: Any, "size": Any}, name: dx.field(default=1), "size": dx.field(default=2)}
        model = dx.dataclass(type("Model", (dx.Module,), declared))()
        for other in names.split():
            setattr(model, other, 2)
            assert getattr(model, other) == 2


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("kernal", "kernel"),
        ("hiddem", "hidden"),
        ("hdiden", "hidden"),
        ("idm", "dim"),
        ("Scale", "scale"),
        ("use_morm", None),
        ("use_norn", "use_norm"),
        ("deoth", "depth"),
        ("actt", "act"),
    ],
)
def test_misspelt_words_of_any_length(name, near):
    model = block()
    if near is None:
        setattr(model, name, 3)
        return
    with pytest.raises(AttributeError, match=f"did you mean '{near}'"):
        setattr(model, name, 3)


def test_methods_may_add_any_attribute():
    model = block()
    model.set("scael", 3)
    model.rename()
    assert model.scael == 1

    def helper(self):
        self.dmi = 4

    helper(model)
    assert model.dmi == 4
    model.dmi = 5  # it has it now
    del model.dmi
    with pytest.raises(AttributeError, match="did you mean 'dim'"):
        model.dmi = 6


def test_an_attribute_of_a_class_that_overrides_setattr():
    class Counting(Block):
        count = 0

        def __setattr__(self, name: str, value: object) -> None:
            type(self).count += 1
            super().__setattr__(name, value)

    model = Counting(4, rngs=dx.Rngs(0))
    with pytest.raises(AttributeError, match="did you mean 'scale'"):
        model.scael = 3
    with pytest.raises(AttributeError, match=r"Counting\.dim: the part"):
        model.dim = 3


def test_a_constructor_may_add_any_attribute():
    @dx.dataclass
    class Model(Block):
        def __post_init__(self, rngs: dx.Rngs) -> None:
            self.scael = self.steps + 1

    assert Model(4, rngs=dx.Rngs(0)).scael == 1


def test_what_a_class_knows_besides_its_fields():
    @dx.dataclass
    class Model(Block):
        skale: ClassVar[int] = 3
        laber = "a constant"
        bloc: ClassVar[int]

        @property
        def dmi(self) -> int:
            return self.dim

        @dmi.setter
        def dmi(self, value: int) -> None:
            self.steps = value

    model = Model(4, rngs=dx.Rngs(0))
    model.skale, model.laber, model.bloc, model.dmi = 1, "b", 2, 5
    assert (model.skale, model.laber, model.steps) == (1, "b", 5)


def test_sow_perturb_and_set_attributes_know_no_near_misses():
    model = block()
    model.sow(dx.Intermediate, "scael", 3)
    model.perturb("dimm", jnp.ones(2))
    model.set_attributes(rate=0.5, dim=7)
    assert (model.scael.value, model.rate, model.dim) == ((3,), 0.5, 7)
    assert dx.view(model, deterministic=True).drop.deterministic
    model.train()
    model.eval()


def test_open_classes_and_plain_dataclasses_take_any_name():
    class Model(dx.Module):
        dim: int

        def __init__(self) -> None:
            self.dim, self.scale = 3, dx.Param(jnp.ones(3))

    @dx.dataclass
    class Plain(dx.Module):
        dim: int
        scale: dx.Data[jax.Array]

    class Sub(Block):
        def __init__(self) -> None:
            super().__init__(4, rngs=dx.Rngs(0))

    for model in (Model(), Plain(3, jnp.ones(3)), Sub()):
        model.dimm, model.scael, model.dim = 3, dx.Param(jnp.ones(2)), 5
        assert isinstance(model.scael, dx.Param)


def test_a_subclass_without_a_decorator_or_constructor_is_declared():
    class Sub(Block):
        def __call__(self, x: jax.Array) -> jax.Array:
            return self.up(x)

    model = Sub(4, rngs=dx.Rngs(0))
    with pytest.raises(AttributeError, match=r"^Sub\.scael: the class declares no 'scael'"):
        model.scael = 3
    with pytest.raises(AttributeError, match=r"^Sub\.dim: the part"):
        model.dim = 3


def test_near_misses_of_library_layers():
    layer = dx.Linear(2, 3, rngs=dx.Rngs(0))
    with pytest.raises(
        AttributeError, match=r"^Linear\.kernell: the class declares no 'kernell'; did you mean 'kernel'"
    ):
        layer.kernell = dx.Param(jnp.ones((2, 3)))  # type: ignore[attr-defined]  # what is being refused
    layer.kernel_lora = dx.Param(jnp.ones((2, 3)))  # type: ignore[attr-defined]  # surgery
    layer.in_features = 7
    assert layer.in_features == 7


@pytest.mark.parametrize("copied", [dx.clone, lambda m: dx.merge(*dx.split(m)), lambda m: jax.tree.map(lambda x: x, m)])
def test_copies_refuse_what_the_original_refuses(copied):
    model = copied(block())
    with pytest.raises(AttributeError, match="did you mean 'scale'"):
        model.scael = 3
    with pytest.raises(AttributeError, match="was made from this field"):
        model.dim = 3
    model.rate, model.extra = 0.5, 3


def test_surgery_of_abstract_and_traced_models():
    abstract = dx.eval_shape(block)
    abstract.up = dx.Linear(4, 2, rngs=dx.Rngs(0))
    abstract.extra = jax.ShapeDtypeStruct((2,), jnp.float32)
    with pytest.raises(AttributeError, match="did you mean 'scale'"):
        abstract.scael = 3

    @dx.jit
    def change(model: Block, x: jax.Array) -> jax.Array:
        model.extra = x
        model.rate, model.label, model.dim = 0.7, "changed", 4
        model.scale = dx.Param(x)
        return x

    @dx.jit
    def miss(model: Block) -> None:
        model.scael = 3  # type: ignore[attr-defined]  # what is being refused

    model = block()
    change(model, jnp.ones(4))
    assert (model.extra.tolist(), model.rate, model.label) == ([1.0] * 4, 0.7, "changed")
    with pytest.raises(AttributeError, match="did you mean 'scale'"):
        miss(model)


# ---- assignments: fields from which parts were made


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("dim", 5, "up"),
        ("hidden", 3, "up"),
        ("kernel", (1, 1), "conv"),
        ("depth", 3, "layers"),
        ("use_norm", False, "norm"),
        ("dim", 4.0, "up"),
        ("dim", None, "up"),
    ],
)
def test_a_field_from_which_a_part_was_made(name, value, part):
    model = block()
    before = getattr(model, name)
    with pytest.raises(
        errors.MissingAttributeError, match=rf"^Block\.{name}: the part '{part}' was made from this"
    ) as caught:
        setattr(model, name, value)
    lines = caught.value.fix.splitlines()
    assert lines[0] == f"model = dx.replace(model, {name}=..., rngs=dx.Rngs(0))        # makes the parts anew"
    assert lines[1].startswith(f"model.set_attributes({name}=...)")
    assert getattr(model, name) == before
    setattr(model, name, before)
    assert dx.replace(model, dim=6, rngs=dx.Rngs(0)).dim == 6


def test_fields_that_decide_no_part():
    model = block()
    model.rate, model.label, model.steps, model.act = 0.5, "b", 3, dx.gelu
    model.up = dx.Linear(4, 2, rngs=dx.Rngs(0))
    model.layers = [model.up]
    model.norm = None
    model.scale = dx.Param(jnp.ones(7))
    del model.conv
    assert (model.rate, model.steps) == (0.5, 3)


def test_shapes_configurations_and_conditions():
    @dataclasses.dataclass(frozen=True)
    class Config:
        dim: int = 3
        rate: float = 0.1

    @dx.dataclass
    class Model(dx.Module):
        shape: tuple[int, int] = dx.field(default=(2, 3))
        config: Config = dx.field(default=Config())
        other: Config = dx.field(default=Config())
        width: int | None = dx.field(default=None)
        bias: bool = dx.field(default=True)
        table: dx.Param[jax.Array] | None = dx.field(default=None)
        embed: dx.Linear | None = dx.field(default=None)
        size: int = dx.field(init=False, default=3)
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        inner = dx.defer(max)(shape[1], 16)
        up = dx.Linear(config.dim, inner, rngs=rngs)
        drop = dx.Dropout(other.rate)
        kernel: dx.Param[jax.Array] = dx.variable(shape, initializer=dx.initializers.ones)
        shift: dx.Param[jax.Array] | None = dx.variable((3,), initializer=dx.initializers.ones, when=bias)
        given = dx.when(width != None, dx.Linear(2, width, rngs=rngs))  # noqa: E711  # an expression
        down = dx.when(embed == None, dx.Linear(2, size, rngs=rngs))  # noqa: E711  # an expression

    model = Model(rngs=dx.Rngs(0))
    for name, value in {"shape": (3, 3), "config": Config(4), "width": 3, "bias": False}.items():
        with pytest.raises(AttributeError, match=rf"^Model\.{name}: the part"):
            setattr(model, name, value)
    model.config, model.other, model.inner, model.size = Config(), Config(rate=0.2), 5, 4
    model.table, model.embed = dx.Param(jnp.ones(2)), dx.Linear(2, 2, rngs=dx.Rngs(0))
    assert (model.inner, model.other.rate) == (5, 0.2)


def test_constructors_may_change_fields():
    @dx.dataclass
    class Model(Block):
        def __post_init__(self, rngs: dx.Rngs) -> None:
            self.dim = self.dim + 1
            self.double()

        def double(self) -> None:
            self.dim *= 2

    model = Model(4, rngs=dx.Rngs(0))
    assert model.dim == 10
    with pytest.raises(AttributeError, match="was made from this field"):
        model.double()
    with pytest.raises(AttributeError, match="was made from this field"):
        model.set("dim", 3)


def test_a_class_without_streams_is_replaced_without_them():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones, stream=None)

    with pytest.raises(AttributeError, match=r"^Model\.dim: the part 'scale' was made from") as caught:
        Model(3).dim = 4
    assert caught.value.fix.startswith("model = dx.replace(model, dim=...)        #")


def test_a_subclass_of_a_library_layer():
    @dx.dataclass
    class Named(dx.Linear):
        extra: int = dx.field(default=2, kw_only=True)
        table: dx.Param[jax.Array] = dx.variable((extra, dx.Linear.in_features), initializer=dx.initializers.ones)

    layer = Named(2, 3, rngs=dx.Rngs(0))
    layer.in_features = 5
    with pytest.raises(AttributeError, match=r"^Named\.extra: the part 'table'"):
        layer.extra = 3


def test_states_copies_and_checkpoints_of_such_a_class(tmp_path):
    model = block()
    copied = pickle.loads(pickle.dumps(model))
    assert (copied.dim, copied.hidden) == (4, 16)
    assert dx.with_attributes(model, dim=7).dim == 7
    assert copy.deepcopy(model).dim == 4
    dx.update(model, dx.state(copied))
    dx.save(tmp_path / "m", {"model": model})
    assert dx.load(tmp_path / "m", extra=[Block])["model"].dim == 4


# ---- parts that are None, and classes that cannot be called


@dx.dataclass
class Normed(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    use_norm: bool = dx.field(default=False)
    maybe: dx.Dropout | None = dx.field(default=None)
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    norm = dx.when(use_norm & (dim > 2), dx.LayerNorm(dim, rngs=rngs))
    drop: dx.Dropout | None = dx.when(use_norm, dx.Dropout(dim / 10, deterministic=True))
    inner = [norm]

    def __call__(self, x: jax.Array, name: str = "norm") -> jax.Array:
        if name == "norm":
            return self.norm(2 * x)
        if name == "drop":
            return dx.relu(self.drop(x))
        if name == "maybe":
            return self.maybe(x)
        return self.inner[0](x)


def test_a_call_of_a_part_that_is_none():
    model = Normed(3, rngs=dx.Rngs(0))
    with pytest.raises(errors.LayerError, match=r"^Normed\.norm: this part is None, and is called") as caught:
        model(jnp.ones(3))
    made = "norm = dx.when(use_norm & (dim > 2), dx.LayerNorm(dim, rngs=rngs), None)"
    assert caught.value.why == f"{made}, and use_norm & (dim > 2) does not hold"
    assert caught.value.fix == "x if self.norm is None else self.norm(x)"
    assert caught.traceback[-1].name == "__call__"
    with pytest.raises(TypeError, match=r"^Normed\.drop: this part is None") as caught:
        dx.jit(lambda model, x: model(x, "drop"))(model, jnp.ones(3))
    assert Normed(3, use_norm=True, rngs=dx.Rngs(0))(jnp.ones(3)).shape == (3,)


def test_the_path_of_a_call_of_none():
    @dx.dataclass
    class Tower(dx.Module):
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        blocks = [Normed(3, rngs=rngs)]

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.blocks[0](x)

    with pytest.raises(errors.LayerError, match=r"^Normed\.norm, in blocks\[0\] of Tower: this part is None"):
        Tower(dx.Rngs(0))(jnp.ones(3))

    class Around(dx.Module):
        def __init__(self, inner: Normed) -> None:
            self.inner = inner

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.inner.norm(x)

    with pytest.raises(errors.LayerError, match=r"^Normed\.norm: this part is None"):
        Around(Normed(3, rngs=dx.Rngs(0)))(jnp.ones(3))


def test_other_calls_of_none_are_those_of_python():
    with pytest.raises(TypeError, match=r"^'NoneType' object is not callable$"):
        Normed(3, rngs=dx.Rngs(0))(jnp.ones(3), "maybe")
    with pytest.raises(errors.LayerError, match=r"^Normed\.inner\[0\]: this part is None"):
        Normed(3, rngs=dx.Rngs(0))(jnp.ones(3), "inner")


@dx.dataclass
class LeftOut(dx.Layer):
    dim: int = dx.field()
    _: dx.KW_ONLY
    use: bool = dx.field(default=False)
    bias: dx.Param[jax.Array] | None = dx.variable((dim,), initializer=dx.initializers.zeros, when=use)
    blocks = dx.when(use, dx.repeat(2, dx.Linear(dim, dim)))
    embed: dx.Embed | None = dx.when(use, dx.Embed(dim, dim))
    maybe: dx.Linear | None = dx.field(default=None)

    def __call__(self, x, use):
        return use(self, x)


def looped(model, x):
    for block in model.blocks:
        x = block(x)
    return x


def unpacked(model, x):
    first, _ = model.blocks
    return first(x)


@pytest.mark.parametrize(
    ("use", "name", "kind"),
    [
        (looped, "blocks", errors.LayerError),
        (unpacked, "blocks", errors.LayerError),
        (lambda model, x: [block(x) for block in model.blocks], "blocks", errors.LayerError),
        (lambda model, x: sum(block(x) for block in model.blocks), "blocks", errors.LayerError),
        (lambda model, x: dict(zip(model.blocks, x, strict=True)), "blocks", errors.LayerError),
        (lambda model, x: model.blocks[0](x), "blocks", errors.LayerError),
        (lambda model, x: len(model.blocks), "blocks", errors.LayerError),
        (lambda model, x: [*model.blocks], "blocks", errors.LayerError),
        (lambda model, x: model.embed.attend(x), "embed", errors.MissingAttributeError),
        (lambda model, x: model.embed.embedding.shape, "embed", errors.MissingAttributeError),
        (lambda model, x: x + model.bias, "bias", errors.LayerError),
        (lambda model, x: -model.bias, "bias", errors.LayerError),
        (lambda model, x: dx.Param(x) * model.bias, "bias", errors.LayerError),
        (lambda model, x: jnp.add(x, model.bias), "bias", errors.LayerError),
        (lambda model, x: model.bias.value, "bias", errors.MissingAttributeError),
    ],
)
def test_a_use_of_a_part_that_is_none(use, name, kind):
    with pytest.raises(kind, match=rf"^LeftOut\.{name}: this part is None, and is used") as caught:
        LeftOut(3, rngs=dx.Rngs(0))(jnp.ones(3), use)
    assert caught.value.why.startswith(f"{name} = dx.")
    assert caught.value.why.endswith(", and use does not hold")
    assert caught.value.fix == f"if self.{name} is not None: ..."
    with pytest.raises(TypeError if kind is errors.LayerError else AttributeError):  # as that of Python
        LeftOut(3, rngs=dx.Rngs(0))(jnp.ones(3), use)
    if name == "blocks":
        assert use(LeftOut(2, use=True, rngs=dx.Rngs(0)), jnp.ones(2)) is not None


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda model, x: model.maybe.kernel, "'NoneType' object has no attribute 'kernel'"),
        (lambda model, x: x + print(model.bias), "unsupported operand"),  # what a function returns
        (lambda model, x: sorted([x, model.bias, model.maybe]), "not supported between"),
        (lambda model, x: x.missing, "'missing'"),
        (lambda model, x: model.use + None, "unsupported operand"),
    ],
)
def test_other_uses_of_none_are_those_of_python(use, text):
    with pytest.raises((TypeError, AttributeError), match=text) as caught:
        LeftOut(3, rngs=dx.Rngs(0))(jnp.ones(3), use)
    assert not isinstance(caught.value, errors.DeclaxError)


class Torch(dx.Module):
    def __init__(self) -> None:
        self.lin = dx.Linear(2, 2, rngs=dx.Rngs(0))

    def forward(self, x: jax.Array) -> jax.Array:
        return self.lin(x)


def test_none_among_the_layers_of_a_sequential():
    @dx.dataclass
    class Optional(dx.Layer):
        dim: int = dx.field()
        use_norm: bool = dx.field(default=False)
        layers = dx.Sequential(dx.Linear(dim, dim), dx.when(use_norm, dx.LayerNorm(dim)))

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.layers(x)

    with pytest.raises(errors.LayerError, match="this layer is None, and is called") as caught:
        Optional(3, rngs=dx.Rngs(0))(jnp.ones(3))
    assert caught.value.where.startswith("Sequential.layers[1]")
    assert "dx.when(flag, layer, dx.identity)" in caught.value.fix
    assert Optional(3, use_norm=True, rngs=dx.Rngs(0))(jnp.ones(3)).shape == (3,)


def test_a_class_with_forward():
    class Deeper(Torch): ...

    for model in (Torch(), Deeper()):
        name = type(model).__name__
        with pytest.raises(
            TypeError, match=rf"^{name}\.__call__: {name} has a method 'forward', and no '__call__'"
        ) as caught:
            model(jnp.ones((1, 2)))
        assert isinstance(caught.value, errors.LayerError)
        assert caught.value.fix.splitlines()[0] == "def __call__(self, ...): ...        # in place of forward"
        assert model.forward(jnp.ones((1, 2))).shape == (1, 2)
        assert dx.jit(lambda model, x: model.forward(x))(model, jnp.ones((1, 2))).shape == (1, 2)


def test_classes_with_forward_that_can_be_called():
    class Mixin:
        def __call__(self, x: jax.Array) -> jax.Array:
            return self.forward(x)  # type: ignore[attr-defined]  # of the class beside it

    class Mixed(Torch, Mixin): ...

    class Called(Torch):
        def __call__(self, x: jax.Array) -> jax.Array:
            return -self.forward(x)

    @dx.dataclass
    class Both(dx.Module):
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        forward = dx.Linear(2, 2, rngs=rngs)

    x = jnp.ones((1, 2))
    assert jnp.array_equal(Mixed()(x), -Called()(x))
    with pytest.raises(TypeError, match=r"^'Both' object is not callable$"):
        Both(dx.Rngs(0))(x)


def test_forward_in_paths_captures_and_tables():
    class Model(dx.Module):
        def __init__(self) -> None:
            self.part = Torch()

        def __call__(self, x: jax.Array) -> jax.Array:
            self.part.lin(x[:, :1])
            return x

    with pytest.raises(errors.LayerError, match=r"in part\.lin of Model"):
        Model()(jnp.ones((1, 2)))
    capturing = dx.capture(lambda model, x: model.forward(x), dx.Intermediate, method_outputs=dx.Intermediate)
    _, found = capturing(Torch(), jnp.ones((1, 2)))
    assert "forward" in str(found)
    assert "__call__" in str(found["lin"])
    with pytest.raises(errors.LayerError, match="has a method 'forward'"):
        dx.summary(Torch(), jnp.ones((1, 2)))
    assert "Linear" in str(dx.summary(Torch(), jnp.ones((1, 2)), method="forward"))


# ---- sizes that are floats at run time


@dx.dataclass
class Wide(dx.Layer):
    dim: int = dx.field()
    ratio: float = dx.field(default=1.5)
    up = dx.Sequential(dx.Linear(dim, dim * ratio), dx.relu)


@dx.dataclass
class Table(dx.Layer):
    dim: int = dx.field()
    ratio: float = dx.field(default=1.5)
    w: dx.Param[jax.Array] = dx.variable((dim, dim * ratio), initializer=dx.initializers.zeros)


@pytest.mark.parametrize("dim", [3, 4])
def test_a_size_that_a_float_gives(dim):
    with pytest.raises(errors.LayerError, match=r"^Linear\.out_features: this value has the wrong type") as caught:
        Wide(dim, rngs=dx.Rngs(0))
    assert caught.value.fix == "dx.Linear(dim, dx.defer(int)(dim * ratio))"
    assert caught.value.fix in str(caught.value)
    with pytest.raises(errors.FieldError, match=r"the entry 1 of the declared shape gives no size") as caught:
        Table(dim, rngs=dx.Rngs(0))
    assert caught.value.fix == "dx.defer(int)(dim * ratio)        # in place of dim * ratio"


def test_a_size_that_is_out_of_bounds_or_a_product_of_integers():
    assert Wide(3, ratio=2, rngs=dx.Rngs(0)).up.layers[0].kernel.shape == (3, 6)
    with pytest.raises(errors.LayerError, match="out of bounds") as caught:
        Wide(3, ratio=0, rngs=dx.Rngs(0))
    assert caught.value.fix is None


@pytest.mark.parametrize(
    ("size", "fix"), [(6.0, "out_features=6"), (6.5, "out_features=int(...)"), ("6", "out_features=6")]
)
def test_a_size_of_a_layer_that_is_no_integer(size, fix):
    with pytest.raises(errors.LayerError, match="this value has the wrong type") as caught:
        dx.Linear(4, size, rngs=dx.Rngs(0))
    assert caught.value.fix == fix


# ---- keys in __post_init__


def test_a_layer_made_in_post_init():
    @dx.dataclass
    class Silent(dx.Layer):
        dim: int = dx.field()

        def __post_init__(self):
            self.up = dx.Linear(self.dim, 2)

    @dx.dataclass
    class Passing(dx.Layer):
        dim: int = dx.field()

        def __post_init__(self, *, rngs: dx.Rngs | None = None):
            self.up = dx.Linear(self.dim, 2, rngs=rngs)

    with pytest.raises(errors.MissingRngsError, match=r"^Linear\.kernel: random keys are needed") as caught:
        Silent(3, rngs=dx.Rngs(0))
    assert caught.value.fix.splitlines() == [
        "def __post_init__(self, *, rngs: dx.Rngs | None = None): ...        # gets the rngs of Silent",
        "dx.Linear(3, 2, rngs=rngs)",
    ]
    assert Passing(3, rngs=dx.Rngs(0)).up.kernel.shape == (3, 2)
    with pytest.raises(errors.MissingRngsError) as caught:
        Passing(3)
    assert caught.value.fix == "dx.Linear(3, 2, rngs=dx.Rngs(0))"


def test_fields_that_decide_by_computed_sizes_flags_and_tables():
    @dx.dataclass
    class Computed(dx.Layer):
        dim: int = dx.field()
        ratio: float = dx.field(default=2.0)
        scale: float = dx.field(default=2.0)
        rate: float = dx.field(default=0.5)
        bias: bool = dx.field(default=True)
        deterministic: bool = dx.field(default=True)
        sizes: dict[str, int] = dx.field(default_factory=lambda: {"out": 3})
        up = dx.Linear(dim, dx.defer(int)(dim * ratio))
        down = dx.Linear(dim, dx.defer(lambda dim, scale: int(dim * scale))(dim, scale))
        plain = dx.Linear(2, sizes["out"], use_bias=bias)
        drop = dx.Dropout(rate, deterministic=deterministic)

    model = Computed(3, rngs=dx.Rngs(0))
    values = {"ratio": (3.0, "up"), "scale": (3.0, "down"), "bias": (False, "plain"), "sizes": ({"out": 4}, "plain")}
    for name, (value, part) in values.items():
        with pytest.raises(AttributeError, match=f"the part '{part}' was made from this field"):
            setattr(model, name, value)
    model.rate, model.deterministic = 0.1, False
    assert model.drop.rate == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda rngs: dx.Conv(3, 4, (3, 3), rngs),
        lambda rngs: dx.ConvTranspose(3, 4, (3, 3), rngs),
        lambda rngs: dx.MultiHeadAttention(2, 4, rngs),
        lambda rngs: dx.GroupNorm(4, rngs),
        lambda rngs: Counted(3, rngs),
    ],
)
def test_streams_in_the_place_of_another_argument(make):
    with pytest.raises(errors.ConstructionError, match="given by position, and 'rngs' is a keyword") as caught:
        make(dx.Rngs(0))
    assert caught.value.fix.endswith("(..., rngs=dx.Rngs(0))")


@dx.dataclass
class Counted(dx.Layer):
    dim: int = dx.field()
    count: int = dx.field(default=2)


def test_streams_that_a_field_takes():
    rngs = dx.Rngs(0)
    with pytest.raises(errors.StatusError, match=r"Counted\.count: data was assigned"):
        Counted(3, rngs, rngs=rngs)
    assert dx.Sequential(rngs).layers[0] is rngs


def test_a_list_of_declax_in_a_static_field():
    @dx.dataclass
    class Model(dx.Layer):
        sizes: list[int] = dx.field()

    with pytest.raises(errors.StatusError, match=r"Model\.sizes: data was assigned") as caught:
        Model(dx.List([1]))
    assert caught.value.fix.endswith("self.sizes = ...        # a list or dict of Python, of values that are static")
    assert Model([1]).sizes == [1]


# ---- lengths, stacks and subscripts


@pytest.mark.parametrize(
    ("line", "where", "problem", "fix"),
    [
        (
            "part = dx.repeat(dx.Linear(dim, dim), dim)",
            "repeat",
            "the first argument is the number of elements",
            "dx.repeat(dim, dx.Linear(dim, dim))",
        ),
        (
            "part = dx.repeat(named, dim)",
            "repeat",
            "the first argument is the number of elements",
            "dx.repeat(dim, dx.Linear(dim, 2))",
        ),
        (
            "part = dx.repeat(2.0, dx.Linear(dim, dim))",
            "repeat",
            "the first argument is the number of elements",
            "dx.repeat(3, dx.Linear(dim, dim))",
        ),
        (
            "part = dx.Stacked([named, named])",
            "Stacked(...)",
            "the number of layers is missing",
            "dx.Stacked(dx.Linear(dim, dim), 12)",
        ),
        (
            "part = dx.Stacked.of([dx.Linear(dim, dim)])",
            "Stacked.of",
            "these layers are not made until an instance is created",
            "dx.defer(dx.Stacked.of)([dx.Linear(dim, dim)])",
        ),
        (
            "part = [jax.nn.relu, jax.nn.gelu][dim]",
            "Model.dim",
            "a subscript needs one",
            "dx.defer(operator.getitem)(values, dim)        # in place of values[dim]",
        ),
    ],
)
def test_lengths_and_subscripts(line, where, problem, fix):
    source = f"""
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()
    named = dx.Linear(dim, 2)
    {line}

Model(2, rngs=dx.Rngs(0))
"""
    with pytest.raises(errors.DeclaxError, match=re.escape(problem)) as caught:
        exec(source, {"dx": dx, "jax": jax})
    assert caught.value.where == where
    assert caught.value.fix.startswith(fix)


def test_what_the_fixes_of_lengths_and_subscripts_give():
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        count: int = dx.field(default=2)
        layers = dx.repeat(count, dx.Linear(dim, dim))
        some = dx.repeat(dx.defer(min)(count, 3), dx.Linear(dim, dim))
        stack = dx.defer(dx.Stacked.of)([dx.Linear(dim, dim), dx.Linear(dim, dim)])
        act = dx.defer(operator.getitem)([jax.nn.relu, jax.nn.gelu, jax.nn.silu], count)

    model = Model(3, rngs=dx.Rngs(0))
    assert (len(model.layers), len(model.some), len(model.stack)) == (2, 2, 2)
    assert model.act is jax.nn.silu


@pytest.mark.parametrize(
    ("declared", "path"),
    [
        ("[dx.Linear(dim, dim), dx.when(dim > 9, dx.Linear(dim, dim))]", "[1]"),
        ('{"a": dx.when(dim > 9, dx.Linear(dim, dim))}', "['a']"),
        ('{"a": [3, dx.when(dim > 9, dx.Linear(dim, dim))]}', "['a'][1]"),
        ("[norm]", "[0]"),
    ],
)
def test_a_part_in_a_container_that_when_leaves_out(declared, path):
    source = f"""
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()
    norm = dx.when(dim > 9, dx.LayerNorm(dim))
    parts = {declared}

    def __call__(self, x):
        return self.parts{path}(x)
"""
    names = {"dx": dx}
    exec(source, names)
    with pytest.raises(errors.LayerError, match="this part is None, and is called") as caught:
        names["Model"](4, rngs=dx.Rngs(0))(jnp.ones((1, 4)))
    assert caught.value.where == f"Model.parts{path}"
    assert "dim > 9 does not hold" in caught.value.why
    assert names["Model"](10, rngs=dx.Rngs(0))(jnp.ones((1, 10))).shape == (1, 10)


def test_other_calls_of_none_keep_the_error_of_python():
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        parts = [dx.when(dim > 9, dx.Linear(dim, dim))]

        def __call__(self, x, then=None):
            x = x if self.parts[0] is None else self.parts[0](x)
            return then(x)

    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        Model(4, rngs=dx.Rngs(0))(jnp.ones((1, 4)))

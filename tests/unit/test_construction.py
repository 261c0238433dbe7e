"""Declared Variables and submodules: how they are made, and what is refused."""

import dataclasses
import sys
import types
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import errors

ones, zeros = dx.initializers.ones, dx.initializers.zeros
normal = dx.initializers.normal()


def recording(log, name):
    """An initializer that records how it was called."""

    def init(key, shape, dtype):
        log.append((name, None if key is None else jax.random.key_data(key).tolist(), shape, jnp.dtype(dtype)))
        return jnp.zeros(shape, dtype)

    return init


def declare(annotations, **body):
    return dx.dataclass(type("Model", (dx.Module,), {"__annotations__": annotations, "__module__": __name__, **body}))


# --- what is made -----------------------------------------------------------------


def test_members_are_made_in_declaration_order_before_post_init():
    log: list[Any] = []

    @dx.dataclass
    class Model(dx.Module):
        din: int = dx.field()
        dout: int = dx.field()
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        b: dx.Param[jax.Array] = dx.variable((dout,), initializer=recording(log, "b"))
        part = dx.Linear(din, 1, kernel_init=recording(log, "part"), bias_init=recording(log, "part"), rngs=rngs)
        a: dx.Param[jax.Array] = dx.variable((din, dout), initializer=recording(log, "a"))

        def __post_init__(self, rngs):
            log.append(("post", self.a.shape))

    model = Model(2, 3, rngs=dx.Rngs(0))
    assert [entry[0] for entry in log] == ["b", "part", "part", "a", "post"]
    assert log[-1] == ("post", (2, 3))
    keys = dx.Rngs(0)
    assert [entry[1] for entry in log[:-1]] == [jax.random.key_data(keys.params()).tolist() for _ in range(4)]
    assert model.part.kernel.shape == (2, 1)
    assert type(model.a) is dx.Param


def square(n):
    return (n, n)


def test_all_ways_to_declare_a_shape():
    @dx.dataclass
    class Model(dx.Module):
        n: int = dx.field()
        shape: tuple[int, ...] = dx.field(default=(4, 5))
        a: dx.Param = dx.variable((3, n, 2 * n), initializer=ones, stream=None)
        b: dx.Param = dx.variable(shape, initializer=ones, stream=None)
        c: dx.Param = dx.variable(dx.defer(square)(n), initializer=ones, stream=None)
        d: dx.Param = dx.variable(initializer=ones, stream=None)
        e: dx.Param = dx.variable(n, initializer=ones, stream=None)
        f: dx.Param = dx.variable((np.int64(2), n), initializer=ones, stream=None)
        g: dx.Param = dx.variable((0,), initializer=ones, stream=None)

    model = Model(2)
    shapes = [getattr(model, n).shape for n in "abcdefg"]
    assert shapes == [(3, 2, 4), (4, 5), (2, 2), (), (2,), (2, 2), (0,)]


def test_fields_that_hold_the_options():
    @dx.dataclass
    class Model(dx.Module):
        init: Any = dx.static(default=ones)
        kind: Any = dx.field(default=jnp.float16)
        notes: Any = dx.static(default_factory=dict)
        a: dx.Param = dx.variable((1,), initializer=init, dtype=kind, metadata=notes, stream=None)
        b: dx.Param = dx.variable((1,), initializer=ones, dtype="bfloat16", stream=None)
        c: dx.Param = dx.variable((1,), initializer=ones, dtype=jnp.int32, metadata={"tag": "t"}, stream=None)
        d: dx.Param = dx.variable((1,), initializer=ones, stream=None)

    model = Model(notes={"tag": "x"})
    assert [getattr(model, n).dtype for n in "abcd"] == [jnp.float16, jnp.bfloat16, jnp.int32, jnp.float32]
    assert (model.a.tag, model.c.tag) == ("x", "t")


def test_notes_become_metadata():
    @dx.dataclass
    class Model(dx.Module):
        a: dx.Param = dx.variable(
            (2,), initializer=ones, stream=None, sharding=("x",), trainable=False, weight_decay=False
        )
        b: dx.Param = dx.variable((2,), initializer=ones, stream=None)

    model = Model()
    assert (model.a.out_sharding, model.a.trainable, model.a.weight_decay) == (("x",), False, False)
    assert dict(model.b.get_metadata(exclude_required=True)) == {}


def test_the_class_of_a_variable_is_that_of_its_annotation():
    class Running(dx.BatchStat[Any]):
        pass

    Unknown = declare({"a": "Unheard | None"}, a=dx.variable((1,), initializer=ones, stream=None))
    with pytest.raises(errors.FieldError, match="the annotation is not a kind of Variable"):
        Unknown()
    Known = declare(
        {"a": dx.Param[jax.Array], "b": Optional[dx.BatchStat], "c": Running | None, "d": dx.Variable},
        **{n: dx.variable((1,), initializer=ones, stream=None) for n in "abcd"},
    )
    assert [type(getattr(Known(), n)) for n in "abcd"] == [dx.Param, dx.BatchStat, Running, dx.Variable]


def test_streams():
    log: list[Any] = []

    @dx.dataclass
    class Model(dx.Module):
        rngs: dx.InitVar[dx.Rngs]
        a: dx.Param = dx.variable((1,), initializer=recording(log, "a"))
        b: dx.Param = dx.variable((1,), initializer=recording(log, "b"), stream="noise")
        c: dx.Param = dx.variable((1,), initializer=recording(log, "c"), stream=None)

    Model(dx.Rngs(params=0, noise=1))
    expected = dx.Rngs(params=0, noise=1)
    assert [entry[1] for entry in log] == [
        jax.random.key_data(expected.params()).tolist(),
        jax.random.key_data(expected.noise()).tolist(),
        None,
    ]
    log.clear()
    stream = dx.Rngs(0).params
    Model(stream)
    assert [entry[1] is None for entry in log] == [False, False, True]


def test_when():
    @dx.dataclass
    class Model(dx.Module):
        use_bias: bool = dx.field(default=True)
        rngs: dx.InitVar[dx.Rngs] = dx.field(default=None)
        bias: dx.Param[jax.Array] | None = dx.variable((2,), initializer=ones, when=use_bias)
        part = dx.when(use_bias, dx.Linear(1, 1, rngs=rngs))

    without = Model(False)
    assert without.bias is without.part is None
    assert jax.tree.leaves(without) == []
    assert len(jax.tree.leaves(Model(rngs=dx.Rngs(0)))) == 3


def test_rngs_may_be_kept_as_a_field():
    @dx.dataclass
    class Model(dx.Module):
        rngs: dx.Rngs
        a: dx.Param = dx.variable((1,), initializer=normal)

    model = Model(dx.Rngs(0))
    assert int(model.rngs.params.count.value) == 1


def test_an_initializer_with_metadata():
    @dx.dataclass
    class Model(dx.Module):
        a: dx.Param = dx.variable((1,), initializer=dx.with_metadata(ones, tag="t"), stream=None)

    assert Model().a.tag == "t"


def test_members_are_no_parameters():
    @dx.dataclass
    class Model(dx.Module):
        a: dx.Param = dx.variable((1,), initializer=ones, stream=None)

    with pytest.raises(errors.ConstructionError, match="there is no parameter 'a'"):
        Model(a=dx.Param(1))


def test_members_of_a_frozen_module():
    @dx.dataclass(frozen=True, eq=False)
    class Model(dx.Module):
        n: int = dx.field()
        a: dx.Param = dx.variable((n,), initializer=ones, stream=None)

        @dx.submodule
        def part(self) -> dx.Linear:
            return dx.Linear(self.n, 1, rngs=dx.Rngs(0))

    model = Model(2)
    assert model.a.shape == (2,)
    assert len(jax.tree.leaves(model)) == 3
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign"):
        model.a = None
    assert jax.tree.map(lambda x: x, model).n == 2


def test_members_under_a_trace():
    Model = declare({"rngs": dx.InitVar[dx.Rngs], "a": dx.Param}, a=dx.variable((2,), initializer=normal))
    made = jax.eval_shape(lambda: Model(rngs=dx.Rngs(0)))
    assert made.a.shape == (2,)
    assert jax.jit(lambda: Model(rngs=dx.Rngs(0)))().a.value.shape == (2,)


# --- inheritance ------------------------------------------------------------------


@dx.dataclass
class Base(dx.Module):
    n: int = dx.field()
    rngs: dx.InitVar[dx.Rngs]
    a: dx.Param[jax.Array] = dx.variable((n,), initializer=ones)


def test_members_of_parents_come_first_and_may_be_overridden():
    log: list[Any] = []

    @dx.dataclass
    class Child(Base):
        b: dx.Param = dx.variable((1,), initializer=recording(log, "b"))
        a: dx.BatchStat = dx.variable((7,), initializer=recording(log, "a"))

    model = Child(2, dx.Rngs(0))
    assert [entry[0] for entry in log] == ["a", "b"]
    assert type(model.a) is dx.BatchStat
    assert model.a.shape == (7,)


@pytest.mark.parametrize("decorate", [dx.dataclass, lambda cls: cls], ids=["decorated", "plain"])
@pytest.mark.parametrize("calls_super", [True, False])
def test_post_init_of_a_subclass(decorate, calls_super):
    class Child(Base):
        def __post_init__(self, rngs):
            if calls_super:
                super().__post_init__(rngs=rngs)
            self.total = self.a.sum()

    model = decorate(Child)(3, dx.Rngs(0))
    assert float(model.total) == 3.0
    assert int(dx.Rngs(0).params.count.value) == 0


def test_a_subclass_of_a_subclass_makes_members_once():
    log: list[Any] = []

    @dx.dataclass
    class A(dx.Module):
        a: dx.Param = dx.variable((1,), initializer=recording(log, "a"), stream=None)

        def __post_init__(self):
            log.append("A")

    @dx.dataclass
    class B(A):
        b: dx.Param = dx.variable((1,), initializer=recording(log, "b"), stream=None)

        def __post_init__(self):
            super().__post_init__()
            log.append("B")

    class C(B):
        pass

    C()
    assert [entry[0] for entry in log] == ["a", "b", "A", "B"]


def test_a_mixin_with_a_post_init_of_its_own():
    class Mixin:
        def __post_init__(self, rngs):
            self.mixed = self.a.shape

    @dx.dataclass
    class Model(Mixin, Base):
        extra: int = 0

    assert Model(2, rngs=dx.Rngs(0)).mixed == (2,)


def test_further_init_vars():
    @dx.dataclass
    class Child(Base):
        scale: dx.InitVar[float] = 2.0

        def __post_init__(self, rngs, scale):
            super().__post_init__(rngs)
            self.scaled = self.a.value * scale

    assert float(Child(1, dx.Rngs(0)).scaled[0]) == 2.0
    assert float(Child(1, dx.Rngs(0), scale=3.0).scaled[0]) == 3.0


# --- what is refused at class creation --------------------------------------------


def variable(shape=(1,), **options):
    return dx.variable(shape, **{"initializer": ones, "stream": None, **options})


def test_a_stream_in_a_class_without_rngs():
    match = "a declared Variable draws from the stream 'params', and the class takes no rngs"
    with pytest.raises(errors.FieldError, match=match) as info:
        declare({"w": dx.Param}, w=variable(stream="params"))
    assert info.value.where == "Model.w"


@pytest.mark.parametrize("shape", [(2, "dim"), "sizes", lambda self: (self.dim,), [lambda self: self.dim]])
def test_a_shape_of_other_objects(shape):
    with pytest.raises(errors.FieldError, match=r"Model\.w: the entry .* of the declared shape gives no size"):
        declare({"w": dx.Param}, w=variable(shape))()


def test_an_annotation_that_is_no_variable():
    with pytest.raises(
        errors.FieldError, match=r"variable\(...\) declares a Variable, and the annotation is not a kind"
    ):
        declare({"w": jax.Array}, w=variable())


# --- what is refused at construction ----------------------------------------------


def test_a_wrong_shape_from_an_initializer():
    for init in (lambda *_: jnp.ones(3), lambda *_: 1.0, lambda *_: [1.0, 2.0]):
        Model = declare({"w": dx.Param}, w=variable((2,), initializer=init))
        with pytest.raises(
            errors.InitializerError, match=r"Model.w: the initializer returned a value of the wrong shape"
        ) as info:
            Model()
        assert info.value.expected == "an array of shape (2,) and dtype float32"
    assert declare({"w": dx.Param}, w=variable((), initializer=lambda *_: 1.0))().w.value == 1.0


def test_hooks_may_change_the_shape():
    Model = declare({"w": dx.Param}, w=variable((2,), metadata={"on_create_value": lambda _, v: v[:1]}))
    assert Model().w.shape == (1,)


@pytest.mark.parametrize("size", [-1, 1.5, "a", True, None])
def test_a_size_that_is_none(size):
    n = dx.field()
    Model = declare({"n": Any, "w": dx.Param}, n=n, w=variable((3, n)))
    with pytest.raises(errors.FieldError, match="the entry 1 of the declared shape gives no size"):
        Model(size)


@pytest.mark.parametrize("size", [-1, 1.5, "a", True, None])
def test_a_shape_of_no_sizes(size):
    @dx.dataclass
    class Model(dx.Module):
        n: Any = dx.field()
        w: dx.Param = variable(dx.defer(square)(n))

    with pytest.raises(errors.FieldError, match="the entry 0 of the declared shape gives no size"):
        Model(size)


def test_missing_rngs():
    with pytest.raises(TypeError, match="rngs"):
        Base(2)
    with pytest.raises(errors.MissingRngsError, match="random keys are needed here, and the constructor got no rngs"):
        Base(2, None)
    for rngs in (3, jax.random.key(0)):
        with pytest.raises(
            errors.FieldError, match="draws from the stream 'params', and the given rngs have no streams"
        ):
            Base(2, rngs)


def test_a_field_that_comes_too_late():
    @dx.dataclass
    class Model(dx.Module):
        late: int = dx.field(init=False)
        w: dx.Param = dx.variable((late,), initializer=ones, stream=None)

        def __post_init__(self):
            self.late = 3

    with pytest.raises(AttributeError, match="late"):
        Model()


def test_an_error_of_an_initializer_passes():
    def fail(*_):
        raise ZeroDivisionError("in the initializer")

    with pytest.raises(ZeroDivisionError, match="in the initializer"):
        declare({"w": dx.Param}, w=variable(initializer=fail))()


def test_forward_annotations_of_variables():
    module = types.ModuleType("kinds_later")
    sys.modules[module.__name__] = module
    try:
        exec(
            "from __future__ import annotations\n"
            "import declax as dx\n"
            "@dx.dataclass\n"
            "class Model(dx.Module):\n"
            "    w: Later = dx.variable((1,), initializer=dx.initializers.ones, stream=None)\n"
            "class Later(dx.Param): pass\n",
            vars(module),
        )
        assert type(module.Model().w) is module.Later
    finally:
        del sys.modules[module.__name__]
